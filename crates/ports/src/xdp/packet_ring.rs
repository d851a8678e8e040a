//! Reception at a veth device: a packet socket copies the frames to a ring in shared memory, and a
//! program at the ingress hook drops them afterwards, so that the stack does not process them.
//!
//! AF_XDP is slower there: before the program runs, the driver copies each packet to a new page
//! with room for it, and frees that page after the copy to the frame. A packet socket reads the
//! sender's buffer instead.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dataplane::{Batch, bump};
use socket2::SockRef;

use super::link::Link;
use super::program::{self, BypassFilter};
use super::sys::{self, Mapped};
use super::{ETHER, PortDrops, QueueCounters, VLAN_TAG, context, packet_in};
use crate::bpf::{self, Kind};
use crate::mmsg::{set_int, set_option};

/// Linux, `linux/if_packet.h`: options of packet sockets.
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// Linux: `TP_STATUS_USER`, set while a slot belongs to the reader.
const FOR_USER: u32 = 1;
/// Linux: value of a slot that the kernel may write to.
const FOR_KERNEL: u32 = 0;
/// Offsets in `struct tpacket2_hdr`: length of the frame, stored bytes, and offset of the frame.
const LEN: usize = 4;
const STORED: usize = 8;
const OFFSET: usize = 12;
/// Bytes before the frame in a slot: `tpacket2_hdr`, `sockaddr_ll`, and the gap that aligns the IP
/// header to 16 bytes.
const SLOT_HEADER: usize = 66;
/// Contiguous memory that the kernel allocates at once, in bytes. A slot is inside one block.
const BLOCK: usize = 1 << 16;
/// Blocks of a ring: 7 MiB, and 4592 packets with an MTU of 1500 bytes. All slots are used in turn,
/// so that its pages should fit in the TLB (2048 of 4 KiB on current processors): otherwise each
/// packet costs misses. Beyond an MTU of 1964 bytes the ring has more, see [`LEAST_SLOTS`].
const BLOCKS: usize = 112;
/// Slots at least, where packets are longer: what several TCP windows need while the worker is not
/// scheduled.
const LEAST_SLOTS: usize = 4096;
/// The error of the socket is cleared at one of so many receive calls without a packet.
const CALLS_PER_CHECK: u32 = 64;
/// Linux: slots are aligned to this.
const ALIGNMENT: usize = 16;

/// Packet socket on one interface, and its ring.
pub(super) struct PacketRing {
    socket: Arc<OwnedFd>,
    ring: Mapped,
    layout: Layout,
    /// Slot that is read next.
    next: usize,
    /// Receive calls without a packet.
    without_packet: u32,
    passed: Arc<QueueCounters>,
}

/// A ring that does not receive yet, and the program for the ingress hook.
pub(super) struct Stopped {
    ring: PacketRing,
    program: OwnedFd,
}

impl Stopped {
    /// Begins to receive, and attaches the program. It is detached when the returned descriptor is
    /// closed.
    ///
    /// # Errors
    /// No such interface any more, or no room at the hook.
    pub(super) fn start(self, if_index: u32) -> io::Result<(PacketRing, OwnedFd)> {
        sys::bind_packet(self.ring.socket.as_fd(), if_index).map_err(context("binding it"))?;
        let attached = sys::attach_ingress(self.program.as_fd(), if_index).map_err(context("ingress hook"))?;
        Ok((self.ring, attached))
    }
}

/// Sizes of a ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Layout {
    slot_bytes: usize,
    /// Slots in each block; the rest of the block is unused.
    per_block: usize,
    blocks: usize,
}

impl Layout {
    /// Returns the layout for packets of up to `mtu` bytes; `None` if they do not fit in a block.
    fn of(mtu: usize) -> Option<Self> {
        let slot_bytes = (SLOT_HEADER + ETHER + VLAN_TAG + mtu).next_multiple_of(ALIGNMENT);
        let per_block = BLOCK / slot_bytes;
        let blocks = BLOCKS.max(LEAST_SLOTS.div_ceil(per_block.max(1)));
        (per_block > 0).then_some(Self { slot_bytes, per_block, blocks })
    }

    fn slots(self) -> usize {
        self.blocks * self.per_block
    }

    fn bytes(self) -> usize {
        self.blocks * BLOCK
    }

    /// Offset of a slot.
    fn start(self, slot: usize) -> usize {
        slot / self.per_block * BLOCK + slot % self.per_block * self.slot_bytes
    }
}

