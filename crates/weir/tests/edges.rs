//! Which crate may depend on which: the compiler forbids what a crate cannot name, and this test
//! keeps the manifests from letting it (docs/ARCHITECTURE.md). The same for `unsafe`, by file.

use std::collections::BTreeSet;
use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Allowed edges between the crates of the workspace; everything points down. A new crate gets
/// its row here first.
const INSIDE: &[(&str, &[&str])] = &[
    ("weir-wire", &[]),
    ("weir-crypto", &["weir-wire"]),
    // An asynchronous engine of crypto, over the libraries of GPUs.
    ("weir-gpu", &["weir-crypto"]),
    ("weir-ipsec", &["weir-wire", "weir-crypto"]),
    ("weir-ike", &["weir-wire", "weir-crypto"]),
    // A protocol between a daemon and its administrator: it has nothing of either.
    ("weir-vici", &[]),
    ("weir-credentials", &["weir-wire", "weir-crypto", "weir-ike"]),
    // Certificates are issued by commands, not by the daemon, which does not depend on it.
    ("weir-pki", &["weir-crypto", "weir-credentials"]),
    ("weir-dataplane", &["weir-wire", "weir-crypto", "weir-ipsec"]),
    // The threads of the runner encrypt for workers, which takes the engines of crypto.
    ("weir-ports", &["weir-wire", "weir-crypto", "weir-ipsec", "weir-dataplane"]),
    (
        "weir-gateway",
        &[
            "weir-wire",
            "weir-crypto",
            "weir-ipsec",
            "weir-ike",
            "weir-credentials",
            "weir-dataplane",
            "weir-ports",
            "weir-vici",
        ],
    ),
    // Arithmetic on measured values, without anything that measures.
    ("weir-stats", &[]),
    ("weir-throughput", &["weir-stats"]),
    // Hosts, the programs on them and the systems under test: below everything that measures.
    ("weir-testbed", &["weir-wire", "weir-crypto", "weir-ipsec", "weir-dataplane", "weir-pki", "weir-stats"]),
    // Not the gateway: a measurement of the data plane must not need the daemon it measures.
    // The sans-IO endpoint is measured like the path: alone, in memory.
    (
        "weir-lab",
        &[
            "weir-wire",
            "weir-crypto",
            "weir-ipsec",
            "weir-ike",
            "weir-lab-crypto",
            "weir-lab-ike",
            "weir-dataplane",
            "weir-ports",
            "weir-stats",
            "weir-testbed",
            "weir-throughput",
        ],
    ),
    // The sources of weir-ike with the cryptography of the lab, which can be none at all: nothing
    // but the lab may name them.
    ("weir-lab-crypto", &["weir-crypto"]),
    ("weir-lab-ike", &["weir-wire", "weir-lab-crypto"]),
    ("weir", &["weir-gateway", "weir-pki", "weir-lab"]),
    // Endpoints of IKE, and whole gateways.
    ("weir-sim", &["weir-wire", "weir-ike", "weir-vici", "weir-gateway"]),
];

/// All that the crates without I/O may use from outside. Nothing in these lists can read a clock,
/// start a thread or open a socket; clippy.toml beside each crate forbids what std offers.
const OUTSIDE: &[(&str, &[&str])] = &[
    ("weir-wire", &["thiserror", "zerocopy"]),
    ("weir-ipsec", &["arrayvec", "foldhash", "hashbrown", "thiserror", "zerocopy", "zeroize"]),
    // rtrb and arc-swap are rings and pointers in memory. System calls are in weir-ports.
    ("weir-dataplane", &["arc-swap", "arrayvec", "foldhash", "rtrb", "thiserror", "zeroize"]),
    // rand_chacha is seeded by its creator, and enabled only by the test feature of other crates.
    ("weir-ike", &["rand_chacha", "rand_core", "subtle", "thiserror", "zeroize"]),
    ("weir-lab-ike", &["rand_chacha", "rand_core", "subtle", "thiserror", "zeroize"]),
];

/// Product files that allow `unsafe`, which the workspace denies: libraries of ciphers, kernel
/// interfaces, instructions that have no safe name, and the slots of the work queue. Modules below
/// a file are meant with it.
const UNSAFE: &[&str] = &[
    "crypto/src/engine/aws_lc.rs",
    "crypto/src/engine/ipsec_mb/sys.rs",
    "crypto/src/engine/vaes.rs",
    "crypto/src/ike/foreign.rs",
    "gpu/src/cuda.rs",
    "gpu/src/opencl.rs",
    "dataplane/src/prefetch.rs",
    "dataplane/src/scheduler/queue.rs",
    "ports/src/bpf/sys.rs",
    "ports/src/clock.rs",
    "ports/src/huge_pages.rs",
    "ports/src/mmsg.rs",
    "ports/src/tun/sum.rs",
    "ports/src/xdp/packet_ring.rs",
    "ports/src/xdp/sys.rs",
    "ports/src/xdp/tests.rs",
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

/// Faults of these edges, one line each.
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
    for inside in ["weir-wire", "weir-crypto", "weir-ipsec", "weir-ike", "weir-dataplane", "weir-ports", "weir-gateway"]
    {
        assert!(fault("weir-vici", inside), "{inside}");
        assert!(inside == "weir-gateway" || fault(inside, "weir-vici"), "{inside}");
    }
    assert!(fault("weir-gateway", "weir-pki") && fault("weir-credentials", "weir-pki"));
    for without in ["weir-gateway", "weir-credentials", "weir-ike", "weir", "weir-sim"] {
        assert!(fault(without, "weir-lab-ike") && fault(without, "weir-lab-crypto"), "{without}");
    }
    for above in ["weir-gateway", "weir-lab", "weir-ike"] {
        assert!(fault("weir-testbed", above), "{above}");
    }
    assert!(fault("weir-lab", "weir-vici") && !fault("weir-gateway", "weir-vici"));
    assert!(fault("weir-dataplane", "weir-gateway"));
    assert!(fault("weir-dataplane", "weir-ports"));
    assert!(fault("weir-ports", "weir-gateway") && fault("weir-ports", "weir-ike"));
    for system in ["tokio", "socket2", "libc", "rustix", "chrono", "rand", "tun-rs", "tracing"] {
        for without in ["weir-wire", "weir-ipsec", "weir-dataplane"] {
            assert!(fault(without, system), "{without}: {system}");
        }
    }
    assert!(!fault("weir-ports", "socket2") && !fault("weir-ipsec", "weir-crypto"));
    assert_eq!(faults(&["weir-new".to_string()].into(), &[]).len(), 1);
}

