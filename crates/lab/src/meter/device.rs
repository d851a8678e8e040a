//! Devices: the path of Weir with both its ends, the bare cipher under it, and plain forwarding.

use std::sync::Arc;

use crypto::{CryptoOp, DerivedKeys, Engine, Job, KeyTable, Keys};
use dataplane::{Batch, CoreCounters, HEADROOM, Snapshot, TAILROOM, Totals, Worker, WorkerConfig};
use ipsec::{Action, DropReason, Frame, Policy, Spd, prepare_out};
use ports::clock::ticks;
use wire::registry::CodePoints;
use wire::{AddrRange, IpPacket, PortRange, Selector, SeqNo};

use crate::trial::Lost;
use testbed::MemorySubject;
use testbed::pair::{PairError, Subject};

/// A subject that packets can go through, on the thread that calls.
pub(crate) struct Device {
    kind: Kind,
    replies: Batch,
}

#[allow(clippy::large_enum_variant)] // One per meter.
enum Kind {
    Path { ends: [Worker; 2], tables: [Snapshot; 2] },
    Cipher(Bare),
}

impl Device {
    /// A fresh one: new tables, sequence numbers from the start. Two with the same subject have the
    /// same keys.
    pub(crate) fn new(subject: &MemorySubject, batch: usize, packet_bytes: usize) -> Result<Self, PairError> {
        let kind = match subject {
            MemorySubject::Path(subject) => Self::path(subject.tables()?, subject.engine, batch, packet_bytes),
            MemorySubject::Plain { .. } => {
                let [src, dst] = subject.addresses();
                let tables = [bypass(src, dst)?, bypass(dst, src)?];
                Self::path(tables, Engine::Null, batch, packet_bytes)
            }
            MemorySubject::Cipher(subject) => Kind::Cipher(Bare::new(subject, batch)?),
        };
        Ok(Self { kind, replies: Batch::new(8, packet_bytes) })
    }

    fn path(tables: [Snapshot; 2], engine: Engine, batch: usize, packet_bytes: usize) -> Kind {
        let config = WorkerConfig { alone: true, batch, packet_bytes, engine, ..WorkerConfig::default() };
        // Audit records are not read: the rings fill up and count the losses.
        Kind::Path { ends: [Worker::new(config.clone()).0, Worker::new(config).0], tables }
    }

    /// Looks at clear packets that will go through next. Not to be timed.
    pub(crate) fn expect(&mut self, batch: &Batch) {
        if let Kind::Cipher(bare) = &mut self.kind {
            bare.expect(batch);
        }
    }

    /// Protects the packets of `batch`; ticks that it took.
    #[inline]
    pub(crate) fn protect(&mut self, batch: &mut Batch) -> u64 {
        match &mut self.kind {
            Kind::Path { ends, tables } => {
                let start = ticks();
                ends[0].outbound(&tables[0], batch, &mut self.replies);
                let end = ticks();
                self.replies.clear();
                end - start
            }
            Kind::Cipher(bare) => bare.run(batch, true),
        }
    }

    /// Opens the packets of `batch`, which [`Device::protect`] of this or of a like device has
    /// made; ticks that it took.
    #[inline]
    pub(crate) fn open(&mut self, batch: &mut Batch) -> u64 {
        match &mut self.kind {
            Kind::Path { ends, tables } => {
                let start = ticks();
                ends[1].inbound(&tables[1], batch);
                ticks() - start
            }
            Kind::Cipher(bare) => bare.run(batch, false),
        }
    }

    /// Packets may share outer packets, so that fewer leave than enter.
    pub(crate) fn aggregates(&self) -> bool {
        let sas = |tables: &[Snapshot; 2]| tables[0].outbound.iter().any(|sa| sa.common.aggfrag().is_some());
        matches!(&self.kind, Kind::Path { tables, .. } if sas(tables))
    }

    /// After [`Device::open`], before packets are checked. Not to be timed.
    pub(crate) fn settle(&mut self, batch: &mut Batch) {
        if let Kind::Cipher(bare) = &self.kind {
            bare.settle(batch);
        }
    }

    /// Packets lost so far, by cause.
    pub(crate) fn lost(&self) -> Lost {
        match &self.kind {
            Kind::Path { ends, .. } => {
                let counters = ends.each_ref().map(Worker::counters);
                lost(counters.iter().map(Arc::as_ref))
            }
            Kind::Cipher(bare) => Lost { auth: bare.refused, ..Lost::default() },
        }
    }
}

/// Packets dropped by the cores, by cause.
pub(crate) fn lost<'a>(cores: impl IntoIterator<Item = &'a CoreCounters>) -> Lost {
    let drops = Totals::of(cores).drops;
    let of = |reasons: &[DropReason]| reasons.iter().map(|why| drops[*why as usize]).sum::<u64>();
    let ring = of(&[DropReason::QueueFull, DropReason::NoRoom]);
    let replay = of(&[DropReason::Replay, DropReason::TooOld, DropReason::ZeroSeq]);
    let auth = of(&[DropReason::BadIcv]);
    Lost { ring, replay, auth, other: drops.iter().sum::<u64>() - ring - replay - auth }
}

