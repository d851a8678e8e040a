//! Between phase 1 and the first quick mode: XAuth (draft-beaulieu-ike-xauth-02) and Mode Config
//! (draft-dukes-ike-mode-cfg-02), where a connection has them.
//!
//! An ISAKMP SA in this state has no functions for Child SAs, so that no quick mode can precede the
//! authentication of the user or the address of a client.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::Secret;
use wire::ike::{CfgAttr, CfgType, ExchangeType, Header};

use super::counters;
use super::method::XAuthSide;
use super::phase1::{Ended, OTHER_RESPONSE, Outcome, Up, earlier};
use super::selectors::split_networks;
use super::transaction::{Arrival, Attr, Own, Request};
use crate::config::{AuthMethod, Connection};
use crate::context::Context;
use crate::exchange::Unanswered;
use crate::handshake::configure;
use crate::identity::Identity;
use crate::output::{CredentialRequest, CredentialResponse, Level, Output, Path, RequestId, XAuthQuery};
use crate::sa::{ChildRequest, Role};

/// Wrong passwords after which the ISAKMP SA ends.
const FAILURES_MAX: u32 = 3;
/// Time for the peer to begin what it has to.
const WAIT: Duration = Duration::from_secs(60);
/// Requests that wait for it, about 100 bytes each.
const WANTED_MAX: usize = 256;
/// Networks of Unity that are taken of a server.
const SPLIT_MAX: usize = 64;
/// Bytes of a user name and of a password that are accepted.
const WORD_MAX: usize = 256;

/// An ISAKMP SA that is authenticated by phase 1, and not ready.
pub(super) struct Configuring {
    pub(super) up: Box<Up>,
    stage: Stage,
    /// Its end, while the peer has to act.
    until: Option<Instant>,
    failures: u32,
    /// Addresses of before, which are requested again.
    addresses: Vec<IpAddr>,
}

/// Step that is under way.
enum Stage {
    /// Server: name and password were requested.
    Requesting(Own),
    /// Server: the password is being compared.
    Comparing(RequestId),
    /// Server: the result was sent.
    Reporting(Own, bool),
    /// Client: the server has to request, or to report.
    Waiting,
    /// Client: the password of this user was requested of the holder of the credentials.
    Fetching(RequestId, Box<(Request, Identity)>),
    /// Client: addresses were requested.
    Pulling(Own),
    /// Client: the server has to send addresses.
    Awaiting,
    /// Server: addresses were sent.
    Pushing(Own),
    /// A step is running, or it is over.
    Over,
}

impl Stage {
    /// The transaction of this host that waits for its answer.
    fn own(&self) -> Option<&Own> {
        match self {
            Self::Requesting(own) | Self::Reporting(own, _) | Self::Pulling(own) | Self::Pushing(own) => Some(own),
            Self::Comparing(_) | Self::Waiting | Self::Fetching(..) | Self::Awaiting | Self::Over => None,
        }
    }

    fn own_mut(&mut self) -> Option<&mut Own> {
        match self {
            Self::Requesting(own) | Self::Reporting(own, _) | Self::Pulling(own) | Self::Pushing(own) => Some(own),
            Self::Comparing(_) | Self::Waiting | Self::Fetching(..) | Self::Awaiting | Self::Over => None,
        }
    }
}

/// Returns whether something follows phase 1 before Child SAs. A server that addresses are
/// requested of does not wait.
pub(super) fn is_needed(connection: &Connection) -> bool {
    XAuthSide::of(connection).is_some() || !connection.vips.is_empty() || pushes(connection)
}

fn pushes(connection: &Connection) -> bool {
    !connection.pools.is_empty() && !connection.pull
}

/// Name of the user in a configuration: `xauth_id`, or `id`.
pub(super) fn user(connection: &Connection) -> Option<&Identity> {
    let auth = connection.local.iter().find(|auth| auth.method == AuthMethod::XAuth)?;
    let named = auth.eap_id.as_ref().and_then(|id| id.exact());
    named.or_else(|| connection.local.iter().find_map(|auth| auth.id.exact()))
}

