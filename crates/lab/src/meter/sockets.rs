//! UDP sockets as ports: traffic between two addresses of this host, each in any network namespace.
//!
//! The path is determined by the kernel's routes: an interface, a tunnel, a subject in namespaces.
//! The kernel adds the headers, so headers are removed from the generator's packets and restored on
//! received ones.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;

use dataplane::{Batch, Port, PortDrops};
use rustix::net::sockopt;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use wire::IpProto;
use wire::ip::{IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header};
use wire::udp::UdpHeader;

use crate::traffic::{Addresses, DST_PORT, FIRST_SRC_PORT};

/// Bytes that a receiving socket may hold: a few milliseconds of full speed.
const RECEIVE_BYTES: usize = 8 << 20;
/// Most flows: each has a socket.
pub const MAX_SOCKETS: u32 = 1024;

/// An address of this host, in the namespace `ip netns` calls so, or in ours: `10.1.0.1`,
/// `10.1.0.1@left`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Place {
    /// Address.
    pub addr: IpAddr,
    /// Namespace.
    pub netns: Option<PathBuf>,
}

/// Text that is no [`Place`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlaceError {
    /// It does not begin with an address.
    #[error("'{0}' is not an address; write e.g. 10.1.0.1 or 10.1.0.1@NETNS")]
    Address(String),
    /// Nothing follows '@'.
    #[error("a namespace needs a name, as ip netns list shows it")]
    Namespace,
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let (addr, netns) = text.split_once('@').map_or((text, None), |(addr, name)| (addr, Some(name)));
        let addr = addr.parse().map_err(|_| PlaceError::Address(addr.to_owned()))?;
        let netns = match netns {
            None => None,
            Some("") => return Err(PlaceError::Namespace),
            Some(path) if path.starts_with('/') => Some(PathBuf::from(path)),
            Some(name) => Some(PathBuf::from("/run/netns").join(name)),
        };
        Ok(Self { addr, netns })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.netns {
            None => self.addr.fmt(f),
            Some(netns) => write!(f, "{}@{}", self.addr, netns.display()),
        }
    }
}

impl Place {
    /// A socket bound here, which stays in the namespace wherever it is used.
    ///
    /// # Errors
    /// No such namespace or address, no privilege to enter the namespace, or a port that is taken.
    pub fn bind(&self, port: u16) -> io::Result<UdpSocket> {
        let at = SocketAddr::new(self.addr, port);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{self}: port {port}: {error}"));
        let bind = move || {
            let socket = UdpSocket::bind(at)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let Some(netns) = self.netns.clone() else { return bind().map_err(named) };
        // A thread enters the namespace and ends in it; ours stays where it is.
        let inside = std::thread::spawn(move || {
            let namespace = std::fs::File::open(&netns)?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            bind()
        });
        inside.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace ended"))).map_err(named)
    }
}

/// The sending end: a socket for each flow.
pub struct SendPort {
    flows: Vec<UdpSocket>,
    refused: PortDrops,
}

impl SendPort {
    /// Sockets at `from` for `flows` flows to `to`.
    ///
    /// # Errors
    /// As [`Place::bind`], or more flows than [`MAX_SOCKETS`].
    pub fn open(from: &Place, to: IpAddr, flows: u32) -> io::Result<Self> {
        if flows > MAX_SOCKETS {
            return Err(io::Error::other(format!("{flows} flows need as many sockets; use at most {MAX_SOCKETS}")));
        }
        let socket = |flow: u32| {
            let socket = from.bind(FIRST_SRC_PORT + flow as u16)?;
            socket.connect(SocketAddr::new(to, DST_PORT))?;
            Ok(socket)
        };
        Ok(Self { flows: (0..flows).map(socket).collect::<io::Result<_>>()?, refused: PortDrops::default() })
    }
}

impl Port for SendPort {
    fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
        Ok(())
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        for packet in from.packets() {
            let bytes = packet.bytes();
            let ip_len = if bytes.first().is_some_and(|first| first >> 4 == 6) { IPV6_HEADER } else { IPV4_HEADER };
            let sent = bytes.get(ip_len..).and_then(|datagram| {
                let (udp, payload) = UdpHeader::parse(datagram).ok()?;
                let flow = udp.src_port.get().checked_sub(FIRST_SRC_PORT)?;
                Some(self.flows.get(usize::from(flow))?.send(payload))
            });
            match sent {
                Some(Ok(_)) => {}
                // The queue of the socket or of the device is full.
                Some(Err(error)) if matches!(error.kind(), io::ErrorKind::WouldBlock) => self.refused.full += 1,
                Some(Err(error)) if error.raw_os_error() == Some(NO_BUFFERS) => self.refused.full += 1,
                Some(Err(error)) if error.raw_os_error() == Some(TOO_LONG) => self.refused.too_big += 1,
                // No listener (yet): an ICMP error for an earlier packet.
                Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => self.refused.other += 1,
                Some(Err(error)) => {
                    from.clear();
                    return Err(error);
                }
                None => self.refused.other += 1,
            }
        }
        from.clear();
        Ok(())
    }

