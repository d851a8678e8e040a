//! MTU of the TUN device.
//!
//! With `mtu = auto` it follows the narrowest SA that sends, so that hosts learn of the room for
//! their packets from the device instead of from ICMP errors, which many networks filter. It never
//! exceeds the MTU of the start, for which the queues have room, and never goes below what IPv6
//! needs. Without an SA it does not change: a connection that comes back must not find path MTU
//! caches reset.

use std::sync::atomic::Ordering;

use ipsec::OutboundSa;
use ipsec::aggfrag::MAX_INNER;
use wire::aggfrag::BasicHeader;

use crate::config::Config;
use crate::host::HostNetwork;
use crate::plane;
use crate::routes::RouteError;
use crate::tables::{self, Tables};

/// Smallest MTU that the device gets by itself, in bytes: the minimum of IPv6 (RFC 8200 §5).
pub(crate) const LEAST_MTU: u32 = 1280;

/// MTU of the device at the start, in bytes: as written, or what fits the narrowest SA of the file.
pub(crate) fn at_start(config: &Config, tables: &Tables) -> u32 {
    let narrowest = of_file(tables).min().unwrap_or(plane::DEFAULT_MTU);
    config.gateway.mtu.unwrap_or_else(|| narrowest.clamp(LEAST_MTU, 65_535))
}

/// Inner MTUs of the SAs of the file.
pub(crate) fn of_file(tables: &Tables) -> impl Iterator<Item = u32> {
    let outbound = |entry: &tables::Entry| Some(inner(&entry.outbound.as_ref()?.sa));
    tables.entries.iter().filter_map(outbound)
}

/// Largest packet in bytes that an SA protects without fragments. In AGGFRAG mode packets of any
/// length are cut, unless the peer refuses that.
pub(crate) fn inner(sa: &OutboundSa) -> u32 {
    let payload = sa.inner_mtu.load(Ordering::Relaxed);
    match sa.common.aggfrag() {
        Some(settings) if settings.dont_fragment => payload.saturating_sub(BasicHeader::LEN as u32),
        Some(_) => MAX_INNER as u32,
        None => payload,
    }
}

/// The MTU in force, and its limits.
pub(crate) struct DeviceMtu {
    tun: String,
    /// MTU in bytes as the device has it.
    current: u32,
    /// MTU at the start in bytes, the largest.
    most: u32,
    /// True if the MTU follows SAs.
    follows: bool,
}

impl DeviceMtu {
    /// The device has just been made with an MTU of `bytes`.
    pub(crate) fn new(config: &Config, bytes: u32) -> Self {
        Self { tun: config.gateway.tun.clone(), current: bytes, most: bytes, follows: config.gateway.mtu.is_none() }
    }

    /// Sets the MTU of the device to the smallest of `inner` MTUs, within the limits.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn follow(
        &mut self,
        host: &dyn HostNetwork,
        inner: impl Iterator<Item = u32>,
    ) -> Result<(), RouteError> {
        let Some(wanted) = self.wanted(inner) else { return Ok(()) };
        // A refusal is not repeated at every change of an SA.
        self.current = wanted;
        host.device_mtu(wanted)?;
        tracing::info!(target: "routes", "MTU of device {} is now {wanted} bytes", self.tun);
        Ok(())
    }

    /// Another MTU than the present one, when SAs ask for it.
    fn wanted(&self, inner: impl Iterator<Item = u32>) -> Option<u32> {
        let narrowest = inner.min().filter(|_| self.follows)?;
        let wanted = narrowest.max(LEAST_MTU).min(self.most);
        (wanted != self.current).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(current: u32, follows: bool) -> DeviceMtu {
        DeviceMtu { tun: "weir0".into(), current, most: 1500, follows }
    }

    #[test]
    fn packets_of_iptfs_are_cut_unless_the_peer_refuses_it() {
        use ipsec::{Lifetime, Mode, Outer, SaCommon, esp};

        let of = |mode| {
            let (suite, outer) = (
                crypto::Suite::parse_esp("aes128gcm16").unwrap(),
                Outer::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
            );
            let common = SaCommon::new("net", mode, outer, Lifetime::NONE);
            let spec = esp::Spec::new(0x1001.try_into().unwrap(), suite, &[7; 20]);
            inner(&esp::outbound(common, &spec, crypto::Engine::AwsLc, &mut crypto::KeyTable::default()).unwrap())
        };
        let settings = ipsec::aggfrag::Settings::default();
        assert_eq!(of(Mode::Tunnel), 1446);
        assert_eq!(of(Mode::Aggfrag(settings)), 65_535);
        assert_eq!(of(Mode::Aggfrag(ipsec::aggfrag::Settings { dont_fragment: true, ..settings })), 1442);
    }

    fn wanted(current: u32, inner: &[u32]) -> Option<u32> {
        of(current, true).wanted(inner.iter().copied())
    }

    #[test]
    fn the_narrowest_sa_decides() {
        assert_eq!(wanted(1500, &[1446, 1430, 1438]), Some(1430));
        assert_eq!(wanted(1430, &[1446, 1438]), Some(1438));
        assert_eq!(wanted(1430, &[1430, 1438]), None);
    }

    #[test]
    fn never_below_the_minimum_of_ipv6_nor_above_the_start() {
        assert_eq!(wanted(1500, &[0]), Some(1280));
        assert_eq!(wanted(1500, &[1279, 1446]), Some(1280));
        assert_eq!(wanted(1430, &[8946]), Some(1500));
        assert_eq!(wanted(1500, &[8946]), None);
        let small = DeviceMtu { most: 1200, ..of(1200, true) };
        assert_eq!(small.wanted([1446].into_iter()), None);
    }

    #[test]
    fn without_an_sa_or_with_a_fixed_mtu_nothing_changes() {
        assert_eq!(wanted(1430, &[]), None);
        assert_eq!(of(1500, false).wanted([1430].into_iter()), None);
    }
}
