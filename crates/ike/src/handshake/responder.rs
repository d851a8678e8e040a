//! The responder of an IKE SA until the first message that is encrypted.
//!
//! Between IKE_SA_INIT and IKE_AUTH, a responder has no more than a source address, which may be
//! spoofed.
//! Its state must therefore be bounded ([`super::init::INIT_MAX`]), and the expensive part of the
//! key exchange waits for the first encrypted message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::{KeInitiator, KeMethod, Secret};
use wire::ike::{ExchangeType, HashId, Header, NotifyType, PayloadType, Payloads};

use super::init::{self, Announced, emit_certreq, status};
use super::initiator::derive;
use super::responder_auth::{Answering, Candidates, Step};
use super::{Outcome, Secured, counters};
use crate::child::Parts;
use crate::config::{Childless, Connection, Version};
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::{Arrival, Exchanges, SaIds};
use crate::hosts::Hosts;
use crate::keymat::IntAuth;
use crate::nat;
use crate::output::{CredentialResponse, IkeId, IkeSpi, IkeSpis, Level, Path, RequestId, Subsystem};
use crate::proposal::{self, IkeProposal, IkeSuite};
use crate::sa::{PeerSupport, Role};

/// Time during which a refusal is retransmitted on request.
const REFUSED_LINGER: Duration = Duration::from_secs(10);

/// The responder of an IKE SA that is not authenticated.
pub(crate) struct Responder {
    id: IkeId,
    spis: IkeSpis,
    path: Path,
    /// Time of IKE_SA_INIT.
    began: Instant,
    until: Instant,
    /// IKE_SA_INIT as received and as answered.
    request: Vec<u8>,
    response: Vec<u8>,
    phase: Phase,
}

/// State of a responder. Each step takes it out and puts the next one in.
enum Phase {
    /// IKE_SA_INIT was answered.
    Half(Box<Half>),
    /// Something encrypted came.
    Auth(Answering),
    /// The peer was refused; only the cached answer is left.
    Refused(Box<Exchanges>),
    /// The handshake has ended, or a step is running. The endpoint makes no step after the end.
    Ended,
}

/// Inputs of the key derivation.
struct Half {
    suite: IkeSuite,
    ke: HalfKe,
    nonce_i: Vec<u8>,
    nonce_r: Vec<u8>,
    peer: PeerSupport,
    hashes: Vec<HashId>,
    nat: (bool, bool),
}

/// State of the key exchange.
enum HalfKe {
    /// Own key pair, public value of the peer.
    Pair(KeInitiator, Vec<u8>),
    /// The secret of a KEM, which exists once the response does.
    Secret(Secret),
}

/// Stateless response to a request.
pub(crate) enum Refusing {
    Silently,
    With(Vec<u8>),
}