impl Configuring {
    /// Begins after phase 1.
    pub(super) fn begin(ctx: &mut Context<'_>, up: Up) -> Self {
        let addresses = up.rest.addresses.clone();
        let mut configuring = Self { up: Box::new(up), stage: Stage::Over, until: None, failures: 0, addresses };
        match XAuthSide::of(configuring.connection()) {
            Some(XAuthSide::Remote) => configuring.request_password(ctx),
            Some(XAuthSide::Local) => configuring.wait(ctx, Stage::Waiting),
            None => configuring.configure(ctx),
        }
        configuring
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.up.sa.connection
    }

    pub(super) fn role(&self) -> Role {
        self.up.sa.role
    }

    pub(super) fn request_id(&self) -> Option<RequestId> {
        match &self.stage {
            Stage::Comparing(request) | Stage::Fetching(request, _) => Some(*request),
            _ => None,
        }
    }

    /// The transaction of this host that waits for its answer.
    pub(super) fn own(&self) -> Option<&Own> {
        self.stage.own()
    }

    pub(super) fn unanswered(&self) -> Option<Unanswered> {
        self.own()?.resend.unanswered(&self.connection().retransmit)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        earlier(earlier(self.own().map(Own::due), self.until), self.up.sa.unconfirmed_due())
    }

    fn wait(&mut self, ctx: &Context<'_>, stage: Stage) {
        (self.stage, self.until) = (stage, Some(ctx.now + WAIT));
    }

    /// Takes a datagram with both cookies.
    pub(super) fn handle(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) -> Outcome {
        let sa = &mut self.up.sa;
        match header.exchange {
            ExchangeType::ID_PROT | ExchangeType::AGGRESSIVE => sa.repeat_last(ctx, from, datagram),
            ExchangeType::INFORMATIONAL_V1 => {
                sa.handle_informational(ctx, from, header, datagram);
                if sa.deleted {
                    return self.over("the peer deleted it");
                }
            }
            ExchangeType::TRANSACTION => {
                let arrival = sa.receive_transaction(ctx, from, (header, datagram), self.stage.own());
                return match arrival {
                    Arrival::Nothing => Outcome::Pending,
                    Arrival::Answer(kind, attributes) => self.take_answer(ctx, kind, &attributes),
                    Arrival::Request(request) => self.take_request(ctx, request),
                };
            }
            // Quick mode before the user is authenticated, or before there is an address.
            ExchangeType::QUICK_MODE => ctx.count(counters::QUICK_EARLY),
            _ => ctx.count(counters::REFUSED_EXCHANGE),
        }
        Outcome::Pending
    }

    /// The answer to a transaction of this host.
    fn take_answer(&mut self, ctx: &mut Context<'_>, kind: CfgType, attributes: &[Attr]) -> Outcome {
        match (std::mem::replace(&mut self.stage, Stage::Over), kind) {
            (Stage::Requesting(_), CfgType::REPLY) => self.compare(ctx, attributes),
            (Stage::Reporting(_, true), CfgType::ACK) => {
                self.configure(ctx);
                self.finished()
            }
            (Stage::Reporting(_, false), _) => self.refused(ctx),
            (Stage::Pulling(_), CfgType::REPLY) => self.take_addresses(ctx, attributes),
            (Stage::Pushing(_), CfgType::ACK) => {
                self.stage = Stage::Over;
                Outcome::Configured
            }
            (stage, _) => {
                self.stage = stage;
                ctx.count(counters::NOT_AUTHENTIC);
                Outcome::Pending
            }
        }
    }

    /// A request of the peer.
    fn take_request(&mut self, ctx: &mut Context<'_>, request: Request) -> Outcome {
        let has = |attr: CfgAttr| request.attributes.iter().any(|(kind, _)| *kind == attr);
        let is_address =
            |(kind, _): &Attr| matches!(*kind, CfgAttr::INTERNAL_IP4_ADDRESS | CfgAttr::INTERNAL_IP6_ADDRESS);
        match (&self.stage, request.kind) {
            (Stage::Waiting, CfgType::REQUEST) if has(CfgAttr::XAUTH_USER_NAME) => self.fetch(ctx, request),
            (Stage::Waiting, CfgType::SET) if has(CfgAttr::XAUTH_STATUS) => self.take_status(ctx, request),
            (Stage::Awaiting, CfgType::SET) if request.attributes.iter().any(is_address) => {
                let attributes: Vec<Attr> = request.attributes.clone();
                let kinds: Vec<(CfgAttr, &[u8])> = attributes.iter().map(|(kind, _)| (*kind, &[][..])).collect();
                self.up.sa.reply(ctx, request, &kinds);
                self.take_addresses(ctx, &attributes)
            }
            // It proves nothing about the user.
            _ => {
                ctx.count(counters::TRANSACTION_REFUSED);
                Outcome::Pending
            }
        }
    }

