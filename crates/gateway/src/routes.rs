//! Directing traffic into the TUN device: one rule and one table per family, through iproute2.
//!
//! Weir's own packets carry a mark and are not looked up in the table. In it stands, for each
//! destination, a route into the device and behind it one that says "unreachable": should the
//! daemon be killed or fail, its device and the first route are gone, and what was to be protected
//! does not leave in the clear. The next start takes over what it finds. A clean stop removes
//! everything.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};

use wire::{AddrRange, Selector};

use crate::config::{Config, PolicyAction};

/// Preference of the route that is left when the device is gone. One better than the worst, which
/// `ip -6 route flush` spares for a default route.
const LAST_METRIC: &str = "4294967294";
/// Networks that one range of addresses may be cut into: `::1` to the last but one needs as many.
const MAX_NETWORKS: usize = 254;

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
    /// Somebody else's table.
    #[error(
        "routing table {table} directs traffic into {device} already; stop the weir that has it, or set another 'route_table' in the section 'gateway'"
    )]
    Taken { table: String, device: String },
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

/// Lets one `ip` carry out many commands of a family, in order; the first that is refused is the last, unless
/// refusals do not matter (`-force`).
fn batch(v6: bool, force: bool, commands: &[String]) -> Result<(), RouteError> {
    if commands.is_empty() {
        return Ok(());
    }
    let mut child = Command::new("ip")
        .args(force.then_some("-force"))
        .args([family(v6), "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(RouteError::Missing)?;
    // One that ends early says why.
    let _ = child.stdin.take().map(|mut input| input.write_all((commands.join("\n") + "\n").as_bytes()));
    let output = child.wait_with_output().map_err(RouteError::Missing)?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    // "Command failed -:3" counts from 1.
    let at = stderr.rsplit(':').next().and_then(|line| line.trim().parse::<usize>().ok()).unwrap_or(1);
    let command = commands.get(at.saturating_sub(1)).unwrap_or(&commands[0]).clone();
    Err(RouteError::Refused { command, stderr })
}

/// One route of the table: family, destination, source address.
type Route = (bool, String, Option<IpAddr>);

/// Rules and routes in place; removed when dropped, unless traffic has to stay at home.
pub(crate) struct Routes {
    tun: String,
    table: String,
    mark: String,
    /// Families that have our rule, each with whether it was there before: a daemon was killed.
    families: BTreeMap<bool, bool>,
    routes: BTreeSet<Route>,
    /// Addresses of this host when they were last asked for.
    host: Vec<IpAddr>,
    /// What is protected is to stay unreachable when this is dropped.
    closed: bool,
}

impl Routes {
    /// Nothing in place yet.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            tun: config.gateway.tun.clone(),
            table: config.gateway.route_table.to_string(),
            mark: format!("{:#x}", config.gateway.fwmark),
            families: BTreeMap::new(),
            routes: BTreeSet::new(),
            host: Vec::new(),
            closed: false,
        }
    }

    /// Makes rules and routes those that `captured` asks for; `own` are addresses of the device. On an error what was in place before is kept,
    /// and what was added is known, so that it goes with the rest.
    ///
    /// At no moment can a packet that was to be protected before, or is from now on, find another
    /// way: each network is made unreachable before the rule asks for it, and stale routes go last.
    pub(crate) fn apply(&mut self, captured: &[&Selector], own: &[IpAddr]) -> Result<(), RouteError> {
        let (mut wanted, mut sourced) = wanted(captured, own, &self.host);
        // A tunnel that comes or goes rarely needs an address that was not there before.
        if !sourced || self.host.is_empty() {
            self.host = host_addresses()?;
            (wanted, sourced) = self::wanted(captured, own, &self.host);
        }
        match self.change(&wanted) {
            // An address may have gone since.
            Err(RouteError::Refused { .. }) if sourced => {
                self.host = host_addresses()?;
                self.change(&self::wanted(captured, own, &self.host).0)
            }
            outcome => outcome,
        }
    }

    fn change(&mut self, wanted: &BTreeSet<Route>) -> Result<(), RouteError> {
        let fresh: Vec<Route> = wanted.difference(&self.routes).cloned().collect();
        let families: BTreeSet<bool> = fresh.iter().map(|(v6, ..)| *v6).collect();
        let families: Vec<bool> = families.into_iter().filter(|v6| !self.families.contains_key(v6)).collect();
        let mut left = Vec::new();
        for &v6 in &families {
            left.extend(self.left_behind(v6)?.into_iter().map(|network| (v6, network, None)));
        }
        for v6 in [false, true] {
            let of_family = || fresh.iter().filter(|(of, ..)| *of == v6);
            let last = |(_, network, _): &Route| {
                format!("route replace unreachable {network} table {} metric {LAST_METRIC}", self.table)
            };
            let mut commands: Vec<String> = of_family().map(last).collect();
            if families.contains(&v6) {
                batch(v6, false, &std::mem::take(&mut commands))?;
                self.add_rule(v6)?;
            }
            commands.extend(of_family().map(|route| self.direct(route)));
            batch(v6, false, &commands)?;
            self.routes.extend(of_family().cloned());
        }
        let stale: Vec<Route> = self.routes.difference(wanted).cloned().chain(left).collect();
        let kept: BTreeSet<&str> = wanted.iter().map(|(_, network, _)| network.as_str()).collect();
        for v6 in [false, true] {
            // A route to the same destination with another source has already taken the place of such a one.
            let gone = stale.iter().filter(|(of, network, _)| *of == v6 && !kept.contains(network.as_str()));
            self.remove(v6, gone.map(|(_, network, _)| network.as_str()));
        }
        for route in stale {
            self.routes.remove(&route);
        }
        Ok(())
    }

    /// Networks that a daemon that was killed left unreachable in our table.
    fn left_behind(&self, v6: bool) -> Result<Vec<String>, RouteError> {
        // Refused when there is no such table, which is the usual case.
        let listing = ip(&[family(v6), "route", "show", "table", &self.table]).unwrap_or_default();
        let mut networks = Vec::new();
        for line in listing.lines() {
            if let Some(network) = line.strip_prefix("unreachable ") {
                networks.push(whole_network(network, v6));
            } else if let Some(device) = word_after(line, "dev").filter(|device| *device != self.tun) {
                return Err(RouteError::Taken { table: self.table.clone(), device: device.to_owned() });
            }
        }
        Ok(networks)
    }

    fn add_rule(&mut self, v6: bool) -> Result<(), RouteError> {
        let rule = ["rule", "add", "not", "fwmark", &self.mark, "lookup", &self.table, "pref", &self.table];
        let there = match ip(&[&[family(v6)], &rule[..]].concat()) {
            Ok(_) => false,
            Err(RouteError::Refused { stderr, .. }) if stderr.contains("File exists") => true,
            Err(error) => return Err(error),
        };
        // Of a daemon that was killed and had another mark. Ours is in place by now.
        let others = self.other_rules(v6);
        for other in &others {
            let del = ["rule", "del", "pref", &self.table];
            let _ = ip(&[&[family(v6)], &del[..], &other.split_whitespace().collect::<Vec<_>>()].concat());
        }
        self.families.insert(v6, there || !others.is_empty());
        Ok(())
    }

    /// Rules at our place that are not ours, as `ip` prints them.
    fn other_rules(&self, v6: bool) -> Vec<String> {
        let listing = ip(&[family(v6), "rule", "show", "pref", &self.table]).unwrap_or_default();
        let rules = listing.lines().filter_map(|line| Some(line.split_once(':')?.1.trim().to_owned()));
        rules.filter(|rule| word_after(rule, "fwmark") != Some(self.mark.as_str())).collect()
    }

    fn direct(&self, (_, network, source): &Route) -> String {
        let source = source.map(|source| format!(" src {source}")).unwrap_or_default();
        format!("route replace {network} dev {} table {}{source}", self.tun, self.table)
    }

    /// Best effort: what is gone already is as good.
    fn remove<'a>(&self, v6: bool, networks: impl Iterator<Item = &'a str>) {
        let Self { tun, table, .. } = self;
        let both = |network| {
            [
                format!("route del {network} dev {tun} table {table}"),
                format!("route del unreachable {network} table {table} metric {LAST_METRIC}"),
            ]
        };
        let _ = batch(v6, true, &networks.flat_map(both).collect::<Vec<_>>());
    }

    /// Undoes a first [`Routes::apply`] that failed: what a killed daemon left unreachable stays so.
    pub(crate) fn give_up(mut self) {
        self.closed = self.families.values().any(|there_before| *there_before);
    }

    /// Leaves what was to be protected unreachable: the daemon ends because of a fault, and nobody
    /// asked for traffic in the clear.
    pub(crate) fn leave_closed(mut self) {
        self.closed = true;
        tracing::error!(
            target: "routes",
            "what was protected stays unreachable until the next start; to let it leave in the clear: {}",
            self.families.keys().map(|v6| format!("ip {} rule del pref {}", family(*v6), self.table)).collect::<Vec<_>>().join("; "),
        );
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        if self.closed || std::thread::panicking() {
            return;
        }
        for v6 in self.families.keys() {
            let rule = ["rule", "del", "not", "fwmark", &self.mark, "lookup", &self.table, "pref", &self.table];
            let _ = ip(&[&[family(*v6)], &rule[..]].concat());
            let _ = ip(&[family(*v6), "route", "flush", "table", &self.table]);
        }
    }
}

