//! Assigned numbers of IKEv2 and, where they share a field, of IKEv1: one table per registry.
//!
//! All are open: any value may arrive. `Display` gives the name of the registry.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One registry: an open newtype, a constant per row, and the mapping from value to name.
macro_rules! numbers {
    ($(#[$meta:meta])* $name:ident($int:ty), $noun:literal { $($row:ident = $value:literal $doc:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        // Every value of the integer is valid, so that a header struct can contain the type
        // directly and a message with an unknown number can still be parsed.
        #[repr(transparent)]
        pub struct $name(pub $int);

        #[allow(non_upper_case_globals)] // IDi, TSr: the RFC's spelling
        impl $name {
            $(#[doc = $doc] pub const $row: Self = Self($value);)*

            /// The name in the registry, if the value has one here.
            pub const fn name(self) -> Option<&'static str> {
                // Two rows with one value would be an unreachable pattern.
                match self {
                    $(Self::$row => Some(stringify!($row)),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($noun, " {}"), self.0),
                }
            }
        }
    };
}
pub(super) use numbers;

numbers! {
    /// Exchange type of the IKE header (RFC 7296 §3.1; `*_V1` and below 34: RFC 2408 §3.1).
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
    ExchangeType(u8), "exchange" {
        ID_PROT = 2 "IKEv1 main mode.";
        AUTH_ONLY = 3 "IKEv1 authentication only.";
        AGGRESSIVE = 4 "IKEv1 aggressive mode.";
        INFORMATIONAL_V1 = 5 "IKEv1 informational exchange.";
        TRANSACTION = 6 "IKEv1 Mode Config and XAuth.";
        QUICK_MODE = 32 "IKEv1 quick mode (RFC 2409 §5.5).";
        NEW_GROUP_MODE = 33 "IKEv1 new group mode.";
        IKE_SA_INIT = 34 "First exchange of an IKE SA.";
        IKE_AUTH = 35 "Authentication and first Child SA.";
        CREATE_CHILD_SA = 36 "Further Child SAs and all rekeying.";
        INFORMATIONAL = 37 "Deletes, notifications, liveness.";
        IKE_SESSION_RESUME = 38 "Resumption (RFC 5723).";
        IKE_INTERMEDIATE = 43 "Between IKE_SA_INIT and IKE_AUTH (RFC 9242).";
        IKE_FOLLOWUP_KE = 44 "Additional key exchanges after CREATE_CHILD_SA (RFC 9370).";
    }
}

numbers! {
    /// Payload type, as a Next Payload field names it (RFC 7296 §3.2; `*_V1`: RFC 2408 §3.1).
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
    PayloadType(u8), "payload" {
        NONE = 0 "No next payload.";
        SA_V1 = 1 "IKEv1 security association.";
        PROPOSAL_V1 = 2 "IKEv1 proposal, inside an SA.";
        TRANSFORM_V1 = 3 "IKEv1 transform, inside a proposal.";
        KE_V1 = 4 "IKEv1 key exchange.";
        ID_V1 = 5 "IKEv1 identification.";
        CERT_V1 = 6 "IKEv1 certificate.";
        CERTREQ_V1 = 7 "IKEv1 certificate request.";
        HASH_V1 = 8 "IKEv1 hash.";
        SIG_V1 = 9 "IKEv1 signature.";
        NONCE_V1 = 10 "IKEv1 nonce.";
        NOTIFICATION_V1 = 11 "IKEv1 notification.";
        DELETE_V1 = 12 "IKEv1 delete.";
        VENDOR_V1 = 13 "IKEv1 vendor ID.";
        ATTRIBUTES_V1 = 14 "IKEv1 Mode Config attributes.";
        NAT_D_V1 = 20 "IKEv1 NAT discovery (RFC 3947 §3.2).";
        NAT_OA_V1 = 21 "IKEv1 NAT original address (RFC 3947 §5.2).";
        SA = 33 "Security Association.";
        KE = 34 "Key Exchange.";
        IDi = 35 "Identification of the initiator.";
        IDr = 36 "Identification of the responder.";
        CERT = 37 "Certificate.";
        CERTREQ = 38 "Certificate Request.";
        AUTH = 39 "Authentication.";
        NONCE = 40 "Nonce.";
        NOTIFY = 41 "Notify.";
        DELETE = 42 "Delete.";
        VENDOR = 43 "Vendor ID.";
        TSi = 44 "Traffic Selectors of the initiator.";
        TSr = 45 "Traffic Selectors of the responder.";
        SK = 46 "Encrypted and Authenticated.";
        CP = 47 "Configuration.";
        EAP = 48 "Extensible Authentication Protocol.";
        GSPM = 49 "Generic Secure Password Method (RFC 6467).";
        IDg = 50 "Group Identification (RFC 9838).";
        GSA = 51 "Group Security Association (RFC 9838).";
        KD = 52 "Key Download (RFC 9838).";
        SKF = 53 "Encrypted and Authenticated Fragment (RFC 7383).";
        PUZZLE = 54 "Puzzle Solution (RFC 8019).";
        NAT_D_DRAFT_V1 = 130 "IKEv1 NAT discovery of the drafts before RFC 3947.";
        NAT_OA_DRAFT_V1 = 131 "IKEv1 NAT original address of the drafts before RFC 3947.";
        FRAGMENT_V1 = 132 "IKEv1 fragment, a vendor's extension.";
    }
}

impl PayloadType {
    /// True for the types of RFC 7296 itself (33 to 48): a receiver must know them all, so their
    /// critical bit is ignored (§2.5).
    pub const fn is_base(self) -> bool {
        33 <= self.0 && self.0 <= 48
    }
}

numbers! {
    /// Notify Message Type (RFC 7296 §3.10.1).
    NotifyType(u16), "notify" {
        UNSUPPORTED_CRITICAL_PAYLOAD = 1 "A critical payload is unknown; data: its type.";
        INVALID_IKE_SPI = 4 "No such IKE SA.";
        INVALID_MAJOR_VERSION = 5 "Version not supported; the header names the highest that is.";
        INVALID_SYNTAX = 7 "The message breaks a rule.";
        INVALID_MESSAGE_ID = 9 "Message ID outside the window.";
        INVALID_SPI = 11 "ESP or AH packet with an unknown SPI.";
        NO_PROPOSAL_CHOSEN = 14 "No proposal was acceptable.";
        INVALID_KE_PAYLOAD = 17 "Another key exchange method is wanted; data: its number.";
        AUTHENTICATION_FAILED = 24 "The peer could not be authenticated.";
        SINGLE_PAIR_REQUIRED = 34 "Only one pair of addresses per Child SA.";
        NO_ADDITIONAL_SAS = 35 "No more Child SAs on this IKE SA.";
        INTERNAL_ADDRESS_FAILURE = 36 "No address to hand out.";
        FAILED_CP_REQUIRED = 37 "A configuration request was expected.";
        TS_UNACCEPTABLE = 38 "No traffic selector was acceptable.";
        INVALID_SELECTORS = 39 "A packet did not fit the selectors of its SA.";
        UNACCEPTABLE_ADDRESSES = 40 "New addresses refused (RFC 4555).";
        UNEXPECTED_NAT_DETECTED = 41 "A NAT where none is allowed (RFC 4555).";
        USE_ASSIGNED_HoA = 42 "Use the assigned home address (RFC 5026).";
        TEMPORARY_FAILURE = 43 "Cannot be done just now; try again.";
        CHILD_SA_NOT_FOUND = 44 "The Child SA to rekey does not exist.";
        INVALID_GROUP_ID = 45 "Unknown group (RFC 9838).";
        AUTHORIZATION_FAILED = 46 "Not a member of the group (RFC 9838).";
        STATE_NOT_FOUND = 47 "No such state of a follow-up key exchange (RFC 9370).";
        TS_MAX_QUEUE = 48 "No more SAs with these selectors (RFC 9611).";
        REGISTRATION_FAILED = 49 "Group registration failed (RFC 9838).";
        INITIAL_CONTACT = 16384 "This is the only IKE SA between the identities.";
        SET_WINDOW_SIZE = 16385 "Requests that may be outstanding; data: 4 bytes.";
        ADDITIONAL_TS_POSSIBLE = 16386 "Narrowed; more could be had in another SA.";
        IPCOMP_SUPPORTED = 16387 "IPComp is wanted; data: CPI and transform.";
        NAT_DETECTION_SOURCE_IP = 16388 "Hash of SPIs, source address and port.";
        NAT_DETECTION_DESTINATION_IP = 16389 "Hash of SPIs, destination address and port.";
        COOKIE = 16390 "Proof of the address (§2.6).";
        USE_TRANSPORT_MODE = 16391 "Transport mode is wanted.";
        HTTP_CERT_LOOKUP_SUPPORTED = 16392 "Certificates may be named by URL.";
        REKEY_SA = 16393 "The Child SA that is being replaced.";
        ESP_TFC_PADDING_NOT_SUPPORTED = 16394 "No traffic flow confidentiality padding.";
        NON_FIRST_FRAGMENTS_ALSO = 16395 "Fragments without ports may use the SA (RFC 4301).";
        MOBIKE_SUPPORTED = 16396 "MOBIKE (RFC 4555).";
        ADDITIONAL_IP4_ADDRESS = 16397 "Another IPv4 address of the sender (RFC 4555).";
        ADDITIONAL_IP6_ADDRESS = 16398 "Another IPv6 address of the sender (RFC 4555).";
        NO_ADDITIONAL_ADDRESSES = 16399 "The sender has no other address (RFC 4555).";
        UPDATE_SA_ADDRESSES = 16400 "Use the addresses of this packet (RFC 4555).";
        COOKIE2 = 16401 "Return routability check (RFC 4555).";
        NO_NATS_ALLOWED = 16402 "Addresses and ports as sent (RFC 4555).";
        AUTH_LIFETIME = 16403 "Seconds until reauthentication is due (RFC 4478).";
        MULTIPLE_AUTH_SUPPORTED = 16404 "Several authentications (RFC 4739).";
        ANOTHER_AUTH_FOLLOWS = 16405 "One more authentication follows (RFC 4739).";
        REDIRECT_SUPPORTED = 16406 "May be redirected (RFC 5685).";
        REDIRECT = 16407 "Go to another gateway (RFC 5685).";
        REDIRECTED_FROM = 16408 "The gateway that sent us here (RFC 5685).";
        TICKET_LT_OPAQUE = 16409 "Ticket with its lifetime (RFC 5723).";
        TICKET_REQUEST = 16410 "A ticket is wanted (RFC 5723).";
        TICKET_ACK = 16411 "A ticket will follow (RFC 5723).";
        TICKET_NACK = 16412 "The ticket was refused (RFC 5723).";
        TICKET_OPAQUE = 16413 "The ticket itself (RFC 5723).";
        LINK_ID = 16414 "IPv6 link (RFC 5739).";
        USE_WESP_MODE = 16415 "Wrapped ESP (RFC 5840).";
        ROHC_SUPPORTED = 16416 "Robust header compression (RFC 5857).";
        EAP_ONLY_AUTHENTICATION = 16417 "The responder may leave out its AUTH (RFC 5998).";
        CHILDLESS_IKEV2_SUPPORTED = 16418 "IKE SAs without Child SA (RFC 6023).";
        QUICK_CRASH_DETECTION = 16419 "Token that proves a crash (RFC 6290).";
        IKEV2_MESSAGE_ID_SYNC_SUPPORTED = 16420 "Cluster synchronisation (RFC 6311).";
        IPSEC_REPLAY_COUNTER_SYNC_SUPPORTED = 16421 "Cluster synchronisation (RFC 6311).";
        IKEV2_MESSAGE_ID_SYNC = 16422 "Cluster synchronisation (RFC 6311).";
        IPSEC_REPLAY_COUNTER_SYNC = 16423 "Cluster synchronisation (RFC 6311).";
        SECURE_PASSWORD_METHODS = 16424 "Password methods (RFC 6467).";
        PSK_PERSIST = 16425 "PACE (RFC 6631).";
        PSK_CONFIRM = 16426 "PACE (RFC 6631).";
        ERX_SUPPORTED = 16427 "EAP re-authentication (RFC 6867).";
        IFOM_CAPABILITY = 16428 "IP flow mobility (3GPP).";
        GROUP_SENDER = 16429 "Sender ID in a group (RFC 9838).";
        IKEV2_FRAGMENTATION_SUPPORTED = 16430 "IKE fragmentation (RFC 7383).";
        SIGNATURE_HASH_ALGORITHMS = 16431 "Hashes for digital signatures (RFC 7427).";
        CLONE_IKE_SA_SUPPORTED = 16432 "Cloning (RFC 7791).";
        CLONE_IKE_SA = 16433 "Cloning (RFC 7791).";
        PUZZLE = 16434 "A puzzle to solve (RFC 8019).";
        USE_PPK = 16435 "Post-quantum preshared key (RFC 8784).";
        PPK_IDENTITY = 16436 "Which PPK (RFC 8784).";
        NO_PPK_AUTH = 16437 "AUTH as it would be without PPK (RFC 8784).";
        INTERMEDIATE_EXCHANGE_SUPPORTED = 16438 "IKE_INTERMEDIATE (RFC 9242).";
        IP4_ALLOWED = 16439 "Only IPv4 is assigned (RFC 8983).";
        IP6_ALLOWED = 16440 "Only IPv6 is assigned (RFC 8983).";
        ADDITIONAL_KEY_EXCHANGE = 16441 "Links follow-up key exchanges (RFC 9370).";
        USE_AGGFRAG = 16442 "IP-TFS (RFC 9347).";
        SUPPORTED_AUTH_METHODS = 16443 "Announced authentication methods (RFC 9593).";
        SA_RESOURCE_INFO = 16444 "SA for one resource, such as a CPU (RFC 9611).";
        USE_PPK_INT = 16445 "PPK in IKE_INTERMEDIATE (RFC 9867).";
        PPK_IDENTITY_KEY = 16446 "PPK with key confirmation (RFC 9867).";
        // Notify types from 40960 on are for private use, so that no later assignment by IANA can
        // collide with these.
        USE_BEET_MODE = 40961 "BEET mode, private until assigned (see CodePoints).";
        EESP_MAX_SUB_SA_ID = 41000 "Highest Sub SA ID accepted, private until assigned (see CodePoints).";
        EESP_MAX_CRYPT_OFFSET = 41001 "Largest crypt offset accepted, private until assigned (see CodePoints).";
    }
}

impl NotifyType {
    /// True for errors (below 16384), false for status.
    pub const fn is_error(self) -> bool {
        // An unknown error in a response means that the request failed; an unknown status must be
        // ignored (RFC 7296 §3.10.1).
        self.0 < 16384
    }
}

numbers! {
    /// Security Protocol ID (RFC 7296 §3.3.1).
    ProtocolId(u8), "protocol" {
        NONE = 0 "No protocol: a notification about nothing in particular.";
        IKE = 1 "IKE; in IKEv1 ISAKMP.";
        AH = 2 "AH.";
        ESP = 3 "ESP.";
        IPCOMP_V1 = 4 "IPComp; IKEv1 only.";
        EESP = 249 "EESP version 0, private until assigned (see CodePoints).";
    }
}

numbers! {
    /// Transform Type (RFC 7296 §3.3.2).
    TransformType(u8), "transform type" {
        ENCR = 1 "Encryption algorithm.";
        PRF = 2 "Pseudo-random function.";
        INTEG = 3 "Integrity algorithm.";
        KE = 4 "Key exchange method, once Diffie-Hellman group.";
        SN = 5 "Sequence number properties, once ESN.";
        ADDKE1 = 6 "First additional key exchange (RFC 9370).";
        ADDKE2 = 7 "Second additional key exchange.";
        ADDKE3 = 8 "Third additional key exchange.";
        ADDKE4 = 9 "Fourth additional key exchange.";
        ADDKE5 = 10 "Fifth additional key exchange.";
        ADDKE6 = 11 "Sixth additional key exchange.";
        ADDKE7 = 12 "Seventh additional key exchange.";
        SSKDF = 241 "Sub SA key derivation function of EESP, private until assigned (see CodePoints).";
    }
}

impl TransformType {
    /// Number of additional key exchanges (RFC 9370).
    pub const ADDITIONAL: usize = 7;

    /// The type of additional key exchange `index`, counted from 0; `None` from 7 on.
    pub fn additional(index: usize) -> Option<Self> {
        (index < Self::ADDITIONAL).then(|| Self(Self::ADDKE1.0 + index as u8))
    }

    /// Index of this additional key exchange, from 0; `None` for every other type.
    pub fn additional_index(self) -> Option<usize> {
        (Self::ADDKE1..=Self::ADDKE7).contains(&self).then(|| usize::from(self.0 - Self::ADDKE1.0))
    }
}

numbers! {
    /// Authentication Method of an AUTH payload (RFC 7296 §3.8).
    AuthMethodId(u8), "authentication method" {
        RSA = 1 "RSA digital signature (PKCS #1 1.5).";
        PSK = 2 "Shared key message integrity code.";
        DSS = 3 "DSS digital signature.";
        ECDSA256 = 9 "ECDSA with SHA-256 on P-256 (RFC 4754).";
        ECDSA384 = 10 "ECDSA with SHA-384 on P-384 (RFC 4754).";
        ECDSA521 = 11 "ECDSA with SHA-512 on P-521 (RFC 4754).";
        GSPM = 12 "Generic secure password method (RFC 6467).";
        NULL = 13 "NULL authentication (RFC 7619).";
        DIGITAL_SIGNATURE = 14 "Digital signature (RFC 7427).";
    }
}

numbers! {
    /// Certificate Encoding (RFC 7296 §3.6).
    CertEncoding(u8), "certificate encoding" {
        PKCS7 = 1 "PKCS #7 wrapped X.509 certificates.";
        PGP = 2 "PGP certificate.";
        DNS_SIGNED_KEY = 3 "DNS signed key.";
        X509_SIGNATURE = 4 "One X.509 certificate for signatures.";
        X509_KEY_EXCHANGE = 5 "X.509 certificate for key exchange; IKEv1 only.";
        KERBEROS = 6 "Kerberos token.";
        CRL = 7 "Certificate revocation list.";
        ARL = 8 "Authority revocation list.";
        SPKI = 9 "SPKI certificate.";
        X509_ATTRIBUTE = 10 "X.509 attribute certificate.";
        RAW_RSA_KEY = 11 "PKCS #1 RSA key; deprecated by RFC 7670.";
        HASH_URL = 12 "SHA-1 hash and URL of a certificate.";
        HASH_URL_BUNDLE = 13 "SHA-1 hash and URL of a bundle.";
        OCSP = 14 "OCSP content (RFC 4806).";
        RAW_KEY = 15 "SubjectPublicKeyInfo (RFC 7670).";
    }
}

numbers! {
    /// Identification type (RFC 7296 §3.5; subnets and ranges: RFC 2407 §4.6.2.1).
    IdType(u8), "identity type" {
        IPV4_ADDR = 1 "Four bytes of IPv4 address.";
        FQDN = 2 "Domain name.";
        RFC822_ADDR = 3 "Mail address; USER_FQDN in IKEv1.";
        IPV4_ADDR_SUBNET = 4 "IPv4 address and mask; IKEv1 only.";
        IPV6_ADDR = 5 "Sixteen bytes of IPv6 address.";
        IPV6_ADDR_SUBNET = 6 "IPv6 address and mask; IKEv1 only.";
        IPV4_ADDR_RANGE = 7 "First and last IPv4 address; IKEv1 only.";
        IPV6_ADDR_RANGE = 8 "First and last IPv6 address; IKEv1 only.";
        DER_ASN1_DN = 9 "Distinguished name, DER.";
        DER_ASN1_GN = 10 "General name, DER.";
        KEY_ID = 11 "Opaque bytes.";
        FC_NAME = 12 "Fibre Channel name (RFC 4595).";
        NULL = 13 "Nobody in particular (RFC 7619).";
    }
}

numbers! {
    /// CFG Type of a Configuration payload (RFC 7296 §3.15).
    CfgType(u8), "configuration type" {
        REQUEST = 1 "CFG_REQUEST.";
        REPLY = 2 "CFG_REPLY.";
        SET = 3 "CFG_SET.";
        ACK = 4 "CFG_ACK.";
    }
}

numbers! {
    /// Configuration attribute (RFC 7296 §3.15.1; `XAUTH_*` and `UNITY_*` occur in IKEv1 only).
    CfgAttr(u16), "configuration attribute" {
        INTERNAL_IP4_ADDRESS = 1 "IPv4 address inside: 0 or 4 bytes.";
        INTERNAL_IP4_NETMASK = 2 "Its netmask: 0 or 4 bytes.";
        INTERNAL_IP4_DNS = 3 "IPv4 DNS server: 0 or 4 bytes.";
        INTERNAL_IP4_NBNS = 4 "NetBIOS name server: 0 or 4 bytes.";
        INTERNAL_ADDRESS_EXPIRY = 5 "Seconds an address is lent for; IKEv1 and RFC 4306 only.";
        INTERNAL_IP4_DHCP = 6 "IPv4 DHCP server: 0 or 4 bytes.";
        APPLICATION_VERSION = 7 "Text about the software.";
        INTERNAL_IP6_ADDRESS = 8 "IPv6 address and prefix length: 0 or 17 bytes.";
        INTERNAL_IP6_DNS = 10 "IPv6 DNS server: 0 or 16 bytes.";
        INTERNAL_IP6_NBNS = 11 "IPv6 NetBIOS name server; IKEv1 and RFC 4306 only.";
        INTERNAL_IP6_DHCP = 12 "IPv6 DHCP server: 0 or 16 bytes.";
        INTERNAL_IP4_SUBNET = 13 "Network behind the gateway: address and mask, 0 or 8 bytes.";
        SUPPORTED_ATTRIBUTES = 14 "Two bytes for each attribute that is known.";
        INTERNAL_IP6_SUBNET = 15 "Network behind the gateway: address and prefix length, 17 bytes.";
        MIP6_HOME_PREFIX = 16 "Home prefix (RFC 5026).";
        INTERNAL_IP6_LINK = 17 "Link (RFC 5739).";
        INTERNAL_IP6_PREFIX = 18 "Prefix (RFC 5739).";
        HOME_AGENT_ADDRESS = 19 "Home agent (3GPP).";
        P_CSCF_IP4_ADDRESS = 20 "SIP proxy (RFC 7651).";
        P_CSCF_IP6_ADDRESS = 21 "SIP proxy (RFC 7651).";
        FTT_KAT = 22 "Keepalive times (3GPP).";
        EXTERNAL_SOURCE_IP4_NAT_INFO = 23 "NAT mapping (3GPP).";
        TIMEOUT_PERIOD_FOR_LIVENESS_CHECK = 24 "Seconds of silence before a liveness check (3GPP).";
        INTERNAL_DNS_DOMAIN = 25 "Domain for split DNS (RFC 8598).";
        INTERNAL_DNSSEC_TA = 26 "DNSSEC trust anchor (RFC 8598).";
        ENCDNS_IP4 = 27 "Encrypted DNS over IPv4 (RFC 9464).";
        ENCDNS_IP6 = 28 "Encrypted DNS over IPv6 (RFC 9464).";
        ENCDNS_DIGEST_INFO = 29 "Digest of its certificate (RFC 9464).";
        XAUTH_TYPE = 16520 "Kind of extended authentication; 0 is generic.";
        XAUTH_USER_NAME = 16521 "User name.";
        XAUTH_USER_PASSWORD = 16522 "Password.";
        XAUTH_PASSCODE = 16523 "Token value.";
        XAUTH_MESSAGE = 16524 "Text for the user.";
        XAUTH_CHALLENGE = 16525 "Challenge.";
        XAUTH_DOMAIN = 16526 "Domain.";
        XAUTH_STATUS = 16527 "1 when authentication succeeded, 0 when not.";
        XAUTH_NEXT_PIN = 16528 "Next PIN.";
        XAUTH_ANSWER = 16529 "Answer.";
        UNITY_BANNER = 28672 "Banner.";
        UNITY_SAVE_PASSWD = 28673 "The password may be kept.";
        UNITY_DEF_DOMAIN = 28674 "Default domain.";
        UNITY_SPLITDNS_NAME = 28675 "Domains for split DNS.";
        UNITY_SPLIT_INCLUDE = 28676 "Networks to be tunnelled.";
        UNITY_NATT_PORT = 28677 "UDP port of encapsulation.";
        UNITY_LOCAL_LAN = 28678 "Networks not to be tunnelled.";
        UNITY_PFS = 28679 "Perfect forward secrecy.";
        UNITY_FW_TYPE = 28680 "Firewall type.";
        UNITY_BACKUP_SERVERS = 28681 "Other gateways.";
        UNITY_DDNS_HOSTNAME = 28682 "Host name.";
    }
}

numbers! {
    /// TS Type (RFC 7296 §3.13.1).
    TsType(u8), "selector type" {
        IPV4_ADDR_RANGE = 7 "Range of IPv4 addresses.";
        IPV6_ADDR_RANGE = 8 "Range of IPv6 addresses.";
        FC_ADDR_RANGE = 9 "Range of Fibre Channel addresses (RFC 4595).";
        SECLABEL = 10 "Security label (RFC 9478).";
    }
}

numbers! {
    /// Hash algorithm of a digital signature (RFC 7427 §7).
    HashId(u16), "hash" {
        SHA1 = 1 "SHA-1.";
        SHA2_256 = 2 "SHA-256.";
        SHA2_384 = 3 "SHA-384.";
        SHA2_512 = 4 "SHA-512.";
        IDENTITY = 5 "The message itself (RFC 8420).";
        STREEBOG_256 = 6 "Streebog-256 (RFC 9385).";
        STREEBOG_512 = 7 "Streebog-512 (RFC 9385).";
    }
}

/// Code points of IKEv2 that are not assigned yet. Both peers should use the same ones; the
/// configuration may set them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CodePoints {
    /// Security Protocol ID of EESP version 0.
    pub eesp: ProtocolId,
    /// Transform type of the Sub SA key derivation function.
    pub sskdf: TransformType,
    /// Transform ID of "64-bit Sequential Numbers" (type SN).
    pub sn_64_bit: u16,
    /// Transform ID of "None" (type SN).
    pub sn_none: u16,
    /// Notify: highest Sub SA ID that the sender accepts.
    pub eesp_max_sub_sa_id: NotifyType,
    /// Notify: largest Crypt Offset, in 4-byte words, that the sender accepts.
    pub eesp_max_crypt_offset: NotifyType,
    /// Notify: BEET mode is requested.
    pub use_beet_mode: NotifyType,
}