    /// Server: requests name and password.
    fn request_password(&mut self, ctx: &mut Context<'_>) {
        let attributes: [(CfgAttr, &[u8]); 2] = [(CfgAttr::XAUTH_USER_NAME, &[]), (CfgAttr::XAUTH_USER_PASSWORD, &[])];
        self.stage = Stage::Requesting(self.up.sa.transact(ctx, CfgType::REQUEST, &attributes));
        self.until = None;
    }

    /// Server: has the password compared.
    fn compare(&mut self, ctx: &mut Context<'_>, attributes: &[Attr]) -> Outcome {
        let value = |attr: CfgAttr| {
            let found = attributes.iter().find(|(kind, _)| *kind == attr).map(|(_, value)| &value[..]);
            found.filter(|value| !value.is_empty() && value.len() <= WORD_MAX)
        };
        match value(CfgAttr::XAUTH_USER_NAME).zip(value(CfgAttr::XAUTH_USER_PASSWORD)) {
            Some((user, password)) => {
                let query = XAuthQuery {
                    connection: Arc::clone(self.connection()),
                    user: user.to_vec(),
                    password: Secret::from_slice(password),
                };
                let request = ctx.request_credentials(self.up.sa.id(), CredentialRequest::XAuth(Box::new(query)));
                self.wait(ctx, Stage::Comparing(request));
            }
            None => self.failed(ctx, "the client sends no name or no password"),
        }
        Outcome::Pending
    }

    /// Server: another try, or the end.
    fn failed(&mut self, ctx: &mut Context<'_>, why: &str) {
        ctx.count(counters::XAUTH_FAILED);
        ctx.count(crate::handshake::counters::AUTH_FAILED);
        self.up.sa.log(ctx, Level::Warn, format!("XAuth of {} fails: {why}", self.up.sa.basis.path.remote));
        self.failures += 1;
        match self.failures >= FAILURES_MAX {
            true => self.report(ctx, false),
            false => self.request_password(ctx),
        }
    }

    /// Server: sends the result.
    fn report(&mut self, ctx: &mut Context<'_>, good: bool) {
        let status = u16::from(good).to_be_bytes();
        let own = self.up.sa.transact(ctx, CfgType::SET, &[(CfgAttr::XAUTH_STATUS, &status[..])]);
        (self.stage, self.until) = (Stage::Reporting(own, good), None);
    }

    fn refused(&mut self, ctx: &mut Context<'_>) -> Outcome {
        self.up.sa.send_delete(ctx);
        self.over("the user is not authenticated")
    }

    /// Client: requests the password.
    fn fetch(&mut self, ctx: &mut Context<'_>, request: Request) -> Outcome {
        let kinds: Vec<CfgAttr> = request.attributes.iter().map(|(kind, _)| *kind).collect();
        self.log_text(ctx, &request.attributes, CfgAttr::XAUTH_MESSAGE, "XAuth message");
        let generic = |(kind, value): &Attr| *kind != CfgAttr::XAUTH_TYPE || value.iter().all(|byte| *byte == 0);
        let known = [
            CfgAttr::XAUTH_TYPE,
            CfgAttr::XAUTH_USER_NAME,
            CfgAttr::XAUTH_USER_PASSWORD,
            CfgAttr::XAUTH_MESSAGE,
            CfgAttr::XAUTH_DOMAIN,
        ];
        let is_generic = request.attributes.iter().all(generic) && kinds.iter().all(|kind| known.contains(kind));
        let user = user(self.connection()).cloned();
        let (Some(user), true) = (user, is_generic) else {
            // An empty answer: the server gives up.
            self.up.sa.log(ctx, Level::Warn, "the XAuth server requests more than name and password".to_owned());
            ctx.count(counters::XAUTH_FAILED);
            self.up.sa.reply(ctx, request, &[]);
            return Outcome::Pending;
        };
        let question = CredentialRequest::PasswordV1(user.clone());
        let request_id = ctx.request_credentials(self.up.sa.id(), question);
        self.wait(ctx, Stage::Fetching(request_id, Box::new((request, user))));
        Outcome::Pending
    }

