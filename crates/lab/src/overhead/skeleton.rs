//! The path taken apart: its own steps, called one after the other, each of which can be left out
//! while it runs.
//!
//! The gateway's worker has no such switches and pays nothing for them. The skeleton calls the same
//! functions of `wire`, `ipsec` and `crypto` in the same chunks; the other work of a worker (flow
//! cache, counters, reports) is the difference to the whole path, which is measured for comparison.

use arrayvec::ArrayVec;
use crypto::{Aad, CryptoOp, DerivedKeys, Engine, IcvOk, Job, Keys, Span};
use dataplane::{HEADROOM, Snapshot, TAILROOM};
use ipsec::{
    Action, DropReason, Frame, PendingIn, PendingOut, Protocol, SeqRange, finish_in, finish_out, needs_finish,
    prepare_in, prepare_out,
};
use wire::udp::UdpHeader;
use wire::{FlowKey, IpPacket, IpProto, PlainFlow, SeqNo};

use super::stage::Probe;
use testbed::pair::{PairError, Subject};

/// Packets per engine call, as in the worker.
const CHUNK: usize = 16;

/// Steps applied to a packet. Each can be switched between two batches.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct Switches {
    /// Headers and trailer are written, or checked and stripped.
    pub header: bool,
    /// Look-ups in SPD and SAD.
    pub lookup: bool,
    /// Sequence numbers are reserved; the replay window is checked and moved.
    pub replay: bool,
    /// The ICV is computed or verified.
    pub authentication: bool,
    /// The payload is encrypted or decrypted. No engine encrypts without an ICV: only with
    /// `authentication`.
    pub cipher: bool,
    /// The packet is copied once.
    pub copy: bool,
}

/// Rung 0 is native; each of the others does one thing more than the one before.
pub const LADDER: [(&str, Switches); 7] = {
    let native =
        Switches { header: false, lookup: false, replay: false, authentication: false, cipher: false, copy: false };
    let header = Switches { header: true, ..native };
    let lookup = Switches { lookup: true, ..header };
    let replay = Switches { replay: true, ..lookup };
    let authentication = Switches { authentication: true, ..replay };
    let cipher = Switches { cipher: true, ..authentication };
    [
        ("native", native),
        ("header", header),
        ("lookup", lookup),
        ("replay", replay),
        ("authentication", authentication),
        ("cipher", cipher),
        ("copy", Switches { copy: true, ..cipher }),
    ]
};

/// A packet in a buffer with room around it.
pub(crate) struct Slot {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// True if a step refused it.
    pub(crate) dropped: Option<DropReason>,
}

impl Slot {
    pub(crate) fn new(payload_bytes: usize) -> Self {
        let buffer = vec![0; HEADROOM + payload_bytes + TAILROOM].into_boxed_slice();
        Self { buffer, start: HEADROOM, end: HEADROOM, dropped: None }
    }

    pub(crate) fn set(&mut self, packet: &[u8]) {
        self.buffer[HEADROOM..HEADROOM + packet.len()].copy_from_slice(packet);
        (self.start, self.end, self.dropped) = (HEADROOM, HEADROOM + packet.len(), None);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }
}

/// Operation of the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Crypto {
    Nothing,
    Authentication,
    All,
}