/// Tables that pass everything between `src` and `dst` in both directions.
fn bypass(src: std::net::IpAddr, dst: std::net::IpAddr) -> Result<Snapshot, PairError> {
    let one = |addr| AddrRange { start: addr, end: addr };
    let policy = Policy {
        name: "all".into(),
        selectors: [Selector {
            src: one(src),
            dst: one(dst),
            proto: None,
            src_ports: PortRange::ANY,
            dst_ports: PortRange::ANY,
        }]
        .into(),
        action: Action::Bypass,
    };
    // An inbound policy names this host first: packets that come are from `dst` of the table to
    // `src`.
    Ok(Snapshot::new(vec![], vec![], Spd::new(vec![policy]), KeyTable::default(), CodePoints::default())?)
}

/// The engine alone, on the buffers of the packets, with operations of exactly the shape that the
/// path makes.
struct Bare {
    engine: Engine,
    tables: Snapshot,
    derived: DerivedKeys,
    /// By size of the inner packet: the operation, and the number of bytes that precede the packet.
    shapes: Vec<Option<(CryptoOp, usize)>>,
    /// Entries of the current batch.
    batch: Vec<(CryptoOp, usize)>,
    /// First bytes of the packets of the batch in hand: AH's ICV is written over them.
    heads: Vec<[u8; HEAD]>,
    next_iv: u64,
    refused: u64,
}

/// Bytes of a packet that a bare AH operation may write over.
const HEAD: usize = 64;

impl Bare {
    fn new(subject: &Subject, batch: usize) -> Result<Self, PairError> {
        let [tables, _] = subject.tables()?;
        Ok(Self {
            engine: subject.engine,
            tables,
            derived: DerivedKeys::new(2),
            shapes: Vec::new(),
            batch: Vec::with_capacity(batch),
            heads: Vec::with_capacity(batch),
            next_iv: 1,
            refused: 0,
        })
    }

    fn expect(&mut self, batch: &Batch) {
        self.batch.clear();
        self.heads.clear();
        for packet in batch.packets() {
            let bytes = packet.bytes();
            self.shapes.resize(self.shapes.len().max(bytes.len() + 1), None);
            let shape = *self.shapes[bytes.len()].get_or_insert_with(|| shape_of(&self.tables, bytes));
            let mut op = shape.0;
            op.iv[..8].copy_from_slice(&self.next_iv.to_be_bytes());
            self.next_iv += 1;
            self.batch.push((op, shape.1));
            let mut head = [0; HEAD];
            let kept = bytes.len().min(HEAD);
            head[..kept].copy_from_slice(&bytes[..kept]);
            self.heads.push(head);
        }
    }

    #[inline]
    fn run(&mut self, batch: &mut Batch, seal: bool) -> u64 {
        let keys = Keys { table: &self.tables.keys, derived: &self.derived };
        let packets = batch.packets_mut().iter_mut().zip(&self.batch);
        let mut jobs: Vec<Job<'_>> = packets
            .map(|(packet, (op, before))| Job::new(*op, packet.around(*before, op.icv.end.max(op.body.end) as usize)))
            .collect();
        let start = ticks();
        if seal {
            self.engine.seal(keys, &mut jobs);
        } else {
            self.engine.open(keys, &mut jobs);
        }
        let took = ticks() - start;
        if seal {
            self.refused += jobs.iter().filter(|job| !job.sealed()).count() as u64;
        } else {
            self.refused += jobs.iter_mut().filter_map(|job| job.take_ok().is_none().then_some(())).count() as u64;
        }
        took
    }

    fn settle(&self, batch: &mut Batch) {
        for (packet, head) in batch.packets_mut().iter_mut().zip(&self.heads) {
            let bytes = packet.bytes_mut();
            let kept = bytes.len().min(HEAD);
            bytes[..kept].copy_from_slice(&head[..kept]);
        }
    }
}

/// The operation that the path prepares for `packet`, and the number of bytes that precede the
/// packet.
///
/// # Panics
/// Panics if the path drops a packet of the generator; its size was checked before.
pub(crate) fn shape_of(sending: &Snapshot, packet: &[u8]) -> (CryptoOp, usize) {
    let sa = &sending.outbound[0];
    let mut buffer = vec![0; HEADROOM + packet.len() + TAILROOM];
    buffer[HEADROOM..HEADROOM + packet.len()].copy_from_slice(packet);
    let ip = IpPacket::parse(packet).expect("the generator makes packets");
    let mut frame = Frame::new(&mut buffer, HEADROOM..HEADROOM + packet.len()).expect("it lies in its buffer");
    let (op, _) = prepare_out(sa, &sa.lanes[0], SeqNo(1), &ip, &mut frame).expect("the path takes it");
    (op, HEADROOM - frame.range().start)
}
