//! The whole path in memory beside the engine alone, on the same buffers.
//!
//! One batch makes the round trip in place: clear, protected by the sender's worker, opened by the
//! receiver's. The same buffers then make the round trip through the engine alone, with
//! operations of the same shape. Both are timed in every round, in random order, so that drift of
//! the machine affects both equally; ratios are taken per round.
//!
//! Packets of several flows or SAs are interleaved: each packet belongs to another one than the
//! packet before. Ports and addresses are rewritten outside the timed part. With a working set
//! larger than one batch a protected batch waits until all other memory of the set was touched
//! before it is opened, so that both directions start from cold packets.

use std::cell::Cell;
use std::collections::VecDeque;

use crypto::{CryptoOp, DerivedKeys, Engine, Job, Keys};
use dataplane::{Batch, HEADROOM, Packet, Snapshot, TAILROOM, Worker, WorkerConfig};
use ipsec::Protocol;
use ports::clock::ticks;
use ports::prefer_huge_pages;
use wire::IpProto;

use crate::many::{ManyError, stride};
use crate::meter::shape_of;
use testbed::pair::Subject;

/// Properties of the packets, besides their size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Packets per batch.
    pub(crate) batch: usize,
    /// Memory of all packets in MiB, 0 for one batch.
    pub(crate) memory_mib: usize,
    /// Interleaved inner flows.
    pub(crate) flows: u32,
    /// SAs that packets go through in turn.
    pub(crate) sas: u32,
}

impl Load {
    /// One batch of one flow through one SA.
    pub(crate) fn plain(batch: usize) -> Self {
        Self { batch, memory_mib: 0, flows: 1, sas: 1 }
    }
}

/// Ticks of a batch out and in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// The whole path.
    pub(crate) path: [u64; 2],
    /// The engine alone.
    pub(crate) engine: [u64; 2],
}

/// Both ends of one subject, and the engine alone.
pub(crate) struct Ends {
    sender: Worker,
    receiver: Worker,
    sending: Snapshot,
    receiving: Snapshot,
    load: Load,
    /// Clear batches; the first is the next one.
    clear: VecDeque<Batch>,
    /// Batches that the path has protected and not opened yet. Empty between rounds unless there is
    /// a working set.
    protected: VecDeque<Batch>,
    /// Batches that the bare engine has sealed and not opened yet, with the number of their first
    /// IV.
    sealed: VecDeque<(Batch, u64)>,
    /// Packets that were stamped so far.
    stamped: u64,
    replies: Batch,
    bare: Bare,
    derived: DerivedKeys,
}

impl Ends {
    /// Sets both ends up.
    ///
    /// # Errors
    /// A combination that cannot be built, or more SAs than fit into memory.
    pub(crate) fn new(subject: &Subject, load: &Load) -> Result<Self, ManyError> {
        let tables = if load.sas == 1 { subject.tables()? } else { many_tables(subject, load.sas)? };
        Ok(Self::with_tables(tables, subject.engine, load))
    }

    fn with_tables([sending, receiving]: [Snapshot; 2], engine: Engine, load: &Load) -> Self {
        let config = WorkerConfig { alone: true, batch: load.batch, engine, ..WorkerConfig::default() };
        let packet_bytes = config.packet_bytes;
        let bytes = load.batch * (HEADROOM + packet_bytes + TAILROOM);
        let batches = (load.memory_mib << 20).div_ceil(bytes).max(1);
        Self {
            sender: Worker::new(config.clone()).0,
            receiver: Worker::new(config).0,
            sending,
            receiving,
            load: *load,
            clear: (0..batches).map(|_| packet_memory(load.batch, packet_bytes)).collect(),
            protected: VecDeque::new(),
            sealed: VecDeque::new(),
            stamped: 0,
            replies: Batch::new(4, packet_bytes),
            bare: Bare::new(),
            derived: DerivedKeys::new(2),
        }
    }

