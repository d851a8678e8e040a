//! Connections that a responder may still choose.

use std::sync::Arc;

use crate::config::Connection;

/// Connections that are still possible, best first; never none. Only the peer's identity decides
/// between connections with the same addresses.
#[derive(Clone)]
pub(in crate::handshake) struct Candidates {
    best: Arc<Connection>,
    others: Vec<Arc<Connection>>,
}

impl Candidates {
    /// `None` for an empty list.
    pub(in crate::handshake) fn new(connections: impl IntoIterator<Item = Arc<Connection>>) -> Option<Self> {
        let mut connections = connections.into_iter();
        Some(Self { best: connections.next()?, others: connections.collect() })
    }

    /// The connection that was chosen.
    pub(super) fn only(connection: Arc<Connection>) -> Self {
        Self { best: connection, others: Vec::new() }
    }

    /// The first one.
    pub(in crate::handshake) fn best(&self) -> &Arc<Connection> {
        &self.best
    }

    /// The candidates after the first.
    pub(super) fn others(&self) -> &[Arc<Connection>] {
        &self.others
    }

    /// True when the choice is made.
    pub(super) fn is_single(&self) -> bool {
        self.others.is_empty()
    }

    /// All of them in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Connection>> {
        std::iter::once(&self.best).chain(&self.others)
    }

    /// True for one of them, not for another one with the same content.
    pub(super) fn contains(&self, connection: &Arc<Connection>) -> bool {
        self.iter().any(|candidate| Arc::ptr_eq(candidate, connection))
    }

    /// The candidates that `keep` accepts; `None` if it accepts none.
    pub(super) fn filtered(&self, keep: impl Fn(&Arc<Connection>) -> bool) -> Option<Self> {
        Self::new(self.iter().filter(|connection| keep(connection)).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_keeps_the_order_and_never_leaves_an_empty_list() {
        let connections: Vec<Arc<Connection>> = ["a", "b", "c"].map(|name| Arc::new(Connection::new(name))).into();
        let candidates = Candidates::new(connections.clone()).unwrap();
        let rest = candidates.filtered(|connection| connection.name != "a").unwrap();
        let names: Vec<&str> = rest.iter().map(|connection| &*connection.name).collect();
        assert_eq!((names, &*rest.best().name, rest.is_single()), (vec!["b", "c"], "b", false));
        assert!(candidates.filtered(|_| false).is_none() && Candidates::new([]).is_none());
        assert!(candidates.contains(&connections[2]) && !candidates.contains(&Arc::new(Connection::new("c"))));
    }
}