/// Answers an IKE_SA_INIT request that needs no cookie (any more): returns the half-open IKE SA and
/// its connection, or another response and the reason for it.
pub(crate) fn accept(
    ctx: &mut Context<'_>,
    id: IkeId,
    spi_r: IkeSpi,
    path: &Path,
    datagram: &[u8],
    parts: &Parts<'_>,
) -> Result<(Responder, Arc<Connection>), (Refusing, String)> {
    let silently = |reason: &str| (Refusing::Silently, reason.to_owned());
    let (header, body) = Header::parse(datagram).map_err(|error| silently(&error.to_string()))?;
    let unanswered = IkeSpis::new(IkeSpi(header.spi_i), IkeSpi::ZERO);
    let spis = IkeSpis { responder: spi_r, ..unanswered };
    // Encapsulation is decided after NAT detection.
    let path = path.with_encap(false);
    let refuse = |kind: NotifyType, data: &[u8]| {
        Refusing::With(init::message(unanswered, true, |chain| status(chain, kind, data)))
    };
    let (Some(sa), Some(ke), Some(nonce_i)) = (&parts.sa, &parts.ke, parts.nonce) else {
        ctx.count(counters::INIT_INVALID);
        return Err(silently("SA, KE or nonce is missing"));
    };
    // The request does not know this host's SPI: NAT detection goes with zero (RFC 7296 §2.23).
    let announced = Announced::read(parts, Payloads::new(header.next, body), unanswered, &path);
    let connections = candidates(ctx.connections, &ctx.names.hosts, &path, Version::V2);
    let Some(best) = connections.first() else {
        ctx.count(counters::INIT_NO_CONNECTION);
        let reason = format!("no connection is between {} and {}", path.local.ip(), path.remote.ip());
        return Err((refuse(NotifyType::NO_PROPOSAL_CHOSEN, &[]), reason));
    };
    let mut reasons = Vec::new();
    let mut chosen = None;
    // Identities are unknown before IKE_AUTH, so any connection between these addresses may match.
    // The best one with an acceptable proposal decides.
    for connection in &connections {
        match proposal::choose_ike(&proposals(connection, announced.peer.intermediate), sa) {
            Ok(choice) => {
                chosen = Some((connection, choice));
                break;
            }
            Err(reason) if reasons.is_empty() => reasons.push(format!("'{}': {reason}", connection.name)),
            Err(_) => (),
        }
    }
    let Some((connection, (suite, _, number))) = chosen else {
        ctx.count(counters::INIT_NO_PROPOSAL);
        let reason =
            format!("no proposal fits; {} of {} connection(s): {}", best.name, connections.len(), reasons.concat());
        return Err((refuse(NotifyType::NO_PROPOSAL_CHOSEN, &[]), reason));
    };
    // RFC 7296 §1.2: the peer guessed another method and should repeat the request with this one.
    if ke.group != suite.ke.id() {
        ctx.count(counters::INIT_INVALID_KE);
        let reason = format!("{} is wanted instead of method {}", suite.ke.name(), ke.group);
        return Err((refuse(NotifyType::INVALID_KE_PAYLOAD, &suite.ke.id().to_be_bytes()), reason));
    }
    let (public, ke) = answer_ke(suite.ke, ke.data).map_err(|error| {
        ctx.count(counters::INIT_INVALID);
        (Refusing::Silently, error.to_string())
    })?;
    let nonce_r = init::nonce(ctx);
    // The connection is known only after IKE_AUTH, so one with any PPK is sufficient. Without this
    // Notify, a peer that requires a PPK fails, and others continue without one.
    let named = connections.iter().any(|connection| connection.ppk_id.is_some());
    let with_ppk = announced.peer.ppk && (named || ctx.names.has_ppks);
    // Without NAT traversal of the peer there is no UDP, and nothing to agree to.
    let agreed_udp = announced.peer.agreed_udp && announced.nat.supported() && nat::agrees_to_udp(connection);
    let response = init::message(spis, true, |chain| {
        proposal::emit_ike_choice(chain, &suite, number, &[]);
        chain.ke(suite.ke.id(), &public);
        chain.nonce(&nonce_r);
        nat::emit(chain, spis, &path, connection.encap.is_forced());
        let possible = connections.iter().filter(|connection| admits(connection, &suite));
        emit_certreq(ctx, possible.map(|connection| &**connection), chain);
        init::emit_features(connection, chain);
        status(chain, NotifyType::MULTIPLE_AUTH_SUPPORTED, &[]);
        if connection.childless != Childless::Never {
            status(chain, NotifyType::CHILDLESS_IKEV2_SUPPORTED, &[]);
        }
        if announced.peer.intermediate && !suite.additional.is_empty() {
            status(chain, NotifyType::INTERMEDIATE_EXCHANGE_SUPPORTED, &[]);
        }
        if with_ppk {
            status(chain, NotifyType::USE_PPK, &[]);
        }
        if agreed_udp {
            chain.vendor(&nat::UDP_VENDOR_ID);
        }
    });
    let peer = PeerSupport { ppk: with_ppk, agreed_udp, ..announced.peer };
    let nat = announced.nat.nat();
    let encap = announced.nat.supported() && nat::encapsulates(nat, connection, &peer);
    // State without keys: the expensive part of the key exchange waits until the peer has proved
    // its address.
    let half = Half { suite, ke, nonce_i: nonce_i.to_vec(), nonce_r, peer, hashes: announced.hashes, nat };
    let text =
        format!("IKE_SA_INIT from {} answered: {}, NAT here {}, there {}", path.remote, half.suite, nat.0, nat.1);
    ctx.log(Level::Debug, Subsystem::Ike, Some(id), text);
    let until = ctx.now + ctx.settings.half_open_timeout;
    let path = Path { encap, ..path };
    let phase = Phase::Half(Box::new(half));
    let connection = connection.clone();
    Ok((Responder { id, spis, path, began: ctx.now, until, request: datagram.to_vec(), response, phase }, connection))
}

