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
    /// The end that authenticates itself by XAuth after phase 1.
    xauth: Option<Role>,
}

const fn signatures(number: Phase1Auth, kind: AuthMethodId) -> Method {
    let proof = Proof::Signature(kind);
    Method { number, shared_key: false, initiator: proof, responder: proof, xauth: None }
}

const fn with_key(number: Phase1Auth, xauth: Option<Role>) -> Method {
    Method { number, shared_key: true, initiator: Proof::Hash, responder: Proof::Hash, xauth }
}

/// Signatures by RSA, and XAuth of one end (draft-beaulieu-ike-xauth-02 §7).
const fn with_xauth(number: Phase1Auth, xauth: Role) -> Method {
    Method { xauth: Some(xauth), ..signatures(number, AuthMethodId::RSA) }
}

/// A signature of one end alone, and XAuth of the other (draft-zegman-ike-hybrid-auth-01).
const fn hybrid(number: Phase1Auth, xauth: Role) -> Method {
    let method = with_xauth(number, xauth);
    match xauth {
        Role::Initiator => Method { initiator: Proof::Hash, ..method },
        Role::Responder => Method { responder: Proof::Hash, ..method },
    }
}

/// Methods that are supported. Those with public key encryption (4, 5) are not: every
/// implementation of them is an oracle (CVE-2018-5389).
const METHODS: [Method; 11] = [
    with_key(Phase1Auth::PSK, None),
    signatures(Phase1Auth::RSA, AuthMethodId::RSA),
    signatures(Phase1Auth::ECDSA256, AuthMethodId::ECDSA256),
    signatures(Phase1Auth::ECDSA384, AuthMethodId::ECDSA384),
    signatures(Phase1Auth::ECDSA521, AuthMethodId::ECDSA521),
    with_key(Phase1Auth::XAUTH_INIT_PSK, Some(Role::Initiator)),
    with_key(Phase1Auth::XAUTH_RESP_PSK, Some(Role::Responder)),
    with_xauth(Phase1Auth::XAUTH_INIT_RSA, Role::Initiator),
    with_xauth(Phase1Auth::XAUTH_RESP_RSA, Role::Responder),
    hybrid(Phase1Auth::HYBRID_INIT_RSA, Role::Initiator),
    hybrid(Phase1Auth::HYBRID_RESP_RSA, Role::Responder),
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
        let xauth = XAuthSide::of(connection).map(|side| match side {
            XAuthSide::Local => role,
            XAuthSide::Remote => role.other(),
        });
        let fits = |method: &&Self| {
            let is = |kind: Kind, proof: Proof| (kind == Kind::PublicKey) == matches!(proof, Proof::Signature(_));
            method.shared_key == [local, remote].contains(&Kind::SharedKey)
                && method.xauth == xauth
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

/// The end that is the client of XAuth.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum XAuthSide {
    /// This host.
    Local,
    /// The peer.
    Remote,
}

impl XAuthSide {
    /// That of a connection, if it has XAuth.
    pub(super) fn of(connection: &Connection) -> Option<Self> {
        let has = |rounds: &[Auth]| rounds.iter().any(|auth| auth.method == AuthMethod::XAuth);
        match (has(&connection.local), has(&connection.remote)) {
            (true, _) => Some(Self::Local),
            (false, true) => Some(Self::Remote),
            (false, false) => None,
        }
    }
}

/// Authentication of one end in phase 1, in a configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    SharedKey,
    PublicKey,
    /// None: XAuth follows.
    XAuthAlone,
}

/// Those of both ends; `None` for rounds that phase 1 cannot express.
fn kinds(connection: &Connection) -> Option<(Kind, Kind)> {
    let kind = |rounds: &[Auth]| {
        let methods: Vec<&AuthMethod> = rounds.iter().map(|auth| &auth.method).collect();
        match methods[..] {
            [AuthMethod::Psk] => Some((Kind::SharedKey, false)),
            [AuthMethod::PublicKey(_)] => Some((Kind::PublicKey, false)),
            [AuthMethod::Psk, AuthMethod::XAuth] => Some((Kind::SharedKey, true)),
            [AuthMethod::PublicKey(_), AuthMethod::XAuth] => Some((Kind::PublicKey, true)),
            [AuthMethod::XAuth] => Some((Kind::XAuthAlone, true)),
            _ => None,
        }
    };
    let (local, remote) = kind(&connection.local).zip(kind(&connection.remote))?;
    // One end is the client of XAuth. A shared key authenticates both ends.
    let one = !(local.1 && remote.1);
    let is_same_kind = (local.0 == Kind::SharedKey) == (remote.0 == Kind::SharedKey);
    (one && is_same_kind).then_some((local.0, remote.0))
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
        let xauth = || [public(), vec![auth(AuthMethod::XAuth, "%any")]].concat();
        let twice = Connection { local: xauth(), remote: xauth(), ..connection_v1(1, 2) };
        for connection in [mixed, eap, rounds, twice] {
            assert!(!Method::is_expressible(&connection), "{connection:?}");
        }
    }

    #[test]
    fn xauth_has_methods_of_its_own() {
        let round = |method| vec![auth(method, "a.test")];
        let public = || round(AuthMethod::PublicKey(Vec::new()));
        let [psk, xauth] = [AuthMethod::Psk, AuthMethod::XAuth].map(round);
        let of = |local: &[Auth], remote: &[Auth]| Connection {
            local: local.to_vec(),
            remote: remote.to_vec(),
            ..connection_v1(1, 2)
        };
        let both = |one: &[Auth]| [one, &xauth[..]].concat();
        let rsa = [AuthMethodId::RSA];
        for (connection, initiator, responder) in [
            (of(&both(&psk), &psk), 65_001, 65_002),
            (of(&psk, &both(&psk)), 65_002, 65_001),
            (of(&both(&public()), &public()), 65_005, 65_006),
            (of(&public(), &both(&public())), 65_006, 65_005),
            (of(&xauth, &public()), 64_221, 64_222),
            (of(&public(), &xauth), 64_222, 64_221),
        ] {
            assert_eq!(numbers(&connection, Role::Initiator, Some(&rsa)), [initiator]);
            assert_eq!(numbers(&connection, Role::Responder, Some(&rsa)), [responder]);
        }
        // A shared key is one of both ends.
        assert!(!Method::is_expressible(&of(&xauth, &psk)));
    }

    #[test]
    fn ecdsa_signs_the_hash_of_its_curve() {
        let prf = |number| METHODS.iter().find(|method| method.number == number).expect("it").auth_prf(Prf::HmacSha1);
        assert_eq!(prf(Phase1Auth::RSA), Prf::HmacSha1);
        assert_eq!(prf(Phase1Auth::ECDSA384), Prf::HmacSha384);
    }
}
