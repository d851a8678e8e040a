//! Drops clear text that policies protect (RFC 4301 §5.1, §5.2), by a separate nftables table.
//!
//! The TUN device only receives packets that the routing table directs into it, and the outer side
//! only ESP, AH, EESP and PSP. Everything else passes through the kernel alone, so the kernel must
//! drop it: packets that arrive in clear text although a policy protects them, packets from outside
//! with a source of this side, and packets that would leave in clear text because rule or routes
//! are gone. The table exists from the first policy on and survives every end of the process. It
//! should only be removed by an orderly stop with `on_stop = open` or by `weir down`.
//!
//! `docs/decisions/0016-nftables-guard.md` gives the reasons.

mod kernel;
mod nft;
mod rules;

use std::collections::HashSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::border::{Closes, Filter, Legacy};
use crate::config::Config;
use crate::netlink::{NETFILTER, Netlink};
use kernel::{Kernel, NfTables};
use nft::Transaction;
#[cfg(feature = "simulation")]
pub(crate) use rules::model;
use rules::{Additions, COUNTERS, Fixed};
pub(crate) use rules::{Exempt, GuardPolicy, Rules, Verdict, by_source, contains, overlap, with_exempt};

/// Shortest time between two restorations: another program may remove the table again and again.
const RESTORE_EVERY: Duration = Duration::from_millis(100);
/// Delay before a failed replacement is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Policies that are put into the kernel at once, whatever it costs: replacing their table takes a
/// millisecond or so.
const AT_ONCE: usize = 64;
/// Above that, a replacement is followed by a pause of its duration times this, so that many
/// changes one after the other cost a fraction of the control thread's time instead of growing with
/// the square of their number.
const PAUSE: u32 = 10;
/// Interval at which counters are read: the maximum age of reports.
const COUNT_EVERY: Duration = Duration::from_millis(500);

/// When a table may be replaced again: that of the guard, and that of packets while connections are
/// loaded one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// End of the pause after the last replacement.
    rests_until: Option<Instant>,
}

impl Pace {
    pub(crate) fn rests(self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Returns whether a change to this number of policies waits for the end of the pause.
    pub(crate) fn waits(self, now: Instant, policies: usize) -> bool {
        policies > AT_ONCE && self.rests(now)
    }

    /// The table was replaced, which took that long.
    pub(crate) fn replaced(&mut self, now: Instant, took: Duration) {
        self.rest(now, took * PAUSE);
    }

    /// Begins a pause of that length.
    pub(crate) fn rest(&mut self, now: Instant, pause: Duration) {
        self.rests_until = Some(now + pause);
    }

    /// Rest of the pause.
    pub(crate) fn left(self, now: Instant) -> Duration {
        self.rests_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// Operation that nf_tables refused.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot {what} the nftables table '{table}': {source}; nf_tables with its fib and inet parts must be in the kernel \
     (modprobe nf_tables nft_fib_inet), or set 'guard = none' in the section 'gateway' and drop clear text yourself"
)]
pub(crate) struct GuardError {
    what: &'static str,
    table: String,
    source: io::Error,
}

/// Packets and bytes that the guard dropped since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counters {
    /// Arrived in clear text although a policy protects them.
    pub(crate) clear_in: (u64, u64),
    /// Arrived from outside with a source of this side.
    pub(crate) spoofed_in: (u64, u64),
    /// Would have left in clear text although a policy protects them.
    pub(crate) clear_out: (u64, u64),
}

/// The table in the kernel; removed when dropped, unless it must stay.
pub(crate) struct Guard<K: NfTables = Kernel> {
    kernel: K,
    fixed: Fixed,
    /// Rules of the last replacement.
    current: Option<Rules>,
    /// Policies that were appended to them since.
    appended: Vec<GuardPolicy>,
    /// Sets in the table that appended rules have.
    added_sets: u32,
    /// Policies in the kernel: those of `current` and the appended ones.
    in_force: HashSet<GuardPolicy>,
    /// Last values of the counters: they go with the table when another program removes it.
    counted: [(u64, u64); 3],
    /// Time of the next read of the counters.
    count_at: Instant,
    /// Rules in the table, to compare with after notifications were lost.
    rules: usize,
    /// Rules to install once the pause after the last replacement is over.
    waiting: Option<Rules>,
    pace: Pace,
    /// A replacement failed halfway: the temporary table may be in force besides the table, and the
    /// table may not be that of `current`.
    unsettled: bool,
    /// Time of the next attempt of a replacement that failed.
    retry_at: Option<Instant>,
    /// Another program changed the table.
    damaged: bool,
    /// Time of the last restoration.
    restored: Option<Instant>,
    legacy: Legacy,
}

