//! Kernel bypass (AF_XDP): an XDP program redirects the packets for the gateway, and sockets on the
//! receive queues exchange them in memory that is shared with the kernel.
//!
//! An [`Interface`] is opened once, before the process drops its privileges; it lives as long as
//! its ports, and the program is detached with it. In copy mode it carries protocols right above
//! IP, for which the kernel has neither GSO nor GRO; UDP has both, and losing them costs more than
//! AF_XDP gains. With zero-copy it carries UDP too. Packets that the program does not take, and
//! packets to unresolved neighbors, use sockets.

mod link;
mod next_hops;
mod packet_ring;
mod program;
mod ring;
mod sending;
mod sync;
mod sys;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dataplane::{Batch, Port, bump};
use socket2::SockRef;
use wire::IpProto;

use self::link::Link;
use self::packet_ring::PacketRing;
pub use self::program::BypassFilter;
use self::ring::{Consumer, Producer};
pub use self::sending::XdpSender;
use self::sending::{Sending, TxQueue};
use self::sys::{Descriptor, FrameCounts, Frames, Rings, Shared, Umem};
use super::bpf::{self, Kind};
use super::{PortDrops, RawPort};

/// Frames that a queue sends from, a power of two.
const SEND_FRAMES: u32 = 1024;
/// Frames that a queue receives to, a power of two: as much as a socket buffer holds, so that a
/// worker that is not scheduled does not lose several TCP windows of packets.
const RECEIVE_FRAMES: u32 = 8192;
/// Frames of a queue in each direction at least, where little memory may be locked.
const LEAST_FRAMES: u32 = 256;
/// Limit of the memory of all of them at an interface with many queues, in bytes. Each queue has
/// [`SEND_FRAMES`] of them at least.
const RECEIVE_BYTES: usize = 64 << 20;
/// Limit of local addresses, because the program compares every packet with each of them.
const MAX_ADDRESSES: usize = 256;
/// Bytes of an Ethernet header.
const ETHER: usize = 14;
/// Bytes of a VLAN tag: devices accept frames of their MTU that are longer by this.
const VLAN_TAG: usize = 4;
/// Headroom of a received frame that the kernel uses.
const KERNEL_HEADROOM: usize = 256;
/// Frame sizes that the kernel supports.
const FRAME_BYTES: [usize; 2] = [2048, 4096];
/// Limit of bytes in flight from a socket in copy mode: all frames of its ring, as the kernel
/// counts them.
const SENT_BYTES: i32 = 8 << 20;

/// An interface with kernel bypass.
pub struct Interface {
    sockets: Vec<Option<(Receiver, Sending)>>,
    hold: Arc<Attachment>,
}

/// Link that keeps the program attached, and the map of the XDP program.
struct Attachment {
    _link: OwnedFd,
    _map: Option<OwnedFd>,
}

/// Receive side of a queue.
enum Receiver {
    Xdp(Receiving),
    Packet(PacketRing),
}

/// How packets reach the queues of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reception {
    /// By the XDP program in the driver.
    Driver,
    /// By the XDP program in the stack.
    Stack,
    /// By a packet socket.
    PacketRing,
}

struct Receiving {
    socket: Arc<OwnedFd>,
    fill: Producer<Shared<u64>>,
    rx: Consumer<Shared<Descriptor>>,
    frames: Frames,
    passed: Arc<QueueCounters>,
}

/// Counters of a queue. Written by its ports, which belong to one worker, with plain loads and
/// stores; read by any thread.
#[derive(Default)]
#[repr(align(128))]
struct QueueCounters {
    received: AtomicU64,
    sent: AtomicU64,
    /// Lost by a packet socket, as far as the monitor has read it.
    lost: AtomicU64,
    /// The kernel has stopped sending from this queue.
    silent: AtomicBool,
}

/// Packets that bypassed the kernel's stack at an interface.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BypassCounts {
    /// Received.
    pub received: u64,
    /// Sent to the interface.
    pub sent: u64,
    /// Received and dropped because the ring was full.
    pub lost: u64,
}

/// Monitoring of an interface.
pub struct InterfaceMonitor {
    name: String,
    zero_copy: bool,
    reception: Reception,
    /// Reason why a veth device does not receive by a packet socket.
    no_packet_socket: Option<io::Error>,
    /// Frames of its last queue in the direction with more of them, where these are fewer than
    /// wanted.
    fewer: Option<u32>,
    queues: Vec<Watched>,
}

