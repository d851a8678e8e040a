//! A folder that goes with its test, the binary, and captures written and read by hand: another
//! reading of the formats than the one under test.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

pub const RAW: u32 = 101;
pub const ETHERNET: u32 = 1;

static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// A separate directory for each test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weir-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file only its owner can read and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn weir() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir"))
}

/// Exit status and standard error.
pub fn status_and_stderr(output: &Output) -> (i32, String) {
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

pub fn transform(verb: &str, more: &[&str], sa: &Path, input: &Path, output: &Path) -> Output {
    let mut command = weir();
    command.args(["pcap", verb]).args(more).arg("--sa").arg(sa).arg(input).arg(output);
    command.output().unwrap()
}

pub fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// A big-endian pcap file with times in µs; packet `n` was seen at n seconds and 7 µs.
pub fn pcap(link: u32, packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = bytes("a1b2c3d4 0002 0004 00000000 00000000 00040000");
    file.extend(link.to_be_bytes());
    for (n, packet) in packets.iter().enumerate() {
        for word in [n as u32, 7, packet.len() as u32, packet.len() as u32] {
            file.extend(word.to_be_bytes());
        }
        file.extend(packet);
    }
    file
}

/// The records of a little-endian pcap file with times in ns: time and bytes.
pub fn read_pcap(path: &Path) -> (u32, Vec<(u64, Vec<u8>)>) {
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_3c4d, "magic");
    let link = word(20);
    let mut at = 24;
    let mut records = Vec::new();
    while at < file.len() {
        let (time, len) = (u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)), word(at + 8) as usize);
        records.push((time, file[at + 16..at + 16 + len].to_vec()));
        at += 16 + len;
    }
    (link, records)
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let len = (12 + padded) as u32;
    let mut block = kind.to_le_bytes().to_vec();
    block.extend(len.to_le_bytes());
    block.extend(body);
    block.resize(8 + padded, 0);
    block.extend(len.to_le_bytes());
    block
}

/// A pcapng file with one interface per packet, times in µs.
pub fn pcapng(packets: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut file = block(0x0a0d_0d0a, &bytes("4d3c2b1a 0100 0000 ffffffffffffffff"));
    for (link, _) in packets {
        file.extend(block(1, &[&link.to_le_bytes()[..], &[0; 6]].concat()));
    }
    for (n, (_, packet)) in packets.iter().enumerate() {
        let time = 1_000_000 * n as u32 + 7;
        let len = packet.len() as u32;
        let head = [n as u32, 0, time, len, len].map(u32::to_le_bytes).concat();
        file.extend(block(6, &[head, packet.clone()].concat()));
    }
    file
}

/// An IPv4 packet from 192.0.2.1 to 198.51.100.2 with a right checksum.
pub fn ipv4(proto: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = bytes("4500 0000 0001 4000 4000 0000 c0000201 c6336402");
    packet[9] = proto;
    let total = (20 + payload.len()) as u16;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    let sum: u32 = packet.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}
