//! Common state of both roles after IKE_SA_INIT: keys, and the octets that AUTH covers.

use std::sync::Arc;

use crypto::ike::Secret;
use wire::ike::{AuthMethodId, CertEncoding, HashId};

use super::counters;
use super::init::Requested;
use crate::child::Parent;
use crate::config::Connection;
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::Exchanges;
use crate::identity::Identity;
use crate::keymat::{IkeKeys, IntAuth, Seed};
use crate::output::{Event, IkeId, IkeSpis, Level, Path, SignRequest, Subsystem, VerifyRequest, VirtualIp};
use crate::proposal::IkeSuite;
use crate::sa::{DeriveKeys, Ending, Established, PeerSupport, Role, SkKeys, eap_or_ike_id};
use crate::task::Tasks;

/// An IKE SA with keys; its peer has not authenticated.
pub(crate) struct Secured {
    pub(crate) id: IkeId,
    pub(crate) role: Role,
    pub(crate) spis: IkeSpis,
    pub(crate) path: Path,
    pub(crate) nat: (bool, bool),
    pub(crate) peer: PeerSupport,
    /// SIGNATURE_HASH_ALGORITHMS of the peer.
    pub(crate) peer_hashes: Vec<HashId>,
    pub(crate) suite: IkeSuite,
    pub(crate) keys: IkeKeys,
    /// SK_d, SK_pi and SK_pr with the PPK mixed in (RFC 8784).
    pub(crate) mixed: Option<DeriveKeys>,
    /// The keys in `mixed` are used: both peers have the PPK. Without it an initiator falls back to
    /// `keys`, where the PPK is optional.
    pub(crate) ppk: bool,
    pub(crate) nonce_i: Vec<u8>,
    pub(crate) nonce_r: Vec<u8>,
    /// IKE_SA_INIT as sent and received.
    pub(crate) request: Vec<u8>,
    pub(crate) response: Vec<u8>,
    pub(crate) int_auth: IntAuth,
    /// Message ID of the first IKE_AUTH.
    pub(crate) auth_id: Option<u32>,
    pub(crate) exchanges: Exchanges,
}

/// Identity that the peer claims in an IKE_AUTH round, and its proof.
pub(super) struct Claim<'a> {
    pub(super) remote_id: &'a Identity,
    /// Body of the peer's ID payload, as received.
    pub(super) id_body: &'a [u8],
    pub(super) local_id: Option<Identity>,
    pub(super) method: AuthMethodId,
    pub(super) auth: Vec<u8>,
    pub(super) certs: Vec<(CertEncoding, Vec<u8>)>,
    pub(super) eap_msk: Option<Secret>,
}

/// Secrets of the AUTH payload besides those of the IKE SA.
pub(super) struct AuthSecrets {
    /// MSK of an EAP method, which replaces the shared key (RFC 7296 §2.16).
    pub(super) eap_msk: Option<Secret>,
    /// A post-quantum preshared key is used (RFC 8784).
    pub(super) ppk: bool,
}

