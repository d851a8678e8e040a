//! Messages: header and payloads, read into their parts and written.
//!
//! The hash of an authenticated message is in its first payload and covers everything after it
//! (RFC 2409 §5.5, §5.7), so that [`Parts`] remembers those bytes.

use std::time::Duration;

use wire::ike::v1::{Notification, NotifyType, vendor};
use wire::ike::{
    Cert, CertEncoding, CertReq, Chain, Delete, ExchangeType, Header, HeaderFields, PayloadType, Payloads,
    begin_message, finish_message,
};

use super::fault::Fault;
use super::method::XAuthSide;
use super::proposal::responder_lifetime;
use crate::config::{Connection, Fragmentation};
use crate::output::IkeSpis;

/// Nonces have 8 to 256 bytes (RFC 2409 §5).
const NONCE_LEN: std::ops::RangeInclusive<usize> = 8..=256;
/// Payloads of one kind that are kept: a peer needs no more NAT-D, vendor or notification payloads.
const REPEATED_MAX: usize = 32;
/// CERT payloads of one message: a longer path is not plausible.
const CERTS_MAX: usize = 16;
/// Authorities that are remembered of a peer, and bytes of the name of each.
const AUTHORITIES_MAX: usize = 16;
const AUTHORITY_MAX: usize = 1024;

/// Payloads of one message, by kind.
#[derive(Default)]
pub(super) struct Parts<'a> {
    pub(super) sa: Option<&'a [u8]>,
    pub(super) ke: Option<&'a [u8]>,
    pub(super) nonce: Option<&'a [u8]>,
    pub(super) hash: Option<&'a [u8]>,
    pub(super) signature: Option<&'a [u8]>,
    pub(super) certs: Vec<Cert<'a>>,
    /// Names of authorities in CERTREQ payloads for X.509 certificates; an empty one stands for
    /// any.
    pub(super) requests: Vec<&'a [u8]>,
    /// Bodies: the identity in phase 1, the selectors of both sides in phase 2.
    pub(super) ids: Vec<&'a [u8]>,
    pub(super) vendors: Vec<&'a [u8]>,
    pub(super) nat_d: Vec<&'a [u8]>,
    pub(super) nat_oa: Vec<&'a [u8]>,
    pub(super) notifications: Vec<Notification<'a>>,
    pub(super) deletes: Vec<Delete<'a>>,
    /// Body of the attributes payload.
    pub(super) config: Option<&'a [u8]>,
    /// Everything after the HASH payload without padding, when that is the first payload.
    pub(super) hashed: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    /// Reads the payloads in `bytes`, the first of type `first`. Payloads of unknown types are
    /// passed over.
    ///
    /// # Errors
    /// [`Fault::Violation`] for malformed payloads, and for two of a kind that may occur once.
    pub(super) fn read(first: PayloadType, bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut parts = Self::default();
        let mut end = 0;
        let mut after_hash = None;
        for payload in Payloads::v1(first, bytes) {
            let payload = payload?;
            end += 4 + payload.body.len();
            if parts.hash.is_none()
                && payload.kind == PayloadType::HASH_V1
                && after_hash.is_none()
                && end == 4 + payload.body.len()
            {
                after_hash = Some(end);
            }
            parts.take(payload.kind, payload.body)?;
        }
        parts.hashed = after_hash.and_then(|start| bytes.get(start..end));
        Ok(parts)
    }

    fn take(&mut self, kind: PayloadType, body: &'a [u8]) -> Result<(), Fault> {
        let once = |slot: &mut Option<&'a [u8]>| match slot.replace(body) {
            Some(_) => Err(Fault::violation(format!("two payloads of type {kind}"))),
            None => Ok(()),
        };
        let many = |list: &mut Vec<&'a [u8]>, body: &'a [u8]| {
            if list.len() < REPEATED_MAX {
                list.push(body);
            }
        };
        match kind {
            PayloadType::SA_V1 => once(&mut self.sa)?,
            PayloadType::KE_V1 => once(&mut self.ke)?,
            PayloadType::NONCE_V1 if !NONCE_LEN.contains(&body.len()) => {
                return Err(Fault::violation(format!("a nonce of {} bytes", body.len())));
            }
            PayloadType::NONCE_V1 => once(&mut self.nonce)?,
            PayloadType::HASH_V1 => once(&mut self.hash)?,
            PayloadType::SIG_V1 => once(&mut self.signature)?,
            PayloadType::ATTRIBUTES_V1 => once(&mut self.config)?,
            PayloadType::CERT_V1 if self.certs.len() == CERTS_MAX => {
                return Err(Fault::violation("too many certificates in one message"));
            }
            PayloadType::CERT_V1 => self.certs.push(Cert::parse(body)?),
            PayloadType::CERTREQ_V1 => {
                let request = CertReq::parse(body)?;
                if request.encoding == CertEncoding::X509_SIGNATURE {
                    many(&mut self.requests, request.authorities);
                }
            }
            PayloadType::ID_V1 if self.ids.len() == 2 => return Err(Fault::violation("more than two ID payloads")),
            PayloadType::ID_V1 => self.ids.push(body),
            PayloadType::VENDOR_V1 => many(&mut self.vendors, body),
            PayloadType::NAT_D_V1 | PayloadType::NAT_D_DRAFT_V1 => many(&mut self.nat_d, body),
            PayloadType::NAT_OA_V1 | PayloadType::NAT_OA_DRAFT_V1 => many(&mut self.nat_oa, body),
            PayloadType::NOTIFICATION_V1 if self.notifications.len() < REPEATED_MAX => {
                self.notifications.push(Notification::parse(body)?);
            }
            PayloadType::DELETE_V1 if self.deletes.len() < REPEATED_MAX => {
                self.deletes.push(wire::ike::v1::parse_delete(body)?.1);
            }
            _ => (),
        }
        Ok(())
    }

    /// The first notification of that type.
    pub(super) fn notification(&self, kind: NotifyType) -> Option<&Notification<'a>> {
        self.notifications.iter().find(|notification| notification.kind == kind)
    }

    /// The lifetime that the responder of the exchange uses (RFC 2407 §4.6.3.1).
    pub(super) fn responder_lifetime(&self) -> Option<Duration> {
        self.notification(NotifyType::RESPONDER_LIFETIME).and_then(responder_lifetime)
    }

    /// The first error among the notifications.
    pub(super) fn error(&self) -> Option<NotifyType> {
        self.notifications.iter().map(|notification| notification.kind).find(|kind| kind.is_error())
    }
}

