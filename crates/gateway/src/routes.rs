//! Directing traffic into the TUN device: one rule and one table per family, through iproute2.
//!
//! Weir's own packets carry a mark and are not looked up in the table. In it stands, for each
//! destination, a route into the device and behind it one that says "unreachable": should the
//! daemon be killed, its device and the first route are gone, and what was to be protected does
//! not leave in the clear. A clean stop removes everything.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use wire::AddrRange;

use crate::config::{Config, PolicyAction};

/// Preference of the route that is left when the device is gone; the lowest there is.
const LAST_METRIC: &str = "4294967295";
/// Networks that one range of addresses may be cut into.
const MAX_NETWORKS: usize = 64;

/// What `ip` could not do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    /// No iproute2.
    #[error(
        "cannot run 'ip': {0}; install iproute2 (apt install iproute2), or set 'routes = none' in the section 'gateway' and direct traffic yourself"
    )]
    Missing(std::io::Error),
    /// A refusal.
    #[error("'ip {command}' failed: {stderr}")]
    Refused { command: String, stderr: String },
}

/// Runs `ip` and returns what it printed.
pub(crate) fn ip(args: &[&str]) -> Result<String, RouteError> {
    let output = Command::new("ip").args(args).output().map_err(RouteError::Missing)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(RouteError::Refused { command: args.join(" "), stderr })
}

/// One route of the table: family, destination, source address.
type Route = (bool, String, Option<IpAddr>);

/// Rules and routes in place; removed when dropped.
pub(crate) struct Routes {
    tun: String,
    table: String,
    mark: String,
    families: BTreeSet<bool>,
    routes: BTreeSet<Route>,
}

impl Routes {
    /// Nothing in place yet.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            tun: config.gateway.tun.clone(),
            table: config.gateway.route_table.to_string(),
            mark: format!("{:#x}", config.gateway.fwmark),
            families: BTreeSet::new(),
            routes: BTreeSet::new(),
        }
    }

    /// Makes rules and routes those of `config`. On an error what was in place before is kept,
    /// and what was added is known, so that it goes with the rest.
    pub(crate) fn apply(&mut self, config: &Config) -> Result<(), RouteError> {
        let wanted = wanted(config, &host_addresses()?);
        let stale: Vec<Route> = self.routes.difference(&wanted).cloned().collect();
        for route in &wanted {
            if !self.routes.contains(route) {
                self.add_family(route.0)?;
                self.add(route)?;
                self.routes.insert(route.clone());
            }
        }
        for route in stale {
            // A route to the same destination with another source has already taken its place.
            if !wanted.iter().any(|new| new.1 == route.1) {
                self.remove(&route);
            }
            self.routes.remove(&route);
        }
        Ok(())
    }

    fn add_family(&mut self, v6: bool) -> Result<(), RouteError> {
        if !self.families.insert(v6) {
            return Ok(());
        }
        // Left by a daemon that was killed.
        self.remove_rule(v6);
        self.flush(v6);
        let rule = ["rule", "add", "not", "fwmark", &self.mark, "lookup", &self.table, "pref", &self.table];
        ip(&[&[family(v6)], &rule[..]].concat()).map(drop)
    }

    fn add(&self, (v6, network, source): &Route) -> Result<(), RouteError> {
        let source = source.map(|source| source.to_string());
        let mut args = vec![family(*v6), "route", "replace", network, "dev", &self.tun, "table", &self.table];
        if let Some(source) = &source {
            args.extend(["src", source]);
        }
        ip(&args)?;
        let last = ["route", "replace", "unreachable", network, "table", &self.table, "metric", LAST_METRIC];
        ip(&[&[family(*v6)], &last[..]].concat()).map(drop)
    }

    fn remove(&self, (v6, network, _): &Route) {
        let _ = ip(&[family(*v6), "route", "del", network, "dev", &self.tun, "table", &self.table]);
        let last = ["route", "del", "unreachable", network, "table", &self.table, "metric", LAST_METRIC];
        let _ = ip(&[&[family(*v6)], &last[..]].concat());
    }

    fn remove_rule(&self, v6: bool) {
        let rule = ["rule", "del", "not", "fwmark", &self.mark, "lookup", &self.table, "pref", &self.table];
        // As often as it is there.
        for _ in 0..8 {
            if ip(&[&[family(v6)], &rule[..]].concat()).is_err() {
                return;
            }
        }
    }

    fn flush(&self, v6: bool) {
        let _ = ip(&[family(v6), "route", "flush", "table", &self.table]);
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        for v6 in &self.families {
            self.remove_rule(*v6);
            self.flush(*v6);
        }
    }
}

fn family(v6: bool) -> &'static str {
    if v6 { "-6" } else { "-4" }
}

/// The routes that a configuration asks for, given the addresses of this host.
fn wanted(config: &Config, host: &[IpAddr]) -> BTreeSet<Route> {
    let mut routes = BTreeSet::new();
    for policy in config.policies.iter().filter(|policy| policy.action != PolicyAction::Bypass) {
        for selector in &policy.selectors {
            let own = config.gateway.addresses.iter().map(|interface| interface.addr);
            let source = own.chain(host.iter().copied()).find(|addr| selector.src.contains(*addr));
            for network in networks(&selector.dst) {
                let known = routes.iter().any(|(_, there, _): &Route| *there == network);
                if !known {
                    routes.insert((selector.dst.is_v6(), network, source));
                }
            }
        }
    }
    routes
}

