//! Cycles per packet of the whole in-memory path.
//!
//! One batch makes the round trip in place: clear, protected by the sender's worker, opened by the
//! receiver's. The same buffers then make the round trip through the engine alone, with
//! operations of the same shape. Both are timed in every round, in random order, so that drift of
//! the machine meets both alike; the ratio is taken per round.

use crypto::{Aad, CryptoOp, Engine, Job, Key, KeyMaterial, KeyTable, Keys, Span, Suite};
use dataplane::clock::{ticks, ticks_per_second};
use dataplane::{Batch, Packet, Snapshot, Worker, WorkerConfig};
use ipsec::Protocol;
use wire::IpProto;

use crate::pair::{PairError, Shape, Subject};
use crate::stats::{Estimate, Rng, median_with_interval};

/// Grid sizes first, then twelve that are no multiple of 16: engines differ in their tails.
pub(super) const SIZES: [usize; 15] = [64, 512, 1400, 65, 97, 131, 201, 257, 349, 449, 577, 731, 915, 1111, 1337];

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Protocols, all when empty.
    pub protocols: Vec<Protocol>,
    /// Suites, the default list when empty.
    pub suites: Vec<String>,
    /// Inner packet sizes in bytes, [`SIZES`] when empty.
    pub sizes: Vec<usize>,
    /// Rounds per case; at least 30 for an interval that means something.
    pub rounds: usize,
    /// Packets per batch.
    pub batch: usize,
    /// Seed of order and bootstrap.
    pub seed: u64,
    /// IPv6 inside and outside.
    pub v6: bool,
    /// Engine of the path and of the comparison.
    pub engine: Engine,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            protocols: vec![],
            suites: vec![],
            sizes: vec![],
            rounds: 41,
            batch: 256,
            seed: 1,
            v6: false,
            engine: Engine::AwsLc,
        }
    }
}

/// One row: a way of protecting and a size.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Case {
    /// Protocol.
    pub protocol: &'static str,
    /// Mode.
    pub mode: Shape,
    /// Suite.
    pub suite: String,
    /// Inner packet in bytes.
    pub size: usize,
}

/// One direction of a case. Times in ticks per packet.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Direction {
    /// The whole path.
    pub path: Estimate,
    /// The engine alone on the same buffers.
    pub engine: Estimate,
    /// Path over engine, per round.
    pub ratio: Estimate,
    /// Packets per second of one core.
    pub pps: f64,
}

/// A measured case.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Outcome {
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// Protecting.
    pub outbound: Direction,
    /// Opening.
    pub inbound: Direction,
}

/// Called before each case with (done, total).
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Measures every case.
///
/// # Errors
/// A suite that is none, or a combination that cannot be built.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<(f64, Vec<Outcome>), PairError> {
    let hz = ticks_per_second();
    let subjects = subjects(options);
    let sizes = if options.sizes.is_empty() { SIZES.to_vec() } else { options.sizes.clone() };
    let total = subjects.len() * sizes.len();
    let mut rng = Rng::new(options.seed);
    let mut outcomes = Vec::with_capacity(total);
    for subject in &subjects {
        let mut ends = Ends::new(subject, options)?;
        for &size in &sizes {
            progress(outcomes.len(), total);
            outcomes.push(ends.measure(subject, size, options, hz, &mut rng));
        }
    }
    Ok((hz, outcomes))
}

