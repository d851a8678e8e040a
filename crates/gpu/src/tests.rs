//! The ring on a device that computes as the kernel does, in Rust, and fails where a test wants it.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crypto::accelerator::{Accelerator, Direction, GROUP, Gone, Group, Task};
use crypto::{Aad, CryptoOp, Engine, KeyId, KeyMaterial, KeyTable, Span, Suite};

use crate::key::multiply;
use crate::packet::TAG_BYTES;
use crate::{DESCRIPTOR_BYTES, Device, DeviceError, Gpu, KEY_WORDS, KeyWords, Launch, Settings, Shape, SlotState};

const AAD: usize = 8;
const ICV: usize = 16;

/// Call of the device that fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    SetKey,
    ClearKey,
    MemoryToFill,
    Launch,
    IsDone,
    MemoryToDrain,
    Wipe,
}

/// State of the device that a test reads, and its controls.
#[derive(Default)]
struct Control {
    /// Launches complete only without it.
    holds: AtomicBool,
    /// Launches leave all packets as they are.
    skips: AtomicBool,
    fault: Mutex<Option<Fault>>,
    launches: Mutex<Vec<Launch>>,
    keys: Mutex<Vec<[u32; KEY_WORDS]>>,
    cleared: AtomicU64,
    /// Parts of slots that were wiped.
    wiped: Mutex<Vec<(usize, Range<usize>)>>,
    dropped: AtomicBool,
    abandoned: AtomicBool,
    now_ns: AtomicU64,
}

impl Control {
    fn fails(&self, fault: Fault) -> Result<(), DeviceError> {
        let fails = *self.fault.lock().unwrap() == Some(fault);
        if fails { Err(DeviceError::Call { call: "a test", code: -5 }) } else { Ok(()) }
    }

    fn hold(&self, holds: bool) {
        self.holds.store(holds, Ordering::Relaxed);
    }

    fn advance(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn launched(&self) -> Vec<usize> {
        self.launches.lock().unwrap().iter().map(|launch| launch.packets).collect()
    }
}

struct Model {
    shape: Shape,
    control: Arc<Control>,
    /// Memory of the slots as the last launches left it, for the test.
    memory: Memory,
    slots: Vec<Vec<u8>>,
    states: Vec<Cell<State>>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum State {
    Idle,
    InFlight,
    Done,
}

impl Drop for Model {
    fn drop(&mut self) {
        self.control.dropped.store(true, Ordering::Relaxed);
    }
}

impl Device for Model {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn lanes_at_once(&self) -> usize {
        1
    }

    fn memory(&mut self, slot: usize) -> Result<&mut [u8], DeviceError> {
        if !self.is_done(slot)? {
            return Err(DeviceError::Busy { slot });
        }
        let was_launched = self.states[slot].get() == State::Done;
        self.control.fails(if was_launched { Fault::MemoryToDrain } else { Fault::MemoryToFill })?;
        Ok(&mut self.slots[slot])
    }

    fn launch(&mut self, slot: usize, launch: &Launch) -> Result<(), DeviceError> {
        self.control.fails(Fault::Launch)?;
        assert!(launch.fits(&self.shape) && self.states[slot].get() != State::InFlight);
        self.control.launches.lock().unwrap().push(*launch);
        let keys = self.control.keys.lock().unwrap();
        let memory = &mut self.slots[slot];
        let packets = if self.control.skips.load(Ordering::Relaxed) { 0 } else { launch.packets };
        for packet in 0..packets {
            let descriptor = launch.data_at - DESCRIPTOR_BYTES * (packet + 1);
            let descriptor = memory[descriptor..descriptor + DESCRIPTOR_BYTES].to_vec();
            let word = |at: usize| u32::from_le_bytes(descriptor[4 * at..4 * at + 4].try_into().unwrap());
            let (body_at, len, aad_len) = (4 * word(0) as usize, word(1) as usize, word(2) as usize);
            let body = &mut memory[body_at..body_at + len];
            let aad = &descriptor[32..32 + aad_len];
            let tag = run(&keys[word(3) as usize], [word(4), word(5), word(6)], aad, body, word(7) == 1);
            let tag_at = launch.tags_at + packet * TAG_BYTES;
            memory[tag_at..tag_at + TAG_BYTES].copy_from_slice(&tag);
        }
        self.memory.lock().unwrap()[slot] = memory.clone();
        self.states[slot].set(State::InFlight);
        Ok(())
    }

