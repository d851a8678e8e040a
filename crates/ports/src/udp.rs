//! A UDP socket as a port of whole IP packets: NAT-T (4500), PSP (1000) or any other.
//!
//! The IP and UDP headers of received datagrams are rebuilt. Sent packets must be IP/UDP packets
//! from this port; the kernel creates new headers from their addresses, ports and TOS.

use std::io;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use dataplane::{Batch, Packet, Port};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use wire::ip::IPV6_HEADER;
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto};

use super::mmsg::{
    self, GroState, Message, Mmsg, Outgoing, Receive, Taken, Unreadable, get_int, large_buffers, set_int,
};
use super::{GsoCounters, PortDrops, RawPort, RawProtocols, rebuild};

/// Limit of IKE messages from GRO packets that one call forwards to the IKE socket: sufficient for
/// a large message in fragments (RFC 7383), while a flood of IKE messages does not delay packets.
/// 0.5 MB per socket, mostly untouched without such messages.
const ASTRAY: usize = 16;
/// Bytes of each, with its headers: in a GRO packet another one is before it and no shorter, and
/// both together are no longer than what a UDP datagram may be.
const ASTRAY_BYTES: usize = (1 << 15) + IPV6_HEADER + UdpHeader::LEN;
/// Requested size of each socket buffer, in bytes.
pub(super) const SOCKET_BUFFER: i32 = 16 << 20;
/// Linux: send UDP over IPv4 without a checksum (RFC 3948 §2.1: zero).
const SO_NO_CHECK: i32 = 11;
/// Linux: accept UDP over IPv6 without a checksum (RFC 6935).
const UDP_NO_CHECK6_RX: i32 = 102;
/// Linux: DF on, and sizes checked against the interface alone: the path MTU is the data plane's.
pub(super) const PMTUDISC_PROBE: i32 = 3;
/// Linux: DF off, packets above the path MTU are fragmented.
const PMTUDISC_DONT: i32 = 0;

/// One UDP socket of one family.
pub struct UdpPort {
    socket: Socket,
    local: SocketAddr,
    /// IKE has a socket on the same port.
    shared: bool,
    mmsg: Mmsg,
    gro: Option<GroReceive>,
    supers: Arc<GsoCounters>,
    refused: PortDrops,
}

/// Headers of the previous datagram, which are reused for the same GRO packet and length.
#[derive(Default)]
struct Headers {
    bytes: ArrayVec<u8, { IPV6_HEADER + UdpHeader::LEN }>,
    /// Bytes after them.
    payload_len: Option<usize>,
}

impl Headers {
    /// Prepends the headers to `packet`, if it has the same length.
    fn repeat(&self, packet: &mut Packet) -> bool {
        self.payload_len == Some(packet.len()) && packet.prepend(&self.bytes).is_ok()
    }

    /// Creates them from the control data of the kernel.
    fn make(&mut self, packet: &mut Packet, message: &Message<'_>, port: u16) -> Result<(), Unreadable> {
        let payload_len = packet.len();
        self.payload_len = None;
        rebuild::udp(packet, message, port)?;
        self.bytes.clear();
        // They fit into the buffer: Weir's UDP sockets do not request extension headers.
        if self.bytes.try_extend_from_slice(&packet.bytes()[..packet.len() - payload_len]).is_ok() {
            self.payload_len = Some(payload_len);
        }
        Ok(())
    }
}

/// State for receiving GRO packets.
struct GroReceive {
    memory: GroState,
    /// Owner of the datagrams that wait for a buffer; never used to send.
    mmsg: Mmsg,
    astray: Option<StrayIke>,
}

/// IKE messages from a GRO packet, to be forwarded to the IKE socket.
struct StrayIke {
    messages: Batch,
    raw: RawPort,
}

impl StrayIke {
    fn open(v6: bool) -> io::Result<Self> {
        let back = RawProtocols { protocols: vec![], icmp: false, v4: !v6, v6, ..RawProtocols::default() };
        Ok(Self { messages: Batch::new(ASTRAY, ASTRAY_BYTES), raw: RawPort::open(&back)? })
    }

    /// Stores a message. Returns false if the buffer is full.
    fn take(&mut self, packet: &Packet) -> bool {
        self.messages.push_with(|message| message.set(packet.bytes()))
    }

    /// Sends the stored messages to this host again, one by one.
    fn send_on(&mut self, refused: &mut PortDrops) {
        if self.messages.is_empty() {
            return;
        }
        self.messages.packets_mut().iter_mut().for_each(put_checksum);
        self.raw.send_for(self.messages.packets(), refused);
        self.messages.clear();
    }
}