/// Contents of a peer's CERTREQ payloads: at most 16 KiB.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Requested {
    /// It has requested a certificate.
    pub(super) any: bool,
    /// Names of its authorities in DER.
    pub(super) authorities: Vec<Vec<u8>>,
}

impl Requested {
    /// Adds the requests of another message.
    pub(super) fn add(&mut self, parts: &Parts<'_>) {
        self.any |= !parts.requests.is_empty();
        for name in parts.requests.iter().filter(|name| !name.is_empty() && name.len() <= AUTHORITY_MAX) {
            if self.authorities.len() < AUTHORITIES_MAX && !self.authorities.iter().any(|known| known == name) {
                self.authorities.push(name.to_vec());
            }
        }
    }
}

/// Fields of a header that differ between messages.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub(super) cookies: IkeSpis,
    pub(super) exchange: ExchangeType,
    /// Zero in phase 1.
    pub(super) message_id: u32,
}

impl Head {
    /// A message of main mode.
    pub(super) fn main(cookies: IkeSpis) -> Self {
        Self { cookies, exchange: ExchangeType::ID_PROT, message_id: 0 }
    }

    /// A message of aggressive mode.
    pub(super) fn aggressive(cookies: IkeSpis) -> Self {
        Self { exchange: ExchangeType::AGGRESSIVE, ..Self::main(cookies) }
    }

    /// A message with these payloads, encrypted or not.
    pub(super) fn message(&self, encrypted: bool, first: PayloadType, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(Header::LEN + body.len());
        begin_message(
            &mut out,
            &HeaderFields {
                spi_i: self.cookies.initiator.0,
                spi_r: self.cookies.responder.0,
                version: Header::VERSION_1,
                exchange: self.exchange,
                flags: if encrypted { Header::FLAG_V1_ENCRYPTION } else { 0 },
                message_id: self.message_id,
            },
        );
        out.extend(body);
        finish_message(&mut out, first);
        out
    }

    /// A message in clear text.
    pub(super) fn clear(&self, build: impl FnOnce(&mut Chain<'_>)) -> Vec<u8> {
        let (first, body) = payloads(build);
        self.message(false, first, &body)
    }
}

/// A chain of payloads and the type of its first one.
pub(super) fn payloads(build: impl FnOnce(&mut Chain<'_>)) -> (PayloadType, Vec<u8>) {
    let mut body = Vec::new();
    let mut chain = Chain::new(&mut body);
    build(&mut chain);
    let first = chain.first();
    (first, body)
}

/// Puts a HASH payload in front of payloads that it covers.
pub(super) fn with_hash(hash: &[u8], first: PayloadType, rest: &[u8]) -> Vec<u8> {
    // By hand: the chain links each payload to the one before, and this one comes last.
    let len = (4 + hash.len()) as u16;
    [&[first.0, 0], &len.to_be_bytes()[..], hash, rest].concat()
}

/// NAT traversal: payload types and encapsulation modes of the RFC or of the drafts before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NatTraversal {
    Rfc,
    Draft,
}

impl NatTraversal {
    /// Type of NAT-D payloads.
    pub(super) fn nat_d(self) -> PayloadType {
        match self {
            Self::Rfc => PayloadType::NAT_D_V1,
            Self::Draft => PayloadType::NAT_D_DRAFT_V1,
        }
    }

