//! The receiving half, as the data plane runs it.

use crypto::{DerivedKeys, Engine, Job, KeyTable, Keys};
use ipsec::{DropReason, Frame, InboundSa, finish_in, prepare_in};
use wire::{IpPacket, IpProto};

use crate::Pair;

/// Room before and after a packet, as the data plane has it.
const ROOM: usize = 384;

/// State that only a verified packet may change.
fn state(sa: &InboundSa) -> (Vec<Option<u64>>, u64) {
    let tops = sa.lanes.iter().map(|lane| lane.window.get().map(|window| window.top().0)).collect();
    (tops, sa.common.counters.packets())
}

/// Opens an outer packet through `pair.inn`.
///
/// # Panics
/// If a packet changes state before its ICV is verified, or if a delivered one differs from its
/// report.
pub fn open(pair: &Pair, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
    open_with(pair.engine, &pair.keys, &pair.inn, packet)
}

/// Opens an outer packet through one SA, as [`open`] does.
///
/// # Panics
/// As [`open`].
pub fn open_with(engine: Engine, keys: &KeyTable, sa: &InboundSa, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
    let outer = IpPacket::parse(packet)?;
    if outer.fragment.is_some() {
        return Err(DropReason::Fragment); // reassembled before
    }
    let packet = &packet[..outer.total_len];
    let at = if outer.upper == IpProto::UDP { outer.upper_at + 8 } else { outer.upper_at };
    let mut derived = DerivedKeys::new(4);
    derived.begin_batch();
    let before = state(sa);

    let mut buffer = vec![0xa5; ROOM + packet.len() + ROOM];
    buffer[ROOM..ROOM + packet.len()].copy_from_slice(packet);
    let mut frame = Frame::new(&mut buffer, ROOM..ROOM + packet.len())?;
    let prepared = prepare_in(sa, &outer, at, &mut frame, &mut derived);
    assert_eq!(state(sa), before, "state moved before the engine ran");
    let (op, pending) = prepared?;
    let mut jobs = [Job::new(op, frame.bytes_mut())];
    engine.open(Keys { table: keys, derived: &derived }, &mut jobs);
    let ok = jobs[0].take_ok();
    assert_eq!(state(sa), before, "state moved without a proof");
    finish_in(sa, &mut frame, &pending, ok.ok_or(DropReason::BadIcv)?)?;
    let inner = IpPacket::parse(frame.bytes()).map_err(|_| DropReason::BadInner)?;
    assert_eq!(inner.total_len, frame.len(), "nothing follows the packet");
    Ok(frame.bytes().to_vec())
}