    /// Client: sends name and password.
    fn send_password(&mut self, ctx: &mut Context<'_>, (request, user): (Request, Identity), password: &Secret) {
        let user = user.as_user_name();
        let requested = |attr: CfgAttr| request.attributes.iter().any(|(kind, _)| *kind == attr);
        let kind = [0, 0];
        let mut attributes: Vec<(CfgAttr, &[u8])> = Vec::new();
        if requested(CfgAttr::XAUTH_TYPE) {
            attributes.push((CfgAttr::XAUTH_TYPE, &kind));
        }
        attributes.push((CfgAttr::XAUTH_USER_NAME, &user));
        attributes.push((CfgAttr::XAUTH_USER_PASSWORD, password));
        self.up.sa.reply(ctx, request, &attributes);
        self.wait(ctx, Stage::Waiting);
    }

    /// Client: the result.
    fn take_status(&mut self, ctx: &mut Context<'_>, request: Request) -> Outcome {
        let status = request.attributes.iter().find(|(kind, _)| *kind == CfgAttr::XAUTH_STATUS);
        let good = status.is_some_and(|(_, value)| value.last() == Some(&1));
        self.up.sa.reply(ctx, request, &[(CfgAttr::XAUTH_STATUS, &[])]);
        if !good {
            ctx.count(counters::XAUTH_FAILED);
            return self.over("the XAuth server refuses the user name or the password");
        }
        self.configure(ctx);
        self.finished()
    }

