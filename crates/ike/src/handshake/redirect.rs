//! Being sent to another gateway (RFC 5685).

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use wire::ike::{Chain, NotifyType};

use super::init::status;
use crate::error::IkeError;
use crate::nat::IKE_PORT;

/// Redirections that are followed within [`WINDOW`]; more is a loop (§9).
const HOPS_MAX: u32 = 5;
/// Time in which they are counted.
const WINDOW: Duration = Duration::from_secs(300);
/// GW Ident Type of an IPv4 address.
const IPV4: u8 = 1;
/// GW Ident Type of an IPv6 address.
const IPV6: u8 = 2;
/// GW Ident Type of a name.
const FQDN: u8 = 3;
/// Longest name of a host, in bytes (RFC 1035 §3.1).
const NAME_MAX: usize = 253;

/// Destination of a redirection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Gateway {
    /// To an address, on the usual port.
    At(SocketAddr),
    /// A host name to resolve ([`Output::Resolve`](crate::Output::Resolve)).
    Named(String),
}

/// Redirections that led to an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Redirects {
    hops: u32,
    since: Option<Instant>,
    /// The gateway that sent us here.
    from: Option<IpAddr>,
}

impl Redirects {
    /// REDIRECT_SUPPORTED, or where one comes from.
    pub(super) fn emit(&self, chain: &mut Chain<'_>) {
        match self.from {
            None => status(chain, NotifyType::REDIRECT_SUPPORTED, &[]),
            Some(IpAddr::V4(from)) => {
                status(chain, NotifyType::REDIRECTED_FROM, &[&[IPV4, 4][..], &from.octets()].concat());
            }
            Some(IpAddr::V6(from)) => {
                status(chain, NotifyType::REDIRECTED_FROM, &[&[IPV6, 16][..], &from.octets()].concat());
            }
        }
    }

    /// The same after one more redirection by `from`; `None` when there were too many.
    pub(super) fn follow(self, now: Instant, from: IpAddr) -> Option<Self> {
        // The count restarts after the window: only a fast series is a loop. A cluster may redirect
        // the same client again hours later.
        let since = self.since.filter(|since| now.saturating_duration_since(*since) < WINDOW);
        let hops = if since.is_some() { self.hops + 1 } else { 1 };
        (hops <= HOPS_MAX).then_some(Self { hops, since: since.or(Some(now)), from: Some(from) })
    }
}

/// Reads the data of a REDIRECT notify. `nonce` must be there in IKE_SA_INIT, where it shows that
/// the sender has seen the request, and is `None` later.
pub(crate) fn target(data: &[u8], nonce: Option<&[u8]>) -> Result<Gateway, IkeError> {
    let [kind, len, rest @ ..] = data else { return Err(IkeError::violation("REDIRECT is truncated")) };
    let Some((gateway, rest)) = rest.split_at_checked(usize::from(*len)) else {
        return Err(IkeError::violation("REDIRECT is truncated"));
    };
    if nonce.is_some_and(|nonce| nonce != rest) {
        return Err(IkeError::violation("REDIRECT does not repeat the nonce"));
    }
    let addr = match *kind {
        IPV4 => <[u8; 4]>::try_from(gateway).map(IpAddr::from).ok(),
        IPV6 => <[u8; 16]>::try_from(gateway).map(IpAddr::from).ok(),
        FQDN => return name(gateway).map(Gateway::Named),
        kind => return Err(IkeError::violation(format!("REDIRECT to an identity of the unknown type {kind}"))),
    };
    match addr.filter(|addr| !addr.is_unspecified() && !addr.is_multicast()) {
        Some(addr) => Ok(Gateway::At(SocketAddr::new(addr, IKE_PORT))),
        None => Err(IkeError::violation("REDIRECT to no usable address")),
    }
}

/// A name as hosts have them: letters, digits and hyphens between dots. Anything else is not for a
/// resolver.
fn name(octets: &[u8]) -> Result<String, IkeError> {
    let label = |label: &[u8]| {
        (1..=63).contains(&label.len())
            && !label.starts_with(b"-")
            && label.iter().all(|octet| octet.is_ascii_alphanumeric() || *octet == b'-')
    };
    let whole = octets.strip_suffix(b".").unwrap_or(octets);
    if whole.len() <= NAME_MAX && whole.split(|octet| *octet == b'.').all(label) {
        return Ok(String::from_utf8_lossy(whole).into_owned());
    }
    let octets = String::from_utf8_lossy(octets);
    Err(IkeError::violation(format!("REDIRECT to '{}', which is no name of a host", octets.escape_debug())))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a test begins at some time
mod tests {
    use super::*;

    #[test]
    fn redirections_count_within_their_window() {
        let (start, from) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        let mut redirects = Redirects::default();
        for _ in 0..HOPS_MAX {
            redirects = redirects.follow(start, from).expect("not too many");
        }
        assert!(redirects.follow(start + WINDOW / 2, from).is_none());
        assert!(redirects.follow(start + WINDOW, from).is_some());
    }

    #[test]
    fn a_target_needs_the_nonce_in_ike_sa_init() {
        let data = [&[IPV4, 4, 192, 0, 2, 7][..], b"nonce"].concat();
        let want = Ok(Gateway::At("192.0.2.7:500".parse().unwrap()));
        assert_eq!(target(&data, Some(b"nonce")), want);
        assert_eq!(target(&data[..6], None), want);
        assert!(target(&data, Some(b"nonse")).is_err() && target(&data[..6], Some(b"nonce")).is_err());
        for bad in [&[][..], &[1], &[1, 5, 1, 2, 3, 4], &[1, 3, 1, 2, 3], &[1, 4, 0, 0, 0, 0], &[4, 1, b'a']] {
            assert!(target(bad, None).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_target_may_be_the_name_of_a_host() {
        let named = |name: &str| target(&[&[FQDN, name.len() as u8][..], name.as_bytes()].concat(), None);
        assert_eq!(named("gw-2.example"), Ok(Gateway::Named("gw-2.example".into())));
        assert_eq!(named("gw2."), Ok(Gateway::Named("gw2".into())));
        let long = ["a.".repeat(126), "a".into()].concat();
        assert_eq!(named(&long), Ok(Gateway::Named(long.clone())));
        for bad in ["", ".", "a..b", "-a", "a b", "a\n", "a/b", "é", &"a".repeat(64), &["aa.", &long].concat()] {
            assert!(named(bad).is_err(), "{bad:?}");
        }
    }
}
