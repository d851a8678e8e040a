//! The server's side of a conversation: EAP-Identity where `remote.eap_id` is set, a method, a
//! verdict.
//!
//! Without `remote.eap_id` the method begins at once and IDi is the EAP identity (RFC 7296 §3.16).
//! With it, the identity in the client's response selects the connection among those that
//! authenticate this host in the same way.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use ike::config::{Auth, AuthMethod, Connection, EapType};
use ike::identity::{IdPattern, Identity};
use ike::output::EapStep;

use super::super::name;
use super::super::shared::{self, Shared, SharedKind};
use super::super::store::Store;
use super::method::{self, Progress};
use super::packet::{self, Packet};
use super::{StepResult, identities, mschapv2, number, text_identities, tls};

/// Bytes of an identity beyond which it is refused.
const MAX_IDENTITY: usize = 1024;

/// Methods that are offered when the configuration leaves it open.
const OPEN: [EapType; 2] = [EapType::MsChapV2, EapType::Tls];

pub(super) struct Server {
    connection: Arc<Connection>,
    /// Connections to which the EAP identity may switch.
    alternatives: Vec<Arc<Connection>>,
    round: usize,
    client_id: Identity,
    now: Duration,
    /// Identifier of the request that is outstanding.
    id: u8,
    /// Answer to the EAP-Identity request, if one was sent.
    identity: Option<Vec<u8>>,
    /// The EAP identity has switched the connection, which the caller does not know yet.
    switched: bool,
    /// Methods that may still be tried.
    left: Vec<EapType>,
    state: State,
}

enum State {
    Start,
    /// Identity requested.
    Identity,
    /// `fresh`: the first request of the method is outstanding, so the client may still refuse it.
    Method {
        method: Box<Method>,
        kind: EapType,
        fresh: bool,
    },
    Over,
}

enum Method {
    Md5([u8; 16]),
    MsChapV2(mschapv2::Server),
    Tls(tls::Session),
}

impl Server {
    pub(super) fn new(step: &EapStep, now: Duration) -> anyhow::Result<Self> {
        let auth = step.connection.remote.get(step.round).context("the connection has no matching section remote")?;
        let left = methods(auth)?;
        let mut id = [0];
        crypto::random(&mut id);
        Ok(Self {
            connection: Arc::clone(&step.connection),
            alternatives: step.alternatives.clone(),
            round: step.round,
            client_id: step.client_id.clone(),
            now,
            id: id[0],
            identity: None,
            switched: false,
            left,
            state: State::Start,
        })
    }

    pub(super) fn last_id(&self) -> u8 {
        self.id
    }

    fn auth(&self) -> &Auth {
        &self.connection.remote[self.round]
    }

    pub(super) fn step(&mut self, store: &Store, packet: &[u8]) -> StepResult {
        let state = std::mem::replace(&mut self.state, State::Over);
        if matches!(state, State::Start) {
            if self.auth().eap_id.is_none() {
                let first = self.left[0];
                return self.begin(store, first);
            }
            self.state = State::Identity;
            return self.request(packet::IDENTITY, &[]);
        }
        let response = match Packet::parse(packet) {
            Some(response) if response.code == packet::RESPONSE && response.id == self.id => response,
            _ => return StepResult::Failure("the client did not send a response to the request".into()),
        };
        match (state, response.kind) {
            (State::Identity, packet::IDENTITY) => self.identified(store, response.data),
            (State::Method { kind, fresh: true, .. }, packet::NAK) => self.refused(store, kind, response.data),
            (State::Method { method, kind, .. }, there) if there == number(kind) => {
                self.go_on(store, method, kind, response.data)
            }
            (State::Identity, packet::NAK) => StepResult::Failure(
                "the client rejects EAP-Identity requests; remove 'remote.eap_id' to send none".into(),
            ),
            (_, packet::NAK) => {
                StepResult::Failure("the client rejected the method; set 'remote.auth' to one that it supports".into())
            }
            _ => StepResult::Failure("the client responded with a different method".into()),
        }
    }

    fn request(&mut self, kind: u8, data: &[u8]) -> StepResult {
        self.id = self.id.wrapping_add(1);
        StepResult::Send(packet::emit(packet::REQUEST, self.id, kind, data))
    }

    fn identified(&mut self, store: &Store, identity: &[u8]) -> StepResult {
        if identity.len() > MAX_IDENTITY {
            return StepResult::Failure(format!("the EAP identity is longer than {MAX_IDENTITY} bytes"));
        }
        // A client without an EAP identity uses that of IDi, as with strongSwan.
        if !identity.is_empty() {
            self.identity = Some(identity.to_vec());
        }
        if let Err(why) = self.choose_connection() {
            return StepResult::Failure(why.to_string());
        }
        let first = self.left[0];
        self.begin(store, first)
    }

