//! NAT detection (RFC 7296 §2.23).

use std::net::{IpAddr, SocketAddr};

use crypto::ike::Hash;
use wire::ike::{Chain, NotifyType, ProtocolId};

use crate::config::{Connection, Encap};
use crate::output::{IkeSpi, IkeSpis, Path};
use crate::sa::PeerSupport;

/// The port on which IKE and ESP in UDP share a NAT mapping (RFC 3948).
pub(crate) const NAT_PORT: u16 = 4500;
/// The port of IKE.
pub(crate) const IKE_PORT: u16 = 500;

/// Vendor ID in IKE_SA_INIT of an initiator with `encap = auto`, and of a responder that agrees:
/// both encapsulate ESP in UDP without a NAT. The first half of SHA-256("Weir: ESP in UDP without a
/// NAT"), as a vendor ID should be a hash (RFC 7296 §3.12).
pub(crate) const UDP_VENDOR_ID: [u8; 16] =
    [0x30, 0x39, 0xca, 0x46, 0x16, 0xb6, 0x29, 0x64, 0x69, 0x5e, 0x66, 0x7f, 0x12, 0xcf, 0x03, 0xca];

/// Returns whether a connection agrees to ESP in UDP by [`UDP_VENDOR_ID`].
///
/// The NAT detection of such a handshake is truthful, in contrast to `encap = yes`: no peer is
/// treated as behind a NAT, where its address may change and inner checksums need correction.
pub(crate) fn agrees_to_udp(connection: &Connection) -> bool {
    connection.encap == Encap::Auto
}

/// Returns whether Child SAs are encapsulated in UDP, for a peer that supports NAT traversal.
pub(crate) fn encapsulates(nat: (bool, bool), connection: &Connection, peer: &PeerSupport) -> bool {
    nat.0 || nat.1 || peer.agreed_udp || connection.encap.is_forced()
}

/// Data of a NAT_DETECTION notify: SHA-1(SPIi | SPIr | address | port). The RFC requires SHA-1; the
/// input is not secret.
pub(crate) fn hash(spis: IkeSpis, addr: SocketAddr) -> [u8; 20] {
    // SHA-1 by specification (RFC 7296 §2.23); collision resistance is not needed.
    let port = addr.port().to_be_bytes();
    let digest = match addr.ip() {
        IpAddr::V4(ip) => Hash::Sha1.digest(&[&spis.initiator.0, &spis.responder.0, &ip.octets(), &port]),
        IpAddr::V6(ip) => Hash::Sha1.digest(&[&spis.initiator.0, &spis.responder.0, &ip.octets(), &port]),
    };
    let mut data = [0; 20];
    data.copy_from_slice(&digest[..20]);
    data
}

/// Writes both notifies. With `fake` the source hash is invalid, so that the peer detects a NAT and
/// both encapsulate ESP in UDP.
pub(crate) fn emit(chain: &mut Chain<'_>, spis: IkeSpis, path: &Path, fake: bool) {
    let mut source = hash(spis, path.local);
    if fake {
        let other = IkeSpi(source[..8].try_into().unwrap_or_default());
        source = hash(IkeSpis::new(other, spis.responder), path.local);
    }
    chain.notify(ProtocolId::NONE, &[], NotifyType::NAT_DETECTION_SOURCE_IP, &source);
    chain.notify(ProtocolId::NONE, &[], NotifyType::NAT_DETECTION_DESTINATION_IP, &hash(spis, path.remote));
}

/// Returns whether NO_NATS_ALLOWED has the addresses and ports of its datagram: source and
/// destination address, source and destination port (RFC 4555 §4.2.6).
pub(crate) fn is_as_sent(no_nats_allowed: &[u8], from: &Path) -> bool {
    let (source, destination) = (from.remote, from.local);
    let addresses = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => [source.octets(), destination.octets()].concat(),
        (IpAddr::V6(source), IpAddr::V6(destination)) => [source.octets(), destination.octets()].concat(),
        _ => return false,
    };
    let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
    no_nats_allowed.strip_prefix(&addresses[..]) == Some(&ports)
}

/// NAT detection notifies of a peer. It may send several sources, one per possible address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Detection {
    sources: u32,
    source_fits: bool,
    destinations: u32,
    destination_fits: bool,
}

