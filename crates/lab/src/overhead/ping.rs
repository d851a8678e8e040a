//! One ping through a gateway: its waterfall, and its cost in clear text, with the skeleton of a
//! protocol, and in full (figures 4 and 5 and table 3 of Shue and others).
//!
//! An echo request (of the paper: 736 bytes) is received and the reply is sent, one packet at a
//! time.

use ports::clock::ticks;
use wire::ip::IPV4_HEADER;
use wire::{IpProto, checksum};

use super::skeleton::{LADDER, Skeleton, Slot};
use super::stage::{IN, OUT, Stamps, Unprobed};
use super::study::StudyError;
use crate::host::clock::TickRate;
use crate::metric::{Figures, Metric};
use stats::{Estimate, Rng, median_with_interval};
use testbed::MemorySubject;
use testbed::pair::Subject;

/// A step of the waterfall.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Fall {
    /// `in`, `echo` or `out`.
    pub way: &'static str,
    /// Name of the stage.
    pub stage: &'static str,
    /// Ticks.
    pub ticks: Estimate,
}

/// Cost of one ping through one subject, in ticks.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Ping {
    /// Name of the subject.
    pub subject: String,
    /// Bytes of the IP packet.
    pub bytes: u16,
    /// Request in and reply out without protection.
    pub native: Estimate,
    /// The same through everything of the protocol but cryptography.
    pub skeleton: Estimate,
    /// The same in full.
    pub full: Estimate,
    /// In full, from the request's first header to the reply's last, by stamps.
    pub waterfall: Vec<Fall>,
    /// The share of cryptography in the cost of the protocol above native.
    pub crypto_share: f64,
}

/// Pings that are not counted.
const WARM_UP: usize = 50;

/// Sends `pings` pings of `bytes` through `subject` in each of the three variants, in random order.
///
/// # Errors
/// [`StudyError`].
pub fn ping(subject: &Subject, bytes: u16, pings: usize, seed: u64) -> Result<Ping, StudyError> {
    let name = MemorySubject::Path(subject.clone()).to_string();
    let request = echo_request(subject, bytes.into());
    // Rungs without cryptography and with all of it; native is the first.
    let rungs = [0, 3, 5];
    let mut skeletons = rungs.map(|rung| Skeleton::new(subject, LADDER[rung].1)).into_iter();
    let mut next = || skeletons.next().expect("there are three");
    let mut ways = [next()?, next()?, next()?];
    let mut stamped = Skeleton::new(subject, LADDER[5].1)?;
    let mut slots = [Slot::new(bytes.into())];
    let (own, read) = (Stamps::own_cost(), TickRate::of_this_machine().read_ticks);
    let mut rng = Rng::new(seed);
    let mut totals: [Vec<f64>; 3] = Default::default();
    let mut falls: Vec<Vec<f64>> = vec![Vec::new(); IN.len() + 1 + OUT.len()];
    for n in 0..pings + WARM_UP {
        let first = rng.below(4);
        for way in (0..4).map(|way| (way + first) % 4) {
            slots[0].set(&request);
            let skeleton = if way == 3 { &mut stamped } else { &mut ways[way] };
            // The peer protects the request; that is not the gateway's cost.
            skeleton.outbound(&mut slots, &mut Unprobed);
            let mut stamps = [Stamps::default(); 2];
            let t0 = ticks();
            if way == 3 {
                skeleton.inbound(&mut slots, &mut stamps[0])
            } else {
                skeleton.inbound(&mut slots, &mut Unprobed)
            }
            let t1 = ticks();
            answer(slots[0].bytes_mut());
            let t2 = ticks();
            // Both endpoints of a subject protect one direction only: the reply uses the same.
            turn_around(slots[0].bytes_mut());
            let t3 = ticks();
            if way == 3 {
                skeleton.outbound(&mut slots, &mut stamps[1])
            } else {
                skeleton.outbound(&mut slots, &mut Unprobed)
            }
            let t4 = ticks();
            if let Some(why) = slots[0].dropped {
                let (size, rung, why) = (bytes, "ping", why.key());
                return Err(StudyError::Dropped { subject: name, size, rung, why });
            }
            // Does the work of the peer, so that numbers and windows advance.
            skeleton.inbound(&mut slots, &mut Unprobed);
            if n < WARM_UP {
                continue;
            }
            let echo = (t2 - t1) as f64 - read;
            if way < 3 {
                totals[way].push((t1 - t0) as f64 + echo + (t4 - t3) as f64 - 2.0 * read);
            } else {
                let inbound = stamps[0].per_packet(own, 1);
                let outbound = stamps[1].per_packet(own, 1);
                let all = inbound.into_iter().chain([echo.max(0.0)]).chain(outbound);
                falls.iter_mut().zip(all).for_each(|(fall, ticks)| fall.push(ticks));
            }
        }
    }
    let [native, skeleton, full] = totals.map(|total| median_with_interval(&total, &mut rng));
    let names = IN.iter().map(|stage| ("in", stage.key)).chain([("echo", "answer")]);
    let names = names.chain(OUT.iter().map(|stage| ("out", stage.key)));
    let waterfall = names.zip(&falls).map(|((way, stage), ticks)| Fall {
        way,
        stage,
        ticks: median_with_interval(ticks, &mut rng),
    });
    let waterfall = waterfall.filter(|fall| fall.stage != "copy").collect();
    let crypto_share = (full.value - skeleton.value) / (full.value - native.value);
    Ok(Ping { subject: name, bytes, native, skeleton, full, waterfall, crypto_share })
}

