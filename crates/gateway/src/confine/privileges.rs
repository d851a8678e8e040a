//! Capabilities, and what goes with them.

use std::collections::BTreeSet;

use rustix::fs::Gid;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{self, CapabilitySet, CapabilitySets};

use super::Part;

/// What is done with them while running: routes and addresses by `ip`, marks on sockets; ICMP and sockets of
/// connections that a reload adds; ports below 1024 of those.
const NEEDED: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW).union(CapabilitySet::NET_BIND_SERVICE);
/// Names of [`NEEDED`], for people.
const NAMES: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
    (CapabilitySet::NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"),
];

/// Drops every capability that is not needed from every set, so that no child has it either; forbids set-user-ID
/// programs and core dumps, which would hold keys. `groups` are joined first: a file may be given to them then.
pub(super) fn drop_all_but_needed(groups: &BTreeSet<u32>) -> Part {
    match try_drop(groups) {
        Ok(kept) => {
            let names: Vec<&str> = NAMES.iter().filter(|(cap, _)| kept.contains(*cap)).map(|(_, name)| *name).collect();
            Part::Full(if names.is_empty() { "no capabilities".into() } else { names.join(", ") })
        }
        Err(error) => Part::Absent(format!("capabilities cannot be dropped: {error}")),
    }
}

fn try_drop(groups: &BTreeSet<u32>) -> rustix::io::Result<CapabilitySet> {
    let had = thread::capabilities(None)?;
    join(groups);
    // Needs CAP_SETPCAP; without it nobody here had much, and no_new_privs keeps it so.
    for bit in 0..64 {
        let cap = CapabilitySet::from_bits_retain(1 << bit);
        if !NEEDED.contains(cap) && thread::remove_capability_from_bounding_set(cap).is_err() {
            break;
        }
    }
    let kept = had.permitted & NEEDED;
    thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    let _ = thread::clear_ambient_capability_set();
    if kept.contains(CapabilitySet::NET_ADMIN) {
        // For `ip`, where this process is not root but was given capabilities.
        let _ = thread::configure_capability_in_ambient_set(CapabilitySet::NET_ADMIN, true);
    }
    thread::set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(kept)
}

/// Takes part in groups, as far as this process may.
fn join(groups: &BTreeSet<u32>) {
    let Ok(mut all) = rustix::process::getgroups() else { return };
    let more =
        groups.iter().map(|group| Gid::from_raw(*group)).filter(|group| !all.contains(group)).collect::<Vec<_>>();
    if !more.is_empty() {
        all.extend(more);
        if let Err(error) = thread::set_thread_groups(&all) {
            tracing::debug!(target: "control", "cannot join the groups of sockets: {error}");
        }
    }
}