struct Watched {
    socket: Arc<OwnedFd>,
    /// Socket of the ring that receives instead.
    packet_socket: Option<Arc<OwnedFd>>,
    passed: Arc<QueueCounters>,
    /// Errors that were already reported.
    reported: bool,
}

/// Receive side of one queue of an interface.
struct XdpPort {
    receiver: Receiver,
    refused: PortDrops,
    _hold: Arc<Attachment>,
}

/// Checks whether this process has the privileges for [`Interface::open`], as far as that is
/// possible without an interface.
///
/// # Errors
/// Why not.
pub fn available() -> io::Result<()> {
    sys::socket().map_err(|error| privilege(error, "AF_XDP socket"))?;
    let map = sys::socket_map(1).map_err(|error| privilege(error, "bpf(2)"))?;
    let wanted = BypassFilter {
        local: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        protocols: vec![IpProto::ESP],
        udp: vec![wire::registry::PORT_IPSEC_NAT_T],
        with_ike: Some(wire::registry::PORT_IPSEC_NAT_T),
    };
    bpf::load(Kind::XDP, &program::program(&wanted, map.as_raw_fd()))
        .map(drop)
        .map_err(|error| privilege(error, "XDP program"))
}

impl Interface {
    /// Opens sockets on the receive queues of an interface and puts the program before it. In copy
    /// mode, `wanted` UDP ports are left out. A veth device with one queue receives by a packet
    /// socket, where the kernel supports that; [`InterfaceMonitor::describe`] states why not. Waits
    /// up to a second for queues that another socket has: those of a process that has just ended.
    ///
    /// # Errors
    /// The reason why bypass is not possible: no such interface, not Ethernet, an MTU beyond a
    /// page, too many addresses, another program before it, no privilege, a kernel without AF_XDP.
    /// Nothing has changed then.
    pub fn open(name: &str, wanted: &BypassFilter) -> io::Result<(Self, InterfaceMonitor)> {
        Self::open_with(name, wanted, true)
    }

    /// As [`Interface::open`]; `packet_sockets` permits these.
    fn open_with(name: &str, wanted: &BypassFilter, packet_sockets: bool) -> io::Result<(Self, InterfaceMonitor)> {
        let link = Link::of(name)?;
        let frame_bytes = frame_bytes(link.mtu)
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "its MTU does not fit in a frame of a page"))?;
        if wanted.local.len() > MAX_ADDRESSES {
            let why = format!(
                "{} addresses are listened at, and at most {MAX_ADDRESSES} can be looked for; name those in use",
                wanted.local.len()
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let by_packet_socket = link.veth
            && packet_sockets
            && !wanted.protocols.is_empty()
            && (link.queues == 1 || sys::queues_in_use(name).is_ok_and(|queues| queues == 1));
        let no_packet_socket = if by_packet_socket {
            match Self::with_packet_ring(name, &link, wanted, frame_bytes)? {
                Ok(opened) => return Ok(opened),
                Err(why) => Some(why),
            }
        } else {
            None
        };
        let frames = FrameCounts { received: receive_frames(link.queues, frame_bytes), sent: SEND_FRAMES };
        let (interface, watch) = Queues::open(&link, frames, frame_bytes)?.with_program(name, &link, wanted)?;
        Ok((interface, InterfaceMonitor { no_packet_socket, ..watch }))
    }

    /// Opens an interface with one queue, which receives by a packet socket. The inner error is
    /// that of the packet socket, without which AF_XDP receives.
    ///
    /// # Errors
    /// No AF_XDP socket to send, which to receive would need more memory and the same otherwise.
    fn with_packet_ring(
        name: &str,
        link: &Link,
        wanted: &BypassFilter,
        frame_bytes: usize,
    ) -> io::Result<io::Result<(Self, InterfaceMonitor)>> {
        let stopped = match PacketRing::open(link, wanted) {
            Ok(ring) => ring,
            Err(why) => return Ok(Err(why)),
        };
        let frames = FrameCounts { received: LEAST_FRAMES, sent: SEND_FRAMES };
        let queues = Queues::open(&Link { queues: 1, ..*link }, frames, frame_bytes)?;
        Ok(stopped.start(link.if_index).map(|ring| queues.with_packet_ring(name, ring)))
    }

    /// Returns the queues of worker `worker` of `workers`: all that it receives from and the one
    /// that it sends through.
    fn of_worker(&mut self, worker: usize, workers: usize) -> (Vec<Receiver>, Option<Sending>) {
        let queues = self.sockets.iter_mut().skip(worker).step_by(workers.max(1));
        let (receiving, sending): (Vec<_>, Vec<_>) = queues.filter_map(Option::take).unzip();
        (receiving, sending.into_iter().next())
    }
}