impl PacketRing {
    /// Opens the socket for packets of `wanted`, without UDP, and loads the program.
    ///
    /// # Errors
    /// No privilege, a kernel before Linux 6.6, an MTU that does not fit in a slot.
    pub(super) fn open(link: &Link, wanted: &BypassFilter) -> io::Result<Stopped> {
        sys::ingress_hook(link.if_index)?;
        let layout = Layout::of(link.mtu).ok_or(io::ErrorKind::Unsupported)?;
        let load = |kind, verdicts| bpf::load(kind, &program::filter(wanted, verdicts));
        // Without a protocol nothing is received before the socket is bound.
        // SAFETY: the call makes a descriptor and touches no memory.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
        let socket = bpf::owned(fd.into())?;
        set_int(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
        set_int(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        let filter = load(Kind::SOCKET_FILTER, program::COPY)?;
        set_int(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, filter.as_raw_fd())?;
        // struct tpacket_req: bytes and number of blocks, bytes and number of slots.
        let request = [BLOCK, layout.blocks, layout.slot_bytes, layout.slots()];
        let request = request.map(|word| (word as u32).to_ne_bytes());
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, request.as_flattened())?;
        let ring = Mapped::new(layout.bytes(), Some((socket.as_fd(), 0)))?;
        let program = load(Kind::INGRESS, program::DROP)?;
        let ring = Self { socket: Arc::new(socket), ring, layout, next: 0, without_packet: 0, passed: Arc::default() };
        Ok(Stopped { ring, program })
    }

    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Replaces the counters.
    pub(super) fn counted_in(self, passed: Arc<QueueCounters>) -> Self {
        Self { passed, ..self }
    }

    pub(super) fn readable(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn receive(&mut self, into: &mut Batch, refused: &mut PortDrops) {
        let mut received = 0;
        while into.room() > 0 {
            let Some(Slot { frame, cut }) = self.slot() else { break };
            received += 1;
            match packet_in(frame) {
                _ if cut => refused.cut_off += 1,
                None => refused.unreadable += 1,
                Some(packet) => refused.cut_off += u64::from(!into.push_with(|to| to.set(packet))),
            }
            self.release();
        }
        bump(&self.passed.received, received);
        if received == 0 {
            self.without_packet = self.without_packet.wrapping_add(1);
            if self.without_packet.is_multiple_of(CALLS_PER_CHECK) {
                // While the interface is down the socket has an error, and would stay readable.
                let _ = SockRef::from(&*self.socket).take_error();
            }
        }
    }

    /// The next frame, if the kernel has written one.
    fn slot(&self) -> Option<Slot<'_>> {
        if self.status().load(Ordering::Acquire) & FOR_USER == 0 {
            return None;
        }
        let start = self.layout.start(self.next);
        // SAFETY: the slot is inside the mapping, and between the status that was read and
        // `release` the kernel does not write to it.
        let slot = unsafe { std::slice::from_raw_parts(self.ring.start().add(start), self.layout.slot_bytes) };
        let word = |at: usize| slot.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word));
        let half = |at: usize| slot.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |half| u16::from_ne_bytes(*half));
        let offset = usize::from(half(OFFSET));
        let frame = slot.get(offset..).and_then(|rest| rest.get(..word(STORED) as usize)).unwrap_or_default();
        Some(Slot { frame, cut: word(STORED) < word(LEN) })
    }

    /// Returns the slot to the kernel.
    fn release(&mut self) {
        self.status().store(FOR_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.layout.slots();
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: a slot begins with its status, a 32-bit number that both sides access by atomic
        // operations; `next` is below the number of slots, which begin at multiples of 16.
        unsafe { &*self.ring.start().add(self.layout.start(self.next)).cast::<AtomicU32>() }
    }
}

struct Slot<'a> {
    frame: &'a [u8],
    /// The frame is longer than what is stored.
    cut: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_the_mtu_and_do_not_cross_blocks() {
        for mtu in [1280, 1500, 1900, 3822, 9000, 65_000] {
            let layout = Layout::of(mtu).unwrap();
            assert!(layout.slots() >= LEAST_SLOTS && layout.bytes() >= BLOCKS * BLOCK, "{mtu}");
            assert!(layout.slot_bytes >= SLOT_HEADER + ETHER + 4 + mtu && layout.slot_bytes.is_multiple_of(ALIGNMENT));
            let starts: Vec<usize> = (0..layout.slots()).map(|slot| layout.start(slot)).collect();
            assert!(starts.is_sorted_by(|one, next| one + layout.slot_bytes <= *next), "{mtu}");
            assert!(starts.iter().all(|start| start / BLOCK == (start + layout.slot_bytes - 1) / BLOCK), "{mtu}");
            assert!(starts.last().is_some_and(|last| last + layout.slot_bytes <= layout.bytes()), "{mtu}");
        }
        assert_eq!(Layout::of(1500).unwrap().slots(), 4592);
        let beyond_tlb = |mtu: &usize| Layout::of(*mtu).unwrap().bytes() > 2048 * 4096;
        assert_eq!((1280..9000).find(beyond_tlb), Some(1965));
        assert_eq!(Layout::of(65_535), None);
    }
}
