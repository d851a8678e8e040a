//! Properties of an interface, from the kernel.

use std::io::{self, Read, Write};

use super::next_hops::{attributes, nested, rtnetlink};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
/// Linux: hardware type with Ethernet headers.
const ARPHRD_ETHER: u16 = 1;
/// Bytes before the attributes: header of the message, and `ifinfomsg`.
const FIXED: usize = 16 + 16;
/// Buffer for a response, which contains the statistics of the interface.
const ANSWER_BYTES: usize = 32_768;
/// Limit of receive queues with an AF_XDP socket. Packets on other queues use the kernel's stack.
const MAX_QUEUES: u32 = 64;

/// An Ethernet interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Link {
    pub(super) if_index: u32,
    pub(super) mac: [u8; 6],
    /// Largest packet in bytes.
    pub(super) mtu: usize,
    /// Receive queues, at least 1; not all need be in use.
    pub(super) queues: usize,
    /// A virtual cable between two namespaces (veth).
    pub(super) veth: bool,
}

impl Link {
    pub(super) fn of(name: &str) -> io::Result<Self> {
        let socket = rtnetlink()?;
        (&socket).write_all(&request(name))?;
        let mut answer = vec![0; ANSWER_BYTES];
        let len = (&socket).read(&mut answer)?;
        read(&answer[..len])
    }
}

fn request(name: &str) -> Vec<u8> {
    let mut message = vec![0; 4]; // length, set at the end
    message.extend(RTM_GETLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]); // sequence number and port: one question, one answer
    message.extend([0; 16]);
    message.extend((4 + name.len() as u16 + 1).to_ne_bytes());
    message.extend(IFLA_IFNAME.to_ne_bytes());
    message.extend(name.bytes());
    message.resize((message.len() + 1).next_multiple_of(4), 0);
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message
}

fn read(answer: &[u8]) -> io::Result<Link> {
    let half = |at: usize| answer.get(at..).and_then(<[u8]>::first_chunk).map(|half| u16::from_ne_bytes(*half));
    let word = |bytes: &[u8]| bytes.first_chunk().map(|word| u32::from_ne_bytes(*word));
    if half(4) == Some(NLMSG_ERROR) {
        return Err(match answer.get(16..).and_then(word).map(|code| -code.cast_signed()) {
            Some(libc::ENODEV) => io::Error::new(io::ErrorKind::NotFound, "there is no such interface"),
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::ErrorKind::InvalidData.into(),
        });
    }
    let not_read = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer was not understood");
    let (mut mac, mut mtu, mut queues, mut veth) = (None, None, 1, false);
    for (kind, content) in attributes(answer, RTM_NEWLINK, FIXED).ok_or_else(not_read)? {
        match kind {
            IFLA_ADDRESS => mac = content.try_into().ok(),
            IFLA_MTU => mtu = word(content),
            IFLA_LINKINFO => {
                let mut info = nested(content);
                veth = info.any(|(kind, content)| kind == IFLA_INFO_KIND && content.starts_with(b"veth\0"));
            }
            IFLA_NUM_RX_QUEUES => queues = word(content).unwrap_or(1),
            _ => {}
        }
    }
    let if_index = answer.get(20..).and_then(word).ok_or_else(not_read)?;
    match (half(18), mac) {
        (Some(ARPHRD_ETHER), Some(mac)) => {
            let mtu = mtu.ok_or_else(not_read)? as usize;
            Ok(Link { if_index, mac, mtu, queues: queues.clamp(1, MAX_QUEUES) as usize, veth })
        }
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "not an Ethernet interface")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut answer = [&[0; 4][..], &RTM_NEWLINK.to_ne_bytes(), &[0; 10]].concat();
        answer.extend([0, 0]);
        answer.extend(kind.to_ne_bytes());
        answer.extend(7_u32.to_ne_bytes());
        answer.extend([0; 8]);
        for (kind, content) in attributes {
            answer.extend((4 + content.len() as u16).to_ne_bytes());
            answer.extend(kind.to_ne_bytes());
            answer.extend(*content);
            answer.resize(answer.len().next_multiple_of(4), 0);
        }
        answer
    }

    #[test]
    fn an_interface_is_what_the_kernel_says() {
        let (mtu, queues) = (1500_u32.to_ne_bytes(), 4_u32.to_ne_bytes());
        let all: [(u16, &[u8]); 3] =
            [(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]), (IFLA_MTU, &mtu), (IFLA_NUM_RX_QUEUES, &queues)];
        let link = Link { if_index: 7, mac: [2, 0, 0, 0, 0, 1], mtu: 1500, queues: 4, veth: false };
        assert_eq!(read(&answer(ARPHRD_ETHER, &all)).unwrap(), link);
        for (kind, veth) in [(*b"veth\0", true), (*b"veth2", false), (*b"vrf\0\0", false)] {
            let info = [&[9, 0][..], &IFLA_INFO_KIND.to_ne_bytes(), &kind].concat();
            let with_info = [&all[..], &[(IFLA_LINKINFO, &info)]].concat();
            assert_eq!(read(&answer(ARPHRD_ETHER, &with_info)).unwrap().veth, veth);
        }
        assert!(read(&answer(ARPHRD_ETHER, &all[1..])).is_err(), "no address");
        assert!(read(&answer(772, &all)).unwrap_err().to_string().contains("not an Ethernet"));
        for len in 0..FIXED {
            assert!(read(&answer(ARPHRD_ETHER, &all)[..len]).is_err());
        }
    }
}
