//! The work queue: tagged work items, taken by any free core.
//!
//! A work item is in one of a fixed number of slots. The holder of a [`Claim`] has exclusive access
//! to it. Its tag defines what may run concurrently:
//!
//! * [`Tag::Ordered`]: items of the same flow run concurrently and pass to the next tag in the
//!   order in which they entered this one;
//! * [`Tag::Atomic`]: items of the same flow run one at a time, in that order;
//! * [`Tag::Home`]: as Atomic, and always on the home core of the flow: packets sent from there
//!   stay in order in the kernel as well, because its queues are per CPU.
//!
//! A flow is a counter of tickets. An item takes a ticket when it enters the flow, before it
//! releases its turn in the previous flow: so order is preserved from tag to tag. An item before
//! its turn is de-scheduled: its core continues with other work, and the core that releases the
//! preceding turn makes it ready. There is no waiting, no allocation and no lock: a turn is passed
//! on with one atomic exchange on each side.

#![allow(unsafe_code)]

use super::sync::{AtomicU64, Ordering, UnsafeCell};

/// Maximum number of slots: a set of slots must fit into one 64-bit word.
pub const MAX_SLOTS: usize = 64;

/// Identifier of a flow. Different flows may share a number: they then wait for each other, which
/// is slower but correct.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct FlowId(pub u32);

/// Concurrency of a work item.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Tag {
    /// Concurrent with other items of the flow; all leave in order.
    Ordered(FlowId),
    /// Exclusive within the flow.
    Atomic(FlowId),
    /// Exclusive within the flow, on its home core: the flow number modulo the number of cores.
    Home(FlowId),
}

/// Position in the order of a flow (ticket lock).
#[derive(Clone, Copy, Debug)]
struct Ticket {
    flow: u32,
    number: u64,
    hold: Hold,
}

/// State of a work item in its flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Hold {
    Shared,
    Alone,
    /// Exclusive, on the home core of the flow.
    Home,
}

/// Exclusive right to process one work item. It must not be dropped, because its slot would be
/// lost: pass it on, or release it with [`WorkQueue::leave`].
#[must_use]
#[derive(Debug)]
pub(crate) struct Claim {
    slot: u32,
    ticket: Option<Ticket>,
}

/// Value on separate cache lines, because several cores write to such values.
#[repr(align(128))]
struct CacheAligned<T>(T);

struct Slot<T> {
    work: T,
    /// Its state while it is not claimed.
    ticket: Option<Ticket>,
    /// Destination while it waits for its turn in a flow.
    next: Next,
}

/// Destination of a work item when its turn has come.
#[derive(Clone, Copy)]
enum Next {
    /// Stays in the flow with exclusive access.
    Stay(Hold),
    To(Tag),
    /// Leaves the queue.
    Leave,
}

#[repr(align(128))]
struct Flow {
    /// The next ticket.
    tickets: AtomicU64,
    /// The ticket whose turn it is.
    turn: AtomicU64,
    /// Ring of waiters by ticket: the ticket, times [`WAITER`], plus the slot number from 1 on, or
    /// 0 if no slot waits with that ticket or a later one. At most one ticket per slot is issued,
    /// plus one for each that moves from a flow to the same flow.
    waiting: Box<[AtomicU64]>,
}

/// Number of values of a waiter: one more than the number of slots.
const WAITER: u64 = 128;
const _: () = assert!(MAX_SLOTS < WAITER as usize);

/// The queue.
pub(crate) struct WorkQueue<T> {
    slots: Box<[CacheAligned<UnsafeCell<Slot<T>>>]>,
    flows: Box<[Flow]>,
    /// Bit set of free slots.
    free: CacheAligned<AtomicU64>,
    /// Bit sets of ready slots: reserved for one core, per core; those that block a flow; the rest.
    homes: Box<[CacheAligned<AtomicU64>]>,
    urgent: CacheAligned<AtomicU64>,
    ready: CacheAligned<AtomicU64>,
}

// SAFETY: the work of a slot is accessed only through its `Claim`, which is neither `Clone` nor
// created twice for one slot: it comes from a bit that exactly one core could clear, or from a ring
// entry that exactly one core could empty. Both are exchanges with acquire and release, so that
// writes of the previous holder are visible. Work moves between cores: `Send`.
unsafe impl<T: Send> Sync for WorkQueue<T> {}
// SAFETY: as above; the queue owns its work.
unsafe impl<T: Send> Send for WorkQueue<T> {}