impl UdpPort {
    /// A socket bound to `local`; an unspecified address receives on every address of its family
    /// (an IPv6 socket never receives IPv4) and port 0 lets the kernel choose. `mark` is set on
    /// sent packets (SO_MARK).
    ///
    /// # Errors
    /// The operating system's, with the address and, where there is one, a remedy.
    pub fn bind(local: SocketAddr, mark: Option<u32>) -> io::Result<Self> {
        let named = |error: io::Error| {
            let remedy = match error.raw_os_error() {
                Some(libc::EADDRINUSE) => {
                    "another program has the port; stop it (`ss -ulpn` shows it) or configure another"
                }
                Some(libc::EADDRNOTAVAIL) => "no interface of this host has the address; add it first",
                Some(libc::EACCES | libc::EPERM) => {
                    "no permission: run as root or with CAP_NET_BIND_SERVICE and CAP_NET_ADMIN"
                }
                _ => return io::Error::new(error.kind(), format!("UDP socket {local}: {error}")),
            };
            io::Error::new(error.kind(), format!("UDP socket {local}: {remedy}"))
        };
        Self::open(local, mark, false).map_err(named)
    }

    /// [`UdpPort::bind`] on a port that the IKE daemon of this process has opened with
    /// [`share_with_esp`]: the daemon receives the IKE messages, this port the rest.
    ///
    /// # Errors
    /// As [`UdpPort::bind`].
    pub fn bind_shared(local: SocketAddr, mark: Option<u32>) -> io::Result<Self> {
        Self::open(local, mark, true)
            .map_err(|error| io::Error::new(error.kind(), format!("UDP socket {local}, shared with IKE: {error}")))
    }

    fn open(local: SocketAddr, mark: Option<u32>, shared: bool) -> io::Result<Self> {
        let v6 = local.is_ipv6();
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        if v6 {
            socket.set_only_v6(true)?;
            rebuild::report_v6(&socket, false)?;
            set_int(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
            set_int(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, PMTUDISC_PROBE)?;
        } else {
            rebuild::report_v4(&socket)?;
            set_int(&socket, libc::SOL_SOCKET, SO_NO_CHECK, 1)?;
            set_int(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, PMTUDISC_PROBE)?;
        }
        if let Some(mark) = mark {
            socket.set_mark(mark)?;
        }
        large_buffers(&socket, SOCKET_BUFFER)?;
        socket.set_reuse_port(shared)?;
        socket.bind(&SockAddr::from(local))?;
        let bound = socket.local_addr()?.as_socket().unwrap_or(local);
        let (supers, refused) = (Arc::default(), PortDrops::default());
        Ok(Self { socket, local: bound, shared, mmsg: Mmsg::new(), gro: None, supers, refused })
    }

    /// Has the kernel hand over datagrams of one flow and size together (UDP_GRO, Linux 5.0), and
    /// lets a raw port send such by this socket: with UDP checksums then, as the kernel requires.
    ///
    /// # Errors
    /// The operating system's: an old kernel. On a port shared with IKE also a missing CAP_NET_RAW:
    /// an IKE message within a GRO packet must be forwarded to its own socket.
    pub fn join_datagrams(&mut self) -> io::Result<()> {
        let v6 = self.local.is_ipv6();
        let astray = self.shared.then(|| StrayIke::open(v6)).transpose()?;
        set_int(&self.socket, libc::IPPROTO_UDP, libc::UDP_GRO, 1)?;
        if !v6 {
            set_int(&self.socket, libc::SOL_SOCKET, SO_NO_CHECK, 0)?;
        }
        self.gro = Some(GroReceive { memory: GroState::new(), mmsg: Mmsg::new(), astray });
        Ok(())
    }

    /// Returns the GRO counters.
    pub fn gso_counters(&self) -> Arc<GsoCounters> {
        Arc::clone(&self.supers)
    }

    /// Returns another descriptor of the socket, for sending.
    pub(super) fn lend(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Attaches the filter that selects among the sockets of this port by SPI. They must have been
    /// bound with [`UdpPort::bind_shared`] in the order of the `workers` that they are for, after
    /// that of an IKE daemon if `ike`, which gets its messages. ESP goes to the worker with the
    /// number SPI, EESP to SPI plus Session ID, modulo `workers`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn steer(&self, workers: usize, ike: bool) -> io::Result<()> {
        super::steer::attach(&self.socket, workers, ike)
    }

    /// The address and port in use.
    pub fn local(&self) -> SocketAddr {
        self.local
    }
}

/// Prepares the unbound socket of an IKE daemon for the NAT-T port: of what arrives there it will
/// get messages with the non-ESP marker (RFC 3948 §2.2) and what is shorter than one; a [`UdpPort`]
/// that is bound afterwards with [`UdpPort::bind_shared`] gets the rest. The kernel decides, packet
/// by packet.
///
/// # Errors
/// The operating system's.
pub fn share_with_esp(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_port(true)
}

/// Completes [`share_with_esp`] once the socket is bound, before any other joins it.
///
/// # Errors
/// The operating system's.
pub fn keep_ike(socket: &Socket) -> io::Result<()> {
    mmsg::choose_by_payload(socket, &IKE_FIRST)
}

/// Socket option of the family that decides about DF.
fn mtu_discover(v6: bool) -> (i32, i32) {
    if v6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) } else { (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) }
}

