//! `weir pcap` from file to file: published and made vectors byte by byte, both formats, link
//! headers, refusals.

mod support;

use support::*;

/// Seals `packets`, opens the result from the other end, and returns what was sealed.
fn there_and_back(sa: &str, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let folder = Folder::new();
    let sa = folder.write("sa.conf", sa);
    let clear = folder.write("clear.pcap", pcap(RAW, packets));
    let (sealed, opened) = (folder.path("sealed.pcap"), folder.path("opened.pcap"));
    let output = transform("seal", &[], &sa, &clear, &sealed);
    assert_eq!(status_and_stderr(&output).0, 0, "{}", status_and_stderr(&output).1);
    let output = transform("open", &["--mirror"], &sa, &sealed, &opened);
    assert_eq!(status_and_stderr(&output).0, 0, "{}", status_and_stderr(&output).1);
    let (link, records) = read_pcap(&opened);
    assert_eq!(link, RAW);
    for (n, (time, packet)) in records.iter().enumerate() {
        assert_eq!((packet, *time), (&packets[n], n as u64 * 1_000_000_000 + 7000), "packet {n} came back different");
    }
    assert_eq!(records.len(), packets.len());
    read_pcap(&sealed).1.into_iter().map(|(_, packet)| packet).collect()
}

fn section(protocol: &str, addresses: [&str; 2], lines: &str, out: &str) -> String {
    let [local, remote] = addresses;
    format!(
        "sas {{\n a {{\n protocol = {protocol}\n local = {local}\n remote = {remote}\n{lines}\n out {{\n{out}\n }}\n }}\n}}\n"
    )
}

const V4: [&str; 2] = ["192.0.2.1", "198.51.100.2"];
const V6: [&str; 2] = ["2001:db8:1::1", "2001:db8:2::2"];
/// AES-128 and salt of most EESP vectors.
const KEY: &str = "key = 0x101112131415161718191a1b1c1d1e1fcafebabe";
const INNER_A: &str = "45000022 00014000 40114e93 c0000201 c6336402 03e807d0 000e420c 45455350 2d41";
const INNER_B: &str = "60000000 000f1140 20010db8000000010000000000000001 20010db8000000020000000000000002 \
                       03e807d0 000fa2c8 45455350 2d4230";
const INNER_D: &str = "45000023 00014000 40114e92 c0000201 c6336402 03e807d0 000f1107 45455350 2d4431";

/// One packet sealed under an EESP SA: the EESP packet after the outer IP header.
fn eesp(addresses: [&str; 2], lines: &str, out: &str, inner: Vec<u8>) -> Vec<u8> {
    let sealed = there_and_back(&section("eesp", addresses, lines, out), &[inner]);
    let outer = if sealed[0][0] >> 4 == 6 { 40 } else { 20 };
    sealed[0][outer..].to_vec()
}

#[test]
fn eesp_vector_a_optimised_format_with_an_explicit_iv() {
    let out = format!("spi = 0x11223344\n first_iv = 0x0102030405060708\n {KEY}");
    assert_eq!(
        eesp(V4, "suite = aes128gcm16", &out, bytes(INNER_A)),
        bytes(
            "80000000 11223344 00000000 00000001 01020304 05060708 319779e6 b7395859 a48d8a11 ba460aa1 7b5c227a 258da630 \
             6119a6fc ea2292e9 b008f094 325e7113 17c46837 93880ca4 ea0c4d8b"
        )
    );
}

#[test]
fn eesp_vector_b_sub_sa_with_implicit_iv_beyond_32_bits() {
    let root: String = (0..32).map(|b| format!("{b:02x}")).collect();
    let out = format!("spi = 0x81223344\n first_seq = 0x100000001\n key = 0x{root}");
    let lines = "suite = aes256gcm16iiv\n sub_sas = 6\n session = 5\n sskdf = sha256";
    assert_eq!(
        eesp(V4, lines, &out, bytes(INNER_B)),
        bytes(
            "80000005 81223344 00000001 00000001 6dc17a84 659ed0bb b1802074 abd0ea75 8090fb7b f2b0c99a 15ad1af6 1d4fe135 \
             f2b06acf 53820e9c 74177c06 5a81a1f8 451be582 e96832dc 304ce420 57eecb24 36032091 f76ab5e8"
        )
    );
}

