//! The major version of a message selects the code before anything else of it is read: no message
//! of one version changes an SA of the other, even with its SPIs.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use wire::ike::Header;

use super::stories::initiate;
use crate::config::Version;
use crate::output::Transmit;
use crate::testkit::*;

/// Host 2 has a connection of IKEv1 with host 1 and one of IKEv2 with host 3, both up.
fn both_versions() -> (Net, Vec<Transmit>) {
    let mut net = Net::new(30, 3);
    net.load(0, vec![connection_v1(1, 2)]);
    net.load(1, vec![connection_v1(2, 1), connection(2, 3)]);
    net.load(2, vec![connection(3, 2)]);
    let seen: Rc<RefCell<Vec<Transmit>>> = Rc::default();
    let all = Rc::clone(&seen);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        all.borrow_mut().push(datagram.clone());
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.hosts[2].endpoint.initiate(net.now, "3-2", Some("net"), 7).expect("an attempt");
    net.run(Duration::from_secs(3));
    assert_eq!(net.hosts[1].live().count(), 2);
    let seen = seen.borrow().clone();
    (net, seen)
}

/// SPIs, state and Child SAs of the IKE SAs of one version, and the tables of IKEv1.
fn state(host: &Host, version: Version) -> String {
    let sas = host.endpoint.ike_sas().filter(|sa| sa.version == version);
    let sas: Vec<String> = sas
        .map(|sa| {
            let children: Vec<_> = sa.children.iter().map(|child| (child.spi_in, child.spi_out, child.state)).collect();
            format!("{:?} {:?} {:?} {children:?}", sa.spis, sa.state, sa.path)
        })
        .collect();
    let of_v1 = |(name, _): &(&str, usize)| name.starts_with("v1_") == (version == Version::V1);
    let tables: Vec<_> = host.endpoint.tables().into_iter().filter(of_v1).collect();
    format!("{sas:?} {tables:?}")
}

/// Counters of a version, without that of messages of a version that no connection has.
fn counted(host: &Host, version: Version) -> usize {
    let of_v1 = |name: &&str| name.starts_with("ikev1_") == (version == Version::V1) && *name != "ike_version_refused";
    crate::counters().map(|(name, _)| name).filter(of_v1).map(|name| host.count(name)).sum()
}

#[test]
fn a_message_with_the_other_version_changes_no_sa_of_its_own() {
    for (sent_as, other) in [(Version::V1, Version::V2), (Version::V2, Version::V1)] {
        let (mut net, seen) = both_versions();
        let version = |one| if one == Version::V1 { Header::VERSION_1 } else { Header::VERSION_2 };
        // The datagrams of one version with all exchange types, flags of responses and requests,
        // and the number of the other version; the SPIs are those of an SA of the first one.
        let own: Vec<&Transmit> = seen.iter().filter(|message| message.datagram[17] == version(sent_as)).collect();
        assert!(own.len() >= 4);
        let before: Vec<_> = net.hosts.iter().map(|host| (state(host, sent_as), counted(host, sent_as))).collect();
        for message in own {
            for exchange in [2, 4, 5, 6, 32, 33, 34, 35, 36, 37, 43] {
                for flags in [0, 1, 8, 0x20, 0x28] {
                    let mut changed = message.clone();
                    changed.datagram[17..20].copy_from_slice(&[version(other), exchange, flags]);
                    net.inject(changed);
                    net.run(Duration::from_millis(1));
                }
            }
        }
        net.run(Duration::from_millis(20));
        let after: Vec<_> = net.hosts.iter().map(|host| (state(host, sent_as), counted(host, sent_as))).collect();
        assert_eq!(before, after, "{sent_as:?}");
    }
}

#[test]
fn the_spis_of_one_version_lead_to_no_sa_of_the_other() {
    // Every message of both versions goes on, with the SPIs of the SA of the other version.
    let (mut net, seen) = both_versions();
    let spis = |net: &Net, version| {
        let view = net.hosts[1].endpoint.ike_sas().find(|sa| sa.version == version).expect("an IKE SA");
        [view.spis.initiator.0, view.spis.responder.0].concat()
    };
    let before: Vec<_> = net.hosts.iter().map(|host| (state(host, Version::V1), state(host, Version::V2))).collect();
    for message in &seen {
        let own = if message.datagram[17] == Header::VERSION_1 { Version::V1 } else { Version::V2 };
        let other = if own == Version::V1 { Version::V2 } else { Version::V1 };
        let mut changed = message.clone();
        changed.datagram[..16].copy_from_slice(&spis(&net, other));
        net.inject(changed);
        net.run(Duration::from_millis(20));
    }
    let after: Vec<_> = net.hosts.iter().map(|host| (state(host, Version::V1), state(host, Version::V2))).collect();
    assert_eq!(before, after);
}

#[test]
fn a_message_of_an_unknown_version_reaches_neither() {
    let (mut net, seen) = both_versions();
    // A version above 2 is answered by IKEv2, whose counters move with that.
    let all = |net: &Net| -> Vec<_> {
        let of = |host: &Host| (state(host, Version::V1), counted(host, Version::V1), state(host, Version::V2));
        net.hosts.iter().map(of).collect()
    };
    let before = all(&net);
    for message in &seen {
        for version in [0x00, 0x30, 0xf0] {
            let mut changed = message.clone();
            changed.datagram[17] = version;
            net.inject(changed);
            net.run(Duration::from_millis(1));
        }
    }
    assert_eq!(before, all(&net));
    assert!(net.hosts[1].count("ike_version_refused") > 0);
}
