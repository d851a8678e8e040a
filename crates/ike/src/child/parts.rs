//! The payloads of a message that negotiations, deletions and notifications are made of.

use wire::ParseError;
use wire::ike::{Delete, Ke, Notify, NotifyType, PayloadType, Payloads, SaPayload, Ts};

use crate::error::{IkeError, Unsupported};

/// A message taken apart. Payloads of authentication and configuration are passed over.
#[derive(Default)]
pub(crate) struct Parts<'a> {
    pub(crate) sa: Option<SaPayload<'a>>,
    pub(crate) ke: Option<Ke<'a>>,
    pub(crate) nonce: Option<&'a [u8]>,
    pub(crate) ts_i: Option<Ts<'a>>,
    pub(crate) ts_r: Option<Ts<'a>>,
    /// At most `wire::ike::MAX_PAYLOADS`, as the deletes.
    pub(crate) notifies: Vec<Notify<'a>>,
    pub(crate) deletes: Vec<Delete<'a>>,
}

/// Lengths of nonces (RFC 7296 §3.9).
const NONCE_BYTES: std::ops::RangeInclusive<usize> = 16..=256;

impl<'a> Parts<'a> {
    /// Reads every payload. An error names the Notify of the response.
    pub(crate) fn read(payloads: Payloads<'a>) -> Result<Self, IkeError> {
        let mut parts = Self::default();
        for payload in payloads {
            let payload = payload?;
            parts.take(payload.kind, payload.body)?;
            // The critical flag of a known payload type is ignored (RFC 7296 §3.2).
            if payload.critical && !is_known(payload.kind) {
                return Err(Unsupported::CriticalPayload(payload.kind).into());
            }
        }
        Ok(parts)
    }

    fn take(&mut self, kind: PayloadType, body: &'a [u8]) -> Result<(), ParseError> {
        match kind {
            PayloadType::SA => once(&mut self.sa, SaPayload::parse(body)?),
            PayloadType::KE => once(&mut self.ke, Ke::parse(body)?),
            PayloadType::NONCE if !NONCE_BYTES.contains(&body.len()) => malformed("nonce below 16 or above 256 bytes"),
            PayloadType::NONCE => once(&mut self.nonce, body),
            PayloadType::TSi => once(&mut self.ts_i, Ts::parse(body)?),
            PayloadType::TSr => once(&mut self.ts_r, Ts::parse(body)?),
            PayloadType::NOTIFY => {
                self.notifies.push(Notify::parse(body)?);
                Ok(())
            }
            PayloadType::DELETE => {
                self.deletes.push(Delete::parse(body)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The data of the first notify of a kind.
    pub(crate) fn notify(&self, kind: NotifyType) -> Option<&'a [u8]> {
        self.notifies.iter().find(|notify| notify.kind == kind).map(|notify| notify.data)
    }

    /// The first error notify.
    pub(crate) fn error(&self) -> Option<&Notify<'a>> {
        self.notifies.iter().find(|notify| notify.kind.is_error())
    }
}

fn malformed<T>(why: &'static str) -> Result<T, ParseError> {
    Err(ParseError::Malformed { what: "IKE message", why })
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), ParseError> {
    if place.replace(value).is_some() { malformed("a payload that may occur once occurs twice") } else { Ok(()) }
}

fn is_known(kind: PayloadType) -> bool {
    kind.is_base() || matches!(kind, PayloadType::SKF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ike::{Chain, ProtocolId};

    fn read(write: impl FnOnce(&mut Chain<'_>)) -> Result<usize, (NotifyType, Vec<u8>)> {
        let mut bytes = Vec::new();
        let mut chain = Chain::new(&mut bytes);
        write(&mut chain);
        let first = chain.first();
        let parts = Parts::read(Payloads::new(first, &bytes)).map_err(|error| (error.notify(), error.data()))?;
        Ok(parts.notifies.len())
    }

    #[test]
    fn what_may_occur_once_may_not_occur_twice() {
        let twice = read(|chain| {
            chain.nonce(&[1; 32]).nonce(&[2; 32]);
        });
        assert_eq!(twice, Err((NotifyType::INVALID_SYNTAX, vec![])));
        assert_eq!(
            read(|chain| {
                chain.nonce(&[1; 15]);
            }),
            Err((NotifyType::INVALID_SYNTAX, vec![]))
        );
        let notify = |chain: &mut Chain<'_>| {
            (0..3).for_each(|kind| {
                chain.notify(ProtocolId::NONE, &[], NotifyType(kind), &[]);
            });
        };
        assert_eq!(read(notify), Ok(3));
    }

    #[test]
    fn an_unknown_critical_payload_is_named() {
        let critical = |kind| {
            read(|chain| {
                chain.critical_payload(PayloadType(kind), |_| ());
            })
        };
        assert_eq!(critical(200), Err((NotifyType::UNSUPPORTED_CRITICAL_PAYLOAD, vec![200])));
        assert_eq!(critical(43), Ok(0));
        assert_eq!(
            read(|chain| {
                chain.raw(PayloadType(200), &[1]);
            }),
            Ok(0)
        );
    }
}
