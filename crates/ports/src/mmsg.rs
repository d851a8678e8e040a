//! Many messages per system call, with their control data.
//!
//! The only place where raw and UDP sockets meet the kernel: [`Mmsg`] lends it packet buffers for
//! the length of one call and keeps no pointer afterwards. Control messages are read and written
//! as plain bytes.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;
use dataplane::{Batch, Packet};
use libc::c_int;

use super::{GsoCounters, PortDrops};

/// Messages per system call.
const BURST: usize = 64;
/// Limit of segments in one UDP GSO packet before Linux 6.9.
pub(super) const GSO_SEGMENTS: usize = 64;
/// Buffer size for a socket address of either family.
const NAME_BYTES: usize = 32;
/// Datagrams or GRO packets per system call if GRO is enabled.
const GRO_BURST: usize = 16;
/// Minimum number of segments of a long GRO packet.
const LONG_GRO: usize = 8;
/// Bytes of a message that are received directly into a packet buffer if GRO is enabled.
const FIRST_BYTES: usize = 2048;
/// Maximum GRO packet: the limit of a UDP datagram.
const GRO_BYTES: usize = 65_535;
/// Buffer for control messages per packet: all requested ones and 300 bytes of IPv6 extension
/// headers, which is what fits into the headroom of a packet. 32 KiB per socket in all.
const CONTROL_BYTES: usize = 512;
const CMSG_HEADER: usize = size_of::<libc::cmsghdr>();

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Name([u8; NAME_BYTES]);

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Scratch buffers for one burst of messages.
pub(super) struct Mmsg {
    names: Box<[Name]>,
    controls: Box<[Control]>,
}

/// State for receiving GRO packets in addition to [`Mmsg`]: 1.1 MB per socket, mostly untouched
/// without GRO.
pub(super) struct GroState {
    /// Overflow buffers: the bytes of each message that did not fit into its packet buffer.
    rest: Box<[u8]>,
    /// Messages of the last burst that are not delivered yet, in order.
    waiting: VecDeque<Waiting>,
    /// Segment size of the last long GRO packet. The next one probably has the same size, and each
    /// segment is then received directly into a separate packet buffer.
    expected: Option<usize>,
}

/// A message with undelivered datagrams.
#[derive(Clone, Copy)]
struct Waiting {
    message: usize,
    name_len: usize,
    control_len: usize,
    /// Position of the datagrams in `rest`, and the size of all but the last.
    at: usize,
    end: usize,
    size: usize,
    /// A datagram of the same GRO packet was delivered before.
    begun: bool,
}

/// Source and destination of packets that are received with GRO.
pub(super) struct Receive<'a> {
    pub(super) socket: BorrowedFd<'a>,
    pub(super) gro: &'a mut GroState,
    pub(super) into: &'a mut Batch,
    pub(super) refused: &'a mut PortDrops,
    pub(super) gso: &'a GsoCounters,
}

/// Verdict for a received packet.
pub(super) enum Taken {
    Keep,
    /// Forwarded elsewhere, or dropped and counted.
    Gone,
}

impl GroState {
    pub(super) fn new() -> Self {
        let rest = vec![0; GRO_BURST * (FIRST_BYTES + GRO_BYTES)].into_boxed_slice();
        Self { rest, waiting: VecDeque::with_capacity(GRO_BURST), expected: None }
    }
}

/// Offset in `rest` of the data of message `i` beyond its packet buffer.
const fn overflow_at(i: usize) -> usize {
    i * (FIRST_BYTES + GRO_BYTES) + FIRST_BYTES
}

/// Control data of one received packet.
pub(super) struct Message<'a> {
    name: &'a [u8],
    control: &'a [u8],
}

/// One outbound packet.
pub(super) struct Outgoing<'a> {
    /// Payload after the headers that the kernel creates.
    pub(super) bytes: &'a [u8],
    /// Destination.
    pub(super) to: SocketAddr,
    /// Source address and TOS or traffic class, for sockets that make their own IP header.
    pub(super) header: Option<(IpAddr, u8)>,
}

