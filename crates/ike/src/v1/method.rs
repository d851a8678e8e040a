//! Authentication methods of phase 1 (RFC 2409 §5 and appendix A, RFC 4754): one number, agreed to
//! with the algorithms, for both ends.

use crypto::ike::Prf;
use wire::ike::AuthMethodId;
use wire::ike::v1::Phase1Auth;

use crate::config::{Auth, AuthMethod, Connection};
use crate::sa::Role;

/// Authentication of one end in phase 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Proof {
    /// HASH_I or HASH_R, by which an end proves that it has SKEYID.
    Hash,
    /// SIG_I or SIG_R with a key of this kind.
    Signature(AuthMethodId),
}

/// A method of phase 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Method {
    /// Value of the attribute.
    pub(super) number: Phase1Auth,
    /// SKEYID is made of a shared key; otherwise of the key exchange.
    pub(super) shared_key: bool,
    initiator: Proof,
    responder: Proof,
}

const fn signatures(number: Phase1Auth, kind: AuthMethodId) -> Method {
    Method { number, shared_key: false, initiator: Proof::Signature(kind), responder: Proof::Signature(kind) }
}

/// Methods that are supported. Those with public key encryption (4, 5) are not: every
/// implementation of them is an oracle (CVE-2018-5389).
const METHODS: [Method; 5] = [
    Method { number: Phase1Auth::PSK, shared_key: true, initiator: Proof::Hash, responder: Proof::Hash },
    signatures(Phase1Auth::RSA, AuthMethodId::RSA),
    signatures(Phase1Auth::ECDSA256, AuthMethodId::ECDSA256),
    signatures(Phase1Auth::ECDSA384, AuthMethodId::ECDSA384),
    signatures(Phase1Auth::ECDSA521, AuthMethodId::ECDSA521),
];

impl Method {
    /// A shared key, without anything after phase 1.
    #[cfg(test)]
    pub(super) const PSK: Self = METHODS[0];

    /// Authentication of an end.
    pub(super) fn proof(&self, of: Role) -> Proof {
        match of {
            Role::Initiator => self.initiator,
            Role::Responder => self.responder,
        }
    }

    /// PRF of HASH_I and HASH_R. That of a signature by ECDSA has the hash of the curve, whatever
    /// hash was negotiated (RFC 4754 §3).
    pub(super) fn auth_prf(&self, negotiated: Prf) -> Prf {
        match self.number {
            Phase1Auth::ECDSA256 => Prf::HmacSha256,
            Phase1Auth::ECDSA384 => Prf::HmacSha384,
            Phase1Auth::ECDSA521 => Prf::HmacSha512,
            _ => negotiated,
        }
    }

    /// Either end signs, so that certificates are of use.
    pub(super) fn has_signature(&self) -> bool {
        self.initiator != Proof::Hash || self.responder != Proof::Hash
    }

    /// Methods by which a connection authenticates with this host in a role, best first. `signers`
    /// are the kinds of keys that this host has, `None` while they are unknown.
    pub(super) fn of(connection: &Connection, role: Role, signers: Option<&[AuthMethodId]>) -> Vec<Self> {
        let Some((local, remote)) = kinds(connection) else { return Vec::new() };
        let fits = |method: &&Self| {
            let is = |kind: Kind, proof: Proof| (kind == Kind::PublicKey) == matches!(proof, Proof::Signature(_));
            method.shared_key == (local == Kind::SharedKey)
                && is(local, method.proof(role))
                && is(remote, method.proof(role.other()))
        };
        let mut found: Vec<(usize, Self)> = METHODS
            .iter()
            .filter(fits)
            .filter_map(|method| match (method.proof(role), signers) {
                (Proof::Signature(kind), Some(signers)) => {
                    Some((signers.iter().position(|signer| *signer == kind)?, *method))
                }
                _ => Some((0, *method)),
            })
            .collect();
        found.sort_by_key(|(rank, _)| *rank);
        found.into_iter().map(|(_, method)| method).collect()
    }

    /// Returns whether some method authenticates both ends as a connection has it.
    #[cfg(test)]
    fn is_expressible(connection: &Connection) -> bool {
        !Self::of(connection, Role::Initiator, None).is_empty()
    }
}

/// Authentication of one end in a configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    SharedKey,
    PublicKey,
}

fn kinds(connection: &Connection) -> Option<(Kind, Kind)> {
    let kind = |rounds: &[Auth]| match rounds {
        [Auth { method: AuthMethod::Psk, .. }] => Some(Kind::SharedKey),
        [Auth { method: AuthMethod::PublicKey(_), .. }] => Some(Kind::PublicKey),
        _ => None,
    };
    kind(&connection.local).zip(kind(&connection.remote))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{auth, connection_v1};

    fn numbers(connection: &Connection, role: Role, signers: Option<&[AuthMethodId]>) -> Vec<u16> {
        Method::of(connection, role, signers).iter().map(|method| method.number.0).collect()
    }

    #[test]
    fn the_rounds_of_a_connection_select_the_methods() {
        let psk = connection_v1(1, 2);
        let public = || vec![auth(AuthMethod::PublicKey(Vec::new()), "a.test")];
        let signed = Connection { local: public(), remote: public(), ..connection_v1(1, 2) };
        for role in [Role::Initiator, Role::Responder] {
            assert_eq!(numbers(&psk, role, None), [1]);
            assert_eq!(numbers(&signed, role, None), [3, 9, 10, 11]);
            // In the order of the keys that this host has.
            let keys = [AuthMethodId::ECDSA384, AuthMethodId::RSA];
            assert_eq!(numbers(&signed, role, Some(&keys)), [10, 3]);
            assert!(numbers(&signed, role, Some(&[])).is_empty());
        }
        // One number is for both ends.
        let mixed = Connection { local: public(), ..connection_v1(1, 2) };
        let eap = Connection { local: vec![auth(AuthMethod::Eap(None), "a.test")], ..connection_v1(1, 2) };
        let rounds = Connection { remote: [public(), public()].concat(), local: public(), ..connection_v1(1, 2) };
        for connection in [mixed, eap, rounds] {
            assert!(!Method::is_expressible(&connection), "{connection:?}");
        }
    }

    #[test]
    fn ecdsa_signs_the_hash_of_its_curve() {
        let prf = |number| METHODS.iter().find(|method| method.number == number).expect("it").auth_prf(Prf::HmacSha1);
        assert_eq!(prf(Phase1Auth::RSA), Prf::HmacSha1);
        assert_eq!(prf(Phase1Auth::ECDSA384), Prf::HmacSha384);
    }
}