/// The ways of protecting that `options` asks for.
fn subjects(options: &Options) -> Vec<Subject> {
    const DEFAULT: [(Protocol, Shape, &str); 12] = [
        (Protocol::Esp, Shape::Tunnel, "aes128gcm16"),
        (Protocol::Esp, Shape::Tunnel, "aes256gcm16"),
        (Protocol::Esp, Shape::Tunnel, "chacha20poly1305"),
        (Protocol::Esp, Shape::Transport, "aes128gcm16"),
        (Protocol::Esp, Shape::Transport, "aes128-sha256"),
        (Protocol::Ah, Shape::Transport, "sha256"),
        (Protocol::Eesp, Shape::Tunnel, "aes128gcm16"),
        (Protocol::Eesp, Shape::Tunnel, "aes256gcm16"),
        (Protocol::Eesp, Shape::Transport, "aes128gcm16"),
        (Protocol::Psp, Shape::Tunnel, "aes128gcm16"),
        (Protocol::Psp, Shape::Tunnel, "aes256gcm16"),
        (Protocol::Psp, Shape::Transport, "aes128gcm16"),
    ];
    let wanted = |p: Protocol, s: &str| {
        (options.protocols.is_empty() || options.protocols.contains(&p))
            && (options.suites.is_empty() || options.suites.iter().any(|w| w == s))
    };
    let mut subjects: Vec<Subject> = DEFAULT
        .iter()
        .filter(|(p, _, s)| wanted(*p, s))
        .map(|(p, shape, s)| Subject::new(*p, *shape, s, Engine::AwsLc))
        .collect();
    // A suite outside the default list is measured in tunnel mode with every protocol asked for.
    for suite in options.suites.iter().filter(|s| !DEFAULT.iter().any(|(_, _, d)| d == *s)) {
        for &p in &options.protocols {
            subjects.push(Subject::new(p, Shape::Tunnel, suite, Engine::AwsLc));
        }
    }
    for subject in &mut subjects {
        subject.v6 = options.v6;
        subject.engine = options.engine;
    }
    subjects
}

/// Both ends of one subject, and the engine alone.
struct Ends {
    sender: Worker,
    receiver: Worker,
    sending: Snapshot,
    receiving: Snapshot,
    batch: Batch,
    replies: Batch,
    bare: Bare,
}

impl Ends {
    fn new(subject: &Subject, options: &Options) -> Result<Self, PairError> {
        let [sending, receiving] = subject.tables()?;
        let config = WorkerConfig { batch: options.batch, engine: subject.engine, ..WorkerConfig::default() };
        let packet_bytes = config.packet_bytes;
        Ok(Self {
            sender: Worker::new(config.clone()).0,
            receiver: Worker::new(config).0,
            sending,
            receiving,
            batch: Batch::new(options.batch, packet_bytes),
            replies: Batch::new(4, packet_bytes),
            bare: Bare::new(subject)?,
        })
    }

    fn measure(&mut self, subject: &Subject, size: usize, options: &Options, hz: f64, rng: &mut Rng) -> Outcome {
        let [src, dst] = subject.packet_addresses();
        self.batch.clear();
        let template = udp_packet(src, dst, size);
        for _ in 0..options.batch {
            self.batch.push_with(|packet| packet.set(&template));
        }
        let n = options.batch as f64;
        let mut samples: [Vec<f64>; 4] = Default::default();
        for round in 0..options.rounds + WARM_UP {
            let path_first = rng.next_u64() & 1 == 0;
            let (path, bare) = if path_first {
                let path = self.path_round();
                (path, self.bare.round(subject.engine, self.batch.packets_mut(), size))
            } else {
                let bare = self.bare.round(subject.engine, self.batch.packets_mut(), size);
                (self.path_round(), bare)
            };
            assert_eq!(self.batch.len(), options.batch, "{subject:?} at {size} bytes lost packets");
            if round >= WARM_UP {
                for (samples, ticks) in samples.iter_mut().zip([path[0], bare[0], path[1], bare[1]]) {
                    samples.push(ticks as f64 / n);
                }
            }
        }
        let direction = |path: &[f64], engine: &[f64], rng: &mut Rng| {
            let ratios: Vec<f64> = path.iter().zip(engine).map(|(p, e)| p / e).collect();
            let path = median_with_interval(path, rng);
            Direction {
                path,
                engine: median_with_interval(engine, rng),
                ratio: median_with_interval(&ratios, rng),
                pps: hz / path.value,
            }
        };
        Outcome {
            case: Case { protocol: subject.protocol.name(), mode: subject.shape, suite: subject.suite.clone(), size },
            outbound: direction(&samples[0], &samples[1], rng),
            inbound: direction(&samples[2], &samples[3], rng),
        }
    }

