//! From traffic to packets: the next packet, its intended time of departure, and its bytes.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use wire::ip::{DONT_FRAGMENT, Ipv4Header, Ipv6Header};
use wire::pcap::{PcapSlice, ip_payload};
use wire::udp::{self, UdpHeader};
use wire::{IpPacket, IpProto};

use super::content::{DST_PORT, FIRST_SRC_PORT, headers};
use super::{Checker, Content, MAX_FLOWS, MIN_SIZE, Rate, Sizes, Traffic};
use stats::Rng;
use testbed::MemorySubject;

/// Maximum size of a capture; it is held in memory.
const MAX_FILE_BYTES: u64 = 4 << 30;
/// Most packets of a capture that are used: 24 MiB of sizes and times.
const MAX_RECORDS: usize = 1_500_000;

/// Ends of the traffic, of one family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Addresses {
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
}

impl Addresses {
    /// Those of the packets through a subject.
    pub fn of(subject: &MemorySubject) -> Self {
        let [src, dst] = subject.addresses();
        Self { src, dst }
    }
}

/// Reason why traffic is invalid.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TrafficError {
    #[error("{}: {why}", file.display())]
    Capture { file: PathBuf, why: String },
    #[error("packets of {size} bytes are too small for headers and sequence number; use at least {least}")]
    TooSmall { size: u16, least: u16 },
    #[error("only a capture (pcap:FILE) has recorded times")]
    NotRecorded,
    #[error("{0} flows are not possible; use 1 to {MAX_FLOWS}")]
    Flows(u32),
    #[error("{0} packets per second are not possible; use a number above 0")]
    Rate(f64),
}

/// A packet to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Due {
    /// Sequence number, from 0.
    pub seq: u64,
    /// Flow.
    pub flow: u32,
    /// Bytes, IP header included.
    pub size: u16,
    /// Intended departure time, in nanoseconds from the start; 0 if the traffic has no rate.
    pub at_ns: u64,
}

/// Makes the packets of some traffic, the same for the same seed.
pub struct Generator {
    sizes: SizeSource,
    times: Intended,
    flows: u32,
    addresses: Addresses,
    content: Arc<Content>,
    rng: Rng,
    next: Due,
}

enum SizeSource {
    Cycle(Vec<u16>),
    Random { min: u16, max: u16 },
}

/// Intended departure times of packets.
enum Intended {
    /// At once.
    AtOnce,
    /// Evenly: so many nanoseconds apart.
    Even(f64),
    /// With exponential gaps of so many nanoseconds on average.
    Poisson {
        /// Mean gap.
        gap_ns: f64,
        /// Its own random numbers: sizes do not change with the rate.
        rng: Rng,
        /// Time of the next departure.
        at_ns: f64,
    },
    /// As recorded, and again after `period_ns`.
    Recorded {
        /// From the first packet on.
        at_ns: Vec<u64>,
        /// From the first packet to its next turn.
        period_ns: u64,
    },
}

impl Intended {
    /// Departure time of packet `seq`, in nanoseconds. Must be called for every number in order.
    fn of(&mut self, seq: u64) -> u64 {
        match self {
            Self::AtOnce => 0,
            // From the number, not from the packet before: no error adds up.
            Self::Even(gap_ns) => (seq as f64 * *gap_ns) as u64,
            Self::Poisson { gap_ns, rng, at_ns } => {
                let now = *at_ns;
                // In (0, 1]: the logarithm is finite.
                let uniform = ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                *at_ns += -uniform.ln() * *gap_ns;
                now as u64
            }
            Self::Recorded { at_ns, period_ns } => {
                let len = at_ns.len() as u64;
                seq / len * *period_ns + at_ns[(seq % len) as usize]
            }
        }
    }
}