/// Every Rust file below `src` of a crate of the workspace, by its path below `crates`.
fn sources() -> Vec<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates").to_path_buf();
    let mut found = Vec::new();
    let mut folders: Vec<_> =
        crates.read_dir().expect("crates").map(|entry| entry.expect("a crate").path().join("src")).collect();
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().into_iter().flatten() {
            let path = entry.expect("a file").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&crates).expect("below crates").display().to_string();
                found.push((name, std::fs::read_to_string(&path).expect("UTF-8")));
            }
        }
    }
    found
}

/// Files that touch the lint without being in [`UNSAFE`], and rows without such a file.
fn unsafe_faults(sources: &[(String, String)]) -> Vec<String> {
    let touching: BTreeSet<&str> =
        sources.iter().filter(|(_, text)| text.contains("unsafe_code")).map(|(name, _)| name.as_str()).collect();
    let allowed: BTreeSet<&str> = UNSAFE.iter().copied().collect();
    let new = touching.difference(&allowed).map(|name| format!("{name} must not allow unsafe"));
    let gone = allowed.difference(&touching).map(|name| format!("{name} has no unsafe: remove its row"));
    new.chain(gone).collect()
}

#[test]
fn unsafe_is_in_the_named_files_alone() {
    let sources = sources();
    assert!(sources.len() > 300, "only {} files", sources.len());
    assert_eq!(unsafe_faults(&sources), Vec::<String>::new());
    // No crate leaves the lints of the workspace.
    for (name, _) in INSIDE.iter().filter(|(name, _)| *name != "weir-sim") {
        let folder = name.strip_prefix("weir-").unwrap_or(name);
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(folder).join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).expect("a manifest");
        assert!(text.contains("[lints]\nworkspace = true\n"), "{name} has lints of its own");
    }
}

#[test]
fn a_file_that_allows_unsafe_is_found() {
    let row = |name: &str, text: &str| (name.to_string(), text.to_string());
    let mut sources: Vec<_> = UNSAFE.iter().map(|name| row(name, "#![allow(unsafe_code)]")).collect();
    assert_eq!(unsafe_faults(&sources).len(), 0);
    sources.push(row("dataplane/src/inbound.rs", "#[expect(unsafe_code)]"));
    assert_eq!(unsafe_faults(&sources), ["dataplane/src/inbound.rs must not allow unsafe"]);
    sources.pop();
    sources.pop();
    assert_eq!(unsafe_faults(&sources).len(), 1);
}

/// Types of state machines of IKEv2, and modules that contain nothing else.
const STATES_OF_IKEV2: [&str; 8] = [
    "IkeSa",
    "sa::Established",
    "sa::Handshake",
    "handshake::Handshake",
    "handshake::initiator",
    "handshake::responder",
    "Exchanges",
    "task::Task",
];

/// Lines by which code of one version of IKE reaches state machines of the other: of a file in
/// `ike/src`, with its path.
fn version_faults(sources: &[(String, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, text) in sources.iter().filter(|(name, _)| name.starts_with("ike/src/")) {
        let of_v1 = name.starts_with("ike/src/v1");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            let has = |state: &str| match state.contains("::") {
                true => line.contains(state),
                false => line.split(|c: char| !c.is_alphanumeric()).any(|word| word == state),
            };
            let reaches_v2 = of_v1 && STATES_OF_IKEV2.iter().any(|state| has(state));
            // The endpoint holds the table, and passes messages to it by their version.
            let reaches_v1 = !of_v1 && line.contains("v1::Table") && name != "ike/src/endpoint.rs";
            if reaches_v2 || reaches_v1 {
                faults.push(format!("{name}: {}", line.trim()));
            }
        }
    }
    faults
}

#[test]
fn versions_of_ike_share_no_state_machine() {
    assert_eq!(version_faults(&sources()), Vec::<String>::new());
    let row = |name: &str, text: &str| (name.to_string(), text.to_string());
    let v1 = row("ike/src/v1/quick.rs", "use crate::sa::IkeSa;");
    let v2 = row("ike/src/task/rekey.rs", "fn step(table: &mut crate::v1::Table) {");
    let comment = row("ike/src/v1.rs", "    // An IkeSa is one of IKEv2.");
    assert_eq!(version_faults(&[v1, v2, comment]).len(), 2);
}
