//! The server's side of a conversation: asks who it is, chooses a method, comes to a verdict.

use std::sync::Arc;
use std::time::Duration;

use ike::config::{Auth, AuthMethod, Connection, EapType};
use ike::identity::Identity;
use ike::output::EapStep;

use super::super::name;
use super::super::shared::{self, Shared, SharedKind};
use super::super::store::Store;
use super::method::{self, Progress};
use super::packet::{self, Packet};
use super::{Outcome, identities, mschapv2, number, tls};

/// Bytes of an identity beyond which it is refused.
const MAX_IDENTITY: usize = 1024;

/// Methods that are offered when the configuration leaves it open.
const OPEN: [EapType; 2] = [EapType::MsChapV2, EapType::Tls];

pub(super) struct Server {
    connection: Arc<Connection>,
    round: usize,
    client_id: Identity,
    now: Duration,
    /// Identifier of the request that is outstanding.
    id: u8,
    identity: Vec<u8>,
    /// Methods that may still be tried.
    left: Vec<EapType>,
    state: State,
}

enum State {
    Start,
    /// Asked for the identity.
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
    pub(super) fn new(step: &EapStep, now: Duration) -> Result<Self, String> {
        let auth = step.connection.remote.get(step.round).ok_or("the connection has no such section remote")?;
        let left = match auth.method {
            AuthMethod::Eap(Some(method)) => vec![method],
            AuthMethod::Eap(None) | AuthMethod::Any => OPEN.to_vec(),
            _ => {
                return Err("the peer wants EAP; set 'remote.auth = eap-mschapv2' or another method to allow it".into());
            }
        };
        let mut id = [0];
        crypto::random(&mut id);
        Ok(Self {
            connection: Arc::clone(&step.connection),
            round: step.round,
            client_id: step.client_id.clone(),
            now,
            id: id[0],
            identity: Vec::new(),
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

    pub(super) fn step(&mut self, store: &Store, packet: &[u8]) -> Outcome {
        let state = std::mem::replace(&mut self.state, State::Over);
        if matches!(state, State::Start) {
            self.state = State::Identity;
            return self.request(packet::IDENTITY, &[]);
        }
        let response = match Packet::parse(packet) {
            Some(response) if response.code == packet::RESPONSE && response.id == self.id => response,
            _ => return Outcome::Failure("the client sent something else than a response to the request".into()),
        };
        match (state, response.kind) {
            (State::Identity, packet::IDENTITY) => self.identified(store, response.data),
            (State::Method { kind, fresh: true, .. }, packet::NAK) => self.refused(store, kind, response.data),
            (State::Method { method, kind, .. }, there) if there == number(kind) => {
                self.go_on(store, method, kind, response.data)
            }
            (_, packet::NAK) => {
                Outcome::Failure("the client refuses the method; set 'remote.auth' to one that it has".into())
            }
            _ => Outcome::Failure("the client answered with another method".into()),
        }
    }

    fn request(&mut self, kind: u8, data: &[u8]) -> Outcome {
        self.id = self.id.wrapping_add(1);
        Outcome::Send(packet::emit(packet::REQUEST, self.id, kind, data))
    }

    fn identified(&mut self, store: &Store, identity: &[u8]) -> Outcome {
        if identity.is_empty() || identity.len() > MAX_IDENTITY {
            return Outcome::Failure("the client has no identity".into());
        }
        self.identity = identity.to_vec();
        let wanted = self.auth().eap_id.clone();
        if wanted
            .is_some_and(|wanted| !identities(identity).iter().any(|id| id.data.eq_ignore_ascii_case(&wanted.data)))
        {
            let shown = name::printable(&String::from_utf8_lossy(identity));
            return Outcome::Failure(format!("the EAP identity '{shown}' is not that of 'remote.eap_id'"));
        }
        let first = self.left[0];
        self.begin(store, first)
    }

    fn refused(&mut self, store: &Store, refused: EapType, wanted: &[u8]) -> Outcome {
        self.left.retain(|method| *method != refused);
        match self.left.iter().copied().find(|method| wanted.contains(&number(*method))) {
            Some(method) => self.begin(store, method),
            None => Outcome::Failure(format!(
                "the client has none of the methods allowed; it wants EAP types {:?}",
                &wanted[..wanted.len().min(16)]
            )),
        }
    }

    fn begin(&mut self, store: &Store, kind: EapType) -> Outcome {
        let started = match kind {
            EapType::Md5 => {
                let (challenge, data) = method::md5_challenge();
                Ok((Method::Md5(challenge), data))
            }
            EapType::MsChapV2 => {
                let (method, data) = mschapv2::Server::start(self.id.wrapping_add(1), &self.identity);
                Ok((Method::MsChapV2(method), data))
            }
            EapType::Tls => {
                let ids = identities(&self.identity).into_iter().chain([self.client_id.clone()]).collect();
                tls::Session::server(store, &self.connection, self.round, ids, self.now)
                    .map(|session| (Method::Tls(session), tls::START.to_vec()))
            }
        };
        match started {
            Ok((method, data)) => {
                self.state = State::Method { method: Box::new(method), kind, fresh: true };
                self.request(number(kind), &data)
            }
            Err(why) => Outcome::Failure(why),
        }
    }

    fn go_on(&mut self, store: &Store, mut method: Box<Method>, kind: EapType, data: &[u8]) -> Outcome {
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
                let identity = identity.or_else(|| identities(&self.identity).into_iter().next());
                Outcome::Success(msk, identity)
            }
            Progress::Failed(why) => Outcome::Failure(why),
        }
    }

    fn md5(&self, store: &Store, challenge: &[u8; 16], data: &[u8]) -> Progress {
        let user = shared::of_user(store.shared(), &[SharedKind::Eap], &identities(&self.identity));
        let right = |shared: &Shared| method::is_md5_response(self.id, challenge, &shared.secret, data);
        if user.is_some_and(right) {
            return Progress::Done(None, None);
        }
        let shown = name::printable(&String::from_utf8_lossy(&self.identity));
        Progress::Failed(format!("'{shown}' is unknown or has another password; add a section 'eap' to 'secrets'"))
    }
}
