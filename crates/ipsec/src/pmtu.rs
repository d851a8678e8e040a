//! Path MTU: outer ICMP errors, and ICMP errors to inner senders.
//!
//! Routers on the path of the outer packets report oversized packets by ICMP ([`Report::parse`]).
//! The caller finds the outbound SA that the quoted packet came from and lowers its [`PathMtu`],
//! which expires after [`AGE_MS`] (RFC 1191 §6.3). Senders of oversized inner packets receive a
//! [`too_big_reply`].
//!
//! ICMP is not authenticated. A report only counts when it quotes the SPI of an SA to that peer,
//! which an off-path attacker must guess, and never below a minimum (RFC 4301 §8.2.1).

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use wire::icmp::{self, TooBig};
use wire::ip::IPV6_HEADER;
use wire::registry::CodePoints;
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto};

use crate::{Mode, OutboundSa, Protocol, UdpPorts};

/// Smallest path MTU in bytes that is believed over IPv4. Every host reassembles 576 bytes
/// (RFC 791 §3.1); a forged report could otherwise make tunnels crawl.
pub const MIN_PATH_MTU_V4: usize = 552;
/// Smallest MTU in bytes of any link over IPv6 (RFC 8200 §5).
pub const MIN_PATH_MTU_V6: usize = 1280;
/// Milliseconds after which a learned path MTU is forgotten, to find out whether the path has
/// become wider (RFC 1191 §6.3, RFC 8201 §4: 10 minutes).
pub const AGE_MS: u64 = 600_000;

/// Smallest MTU in bytes reported to an IPv4 sender (RFC 791 §3.2).
const MIN_INNER_MTU_V4: usize = 68;

/// MTUs of common links (RFC 1191 §7.1 table, with the tunnels that came since): where to go on
/// when an old router does not say what it takes.
const PLATEAUS: [usize; 12] = [65_535, 32_000, 17_914, 8166, 4352, 2002, 1500, 1492, 1400, 1280, 1006, 552];

/// Report of a router about a packet that this host may have sent. Unverified until the SA is
/// found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Report {
    /// Source of the packet that was too big: this host.
    pub local: IpAddr,
    /// Its destination: the peer.
    pub remote: IpAddr,
    /// Protocol and SPI of the SAs that it may belong to, at least one. On the NAT-T port there are
    /// two if the first bit is set: it can be that of EESP, or of an SPI of ESP.
    pub sas: [Option<(Protocol, u32)>; 2],
    /// Its UDP ports.
    pub udp: Option<UdpPorts>,
    /// MTU in bytes to try next, within the bounds of this module.
    pub mtu: usize,
}

impl Report {
    /// Reads the outer packet `packet`, with its headers parsed into `ip`. `None` unless it is a
    /// plausible "too big" about one of our protocols whose quote includes the SPI. Old routers
    /// quote 8 bytes after the IP header, which suffice except in UDP.
    pub fn parse(ip: &IpPacket, packet: &[u8], code_points: &CodePoints) -> Option<Self> {
        let too_big = TooBig::parse(ip, packet).ok()??;
        let quoted = IpPacket::parse_quoted(too_big.quoted).ok()?;
        if quoted.is_v6() != ip.is_v6() || quoted.fragment.is_some_and(|fragment| fragment.offset != 0) {
            return None;
        }
        let mtu = plausible(too_big.mtu as usize, sent_len(&quoted, too_big.quoted)?, quoted.is_v6())?;
        let upper = too_big.quoted.get(quoted.upper_at..).unwrap_or_default();
        let origin = Origin::of(quoted.upper, upper, code_points)?;
        let Origin { sas, udp } = origin;
        sas.iter().any(Option::is_some).then_some(Self { local: quoted.src, remote: quoted.dst, sas, udp, mtu })
    }
}

/// Identification of the SA in the quote.
struct Origin {
    sas: [Option<(Protocol, u32)>; 2],
    udp: Option<UdpPorts>,
}

/// Protocol and SPI in a header of `protocol`, which may be cut off.
fn sa(protocol: Protocol, header: &[u8]) -> Option<(Protocol, u32)> {
    Some((protocol, protocol.spi(header)?))
}