    /// Fills the batches with clear packets of `size` bytes; returns one of them.
    pub(crate) fn fill(&mut self, subject: &Subject, size: usize) -> Vec<u8> {
        let waiting = self.protected.drain(..).chain(self.sealed.drain(..).map(|(batch, _)| batch));
        self.clear.extend(waiting);
        let [src, dst] = subject.packet_addresses();
        let template = udp_packet(src, dst, size);
        for batch in &mut self.clear {
            batch.clear();
            for _ in 0..self.load.batch {
                batch.push_with(|packet| packet.set(&template));
            }
        }
        for _ in 0..self.clear.len() {
            self.clear.rotate_left(1);
            self.stamp(subject, size);
        }
        template
    }

    /// Gives the packets of the last clear batch, which have `size` bytes, their flows and SAs.
    fn stamp(&mut self, subject: &Subject, size: usize) {
        let Load { flows, sas, .. } = self.load;
        let (1.., Some(batch)) = (flows.max(sas) - 1, self.clear.back_mut()) else { return };
        let [src, one] = subject.packet_addresses();
        let stride = u64::from(stride(sas));
        for packet in batch.packets_mut() {
            let dst = if sas > 1 { Subject::address_of((self.stamped * stride % u64::from(sas)) as u32) } else { one };
            let port = FIRST_PORT + (self.stamped % u64::from(flows)) as u16;
            assert!(packet.set(&testbed::packet::udp(src, dst, port, 4001, size, IpProto::UDP)));
            self.stamped += 1;
        }
    }

    /// Prepares rounds of `size` bytes: clear packets in all batches, a third of which is then
    /// protected by the path and a third by the engine, so that the data to open is no longer in
    /// the cache.
    pub(crate) fn prepare(&mut self, subject: &Subject, size: usize) -> Shape {
        let template = self.fill(subject, size);
        let op = shape_of(&self.sending, &template);
        let third = self.clear.len() / 3;
        for mut batch in self.clear.drain(..third) {
            self.sender.outbound(&self.sending, &mut batch, &mut self.replies);
            self.protected.push_back(batch);
        }
        let keys = Keys { table: &self.sending.keys, derived: &self.derived };
        for mut batch in self.clear.drain(..third) {
            let (first, _) = self.bare.seal(subject.engine, keys, batch.packets_mut(), &[], &op);
            self.sealed.push_back((batch, first));
        }
        Shape { op, template }
    }

    /// One round trip through the path and one through the engine; `None` if the path lost or
    /// altered a packet.
    pub(crate) fn round(&mut self, subject: &Subject, shape: &Shape, path_first: bool) -> Option<Round> {
        let mut round = Round::default();
        for is_path in [path_first, !path_first] {
            if is_path {
                round.path = self.path_round(0.0);
                if !self.intact(subject, &shape.template) {
                    return None;
                }
            } else {
                round.engine = self.bare_round(subject, shape);
            }
            self.stamp(subject, shape.template.len());
        }
        Some(round)
    }

    /// Returns whether the batch of the last round trip is complete and its payloads are those of
    /// `template`; ports and addresses vary by flow and SA.
    fn intact(&self, subject: &Subject, template: &[u8]) -> bool {
        let headers = if subject.v6 { 48 } else { 28 };
        let same = |packet: &Packet| {
            let bytes = packet.bytes();
            bytes.len() == template.len() && bytes.get(headers..) == template.get(headers..)
        };
        self.packets() == self.load.batch && self.clear.back().is_some_and(|batch| batch.packets().iter().all(same))
    }

    /// One batch sealed and one opened with the sender's key alone; ticks of each.
    fn bare_round(&mut self, subject: &Subject, Shape { op, template }: &Shape) -> [u64; 2] {
        let keys = Keys { table: &self.sending.keys, derived: &self.derived };
        let Some(mut batch) = self.clear.pop_front() else { return [0; 2] };
        let (first, seal) = self.bare.seal(subject.engine, keys, batch.packets_mut(), &[], op);
        self.sealed.push_back((batch, first));
        let Some((mut batch, first)) = self.sealed.pop_front() else { return [0; 2] };
        let open = Bare::open(subject.engine, keys, batch.packets_mut(), first, op);
        if subject.protocol == Protocol::Ah {
            // AH's ICV overlaps the position of the inner IP header.
            for packet in batch.packets_mut() {
                packet.bytes_mut()[..64.min(template.len())].copy_from_slice(&template[..64.min(template.len())]);
            }
        }
        self.clear.push_back(batch);
        [seal, open]
    }

