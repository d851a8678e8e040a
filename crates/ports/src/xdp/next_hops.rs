//! Next hops: interface and link-layer address from the kernel's tables, requested by rtnetlink and
//! cached for a second.
//!
//! Packets for unresolved neighbors are sent by the kernel, which then resolves them. The kernel
//! also sends a packet to stale neighbors, which triggers reachability detection.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use socket2::{Domain, Protocol, Socket, Type};

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MARK: u16 = 16;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Type of a route through an interface.
const RTN_UNICAST: u8 = 1;
/// Neighbor states with a usable address: all but incomplete, failed and none.
const USABLE: u16 = STALE | 0x02 | 0x08 | 0x10 | 0x40 | 0x80;
/// Stale state: the kernel probes the neighbor when it next sends to it.
const STALE: u16 = 0x04;
/// A request: at most an address of 16 bytes and a number after the fixed part.
type Request = ArrayVec<u8, { FIXED + 20 + 8 }>;
/// Bytes before the attributes: header of the message, and `rtmsg` or `ndmsg`, which are as long.
const FIXED: usize = 16 + 12;
/// Offset of the sequence number, which the response repeats.
const NUMBER: usize = 8;

/// Size of the destination cache: number of sets, a power of two, and entries per set. 200 KB per
/// worker.
const SETS: usize = 1024;
const PLACES: usize = 4;
/// Lifetime of a cached response.
const FRESH: Duration = Duration::from_secs(1);
/// Maximum number of late responses to earlier requests.
const STRAYS: usize = 4;

/// Next hop: interface and link-layer address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Hop {
    pub(super) if_index: u32,
    pub(super) mac: [u8; 6],
}

#[derive(Clone, Copy)]
struct Known {
    dst: IpAddr,
    hop: Option<Hop>,
    asked: Instant,
}

/// Cache of destinations.
pub(super) struct NextHops {
    socket: Socket,
    mark: u32,
    /// Number of requests.
    asked: u32,
    known: Box<[[Option<Known>; PLACES]]>,
}

/// Link-layer address of a neighbor, and whether the kernel considers it reachable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Neighbour {
    mac: [u8; 6],
    proven: bool,
}

/// Opens an rtnetlink socket.
pub(super) fn rtnetlink() -> io::Result<Socket> {
    let (family, protocol) = (Domain::from(libc::AF_NETLINK), Protocol::from(libc::NETLINK_ROUTE));
    let socket = Socket::new(family, Type::RAW, Some(protocol))?;
    // The kernel responds before the request returns; the timeout guards against an error there.
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    Ok(socket)
}

impl NextHops {
    /// For packets that carry `mark`.
    pub(super) fn new(mark: Option<u32>) -> io::Result<Self> {
        let known = vec![[None; PLACES]; SETS].into_boxed_slice();
        Ok(Self { socket: rtnetlink()?, mark: mark.unwrap_or(0), asked: 0, known })
    }

    /// Next hop of `dst`; `None` if the kernel must send the packet: the neighbor is unresolved or
    /// stale, or the cache is full. Queries the kernel at most once a second per entry.
    pub(super) fn to(&mut self, dst: IpAddr, now: Instant) -> Option<Hop> {
        let set = set(dst);
        let fresh = |known: &Known| now.duration_since(known.asked) < FRESH;
        let of_it = self.known[set].iter().position(|known| known.is_some_and(|known| known.dst == dst));
        if let Some(known) = of_it.and_then(|place| self.known[set][place]).filter(fresh) {
            return known.hop;
        }
        let place = of_it.or_else(|| self.known[set].iter().position(|known| !known.as_ref().is_some_and(fresh)))?;
        let answer = self.ask(dst);
        self.known[set][place] = Some(Known { dst, hop: answer.map(|(hop, _)| hop), asked: now });
        // One packet sent by the kernel triggers a probe of the neighbor (RFC 4861 §7.3.3; for ARP
        // Linux does the same).
        answer.and_then(|(hop, proven)| proven.then_some(hop))
    }

    fn ask(&mut self, dst: IpAddr) -> Option<(Hop, bool)> {
        let mut reply = [0; 2048];
        let len = self.exchange(route_request(dst, self.mark), &mut reply)?;
        let (if_index, neighbour) = route(&reply[..len], dst)?;
        let len = self.exchange(neighbour_request(neighbour, if_index), &mut reply)?;
        let Neighbour { mac, proven } = neighbour_of(&reply[..len])?;
        Some((Hop { if_index, mac }, proven))
    }

    /// Sends the request; returns the length of the response.
    fn exchange(&mut self, mut request: Request, reply: &mut [u8]) -> Option<usize> {
        self.asked = self.asked.wrapping_add(1);
        let number = self.asked.to_ne_bytes();
        request[NUMBER..][..4].copy_from_slice(&number);
        (&self.socket).write_all(&request).ok()?;
        // A late response must not be mistaken for the response to the next request.
        for _ in 0..=STRAYS {
            let len = (&self.socket).read(reply).ok()?;
            if reply[..len].get(NUMBER..NUMBER + 4) == Some(&number) {
                return Some(len);
            }
        }
        None
    }
}

#[cfg(test)]
impl NextHops {
    /// Sends a request, and leaves the response for the next one.
    pub(super) fn stray(&mut self, dst: IpAddr) {
        (&self.socket).write_all(&route_request(dst, 0)).unwrap();
    }

    pub(super) fn asked(&self) -> u32 {
        self.asked
    }
}

fn set(dst: IpAddr) -> usize {
    let sum = match dst {
        IpAddr::V4(dst) => u32::from(dst),
        IpAddr::V6(dst) => dst
            .octets()
            .as_chunks::<4>()
            .0
            .iter()
            .fold(0, |sum: u32, word| sum.rotate_left(5) ^ u32::from_be_bytes(*word)),
    };
    (sum.wrapping_mul(0x9e37_79b1) >> (32 - SETS.trailing_zeros())) as usize
}

