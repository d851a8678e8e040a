//! Sending UDP datagrams in GSO packets: packets that follow one another with the same headers and
//! one size go to the kernel in one call, which makes datagrams of them as late as it can
//! (UDP_SEGMENT, Linux 4.18).
//!
//! A GSO packet needs a UDP socket that has its source port: one of the ports that receive, or, for
//! the ports that PSP chooses per flow, one that is opened for it. All others are sent as single
//! packets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use arrayvec::ArrayVec;
use dataplane::Packet;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use wire::IpProto;
use wire::ip::{IPV4_HEADER, IPV6_HEADER};
use wire::udp::UdpHeader;

use super::mmsg::{GSO_SEGMENTS, GsoPacket, Mmsg, set_int};
use super::udp::PMTUDISC_PROBE;
use super::{GsoCounters, PortDrops};

/// First port of the dynamic range (RFC 6335 §6).
const FIRST_DYNAMIC_PORT: u16 = 49_152;
/// Sockets per worker for the source ports of flows. Packets of further flows are sent one by one.
const FLOW_SOCKETS: usize = 32;
/// Minimum number of datagrams in a GSO packet for which a socket is replaced.
const WORTH_A_SOCKET: usize = 8;
/// Number of GSO packets of other flows without a socket after which an idle flow loses its socket.
/// This bounds socket churn: at least 64 × 8 datagrams are sent per replaced socket, for any number
/// of flows.
const KEPT: u64 = 64 * FLOW_SOCKETS as u64;
/// Consecutive errors of a socket after which GSO pauses.
const PATIENCE: u8 = 16;
/// GSO packets sent one by one during a pause. The error may have been transient: the interface or
/// its address.
const PAUSE: u16 = 1024;
/// Maximum payload of a GSO packet in bytes: below the limit of an IP packet.
const GSO_BYTES: usize = 65_000;

/// Sender of GSO packets for one worker.
pub(super) struct GsoSender {
    /// Sockets of receiving ports. Other threads may send through them, so their options must not
    /// change.
    fixed: Vec<GsoSocket>,
    flows: Flows,
}

/// Sockets of the ports that PSP chooses per flow.
struct Flows {
    tracks: ArrayVec<GsoSocket, FLOW_SOCKETS>,
    mark: Option<u32>,
    /// GSO packets that would have needed a socket and had none: the clock for the aging of flows.
    turned_away: u64,
}

/// A socket and its error state.
struct GsoSocket {
    local: SocketAddr,
    /// `None` if the kernel could not bind the port.
    socket: Option<OwnedFd>,
    /// Consecutive errors.
    failed: u8,
    /// Remaining GSO packets of the pause.
    pause: u16,
    /// Value of [`Flows::turned_away`] at the last attempt.
    tried_at: u64,
}

impl GsoSocket {
    fn new(local: SocketAddr, socket: Option<OwnedFd>, now: u64) -> Self {
        Self { local, socket, failed: 0, pause: 0, tried_at: now }
    }

    /// Records an error of the socket.
    fn drops(&mut self) {
        self.failed = (self.failed + 1).min(PATIENCE);
        if self.failed == PATIENCE {
            self.pause = PAUSE;
        }
    }
}

/// Result of sending a GSO packet.
pub(super) enum GsoSend {
    Sent,
    /// The queue was full; counted as dropped.
    Full,
    /// The packets should be sent one by one.
    Singly,
}

/// Headers of a datagram that may be part of a GSO packet.
#[derive(Clone, Copy)]
struct Headers {
    v6: bool,
    /// IP and UDP header in bytes.
    len: usize,
}

impl Headers {
    /// Returns `None` for a packet that is not unfragmented UDP, has IP options or extension
    /// headers, or would need a DF that the sockets do not set.
    fn of(packet: &[u8]) -> Option<Self> {
        let word = |at: usize| usize::from(packet[at]) << 8 | usize::from(packet[at + 1]);
        let (v6, ip_len) = match packet.first()? {
            0x45 if packet.len() >= IPV4_HEADER + UdpHeader::LEN
                && packet[9] == IpProto::UDP.0
                && packet[6..8] == [0x40, 0]
                && word(2) == packet.len() =>
            {
                (false, IPV4_HEADER)
            }
            first
                if first >> 4 == 6
                    && packet.len() >= IPV6_HEADER + UdpHeader::LEN
                    && packet[6] == IpProto::UDP.0
                    && word(4) + IPV6_HEADER == packet.len() =>
            {
                (true, IPV6_HEADER)
            }
            _ => return None,
        };
        (word(ip_len + 4) + ip_len == packet.len()).then_some(Self { v6, len: ip_len + UdpHeader::LEN })
    }

