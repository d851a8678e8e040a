//! Lines that report readiness, and the state to the service manager.

use ike::config::Connection;

use crate::config::Config;

/// Limit of connections listed in the line.
const NAMES_SHOWN: usize = 8;

/// Text such as `ready: 1 connection (moon: trap)`; parts that are zero are left out.
pub(crate) fn text<'a>(connections: impl Iterator<Item = &'a Connection>, config: &Config) -> String {
    let ike = connections.map(|connection| {
        let actions = connection.children.iter().map(|child| child.start_action);
        let (start, trap) = actions.fold((false, false), |all, one| (all.0 | one.start, all.1 | one.trap));
        (connection.name.as_str(), start, trap)
    });
    let psp = config.keyed.psp.iter().map(|peer| {
        let start = peer.children.iter().any(|child| child.start_action.start || child.start_action.trap);
        (peer.name.as_str(), start, false)
    });
    line(&ike.chain(psp).collect::<Vec<_>>(), config.sas.len(), config.policies.len())
}

/// The line for connections with their names, whether they start, whether they have traps.
fn line(connections: &[(&str, bool, bool)], sas: usize, policies: usize) -> String {
    let mut parts = Vec::new();
    if !connections.is_empty() {
        let named = connections.iter().take(NAMES_SHOWN).map(|(name, start, trap)| match (start, trap) {
            (true, true) => format!("{name}: trap|start"),
            (true, false) => format!("{name}: start"),
            (false, true) => format!("{name}: trap"),
            (false, false) => (*name).to_owned(),
        });
        let more = if connections.len() > NAMES_SHOWN { ", …" } else { "" };
        let names = named.collect::<Vec<_>>().join(", ");
        parts.push(format!("{} ({names}{more})", counted(connections.len(), "connection", "connections")));
    }
    if sas > 0 {
        parts.push(counted(sas, "manual SA", "manual SAs"));
    }
    if policies > 0 {
        parts.push(counted(policies, "policy", "policies"));
    }
    let parts = if parts.is_empty() { vec!["no connections".to_owned()] } else { parts };
    format!("ready: {}", parts.join(", "))
}

/// Text such as `2 IKE SAs, 3 Child SAs`; manual SAs only where there are some.
pub(crate) fn status(alive: bool, ike_sas: usize, child_sas: usize, manual: usize) -> String {
    let mut parts = vec![counted(ike_sas, "IKE SA", "IKE SAs"), counted(child_sas, "Child SA", "Child SAs")];
    if manual > 0 {
        parts.push(counted(manual, "manual SA", "manual SAs"));
    }
    if !alive {
        parts.push("NOT HEALTHY: a worker stopped or hangs".to_owned());
    }
    parts.join(", ")
}

pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_what_is_there() {
        assert_eq!(line(&[("moon", false, true)], 0, 0), "ready: 1 connection (moon: trap)");
        let two = [("moon", true, false), ("sun", false, false)];
        assert_eq!(line(&two, 1, 2), "ready: 2 connections (moon: start, sun), 1 manual SA, 2 policies");
        assert_eq!(line(&[], 0, 0), "ready: no connections");
        let many = [("a", false, false); NAMES_SHOWN + 1];
        assert!(line(&many, 0, 0).ends_with("a, …)"));
    }

    #[test]
    fn the_status_counts_sas_and_names_a_worker_that_hangs() {
        assert_eq!(status(true, 1, 2, 0), "1 IKE SA, 2 Child SAs");
        assert_eq!(
            status(false, 0, 0, 1),
            "0 IKE SAs, 0 Child SAs, 1 manual SA, NOT HEALTHY: a worker stopped or hangs"
        );
    }
}
