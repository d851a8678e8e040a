//! Content of packets, which lets the receiver verify every byte.
//!
//! A payload starts with its sequence number; the rest (a tag over number, flow and length, then
//! random bytes) is a function of the seed and these, and is compared completely.

use std::net::IpAddr;

use wire::ip::{IPV4_HEADER, IPV6_HEADER};
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto};

use stats::Rng;

/// Random bytes that payloads are cut from; twice the longest payload, so that consecutive packets
/// differ.
const POOL: usize = 1 << 17;
/// Longest payload in bytes.
const LONGEST: usize = 1 << 16;
const SEQ_LEN: usize = 8;
const TAG_LEN: usize = 8;

/// UDP destination port of every packet.
pub const DST_PORT: u16 = 5001;
/// UDP source port of flow 0; the others follow.
pub const FIRST_SRC_PORT: u16 = 10_000;

/// The contents that belong to one seed.
pub struct Content {
    seed: u64,
    pool: Box<[u8]>,
}

impl Content {
    /// Contents of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5745_4952_4c41_4221);
        let pool = (0..POOL / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        Self { seed, pool }
    }

    /// Writes the payload of packet `seq` of `flow`; a payload shorter than a sequence number holds
    /// its first bytes.
    pub fn fill(&self, seq: u64, flow: u32, payload: &mut [u8]) {
        let len = payload.len();
        let (head, rest) = payload.split_at_mut(SEQ_LEN.min(len));
        head.copy_from_slice(&seq.to_be_bytes()[..head.len()]);
        let (tag, rest) = rest.split_at_mut(TAG_LEN.min(rest.len()));
        tag.copy_from_slice(&self.tag(seq, flow, len)[..tag.len()]);
        rest.copy_from_slice(self.slice(seq, rest.len()));
    }

    /// Returns whether `payload` is that of packet `seq` of `flow`.
    fn is(&self, seq: u64, flow: u32, payload: &[u8]) -> bool {
        let Some((head, rest)) = payload.split_at_checked(SEQ_LEN) else { return false };
        let (tag, rest) = rest.split_at(TAG_LEN.min(rest.len()));
        head == seq.to_be_bytes()
            && *tag == self.tag(seq, flow, payload.len())[..tag.len()]
            && rest == self.slice(seq, rest.len())
    }

    fn tag(&self, seq: u64, flow: u32, len: usize) -> [u8; TAG_LEN] {
        let mixed = Rng::new(self.seed ^ seq.rotate_left(17) ^ (u64::from(flow) << 32 | len as u64)).next_u64();
        mixed.to_be_bytes()
    }

    fn slice(&self, seq: u64, len: usize) -> &[u8] {
        let at = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 7 & (POOL - LONGEST - 1);
        &self.pool[at..at + len]
    }
}

/// Reason why a packet differs from the sent one.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Fault {
    #[error("no packet of the generator")]
    Foreign,
    #[error("its lengths disagree")]
    Length,
    #[error("its content is not what was sent")]
    Content,
}

/// Verifies received packets of a generator.
pub struct Checker {
    content: std::sync::Arc<Content>,
}

/// Header with the owner of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seen {
    /// Sequence number.
    pub seq: u64,
    /// Flow.
    pub flow: u32,
    /// Bytes of the packet.
    pub size: usize,
}

impl Checker {
    /// For packets with `content`.
    pub fn new(content: std::sync::Arc<Content>) -> Self {
        Self { content }
    }

    /// Sequence number and flow of `packet`, without checking the content.
    ///
    /// # Errors
    /// [`Fault::Foreign`], [`Fault::Length`].
    pub fn identify(&self, packet: &[u8]) -> Result<Seen, Fault> {
        self.split(packet).map(|(seen, _)| seen)
    }

    /// The same, with every byte of the payload compared. Headers may have changed in transit (hop
    /// limit, ECN).
    ///
    /// # Errors
    /// [`Fault`].
    pub fn check(&self, packet: &[u8]) -> Result<Seen, Fault> {
        let (seen, payload) = self.split(packet)?;
        if self.content.is(seen.seq, seen.flow, payload) { Ok(seen) } else { Err(Fault::Content) }
    }

    fn split<'p>(&self, packet: &'p [u8]) -> Result<(Seen, &'p [u8]), Fault> {
        let ip = IpPacket::parse(packet).map_err(|_| Fault::Foreign)?;
        let datagram = packet.get(ip.upper_at..ip.total_len).ok_or(Fault::Length)?;
        if ip.upper != IpProto::UDP || ip.fragment.is_some() {
            return Err(Fault::Foreign);
        }
        let (udp, payload) = UdpHeader::parse_exact(datagram).map_err(|_| Fault::Length)?;
        if udp.dst_port.get() != DST_PORT {
            return Err(Fault::Foreign);
        }
        let flow = udp.src_port.get().checked_sub(FIRST_SRC_PORT).ok_or(Fault::Foreign)?;
        let seq = payload.first_chunk().map(|seq| u64::from_be_bytes(*seq)).ok_or(Fault::Length)?;
        Ok((Seen { seq, flow: flow.into(), size: ip.total_len }, payload))
    }
}

/// Bytes in front of the payload.
pub(super) fn headers(dst: IpAddr) -> usize {
    UdpHeader::LEN + if dst.is_ipv6() { IPV6_HEADER } else { IPV4_HEADER }
}
