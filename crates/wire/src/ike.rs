//! Messages of IKEv2 (RFC 7296 and its extensions) and IKEv1 (RFC 2407 to 2409).
//!
//! A received datagram goes through [`Header::parse`] and [`Payloads`], which look at structure
//! only; then each payload's body through its view. A view borrows the datagram; nothing is copied,
//! and what a peer may repeat is read by iterators that stop at a named bound. A message is written
//! with [`begin_message`], a [`Chain`] of payloads and [`finish_message`] into the caller's buffer.

mod attribute;
mod body;
mod emit;
mod header;
mod numbers;
mod payload;
mod sa;
mod selectors;
pub mod v1;

pub use attribute::{Attribute, AttributeValue, Attributes, MAX_ATTRIBUTES};
pub use body::{Auth, Cert, CertReq, Cfg, CfgAttributes, Delete, Eap, Id, Ke, MAX_DELETED_SPIS, Notify, Skf};
pub use emit::{Chain, begin_message, finish_message};
pub use header::{Header, HeaderFields};
pub use numbers::{
    AuthMethodId, CertEncoding, CfgAttr, CfgType, CodePoints, ExchangeType, HashId, IdType, NotifyType, PayloadType,
    ProtocolId, TransformType, TsType,
};
pub use payload::{MAX_PAYLOADS, Payloads, RawPayload};
pub use sa::{MAX_PROPOSALS, MAX_TRANSFORMS, Proposal, ProposalOut, Proposals, SaPayload, Transform, Transforms};
pub use selectors::{Ts, TsSelectors};

use crate::ParseError;

/// Splits `N` bytes from the front of `bytes`, a part of `what`.
fn take<'a, const N: usize>(what: &'static str, bytes: &'a [u8]) -> Result<(&'a [u8; N], &'a [u8]), ParseError> {
    bytes.split_first_chunk().ok_or(ParseError::Truncated { what, need: N, have: bytes.len() })
}

/// Splits `len` bytes from the front of `bytes`, a part of `what`.
fn take_slice<'a>(what: &'static str, bytes: &'a [u8], len: usize) -> Result<(&'a [u8], &'a [u8]), ParseError> {
    bytes.split_at_checked(len).ok_or(ParseError::Truncated { what, need: len, have: bytes.len() })
}

#[cfg(test)]
mod tests;
