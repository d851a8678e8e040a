//! Messages of IKE_AUTH, as far as both sides read them in the same manner.

use wire::ParseError;
use wire::ike::{
    Auth, AuthMethodId, Cert, CertEncoding, Cfg, CfgType, Eap, Id, Notify, NotifyType, PayloadType, Payloads,
};

use crate::error::{IkeError, Unsupported};
use crate::identity::{IdPattern, Identity};

/// CERT payloads of one message: a longer path is not plausible.
const CERTS_MAX: usize = 16;
/// Bytes of them all.
const CERT_BYTES_MAX: usize = 64 * 1024;
/// Bytes of an identity.
const ID_MAX: usize = 4096;

/// Method of EAP-TLS (RFC 5216): authenticates both ends and makes a key.
pub(super) const EAP_TLS: u8 = 13;
/// EAP packets of one conversation: fragments of a TLS handshake with long certificates are some
/// dozens.
pub(super) const EAP_PACKETS_MAX: u32 = 200;
/// Identity and Notification, which are not methods.
pub(super) const EAP_NOT_METHODS: [u8; 2] = [1, 2];

/// An ID payload.
#[derive(Clone)]
pub(super) struct IdPayload {
    pub(super) id: Identity,
    /// The body as received: that is what AUTH covers.
    pub(super) body: Vec<u8>,
}

/// Payloads of IKE_AUTH for authentication. Payloads of the Child SA are parsed elsewhere.
#[derive(Default)]
pub(super) struct AuthParts<'a> {
    pub(super) id_i: Option<IdPayload>,
    pub(super) id_r: Option<IdPayload>,
    pub(super) certs: Vec<(CertEncoding, Vec<u8>)>,
    pub(super) auth: Option<(AuthMethodId, Vec<u8>)>,
    pub(super) eap: Option<Eap<'a>>,
    pub(super) cfg: Option<Cfg<'a>>,
    pub(super) has_sa: bool,
    /// At most `wire::ike::MAX_PAYLOADS`.
    pub(super) notifies: Vec<Notify<'a>>,
}

impl<'a> AuthParts<'a> {
    /// Reads every payload. An error names the Notify of the response.
    pub(super) fn read(payloads: Payloads<'a>) -> Result<Self, IkeError> {
        let mut parts = Self::default();
        let mut cert_bytes = 0;
        for payload in payloads {
            let payload = payload?;
            if payload.kind == PayloadType::CERT {
                cert_bytes += payload.body.len();
                if parts.certs.len() >= CERTS_MAX || cert_bytes > CERT_BYTES_MAX {
                    return Err(IkeError::violation("too many certificates in one message"));
                }
            }
            // Only an unknown payload type with the critical flag is an error (RFC 7296 §2.5).
            if payload.critical && !payload.kind.is_base() {
                return Err(Unsupported::CriticalPayload(payload.kind).into());
            }
            parts.take(payload.kind, payload.body)?;
        }
        Ok(parts)
    }

