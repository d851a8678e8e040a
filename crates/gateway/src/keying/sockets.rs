//! The UDP sockets of IKE: ports 500 and 4500 of every address of this host, both families.
//!
//! On the NAT-T port IKE messages carry a marker of four zero bytes (RFC 3948 §2.2); it is removed
//! and added here. ESP on the same port does not arrive here: the kernel delivers it to the data
//! plane.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};

/// Before an IKE message on the NAT-T port.
const MARKER: [u8; 4] = [0; 4];
/// NAT keepalive (RFC 3948 §2.3).
const KEEPALIVE: [u8; 1] = [0xff];
/// Largest datagram.
const DATAGRAM_BYTES: usize = 65_535;
/// Requested size of each receive buffer, in bytes: some thousands of handshakes at once.
const SOCKET_BUFFER: usize = 4 << 20;
/// Datagrams taken per look, so that a flood leaves time for everything else.
const PER_LOOK: usize = 512;

/// Datagrams of IKE, without the non-ESP marker.
pub(crate) trait Transport {
    /// Hands over what has arrived: local address, sender, IKE message. The rest of a flood waits
    /// for the next call.
    fn receive(&mut self, take: &mut dyn FnMut(SocketAddr, SocketAddr, &[u8]));
    /// Sends an IKE message.
    ///
    /// # Errors
    /// No route, no such address. IKE sends again.
    fn send(&self, local: SocketAddr, remote: SocketAddr, message: &[u8]) -> io::Result<()>;
    /// Keeps the NAT mapping between two addresses alive.
    ///
    /// # Errors
    /// As [`Transport::send`].
    fn keep_alive(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()>;
    /// File descriptors to poll.
    fn readable(&self) -> Vec<BorrowedFd<'_>>;
}

/// No sockets: nothing is received, and nothing can be sent.
pub(crate) struct NoTransport;

impl Transport for NoTransport {
    fn receive(&mut self, _: &mut dyn FnMut(SocketAddr, SocketAddr, &[u8])) {}

    fn send(&self, local: SocketAddr, _: SocketAddr, _: &[u8]) -> io::Result<()> {
        Err(no_socket(local))
    }

    fn keep_alive(&self, local: SocketAddr, _: SocketAddr) -> io::Result<()> {
        Err(no_socket(local))
    }

    fn readable(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

fn no_socket(local: SocketAddr) -> io::Error {
    io::Error::new(io::ErrorKind::AddrNotAvailable, format!("no IKE socket on port {}", local.port()))
}

/// IKE's sockets.
pub(crate) struct Sockets {
    ports: Vec<IkePort>,
    buffers: Vec<Vec<u8>>,
    nat_t_port: u16,
}

struct IkePort {
    socket: Socket,
    state: UdpSocketState,
    local: SocketAddr,
}

impl Sockets {
    /// Opens them; `mark` keeps their packets out of Weir's own device. A host without IPv6 gets
    /// those of IPv4.
    ///
    /// # Errors
    /// The operating system's, with the port and a remedy.
    pub(crate) fn open(ike_port: u16, nat_t_port: u16, mark: u32) -> io::Result<Self> {
        let mut ports = Vec::new();
        for (port, shared) in [(ike_port, false), (nat_t_port, true)] {
            for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
                match IkePort::open(SocketAddr::new(any, port), shared, mark) {
                    Ok(opened) => ports.push(opened),
                    Err(error)
                        if any.is_ipv6()
                            && error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => {}
                    Err(error) => return Err(explained(error, port)),
                }
            }
        }
        let buffers = vec![vec![0; DATAGRAM_BYTES]; BATCH_SIZE];
        Ok(Self { ports, buffers, nat_t_port })
    }

    /// Delivers received datagrams: local address, sender, IKE message. At most [`PER_LOOK`]
    /// datagrams of each socket; true when there may be more.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(SocketAddr, SocketAddr, &[u8])) -> bool {
        let mut more = false;
        for port in &self.ports {
            let mut taken = 0;
            while taken < PER_LOOK {
                let mut slices: Vec<IoSliceMut<'_>> =
                    self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
                let mut metas = [RecvMeta::default(); BATCH_SIZE];
                // An error is that of one datagram, or an ICMP message about one that was sent:
                // nothing to act on.
                let Ok(count) = port.state.recv(UdpSockRef::from(&port.socket), &mut slices, &mut metas) else { break };
                for (meta, buffer) in metas.iter().zip(&self.buffers).take(count) {
                    let local = SocketAddr::new(meta.dst_ip.unwrap_or(port.local.ip()), port.local.port());
                    for datagram in buffer[..meta.len.min(buffer.len())].chunks(meta.stride.max(1)) {
                        let message = if port.local.port() == self.nat_t_port {
                            datagram.strip_prefix(&MARKER)
                        } else {
                            Some(datagram)
                        };
                        if let Some(message) = message {
                            take(local, plain(meta.addr), message);
                        }
                    }
                }
                taken += count;
            }
            more |= taken >= PER_LOOK;
        }
        more
    }

    /// Sends an IKE message.
    ///
    /// # Errors
    /// The operating system's: no route, no such address. IKE sends again.
    pub(crate) fn send(&self, local: SocketAddr, remote: SocketAddr, message: &[u8]) -> io::Result<()> {
        if local.port() == self.nat_t_port {
            let marked = [&MARKER, message].concat();
            self.transmit(local, remote, &marked)
        } else {
            self.transmit(local, remote, message)
        }
    }

