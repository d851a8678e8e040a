//! Netlink messages and sockets (RFC 3549): what routes, rules and the nftables guard need.
//!
//! A message is a header, a fixed part that depends on its type, and attributes; an attribute may
//! hold attributes. [`Message`] builds one, [`attributes`] parses the attributes after a fixed
//! part. `docs/decisions/0015-netlink-without-a-library.md` states why no crate does this.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// NETLINK_ROUTE, which is protocol 0.
pub(crate) const ROUTE: Option<Protocol> = None;
/// NETLINK_NETFILTER.
pub(crate) const NETFILTER: Option<Protocol> = Some(rustix::net::netlink::NETFILTER);
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// The attribute holds attributes.
const NESTED: u16 = 0x8000;
/// Type of an acknowledgement or error.
const NLMSG_ERROR: u16 = 2;
/// Type of the last message of a dump.
const NLMSG_DONE: u16 = 3;
/// The message is a request.
const NLM_F_REQUEST: u16 = 0x1;
/// The kernel acknowledges the request.
const NLM_F_ACK: u16 = 0x4;
/// Replaces an existing object.
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
/// Returns all objects.
const NLM_F_DUMP: u16 = 0x300;
/// Creates the object if it does not exist.
pub(crate) const NLM_F_CREATE: u16 = 0x400;
/// Appends to a list (nf_tables rules).
pub(crate) const NLM_F_APPEND: u16 = 0x800;

/// Longest wait for a reply. The kernel replies before the call that sends returns, except while a
/// large nf_tables transaction commits.
const REPLY: Duration = Duration::from_secs(2);
/// Largest datagram that is read, in bytes: a dump comes in datagrams of up to 32 KiB.
const READ_BYTES: usize = 1 << 16;
/// Room for one transaction in the socket's send buffer, in bytes.
const SEND_BYTES: usize = 16 << 20;
/// Room for notifications that wait, in bytes.
const RECEIVE_BYTES: usize = 1 << 20;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A request of type `kind` that begins with `fixed`, which is a multiple of 4 bytes long.
    pub(crate) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend(fixed);
        Self { bytes }
    }

    /// Adds an attribute.
    pub(crate) fn attr(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.bytes.extend(((value.len() + 4) as u16).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a text that ends with a zero byte.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.attr(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// Adds a number in network byte order, as nf_tables has them.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Adds a number in host byte order, as rtnetlink has them.
    pub(crate) fn ne32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute that holds those that `fill` adds.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let at = self.bytes.len();
        self.bytes.extend([0; 4]);
        fill(self);
        let length = (self.bytes.len() - at) as u16;
        self.bytes[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[at + 2..at + 4].copy_from_slice(&(kind | NESTED).to_ne_bytes());
        self
    }

    /// Requests an acknowledgement from the kernel.
    pub(crate) fn acknowledge(&mut self) {
        self.set(NLM_F_ACK);
    }

    /// Returns the request with the acknowledgement flag set.
    pub(crate) fn acknowledged(mut self) -> Self {
        self.set(NLM_F_ACK);
        self
    }

    fn set(&mut self, flags: u16) {
        let flags = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | flags;
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    }

    fn finish(&mut self, sequence: u32) -> &[u8] {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }

    fn is_acknowledged(&self) -> bool {
        u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) & NLM_F_ACK != 0
    }
}

/// One message that the kernel sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    pub(crate) kind: u16,
    sequence: u32,
    /// Port of the socket that sent the causing request.
    pub(crate) port: u32,
    /// Fixed part and attributes.
    pub(crate) body: &'a [u8],
}

#[cfg(test)]
impl<'a> Received<'a> {
    pub(crate) fn new(kind: u16, body: &'a [u8]) -> Self {
        Self { kind, sequence: 1, port: 0, body }
    }
}

fn ne32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|raw| u32::from_ne_bytes(*raw))
}

fn ne16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|raw| u16::from_ne_bytes(*raw))
}

/// The messages of a datagram; ends at the first that is malformed.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = ne32(bytes, 0)? as usize;
        let (kind, sequence, port) = (ne16(bytes, 4)?, ne32(bytes, 8)?, ne32(bytes, 12)?);
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Received { kind, sequence, port, body })
    })
}

/// The attributes in `bytes`, without the flag of nested ones; ends at the first that is malformed.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (ne16(bytes, 0)? as usize, ne16(bytes, 2)?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !NESTED, value))
    })
}

/// The value of the first attribute of that type.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(of, value)| (of == kind).then_some(value))
}

/// A number in host byte order.
pub(crate) fn number(value: &[u8]) -> Option<u32> {
    (value.len() == 4).then(|| ne32(value, 0)).flatten()
}