fn answer_ke(method: KeMethod, peer_public: &[u8]) -> Result<(Vec<u8>, HalfKe), IkeError> {
    // The secret is computed once the peer has proved its address, but an invalid public value is
    // refused at once.
    method.check(peer_public).map_err(IkeError::ke_payload)?;
    // A KEM responder must encapsulate to create its response, so the secret exists at once.
    if method.is_kem() {
        let (public, secret) = method.respond(peer_public).map_err(IkeError::ke_payload)?;
        return Ok((public, HalfKe::Secret(secret)));
    }
    let pair = method.generate().map_err(IkeError::no_key_pair)?;
    Ok((pair.public().to_vec(), HalfKe::Pair(pair, peer_public.to_vec())))
}

/// Connections of a version that match a path, the most specific first; ties are in the order of
/// the configuration.
pub(crate) fn candidates(
    connections: &[Arc<Connection>],
    hosts: &Hosts,
    path: &Path,
    version: Version,
) -> Vec<Arc<Connection>> {
    let mut found: Vec<((u32, u32), &Arc<Connection>)> = connections
        .iter()
        .filter(|connection| connection.version == version)
        .filter_map(|connection| {
            let remote = width(hosts.ranges(&connection.remote_addrs), path.remote.ip())?;
            let local = width(hosts.ranges(&connection.local_addrs), path.local.ip())?;
            Some(((remote, local), connection))
        })
        .collect();
    // A stable sort: among equally specific connections, the order of the configuration decides.
    found.sort_by_key(|(width, _)| *width);
    found.into_iter().map(|(_, connection)| connection.clone()).collect()
}

/// Number of free bits of the narrowest range that contains an address; 129 for any address, `None`
/// when it is in none.
fn width(ranges: Option<Vec<wire::AddrRange>>, addr: std::net::IpAddr) -> Option<u32> {
    // An unresolved host name may be any address, and is less specific than every range.
    let Some(ranges) = ranges else { return Some(129) };
    let bits = |addr: std::net::IpAddr| match addr {
        std::net::IpAddr::V4(addr) => u128::from(addr.to_bits()),
        std::net::IpAddr::V6(addr) => addr.to_bits(),
    };
    let open = |range: &wire::AddrRange| 128 - (bits(range.end) - bits(range.start)).leading_zeros();
    ranges.iter().filter(|range| range.contains(addr)).map(open).min()
}

/// Proposals of a connection for a peer with or without IKE_INTERMEDIATE.
fn proposals(connection: &Connection, intermediate: bool) -> Vec<IkeProposal> {
    if intermediate {
        return connection.proposals.clone();
    }
    connection.proposals.iter().filter_map(IkeProposal::without_additional).collect()
}