/// Both ends of a subject, taken apart.
pub(crate) struct Skeleton {
    switches: Switches,
    crypto: Crypto,
    engine: Engine,
    protocol: Protocol,
    sending: Snapshot,
    receiving: Snapshot,
    derived: DerivedKeys,
    /// Sequence numbers where none are reserved.
    own_seq: u64,
    last_out: Option<(PlainFlow, u32)>,
    last_in: Option<(u32, u32)>,
    last_inner: Option<(PlainFlow, Option<Action>)>,
    copied: Vec<u8>,
    /// Cost of counters.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Skeleton {
    /// `subject` with the stages that `switches` enable.
    pub(crate) fn new(subject: &Subject, switches: Switches) -> Result<Self, PairError> {
        if subject.iptfs {
            return Err(PairError::Steps);
        }
        let crypto = match (switches.authentication, switches.cipher) {
            (false, _) => Crypto::Nothing,
            (true, false) => Crypto::Authentication,
            (true, true) => Crypto::All,
        };
        let engine = if crypto == Crypto::Nothing { Engine::Null } else { subject.engine };
        let window = match subject.protocol {
            _ if switches.replay => subject.window,
            // Sequence numbers must be checked (draft §4): the smallest window replaces no window.
            Protocol::Eesp => 64,
            Protocol::Esp | Protocol::Ah | Protocol::Psp => 0,
        };
        let [sending, receiving] = Subject { engine, window, ..subject.clone() }.tables()?;
        Ok(Self {
            switches,
            crypto,
            engine,
            protocol: subject.protocol,
            sending,
            receiving,
            derived: DerivedKeys::new(64),
            own_seq: 1,
            last_out: None,
            last_in: None,
            last_inner: None,
            copied: vec![0; 1 << 16],
            packets: 0,
            bytes: 0,
        })
    }

    /// Protects `packets`, as far as the switches enable it. Stages are those of
    /// [`super::stage::OUT`].
    pub(crate) fn outbound<P: Probe>(&mut self, packets: &mut [Slot], probe: &mut P) {
        for chunk in packets.chunks_mut(CHUNK) {
            self.seal(chunk, probe);
        }
    }

    fn seal<P: Probe>(&mut self, chunk: &mut [Slot], probe: &mut P) {
        let mut jobs: ArrayVec<Job<'_>, CHUNK> = ArrayVec::new();
        let mut pending: ArrayVec<(u8, PendingOut), CHUNK> = ArrayVec::new();
        let mut numbers = SeqRange { first: 0, count: 0 };
        let mut left = chunk.len() as u32;
        let crypto = self.crypto;
        for (i, slot) in chunk.iter_mut().enumerate() {
            probe.begin();
            let Ok(ip) = IpPacket::parse(slot.bytes()) else { continue };
            probe.end(0);
            let at = if self.switches.lookup {
                look_up_out(&mut self.last_out, &self.sending, &ip, slot.bytes())
            } else {
                0
            };
            probe.end(1);
            let Some(sa) = self.sending.outbound.get(at as usize) else {
                slot.dropped = Some(DropReason::NoSa);
                continue;
            };
            let lane = &sa.lanes[0];
            let seq = if self.switches.replay {
                if numbers.count == 0 {
                    let reserved = sa.common.check_lifetime().and_then(|()| lane.seq.reserve(left));
                    match reserved {
                        Ok(reserved) => numbers = reserved,
                        Err(why) => {
                            slot.dropped = Some(why);
                            continue;
                        }
                    }
                }
                let seq = numbers.first;
                numbers = SeqRange { first: seq + 1, count: numbers.count - 1 };
                left -= 1;
                SeqNo(seq)
            } else {
                self.own_seq += 1;
                SeqNo(self.own_seq)
            };
            probe.end(2);
            if !self.switches.header {
                continue;
            }
            let Slot { buffer, start, end, dropped } = slot;
            let Ok(mut frame) = Frame::new(buffer, *start..*end) else { continue };
            let kept = prepare_out(sa, lane, seq, &ip, &mut frame).map(|(op, kept)| {
                jobs.push(Job::new(op, &mut []));
                kept
            });
            match kept {
                Ok(kept) => {
                    (*start, *end) = (frame.range().start, frame.range().end);
                    let job = jobs.last_mut().expect("it was just put there");
                    job.packet = frame.into_bytes();
                    if crypto == Crypto::Authentication {
                        job.op = without_cipher(job.op);
                    }
                    pending.push((i as u8, kept));
                }
                Err(why) => *dropped = Some(why),
            }
            probe.end(3);
        }
        if self.switches.header {
            probe.begin();
            self.engine.seal(Keys { table: &self.sending.keys, derived: &self.derived }, &mut jobs);
            let refused = jobs.iter().any(|job| !job.sealed());
            drop(jobs);
            probe.end(4);
            let sa = &self.sending.outbound[0];
            let needs = needs_finish(sa);
            for (i, pending) in &pending {
                let slot = &mut chunk[usize::from(*i)];
                if refused {
                    slot.dropped = Some(DropReason::NoKey);
                }
                if needs && let Ok(mut frame) = Frame::new(&mut slot.buffer, slot.start..slot.end) {
                    slot.dropped = finish_out(sa, &mut frame, *pending).err().or(slot.dropped);
                    (slot.start, slot.end) = (frame.range().start, frame.range().end);
                }
            }
        } else {
            drop(jobs);
            probe.begin();
        }
        self.packets += chunk.len() as u64;
        self.bytes += chunk.iter().map(|slot| (slot.end - slot.start) as u64).sum::<u64>();
        probe.end(5);
        self.copy(chunk);
        probe.end(6);
    }

