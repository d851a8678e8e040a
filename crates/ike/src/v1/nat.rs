//! NAT discovery (RFC 3947 §3.2).

use std::net::{IpAddr, SocketAddr};

use crypto::ike::Hash;
use wire::ike::Chain;

use super::message::NatTraversal;
use crate::output::{IkeSpis, Path};

/// Data of a NAT-D payload: HASH(CKY-I | CKY-R | address | port), with the hash of phase 1.
fn digest(hash: Hash, cookies: IkeSpis, addr: SocketAddr) -> Vec<u8> {
    let port = addr.port().to_be_bytes();
    let octets = match addr.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    hash.digest(&[&cookies.initiator.0, &cookies.responder.0, &octets, &port])
}

/// Writes both payloads, the destination first. With `fake` the source is invalid, so that the peer
/// detects a NAT and both encapsulate ESP in UDP.
pub(super) fn emit(chain: &mut Chain<'_>, kind: NatTraversal, hash: Hash, cookies: IkeSpis, path: &Path, fake: bool) {
    let mut source = digest(hash, cookies, path.local);
    if fake {
        source = hash.digest(&[&source]);
    }
    chain.raw(kind.nat_d(), &digest(hash, cookies, path.remote));
    chain.raw(kind.nat_d(), &source);
}

/// Returns whether there is a NAT in front of this host and of the peer, by the payloads of the
/// peer: the first has the address of this host, the others those of the peer.
pub(super) fn detect(received: &[&[u8]], hash: Hash, cookies: IkeSpis, path: &Path) -> (bool, bool) {
    let Some((destination, sources)) = received.split_first() else { return (false, false) };
    let source = digest(hash, cookies, path.remote);
    (*destination != digest(hash, cookies, path.local), !sources.is_empty() && !sources.contains(&&source[..]))
}

#[cfg(test)]
mod tests {
    use wire::ike::{PayloadType, Payloads};

    use super::*;
    use crate::output::IkeSpi;

    #[test]
    fn a_nat_changes_the_address_that_the_other_end_sees() {
        let cookies = IkeSpis::new(IkeSpi([1; 8]), IkeSpi([2; 8]));
        let addr = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let path = |local, remote| Path::of_datagram(addr(local), addr(remote));
        let send = |path: &Path, fake| {
            let mut out = Vec::new();
            let mut chain = Chain::new(&mut out);
            emit(&mut chain, NatTraversal::Rfc, Hash::Sha256, cookies, path, fake);
            out
        };
        let seen = |sent: &[u8], path: &Path| {
            let bodies: Vec<&[u8]> = Payloads::v1(PayloadType::NAT_D_V1, sent).map(|one| one.unwrap().body).collect();
            detect(&bodies, Hash::Sha256, cookies, path)
        };
        let sent = send(&path("10.0.0.1:500", "10.0.0.2:500"), false);
        assert_eq!(seen(&sent, &path("10.0.0.2:500", "10.0.0.1:500")), (false, false));
        assert_eq!(seen(&sent, &path("10.0.0.2:500", "10.0.0.9:500")), (false, true));
        assert_eq!(seen(&sent, &path("10.0.0.2:500", "10.0.0.1:501")), (false, true));
        assert_eq!(seen(&sent, &path("192.168.0.2:500", "10.0.0.1:500")), (true, false));
        let sent = send(&path("10.0.0.1:500", "10.0.0.2:500"), true);
        assert_eq!(seen(&sent, &path("10.0.0.2:500", "10.0.0.1:500")), (false, true));
        assert_eq!(detect(&[], Hash::Sha256, cookies, &path("10.0.0.2:500", "10.0.0.1:500")), (false, false));
    }
}
