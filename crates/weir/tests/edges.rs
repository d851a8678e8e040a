//! Which crate may depend on which: the compiler forbids what a crate cannot name, and this test
//! keeps the manifests from letting it (docs/ARCHITECTURE.md).

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Allowed edges between the crates of the workspace; everything points down. A new crate gets
/// its row here first.
const INSIDE: &[(&str, &[&str])] = &[
    ("weir-wire", &[]),
    ("weir-crypto", &["weir-wire"]),
    ("weir-ipsec", &["weir-wire", "weir-crypto"]),
    ("weir-ike", &["weir-wire", "weir-crypto"]),
    ("weir-dataplane", &["weir-wire", "weir-crypto", "weir-ipsec"]),
    ("weir-gateway", &["weir-wire", "weir-crypto", "weir-ipsec", "weir-ike", "weir-dataplane"]),
    // Not the gateway: a measurement of the data plane must not need the daemon it measures.
    // The sans-IO endpoint is measured like the path: alone, in memory.
    ("weir-lab", &["weir-wire", "weir-crypto", "weir-ipsec", "weir-ike", "weir-dataplane"]),
    ("weir", &["weir-gateway", "weir-lab"]),
    ("weir-sim", &["weir-wire", "weir-crypto", "weir-ike"]),
];

/// All that the crates without I/O may use from outside. Nothing in these lists can read a clock,
/// start a thread or open a socket; clippy.toml beside each crate forbids what std offers.
const OUTSIDE: &[(&str, &[&str])] = &[
    ("weir-wire", &["thiserror", "zerocopy"]),
    ("weir-ipsec", &["arrayvec", "foldhash", "hashbrown", "thiserror", "zerocopy", "zeroize"]),
    // rand_chacha is seeded by whoever makes it, and only in the feature for tests of other crates.
    ("weir-ike", &["rand_chacha", "rand_core", "subtle", "thiserror", "zeroize"]),
];

/// (crate, what it depends on), without dependencies of tests.
type Edge = (String, String);

fn edges() -> (BTreeSet<String>, Vec<Edge>) {
    let metadata = MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let crates = metadata.packages.iter().map(|p| p.name.to_string()).collect();
    let edges = metadata
        .packages
        .iter()
        .flat_map(|p| p.dependencies.iter().map(move |d| (p, d)))
        .filter(|(_, d)| d.kind != DependencyKind::Development)
        .map(|(p, d)| (p.name.to_string(), d.name.clone()))
        .collect();
    (crates, edges)
}

/// What is wrong with these edges, one line each.
fn faults(crates: &BTreeSet<String>, edges: &[Edge]) -> Vec<String> {
    let row = |table: &'static [(&str, &'static [&str])], name: &str| {
        table.iter().find(|(from, _)| *from == name).map(|(_, to)| *to)
    };
    let unknown = crates
        .iter()
        .filter(|name| row(INSIDE, name).is_none())
        .map(|name| format!("{name} has no row in INSIDE: say what it may depend on"));
    let forbidden = edges.iter().filter_map(|(from, to)| {
        let allowed = if crates.contains(to) { row(INSIDE, from).unwrap_or(&[]) } else { row(OUTSIDE, from)? };
        (!allowed.contains(&to.as_str())).then(|| format!("{from} must not depend on {to}"))
    });
    unknown.chain(forbidden).collect()
}

#[test]
fn every_edge_of_the_workspace_is_allowed() {
    let (crates, edges) = edges();
    assert!(crates.contains("weir-wire") && edges.len() > 20, "cargo metadata shows too little: {crates:?}");
    assert_eq!(faults(&crates, &edges), Vec::<String>::new());
}

#[test]
fn forbidden_edges_are_found() {
    let crates: BTreeSet<String> = INSIDE.iter().map(|(name, _)| (*name).to_string()).collect();
    let fault = |from: &str, to: &str| !faults(&crates, &[(from.to_string(), to.to_string())]).is_empty();
    assert!(fault("weir-wire", "weir-crypto"));
    assert!(fault("weir-ipsec", "weir-ike"));
    assert!(fault("weir-ike", "weir-ipsec"));
    assert!(fault("weir-lab", "weir-gateway"));
    assert!(fault("weir-dataplane", "weir-gateway"));
    for system in ["tokio", "socket2", "libc", "rustix", "chrono", "rand"] {
        assert!(fault("weir-wire", system) && fault("weir-ipsec", system), "{system}");
    }
    assert!(!fault("weir-dataplane", "socket2") && !fault("weir-ipsec", "weir-crypto"));
    assert_eq!(faults(&["weir-new".to_string()].into(), &[]).len(), 1);
}