    /// Opens `packets`, as far as the switches enable it. Stages are those of [`super::stage::IN`].
    pub(crate) fn inbound<P: Probe>(&mut self, packets: &mut [Slot], probe: &mut P) {
        self.derived.begin_batch();
        for chunk in packets.chunks_mut(CHUNK) {
            self.open(chunk, probe);
        }
    }

    fn open<P: Probe>(&mut self, chunk: &mut [Slot], probe: &mut P) {
        let mut jobs: ArrayVec<Job<'_>, CHUNK> = ArrayVec::new();
        let mut openings: ArrayVec<(u8, u32, PendingIn), CHUNK> = ArrayVec::new();
        for (i, slot) in chunk.iter_mut().enumerate() {
            probe.begin();
            let Ok(outer) = IpPacket::parse(slot.bytes()) else { continue };
            probe.end(0);
            let at = outer.upper_at + if outer.upper == IpProto::UDP { UdpHeader::LEN } else { 0 };
            let found = if self.switches.lookup {
                look_up_in(&mut self.last_in, &self.receiving, self.protocol, &outer, at, slot.bytes())
            } else {
                Some(0)
            };
            probe.end(1);
            if !self.switches.header {
                continue;
            }
            let Some((found, sa)) = found.and_then(|slot| Some((slot, self.receiving.sad.get(slot)?))) else {
                slot.dropped = Some(DropReason::NoSa);
                continue;
            };
            let Slot { buffer, start, end, dropped } = slot;
            let Ok(mut frame) = Frame::new(buffer, *start..*end) else { continue };
            let prepared = prepare_in(sa, &outer, at, &mut frame, &mut self.derived);
            (*start, *end) = (frame.range().start, frame.range().end);
            match prepared {
                Ok((op, pending)) => {
                    let op = if self.crypto == Crypto::Authentication { without_cipher(op) } else { op };
                    jobs.push(Job::new(op, frame.into_bytes()));
                    openings.push((i as u8, found, pending));
                }
                Err(why) => *dropped = Some(why),
            }
            probe.end(2);
        }
        if self.switches.header {
            probe.begin();
            self.engine.open(Keys { table: &self.receiving.keys, derived: &self.derived }, &mut jobs);
            let proofs: ArrayVec<Option<IcvOk>, CHUNK> = jobs.iter_mut().map(Job::take_ok).collect();
            drop(jobs);
            probe.end(3);
            for ((i, slot, pending), proof) in openings.iter().zip(proofs) {
                self.finish(&mut chunk[usize::from(*i)], *slot, pending, proof, probe);
            }
        } else {
            drop(jobs);
            self.packets += chunk.len() as u64;
            self.bytes += chunk.iter().map(|slot| slot.bytes().len() as u64).sum::<u64>();
        }
        probe.begin();
        self.copy(chunk);
        probe.end(6);
    }