    fn take(&mut self, kind: PayloadType, body: &'a [u8]) -> Result<(), ParseError> {
        match kind {
            PayloadType::IDi => once(&mut self.id_i, id(body)?),
            PayloadType::IDr => once(&mut self.id_r, id(body)?),
            PayloadType::CERT => {
                let cert = Cert::parse(body)?;
                self.certs.push((cert.encoding, cert.data.to_vec()));
                Ok(())
            }
            PayloadType::AUTH => {
                let auth = Auth::parse(body)?;
                once(&mut self.auth, (auth.method, auth.data.to_vec()))
            }
            PayloadType::EAP => once(&mut self.eap, Eap::parse(body)?),
            PayloadType::CP => once(&mut self.cfg, Cfg::parse(body)?),
            PayloadType::SA => {
                self.has_sa = true;
                Ok(())
            }
            PayloadType::NOTIFY => {
                self.notifies.push(Notify::parse(body)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The data of the first notify of a kind.
    pub(super) fn notify(&self, kind: NotifyType) -> Option<&'a [u8]> {
        self.notifies.iter().find(|notify| notify.kind == kind).map(|notify| notify.data)
    }

    pub(super) fn has(&self, kind: NotifyType) -> bool {
        self.notify(kind).is_some()
    }

    /// The first error notify.
    pub(super) fn error(&self) -> Option<NotifyType> {
        self.notifies.iter().map(|notify| notify.kind).find(|kind| kind.is_error())
    }

    /// Requested or assigned configuration.
    pub(super) fn cfg(&self, kind: CfgType) -> Option<&Cfg<'a>> {
        self.cfg.as_ref().filter(|cfg| cfg.kind == kind)
    }
}

fn id(body: &[u8]) -> Result<IdPayload, ParseError> {
    let id = Id::parse(body)?;
    if id.data.len() > ID_MAX {
        return Err(ParseError::Malformed { what: "ID payload", why: "above 4096 bytes" });
    }
    Ok(IdPayload { id: Identity { kind: id.kind, data: id.data.to_vec() }, body: body.to_vec() })
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), ParseError> {
    // With two AUTH or ID payloads, the verified one could differ from the one that is used.
    if place.replace(value).is_some() {
        return Err(ParseError::Malformed { what: "IKE_AUTH", why: "a payload that may occur once occurs twice" });
    }
    Ok(())
}

/// PPK_IDENTITY: type (1 opaque, 2 fixed) and the name (RFC 8784 §5.1).
pub(super) fn ppk_identity(name: &Identity) -> Vec<u8> {
    const FIXED: u8 = 2;
    [&[FIXED][..], &name.data].concat()
}

/// The name in PPK_IDENTITY; names on the wire have no type.
pub(super) fn parse_ppk_identity(data: &[u8]) -> Option<Identity> {
    let (_, name) = data.split_first().filter(|(_, name)| !name.is_empty() && name.len() <= ID_MAX)?;
    Some(Identity { kind: wire::ike::IdType::KEY_ID, data: name.to_vec() })
}

/// True when `ppk_id` of a connection admits a name from the wire, which is read as text because it
/// has no type.
pub(super) fn admits_ppk(wanted: &IdPattern, name: &Identity) -> bool {
    let as_text = std::str::from_utf8(&name.data).ok().and_then(|text| Identity::parse(text).ok());
    wanted.exact().is_some_and(|wanted| wanted.data == name.data)
        || wanted.matches(name).is_some()
        || as_text.is_some_and(|id| wanted.matches(&id).is_some())
}

#[cfg(test)]
mod tests {
    use wire::ike::{Chain, IdType};

    use super::*;

    fn read(write: impl FnOnce(&mut Chain<'_>)) -> Option<NotifyType> {
        let mut bytes = Vec::new();
        let mut chain = Chain::new(&mut bytes);
        write(&mut chain);
        let first = chain.first();
        AuthParts::read(Payloads::new(first, &bytes)).err().map(|error| error.notify())
    }

    #[test]
    fn what_a_peer_repeats_has_a_bound() {
        let certs = |count: usize, len: usize| {
            read(|chain| {
                (0..count).for_each(|_| {
                    chain.cert(CertEncoding::X509_SIGNATURE, &vec![0; len]);
                })
            })
        };
        assert_eq!(certs(CERTS_MAX, 1000), None);
        // AUTH and the payloads of the Child SA follow the certificates (RFC 7296 §1.2).
        let certs_and_auth = |count: usize| {
            read(|chain| {
                (0..count).for_each(|_| {
                    chain.cert(CertEncoding::X509_SIGNATURE, b"certificate");
                });
                chain.auth(AuthMethodId::PSK, b"a");
            })
        };
        assert_eq!(
            (certs_and_auth(CERTS_MAX), certs_and_auth(CERTS_MAX + 1)),
            (None, Some(NotifyType::INVALID_SYNTAX))
        );
        assert_eq!(certs(CERTS_MAX + 1, 10), Some(NotifyType::INVALID_SYNTAX));
        assert_eq!(certs(3, 30_000), Some(NotifyType::INVALID_SYNTAX));
        let ids = |len| {
            read(|chain| {
                chain.id(PayloadType::IDi, IdType::KEY_ID, &vec![0; len]);
            })
        };
        assert_eq!((ids(ID_MAX), ids(ID_MAX + 1)), (None, Some(NotifyType::INVALID_SYNTAX)));
        assert_eq!(
            read(|chain| {
                chain.auth(AuthMethodId::PSK, b"a").auth(AuthMethodId::PSK, b"b");
            }),
            Some(NotifyType::INVALID_SYNTAX)
        );
    }

    #[test]
    fn ppk_names_come_back() {
        let name = Identity { kind: IdType::FQDN, data: b"ppk@lab".to_vec() };
        assert_eq!(parse_ppk_identity(&ppk_identity(&name)).map(|name| name.data), Some(name.data));
        let admits = |pattern: &str, name: &str| {
            let name = Identity { kind: IdType::KEY_ID, data: name.as_bytes().to_vec() };
            admits_ppk(&IdPattern::parse(pattern).expect("a pattern"), &name)
        };
        for (pattern, name) in [
            ("%any", "anything"),
            ("ppk@lab", "ppk@lab"),
            ("*@strongswan.org", "carol@strongswan.org"),
            ("*.lab", "a.lab"),
            ("keyid:7", "7"),
        ] {
            assert!(admits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("ppk@lab", "other@lab"), ("*@strongswan.org", "carol@weir.test"), ("*.lab", "lab")] {
            assert!(!admits(pattern, name), "{pattern} {name}");
        }
        assert_eq!(parse_ppk_identity(&[2]), None);
        assert_eq!(parse_ppk_identity(&[]), None);
    }
}
