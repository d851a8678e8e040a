//! The client's side of a conversation: says who it is, takes a method that is allowed, and believes a
//! success only when the method has come to it.

use std::sync::Arc;
use std::time::Duration;

use ike::config::{Auth, AuthMethod, Connection, EapType};
use ike::output::EapStep;

use super::super::name;
use super::super::shared::{self, SharedKind};
use super::super::store::Store;
use super::method::{self, Progress, Ready};
use super::packet::{self, Packet};
use super::{Outcome, identities, mschapv2, number, tls};

pub(super) struct Client {
    name: Vec<u8>,
    /// Methods that may be taken, best first.
    allowed: Vec<EapType>,
    /// What it takes to begin each of them; made once, so that no question needs the store again.
    prepared: Prepared,
    state: State,
    /// Identifier of the request that was answered last.
    last: Option<u8>,
}

struct Prepared {
    secret: Option<crypto::ike::Secret>,
    mschapv2: Option<mschapv2::Client>,
    tls: Result<Option<tls::Session>, String>,
}

enum State {
    /// No method was taken yet.
    Start,
    Md5Answered,
    MsChapV2(Box<mschapv2::Client>),
    Tls(Box<tls::Session>),
    Over,
}

impl Client {
    pub(super) fn new(store: &Store, step: &EapStep, now: Duration) -> Result<Self, String> {
        let auth = step.connection.local.get(step.round).ok_or("the connection has no such section local")?;
        let allowed = match auth.method {
            AuthMethod::Eap(Some(method)) => vec![method],
            AuthMethod::Eap(None) => vec![EapType::Tls, EapType::MsChapV2],
            _ => return Err("the peer wants EAP, but 'local.auth' says otherwise".into()),
        };
        let name = auth.eap_id.as_ref().unwrap_or(&step.client_id).data.clone();
        let prepared = Self::prepare(store, &step.connection, auth, &allowed, &name, now);
        Ok(Self { name, allowed, prepared, state: State::Start, last: None })
    }

    fn prepare(
        store: &Store,
        connection: &Arc<Connection>,
        auth: &Auth,
        allowed: &[EapType],
        name: &[u8],
        now: Duration,
    ) -> Prepared {
        let may = |method| allowed.contains(&method);
        let secret = || shared::of_user(store.shared(), &[SharedKind::Eap], &identities(name));
        Prepared {
            secret: may(EapType::Md5).then(secret).flatten().map(|shared| shared.secret.clone()),
            mschapv2: may(EapType::MsChapV2).then(|| mschapv2::Client::new(store, name)).flatten(),
            tls: may(EapType::Tls).then(|| tls::Session::client(store, connection, auth, now)).transpose(),
        }
    }

    pub(super) fn step(&mut self, packet: &[u8]) -> Outcome {
        let Some(request) = Packet::parse(packet) else {
            return Outcome::Failure("the server sent no EAP packet".into());
        };
        match request.code {
            packet::REQUEST => {}
            packet::SUCCESS => return self.success(),
            packet::FAILURE => return Outcome::Failure("the server refuses this client".into()),
            _ => return Outcome::Failure("the server sent a response".into()),
        }
        if self.last == Some(request.id) {
            return Outcome::Failure("the server used an identifier twice in a row".into());
        }
        self.last = Some(request.id);
        match request.kind {
            packet::IDENTITY if matches!(self.state, State::Start) => self.respond(&request, &self.name),
            packet::NOTIFICATION => {
                tracing::info!(text = %name::printable(&String::from_utf8_lossy(request.data)), "notification of the EAP server");
                self.respond(&request, &[])
            }
            _ => self.method(&request),
        }
    }

    fn respond(&self, request: &Packet<'_>, data: &[u8]) -> Outcome {
        Outcome::Send(packet::emit(packet::RESPONSE, request.id, request.kind, data))
    }

    fn success(&mut self) -> Outcome {
        let ready = match &mut self.state {
            State::Md5Answered => Ready::Yes(None),
            State::MsChapV2(method) => method.ready(),
            State::Tls(session) => session.ready(),
            State::Start | State::Over => Ready::No,
        };
        self.state = State::Over;
        match ready {
            Ready::Yes(msk) => Outcome::Success(msk, None),
            Ready::No => Outcome::Failure("the server declares success before it has proved anything".into()),
        }
    }

    fn method(&mut self, request: &Packet<'_>) -> Outcome {
        let progress = match std::mem::replace(&mut self.state, State::Over) {
            State::Start => return self.begin(request),
            State::MsChapV2(mut method) if request.kind == packet::MSCHAPV2 => {
                let progress = method.step(request.data);
                self.state = State::MsChapV2(method);
                progress
            }
            State::Tls(mut session) if request.kind == packet::TLS => {
                let progress = session.step(request.data);
                self.state = State::Tls(session);
                progress
            }
            _ => return Outcome::Failure("the server changed the method".into()),
        };
        self.conclude(request, progress)
    }

    fn conclude(&mut self, request: &Packet<'_>, progress: Progress) -> Outcome {
        match progress {
            Progress::Go(data) => self.respond(request, &data),
            Progress::Failed(why) => {
                self.state = State::Over;
                Outcome::Failure(why)
            }
            // Only a server decides that by itself.
            Progress::Done(..) => Outcome::Failure("the method ended too early".into()),
        }
    }

    fn begin(&mut self, request: &Packet<'_>) -> Outcome {
        let name = name::printable(&String::from_utf8_lossy(&self.name));
        let no_password = || Outcome::Failure(format!("no password of '{name}'; add a section 'eap' to 'secrets'"));
        match self.allowed.iter().find(|method| number(**method) == request.kind) {
            Some(EapType::Md5) => {
                let Some(secret) = self.prepared.secret.take() else { return no_password() };
                match method::md5_response(request.id, request.data, &secret) {
                    Some(data) => {
                        self.state = State::Md5Answered;
                        self.respond(request, &data)
                    }
                    None => Outcome::Failure("MD5: a malformed challenge".into()),
                }
            }
            Some(EapType::MsChapV2) => {
                let Some(mut method) = self.prepared.mschapv2.take() else { return no_password() };
                let progress = method.step(request.data);
                self.state = State::MsChapV2(Box::new(method));
                self.conclude(request, progress)
            }
            Some(EapType::Tls) => match std::mem::replace(&mut self.prepared.tls, Ok(None)) {
                Ok(Some(mut session)) => {
                    let progress = session.step(request.data);
                    self.state = State::Tls(Box::new(session));
                    self.conclude(request, progress)
                }
                Ok(None) => Outcome::Failure("EAP-TLS was begun already".into()),
                Err(why) => Outcome::Failure(why),
            },
            None => self.refuse(request),
        }
    }

    /// Asks for methods that are allowed and can be done (RFC 3748 §5.3.1).
    fn refuse(&mut self, request: &Packet<'_>) -> Outcome {
        self.state = State::Start;
        let able = |method: &EapType| match method {
            EapType::Md5 => self.prepared.secret.is_some(),
            EapType::MsChapV2 => self.prepared.mschapv2.is_some(),
            EapType::Tls => matches!(self.prepared.tls, Ok(Some(_))),
        };
        let mut wanted: Vec<u8> =
            self.allowed.iter().filter(|method| able(method)).map(|method| number(*method)).collect();
        if wanted.is_empty() {
            wanted.push(0);
        }
        Outcome::Send(packet::emit(packet::RESPONSE, request.id, packet::NAK, &wanted))
    }
}