impl Origin {
    fn of(proto: IpProto, upper: &[u8], code_points: &CodePoints) -> Option<Self> {
        if proto == IpProto::UDP {
            return Self::in_udp(upper, code_points);
        }
        Some(Self { sas: [sa(Protocol::of_ip(proto, code_points)?, upper), None], udp: None })
    }

    fn in_udp(datagram: &[u8], code_points: &CodePoints) -> Option<Self> {
        let (header, payload) = UdpHeader::parse(datagram).ok()?;
        let ports = UdpPorts { src: header.src_port.get(), dst: header.dst_port.get() };
        let sas = if ports.dst == code_points.psp_port {
            [sa(Protocol::Psp, payload), None]
        } else if [ports.src, ports.dst].contains(&code_points.nat_t_port) {
            // The peer has chosen the SPI. Those of strongSwan start with 0xc, so that the first
            // bit does not exclude ESP; only the SAs of this host can decide.
            let with_first_bit = |first_bit| sa(Protocol::in_nat_t(payload, first_bit).ok()?, payload);
            let esp = with_first_bit(false);
            [esp, with_first_bit(true).filter(|other| Some(*other) != esp)]
        } else {
            return None;
        };
        Some(Self { sas, udp: Some(ports) })
    }
}

/// Bytes of the quoted packet before it was cut off.
fn sent_len(quoted: &IpPacket, bytes: &[u8]) -> Option<usize> {
    let field = |at: usize| Some(usize::from(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?)));
    if quoted.is_v6() { Some(IPV6_HEADER + field(4)?) } else { field(2) }
}

/// The MTU to use after a router refused `sent` bytes and claims to take `claimed`, 0 for no claim.
fn plausible(claimed: usize, sent: usize, v6: bool) -> Option<usize> {
    if v6 {
        // RFC 8201 §4: a value below the minimum link MTU of IPv6 must be discarded.
        return (claimed >= MIN_PATH_MTU_V6 && claimed < sent).then_some(claimed);
    }
    let mtu = if claimed == 0 { next_plateau(sent) } else { claimed };
    (mtu < sent).then_some(mtu.max(MIN_PATH_MTU_V4)) // what it takes, it does not refuse
}

/// The largest plateau below `sent` bytes (RFC 1191 §5).
fn next_plateau(sent: usize) -> usize {
    PLATEAUS.into_iter().find(|plateau| *plateau < sent).unwrap_or(MIN_PATH_MTU_V4)
}

/// MTU state of the path to a peer, shared by all workers that send on it. Time comes in as
/// milliseconds of one monotonic clock for all of them.
#[derive(Debug)]
pub struct PathMtu {
    /// MTU in bytes of the first link.
    link: AtomicU32,
    /// Learned MTU in bytes in the lower 16 bits, time of its end in the others; 0 without one. One
    /// word, so that no reader combines two reports.
    learned: AtomicU64,
}

/// Bits of [`PathMtu::learned`] with an MTU, which a packet of at most 65,535 bytes fits.
const MTU_BITS: u32 = 16;

impl PathMtu {
    /// A path of which only the MTU in bytes of its first link is known.
    pub fn new(link: usize) -> Self {
        Self { link: AtomicU32::new(link as u32), learned: AtomicU64::new(0) }
    }

    /// Another first link: what was learned about the path before does not apply.
    pub fn set_link(&self, link: usize) {
        self.link.store(link as u32, Ordering::Relaxed);
        self.learned.store(0, Ordering::Relaxed);
    }

