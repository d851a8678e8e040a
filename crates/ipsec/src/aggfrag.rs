//! Aggregation and fragmentation of inner packets (AGGFRAG mode of IP-TFS, RFC 9347).
//!
//! One outer packet carries several inner packets, and an inner packet may continue in the next
//! outer packets. [`Packer`] is the sending side on demand, [`Filler`] that with a constant rate,
//! [`Receiver`] the receiving side. All are pure: time is an argument, memory has named limits. The
//! ESP payload starts with the header of [`wire::aggfrag`]; data blocks have no length field of
//! their own, because the first bytes of an IP packet contain its length.
//!
//! | fault | effect |
//! |---|---|
//! | an outer packet is lost | the inner packets with bytes in it are lost, no others |
//! | outer packets are reordered within the window | none is lost |
//! | a block has no valid length | the rest of its outer packet is dropped, [`DropReason::BadInner`](crate::DropReason::BadInner) |

mod buffers;
mod fill;
mod receive;
mod send;
#[cfg(test)]
mod tests;

pub use buffers::Buffers;
pub use fill::{Filled, Filler, Source};
pub use receive::{DEADLINES, Inner, Receiver, Taken};
pub use send::{Packer, Payloads, Rest};

use wire::{IpPacket, IpProto};

use crate::SaCommon;

/// Longest inner packet in bytes.
pub const MAX_INNER: usize = 65_535;

/// Largest reorder window in outer packets, which bounds the packets that an SA holds.
pub const MAX_REORDER_WINDOW: u8 = 32;

/// Most reassembly buffers of [`MAX_INNER`] bytes of a worker; 64 MiB in all. An SA uses at most
/// two. Without a free buffer a cut packet is dropped.
pub const MAX_REASSEMBLY_BUFFERS: usize = 1024;

/// Smallest outer packet in bytes that `packet_size` may request.
pub const MIN_PACKET_SIZE: u16 = 256;

/// Settings of AGGFRAG mode for one SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Outer packets that may arrive after their successors without loss, at most
    /// [`MAX_REORDER_WINDOW`].
    pub reorder_window: u8,
    /// Time to wait for a missing outer packet in ms.
    pub drop_time_ms: u32,
    /// Size of outer packets in bytes; 0 is the path MTU, which is the limit in any case.
    pub packet_size: u16,
    /// Never cut an inner packet.
    pub dont_fragment: bool,
    /// Drop pieces of cut inner packets. The peer is informed during the negotiation (D bit).
    pub refuse_fragments: bool,
    /// Rate of outer packets in kbit/s, all of one size; 0 sends on demand. Counts whole outer
    /// packets, from the IP header on.
    pub rate_kbps: u32,
    /// Start another outer packet instead of cutting an inner packet, if the current one is at
    /// least 90 % full. A lost outer packet then costs fewer inner packets.
    pub prefer_whole: bool,
}

impl Default for Settings {
    /// A window of 3 packets as in Linux, and 25 ms, because TCP stalls with Linux's one second.
    fn default() -> Self {
        Self {
            reorder_window: 3,
            drop_time_ms: 25,
            packet_size: 0,
            dont_fragment: false,
            refuse_fragments: false,
            rate_kbps: 0,
            prefer_whole: true,
        }
    }
}

/// Description of an AGGFRAG payload of `len` bytes for [`crate::prepare_out_slow`]. Nothing is
/// copied from an inner packet to the outer header, because several share it (RFC 9347 §2.2.5); DF
/// is set, because payloads are made for the path MTU.
pub fn payload_header(common: &SaCommon, len: usize) -> IpPacket {
    IpPacket {
        src: common.outer.peer.local,
        dst: common.outer.peer.remote,
        total_len: len,
        upper_at: 0,
        proto_at: 0,
        upper: IpProto::AGGFRAG,
        fragment: None,
        tos: 0,
        hop_limit: common.outer.hop_limit,
        dont_fragment: true,
        extensions: 0,
    }
}