    #[inline]
    fn finish<P: Probe>(
        &mut self,
        slot: &mut Slot,
        found: u32,
        pending: &PendingIn,
        proof: Option<IcvOk>,
        probe: &mut P,
    ) {
        probe.begin();
        let Some(sa) = self.receiving.sad.get(found) else { return };
        let Some(ok) = proof else {
            slot.dropped = Some(DropReason::BadIcv);
            return;
        };
        let done = Frame::new(&mut slot.buffer, slot.start..slot.end).and_then(|mut frame| {
            let done = finish_in(sa, &mut frame, pending, ok).map(drop);
            (slot.start, slot.end) = (frame.range().start, frame.range().end);
            done
        });
        probe.end(4);
        if self.switches.lookup && done.is_ok() {
            let decision = policy_in(&mut self.last_inner, &self.receiving, slot.bytes());
            slot.dropped = Action::admit(decision, 0).err();
        }
        slot.dropped = done.err().or(slot.dropped);
        self.packets += 1;
        self.bytes += slot.bytes().len() as u64;
        probe.end(5);
    }

    #[inline]
    fn copy(&mut self, chunk: &[Slot]) {
        if self.switches.copy {
            for slot in chunk {
                let bytes = slot.bytes();
                self.copied[..bytes.len()].copy_from_slice(bytes);
                std::hint::black_box(&mut self.copied);
            }
        }
    }
}

/// The slot that the SPD names for a packet; the decision for the flow before is remembered, as in
/// the worker.
#[inline]
fn look_up_out(last: &mut Option<(PlainFlow, u32)>, tables: &Snapshot, ip: &IpPacket, packet: &[u8]) -> u32 {
    let key = PlainFlow::of(packet);
    if let (Some(key), Some((known, slot))) = (&key, &last)
        && key == known
    {
        return *slot;
    }
    match tables.spd.outbound(&FlowKey::of(ip, packet)) {
        Some((_, Action::Protect { outbound, .. })) => {
            *last = key.map(|key| (key, outbound));
            outbound
        }
        _ => u32::MAX,
    }
}

/// The slot of the SA that opens a packet; that of the packet before is remembered, as in the
/// worker.
#[inline]
fn look_up_in(
    last: &mut Option<(u32, u32)>,
    tables: &Snapshot,
    protocol: Protocol,
    outer: &IpPacket,
    at: usize,
    packet: &[u8],
) -> Option<u32> {
    let spi_at = at + if protocol == Protocol::Esp { 0 } else { 4 };
    let spi = u32::from_be_bytes(*packet.get(spi_at..)?.first_chunk()?);
    if let Some((known, slot)) = last
        && *known == spi
    {
        return Some(*slot);
    }
    let slot = tables.sad.lookup(protocol, spi, outer.src, outer.dst)?;
    *last = Some((spi, slot));
    Some(slot)
}

#[inline]
fn policy_in(last: &mut Option<(PlainFlow, Option<Action>)>, tables: &Snapshot, inner: &[u8]) -> Option<Action> {
    let key = PlainFlow::of(inner);
    if let (Some(key), Some((known, decision))) = (&key, &last)
        && key == known
    {
        return *decision;
    }
    let ip = IpPacket::parse(inner).ok()?;
    let decision = tables.spd.inbound(&FlowKey::of(&ip, inner)).map(|(_, action)| action);
    *last = key.map(|key| (key, decision));
    decision
}