    fn is_done(&self, slot: usize) -> Result<bool, DeviceError> {
        if self.states[slot].get() == State::InFlight {
            self.control.fails(Fault::IsDone)?;
            if self.control.holds.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.states[slot].set(State::Done);
        }
        Ok(true)
    }

    fn wipe(&mut self, slot: usize, part: Range<usize>) -> Result<(), DeviceError> {
        self.control.fails(Fault::Wipe)?;
        assert!(self.states[slot].get() == State::Done && part.end <= self.shape.slot_bytes());
        self.control.wiped.lock().unwrap().push((slot, part));
        Ok(())
    }

    fn set_key(&mut self, key: u32, words: &KeyWords) -> Result<(), DeviceError> {
        self.control.fails(Fault::SetKey)?;
        self.control.keys.lock().unwrap()[key as usize] = *words.words();
        Ok(())
    }

    fn clear_key(&mut self, key: u32) -> Result<(), DeviceError> {
        self.control.fails(Fault::ClearKey)?;
        self.control.cleared.fetch_add(1, Ordering::Relaxed);
        self.control.keys.lock().unwrap()[key as usize] = [0; KEY_WORDS];
        Ok(())
    }

    fn abandon(self) {
        self.memory.lock().unwrap().clone_from(&self.slots);
        self.control.abandoned.store(true, Ordering::Relaxed);
    }
}

/// AES-GCM of one packet, block by block.
fn run(key: &[u32; KEY_WORDS], nonce: [u32; 3], aad: &[u8], body: &mut [u8], open: bool) -> [u8; 16] {
    let key = KeyWords::from_words(key);
    let stream = |counter: u32| {
        let [n0, n1, n2] = nonce;
        let words = key.encrypt([[n0, n1, n2, counter.swap_bytes()]; 2])[0];
        let mut bytes = [0; 16];
        bytes.chunks_mut(4).zip(words).for_each(|(four, word)| four.copy_from_slice(&word.to_le_bytes()));
        bytes
    };
    let h = <[u32; 4]>::try_from(&key.words()[crate::key::POWERS..][..4]).unwrap();
    let mut sum = [0; 4];
    let mut add = |part: &[u8]| {
        for chunk in part.chunks(16) {
            let mut block = [0; 16];
            block[..chunk.len()].copy_from_slice(chunk);
            let words: [u32; 4] =
                std::array::from_fn(|i| u32::from_be_bytes(block[4 * i..4 * i + 4].try_into().unwrap()));
            sum = multiply(std::array::from_fn(|i| sum[i] ^ words[i]), h);
        }
    };
    add(aad);
    let (bits, mut cipher) = (8 * body.len() as u64, body.to_vec());
    for (counter, chunk) in (2..).zip(body.chunks_mut(16)) {
        chunk.iter_mut().zip(stream(counter)).for_each(|(byte, mask)| *byte ^= mask);
    }
    if !open {
        cipher.copy_from_slice(body);
    }
    add(&cipher);
    add(&[(8 * aad.len() as u64).to_be_bytes(), bits.to_be_bytes()].concat());
    let mut tag = [0; 16];
    tag.chunks_mut(4).zip(sum).for_each(|(four, word)| four.copy_from_slice(&word.to_be_bytes()));
    tag.iter_mut().zip(stream(1)).for_each(|(byte, mask)| *byte ^= mask);
    tag
}

type Ring = Gpu<Model, Vec<u8>>;
/// Bytes of each slot.
type Memory = Arc<Mutex<Vec<Vec<u8>>>>;

/// A ring with its device's control, and the memory of its slots as the last launch left it.
fn ring(shape: Shape) -> (Ring, Arc<Control>, Memory) {
    let control = Arc::new(Control { keys: Mutex::new(vec![[0; KEY_WORDS]; shape.keys]), ..Control::default() });
    let slots = vec![vec![0; shape.slot_bytes()]; shape.slots];
    let memory = Arc::new(Mutex::new(slots.clone()));
    let states = vec![Cell::new(State::Idle); shape.slots];
    let model = Model { shape, control: Arc::clone(&control), memory: Arc::clone(&memory), slots, states };
    let clock = Arc::clone(&control);
    let ring = Gpu::with_clock(model, Engine::AwsLc, Settings::default(), move || clock.now_ns.load(Ordering::Relaxed));
    (ring, control, memory)
}

const SHAPE: Shape = Shape { slots: 3, bytes: 4096, packets: 32, keys: 4 };

fn table_of(name: &str, byte: u8) -> (Arc<KeyTable>, KeyId) {
    let suite = Suite::parse_esp(name).unwrap();
    let mut table = KeyTable::default();
    let material = vec![byte; suite.enc_material_len()];
    let integ = vec![byte; suite.integ_material_len()];
    let key = Engine::AwsLc.expand_for_device(&suite, KeyMaterial { enc: &material, integ: &integ }).unwrap();
    let id = table.insert(Arc::new(key));
    (Arc::new(table), id)
}

fn table() -> (Arc<KeyTable>, KeyId) {
    table_of("aes128gcm16", 7)
}

/// A packet of `len` bytes to protect, each the low byte of its number.
fn task(key: KeyId, number: u64, len: usize, icv: usize) -> Task<Vec<u8>> {
    let mut packet = vec![number as u8; AAD + len + icv];
    packet[..8].copy_from_slice(&number.to_be_bytes());
    let mut iv = [0; 16];
    iv[..8].copy_from_slice(&number.to_be_bytes());
    let (body, icv) = (Span::new(AAD, AAD + len), Span::new(AAD + len, AAD + len + icv));
    Task { op: CryptoOp { key, aad: Aad::InPlace(Span::new(0, AAD)), body, icv, iv }, packet }
}

fn group(keys: &Arc<KeyTable>, tasks: impl IntoIterator<Item = Task<Vec<u8>>>) -> Group<Vec<u8>> {
    Group::new(Direction::Seal, Arc::clone(keys), Box::new(tasks.into_iter().collect()))
}

/// A group of one packet that is sealed, to open.
fn sealed(keys: &Arc<KeyTable>, key: KeyId, number: u64, len: usize) -> Group<Vec<u8>> {
    let mut group = group(keys, [task(key, number, len, ICV)]);
    group.run(Engine::AwsLc, &crypto::DerivedKeys::new(0));
    Group::new(Direction::Open, Arc::clone(keys), group.tasks)
}

fn number_of(group: &Group<Vec<u8>>) -> u64 {
    u64::from_be_bytes(group.tasks[0].packet[..8].try_into().unwrap())
}

#[test]
fn packets_are_as_the_engine_of_the_cpu_makes_them() {
    for (suite, icv) in [("aes128gcm16", 16), ("aes192gcm12", 12), ("aes256gcm8", 8)] {
        let (keys, key) = table_of(suite, 7);
        let (mut ring, ..) = ring(SHAPE);
        for (number, len) in [0, 1, 15, 16, 17, 64, 300].into_iter().enumerate() {
            let mut direct = group(&keys, [task(key, number as u64, len, icv)]);
            direct.run(Engine::AwsLc, &crypto::DerivedKeys::new(0));
            assert!(ring.submit(group(&keys, [task(key, number as u64, len, icv)])).is_ok());
            let mut done = ring.poll().unwrap().unwrap();
            assert!(done.sealed(0), "{suite} {len}");
            assert_eq!(done.tasks[0].packet, direct.tasks[0].packet, "{suite} {len}");
            done.direction = Direction::Open;
            assert!(ring.submit(done).is_ok());
            let mut opened = ring.poll().unwrap().unwrap();
            assert!(opened.take_ok(0).is_some() && opened.take_ok(0).is_none());
            assert!(opened.tasks[0].packet[AAD..AAD + len].iter().all(|byte| *byte == number as u8));
        }
        assert_eq!((ring.counts().on_device, ring.counts().on_cpu), (14, 0));
    }
}

#[test]
fn sizes_that_the_kernel_cannot_address_are_refused() {
    let refused = |shape: Shape| match shape.check() {
        Err(DeviceError::Shape { size, .. }) => size,
        other => panic!("{shape:?}: {other:?}"),
    };
    assert_eq!(SHAPE.check(), Ok(()));
    assert_eq!(Shape { bytes: 4 << 20, keys: 1 << 20, packets: 1 << 16, ..SHAPE }.check(), Ok(()));
    assert_eq!(Shape { bytes: 0, keys: 0, packets: 0, slots: 1 }.check(), Ok(()));
    assert_eq!(refused(Shape { slots: 0, ..SHAPE }), "slots");
    for bytes in [1, 4104, usize::MAX, 1 << 32, (1 << 32) - 2048, usize::MAX - 15] {
        assert_eq!(refused(Shape { bytes, ..SHAPE }), "bytes");
    }
    for many in [(1 << 32) / 64, usize::MAX] {
        assert_eq!(refused(Shape { packets: many, ..SHAPE }), "packets");
        assert_eq!(refused(Shape { keys: many, ..SHAPE }), "keys");
    }
}

#[test]
fn an_idle_device_starts_at_once_and_a_busy_one_collects_until_a_slot_is_full() {
    let (keys, key) = table();
    let (mut ring, control, _) = ring(SHAPE);
    control.hold(true);
    let submit = |ring: &mut Ring, number| ring.submit(group(&keys, (0..8).map(|_| task(key, number, 64, ICV))));
    assert!(submit(&mut ring, 0).is_ok());
    assert_eq!((ring.slot_state(0), control.launched()), (Some(SlotState::InFlight), vec![8]));
    // A slot has room for two groups; the third goes into the next one.
    assert!(submit(&mut ring, 1).is_ok() && submit(&mut ring, 2).is_ok());
    assert_eq!((ring.slot_state(1), control.launched()), (Some(SlotState::Filling), vec![8]));
    assert!(submit(&mut ring, 3).is_ok());
    assert_eq!((ring.slot_state(2), control.launched()), (Some(SlotState::Filling), vec![8, 16]));
    assert!(ring.poll().unwrap().is_none() && !ring.ready());
    // The window: the last slot takes one more, and then nothing is free.
    assert!(submit(&mut ring, 4).is_ok());
    let back = submit(&mut ring, 5).expect_err("full");
    assert_eq!((number_of(&back), back.tasks.len(), ring.under_way(), ring.capacity()), (5, 8, 5, 6));
    control.hold(false);
    for number in 0..5 {
        assert!(ring.ready());
        assert_eq!(number_of(&ring.poll().unwrap().unwrap()), number);
    }
    assert!(ring.poll().unwrap().is_none() && !ring.ready() && ring.under_way() == 0);
    assert_eq!((0..3).filter_map(|slot| ring.slot_state(slot)).collect::<Vec<_>>(), [SlotState::Free; 3]);
}

#[test]
fn a_flush_or_enough_time_launches_what_was_collected() {
    let (keys, key) = table();
    let (mut ring, control, _) = ring(SHAPE);
    control.hold(true);
    assert!(ring.submit(group(&keys, [task(key, 0, 64, ICV)])).is_ok());
    assert!(ring.submit(group(&keys, [task(key, 1, 64, ICV)])).is_ok());
    control.advance(Settings::default().flush_ns - 1);
    assert!(ring.poll().unwrap().is_none());
    assert_eq!(control.launched().len(), 1);
    control.advance(1);
    assert!(ring.poll().unwrap().is_none());
    assert_eq!(control.launched().len(), 2);
    assert!(ring.submit(group(&keys, [task(key, 2, 64, ICV)])).is_ok());
    assert_eq!(control.launched().len(), 2);
    ring.flush();
    ring.flush();
    assert_eq!(control.launched().len(), 3);
}

#[test]
fn what_was_collected_starts_when_the_device_becomes_idle() {
    let (keys, key) = table();
    let (mut ring, control, _) = ring(SHAPE);
    control.hold(true);
    for number in 0..2 {
        assert!(ring.submit(group(&keys, [task(key, number, 64, ICV)])).is_ok());
    }
    control.hold(false);
    assert!(ring.poll().unwrap().is_some());
    assert_eq!(control.launched().len(), 1);
    assert!(ring.poll().unwrap().is_some_and(|group| number_of(&group) == 1));
    assert_eq!(control.launched().len(), 2);
}

#[test]
fn a_wrong_tag_is_never_delivered_and_its_plaintext_is_wiped() {
    let (keys, key) = table();
    let (mut ring, control, memory) = ring(Shape { slots: 1, ..SHAPE });
    for changed in [0, 7, AAD, AAD + 40, AAD + 63, AAD + 64, AAD + 79] {
        let mut bad = sealed(&keys, key, 0x55, 64);
        bad.tasks[0].packet[changed] ^= 1;
        let before = bad.tasks[0].packet.clone();
        assert!(ring.submit(bad).is_ok());
        assert!(control.launched().len() == 1);
        control.launches.lock().unwrap().clear();
        // What the device computed is the plaintext, or nearly.
        let has_plaintext = |bytes: &[u8]| bytes.windows(16).any(|window| window == [0x55; 16]);
        assert!(has_plaintext(&memory.lock().unwrap()[0]));
        let mut done = ring.poll().unwrap().unwrap();
        assert!(done.take_ok(0).is_none() && !done.sealed(0), "{changed}");
        assert_eq!(done.tasks[0].packet, before, "the packet is unchanged");
        assert!(!has_plaintext(ring.memory(0)), "the slot has the plaintext");
    }
    assert!(ring.submit(sealed(&keys, key, 0x55, 64)).is_ok());
    assert!(ring.poll().unwrap().unwrap().take_ok(0).is_some(), "the packet as it was is authentic");
}

#[test]
fn bodies_that_fail_are_wiped_on_the_device_too() {
    let (keys, key) = table();
    let (mut ring, control, _) = ring(SHAPE);
    let at = SHAPE.data_at();
    // Of five packets of 33 bytes, which have 48 each, the second and the fourth are forged.
    let of = |changed: &[usize]| {
        let mut group = group(&keys, (0..5).map(|number| task(key, number, 33, ICV)));
        group.run(Engine::AwsLc, &crypto::DerivedKeys::new(0));
        changed.iter().for_each(|i| group.tasks[*i].packet[AAD] ^= 1);
        Group::new(Direction::Open, Arc::clone(&keys), group.tasks)
    };
    for (changed, wiped) in
        [(&[][..], vec![]), (&[1, 3], vec![(1, at + 48..at + 192)]), (&[4], vec![(2, at + 192..at + 240)])]
    {
        assert!(ring.submit(of(changed)).is_ok());
        let mut done = ring.poll().unwrap().unwrap();
        assert!((0..5).all(|i| done.take_ok(i).is_some() != changed.contains(&i)));
        assert_eq!(std::mem::take(&mut *control.wiped.lock().unwrap()), wiped);
    }
    *control.fault.lock().unwrap() = Some(Fault::Wipe);
    assert!(ring.submit(of(&[0])).is_ok());
    assert_eq!(ring.poll().err(), Some(Gone::DeviceFailed));
}

#[test]
fn a_packet_that_the_device_skips_has_no_result() {
    let (keys, key) = table();
    let (mut ring, control, _) = ring(Shape { slots: 1, ..SHAPE });
    // The tag of the first run is in the slot at the second one.
    assert!(ring.submit(sealed(&keys, key, 0x55, 64)).is_ok());
    assert!(ring.poll().unwrap().unwrap().take_ok(0).is_some());
    control.skips.store(true, Ordering::Relaxed);
    let again = sealed(&keys, key, 0x55, 64);
    let before = again.tasks[0].packet.clone();
    assert!(ring.submit(again).is_ok());
    let mut done = ring.poll().unwrap().unwrap();
    assert!(done.take_ok(0).is_none() && done.tasks[0].packet == before);
    assert!(ring.submit(group(&keys, [task(key, 1, 64, ICV)])).is_ok());
    assert!(!ring.poll().unwrap().unwrap().sealed(0));
}

impl Ring {
    fn memory(&mut self, slot: usize) -> &[u8] {
        self.device_mut().memory(slot).unwrap()
    }
}

#[test]
fn the_device_is_gone_at_each_of_its_calls_and_returns_nothing_more() {
    let (keys, key) = table();
    let calls = [
        (Fault::SetKey, false),
        (Fault::MemoryToFill, false),
        (Fault::Launch, true),
        (Fault::IsDone, true),
        (Fault::MemoryToDrain, true),
    ];
    for (fault, accepted) in calls {
        let (mut ring, control, _) = ring(SHAPE);
        *control.fault.lock().unwrap() = Some(fault);
        let group_of = |number| group(&keys, [task(key, number, 64, ICV)]);
        assert_eq!(ring.submit(group_of(0)).is_ok(), accepted, "{fault:?}");
        assert_eq!(ring.poll().err(), Some(Gone::DeviceFailed), "{fault:?}");
        assert_eq!(ring.error(), Some(&DeviceError::Call { call: "a test", code: -5 }));
        *control.fault.lock().unwrap() = None;
        assert_eq!(ring.poll().err(), Some(Gone::DeviceFailed), "for good");
        assert_eq!(number_of(&ring.submit(group_of(1)).expect_err("gone")), 1);
        assert!(ring.ready());
        ring.flush();
        ring.remove_keys();
    }
}

#[test]
fn groups_that_wait_behind_a_failure_are_lost_in_every_state() {
    let (keys, key) = table();
    for drained in 0..2 {
        let (mut ring, control, _) = ring(SHAPE);
        control.hold(true);
        for number in 0..5 {
            assert!(ring.submit(group(&keys, [task(key, number, 64, ICV)])).is_ok());
            if number == 2 {
                ring.flush();
            }
        }
        // Slot 0 has one group, slot 1 two, slot 2 two that are not launched.
        let states = [SlotState::InFlight, SlotState::InFlight, SlotState::Filling];
        assert_eq!([0, 1, 2].map(|slot| ring.slot_state(slot).unwrap()), states);
        control.hold(false);
        for number in 0..=drained {
            assert_eq!(number_of(&ring.poll().unwrap().unwrap()), number);
        }
        let state = [SlotState::InFlight, SlotState::Draining][drained as usize];
        assert_eq!(ring.slot_state(1), Some(state));
        *control.fault.lock().unwrap() = Some(Fault::MemoryToDrain);
        for _ in 0..8 {
            assert_eq!(ring.poll().err(), Some(Gone::DeviceFailed));
        }
    }
}

#[test]
fn a_launch_without_an_event_is_a_failure_after_the_watchdogs_time() {
    let (keys, key) = table();
    let (mut ring, control, _) = ring(SHAPE);
    control.hold(true);
    assert!(ring.submit(group(&keys, [task(key, 0, 64, ICV)])).is_ok());
    // A caller that did not poll for a minute is no reason.
    control.advance(60_000_000_000);
    assert!(ring.poll().unwrap().is_none());
    for _ in 0..8 {
        control.advance(10_000_000);
        assert!(ring.poll().unwrap().is_none());
    }
    control.advance(10_000_000);
    assert_eq!(ring.poll().err(), Some(Gone::TimedOut { ms: 100 }));
    assert!(ring.submit(group(&keys, [task(key, 1, 64, ICV)])).is_err());
    Box::new(ring).abandon();
    assert!(control.abandoned.load(Ordering::Relaxed), "without a wait");
}

#[test]
fn an_abandoned_ring_has_no_body_but_in_flight() {
    let (keys, key) = table();
    let (mut ring, control, memory) = ring(SHAPE);
    for number in 0..3 {
        control.hold(number > 0);
        assert!(ring.submit(group(&keys, [task(key, number, 64, ICV)])).is_ok());
        assert_eq!(ring.poll().unwrap().is_some(), number == 0);
    }
    let states = [SlotState::Free, SlotState::InFlight, SlotState::Filling];
    assert_eq!([0, 1, 2].map(|slot| ring.slot_state(slot).unwrap()), states);
    Box::new(ring).abandon();
    let is_zero: Vec<_> = memory.lock().unwrap().iter().map(|slot| slot.iter().all(|byte| *byte == 0)).collect();
    assert_eq!(is_zero, [true, false, true]);
}

#[test]
fn a_completion_restarts_the_watchdog() {
    let (keys, key) = table();
    let (mut ring, control, _) = ring(SHAPE);
    for round in 0..5 {
        control.hold(true);
        assert!(ring.submit(group(&keys, [task(key, round, 64, ICV)])).is_ok());
        for _ in 0..9 {
            control.advance(10_000_000);
            assert!(ring.poll().unwrap().is_none(), "{round}");
        }
        control.hold(false);
        assert!(ring.poll().unwrap().is_some());
    }
    // The same with another slot in flight, which does not start with a launch.
    control.hold(true);
    for number in 5..8 {
        assert!(ring.submit(group(&keys, [task(key, number, 64, ICV)])).is_ok());
        ring.flush();
    }
    for round in 0..3 {
        for _ in 0..9 {
            control.advance(10_000_000);
            assert!(ring.poll().unwrap().is_none(), "{round}");
        }
        control.hold(false);
        assert!(ring.poll().unwrap().is_some());
        control.hold(true);
    }
}

#[test]
fn a_key_is_written_once_and_zeroed_after_its_removal_not_while_in_flight() {
    let (keys, key) = table();
    let (mut ring, control, _) = ring(SHAPE);
    control.hold(true);
    for number in 0..2 {
        assert!(ring.submit(group(&keys, [task(key, number, 64, ICV)])).is_ok());
    }
    assert_eq!(ring.keys_on_device(), 1);
    drop(keys);
    // The groups in flight have it.
    ring.remove_keys();
    assert_eq!(ring.keys_on_device(), 1);
    control.hold(false);
    let groups: Vec<_> = (0..2).map(|_| ring.poll().unwrap().unwrap()).collect();
    assert!(groups.iter().all(|group| group.sealed(0)));
    ring.remove_keys();
    assert_eq!(ring.keys_on_device(), 1, "the caller still has the table");
    drop(groups);
    ring.remove_keys();
    assert_eq!(ring.keys_on_device(), 0);
    assert!(control.keys.lock().unwrap().iter().flatten().all(|word| *word == 0));
}

#[test]
fn the_key_of_a_new_table_under_an_old_identifier_is_another_key() {
    let (first, id) = table_of("aes128gcm16", 1);
    let (second, other_id) = table_of("aes128gcm16", 2);
    assert_eq!(id, other_id);
    let (mut ring, ..) = ring(SHAPE);
    for keys in [&first, &second, &first] {
        let mut direct = group(keys, [task(id, 5, 64, ICV)]);
        direct.run(Engine::AwsLc, &crypto::DerivedKeys::new(0));
        assert!(ring.submit(group(keys, [task(id, 5, 64, ICV)])).is_ok());
        assert_eq!(ring.poll().unwrap().unwrap().tasks[0].packet, direct.tasks[0].packet);
    }
    assert_eq!(ring.keys_on_device(), 2);
}

#[test]
fn without_a_free_key_slot_the_cpu_does_it_and_removed_keys_make_room() {
    let tables: Vec<_> = (0..5).map(|byte| table_of("aes128gcm16", byte)).collect();
    let (mut ring, ..) = ring(SHAPE);
    let seal = |ring: &mut Ring, (keys, id): &(Arc<KeyTable>, KeyId)| {
        assert!(ring.submit(group(keys, [task(*id, 5, 64, ICV)])).is_ok());
        ring.poll().unwrap().unwrap().sealed(0)
    };
    assert!(tables.iter().all(|table| seal(&mut ring, table)));
    assert_eq!((ring.keys_on_device(), ring.counts().on_cpu), (4, 1));
    let last = tables.into_iter().next_back().unwrap();
    assert!(seal(&mut ring, &last));
    assert_eq!(ring.counts().on_cpu, 1);
    ring.remove_keys();
    assert_eq!(ring.keys_on_device(), 1);
}

#[test]
fn a_submission_waits_for_the_removal_of_one_key_at_most() {
    let four: Vec<_> = (0..4).map(|byte| table_of("aes128gcm16", byte)).collect();
    let (mut ring, control, _) = ring(SHAPE);
    for (keys, id) in &four {
        assert!(ring.submit(group(keys, [task(*id, 5, 64, ICV)])).is_ok());
        assert!(ring.poll().unwrap().is_some());
    }
    drop(four);
    let suite = Suite::parse_esp("aes128gcm16").unwrap();
    let mut table = KeyTable::default();
    let ids: Vec<_> = (10..14)
        .map(|byte| {
            let material = vec![byte; suite.enc_material_len()];
            let key = Engine::AwsLc.expand_for_device(&suite, KeyMaterial { enc: &material, integ: &[] });
            table.insert(Arc::new(key.unwrap()))
        })
        .collect();
    let keys = Arc::new(table);
    let submit = |ring: &mut Ring| ring.submit(group(&keys, ids.iter().map(|id| task(*id, 5, 64, ICV))));
    // One of four new keys gets the slot; its packets run on the device, the others on the CPU.
    assert!(submit(&mut ring).is_ok());
    assert_eq!((control.cleared.load(Ordering::Relaxed), ring.counts().on_cpu), (1, 3));
    // A poll that returns the last group of a slot removes one at most as well.
    let done = ring.poll().unwrap().unwrap();
    assert!((0..4).all(|i| done.sealed(i)) && control.cleared.load(Ordering::Relaxed) <= 2);
    for _ in 0..8 {
        assert!(submit(&mut ring).is_ok() && ring.poll().unwrap().is_some());
    }
    let on_cpu = ring.counts().on_cpu;
    assert!(submit(&mut ring).is_ok());
    assert_eq!((control.cleared.load(Ordering::Relaxed), ring.counts().on_cpu), (4, on_cpu), "all have a slot");
}

#[test]
fn removal_that_fails_is_a_failure_of_the_device() {
    let (mut ring, control, _) = ring(SHAPE);
    let (keys, key) = table();
    assert!(ring.submit(group(&keys, [task(key, 0, 64, ICV)])).is_ok());
    drop((ring.poll().unwrap().unwrap(), keys));
    *control.fault.lock().unwrap() = Some(Fault::ClearKey);
    ring.remove_keys();
    assert_eq!(ring.poll().err(), Some(Gone::DeviceFailed));
}

#[test]
fn what_the_device_cannot_do_runs_on_the_cpu_in_order() {
    let (mut ring, control, _) = ring(SHAPE);
    let (gcm, gcm_key) = table();
    let others = ["aes128-sha256", "chacha20poly1305", "aes128gmac", "null-sha256"];
    control.hold(true);
    assert!(ring.submit(group(&gcm, [task(gcm_key, 0, 64, ICV)])).is_ok());
    let (keys, key) = table_of("chacha20poly1305", 7);
    assert!(ring.submit(group(&keys, [task(key, 1, 64, ICV)])).is_ok());
    assert!(ring.poll().unwrap().is_none(), "not before the device's");
    control.hold(false);
    let done: Vec<_> = (0..2).map(|_| ring.poll().unwrap().unwrap()).collect();
    assert_eq!(done.iter().map(number_of).collect::<Vec<_>>(), [0, 1]);
    assert!(done.iter().all(|group| group.sealed(0)));
    assert_eq!(ring.counts().on_cpu, 1);
    for name in others {
        let Ok(suite) = Suite::parse_esp(name) else { continue };
        let (keys, key) = table_of(name, 3);
        let len = if name == "aes128gmac" { 0 } else { 64 };
        let mut task = task(key, 2, len, suite.icv_len());
        if suite.integ.is_some() {
            task.op.aad = Aad::InPlace(Span::new(0, AAD + len));
        }
        assert!(ring.submit(group(&keys, [task])).is_ok());
        assert!(ring.poll().unwrap().unwrap().sealed(0), "{name}");
    }
    // Too large for a slot, more associated data than a descriptor has, an invalid span, no key.
    let mut tasks =
        [task(gcm_key, 3, 5000, ICV), task(gcm_key, 3, 64, ICV), task(gcm_key, 3, 64, ICV), task(gcm_key, 3, 64, ICV)];
    tasks[1].op.aad = Aad::InPlace(Span::new(0, 24));
    tasks[1].op.body = Span::new(24, AAD + 64);
    tasks[2].op.icv = Span::new(80, 200);
    tasks[3].op.key = KeyId(9);
    let on_cpu = ring.counts().on_cpu;
    assert!(ring.submit(group(&gcm, tasks)).is_ok());
    let done = ring.poll().unwrap().unwrap();
    assert_eq!([0, 1, 2, 3].map(|i| done.sealed(i)), [true, true, false, false]);
    assert_eq!(ring.counts().on_cpu, on_cpu + 4);
}

#[test]
fn a_group_of_both_is_complete() {
    let (mut ring, ..) = ring(SHAPE);
    let (keys, key) = table();
    let tasks = (0..GROUP as u64).map(|n| task(key, n, if n % 2 == 0 { 64 } else { 600 }, ICV));
    let mut direct = group(&keys, (0..GROUP as u64).map(|n| task(key, n, if n % 2 == 0 { 64 } else { 600 }, ICV)));
    direct.run(Engine::AwsLc, &crypto::DerivedKeys::new(0));
    assert!(ring.submit(group(&keys, tasks)).is_ok());
    let done = ring.poll().unwrap().unwrap();
    for i in 0..GROUP {
        assert!(done.sealed(i) && done.tasks[i].packet == direct.tasks[i].packet, "{i}");
    }
    assert!(ring.counts().on_cpu > 0 && ring.counts().on_device > 0);
}

#[test]
fn an_empty_group_returns_in_its_place() {
    let (mut ring, control, _) = ring(SHAPE);
    let (keys, key) = table();
    assert!(ring.submit(group(&keys, [])).is_ok());
    assert!(ring.poll().unwrap().is_some_and(|group| group.tasks.is_empty()));
    control.hold(true);
    assert!(ring.submit(group(&keys, [task(key, 0, 64, ICV)])).is_ok());
    assert!(ring.submit(group(&keys, [])).is_ok());
    assert!(ring.poll().unwrap().is_none());
    control.hold(false);
    assert_eq!(ring.poll().unwrap().unwrap().tasks.len(), 1);
    assert!(ring.poll().unwrap().unwrap().tasks.is_empty());
    drop(ring);
    assert!(control.dropped.load(Ordering::Relaxed) && !control.abandoned.load(Ordering::Relaxed));
}