    /// Returns whether two packets differ only in lengths, checksums and identification.
    fn same_header(self, a: &[u8], b: &[u8]) -> bool {
        let same = |range: std::ops::Range<usize>| a[range.clone()] == b[range];
        if self.v6 { same(0..4) && same(6..44) } else { same(0..2) && same(6..10) && same(12..24) }
    }
}

/// Number of leading `packets` that fit into one GSO packet; 0 if the first cannot.
pub(super) fn gso_length(packets: &[Packet]) -> usize {
    let Some((first, headers)) = packets.first().and_then(|p| Some((p.bytes(), Headers::of(p.bytes())?))) else {
        return 0;
    };
    let size = first.len() - headers.len;
    if size == 0 {
        return 0;
    }
    let (mut count, mut bytes) = (1, size);
    for packet in &packets[1..] {
        let next = packet.bytes();
        let fits = count < GSO_SEGMENTS
            && next.len() > headers.len
            && next.len() <= first.len()
            && bytes + next.len() <= GSO_BYTES
            && Headers::of(next).is_some_and(|its| its.v6 == headers.v6)
            && headers.same_header(first, next);
        if !fits {
            break;
        }
        (count, bytes) = (count + 1, bytes + next.len() - headers.len);
        if next.len() < first.len() {
            break;
        }
    }
    count
}

impl GsoSender {
    /// Creates a sender with the sockets `fixed` and their addresses; its own sockets use `mark`.
    pub(super) fn new(fixed: Vec<(SocketAddr, OwnedFd)>, mark: Option<u32>) -> Self {
        let fixed = fixed.into_iter().map(|(local, socket)| GsoSocket::new(local, Some(socket), 0));
        Self { fixed: fixed.collect(), flows: Flows { tracks: ArrayVec::new(), mark, turned_away: 0 } }
    }

    /// Sends `packets`, which must be one GSO packet by [`gso_length`].
    pub(super) fn send(
        &mut self,
        packets: &[Packet],
        mmsg: &mut Mmsg,
        refused: &mut PortDrops,
        supers: &GsoCounters,
    ) -> GsoSend {
        let Some(packet) = outgoing(packets) else { return GsoSend::Singly };
        let first = packets[0].bytes();
        let port_at = if first[0] >> 4 == 6 { IPV6_HEADER } else { IPV4_HEADER };
        let from = SocketAddr::new(packet.src, u16::from_be_bytes([first[port_at], first[port_at + 1]]));
        let now = self.flows.turned_away;
        let Some(track) = self.track(from, packets.len()) else { return GsoSend::Singly };
        if track.pause > 0 {
            track.pause -= 1;
            return GsoSend::Singly;
        }
        let Some(socket) = &track.socket else { return GsoSend::Singly };
        track.tried_at = now;
        match mmsg.send_gso(socket.as_fd(), &packet) {
            Ok(()) => {
                track.failed = 0;
                supers.count_sent(packets.len());
                GsoSend::Sent
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    refused.full += packets.len() as u64;
                    GsoSend::Full
                }
                code => {
                    supers.count_refused();
                    // A size error of the interface does not concern the next GSO packet.
                    if code != Some(libc::EMSGSIZE) {
                        track.drops();
                    }
                    GsoSend::Singly
                }
            },
        }
    }

    fn track(&mut self, from: SocketAddr, count: usize) -> Option<&mut GsoSocket> {
        let has = |track: &GsoSocket| {
            let ip = track.local.ip();
            track.local.port() == from.port()
                && ip.is_ipv6() == from.is_ipv6()
                && (ip.is_unspecified() || ip == from.ip())
        };
        if let Some(fixed) = self.fixed.iter().position(has) {
            return self.fixed.get_mut(fixed);
        }
        if from.port() < FIRST_DYNAMIC_PORT { None } else { self.flows.track(from, count) }
    }
}

