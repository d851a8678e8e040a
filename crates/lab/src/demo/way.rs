//! The eight configurations.

use std::path::Path;

use serde::Serialize;

use super::conf::Setting;
use super::world::Plan;
use crate::pair::Lanes;

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

/// Key service of PSP, which does not use IKE.
const PSP_KEYING: Keying = Keying::Psp;

/// Protocol of a configuration; none for plain traffic.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Family {
    Plain,
    Esp,
    Ah,
    Eesp,
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

    pub(super) fn family(self) -> Family {
        match self {
            Self::Plain => Family::Plain,
            Self::EspGcm | Self::EspCbc => Family::Esp,
            Self::Ah => Family::Ah,
            Self::Eesp | Self::EespSub => Family::Eesp,
            Self::Psp | Self::PspTunnel => Family::Psp,
        }
    }

    /// Keying of this configuration if `keys` is selected.
    pub(super) fn keying(self, keys: Keys) -> Keying {
        match (self.family(), keys) {
            (Family::Plain, _) => Keying::None,
            (_, Keys::Manual) => Keying::Manual,
            (Family::Psp, Keys::Ike) => PSP_KEYING,
            (_, Keys::Ike) => Keying::Ike,
        }
    }

    /// Returns whether traffic runs between the networks of both hosts.
    pub(super) fn is_tunnel(self) -> bool {
        matches!(self, Self::EspGcm | Self::Eesp | Self::EespSub | Self::PspTunnel)
    }

    /// `None` for plain traffic.
    fn protocol(self) -> Option<&'static str> {
        match self.family() {
            Family::Plain => None,
            Family::Esp => Some("esp"),
            Family::Ah => Some("ah"),
            Family::Eesp => Some("eesp"),
            Family::Psp => Some("psp"),
        }
    }

    /// `None` where the protocol has only one.
    pub(super) fn suite(self) -> Option<&'static str> {
        match self {
            Self::EspGcm | Self::Eesp | Self::EespSub => Some("aes128gcm16"),
            Self::EspCbc => Some("aes128-sha256"),
            Self::Ah => Some("sha256"),
            Self::Plain | Self::Psp | Self::PspTunnel => None,
        }
    }

    /// Configuration of both hosts in `plan`, with files in `dir`; `None` for plain traffic.
    pub(super) fn setting<'a>(self, plan: &'a Plan, dir: &'a Path, sub_sas: usize) -> Option<Setting<'a>> {
        let protocol = self.protocol()?;
        let lanes = if self == Self::EespSub { Lanes::SubSas(None) } else { Lanes::One };
        Some(Setting {
            label: self.label(sub_sas),
            protocol,
            suite: self.suite().unwrap_or_default().to_owned(),
            psp_version: 0,
            tunnel: self.is_tunnel(),
            udp: false,
            esn: false,
            seq: true,
            full: false,
            lanes,
            workers: if lanes == Lanes::One { 1 } else { sub_sas as u32 },
            plan,
            dir,
        })
    }

    /// Key material of one direction in bytes; for PSP the master key, for Sub SAs the root key.
    pub(super) fn key_bytes(self) -> usize {
        match self {
            Self::Plain => 0,
            Self::EspGcm | Self::Eesp => 20,
            Self::EspCbc => 48,
            Self::Ah | Self::EespSub | Self::Psp | Self::PspTunnel => 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_fit_their_column() {
        assert!(DemoVariant::ALL.iter().all(|way| way.label(16).chars().count() <= 23));
    }

    #[test]
    fn every_row_but_plain_has_a_configuration() {
        for way in DemoVariant::ALL {
            let plan = Plan { v6: false, mtu: 1500, cable: super::super::world::Cable::Wire };
            assert_eq!(way.setting(&plan, Path::new("/run/x"), 2).is_none(), way == DemoVariant::Plain);
        }
    }

    #[test]
    fn only_ike_has_keys_to_agree_on() {
        for way in DemoVariant::ALL {
            let plain = way == DemoVariant::Plain;
            assert_eq!(way.keying(Keys::Manual), if plain { Keying::None } else { Keying::Manual });
            assert_eq!(way.keying(Keys::Ike) == Keying::Ike, !plain && way.family() != Family::Psp);
        }
    }
}
