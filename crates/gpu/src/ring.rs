//! The ring: groups in slots, in the order of submission.
//!
//! A slot is free, then filled with groups, in flight, done, and drained group by group. It is
//! launched when it is full, when it was filled for [`Settings::flush_ns`], at a flush, and when
//! nothing is in flight. Slots are used in turn, so that the order of slots, and of groups within
//! them, is that of the submissions.

use std::collections::VecDeque;
use std::time::Instant;

use crypto::accelerator::{Accelerator, Direction, GROUP, GROUP_MAX, Gone, Group};
use crypto::{DerivedKeys, Engine, KeyId, KeyTable};
use zeroize::Zeroize;

use crate::keys::KeySlots;
use crate::packet::{AAD_MAX, DESCRIPTOR_BYTES, Descriptor, TAG_BYTES, lanes_shift, padded};
use crate::{Device, DeviceError, Launch, Shape};

/// Longest time between two polls that counts for the watchdog: a host that was suspended, or a
/// caller that was, is no failure of the device.
const LONGEST_POLL_NS: u64 = 10_000_000;

/// Times of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Maximum time from the first group of a slot to its launch, in ns.
    pub flush_ns: u64,
    /// Time without a completion after which the device has failed, in ns.
    pub watchdog_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { flush_ns: 20_000, watchdog_ns: 100_000_000 }
    }
}

/// State of a slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SlotState {
    /// Without groups.
    Free,
    /// Has groups, and may get more.
    Filling,
    /// Launched.
    InFlight,
    /// Complete, and no group was polled.
    Done,
    /// A group was polled.
    Draining,
}

/// Counters of a ring.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Launches.
    pub launches: u64,
    /// Packets that the device processed.
    pub on_device: u64,
    /// Packets that the CPU processed: another suite, no key slot, too large, or invalid.
    pub on_cpu: u64,
}

/// A group in a slot. `on_device` has a bit for each task that the device processes.
struct Waiting<P> {
    group: Group<P>,
    on_device: u64,
}

struct Slot<P> {
    state: SlotState,
    groups: VecDeque<Waiting<P>>,
    /// Packets in the slot, and their bytes.
    packets: usize,
    used: usize,
    /// First packet and first byte of the next group to return.
    next_packet: usize,
    next_at: usize,
    first_ns: u64,
}

/// An asynchronous engine on a device.
pub struct Gpu<D: Device, P> {
    /// `None` only while it is abandoned.
    device: Option<D>,
    shape: Shape,
    lanes_at_once: usize,
    cpu: Engine,
    settings: Settings,
    now_ns: Box<dyn Fn() -> u64 + Send>,
    slots: Vec<Slot<P>>,
    /// The slot that is filled or would be, and the one from which groups return.
    filling: usize,
    oldest: usize,
    in_flight: usize,
    under_way: usize,
    keys: KeySlots,
    derived: DerivedKeys,
    counts: Counts,
    gone: Option<Gone>,
    error: Option<DeviceError>,
    /// Time of the last poll that found the oldest slot in flight, and how long that has lasted.
    polled_ns: u64,
    quiet_ns: u64,
}

impl<D: Device, P: AsMut<[u8]> + Send> Gpu<D, P> {
    /// Creates a ring on a device. `cpu` runs what the device cannot; it must be the engine that
    /// expanded the keys.
    pub fn new(device: D, cpu: Engine, settings: Settings) -> Self {
        let start = Instant::now();
        Self::with_clock(device, cpu, settings, move || start.elapsed().as_nanos() as u64)
    }

    /// As [`Gpu::new`], with a clock in nanoseconds.
    pub fn with_clock(device: D, cpu: Engine, settings: Settings, now_ns: impl Fn() -> u64 + Send + 'static) -> Self {
        let shape = device.shape();
        let slot = || Slot {
            state: SlotState::Free,
            groups: VecDeque::with_capacity(groups_per_slot(&shape)),
            packets: 0,
            used: 0,
            next_packet: 0,
            next_at: 0,
            first_ns: 0,
        };
        Self {
            lanes_at_once: device.lanes_at_once(),
            device: Some(device),
            shape,
            cpu,
            settings,
            now_ns: Box::new(now_ns),
            slots: (0..shape.slots).map(|_| slot()).collect(),
            filling: 0,
            oldest: 0,
            in_flight: 0,
            under_way: 0,
            keys: KeySlots::new(shape.keys),
            derived: DerivedKeys::new(0),
            counts: Counts::default(),
            gone: None,
            error: None,
            polled_ns: 0,
            quiet_ns: 0,
        }
    }