impl Flows {
    fn track(&mut self, from: SocketAddr, count: usize) -> Option<&mut GsoSocket> {
        if let Some(known) = self.tracks.iter().position(|track| track.local == from) {
            return self.tracks.get_mut(known);
        }
        // Close the old socket first, because there may be no descriptor for two.
        if self.tracks.is_full() && !self.make_room(count) {
            return None;
        }
        self.tracks.push(GsoSocket::new(from, open(from, self.mark).ok(), self.turned_away));
        self.tracks.last_mut()
    }

    /// Evicts the flow that has been idle for longest, if that is long enough, for one with a GSO
    /// packet of `count` datagrams.
    fn make_room(&mut self, count: usize) -> bool {
        if count < WORTH_A_SOCKET {
            return false;
        }
        self.turned_away += 1;
        let oldest = self.tracks.iter().enumerate().min_by_key(|(_, track)| track.tried_at);
        let gone = oldest.filter(|(_, track)| self.turned_away - track.tried_at > KEPT).map(|(i, _)| i);
        gone.is_some_and(|i| self.tracks.swap_pop(i).is_some())
    }
}

/// Opens a socket that sends from a port and receives nothing.
fn open(from: SocketAddr, mark: Option<u32>) -> io::Result<OwnedFd> {
    const NOTHING: [SockFilter; 1] = [SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)];
    let socket = Socket::new(Domain::for_address(from), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.attach_filter(&NOTHING)?;
    if from.is_ipv6() {
        socket.set_only_v6(true)?;
        set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, PMTUDISC_PROBE)?;
    } else {
        set_int(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, PMTUDISC_PROBE)?;
    }
    if let Some(mark) = mark {
        socket.set_mark(mark)?;
    }
    super::mmsg::large_buffers(&socket, super::udp::SOCKET_BUFFER)?;
    socket.bind(&from.into())?;
    Ok(socket.into())
}