    /// Type of NAT-OA payloads.
    pub(super) fn nat_oa(self) -> PayloadType {
        match self {
            Self::Rfc => PayloadType::NAT_OA_V1,
            Self::Draft => PayloadType::NAT_OA_DRAFT_V1,
        }
    }
}

/// Features that the peer announced by vendor IDs, which are not authenticated.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Features {
    pub(super) nat_traversal: Option<NatTraversal>,
    pub(super) dpd: bool,
    pub(super) xauth: bool,
    /// It takes messages in pieces.
    pub(super) fragments: bool,
    /// It reads or sends the attributes of Unity in Mode Config. As a client it offers all
    /// addresses in quick mode.
    pub(super) unity: bool,
}

impl Features {
    pub(super) fn of(vendors: &[&[u8]]) -> Self {
        let has = |id: &[u8]| vendors.contains(&id);
        let draft = has(&vendor::NAT_T_DRAFT_02) || has(&vendor::NAT_T_DRAFT_03);
        let nat_traversal =
            if has(&vendor::NAT_T) { Some(NatTraversal::Rfc) } else { draft.then_some(NatTraversal::Draft) };
        // Flags follow the name: bit 31 announces pieces of all messages, bit 30 of the first ones.
        let is_fragments = |id: &&&[u8]| id.len() >= 20 && id.starts_with(&vendor::FRAGMENTATION);
        let fragments = vendors.iter().find(is_fragments).is_some_and(|id| id[16] & 0x80 != 0);
        // The last two bytes are a version (RFC 3706 §5.1).
        let dpd = vendors.iter().any(|id| id.len() == 16 && id[..14] == vendor::DPD[..14]);
        let unity = vendors.iter().any(|id| id.len() == 16 && id[..14] == vendor::UNITY[..14]);
        Self { nat_traversal, dpd, xauth: has(&vendor::XAUTH), fragments, unity }
    }

    /// Without `cisco_unity` a client does not use Unity, whatever the server announces.
    pub(super) fn for_client(mut self, connection: &Connection, cisco_unity: bool) -> Self {
        self.unity &= cisco_unity || connection.vips.is_empty();
        self
    }

    /// Writes the vendor IDs of an offer.
    pub(super) fn emit_all(connection: &Connection, cisco_unity: bool, chain: &mut Chain<'_>) {
        if XAuthSide::of(connection).is_some() {
            chain.raw(PayloadType::VENDOR_V1, &vendor::XAUTH);
        }
        if cisco_unity && !connection.vips.is_empty() {
            chain.raw(PayloadType::VENDOR_V1, &vendor::UNITY);
        }
        if connection.fragmentation != Fragmentation::No {
            chain.raw(PayloadType::VENDOR_V1, &Self::fragmentation());
        }
        for id in [vendor::DPD, vendor::NAT_T, vendor::NAT_T_DRAFT_03, vendor::NAT_T_DRAFT_02] {
            chain.raw(PayloadType::VENDOR_V1, &id);
        }
    }

    /// Vendor ID of pieces of messages, with the flag for all of them.
    fn fragmentation() -> Vec<u8> {
        [&vendor::FRAGMENTATION[..], &[0x80, 0, 0, 0]].concat()
    }

