//! EAP conversations and files with private keys, driven by a fuzzer.

use std::sync::Arc;
use std::time::Duration;

use crypto::ike::Secret;
use ike::config::{Auth, AuthMethod, Connection, EapType};
use ike::identity::{IdPattern, Identity};
use ike::output::{EapResult, EapStep};

use super::eap::Conversations;
use super::{Origin, Shared, SharedKind, Store};

/// Time of all conversations, since 1970.
const NOW: Duration = Duration::from_secs(1_800_000_000);
const USER: &str = "carol@weir.test";

pub use super::pkcs8::check_private_key as private_key;

fn connection(local: Auth, remote: Auth) -> Arc<Connection> {
    Arc::new(Connection { local: vec![local], remote: vec![remote], ..Connection::new("net") })
}

fn store(password: &[u8]) -> Store {
    let mut store = Store::default();
    let owners = vec![IdPattern::parse(USER).expect("a pattern")];
    store.add_shared(Shared::new(USER, SharedKind::Eap, owners, Secret::from_slice(password)), Origin::Vici);
    store
}

/// A client and a server of EAP. The first byte chooses the methods of both, whether the server
/// requests the identity, and whether the passwords differ; then the input decides whether each
/// packet is delivered, changed or replaced: an operation, a length, bytes.
///
/// # Panics
/// When an end reports success although the passwords differ. EAP-MD5 proves nothing to the client:
/// there, EAP-Success is what the server says, which IKE authenticates.
pub fn eap(input: &[u8]) {
    let Some((choice, mut rest)) = input.split_first() else { return };
    let methods = [None, Some(EapType::Md5), Some(EapType::MsChapV2), Some(EapType::Tls)];
    let eap = |bits: u8| Auth::new(AuthMethod::Eap(methods[usize::from(bits & 3)]), IdPattern::Any);
    let gateway = || Auth::new(AuthMethod::PublicKey(Vec::new()), IdPattern::Any);
    let differ = choice & 0x20 != 0;
    let server_auth = Auth { eap_id: (choice & 0x10 != 0).then_some(IdPattern::Any), ..eap(choice >> 2) };
    let connections = [connection(eap(*choice), gateway()), connection(gateway(), server_auth)];
    let stores = [store(b"of the client"), store(if differ { b"of the server" } else { b"of the client" })];
    let mut conversations = [Conversations::default(), Conversations::default()];
    let client_id = Identity::parse(USER).expect("an identity");

    let mut packet = Vec::new();
    // The server begins, each end in turn.
    for turn in 0.. {
        let client = turn % 2 == 1;
        let end = usize::from(!client);
        let step = EapStep {
            connection: Arc::clone(&connections[end]),
            alternatives: Vec::new(),
            round: 0,
            client,
            conversation: 1,
            client_id: client_id.clone(),
            packet: std::mem::take(&mut packet),
        };
        packet = match conversations[end].step(&stores[end], &step, NOW) {
            EapResult::Packet(packet) | EapResult::Switch(_, packet) => packet,
            EapResult::Success { packet, msk, .. } => {
                let unproven = client && msk.is_none();
                assert!(!differ || unproven, "success with a password that the peer does not have");
                packet
            }
            EapResult::Failure(packet, _) => packet,
        };
        let [how, len, after @ ..] = rest else { return };
        let (data, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        match how & 3 {
            0 => {}
            1 => packet = data.to_vec(),
            2 => packet.iter_mut().zip(data).for_each(|(byte, change)| *byte ^= change),
            _ => packet.truncate(data.len()),
        }
    }
}