    /// Believes that the path takes `mtu` bytes, if that is less than what was known. Returns
    /// whether it was.
    pub fn learn(&self, now_ms: u64, mtu: usize) -> bool {
        let mtu = mtu.min(usize::from(u16::MAX));
        let new = now_ms.saturating_add(AGE_MS) << MTU_BITS | mtu as u64;
        let lower = |learned| (mtu < self.of(learned, now_ms)).then_some(new);
        self.learned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower).is_ok()
    }

    /// Path MTU in bytes; that of the link again [`AGE_MS`] after the last report.
    pub fn get(&self, now_ms: u64) -> usize {
        self.of(self.learned.load(Ordering::Relaxed), now_ms)
    }

    fn of(&self, learned: u64, now_ms: u64) -> usize {
        let link = self.link.load(Ordering::Relaxed) as usize;
        let (until_ms, mtu) = (learned >> MTU_BITS, (learned & u64::from(u16::MAX)) as usize);
        if now_ms < until_ms { mtu } else { link }
    }

    /// Time of the next expiry of [`PathMtu::get`]; `None` without a learned MTU. It may have
    /// passed.
    pub fn deadline_ms(&self) -> Option<u64> {
        let learned = self.learned.load(Ordering::Relaxed);
        (learned != 0).then_some(learned >> MTU_BITS)
    }
}

impl OutboundSa {
    /// Returns whether a packet that exceeds [`OutboundSa::inner_mtu`] must be sent nevertheless,
    /// and fragments of the outer packet must be allowed: an IPv6 sender cannot send less than 1280
    /// bytes at once (RFC 8200 §5, RFC 2473 §7.1). Over IPv4 only, where routers fragment.
    pub fn may_exceed_path(&self, ip: &IpPacket) -> bool {
        ip.is_v6()
            && ip.total_len <= MIN_PATH_MTU_V6
            && self.common.mode == Mode::Tunnel
            && self.common.outer.peer.remote.is_ipv4()
    }

    /// Returns whether a packet of `len` bytes exceeds [`OutboundSa::inner_mtu`].
    #[inline]
    pub fn exceeds_path(&self, len: usize) -> bool {
        len > self.inner_mtu.load(Ordering::Relaxed) as usize
    }
}

