//! System calls: bpf(2), and the attachment of programs to TUN interfaces.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::Instruction;

/// Linux: a command of bpf(2).
const PROG_LOAD: i64 = 5;
/// Size of the used part of `union bpf_attr` in bytes.
const ATTR_BYTES: usize = 72;
/// Size of the verifier log, for error messages.
const LOG_BYTES: usize = 4096;
/// Linux: gives the program that names the queue of a packet to a TUN interface.
const TUNSETSTEERINGEBPF: libc::c_ulong = 0x8004_54e0;

/// Type of a program, and its attach point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    program: u32,
    attach: u32,
}

impl Kind {
    /// Runs before the network stack.
    pub(crate) const XDP: Self = Self { program: 6, attach: 37 };
    /// Runs before the stack handles a packet, after packet sockets (Linux 6.6).
    pub(crate) const INGRESS: Self = Self { program: 3, attach: 46 };
    /// Returns a number for a packet.
    pub(crate) const SOCKET_FILTER: Self = Self { program: 1, attach: 0 };

    /// Attach type of the program.
    pub(crate) fn attach(self) -> u32 {
        self.attach
    }
}

/// `union bpf_attr`, written field by field.
pub(crate) struct Attr([u64; ATTR_BYTES / 8]);

impl Attr {
    pub(crate) fn new() -> Self {
        Self([0; ATTR_BYTES / 8])
    }

    /// Writes a 32-bit field.
    pub(crate) fn word(mut self, at: usize, value: u32) -> Self {
        let shift = if cfg!(target_endian = "little") == at.is_multiple_of(8) { 0 } else { 32 };
        self.0[at / 8] |= u64::from(value) << shift;
        self
    }

    /// Writes a pointer.
    pub(crate) fn pointer<T>(mut self, at: usize, to: *const T) -> Self {
        self.0[at / 8] = to as u64;
        self
    }

    /// Executes `command`.
    ///
    /// # Safety
    /// The pointers of the command must be valid and exclusive for the duration of the call.
    pub(crate) unsafe fn call(mut self, command: i64) -> io::Result<i64> {
        // SAFETY: the kernel reads and writes `ATTR_BYTES` of the attribute at most; the rest is as
        // the caller promises.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), ATTR_BYTES) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
    }
}

/// Loads a program: the kernel verifies it first.
pub(crate) fn load(kind: Kind, program: &[Instruction]) -> io::Result<OwnedFd> {
    let attempt = |log: &mut [u8]| {
        let attr = Attr::new()
            .word(0, kind.program)
            .word(4, program.len() as u32)
            .pointer(8, program.as_ptr())
            .pointer(16, c"Apache-2.0 OR MIT".as_ptr())
            .word(24, u32::from(!log.is_empty()))
            .word(28, log.len() as u32)
            .pointer(32, if log.is_empty() { std::ptr::null() } else { log.as_mut_ptr().cast_const() })
            .word(68, kind.attach);
        // SAFETY: the kernel reads the instructions and the text and writes at most as many bytes
        // of the log as given; all of them outlive the call.
        unsafe { attr.call(PROG_LOAD) }
    };
    let outcome = attempt(&mut []).or_else(|error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        // Load again with a log buffer, because the verifier reports the reason of an error only
        // there.
        let mut log = vec![0; LOG_BYTES];
        attempt(&mut log).map_err(|_| {
            let text = String::from_utf8_lossy(&log);
            let last = text.trim_end_matches('\0').trim().lines().last().unwrap_or_default().to_owned();
            io::Error::new(error.kind(), format!("{error}: {last}"))
        })
    })?;
    owned(outcome)
}

/// A descriptor that the kernel has just made.
pub(crate) fn owned(fd: i64) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Attaches `program` to a TUN interface, through any of its queues: it selects the queue of each
/// packet.
pub(crate) fn set_steering(queue: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let number: libc::c_int = program.as_raw_fd();
    // SAFETY: the kernel reads one number, which outlives the call, and changes nothing of this
    // process.
    let rc = unsafe { libc::ioctl(queue.as_raw_fd(), TUNSETSTEERINGEBPF as _, &raw const number) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
