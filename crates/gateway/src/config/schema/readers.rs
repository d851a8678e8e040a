//! A search for the readers of every key: a key that is accepted and read by nothing but the
//! configuration is a promise that is not kept, and no compiler warns of a public field without a
//! reader.
//!
//! The fields of a section are read through variables with few names (`connection.mobike`,
//! `config.updown`), so a key counts as read where one of these names, a dot and the key occur in
//! code that is neither configuration nor listing nor test. A key with a field of another name has
//! a row in [`ELSEWHERE`] that quotes the code that gives it its effect.

use std::path::Path;

use super::{Fate, Key, sections};

/// Crates that can give a key an effect.
const CRATES: [&str; 8] = ["credentials", "crypto", "dataplane", "gateway", "ike", "ipsec", "ports", "wire"];
/// Parts of paths that give none: they read, print or test the configuration.
const PASSIVE: [&str; 6] = ["/config/", "ike/src/config.rs", "/tests", "/testkit", "listing", "metrics"];

/// Names of the variables through which fields of a section are read.
fn variables(section: &str) -> &'static [&'static str] {
    match section {
        "connections.NAME" => &["connection"],
        "connections.NAME.local…, connections.NAME.remote…" => &["auth"],
        "connections.NAME.children.NAME" => &["config", "child", "child.config"],
        "connections.NAME with protocol = psp" => &["config", "psp"],
        "connections.NAME.children.NAME with protocol = psp" => &["child", "spec", "self"],
        "gateway" => &["gateway", "settings"],
        "sas.NAME" => &["sa", "half", "outer", "peer"],
        _ => &[],
    }
}

