//! Sending by AF_XDP: frames of a queue in the send and completion rings, and the selection of
//! packets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use dataplane::{Batch, Packet, Port, bump};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use wire::IpProto;

use super::link::Link;
use super::next_hops::{Hop, NextHops};
use super::ring::{Consumer, Producer};
use super::sys::{self, Descriptor, Frames, Shared, TxStatus};
use super::{Attachment, ETHER, QueueCounters};
use crate::{PortDrops, RawPort};

/// Consecutive calls without progress after which the rest is deferred.
const PATIENCE: u32 = 16;
/// Time of the reset.
const LATER: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Calls of one deferred attempt: in copy mode the kernel sends 32 packets per call, before Linux
/// 6.18 always.
const CALLS_LATER: u32 = super::SEND_FRAMES / 32 + PATIENCE;

/// Transmit side of the socket of a queue.
pub(super) struct Sending {
    pub(super) socket: Arc<OwnedFd>,
    tx: Producer<Shared<Descriptor>>,
    completion: Consumer<Shared<u64>>,
    frames: Frames,
    /// Frames that are in no ring.
    free: Vec<u64>,
    mac: [u8; 6],
    if_index: u32,
    mtu: usize,
    zero_copy: bool,
    passed: Arc<QueueCounters>,
}

impl Sending {
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        (tx, completion): (Shared<Descriptor>, Shared<u64>),
        frames: Frames,
        link: &Link,
        zero_copy: bool,
        passed: Arc<QueueCounters>,
    ) -> Self {
        let (tx, completion) = (Producer::new(tx), Consumer::new(completion));
        let free = frames.all().collect();
        let Link { mac, if_index, mtu, .. } = *link;
        Self { socket, tx, completion, frames, free, mac, if_index, mtu, zero_copy, passed }
    }

    /// Collects the frames that were sent.
    fn collect(&mut self) {
        while let Some(frame) = self.completion.take() {
            self.free.push(self.frames.frame_of(frame));
        }
        self.completion.release();
    }

    /// Returns whether this queue sends packets of this protocol to this neighbor.
    fn takes(&self, proto: IpProto, hop: Hop) -> bool {
        !self.is_silent() && self.if_index == hop.if_index && self.carries(proto)
    }

    fn is_silent(&self) -> bool {
        self.passed.silent.load(Ordering::Relaxed)
    }

    /// In copy mode, UDP should use the kernel: the copy of each frame costs more than UDP GSO.
    fn carries(&self, proto: IpProto) -> bool {
        self.zero_copy || proto != IpProto::UDP
    }

    /// Writes a packet to the ring, for [`Sending::send`].
    fn put(&mut self, packet: &[u8], hop: Hop, refused: &mut PortDrops) {
        if packet.len() > self.mtu {
            refused.too_big += 1;
            return;
        }
        let Some(frame) = self.free.pop() else {
            refused.full += 1;
            return;
        };
        let len = ETHER + packet.len();
        let written = self.frames.bytes(frame, len).map(|to| {
            to[..6].copy_from_slice(&hop.mac);
            to[6..12].copy_from_slice(&self.mac);
            let kind: u16 = if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
            to[12..14].copy_from_slice(&kind.to_be_bytes());
            to[ETHER..].copy_from_slice(packet);
        });
        if written.is_some() && self.tx.put(Descriptor { addr: frame, len: len as u32, options: 0 }) {
            bump(&self.passed.sent, 1);
        } else {
            self.free.push(frame);
            refused.full += 1;
        }
    }

    /// Requests transmission of the ring; true if it must be requested again, because the interface
    /// has no room.
    fn send(&mut self, refused: &mut PortDrops) -> bool {
        if self.is_silent() {
            return false;
        }
        self.tx.publish();
        let (mut pending, mut patience) = (self.tx.pending(), PATIENCE);
        for _ in 0..pending + PATIENCE {
            if pending == 0 || patience == 0 {
                break;
            }
            // A zero-copy driver continues on its own until it sets the need-wakeup flag.
            if !self.tx.memory.needs_wakeup() {
                return false;
            }
            let kicked = sys::kick_tx(self.socket.as_fd());
            let left = self.tx.pending();
            match kicked {
                TxStatus::Done | TxStatus::Busy | TxStatus::Lost if self.zero_copy => return kicked != TxStatus::Done,
                TxStatus::Lost => refused.full += 1,
                // Queued frames are sent when the interface is up again, and no more are queued:
                // the cached routes to it expire within a second.
                TxStatus::Down => return false,
                TxStatus::Done if left == 0 => return false,
                // The interface was removed, or has fewer transmit than receive queues.
                TxStatus::Done | TxStatus::Gone => {
                    self.passed.silent.store(true, Ordering::Relaxed);
                    refused.other += u64::from(left);
                    return false;
                }
                TxStatus::Busy => patience -= u32::from(left == pending),
            }
            pending = left;
        }
        pending > 0
    }
}

