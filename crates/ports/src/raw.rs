//! Raw IP sockets: ESP, AH and EESP without UDP, and any outbound IP packet.
//!
//! One receiving socket per protocol, family and local address, joined in one epoll set; one
//! sending socket per family. Needs CAP_NET_RAW, and CAP_NET_ADMIN for a mark.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use dataplane::{Batch, Packet, Port};
use rustix::event::epoll;
use rustix::time::Timespec;
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use wire::IpProto;

use super::gso::{GsoSend, GsoSender, gso_length};
use super::mmsg::{Mmsg, Outgoing, large_buffers, set_option};
use super::{GsoCounters, PortDrops, UdpPort, rebuild};

/// Requested size of each socket buffer, in bytes.
const SOCKET_BUFFER: i32 = 16 << 20;
/// Ready sockets per call.
const EVENTS: usize = 16;
/// Linux, `IPPROTO_RAW` level: blocked ICMP types, one bit each.
const ICMP_FILTER: i32 = 1;
/// RFC 3542 §3.2, the same for ICMPv6: 256 bits.
const ICMP6_FILTER: i32 = 1;

/// Packets that a raw port receives, and its send options.
#[derive(Clone, Debug)]
pub struct RawProtocols {
    /// Protocols to receive, for instance ESP (50), AH (51) and the number EESP uses. Empty for a
    /// port that only sends.
    pub protocols: Vec<IpProto>,
    /// Also receive ICMP "destination unreachable" and ICMPv6 "destination unreachable" and "packet
    /// too big", for the path MTU.
    pub icmp: bool,
    /// Receive and send IPv4.
    pub v4: bool,
    /// Receive and send IPv6.
    pub v6: bool,
    /// Receive only packets to these addresses; empty for every address of this host.
    pub local: Vec<IpAddr>,
    /// Mark of sent packets (SO_MARK), so that policy routing can keep them out of Weir's own TUN.
    pub mark: Option<u32>,
    /// Send and receive on this interface only.
    pub device: Option<String>,
}

impl Default for RawProtocols {
    /// ESP and AH and ICMP errors, both families, every address.
    fn default() -> Self {
        Self {
            protocols: vec![IpProto::ESP, IpProto::AH],
            icmp: true,
            v4: true,
            v6: true,
            local: Vec::new(),
            mark: None,
            device: None,
        }
    }
}

/// Raw sockets as one port.
///
/// Changes by the kernel: an IPv4 identification of 0 is replaced when DF is clear, so AH must not
/// send that; fragments are reassembled; IPv6 headers are rebuilt from control data (module
/// `rebuild`). IPv4 packets larger than the MTU of the outgoing interface are refused as too big,
/// also without DF.
pub struct RawPort {
    receivers: Vec<Receiver>,
    ready: OwnedFd,
    send_v4: Option<Socket>,
    send_v6: Option<Socket>,
    mmsg: Mmsg,
    gso: Option<GsoSender>,
    supers: Arc<GsoCounters>,
    refused: PortDrops,
}

struct Receiver {
    socket: Socket,
    proto: IpProto,
    v6: bool,
}

impl RawPort {
    /// Opens the sockets.
    ///
    /// # Errors
    /// Errors of the operating system, with the protocol or address; a missing CAP_NET_RAW is
    /// named. Missing IPv6 is an error only if IPv4 is not requested.
    pub fn open(wanted: &RawProtocols) -> io::Result<Self> {
        let mut port = Self {
            receivers: Vec::new(),
            ready: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            send_v4: None,
            send_v6: None,
            mmsg: Mmsg::new(),
            gso: None,
            supers: Arc::default(),
            refused: PortDrops::default(),
        };
        if wanted.v4 {
            port.send_v4 = Some(sender(wanted, false)?);
            port.open_receivers(wanted, false)?;
        }
        if wanted.v6 {
            match sender(wanted, true) {
                Err(error) if wanted.v4 && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
                Err(error) => return Err(error),
                Ok(socket) => {
                    port.send_v6 = Some(socket);
                    port.open_receivers(wanted, true)?;
                }
            }
        }
        Ok(port)
    }

    /// Ignores ICMP from the interface with this index: on the TUN it is from the inner side and
    /// does not concern the outer path. Other protocols are still received, because there may be a
    /// nested layer of IPsec.
    ///
    /// # Errors
    /// The operating system's.
    pub fn ignore_icmp_from(&self, if_index: u32) -> io::Result<()> {
        let icmp = |receiver: &&Receiver| matches!(receiver.proto, IpProto::ICMP | IpProto::ICMPV6);
        let filter = not_from(if_index);
        self.receivers.iter().filter(icmp).try_for_each(|receiver| receiver.socket.attach_filter(&filter))
    }