impl Ping {
    /// As a trial keeps it.
    pub fn measurement(&self, pings: u64) -> crate::trial::Measurement {
        let mut values = Figures::default();
        for (key, estimate) in [("native", &self.native), ("skeleton", &self.skeleton), ("full", &self.full)] {
            values.set_ticks(&format!("ping.{key}"), estimate);
        }
        for fall in &self.waterfall {
            values.set(Metric::Ticks(&format!("ping.{}.{}", fall.way, fall.stage)), fall.ticks.value);
        }
        values.set(Metric::PingCryptoShare, self.crypto_share);
        let ticks = (self.full.value * pings as f64) as u64;
        crate::trial::Measurement {
            sent: pings,
            received: pings,
            received_bytes: pings * u64::from(self.bytes),
            tsc: Some(ticks),
            dur_ns: TickRate::of_this_machine().ns(ticks),
            values,
            ..Default::default()
        }
    }
}

/// Type of an ICMP echo request and of its reply.
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// An ICMP echo request of so many bytes between the ends of `subject`, over IPv4.
fn echo_request(subject: &Subject, bytes: usize) -> Vec<u8> {
    let subject = Subject { v6: false, ..subject.clone() };
    let [src, dst] = subject.packet_addresses();
    let mut packet = testbed::packet::udp(src, dst, 0, 0, bytes, IpProto::ICMP);
    let icmp = &mut packet[IPV4_HEADER..];
    icmp[..8].copy_from_slice(&[ECHO_REQUEST, 0, 0, 0, 0x12, 0x34, 0, 1]);
    let sum = checksum::checksum(icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Makes the reply of a request: the processing of a ping by a host.
fn answer(packet: &mut [u8]) {
    let icmp = &mut packet[IPV4_HEADER..];
    icmp[0] = ECHO_REPLY;
    icmp[2..4].fill(0);
    let sum = checksum::checksum(icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    turn_around(packet);
}

/// Exchanges source and destination; the header's checksum stays right.
fn turn_around(packet: &mut [u8]) {
    let (src, dst) = packet[12..20].split_at_mut(4);
    src.swap_with_slice(dst);
}

#[cfg(test)]
mod tests {
    use crypto::Engine;
    use ipsec::Protocol;

    use super::*;
    use testbed::pair::Shape;

    #[test]
    fn a_ping_is_answered_and_each_layer_costs_more() {
        for (protocol, shape, suite) in [
            (Protocol::Esp, Shape::Tunnel, "3des-md5"),
            (Protocol::Ah, Shape::Transport, "sha256"),
            (Protocol::Eesp, Shape::Tunnel, "aes256gcm16"),
            (Protocol::Psp, Shape::Tunnel, "aes128gcm16"),
        ] {
            let subject = Subject::new(protocol, shape, suite, Engine::best());
            let ping = ping(&subject, 736, 15, 1).unwrap();
            assert!(ping.native.value < ping.skeleton.value, "{ping:?}");
            // Fast ciphers are within the noise of a build without optimisation.
            if matches!(protocol, Protocol::Esp | Protocol::Ah) {
                assert!(ping.skeleton.value < ping.full.value, "{ping:?}");
                assert!((0.0..1.0).contains(&ping.crypto_share));
            }
            assert_eq!(ping.waterfall.len(), 13);
            assert!(ping.measurement(15).values.get(Metric::Ticks("ping.in.engine")).unwrap() > 0.0);
        }
    }

    #[test]
    fn a_reply_is_a_valid_packet() {
        let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best());
        let mut packet = echo_request(&subject, 736);
        assert!(checksum::is_valid(&packet[..IPV4_HEADER]) && checksum::is_valid(&packet[IPV4_HEADER..]));
        answer(&mut packet);
        assert_eq!((packet.len(), packet[IPV4_HEADER]), (736, ECHO_REPLY));
        assert!(checksum::is_valid(&packet[..IPV4_HEADER]) && checksum::is_valid(&packet[IPV4_HEADER..]));
        let [src, dst] = subject.packet_addresses();
        let ip = wire::IpPacket::parse(&packet).unwrap();
        assert_eq!((ip.src, ip.dst), (dst, src));
    }
}
