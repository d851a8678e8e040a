//! The work queue: pieces of work with tags, taken by whichever core is free.
//!
//! A work item is in one of a fixed number of slots. The holder of a [`Held`] has exclusive access
//! to it. Its tag defines what may run concurrently:
//!
//! * [`Tag::Ordered`]: pieces of the same flow run at the same time, and pass to the next tag in the order in which they
//!   came to this one;
//! * [`Tag::Atomic`]: pieces of the same flow run one at a time, in that order;
//! * [`Tag::Home`]: the same, and always on the core that the flow belongs to: packets sent there
//!   stay in order in the kernel, too, because its queues are per CPU.
//!
//! A flow is a counter of tickets. An item takes a ticket when it enters the flow, before it
//! releases its turn in the previous flow: so order is preserved from tag to tag. An item before
//! its turn is de-scheduled: its core continues with other work, and the core that releases the
//! preceding turn makes it ready. There is no waiting, no allocation and no lock: a turn is passed
//! on with one atomic exchange on each side.

#![allow(unsafe_code)]

use super::sync::{AtomicU64, Ordering, UnsafeCell};

/// Most places of a queue: a set of them is one word.
pub const MAX_PLACES: usize = 64;

/// Names an order of work. Different orders may share a number: they then wait for each other, and nothing breaks.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct FlowId(pub u32);

/// Concurrency of a work item.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Tag {
    /// Others of the flow, which all leave in order.
    Ordered(FlowId),
    /// None of the flow.
    Atomic(FlowId),
    /// None of the flow, on the core that the flow belongs to: its number modulo the number of cores.
    Home(FlowId),
}

/// A place in the order of a flow.
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
    /// Alone, on the core that the flow belongs to.
    Home,
}

/// The right to work on one piece. Dropping it loses a place of the queue for good: pass it on, or give it back with
/// [`WorkQueue::leave`].
#[must_use]
#[derive(Debug)]
pub(crate) struct Held {
    place: u32,
    ticket: Option<Ticket>,
}

/// Written by several cores, each on its own line.
#[repr(align(128))]
struct Apart<T>(T);

struct Place<T> {
    work: T,
    /// Its state while it is not held.
    ticket: Option<Ticket>,
    /// While it waits for its turn in a flow: where it goes from there.
    next: Next,
}

/// Destination of a work item when its turn has come.
#[derive(Clone, Copy)]
enum Next {
    /// It stays and has the flow for itself.
    Stay(Hold),
    To(Tag),
    /// Out of the queue.
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
const _: () = assert!(MAX_PLACES < WAITER as usize);

/// The queue.
pub(crate) struct WorkQueue<T> {
    places: Box<[Apart<UnsafeCell<Place<T>>>]>,
    flows: Box<[Flow]>,
    /// Places without work, a bit each.
    free: Apart<AtomicU64>,
    /// Bit sets of ready slots: reserved for one core, per core; those that block a flow; the rest.
    homes: Box<[Apart<AtomicU64>]>,
    urgent: Apart<AtomicU64>,
    ready: Apart<AtomicU64>,
}

// SAFETY: the work of a slot is accessed only through its `Held`, which is neither `Clone` nor
// created twice for one slot: it comes from a bit that exactly one core could clear, or from a ring
// entry that exactly one core could empty. Both are exchanges with acquire and release, so that
// writes of the previous holder are visible. Work moves between cores: `Send`.
unsafe impl<T: Send> Sync for WorkQueue<T> {}
// SAFETY: as above; the queue owns its work.
unsafe impl<T: Send> Send for WorkQueue<T> {}

impl<T> WorkQueue<T> {
    /// A queue of `cores` cores that holds `work`, one piece in each place, and keeps `flows` orders apart.
    ///
    /// # Panics
    /// Without work, with more than [`MAX_PLACES`] pieces, or without flows or cores: a bug of the caller.
    pub(crate) fn new(work: Vec<T>, flows: usize, cores: usize) -> Self {
        assert!((1..=MAX_PLACES).contains(&work.len()) && flows > 0 && cores > 0);
        let places = work.len();
        let flow = || Flow {
            tickets: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            waiting: (0..2 * places).map(|_| AtomicU64::new(0)).collect(),
        };
        let place = |work| Apart(UnsafeCell::new(Place { work, ticket: None, next: Next::Leave }));
        Self {
            places: work.into_iter().map(place).collect(),
            flows: (0..flows).map(|_| flow()).collect(),
            free: Apart(AtomicU64::new(u64::MAX >> (MAX_PLACES - places))),
            homes: (0..cores).map(|_| Apart(AtomicU64::new(0))).collect(),
            urgent: Apart(AtomicU64::new(0)),
            ready: Apart(AtomicU64::new(0)),
        }
    }