    /// Enables UDP GSO: consecutive packets of one flow are sent by one call, through `ports` and
    /// through sockets for the ports that PSP chooses (up to 32, with `mark`). The kernel then
    /// computes their UDP checksums, which are never 0; packets without DF are sent one by one.
    ///
    /// # Errors
    /// The operating system's.
    pub fn enable_gso(&mut self, ports: &[UdpPort], mark: Option<u32>) -> io::Result<()> {
        let fixed = ports.iter().map(|port| Ok((port.local(), port.lend()?))).collect::<io::Result<_>>()?;
        self.gso = Some(GsoSender::new(fixed, mark));
        Ok(())
    }

    /// Returns the GSO counters of this port.
    pub fn gso_counters(&self) -> Arc<GsoCounters> {
        Arc::clone(&self.supers)
    }

    /// Sends `packets` of another port. Packets that the kernel rejects are counted in `refused`.
    pub(super) fn send_for(&mut self, packets: &[Packet], refused: &mut PortDrops) {
        std::mem::swap(&mut self.refused, refused);
        let _ = self.send_singly(packets);
        std::mem::swap(&mut self.refused, refused);
    }

    fn send_singly(&mut self, packets: &[Packet]) -> io::Result<()> {
        let count = |v6| packets.iter().filter(|packet| has_destination(packet, v6)).count();
        let (v4, v6) = (count(false), count(true));
        let mut sendable = 0;
        if let Some(socket) = self.send_v4.as_ref().filter(|_| v4 > 0) {
            sendable += v4;
            self.mmsg.send(socket.as_fd(), packets, &mut self.refused, outgoing_v4)?;
        }
        if let Some(socket) = self.send_v6.as_ref().filter(|_| v6 > 0) {
            sendable += v6;
            self.mmsg.send(socket.as_fd(), packets, &mut self.refused, outgoing_v6)?;
        }
        // Not IP packets, or a family that this port was not opened for.
        self.refused.other += (packets.len() - sendable) as u64;
        Ok(())
    }

    /// Sends bursts of UDP packets with GSO and other packets one by one.
    fn send_joined(&mut self, gso: &mut GsoSender, packets: &[Packet]) -> io::Result<()> {
        let (mut singles, mut at) = (0, 0);
        while at < packets.len() {
            let count = gso_length(&packets[at..]).max(1);
            let joined = &packets[at..at + count];
            if count > 1 {
                self.send_singly(&packets[singles..at])?;
                let outcome = gso.send(joined, &mut self.mmsg, &mut self.refused, &self.supers);
                if matches!(outcome, GsoSend::Singly) {
                    self.send_singly(joined)?;
                }
                singles = at + count;
            }
            at += count;
        }
        self.send_singly(&packets[singles..])
    }

    fn open_receivers(&mut self, wanted: &RawProtocols, v6: bool) -> io::Result<()> {
        let icmp = if v6 { IpProto::ICMPV6 } else { IpProto::ICMP };
        let any = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        let everywhere = [any];
        let local = if wanted.local.is_empty() { &everywhere[..] } else { &wanted.local };
        for address in local.iter().filter(|address| address.is_ipv6() == v6) {
            for &proto in wanted.protocols.iter().chain(wanted.icmp.then_some(&icmp)) {
                let socket = receiver(wanted, proto, *address)
                    .map_err(|error| named(error, format_args!("receiving protocol {} on {address}", proto.0)))?;
                let data = epoll::EventData::new_u64(self.receivers.len() as u64);
                epoll::add(&self.ready, &socket, data, epoll::EventFlags::IN)?;
                self.receivers.push(Receiver { socket, proto, v6 });
            }
        }
        Ok(())
    }
}

fn domain(v6: bool) -> Domain {
    if v6 { Domain::IPV6 } else { Domain::IPV4 }
}

fn open(wanted: &RawProtocols, v6: bool, protocol: i32) -> io::Result<Socket> {
    let socket = Socket::new(domain(v6), Type::RAW.nonblocking(), Some(Protocol::from(protocol)))?;
    if let Some(device) = &wanted.device {
        socket
            .bind_device(Some(device.as_bytes()))
            .map_err(|error| io::Error::new(error.kind(), format!("interface {device}: {error}")))?;
    }
    large_buffers(&socket, SOCKET_BUFFER)?;
    Ok(socket)
}