fn outgoing(packets: &[Packet]) -> Option<GsoPacket<'_>> {
    let first = packets.first()?.bytes();
    let headers = Headers::of(first)?;
    let payloads: ArrayVec<_, GSO_SEGMENTS> = packets.iter().map(|packet| &packet.bytes()[headers.len..]).collect();
    let port = u16::from_be_bytes([first[headers.len - 6], first[headers.len - 5]]);
    let flow = u32::from_be_bytes(*first.first_chunk()?);
    Some(if headers.v6 {
        let src: IpAddr = Ipv6Addr::from(*first.get(8..)?.first_chunk::<16>()?).into();
        let dst: IpAddr = Ipv6Addr::from(*first.get(24..)?.first_chunk::<16>()?).into();
        let (to, tos) = (SocketAddr::new(dst, port), (flow >> 20) as u8);
        GsoPacket { payloads, to, src, tos, hop_limit: first[7], flow }
    } else {
        let src: IpAddr = Ipv4Addr::from(*first.get(12..)?.first_chunk::<4>()?).into();
        let dst: IpAddr = Ipv4Addr::from(*first.get(16..)?.first_chunk::<4>()?).into();
        GsoPacket { payloads, to: SocketAddr::new(dst, port), src, tos: first[1], hop_limit: first[8], flow: 0 }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use dataplane::Batch;

    fn packet(v6: bool, size: usize, change: Option<usize>) -> Vec<u8> {
        let len = (8 + size) as u16;
        let mut packet = if v6 {
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend(len.to_be_bytes());
            packet.extend([17, 64]);
            packet.resize(40, 9);
            packet
        } else {
            let mut packet = vec![0x45, 0];
            packet.extend((20 + len).to_be_bytes());
            packet.extend([0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            packet
        };
        packet.extend([0xc0, 0, 0x11, 0x94]);
        packet.extend(len.to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(vec![5; size]);
        if let Some(at) = change {
            packet[at] ^= 1;
        }
        packet
    }

    /// Fields that datagrams of one GSO packet may differ in.
    fn may_differ(v6: bool) -> Vec<usize> {
        if v6 { vec![46, 47] } else { vec![4, 5, 10, 11, 26, 27] }
    }

    fn port(n: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], FIRST_DYNAMIC_PORT + n))
    }

    /// Every place is taken.
    fn full(first: impl Fn(SocketAddr) -> GsoSocket) -> GsoSender {
        let mut gso = GsoSender::new(vec![], None);
        gso.flows.tracks.push(first(port(0)));
        (1..FLOW_SOCKETS as u16).for_each(|n| gso.flows.tracks.push(GsoSocket::new(port(n), None, u64::MAX)));
        gso
    }

    #[test]
    fn as_many_flows_as_there_are_places_have_one_whatever_their_ports_are() {
        let mut gso = GsoSender::new(vec![], None);
        let ports = (0..FLOW_SOCKETS as u16).map(|n| port(n * FLOW_SOCKETS as u16));
        for from in ports.clone().chain(ports) {
            assert_eq!(gso.track(from, 2).map(|track| track.local), Some(from));
        }
        assert!(gso.track(port(1), 2).is_none());
        assert_eq!(gso.flows.tracks.len(), FLOW_SOCKETS);
    }

    #[test]
    fn a_flow_that_goes_on_keeps_its_place_and_one_that_stops_loses_it() {
        let mut gso = GsoSender::new(vec![], None);
        (0..FLOW_SOCKETS as u16).for_each(|n| gso.flows.tracks.push(GsoSocket::new(port(n), None, 0)));
        let other = port(1000);
        for _ in 0..2 * KEPT {
            let now = gso.flows.turned_away;
            gso.flows.tracks.iter_mut().filter(|track| track.local != port(7)).for_each(|track| track.tried_at = now);
            if gso.track(other, WORTH_A_SOCKET).is_some() {
                break;
            }
        }
        assert_eq!(gso.flows.turned_away, KEPT + 1);
        assert!(gso.flows.tracks.iter().all(|track| track.local != port(7)));
        assert_eq!(gso.track(other, 2).map(|track| track.local), Some(other));
    }

    #[test]
    fn a_flow_without_gso_keeps_no_slot() {
        let other = port(1000);
        let mut bytes = packet(false, 100, None);
        bytes[12..16].copy_from_slice(&[127, 0, 0, 1]);
        let mut batch = Batch::new(WORTH_A_SOCKET, 2048);
        (0..WORTH_A_SOCKET).for_each(|_| assert!(batch.push_with(|to| to.set(&bytes))));
        // No socket; or one that is left alone, while its flow goes on one by one.
        for has_socket in [false, true] {
            let socket = || has_socket.then(|| std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into());
            let pause = if has_socket { u16::MAX } else { 0 };
            let mut gso = full(|from| GsoSocket { pause, ..GsoSocket::new(from, socket(), 0) });
            for _ in 0..KEPT {
                assert!(gso.track(other, WORTH_A_SOCKET).is_none());
                let (mut refused, supers) = (PortDrops::default(), GsoCounters::default());
                let outcome = gso.send(batch.packets(), &mut Mmsg::new(), &mut refused, &supers);
                assert!(matches!(outcome, GsoSend::Singly));
            }
            assert!(gso.track(other, WORTH_A_SOCKET - 1).is_none());
            assert_eq!(gso.track(other, WORTH_A_SOCKET).map(|track| track.local), Some(other));
        }
    }

    proptest! {
        #[test]
        fn segments_are_alike_and_only_the_last_is_shorter(
            v6: bool,
            parts in proptest::collection::vec((prop_oneof![Just(600_usize), Just(90), Just(0), 89..92_usize, Just(1400)], 0..40_u8, 0..48_usize), 1..100),
        ) {
            let head = if v6 { 48 } else { 28 };
            let made: Vec<_> = parts.iter().map(|(size, odd, at)| {
                let change = (*odd == 0).then_some(at % head);
                (packet(v6, *size, change), *size, change.filter(|at| !may_differ(v6).contains(at)))
            }).collect();
            let mut batch = Batch::new(made.len(), 2048);
            made.iter().for_each(|(bytes, ..)| assert!(batch.push_with(|to| to.set(bytes))));
            // One after the other, as long as nothing speaks against it.
            let (mut want, mut total) = (0, 0);
            let first = made[0].1;
            for (i, (_, size, changed)) in made.iter().enumerate() {
                total += size;
                let stops = *size == 0 || *size > first || changed.is_some() || total > 64_900 || want == 64;
                if stops || (i > 0 && made[i - 1].1 < first) {
                    break;
                }
                want += 1;
            }
            let got = gso_length(batch.packets());
            if made[0].2.is_none() {
                prop_assert!(got == want || total > 63_000, "{got} {want}");
            } else {
                // A first packet of another flow is not joined with the others.
                prop_assert!(got <= 1 || made[1].2 == made[0].2);
            }
        }
    }
}
