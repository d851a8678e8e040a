//! How many bytes are worked on for an inner packet of L bytes: named, versioned size functions.
//!
//! A constant that one size function adds and another does not moves only the fixed time of a fit,
//! never a prediction. A fixed time is therefore meaningful only with the name of its size
//! function, and the lab should never print one without.
//!
//! Two families: the roundings that published figures were computed with ([`ROUNDINGS`]), and what
//! a protocol really puts on the wire and through cipher and MAC ([`Layout`]).

/// ⌈(L + plus) / to⌉ · to.
#[derive(Debug, PartialEq)]
pub struct Rounding {
    /// Name, e.g. `s2-esp16`.
    pub name: &'static str,
    /// Version: a changed formula gets a new one, so that old profiles keep their meaning.
    pub version: u32,
    /// Bytes added before rounding.
    pub plus: i32,
    /// Multiple that is rounded up to, in bytes.
    pub to: u32,
    /// Description.
    pub what: &'static str,
}

const fn rounding(name: &'static str, plus: i32, to: u32, what: &'static str) -> Rounding {
    Rounding { name, version: 1, plus, to, what }
}

/// Every rounding. `s2-…` are readings of the throughput model's paper (Tisovsky and Baronak 2012),
/// the last is a correction.
pub const ROUNDINGS: &[Rounding] = &[
    rounding("s2-len", 0, 1, "the inner packet"),
    rounding("s2-len2", 2, 1, "the inner packet and two trailer bytes"),
    rounding("s2-esp4", 2, 4, "equation 6 with the alignment that GCM needs"),
    rounding("s2-esp8", 2, 8, "equation 6 for DES and 3DES"),
    rounding("s2-esp16", 2, 16, "equation 6 for AES"),
    rounding("s2-blk8", 0, 8, "whole blocks of 8 without the trailer"),
    rounding("s2-blk16", 0, 16, "whole blocks of 16 without the trailer"),
    rounding("s2-ah64", 36, 64, "equation 5: 12 bytes of IPv4 header, 24 of AH"),
    rounding("s2-ah64-0", 0, 64, "equation 5 without any header"),
    rounding("s2-ah64-12", 12, 64, "equation 5 with the IPv4 fields alone"),
    rounding("s2-ah64-24", 24, 64, "equation 5 with AH alone"),
    rounding("s2-ah64-44", 44, 64, "equation 5 with the whole outer header"),
    rounding("s2-ah64-45", 45, 64, "as before, and one byte of hash padding"),
    rounding("s2-ah64-m12", -12, 64, "equation 5 with 12 bytes subtracted"),
    rounding("s2-ah64-m36", -36, 64, "equation 5 with 36 bytes subtracted"),
    rounding("ah64-hmac", 53, 64, "equation 5 corrected: 20 bytes of IPv4, 24 of AH, 9 of hash padding"),
];

impl Rounding {
    /// Bytes for an inner packet of `len` bytes.
    pub fn bytes(&self, len: f64) -> f64 {
        let to = f64::from(self.to);
        ((len + f64::from(self.plus)) / to).ceil().max(0.0) * to
    }

    /// The rounding of that name, with or without `/version`.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        let (name, version) = name.split_once('/').unwrap_or((name, "1"));
        ROUNDINGS.iter().find(|r| r.name == name && version.parse() == Ok(r.version))
    }

    /// `name/version`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.name, self.version)
    }
}

/// Work that a size function counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Bytes of the IP packet that leaves.
    Wire,
    /// Bytes through the cipher.
    Cipher,
    /// Bytes under the ICV, associated data included.
    Auth,
}

/// Effect of a configuration on the length of a packet without IP options. Lengths in bytes.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Layout {
    /// IP header and, where there is one, UDP header in front.
    pub outer: u32,
    /// Header of the protocol, with IV and options.
    pub head: u32,
    /// Bytes of the inner packet that do not become payload: its IP header in transport and BEET
    /// mode.
    pub inner: u32,
    /// Bytes that are protected along with the payload: ESP trailer, EESP payload info.
    pub trailer: u32,
    /// Payload and trailer are padded to a multiple of this.
    pub align: u32,
    /// ICV after the payload (for AH it is part of `head`).
    pub icv: u32,
    /// True if payload and trailer are encrypted.
    pub confidential: bool,
    /// Bytes of the IV that go through the cipher along with them: CBC makes its IV unpredictable
    /// by encrypting it.
    pub ciphered_iv: u32,
    /// First bytes of the payload that stay in the clear.
    pub clear: u32,
    /// Associated data, or the bytes that a MAC covers besides payload and trailer.
    pub aad: u32,
}

impl Layout {
    /// Payload and trailer of an inner packet of `len` bytes, padded.
    fn body(&self, len: f64) -> f64 {
        let align = f64::from(self.align);
        let unpadded = (len - f64::from(self.inner)).max(0.0) + f64::from(self.trailer);
        (unpadded / align).ceil() * align
    }

    /// Bytes of `work` for an inner packet of `len` bytes.
    pub fn bytes(&self, work: Work, len: f64) -> f64 {
        let body = self.body(len);
        match work {
            Work::Wire => f64::from(self.outer + self.head + self.icv) + body,
            Work::Cipher if !self.confidential => 0.0,
            Work::Cipher => f64::from(self.ciphered_iv) + (body - f64::from(self.clear)).max(0.0),
            Work::Auth => f64::from(self.aad) + body,
        }
    }
}

/// A size function that a profile can name.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SizeFn {
    /// One of [`ROUNDINGS`], by `name/version`.
    Rounding(String),
    /// Effect of a layout, version 1.
    Layout {
        /// Work.
        work: Work,
        /// The layout.
        layout: Layout,
    },
}

impl SizeFn {
    /// The inner packet itself.
    pub fn len() -> Self {
        Self::Rounding("s2-len/1".to_owned())
    }

    /// Bytes for an inner packet of `len` bytes; `NaN` for a rounding that this version does not
    /// know.
    pub fn bytes(&self, len: f64) -> f64 {
        match self {
            Self::Rounding(name) => Rounding::by_name(name).map_or(f64::NAN, |r| r.bytes(len)),
            Self::Layout { work, layout } => layout.bytes(*work, len),
        }
    }

    /// Name with version.
    pub fn id(&self) -> String {
        match self {
            Self::Rounding(name) => name.clone(),
            Self::Layout { work, .. } => format!("weir-{work:?}/1").to_lowercase(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundings_have_one_name_each_and_are_found_by_it() {
        for r in ROUNDINGS {
            assert_eq!(Rounding::by_name(&r.id()), Some(r));
            assert_eq!(Rounding::by_name(r.name), Some(r));
        }
        assert_eq!(Rounding::by_name("s2-esp16/2"), None);
        assert_eq!(Rounding::by_name("nonsense"), None);
    }

    #[test]
    fn the_corrected_ah_formula_differs_from_the_printed_one_at_1420_bytes_only() {
        let [printed, corrected] = ["s2-ah64", "ah64-hmac"].map(|n| Rounding::by_name(n).unwrap());
        for len in [64.0, 128.0, 512.0, 1280.0] {
            assert_eq!(printed.bytes(len), corrected.bytes(len), "{len}");
        }
        assert_eq!((printed.bytes(1420.0), corrected.bytes(1420.0)), (1472.0, 1536.0));
    }
}