fn host_addresses() -> Result<Vec<IpAddr>, RouteError> {
    let listing = ip(&["-o", "addr", "show"])?;
    let addr = |line: &str| line.split_whitespace().nth(3)?.split('/').next()?.parse().ok();
    Ok(listing.lines().filter_map(addr).filter(|addr: &IpAddr| !addr.is_loopback()).collect())
}

/// A range as networks, largest first.
fn networks(range: &AddrRange) -> Vec<String> {
    let v6 = range.is_v6();
    let width: u32 = if v6 { 128 } else { 32 };
    let bits = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => u128::from(addr.to_bits()),
        IpAddr::V6(addr) => addr.to_bits(),
    };
    let (mut start, end) = (bits(range.start), bits(range.end));
    let mut networks = Vec::new();
    while start <= end && networks.len() < MAX_NETWORKS {
        let aligned = if start == 0 { width } else { start.trailing_zeros().min(width) };
        let span = end - start;
        // Largest power of two that fits into what is left.
        let fits = if span == u128::MAX { width } else { (127 - (span + 1).leading_zeros()).min(width) };
        let host = aligned.min(fits);
        let addr =
            if v6 { IpAddr::from(Ipv6Addr::from_bits(start)) } else { IpAddr::from(Ipv4Addr::from_bits(start as u32)) };
        networks.push(format!("{addr}/{}", width - host));
        if host == 128 {
            break;
        }
        match start.checked_add(1 << host) {
            Some(next) => start = next,
            None => break,
        }
    }
    networks
}

/// The way to a host, for packets with Weir's mark: device and its MTU in bytes.
pub(crate) struct Way {
    pub(crate) device: String,
    pub(crate) mtu: u32,
}

/// Looks up the way to `to`; `None` when there is none or `ip` is missing.
pub(crate) fn way(to: IpAddr, mark: u32) -> Option<Way> {
    let (to, mark) = (to.to_string(), format!("{mark:#x}"));
    let route = ip(&["-o", "route", "get", &to, "mark", &mark]).ok()?;
    let device = word_after(&route, "dev")?.to_owned();
    let link = ip(&["-o", "link", "show", "dev", &device]).ok()?;
    let of_link: u32 = word_after(&link, "mtu")?.parse().ok()?;
    let of_route = word_after(&route, "mtu").and_then(|mtu| mtu.parse().ok());
    Some(Way { device, mtu: of_route.unwrap_or(of_link).min(65_535) })
}

fn word_after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.split_whitespace().skip_while(|w| *w != word).nth(1)
}

/// Settings of the device that a TUN needs: no source check of its own, no IPv6 chatter where
/// there is no IPv6. Best effort: what cannot be set is not needed everywhere.
pub(crate) fn settle_device(tun: &str, v6: bool) {
    let set = |path: String, value: &str| {
        if let Err(error) = std::fs::write(&path, value) {
            tracing::debug!(target: "routes", "{path}: {error}");
        }
    };
    set(format!("/proc/sys/net/ipv4/conf/{tun}/rp_filter"), "0");
    if !v6 {
        set(format!("/proc/sys/net/ipv6/conf/{tun}/disable_ipv6"), "1");
    }
}

/// Warns where the kernel's source check would drop a peer's packets, and where nothing is
/// forwarded.
pub(crate) fn warn_about_kernel(config: &Config) {
    let read = |path: String| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let protected = |peer: IpAddr| {
        config
            .policies
            .iter()
            .filter(|policy| policy.action != PolicyAction::Bypass)
            .any(|policy| policy.selectors.iter().any(|selector| selector.dst.contains(peer)))
    };
    let mut warned = BTreeSet::new();
    for peer in config.sas.iter().map(|sa| sa.peer.remote).filter(|peer| peer.is_ipv4() && protected(*peer)) {
        let Some(way) = way(peer, config.gateway.fwmark) else { continue };
        let strict = ["all", &way.device]
            .iter()
            .filter_map(|name| read(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"))?.parse::<u8>().ok())
            .max();
        if strict == Some(1) && warned.insert(way.device.clone()) {
            let device = way.device;
            tracing::warn!(
                target: "routes",
                "strict reverse path filtering on {device} will drop packets of {peer}: sysctl -w \
                 net.ipv4.conf.{device}.rp_filter=2"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Vec<String> {
        networks(&text.parse().unwrap())
    }

    #[test]
    fn ranges_become_networks() {
        assert_eq!(range("10.1.0.0/16"), ["10.1.0.0/16"]);
        assert_eq!(range("10.0.0.1-10.0.0.6"), ["10.0.0.1/32", "10.0.0.2/31", "10.0.0.4/31", "10.0.0.6/32"]);
        assert_eq!(range("0.0.0.0/0"), ["0.0.0.0/0"]);
        assert_eq!(range("255.255.255.255"), ["255.255.255.255/32"]);
        assert_eq!(range("::/0"), ["::/0"]);
        assert_eq!(range("2001:db8::/64"), ["2001:db8::/64"]);
        assert_eq!(range("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff").len(), 1);
        assert_eq!(range("::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff").len(), MAX_NETWORKS);
    }

    #[test]
    fn words_are_found_by_what_precedes_them() {
        let line = "192.0.2.2 dev eth0 src 192.0.2.1 uid 0 \\    cache";
        assert_eq!(word_after(line, "dev"), Some("eth0"));
        assert_eq!(word_after(line, "mtu"), None);
    }
}
