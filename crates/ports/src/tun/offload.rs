//! A TUN queue with GSO and GRO. One read may return 64 KiB of one flow. Consecutive GSO packets
//! mostly have the same layout, so each segment is read directly into a separate packet buffer; GSO
//! packets with a different layout are copied. For writes, bursts of packets are gathered in place
//! into one GSO packet.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use dataplane::{Batch, Packet};
use rustix::io::{Errno, readv, writev};

use super::coalesce::{Burst, Coalescer, RUN_PACKETS};
use super::vnet::{Gso, Segmentation, Unreadable, VnetHeader, finish_checksum};
use super::{GsoCounters, PortDrops, is_ip, not_taken, nothing_there};

/// Maximum GSO packet in bytes, including a header that its length field does not count.
const SUPER_BYTES: usize = 65_536 + 64;
/// Maximum headers of coalesced packets: IPv6 and TCP with options.
const HEAD_BYTES: usize = 40 + 60;
/// Segments that are read directly into packet buffers.
const SCATTERED: usize = 64;

/// State of a queue with offloads: about 70 KB.
pub(super) struct Offload {
    /// Data read beyond the packet buffers, each byte at its offset in the GSO packet.
    whole: Box<[u8]>,
    mtu: usize,
    layout: Layout,
    waiting: Option<Waiting>,
    coalescer: Coalescer,
}

/// Layout of the next read: `head` and the first `size` bytes of payload go to one packet buffer,
/// and further `size` bytes to each of the next ones, after the space for their headers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Layout {
    head: usize,
    size: usize,
    /// Packet buffers, at least 1.
    places: usize,
}

/// A GSO packet with segments that did not fit into the batch.
struct Waiting {
    cut: Segmentation,
    /// Next segment.
    next: usize,
    /// Offset of its payload.
    at: usize,
}

impl Layout {
    /// Returns the layout for packets of up to `mtu` bytes, or for GSO packets of unknown layout.
    fn plain(mtu: usize) -> Self {
        Self { head: 0, size: mtu, places: 1 }
    }

    /// Returns the layout for GSO packets like this one.
    fn of(cut: &Segmentation) -> Self {
        let places = (SUPER_BYTES / cut.payload_of(0).len()).clamp(1, SCATTERED);
        Self { head: cut.head_len(), size: cut.payload_of(0).len(), places }
    }

    /// Limits the layout to the buffers of `into`.
    fn within(self, into: &mut Batch) -> Self {
        let places = self.places.min(into.room()).max(1);
        let area = into.spare_mut().last_mut().map_or(0, |packet| packet.receive_area().len());
        match area.checked_sub(self.head + self.size) {
            Some(_) => Self { places, ..self },
            None => Self::plain(area),
        }
    }

    /// Bytes up to the end of place `i`.
    fn end(self, i: usize) -> usize {
        self.head + (i + 1) * self.size
    }

    /// Bytes that go into packet buffers.
    fn bytes(self) -> usize {
        self.end(self.places - 1)
    }

    /// Place `i` in its packet buffer.
    fn place(self, i: usize, packet: &mut Packet) -> &mut [u8] {
        let start = if i == 0 { 0 } else { self.head };
        &mut packet.receive_area()[start..self.head + self.size]
    }
}

impl Offload {
    pub(super) fn new(mtu: usize, udp: bool) -> Self {
        Self {
            whole: vec![0; SUPER_BYTES].into_boxed_slice(),
            mtu,
            layout: Layout::plain(mtu),
            waiting: None,
            coalescer: Coalescer::new(true, udp),
        }
    }

    /// Receives until the queue is empty or `into` is full. The remaining segments of a GSO packet
    /// are returned first by the next call.
    pub(super) fn receive(
        &mut self,
        queue: BorrowedFd<'_>,
        into: &mut Batch,
        refused: &mut PortDrops,
        supers: &GsoCounters,
    ) -> io::Result<()> {
        loop {
            self.go_on(into, refused);
            if into.room() == 0 {
                return Ok(());
            }
            let layout = self.layout.within(into);
            match self.read(queue, layout, into) {
                Ok((header, len)) => {
                    if let Err(why) = self.take(&header, layout, into, len, supers) {
                        why.count(refused);
                    }
                }
                Err(error) => return nothing_there(error),
            }
        }
    }

