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

mod nft;
mod rules;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::border::{Closes, Filter, Legacy};
use crate::config::Config;
use crate::netlink::{Monitor, NETFILTER, Netlink};
use nft::Transaction;
#[cfg(feature = "simulation")]
pub(crate) use rules::model;
use rules::{Additions, COUNTERS, Fixed};
pub(crate) use rules::{Exempt, GuardPolicy, Rules, Verdict, by_source, contains, overlap, with_exempt};

/// Multicast group of nf_tables changes: NFNLGRP_NFTABLES.
const CHANGES: u32 = 7;
/// Shortest time between two restorations: another program may remove the table again and again.
const RESTORE_EVERY: Duration = Duration::from_millis(100);

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
        self.rests_until = Some(now + took * PAUSE);
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
pub(crate) struct Guard {
    netlink: Netlink,
    monitor: Monitor,
    fixed: Fixed,
    /// Rules of the last replacement.
    current: Option<Rules>,
    /// Policies that were appended to them since.
    appended: Vec<GuardPolicy>,
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
        let failed = |source| GuardError { what: "open", table: fixed.table.clone(), source };
        let mut netlink = Netlink::open(NETFILTER).map_err(failed)?;
        let adopted = netlink.get(nft::get_table(&fixed.table), |_| ()).is_ok();
        let monitor = Monitor::open(NETFILTER, &[CHANGES]).map_err(failed)?;
        Ok(Self {
            netlink,
            monitor,
            fixed,
            current: None,
            appended: Vec::new(),
            in_force: HashSet::new(),
            counted: [(0, 0); 3],
            count_at: Instant::now(),
            rules: 0,
            waiting: None,
            pace: Pace::default(),
            damaged: false,
            restored: None,
            legacy: Legacy::of(adopted),
        })
    }

    fn replace(&mut self, wanted: Rules) -> Result<(), GuardError> {
        if self.current.is_some() {
            self.count();
        }
        self.waiting = None;
        let start = Instant::now();
        self.install(&wanted, &[])?;
        let end = Instant::now();
        self.pace.replaced(end, end - start);
        self.appended.clear();
        self.in_force = wanted.policies.iter().copied().collect();
        self.current = Some(wanted);
        Ok(())
    }

    /// Replaces the table. The kernel applies elements of interval sets after the rules of the same
    /// transaction, and the thread may be preempted in between: clear text would pass during that
    /// time. So a second table with the new rules exists during the replacement.
    fn install(&mut self, wanted: &Rules, appended: &[GuardPolicy]) -> Result<(), GuardError> {
        let interim = interim(&self.fixed.table);
        for table in [&interim, &self.fixed.table.clone()] {
            let mut transaction = Transaction::new(table);
            // Created first so that its removal is valid in any case.
            transaction.add_table();
            transaction.remove_table();
            transaction.add_table();
            rules::build(&mut transaction, &self.fixed, wanted, self.counted);
            rules::append(&mut transaction, &self.fixed, appended);
            self.rules = transaction.rules();
            self.commit("set", transaction)?;
        }
        let mut transaction = Transaction::new(&interim);
        transaction.remove_table();
        self.commit("set", transaction)
    }

    fn commit(&mut self, what: &'static str, transaction: Transaction) -> Result<(), GuardError> {
        let outcome = self.netlink.request(&mut transaction.finish());
        outcome.map_err(|(_, source)| GuardError { what, table: self.fixed.table.clone(), source })
    }

    /// Reads the counters; those of a table that is gone keep their value.
    fn count(&mut self) {
        for (name, counted) in COUNTERS.into_iter().zip(&mut self.counted) {
            let request = nft::get_counter(&self.fixed.table, name);
            let mut read = None;
            let outcome = self.netlink.get(request, |object| read = read.or(nft::counter(object.body)));
            if let (Ok(()), Some(read)) = (outcome, read) {
                *counted = read;
            }
        }
    }

    /// Rules that the table has in the kernel; 0 without a table.
    fn count_rules(&mut self) -> usize {
        let mut rules = 0;
        match self.netlink.dump(nft::list_rules(&self.fixed.table), |_| rules += 1) {
            Ok(()) => rules,
            Err(_) => 0,
        }
    }

    /// Packets dropped since the start, as of at most [`COUNT_EVERY`] ago.
    pub(crate) fn counters(&self) -> Counters {
        let [clear_in, spoofed_in, clear_out] = self.counted;
        Counters { clear_in, spoofed_in, clear_out }
    }
}

impl Closes for Guard {
    fn tick(&mut self, now: Instant) {
        let (own, table) = (self.netlink.port(), self.fixed.table.as_str());
        let mut changed = false;
        let complete = self.monitor.read(|message| {
            changed |=
                message.port != own && nft::is_change(message.kind) && nft::table_of(message.body) == Some(table);
        });
        self.damaged |= changed;
        // A large table of our own can overrun the socket with notifications, too.
        if !complete && self.current.is_some() {
            self.damaged |= self.count_rules() != self.rules;
        }
        if !self.pace.rests(now)
            && let Some(wanted) = self.waiting.take()
            && let Err(error) = self.replace(wanted)
        {
            tracing::error!(target: "guard", "{error}");
        }
        if self.current.is_some() && !self.damaged && now >= self.count_at {
            self.count_at = now + COUNT_EVERY;
            self.count();
        }
        let rests = self.restored.is_some_and(|at| now.duration_since(at) < RESTORE_EVERY);
        if !self.damaged || rests {
            return;
        }
        let Some(wanted) = self.current.take() else { return };
        let appended = std::mem::take(&mut self.appended);
        match self.install(&wanted, &appended) {
            Ok(()) => {
                self.damaged = false;
                tracing::warn!(target: "guard", "another program changed the nftables table '{table}': restored", table = self.fixed.table);
            }
            Err(error) => tracing::error!(target: "guard", "{error}"),
        }
        (self.restored, self.current, self.appended) = (Some(now), Some(wanted), appended);
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
        Some(self.as_fd())
    }
}

impl Filter for Guard {
    /// Puts `wanted` in force, without a gap: at every moment either the old or the new rules must
    /// apply to a packet. With more than [`AT_ONCE`] policies the replacement may wait for
    /// [`Closes::tick`]. Until then the rules before apply, and what `wanted` protects besides is
    /// closed by appended rules.
    ///
    /// # Errors
    /// What nf_tables refuses; the rules before stay.
    fn apply(&mut self, wanted: Rules) -> anyhow::Result<()> {
        if self.current.as_ref() == Some(&wanted) && self.appended.is_empty() {
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
            rules::append(&mut transaction, &self.fixed, &additions.now);
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
        Ok(self.waiting.take().map_or(Ok(()), |wanted| self.replace(wanted))?)
    }

    fn counters(&self) -> Counters {
        Self::counters(self)
    }
}

impl AsFd for Guard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.legacy.is_removed(std::thread::panicking()) && self.current.is_some() {
            let mut transaction = Transaction::new(&self.fixed.table);
            transaction.remove_table();
            if let Err(error) = self.commit("remove", transaction) {
                tracing::warn!(target: "guard", "{error}");
            }
        }
    }
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
    let mut transaction = Transaction::new(&interim(&table));
    transaction.add_table();
    transaction.remove_table();
    netlink.request(&mut transaction.finish()).map_err(|(_, error)| failed(error))?;
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