    /// A place without work, to be filled; `None` when all are in use: the input has to wait.
    pub(crate) fn claim(&self) -> Option<Held> {
        pick(&self.free.0).map(|place| Held { place, ticket: None })
    }

    /// Work that may go on at `core`: what it alone may take first, then what others wait for.
    pub(crate) fn take(&self, core: usize) -> Option<Held> {
        let own = self.homes.get(core).and_then(|home| pick(&home.0));
        let place = own.or_else(|| pick(&self.urgent.0)).or_else(|| pick(&self.ready.0))?;
        // SAFETY: the bit of the place was ours to clear.
        let ticket = unsafe { self.place(place, |place| place.ticket) };
        Some(Held { place, ticket })
    }

    /// Pieces of work that wait for a core, whichever it is.
    pub(crate) fn waiting(&self) -> u32 {
        self.urgent.0.load(Ordering::Relaxed).count_ones() + self.ready.0.load(Ordering::Relaxed).count_ones()
    }

    /// Pieces of work that wait for `core` and no other.
    pub(crate) fn waiting_at(&self, core: usize) -> u32 {
        self.homes.get(core).map_or(0, |home| home.0.load(Ordering::Relaxed).count_ones())
    }

    /// Returns whether `core` may process `held`; otherwise it must be published.
    #[inline]
    pub(crate) fn may_run(&self, held: &Held, core: usize) -> bool {
        held.ticket.is_none_or(|ticket| ticket.hold != Hold::Home || self.home(ticket.flow) == core)
    }

    /// Returns whether there is a free slot.
    pub(crate) fn has_room(&self) -> bool {
        self.free.0.load(Ordering::Relaxed) != 0
    }

    /// Pieces of work in the queue.
    pub(crate) fn in_use(&self) -> usize {
        self.places.len() - self.free.0.load(Ordering::Acquire).count_ones() as usize
    }

    /// The work that `held` is for.
    #[inline]
    pub(crate) fn with<R>(&self, held: &mut Held, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: `held` is the one right to this place, and borrowed for as long as `f` runs.
        unsafe { self.place(held.place, |place| f(&mut place.work)) }
    }

    /// Leaves `held` to any core, with its tag.
    pub(crate) fn publish(&self, held: Held) {
        let Held { place, ticket } = held;
        // SAFETY: `held` was the one right to this place, and is given up only below.
        unsafe { self.place(place, |place| place.ticket = ticket) };
        self.announce(place, ticket);
    }

    /// Changes the tag. `None`: the turn has not come, the work is de-scheduled, and [`WorkQueue::take`] will give it
    /// to some core when it has come.
    pub(crate) fn switch(&self, held: Held, to: Tag) -> Option<Held> {
        let Held { place, ticket } = held;
        let Some(from) = ticket else { return self.enter(place, to) };
        let next = match self.aim(to) {
            (flow, hold) if flow == from.flow && hold != Hold::Shared && from.hold == Hold::Shared => Next::Stay(hold),
            _ => Next::To(to),
        };
        if !self.wait(place, from, next) {
            return None;
        }
        self.at_turn(place, from, next)
    }

    /// Gives the work's place back as soon as its turn has come.
    pub(crate) fn leave(&self, held: Held) {
        let Held { place, ticket } = held;
        match ticket {
            Some(ticket) if !self.wait(place, ticket, Next::Leave) => {}
            Some(ticket) => {
                self.vacate(place);
                self.pass_on(ticket);
            }
            None => self.vacate(place),
        }
    }

    fn vacate(&self, place: u32) {
        self.free.0.fetch_or(1 << place, Ordering::Release);
    }

    /// Passes the turn on from `from`, which has it.
    fn at_turn(&self, place: u32, from: Ticket, next: Next) -> Option<Held> {
        let entered = match next {
            Next::Stay(hold) => return Some(Held { place, ticket: Some(Ticket { hold, ..from }) }),
            Next::To(tag) => self.enter(place, tag),
            Next::Leave => {
                self.vacate(place);
                None
            }
        };
        self.pass_on(from);
        entered
    }

