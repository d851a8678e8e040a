//! Proposals in strongSwan's syntax, and the check for weak algorithms.

use ike::proposal::{ChildProposal, ChildProtocol, IkeProposal};

use super::value::ValueError;

/// One item of `proposals`: `default` is several.
pub(crate) fn ike(text: &str, legacy: bool) -> Result<Vec<IkeProposal>, ValueError> {
    if text.eq_ignore_ascii_case("default") {
        return Ok(IkeProposal::defaults());
    }
    let proposal = IkeProposal::parse(text).map_err(|why| why.to_string())?;
    refuse_weak(proposal.weak(), legacy)?;
    Ok(vec![proposal])
}

/// One item of `esp_proposals`, `ah_proposals`, `eesp_proposals`.
pub(crate) fn child(protocol: ChildProtocol, text: &str, legacy: bool) -> Result<Vec<ChildProposal>, ValueError> {
    if text.eq_ignore_ascii_case("default") {
        return Ok(ChildProposal::defaults(protocol));
    }
    let proposal = ChildProposal::parse(protocol, text).map_err(|why| why.to_string())?;
    refuse_weak(proposal.weak(), legacy)?;
    Ok(vec![proposal])
}

/// Weak algorithms must be permitted explicitly.
pub(crate) fn refuse_weak(weak: Option<&str>, legacy: bool) -> Result<(), ValueError> {
    match weak {
        Some(weak) if !legacy => Err(format!(
            "'{weak}' is too weak to be used by default; remove it, or if the peer supports nothing better: \
             'allow_legacy = yes' in the connection"
        )
        .into()),
        _ => Ok(()),
    }
}
