//! Request ids: numbers by which clients of the control socket know the SAs of a child section and
//! a peer.
//!
//! A number stays over rekeying and reauthentication, and a trap shares it with the SAs of the
//! section's first peer, as in strongSwan. `reqid` of the configuration takes precedence.

use std::collections::HashMap;

use ike::config::{ChildConfig, Connection};
use ike::identity::Identity;

/// Sections remembered without any SA; when there are more, their numbers are given up.
const IDLE_SECTIONS_MAX: usize = 16_384;

/// Number of each section and of each further peer of a section.
#[derive(Default)]
pub(crate) struct Reqids {
    sections: HashMap<(String, String), Section>,
    last: u32,
}

/// Peers of a section.
struct Section {
    /// Of the trap, and of one peer.
    first: u32,
    /// Peer that has the first number, also after its SAs ended.
    owner: Option<Identity>,
    peers: HashMap<Identity, Peer>,
}

struct Peer {
    reqid: u32,
    sas: usize,
}

fn key(connection: &Connection, child: &ChildConfig) -> (String, String) {
    (connection.name.clone(), child.name.clone())
}

impl Reqids {
    /// Number of a section with an installed policy.
    pub(super) fn of_policy(&mut self, connection: &Connection, child: &ChildConfig) -> u32 {
        if child.reqid != 0 {
            return child.reqid;
        }
        self.section(connection, child).first
    }

    /// Number of a section for a listing; 0 without policy or SA.
    pub(crate) fn of_section(&self, connection: &Connection, child: &ChildConfig) -> u32 {
        match child.reqid {
            0 => self.sections.get(&key(connection, child)).map_or(0, |section| section.first),
            reqid => reqid,
        }
    }

    /// Number of a further SA with a peer.
    pub(super) fn begin(&mut self, connection: &Connection, child: &ChildConfig, peer: &Identity) -> u32 {
        if child.reqid != 0 {
            return child.reqid;
        }
        let next = self.last.wrapping_add(1).max(1);
        let section = self.section(connection, child);
        if !section.peers.contains_key(peer) {
            // The first number is free while no SA has it; its last peer gets it back.
            let is_free =
                section.owner.as_ref().is_none_or(|owner| owner == peer || !section.peers.contains_key(owner));
            let reqid = if is_free { section.first } else { next };
            if is_free {
                section.owner = Some(peer.clone());
            }
            section.peers.insert(peer.clone(), Peer { reqid, sas: 0 });
            self.last = self.last.max(reqid);
        }
        let peers = &mut self.section(connection, child).peers;
        peers.get_mut(peer).map_or(next, |known| {
            known.sas += 1;
            known.reqid
        })
    }

    /// An SA with a peer is gone.
    pub(super) fn end(&mut self, connection: &Connection, child: &ChildConfig, peer: &Identity) {
        // A configured number is not counted. Another SA of the section may have been, before a
        // reload.
        if child.reqid != 0 {
            return;
        }
        let Some(section) = self.sections.get_mut(&key(connection, child)) else { return };
        let Some(known) = section.peers.get_mut(peer) else { return };
        known.sas -= 1;
        if known.sas == 0 {
            section.peers.remove(peer);
        }
    }

    fn section(&mut self, connection: &Connection, child: &ChildConfig) -> &mut Section {
        if self.sections.len() >= IDLE_SECTIONS_MAX && !self.sections.contains_key(&key(connection, child)) {
            self.sections.retain(|_, section| !section.peers.is_empty());
        }
        let last = &mut self.last;
        self.sections.entry(key(connection, child)).or_insert_with(|| {
            *last = last.wrapping_add(1).max(1);
            Section { first: *last, owner: None, peers: HashMap::new() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(text: &str) -> Identity {
        Identity::parse(text).unwrap()
    }

    #[test]
    fn a_number_stays_over_rekeying_and_reauthentication() {
        let (mut reqids, site) = (Reqids::default(), Connection::new("site"));
        let (net, lab, sun) = (ChildConfig::new("net"), ChildConfig::new("lab"), identity("sun"));
        let trap = reqids.of_policy(&site, &net);
        assert_eq!((trap, reqids.of_section(&site, &net), reqids.of_section(&site, &lab)), (1, 1, 0));
        // Rekeying: the successor comes first. Reauthentication, break before make: it comes after.
        assert_eq!(reqids.begin(&site, &net, &sun), trap);
        assert_eq!(reqids.begin(&site, &net, &sun), trap);
        reqids.end(&site, &net, &sun);
        reqids.end(&site, &net, &sun);
        assert_eq!(reqids.begin(&site, &net, &sun), trap);
        assert_eq!((reqids.begin(&site, &lab, &sun), reqids.of_policy(&site, &lab)), (2, 2));
        let set = ChildConfig { reqid: 77, ..ChildConfig::new("set") };
        assert_eq!((reqids.begin(&site, &set, &sun), reqids.of_policy(&site, &set)), (77, 77));
    }

    #[test]
    fn peers_of_a_section_have_numbers_of_their_own() {
        let (mut reqids, rw, net) = (Reqids::default(), Connection::new("rw"), ChildConfig::new("net"));
        let (carol, dave) = (identity("carol"), identity("dave"));
        assert_eq!((reqids.begin(&rw, &net, &carol), reqids.begin(&rw, &net, &dave)), (1, 2));
        reqids.end(&rw, &net, &carol);
        // Carol left, so the number of the section is free; she has it again when she returns
        // first.
        assert_eq!(reqids.begin(&rw, &net, &carol), 1);
        reqids.end(&rw, &net, &carol);
        reqids.end(&rw, &net, &dave);
        assert_eq!((reqids.begin(&rw, &net, &dave), reqids.begin(&rw, &net, &carol)), (1, 3));
    }

    #[test]
    fn a_number_of_the_configuration_frees_no_other() {
        let (mut reqids, rw, net) = (Reqids::default(), Connection::new("rw"), ChildConfig::new("net"));
        let set = ChildConfig { reqid: 77, ..ChildConfig::new("net") };
        let (carol, dave) = (identity("carol"), identity("dave"));
        assert_eq!(reqids.begin(&rw, &net, &carol), 1);
        // After a reload, rekeyed and back.
        assert_eq!(reqids.begin(&rw, &set, &carol), 77);
        reqids.end(&rw, &set, &carol);
        assert_eq!(reqids.begin(&rw, &net, &dave), 2, "the first one is in use");
    }

    #[test]
    fn sections_without_sas_are_bounded() {
        let (mut reqids, site, sun) = (Reqids::default(), Connection::new("site"), identity("sun"));
        reqids.begin(&site, &ChildConfig::new("kept"), &sun);
        for i in 0..2 * IDLE_SECTIONS_MAX {
            reqids.of_policy(&site, &ChildConfig::new(i.to_string()));
        }
        assert!(reqids.sections.len() <= IDLE_SECTIONS_MAX);
        assert_eq!(reqids.of_section(&site, &ChildConfig::new("kept")), 1);
    }
}
