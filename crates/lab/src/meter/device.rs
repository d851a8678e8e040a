//! Subjects in memory: the path of Weir with both its ends, the bare cipher under it, and plain
//! forwarding.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crypto::{CryptoOp, DerivedKeys, Engine, Job, KeyTable, Keys};
use dataplane::{Batch, CoreCounters, HEADROOM, Snapshot, TAILROOM, Totals, Worker, WorkerConfig};
use ipsec::{Action, DropReason, Frame, Policy, Protocol, Spd, prepare_out};
use ports::clock::ticks;
use wire::registry::CodePoints;
use wire::{AddrRange, IpPacket, PortRange, Selector, SeqNo};

use crate::pair::{Call, Lanes, PairError, Shape, Subject};
use crate::traffic::Addresses;
use crate::trial::Lost;

/// Most Sub SAs: they are numbered with 16 bits.
const MAX_SUB_SAS: u32 = 1 << 16;
/// Most engine threads.
const MAX_THREADS: u8 = 64;

/// Subject in memory.
#[derive(Clone, Debug)]
pub enum MemorySubject {
    /// The whole path of Weir, as it runs in the gateway.
    Path(Subject),
    /// The engine alone, with the operations that the path would make: the ceiling.
    Cipher(Subject),
    /// The path of Weir with a policy that lets everything through in the clear.
    Plain {
        /// IPv6 inside.
        v6: bool,
    },
}

/// Reason why a name is not a subject.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "'{0}' is not a subject in memory; use plain, weir-PROTOCOL-MODE-SUITE (weir-esp-tunnel-aes128gcm16), or cipher-… for the engine alone; options may follow after a comma: v6, udp, esn, engine=NAME, of ESP tunnels iptfs, and of EESP full, implicit-iv, no-seq and sub-sas"
)]
pub struct SubjectError(pub String);

impl MemorySubject {
    /// Protocol as trials name it: `esp`, `ah`, `eesp`, `psp`, `cipher`, `plain`.
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::Path(subject) => subject.protocol.name(),
            Self::Cipher(_) => "cipher",
            Self::Plain { .. } => "plain",
        }
    }

    /// Mode as trials name it; empty for plain forwarding.
    pub fn mode(&self) -> &'static str {
        self.subject().map_or("", |subject| mode_name(subject.shape))
    }

    /// Suite; empty for plain forwarding.
    pub fn suite(&self) -> &str {
        self.subject().map_or("", |subject| &subject.suite)
    }

    /// The configuration; `None` for plain forwarding.
    pub fn subject(&self) -> Option<&Subject> {
        match self {
            Self::Path(subject) | Self::Cipher(subject) => Some(subject),
            Self::Plain { .. } => None,
        }
    }

    /// Endpoints of the traffic through it.
    pub fn addresses(&self) -> Addresses {
        let v6 = match self {
            Self::Plain { v6 } => *v6,
            Self::Path(subject) | Self::Cipher(subject) => subject.v6,
        };
        let plain = || Subject { v6, ..Subject::new(Protocol::Esp, Shape::Tunnel, "", Engine::Null) };
        let [src, dst] = self.subject().map_or_else(|| plain().packet_addresses(), Subject::packet_addresses);
        Addresses { src, dst }
    }
}

fn mode_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Tunnel => "tunnel",
        Shape::Transport => "transport",
        Shape::Beet => "beet",
    }
}

/// The name in trials; reads back with [`MemorySubject::from_str`].
impl fmt::Display for MemorySubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, subject) = match self {
            Self::Plain { v6 } => return write!(f, "plain{}", if *v6 { ",v6" } else { "" }),
            Self::Path(subject) if subject.engine == Engine::Null => ("skeleton", subject),
            Self::Path(subject) => ("weir", subject),
            Self::Cipher(subject) => ("cipher", subject),
        };
        write!(f, "{what}-{}-{}-{}", subject.protocol.name(), mode_name(subject.shape), subject.suite)?;
        let options = [
            (subject.v6, "v6"),
            (subject.udp, "udp"),
            (subject.esn, "esn"),
            (subject.crypt_offset.is_some(), "full"),
            (subject.implicit_iv, "implicit-iv"),
            (!subject.seq, "no-seq"),
            (subject.iptfs, "iptfs"),
        ];
        for (_, name) in options.iter().filter(|(on, _)| *on) {
            write!(f, ",{name}")?;
        }
        // The name of a no-op path contains its engine; other subjects have the usual one.
        if ![Engine::best(), Engine::Null].contains(&subject.engine) {
            write!(f, ",engine={}", subject.engine.name())?;
        }
        match subject.call {
            Call::InPlace => (),
            Call::Copied => f.write_str(",copied")?,
            Call::Threads(count) => write!(f, ",threads={count}")?,
        }
        match subject.lanes {
            Lanes::One => Ok(()),
            Lanes::PerCpu => f.write_str(",per-cpu"),
            Lanes::SubSas(None) => f.write_str(",sub-sas"),
            Lanes::SubSas(Some(count)) => write!(f, ",sub-sas={count}"),
        }
    }
}

impl FromStr for MemorySubject {
    type Err = SubjectError;

