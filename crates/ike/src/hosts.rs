//! Names of hosts that connections contain, and the addresses that they had last.
//!
//! Names are resolved outside: [`Hosts::ask`] numbers a request, [`Hosts::answer`] takes its
//! result. Addresses of a name stay until newer ones come, also when the resolver fails later: a
//! peer stays reachable during an outage of DNS. A name without addresses is due again after
//! [`RETRY`], which doubles up to [`RETRY_MAX`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use wire::AddrRange;

use crate::config::Host;

/// First wait before a name without addresses is resolved again.
const RETRY: Duration = Duration::from_secs(5);
/// The longest.
const RETRY_MAX: Duration = Duration::from_secs(300);
/// Addresses of one name, the first ones of an answer.
const ADDRESSES_MAX: usize = 16;

/// Table of names. Bounded by the configuration, about 1 KiB each at worst.
#[derive(Debug, Default)]
pub struct Hosts {
    by_name: BTreeMap<String, Known>,
    /// Names by the number of the pending request.
    asked: BTreeMap<u64, String>,
    next: u64,
}

#[derive(Debug, Default)]
struct Known {
    addresses: Vec<IpAddr>,
    /// Time of the last response, with or without addresses.
    answered: Option<Instant>,
    pending: bool,
    /// Failures since the last success.
    failures: u32,
    /// Reason of the last failure.
    why: Option<String>,
}

/// Result of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Resolution {
    /// Name of the host.
    pub name: String,
    /// It has other addresses than before.
    pub changed: bool,
    /// Reason of the failure, and whether it is the first in a row.
    pub failure: Option<(String, bool)>,
}

impl Known {
    fn is_older_than(&self, now: Instant, age: Duration) -> bool {
        self.answered.is_none_or(|at| now.saturating_duration_since(at) >= age)
    }

    /// Time of the next attempt to resolve a name without addresses.
    fn retry_at(&self) -> Option<Instant> {
        // The exponent is limited, because the shift would overflow after 32 failures.
        let wait = RETRY.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(RETRY_MAX);
        self.answered.filter(|_| self.addresses.is_empty() && !self.pending).map(|at| at + wait)
    }
}

/// Reason a name has no addresses.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum ResolveError {
    /// It cannot be the name of a host.
    #[error("not a host name")]
    NotAName,
    /// As many names as may be are being resolved.
    #[error("too many names are being resolved already")]
    Busy,
    /// No answer within the time that the caller waits.
    #[error("timed out")]
    TimedOut,
    /// The resolver's own reason.
    #[error("{0}")]
    Resolver(String),
}

impl Hosts {
    /// Replaces the names. Those that were there keep their addresses.
    pub fn keep<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let mut before = std::mem::take(&mut self.by_name);
        for name in names {
            let known = before.remove(name).unwrap_or_default();
            self.by_name.entry(name.to_owned()).or_insert(known);
        }
        // An answer for a removed name is ignored, even if the name is loaded again before it
        // arrives.
        self.asked.retain(|_, name| self.by_name.contains_key(name));
    }

    /// Number for a request that is not about one of the names.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns true without any name.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns true when [`Hosts::ask`] would make a request.
    pub fn is_due(&self, now: Instant, name: &str, age: Duration) -> bool {
        self.by_name.get(name).is_some_and(|known| !known.pending && known.is_older_than(now, age))
    }

    /// Number of a new request for `name`; `None` while one is pending, and if the last response is
    /// younger than `age`.
    pub fn ask(&mut self, now: Instant, name: &str, age: Duration) -> Option<u64> {
        if !self.is_due(now, name, age) {
            return None;
        }
        self.by_name.get_mut(name)?.pending = true;
        let number = self.number();
        self.asked.insert(number, name.to_owned());
        Some(number)
    }

    /// Takes the answer to a request; `None` when there was none of that number.
    pub fn answer(
        &mut self,
        now: Instant,
        number: u64,
        found: Result<Vec<IpAddr>, ResolveError>,
    ) -> Option<Resolution> {
        let name = self.asked.remove(&number)?;
        let known = self.by_name.get_mut(&name)?;
        (known.pending, known.answered) = (false, Some(now));
        let failure = match found {
            // An empty answer counts as a failure and keeps the old addresses: a DNS fault must not
            // cut off peers.
            Ok(mut addresses) if !addresses.is_empty() => {
                addresses.truncate(ADDRESSES_MAX);
                (known.failures, known.why) = (0, None);
                let changed = known.addresses != addresses;
                known.addresses = addresses;
                return Some(Resolution { name, changed, failure: None });
            }
            Ok(_) => format!("'{name}' has no address"),
            Err(why) => format!("'{name}' has no address: {why}"),
        };
        known.failures = known.failures.saturating_add(1);
        known.why = Some(failure.clone());
        let first = known.failures == 1;
        Some(Resolution { name, changed: false, failure: Some((failure, first)) })
    }

    /// Returns true while one of these hosts is being resolved.
    pub fn is_pending(&self, hosts: &[Host]) -> bool {
        names(hosts).any(|name| self.by_name.get(name).is_some_and(|known| known.pending))
    }

    /// Names without addresses that are due.
    pub fn due(&self, now: Instant) -> Vec<String> {
        let due = self.by_name.iter().filter(|(_, known)| known.retry_at().is_some_and(|at| at <= now));
        due.map(|(name, _)| name.clone()).collect()
    }

    /// Time at which [`Hosts::due`] returns the next one.
    pub fn deadline(&self) -> Option<Instant> {
        self.by_name.values().filter_map(Known::retry_at).min()
    }

    /// Addresses of a list: `None` for any. A name without addresses adds none.
    pub fn ranges(&self, hosts: &[Host]) -> Option<Vec<AddrRange>> {
        let of = |host: &Host| match host {
            Host::Range(range) => vec![*range],
            Host::Name(name) => {
                let known = self.by_name.get(name).map_or(&[][..], |known| &known.addresses);
                known.iter().map(|addr| AddrRange { start: *addr, end: *addr }).collect()
            }
        };
        // Unresolved names give an empty list, never `None`, because `None` would admit any peer.
        (!hosts.is_empty()).then(|| hosts.iter().flat_map(of).collect())
    }

    /// Reason why a host of the list has no addresses; `None` if all have some.
    pub fn why(&self, hosts: &[Host]) -> Option<String> {
        let unresolved = |name: &str| self.by_name.get(name).is_none_or(|known| known.addresses.is_empty());
        let name = names(hosts).find(|name| unresolved(name))?;
        let why = self.by_name.get(name).and_then(|known| known.why.clone());
        Some(why.unwrap_or_else(|| format!("'{name}' is not resolved yet")))
    }
}