/// Section (its beginning), key, file below `crates`, and what in it gives the key its effect.
const ELSEWHERE: &[(&str, &str, &str, &str)] = &[
    ("connections.NAME", "protocol", "gateway/src/config/connection.rs", "Keyed::Psp(Box::new("),
    ("connections.NAME", "allow_legacy", "gateway/src/config/connection.rs", "proposal::ike(text, legacy)"),
    ("connections.NAME", "retransmit_timeout", "ike/src/exchange/resend.rs", "retransmit.timeout"),
    ("connections.NAME", "retransmit_base", "ike/src/exchange/resend.rs", "retransmit.base"),
    ("connections.NAME", "retransmit_tries", "ike/src/exchange/resend.rs", "retransmit.tries"),
    ("connections.NAME.local", "auth", "credentials/src/sign.rs", "match &auth.method"),
    ("connections.NAME.local", "xauth_id", "ike/src/v1/configuring.rs", "auth.eap_id.as_ref()"),
    ("connections.NAME.local", "round", "gateway/src/config/auth.rs", "rounds.sort_by_key(|(round, _)| *round)"),
    ("connections.NAME.local….cert", "file", "gateway/src/config/cert.rs", "\"file\""),
    ("connections.NAME.children", "esp_proposals", "ike/src/child/answer.rs", "config.proposals"),
    ("connections.NAME.children", "ah_proposals", "ike/src/child/answer.rs", "config.proposals"),
    ("connections.NAME.children", "eesp_proposals", "ike/src/child/answer.rs", "config.proposals"),
    ("connections.NAME.children", "rekey_time", "ike/src/child/agreement.rs", "soft_limit(ctx, life)"),
    ("connections.NAME.children", "life_time", "ike/src/child/agreement.rs", "life.life.is_zero()"),
    ("connections.NAME.children", "rand_time", "ike/src/child/agreement.rs", "life.rand"),
    ("connections.NAME.children", "rekey_bytes", "gateway/src/negotiated/child.rs", "soft(child.config.bytes)"),
    ("connections.NAME.children", "rand_bytes", "gateway/src/negotiated/child.rs", "soft(child.config.bytes)"),
    ("connections.NAME.children", "life_bytes", "gateway/src/negotiated/child.rs", "config.bytes.life"),
    ("connections.NAME.children", "rekey_packets", "gateway/src/negotiated/child.rs", "soft(child.config.packets)"),
    ("connections.NAME.children", "rand_packets", "gateway/src/negotiated/child.rs", "soft(child.config.packets)"),
    ("connections.NAME.children", "life_packets", "gateway/src/negotiated/child.rs", "config.packets.life"),
    ("connections.NAME.children", "reqid", "gateway/src/control/listings.rs", "view.config.reqid"),
    ("connections.NAME.children", "iptfs_required", "ike/src/child/answer.rs", "iptfs.required"),
    ("connections.NAME.children", "iptfs_accept_fragments", "ike/src/child/aggfrag.rs", "iptfs.accept_fragments"),
    ("connections.NAME.children", "iptfs_dont_fragment", "ipsec/src/aggfrag/send.rs", "self.dont_fragment"),
    ("connections.NAME.children", "iptfs_prefer_whole", "ipsec/src/aggfrag/send.rs", "self.prefer_whole"),
    ("connections.NAME.children", "iptfs_packet_size", "ipsec/src/sa.rs", "settings.packet_size"),
    ("connections.NAME.children", "iptfs_rate", "dataplane/src/pacing/pacer.rs", "settings.rate_kbps"),
    ("connections.NAME.children", "iptfs_reorder_window", "ipsec/src/aggfrag/receive.rs", "settings.reorder_window"),
    ("connections.NAME.children", "iptfs_drop_time", "ipsec/src/aggfrag/receive.rs", "settings.drop_time_ms"),
    ("connections.NAME with", "local_addrs", "gateway/src/psp_keys/service.rs", "&config.local, &config.remote"),
    ("connections.NAME with", "remote_addrs", "gateway/src/psp_keys/service.rs", "&config.local, &config.remote"),
    ("connections.NAME.children.NAME with", "psp_version", "gateway/src/psp_keys/peer.rs", "child.spec.versions"),
    ("secrets", "secret", "gateway/src/control/loading.rs", "octets()"),
    ("secrets", "id", "gateway/src/control/loading.rs", ".ids"),
    ("secrets", "file", "gateway/src/control/loading.rs", ".file"),
    ("pools", "addrs", "ike/src/pool.rs", "config.addrs"),
    ("authorities", "cacert", "gateway/src/config/authority.rs", "\"cacert\""),
    ("authorities", "file", "gateway/src/config/authority.rs", "\"file\""),
    ("authorities", "crl_uris", "credentials/src/revocation.rs", "configured(|source| &source.crl_uris)"),
    ("authorities", "ocsp_uris", "credentials/src/revocation.rs", "configured(|source| &source.ocsp_uris)"),
    ("gateway", "aqm_interval", "gateway/src/up.rs", "aqm_interval_ms: config.gateway.aqm_interval_ms"),
    ("gateway", "metrics", "gateway/src/up.rs", "Metrics::serve(&config.gateway)"),
    ("gateway", "metrics_cert", "gateway/src/http/tls.rs", "read(&self.certificate"),
    ("gateway", "metrics_key", "gateway/src/http/tls.rs", "&self.key)"),
    ("gateway", "ike", "gateway/src/config/mod.rs", "self.gateway.ike.unwrap_or(keyed)"),
    ("gateway", "queues", "gateway/src/up.rs", "flow_queues"),
    ("gateway", "on_stop", "gateway/src/up.rs", "gateway.stays_closed"),
    ("gateway", "unprotected", "gateway/src/keying.rs", "gateway.unprotected_drops"),
    ("gateway", "allow_psp_gmac", "gateway/src/config/value.rs", "n < 2 || gmac"),
    ("gateway", "eesp_protocol", "gateway/src/up.rs", "code_points"),
    ("gateway", "nat_t_port", "gateway/src/up.rs", "code_points"),
    ("gateway", "psp_port", "gateway/src/up.rs", "code_points"),
    ("policies", "local_ts", "gateway/src/tables.rs", "policy.selectors"),
    ("policies", "remote_ts", "gateway/src/tables.rs", "policy.selectors"),
    ("policies", "action", "gateway/src/tables.rs", "policy.action"),
    ("policies", "sa", "gateway/src/tables.rs", "PolicyAction::Protect"),
];
/// Attributes of pools share one field of numbers and values, and are sent to the client unchanged.
const ATTRIBUTES: (&str, &str) = ("ike/src/pool.rs", "pool.config.attributes");

/// One source file without its tests, whitespace before dots removed.
struct Source {
    name: String,
    text: String,
}

/// `text` up to its unit tests.
fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod tests {").map_or(text, |(code, _)| code)
}

fn collect(folder: &Path, sources: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut joined = String::with_capacity(text.len());
            for line in without_tests(&text).lines() {
                let line = line.split_once("//").map_or(line, |(code, _)| code).trim();
                if !line.starts_with('.') {
                    joined.push('\n');
                }
                joined.push_str(line);
            }
            sources.push(Source { name: path.to_string_lossy().into_owned(), text: joined });
        }
    }
}