impl Default for CodePoints {
    fn default() -> Self {
        Self {
            eesp: ProtocolId::EESP,
            sskdf: TransformType::SSKDF,
            sn_64_bit: 1024,
            sn_none: 1025,
            eesp_max_sub_sa_id: NotifyType::EESP_MAX_SUB_SA_ID,
            eesp_max_crypt_offset: NotifyType::EESP_MAX_CRYPT_OFFSET,
            use_beet_mode: NotifyType::USE_BEET_MODE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_registries() {
        assert_eq!(NotifyType(14).to_string(), "NO_PROPOSAL_CHOSEN");
        assert_eq!(NotifyType(9999).to_string(), "notify 9999");
        assert_eq!(ExchangeType(36).to_string(), "CREATE_CHILD_SA");
        assert_eq!(PayloadType(35).to_string(), "IDi");
        assert_eq!(ProtocolId(77).to_string(), "protocol 77");
        assert!(NotifyType::TS_MAX_QUEUE.is_error() && !NotifyType::INITIAL_CONTACT.is_error());
    }

    #[test]
    fn additional_key_exchanges_are_counted_from_zero() {
        for index in 0..TransformType::ADDITIONAL {
            assert_eq!(TransformType::additional(index).and_then(TransformType::additional_index), Some(index));
        }
        assert_eq!(TransformType::additional(6), Some(TransformType::ADDKE7));
        assert_eq!(TransformType::additional(7), None);
        assert_eq!(TransformType::SN.additional_index(), None);
    }
}