    /// One round trip of the batch; ticks of each direction, longer by the share `slow_down` of
    /// them.
    pub(crate) fn path_round(&mut self, slow_down: f64) -> [u64; 2] {
        let Some(mut batch) = self.clear.pop_front() else { return [0; 2] };
        let t0 = ticks();
        self.sender.outbound(&self.sending, &mut batch, &mut self.replies);
        let out = stretched(t0, slow_down) - t0;
        self.protected.push_back(batch);
        let Some(mut batch) = self.protected.pop_front() else { return [0; 2] };
        let t1 = ticks();
        self.receiver.inbound(&self.receiving, &mut batch);
        let inbound = stretched(t1, slow_down) - t1;
        self.clear.push_back(batch);
        [out, inbound]
    }

    /// Packets in the batch that made the last round trip.
    pub(crate) fn packets(&self) -> usize {
        self.clear.back().map_or(0, Batch::len)
    }
}

/// A batch in memory as that of the gateway's workers.
fn packet_memory(packets: usize, packet_bytes: usize) -> Batch {
    let batch = Batch::new(packets, packet_bytes);
    prefer_huge_pages(&batch);
    batch
}

/// Tables of a sender and a receiver with `sas` SAs.
fn many_tables(subject: &Subject, sas: u32) -> Result<[Snapshot; 2], ManyError> {
    let mut subject = subject.clone();
    if subject.protocol == Protocol::Psp {
        subject.window = 0; // PSP keeps replay windows for fewer SPIs only
    }
    crate::many::check(sas)?;
    Ok([subject.many_outbound(sas)?, subject.many_inbound(sas)?])
}

/// Source port of the first flow; the others follow.
const FIRST_PORT: u16 = 4000;

/// The time now, after waiting for the share `slow_down` of what passed since `from`: a slow-down
/// of known size.
fn stretched(from: u64, slow_down: f64) -> u64 {
    let now = ticks();
    if slow_down <= 0.0 {
        return now;
    }
    let until = now + ((now - from) as f64 * slow_down) as u64;
    loop {
        let now = ticks();
        if now >= until {
            return now;
        }
        std::hint::spin_loop();
    }
}

/// Operation that the engine alone performs for each packet, with the number of bytes that precede
/// the packet, and the clear packet.
pub(crate) struct Shape {
    op: (CryptoOp, usize),
    template: Vec<u8>,
}

/// Rounds that are run and not counted: caches, branch predictors and clock settle.
pub(crate) const WARM_UP: usize = 5;

/// The engine alone, on operations of exactly the shape that the path makes.
pub(crate) struct Bare {
    next_iv: Cell<u64>,
}

impl Bare {
    pub(crate) fn new() -> Self {
        Self { next_iv: Cell::new(1) }
    }

    /// Seals and opens every packet; ticks of each. Packets to seal are contiguous in `source`,
    /// unless it is empty.
    pub(crate) fn round(
        &self,
        engine: Engine,
        keys: Keys<'_>,
        packets: &mut [Packet],
        source: &[u8],
        shape: &(CryptoOp, usize),
    ) -> [u64; 2] {
        let (first, seal) = self.seal(engine, keys, packets, source, shape);
        [seal, Self::open(engine, keys, packets, first, shape)]
    }

    /// Seals every packet. Returns the number of the first IV, and ticks.
    fn seal(
        &self,
        engine: Engine,
        keys: Keys<'_>,
        packets: &mut [Packet],
        source: &[u8],
        shape: &(CryptoOp, usize),
    ) -> (u64, u64) {
        let first_iv = self.next_iv.get();
        self.next_iv.set(first_iv + packets.len() as u64);
        let mut jobs = jobs(packets, source, first_iv, shape);
        let start = ticks();
        engine.seal(keys, &mut jobs);
        (first_iv, ticks() - start)
    }