/// AF_XDP sockets on the queues of an interface, without a program.
struct Queues {
    sockets: Vec<Option<(Receiver, Sending)>>,
    watched: Vec<Watched>,
    zero_copy: bool,
    map: OwnedFd,
    /// See [`InterfaceMonitor`].
    fewer: Option<u32>,
}

fn context(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

impl Queues {
    fn open(link: &Link, wanted_frames: FrameCounts, frame_bytes: usize) -> io::Result<Self> {
        let map = sys::socket_map(link.queues as u32).map_err(|error| privilege(error, "bpf(2)"))?;
        let mut frames = wanted_frames;
        let (mut sockets, mut watched, mut zero_copy) = (Vec::new(), Vec::new(), true);
        for queue in 0..link.queues as u32 {
            let opened = with_fewer(&mut frames, |frames| {
                let umem = Umem::new(frames, frame_bytes)?;
                sys::open(&umem, link.if_index, queue, frames).map(|opened| (umem, opened))
            });
            let (umem, (socket, rings, zero)) = match opened {
                Ok(opened) => opened,
                // The interface has more queues than are in use.
                Err(error) if queue > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
                Err(error) => return Err(privilege(error, "AF_XDP socket")),
            };
            zero_copy &= zero;
            sys::put_socket(map.as_fd(), queue, socket.as_fd()).map_err(context("map of sockets"))?;
            super::mmsg::large_buffers(&socket, SENT_BYTES).map_err(context("AF_XDP socket"))?;
            let (socket, passed) = (Arc::new(socket), Arc::new(QueueCounters::default()));
            watched.push(Watched {
                socket: Arc::clone(&socket),
                packet_socket: None,
                passed: Arc::clone(&passed),
                reported: false,
            });
            let (receiving, sending) = halves(socket, rings, umem.halves(), link, zero, passed);
            sockets.push(Some((Receiver::Xdp(receiving), sending)));
        }
        let fewer = (frames != wanted_frames).then_some(frames.received.max(frames.sent));
        Ok(Self { sockets, watched, zero_copy, map, fewer })
    }

    /// Attaches the XDP program, by which all queues receive.
    fn with_program(self, name: &str, link: &Link, wanted: &BypassFilter) -> io::Result<(Interface, InterfaceMonitor)> {
        let Self { sockets, watched, zero_copy, map, fewer } = self;
        let wanted = if zero_copy { wanted.clone() } else { BypassFilter { udp: Vec::new(), ..wanted.clone() } };
        if wanted.protocols.is_empty() && wanted.udp.is_empty() {
            let why = "the driver has no zero-copy, and nothing but UDP is received: sockets are faster";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let program =
            bpf::load(Kind::XDP, &program::program(&wanted, map.as_raw_fd())).map_err(context("XDP program"))?;
        let (held, in_driver) =
            sys::attach(program.as_fd(), link.if_index).map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY) => {
                    io::Error::new(error.kind(), "another XDP program is there (`ip link show` names it)")
                }
                _ => context("XDP program")(error),
            })?;
        let reception = if in_driver { Reception::Driver } else { Reception::Stack };
        let (name, no_packet_socket) = (name.to_owned(), None);
        let watch = InterfaceMonitor { name, zero_copy, reception, no_packet_socket, fewer, queues: watched };
        Ok((Interface { sockets, hold: Arc::new(Attachment { _link: held, _map: Some(map) }) }, watch))
    }

    /// Replaces the receive side of each queue, of which there is one, by the ring.
    fn with_packet_ring(self, name: &str, (ring, link): (PacketRing, OwnedFd)) -> (Interface, InterfaceMonitor) {
        let Self { mut sockets, mut watched, zero_copy, fewer, map: _ } = self;
        if let ([Some((receiver, _))], [watched]) = (&mut sockets[..], &mut watched[..]) {
            watched.packet_socket = Some(Arc::clone(ring.socket()));
            *receiver = Receiver::Packet(ring.counted_in(Arc::clone(&watched.passed)));
        }
        let (name, reception, no_packet_socket) = (name.to_owned(), Reception::PacketRing, None);
        let watch = InterfaceMonitor { name, zero_copy, reception, no_packet_socket, fewer, queues: watched };
        (Interface { sockets, hold: Arc::new(Attachment { _link: link, _map: None }) }, watch)
    }
}

