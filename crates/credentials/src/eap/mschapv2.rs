//! EAP-MSCHAPv2 (draft-kamath-pppext-eap-mschapv2, RFC 2759).

use crypto::ike::Secret;
use crypto::ike::mschap::{Exchange, NtPasswordHash};
use ike::identity::{IdPattern, Identity};
use subtle::ConstantTimeEq;

use super::super::name::printable;
use super::super::shared::{self, Shared, SharedKind};
use super::super::store::Store;
use super::identities;
use super::method::{Progress, Ready};

const CHALLENGE: u8 = 1;
const RESPONSE: u8 = 2;
const SUCCESS: u8 = 3;
const FAILURE: u8 = 4;

/// Bytes of a user name beyond which it is refused (RFC 2759 §4).
const MAX_NAME: usize = 256;

/// Type data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Message<'a> {
    Challenge {
        id: u8,
        challenge: &'a [u8; 16],
    },
    Response {
        id: u8,
        peer_challenge: &'a [u8; 16],
        nt_response: &'a [u8; 24],
        name: &'a [u8],
    },
    Success {
        id: u8,
        message: &'a [u8],
    },
    Failure {
        id: u8,
        message: &'a [u8],
    },
    /// Responses to the two above are a single byte.
    Ack(u8),
}

impl<'a> Message<'a> {
    /// Parses type data. MS-Length is redundant and not checked: the EAP header bounds the message,
    /// and some peers count it wrong.
    pub(super) fn parse(data: &'a [u8]) -> Option<Self> {
        let (code, id, body) = match *data {
            [code @ (SUCCESS | FAILURE)] => return Some(Self::Ack(code)),
            [code, id, _, _, ref body @ ..] => (code, id, body),
            _ => return None,
        };
        match (code, body) {
            (CHALLENGE, [16, rest @ ..]) => {
                let challenge = rest.first_chunk()?;
                Some(Self::Challenge { id, challenge })
            }
            (RESPONSE, [49, rest @ ..]) => {
                let (peer_challenge, rest) = rest.split_first_chunk()?;
                let (_reserved, rest) = rest.split_first_chunk::<8>()?;
                let (nt_response, rest) = rest.split_first_chunk()?;
                let (_flags, name) = rest.split_first()?;
                Some(Self::Response { id, peer_challenge, nt_response, name }).filter(|_| name.len() <= MAX_NAME)
            }
            (SUCCESS, message) => Some(Self::Success { id, message }),
            (FAILURE, message) => Some(Self::Failure { id, message }),
            _ => None,
        }
    }
}

fn emit(code: u8, id: u8, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let length = ((4 + body.len()) as u16).to_be_bytes();
    [&[code, id, length[0], length[1]], &body[..]].concat()
}

/// The name without a domain in front (RFC 2759 §4).
fn without_domain(name: &[u8]) -> &[u8] {
    name.iter().position(|byte| *byte == b'\\').map_or(name, |at| &name[at + 1..])
}

/// The domain in front of a name.
fn domain(name: &[u8]) -> Option<&[u8]> {
    name.iter().position(|byte| *byte == b'\\').map(|at| &name[..at])
}

/// True when two names mean the same user: equal without their domains, and of one domain where
/// both carry one. A client may leave the domain out in one of the two places.
fn is_same_user(a: &[u8], b: &[u8]) -> bool {
    let same_domain = match (domain(a), domain(b)) {
        (Some(a), Some(b)) => a.eq_ignore_ascii_case(b),
        _ => true,
    };
    same_domain && without_domain(a).eq_ignore_ascii_case(without_domain(b))
}

/// True when a name is that of one of the identities of IDi. An address is not a name.
fn is_idi(ids: &[Identity], name: &[u8]) -> bool {
    ids.iter().any(|id| id.addresses().is_none() && is_same_user(&id.data, name))
}

/// The hash of a user's password.
fn password(shared: &Shared) -> Option<NtPasswordHash> {
    match shared.kind {
        SharedKind::Ntlm => shared.secret.as_slice().try_into().ok().map(NtPasswordHash::from_bytes),
        _ => std::str::from_utf8(&shared.secret).ok().map(NtPasswordHash::of_password),
    }
}

fn password_of(store: &Store, name: &[u8]) -> Option<NtPasswordHash> {
    let find = |name: &[u8]| shared::of_user(store.shared(), &[SharedKind::Eap, SharedKind::Ntlm], &identities(name));
    find(name).or_else(|| find(without_domain(name))).and_then(password)
}

/// The server: challenge, proof of the client, own proof, its acknowledgement.
pub(super) struct Server {
    id: u8,
    challenge: [u8; 16],
    user: User,
    state: ServerState,
}

/// User that must prove the password.
pub(super) enum User {
    /// That of the EAP identity; the name in the Response must be the same.
    Named(Vec<u8>),
    /// No EAP identity was requested: IDi, or the name in the Response where the pattern of
    /// `remote.id` admits that as well. Clients that ask for a user name (Windows, for one) send an
    /// address as IDi.
    Unnamed(Vec<Identity>, IdPattern),
}

impl User {
    /// User name to verify when the client sends `name`.
    fn of_response<'a>(&'a self, name: &'a [u8]) -> Result<&'a [u8], &'static str> {
        match self {
            Self::Named(identity) if is_same_user(identity, name) => Ok(identity),
            Self::Named(_) => Err("differs from the EAP identity"),
            Self::Unnamed(ids, pattern) => {
                let admitted = || identities(name).iter().any(|id| pattern.matches(id).is_some());
                let why = "differs from IDi; set 'remote.eap_id = %any' to take it as EAP identity";
                if is_idi(ids, name) || admitted() { Ok(name) } else { Err(why) }
            }
        }
    }
}

