use std::path::PathBuf;
use std::process::Command;

use crypto::ike::{KeMethod, Prf, Secret, SkKey, SkSuite};
use ike::output::{IkeId, IkeSpi};
use ike::proposal::SequenceNumbers;

use super::*;

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-keylog-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn suite(enc: &str, integ: Option<&str>, sn: SequenceNumbers) -> ChildSuite {
    ChildSuite {
        protocol: ChildProtocol::Esp,
        enc: Some(EncAlg::by_name(enc).unwrap()),
        integ: integ.map(|name| IntegAlg::by_name(name).unwrap()),
        ke: None,
        additional: Vec::new(),
        slots: Vec::new(),
        sn,
        sskdf: None,
    }
}

fn ike_suite(enc: &str, integ: Option<&str>) -> IkeSuite {
    IkeSuite {
        enc: EncAlg::by_name(enc).unwrap(),
        integ: integ.map(|name| IntegAlg::by_name(name).unwrap()),
        prf: Prf::HmacSha256,
        ke: KeMethod::X25519,
        additional: Vec::new(),
        slots: Vec::new(),
    }
}

fn secret(from: u8, len: usize) -> Secret {
    Secret::new((0..len).map(|i| from.wrapping_add(i as u8)).collect())
}

fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(word.to_le_bytes());
    }
    for packet in packets {
        for word in [1, 0, packet.len() as u32, packet.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

/// An IPv4 packet with UDP.
fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let len = 28 + payload.len() as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2];
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    let sum: u32 = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    packet[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    for word in [ports[0], ports[1], len - 20, 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(payload);
    packet
}

/// Output of tshark for a capture, or the reason why there is none.
fn tshark(folder: &Path, capture: &Path, fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.env("WIRESHARK_CONFIG_DIR", folder).env("HOME", folder).arg("-r").arg(capture).args(["-T", "fields"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    match command.output() {
        Err(error) => {
            println!("SKIPPED: cannot run tshark: {error}");
            None
        }
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{stderr}");
            assert!(!stderr.contains("esp_sa") && !stderr.contains("ikev2_decryption_table"), "{stderr}");
            Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
        }
    }
}

/// Seals packets as `weir pcap seal` does and gives tshark the keys.
#[test]
fn tshark_decrypts_esp_with_these_tables() {
    for (enc, integ, sn) in [
        ("aes128gcm16", None, SequenceNumbers::Bits32),
        ("aes256gcm16", None, SequenceNumbers::Extended),
        ("aes192gcm8", None, SequenceNumbers::Bits32),
        ("aes128", Some("sha256"), SequenceNumbers::Bits32),
        ("aes256", Some("sha512"), SequenceNumbers::Bits32),
        ("aes256", Some("sha384"), SequenceNumbers::Extended),
        ("aes128", Some("sha1"), SequenceNumbers::Bits32),
        ("aes128", Some("aesxcbc"), SequenceNumbers::Bits32),
        ("aes256ctr", Some("sha256"), SequenceNumbers::Bits32),
        ("null", Some("sha256"), SequenceNumbers::Bits32),
    ] {
        let folder = Folder::new(enc);
        let suite = suite(enc, integ, sn);
        let name = [Some(enc), integ].into_iter().flatten().collect::<Vec<_>>().join("-");
        let keys = (
            secret(0x10, suite.enc.unwrap().material_len()),
            secret(0x80, suite.integ.map_or(0, |integ| integ.key_len)),
        );
        let config = folder.0.join("sa.conf");
        let esn = if sn == SequenceNumbers::Extended { "yes" } else { "no" };
        let text = format!(
            "gateway {{\n allow_legacy = yes\n}}\nsas {{\n a {{\n protocol = esp\n local = 192.0.2.1\n remote = 198.51.100.2\n suite = {name}\n \
             esn = {esn}\n out {{\n spi = 0x1001\n key = 0x{}{}\n }}\n }}\n}}\n",
            *key("", &keys.0),
            *key("", &keys.1)
        );
        fs::write(&config, text).unwrap();
        let (clear, sealed) = (folder.0.join("clear.pcap"), folder.0.join("sealed.pcap"));
        fs::write(&clear, pcap(&[udp([1234, 4321], b"weir"), udp([1234, 4322], &[0; 900])])).unwrap();
        let config = crate::config::load_offline(&config, None, false).unwrap_or_else(|p| panic!("{name}: {p}"));
        crate::offline::run(&config, crate::offline::Direction::Seal, &clear, &sealed)
            .unwrap_or_else(|_| panic!("{name}"));

        let mut log = KeyLog::open(&folder.0).unwrap();
        let half = SimplexSa { spi: wire::Spi::try_from(0x1001).unwrap(), enc: keys.0, integ: keys.1 };
        log.esp.line(&esp_line(false, &suite, &half));
        let Some(lines) = tshark(&folder.0, &sealed, &["esp.spi", "udp.dstport", "esp.icv_good"]) else { return };
        // Wireshark 4.0 supports neither 64-bit numbers nor AES-XCBC: it decrypts and finds the ICV
        // wrong.
        let decrypts = sn == SequenceNumbers::Bits32 && integ != Some("aesxcbc");
        for (line, port) in lines.iter().zip(["4321", "4322"]) {
            let begin = format!("0x00001001\t{port}\t{}", if decrypts { "1" } else { "" });
            assert!(line.starts_with(&begin), "{name} {sn:?}: {line}");
        }
        assert_eq!(lines.len(), 2);
    }
}

/// An INFORMATIONAL request with a Notify payload inside, under keys that are in the table.
#[test]
fn tshark_decrypts_ikev2_with_these_tables() {
    for (enc, integ) in [
        ("aes128", Some("sha256")),
        ("aes256", Some("sha512")),
        ("aes192", Some("sha384")),
        ("aes128", Some("sha1")),
        ("aes128gcm16", None),
        ("aes256gcm16", None),
        ("aes256gcm12", None),
        ("aes128ccm16", None),
    ] {
        let folder = Folder::new(&format!("ike-{enc}"));
        let suite = ike_suite(enc, integ);
        let sk_e = (secret(0x20, suite.enc.material_len()), secret(0x60, suite.enc.material_len()));
        let integ_len = suite.integ.map_or(0, |integ| integ.key_len);
        let sk_a = (secret(0xa0, integ_len), secret(0xd0, integ_len));
        let spis = IkeSpis { initiator: IkeSpi(*b"initiatr"), responder: IkeSpi(*b"respondr") };
        let sk = SkSuite::new(suite.enc, suite.integ).unwrap();
        let sealing = SkKey::new(sk, &sk_e.0, &sk_a.0).unwrap();
        // INITIAL_CONTACT.
        let inner = [0, 0, 0, 8, 0, 0, 0x40, 0x00];
        let body = sealing.sealed_len(inner.len());
        let mut message = [&spis.initiator.0[..], &spis.responder.0, &[46, 0x20, 37, 0x08, 0, 0, 0, 2]].concat();
        message.extend((32 + body as u32).to_be_bytes());
        message.extend([41, 0]);
        message.extend((4 + body as u16).to_be_bytes());
        sealing.seal(&mut message, 32, &inner, &mut |iv| iv.fill(0x5a));
        let capture = folder.0.join("ike.pcap");
        fs::write(&capture, pcap(&[udp([500, 500], &message)])).unwrap();

        let mut log = KeyLog::open(&folder.0).unwrap();
        log.ike(&IkeSecrets { ike: IkeId(1), version: Version::V2, spis, suite, sk_e, sk_a });
        let Some(lines) = tshark(&folder.0, &capture, &["isakmp.notify.msgtype", "isakmp.ispi"]) else { return };
        assert_eq!(lines, ["16384\t696e697469617472"], "{enc} {integ:?}");
    }
}

/// IKEv1 has one key for both directions, and Wireshark reads the algorithm of message 2.
#[test]
fn an_isakmp_sa_is_a_row_of_its_own_table() {
    let folder = Folder::new("ikev1");
    let mut log = KeyLog::open(&folder.0).unwrap();
    let (suite, none) = (ike_suite("aes128", Some("sha256")), secret(0, 0));
    let spis = IkeSpis { initiator: IkeSpi(*b"initiatr"), responder: IkeSpi(*b"respondr") };
    let (sk_e, sk_a) = ((secret(1, 16), secret(1, 16)), (none.clone(), none));
    log.ike(&IkeSecrets { ike: IkeId(1), version: Version::V1, spis, suite, sk_e, sk_a });
    let row = "696e697469617472,0102030405060708090a0b0c0d0e0f10\n";
    assert_eq!(fs::read_to_string(folder.0.join(IKE_V1)).unwrap(), row);
    assert_eq!(fs::read_to_string(folder.0.join(IKE)).unwrap(), "");
}

#[test]
fn what_wireshark_does_not_know_is_a_comment() {
    let half = SimplexSa { spi: wire::Spi::try_from(0x1001).unwrap(), enc: secret(1, 36), integ: secret(1, 0) };
    let chacha = suite("chacha20poly1305", None, SequenceNumbers::Bits32);
    let line = esp_line(true, &chacha, &half);
    assert_eq!(*line, "# SPI 0x00001001: chacha20poly1305 is not decrypted by Wireshark 4.0");
    let ah = ChildSuite { protocol: ChildProtocol::Ah, ..suite("null", Some("sha256"), SequenceNumbers::Bits32) };
    assert!(esp_line(false, &ah, &half).starts_with('#'));
    let iiv = suite("aes128gcm16iiv", None, SequenceNumbers::Bits32);
    assert!(esp_line(false, &iiv, &half).starts_with('#') && !esp_line(false, &iiv, &half).contains("010203"));
    let suite = ike_suite("chacha20poly1305", None);
    let (sk_e, sk_a) = ((half.enc.clone(), half.enc), (half.integ.clone(), half.integ));
    let spis = IkeSpis { initiator: IkeSpi([1; 8]), responder: IkeSpi([2; 8]) };
    let line = ike_line(&IkeSecrets { ike: IkeId(1), version: Version::V2, spis, suite, sk_e, sk_a });
    assert!(line.starts_with("# SPIs 0101010101010101 0202020202020202: chacha20poly1305"), "{}", *line);
}

#[test]
fn only_the_owner_reads_the_tables_and_nothing_else_is_overwritten() {
    let folder = Folder::new("files");
    let tables = folder.0.join("deep/keys");
    drop(KeyLog::open(&tables).unwrap());
    let mut log = KeyLog::open(&tables).unwrap();
    log.esp.line("once");
    drop(KeyLog::open(&tables).unwrap());
    assert_eq!(fs::read_to_string(tables.join(ESP)).unwrap(), "once\n", "what was there stays");
    assert_eq!(fs::read_to_string(tables.join("preferences")).unwrap(), PREFERENCES, "written once");
    for name in [ESP, IKE, "preferences"] {
        assert_eq!(fs::metadata(tables.join(name)).unwrap().mode() & 0o777, 0o600, "{name}");
    }
    assert_eq!(fs::metadata(&tables).unwrap().mode() & 0o777, 0o700);
    let victim = folder.0.join("victim");
    fs::write(&victim, "").unwrap();
    for link in [true, false] {
        fs::remove_file(tables.join(IKE)).unwrap();
        if link {
            std::os::unix::fs::symlink(&victim, tables.join(IKE)).unwrap();
        } else {
            fs::hard_link(&victim, tables.join(IKE)).unwrap();
        }
        assert!(KeyLog::open(&tables).is_err(), "a link to elsewhere");
    }
    log.esp.bytes = MAX_BYTES;
    log.esp.line("too much");
    assert!(log.esp.reported && fs::read_to_string(tables.join(ESP)).unwrap() == "once\n");
}
