//! System calls of AF_XDP: shared memory, sockets, and the attachment of the program.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ring::Memory;
use super::sync::{AtomicU32, Ordering};
use crate::bpf::{Attr, Kind, owned};

/// Linux: commands of bpf(2) and their arguments.
const MAP_CREATE: i64 = 0;
const MAP_UPDATE: i64 = 2;
const PROG_QUERY: i64 = 16;
const LINK_CREATE: i64 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
/// Linux: attachment mode: generic (in the stack) or native (in the driver).
const IN_STACK: u32 = 1 << 1;
const IN_DRIVER: u32 = 1 << 2;
/// Linux: `BPF_F_BEFORE`, which without another program is before all of them.
const FIRST: u32 = 1 << 3;
/// Linux, `linux/ethtool.h`: reads the numbers of queues.
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Timeout while a queue or an interface still belongs to an earlier socket or program: the kernel
/// releases it shortly after a descriptor was closed or a process has ended.
const RELEASE_TIME: Duration = Duration::from_secs(1);

/// Mapped memory, unmapped on drop.
pub(super) struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process and is accessed only through the types that define the
// ownership of its parts: `Frames`, the two sides of a ring, and `PacketRing`.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `len` bytes of a descriptor from an offset on, or new memory.
    pub(super) fn new(len: usize, of: Option<(BorrowedFd<'_>, i64)>) -> io::Result<Self> {
        let (fd, offset, flags) = match of {
            Some((fd, offset)) => (fd.as_raw_fd(), offset, libc::MAP_SHARED | libc::MAP_POPULATE),
            None => (-1, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        Ok(Self { start, len })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and no user remains, because
        // users keep it alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Frames of packet memory that the kernel shares with one socket.
pub(super) struct Umem {
    mapped: Arc<Mapped>,
    frame_bytes: usize,
    /// Frames to receive to, which are the first.
    received: u32,
}

/// Frames of a queue, powers of two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FrameCounts {
    /// To receive to.
    pub(super) received: u32,
    /// To send from.
    pub(super) sent: u32,
}

/// Frames for one direction, exclusively owned.
pub(super) struct Frames {
    umem: Umem,
    first: u64,
    end: u64,
}

impl Umem {
    /// Memory for these numbers of frames.
    pub(super) fn new(FrameCounts { received, sent }: FrameCounts, frame_bytes: usize) -> io::Result<Self> {
        let len = (received + sent) as usize * frame_bytes;
        Ok(Self { mapped: Arc::new(Mapped::new(len, None)?), frame_bytes, received })
    }

    /// Registers the memory with the socket.
    fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        // struct xdp_umem_reg as Linux 4.18 had it: without flags that are not used here.
        let (start, len) = (self.mapped.start.as_ptr() as u64, self.mapped.len as u64);
        let mut bytes = [start.to_ne_bytes(), len.to_ne_bytes()].concat();
        bytes.extend((self.frame_bytes as u32).to_ne_bytes());
        bytes.extend([0; 4]); // head room
        crate::mmsg::set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &bytes)
    }

    /// The frames to receive to, and those to send from.
    pub(super) fn halves(self) -> [Frames; 2] {
        let Self { mapped, frame_bytes, received } = self;
        let (border, end) = (u64::from(received) * frame_bytes as u64, mapped.len as u64);
        let of = |first, end| {
            let umem = Self { mapped: Arc::clone(&mapped), frame_bytes, received };
            Frames { umem, first, end }
        };
        [of(0, border), of(border, end)]
    }
}

impl Frames {
    /// Addresses of all frames.
    pub(super) fn all(&self) -> impl Iterator<Item = u64> + use<> {
        (self.first..self.end).step_by(self.umem.frame_bytes)
    }

    /// The frame that `addr` is in.
    pub(super) fn frame_of(&self, addr: u64) -> u64 {
        addr - addr % self.umem.frame_bytes as u64
    }

    /// `len` bytes at `addr`, which must be in one of these frames and belong to this side of the
    /// rings; `None` outside of the frames.
    pub(super) fn bytes(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        let end = addr.checked_add(len as u64)?;
        let frame_end = self.frame_of(addr) + self.umem.frame_bytes as u64;
        if addr < self.first || end > self.end || end > frame_end {
            return None;
        }
        // SAFETY: the range is inside the mapping, in the part that only `self` owns, and `self` is
        // borrowed exclusively. The kernel writes to a frame only from the fill ring to the receive
        // ring, and reads one only from the send ring to the completion ring; callers request
        // frames that are in neither.
        Some(unsafe { std::slice::from_raw_parts_mut(self.umem.mapped.start.as_ptr().add(addr as usize), len) })
    }
}

/// A ring in memory shared with the kernel.
pub(super) struct Shared<E> {
    mapped: Mapped,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    entry: std::marker::PhantomData<E>,
}

impl<E: Copy> Shared<E> {
    fn map(socket: BorrowedFd<'_>, page: i64, at: &libc::xdp_ring_offset, size: u32) -> io::Result<Self> {
        let len = at.desc as usize + size as usize * size_of::<E>();
        Ok(Self {
            mapped: Mapped::new(len, Some((socket, page)))?,
            producer: at.producer as usize,
            consumer: at.consumer as usize,
            flags: at.flags as usize,
            entries: at.desc as usize,
            size,
            entry: std::marker::PhantomData,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= self.mapped.len && at.is_multiple_of(4));
        // SAFETY: the kernel reported a 32-bit counter at this offset, aligned and inside the
        // mapping, and the other side reaches it by atomic operations, too.
        unsafe { &*self.mapped.start.as_ptr().add(at).cast::<AtomicU32>() }
    }

    fn entry(&self, at: u32) -> *mut E {
        assert!(at < self.size);
        // SAFETY: the mapping has room for `size` entries after `entries`.
        unsafe { self.mapped.start.as_ptr().add(self.entries).cast::<E>().add(at as usize) }
    }

    /// True when the kernel waits for a call before it looks at the ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<E: Copy> Memory for Shared<E> {
    type Entry = E;

    fn producer(&self) -> &AtomicU32 {
        self.word(self.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.consumer)
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn write(&self, at: u32, entry: E) {
        // SAFETY: the entry is inside the mapping, aligned, and by the protocol of the ring this
        // side's at this time.
        unsafe { self.entry(at).write(entry) }
    }

    fn read(&self, at: u32) -> E {
        // SAFETY: as above; the entries are plain numbers, for which every pattern of bits is a
        // value.
        unsafe { self.entry(at).read() }
    }
}

/// Entry of the receive and the send ring: `struct xdp_desc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 16);

/// The rings of a socket.
pub(super) struct Rings {
    pub(super) fill: Shared<u64>,
    pub(super) completion: Shared<u64>,
    pub(super) rx: Shared<Descriptor>,
    pub(super) tx: Shared<Descriptor>,
}

/// A socket on one queue, and its rings for the frames of `umem`. Uses zero-copy if the driver
/// supports it; returns whether.
pub(super) fn open(umem: &Umem, if_index: u32, queue: u32, frames: FrameCounts) -> io::Result<(OwnedFd, Rings, bool)> {
    let socket = socket()?;
    umem.register(socket.as_fd())?;
    let sizes = Sizes::of(frames);
    for (name, size) in [
        (libc::XDP_UMEM_FILL_RING, sizes.fill),
        (libc::XDP_UMEM_COMPLETION_RING, sizes.completion),
        (libc::XDP_RX_RING, sizes.rx),
        (libc::XDP_TX_RING, sizes.tx),
    ] {
        crate::mmsg::set_option(&socket, libc::SOL_XDP, name, &size.to_ne_bytes())?;
    }
    let rings = map(socket.as_fd(), sizes)?;
    bind_when_free(socket.as_fd(), if_index, queue)?;
    let zero_copy = zero_copy(socket.as_fd());
    Ok((socket, rings, zero_copy))
}

/// Entries of the rings, powers of two.
#[derive(Clone, Copy)]
struct Sizes {
    fill: u32,
    completion: u32,
    rx: u32,
    tx: u32,
}

impl Sizes {
    fn of(FrameCounts { received, sent }: FrameCounts) -> Self {
        // The kernel returns a frame by the receive or the completion ring slightly before it frees
        // the entry of that frame in the fill or send ring. So the rings have twice as many entries
        // as frames.
        Self { fill: 2 * received, completion: sent, rx: received, tx: 2 * sent }
    }
}

pub(super) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: the call makes a descriptor and touches no memory.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    owned(fd.into())
}
fn map(socket: BorrowedFd<'_>, sizes: Sizes) -> io::Result<Rings> {
    // SAFETY: zero is a value of these integers.
    let mut at: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get_option(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut at)?;
    Ok(Rings {
        fill: Shared::map(socket, libc::XDP_UMEM_PGOFF_FILL_RING as i64, &at.fr, sizes.fill)?,
        completion: Shared::map(socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64, &at.cr, sizes.completion)?,
        rx: Shared::map(socket, libc::XDP_PGOFF_RX_RING, &at.rx, sizes.rx)?,
        tx: Shared::map(socket, libc::XDP_PGOFF_TX_RING, &at.tx, sizes.tx)?,
    })
}

/// Types that consist of integers only, so that every bit pattern is valid.
///
/// # Safety
/// To be implemented for nothing else.
unsafe trait Integers {}

// SAFETY: integers alone, as `linux/if_xdp.h` has them.
unsafe impl Integers for libc::xdp_mmap_offsets {}
// SAFETY: as above.
unsafe impl Integers for libc::xdp_statistics {}
// SAFETY: as above.
unsafe impl Integers for u32 {}
// SAFETY: as above.
unsafe impl Integers for libc::tpacket_stats {}

/// Reads an option into a structure of integers; fails when the kernel writes less than all of it.
fn get_option<T: Integers>(socket: BorrowedFd<'_>, level: i32, name: i32, into: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let to = std::ptr::from_mut(into).cast();
    // SAFETY: the kernel writes at most `len` bytes to `into`, which is borrowed exclusively and
    // takes any bytes.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut len) };
    match rc {
        0 if len as usize == size_of::<T>() => Ok(()),
        0 => Err(io::Error::new(io::ErrorKind::Unsupported, "AF_XDP of this kernel is too old (Linux 5.10 will do)")),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds the socket to a queue; waits where another one has it that is about to go.
fn bind_when_free(socket: BorrowedFd<'_>, if_index: u32, queue: u32) -> io::Result<()> {
    while_busy(|| bind(socket, if_index, queue))
}

/// Repeats `attempt` while the kernel still releases what a closed descriptor held: it does so in
/// the background.
fn while_busy<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < RELEASE_TIME => {
                std::thread::sleep(RELEASE_TIME / 50);
            }
            outcome => return outcome,
        }
    }
}

fn bind(socket: BorrowedFd<'_>, if_index: u32, queue: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: if_index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes from `address`, which outlives the call.
    let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Binds a packet socket to an interface, for frames of all protocols.
pub(super) fn bind_packet(socket: BorrowedFd<'_>, if_index: u32) -> io::Result<()> {
    // SAFETY: zero is a value of these integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = if_index.cast_signed();
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes from `address`, which outlives the call.
    let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether the driver reads and writes the shared memory itself.
fn zero_copy(socket: BorrowedFd<'_>) -> bool {
    let mut flags = 0_u32;
    get_option(socket, libc::SOL_XDP, libc::XDP_OPTIONS, &mut flags)
        .is_ok_and(|()| flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Result of a send request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TxStatus {
    /// It has taken all that it was to take by one call.
    Done,
    /// Not all frames were taken: the interface has no room, or the limit of one call is reached.
    Busy,
    /// It has taken all up to a packet that the interface had no room for, and lost that.
    Lost,
    /// The interface is down.
    Down,
    /// The interface is gone, or something else that does not pass.
    Gone,
}

/// Has the kernel look at the send ring; what it leaves there, the caller sees.
pub(super) fn kick_tx(socket: BorrowedFd<'_>) -> TxStatus {
    // SAFETY: no buffer is passed: the frames are in the ring.
    let rc = unsafe { libc::sendto(socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    if rc >= 0 {
        return TxStatus::Done;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => TxStatus::Busy,
        Some(libc::EBUSY) => TxStatus::Lost,
        Some(libc::ENETDOWN) => TxStatus::Down,
        _ => TxStatus::Gone,
    }
}

/// Packets for this socket that the kernel had no room for.
pub(super) fn lost(socket: BorrowedFd<'_>) -> u64 {
    // SAFETY: zero is a value of these integers.
    let mut counts: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    match get_option(socket, libc::SOL_XDP, libc::XDP_STATISTICS, &mut counts) {
        Ok(()) => counts.rx_dropped + counts.rx_ring_full,
        Err(_) => 0,
    }
}

/// Packets for this packet socket since the last call that its ring had no room for. Callers should
/// sum them up.
pub(super) fn lost_by_packet_socket(socket: BorrowedFd<'_>) -> u64 {
    // SAFETY: zero is a value of these integers.
    let mut counts: libc::tpacket_stats = unsafe { std::mem::zeroed() };
    match get_option(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut counts) {
        Ok(()) => counts.tp_drops.into(),
        Err(_) => 0,
    }
}

/// Has the kernel look at the fill ring.
pub(super) fn kick_rx(socket: BorrowedFd<'_>) {
    let (no_bytes, no_address) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: no buffer is passed: the frames are in the ring.
    unsafe { libc::recvfrom(socket.as_raw_fd(), no_bytes, 0, libc::MSG_DONTWAIT, no_address, std::ptr::null_mut()) };
}

/// A map from receive queues to sockets.
pub(super) fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    let attr = Attr::new().word(0, MAP_TYPE_XSKMAP).word(4, 4).word(8, 4).word(12, queues);
    // SAFETY: the command has no pointers.
    owned(unsafe { attr.call(MAP_CREATE) }?)
}

/// Puts the socket of a queue in the map.
pub(super) fn put_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd() as u32;
    let attr = Attr::new().word(0, map.as_raw_fd() as u32).pointer(8, &raw const queue).pointer(16, &raw const value);
    // SAFETY: key and value are of the sizes that the map has, and outlive the call.
    unsafe { attr.call(MAP_UPDATE) }.map(drop)
}

/// Attaches the program to an interface, in the driver or else in the stack, until the descriptor
/// is closed. Returns whether it runs in the driver.
pub(super) fn attach(program: BorrowedFd<'_>, if_index: u32) -> io::Result<(OwnedFd, bool)> {
    let attempt = |flags| {
        let attr = Attr::new()
            .word(0, program.as_raw_fd() as u32)
            .word(4, if_index)
            .word(8, Kind::XDP.attach())
            .word(12, flags);
        // SAFETY: the command has no pointers.
        unsafe { attr.call(LINK_CREATE) }
    };
    match while_busy(|| attempt(IN_DRIVER)) {
        Ok(link) => Ok((owned(link)?, true)),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(error),
        Err(_) => Ok((owned(attempt(IN_STACK)?)?, false)),
    }
}

/// Returns how many receive queues of an interface are in use, where the driver has other numbers
/// for each direction, as that of veth.
pub(super) fn queues_in_use(name: &str) -> io::Result<u32> {
    // struct ethtool_channels: command, four limits, queues to receive, and three other numbers.
    let mut channels = [ETHTOOL_GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: zero is a value of this structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte remains zero.
    let len = request.ifr_name.len() - 1;
    for (to, byte) in request.ifr_name[..len].iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = channels.as_mut_ptr().cast();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: the kernel reads and writes the request and the numbers that it points to, both of
    // which outlive the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if rc == 0 { Ok(channels[5]) } else { Err(io::Error::last_os_error()) }
}

/// Checks whether the kernel has the ingress hook that [`attach_ingress`] uses.
pub(super) fn ingress_hook(if_index: u32) -> io::Result<()> {
    let attr = Attr::new().word(0, if_index).word(4, Kind::INGRESS.attach());
    // SAFETY: the command has no pointers: without room for the numbers of programs the kernel
    // writes to the attribute alone.
    match unsafe { attr.call(PROG_QUERY) } {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel has no TCX (Linux 6.6)"))
        }
        outcome => outcome.map(drop),
    }
}

/// Attaches the program to the ingress hook of an interface, until the descriptor is closed: before
/// all other programs, because one that passes or redirects a packet ends the chain.
pub(super) fn attach_ingress(program: BorrowedFd<'_>, if_index: u32) -> io::Result<OwnedFd> {
    attach_ingress_at(program, if_index, FIRST)
}

/// Attaches the program after all others.
#[cfg(test)]
pub(super) fn attach_ingress_last(program: BorrowedFd<'_>, if_index: u32) -> io::Result<OwnedFd> {
    attach_ingress_at(program, if_index, 0)
}

fn attach_ingress_at(program: BorrowedFd<'_>, if_index: u32, place: u32) -> io::Result<OwnedFd> {
    let attr = Attr::new()
        .word(0, program.as_raw_fd() as u32)
        .word(4, if_index)
        .word(8, Kind::INGRESS.attach())
        .word(12, place);
    // SAFETY: the command has no pointers.
    owned(unsafe { attr.call(LINK_CREATE) }?)
}