    /// Reads according to `layout`; returns the virtio-net header and the number of bytes read.
    fn read(
        &mut self,
        queue: BorrowedFd<'_>,
        layout: Layout,
        into: &mut Batch,
    ) -> Result<([u8; VnetHeader::LEN], usize), Errno> {
        let mut header = [0; VnetHeader::LEN];
        let mut areas = ArrayVec::<_, { SCATTERED + 2 }>::new();
        areas.push(IoSliceMut::new(&mut header));
        let packets = into.spare_mut().iter_mut().rev().take(layout.places).enumerate();
        areas.extend(packets.map(|(i, packet)| IoSliceMut::new(layout.place(i, packet))));
        areas.push(IoSliceMut::new(self.whole.get_mut(layout.bytes()..).unwrap_or_default()));
        let len = readv(queue, &mut areas)?;
        drop(areas);
        Ok((header, len.saturating_sub(VnetHeader::LEN)))
    }

    /// Converts the data to packets until the batch is full. Ignores data that is not an IP packet.
    fn take(
        &mut self,
        header: &[u8; VnetHeader::LEN],
        layout: Layout,
        into: &mut Batch,
        len: usize,
        supers: &GsoCounters,
    ) -> Result<(), Refusal> {
        let header = VnetHeader::parse(header)?;
        let first = layout.end(0).min(len);
        let Some(packet) = into.spare_mut().last_mut() else { return Ok(()) };
        let start = &mut layout.place(0, packet)[..first];
        if !is_ip(start) {
            return Ok(());
        }
        if header.gso == Gso::None && first == len {
            if header.needs_csum {
                finish_checksum(start, header.csum_start.into(), header.csum_offset.into())?;
            }
            into.push_with(|packet| {
                packet.received(0, len);
                true
            });
            return Ok(());
        }
        if header.gso != Gso::None && usize::from(header.gso_size) == layout.size {
            // The first buffer may end within headers that are longer than those of the previous
            // packet. In that case the data is gathered into one buffer and parsed again.
            let cut = Segmentation::plan(&header, start, len).ok().flatten();
            if let Some(cut) = cut.filter(|cut| cut.head_len() == layout.head) {
                supers.count_received(cut.segments());
                let next = in_place(&cut, layout, into);
                self.wait_for_room(cut, next);
                return Ok(());
            }
        }
        self.gather(layout, into, len)?;
        self.copy_out(&header, into, len, supers)
    }

    /// Gathers the data of `layout` in the buffer `whole`.
    fn gather(&mut self, layout: Layout, into: &mut Batch, len: usize) -> Result<(), Refusal> {
        if len > self.whole.len().max(layout.bytes()) {
            return Err(Refusal::CutOff);
        }
        let mut at = 0;
        for (i, packet) in into.spare_mut().iter_mut().rev().take(layout.places).enumerate() {
            let end = layout.end(i).min(len);
            if at == end {
                break;
            }
            let to = self.whole.get_mut(at..end).ok_or(Refusal::CutOff)?;
            to.copy_from_slice(&layout.place(i, packet)[..end - at]);
            at = end;
        }
        Ok(())
    }

    /// Segments the data in `whole`, and sets the layout for the next read.
    fn copy_out(
        &mut self,
        header: &VnetHeader,
        into: &mut Batch,
        len: usize,
        supers: &GsoCounters,
    ) -> Result<(), Refusal> {
        let whole = &self.whole[..len];
        let cut = match header.gso {
            Gso::None => None,
            _ => Segmentation::plan(header, whole, len)?,
        };
        if let Some(cut) = cut {
            supers.count_received(cut.segments());
            self.layout = Layout::of(&cut);
            self.wait_for_room(cut, 0);
            return Ok(());
        }
        self.layout = Layout::plain(self.mtu);
        let mut outcome = Err(Refusal::CutOff);
        into.push_with(|packet| {
            if packet.set(whole) {
                outcome = match header.needs_csum {
                    true => finish_checksum(packet.bytes_mut(), header.csum_start.into(), header.csum_offset.into())
                        .map_err(Refusal::from),
                    false => Ok(()),
                };
            }
            outcome.is_ok()
        });
        outcome
    }

    /// Stores the rest of a GSO packet from segment `next` on; its payload is in `whole`.
    fn wait_for_room(&mut self, cut: Segmentation, next: usize) {
        if next < cut.segments() {
            let at = cut.head_len() + cut.payload_of(next).start;
            self.waiting = Some(Waiting { cut, next, at });
        }
    }