    fn drops(&self) -> PortDrops {
        self.refused
    }
}

const NO_BUFFERS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();
const TOO_LONG: i32 = rustix::io::Errno::MSGSIZE.raw_os_error();

/// The receiving end.
pub struct ReceivePort {
    socket: UdpSocket,
    /// Addresses that the headers are given.
    addresses: Addresses,
    payload: Box<[u8]>,
}

impl ReceivePort {
    /// A socket at `at` for packets from `src`.
    ///
    /// # Errors
    /// As [`Place::bind`].
    pub fn open(at: &Place, src: IpAddr) -> io::Result<Self> {
        let socket = at.bind(DST_PORT)?;
        // A value above the administrator's limit is reduced to it, which is not an error.
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES)?;
        Ok(Self { socket, addresses: Addresses { src, dst: at.addr }, payload: vec![0; 1 << 16].into() })
    }

    /// Puts the headers of `addresses` in front of `payload` and all of it into `area`.
    fn rebuild(&self, len: usize, src_port: u16, area: &mut [u8]) -> Option<usize> {
        let v6 = self.addresses.dst.is_ipv6();
        let ip_len = if v6 { IPV6_HEADER } else { IPV4_HEADER };
        let whole = area.get_mut(..ip_len + UdpHeader::LEN + len)?;
        match (self.addresses.src, self.addresses.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Ipv4Header::new(src, dst, IpProto::UDP, UdpHeader::LEN + len)?.emit(whole).ok()?;
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Ipv6Header::new(src, dst, IpProto::UDP, UdpHeader::LEN + len)?.emit(whole).ok()?;
            }
            _ => return None,
        }
        UdpHeader::new(src_port, DST_PORT, len)?.emit(&mut whole[ip_len..]).ok()?;
        whole[ip_len + UdpHeader::LEN..].copy_from_slice(&self.payload[..len]);
        Some(whole.len())
    }
}

impl Port for ReceivePort {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        while into.room() > 0 {
            let (len, from) = match self.socket.recv_from(&mut self.payload) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error),
            };
            into.push_with(|packet| match self.rebuild(len, from.port(), packet.receive_area()) {
                Some(len) => {
                    packet.received(0, len);
                    true
                }
                None => false,
            });
        }
        Ok(())
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        from.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::meter::{Load, Meter, PortMeter, PortOptions};
    use crate::metric::Metric;
    use crate::trial::{Direction, Lost};

    #[test]
    fn places_are_read() {
        let place: Place = "10.1.0.1@left".parse().unwrap();
        assert_eq!(place.netns, Some(PathBuf::from("/run/netns/left")));
        assert_eq!("fd00::1".parse::<Place>().unwrap().netns, None);
        assert!("10.1.0.1@".parse::<Place>().unwrap_err().to_string().contains("needs a name"));
        assert!("lo".parse::<Place>().unwrap_err().to_string().contains("not an address"));
        let nowhere: Place = "127.0.0.1@/nonexistent/netns".parse().unwrap();
        assert!(
            nowhere.bind(0).unwrap_err().to_string().starts_with("127.0.0.1@/nonexistent/netns: port 0: No such file")
        );
        let other: Place = "192.0.2.77".parse().unwrap();
        assert!(other.bind(0).is_err());
    }

    /// The generator's port numbers are fixed: each process has its own addresses, so that tests
    /// can run in parallel.
    #[test]
    fn packets_cross_the_loopback_whole() {
        let [.., high, low] = std::process::id().to_be_bytes();
        let place = |end: u8| Place { addr: [127, 64 + end, high, low].into(), netns: None };
        let (from, to) = (place(0), place(1));
        let rx = ReceivePort::open(&to, from.addr).unwrap();
        let tx = SendPort::open(&from, to.addr, 3).unwrap();
        let addresses = Addresses { src: from.addr, dst: to.addr };
        let lost = Box::new(Lost::default);
        let mut meter = PortMeter::new("loopback", Box::new(tx), Box::new(rx), addresses, lost, PortOptions::default());
        let traffic = "60..1400,flows=3,rate=1000".parse().unwrap();
        let load = Load { traffic, direction: Direction::Both, duration: Duration::from_millis(100), seed: 1 };
        let measured = meter.trial(&load).unwrap();
        assert_eq!(measured.sent, 100);
        assert_eq!(measured.received + measured.lost.total(), 100);
        assert!(measured.received > 0 && measured.verified > 0, "{measured:?}");
        assert!(measured.values.get(Metric::LatencyMax).unwrap() > 0.0);
        assert!(SendPort::open(&from, to.addr, 5000).is_err());
    }
}