/// Name of the table of the gateway with that TUN device.
fn table(tun: &str) -> String {
    format!("weir-{tun}")
}

/// Name of the temporary table during a replacement.
fn interim(table: &str) -> String {
    format!("{table}-next")
}

impl Guard {
    /// Opens the sockets; the kernel is not changed yet.
    ///
    /// # Errors
    /// The kernel has no nf_tables, or the process may not use it.
    pub(crate) fn open(config: &Config) -> Result<Self, GuardError> {
        let fixed = Fixed {
            table: table(&config.gateway.tun),
            tun: config.gateway.tun.clone(),
            mark: config.gateway.fwmark,
            reverse_path: config.gateway.guard_rpf,
        };
        let mut kernel =
            Kernel::open().map_err(|source| GuardError { what: "open", table: fixed.table.clone(), source })?;
        let adopted = kernel.has_table(&fixed.table);
        Ok(Self::new(kernel, fixed, adopted))
    }
}

impl<K: NfTables> Guard<K> {
    fn new(kernel: K, fixed: Fixed, adopted: bool) -> Self {
        Self {
            kernel,
            fixed,
            current: None,
            appended: Vec::new(),
            added_sets: 0,
            in_force: HashSet::new(),
            counted: [(0, 0); 3],
            count_at: Instant::now(),
            rules: 0,
            waiting: None,
            pace: Pace::default(),
            unsettled: false,
            retry_at: None,
            damaged: false,
            restored: None,
            legacy: Legacy::of(adopted),
        }
    }

    fn replace(&mut self, wanted: Rules) -> Result<(), GuardError> {
        self.waiting = None;
        self.try_replace(&wanted)?;
        self.replaced(wanted);
        Ok(())
    }

    /// Puts the rules that wait in force. After an error they wait for the next attempt: nothing
    /// else would request them again.
    fn replace_waiting(&mut self) -> Result<(), GuardError> {
        let Some(wanted) = self.waiting.take() else { return Ok(()) };
        let outcome = self.try_replace(&wanted);
        match outcome {
            Ok(()) => self.replaced(wanted),
            Err(_) => self.waiting = Some(wanted),
        }
        outcome
    }

    fn try_replace(&mut self, wanted: &Rules) -> Result<(), GuardError> {
        if self.current.is_some() {
            self.count();
        }
        let start = Instant::now();
        self.install(wanted, &[])?;
        let end = Instant::now();
        self.pace.replaced(end, end - start);
        Ok(())
    }

    fn replaced(&mut self, wanted: Rules) {
        self.appended.clear();
        self.in_force = wanted.policies.iter().copied().collect();
        self.current = Some(wanted);
    }

    /// Replaces the table. The kernel applies elements of interval sets after the rules of the same
    /// transaction, and the thread may be preempted in between: clear text would pass during that
    /// time. So a second table with the new rules exists during the replacement.
    ///
    /// # Errors
    /// What nf_tables refuses. The rules before are in force then: if the second table can be
    /// removed now, or else after [`Closes::tick`] or the next replacement.
    fn install(&mut self, wanted: &Rules, appended: &[GuardPolicy]) -> Result<(), GuardError> {
        let interim = interim(&self.fixed.table);
        let built = self.build(&interim, wanted, appended).and_then(|_| {
            (self.rules, self.added_sets) = self.build(&self.fixed.table.clone(), wanted, appended)?;
            Ok(())
        });
        // Also after a failure: the second table would drop what the rules before let pass.
        let removed = self.remove_table(&interim);
        let is_timeout = |error: &GuardError| error.source.kind() == io::ErrorKind::WouldBlock;
        self.unsettled = removed.is_err() || built.as_ref().is_err_and(is_timeout);
        if let (Ok(()), Err(error)) = (&built, removed) {
            // Both tables have the same rules, so the replacement is complete nevertheless.
            tracing::warn!(target: "guard", "{error}");
        }
        built
    }

