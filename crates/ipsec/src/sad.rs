//! The inbound SAD: which SA opens a packet (RFC 4301 §4.4.2).

use std::net::IpAddr;
use std::sync::Arc;

use crate::{InboundSa, Protocol};

/// Inbound SAs by (protocol, SPI, destination). Built whole, then only read.
#[derive(Default)]
pub struct Sad {}

impl Sad {
    /// The table of these SAs. PSP SAs are found by the sender's address and master key, see
    /// [`Sad::lookup`].
    ///
    /// # Errors
    /// The names of two SAs that no packet could tell apart.
    pub fn new(sas: Vec<Arc<InboundSa>>) -> Result<Self, (Box<str>, Box<str>)> {
        let _ = sas;
        todo!("tables helper")
    }

    /// The SA for a packet, by its slot in [`Sad::get`].
    pub fn lookup(&self, protocol: Protocol, spi: u32, src: IpAddr, dst: IpAddr) -> Option<u32> {
        let _ = (protocol, spi, src, dst);
        todo!("tables helper")
    }

    /// The SA in a slot.
    pub fn get(&self, slot: u32) -> Option<&Arc<InboundSa>> {
        let _ = slot;
        todo!("tables helper")
    }
}
