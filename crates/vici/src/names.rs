//! The names of vici: commands, events, and the words for states, modes and transforms.

/// An enum and its names in one table.
macro_rules! names {
    ($(#[$doc:meta])* $kind:ident { $($variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        #[allow(missing_docs)]
        pub enum $kind { $($variant,)* }

        impl $kind {
            /// All, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// As sent and printed.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The one of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

names! {
    /// Commands of a client.
    Command {
        Version = "version",
        Stats = "stats",
        // Extension of Weir: SAs, policies and workers with their counters.
        Status = "status",
        // Weir's own: ends the gateway and unblocks its traffic.
        Stop = "stop",
        // Weir's own: ends all SAs in order and lets none begin.
        Drain = "drain",
        ReloadSettings = "reload-settings",
        Initiate = "initiate",
        Terminate = "terminate",
        Rekey = "rekey",
        Redirect = "redirect",
        Install = "install",
        Uninstall = "uninstall",
        ListSas = "list-sas",
        ListPolicies = "list-policies",
        ListConns = "list-conns",
        GetConns = "get-conns",
        ListCerts = "list-certs",
        ListAuthorities = "list-authorities",
        GetAuthorities = "get-authorities",
        LoadConn = "load-conn",
        UnloadConn = "unload-conn",
        LoadCert = "load-cert",
        LoadKey = "load-key",
        UnloadKey = "unload-key",
        GetKeys = "get-keys",
        LoadToken = "load-token",
        LoadShared = "load-shared",
        UnloadShared = "unload-shared",
        GetShared = "get-shared",
        ClearCreds = "clear-creds",
        FlushCerts = "flush-certs",
        LoadAuthority = "load-authority",
        UnloadAuthority = "unload-authority",
        LoadPool = "load-pool",
        UnloadPool = "unload-pool",
        GetPools = "get-pools",
        GetAlgorithms = "get-algorithms",
        GetCounters = "get-counters",
        ResetCounters = "reset-counters",
    }
}

names! {
    /// Events for registration.
    Event {
        Log = "log",
        ControlLog = "control-log",
        StatusEntry = "status-entry",
        ListSa = "list-sa",
        ListPolicy = "list-policy",
        ListConn = "list-conn",
        ListCert = "list-cert",
        ListAuthority = "list-authority",
        IkeUpdown = "ike-updown",
        IkeRekey = "ike-rekey",
        IkeUpdate = "ike-update",
        ChildUpdown = "child-updown",
        ChildRekey = "child-rekey",
        Alert = "alert",
    }
}

names! {
    /// Life of an IKE SA.
    IkeState {
        Created = "CREATED",
        Connecting = "CONNECTING",
        Established = "ESTABLISHED",
        Passive = "PASSIVE",
        Rekeying = "REKEYING",
        Rekeyed = "REKEYED",
        Deleting = "DELETING",
        Destroying = "DESTROYING",
    }
}

names! {
    /// Life of a Child SA.
    ChildState {
        Created = "CREATED",
        Routed = "ROUTED",
        Installing = "INSTALLING",
        Installed = "INSTALLED",
        Updating = "UPDATING",
        Rekeying = "REKEYING",
        Rekeyed = "REKEYED",
        Retrying = "RETRYING",
        Deleting = "DELETING",
        Deleted = "DELETED",
        Destroying = "DESTROYING",
    }
}

names! {
    /// Modes of Child SAs and policies.
    Mode {
        Transport = "TRANSPORT",
        TransportProxy = "TRANSPORT_PROXY",
        Tunnel = "TUNNEL",
        Beet = "BEET",
        Iptfs = "IPTFS",
        Pass = "PASS",
        Drop = "DROP",
    }
}

names! {
    /// Types of certificates and related objects.
    CertKind {
        X509 = "X509",
        AttributeCert = "X509_AC",
        Crl = "X509_CRL",
        OcspResponse = "OCSP_RESPONSE",
        PublicKey = "PUBKEY",
    }
}

names! {
    /// Flags of an X.509 certificate.
    CertFlag {
        None = "NONE",
        Ca = "CA",
        Aa = "AA",
        Ocsp = "OCSP",
    }
}

impl Event {
    /// This event in a set of events.
    pub(super) const fn bit(self) -> u32 {
        1 << self as u32
    }
}

const ENCRYPTION: u8 = 1;
const PRF: u8 = 2;
const INTEGRITY: u8 = 3;
const KEY_EXCHANGE: u8 = 4;
/// ADDITIONAL_KEY_EXCHANGE_1 to 7 (RFC 9370) number their methods as transform type 4 does.
const ADDITIONAL: std::ops::RangeInclusive<u8> = 6..=12;

/// Transform type, Transform ID, name. The key length is listed apart, so one name serves all
/// lengths.
const TRANSFORMS: &[(u8, u16, &str)] = &[
    (ENCRYPTION, 2, "DES_CBC"),
    (ENCRYPTION, 3, "3DES_CBC"),
    (ENCRYPTION, 11, "NULL"),
    (ENCRYPTION, 12, "AES_CBC"),
    (ENCRYPTION, 13, "AES_CTR"),
    (ENCRYPTION, 14, "AES_CCM_8"),
    (ENCRYPTION, 15, "AES_CCM_12"),
    (ENCRYPTION, 16, "AES_CCM_16"),
    (ENCRYPTION, 18, "AES_GCM_8"),
    (ENCRYPTION, 19, "AES_GCM_12"),
    (ENCRYPTION, 20, "AES_GCM_16"),
    (ENCRYPTION, 21, "NULL_AES_GMAC"),
    (ENCRYPTION, 23, "CAMELLIA_CBC"),
    (ENCRYPTION, 24, "CAMELLIA_CTR"),
    (ENCRYPTION, 25, "CAMELLIA_CCM_8"),
    (ENCRYPTION, 26, "CAMELLIA_CCM_12"),
    (ENCRYPTION, 27, "CAMELLIA_CCM_16"),
    (ENCRYPTION, 28, "CHACHA20_POLY1305"),
    (ENCRYPTION, 29, "AES_CCM_8_IIV"),
    (ENCRYPTION, 30, "AES_GCM_16_IIV"),
    (ENCRYPTION, 31, "CHACHA20_POLY1305_IIV"),
    (PRF, 1, "PRF_HMAC_MD5"),
    (PRF, 2, "PRF_HMAC_SHA1"),
    (PRF, 4, "PRF_AES128_XCBC"),
    (PRF, 5, "PRF_HMAC_SHA2_256"),
    (PRF, 6, "PRF_HMAC_SHA2_384"),
    (PRF, 7, "PRF_HMAC_SHA2_512"),
    (PRF, 8, "PRF_AES128_CMAC"),
    (INTEGRITY, 1, "HMAC_MD5_96"),
    (INTEGRITY, 2, "HMAC_SHA1_96"),
    (INTEGRITY, 5, "AES_XCBC_96"),
    (INTEGRITY, 6, "HMAC_MD5_128"),
    (INTEGRITY, 7, "HMAC_SHA1_160"),
    (INTEGRITY, 8, "AES_CMAC_96"),
    (INTEGRITY, 9, "AES_128_GMAC"),
    (INTEGRITY, 10, "AES_192_GMAC"),
    (INTEGRITY, 11, "AES_256_GMAC"),
    (INTEGRITY, 12, "HMAC_SHA2_256_128"),
    (INTEGRITY, 13, "HMAC_SHA2_384_192"),
    (INTEGRITY, 14, "HMAC_SHA2_512_256"),
    (KEY_EXCHANGE, 0, "MODP_NONE"),
    (KEY_EXCHANGE, 1, "MODP_768"),
    (KEY_EXCHANGE, 2, "MODP_1024"),
    (KEY_EXCHANGE, 5, "MODP_1536"),
    (KEY_EXCHANGE, 14, "MODP_2048"),
    (KEY_EXCHANGE, 15, "MODP_3072"),
    (KEY_EXCHANGE, 16, "MODP_4096"),
    (KEY_EXCHANGE, 17, "MODP_6144"),
    (KEY_EXCHANGE, 18, "MODP_8192"),
    (KEY_EXCHANGE, 19, "ECP_256"),
    (KEY_EXCHANGE, 20, "ECP_384"),
    (KEY_EXCHANGE, 21, "ECP_521"),
    (KEY_EXCHANGE, 22, "MODP_1024_160"),
    (KEY_EXCHANGE, 23, "MODP_2048_224"),
    (KEY_EXCHANGE, 24, "MODP_2048_256"),
    (KEY_EXCHANGE, 25, "ECP_192"),
    (KEY_EXCHANGE, 26, "ECP_224"),
    (KEY_EXCHANGE, 27, "ECP_224_BP"),
    (KEY_EXCHANGE, 28, "ECP_256_BP"),
    (KEY_EXCHANGE, 29, "ECP_384_BP"),
    (KEY_EXCHANGE, 30, "ECP_512_BP"),
    (KEY_EXCHANGE, 31, "CURVE_25519"),
    (KEY_EXCHANGE, 32, "CURVE_448"),
    (KEY_EXCHANGE, 35, "ML_KEM_512"),
    (KEY_EXCHANGE, 36, "ML_KEM_768"),
    (KEY_EXCHANGE, 37, "ML_KEM_1024"),
];

/// The name under which a transform of IKEv2 is listed, by its IANA numbers. One without a name is
/// listed as `(NUMBER)`.
pub fn transform_name(transform_type: u8, id: u16) -> String {
    let kind = if ADDITIONAL.contains(&transform_type) { KEY_EXCHANGE } else { transform_type };
    TRANSFORMS
        .iter()
        .find(|(known_kind, known_id, _)| (*known_kind, *known_id) == (kind, id))
        .map_or_else(|| format!("({id})"), |(_, _, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for command in Command::ALL {
            assert_eq!(Command::from_name(command.name()), Some(*command));
        }
        for event in Event::ALL {
            assert_eq!(Event::from_name(event.name()), Some(*event));
        }
        assert_eq!(Command::from_name("get-sas"), None);
        let bits = Event::ALL.iter().fold(0, |set, event| set | event.bit());
        assert_eq!(bits.count_ones() as usize, Event::ALL.len());
    }

    #[test]
    fn transforms_have_one_name_each() {
        assert_eq!(transform_name(1, 20), "AES_GCM_16");
        assert_eq!(transform_name(6, 36), "ML_KEM_768");
        assert_eq!(transform_name(4, 1234), "(1234)");
        for (i, (kind, id, _)) in TRANSFORMS.iter().enumerate() {
            assert!(TRANSFORMS[..i].iter().all(|(k, n, _)| (k, n) != (kind, id)), "{kind} {id} twice");
        }
    }
}