/// Writes to `out` the ICMP error to the sender of `packet` with the MTU `inner_mtu`, with the
/// source `router`, and returns its length. `None` when no error may be sent about the packet (RFC
/// 1122 §3.2.2, RFC 4443 §2.4 e), `router` is of the other family, or `out` is below
/// [`wire::icmp::MAX_ERROR_V6`] bytes and too short.
///
/// An IPv6 sender never receives less than 1280 bytes, which it would ignore (RFC 8201 §4).
pub fn too_big_reply(ip: &IpPacket, packet: &[u8], inner_mtu: usize, router: IpAddr, out: &mut [u8]) -> Option<usize> {
    if !icmp::may_answer_too_big(ip, packet) {
        return None;
    }
    let mtu = inner_mtu.max(if ip.is_v6() { MIN_PATH_MTU_V6 } else { MIN_INNER_MTU_V4 });
    icmp::emit_too_big(out, ip, packet, router, u32::try_from(mtu).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::ip::update_checksum_v4;

    use super::*;
    use crate::testkit::{assert_ipv4_checksum, ipv4_udp, ipv6_udp};

    const A: [u8; 4] = [192, 0, 2, 1];
    const B: [u8; 4] = [192, 0, 2, 2];
    const ROUTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 9));
    const SPI: u32 = 0x1234_5678;

    fn v6(last: u8) -> [u8; 16] {
        let mut octets = [0; 16];
        (octets[0], octets[1], octets[15]) = (0x20, 1, last);
        octets
    }

    /// An outer packet of `len` bytes after the IP header, which start with `head`.
    fn outer(v6_outside: bool, proto: u8, head: &[u8], len: usize) -> Vec<u8> {
        let (mut packet, at) =
            if v6_outside { (ipv6_udp(v6(1), v6(2), len - 8), 40) } else { (ipv4_udp(A, B, len - 8), 20) };
        packet[if v6_outside { 6 } else { 9 }] = proto;
        packet[at..at + head.len()].copy_from_slice(head);
        if !v6_outside {
            update_checksum_v4(&mut packet).unwrap();
        }
        packet
    }

    /// Response of a router with this MTU.
    fn answer(packet: &[u8], mtu: u32) -> Vec<u8> {
        let ip = IpPacket::parse(packet).unwrap();
        let router = if ip.is_v6() { IpAddr::V6(v6(9).into()) } else { ROUTER };
        let mut out = vec![0; 1500];
        let len = icmp::emit_too_big(&mut out, &ip, packet, router, mtu).unwrap();
        out.truncate(len);
        out
    }

    fn report(packet: &[u8]) -> Option<Report> {
        Report::parse(&IpPacket::parse(packet).unwrap(), packet, &CodePoints::default())
    }

    fn esp(v6_outside: bool, len: usize) -> Vec<u8> {
        outer(v6_outside, 50, &SPI.to_be_bytes(), len)
    }

    #[test]
    fn a_report_names_the_sa() {
        let got = report(&answer(&esp(false, 1480), 1400)).unwrap();
        assert_eq!((got.local, got.remote), (IpAddr::from(A), IpAddr::from(B)));
        assert_eq!((got.sas, got.udp, got.mtu), ([Some((Protocol::Esp, SPI)), None], None, 1400));
        let got = report(&answer(&esp(true, 1460), 1300)).unwrap();
        assert_eq!((got.remote, got.sas[0], got.mtu), (IpAddr::from(v6(2)), Some((Protocol::Esp, SPI)), 1300));

        let second_word = [&[0x80, 0, 0, 0][..], &SPI.to_be_bytes()].concat();
        let of = |proto, head: &[u8]| report(&answer(&outer(false, proto, head, 1480), 1400)).map(|r| r.sas);
        let eesp = Protocol::of_ip(IpProto::EESP_DEFAULT, &CodePoints::default()).unwrap();
        let one = |protocol| Some([Some((protocol, SPI)), None]);
        assert_eq!(of(51, &second_word), one(Protocol::Ah));
        assert_eq!(of(IpProto::EESP_DEFAULT.0, &second_word), one(eesp));
        assert_eq!(of(6, &second_word), None, "none of our protocols");
        let udp = |src: u16, dst: u16, payload: &[u8]| {
            [&src.to_be_bytes(), &dst.to_be_bytes(), &[0, 0, 0, 0][..], payload].concat()
        };
        assert_eq!(of(17, &udp(4500, 33000, &SPI.to_be_bytes())), one(Protocol::Esp));
        let both = [Some((Protocol::Esp, 0x8000_0000)), Some((eesp, SPI))];
        assert_eq!(of(17, &udp(4500, 4500, &second_word)), Some(both), "the first bit may be that of an SPI");
        assert_eq!(of(17, &udp(4500, 4500, &[0; 4])), None, "IKE");
        assert_eq!(of(17, &udp(50_000, 1000, &second_word)), one(Protocol::Psp));
        assert_eq!(of(17, &udp(53, 53, &second_word)), None);
    }

    #[test]
    fn eight_quoted_bytes_are_enough_but_in_udp() {
        let quoting_8 = |packet: &[u8]| {
            let mut answer = answer(packet, 1400);
            answer.truncate(20 + 8 + 28);
            let len = answer.len() as u16;
            answer[2..4].copy_from_slice(&len.to_be_bytes());
            update_checksum_v4(&mut answer).unwrap();
            answer[22..24].fill(0);
            let sum = wire::checksum::checksum(&answer[20..]);
            answer[22..24].copy_from_slice(&sum.to_be_bytes());
            report(&answer).map(|report| report.sas)
        };
        assert_eq!(quoting_8(&esp(false, 1480)), Some([Some((Protocol::Esp, SPI)), None]));
        assert_eq!(quoting_8(&outer(false, 17, &[0x11, 0x94, 0x11, 0x94], 1480)), None, "no SPI");
    }

    #[test]
    fn claims_stay_within_bounds() {
        let claimed = |v6_outside, mtu| report(&answer(&esp(v6_outside, 1480), mtu)).map(|report| report.mtu);
        assert_eq!(claimed(false, 1499), Some(1499));
        assert_eq!(claimed(false, 1500), None, "a packet of 1500 bytes would have passed");
        assert_eq!(claimed(false, 68), Some(MIN_PATH_MTU_V4));
        assert_eq!(claimed(false, 0), Some(1492), "next plateau");
        assert_eq!(claimed(true, 1280), Some(1280));
        assert_eq!(claimed(true, 1279), None);
        assert_eq!(claimed(true, 0), None);
        let small = report(&answer(&esp(false, 400), 0));
        assert_eq!(small, None, "smaller than any path MTU that is believed");
        assert_eq!(next_plateau(65_535), 32_000);
        assert_eq!(next_plateau(1280), 1006);
    }

    #[test]
    fn what_is_learned_is_forgotten_after_ten_minutes() {
        let path = PathMtu::new(1500);
        assert_eq!(path.deadline_ms(), None);
        assert!(!path.learn(0, 1500));
        assert!(path.learn(1000, 1400));
        assert!(!path.learn(2000, 1450), "never up by a report");
        assert!(path.learn(3000, 1300));
        assert_eq!((path.get(3000 + AGE_MS - 1), path.deadline_ms()), (1300, Some(3000 + AGE_MS)));
        assert_eq!(path.get(3000 + AGE_MS), 1500);
        assert!(path.learn(4000 + AGE_MS, 1450));
        path.set_link(1480);
        assert_eq!((path.get(4000 + AGE_MS), path.deadline_ms()), (1480, None));
    }

    #[test]
    fn the_inner_sender_is_told_what_fits() {
        let mut out = [0; icmp::MAX_ERROR_V6];
        let packet = ipv4_udp([10, 0, 0, 1], [10, 0, 0, 2], 1472);
        let ip = IpPacket::parse(&packet).unwrap();
        let len = too_big_reply(&ip, &packet, 1400, ROUTER, &mut out).unwrap();
        assert_ipv4_checksum(&out[..len]);
        let reply = IpPacket::parse(&out[..len]).unwrap();
        assert_eq!((reply.src, reply.dst, reply.total_len), (ROUTER, ip.src, len));
        assert_eq!(TooBig::parse(&reply, &out[..len]).unwrap().unwrap().mtu, 1400);
        assert_eq!(too_big_reply(&reply, &out.to_vec()[..len], 68, ROUTER, &mut out), None, "no error about an error");

        let packet = ipv6_udp(v6(1), v6(2), 1452);
        let ip = IpPacket::parse(&packet).unwrap();
        assert_eq!(too_big_reply(&ip, &packet, 1400, ROUTER, &mut out), None, "router of the other family");
        let len = too_big_reply(&ip, &packet, 1200, IpAddr::V6(v6(9).into()), &mut out).unwrap();
        let reply = IpPacket::parse(&out[..len]).unwrap();
        assert_eq!(TooBig::parse(&reply, &out[..len]).unwrap().unwrap().mtu, 1280);

        let multicast = ipv4_udp([10, 0, 0, 1], [224, 0, 0, 5], 1472);
        let ip = IpPacket::parse(&multicast).unwrap();
        assert_eq!(too_big_reply(&ip, &multicast, 1400, ROUTER, &mut out), None);
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_ignored(
            v6_outside: bool, quote: Vec<u8>, mtu: u32, proto: u8, head in proptest::collection::vec(any::<u8>(), 0..32),
        ) {
            let packet = outer(v6_outside, proto, &head, 1400);
            prop_assume!(IpPacket::parse(&packet).is_ok());
            let mut answer = answer(&packet, mtu);
            if let Some(got) = report(&answer) {
                let least = if v6_outside { MIN_PATH_MTU_V6 } else { MIN_PATH_MTU_V4 };
                prop_assert!(got.mtu >= least && got.mtu < packet.len());
            }
            let at = if v6_outside { 48 } else { 28 };
            let len = quote.len().min(answer.len() - at);
            answer[at..at + len].copy_from_slice(&quote[..len]);
            answer[at - 6..at - 4].fill(0);
            let ip = IpPacket::parse(&answer).unwrap();
            let message = ip.total_len - ip.upper_at;
            let pseudo = if v6_outside {
                wire::checksum::Sum::default().pseudo(ip.src, ip.dst, ip.upper, message)
            } else {
                wire::checksum::Sum::default()
            };
            let sum = pseudo.add(&answer[ip.upper_at..]).finish();
            answer[at - 6..at - 4].copy_from_slice(&sum.to_be_bytes());
            let _ = report(&answer);
        }
    }
}