    /// Makes a table with these rules, in place of that of the same name. Returns their number, and
    /// that of the sets of appended rules.
    fn build(&mut self, table: &str, wanted: &Rules, appended: &[GuardPolicy]) -> Result<(usize, u32), GuardError> {
        let mut transaction = Transaction::new(table);
        // Created first so that its removal is valid in any case.
        transaction.add_table();
        transaction.remove_table();
        transaction.add_table();
        rules::build(&mut transaction, &self.fixed, wanted, self.counted);
        let mut sets = 0;
        rules::append(&mut transaction, &self.fixed, appended, &mut sets);
        let rules = transaction.rules();
        self.commit("set", transaction)?;
        Ok((rules, sets))
    }

    /// Removes a table if there is one.
    fn remove_table(&mut self, table: &str) -> Result<(), GuardError> {
        self.commit("remove", removal(table))
    }

    fn commit(&mut self, what: &'static str, transaction: Transaction) -> Result<(), GuardError> {
        let table = transaction.table().to_owned();
        self.kernel.commit(transaction).map_err(|source| GuardError { what, table, source })
    }

    /// Reads the counters; those of a table that is gone keep their value.
    fn count(&mut self) {
        for (name, counted) in COUNTERS.into_iter().zip(&mut self.counted) {
            if let Some(read) = self.kernel.counter(&self.fixed.table, name) {
                *counted = read;
            }
        }
    }

    /// Installs the current rules again.
    fn restore(&mut self) -> Result<(), GuardError> {
        let Some(wanted) = self.current.take() else { return Ok(()) };
        let appended = std::mem::take(&mut self.appended);
        let outcome = self.install(&wanted, &appended);
        (self.current, self.appended) = (Some(wanted), appended);
        outcome
    }

    /// Retries replacements that failed.
    fn retry(&mut self, now: Instant) {
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let mut outcome = Ok(());
        if !self.pace.rests(now) {
            outcome = self.replace_waiting();
        }
        if self.unsettled && outcome.is_ok() {
            outcome = self.restore();
        }
        let failed = self.unsettled || outcome.is_err();
        self.retry_at = failed.then(|| now + RETRY);
        if let Err(error) = outcome {
            tracing::error!(target: "guard", "{error}");
        }
    }

    /// Packets dropped since the start, as of at most [`COUNT_EVERY`] ago.
    pub(crate) fn counters(&self) -> Counters {
        let [clear_in, spoofed_in, clear_out] = self.counted;
        Counters { clear_in, spoofed_in, clear_out }
    }
}

impl<K: NfTables> Closes for Guard<K> {
    fn tick(&mut self, now: Instant) {
        let (changed, complete) = self.kernel.changes(&self.fixed.table);
        self.damaged |= changed;
        // A large table of our own can overrun the socket with notifications, too.
        if !complete && self.current.is_some() {
            self.damaged |= self.kernel.count_rules(&self.fixed.table) != self.rules;
        }
        self.retry(now);
        if self.current.is_some() && !self.damaged && now >= self.count_at {
            self.count_at = now + COUNT_EVERY;
            self.count();
        }
        let rests = self.restored.is_some_and(|at| now.duration_since(at) < RESTORE_EVERY);
        if !self.damaged || rests || self.current.is_none() {
            return;
        }
        match self.restore() {
            Ok(()) => {
                self.damaged = false;
                tracing::warn!(target: "guard", "another program changed the nftables table '{table}': restored", table = self.fixed.table);
            }
            Err(error) => tracing::error!(target: "guard", "{error}"),
        }
        self.restored = Some(now);
    }

    fn stay(&mut self) {
        self.legacy.stay();
        if let Err(error) = self.settle() {
            tracing::error!(target: "guard", "{error}");
        }
    }

    fn give_up(&mut self) {
        self.legacy.give_up();
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.watched()
    }
}

impl<K: NfTables> Filter for Guard<K> {
    /// Puts `wanted` in force, without a gap: at every moment either the old or the new rules must
    /// apply to a packet. With more than [`AT_ONCE`] policies the replacement may wait for
    /// [`Closes::tick`]. Until then the rules before apply, and what `wanted` protects besides is
    /// closed by appended rules.
    ///
    /// # Errors
    /// What nf_tables refuses; the rules before stay.
    fn apply(&mut self, wanted: Rules) -> anyhow::Result<()> {
        if self.current.as_ref() == Some(&wanted) && self.appended.is_empty() && !self.unsettled {
            self.waiting = None;
            return Ok(());
        }
        if self.pace.waits(Instant::now(), wanted.policies.len()) {
            // These rules take the place of those that wait.
            self.waiting = None;
            if self.add(&wanted.policies).unwrap_or(false) {
                self.waiting = Some(wanted);
                return Ok(());
            }
        }
        Ok(self.replace(wanted)?)
    }