fn octets(addr: IpAddr) -> ArrayVec<u8, 16> {
    match addr {
        IpAddr::V4(addr) => addr.octets().into_iter().collect(),
        IpAddr::V6(addr) => addr.octets().into(),
    }
}

fn family(addr: IpAddr) -> u8 {
    (if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn message(kind: u16, fixed: [u8; 12], attributes: &[(u16, &[u8])]) -> Request {
    let sizes = attributes.iter().map(|(_, content)| 4 + content.len());
    let len = (FIXED + sizes.sum::<usize>()) as u32;
    let mut message = Request::new();
    message.extend(len.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]); // number of the question, and port
    message.extend(fixed);
    for (kind, content) in attributes {
        message.extend((4 + content.len() as u16).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(content.iter().copied());
    }
    message
}

fn route_request(dst: IpAddr, mark: u32) -> Request {
    let octets = octets(dst);
    let fixed = [family(dst), octets.len() as u8 * 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    message(RTM_GETROUTE, fixed, &[(RTA_DST, &octets), (RTA_MARK, &mark.to_ne_bytes())])
}

fn neighbour_request(neighbour: IpAddr, if_index: u32) -> Request {
    let index = if_index.to_ne_bytes();
    let fixed = [family(neighbour), 0, 0, 0, index[0], index[1], index[2], index[3], 0, 0, 0, 0];
    message(RTM_GETNEIGH, fixed, &[(NDA_DST, &octets(neighbour))])
}

/// Type and content of each attribute of an answer of this type, of which so many bytes are fixed.
pub(super) fn attributes(reply: &[u8], kind: u16, fixed: usize) -> Option<impl Iterator<Item = (u16, &[u8])>> {
    if half(reply, 4)? != kind {
        return None;
    }
    Some(nested(reply.get(fixed..)?))
}

/// Type and content of each attribute.
pub(super) fn nested(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(half(rest, 0)?), half(rest, 2)?);
        let content = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Interface and neighbor for `dst`.
fn route(reply: &[u8], dst: IpAddr) -> Option<(u32, IpAddr)> {
    let (mut if_index, mut neighbour) = (None, dst);
    for (kind, content) in attributes(reply, RTM_NEWROUTE, FIXED)? {
        match (kind, content.len()) {
            (RTA_OIF, 4) => if_index = content.first_chunk().map(|index| u32::from_ne_bytes(*index)),
            (RTA_GATEWAY, 4) => neighbour = Ipv4Addr::from(*content.first_chunk::<4>()?).into(),
            (RTA_GATEWAY, 16) => neighbour = Ipv6Addr::from(*content.first_chunk::<16>()?).into(),
            _ => {}
        }
    }
    // A gateway of the other address family (RTA_VIA) is not supported.
    (reply[FIXED - 5] == RTN_UNICAST && neighbour.is_ipv4() == dst.is_ipv4()).then_some((if_index?, neighbour))
}

fn neighbour_of(reply: &[u8]) -> Option<Neighbour> {
    let attributes = attributes(reply, RTM_NEWNEIGH, FIXED)?;
    let state = u16::from_ne_bytes(*reply.get(16 + 8..)?.first_chunk()?);
    let mac = attributes.filter(|(kind, _)| *kind == NDA_LLADDR).find_map(|(_, mac)| <[u8; 6]>::try_from(mac).ok());
    mac.filter(|_| state & USABLE != 0).map(|mac| Neighbour { mac, proven: state != STALE })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_are_read_as_the_kernel_writes_them() {
        let fixed = [2, 24, 0, 0, 254, 3, 0, RTN_UNICAST, 0, 0, 0, 0];
        let dst: IpAddr = "198.51.100.7".parse().unwrap();
        let direct = message(RTM_NEWROUTE, fixed, &[(RTA_DST, &[198, 51, 100, 7]), (RTA_OIF, &9_u32.to_ne_bytes())]);
        assert_eq!(route(&direct, dst), Some((9, dst)));
        let via = message(RTM_NEWROUTE, fixed, &[(RTA_OIF, &9_u32.to_ne_bytes()), (RTA_GATEWAY, &[192, 0, 2, 1])]);
        assert_eq!(route(&via, dst), Some((9, "192.0.2.1".parse().unwrap())));
        let local =
            message(RTM_NEWROUTE, [2, 32, 0, 0, 255, 2, 254, 2, 0, 0, 0, 0], &[(RTA_OIF, &1_u32.to_ne_bytes())]);
        assert_eq!(route(&local, dst), None, "an address of this host");
        let neighbour = |state: u8| {
            message(RTM_NEWNEIGH, [2, 0, 0, 0, 9, 0, 0, 0, state, 0, 0, 1], &[(NDA_LLADDR, &[2, 0, 0, 0, 0, 1])])
        };
        let states = if cfg!(target_endian = "little") { [0x02, 0x04, 0x01, 0x20] } else { return };
        let proven = states.map(|state| neighbour_of(&neighbour(state)).map(|neighbour| neighbour.proven));
        assert_eq!(proven, [Some(true), Some(false), None, None]);
    }

    proptest! {
        #[test]
        fn no_answer_breaks_it(kind in prop_oneof![Just(RTM_NEWROUTE), Just(RTM_NEWNEIGH)],
                               rest in prop::collection::vec(prop_oneof![0..6_u8, any::<u8>()], 0..80)) {
            let reply = [&[0; 4][..], &kind.to_ne_bytes(), &rest].concat();
            let _ = route(&reply, Ipv4Addr::LOCALHOST.into());
            let _ = neighbour_of(&reply);
        }
    }
}
