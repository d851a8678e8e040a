//! A queue with offloads over a socket in place of the device: for fuzzing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use dataplane::{Batch, Port};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::offload::Offload;
use super::{GsoCounters, PortDrops};

/// TUN queue with a socket of the caller in place of the kernel. One message is one packet after
/// its `struct virtio_net_hdr`.
pub struct SuperQueue {
    socket: OwnedFd,
    offload: Offload,
    refused: PortDrops,
    supers: GsoCounters,
}

impl SuperQueue {
    /// Opens a queue for packets of up to `mtu` bytes, and the kernel side of it; `udp` joins UDP
    /// as well as TCP.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pair(mtu: usize, udp: bool) -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, kernel) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let (offload, refused, supers) = (Offload::new(mtu, udp), PortDrops::default(), GsoCounters::default());
        Ok((Self { socket, offload, refused, supers }, kernel))
    }
}

impl Port for SuperQueue {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        self.offload.receive(self.socket.as_fd(), into, &mut self.refused, &self.supers)
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        self.offload.send(self.socket.as_fd(), from, &mut self.refused, &self.supers)?;
        from.clear();
        Ok(())
    }

    fn drops(&self) -> PortDrops {
        self.refused
    }
}