fn family(v6: bool) -> &'static str {
    if v6 { "-6" } else { "-4" }
}

/// The first word of a route as `ip` prints it, as the network that was asked for.
fn whole_network(line: &str, v6: bool) -> String {
    let network = line.split_whitespace().next().unwrap_or_default();
    match (network, v6) {
        ("default", false) => "0.0.0.0/0".into(),
        ("default", true) => "::/0".into(),
        (network, _) if network.contains('/') => network.into(),
        (host, false) => format!("{host}/32"),
        (host, true) => format!("{host}/128"),
    }
}

/// The routes that selectors ask for, given the addresses of the device and of this host. The first selector
/// of a network decides from which address; false when one has none.
fn wanted(captured: &[&Selector], own: &[IpAddr], host: &[IpAddr]) -> (BTreeSet<Route>, bool) {
    let (mut routes, mut known, mut sourced) = (BTreeSet::new(), BTreeSet::new(), true);
    for selector in captured {
        let source = own.iter().chain(host).find(|addr| selector.src.contains(**addr));
        for network in networks(&selector.dst) {
            if known.insert(network.clone()) {
                sourced &= source.is_some();
                routes.insert((selector.dst.is_v6(), network, source.copied()));
            }
        }
    }
    (routes, sourced)
}

/// Whether this host has IPv6 at all.
pub(crate) fn has_v6() -> bool {
    std::path::Path::new("/proc/net/if_inet6").exists()
}