    /// Moves waiting segments into the batch until it is full.
    fn go_on(&mut self, into: &mut Batch, refused: &mut PortDrops) {
        let Some(waiting) = &mut self.waiting else { return };
        let (cut, whole) = (&waiting.cut, &self.whole);
        while waiting.next < cut.segments() && into.room() > 0 {
            let payload = &whole[waiting.at..][..cut.payload_of(waiting.next).len()];
            let fits = into.push_with(|packet| {
                let len = cut.head_len() + payload.len();
                let Some(to) = packet.receive_area().get_mut(cut.head_len()..len) else { return false };
                to.copy_from_slice(payload);
                packet.received(0, len);
                cut.write_head(waiting.next, packet.bytes_mut());
                true
            });
            refused.cut_off += u64::from(!fits);
            waiting.next += 1;
            waiting.at += payload.len();
        }
        if waiting.next == cut.segments() {
            self.waiting = None;
        }
    }

    /// Sends every packet, bursts as GSO packets.
    pub(super) fn send(
        &mut self,
        queue: BorrowedFd<'_>,
        from: &mut Batch,
        refused: &mut PortDrops,
        supers: &GsoCounters,
    ) -> io::Result<()> {
        self.coalescer.plan(from.packets());
        for i in 0..self.coalescer.runs() {
            let run = self.coalescer.run(i);
            if run.count == 1 {
                send_one(queue, &from.packets()[usize::from(run.first)], refused)?;
            } else {
                self.send_run(queue, run, from.packets_mut(), refused, supers)?;
            }
        }
        Ok(())
    }

    fn send_run(
        &mut self,
        queue: BorrowedFd<'_>,
        run: Burst,
        packets: &mut [Packet],
        refused: &mut PortDrops,
        supers: &GsoCounters,
    ) -> io::Result<()> {
        let first = usize::from(run.first);
        let mut head = [0; HEAD_BYTES];
        let head = &mut head[..run.head_len()];
        head.copy_from_slice(&packets[first].bytes()[..run.head_len()]);
        let last_flags = run.flags(packets[run.last()].bytes());
        let header = run.join(packets[first].bytes_mut(), last_flags).to_bytes();
        let mut areas = ArrayVec::<_, { RUN_PACKETS + 1 }>::new();
        areas.push(IoSlice::new(&header));
        areas.push(IoSlice::new(packets[first].bytes()));
        let others = self.coalescer.members(run).skip(1).map(|i| &packets[i]);
        areas.extend(others.map(|packet| IoSlice::new(&packet.bytes()[run.payload(packet)])));
        let sent = writev(queue, &areas);
        drop(areas);
        match sent {
            Ok(_) => supers.count_sent(run.count.into()),
            Err(Errno::INVAL) => {
                supers.count_refused();
                // The kernel does not support this type of GSO packet; single packets still work.
                if run.is_tcp() {
                    self.coalescer.tcp = false;
                } else {
                    self.coalescer.udp = false;
                }
                packets[first].bytes_mut()[..head.len()].copy_from_slice(head);
                for i in self.coalescer.members(run) {
                    send_one(queue, &packets[i], refused)?;
                }
            }
            Err(error) => not_taken(refused, error, run.count.into())?,
        }
        Ok(())
    }
}

fn send_one(queue: BorrowedFd<'_>, packet: &Packet, refused: &mut PortDrops) -> io::Result<()> {
    match writev(queue, &[IoSlice::new(&VnetHeader::WHOLE), IoSlice::new(packet.bytes())]) {
        Ok(_) => Ok(()),
        Err(error) => not_taken(refused, error, 1),
    }
}

/// Completes the segments that were read in place; returns their number.
fn in_place(cut: &Segmentation, layout: Layout, into: &mut Batch) -> usize {
    let count = cut.segments().min(layout.places);
    for n in 0..count {
        into.push_with(|packet| {
            packet.received(0, cut.head_len() + cut.payload_of(n).len());
            cut.write_head(n, packet.bytes_mut());
            true
        });
    }
    count
}

/// Reason why a packet that was read is dropped.
enum Refusal {
    CutOff,
    Unreadable,
}

impl From<Unreadable> for Refusal {
    fn from(_: Unreadable) -> Self {
        Self::Unreadable
    }
}

impl Refusal {
    fn count(&self, refused: &mut PortDrops) {
        match self {
            Self::CutOff => refused.cut_off += 1,
            Self::Unreadable => refused.unreadable += 1,
        }
    }
}