impl Watched {
    /// Packets that the kernel had no room for.
    fn lost(&self) -> u64 {
        match &self.packet_socket {
            None => sys::lost(self.socket.as_fd()),
            // The kernel starts again from 0 after each call.
            Some(socket) => {
                let more = sys::lost_by_packet_socket(socket.as_fd());
                self.passed.lost.fetch_add(more, Ordering::Relaxed) + more
            }
        }
    }
}

impl InterfaceMonitor {
    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Receive queues with a socket.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns whether the driver accesses the shared memory itself (zero-copy).
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Status text: "eth0: 4 queues, zero-copy, program in the driver".
    pub fn describe(&self) -> String {
        let mode = if self.zero_copy { "zero-copy" } else { "copy mode" };
        let at = match self.reception {
            Reception::Driver => "program in the driver",
            Reception::Stack => "program in the stack (generic)",
            Reception::PacketRing => "received by a packet socket",
        };
        let why = self.no_packet_socket.as_ref().map_or_else(String::new, |why| format!(", no packet socket: {why}"));
        let plural = if self.queues.len() == 1 { "" } else { "s" };
        let fewer = self.fewer.map_or_else(String::new, |frames| {
            format!(", buffers of {frames} packets only: little memory may be locked (`ulimit -l`)")
        });
        format!("{}: {} queue{plural}, {mode}, {at}{why}{fewer}", self.name, self.queues.len())
    }

    /// The packets of all queues.
    pub fn read(&self) -> BypassCounts {
        self.queues.iter().fold(BypassCounts::default(), |sum, queue| BypassCounts {
            received: sum.received + queue.passed.received.load(Ordering::Relaxed),
            sent: sum.sent + queue.passed.sent.load(Ordering::Relaxed),
            lost: sum.lost + queue.lost(),
        })
    }

    /// Returns an error since the interface was opened, as text; each is reported once.
    pub fn trouble(&mut self) -> Option<&'static str> {
        let mut found = None;
        for Watched { socket, passed, reported, .. } in self.queues.iter_mut().filter(|queue| !queue.reported) {
            // The kernel sets an error on the sockets of a removed interface. An interface that is
            // down is not an error.
            let trouble = if matches!(SockRef::from(&*socket).take_error(), Ok(Some(_))) {
                "the interface was taken away"
            } else if passed.silent.load(Ordering::Relaxed) {
                "the kernel sends nothing from one of its queues"
            } else {
                continue;
            };
            *reported = true;
            found.get_or_insert(trouble);
        }
        found
    }
}

/// The ports of worker `worker` of `workers` at `interfaces`: what it receives by, and what it
/// sends by. `by_kernel` sends what does not go past the stack, with the same `mark` by which
/// routes are looked up. To be called once for each worker.
///
/// # Errors
/// The operating system's: no rtnetlink, no timer.
pub fn ports_of_worker(
    interfaces: &mut [Interface],
    worker: usize,
    workers: usize,
    by_kernel: RawPort,
    mark: Option<u32>,
) -> io::Result<(Vec<Box<dyn Port + Send>>, XdpSender)> {
    let (mut ports, mut ways) = (Vec::new(), Vec::new());
    for interface in interfaces {
        let (receives, sends) = interface.of_worker(worker, workers);
        for receiver in receives {
            let port = XdpPort { receiver, refused: PortDrops::default(), _hold: Arc::clone(&interface.hold) };
            ports.push(Box::new(port) as Box<dyn Port + Send>);
        }
        if let Some(sending) = sends {
            let (way, later) = TxQueue::new(sending, Arc::clone(&interface.hold))?;
            ways.push(way);
            ports.push(Box::new(later));
        }
    }
    Ok((ports, XdpSender::new(ways, by_kernel, mark)?))
}

/// Returns the smallest frame size for packets of the interface.
fn frame_bytes(mtu: usize) -> Option<usize> {
    FRAME_BYTES.into_iter().find(|bytes| KERNEL_HEADROOM + ETHER + VLAN_TAG + mtu <= *bytes)
}