/// Gives the device an address of its own, or takes it away.
pub(crate) fn device_address(tun: &str, addr: IpAddr, on: bool) -> Result<(), RouteError> {
    let host = format!("{addr}/{}", if addr.is_ipv6() { 128 } else { 32 });
    let verb = if on { "replace" } else { "del" };
    ip(&[family(addr.is_ipv6()), "addr", verb, &host, "dev", tun]).map(drop)
}

/// Addresses of this host, without those of the loopback device.
pub(crate) fn host_addresses() -> Result<Vec<IpAddr>, RouteError> {
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

/// MTU of the way to a host in bytes, for packets with Weir's mark; `None` when there is no way. Nothing is sent.
pub(crate) fn way_mtu(to: IpAddr, mark: u32) -> Option<u32> {
    let any: SocketAddr = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().ok()?;
    let socket = socket2::Socket::from(UdpSocket::bind(any).ok()?);
    socket.set_mark(mark).ok()?;
    socket.connect(&SocketAddr::new(to, wire::registry::PORT_IKE).into()).ok()?;
    let mtu =
        if to.is_ipv6() { rustix::net::sockopt::ipv6_mtu(&socket) } else { rustix::net::sockopt::ip_mtu(&socket) };
    mtu.ok().map(|mtu| mtu.min(65_535))
}

/// The device on the way to a host, for packets with Weir's mark; `None` when there is no way or `ip` is missing.
fn device_towards(to: IpAddr, mark: u32) -> Option<String> {
    let route = ip(&["-o", "route", "get", &to.to_string(), "mark", &format!("{mark:#x}")]).ok()?;
    word_after(&route, "dev").map(str::to_owned)
}

fn word_after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.split_whitespace().skip_while(|w| *w != word).nth(1)
}

/// The setting of the device that a TUN needs: no source check of its own. Best effort: what cannot
/// be set is not needed everywhere.
pub(crate) fn settle_device(tun: &str) {
    let path = format!("/proc/sys/net/ipv4/conf/{tun}/rp_filter");
    if let Err(error) = std::fs::write(&path, "0") {
        tracing::debug!(target: "routes", "{path}: {error}");
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
        let Some(device) = device_towards(peer, config.gateway.fwmark) else { continue };
        let strict = ["all", &device]
            .iter()
            .filter_map(|name| read(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"))?.parse::<u8>().ok())
            .max();
        if strict == Some(1) && warned.insert(device.clone()) {
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
        assert_eq!(range("::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff").len(), 128);
        let all_but_the_ends = range("::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe");
        assert_eq!(all_but_the_ends.len(), MAX_NETWORKS);
        assert_eq!(all_but_the_ends.last().unwrap(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/128");
    }

    #[test]
    fn printed_networks_are_those_that_were_asked_for() {
        for (printed, v6, network) in [
            ("default metric 4294967294 ", false, "0.0.0.0/0"),
            ("10.2.0.1 metric 4294967294 ", false, "10.2.0.1/32"),
            ("10.2.0.0/16 metric 4294967294 ", false, "10.2.0.0/16"),
            ("default dev lo metric 4294967294 error -113", true, "::/0"),
            ("2001:db8::1 dev lo metric 4294967294 error -113 pref medium", true, "2001:db8::1/128"),
        ] {
            assert_eq!(whole_network(printed, v6), network);
            assert_eq!(networks(&network.parse().unwrap()), [network]);
        }
    }

    #[test]
    fn words_are_found_by_what_precedes_them() {
        let line = "192.0.2.2 dev eth0 src 192.0.2.1 uid 0 \\    cache";
        assert_eq!(word_after(line, "dev"), Some("eth0"));
        assert_eq!(word_after(line, "mtu"), None);
    }
}