/// The names in a list.
fn names(hosts: &[Host]) -> impl Iterator<Item = &str> {
    hosts.iter().filter_map(Host::name)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a test begins at some time
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(1);

    fn addr(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn list(names: &[&str]) -> Vec<Host> {
        names.iter().map(|name| Host::Name((*name).to_owned())).collect()
    }

    #[test]
    fn a_name_without_addresses_is_never_any() {
        let (now, mut hosts) = (Instant::now(), Hosts::default());
        let gw = list(&["gw"]);
        assert_eq!((hosts.ranges(&[]), hosts.ranges(&gw)), (None, Some(vec![])));
        hosts.keep(["gw"]);
        let number = hosts.ask(now, "gw", AGE).unwrap();
        assert!(hosts.is_pending(&gw) && hosts.ask(now, "gw", AGE).is_none(), "one request at a time");
        assert!(hosts.answer(now, number, Ok(Vec::new())).unwrap().failure.is_some());
        assert_eq!(hosts.ranges(&gw), Some(vec![]));
        assert_eq!(hosts.why(&gw).unwrap(), "'gw' has no address");
        let range: AddrRange = "10.0.0.0/8".parse().unwrap();
        assert_eq!(hosts.ranges(&[Host::from(range), gw[0].clone()]), Some(vec![range]));
    }

    #[test]
    fn addresses_outlive_a_failing_resolver_and_a_reload() {
        let (mut now, mut hosts) = (Instant::now(), Hosts::default());
        let gw = list(&["gw"]);
        hosts.keep(["gw", "other"]);
        let first = hosts.ask(now, "gw", AGE).unwrap();
        assert!(hosts.answer(now, first, Ok(vec![addr(1)])).unwrap().changed);
        now += AGE;
        let second = hosts.ask(now, "gw", AGE).unwrap();
        let answered = hosts.answer(now, second, Err(ResolveError::TimedOut)).unwrap();
        assert_eq!(answered.failure, Some(("'gw' has no address: timed out".to_owned(), true)));
        hosts.keep(["gw"]);
        assert_eq!(hosts.ranges(&gw).unwrap()[0].start, addr(1));
        assert_eq!((hosts.deadline(), hosts.why(&gw)), (None, None), "it is asked for when it is needed");
        now += AGE;
        let third = hosts.ask(now, "gw", AGE).unwrap();
        assert!(hosts.answer(now, third, Ok(vec![addr(2)])).unwrap().changed);
        assert_eq!(hosts.ranges(&gw).unwrap()[0].start, addr(2));
        hosts.keep([]);
        assert_eq!(hosts.ranges(&gw), Some(vec![]));
    }

    #[test]
    fn a_name_without_addresses_is_due_again_less_and_less_often() {
        let (mut now, mut hosts) = (Instant::now(), Hosts::default());
        hosts.keep(["gw"]);
        for wait_s in [5, 10, 20, 40, 80, 160, 300, 300] {
            let number = hosts.ask(now, "gw", AGE).unwrap();
            hosts.answer(now, number, Err(ResolveError::Resolver("refused".to_owned()))).unwrap();
            assert_eq!(hosts.deadline(), Some(now + Duration::from_secs(wait_s)));
            assert!(hosts.due(now).is_empty());
            now += Duration::from_secs(wait_s);
            assert_eq!(hosts.due(now), ["gw"]);
        }
    }
}