/// Returns how many frames each of so many queues receives to.
fn receive_frames(queues: usize, frame_bytes: usize) -> u32 {
    let fit = (RECEIVE_BYTES / frame_bytes / queues.max(1)).max(1);
    (1_u32 << fit.ilog2()).clamp(SEND_FRAMES, RECEIVE_FRAMES)
}

/// Opens a queue with `frames`. Without CAP_IPC_LOCK the kernel charges them to the limit of locked
/// memory, which all queues of a user share: if that is reached, the direction with more of them
/// gets half as many, or both. Later queues start with these numbers.
fn with_fewer<T>(frames: &mut FrameCounts, open: impl Fn(FrameCounts) -> io::Result<T>) -> io::Result<T> {
    loop {
        match open(*frames) {
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
                    && frames.received.max(frames.sent) > LEAST_FRAMES =>
            {
                let most = frames.received.max(frames.sent) / 2;
                *frames = FrameCounts { received: frames.received.min(most), sent: frames.sent.min(most) };
            }
            outcome => return outcome,
        }
    }
}

fn privilege(error: io::Error, what: &str) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "no permission: run as root, or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF".into()
        }
        Some(libc::EAFNOSUPPORT) => "the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)".to_owned(),
        Some(libc::ENOSYS) => "the kernel has no bpf(2)".to_owned(),
        Some(libc::EBUSY) => "another program has the queue".to_owned(),
        Some(libc::ENOBUFS) => "too little memory may be locked: raise `ulimit -l`".to_owned(),
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("{what}: {why}"))
}

fn halves(
    socket: Arc<OwnedFd>,
    rings: Rings,
    [rx_frames, tx_frames]: [Frames; 2],
    link: &Link,
    zero_copy: bool,
    passed: Arc<QueueCounters>,
) -> (Receiving, Sending) {
    let Rings { fill, completion, rx, tx } = rings;
    let sending = Sending::new(Arc::clone(&socket), (tx, completion), tx_frames, link, zero_copy, Arc::clone(&passed));
    let mut receiving =
        Receiving { socket, fill: Producer::new(fill), rx: Consumer::new(rx), frames: rx_frames, passed };
    for frame in receiving.frames.all() {
        receiving.give_back(frame);
    }
    receiving.fill.publish();
    (receiving, sending)
}

/// Returns the IP packet in a frame, without Ethernet padding.
fn packet_in(frame: &[u8]) -> Option<&[u8]> {
    let packet = frame.get(ETHER..)?;
    let word = |at: usize| Some(usize::from(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?)));
    let len = match packet.first()? >> 4 {
        4 => word(2)?,
        6 => word(4)? + wire::ip::IPV6_HEADER,
        _ => return None,
    };
    packet.get(..len)
}

impl Receiving {
    fn receive(&mut self, into: &mut Batch, refused: &mut PortDrops) {
        let mut received = 0;
        while into.room() > 0 {
            let Some(Descriptor { addr, len, .. }) = self.rx.take() else { break };
            received += 1;
            let packet = self.frames.bytes(addr, len as usize).and_then(|frame| packet_in(frame));
            match packet {
                None => refused.unreadable += 1,
                Some(packet) => refused.cut_off += u64::from(!into.push_with(|to| to.set(packet))),
            }
            self.give_back(self.frames.frame_of(addr));
        }
        self.rx.release();
        self.fill.publish();
        bump(&self.passed.received, received);
        if self.fill.memory.needs_wakeup() {
            sys::kick_rx(self.socket.as_fd());
        }
    }

    /// Returns a frame to the kernel for reception, effective with [`Producer::publish`].
    fn give_back(&mut self, frame: u64) {
        let put = self.fill.put(frame);
        debug_assert!(put, "the ring has places for all frames twice");
    }
}

impl Port for XdpPort {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        match &mut self.receiver {
            Receiver::Xdp(receiving) => receiving.receive(into, &mut self.refused),
            Receiver::Packet(ring) => ring.receive(into, &mut self.refused),
        }
        Ok(())
    }

    /// This port only receives: every packet is refused.
    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        self.refused.other += from.len() as u64;
        from.clear();
        Ok(())
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(match &self.receiver {
            Receiver::Xdp(receiving) => receiving.socket.as_fd(),
            Receiver::Packet(ring) => ring.readable(),
        })
    }

    fn drops(&self) -> PortDrops {
        self.refused
    }
}
