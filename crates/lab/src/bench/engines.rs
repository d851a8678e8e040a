//! An engine by itself, on the operations of one subject: in place, with a copy while it seals, or
//! on separate threads.

use std::sync::Arc;

use crypto::{CryptoOp, DerivedKeys, KeyTable, Keys};
use dataplane::Batch;

mod afar;

use self::afar::OffloadBench;
use super::path::{Bare, udp_packet};
use crate::meter::shape_of;
use testbed::pair::{Call, PairError, Subject};

/// Kind of work.
enum Work {
    /// Sealed in place.
    InPlace,
    /// Copied from here, where packets are contiguous, as in a GSO packet.
    Copied(Vec<u8>),
    /// On separate threads.
    Offload(OffloadBench),
}

/// An engine with its key and a batch of packets.
pub(crate) struct EngineBench {
    subject: Subject,
    keys: Arc<KeyTable>,
    sending: dataplane::Snapshot,
    derived: DerivedKeys,
    bare: Bare,
    work: Work,
    packets: Batch,
    op: Option<(CryptoOp, usize)>,
}

impl EngineBench {
    /// Calls the engine of `subject` as the subject selects it, with `batch` packets a call.
    ///
    /// # Errors
    /// An unknown suite, an engine that is not available, or no threads for it.
    pub(crate) fn new(subject: &Subject, batch: usize) -> Result<Self, PairError> {
        let [sending, _] = subject.tables()?;
        let (keys, derived) = (Arc::clone(&sending.keys), DerivedKeys::new(2));
        let work = match subject.call {
            Call::InPlace => Work::InPlace,
            Call::Copied => Work::Copied(Vec::new()),
            Call::Threads(count) => {
                let cpus = ports::cpus::allowed();
                Work::Offload(OffloadBench::start(subject.engine, count.into(), &keys, &cpus)?)
            }
        };
        let packets = Batch::new(batch, 2304);
        Ok(Self { subject: subject.clone(), keys, sending, derived, bare: Bare::new(), work, packets, op: None })
    }

    /// Packets a call.
    pub(crate) fn batch(&self) -> usize {
        self.packets.len()
    }

    /// Prepares packets of `size` bytes; false if the suite has nothing to copy because it does not
    /// encrypt.
    pub(crate) fn prepare(&mut self, size: usize) -> bool {
        let [src, dst] = self.subject.packet_addresses();
        let template = udp_packet(src, dst, size);
        let op = shape_of(&self.sending, &template);
        self.packets.clear();
        while self.packets.push_with(|packet| packet.set(&template)) {}
        self.op = Some(op);
        match &mut self.work {
            Work::InPlace => (),
            Work::Copied(_) if op.0.body.is_empty() => return false,
            Work::Copied(source) => {
                source.clear();
                self.packets.packets().iter().for_each(|packet| source.extend_from_slice(packet.bytes()));
            }
            Work::Offload(afar) => afar.prepare(op.0, self.packets.len()),
        }
        true
    }

    /// Seals and opens every packet; ticks of each.
    ///
    /// # Panics
    /// Panics if the engine cannot open what it has sealed.
    pub(crate) fn round(&mut self) -> [u64; 2] {
        let source = match &mut self.work {
            Work::Offload(afar) => return afar.round(),
            Work::Copied(source) => &source[..],
            Work::InPlace => &[],
        };
        let Some(op) = &self.op else { return [0; 2] };
        let keys = Keys { table: &self.keys, derived: &self.derived };
        self.bare.round(self.subject.engine, keys, self.packets.packets_mut(), source, op)
    }
}