    /// Counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Error of the device that was the reason for [`Gone::DeviceFailed`].
    pub fn error(&self) -> Option<&DeviceError> {
        self.error.as_ref()
    }

    /// State of a slot.
    pub fn slot_state(&self, slot: usize) -> Option<SlotState> {
        self.slots.get(slot).map(|slot| slot.state)
    }

    /// Number of keys on the device.
    pub fn keys_on_device(&self) -> usize {
        self.keys.len()
    }

    /// Zeroes the slots of all keys that no table has any more. The ring does so by itself for one
    /// key per slot that it drained.
    pub fn remove_keys(&mut self) {
        for _ in 0..self.keys.capacity() {
            let Some(device) = self.device.as_mut().filter(|_| self.gone.is_none()) else { return };
            if let Err(error) = self.keys.check_next(device) {
                self.fail(error);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn device_mut(&mut self) -> &mut D {
        self.device.as_mut().expect("not abandoned")
    }

    fn fail(&mut self, error: DeviceError) {
        self.error = Some(error);
        self.gone = Some(Gone::DeviceFailed);
    }

    /// Gives a key of a table a slot; `None` without a free one.
    fn add_key(&mut self, table: &KeyTable, id: KeyId, may_clear: &mut bool) -> Result<Option<u32>, DeviceError> {
        let (Some(device), Some(key)) = (self.device.as_mut(), table.shared(id)) else { return Ok(None) };
        self.keys.insert(device, &key, may_clear)
    }

    /// Key slots of the tasks that the device processes, with a bit for each.
    fn plan(&mut self, group: &mut Group<P>) -> Result<Plan, DeviceError> {
        let mut plan = Plan { keys: [0; GROUP_MAX], on_device: 0, packets: 0, bytes: 0 };
        // Each removal waits for the device: one per group is enough, because others follow.
        let mut may_clear = true;
        for i in 0..group.tasks.len() {
            let Some(op) = group.device_op(i) else { continue };
            let bytes = padded(op.body.len());
            // A group must fit an empty slot as a whole.
            if op.aad.len() > AAD_MAX || plan.packets == self.shape.packets || bytes > self.shape.bytes - plan.bytes {
                continue;
            }
            let slot = match self.keys.find(op.key.id()) {
                None => self.add_key(&group.keys, group.tasks[i].op.key, &mut may_clear)?,
                found => found,
            };
            let Some(slot) = slot else { continue };
            plan.keys[i] = slot;
            plan.on_device |= 1 << i;
            plan.packets += 1;
            plan.bytes += bytes;
        }
        Ok(plan)
    }

    /// Returns true if the slot that is filled has room, or the next one after a launch.
    fn has_room(&mut self, plan: &Plan) -> bool {
        for _ in 0..2 {
            let slot = &self.slots[self.filling];
            let fits = slot.packets + plan.packets <= self.shape.packets
                && slot.used + plan.bytes <= self.shape.bytes
                && slot.groups.len() < groups_per_slot(&self.shape);
            match slot.state {
                SlotState::Free => return true,
                SlotState::Filling if fits => return true,
                SlotState::Filling => self.launch(),
                SlotState::InFlight | SlotState::Done | SlotState::Draining => return false,
            }
        }
        false
    }

    /// Copies the tasks of a group into the slot that is filled.
    fn fill(&mut self, group: &mut Group<P>, plan: &Plan) -> Result<(), DeviceError> {
        if plan.on_device == 0 {
            return Ok(());
        }
        let Some(device) = self.device.as_mut() else { return Ok(()) };
        let (memory, slot) = (device.memory(self.filling)?, &mut self.slots[self.filling]);
        let open = group.direction == Direction::Open;
        let data_at = self.shape.data_at();
        for i in (0..group.tasks.len()).filter(|i| plan.on_device >> i & 1 == 1) {
            let Some(op) = group.device_op(i) else { continue };
            let (body_at, body_len) = (data_at + slot.used, op.body.len());
            let mut aad = [0; AAD_MAX];
            aad[..op.aad.len()].copy_from_slice(op.aad);
            let key = plan.keys[i];
            let descriptor = Descriptor { body_at, body_len, aad_len: op.aad.len(), key, nonce: op.nonce, open, aad };
            let descriptor_at = data_at - DESCRIPTOR_BYTES * (slot.packets + 1);
            memory[descriptor_at..descriptor_at + DESCRIPTOR_BYTES].copy_from_slice(&descriptor.bytes());
            memory[body_at..body_at + body_len].copy_from_slice(op.body);
            slot.packets += 1;
            slot.used += padded(body_len);
        }
        Ok(())
    }

    /// Launches the slot that is filled, if it has groups.
    fn launch(&mut self) {
        let slot = &mut self.slots[self.filling];
        if slot.state != SlotState::Filling || self.gone.is_some() {
            return;
        }
        if slot.packets == 0 {
            slot.state = SlotState::Done;
        } else {
            let data_at = self.shape.data_at();
            let lanes_shift = lanes_shift(slot.packets, slot.used, self.lanes_at_once);
            let launch = Launch { packets: slot.packets, data_at, tags_at: data_at + slot.used, lanes_shift };
            slot.state = SlotState::InFlight;
            self.counts.launches += 1;
            if self.in_flight == 0 {
                (self.polled_ns, self.quiet_ns) = ((self.now_ns)(), 0);
            }
            self.in_flight += 1;
            if let Some(Err(error)) = self.device.as_mut().map(|device| device.launch(self.filling, &launch)) {
                self.fail(error);
            }
        }
        self.filling = (self.filling + 1) % self.slots.len();
    }

    /// Launches the slot that is filled if it has waited long enough, or if the device is idle.
    fn launch_if_due(&mut self) {
        let slot = &self.slots[self.filling];
        if slot.state == SlotState::Filling
            && (self.in_flight == 0 || (self.now_ns)().saturating_sub(slot.first_ns) >= self.settings.flush_ns)
        {
            self.launch();
        }
    }

    /// Moves the oldest slot from in flight to done if it is. Fails after too long a time.
    fn complete_oldest(&mut self) {
        let Some(device) = self.device.as_ref() else { return };
        match device.is_done(self.oldest) {
            Ok(true) => {
                self.slots[self.oldest].state = SlotState::Done;
                self.in_flight -= 1;
                (self.polled_ns, self.quiet_ns) = ((self.now_ns)(), 0);
            }
            Ok(false) => {
                let now_ns = (self.now_ns)();
                self.quiet_ns += now_ns.saturating_sub(self.polled_ns).min(LONGEST_POLL_NS);
                self.polled_ns = now_ns;
                if self.quiet_ns >= self.settings.watchdog_ns {
                    self.gone = Some(Gone::TimedOut { ms: self.quiet_ns / 1_000_000 });
                }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Takes the next group out of the oldest slot, with its results.
    fn drain(&mut self) -> Option<Group<P>> {
        let slot = &mut self.slots[self.oldest];
        slot.state = SlotState::Draining;
        let Waiting { mut group, on_device } = slot.groups.pop_front()?;
        if on_device != 0 {
            let device = self.device.as_mut()?;
            let memory = match device.memory(self.oldest) {
                Ok(memory) => memory,
                Err(error) => {
                    self.fail(error);
                    return None;
                }
            };
            let (data_at, tags_at) = (self.shape.data_at(), self.shape.data_at() + slot.used);
            let mut failed = None;
            for i in (0..group.tasks.len()).filter(|i| on_device >> i & 1 == 1) {
                let len = group.tasks[i].op.body.len();
                let tag_at = tags_at + slot.next_packet * TAG_BYTES;
                let mut tag = [0; TAG_BYTES];
                tag.copy_from_slice(&memory[tag_at..tag_at + TAG_BYTES]);
                let body = &mut memory[data_at + slot.next_at..][..len];
                if !group.finish_device(i, body, &tag) {
                    // Plaintext that is not authentic: it must not be in the slot any longer.
                    body.zeroize();
                    let (at, end) = (data_at + slot.next_at, data_at + slot.next_at + padded(len));
                    failed = Some((failed.map_or(at, |(first, _)| first), end));
                }
                slot.next_packet += 1;
                slot.next_at += padded(len);
            }
            // On the device, from the first to the last: one command for a group of forged packets.
            if let Some(Err(error)) = failed.map(|(first, end)| device.wipe(self.oldest, first..end)) {
                self.fail(error);
                return None;
            }
        }
        if slot.groups.is_empty() {
            slot.state = SlotState::Free;
            (slot.packets, slot.used, slot.next_packet, slot.next_at) = (0, 0, 0, 0);
            self.oldest = (self.oldest + 1) % self.slots.len();
            if let Some(Err(error)) = self.device.as_mut().map(|device| self.keys.check_next(device)) {
                self.fail(error);
            }
        }
        self.under_way -= 1;
        Some(group)
    }
}

/// Tasks of a group that the device processes.
struct Plan {
    keys: [u32; GROUP_MAX],
    on_device: u64,
    packets: usize,
    bytes: usize,
}

fn groups_per_slot(shape: &Shape) -> usize {
    (shape.packets / GROUP).max(1)
}

impl<D: Device, P: AsMut<[u8]> + Send> Accelerator<P> for Gpu<D, P> {
    fn submit(&mut self, mut group: Group<P>) -> Result<(), Group<P>> {
        let is_full = !matches!(self.slots[self.filling].state, SlotState::Free | SlotState::Filling);
        if self.gone.is_some() || is_full {
            return Err(group);
        }
        let plan = match self.plan(&mut group) {
            Ok(plan) => plan,
            Err(error) => {
                self.fail(error);
                return Err(group);
            }
        };
        if !self.has_room(&plan) || self.gone.is_some() {
            return Err(group);
        }
        if let Err(error) = self.fill(&mut group, &plan) {
            self.fail(error);
            return Err(group);
        }
        let all = group.tasks.len();
        if plan.packets < all {
            group.run_some(!plan.on_device, self.cpu, &self.derived);
        }
        self.counts.on_device += plan.packets as u64;
        self.counts.on_cpu += (all - plan.packets) as u64;
        let slot = &mut self.slots[self.filling];
        if slot.state == SlotState::Free {
            slot.state = SlotState::Filling;
            slot.first_ns = (self.now_ns)();
        }
        slot.groups.push_back(Waiting { group, on_device: plan.on_device });
        self.under_way += 1;
        if self.in_flight == 0 {
            self.launch();
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Group<P>>, Gone> {
        if self.gone.is_none() {
            self.launch_if_due();
        }
        if self.gone.is_none() && self.slots[self.oldest].state == SlotState::InFlight {
            self.complete_oldest();
        }
        let is_done = matches!(self.slots[self.oldest].state, SlotState::Done | SlotState::Draining);
        let group = if self.gone.is_none() && is_done { self.drain() } else { None };
        self.gone.map_or(Ok(group), Err)
    }

    fn flush(&mut self) {
        self.launch();
    }

    fn ready(&self) -> bool {
        let is_complete = || self.device.as_ref().is_none_or(|device| device.is_done(self.oldest) != Ok(false));
        self.gone.is_some()
            || match self.slots[self.oldest].state {
                SlotState::Free | SlotState::Filling => false,
                SlotState::InFlight => is_complete(),
                SlotState::Done | SlotState::Draining => true,
            }
    }

    fn under_way(&self) -> usize {
        self.under_way
    }

    fn capacity(&self) -> usize {
        self.slots.len() * groups_per_slot(&self.shape)
    }

    fn abandon(mut self: Box<Self>) {
        if let Some(mut device) = self.device.take() {
            for slot in 0..self.slots.len() {
                // Bodies. Memory in flight is refused: the device may still write it.
                if let Ok(memory) = device.memory(slot) {
                    memory.zeroize();
                }
            }
            device.abandon();
        }
    }
}