    /// `plain`, `weir-esp-tunnel-aes128gcm16`, `cipher-…` for the engine alone, `skeleton-…` for
    /// the path with the null engine; options may follow: `,v6`, `,udp`, `,esn`; `,per-cpu` for an
    /// SA per worker (RFC 9611); of EESP `,full` for the full packet format in tunnel mode,
    /// `,implicit-iv`, `,no-seq`, `,sub-sas` and `,sub-sas=COUNT`; `,engine=NAME` for another
    /// engine than the usual one; of ESP in tunnel mode `,iptfs`, and of `cipher-…` `,copied` and
    /// `,threads=COUNT`. Suite and
    /// engine are checked when the meter is made.
    fn from_str(name: &str) -> Result<Self, SubjectError> {
        let wrong = || SubjectError(name.to_owned());
        let mut parts = name.split(',');
        let first = parts.next().unwrap_or_default();
        let options: Vec<&str> = parts.collect();
        if first == "plain" {
            let v6 = options == ["v6"];
            return if v6 || options.is_empty() { Ok(Self::Plain { v6 }) } else { Err(wrong()) };
        }
        let mut words = first.splitn(4, '-');
        let mut next = || words.next().filter(|word| !word.is_empty()).ok_or_else(wrong);
        let (what, protocol, mode, suite) = (next()?, next()?, next()?, next()?);
        let protocols = [Protocol::Esp, Protocol::Ah, Protocol::Eesp, Protocol::Psp];
        let protocol = protocols.into_iter().find(|p| p.name() == protocol).ok_or_else(wrong)?;
        let shapes = [Shape::Tunnel, Shape::Transport, Shape::Beet];
        let shape = shapes.into_iter().find(|shape| mode_name(*shape) == mode).ok_or_else(wrong)?;
        let engine = if what == "skeleton" { Engine::Null } else { Engine::best() };
        let mut subject = Subject::new(protocol, shape, suite, engine);
        for option in options {
            match option {
                "v6" => subject.v6 = true,
                "udp" => subject.udp = true,
                "esn" => subject.esn = true,
                "full" if protocol == Protocol::Eesp && shape == Shape::Tunnel => subject.crypt_offset = Some(0),
                "implicit-iv" => subject.implicit_iv = true,
                "no-seq" => subject.seq = false,
                "iptfs" if protocol == Protocol::Esp && shape == Shape::Tunnel && what != "cipher" => {
                    subject.iptfs = true
                }
                "per-cpu" => subject.lanes = Lanes::PerCpu,
                "sub-sas" => subject.lanes = Lanes::SubSas(None),
                "copied" if what == "cipher" => subject.call = Call::Copied,
                _ => with_value(&mut subject, option, what).ok_or_else(wrong)?,
            }
        }
        match what {
            "weir" | "skeleton" => Ok(Self::Path(subject)),
            "cipher" => Ok(Self::Cipher(subject)),
            _ => Err(wrong()),
        }
    }
}

/// Applies an option `KEY=VALUE` of a subject; `None` if there is none of this name or value.
fn with_value(subject: &mut Subject, option: &str, what: &str) -> Option<()> {
    let (key, value) = option.split_once('=')?;
    match key {
        "sub-sas" => {
            let count = value.parse().ok().filter(|count| (1..=MAX_SUB_SAS).contains(count))?;
            subject.lanes = Lanes::SubSas(Some(count));
        }
        "engine" if what != "skeleton" => {
            subject.engine = Engine::by_name(value).filter(|engine| *engine != Engine::Null)?;
        }
        "threads" if what == "cipher" => {
            subject.call = Call::Threads(value.parse().ok().filter(|count| (1..=MAX_THREADS).contains(count))?);
        }
        _ => return None,
    }
    Some(())
}

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
                let addresses = subject.addresses();
                let tables = [bypass(addresses.src, addresses.dst)?, bypass(addresses.dst, addresses.src)?];
                Self::path(tables, Engine::Null, batch, packet_bytes)
            }
            MemorySubject::Cipher(subject) => Kind::Cipher(Bare::new(subject, batch)?),
        };
        Ok(Self { kind, replies: Batch::new(8, packet_bytes) })
    }

    fn path(tables: [Snapshot; 2], engine: Engine, batch: usize, packet_bytes: usize) -> Kind {
        let config = WorkerConfig { batch, packet_bytes, engine, ..WorkerConfig::default() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_they_were() {
        for name in [
            "plain",
            "plain,v6",
            "weir-esp-tunnel-aes128gcm16",
            "weir-esp-transport-aes128-sha256,v6,udp,esn",
            "skeleton-ah-transport-sha256",
            "cipher-psp-tunnel-aes256gcm16",
            "cipher-esp-tunnel-aes128gcm16,engine=vaes,threads=2",
            "cipher-esp-tunnel-aes128gcm16,copied",
        ] {
            assert_eq!(name.parse::<MemorySubject>().unwrap().to_string(), name);
        }
        for name in ["", "weir", "weir-esp", "weir-gre-tunnel-x", "weir-esp-tunnel-", "wg-esp-tunnel-x", "plain,udp"] {
            assert!(
                name.parse::<MemorySubject>().unwrap_err().to_string().contains("not a subject in memory"),
                "{name}"
            );
        }
        let subject: MemorySubject = "weir-esp-transport-aes128-sha256".parse().unwrap();
        assert_eq!((subject.protocol(), subject.mode(), subject.suite()), ("esp", "transport", "aes128-sha256"));
    }
}