/// A queue through which a worker sends.
pub(super) struct TxQueue {
    sending: Sending,
    timer: Arc<OwnedFd>,
    _hold: Arc<Attachment>,
}

impl TxQueue {
    /// Creates the sender and the port that continues with deferred frames.
    pub(super) fn new(sending: Sending, hold: Arc<Attachment>) -> io::Result<(Self, DeferredSender)> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = Arc::new(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        let (socket, refused) = (Arc::clone(&sending.socket), PortDrops::default());
        let later = DeferredSender { socket, timer: Arc::clone(&timer), refused };
        Ok((Self { sending, timer, _hold: hold }, later))
    }
}

fn wake_later(timer: &OwnedFd) {
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: LATER };
    // Fails only for an invalid descriptor or an invalid time.
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
}

/// Sends deferred frames if no further packets trigger the transmission.
pub(super) struct DeferredSender {
    socket: Arc<OwnedFd>,
    timer: Arc<OwnedFd>,
    refused: PortDrops,
}

impl Port for DeferredSender {
    /// Receives nothing.
    fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
        let _ = rustix::io::read(&*self.timer, &mut [0_u8; 8]);
        for _ in 0..CALLS_LATER {
            match sys::kick_tx(self.socket.as_fd()) {
                TxStatus::Busy => {}
                TxStatus::Lost => self.refused.full += 1,
                TxStatus::Done | TxStatus::Down | TxStatus::Gone => return Ok(()),
            }
        }
        wake_later(&self.timer);
        Ok(())
    }

    /// This port only sends the content of the ring: every packet is dropped.
    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        self.refused.other += from.len() as u64;
        from.clear();
        Ok(())
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.timer.as_fd())
    }

    fn drops(&self) -> PortDrops {
        self.refused
    }
}

/// Sender of a worker: AF_XDP queues of interfaces, and a raw port for everything else.
pub struct XdpSender {
    ways: Vec<TxQueue>,
    hops: NextHops,
    by_kernel: RawPort,
    refused: PortDrops,
}

/// Destination and protocol of an IP packet.
fn destination(packet: &[u8]) -> Option<(IpAddr, IpProto)> {
    match packet.first()? >> 4 {
        4 => Some((Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?).into(), IpProto(packet[9]))),
        6 => Some((Ipv6Addr::from(*packet.get(24..)?.first_chunk::<16>()?).into(), IpProto(packet[6]))),
        _ => None,
    }
}

impl XdpSender {
    pub(super) fn new(ways: Vec<TxQueue>, by_kernel: RawPort, mark: Option<u32>) -> io::Result<Self> {
        Ok(Self { ways, hops: NextHops::new(mark)?, by_kernel, refused: PortDrops::default() })
    }

    /// Queue and next hop of a packet; `None`: the kernel sends it.
    fn way(&mut self, packet: &Packet, now: Instant) -> Option<(usize, Hop)> {
        let (dst, proto) = destination(packet.bytes())?;
        // All packets of a flow use the same sender, so that they are not reordered: the choice
        // depends on the protocol, not on GSO.
        if !self.ways.iter().any(|way| way.sending.carries(proto)) {
            return None;
        }
        let hop = self.hops.to(dst, now)?;
        Some((self.ways.iter().position(|way| way.sending.takes(proto, hop))?, hop))
    }
}

impl Port for XdpSender {
    fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
        Ok(())
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        let now = Instant::now();
        self.ways.iter_mut().for_each(|way| way.sending.collect());
        from.retain(|_, packet| match self.way(packet, now) {
            None => true,
            Some((i, hop)) => {
                self.ways[i].sending.put(packet.bytes(), hop, &mut self.refused);
                false
            }
        });
        // Packets of the kernel port first: when a destination moves from there to the ring, they
        // are older.
        let outcome = if from.is_empty() { Ok(()) } else { self.by_kernel.tx(from) };
        for way in &mut self.ways {
            if way.sending.send(&mut self.refused) {
                wake_later(&way.timer);
            }
        }
        outcome
    }

    fn drops(&self) -> PortDrops {
        let (own, kernel) = (self.refused, self.by_kernel.drops());
        PortDrops {
            full: own.full + kernel.full,
            too_big: own.too_big + kernel.too_big,
            other: own.other + kernel.other,
            cut_off: own.cut_off + kernel.cut_off,
            passed_on: own.passed_on + kernel.passed_on,
            unreadable: own.unreadable + kernel.unreadable,
        }
    }
}