    /// Keeps the NAT mapping between two addresses alive.
    ///
    /// # Errors
    /// As [`Sockets::send`].
    pub(crate) fn keep_alive(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        self.transmit(local, remote, &KEEPALIVE)
    }

    fn transmit(&self, local: SocketAddr, remote: SocketAddr, contents: &[u8]) -> io::Result<()> {
        let fits = |port: &&IkePort| port.local.port() == local.port() && port.local.is_ipv6() == remote.is_ipv6();
        let Some(port) = self.ports.iter().find(fits) else {
            return Err(no_socket(local));
        };
        let src_ip = Some(local.ip()).filter(|ip| !ip.is_unspecified());
        let transmit = Transmit { destination: remote, ecn: None, contents, segment_size: None, src_ip };
        port.state.try_send(UdpSockRef::from(&port.socket), &transmit)
    }
}

impl Transport for Sockets {
    fn receive(&mut self, take: &mut dyn FnMut(SocketAddr, SocketAddr, &[u8])) {
        Self::receive(self, take);
    }

    fn send(&self, local: SocketAddr, remote: SocketAddr, message: &[u8]) -> io::Result<()> {
        Self::send(self, local, remote, message)
    }

    fn keep_alive(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        Self::keep_alive(self, local, remote)
    }

    fn readable(&self) -> Vec<BorrowedFd<'_>> {
        self.ports.iter().map(|port| port.socket.as_fd()).collect()
    }
}

impl IkePort {
    fn open(local: SocketAddr, shared: bool, mark: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        if local.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_mark(mark)?;
        // The limit of the kernel; less only means that a flood loses more.
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
        if shared {
            ports::share_with_esp(&socket)?;
        }
        socket.bind(&local.into())?;
        if shared {
            ports::keep_ike(&socket)?;
        }
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // After `UdpSocketState::new`, which forbids fragments.
        ports::allow_ip_fragments(&socket, local.is_ipv6())?;
        let local = socket.local_addr()?.as_socket().unwrap_or(local);
        Ok(Self { socket, state, local })
    }
}

/// An IPv4 address that the kernel reports as a mapped one.
fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn explained(error: io::Error, port: u16) -> io::Error {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "another program has it; stop it (`ss -ulpn 'sport = {port}'` shows it, often strongSwan's charon or another weir)"
            )
        }
        io::ErrorKind::PermissionDenied => {
            "no permission: run as root or with CAP_NET_BIND_SERVICE and CAP_NET_ADMIN".into()
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("UDP port {port} for IKE: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ports that the kernel chose a moment ago.
    fn two_ports() -> [u16; 2] {
        [(); 2].map(|()| std::net::UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port())
    }

    fn open() -> Option<(Sockets, [u16; 2])> {
        let ports = two_ports();
        match Sockets::open(ports[0], ports[1], 0x7765) {
            Ok(sockets) => Some((sockets, ports)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn wait(sockets: &mut Sockets, count: usize) -> Vec<(SocketAddr, SocketAddr, Vec<u8>)> {
        let (mut got, start) = (Vec::new(), std::time::Instant::now());
        while got.len() < count && start.elapsed().as_secs() < 5 {
            sockets.receive(|local, from, message| got.push((local, from, message.to_vec())));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        got
    }

    #[test]
    fn messages_come_with_both_addresses_and_go_from_the_one_that_was_asked_for() {
        let Some((mut here, [ike, nat_t])) = open() else { return };
        let Some((mut there, [ike_there, nat_t_there])) = open() else { return };
        let at = |host: u8, port| SocketAddr::from(([127, 0, 0, host], port));
        here.send(at(2, ike), at(3, ike_there), b"plain").unwrap();
        here.send(at(4, nat_t), at(5, nat_t_there), b"marked").unwrap();
        here.keep_alive(at(4, nat_t), at(5, nat_t_there)).unwrap();
        let mut got = wait(&mut there, 2);
        got.sort();
        let want =
            [(at(3, ike_there), at(2, ike), b"plain".to_vec()), (at(5, nat_t_there), at(4, nat_t), b"marked".to_vec())];
        assert_eq!(got, want);
        there.send(at(3, ike_there), at(2, ike), b"back").unwrap();
        assert_eq!(wait(&mut here, 1), [(at(2, ike), at(3, ike_there), b"back".to_vec())]);
        let error = here.send(at(2, 9), at(3, 9), b"lost").unwrap_err();
        assert_eq!(error.to_string(), "no IKE socket on port 9");
    }

    /// A certificate in IKE_AUTH can exceed the path MTU, and without RFC 7383 only IP can fragment
    /// it.
    #[test]
    fn sockets_of_ike_let_ip_fragment() {
        let Some((here, _)) = open() else { return };
        for port in &here.ports {
            let allowed = ports::ip_fragments_allowed(&port.socket, port.local.is_ipv6()).unwrap();
            assert!(allowed, "{}", port.local);
        }
    }

    #[test]
    fn a_taken_port_is_named() {
        let taken = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = Sockets::open(port, two_ports()[0], 0x7765).err().unwrap();
        let text = error.to_string();
        assert!(text.contains(&format!("UDP port {port} for IKE")), "{text}");
        assert!(text.contains("another program") || text.contains("no permission"), "{text}");
    }
}