#[test]
fn eesp_vector_c_transport_over_ipv6_is_aligned_with_padn() {
    let key: String = (0x80..0xa0).map(|b| format!("{b:02x}")).collect();
    let out = format!("spi = 0x11223355\n first_seq = 3\n key = 0x{key}a0a1a2a3");
    let inner = bytes(
        "60000000 000e1140 20010db8000100000000000000000001 20010db8000200000000000000000002 03e807d0 000ed2c9 45455350 2d43",
    );
    assert_eq!(
        eesp(V6, "mode = transport\n suite = chacha20poly1305", &out, inner),
        bytes(
            "80040000 11223355 01020000 00000000 00000003 00000000 00000003 8aed393b dc6ecdcb ebff3ee5 6134e981 1f4d1a8f \
             c8423890 62eb0496 37b0b1a1 a4a736c5"
        )
    );
}

#[test]
fn eesp_vector_d_crypt_offset_leaves_headers_in_the_clear() {
    let out = format!("spi = 0x11223366\n first_seq = 7\n crypt_offset = 32\n {KEY}");
    assert_eq!(
        eesp(V4, "suite = aes128gcm16", &out, bytes(INNER_D)),
        bytes(
            "80040000 11223366 02021c80 00000000 00000007 00000000 00000007 00000401 45000023 00014000 40114e92 c0000201 \
             c6336402 03e807d0 000f1107 b1861a63 a14aa1ac 936a2108 f0869b54 0c0b3431 bf76abf5"
        )
    );
}

#[test]
fn eesp_vector_e_gmac() {
    let out = format!("spi = 0x11223377\n {KEY}");
    assert_eq!(
        eesp(V4, "suite = aes128gmac", &out, bytes(INNER_A)),
        bytes(
            "80000000 11223377 00000000 00000001 00000000 00000001 45000022 00014000 40114e93 c0000201 c6336402 03e807d0 \
             000e420c 45455350 2d410000 8f581438 70478f6f c0150a1a e4ccd7cf"
        )
    );
}

#[test]
fn eesp_vector_f_ccm() {
    let out = "spi = 0x11223388\n key = 0x101112131415161718191a1b1c1d1e1fcafeba";
    assert_eq!(
        eesp(V4, "suite = aes128ccm16", out, bytes(INNER_A)),
        bytes(
            "80000000 11223388 00000000 00000001 00000000 00000001 305c017c 32403cc8 bcac8c93 be4edb15 a7ebba4b e8fcf6c4 \
             4ae20b17 34428a10 586d1458 34520cbc 7866b5ae 563a6730 c65a0647"
        )
    );
}

#[test]
fn eesp_vector_g_transport_without_sequence_numbers() {
    let out = format!("spi = 0x11223399\n first_iv = 9\n {KEY}");
    // The checksum of a UDP datagram from 1000 to 2000 with "EESP" is part of the plaintext.
    let inner = ipv4(17, &bytes("03e807d0 000c0000 45455350"));
    let udp = udp_checksum(inner);
    assert_eq!(
        eesp(V4, "mode = transport\n seq = no\n suite = aes128gcm16", &out, udp),
        bytes(
            "80000000 11223399 00000000 00000009 87317c8b fe174298 2374f9e3 b340fd3f 4109845b 93a574f3 324bdf77 1dee3a55"
        )
    );
}

/// Fills in the checksum of an IPv4 UDP packet.
fn udp_checksum(mut packet: Vec<u8>) -> Vec<u8> {
    let len = (packet.len() - 20) as u16;
    let pseudo = [&packet[12..20], &[0, 17], &len.to_be_bytes(), &packet[20..]].concat();
    let mut sum: u32 = pseudo.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[26..28].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet
}

fn datagrams() -> Vec<Vec<u8>> {
    [0, 1, 2, 3, 100, 1400, 8000]
        .map(|len| {
            udp_checksum(ipv4(
                17,
                &[&bytes("03e807d0")[..], &(8 + len as u16).to_be_bytes(), &[0; 2], &vec![0x5a; len]].concat(),
            ))
        })
        .to_vec()
}

