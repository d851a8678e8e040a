//! Capabilities and related privileges.

use std::collections::BTreeSet;

use rustix::fs::Gid;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{self, CapabilitySet, CapabilitySets};

use super::Part;
use crate::account::User;

/// Needed at run time for: routes, addresses, nftables, marks on sockets; ICMP and sockets of
/// connections that a reload adds; ports below 1024 of those.
const NEEDED: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW).union(CapabilitySet::NET_BIND_SERVICE);
/// Names of [`NEEDED`], for people.
const NAMES: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
    (CapabilitySet::NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"),
];

/// Makes this thread one of a user without capabilities.
pub(super) fn fall_to(user: &User) -> std::io::Result<()> {
    drop_bounding(CapabilitySet::empty());
    user.fall_to()
}

/// Drops every capability; forbids set-user-ID programs, core dumps and the memory of this process
/// to others of its user.
pub(super) fn drop_all() -> std::io::Result<()> {
    drop_bounding(CapabilitySet::empty());
    let none = CapabilitySet::empty();
    thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    thread::set_no_new_privs(true)?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Keeps the capabilities that the daemon needs, also for programs that it starts without
/// confinement, and drops the rest.
pub(super) fn keep_needed() -> std::io::Result<()> {
    drop_bounding(NEEDED);
    let kept = thread::capabilities(None)?.permitted & NEEDED;
    thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    for (cap, _) in NAMES.iter().filter(|(cap, _)| kept.contains(*cap)) {
        thread::configure_capability_in_ambient_set(*cap, true)?;
    }
    Ok(thread::set_no_new_privs(true)?)
}

/// Requires CAP_SETPCAP. A process without it has few capabilities, and no_new_privs prevents it
/// from gaining more.
fn drop_bounding(kept: CapabilitySet) {
    for bit in 0..64 {
        let cap = CapabilitySet::from_bits_retain(1 << bit);
        if !kept.contains(cap) && thread::remove_capability_from_bounding_set(cap).is_err() {
            break;
        }
    }
}

/// Drops every capability that is not needed from every set, so that no child has it either;
/// forbids set-user-ID programs and core dumps, which would hold keys. `groups` are joined first: a
/// file may be given to them then.
pub(super) fn drop_all_but_needed(groups: &BTreeSet<u32>) -> Part {
    match try_drop(groups) {
        Ok(kept) => {
            let names: Vec<&str> = NAMES.iter().filter(|(cap, _)| kept.contains(*cap)).map(|(_, name)| *name).collect();
            Part::Full(if names.is_empty() { "no capabilities".into() } else { names.join(", ") })
        }
        Err(error) => Part::Absent(format!("cannot drop capabilities: {error}")),
    }
}

fn try_drop(groups: &BTreeSet<u32>) -> rustix::io::Result<CapabilitySet> {
    let had = thread::capabilities(None)?;
    join(groups);
    drop_bounding(NEEDED);
    let kept = had.permitted & NEEDED;
    // Not inheritable, and so not ambient: no program follows.
    let none = CapabilitySet::empty();
    thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })?;
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
