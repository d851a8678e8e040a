//! Sizes of every table, for tests that check for leaks.

use rand_core::CryptoRng;

use super::Endpoint;

impl<R: CryptoRng> Endpoint<R> {
    /// Number of entries of each table that grows with IKE SAs, Child SAs, attempts or credential
    /// requests.
    pub fn tables(&self) -> Vec<(&'static str, usize)> {
        let names = &self.shared.names;
        let own = [
            ("sas", self.sas.len()),
            ("by_id", self.by_id.len()),
            ("by_connection", self.by_connection.len()),
            ("children", self.children.len()),
            ("half_open", self.half_open.len()),
            ("timers", self.timers.len()),
            ("later", self.later.len()),
            ("naming", self.naming.len()),
            ("awaiting", self.awaiting.len()),
            ("held", self.held.len()),
            ("retiring", self.retiring.len()),
            ("asked", self.asked.len()),
            ("child_spis", names.spis_in_use()),
            ("request_ids", names.request_ids.len()),
            ("peers", names.peers.len()),
            ("claims", names.claims.len()),
        ];
        own.into_iter().chain(self.v1.tables()).collect()
    }
}