/// Returns whether a connection would have agreed to a suite.
pub(super) fn admits(connection: &Connection, suite: &IkeSuite) -> bool {
    connection.proposals.iter().any(|proposal| {
        let mut additional = suite.additional.iter();
        proposal.enc.contains(&suite.enc)
            && suite.integ.map_or(proposal.integ.is_empty(), |integ| proposal.integ.contains(&integ))
            && proposal.prf.contains(&suite.prf)
            && proposal.ke.contains(&suite.ke)
            && proposal.additional.iter().all(|slot| {
                // A method of this slot is the next that was agreed, or the slot may be left out.
                match additional.clone().next() {
                    Some(method) if slot.contains(&Some(*method)) => additional.next().is_some(),
                    _ => slot.is_empty() || slot.contains(&None),
                }
            })
            && additional.next().is_none()
    })
}

impl Responder {
    /// The response to a retransmission of its IKE_SA_INIT request; `None` for another request.
    pub(crate) fn answer_again(&self, datagram: &[u8]) -> Option<&[u8]> {
        // Only an identical request may receive the cached response. Otherwise an attacker could
        // use this host to answer forged requests.
        let same = self.request == datagram;
        same.then_some(&self.response[..])
    }

    /// An encrypted message has arrived.
    pub(crate) fn is_past_init(&self) -> bool {
        !matches!(self.phase, Phase::Half(_))
    }

    /// The response to IKE_SA_INIT.
    pub(crate) fn response(&self) -> &[u8] {
        &self.response
    }