/// Datagrams of one size, except for a shorter last one, sent in one call (UDP GSO).
pub(super) struct GsoPacket<'a> {
    /// UDP payloads, at most [`GSO_SEGMENTS`].
    pub(super) payloads: ArrayVec<&'a [u8], GSO_SEGMENTS>,
    pub(super) to: SocketAddr,
    pub(super) src: IpAddr,
    pub(super) tos: u8,
    pub(super) hop_limit: u8,
    /// First word of the IPv6 header in network byte order, 0 for IPv4.
    pub(super) flow: u32,
}

/// The kernel truncated the packet or its control data.
#[derive(Debug)]
pub(super) struct Unreadable;

impl Mmsg {
    pub(super) fn new() -> Self {
        Self {
            names: vec![Name([0; NAME_BYTES]); BURST].into_boxed_slice(),
            controls: vec![Control([0; CONTROL_BYTES]); BURST].into_boxed_slice(),
        }
    }

    /// Receives until `socket` is empty or has returned as many packets as `into` had buffers for.
    /// `finish` completes each packet; packets that it rejects and truncated ones are counted in
    /// `refused`. They also count against the limit, so that a flood of invalid packets cannot keep
    /// the caller in this loop.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        into: &mut Batch,
        refused: &mut PortDrops,
        mut finish: impl FnMut(&mut Packet, &Message<'_>) -> Result<(), Unreadable>,
    ) -> io::Result<()> {
        let mut left = into.room();
        loop {
            let want = left.min(BURST);
            let before = into.len();
            let mut headers = [EMPTY; BURST];
            let got = match self.receive_burst(socket, into, &mut headers[..want]) {
                Ok(got) => got,
                Err(error) if is_passing(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            for (i, header) in headers[..got].iter().enumerate() {
                let message = Message {
                    name: &self.names[i].0[..(header.msg_hdr.msg_namelen as usize).min(NAME_BYTES)],
                    control: &self.controls[i].0[..header.msg_hdr.msg_controllen.min(CONTROL_BYTES)],
                };
                let cut = header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
                into.push_with(|packet| {
                    packet.received(0, header.msg_len as usize);
                    if cut {
                        refused.cut_off += 1;
                        packet.received(0, 0);
                    } else if finish(packet, &message).is_err() {
                        refused.unreadable += 1;
                        packet.received(0, 0);
                    }
                    true
                });
            }
            into.retain(|i, packet| i < before || packet.len() != 0);
            left -= got;
            if got < want || left == 0 {
                return Ok(());
            }
        }
    }

    /// As [`Mmsg::receive`], for a socket with UDP_GRO; the last call may return more than there is
    /// room for. `finish` also receives whether the previous packet was in the same GRO packet.
    /// Waiting segments refer to state in `self`, which must not be used otherwise until they are
    /// taken. They wait only while the batch is full.
    pub(super) fn receive_gro(
        &mut self,
        mut receive: Receive<'_>,
        mut finish: impl FnMut(&mut Packet, &Message<'_>, bool) -> Result<Taken, Unreadable>,
    ) -> io::Result<()> {
        // Received datagrams, valid or not; truncated ones have a separate counter.
        let (seen, cut_before, most) = (Cell::new(0), receive.refused.cut_off, receive.into.room());
        let mut finish = |packet: &mut Packet, message: &Message<'_>, begun: bool| {
            seen.set(seen.get() + 1);
            finish(packet, message, begun)
        };
        loop {
            self.hand_over(&mut receive, &mut finish);
            let want = receive.into.room().min(GRO_BURST);
            if want == 0 || seen.get() + (receive.refused.cut_off - cut_before) as usize >= most {
                return Ok(());
            }
            let area = receive.into.spare_mut().last_mut().map_or(0, |packet| packet.receive_area().len());
            if let Some(size) = receive.gro.expected.filter(|size| *size <= area) {
                match self.receive_expected(&mut receive, size, &mut finish) {
                    Ok(()) => continue,
                    Err(error) if is_passing(&error) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            let (before, first_bytes) = (receive.into.len(), first_bytes(receive.into));
            let mut headers = [EMPTY; GRO_BURST];
            let got = match self.receive_gro_burst(&mut receive, &mut headers[..want]) {
                Ok(got) => got,
                Err(error) if is_passing(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut pushed = 0;
            for (i, header) in headers[..got].iter().enumerate() {
                let len = header.msg_len as usize;
                let waiting = Waiting {
                    message: i,
                    name_len: header.msg_hdr.msg_namelen as usize,
                    control_len: header.msg_hdr.msg_controllen as _,
                    at: overflow_at(i) - len.min(first_bytes),
                    end: overflow_at(i) + len.saturating_sub(first_bytes),
                    size: len,
                    begun: false,
                };
                if header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
                    receive.refused.cut_off += 1;
                    continue;
                }
                let size = segment_size(&self.message(&waiting)).filter(|size| (1..len).contains(size));
                if pushed == i && size.is_none() && len <= first_bytes {
                    // The data is already in the next buffer.
                    receive.into.push_with(|packet| {
                        packet.received(0, len);
                        if !self.finished(packet, &waiting, receive.refused, &mut finish) {
                            packet.received(0, 0);
                        }
                        true
                    });
                    pushed += 1;
                    continue;
                }
                // After the first GRO packet, messages must wait, to preserve their order.
                let spare = receive.into.spare_mut();
                let place = spare.len() - 1 - (i - pushed);
                let first = &spare[place].receive_area()[..len.min(first_bytes)];
                receive.gro.rest[waiting.at..][..first.len()].copy_from_slice(first);
                receive.gro.waiting.push_back(Waiting { size: size.unwrap_or(len), ..waiting });
                if let Some(size) = size {
                    receive.gro.expected = Some(size).filter(|_| len > LONG_GRO * size);
                    receive.gso.count_received(len.div_ceil(size));
                }
            }
            receive.into.retain(|i, packet| i < before || packet.len() != 0);
            if got < want {
                self.hand_over(&mut receive, &mut finish);
                return Ok(());
            }
        }
    }

    /// Receives one message, each segment into a separate packet buffer if it is a GRO packet with
    /// segments of `size`. Other data, and data without room, waits.
    fn receive_expected(
        &mut self,
        receive: &mut Receive<'_>,
        size: usize,
        finish: &mut impl FnMut(&mut Packet, &Message<'_>, bool) -> Result<Taken, Unreadable>,
    ) -> io::Result<()> {
        let places = receive.into.room().min(GSO_SEGMENTS).min(GRO_BYTES / size + 1);
        let mut header = EMPTY;
        self.receive_scattered(receive, size, places, &mut header)?;
        let Receive { gro, into, refused, gso, .. } = receive;
        let len = header.msg_len as usize;
        let mut waiting = Waiting {
            message: 0,
            name_len: header.msg_hdr.msg_namelen as usize,
            control_len: header.msg_hdr.msg_controllen as _,
            at: 0,
            end: len,
            size,
            begun: false,
        };
        if header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            refused.cut_off += 1;
            return Ok(());
        }
        let segments = segment_size(&self.message(&waiting)).filter(|size| (1..len).contains(size));
        let its = segments.unwrap_or(len);
        gro.expected = segments.filter(|size| len > LONG_GRO * size);
        if segments.is_some() {
            gso.count_received(len.div_ceil(its));
        }
        if its != size && (segments.is_some() || len > size) {
            // Copy the data into the contiguous buffer.
            for (i, packet) in into.spare_mut().iter_mut().rev().take(places).enumerate() {
                let to = i * size..len.min((i + 1) * size);
                if to.is_empty() {
                    break;
                }
                let there = to.len();
                gro.rest[to].copy_from_slice(&packet.receive_area()[..there]);
            }
            gro.waiting.push_back(Waiting { size: its, ..waiting });
            return Ok(());
        }
        let before = into.len();
        for _ in 0..places {
            let datagram = (len - waiting.at).min(size);
            into.push_with(|packet| {
                packet.received(0, datagram);
                if !self.finished(packet, &waiting, refused, finish) {
                    // The next segment is in the next buffer, even if this one is dropped.
                    packet.received(0, 0);
                }
                true
            });
            waiting.at += datagram;
            waiting.begun = true;
            if waiting.at >= len {
                break;
            }
        }
        into.retain(|i, packet| i < before || packet.len() != 0);
        if waiting.at < len {
            gro.waiting.push_back(waiting);
        }
        Ok(())
    }

    /// Receives one message into the first `size` bytes of each of the next `places` packet
    /// buffers. Bytes beyond them go to the overflow buffer, at the same offset as in the message.
    fn receive_scattered(
        &mut self,
        receive: &mut Receive<'_>,
        size: usize,
        places: usize,
        header: &mut libc::mmsghdr,
    ) -> io::Result<()> {
        let Receive { socket, into, gro, .. } = receive;
        let mut areas = ArrayVec::<_, { GSO_SEGMENTS + 1 }>::new();
        for packet in into.spare_mut().iter_mut().rev().take(places) {
            let area = &mut packet.receive_area()[..size];
            areas.push(libc::iovec { iov_base: area.as_mut_ptr().cast(), iov_len: area.len() });
        }
        let rest = &mut gro.rest[places * size..][..GRO_BYTES];
        areas.push(libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() });
        prepare(header, &mut areas, &mut self.names[0], &mut self.controls[0]);
        // SAFETY: as in `receive_burst`; each iovec points into another packet of `into`, the last
        // one into `rest`, and all are borrowed exclusively until after the call.
        unsafe { receive_into(*socket, std::slice::from_mut(header)) }.map(drop)
    }

    /// Moves waiting datagrams into the batch until it is full.
    fn hand_over(
        &self,
        Receive { gro, into, refused, .. }: &mut Receive<'_>,
        finish: &mut impl FnMut(&mut Packet, &Message<'_>, bool) -> Result<Taken, Unreadable>,
    ) {
        while let Some(waiting) = gro.waiting.front_mut() {
            // An empty datagram is valid.
            loop {
                if into.room() == 0 {
                    return;
                }
                let datagram = &gro.rest[waiting.at..waiting.end.min(waiting.at + waiting.size)];
                into.push_with(|packet| {
                    let Some(area) = packet.receive_area().get_mut(..datagram.len()) else {
                        refused.cut_off += 1;
                        return false;
                    };
                    area.copy_from_slice(datagram);
                    packet.received(0, datagram.len());
                    self.finished(packet, waiting, refused, finish)
                });
                waiting.begun = true;
                waiting.at += datagram.len();
                if waiting.at >= waiting.end {
                    break;
                }
            }
            gro.waiting.pop_front();
        }
    }

    fn message(&self, waiting: &Waiting) -> Message<'_> {
        Message {
            name: &self.names[waiting.message].0[..waiting.name_len.min(NAME_BYTES)],
            control: &self.controls[waiting.message].0[..waiting.control_len.min(CONTROL_BYTES)],
        }
    }

    /// Completes a packet. Returns false if it is dropped.
    fn finished(
        &self,
        packet: &mut Packet,
        waiting: &Waiting,
        refused: &mut PortDrops,
        finish: &mut impl FnMut(&mut Packet, &Message<'_>, bool) -> Result<Taken, Unreadable>,
    ) -> bool {
        match finish(packet, &self.message(waiting), waiting.begun) {
            Ok(Taken::Keep) => true,
            Ok(Taken::Gone) => false,
            Err(Unreadable) => {
                refused.unreadable += 1;
                false
            }
        }
    }

    /// One `recvmmsg` as in [`Mmsg::receive_burst`]; bytes that do not fit into a packet buffer go
    /// to the overflow buffer of the message.
    fn receive_gro_burst(&mut self, receive: &mut Receive<'_>, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
        let Receive { socket, into, gro, .. } = receive;
        let first_bytes = first_bytes(into);
        let mut areas = [[NO_AREA; 2]; GRO_BURST];
        let rests = gro.rest.chunks_exact_mut(FIRST_BYTES + GRO_BYTES);
        let places = into.spare_mut().iter_mut().rev().zip(rests).take(headers.len());
        for (area, (packet, rest)) in areas.iter_mut().zip(places) {
            let (first, rest) = (&mut packet.receive_area()[..first_bytes], &mut rest[FIRST_BYTES..]);
            *area = [
                libc::iovec { iov_base: first.as_mut_ptr().cast(), iov_len: first.len() },
                libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
            ];
        }
        let rows = headers.iter_mut().zip(&mut areas).zip(self.names.iter_mut().zip(self.controls.iter_mut()));
        for ((header, area), (name, control)) in rows {
            prepare(header, area, name, control);
        }
        // SAFETY: as in `receive_burst`; the second iovec of each message points into `gro`,
        // which is borrowed exclusively as well, and no two of them overlap.
        unsafe { receive_into(*socket, headers) }
    }

    /// One `recvmmsg`: message i goes to the packet that the i-th `push_with` from now will take.
    fn receive_burst(
        &mut self,
        socket: BorrowedFd<'_>,
        into: &mut Batch,
        headers: &mut [libc::mmsghdr],
    ) -> io::Result<usize> {
        if headers.is_empty() {
            return Ok(0);
        }
        let mut areas = [NO_AREA; BURST];
        for (area, packet) in areas.iter_mut().zip(into.spare_mut().iter_mut().rev()).take(headers.len()) {
            let bytes = packet.receive_area();
            *area = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        }
        let rows = headers.iter_mut().zip(&mut areas).zip(self.names.iter_mut().zip(self.controls.iter_mut()));
        for ((header, area), (name, control)) in rows {
            prepare(header, std::slice::from_mut(area), name, control);
        }
        // SAFETY: `prepare` has initialised `headers.len()` headers; each points at its iovec in
        // `areas`, one name and one control buffer with their true sizes, all of which are borrowed
        // exclusively (packets through `into`, the rest through `self`) and outlive the call.
        unsafe { receive_into(socket, headers) }
    }

    /// Sends the result of `select` for each packet, in order, and skips those with `None`. Packets
    /// that the kernel rejects are counted in `refused`.
    pub(super) fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        packets: &'a [Packet],
        refused: &mut PortDrops,
        select: impl Fn(&'a Packet) -> Option<Outgoing<'a>>,
    ) -> io::Result<()> {
        let mut outgoing = packets.iter().filter_map(select);
        loop {
            let burst: ArrayVec<_, BURST> = outgoing.by_ref().take(BURST).collect();
            if burst.is_empty() {
                return Ok(());
            }
            self.send_burst(socket, &burst, refused)?;
        }
    }

    /// Sends `packet` by one call (UDP_SEGMENT).
    ///
    /// # Errors
    /// The error of the kernel; no datagram was sent then.
    pub(super) fn send_gso(&mut self, socket: BorrowedFd<'_>, packet: &GsoPacket<'_>) -> io::Result<()> {
        let mut areas = [NO_AREA; GSO_SEGMENTS];
        for (area, payload) in areas.iter_mut().zip(&packet.payloads) {
            *area = libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
        }
        let size = packet.payloads.first().map_or(0, |first| first.len());
        let (name, control) = (&mut self.names[0].0, &mut self.controls[0].0);
        let mut header = EMPTY.msg_hdr;
        header.msg_namelen = write_name(name, packet.to) as u32;
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_iov = areas.as_mut_ptr();
        header.msg_iovlen = packet.payloads.len() as _;
        header.msg_controllen = write_gso_control(control, packet, size as u16) as _;
        header.msg_control = control.as_mut_ptr().cast();
        loop {
            // SAFETY: the header points at an initialised name, at `msg_iovlen` iovecs over the
            // payloads that `packet` borrows, and at control messages of the given length;
            // `sendmsg` only reads them, and keeps no pointer.
            if unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT) } >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(error);
            }
        }
    }

    fn send_burst(
        &mut self,
        socket: BorrowedFd<'_>,
        burst: &[Outgoing<'_>],
        refused: &mut PortDrops,
    ) -> io::Result<()> {
        let mut areas = [NO_AREA; BURST];
        let mut headers = [EMPTY; BURST];
        let rows = headers.iter_mut().zip(&mut areas).zip(self.names.iter_mut().zip(self.controls.iter_mut()));
        for (((header, area), (name, control)), out) in rows.zip(burst) {
            *area = libc::iovec { iov_base: out.bytes.as_ptr().cast_mut().cast(), iov_len: out.bytes.len() };
            header.msg_hdr.msg_namelen = write_name(&mut name.0, out.to) as u32;
            header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
            header.msg_hdr.msg_iov = area;
            header.msg_hdr.msg_iovlen = 1;
            if let Some((src, tos)) = out.header {
                header.msg_hdr.msg_controllen = write_control(&mut control.0, src, tos) as _;
                header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            }
        }
        let mut rest = &mut headers[..burst.len()];
        while !rest.is_empty() {
            // SAFETY: as in `receive_burst`; `sendmmsg` only reads what the iovecs point at, which
            // `burst` borrows until after the call.
            let sent =
                unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, libc::MSG_DONTWAIT) };
            let done = match usize::try_from(sent) {
                Ok(sent) => sent,
                Err(_) => give_up(io::Error::last_os_error(), rest.len(), refused)?,
            };
            rest = rest.get_mut(done..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Sets the buffers of a message.
fn prepare(header: &mut libc::mmsghdr, areas: &mut [libc::iovec], name: &mut Name, control: &mut Control) {
    header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
    header.msg_hdr.msg_namelen = NAME_BYTES as u32;
    header.msg_hdr.msg_iov = areas.as_mut_ptr();
    header.msg_hdr.msg_iovlen = areas.len() as _;
    header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
    header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
}

/// One `recvmmsg` that does not wait; returns the messages received.
///
/// # Safety
/// The buffers of the headers must be exclusive for the duration of the call and have the given
/// lengths. The kernel keeps none of the pointers.
unsafe fn receive_into(socket: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let (count, flags) = (headers.len() as u32, libc::MSG_DONTWAIT);
    // SAFETY: as the caller promises.
    let got = unsafe { libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags, std::ptr::null_mut()) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Returns how many bytes of a message fit into a packet buffer of `batch`.
fn first_bytes(batch: &mut Batch) -> usize {
    batch.spare_mut().last_mut().map_or(0, |packet| packet.receive_area().len().min(FIRST_BYTES))
}

/// Returns the segment size if the message is a GRO packet.
fn segment_size(message: &Message<'_>) -> Option<usize> {
    let of_message = |(level, kind, content): (c_int, c_int, _)| {
        (level == libc::IPPROTO_UDP && kind == libc::UDP_GRO).then(|| int_at(content, 0)).flatten()
    };
    message.controls().find_map(of_message).and_then(|size| usize::try_from(size).ok())
}

/// Number of `waiting` packets to skip after the first of them failed with `error`, counted in
/// `refused`; returns an error if the socket itself has failed.
fn give_up(error: io::Error, waiting: usize, refused: &mut PortDrops) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(libc::EINTR) => return Ok(0),
        // If the socket buffer is full, it is full for the rest as well. One system call per packet
        // would only return the same error.
        Some(libc::EAGAIN) => {
            refused.full += waiting as u64;
            return Ok(waiting);
        }
        Some(libc::ENOBUFS | libc::ENOMEM) => refused.full += 1,
        Some(libc::EMSGSIZE) => refused.too_big += 1,
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => return Err(error),
        _ => refused.other += 1,
    }
    Ok(1)
}

const NO_AREA: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
// SAFETY: `mmsghdr` is made of integers and raw pointers, for which zero is a valid value.
const EMPTY: libc::mmsghdr = unsafe { std::mem::zeroed() };

/// Returns true if there was no packet, or for a transient error of the network (an ICMP message,
/// an interface that went down) that the next call does not report again.
fn is_passing(error: &io::Error) -> bool {
    let passing = [
        libc::EAGAIN,
        libc::EINTR,
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::ENETDOWN,
        libc::EMSGSIZE,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::ENOBUFS,
        libc::ENOMEM,
    ];
    error.raw_os_error().is_some_and(|code| passing.contains(&code))
}

impl<'a> Message<'a> {
    /// Sender of the packet; the port is 0 on raw sockets.
    pub(super) fn from(&self) -> Option<SocketAddr> {
        let family = u16::from_ne_bytes(self.name.first_chunk().copied()?);
        let port = u16::from_be_bytes(*self.name.get(2..)?.first_chunk()?);
        let ip: IpAddr = match c_int::from(family) {
            libc::AF_INET => Ipv4Addr::from(*self.name.get(4..)?.first_chunk::<4>()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(*self.name.get(8..)?.first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }

    /// Returns true for a GRO packet.
    pub(super) fn is_gro(&self) -> bool {
        segment_size(self).is_some()
    }

    /// Control messages as (level, type, content), in the order of the kernel.
    pub(super) fn controls(&self) -> Controls<'a> {
        Controls(self.control)
    }
}

/// Iterator over control messages.
pub(super) struct Controls<'a>(&'a [u8]);

impl<'a> Iterator for Controls<'a> {
    type Item = (c_int, c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from_ne_bytes(*self.0.first_chunk()?);
        let level = int_at(self.0, offset_of!(libc::cmsghdr, cmsg_level))?;
        let kind = int_at(self.0, offset_of!(libc::cmsghdr, cmsg_type))?;
        let content = self.0.get(CMSG_HEADER..len)?;
        self.0 = self.0.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        Some((level, kind, content))
    }
}

/// Returns the native integer at offset `at` of `bytes`.
pub(super) fn int_at(bytes: &[u8], at: usize) -> Option<c_int> {
    Some(c_int::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Writes a socket address and returns its length.
fn write_name(name: &mut [u8; NAME_BYTES], to: SocketAddr) -> usize {
    *name = [0; NAME_BYTES];
    name[2..4].copy_from_slice(&to.port().to_be_bytes());
    match to {
        SocketAddr::V4(to) => {
            name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            name[4..8].copy_from_slice(&to.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(to) => {
            name[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            name[8..24].copy_from_slice(&to.ip().octets());
            name[24..28].copy_from_slice(&to.scope_id().to_ne_bytes());
            size_of::<libc::sockaddr_in6>()
        }
    }
}

/// Writes one control message at the start of `control`; returns the bytes taken.
fn put_control(control: &mut [u8], level: c_int, kind: c_int, content: &[u8]) -> usize {
    let len = CMSG_HEADER + content.len();
    let message = &mut control[..len.next_multiple_of(size_of::<usize>())];
    message.fill(0);
    message[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
    message[offset_of!(libc::cmsghdr, cmsg_level)..][..4].copy_from_slice(&level.to_ne_bytes());
    message[offset_of!(libc::cmsghdr, cmsg_type)..][..4].copy_from_slice(&kind.to_ne_bytes());
    message[CMSG_HEADER..len].copy_from_slice(content);
    message.len()
}

/// Writes the control messages for the headers of a GSO packet; returns their length.
fn write_gso_control(control: &mut [u8; CONTROL_BYTES], packet: &GsoPacket<'_>, size: u16) -> usize {
    let mut at = write_control(control, packet.src, packet.tos);
    let mut put = |level, kind, content: &[u8]| at += put_control(&mut control[at..], level, kind, content);
    let hops = c_int::from(packet.hop_limit).to_ne_bytes();
    if packet.src.is_ipv6() {
        put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops);
        put(libc::IPPROTO_IPV6, super::rebuild::IPV6_FLOWINFO, &(packet.flow & 0x0fff_ffff).to_be_bytes());
    } else {
        put(libc::IPPROTO_IP, libc::IP_TTL, &hops);
    }
    put(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
    at
}

/// Writes the control messages that set source address and TOS of one packet; returns their length.
fn write_control(control: &mut [u8; CONTROL_BYTES], src: IpAddr, tos: u8) -> usize {
    let mut at = 0;
    let mut put = |level, kind, content: &[u8]| at += put_control(&mut control[at..], level, kind, content);
    match src {
        IpAddr::V4(src) => {
            // struct in_pktinfo: interface, source address, (ignored on send).
            let mut pktinfo = [0; size_of::<libc::in_pktinfo>()];
            pktinfo[4..8].copy_from_slice(&src.octets());
            put(libc::IPPROTO_IP, libc::IP_PKTINFO, &pktinfo);
            put(libc::IPPROTO_IP, libc::IP_TOS, &c_int::from(tos).to_ne_bytes());
        }
        IpAddr::V6(src) => {
            let mut pktinfo = [0; size_of::<libc::in6_pktinfo>()];
            pktinfo[..16].copy_from_slice(&src.octets());
            put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &pktinfo);
            put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &c_int::from(tos).to_ne_bytes());
        }
    }
    at
}

/// Sets a socket option with a value of plain bytes.
pub(super) fn set_option(socket: impl AsFd, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `value.len()` bytes from `value`, which outlives the call.
    let rc = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches `program`, classic BPF over the payload, which selects among the sockets of one UDP
/// port.
pub(super) fn choose_by_payload(socket: impl AsFd, program: &[libc::sock_filter]) -> io::Result<()> {
    // The kernel copies the program and writes nothing.
    let header = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let len = size_of_val(&header) as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
    // SAFETY: the kernel reads `len` bytes from `header` and `header.len` instructions from
    // `program`; both outlive the call.
    let rc = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, (&raw const header).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets a socket option to an integer.
pub(super) fn set_int(socket: impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_option(socket, level, name, &value.to_ne_bytes())
}

/// Returns an integer socket option.
pub(super) fn get_int(socket: impl AsFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let (mut value, mut len): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes to `value` and the new length to `len`; both
    // outlive the call.
    let rc =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Requests socket buffers of `bytes` per direction; without privilege the kernel gives what its
/// limits allow.
pub(super) fn large_buffers(socket: impl AsFd, bytes: c_int) -> io::Result<()> {
    let socket = socket.as_fd();
    for (forced, asked) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        set_int(socket, libc::SOL_SOCKET, forced, bytes)
            .or_else(|_| set_int(socket, libc::SOL_SOCKET, asked, bytes))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_written_are_read_back() {
        let mut bytes = [0xaa; CONTROL_BYTES];
        let len = write_control(&mut bytes, Ipv6Addr::LOCALHOST.into(), 0xb9);
        let message = Message { name: &[], control: &bytes[..len] };
        let read: Vec<_> = message.controls().map(|(_, kind, content)| (kind, content.to_vec())).collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].0, &read[0].1[..16]), (libc::IPV6_PKTINFO, &Ipv6Addr::LOCALHOST.octets()[..]));
        assert_eq!((read[1].0, int_at(&read[1].1, 0)), (libc::IPV6_TCLASS, Some(0xb9)));
    }

    #[test]
    fn control_messages_that_lie_about_their_length_end_the_walk() {
        for len in [0_usize, 1, CMSG_HEADER - 1, 64, usize::MAX, usize::MAX - 6] {
            let mut bytes = [0; 40];
            bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Message { name: &[], control: &bytes }.controls().count(), 0, "{len}");
        }
    }

    #[test]
    fn addresses_written_are_read_back() {
        for to in ["192.0.2.1:4500", "[2001:db8::1]:1000"] {
            let to: SocketAddr = to.parse().unwrap();
            let mut name = [0; NAME_BYTES];
            let len = write_name(&mut name, to);
            assert_eq!(Message { name: &name[..len], control: &[] }.from(), Some(to));
        }
        assert_eq!(Message { name: &[2, 0, 0], control: &[] }.from(), None);
    }
}