impl<T> WorkQueue<T> {
    /// Creates a queue for `cores` cores with the work items `work`, one per slot, and `flows`
    /// flows.
    ///
    /// # Panics
    /// If `work` is empty or has more than [`MAX_SLOTS`] items, or without flows or cores: a bug of
    /// the caller.
    pub(crate) fn new(work: Vec<T>, flows: usize, cores: usize) -> Self {
        assert!((1..=MAX_SLOTS).contains(&work.len()) && flows > 0 && cores > 0);
        let slots = work.len();
        let flow = || Flow {
            tickets: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            waiting: (0..2 * slots).map(|_| AtomicU64::new(0)).collect(),
        };
        let slot = |work| CacheAligned(UnsafeCell::new(Slot { work, ticket: None, next: Next::Leave }));
        Self {
            slots: work.into_iter().map(slot).collect(),
            flows: (0..flows).map(|_| flow()).collect(),
            free: CacheAligned(AtomicU64::new(u64::MAX >> (MAX_SLOTS - slots))),
            homes: (0..cores).map(|_| CacheAligned(AtomicU64::new(0))).collect(),
            urgent: CacheAligned(AtomicU64::new(0)),
            ready: CacheAligned(AtomicU64::new(0)),
        }
    }

    /// Claims a free slot; `None` if all are in use. The caller must then stop receiving
    /// (back-pressure).
    pub(crate) fn claim(&self) -> Option<Claim> {
        pick(&self.free.0).map(|slot| Claim { slot, ticket: None })
    }

    /// Claims a ready item for `core`: first those reserved for this core, then those that block a
    /// flow.
    pub(crate) fn take(&self, core: usize) -> Option<Claim> {
        // Reserved items first: no other core can take them, and their flow waits.
        let own = self.homes.get(core).and_then(|home| pick(&home.0));
        let slot = own.or_else(|| pick(&self.urgent.0)).or_else(|| pick(&self.ready.0))?;
        // SAFETY: this core cleared the bit of the slot, which makes it the only holder.
        let ticket = unsafe { self.with_slot(slot, |slot| slot.ticket) };
        Some(Claim { slot, ticket })
    }

    /// Number of ready items that any core may take.
    pub(crate) fn waiting(&self) -> u32 {
        self.urgent.0.load(Ordering::Relaxed).count_ones() + self.ready.0.load(Ordering::Relaxed).count_ones()
    }

    /// Number of ready items reserved for `core`.
    pub(crate) fn waiting_at(&self, core: usize) -> u32 {
        self.homes.get(core).map_or(0, |home| home.0.load(Ordering::Relaxed).count_ones())
    }

    /// Returns whether `core` may process `claim`; otherwise it must be published.
    #[inline]
    pub(crate) fn may_run(&self, claim: &Claim, core: usize) -> bool {
        claim.ticket.is_none_or(|ticket| ticket.hold != Hold::Home || self.home(ticket.flow) == core)
    }

    /// Returns whether there is a free slot.
    pub(crate) fn has_room(&self) -> bool {
        self.free.0.load(Ordering::Relaxed) != 0
    }