    /// Mode Config, where a connection has it.
    fn configure(&mut self, ctx: &mut Context<'_>) {
        let connection = Arc::clone(self.connection());
        self.until = None;
        if !connection.vips.is_empty() && connection.pull {
            let mut attributes = configure::wanted_attributes(&connection, &self.addresses);
            if self.up.sa.features.unity {
                attributes.extend([CfgAttr::UNITY_BANNER, CfgAttr::UNITY_SPLIT_INCLUDE].map(|attr| (attr, Vec::new())));
            }
            let attributes: Vec<(CfgAttr, &[u8])> =
                attributes.iter().map(|(attr, value)| (*attr, &value[..])).collect();
            self.stage = Stage::Pulling(self.up.sa.transact(ctx, CfgType::REQUEST, &attributes));
        } else if !connection.vips.is_empty() {
            self.wait(ctx, Stage::Awaiting);
        } else if pushes(&connection) {
            // The client gets an address of each family that a pool has.
            let any = [IpAddr::from([0, 0, 0, 0]), IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)];
            match self.up.sa.lease(ctx, &any) {
                Ok(attributes) => {
                    let given: Vec<(CfgAttr, &[u8])> =
                        attributes.iter().map(|(attr, value)| (*attr, &value[..])).collect();
                    self.stage = Stage::Pushing(self.up.sa.transact(ctx, CfgType::SET, &given));
                }
                Err(error) => {
                    self.up.sa.log(ctx, Level::Warn, error.to_string());
                    self.stage = Stage::Over;
                }
            }
        } else {
            self.stage = Stage::Over;
        }
    }

    /// Up, unless a step is under way.
    fn finished(&mut self) -> Outcome {
        if matches!(self.stage, Stage::Over) { Outcome::Configured } else { Outcome::Pending }
    }

    /// Nothing had to be done, as far as `begin` knows.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// The ISAKMP SA; what is left of this state ends with it.
    pub(super) fn into_up(self) -> Up {
        *self.up
    }

    /// Adds a request for when it is up; false when there are too many.
    pub(super) fn want(&mut self, child: Option<ChildRequest>, command: Option<u64>) -> bool {
        let rest = &mut self.up.rest;
        if rest.children.len() + rest.commands.len() >= WANTED_MAX {
            return false;
        }
        rest.commands.extend(command);
        rest.children.extend(child);
        true
    }

    /// Client: logs a text for the user; `what` it is.
    fn log_text(&self, ctx: &mut Context<'_>, attributes: &[Attr], kind: CfgAttr, what: &str) {
        for (_, value) in attributes.iter().filter(|(attr, _)| *attr == kind) {
            let text: String = String::from_utf8_lossy(value).chars().filter(|c| !c.is_control()).take(200).collect();
            self.up.sa.log(ctx, Level::Info, format!("{what}: {text}"));
        }
    }

    /// Client: addresses of this host, and the networks of the server.
    fn take_addresses(&mut self, ctx: &mut Context<'_>, attributes: &[Attr]) -> Outcome {
        let dns = self.connection().dns;
        if self.up.sa.features.unity {
            self.log_text(ctx, attributes, CfgAttr::UNITY_BANNER, "Unity banner");
            let included = attributes.iter().filter(|(attr, _)| *attr == CfgAttr::UNITY_SPLIT_INCLUDE);
            let mut included = included.flat_map(|(_, value)| split_networks(value));
            self.up.sa.split_include = included.by_ref().take(SPLIT_MAX).collect();
            if included.next().is_some() {
                let text = format!("the server lists more than {SPLIT_MAX} networks: traffic to the others is dropped");
                self.up.sa.log(ctx, Level::Warn, text);
            }
        }
        let given = configure::read_reply(attributes.iter().map(|(attr, value)| (*attr, &value[..])), dns);
        match configure::usable(ctx, given) {
            Ok(usable) if usable.is_empty() => {
                self.up.sa.send_delete(ctx);
                self.over("the peer gives no virtual address")
            }
            Ok(usable) => {
                self.up.sa.virtual_local = usable;
                Outcome::Configured
            }
            Err(refused) => {
                self.up.sa.send_delete(ctx);
                self.over(&refused.to_string())
            }
        }
    }

    /// A credential response.
    pub(super) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        request: RequestId,
        response: CredentialResponse,
    ) -> Outcome {
        match (std::mem::replace(&mut self.stage, Stage::Over), response) {
            (Stage::Comparing(pending), CredentialResponse::XAuth(result)) if pending == request => {
                match result {
                    Ok(name) => {
                        self.up.sa.log(ctx, Level::Info, format!("XAuth of '{name}' succeeds"));
                        self.up.sa.xauth_name = Some(name);
                        self.report(ctx, true);
                    }
                    Err(refusal) => self.failed(ctx, &refusal.0),
                }
                Outcome::Pending
            }
            (Stage::Fetching(pending, query), CredentialResponse::PasswordV1(result)) if pending == request => {
                match result {
                    Ok(password) => {
                        self.send_password(ctx, *query, &password);
                        Outcome::Pending
                    }
                    Err(refusal) => {
                        self.up.sa.reply(ctx, query.0, &[]);
                        self.up.sa.send_delete(ctx);
                        self.over(&format!("this host cannot authenticate by XAuth: {}", refusal.0))
                    }
                }
            }
            (Stage::Comparing(pending) | Stage::Fetching(pending, _), _) if pending == request => {
                self.over(OTHER_RESPONSE)
            }
            (stage, _) => {
                self.stage = stage;
                Outcome::Pending
            }
        }
    }

    pub(super) fn handle_timeout(&mut self, ctx: &mut Context<'_>) -> Outcome {
        self.up.sa.check_unconfirmed(ctx);
        if self.until.is_some_and(|until| until <= ctx.now) {
            self.up.sa.send_delete(ctx);
            return self.over("the peer did not finish XAuth or Mode Config in time");
        }
        let sa = &mut self.up.sa;
        if self.stage.own_mut().is_none_or(|own| sa.transact_again(ctx, own)) {
            return Outcome::Pending;
        }
        self.up.sa.send_delete(ctx);
        let reason = format!("{} does not answer", self.up.sa.basis.path.remote);
        self.over(&reason)
    }

    /// Ends it.
    fn over(&mut self, reason: &str) -> Outcome {
        Outcome::Ended(Box::new(Ended {
            reason: reason.to_owned(),
            again: None,
            commands: std::mem::take(&mut self.up.rest.commands),
            children: std::mem::take(&mut self.up.rest.children),
        }))
    }

    /// Ends it by command.
    pub(super) fn cancel(&mut self, ctx: &mut Context<'_>, reason: &str) -> Outcome {
        self.up.sa.send_delete(ctx);
        self.over(reason)
    }

    /// Takes back the pending credential request and what was leased.
    pub(super) fn release(&mut self, ctx: &mut Context<'_>) {
        if let Some(request) = self.request_id() {
            ctx.names.request_ids.remove(&request);
            ctx.out.push_back(Output::CancelRequest(request));
        }
        self.up.sa.release_addresses(ctx);
        self.stage = Stage::Over;
    }
}
