//! EAP (RFC 3748) inside IKE_AUTH: conversations of a server and of a client.
//!
//! A conversation begins with its first step and ends with its outcome, after a minute, or when
//! there are too many. Only the state of the method decides about success: an EAP-Success of the
//! peer before that is a failure.

mod client;
mod method;
mod mschapv2;
mod packet;
mod server;
#[cfg(test)]
mod tests;
pub(super) mod tls;

use std::collections::HashMap;
use std::time::Duration;

use crypto::ike::Secret;
use ike::config::EapType;
use ike::identity::Identity;
use ike::output::{CredentialError, EapResult, EapStep};
use wire::ike::IdType;

use self::client::Client;
use self::server::Server;
use super::der::is_one_sequence;
use super::store::Store;

/// Conversations at one time; the largest, EAP-TLS, holds about 256 KiB: 128 MiB in all.
const MAX_CONVERSATIONS: usize = 512;
/// Maximum duration of a conversation.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Packets of the other side in one conversation: a TLS handshake of the largest size in small
/// pieces.
const MAX_STEPS: u32 = 200;

/// All conversations.
#[derive(Default)]
pub(super) struct Conversations(HashMap<(u64, bool), Conversation>);

struct Conversation {
    started: Duration,
    steps: u32,
    side: Side,
}

enum Side {
    Client(Client),
    Server(Server),
}

/// Result of a step.
pub(super) enum StepResult {
    Send(Vec<u8>),
    /// MSK, and the identity of its owner.
    Success(Option<Secret>, Option<Identity>),
    Failure(String),
}

impl Conversations {
    /// Goes one step on; `now` is the time since 1970.
    pub(super) fn step(&mut self, store: &Store, step: &EapStep, now: Duration) -> EapResult {
        self.0.retain(|_, there| now.saturating_sub(there.started) < MAX_AGE);
        let name = (step.conversation, step.client);
        let begins = step.client && !self.0.contains_key(&name) || !step.client && step.packet.is_empty();
        let mut conversation = match self.0.remove(&name) {
            Some(conversation) if !begins => conversation,
            _ if !begins => return failed(step, "it is over, or took longer than a minute".into()),
            _ if self.0.len() >= MAX_CONVERSATIONS => {
                return failed(step, format!("there are {MAX_CONVERSATIONS} others; try again"));
            }
            _ => match Side::start(store, step, now) {
                Ok(side) => Conversation { started: now, steps: 0, side },
                Err(why) => return failed(step, why.to_string()),
            },
        };
        conversation.steps += 1;
        if conversation.steps > MAX_STEPS {
            return failed(step, format!("more than {MAX_STEPS} steps"));
        }
        let outcome = match &mut conversation.side {
            Side::Client(client) => client.step(&step.packet),
            Side::Server(server) => server.step(store, &step.packet),
        };
        match outcome {
            StepResult::Send(packet) => {
                let switch = match &mut conversation.side {
                    Side::Server(server) => server.take_switch(),
                    Side::Client(_) => None,
                };
                self.0.insert(name, conversation);
                match switch {
                    Some(connection) => EapResult::Switch(connection, packet),
                    None => EapResult::Packet(packet),
                }
            }
            StepResult::Success(msk, identity) => {
                let packet = if step.client { Vec::new() } else { packet::success(conversation.side.last_id()) };
                EapResult::Success { packet, msk, identity }
            }
            StepResult::Failure(why) => failed_as(step, conversation.side.last_id(), why),
        }
    }
}

impl Side {
    fn start(store: &Store, step: &EapStep, now: Duration) -> anyhow::Result<Self> {
        match step.client {
            true => Client::new(store, step, now).map(Self::Client),
            false => Server::new(step, now).map(Self::Server),
        }
    }

    fn last_id(&self) -> u8 {
        match self {
            Self::Client(_) => 0,
            Self::Server(server) => server.last_id(),
        }
    }
}

fn failed(step: &EapStep, why: String) -> EapResult {
    // The identifier of a failure is that of the last response (RFC 3748 §4.2).
    failed_as(step, step.packet.get(1).copied().unwrap_or(0), why)
}

fn failed_as(step: &EapStep, id: u8, why: String) -> EapResult {
    let packet = if step.client { Vec::new() } else { packet::failure(id) };
    EapResult::Failure(packet, CredentialError(format!("EAP: {why}")))
}

/// Identities that a name in EAP may mean.
fn identities(name: &[u8]) -> Vec<Identity> {
    let of = |kind| Identity { kind, data: name.to_vec() };
    if is_one_sequence(name) {
        return vec![of(IdType::DER_ASN1_DN)];
    }
    let text = if name.contains(&b'@') { of(IdType::RFC822_ADDR) } else { of(IdType::FQDN) };
    vec![text, of(IdType::KEY_ID)]
}

/// Identities that the text of an IKE identity may mean as a name in EAP; an address is not a name.
fn text_identities(id: &Identity) -> Vec<Identity> {
    if id.addresses().is_some() { Vec::new() } else { identities(&id.data) }
}

/// The number of a method (RFC 3748 §5, RFC 5216, draft-kamath).
fn number(method: EapType) -> u8 {
    match method {
        EapType::Md5 => packet::MD5_CHALLENGE,
        EapType::MsChapV2 => packet::MSCHAPV2,
        EapType::Tls => packet::TLS,
    }
}

/// Feeds bytes to both ends, for fuzzing: nothing but the absence of a panic is expected.
#[doc(hidden)]
pub(super) fn parse_anything(bytes: &[u8]) {
    let _ = packet::Packet::parse(bytes);
    let _ = mschapv2::Message::parse(bytes);
    let mut pipe = tls::Pipe::default();
    let _ = pipe.receive(bytes);
}