    pub(crate) fn handle(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) -> Outcome {
        let mut answering = match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Half(half) if !is_first_encrypted(header) => {
                self.phase = Phase::Half(half);
                ctx.count(counters::OUT_OF_ORDER);
                return Outcome::Waiting;
            }
            // The message is not verified yet. Forged ones cost one key computation in total,
            // because the keys are kept even if the message is dropped.
            Phase::Half(half) => match self.make_keys(ctx, *half) {
                Ok(answering) => answering,
                Err(error) => {
                    ctx.note_internal(self.id, &error);
                    return Outcome::over(format!("{}: {error}", from.remote));
                }
            },
            Phase::Auth(answering) => answering,
            Phase::Refused(mut exchanges) => {
                // Answers retransmissions of the request that was refused.
                exchanges.receive(ctx, from, header, datagram, |_| false);
                self.phase = Phase::Refused(exchanges);
                return Outcome::Waiting;
            }
            Phase::Ended => return Outcome::internal(ctx, self.id, "a message for a responder that has ended"),
        };
        let expected = answering.expected();
        match answering.exchanges().receive(ctx, from, header, datagram, |exchange| expected.contains(&exchange)) {
            Arrival::Request(request) => {
                // The peer may have moved to port 4500 (RFC 7296 §2.23).
                self.path = from.with_encap(self.path.encap);
                let step = answering.handle(ctx, from, self.path, request);
                self.take(ctx, step)
            }
            Arrival::Nothing => self.take(ctx, Step::Wait(answering)),
            Arrival::Response(_) => {
                let step = answering.internal(ctx, "a response to a responder, which sends no requests");
                self.take(ctx, step)
            }
        }
    }

    /// The part of the key exchange that waited.
    fn make_keys(&self, ctx: &mut Context<'_>, half: Half) -> Result<Answering, IkeError> {
        let Half { suite, ke, nonce_i, nonce_r, peer, hashes, nat } = half;
        let shared = match ke {
            HalfKe::Pair(pair, peer_public) => pair.finish(&peer_public).map_err(IkeError::ke_payload)?,
            HalfKe::Secret(secret) => secret,
        };
        // Computed again, because a reload may have changed the connections since IKE_SA_INIT.
        let mut connections = candidates(ctx.connections, &ctx.names.hosts, &self.path, Version::V2);
        // A connection whose proposals exclude the negotiated suite must not be selected by an
        // identity later.
        connections.retain(|connection| admits(connection, &suite));
        let candidates =
            Candidates::new(connections).ok_or_else(|| IkeError::authentication("its connection was unloaded"))?;
        let keys = derive(&suite, &nonce_i, &nonce_r, self.spis, &shared);
        let sk = Secured::sk_keys(Role::Responder, &keys, &suite)?;
        keys.disclose(ctx, self.id, self.spis, &suite);
        let ids = SaIds { id: self.id, role: Role::Responder, spis: self.spis };
        let exchanges = Exchanges::new(ids, candidates.best(), &peer, sk, 1);
        let secured = Secured {
            id: self.id,
            role: Role::Responder,
            spis: self.spis,
            path: self.path,
            nat,
            peer,
            peer_hashes: hashes,
            suite,
            keys,
            mixed: None,
            ppk: false,
            nonce_i,
            nonce_r,
            request: self.request.clone(),
            response: self.response.clone(),
            int_auth: IntAuth::default(),
            auth_id: None,
            exchanges,
        };
        Ok(Answering::new(secured, candidates, self.began))
    }

    pub(crate) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        request_id: RequestId,
        answer: CredentialResponse,
    ) -> Outcome {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Auth(answering) => {
                let step = answering.answer(ctx, request_id, answer);
                self.take(ctx, step)
            }
            Phase::Half(_) | Phase::Refused(_) | Phase::Ended => {
                Outcome::internal(ctx, self.id, "a credential response for a responder without a request")
            }
        }
    }

    /// Puts the next state in. A refused peer gets the same answer to a retransmission: the keys
    /// stay for a while.
    fn take(&mut self, ctx: &mut Context<'_>, step: Step) -> Outcome {
        match step {
            Step::Wait(answering) => {
                self.phase = Phase::Auth(answering);
                Outcome::Waiting
            }
            Step::Up(up) => Outcome::Up(up),
            Step::Refused(exchanges, reason) => {
                // Kept for a short time, because the peer may not have received the error and
                // repeats its request.
                self.until = self.until.min(ctx.now + REFUSED_LINGER);
                self.phase = Phase::Refused(exchanges);
                (self.request, self.response) = (Vec::new(), Vec::new());
                Outcome::Refused(reason)
            }
            Step::Ended(reason) => Outcome::over(reason),
        }
    }

    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) -> Outcome {
        if self.until > ctx.now {
            return Outcome::Waiting;
        }
        match self.phase {
            Phase::Refused(_) => Outcome::over(""),
            Phase::Ended => Outcome::internal(ctx, self.id, "a timer of a responder that has ended"),
            Phase::Half(_) => {
                ctx.count(counters::HALF_OPEN_TIMEOUT);
                Outcome::over("")
            }
            Phase::Auth(_) => {
                ctx.count(counters::HALF_OPEN_TIMEOUT);
                Outcome::over(format!("{} did not finish its authentication in time", self.path.remote))
            }
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.until
    }

    pub(crate) fn request_id(&self) -> Option<RequestId> {
        match &self.phase {
            Phase::Auth(answering) => answering.request_id(),
            _ => None,
        }
    }

    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn exchanges(&mut self) -> Option<&mut Exchanges> {
        match &mut self.phase {
            Phase::Auth(answering) => Some(answering.exchanges()),
            _ => None,
        }
    }

    pub(crate) fn id(&self) -> IkeId {
        self.id
    }

    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        match &self.phase {
            Phase::Auth(answering) => Some(answering.connection()),
            _ => None,
        }
    }

    pub(crate) fn path(&self) -> Path {
        self.path
    }

    pub(crate) fn spis(&self) -> IkeSpis {
        self.spis
    }
}

/// True for the message that may follow IKE_SA_INIT. INFORMATIONAL is of an initiator that cannot
/// authenticate itself.
fn is_first_encrypted(header: &Header) -> bool {
    // These checks precede the key computation, so that unsuitable messages cost no CPU time.
    matches!(header.exchange, ExchangeType::IKE_AUTH | ExchangeType::IKE_INTERMEDIATE | ExchangeType::INFORMATIONAL)
        && matches!(header.next, PayloadType::SK | PayloadType::SKF)
        && header.from_initiator()
        && !header.is_response()
        && header.message_id.get() == 1
}