    /// Closes what `policies` protect by rules that are appended to the table, which costs the same
    /// however many policies it has. They stay after the replacement that waits. False when only
    /// [`Filter::apply`] with all policies can: a policy in one of the two tables passes some of
    /// these packets.
    ///
    /// # Errors
    /// What nf_tables refuses.
    fn add(&mut self, policies: &[GuardPolicy]) -> anyhow::Result<bool> {
        let Some(current) = &self.current else { return Ok(false) };
        let Some(additions) = Additions::of(policies, current, &self.in_force, self.waiting.as_ref()) else {
            return Ok(false);
        };
        if !additions.now.is_empty() {
            let mut transaction = Transaction::new(&self.fixed.table);
            rules::append(&mut transaction, &self.fixed, &additions.now, &mut self.added_sets);
            let added = transaction.rules();
            self.commit("append to", transaction)?;
            self.rules += added;
            self.in_force.extend(&additions.now);
            self.appended.extend(additions.now);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.policies.extend(additions.later);
        }
        Ok(true)
    }

    /// Puts what waits for the end of a pause in force now.
    ///
    /// # Errors
    /// What nf_tables refuses; the rules before stay.
    fn settle(&mut self) -> anyhow::Result<()> {
        Ok(self.replace_waiting()?)
    }

    fn counters(&self) -> Counters {
        Self::counters(self)
    }
}

impl<K: NfTables> Drop for Guard<K> {
    fn drop(&mut self) {
        if !self.legacy.is_removed(std::thread::panicking()) || (self.current.is_none() && !self.unsettled) {
            return;
        }
        // The temporary one is there after a failure only, but then it drops as well.
        let table = self.fixed.table.clone();
        for table in [interim(&table), table] {
            if let Err(error) = self.remove_table(&table) {
                tracing::warn!(target: "guard", "{error}");
            }
        }
    }
}

/// Removes a table if there is one.
fn removal(table: &str) -> Transaction {
    let mut transaction = Transaction::new(table);
    // Created first so that its removal is valid in any case.
    transaction.add_table();
    transaction.remove_table();
    transaction
}

