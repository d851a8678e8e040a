//! The eight configurations.

use serde::Serialize;

use crate::subject::Subject;

/// A configuration for traffic from sun to moon.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum DemoVariant {
    /// Without Weir.
    Plain,
    /// ESP in tunnel mode with AES-128-GCM.
    EspGcm,
    /// ESP in transport mode with AES-128-CBC and HMAC-SHA2-256.
    EspCbc,
    /// AH in transport mode with HMAC-SHA2-256.
    Ah,
    /// EESP in tunnel mode with AES-128-GCM.
    Eesp,
    /// The same with Sub SAs, and as many packet threads.
    EespSub,
    /// PSP in transport mode.
    Psp,
    /// PSP in tunnel mode.
    PspTunnel,
}

/// Source of the keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Keys {
    /// The configuration: new random keys in each row.
    Manual,
    /// IKEv2 with certificates, triggered by the first packet.
    Ike,
}

/// Keying of one row.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Keying {
    None,
    Manual,
    Ike,
    /// The key service of PSP.
    Psp,
}

impl DemoVariant {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 8] =
        [Self::Plain, Self::EspGcm, Self::EspCbc, Self::Ah, Self::Eesp, Self::EespSub, Self::Psp, Self::PspTunnel];

    /// Name in files and on the command line.
    pub fn key(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::EspGcm => "esp-gcm",
            Self::EspCbc => "esp-cbc",
            Self::Ah => "ah",
            Self::Eesp => "eesp",
            Self::EespSub => "eesp-sub",
            Self::Psp => "psp",
            Self::PspTunnel => "psp-tunnel",
        }
    }

    /// Name for people, at most 23 characters.
    pub(super) fn label(self, sub_sas: usize) -> String {
        match self {
            Self::Plain => "plain, no Weir".into(),
            Self::EspGcm => "ESP tunnel, AES-GCM".into(),
            Self::EspCbc => "ESP transport, CBC+SHA2".into(),
            Self::Ah => "AH transport, SHA2".into(),
            Self::Eesp => "EESP tunnel, AES-GCM".into(),
            Self::EespSub => format!("EESP tunnel, {sub_sas} Sub SAs"),
            Self::Psp => "PSP transport, AES-GCM".into(),
            Self::PspTunnel => "PSP tunnel, AES-GCM".into(),
        }
    }

    /// The subject between the hosts.
    pub(super) fn subject(self, v6: bool) -> Subject {
        let name = match self {
            Self::Plain => "plain",
            Self::EspGcm => "weir-esp-tunnel-aes128gcm16",
            Self::EspCbc => "weir-esp-transport-aes128-sha256",
            Self::Ah => "weir-ah-transport-sha256",
            Self::Eesp => "weir-eesp-tunnel-aes128gcm16",
            Self::EespSub => "weir-eesp-tunnel-aes128gcm16,sub-sas",
            Self::Psp => "weir-psp-transport-aes128gcm16",
            Self::PspTunnel => "weir-psp-tunnel-aes128gcm16",
        };
        format!("{name}{}", if v6 { ",v6" } else { "" }).parse().expect("a test reads all of them")
    }

    /// Keying of this configuration if `keys` is selected.
    pub(super) fn keying(self, keys: Keys) -> Keying {
        match (self, keys) {
            (Self::Plain, _) => Keying::None,
            (_, Keys::Manual) => Keying::Manual,
            (Self::Psp | Self::PspTunnel, Keys::Ike) => Keying::Psp,
            (_, Keys::Ike) => Keying::Ike,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_fit_their_column() {
        assert!(DemoVariant::ALL.iter().all(|variant| variant.label(16).chars().count() <= 23));
    }

    #[test]
    fn every_row_has_a_subject() {
        for variant in DemoVariant::ALL {
            for v6 in [false, true] {
                let subject = variant.subject(v6);
                assert_eq!((subject.protocol() == "plain", subject.is_v6()), (variant == DemoVariant::Plain, v6));
            }
        }
    }

    #[test]
    fn only_ike_has_keys_to_agree_on() {
        for variant in DemoVariant::ALL {
            let plain = variant == DemoVariant::Plain;
            assert_eq!(variant.keying(Keys::Manual), if plain { Keying::None } else { Keying::Manual });
            assert_eq!(
                variant.keying(Keys::Ike) == Keying::Ike,
                !plain && !matches!(variant, DemoVariant::Psp | DemoVariant::PspTunnel)
            );
        }
    }
}