    /// One round trip of the batch; ticks of each direction.
    fn path_round(&mut self) -> [u64; 2] {
        let t0 = ticks();
        self.sender.outbound(&self.sending, &mut self.batch, &mut self.replies);
        let t1 = ticks();
        self.receiver.inbound(&self.receiving, &mut self.batch);
        let t2 = ticks();
        [t1 - t0, t2 - t1]
    }
}

/// Rounds that are run and not counted: caches, branch predictors and clock settle.
const WARM_UP: usize = 5;

/// The engine alone.
struct Bare {
    keys: KeyTable,
    derived: crypto::DerivedKeys,
    op: Box<dyn Fn(usize, u64) -> CryptoOp>,
    next_iv: u64,
}

impl Bare {
    fn new(subject: &Subject) -> Result<Self, PairError> {
        let suite = if subject.protocol == Protocol::Ah {
            Suite::parse_ah(&subject.suite)?
        } else {
            Suite::parse_esp(&subject.suite)?
        };
        let material: Vec<u8> = (1..=128).collect();
        let material =
            KeyMaterial { enc: &material[..suite.enc_material_len()], integ: &material[..suite.integ_material_len()] };
        let key: Key = subject.engine.expand(&suite, material).map_err(ipsec::SaError::from)?;
        let mut keys = KeyTable::default();
        let key = keys.insert(std::sync::Arc::new(key));
        let (iv_len, icv_len, block) = (suite.iv_len(), suite.icv_len(), suite.block_len().max(4));
        let mac_only = suite.enc.is_none();
        // The packet starts with room for header and IV, as after `prepare`: the buffers of the
        // batch have it in front of the packet.
        let op = move |size: usize, iv: u64| {
            let header = 8 + iv_len;
            let body = if mac_only { 0 } else { (size + 2).next_multiple_of(block) };
            let covered = if mac_only { header + size } else { header + body };
            let aad = if suite.is_aead() { Span::new(0, 8) } else { Span::new(0, covered) };
            let mut iv_bytes = [0; 16];
            iv_bytes[..8].copy_from_slice(&iv.to_be_bytes());
            CryptoOp {
                key,
                aad: Aad::InPlace(aad),
                body: Span::new(header, header + body),
                icv: Span::new(covered, covered + icv_len),
                iv: iv_bytes,
            }
        };
        Ok(Self { keys, derived: crypto::DerivedKeys::new(2), op: Box::new(op), next_iv: 1 })
    }

    /// Seals and opens every packet; ticks of each.
    fn round(&mut self, engine: Engine, packets: &mut [Packet], size: usize) -> [u64; 2] {
        let keys = Keys { table: &self.keys, derived: &self.derived };
        let first_iv = self.next_iv;
        self.next_iv += packets.len() as u64;
        let mut jobs: Vec<Job<'_>> = packets
            .iter_mut()
            .zip(first_iv..)
            .map(|(packet, iv)| {
                let op = (self.op)(size, iv);
                Job::new(op, packet.around(op.body.start as usize, op.icv.end as usize))
            })
            .collect();
        let t0 = ticks();
        engine.seal(keys, &mut jobs);
        let t1 = ticks();
        engine.open(keys, &mut jobs);
        let t2 = ticks();
        assert!(jobs.iter_mut().all(|job| job.take_ok().is_some()), "the bare engine refused its own packet");
        [t1 - t0, t2 - t1]
    }
}

/// A UDP packet of `size` bytes in all, with checksums.
fn udp_packet(src: std::net::IpAddr, dst: std::net::IpAddr, size: usize) -> Vec<u8> {
    crate::packet::udp(src, dst, 4000, 4001, size, IpProto::UDP)
}