impl Secured {
    pub(super) fn seed(&self) -> Seed<'_> {
        Seed { nonce_i: &self.nonce_i, nonce_r: &self.nonce_r, spis: self.spis }
    }

    /// SK_pi or SK_pr, with the PPK mixed in if `ppk`.
    pub(super) fn sk_p(&self, of: Role, ppk: bool) -> &Secret {
        match (of, self.mixed.as_ref().filter(|_| ppk)) {
            (Role::Initiator, None) => &self.keys.sk_pi,
            (Role::Responder, None) => &self.keys.sk_pr,
            (Role::Initiator, Some(mixed)) => &mixed.sk_pi,
            (Role::Responder, Some(mixed)) => &mixed.sk_pr,
        }
    }

    /// The role of the peer.
    pub(super) fn other(&self) -> Role {
        self.role.other()
    }

    /// First part of the signed octets of a role: its IKE_SA_INIT message and the nonce of the
    /// peer.
    fn message_and_nonce(&self, of: Role) -> Vec<u8> {
        match of {
            // The nonce of the peer proves that the signature is fresh (RFC 7296 §2.15).
            Role::Initiator => [&self.request[..], &self.nonce_r].concat(),
            Role::Responder => [&self.response[..], &self.nonce_i].concat(),
        }
    }

    fn int_auth(&self) -> Vec<u8> {
        self.int_auth.octets(self.auth_id.unwrap_or_default())
    }

    /// Derives the keys with the PPK; they are used once `ppk` is set.
    pub(super) fn mix(&mut self, ppk: &Secret) {
        let empty = || Secret::new(Vec::new());
        // Only the keys that a PPK changes; the others remain in use unmixed.
        let mut keys = IkeKeys {
            sk_d: self.keys.sk_d.clone(),
            sk_ai: empty(),
            sk_ar: empty(),
            sk_ei: empty(),
            sk_er: empty(),
            sk_pi: self.keys.sk_pi.clone(),
            sk_pr: self.keys.sk_pr.clone(),
        };
        keys.mix_ppk(self.suite.prf, ppk);
        self.mixed = Some(DeriveKeys { sk_d: keys.sk_d, sk_pi: keys.sk_pi, sk_pr: keys.sk_pr });
    }

    /// Request for the AUTH payload of this host in a round of authentication (RFC 4739).
    pub(super) fn sign_request(
        &self,
        connection: &Arc<Connection>,
        round: usize,
        ids: (Option<Identity>, Option<Identity>),
        requested: Option<&Requested>,
        AuthSecrets { eap_msk, ppk }: AuthSecrets,
    ) -> SignRequest {
        SignRequest {
            connection: connection.clone(),
            round,
            v1: None,
            local_id: ids.0,
            remote_id: ids.1,
            path: self.path,
            prf: self.suite.prf,
            message_and_nonce: self.message_and_nonce(self.role),
            sk_p: self.sk_p(self.role, ppk).clone(),
            int_auth: self.int_auth(),
            peer_hashes: self.peer_hashes.clone(),
            peer_authorities: requested.map(|requested| requested.authorities.clone()).unwrap_or_default(),
            peer_ocsp: requested.is_some_and(|requested| requested.ocsp),
            eap_msk,
        }
    }

    /// Request to verify the AUTH payload of the peer in a round of authentication.
    pub(super) fn verify_request(
        &self,
        candidates: Vec<Arc<Connection>>,
        round: usize,
        claim: Claim<'_>,
        ppk: bool,
    ) -> VerifyRequest {
        // The body as received: AUTH covers its reserved octets too (RFC 7296 §2.15).
        let hash = self.suite.prf.compute(self.sk_p(self.other(), ppk), &[claim.id_body]);
        let octets = [&self.message_and_nonce(self.other())[..], &hash, &self.int_auth()].concat();
        VerifyRequest {
            candidates,
            round,
            version: 2,
            remote_id: claim.remote_id.clone(),
            local_id: claim.local_id,
            path: self.path,
            prf: self.suite.prf,
            octets,
            method: claim.method,
            auth: claim.auth,
            certs: claim.certs,
            eap_msk: claim.eap_msk,
        }
    }

    /// SK_d, with the PPK mixed in once it is used.
    fn sk_d(&self) -> &Secret {
        self.mixed.as_ref().filter(|_| self.ppk).map_or(&self.keys.sk_d, |mixed| &mixed.sk_d)
    }

    /// Properties of this IKE SA for a negotiation before it is established.
    pub(super) fn parent<'a>(&'a self, ends: &'a AuthResult) -> Parent<'a> {
        let AuthResult { connection, remote_id, virtual_local, virtual_remote, .. } = ends;
        Parent {
            ike: self.id,
            connection,
            path: self.path,
            nat: self.nat,
            remote_id,
            peer_id: eap_or_ike_id(ends.eap_name.as_deref(), remote_id),
            peer: self.peer,
            virtual_local,
            virtual_remote,
            prf: self.suite.prf,
            sk_d: self.sk_d(),
            children: &[],
        }
    }

    /// Keys of messages for this role.
    pub(super) fn sk_keys(role: Role, keys: &IkeKeys, suite: &IkeSuite) -> Result<SkKeys, IkeError> {
        let (of_initiator, of_responder) = keys.message_keys(suite)?;
        Ok(match role {
            Role::Initiator => SkKeys { seal: of_initiator, open: of_responder },
            Role::Responder => SkKeys { seal: of_responder, open: of_initiator },
        })
    }

    /// Both hosts are authenticated. Reports it and starts the lifetimes.
    pub(super) fn establish(self, ctx: &mut Context<'_>, ends: AuthResult) -> Box<Established> {
        let AuthResult { connection, local_id, remote_id, eap_name, virtual_local, virtual_remote } = ends;
        let plain = DeriveKeys { sk_d: self.keys.sk_d, sk_pi: self.keys.sk_pi, sk_pr: self.keys.sk_pr };
        let keys = self.mixed.filter(|_| self.ppk).unwrap_or(plain);
        let mut sa = Box::new(Established {
            id: self.id,
            connection,
            role: self.role,
            spis: self.spis,
            path: self.path,
            suite: self.suite,
            keys,
            exchanges: self.exchanges,
            local_id,
            remote_id,
            eap_name,
            peer: self.peer,
            virtual_local,
            virtual_remote,
            children: Vec::new(),
            tasks: Tasks::new(self.role),
            established: ctx.now,
            rekey_at: None,
            reauth_at: None,
            over_at: None,
            certificates_end: None,
            last_received: ctx.now,
            keepalive_at: None,
            nat: self.nat,
            ppk: self.ppk,
            ending: Ending::No,
        });
        ctx.count(counters::IKE_UP);
        let Path { local, remote, encap } = sa.path;
        let (us, them) = (&sa.local_id, &sa.remote_id);
        let text = format!(
            "IKE SA of '{}' is up: {local} [{us}] to {remote} [{them}]{}{}",
            sa.connection.name,
            if encap { ", ESP in UDP" } else { "" },
            if sa.ppk { ", with a PPK" } else { "" },
        );
        ctx.log(Level::Info, Subsystem::Ike, Some(sa.id), text);
        ctx.event(Event::IkeUp(sa.id));
        // Before the first Child SA, whose selectors use these addresses.
        for address in &sa.virtual_local {
            ctx.hold_address(sa.id, address);
        }
        sa.begin(ctx);
        sa
    }
}

/// Identities of both hosts, and assigned addresses.
pub(super) struct AuthResult {
    pub(super) connection: Arc<Connection>,
    pub(super) local_id: Identity,
    pub(super) remote_id: Identity,
    pub(super) eap_name: Option<String>,
    pub(super) virtual_local: Vec<VirtualIp>,
    pub(super) virtual_remote: Vec<crate::pool::Leased>,
}