    /// Enters a flow. `None`: it waits there.
    fn enter(&self, place: u32, to: Tag) -> Option<Held> {
        let (flow, hold) = self.aim(to);
        let number = self.flows[flow as usize].tickets.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket { flow, number, hold };
        let on = hold == Hold::Shared || self.wait(place, ticket, Next::Stay(hold));
        on.then_some(Held { place, ticket: Some(ticket) })
    }

    /// Returns whether the turn of `ticket` has come. If not, the core that releases the preceding
    /// turn takes over the slot.
    fn wait(&self, place: u32, ticket: Ticket, next: Next) -> bool {
        let turn = &self.flows[ticket.flow as usize].turn;
        if turn.load(Ordering::Acquire) == ticket.number {
            return true;
        }
        // SAFETY: the caller has the one right to this place; it is given up by the exchange below.
        unsafe {
            self.place(place, |place| (place.ticket, place.next) = (Some(ticket), next));
        }
        let (slot, passed) = (self.slot(ticket), ticket.number * WAITER);
        let waiting = passed + u64::from(place) + 1;
        slot.swap(waiting, Ordering::AcqRel);
        // The core that released the preceding turn has changed the next entry. If that was before
        // our exchange, we have read its value and see the turn; otherwise it finds our entry,
        // unless we are faster.
        turn.load(Ordering::Acquire) == ticket.number
            && slot.compare_exchange(waiting, passed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives up the turn of `ticket`, also for those after it that only waited to leave the flow.
    fn pass_on(&self, ticket: Ticket) {
        let flow = &self.flows[ticket.flow as usize];
        let mut next = ticket;
        loop {
            next.number += 1;
            flow.turn.store(next.number, Ordering::Release);
            let Some(place) = self.waiter(next) else { return };
            // SAFETY: it was ours to take out of the slot, and with it goes the right to the place that it named.
            let (waited, then) = unsafe { self.place(place, |place| (place.ticket, place.next)) };
            debug_assert!(waited.is_some_and(|waited| waited.number == next.number));
            match then {
                Next::Stay(hold) => {
                    self.publish(Held { place, ticket: Some(Ticket { hold, ..next }) });
                    return;
                }
                Next::To(tag) => self.enter(place, tag).map_or((), |held| self.publish(held)),
                Next::Leave => self.vacate(place),
            }
        }
    }

    /// Takes the place that waits with `ticket` out of its slot. Nothing is there when it does not wait yet, or was
    /// quicker; a slot that has gone to a later ticket is left alone.
    fn waiter(&self, ticket: Ticket) -> Option<u32> {
        let slot = self.slot(ticket);
        let passed = ticket.number * WAITER;
        let mut seen = slot.load(Ordering::Relaxed);
        while seen < passed + WAITER {
            match slot.compare_exchange_weak(seen, passed, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return seen.checked_sub(passed + 1).map(|place| place as u32),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// The flow of a tag, and what is to be had of it.
    fn aim(&self, tag: Tag) -> (u32, Hold) {
        let (flow, hold) = match tag {
            Tag::Ordered(flow) => (flow, Hold::Shared),
            Tag::Atomic(flow) => (flow, Hold::Alone),
            Tag::Home(flow) => (flow, Hold::Home),
        };
        (flow.0 % self.flows.len() as u32, hold)
    }

    /// The core that a flow belongs to.
    fn home(&self, flow: u32) -> usize {
        flow as usize % self.homes.len()
    }

    fn announce(&self, place: u32, ticket: Option<Ticket>) {
        let set = match ticket {
            Some(Ticket { hold: Hold::Home, flow, .. }) => &self.homes[self.home(flow)],
            Some(Ticket { hold: Hold::Alone, .. }) => &self.urgent,
            _ => &self.ready,
        };
        set.0.fetch_or(1 << place, Ordering::Release);
    }

    fn slot(&self, ticket: Ticket) -> &AtomicU64 {
        let waiting = &self.flows[ticket.flow as usize].waiting;
        &waiting[(ticket.number % waiting.len() as u64) as usize]
    }

    /// # Safety
    /// The caller has the one right to `place`, and keeps it until this returns.
    #[inline]
    unsafe fn place<R>(&self, place: u32, f: impl FnOnce(&mut Place<T>) -> R) -> R {
        // SAFETY: the caller guarantees exclusive access to this slot.
        self.places[place as usize].0.with_mut(|inside| f(unsafe { &mut *inside }))
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
