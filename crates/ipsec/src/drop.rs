//! Drop reasons. Each dropped packet has one reason and one counter; the packet path produces no
//! text.

macro_rules! drops {
    ($($(#[doc = $doc:literal])* $name:ident = $key:literal, $meaning:literal;)*) => {
        /// Reason for dropping a packet. Each reason has one counter per core and per SA.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $meaning] $name,)*
        }

        impl DropReason {
            /// Every reason, in counter order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Stable name for counters, JSON and `weir pcap` (`bad_icv`).
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// One line of description for reports.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)* }
            }
        }
    };
}

drops! {
    // The packet cannot be parsed.
    Truncated = "truncated", "A header or length field reaches beyond the packet";
    Malformed = "malformed", "A header breaks a rule of its format";
    BadVersion = "bad_version", "Unknown or disabled protocol version";
    BadOption = "bad_option", "Malformed or refused option (EESP)";
    BadPadding = "bad_padding", "ESP padding is longer than the payload";
    BadChecksum = "bad_checksum", "A non-zero outer UDP checksum is wrong";
    NotIpsec = "not_ipsec", "Outer packet is none of ESP, AH, EESP, PSP";
    Keepalive = "keepalive", "NAT keepalive, nothing to do";
    IkeMessage = "ike_message", "IKE message on the NAT-T port, for the control side";
    OuterIcmp = "outer_icmp", "ICMP error about the outer path, of use for path MTU discovery only";

    // Tables.
    NoSa = "no_sa", "No SA for SPI, destination and protocol";
    NoPolicy = "no_policy", "No policy matches; the default is to drop";
    LinkLocal = "link_local", "Link-local multicast of a service of this host, which no policy protects";
    PolicyDrop = "policy_drop", "A policy says drop";
    PolicyMismatch = "policy_mismatch", "Decrypted packet does not match the policy of its SA (RFC 4301 5.2)";
    NotNegotiated = "not_negotiated", "Held for an SA that was not negotiated in time, or more than may be held";
    PlainInbound = "plain_inbound", "Clear packet where the policy demands protection";
    WrongPeer = "wrong_peer", "SPI used from an address it is not bound to";
    NotIssued = "not_issued", "PSP SPI was never given out";
    NoSubSa = "no_sub_sa", "EESP Session ID beyond the negotiated maximum";

    // Sequence numbers and lifetimes.
    ZeroSeq = "zero_seq", "Sequence number 0 is never valid";
    Replay = "replay", "Sequence number seen before";
    TooOld = "too_old", "Sequence number left of the replay window";
    SeqExhausted = "seq_exhausted", "No sequence number left: the SA must be replaced";
    SeqUnsaved = "seq_unsaved", "High-water mark not yet on disk: sending would risk reuse after a crash";
    Expired = "expired", "A hard lifetime of the SA has passed";

    // Cryptography.
    BadIcv = "bad_icv", "ICV is wrong";
    NoKey = "no_key", "Key is gone or could not be derived";
    EngineGone = "engine_gone", "In flight in an asynchronous engine that failed";
    CryptOffset = "crypt_offset", "Crypt offset beyond what this side announced or beyond the packet";

    // The decrypted payload is invalid or not deliverable.
    BadInner = "bad_inner", "Decrypted payload is not a packet the mode allows";
    AggfragIncomplete = "aggfrag_incomplete", "Piece of a cut inner packet, other pieces are missing (RFC 9347)";
    Dummy = "dummy", "Dummy packet of traffic flow confidentiality, discarded as required";
    SampleDrop = "sample_drop", "PSP packet with the request to be dropped after sampling";
    EcnCe = "ecn_ce", "Outer congestion mark on a packet whose inner header does not support ECN (RFC 6040)";

    // Sizes and forwarding.
    TooBig = "too_big", "Larger than the path allows and not to be fragmented; the sender was sent an ICMP error";
    NoRoom = "no_room", "Buffer has no head or tail room for the headers";
    Fragment = "fragment", "A fragment where only whole packets are allowed";
    ReassemblyFull = "reassembly_full", "Reassembly bound reached or fragments overlap";
    ReassemblyTimeout = "reassembly_timeout", "Fragments never became whole";
    HopLimit = "hop_limit", "TTL or hop limit ran out";
    NoRoute = "no_route", "No port leads to the destination";
    QueueFull = "queue_full", "A queue or port had no room";
    Aqm = "aqm", "Dropped early from a standing queue before a worker (RFC 7567)";
    TxError = "tx_error", "The port refused the packet";
    Inconsistent = "inconsistent", "Internal rule broken; please report";
}

impl DropReason {
    /// True for the events that RFC 4303 §3.4, RFC 4302 §3.4 and EESP §7 require to be auditable.
    /// Ordinary traffic decisions should not fill the log: they are counted only.
    pub const fn is_auditable(self) -> bool {
        !matches!(
            self,
            Self::Keepalive
                | Self::IkeMessage
                | Self::OuterIcmp
                | Self::NotIpsec
                | Self::NoPolicy
                | Self::LinkLocal
                | Self::PolicyDrop
                | Self::NotNegotiated
                | Self::AggfragIncomplete
                | Self::Dummy
                | Self::SampleDrop
                | Self::TooBig
                | Self::QueueFull
                | Self::Aqm
                | Self::EngineGone
                | Self::TxError
                | Self::NoRoute
        )
    }
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.meaning())
    }
}

impl std::error::Error for DropReason {}

impl From<wire::ParseError> for DropReason {
    fn from(fault: wire::ParseError) -> Self {
        match fault {
            wire::ParseError::Truncated { .. } => Self::Truncated,
            _ => Self::Malformed,
        }
    }
}
