//! Connections that are loaded again while their IKE SA is up.

use super::super::*;
use super::{SECOND, check_up, initiate, pair};

/// The connection of a host as it is loaded, changed.
fn change(net: &mut Net, host: usize, change: impl FnOnce(&mut Connection)) {
    let mut connection = (*net.hosts[host].endpoint.connections()[0]).clone();
    change(&mut connection);
    net.load(host, vec![connection]);
}

fn remote(child: &mut Arc<ChildConfig>, add: &str) {
    Arc::make_mut(child).remote_ts.push(ts(add));
}

fn local(child: &mut Arc<ChildConfig>, add: &str) {
    Arc::make_mut(child).local_ts.push(ts(add));
}

#[test]
fn new_selectors_are_negotiated_on_the_live_ike_sa() {
    let mut net = pair(91, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let ikes = [net.hosts[0].up(), net.hosts[1].up()];
    change(&mut net, 0, |connection| remote(&mut connection.children[0], "10.22.0.0/16"));
    change(&mut net, 1, |connection| local(&mut connection.children[0], "10.22.0.0/16"));
    net.run(SECOND);
    assert_eq!(net.hosts[0].live().count(), 1, "it lives until something needs more");
    let packet = (ts("10.1.0.1").resolve(addr(1)), ts("10.22.0.1").resolve(addr(1)));
    let now = net.now;
    net.hosts[0].endpoint.acquire(now, "1-2", "net", Some(packet), None);
    net.run(SECOND);
    assert_eq!([net.hosts[0].up(), net.hosts[1].up()], ikes, "no other IKE SA");
    for (host, of) in
        [(0, |child: &Installed| child.sa.remote_ts.clone()), (1, |child: &Installed| child.sa.local_ts.clone())]
            as [(usize, fn(&Installed) -> Vec<wire::TrafficSelector>); 2]
    {
        let newest = net.hosts[host].live().last().expect("a child");
        let ranges: Vec<String> = of(newest).iter().map(|ts| ts.addrs.to_string()).collect();
        assert!(
            ranges.contains(&"10.22.0.0/16".to_owned()) && ranges.contains(&"10.2.0.0/16".to_owned()),
            "{ranges:?}"
        );
    }
}

#[test]
fn children_start_and_end_with_the_file() {
    let mut net = pair(92, |_, connection| Arc::make_mut(&mut connection.children[0]).start_action.start = false);
    initiate(&mut net);
    net.run(SECOND);
    let ikes = net.hosts[0].up();
    let start = StartAction { start: true, trap: false };
    let other = |start_action, local: &str, remote: &str| {
        Arc::new(ChildConfig { start_action, ..child("other", local, remote) })
    };
    change(&mut net, 1, |connection| {
        connection.children.push(other(StartAction::default(), "10.32.0.0/16", "10.31.0.0/16"))
    });
    change(&mut net, 0, |connection| connection.children.push(other(start, "10.31.0.0/16", "10.32.0.0/16")));
    net.run(SECOND);
    let names = |net: &Net| net.hosts[0].live().map(|child| child.sa.config.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&net), ["net", "other"]);
    // A changed child that is to start is negotiated again.
    change(&mut net, 1, |connection| local(&mut connection.children[1], "10.33.0.0/16"));
    change(&mut net, 0, |connection| remote(&mut connection.children[1], "10.33.0.0/16"));
    net.run(SECOND);
    assert_eq!(names(&net), ["net", "other"]);
    assert_eq!(net.hosts[0].live().last().expect("a child").sa.remote_ts.len(), 2);
    // The same again changes nothing.
    let before: Vec<ChildId> = net.hosts[0].live().map(|child| child.sa.id).collect();
    change(&mut net, 0, |connection| connection.dpd_delay = 30 * SECOND);
    net.run(SECOND);
    assert_eq!(net.hosts[0].live().map(|child| child.sa.id).collect::<Vec<_>>(), before);
    // A removed one ends, at both ends; the IKE SA stays.
    change(&mut net, 0, |connection| connection.children.truncate(1));
    net.run(SECOND);
    assert_eq!(names(&net), ["net"]);
    assert_eq!(net.hosts[1].live().count(), 1);
    assert_eq!(net.hosts[0].up(), ikes);
}

/// One connection after the other leads to what all at once do, and the others stay as they are.
#[test]
fn a_connection_that_is_loaded_alone_changes_that_one() {
    let mut net = Net::new(170, 3);
    net.load(0, vec![connection(1, 2), connection(1, 3)]);
    net.load(1, vec![connection(2, 1)]);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let load = |net: &mut Net, connection: Connection| {
        let now = net.now;
        net.hosts[0].endpoint.load_one(now, Arc::new(connection));
        net.run(SECOND);
    };
    let names = |net: &Net| net.hosts[0].endpoint.connections().iter().map(|one| one.name.clone()).collect::<Vec<_>>();
    let pointers = |net: &Net| net.hosts[0].endpoint.connections().iter().map(Arc::as_ptr).collect::<Vec<_>>();
    // The same again changes nothing, whatever its pointer is.
    let before = pointers(&net);
    load(&mut net, connection(1, 3));
    assert_eq!(pointers(&net), before);
    // A new one with a trap, and one that is to start.
    let with = |name: &str, action: StartAction| Connection {
        name: name.to_owned(),
        children: vec![Arc::new(ChildConfig { start_action: action, ..child("net", "10.1.9.0/24", "10.2.0.0/16") })],
        ..connection(1, 3)
    };
    load(&mut net, with("trapped", StartAction { trap: true, start: false }));
    assert_eq!((names(&net).len(), net.hosts[0].traps.len()), (3, 1));
    assert_eq!(net.hosts[0].up().len(), 1);
    // In place of one of the same name: its trap goes, its IKE SA follows.
    load(&mut net, with("trapped", StartAction { trap: false, start: true }));
    assert_eq!((names(&net), net.hosts[0].traps.len()), (vec!["1-2".to_owned(), "1-3".into(), "trapped".into()], 0));
    assert!(net.hosts[0].log(Level::Info).contains("initiating the IKE SA of 'trapped'"));
    let mut named = connection(1, 2);
    named.remote_addrs = vec![crate::config::Host::Name("gw2".into())];
    load(&mut net, named);
    assert_eq!(net.hosts[0].endpoint.unresolved_host(&net.hosts[0].endpoint.connections()[2].clone()), None);
    assert_eq!(net.hosts[0].up().len(), 1, "the IKE SA goes on: {}", net.hosts[0].log(Level::Info));
    // And out again: its trap goes, its IKE SA stays.
    load(&mut net, with("trapped", StartAction { trap: true, start: false }));
    assert_eq!(net.hosts[0].traps.len(), 1);
    let now = net.now;
    net.hosts[0].endpoint.unload_one(now, "trapped");
    net.hosts[0].endpoint.unload_one(now, "nothing of the kind");
    net.run(SECOND);
    assert_eq!((names(&net), net.hosts[0].traps.len()), (vec!["1-3".to_owned(), "1-2".into()], 0));
}
