//! How many bytes are worked on for an inner packet of L bytes: named, versioned size functions.
//!
//! A constant that one size function adds and another does not moves only the fixed time of a fit,
//! never a prediction. A fixed time is therefore meaningful only with the name of its size
//! function, and the lab should never print one without.
//!
//! Two families: the roundings that published figures were computed with ([`ROUNDINGS`]), and what
//! Weir really puts on the wire and through cipher and MAC ([`Layout`]), which a test compares with
//! protected packets.

use crypto::{CipherKind, Suite};
use ipsec::Protocol;

use crate::pair::{Shape, Subject};

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
    /// The layout of `subject`; `None` for a suite that its protocol does not take.
    pub fn of(subject: &Subject) -> Option<Self> {
        let ip = if subject.v6 { 40 } else { 20 };
        let udp = if subject.udp || subject.protocol == Protocol::Psp { 8 } else { 0 };
        let inner = if subject.shape == Shape::Tunnel { 0 } else { ip };
        let base = Self {
            outer: ip + udp,
            head: 0,
            inner,
            trailer: 0,
            align: 1,
            icv: 0,
            confidential: true,
            ciphered_iv: 0,
            clear: 0,
            aad: 0,
        };
        match subject.protocol {
            Protocol::Esp => Suite::parse_esp(&subject.suite).ok().map(|suite| base.esp(&suite, subject.esn)),
            Protocol::Ah => Suite::parse_ah(&subject.suite).ok().map(|suite| base.ah(&suite, subject)),
            Protocol::Eesp => Suite::parse_eesp(&subject.suite).ok().map(|suite| base.eesp(&suite, subject)),
            Protocol::Psp => base.psp(subject),
        }
    }

    /// RFC 4303 §2.
    fn esp(mut self, suite: &Suite, esn: bool) -> Self {
        let (iv, esn_bytes) = (suite.iv_len() as u32, if esn { 4 } else { 0 });
        let kind = suite.enc.map(|enc| enc.kind);
        let gmac = kind == Some(CipherKind::AesGmac);
        let cbc = [CipherKind::AesCbc, CipherKind::TripleDesCbc, CipherKind::DesCbc];
        self.ciphered_iv = if kind.is_some_and(|kind| cbc.contains(&kind)) { iv } else { 0 };
        self.head = 8 + iv;
        self.trailer = 2;
        self.align = (suite.block_len() as u32).max(4);
        self.icv = suite.icv_len() as u32;
        self.confidential = suite.is_confidential();
        // An AEAD authenticates SPI and number; a MAC and GMAC the IV as well (RFC 4106 §5, RFC
        // 4543 §3.3).
        self.aad = 8 + esn_bytes + if suite.is_aead() && !gmac { 0 } else { iv };
        self
    }

    /// RFC 4302 §2: the whole packet is covered.
    fn ah(mut self, suite: &Suite, subject: &Subject) -> Self {
        self.head = (12 + suite.icv_len() as u32).next_multiple_of(if subject.v6 { 8 } else { 4 });
        self.confidential = false;
        self.aad = self.outer + self.head + if subject.esn { 4 } else { 0 };
        self
    }

    /// draft-ietf-ipsecme-eesp-03 §3, with sequence numbers.
    fn eesp(mut self, suite: &Suite, subject: &Subject) -> Self {
        let peer = 8 + suite.iv_len() as u32;
        let optimized = subject.shape == Shape::Tunnel && subject.crypt_offset.is_none();
        self.trailer = if optimized { 0 } else { 4 };
        let align = if subject.v6 || subject.shape == Shape::Tunnel { 8 } else { 4 };
        let used = 8 + if subject.crypt_offset.is_some() { 4 } else { 0 };
        let options = (used + peer + self.trailer).next_multiple_of(align) - self.trailer;
        self.head = options;
        self.align = 4;
        self.icv = suite.icv_len() as u32;
        self.confidential = suite.is_confidential();
        self.clear = subject.crypt_offset.map_or(0, u32::from);
        self.aad = options;
        self
    }

    /// PSP Architecture Specification, 2022.
    fn psp(mut self, subject: &Subject) -> Option<Self> {
        let version = crate::pair::PSP_SUITES.iter().position(|s| *s == subject.suite)?;
        self.head = 16;
        self.icv = 16;
        self.confidential = version < 2;
        self.clear = subject.crypt_offset.map_or(0, u32::from);
        self.aad = 16;
        Some(self)
    }

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
    use crypto::{Aad, Engine};
    use dataplane::{Batch, HEADROOM, TAILROOM, Worker, WorkerConfig};
    use ipsec::{Frame, prepare_out};
    use wire::{IpPacket, IpProto, SeqNo};

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

    fn subjects() -> Vec<Subject> {
        let mut all = vec![];
        for shape in [Shape::Tunnel, Shape::Transport, Shape::Beet] {
            for suite in
                ["aes128gcm16", "aes192gcm12", "aes256gcm8", "chacha20poly1305", "aes128gmac", "aes128gcm16iiv"]
                    .into_iter()
                    .chain([
                        "aes128ccm16",
                        "aes128-sha1",
                        "aes256-sha512",
                        "aes128ctr-sha256",
                        "3des-md5",
                        "null-sha384",
                    ])
            {
                all.push(Subject::new(Protocol::Esp, shape, suite, Engine::best()));
            }
            for suite in ["aes128gcm16", "aes256gcm16iiv", "chacha20poly1305", "aes128gmac"] {
                let eesp = Subject::new(Protocol::Eesp, shape, suite, Engine::best());
                if suite != "aes128gmac" {
                    all.push(Subject { crypt_offset: Some(32), ..eesp.clone() });
                }
                all.push(eesp);
            }
        }
        for shape in [Shape::Tunnel, Shape::Transport] {
            for suite in ["sha256", "sha1", "sha512", "aesxcbc"] {
                all.push(Subject::new(Protocol::Ah, shape, suite, Engine::best()));
            }
            for suite in crate::pair::PSP_SUITES {
                all.push(Subject::new(Protocol::Psp, shape, suite, Engine::best()));
            }
            all.push(Subject {
                crypt_offset: Some(24),
                ..Subject::new(Protocol::Psp, shape, "aes128gcm16", Engine::best())
            });
        }
        let mut more = vec![];
        for subject in &all {
            more.push(Subject { v6: true, ..subject.clone() });
            if matches!(subject.protocol, Protocol::Esp | Protocol::Ah) {
                more.push(Subject { esn: true, ..subject.clone() });
            }
            if matches!(subject.protocol, Protocol::Esp | Protocol::Eesp) {
                more.push(Subject { udp: true, ..subject.clone() });
            }
        }
        all.extend(more);
        all
    }

    #[test]
    fn wire_bytes_are_those_of_protected_packets() {
        let sizes: Vec<usize> = (60..110).chain([512, 513, 1400, 8000]).collect();
        for subject in subjects() {
            let layout = Layout::of(&subject).unwrap_or_else(|| panic!("{subject:?}"));
            let tables = subject.tables().unwrap();
            let config = WorkerConfig { packet_bytes: 9300, batch: 64, ..WorkerConfig::default() };
            let mut sender = Worker::new(config).0;
            let mut replies = Batch::new(8, 9300);
            let [src, dst] = subject.packet_addresses();
            let mut batch = Batch::new(sizes.len(), 9300);
            for size in &sizes {
                let packet = crate::packet::udp(src, dst, 4000, 7, *size, IpProto::UDP);
                assert!(batch.push_with(|p| p.set(&packet)));
            }
            sender.outbound(&tables[0], &mut batch, &mut replies);
            assert_eq!(batch.len(), sizes.len(), "{subject:?}");
            for (packet, size) in batch.packets().iter().zip(&sizes) {
                let expected = layout.bytes(Work::Wire, *size as f64);
                assert_eq!(packet.len() as f64, expected, "{subject:?} at {size}");
            }
        }
    }
    #[test]
    fn cipher_and_mac_bytes_are_those_of_the_operation() {
        for subject in subjects().into_iter().filter(|s| !s.suite.starts_with("null")) {
            let layout = Layout::of(&subject).unwrap();
            let tables = subject.tables().unwrap();
            let sa = &tables[0].outbound[0];
            let [src, dst] = subject.packet_addresses();
            for size in [100, 101, 517, 1400] {
                let packet = crate::packet::udp(src, dst, 4000, 7, size, IpProto::UDP);
                let mut buffer = vec![0; HEADROOM + size + TAILROOM];
                buffer[HEADROOM..HEADROOM + size].copy_from_slice(&packet);
                let ip = IpPacket::parse(&packet).unwrap();
                let mut frame = Frame::new(&mut buffer, HEADROOM..HEADROOM + size).unwrap();
                let (op, _) = prepare_out(sa, &sa.lanes[0], SeqNo(1), &ip, &mut frame).unwrap();
                let aad = match op.aad {
                    Aad::InPlace(span) => span.len(),
                    Aad::Inline(bytes) => bytes.len(),
                    Aad::InPlaceThen(span, bytes) => span.len() + bytes.len(),
                    Aad::InlineThen(bytes, span) => span.len() + bytes.len(),
                };
                let separate = subject.protocol == Protocol::Ah || subject.suite.contains('-');
                let covered = if separate { aad } else { aad + op.body.len() };
                let expected = [Work::Cipher, Work::Auth].map(|work| layout.bytes(work, size as f64) as usize);
                assert_eq!([op.body.len(), covered], expected, "{subject:?} at {size}");
            }
        }
    }
}
