//! Layouts of what Weir really puts on the wire and through cipher and MAC.

use crypto::{CipherKind, Suite};
use ipsec::Protocol;
use throughput::Layout;

use testbed::pair::{Shape, Subject};

/// The layout of `subject`; `None` for a suite that its protocol does not take, and for IP-TFS: its
/// packets share headers.
pub fn subject_layout(subject: &Subject) -> Option<Layout> {
    if subject.iptfs {
        return None;
    }
    let ip = if subject.v6 { 40 } else { 20 };
    let udp = if subject.udp || subject.protocol == Protocol::Psp { 8 } else { 0 };
    let inner = if subject.shape == Shape::Tunnel { 0 } else { ip };
    let base = Layout {
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
        Protocol::Esp => Suite::parse_esp(&subject.suite).ok().map(|suite| esp(base, &suite, subject.esn)),
        Protocol::Ah => Suite::parse_ah(&subject.suite).ok().map(|suite| ah(base, &suite, subject)),
        Protocol::Eesp => Suite::parse_eesp(&subject.suite).ok().map(|suite| eesp(base, &suite, subject)),
        Protocol::Psp => psp(base, subject),
    }
}

/// RFC 4303 §2.
fn esp(mut layout: Layout, suite: &Suite, esn: bool) -> Layout {
    let (iv, esn_bytes) = (suite.iv_len() as u32, if esn { 4 } else { 0 });
    let kind = suite.enc.map(|enc| enc.kind);
    let gmac = kind == Some(CipherKind::AesGmac);
    layout.ciphered_iv = ciphered_iv(suite) as u32;
    layout.head = 8 + iv;
    layout.trailer = 2;
    layout.align = (suite.block_len() as u32).max(4);
    layout.icv = suite.icv_len() as u32;
    layout.confidential = suite.is_confidential();
    // An AEAD authenticates SPI and number; a MAC and GMAC the IV as well (RFC 4106 §5, RFC
    // 4543 §3.3).
    layout.aad = 8 + esn_bytes + if suite.is_aead() && !gmac { 0 } else { iv };
    layout
}

/// Bytes of the IV that are encrypted with the body: with CBC all of them.
pub(super) fn ciphered_iv(suite: &Suite) -> usize {
    let cbc = [CipherKind::AesCbc, CipherKind::TripleDesCbc, CipherKind::DesCbc];
    if suite.enc.is_some_and(|enc| cbc.contains(&enc.kind)) { suite.iv_len() } else { 0 }
}

/// RFC 4302 §2: the whole packet is covered.
fn ah(mut layout: Layout, suite: &Suite, subject: &Subject) -> Layout {
    layout.head = (12 + suite.icv_len() as u32).next_multiple_of(if subject.v6 { 8 } else { 4 });
    layout.confidential = false;
    layout.aad = layout.outer + layout.head + if subject.esn { 4 } else { 0 };
    layout
}

/// draft-ietf-ipsecme-eesp-03 §3, with sequence numbers.
fn eesp(mut layout: Layout, suite: &Suite, subject: &Subject) -> Layout {
    let peer = 8 + suite.iv_len() as u32;
    let optimized = subject.shape == Shape::Tunnel && subject.crypt_offset.is_none();
    layout.trailer = if optimized { 0 } else { 4 };
    let align = if subject.v6 || subject.shape == Shape::Tunnel { 8 } else { 4 };
    let used = 8 + if subject.crypt_offset.is_some() { 4 } else { 0 };
    let options = (used + peer + layout.trailer).next_multiple_of(align) - layout.trailer;
    layout.head = options;
    layout.align = 4;
    layout.icv = suite.icv_len() as u32;
    layout.confidential = suite.is_confidential();
    layout.clear = subject.crypt_offset.map_or(0, u32::from);
    layout.aad = options;
    layout
}

/// PSP Architecture Specification, 2022.
fn psp(mut layout: Layout, subject: &Subject) -> Option<Layout> {
    let version = testbed::pair::PSP_SUITES.iter().position(|s| *s == subject.suite)?;
    layout.head = 16;
    layout.icv = 16;
    layout.confidential = version < 2;
    layout.clear = subject.crypt_offset.map_or(0, u32::from);
    layout.aad = 16;
    Some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crypto::{Aad, Engine};
    use dataplane::{Batch, HEADROOM, TAILROOM, Worker, WorkerConfig};
    use ipsec::{Frame, prepare_out};
    use throughput::Work;
    use wire::{IpPacket, IpProto, SeqNo};

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
            for suite in testbed::pair::PSP_SUITES {
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
            let layout = subject_layout(&subject).unwrap_or_else(|| panic!("{subject:?}"));
            let tables = subject.tables().unwrap();
            let config = WorkerConfig { packet_bytes: 9300, batch: 64, ..WorkerConfig::default() };
            let mut sender = Worker::new(config).0;
            let mut replies = Batch::new(8, 9300);
            let [src, dst] = subject.packet_addresses();
            let mut batch = Batch::new(sizes.len(), 9300);
            for size in &sizes {
                let packet = testbed::packet::udp(src, dst, 4000, 7, *size, IpProto::UDP);
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
            let layout = subject_layout(&subject).unwrap();
            let tables = subject.tables().unwrap();
            let sa = &tables[0].outbound[0];
            let [src, dst] = subject.packet_addresses();
            for size in [100, 101, 517, 1400] {
                let packet = testbed::packet::udp(src, dst, 4000, 7, size, IpProto::UDP);
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