impl Detection {
    /// Takes a notify of the peer in.
    pub(crate) fn take(&mut self, kind: NotifyType, data: &[u8], spis: IkeSpis, path: &Path) {
        match kind {
            NotifyType::NAT_DETECTION_SOURCE_IP => {
                self.sources += 1;
                // A peer with several addresses sends several hashes; one match is sufficient.
                self.source_fits |= data == hash(spis, path.remote);
            }
            NotifyType::NAT_DETECTION_DESTINATION_IP => {
                self.destinations += 1;
                self.destination_fits |= data == hash(spis, path.local);
            }
            _ => (),
        }
    }

    /// The peer supports NAT traversal.
    pub(crate) fn supported(&self) -> bool {
        self.sources > 0 && self.destinations > 0
    }

    /// True if there is a NAT in front of this host, and of the peer.
    pub(crate) fn nat(&self) -> (bool, bool) {
        // A peer without the notifies does not support NAT traversal; missing hashes do not
        // indicate a NAT.
        let supported = self.supported();
        // The destination hash shows a NAT in front of this host, the source hash one in front of
        // the peer.
        (supported && !self.destination_fits, supported && !self.source_fits)
    }
}

/// The path that an initiator changes to when there is a NAT or may be one later: standard ports
/// become 4500, configured ones are kept.
pub(crate) fn float(path: &mut Path) {
    for addr in [&mut path.local, &mut path.remote] {
        // Only the default port floats: with a configured port, the peer expects the whole exchange
        // there.
        if addr.port() == IKE_PORT {
            addr.set_port(NAT_PORT);
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::ike::{Notify, PayloadType, Payloads};

    use super::*;

    const SPIS: IkeSpis = IkeSpis { initiator: IkeSpi([1; 8]), responder: IkeSpi([2; 8]) };

    fn path(local: &str, remote: &str) -> Path {
        Path { local: local.parse().unwrap(), remote: remote.parse().unwrap(), encap: false }
    }

    /// Result of host `seen` from the notifies of host `sent`.
    fn detect(sent: Path, fake: bool, seen: Path) -> (bool, bool) {
        let mut bytes = Vec::new();
        let mut chain = Chain::new(&mut bytes);
        emit(&mut chain, SPIS, &sent, fake);
        let first = chain.first();
        let mut detection = Detection::default();
        for payload in Payloads::new(first, &bytes) {
            let payload = payload.unwrap();
            assert_eq!(payload.kind, PayloadType::NOTIFY);
            let notify = Notify::parse(payload.body).unwrap();
            detection.take(notify.kind, notify.data, SPIS, &seen);
        }
        assert!(detection.supported());
        detection.nat()
    }

    #[test]
    fn a_changed_address_or_port_is_a_nat() {
        let (a, b) = ("10.0.0.1:500", "192.0.2.1:500");
        assert_eq!(detect(path(a, b), false, path(b, a)), (false, false));
        assert_eq!(detect(path(a, b), false, path(b, "192.0.2.9:500")), (false, true));
        assert_eq!(detect(path(a, b), false, path(b, "10.0.0.1:1024")), (false, true));
        assert_eq!(detect(path(a, b), false, path("172.16.0.1:500", a)), (true, false));
        assert_eq!(detect(path(a, b), true, path(b, a)), (false, true));
        assert_eq!(
            detect(path("[fd00::1]:500", "[fd00::2]:500"), false, path("[fd00::2]:500", "[fd00::1]:500")),
            (false, false)
        );
        assert_eq!(Detection::default().nat(), (false, false));
    }

    #[test]
    fn no_nats_allowed_has_every_address_and_port() {
        let from = path("192.0.2.2:4500", "192.0.2.1:500");
        let good = [192, 0, 2, 1, 192, 0, 2, 2, 1, 244, 17, 148];
        assert!(is_as_sent(&good, &from));
        for at in 0..good.len() {
            let mut bad = good;
            bad[at] ^= 1;
            assert!(!is_as_sent(&bad, &from), "{at}");
        }
        assert!(!is_as_sent(&good[..11], &from) && !is_as_sent(&[&good[..], &[0]].concat(), &from));
        let mut v6 = vec![0; 36];
        (v6[0], v6[15], v6[16], v6[31]) = (0xfd, 1, 0xfd, 2);
        v6[32..].copy_from_slice(&good[8..]);
        assert!(is_as_sent(&v6, &path("[fd00::2]:4500", "[fd00::1]:500")));
        assert!(!is_as_sent(&v6, &from));
    }

    #[test]
    fn chosen_ports_do_not_float() {
        let mut path = path("10.0.0.1:500", "10.0.0.2:5500");
        float(&mut path);
        assert_eq!((path.local.port(), path.remote.port()), (4500, 5500));
    }
}