    /// Vendor IDs of an answer: those that the peer sent. The answer to a message from
    /// an unproven address must not be longer than that.
    pub(super) fn common(self, vendors: &[&[u8]], connection: &Connection, cisco_unity: bool) -> Vec<Vec<u8>> {
        let fragmentation = connection.fragmentation;
        let mut common = Vec::new();
        // A client reads the attributes of Unity from a server that announces them.
        if cisco_unity && self.unity && !connection.pools.is_empty() {
            common.push(vendor::UNITY.to_vec());
        }
        if self.fragments && fragmentation != Fragmentation::No {
            common.push(Self::fragmentation());
        }
        if self.xauth {
            common.push(vendor::XAUTH.to_vec());
        }
        if self.dpd {
            common.push(vendor::DPD.to_vec());
        }
        let known = [vendor::NAT_T, vendor::NAT_T_DRAFT_03, vendor::NAT_T_DRAFT_02];
        common.extend(known.iter().find(|id| vendors.contains(&&id[..])).map(|id| id.to_vec()));
        common
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_covers_what_follows_it_without_padding() {
        let (first, rest) = payloads(|chain| {
            chain.raw(PayloadType::NONCE_V1, &[7; 16]);
        });
        let mut body = with_hash(&[1; 20], first, &rest);
        body.extend([0; 5]);
        let parts = Parts::read(PayloadType::HASH_V1, &body).expect("payloads");
        assert_eq!((parts.hash, parts.hashed), (Some(&[1; 20][..]), Some(&rest[..])));
        // A hash in another place covers nothing.
        let (first, body) = payloads(|chain| {
            chain.raw(PayloadType::NONCE_V1, &[7; 16]).raw(PayloadType::HASH_V1, &[1; 20]);
        });
        assert_eq!(Parts::read(first, &body).expect("payloads").hashed, None);
        let alone = with_hash(&[1; 20], PayloadType::NONE, &[]);
        assert_eq!(Parts::read(PayloadType::HASH_V1, &alone).expect("payloads").hashed, Some(&[][..]));
    }

    #[test]
    fn payloads_that_occur_once_are_not_repeated() {
        let twice = |kind, body: &[u8]| {
            let (first, bytes) = payloads(|chain| {
                chain.raw(kind, body).raw(kind, body);
            });
            Parts::read(first, &bytes).is_err()
        };
        for kind in [PayloadType::SA_V1, PayloadType::KE_V1, PayloadType::NONCE_V1, PayloadType::HASH_V1] {
            assert!(twice(kind, &[0; 16]), "{kind}");
        }
        assert!(!twice(PayloadType::VENDOR_V1, &[0; 16]) && !twice(PayloadType::ID_V1, &[0; 16]));
        for (len, fits) in [(7, false), (8, true), (256, true), (257, false)] {
            let (first, bytes) = payloads(|chain| {
                chain.raw(PayloadType::NONCE_V1, &vec![1; len]);
            });
            assert_eq!(Parts::read(first, &bytes).is_ok(), fits, "{len}");
        }
    }

    #[test]
    fn vendor_ids_are_features() {
        assert_eq!(Features::of(&[]), Features::default());
        let dpd_other_version = [&vendor::DPD[..14], &[9, 9]].concat();
        let both = Features::of(&[&vendor::NAT_T_DRAFT_02, &vendor::NAT_T, &dpd_other_version]);
        assert_eq!(both, Features { nat_traversal: Some(NatTraversal::Rfc), dpd: true, ..Features::default() });
        assert_eq!(Features::of(&[&vendor::NAT_T_DRAFT_03]).nat_traversal, Some(NatTraversal::Draft));
        let sent: [&[u8]; 2] = [&vendor::NAT_T_DRAFT_02, &[1; 8]];
        let connection = crate::testkit::connection_v1(1, 2);
        let with_fragments = |fragmentation| Connection { fragmentation, ..connection.clone() };
        assert_eq!(Features::of(&sent).common(&sent, &connection, false), [vendor::NAT_T_DRAFT_02]);
        let with = |flags: &[u8]| [&vendor::FRAGMENTATION[..], flags].concat();
        for (flags, takes) in
            [(&[0x80, 0, 0, 0][..], true), (&[0xc0, 0, 0, 0], true), (&[0x40, 0, 0, 0], false), (&[], false)]
        {
            assert_eq!(Features::of(&[&with(flags)]).fragments, takes, "{flags:?}");
        }
        let fragments = Features { fragments: true, ..Features::default() };
        assert_eq!(fragments.common(&[], &with_fragments(Fragmentation::Accept), false), [with(&[0x80, 0, 0, 0])]);
        assert!(fragments.common(&[], &with_fragments(Fragmentation::No), false).is_empty());
        // Unity, which only a server with addresses to give announces.
        let (unity, pools) = (Features::of(&[&vendor::UNITY]), vec!["pool".to_owned()]);
        let server = Connection { pools, ..connection.clone() };
        assert_eq!(unity.common(&[], &server, true), [vendor::UNITY]);
        assert!(unity.common(&[], &server, false).is_empty() && unity.common(&[], &connection, true).is_empty());
        let client = Connection { vips: vec![[0, 0, 0, 0].into()], ..connection };
        for (of, cisco_unity, used) in [(&client, true, true), (&client, false, false), (&server, false, true)] {
            assert_eq!(unity.for_client(of, cisco_unity).unity, used);
        }
    }
}