    /// Opens packets that were sealed with IVs from `first_iv` on; ticks.
    fn open(engine: Engine, keys: Keys<'_>, packets: &mut [Packet], first_iv: u64, shape: &(CryptoOp, usize)) -> u64 {
        let mut jobs = jobs(packets, &[], first_iv, shape);
        let start = ticks();
        engine.open(keys, &mut jobs);
        let took = ticks() - start;
        assert!(jobs.iter_mut().all(|job| job.take_ok().is_some()), "the bare engine failed to open its own packet");
        took
    }
}

/// One operation of the given shape for each packet.
fn jobs<'p>(
    packets: &'p mut [Packet],
    source: &'p [u8],
    first_iv: u64,
    (op, before): &(CryptoOp, usize),
) -> Vec<Job<'p>> {
    let size = source.len() / packets.len().max(1);
    let numbered = packets.iter_mut().zip(first_iv..).enumerate();
    let job = |(i, (packet, iv)): (usize, (&'p mut Packet, u64))| {
        let mut op = *op;
        op.iv[..8].copy_from_slice(&iv.to_be_bytes());
        let packet = packet.around(*before, op.icv.end.max(op.body.end) as usize);
        Job::from_source(op, &source[i * size..][..size], packet)
    };
    numbered.map(job).collect()
}

/// A UDP packet of `size` bytes in all, with checksums.
pub(crate) fn udp_packet(src: std::net::IpAddr, dst: std::net::IpAddr, size: usize) -> Vec<u8> {
    testbed::packet::udp(src, dst, FIRST_PORT, 4001, size, IpProto::UDP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testbed::pair;

    fn subject() -> Subject {
        Subject::new(Protocol::Esp, pair::Shape::Tunnel, "aes128gcm16", Engine::AwsLc)
    }

    #[test]
    fn flows_sas_and_a_cold_set_lose_no_packet() {
        for (memory_mib, sas, flows) in
            [(0, 1, 1), (0, 1, 48), (0, 40, 1), (0, 40, 48), (1, 1, 1), (1, 1, 48), (1, 40, 1), (1, 40, 48)]
        {
            let load = Load { batch: 32, memory_mib, flows, sas };
            let mut ends = Ends::new(&subject(), &load).unwrap();
            let shape = ends.prepare(&subject(), 100);
            for round in 0..20 {
                let round = ends.round(&subject(), &shape, round % 2 == 0).unwrap_or_else(|| panic!("{load:?}"));
                assert!(round.path.iter().chain(&round.engine).all(|ticks| *ticks > 0), "{load:?}: {round:?}");
            }
        }
    }

    #[test]
    fn a_packet_that_came_out_otherwise_is_noticed() {
        let mut ends = Ends::new(&subject(), &Load::plain(4)).unwrap();
        let shape = ends.prepare(&subject(), 100);
        assert!(ends.round(&subject(), &shape, true).is_some());
        let last = ends.clear[0].packets_mut().last_mut().unwrap().bytes_mut();
        last[99] ^= 1;
        assert!(ends.round(&subject(), &shape, true).is_none(), "an altered payload");
    }

    #[test]
    fn packets_are_stamped_in_turn() {
        let subject = subject();
        let mut ends = Ends::new(&subject, &Load { batch: 8, memory_mib: 0, flows: 3, sas: 5 }).unwrap();
        ends.fill(&subject, 64);
        let stamps = |ends: &Ends| -> Vec<(u16, u8)> {
            let bytes = ends.clear[0].packets().iter().map(Packet::bytes);
            bytes.map(|packet| (u16::from_be_bytes([packet[20], packet[21]]) - FIRST_PORT, packet[19])).collect()
        };
        let first = stamps(&ends);
        assert_eq!(first.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0, 1]);
        let mut sas: Vec<u8> = first.iter().take(5).map(|(_, sa)| *sa).collect();
        assert!(first.windows(2).all(|pair| pair[0].1 != pair[1].1), "no two packets in a row are of one SA");
        sas.sort_unstable();
        sas.dedup();
        assert_eq!(sas.len(), 5);
        ends.stamp(&subject, 64);
        assert_eq!(stamps(&ends)[0].0, 2, "the next batch continues where the last one ended");
    }
}
