//! Interfaces that use AF_XDP (kernel bypass), from the configuration to the ports.
//!
//! They are opened before the process confines itself: the sandbox forbids bpf(2) and the locking
//! of memory. So one that goes later does not come back before the next start; sockets are used for
//! it.

use std::net::IpAddr;

use ports::xdp::{BypassCounts, BypassFilter, Interface, InterfaceMonitor};
use wire::IpProto;

use crate::config::Config;
use crate::routes;
use crate::status::XdpStatus;
use crate::up::Listening;

/// Interfaces in use, for the control side.
#[derive(Default)]
pub(crate) struct Bypass(Vec<InterfaceMonitor>);

impl Bypass {
    /// Opens the configured interfaces. An interface that cannot be opened is missing from the
    /// result: sockets are used for it, and the log states the reason.
    pub(crate) fn open(config: &Config) -> (Self, Vec<Interface>) {
        let (mut watches, mut opened) = (Vec::new(), Vec::new());
        if config.gateway.xdp.is_empty() {
            return (Self(watches), opened);
        }
        let wanted = wanted(config, &Listening::of(config), || routes::host_addresses().unwrap_or_default());
        for name in &config.gateway.xdp {
            match Interface::open(name, &wanted) {
                Ok((interface, watch)) => {
                    tracing::info!(target: "net", "AF_XDP: {}", watch.describe());
                    watches.push(watch);
                    opened.push(interface);
                }
                Err(error) => tracing::warn!(target: "net", "AF_XDP: {name}: {error}; sockets are used for it"),
            }
        }
        (Self(watches), opened)
    }

    /// Logs interfaces that have disappeared.
    pub(crate) fn look(&mut self) {
        for watch in &mut self.0 {
            if let Some(trouble) = watch.trouble() {
                let name = watch.name();
                tracing::warn!(target: "net", "AF_XDP: {name}: {trouble}; sockets are used until the next start");
            }
        }
    }

    /// Returns each interface with its kernel bypass counters.
    pub(crate) fn status(&self) -> Vec<XdpStatus> {
        let of = |watch: &InterfaceMonitor| {
            let BypassCounts { received, sent, lost } = watch.read();
            let (interface, queues) = (watch.name().to_owned(), watch.queues() as u64);
            XdpStatus { interface, queues, zero_copy: watch.zero_copy(), received, sent, lost }
        };
        self.0.iter().map(of).collect()
    }
}

/// Packets to receive by AF_XDP before the kernel's stack. A wildcard listener covers the addresses
/// that this host has at the start.
fn wanted(config: &Config, listening: &Listening, of_host: impl FnOnce() -> Vec<IpAddr>) -> BypassFilter {
    let points = config.gateway.code_points;
    let everywhere = listening.local.iter().any(IpAddr::is_unspecified);
    let mut local: Vec<IpAddr> = listening.local.iter().copied().filter(|addr| !addr.is_unspecified()).collect();
    if everywhere {
        local.extend(of_host());
        local.sort_unstable();
        local.dedup();
    }
    let protocols: Vec<IpProto> = listening.protocols.iter().copied().collect();
    let mut udp: Vec<u16> = listening.udp.iter().map(|at| at.port()).collect();
    udp.sort_unstable();
    udp.dedup();
    BypassFilter { local, protocols, udp, with_ike: config.ike_wanted().then_some(points.nat_t_port) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Purpose;
    use crate::config::tests::{GOOD, read};

    #[test]
    fn what_is_listened_to_is_what_is_wanted() {
        let none = || panic!("the addresses of the SAs are enough");
        let manual = read(GOOD, Purpose::Gateway).unwrap();
        let esp = wanted(&manual, &Listening::of(&manual), none);
        assert_eq!((esp.local, esp.protocols), (vec!["192.0.2.1".parse().unwrap()], vec![IpProto::ESP]));
        assert_eq!((esp.udp, esp.with_ike), (vec![], None));
        let in_udp = GOOD.replace("mode = tunnel", "mode = tunnel\nencap = yes");
        let in_udp = read(&in_udp, Purpose::Gateway).unwrap();
        let in_udp = wanted(&in_udp, &Listening::of(&in_udp), none);
        assert_eq!((in_udp.protocols, in_udp.udp, in_udp.with_ike), (vec![], vec![4500], None));
        let ike = GOOD.replace("gateway {", "gateway {\nike = yes");
        let ike = read(&ike, Purpose::Gateway).unwrap();
        let own: Vec<IpAddr> = ["192.0.2.1", "2001:db8::1"].map(|addr| addr.parse().unwrap()).to_vec();
        let ike = wanted(&ike, &Listening::of(&ike), || own.clone());
        assert_eq!((ike.local, ike.udp, ike.with_ike), (own, vec![4500], Some(4500)));
        assert_eq!(ike.protocols, [IpProto::ESP, IpProto::AH, IpProto(253)]);
    }
}