fn crates() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn active() -> Vec<Source> {
    let mut sources = Vec::new();
    CRATES.iter().for_each(|name| collect(&crates().join(name).join("src"), &mut sources));
    sources.retain(|source| !PASSIVE.iter().any(|part| source.name.contains(part)));
    assert!(sources.len() > 100, "the sources were not found");
    sources
}

/// Returns whether `variable.field` occurs as a whole, and is not the call of a function.
fn reads(text: &str, variable: &str, field: &str) -> bool {
    let ident = |c: char| c.is_alphanumeric() || c == '_';
    let needle = format!("{variable}.{field}");
    text.match_indices(&needle).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + needle.len()..]);
        !before.ends_with(ident) && !after.starts_with(ident) && !after.starts_with('(')
    })
}

/// Reason why no reader of the key was found.
fn missing(sources: &[Source], section: &str, key: &Key) -> Option<String> {
    let rows = ELSEWHERE.iter().filter(|(start, name, ..)| section.starts_with(start) && *name == key.name);
    // The most exact row: "connections.NAME.children" rather than "connections.NAME".
    if let Some((.., file, code)) = rows.max_by_key(|(start, ..)| start.len()) {
        let text = std::fs::read_to_string(crates().join(file)).unwrap_or_default();
        return (!without_tests(&text).contains(code)).then(|| format!("crates/{file} no longer contains {code}"));
    }
    if section.starts_with("pools") {
        let text = std::fs::read_to_string(crates().join(ATTRIBUTES.0)).unwrap();
        let attribute = std::fs::read_to_string(crates().join("gateway/src/config/pool.rs")).unwrap();
        let found = text.contains(ATTRIBUTES.1) && attribute.contains(&format!("\"{}\"", key.name));
        return (!found).then(|| "it is no attribute of config/pool.rs".into());
    }
    if section.starts_with("sas") {
        // Halves are taken apart by pattern where SAs are made.
        let made =
            |source: &&Source| ["tables.rs", "state.rs", "routes.rs"].iter().any(|end| source.name.ends_with(end));
        let field = MANUAL.iter().find(|(name, _)| *name == key.name).map_or(key.name, |(_, field)| field);
        let whole = |text: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == field);
        return (!sources.iter().filter(made).any(|source| whole(&source.text)))
            .then(|| format!("'{field}' does not occur where SAs are made"));
    }
    let names = variables(section);
    let found = |source: &Source| names.iter().any(|variable| reads(&source.text, variable, key.name));
    (!sources.iter().any(found)).then(|| format!("nothing reads {}", names.join(", ")))
}

/// Keys of manual SAs with fields of other names.
const MANUAL: &[(&str, &str)] = &[
    ("local", "peer"),
    ("remote", "peer"),
    ("inner_local", "mode"),
    ("inner_remote", "mode"),
    ("life_packets", "lifetime"),
    ("life_bytes", "lifetime"),
    ("enc_key", "enc"),
    ("integ_key", "integ"),
    ("first_seq", "seq"),
    ("last_seq", "seq"),
    ("last_iv", "seq"),
    ("encap", "outer"),
    ("local_port", "outer"),
    ("remote_port", "outer"),
    ("replay_window", "window"),
    ("udp_checksum", "outer"),
    ("hop_limit", "outer"),
    ("dscp", "outer"),
    ("ecn", "outer"),
    ("df", "outer"),
    ("master_key_0", "masters"),
    ("master_key_1", "masters"),
    ("sskdf", "sub_sas"),
];

#[test]
fn every_accepted_key_has_a_reader_outside_of_the_configuration() {
    let sources = active();
    let mut dead = Vec::new();
    for (section, keys) in sections() {
        for key in keys.iter().filter(|key| key.fate == Fate::Honoured) {
            if let Some(why) = missing(&sources, section, key) {
                dead.push(format!("{section}: {}: {why}", key.name));
            }
        }
    }
    assert!(dead.is_empty(), "keys that are accepted and do nothing:\n{}", dead.join("\n"));
}

#[test]
fn a_planted_key_is_found() {
    let sources = active();
    let planted = super::key("planted_key", super::Kind::Switch, "no", "Nothing");
    for (section, _) in sections() {
        assert!(missing(&sources, section, &planted).is_some(), "{section}");
    }
    // Neither a longer name, nor another variable, nor a function, nor a comment is a reader.
    for text in ["connection.mobikes", "reconnection.mobike", "connection.mobike()", "other.mobike"] {
        assert!(!reads(text, "connection", "mobike"), "{text}");
    }
    assert!(reads("if self.connection.mobike {", "connection", "mobike"));
}