/// A netlink socket of one protocol.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    port: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket of `protocol`: [`ROUTE`] or [`NETFILTER`].
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let socket = bound(protocol, SocketFlags::CLOEXEC, 0)?;
        // A transaction is one datagram. Without the privilege the limit of the system applies.
        if sockopt::set_socket_send_buffer_size_force(&socket, SEND_BYTES).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BYTES);
        }
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(REPLY))?;
        let own = SocketAddrNetlink::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(Self { socket, sequence: 0, port: own.pid(), buffer: vec![0; READ_BYTES] })
    }

    /// Port of this socket: the kernel puts it into notifications of what its requests changed.
    pub(crate) fn port(&self) -> u32 {
        self.port
    }

    /// Sends `requests` as one datagram and waits for the acknowledgement of the last one that
    /// requests it. Each error is reported with the index of its request.
    ///
    /// # Errors
    /// The first error of the kernel or of the socket.
    pub(crate) fn request(&mut self, requests: &mut [Message]) -> Result<(), (usize, io::Error)> {
        let first = self.sequence.wrapping_add(1);
        let mut datagram = Vec::with_capacity(requests.iter().map(|request| request.bytes.len()).sum());
        for request in requests.iter_mut() {
            self.sequence = self.sequence.wrapping_add(1);
            datagram.extend(request.finish(self.sequence));
        }
        let Some(last) = requests.iter().rposition(Message::is_acknowledged) else { return Ok(()) };
        send(&self.socket, &datagram).map_err(|error| (0, error))?;
        let mut refused = None;
        loop {
            let length = receive(&self.socket, &mut self.buffer).map_err(|error| (last, error))?;
            for message in messages(&self.buffer[..length]).filter(|message| message.kind == NLMSG_ERROR) {
                let index = message.sequence.wrapping_sub(first) as usize;
                if index >= requests.len() {
                    continue;
                }
                let code = ne32(message.body, 0).unwrap_or_default().cast_signed();
                if code != 0 && refused.is_none() {
                    refused = Some((index, io::Error::from_raw_os_error(-code)));
                }
                // A refused transaction may end before the last request is looked at.
                if index == last || (code != 0 && requests.len() > 1) {
                    return refused.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Passes each object that a dump returns to `each`.
    ///
    /// # Errors
    /// An error of the kernel or of the socket.
    pub(crate) fn dump(&mut self, mut request: Message, each: impl FnMut(Received<'_>)) -> io::Result<()> {
        request.set(NLM_F_DUMP);
        self.replies(request, each)
    }

    /// Passes the one object that a request returns to `each`.
    ///
    /// # Errors
    /// An error of the kernel or of the socket.
    pub(crate) fn get(&mut self, mut request: Message, each: impl FnMut(Received<'_>)) -> io::Result<()> {
        request.acknowledge();
        self.replies(request, each)
    }

    fn replies(&mut self, mut request: Message, mut each: impl FnMut(Received<'_>)) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        send(&self.socket, request.finish(sequence))?;
        loop {
            let length = receive(&self.socket, &mut self.buffer)?;
            for message in messages(&self.buffer[..length]).filter(|message| message.sequence == sequence) {
                match message.kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        let code = ne32(message.body, 0).unwrap_or_default().cast_signed();
                        return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
                    }
                    _ => each(message),
                }
            }
        }
    }
}

/// Notifications of changes that others make.
#[derive(Debug)]
pub(crate) struct Monitor {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Joins the multicast groups of `protocol`, each from 1 to 32.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn open(protocol: Option<Protocol>, groups: &[u32]) -> io::Result<Self> {
        let bits = groups.iter().fold(0, |bits, group| bits | 1 << (group - 1));
        let socket = bound(protocol, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, bits)?;
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES);
        Ok(Self { socket, buffer: vec![0; READ_BYTES] })
    }

    /// Passes each received message to `each`. Returns false when notifications were lost.
    pub(crate) fn read(&mut self, mut each: impl FnMut(Received<'_>)) -> bool {
        loop {
            match receive(&self.socket, &mut self.buffer) {
                Ok(length) => messages(&self.buffer[..length]).for_each(&mut each),
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bound(protocol: Option<Protocol>, flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

fn send(socket: &OwnedFd, datagram: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, datagram, SendFlags::empty()).map(drop).map_err(io::Error::from)
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buffer, RecvFlags::empty())?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_attributes_have_their_length_and_are_padded() {
        let mut message = Message::new(7, NLM_F_ACK, &[2, 0, 0, 0]);
        message.text(1, "abc").nest(3, |inner| {
            inner.attr(1, &[9]).be32(2, 5);
        });
        let bytes = message.finish(4).to_vec();
        let [received] = messages(&bytes).collect::<Vec<_>>()[..] else { panic!("one message") };
        assert_eq!((received.kind, received.sequence, received.body.len()), (7, 4, 4 + 8 + 4 + 8 + 8));
        let outer: Vec<_> = attributes(&received.body[4..]).collect();
        assert_eq!(outer[0], (1, &b"abc\0"[..]));
        assert_eq!(outer[1].0, 3);
        let inner: Vec<_> = attributes(outer[1].1).collect();
        assert_eq!(inner, [(1, &[9][..]), (2, &[0, 0, 0, 5][..])]);
    }

    #[test]
    fn malformed_datagrams_end_the_reading() {
        for length in 0..40_usize {
            assert_eq!(messages(&vec![0; length]).count(), 0, "a length of 0");
            assert_eq!(messages(&vec![0xff; length]).count(), 0, "a length beyond the datagram");
            assert_eq!(attributes(&vec![0xff; length]).count(), 0);
        }
    }

    #[test]
    fn interfaces_are_dumped() {
        let mut netlink = Netlink::open(ROUTE).unwrap();
        let mut count = 0;
        netlink.dump(Message::new(18, 0, &[0; 16]), |_| count += 1).unwrap();
        assert!(count > 0, "there is always a loopback interface");
        assert!(netlink.request(&mut [Message::new(18, NLM_F_ACK, &[0; 4])]).is_err(), "too short for RTM_GETLINK");
    }
}