    /// Number of items in the queue.
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.0.load(Ordering::Acquire).count_ones() as usize
    }

    /// Runs `f` on the work item of `claim`.
    #[inline]
    pub(crate) fn with<R>(&self, claim: &mut Claim, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: `claim` is the only access to this slot and is borrowed while `f` runs.
        unsafe { self.with_slot(claim.slot, |slot| f(&mut slot.work)) }
    }

    /// Offers the item of `claim` to any core that its tag permits.
    pub(crate) fn publish(&self, claim: Claim) {
        let Claim { slot, ticket } = claim;
        // SAFETY: `claim` was the only access to this slot and is released only below.
        unsafe { self.with_slot(slot, |slot| slot.ticket = ticket) };
        self.announce(slot, ticket);
    }

    /// Changes the tag. Returns `None` if the turn has not come: the item is de-scheduled, and
    /// [`WorkQueue::take`] returns it once its turn comes.
    pub(crate) fn switch(&self, claim: Claim, to: Tag) -> Option<Claim> {
        let Claim { slot, ticket } = claim;
        let Some(from) = ticket else { return self.enter(slot, to) };
        let next = match self.aim(to) {
            (flow, hold) if flow == from.flow && hold != Hold::Shared && from.hold == Hold::Shared => Next::Stay(hold),
            _ => Next::To(to),
        };
        if !self.wait(slot, from, next) {
            return None;
        }
        self.at_turn(slot, from, next)
    }

    /// Releases the slot as soon as the turn of the item has come.
    pub(crate) fn leave(&self, claim: Claim) {
        let Claim { slot, ticket } = claim;
        match ticket {
            Some(ticket) if !self.wait(slot, ticket, Next::Leave) => {}
            Some(ticket) => {
                self.vacate(slot);
                self.pass_on(ticket);
            }
            None => self.vacate(slot),
        }
    }

    fn vacate(&self, slot: u32) {
        self.free.0.fetch_or(1 << slot, Ordering::Release);
    }

    /// Passes the turn on from `from`, which holds it.
    fn at_turn(&self, slot: u32, from: Ticket, next: Next) -> Option<Claim> {
        let entered = match next {
            Next::Stay(hold) => return Some(Claim { slot, ticket: Some(Ticket { hold, ..from }) }),
            Next::To(tag) => self.enter(slot, tag),
            Next::Leave => {
                self.vacate(slot);
                None
            }
        };
        self.pass_on(from);
        entered
    }

    /// Enters a flow. Returns `None` if the item waits there.
    fn enter(&self, slot: u32, to: Tag) -> Option<Claim> {
        let (flow, hold) = self.aim(to);
        // A caller with a turn passes it on only afterwards, so that tickets are in the order of
        // turns.
        let number = self.flows[flow as usize].tickets.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket { flow, number, hold };
        let on = hold == Hold::Shared || self.wait(slot, ticket, Next::Stay(hold));
        on.then_some(Claim { slot, ticket: Some(ticket) })
    }

    /// Returns whether the turn of `ticket` has come. If not, the core that releases the preceding
    /// turn takes over the slot.
    fn wait(&self, slot: u32, ticket: Ticket, next: Next) -> bool {
        let turn = &self.flows[ticket.flow as usize].turn;
        if turn.load(Ordering::Acquire) == ticket.number {
            return true;
        }
        // SAFETY: the caller has exclusive access to this slot, which ends with the exchange below.
        unsafe {
            self.with_slot(slot, |slot| (slot.ticket, slot.next) = (Some(ticket), next));
        }
        let (entry, passed) = (self.entry(ticket), ticket.number * WAITER);
        let waiting = passed + u64::from(slot) + 1;
        entry.swap(waiting, Ordering::AcqRel);
        // The core that releases the preceding turn exchanges the same entry. If it did so before
        // the exchange above, the load below sees the new turn; otherwise that core finds this
        // entry. Both may notice, so the compare-exchange decides who continues. Without it, the
        // item could run twice.
        turn.load(Ordering::Acquire) == ticket.number
            && entry.compare_exchange(waiting, passed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Releases the turn of `ticket`, and of following tickets that only waited to leave the flow.
    fn pass_on(&self, ticket: Ticket) {
        let flow = &self.flows[ticket.flow as usize];
        let mut next = ticket;
        loop {
            next.number += 1;
            flow.turn.store(next.number, Ordering::Release);
            let Some(slot) = self.waiter(next) else { return };
            // SAFETY: this core took the entry out of the ring, and with it the exclusive right to
            // the slot that it names.
            let (waited, then) = unsafe { self.with_slot(slot, |slot| (slot.ticket, slot.next)) };
            debug_assert!(waited.is_some_and(|waited| waited.number == next.number));
            match then {
                Next::Stay(hold) => {
                    self.publish(Claim { slot, ticket: Some(Ticket { hold, ..next }) });
                    return;
                }
                Next::To(tag) => self.enter(slot, tag).map_or((), |claim| self.publish(claim)),
                Next::Leave => self.vacate(slot),
            }
        }
    }

    /// Takes the slot that waits with `ticket` out of the ring of waiters. Returns `None` if it
    /// does not wait yet or has already resumed. An entry of a later ticket is not changed.
    fn waiter(&self, ticket: Ticket) -> Option<u32> {
        let entry = self.entry(ticket);
        let passed = ticket.number * WAITER;
        let mut seen = entry.load(Ordering::Relaxed);
        while seen < passed + WAITER {
            match entry.compare_exchange_weak(seen, passed, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return seen.checked_sub(passed + 1).map(|slot| slot as u32),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Returns the flow of a tag and the requested access.
    fn aim(&self, tag: Tag) -> (u32, Hold) {
        let (flow, hold) = match tag {
            Tag::Ordered(flow) => (flow, Hold::Shared),
            Tag::Atomic(flow) => (flow, Hold::Alone),
            Tag::Home(flow) => (flow, Hold::Home),
        };
        (flow.0 % self.flows.len() as u32, hold)
    }

    /// Returns the home core of a flow.
    fn home(&self, flow: u32) -> usize {
        flow as usize % self.homes.len()
    }

    fn announce(&self, slot: u32, ticket: Option<Ticket>) {
        let set = match ticket {
            Some(Ticket { hold: Hold::Home, flow, .. }) => &self.homes[self.home(flow)],
            Some(Ticket { hold: Hold::Alone, .. }) => &self.urgent,
            _ => &self.ready,
        };
        set.0.fetch_or(1 << slot, Ordering::Release);
    }

    fn entry(&self, ticket: Ticket) -> &AtomicU64 {
        let waiting = &self.flows[ticket.flow as usize].waiting;
        &waiting[(ticket.number % waiting.len() as u64) as usize]
    }

    /// # Safety
    /// The caller must have exclusive access to `slot` until this returns.
    #[inline]
    unsafe fn with_slot<R>(&self, slot: u32, f: impl FnOnce(&mut Slot<T>) -> R) -> R {
        // SAFETY: the caller guarantees exclusive access to this slot.
        self.slots[slot as usize].0.with_mut(|inside| f(unsafe { &mut *inside }))
    }
}

/// Takes one bit out of a set.
fn pick(set: &AtomicU64) -> Option<u32> {
    let mut seen = set.load(Ordering::Relaxed);
    while seen != 0 {
        let bit = seen & seen.wrapping_neg();
        let before = set.fetch_and(!bit, Ordering::AcqRel);
        if before & bit != 0 {
            return Some(bit.trailing_zeros());
        }
        seen = before & !bit;
    }
    None
}
