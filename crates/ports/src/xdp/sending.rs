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
use super::sys::{self, Descriptor, Frames, Kicked, Shared};
use super::{ETHER, Hold, Passed};
use crate::{RawPort, Refused};

/// Calls in a row by which the kernel has sent nothing, before the rest is left for later.
const PATIENCE: u32 = 16;
/// Time of the reset.
const LATER: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Calls of one attempt then: in copy mode the kernel sends 32 packets by each, before Linux 6.18 always.
const CALLS_LATER: u32 = super::FRAMES / 32 + PATIENCE;

/// The sending half of a queue's socket.
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
    passed: Arc<Passed>,
}

impl Sending {
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        (tx, completion): (Shared<Descriptor>, Shared<u64>),
        frames: Frames,
        link: &Link,
        zero_copy: bool,
        passed: Arc<Passed>,
    ) -> Self {
        let (tx, completion) = (Producer::new(tx), Consumer::new(completion));
        let free = frames.all().collect();
        let Link { mac, if_index, mtu, .. } = *link;
        Self { socket, tx, completion, frames, free, mac, if_index, mtu, zero_copy, passed }
    }

    /// Takes back the frames that were sent.
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

    /// For UDP the kernel has trains, which a copy of each frame would not make up for.
    fn carries(&self, proto: IpProto) -> bool {
        self.zero_copy || proto != IpProto::UDP
    }

    /// Puts a packet in the ring, for [`Sending::send`].
    fn put(&mut self, packet: &[u8], hop: Hop, refused: &mut Refused) {
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
    fn send(&mut self, refused: &mut Refused) -> bool {
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
                Kicked::Done | Kicked::Busy | Kicked::Lost if self.zero_copy => return kicked != Kicked::Done,
                Kicked::Lost => refused.full += 1,
                // Queued frames are sent when the interface is up again, and no more are queued:
                // the cached routes to it expire within a second.
                Kicked::Down => return false,
                Kicked::Done if left == 0 => return false,
                // It is gone, or has fewer queues to send by than to receive by.
                Kicked::Done | Kicked::Gone => {
                    self.passed.silent.store(true, Ordering::Relaxed);
                    refused.other += u64::from(left);
                    return false;
                }
                Kicked::Busy => patience -= u32::from(left == pending),
            }
            pending = left;
        }
        pending > 0
    }
}

/// A queue that a worker sends by.
pub(super) struct Way {
    sending: Sending,
    timer: Arc<OwnedFd>,
    _hold: Arc<Hold>,
}

impl Way {
    /// And the port that goes on with what was left for later.
    pub(super) fn new(sending: Sending, hold: Arc<Hold>) -> io::Result<(Self, Later)> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = Arc::new(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        let (socket, refused) = (Arc::clone(&sending.socket), Refused::default());
        let later = Later { socket, timer: Arc::clone(&timer), refused };
        Ok((Self { sending, timer, _hold: hold }, later))
    }
}

fn wake_later(timer: &OwnedFd) {
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: LATER };
    // Fails for what is no timer, or no time.
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
}

/// Sends what an interface had no room for, when no packets come that would take it along.
pub(super) struct Later {
    socket: Arc<OwnedFd>,
    timer: Arc<OwnedFd>,
    refused: Refused,
}

impl Port for Later {
    /// Receives nothing.
    fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
        let _ = rustix::io::read(&*self.timer, &mut [0_u8; 8]);
        for _ in 0..CALLS_LATER {
            match sys::kick_tx(self.socket.as_fd()) {
                Kicked::Busy => {}
                Kicked::Lost => self.refused.full += 1,
                Kicked::Done | Kicked::Down | Kicked::Gone => return Ok(()),
            }
        }
        wake_later(&self.timer);
        Ok(())
    }

    /// This port sends what is in the ring only: every packet is refused.
    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        self.refused.other += from.len() as u64;
        from.clear();
        Ok(())
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.timer.as_fd())
    }

    fn refused(&self) -> Refused {
        self.refused
    }
}

/// Sender of a worker: AF_XDP queues of interfaces, and a raw port for everything else.
pub struct XdpSender {
    ways: Vec<Way>,
    hops: NextHops,
    by_kernel: RawPort,
    refused: Refused,
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
    pub(super) fn new(ways: Vec<Way>, by_kernel: RawPort, mark: Option<u32>) -> io::Result<Self> {
        Ok(Self { ways, hops: NextHops::new(mark)?, by_kernel, refused: Refused::default() })
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
        // Those of the kernel first: where a destination changes from there to here, they are the older ones.
        let outcome = if from.is_empty() { Ok(()) } else { self.by_kernel.tx(from) };
        for way in &mut self.ways {
            if way.sending.send(&mut self.refused) {
                wake_later(&way.timer);
            }
        }
        outcome
    }

    fn refused(&self) -> Refused {
        let (own, kernel) = (self.refused, self.by_kernel.refused());
        Refused {
            full: own.full + kernel.full,
            too_big: own.too_big + kernel.too_big,
            other: own.other + kernel.other,
            cut_off: own.cut_off + kernel.cut_off,
            unreadable: own.unreadable + kernel.unreadable,
        }
    }
}