/// Clears DF in what the IKE daemon sends by `socket`, and lets IP fragment messages above the path
/// MTU: a certificate is often larger than that, and not every peer supports RFC 7383. Data of the
/// same port uses separate sockets with the DF setting of the SA.
///
/// # Errors
/// The operating system's.
pub fn allow_ip_fragments(socket: &Socket, v6: bool) -> io::Result<()> {
    let (level, name) = mtu_discover(v6);
    set_int(socket, level, name, PMTUDISC_DONT)
}

/// Returns true when DF is clear in what `socket` sends, see [`allow_ip_fragments`].
///
/// # Errors
/// The operating system's.
pub fn ip_fragments_allowed(socket: &Socket, v6: bool) -> io::Result<bool> {
    let (level, name) = mtu_discover(v6);
    get_int(socket, level, name).map(|mode| mode == PMTUDISC_DONT)
}

/// Classic BPF over the UDP payload: index 0 among the sockets of the port for a marker of zeros,
/// and for what has no four bytes; index 1 for all else.
const IKE_FIRST: [libc::sock_filter; 4] = [
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0),
    step(libc::BPF_RET | libc::BPF_K, 0, 0),
    step(libc::BPF_RET | libc::BPF_K, 0, 1),
];

/// Computes the missing checksum of a received UDP packet.
fn put_checksum(packet: &mut Packet) {
    let Ok(ip) = IpPacket::parse(packet.bytes()) else { return };
    let sum = wire::udp::checksum(ip.src, ip.dst, &packet.bytes()[ip.upper_at..]);
    packet.bytes_mut()[ip.upper_at + offset_of!(UdpHeader, checksum)..][..2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns whether [`IKE_FIRST`] would select the IKE socket for this datagram. For a GRO packet,
/// the kernel only checks the first datagram.
fn is_ike(datagram: &[u8]) -> bool {
    datagram.first_chunk().is_none_or(|marker: &[u8; 4]| *marker == [0; 4])
}

const fn step(code: u32, if_false: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: if_false, k }
}

/// The datagram inside `packet`, when it is a whole UDP packet from `local` or from any address of
/// its family when `local` is unspecified.
fn outgoing(packet: &Packet, local: SocketAddr) -> Option<Outgoing<'_>> {
    let bytes = packet.bytes();
    let ip = IpPacket::parse(bytes).ok()?;
    if ip.upper != IpProto::UDP || ip.fragment.is_some() || ip.is_v6() != local.is_ipv6() {
        return None;
    }
    let (header, payload) = UdpHeader::parse(&bytes[ip.upper_at..ip.total_len]).ok()?;
    let payload_len = usize::from(header.len.get()).checked_sub(UdpHeader::LEN)?;
    if header.src_port.get() != local.port() || !(local.ip().is_unspecified() || local.ip() == ip.src) {
        return None;
    }
    Some(Outgoing {
        bytes: payload.get(..payload_len)?,
        to: SocketAddr::new(ip.dst, header.dst_port.get()),
        header: Some((ip.src, ip.tos)),
    })
}

impl Port for UdpPort {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        let port = self.local.port();
        if let Some(GroReceive { memory, mmsg, astray }) = &mut self.gro {
            let (mut headers, mut left_over, mut passed_on) = (Headers::default(), 0, 0);
            let finish = |packet: &mut Packet, message: &Message<'_>, again: bool| {
                let ike = is_ike(packet.bytes()) && (again || message.is_gro());
                if !(again && headers.repeat(packet)) {
                    headers.make(packet, message, port)?;
                }
                let Some(astray) = astray.as_mut().filter(|_| ike) else { return Ok(Taken::Keep) };
                left_over += u64::from(!astray.take(packet));
                passed_on += 1;
                Ok(Taken::Gone)
            };
            let (socket, refused) = (self.socket.as_fd(), &mut self.refused);
            let receive = Receive { socket, gro: memory, into, refused, gso: &self.supers };
            let outcome = mmsg.receive_gro(receive, finish);
            let refused = &mut self.refused;
            refused.full += left_over;
            refused.passed_on += passed_on;
            if let Some(astray) = astray {
                astray.send_on(refused);
            }
            return outcome;
        }
        self.mmsg.receive(self.socket.as_fd(), into, &mut self.refused, |p, m| rebuild::udp(p, m, port))
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        let local = self.local;
        from.retain(|_, packet| {
            let ours = outgoing(packet, local).is_some();
            self.refused.other += u64::from(!ours);
            ours
        });
        self.mmsg.send(self.socket.as_fd(), from.packets(), &mut self.refused, |packet| outgoing(packet, local))?;
        from.clear();
        Ok(())
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn drops(&self) -> PortDrops {
        self.refused
    }
}
