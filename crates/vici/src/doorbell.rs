//! Wakes the server thread from poll when there is work for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that is readable since it was rung. Rings before the answer are one system call.
pub(super) struct Doorbell {
    descriptor: OwnedFd,
    /// Rung, and not answered yet.
    rung: AtomicBool,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor, rung: AtomicBool::new(false) })
    }

    /// Signals that work was queued.
    pub(super) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // A full counter is readable as well.
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }

    /// Clears the signal; must precede the check of the queue.
    pub(super) fn answer(&self) {
        self.answer_with(|| ());
    }

    /// `meanwhile` simulates concurrent operations.
    fn answer_with(&self, meanwhile: impl FnOnce()) {
        if self.rung.load(Ordering::Acquire) {
            // The order matters. A wake-up in between finds the flag still set, and the following
            // check sees its work. In reverse order the wake-up in between would be consumed, and
            // every later one would be skipped.
            let _ = rustix::io::read(&self.descriptor, &mut [0u8; 8]);
            meanwhile();
            self.rung.swap(false, Ordering::AcqRel);
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn rings(bell: &Doorbell) -> bool {
        poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn many_rings_are_one_until_they_are_answered() {
        let bell = Doorbell::new().unwrap();
        bell.answer();
        assert!(!rings(&bell));
        (0..3).for_each(|_| bell.ring());
        assert!(rings(&bell));
        bell.answer();
        assert!(!rings(&bell));
        bell.ring();
        assert!(rings(&bell));
    }

    #[test]
    fn a_ring_in_the_midst_of_an_answer_silences_none_after_it() {
        let bell = Doorbell::new().unwrap();
        bell.ring();
        // The check after `answer` sees this work.
        bell.answer_with(|| bell.ring());
        bell.ring();
        assert!(rings(&bell));
        bell.answer();
        assert!(!rings(&bell));
    }
}