#[test]
fn every_protocol_and_mode_comes_back_as_it_went() {
    let key = |len: usize| "11".repeat(len);
    for (protocol, lines, out) in [
        ("esp", "suite = aes128gcm16", format!("spi = 0x1001\n key = 0x{}", key(20))),
        (
            "esp",
            "suite = aes256gcm16\n esn = yes\n encap = yes",
            format!("spi = 0x1001\n first_seq = 0xffffffff\n key = 0x{}", key(36)),
        ),
        (
            "esp",
            "suite = aes128-sha256\n mode = transport",
            format!("spi = 0x1001\n enc_key = 0x{}\n integ_key = 0x{}", key(16), key(32)),
        ),
        ("esp", "suite = aes128ctr-sha1\n mode = transport", format!("spi = 0x1001\n key = 0x{}", key(40))),
        ("ah", "suite = sha256", format!("spi = 0x1001\n key = 0x{}", key(32))),
        ("ah", "suite = sha512\n mode = transport\n esn = yes", format!("spi = 0x1001\n key = 0x{}", key(64))),
        ("eesp", "suite = aes256gcm16iiv\n sub_sas = 3", format!("spi = 0x1001\n key = 0x{}", key(32))),
        ("psp", "mode = transport", format!("spi = 0x12345678\n master_key_0 = 0x{}", key(32))),
        (
            "psp",
            "version = 1",
            format!("spi = 0x9a345678\n cookie = 0x1122334455667788\n crypt_offset = 8\n master_key_1 = 0x{}", key(32)),
        ),
    ] {
        let packets = datagrams();
        let sealed = there_and_back(&section(protocol, V4, lines, &out), &packets);
        assert_eq!(sealed.len(), packets.len(), "{protocol} {lines}");
        assert_eq!(sealed, there_and_back(&section(protocol, V4, lines, &out), &packets), "{protocol}: not repeatable");
    }
}

/// K0 of the PSP specification gives this traffic key for SPI 0x12345678 and version 0: the master
/// key and the traffic key produce the same packets.
#[test]
fn a_psp_key_may_be_given_or_derived() {
    let master = "34448a064292601b11a0978f56a2d34cf3fc35ede1a6bc04f8db3e5243a2b0ca";
    let out =
        |key: &str| section("psp", V4, "mode = transport", &format!("spi = 0x12345678\n source_port = 1000\n {key}"));
    let folder = Folder::new();
    let clear = folder.write("clear.pcap", pcap(RAW, &datagrams()));
    let sealed =
        ["key = 0x96c22dc799198090b74b70ae468e4e30".to_owned(), format!("master_key_0 = 0x{master}")].map(|key| {
            let sa = folder.write("sa.conf", out(&key));
            let output = transform("seal", &[], &sa, &clear, &folder.path("sealed.pcap"));
            assert_eq!(status_and_stderr(&output).0, 0, "{}", status_and_stderr(&output).1);
            read_pcap(&folder.path("sealed.pcap")).1
        });
    assert_eq!(sealed[0], sealed[1]);
    let (_, packet) = &sealed[0][0];
    assert_eq!(packet[20..24], bytes("03e803e8"), "UDP ports");
    assert_eq!(packet[28..44], bytes("11010001 12345678 00000000 00000001"), "PSP header");
}

fn esp_section() -> String {
    section("esp", V4, "suite = aes128gcm16", &format!("spi = 0x1001\n key = 0x{}", "11".repeat(20)))
}

#[test]
fn refused_packets_have_a_line_each_and_the_others_are_written() {
    let folder = Folder::new();
    let sa = folder.write("sa.conf", esp_section());
    let clear = folder.write("clear.pcap", pcap(RAW, &datagrams()[..3]));
    let (sealed, opened) = (folder.path("sealed.pcap"), folder.path("opened.pcap"));
    assert_eq!(status_and_stderr(&transform("seal", &[], &sa, &clear, &sealed)).0, 0);
    let mut packets: Vec<Vec<u8>> = read_pcap(&sealed).1.into_iter().map(|(_, packet)| packet).collect();
    packets[1][40] ^= 1;
    packets.push(packets[0].clone());
    packets.push(packets[0][..30].to_vec());
    let bad = folder.write("bad.pcap", pcap(RAW, &packets));
    let (status, stderr) = status_and_stderr(&transform("open", &["--mirror"], &sa, &bad, &opened));
    assert_eq!(status, 1, "{stderr}");
    for line in ["packet 2: bad_icv: ICV is wrong", "packet 4: replay: ", "packet 5: truncated: "] {
        assert_eq!(stderr.lines().filter(|l| l.starts_with(line)).count(), 1, "{line}:\n{stderr}");
    }
    assert_eq!(read_pcap(&opened).1.len(), 2);
}