impl Generator {
    /// Packets of `traffic` between `addresses`.
    ///
    /// # Errors
    /// [`TrafficError`]: an invalid capture, packets too small for IPv6, an invalid rate.
    pub fn new(traffic: &Traffic, addresses: Addresses, seed: u64) -> Result<Self, TrafficError> {
        if !(1..=MAX_FLOWS).contains(&traffic.flows) {
            return Err(TrafficError::Flows(traffic.flows));
        }
        if let Some(pps) = traffic.rate.pps().filter(|pps| !(pps.is_finite() && *pps > 0.0)) {
            return Err(TrafficError::Rate(pps));
        }
        let least = headers(addresses.dst) as u16 + (MIN_SIZE - headers(IpAddr::from([0, 0, 0, 0])) as u16);
        let mut recorded = None;
        let sizes = match &traffic.sizes {
            Sizes::Fixed(size) => SizeSource::Cycle(vec![*size]),
            Sizes::Random { min, max } => SizeSource::Random { min: *min, max: *max },
            Sizes::Genome(genome) => SizeSource::Cycle(genome.sizes().to_vec()),
            Sizes::Pcap(file) => {
                let (sizes, times) = read_capture(file, least)?;
                recorded = Some(times);
                SizeSource::Cycle(sizes)
            }
        };
        let smallest = match &sizes {
            SizeSource::Cycle(sizes) => sizes.iter().copied().min().unwrap_or(0),
            SizeSource::Random { min, .. } => *min,
        };
        if smallest < least {
            return Err(TrafficError::TooSmall { size: smallest, least });
        }
        let times = match traffic.rate {
            Rate::Saturate => Intended::AtOnce,
            Rate::Constant(pps) => Intended::Even(1e9 / pps),
            Rate::Poisson(pps) => {
                Intended::Poisson { gap_ns: 1e9 / pps, rng: Rng::new(seed ^ 0x706f_6973), at_ns: 0.0 }
            }
            Rate::Recorded => {
                let at_ns = recorded.ok_or(TrafficError::NotRecorded)?;
                let last = at_ns.last().copied().unwrap_or(0);
                Intended::Recorded { period_ns: last + (last / at_ns.len() as u64).max(1), at_ns }
            }
        };
        let mut generator = Self {
            sizes,
            times,
            flows: traffic.flows,
            addresses,
            content: Arc::new(Content::new(seed)),
            rng: Rng::new(seed),
            next: Due { seq: 0, flow: 0, size: 0, at_ns: 0 },
        };
        generator.next = generator.plan(0);
        Ok(generator)
    }

    /// Checker for received packets.
    pub fn checker(&self) -> Checker {
        Checker::new(Arc::clone(&self.content))
    }

    /// The packet that comes next, which stays the next.
    pub fn peek(&self) -> Due {
        self.next
    }

    /// Takes the packet that comes next.
    pub fn take(&mut self) -> Due {
        let following = self.plan(self.next.seq + 1);
        std::mem::replace(&mut self.next, following)
    }

    fn plan(&mut self, seq: u64) -> Due {
        let size = match &self.sizes {
            SizeSource::Cycle(sizes) => sizes[(seq % sizes.len() as u64) as usize],
            SizeSource::Random { min, max } => min + self.rng.below(usize::from(max - min) + 1) as u16,
        };
        Due { seq, flow: (seq % u64::from(self.flows)) as u32, size, at_ns: self.times.of(seq) }
    }

    /// Writes the bytes of `due` to the start of `into` and returns their number; `None` when they
    /// do not fit.
    ///
    /// DF is set: a packet that is too large is a loss, not two packets. The UDP checksum is zero
    /// over IPv4, which RFC 768 allows, and right over IPv6.
    pub fn write(&self, due: &Due, into: &mut [u8]) -> Option<usize> {
        let packet = into.get_mut(..due.size.into())?;
        let payload_at = headers(self.addresses.dst);
        let ip_len = payload_at - UdpHeader::LEN;
        self.content.fill(due.seq, due.flow, packet.get_mut(payload_at..)?);
        let udp = UdpHeader::new(FIRST_SRC_PORT + due.flow as u16, DST_PORT, packet.len() - payload_at)?;
        udp.emit(&mut packet[ip_len..]).ok()?;
        let upper = packet.len() - ip_len;
        match (self.addresses.src, self.addresses.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header = Ipv4Header::new(src, dst, IpProto::UDP, upper)?;
                header.flags_fragment = DONT_FRAGMENT.into();
                header.emit(packet).ok()?;
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Ipv6Header::new(src, dst, IpProto::UDP, upper)?.emit(packet).ok()?;
                packet[ip_len + 6..ip_len + 8].fill(0);
                let sum = udp::checksum(src.into(), dst.into(), &packet[ip_len..]);
                packet[ip_len + 6..ip_len + 8].copy_from_slice(&sum.to_be_bytes());
            }
            _ => return None,
        }
        Some(packet.len())
    }
}

