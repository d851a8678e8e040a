//! Being sent to another gateway (RFC 5685).

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use wire::ike::{Chain, NotifyType};

use super::init::status;
use crate::nat::IKE_PORT;

/// Redirections that are followed within [`WINDOW`]; more is a loop (§9).
const HOPS_MAX: u32 = 5;
/// Time in which they are counted.
const WINDOW: Duration = Duration::from_secs(300);
/// GW Ident Type of an IPv4 address.
const IPV4: u8 = 1;
/// GW Ident Type of an IPv6 address.
const IPV6: u8 = 2;

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
        let since = self.since.filter(|since| now.saturating_duration_since(*since) < WINDOW);
        let hops = if since.is_some() { self.hops + 1 } else { 1 };
        (hops <= HOPS_MAX).then_some(Self { hops, since: since.or(Some(now)), from: Some(from) })
    }
}

/// Reads the data of a REDIRECT notify. `nonce` must be there in IKE_SA_INIT, where it shows that the
/// sender has seen the request, and is `None` later. A gateway named by its FQDN cannot be followed:
/// names are resolved by nobody here.
pub(super) fn target(data: &[u8], nonce: Option<&[u8]>) -> Result<SocketAddr, String> {
    let [kind, len, rest @ ..] = data else { return Err("REDIRECT is truncated".to_owned()) };
    let Some((gateway, rest)) = rest.split_at_checked(usize::from(*len)) else {
        return Err("REDIRECT is truncated".to_owned());
    };
    if nonce.is_some_and(|nonce| nonce != rest) {
        return Err("REDIRECT does not repeat the nonce".to_owned());
    }
    let addr = match *kind {
        IPV4 => <[u8; 4]>::try_from(gateway).map(IpAddr::from).ok(),
        IPV6 => <[u8; 16]>::try_from(gateway).map(IpAddr::from).ok(),
        _ => return Err(format!("REDIRECT to '{}', a name", String::from_utf8_lossy(gateway).escape_debug())),
    };
    match addr.filter(|addr| !addr.is_unspecified() && !addr.is_multicast()) {
        Some(addr) => Ok(SocketAddr::new(addr, IKE_PORT)),
        None => Err("REDIRECT to no usable address".to_owned()),
    }
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
        let want = Ok("192.0.2.7:500".parse().unwrap());
        assert_eq!(target(&data, Some(b"nonce")), want);
        assert_eq!(target(&data[..6], None), want);
        assert!(target(&data, Some(b"nonse")).is_err() && target(&data[..6], Some(b"nonce")).is_err());
        for bad in [&[][..], &[1], &[1, 5, 1, 2, 3, 4], &[1, 3, 1, 2, 3], &[3, 2, b'a', b'b'], &[1, 4, 0, 0, 0, 0]] {
            assert!(target(bad, None).is_err(), "{bad:?}");
        }
    }
}