/// The operation with everything authenticated and nothing encrypted. The body of an AEAD becomes
/// associated data.
fn without_cipher(mut op: CryptoOp) -> CryptoOp {
    let covers_body = match op.aad {
        Aad::InPlace(span) | Aad::InPlaceThen(span, _) | Aad::InlineThen(_, span) => span.end >= op.body.end,
        Aad::Inline(_) => false,
    };
    if !covers_body {
        op.aad = match op.aad {
            Aad::Inline(_) => Aad::InPlace(op.body),
            Aad::InPlace(span) => Aad::InPlace(Span { start: span.start, end: op.body.end }),
            other => other,
        };
    }
    op.body = Span { start: op.icv.start, end: op.icv.start };
    op
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overhead::stage::{Stamps, Unprobed};
    use testbed::pair::Shape;

    fn subjects() -> Vec<Subject> {
        [
            (Protocol::Esp, Shape::Tunnel, "aes128gcm16"),
            (Protocol::Esp, Shape::Transport, "3des-md5"),
            (Protocol::Esp, Shape::Tunnel, "aes256-sha512"),
            (Protocol::Esp, Shape::Tunnel, "chacha20poly1305"),
            (Protocol::Esp, Shape::Tunnel, "aes128ccm16"),
            (Protocol::Esp, Shape::Tunnel, "aes128gmac"),
            (Protocol::Ah, Shape::Transport, "sha256"),
            (Protocol::Eesp, Shape::Tunnel, "aes256gcm16"),
            (Protocol::Psp, Shape::Transport, "aes128gcm16"),
        ]
        .map(|(protocol, shape, suite)| Subject::new(protocol, shape, suite, Engine::best()))
        .into()
    }

    /// With all switches the skeleton makes the packets of the path, which the other end of the
    /// path opens.
    #[test]
    fn every_rung_takes_packets_there_and_back() {
        for subject in subjects() {
            let [src, dst] = subject.packet_addresses();
            let template = testbed::packet::udp(src, dst, 4000, 4001, 333, IpProto::UDP);
            for (name, switches) in LADDER {
                let mut skeleton = Skeleton::new(&subject, switches).unwrap();
                let mut slots: Vec<Slot> = (0..40).map(|_| Slot::new(2048)).collect();
                for _ in 0..3 {
                    slots.iter_mut().for_each(|slot| slot.set(&template));
                    skeleton.outbound(&mut slots, &mut Unprobed);
                    let protected = slots[0].bytes().to_vec();
                    assert_eq!(protected != template, switches.header, "{subject:?} {name}");
                    let hidden = !protected.windows(64).any(|part| part == &template[200..264]);
                    let confidential = !matches!(subject.suite.as_str(), "sha256" | "aes128gmac");
                    assert_eq!(hidden, switches.cipher && confidential, "{subject:?} {name}");
                    let mut stamps = Stamps::default();
                    skeleton.inbound(&mut slots, &mut stamps);
                    assert!(stamps.stamps[0] == 40 && stamps.ticks.iter().sum::<u64>() > 0);
                    for slot in &slots {
                        assert_eq!(slot.dropped, None, "{subject:?} {name}");
                        assert_eq!(slot.bytes(), template, "{subject:?} {name}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_verified_is_refused_when_it_changed() {
        for subject in subjects() {
            let [src, dst] = subject.packet_addresses();
            let template = testbed::packet::udp(src, dst, 4000, 4001, 333, IpProto::UDP);
            for (name, switches) in LADDER {
                let mut skeleton = Skeleton::new(&subject, switches).unwrap();
                let mut slots = [Slot::new(2048)];
                slots[0].set(&template);
                skeleton.outbound(&mut slots, &mut Unprobed);
                let middle = slots[0].bytes().len() / 2;
                slots[0].bytes_mut()[middle] ^= 1;
                skeleton.inbound(&mut slots, &mut Unprobed);
                let expected = switches.authentication.then_some(DropReason::BadIcv);
                assert_eq!(slots[0].dropped, expected, "{subject:?} {name}");
            }
        }
    }

    #[test]
    fn a_packet_that_comes_twice_is_refused_where_replay_is_on() {
        let subject = &subjects()[0];
        let [src, dst] = subject.packet_addresses();
        let template = testbed::packet::udp(src, dst, 4000, 4001, 333, IpProto::UDP);
        for (name, switches) in LADDER.into_iter().filter(|(_, switches)| switches.header) {
            let mut skeleton = Skeleton::new(subject, switches).unwrap();
            let mut slots = [Slot::new(2048)];
            slots[0].set(&template);
            skeleton.outbound(&mut slots, &mut Unprobed);
            let protected = slots[0].bytes().to_vec();
            skeleton.inbound(&mut slots, &mut Unprobed);
            slots[0].set(&protected);
            skeleton.inbound(&mut slots, &mut Unprobed);
            assert_eq!(slots[0].dropped, switches.replay.then_some(DropReason::Replay), "{name}");
        }
    }
}
