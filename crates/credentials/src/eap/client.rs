//! Client side of a conversation: sends its identity, accepts an allowed method, and accepts a
//! success only when the method has completed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ike::config::{Auth, AuthMethod, Connection, EapType};
use ike::identity::{IdPattern, Identity};
use ike::output::EapStep;
use wire::ike::IdType;

use super::super::name;
use super::super::shared::{self, SharedKind};
use super::super::store::Store;
use super::method::{self, Progress, Ready};
use super::packet::{self, Packet};
use super::{StepResult, identities, mschapv2, number, tls};

pub(super) struct Client {
    name: Vec<u8>,
    /// Methods that may be taken, best first.
    allowed: Vec<EapType>,
    /// Prepared credentials of each method; read once, so that later steps do not need the store.
    prepared: Prepared,
    state: State,
    /// Identifier of the request that was answered last.
    last: Option<u8>,
    /// Method that this client refused last, without another since.
    refused: Option<u8>,
}

struct Prepared {
    secret: Option<crypto::ike::Secret>,
    mschapv2: Option<mschapv2::Client>,
    tls: anyhow::Result<Option<tls::Session>>,
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
    pub(super) fn new(store: &Store, step: &EapStep, now: Duration) -> anyhow::Result<Self> {
        let auth = step.connection.local.get(step.round).context("the connection has no matching section local")?;
        let allowed = match auth.method {
            AuthMethod::Eap(Some(method)) => vec![method],
            // Any method that the server requests, as in strongSwan; the order is that of a NAK.
            AuthMethod::Eap(None) => vec![EapType::Tls, EapType::MsChapV2, EapType::Md5],
            _ => bail!("the peer requires EAP, but 'local.auth' is not eap"),
        };
        let named = auth.eap_id.as_ref().and_then(IdPattern::exact);
        let name = named.map_or_else(|| name_of(&step.client_id), |id| id.data.clone());
        let prepared = Self::prepare(store, &step.connection, auth, &allowed, &name, now);
        Ok(Self { name, allowed, prepared, state: State::Start, last: None, refused: None })
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

    pub(super) fn step(&mut self, packet: &[u8]) -> StepResult {
        let Some(request) = Packet::parse(packet) else {
            return StepResult::Failure("the server sent no EAP packet".into());
        };
        match request.code {
            packet::REQUEST => {}
            packet::SUCCESS => return self.success(),
            packet::FAILURE => return StepResult::Failure(self.why_failed()),
            _ => return StepResult::Failure("the server sent a response".into()),
        }
        if self.last == Some(request.id) {
            return StepResult::Failure("the server repeated an identifier".into());
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

    /// Reason of an EAP-Failure in this state.
    fn why_failed(&self) -> String {
        if let Some(kind) = self.refused {
            let allowed: Vec<&str> = self.allowed.iter().map(|method| method_name(*method)).collect();
            let offered = match kind {
                packet::MD5_CHALLENGE => "eap-md5".to_owned(),
                packet::TLS => "eap-tls".to_owned(),
                packet::MSCHAPV2 => "eap-mschapv2".to_owned(),
                other => format!("EAP type {other}"),
            };
            return format!(
                "the server offers {offered} and none of the methods that this client can use ({}); change 'local.auth' or \
                 load the credentials of a method that both have",
                allowed.join(", ")
            );
        }
        if matches!(self.state, State::Start) {
            let name = name::printable(&String::from_utf8_lossy(&self.name));
            return format!("the server rejected the EAP identity '{name}'; set 'local.eap_id'");
        }
        "the server rejected this client; see its log".to_owned()
    }

    fn respond(&self, request: &Packet<'_>, data: &[u8]) -> StepResult {
        StepResult::Send(packet::emit(packet::RESPONSE, request.id, request.kind, data))
    }

    fn success(&mut self) -> StepResult {
        let ready = match &mut self.state {
            State::Md5Answered => Ready::Yes(None),
            State::MsChapV2(method) => method.ready(),
            State::Tls(session) => session.ready(),
            State::Start | State::Over => Ready::No,
        };
        self.state = State::Over;
        match ready {
            Ready::Yes(msk) => StepResult::Success(msk, None),
            Ready::No => StepResult::Failure("the server sent success before it authenticated".into()),
        }
    }

    fn method(&mut self, request: &Packet<'_>) -> StepResult {
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
            _ => return StepResult::Failure("the server changed the method".into()),
        };
        self.conclude(request, progress)
    }

    fn conclude(&mut self, request: &Packet<'_>, progress: Progress) -> StepResult {
        match progress {
            Progress::Go(data) => self.respond(request, &data),
            Progress::Failed(why) => {
                self.state = State::Over;
                StepResult::Failure(why)
            }
            // Only a server decides that by itself.
            Progress::Done(..) => StepResult::Failure("the method ended before it completed".into()),
        }
    }

    fn begin(&mut self, request: &Packet<'_>) -> StepResult {
        let name = name::printable(&String::from_utf8_lossy(&self.name));
        let no_password = || StepResult::Failure(format!("no password for '{name}'; add a section 'eap' to 'secrets'"));
        self.refused = None;
        match self.allowed.iter().find(|method| number(**method) == request.kind) {
            Some(EapType::Md5) => {
                let Some(secret) = self.prepared.secret.take() else { return no_password() };
                match method::md5_response(request.id, request.data, &secret) {
                    Some(data) => {
                        self.state = State::Md5Answered;
                        self.respond(request, &data)
                    }
                    None => StepResult::Failure("MD5: malformed challenge".into()),
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
                Ok(None) => StepResult::Failure("EAP-TLS has already started".into()),
                Err(why) => StepResult::Failure(why.to_string()),
            },
            None => self.refuse(request),
        }
    }

    /// Sends a NAK with the methods that are allowed and available (RFC 3748 §5.3.1).
    fn refuse(&mut self, request: &Packet<'_>) -> StepResult {
        (self.state, self.refused) = (State::Start, Some(request.kind));
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
        StepResult::Send(packet::emit(packet::RESPONSE, request.id, packet::NAK, &wanted))
    }
}

/// An IKE identity as name in EAP: an address as text, everything else unchanged.
fn name_of(id: &Identity) -> Vec<u8> {
    match id.kind {
        IdType::IPV4_ADDR | IdType::IPV6_ADDR => id.to_string().into_bytes(),
        _ => id.data.clone(),
    }
}

/// The value of `auth` that allows a method.
fn method_name(method: EapType) -> &'static str {
    match method {
        EapType::Md5 => "eap-md5",
        EapType::MsChapV2 => "eap-mschapv2",
        EapType::Tls => "eap-tls",
    }
}
