//! Addresses of an interface, configured by rtnetlink, for both families and any number of
//! addresses.

use std::io::{self, Read, Write};
use std::net::IpAddr;

use socket2::{Domain, Protocol, Socket, Type};

const RTM_NEWADDR: u16 = 20;
const NLMSG_ERROR: u16 = 2;
/// NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE.
const FLAGS: u16 = 0x1 | 0x4 | 0x200 | 0x400;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// No duplicate address detection: a TUN has no other hosts on the link, and the address must be
/// usable at once.
const IFA_F_NODAD: u8 = 0x02;

/// Adds an address to the interface with `index`. An address that already exists is not an error.
pub(super) fn add(index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
    let longest = if address.is_ipv4() { 32 } else { 128 };
    if prefix > longest {
        let why = format!("address {address}/{prefix}: the prefix is longer than {longest} bits");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(libc::NETLINK_ROUTE)))?;
    (&socket).write_all(&request(index, address, prefix))?;
    let mut reply = [0; 1024];
    let len = (&socket).read(&mut reply)?;
    outcome(&reply[..len]).map_err(|error| io::Error::new(error.kind(), format!("address {address}/{prefix}: {error}")))
}

fn request(index: u32, address: IpAddr, prefix: u8) -> Vec<u8> {
    let octets = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let mut message = Vec::new();
    message.extend([0; 4]); // length, set at the end
    message.extend(RTM_NEWADDR.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    message.extend([0; 8]); // sequence number and port: one request, one answer
    message.extend([family, prefix, IFA_F_NODAD, 0]);
    message.extend(index.to_ne_bytes());
    for kind in [IFA_LOCAL, IFA_ADDRESS] {
        message.extend((4 + octets.len() as u16).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(&octets);
    }
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message
}

fn outcome(reply: &[u8]) -> io::Result<()> {
    let kind = reply.get(4..).and_then(<[u8]>::first_chunk).map(|kind| u16::from_ne_bytes(*kind));
    let code = reply.get(16..).and_then(<[u8]>::first_chunk).map(|code| -i32::from_ne_bytes(*code));
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0 | libc::EEXIST)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer was not understood")),
    }
}