#[test]
fn ethernet_headers_vlan_tags_and_other_frames_are_kept() {
    let folder = Folder::new();
    let sa = folder.write(
        "sa.conf",
        section("esp", V6, "suite = aes128gcm16", &format!("spi = 0x1001\n key = 0x{}", "11".repeat(20))),
    );
    let inner = &datagrams()[1];
    let arp = bytes("ffffffffffff 020000000001 0806 0001080006040001");
    let mut plain = [bytes("020000000002 020000000001 0800"), inner.clone()].concat();
    plain.resize(64, 0); // as Ethernet pads it
    let tagged = [bytes("020000000002 020000000001 8100 0005 0800"), inner.clone()].concat();
    let clear = folder.write("clear.pcap", pcap(ETHERNET, &[arp.clone(), plain, tagged.clone()]));
    let (sealed, opened) = (folder.path("sealed.pcap"), folder.path("opened.pcap"));
    let (status, stderr) = status_and_stderr(&transform("seal", &[], &sa, &clear, &sealed));
    assert_eq!(status, 0, "{stderr}");
    let (link, records) = read_pcap(&sealed);
    assert_eq!((link, &records[0].1), (ETHERNET, &arp));
    assert_eq!(records[1].1[..15], bytes("020000000002 020000000001 86dd 60"), "IPv6 now");
    assert_eq!(records[2].1[12..19], bytes("8100 0005 86dd 60"));
    assert_eq!(status_and_stderr(&transform("open", &["--mirror"], &sa, &sealed, &opened)).0, 0);
    let (_, records) = read_pcap(&opened);
    assert_eq!(records[1].1, [bytes("020000000002 020000000001 0800"), inner.clone()].concat());
    assert_eq!(records[2].1, tagged);
}

#[test]
fn pcapng_stays_pcapng() {
    let folder = Folder::new();
    let sa = folder.write("sa.conf", esp_section());
    let inner = datagrams()[4].clone();
    let framed = [bytes("020000000002 020000000001 0800"), inner.clone()].concat();
    let clear = folder.write("clear.pcapng", pcapng(&[(RAW as u16, inner), (ETHERNET as u16, framed)]));
    let (sealed, opened) = (folder.path("sealed.pcapng"), folder.path("opened.pcapng"));
    assert_eq!(status_and_stderr(&transform("seal", &[], &sa, &clear, &sealed)).0, 0);
    assert_eq!(std::fs::read(&sealed).unwrap()[..4], bytes("0a0d0d0a"));
    assert_eq!(status_and_stderr(&transform("open", &["--mirror"], &sa, &sealed, &opened)).0, 0);
    let output = weir().args(["pcap", "inspect"]).arg(&opened).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().count(), 2);
    assert!(
        text.lines().all(|line| line.contains("UDP sport 1000 dport 2000") || line.contains("dport 2000")),
        "{text}"
    );
}

#[test]
fn inspect_reads_what_is_in_the_clear() {
    let folder = Folder::new();
    for (sa, words) in [
        (esp_section(), vec!["ESP", "spi 0x00001001", "seq 1"]),
        (
            section(
                "eesp",
                V4,
                "suite = aes128gcm16",
                &format!("spi = 0x1001\n crypt_offset = 32\n key = 0x{}", "11".repeat(20)),
            ),
            vec!["EESP", "crypt_offset 32", "session 0"],
        ),
        (
            section(
                "psp",
                V4,
                "",
                &format!(
                    "spi = 0x80001001\n cookie = 5\n crypt_offset = 8\n sample = yes\n key = 0x{}",
                    "11".repeat(16)
                ),
            ),
            vec!["PSP", "flags SV", "master_key 1", "cookie 0x0000000000000005"],
        ),
        (
            section("ah", V4, "suite = sha1", &format!("spi = 0x1001\n key = 0x{}", "11".repeat(20))),
            vec!["AH", "icv_bytes 12"],
        ),
    ] {
        let sa = folder.write("sa.conf", sa);
        let clear = folder.write("clear.pcap", pcap(RAW, &datagrams()[4..5]));
        assert_eq!(status_and_stderr(&transform("seal", &[], &sa, &clear, &folder.path("sealed.pcap"))).0, 0);
        let inspect = |more: &[&str]| {
            let output = weir().args(["pcap", "inspect"]).args(more).arg(folder.path("sealed.pcap")).output().unwrap();
            assert!(output.status.success());
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let line = inspect(&[]);
        assert!(line.lines().count() == 1 && words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
        assert!(inspect(&["--json"]).starts_with("{\""));
    }
}