/// Sizes of the IP packets of a capture, raised to `least`, and their times from the first on.
fn read_capture(file: &std::path::Path, least: u16) -> Result<(Vec<u16>, Vec<u64>), TrafficError> {
    let wrong = |why: String| TrafficError::Capture { file: file.to_owned(), why };
    let size = std::fs::metadata(file).map_err(|e| wrong(e.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(wrong(format!(
            "{size} bytes exceed the limit; captures of up to {MAX_FILE_BYTES} bytes can be used"
        )));
    }
    let bytes = std::fs::read(file).map_err(|e| wrong(e.to_string()))?;
    let (mut sizes, mut times, mut first) = (Vec::new(), Vec::new(), None);
    for record in PcapSlice::records(&bytes).take(MAX_RECORDS) {
        let record = record.map_err(|e| wrong(e.to_string()))?;
        let Ok((link_len, packet)) = ip_payload(record.link_type, record.data) else { continue };
        // Length according to the IP header: a frame may be padded, and a capture truncated.
        let stated = match packet {
            [first, _, hi, lo, ..] if first >> 4 == 4 => usize::from(u16::from_be_bytes([*hi, *lo])),
            [first, _, _, _, hi, lo, ..] if first >> 4 == 6 => 40 + usize::from(u16::from_be_bytes([*hi, *lo])),
            _ => 0,
        };
        let on_the_wire = (record.orig_len as usize).saturating_sub(link_len);
        let bytes = if stated == 0 { on_the_wire } else { stated.min(on_the_wire) };
        let start = *first.get_or_insert(record.ts_ns);
        sizes.push((bytes.min(usize::from(u16::MAX)) as u16).max(least));
        // Captures of several queues may be out of order; traffic is not.
        let before = times.last().copied().unwrap_or(0);
        times.push(record.ts_ns.saturating_sub(start).max(before));
    }
    if sizes.is_empty() { Err(wrong("contains no IP packets".to_owned())) } else { Ok((sizes, times)) }
}

/// True when `packet` could be one of a generator: for ports that others use, too.
pub fn is_generated(packet: &[u8]) -> bool {
    IpPacket::parse(packet).is_ok_and(|ip| {
        let datagram = packet.get(ip.upper_at..ip.total_len).unwrap_or_default();
        ip.upper == IpProto::UDP && UdpHeader::parse(datagram).is_ok_and(|(udp, _)| udp.dst_port.get() == DST_PORT)
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;
    use wire::pcap::{LinkType, emit_classic_header, emit_classic_record};

    use super::*;
    use crate::traffic::Fault;

    const V4: Addresses = Addresses {
        src: IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 1)),
        dst: IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 1)),
    };
    const V6: Addresses = Addresses {
        src: IpAddr::V6(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1)),
        dst: IpAddr::V6(Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 1)),
    };

    fn generator(traffic: &str, addresses: Addresses, seed: u64) -> Generator {
        Generator::new(&traffic.parse().unwrap(), addresses, seed).unwrap()
    }

    fn made(generator: &mut Generator) -> (Due, Vec<u8>) {
        let (due, mut packet) = (generator.take(), vec![0xaa; 65_535]);
        let len = generator.write(&due, &mut packet).unwrap();
        packet.truncate(len);
        (due, packet)
    }

    #[test]
    fn packets_are_valid_and_every_changed_byte_of_a_payload_is_seen() {
        for addresses in [V4, V6] {
            let mut generator = generator("60..400,flows=3", addresses, 9);
            let checker = generator.checker();
            for seq in 0..60 {
                let (due, packet) = made(&mut generator);
                let ip = IpPacket::parse(&packet).unwrap();
                assert_eq!((ip.total_len, ip.src, ip.dst), (packet.len(), addresses.src, addresses.dst));
                assert!(wire::udp::is_valid(ip.src, ip.dst, &packet[ip.upper_at..]) || !ip.is_v6());
                let seen = checker.check(&packet).unwrap();
                assert_eq!((seen.seq, seen.flow, seen.size), (seq, seq as u32 % 3, usize::from(due.size)));
                for at in headers(addresses.dst)..packet.len() {
                    let mut bad = packet.clone();
                    bad[at] ^= 1;
                    assert_eq!(checker.check(&bad), Err(Fault::Content), "byte {at}");
                }
                let mut other_flow = packet.clone();
                other_flow[ip.upper_at + 1] ^= 1;
                assert_ne!(checker.check(&other_flow).ok(), Some(seen));
            }
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_packets_and_another_one_others() {
        let (mut a, mut b, mut c) =
            (generator("36..1500", V4, 1), generator("36..1500", V4, 1), generator("36..1500", V4, 2));
        let packets: Vec<_> = (0..20).map(|_| (made(&mut a), made(&mut b), made(&mut c))).collect();
        assert!(packets.iter().all(|(a, b, _)| a == b));
        assert!(packets.iter().all(|(a, _, c)| a.1 != c.1));
        assert!(c.checker().check(&packets[3].0.1).is_err(), "contents of another seed are not accepted");
    }

    #[test]
    fn constant_rates_do_not_drift_and_poisson_has_its_mean_and_spread() {
        let mut even = generator("64,rate=3M", V4, 1);
        let last = (0..3_000_001).map(|_| even.take()).last().unwrap();
        assert_eq!(last.at_ns, 1_000_000_000);
        let mut poisson = generator("64,poisson=1M", V4, 1);
        let times: Vec<u64> = (0..100_001).map(|_| poisson.take().at_ns).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // Four standard errors of 100 000 exponential gaps.
        assert!((mean / 1000.0 - 1.0).abs() < 0.013, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{}", variance.sqrt());
    }

    fn capture(packets: &[(u64, usize)]) -> tempfile::NamedTempFile {
        let mut file = Vec::new();
        emit_classic_header(&mut file, LinkType::RAW);
        for &(ts_ns, size) in packets {
            let packet = testbed::packet::udp(V4.src, V4.dst, 1, 2, size, IpProto::UDP);
            emit_classic_record(&mut file, ts_ns, size as u32, &packet);
        }
        let named = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(named.path(), file).unwrap();
        named
    }

    #[test]
    fn a_capture_gives_sizes_and_times_again_and_again() {
        let file = capture(&[(5_000, 1000), (6_000, 28), (9_000, 500)]);
        let mut generator = generator(&format!("pcap:{},rate=recorded", file.path().display()), V4, 1);
        let dues: Vec<_> = (0..5).map(|_| generator.take()).map(|due| (due.size, due.at_ns)).collect();
        assert_eq!(dues, [(1000, 0), (MIN_SIZE, 1000), (500, 4000), (1000, 5333), (MIN_SIZE, 6333)]);
    }

    #[test]
    fn packets_that_cannot_be_sent_are_reported() {
        let refused = |traffic: &str, addresses| {
            Generator::new(&traffic.parse().unwrap(), addresses, 1).map(drop).unwrap_err().to_string()
        };
        assert!(refused("40", V6).contains("use at least 56"));
        assert!(refused("pcap:/nonexistent.pcap", V4).contains("/nonexistent.pcap: No such file"));
        let empty = capture(&[]);
        assert!(refused(&format!("pcap:{}", empty.path().display()), V4).contains("no IP packet"));
        std::fs::write(empty.path(), b"not a capture").unwrap();
        assert!(
            refused(&format!("pcap:{}", empty.path().display()), V4).starts_with(&empty.path().display().to_string())
        );
        let no_rate = Traffic { rate: Rate::Constant(0.0), ..Traffic::fixed(64) };
        assert!(matches!(Generator::new(&no_rate, V4, 1), Err(TrafficError::Rate(_))));
        let no_flow = Traffic { flows: 0, ..Traffic::fixed(64) };
        assert!(matches!(Generator::new(&no_flow, V4, 1), Err(TrafficError::Flows(0))));
    }

    proptest! {
        #[test]
        fn no_packet_panics_the_checker(packet in prop::collection::vec(any::<u8>(), 0..120)) {
            let checker = generator("64", V4, 1).checker();
            prop_assert!(checker.check(&packet).is_err());
        }
    }
}