enum ServerState {
    Challenged,
    /// The client has proved knowledge of the password.
    Proven(Secret, Option<Identity>),
    Refused(String),
    Over,
}

impl Server {
    /// The method and its first request.
    pub(super) fn start(id: u8, user: User) -> (Self, Vec<u8>) {
        let mut challenge = [0; 16];
        crypto::random(&mut challenge);
        let request = emit(CHALLENGE, id, &[&[16], &challenge, b"weir"]);
        (Self { id, challenge, user, state: ServerState::Challenged }, request)
    }

    pub(super) fn step(&mut self, store: &Store, data: &[u8]) -> Progress {
        let state = std::mem::replace(&mut self.state, ServerState::Over);
        match (state, Message::parse(data)) {
            (ServerState::Challenged, Some(Message::Response { id, peer_challenge, nt_response, name }))
                if id == self.id =>
            {
                self.check(store, peer_challenge, nt_response, name)
            }
            (ServerState::Proven(msk, identity), Some(Message::Ack(SUCCESS))) => Progress::Done(Some(msk), identity),
            (ServerState::Refused(why), _) => Progress::Failed(why),
            _ => Progress::Failed("MSCHAPv2: unexpected or malformed message".into()),
        }
    }

    fn check(&mut self, store: &Store, peer_challenge: &[u8; 16], nt_response: &[u8; 24], name: &[u8]) -> Progress {
        let shown = printable(&String::from_utf8_lossy(name));
        let user_name = without_domain(name);
        let exchange = Exchange { authenticator_challenge: &self.challenge, peer_challenge, user_name };
        // The EAP identity is what counts afterwards (leases, uniqueness, accounting), so its
        // password is the one to prove.
        let user = self.user.of_response(name);
        let password = user.ok().and_then(|user| password_of(store, user));
        let proven = password.filter(|password| password.is_nt_response(&exchange, nt_response));
        match proven {
            Some(password) => {
                let proof = password.authenticator_response(&exchange, nt_response);
                let identity = match &self.user {
                    User::Named(_) => None,
                    User::Unnamed(ids, _) if is_idi(ids, name) => ids.first().cloned(),
                    User::Unnamed(..) => identities(name).into_iter().next(),
                };
                self.state = ServerState::Proven(password.msk(nt_response), identity);
                Progress::Go(emit(SUCCESS, self.id, &[proof.as_bytes(), b" M=OK"]))
            }
            None => {
                let why = user.err().unwrap_or("is unknown or the password is wrong; add a section 'eap' to 'secrets'");
                let why = format!("'{shown}' {why}");
                self.state = ServerState::Refused(why);
                // Authentication failure, no further try (RFC 2759 §6).
                let mut fresh = [0; 16];
                crypto::random(&mut fresh);
                let fresh = fresh.iter().fold(String::new(), |text, byte| text + &format!("{byte:02X}"));
                Progress::Go(emit(FAILURE, self.id, &[format!("E=691 R=0 C={fresh} V=3 M=Refused").as_bytes()]))
            }
        }
    }
}

/// The client: answers one challenge, then requires the server's proof.
pub(super) struct Client {
    name: Vec<u8>,
    password: NtPasswordHash,
    state: ClientState,
}

enum ClientState {
    Start,
    /// Expected proof of the server, and the resulting MSK.
    Answered {
        proof: String,
        msk: Secret,
    },
    /// The server proved knowledge of the password, and the client acknowledged it.
    Proven(Secret),
    Over,
}

impl Client {
    pub(super) fn new(store: &Store, name: &[u8]) -> Option<Self> {
        Some(Self { name: name.to_vec(), password: password_of(store, name)?, state: ClientState::Start })
    }

    pub(super) fn step(&mut self, data: &[u8]) -> Progress {
        let state = std::mem::replace(&mut self.state, ClientState::Over);
        match (state, Message::parse(data)) {
            (ClientState::Start, Some(Message::Challenge { id, challenge })) => {
                let mut peer_challenge = [0; 16];
                crypto::random(&mut peer_challenge);
                self.answer(id, challenge, &peer_challenge)
            }
            (ClientState::Answered { proof, msk }, Some(Message::Success { message, .. })) => {
                let right = message.get(..proof.len()).is_some_and(|shown| shown.ct_eq(proof.as_bytes()).into());
                if !right {
                    return Progress::Failed("MSCHAPv2: the server cannot verify the password".into());
                }
                self.state = ClientState::Proven(msk);
                Progress::Go(vec![SUCCESS])
            }
            (ClientState::Answered { .. } | ClientState::Start, Some(Message::Failure { message, .. })) => {
                let message = printable(&String::from_utf8_lossy(message));
                Progress::Failed(format!("MSCHAPv2: the server rejected the password ({message})"))
            }
            _ => Progress::Failed("MSCHAPv2: unexpected or malformed message".into()),
        }
    }

    fn answer(&mut self, id: u8, challenge: &[u8; 16], peer_challenge: &[u8; 16]) -> Progress {
        let user_name = without_domain(&self.name);
        let exchange = Exchange { authenticator_challenge: challenge, peer_challenge, user_name };
        let response = self.password.nt_response(&exchange);
        let proof = self.password.authenticator_response(&exchange, &response);
        self.state = ClientState::Answered { proof, msk: self.password.msk(&response) };
        Progress::Go(emit(RESPONSE, id, &[&[49], peer_challenge, &[0; 8], &response, &[0], &self.name]))
    }

    /// Returns whether an EAP-Success is due.
    pub(super) fn ready(&mut self) -> Ready {
        match std::mem::replace(&mut self.state, ClientState::Over) {
            ClientState::Proven(msk) => Ready::Yes(Some(msk)),
            _ => Ready::No,
        }
    }
}