fn receiver(wanted: &RawProtocols, proto: IpProto, local: IpAddr) -> io::Result<Socket> {
    let v6 = local.is_ipv6();
    let socket = open(wanted, v6, i32::from(proto.0))?;
    match proto {
        IpProto::ICMP if !v6 => set_option(&socket, libc::SOL_RAW, ICMP_FILTER, &(!(1_u32 << 3)).to_ne_bytes())?,
        IpProto::ICMPV6 if v6 => set_option(&socket, libc::IPPROTO_ICMPV6, ICMP6_FILTER, &icmp6_filter())?,
        _ => {}
    }
    if v6 {
        rebuild::report_v6(&socket, true)?;
    }
    if !local.is_unspecified() {
        socket.bind(&SockAddr::from(SocketAddr::new(local, 0)))?;
    }
    Ok(socket)
}

/// Returns the filter that blocks all types except destination unreachable (1) and packet too big
/// (2).
fn icmp6_filter() -> [u8; 32] {
    let mut filter = [0xff; 32];
    filter[..4].copy_from_slice(&(!(1_u32 << 1 | 1 << 2)).to_ne_bytes());
    filter
}

/// Socket filter (classic BPF): whole packets, but none received on the interface.
fn not_from(if_index: u32) -> [SockFilter; 4] {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const INTERFACE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX) as u32;
    [
        SockFilter::new(LOAD, 0, 0, INTERFACE),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, if_index),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
}

fn sender(wanted: &RawProtocols, v6: bool) -> io::Result<Socket> {
    let what = if v6 { "sending IPv6" } else { "sending IPv4" };
    let open = || {
        let socket = open(wanted, v6, libc::IPPROTO_RAW)?;
        if v6 {
            socket.set_header_included_v6(true)?;
        } else {
            socket.set_header_included_v4(true)?;
        }
        if let Some(mark) = wanted.mark {
            socket.set_mark(mark)?;
        }
        Ok(socket)
    };
    open().map_err(|error| named(error, format_args!("{what}")))
}

/// Adds context and a remedy to the error; keeps the error number if callers need it.
fn named(error: io::Error, what: std::fmt::Arguments<'_>) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("raw socket, {what}: no permission: run as root or with CAP_NET_RAW and CAP_NET_ADMIN"),
        ),
        Some(libc::EADDRNOTAVAIL) => io::Error::new(
            error.kind(),
            format!(
                "raw socket, {what}: no interface of this host has the address; add it or correct the configuration"
            ),
        ),
        Some(libc::EAFNOSUPPORT) => error,
        _ => io::Error::new(error.kind(), format!("raw socket, {what}: {error}")),
    }
}

fn outgoing_v4(packet: &Packet) -> Option<Outgoing<'_>> {
    let bytes = packet.bytes();
    let dst = Ipv4Addr::from(*bytes.get(16..)?.first_chunk::<4>()?);
    (bytes[0] >> 4 == 4).then_some(Outgoing { bytes, to: SocketAddr::new(dst.into(), 0), header: None })
}

fn outgoing_v6(packet: &Packet) -> Option<Outgoing<'_>> {
    let bytes = packet.bytes();
    let dst = Ipv6Addr::from(*bytes.get(24..)?.first_chunk::<16>()?);
    (bytes[0] >> 4 == 6).then_some(Outgoing { bytes, to: SocketAddr::new(dst.into(), 0), header: None })
}

/// True for a packet of this version that is long enough to name its destination.
fn has_destination(packet: &Packet, v6: bool) -> bool {
    if v6 { outgoing_v6(packet).is_some() } else { outgoing_v4(packet).is_some() }
}

impl Port for RawPort {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let events = match epoll::wait(&self.ready, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // The kernel rotates the sockets it reports, so a busy one does not starve the others.
        for event in events.iter() {
            let Some(receiver) = self.receivers.get(event.data.u64() as usize) else { continue };
            let socket = receiver.socket.as_fd();
            if receiver.v6 {
                let proto = receiver.proto;
                self.mmsg.receive(socket, into, &mut self.refused, |p, m| rebuild::ipv6(p, m, proto))?;
            } else {
                self.mmsg.receive(socket, into, &mut self.refused, |_, _| Ok(()))?;
            }
        }
        Ok(())
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        let outcome = match self.gso.take() {
            Some(mut gso) => {
                let outcome = self.send_joined(&mut gso, from.packets());
                self.gso = Some(gso);
                outcome
            }
            None => self.send_singly(from.packets()),
        };
        from.clear();
        outcome
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn drops(&self) -> PortDrops {
        self.refused
    }
}