    /// Keeps the connection if its `eap_id` matches, otherwise switches to the first alternative
    /// with a matching `eap_id`.
    fn choose_connection(&mut self) -> anyhow::Result<()> {
        let users = self.users();
        let admits = |connection: &&Arc<Connection>| {
            let wanted = connection.remote.get(self.round).and_then(|auth| auth.eap_id.as_ref());
            wanted.is_some_and(|wanted| admits(wanted, &users))
        };
        if admits(&&self.connection) {
            return Ok(());
        }
        let Some(other) = self.alternatives.iter().find(admits).cloned() else {
            bail!("the EAP identity '{}' does not match 'remote.eap_id'", self.shown());
        };
        self.left = methods(&other.remote[self.round])?;
        (self.connection, self.switched) = (other, true);
        Ok(())
    }

    /// The connection to which the EAP identity has switched, once.
    pub(super) fn take_switch(&mut self) -> Option<Arc<Connection>> {
        std::mem::take(&mut self.switched).then(|| Arc::clone(&self.connection))
    }

    /// Identities that the EAP identity may mean.
    fn users(&self) -> Vec<Identity> {
        match &self.identity {
            Some(identity) => identities(identity),
            None => std::iter::once(self.client_id.clone()).chain(text_identities(&self.client_id)).collect(),
        }
    }

    fn shown(&self) -> String {
        match &self.identity {
            Some(identity) => name::printable(&String::from_utf8_lossy(identity)),
            None => name::show_id(&self.client_id).to_string(),
        }
    }

    fn refused(&mut self, store: &Store, refused: EapType, wanted: &[u8]) -> StepResult {
        self.left.retain(|method| *method != refused);
        match self.left.iter().copied().find(|method| wanted.contains(&number(*method))) {
            Some(method) => self.begin(store, method),
            None => StepResult::Failure(format!(
                "the client supports none of the allowed methods; it requests EAP types {:?}",
                &wanted[..wanted.len().min(16)]
            )),
        }
    }

    fn begin(&mut self, store: &Store, kind: EapType) -> StepResult {
        let started = match kind {
            EapType::Md5 => {
                let (challenge, data) = method::md5_challenge();
                Ok((Method::Md5(challenge), data))
            }
            EapType::MsChapV2 => {
                let user = match &self.identity {
                    Some(identity) => mschapv2::User::Named(identity.clone()),
                    None => mschapv2::User::Unnamed(self.users(), self.auth().id.clone()),
                };
                let (method, data) = mschapv2::Server::start(self.id.wrapping_add(1), user);
                Ok((Method::MsChapV2(method), data))
            }
            EapType::Tls => {
                let mut ids = self.users();
                // IDi may be an identity of the certificate, if 'eap_id' permits that.
                if self
                    .auth()
                    .eap_id
                    .as_ref()
                    .is_none_or(|wanted| admits(wanted, std::slice::from_ref(&self.client_id)))
                {
                    ids.push(self.client_id.clone());
                }
                tls::Session::server(store, &self.connection, self.round, ids, self.now)
                    .map(|session| (Method::Tls(session), tls::START.to_vec()))
            }
        };
        match started {
            Ok((method, data)) => {
                self.state = State::Method { method: Box::new(method), kind, fresh: true };
                self.request(number(kind), &data)
            }
            Err(why) => StepResult::Failure(why.to_string()),
        }
    }

    fn go_on(&mut self, store: &Store, mut method: Box<Method>, kind: EapType, data: &[u8]) -> StepResult {
        let progress = match &mut *method {
            Method::Md5(challenge) => self.md5(store, challenge, data),
            Method::MsChapV2(method) => method.step(store, data),
            Method::Tls(session) => session.step(data),
        };
        match progress {
            Progress::Go(data) => {
                self.state = State::Method { method, kind, fresh: false };
                self.request(number(kind), &data)
            }
            Progress::Done(msk, identity) => {
                let identity = identity.or_else(|| self.users().into_iter().next());
                StepResult::Success(msk, identity)
            }
            Progress::Failed(why) => StepResult::Failure(why),
        }
    }

    fn md5(&self, store: &Store, challenge: &[u8; 16], data: &[u8]) -> Progress {
        let user = shared::of_user(store.shared(), &[SharedKind::Eap], &self.users());
        let right = |shared: &Shared| method::is_md5_response(self.id, challenge, &shared.secret, data);
        if user.is_some_and(right) {
            return Progress::Done(None, None);
        }
        let shown = self.shown();
        Progress::Failed(format!("'{shown}' is unknown or the password is wrong; add a section 'eap' to 'secrets'"))
    }
}

/// Methods that a section `remote` allows, best first.
fn methods(auth: &Auth) -> anyhow::Result<Vec<EapType>> {
    match auth.method {
        AuthMethod::Eap(Some(method)) => Ok(vec![method]),
        AuthMethod::Eap(None) | AuthMethod::Any => Ok(OPEN.to_vec()),
        _ => Err(anyhow!("the peer requests EAP; set 'remote.auth = eap-mschapv2' or another method to allow it")),
    }
}

/// Returns whether one of the identities is admitted by `eap_id`. An identity in EAP has no type,
/// so equal text is enough.
fn admits(wanted: &IdPattern, users: &[Identity]) -> bool {
    let same_text = |id: &Identity| wanted.exact().is_some_and(|wanted| id.data.eq_ignore_ascii_case(&wanted.data));
    users.iter().any(|id| wanted.matches(id).is_some() || same_text(id))
}