/// Removes the table that a gateway with that TUN device left. Returns false if there is none.
///
/// # Errors
/// What nf_tables refuses.
pub(crate) fn remove(tun: &str) -> Result<bool, GuardError> {
    let table = table(tun);
    let failed = |source| GuardError { what: "remove", table: table.clone(), source };
    let mut netlink = Netlink::open(NETFILTER).map_err(failed)?;
    // Of a gateway that was killed while it replaced the table.
    netlink.request(&mut removal(&interim(&table)).finish()).map_err(|(_, error)| failed(error))?;
    let mut transaction = Transaction::new(&table);
    transaction.remove_table();
    match netlink.request(&mut transaction.finish()) {
        Ok(()) => Ok(true),
        Err((_, error)) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err((_, error)) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use wire::{AddrRange, Selector};

    use super::*;

    /// Replacements of the table while so many connections with a policy each are loaded one after
    /// the other, and the rules that were written. A load takes 1 ms, a replacement 10 µs for each
    /// policy.
    fn loads(count: usize) -> (usize, usize) {
        let (mut now, mut pace) = (Instant::now(), Pace::default());
        let (mut replacements, mut written, mut waiting) = (0, 0, false);
        let mut replace = |now: &mut Instant, pace: &mut Pace, policies: usize| {
            let took = Duration::from_micros(10) * policies as u32;
            *now += took;
            pace.replaced(*now, took);
            replacements += 1;
            written += policies;
        };
        for policies in 1..=count {
            now += Duration::from_millis(1);
            // As in `tick`, which comes between two requests.
            if waiting && !pace.rests(now) {
                replace(&mut now, &mut pace, policies - 1);
            }
            waiting = pace.waits(now, policies);
            if !waiting {
                replace(&mut now, &mut pace, policies);
            }
        }
        (replacements, written)
    }

    /// Tables with the number of rules of their last transaction, and the numbers of transactions
    /// that are refused.
    #[derive(Default)]
    struct Model {
        tables: BTreeMap<String, usize>,
        commits: usize,
        refused: Vec<usize>,
        /// Refused ones are carried out, and only the answer is late.
        late: bool,
    }

    impl NfTables for Rc<RefCell<Model>> {
        fn commit(&mut self, transaction: Transaction) -> io::Result<()> {
            let mut model = self.borrow_mut();
            model.commits += 1;
            let is_refused = model.refused.contains(&model.commits);
            if !is_refused || model.late {
                // A transaction without rules is a removal.
                match transaction.rules() {
                    0 => drop(model.tables.remove(transaction.table())),
                    rules => drop(model.tables.insert(transaction.table().to_owned(), rules)),
                }
            }
            let kind = if model.late { io::ErrorKind::WouldBlock } else { io::ErrorKind::OutOfMemory };
            if is_refused { Err(kind.into()) } else { Ok(()) }
        }

        fn counter(&mut self, _: &str, _: &str) -> Option<(u64, u64)> {
            None
        }

        fn count_rules(&mut self, table: &str) -> usize {
            self.borrow().tables.get(table).copied().unwrap_or_default()
        }

        fn changes(&mut self, _: &str) -> (bool, bool) {
            (false, true)
        }

        fn watched(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    /// A guard and its model.
    struct Bench {
        guard: Guard<Rc<RefCell<Model>>>,
        model: Rc<RefCell<Model>>,
    }

    impl Bench {
        fn new() -> Self {
            let model = Rc::new(RefCell::new(Model::default()));
            let fixed = Fixed { table: "weir-t".into(), tun: "t".into(), mark: 1, reverse_path: false };
            Self { guard: Guard::new(Rc::clone(&model), fixed, false), model }
        }

        /// Refuses the next transactions with these numbers, counted from 1.
        fn refuse(&mut self, next: &[usize]) {
            let mut model = self.model.borrow_mut();
            let before = model.commits;
            model.refused = next.iter().map(|at| before + at).collect();
        }

        fn tables(&self) -> Vec<(String, usize)> {
            self.model.borrow().tables.iter().map(|(name, rules)| (name.clone(), *rules)).collect()
        }
    }

    /// Rules for so many policies.
    fn rules(policies: u8) -> Rules {
        let of = |at: u8| Selector::between(AddrRange::ANY_V4, format!("10.{at}.0.0/16").parse().unwrap());
        let policies = (0..policies).map(|at| GuardPolicy::new(Verdict::Protect, of(at))).collect();
        Rules { policies, ..Rules::default() }
    }

    /// The tables when rules for so many policies are in force, and nothing else.
    fn in_force(policies: u8) -> Vec<(String, usize)> {
        let mut bench = Bench::new();
        bench.guard.apply(rules(policies)).unwrap();
        assert_eq!(bench.tables().len(), 1);
        let tables = bench.tables();
        bench.guard.stay();
        tables
    }

    #[test]
    fn a_replacement_that_fails_leaves_the_rules_before() {
        // The first table, the second one, and both with a removal that fails as well.
        for refused in [&[1][..], &[2], &[1, 2], &[2, 3]] {
            let mut bench = Bench::new();
            bench.guard.apply(rules(1)).unwrap();
            bench.refuse(refused);
            assert!(bench.guard.apply(rules(2)).is_err(), "{refused:?}");
            // As a reload that rolls back.
            bench.guard.apply(rules(1)).unwrap();
            assert_eq!(bench.tables(), in_force(1), "{refused:?}");
        }
        let mut bench = Bench::new();
        bench.guard.apply(rules(1)).unwrap();
        bench.refuse(&[2]);
        assert!(bench.guard.apply(rules(2)).is_err());
        assert_eq!(bench.tables(), in_force(1), "at once, where the kernel lets it");
    }

    #[test]
    fn a_table_that_could_not_be_removed_is_removed_later() {
        let mut bench = Bench::new();
        bench.guard.apply(rules(1)).unwrap();
        bench.refuse(&[2, 3, 4, 5]);
        assert!(bench.guard.apply(rules(2)).is_err());
        let now = Instant::now();
        bench.guard.tick(now);
        assert_eq!(bench.tables().len(), 2, "that failed again");
        bench.guard.tick(now + RETRY / 2);
        assert_eq!(bench.tables().len(), 2, "not at once");
        bench.guard.tick(now + RETRY);
        assert_eq!(bench.tables(), in_force(1));
        // The rules are in force, although one of their tables is left.
        bench.refuse(&[3]);
        bench.guard.apply(rules(2)).unwrap();
        assert_eq!(bench.tables().len(), 2);
        bench.guard.tick(now + 3 * RETRY);
        assert_eq!(bench.tables(), in_force(2));
    }

    #[test]
    fn a_transaction_that_was_carried_out_late_is_undone() {
        let mut bench = Bench::new();
        bench.guard.apply(rules(1)).unwrap();
        bench.model.borrow_mut().late = true;
        bench.refuse(&[2]);
        assert!(bench.guard.apply(rules(2)).is_err());
        assert_eq!(bench.tables(), in_force(2));
        bench.guard.apply(rules(1)).unwrap();
        assert_eq!(bench.tables(), in_force(1));
    }

    #[test]
    fn the_end_removes_both_tables() {
        for before in [0, 1] {
            let mut bench = Bench::new();
            if before > 0 {
                bench.guard.apply(rules(before)).unwrap();
            }
            bench.refuse(&[2, 3]);
            assert!(bench.guard.apply(rules(2)).is_err());
            assert_eq!(bench.tables().len(), 1 + usize::from(before));
            let Bench { guard, model } = bench;
            drop(guard);
            assert!(model.borrow().tables.is_empty(), "{:?}", model.borrow().tables);
        }
    }

    #[test]
    fn rules_that_wait_are_tried_again_after_a_failure() {
        let (few, many) = (AT_ONCE as u8, AT_ONCE as u8 + 1);
        let mut bench = Bench::new();
        bench.guard.apply(rules(few)).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        bench.guard.pace.rests_until = Some(end);
        bench.guard.apply(rules(many)).unwrap();
        assert!(bench.guard.waiting.is_some(), "deferred");
        bench.refuse(&[1]);
        bench.guard.tick(end);
        assert_ne!(bench.tables(), in_force(many));
        bench.guard.tick(end + RETRY / 2);
        assert_ne!(bench.tables(), in_force(many), "not at once");
        bench.guard.tick(end + RETRY);
        assert_eq!(bench.tables(), in_force(many));
        // The same where everything is to be in force at once.
        bench.guard.pace.rests_until = Some(Instant::now() + Duration::from_secs(60));
        bench.guard.apply(rules(many + 1)).unwrap();
        bench.refuse(&[1]);
        assert!(bench.guard.settle().is_err());
        bench.guard.settle().unwrap();
        assert_eq!(bench.tables(), in_force(many + 1));
    }

    #[test]
    fn a_pause_concerns_many_policies_and_ends() {
        let (now, mut pace, ms) = (Instant::now(), Pace::default(), Duration::from_millis);
        assert!(!pace.waits(now, 1000) && pace.left(now).is_zero());
        pace.rest(now, ms(30));
        assert!(pace.waits(now, AT_ONCE + 1) && !pace.waits(now, AT_ONCE));
        assert_eq!((pace.left(now + ms(10)), pace.left(now + ms(30))), (ms(20), ms(0)));
        assert!(pace.waits(now + ms(29), 1000) && !pace.waits(now + ms(30), 1000));
    }

    #[test]
    fn many_loads_do_not_replace_the_table_each() {
        assert_eq!(loads(AT_ONCE).0, AT_ONCE, "few are in force at once");
        let (some, many) = (loads(1000), loads(10_000));
        // One for each load would write 500,500 and 50,005,000 rules.
        assert!(some.0 < 2 * AT_ONCE && some.1 < 20_000, "{some:?}");
        assert!(many.0 < 3 * AT_ONCE && many.1 < 200_000, "{many:?}");
        // Ten times the loads cost about ten times the rules, not a hundred times.
        assert!(many.1 < 20 * some.1, "{some:?} {many:?}");
    }

    #[test]
    fn a_pause_ends_by_itself_and_few_policies_do_not_wait() {
        let (now, mut pace) = (Instant::now(), Pace::default());
        assert!(!pace.waits(now, AT_ONCE + 1), "nothing was replaced yet");
        pace.replaced(now, Duration::from_millis(3));
        assert!(pace.waits(now, AT_ONCE + 1) && !pace.waits(now, AT_ONCE));
        assert!(!pace.waits(now + Duration::from_millis(3) * PAUSE, AT_ONCE + 1));
    }
}
