//! The stopwatch and the choice of the provider, per thread.

use std::cell::{Cell, RefCell};
use std::panic::Location;

/// Provider of the cryptography.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Provider {
    /// AWS-LC, through `weir-crypto`.
    #[default]
    Library,
    /// Nothing is computed; all lengths are the same, and both ends agree.
    Null,
}

/// A timed operation.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Operation {
    /// Makes a key pair of a key exchange.
    KeGenerate,
    /// Computes the shared secret; for a KEM encapsulation or decapsulation.
    KeAgree,
    /// Checks a public value of the peer.
    KeCheck,
    /// Pseudorandom function.
    Prf,
    /// Hash function.
    Hash,
    /// Expands a cipher key.
    KeyExpand,
    /// Protects a message.
    Encrypt,
    /// Opens a message.
    Decrypt,
    /// Makes a signature.
    Sign,
    /// Verifies a signature.
    Verify,
    /// Random bytes: nonces, SPIs, IVs.
    Random,
}

/// One operation, as it was timed.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Operation.
    pub operation: Operation,
    /// Ticks of the clock.
    pub ticks: u64,
    /// Caller: the line of the protocol that needed it.
    pub at: &'static Location<'static>,
}

#[derive(Default)]
struct State {
    provider: Cell<Provider>,
    clock: Cell<Option<fn() -> u64>>,
    /// True within an operation: what it calls is a part of it.
    inside: Cell<bool>,
    counter: Cell<u64>,
    records: RefCell<Vec<Record>>,
}

thread_local! {
    static STATE: State = State::default();
}

/// While it lives, the calling thread has the provider and the clock that it was made with.
#[derive(Debug)]
#[must_use = "dropping it ends the measurement"]
pub struct Measuring(());

/// Selects the provider of this thread, and times its operations with `clock` if there is one.
pub fn begin(provider: Provider, clock: Option<fn() -> u64>) -> Measuring {
    STATE.with(|state| {
        state.provider.set(provider);
        state.clock.set(clock);
        state.records.borrow_mut().clear();
    });
    Measuring(())
}

impl Measuring {
    /// Moves what was timed since the last call to the end of `into`.
    pub fn take(&self, into: &mut Vec<Record>) {
        STATE.with(|state| into.append(&mut state.records.borrow_mut()));
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        STATE.with(|state| {
            state.provider.set(Provider::Library);
            state.clock.set(None);
            state.records.borrow_mut().clear();
        });
    }
}

/// Returns true if this thread computes nothing.
pub(crate) fn is_null() -> bool {
    STATE.with(|state| state.provider.get() == Provider::Null)
}

/// Runs an operation, timed if the thread has a clock.
#[track_caller]
pub(crate) fn timed<T>(operation: Operation, run: impl FnOnce() -> T) -> T {
    let Some(clock) = STATE.with(|state| state.clock.get().filter(|_| !state.inside.replace(true))) else {
        return run();
    };
    let at = Location::caller();
    let start = clock();
    let result = run();
    let ticks = clock() - start;
    STATE.with(|state| {
        state.inside.set(false);
        state.records.borrow_mut().push(Record { operation, ticks, at });
    });
    result
}

/// Bytes that differ from all others of this thread: a counter that is spread over 64 bits
/// (splitmix64).
pub(crate) fn count_into(bytes: &mut [u8]) {
    for part in bytes.chunks_mut(8) {
        let next = STATE.with(|state| {
            state.counter.set(state.counter.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
            state.counter.get()
        });
        let mixed = (next ^ next >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        part.copy_from_slice(&(mixed ^ mixed >> 27).to_be_bytes()[..part.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ike::Prf;

    fn clock() -> u64 {
        thread_local!(static NOW: Cell<u64> = const { Cell::new(0) });
        NOW.with(|now| {
            now.set(now.get() + 5);
            now.get()
        })
    }

    #[test]
    fn operations_are_timed_with_their_caller_while_the_measurement_lives() {
        let mut records = Vec::new();
        let measuring = begin(Provider::Library, Some(clock));
        let _ = Prf::HmacSha256.compute(b"key", &[b"data"]);
        measuring.take(&mut records);
        drop(measuring);
        let _ = Prf::HmacSha256.compute(b"key", &[b"data"]);
        let [record] = records[..] else { panic!("{records:?}") };
        assert_eq!((record.operation, record.ticks), (Operation::Prf, 5));
        assert!(record.at.file().ends_with("meter.rs"), "{record:?}");
    }

    #[test]
    fn the_null_provider_ends_with_the_measurement() {
        let real = Prf::HmacSha256.compute(b"key", &[b"data"]);
        let measuring = begin(Provider::Null, None);
        let null = Prf::HmacSha256.compute(b"key", &[b"data"]);
        assert!(null != real && null.len() == real.len());
        let other = std::thread::spawn(|| Prf::HmacSha256.compute(b"key", &[b"data"]));
        assert!(other.join().expect("no panic") == real, "other threads are not affected");
        drop(measuring);
        assert!(Prf::HmacSha256.compute(b"key", &[b"data"]) == real);
    }

    #[test]
    fn counted_bytes_differ() {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let mut spi = [0; 4];
            count_into(&mut spi);
            seen.insert(spi);
        }
        assert!(seen.len() > 990, "{}", seen.len());
    }
}
