//! The sections `children.NAME` of a connection.

use std::sync::Arc;
use std::time::Duration;

use ike::config::{Action, ChildConfig, ChildMode, IptfsConfig, Life, PerCpuSas, StartAction, TsConfig};
use ike::proposal::{ChildProposal, ChildProtocol, SequenceNumbers};
use ipsec::aggfrag::{MAX_REORDER_WINDOW, MIN_PACKET_SIZE};

use super::proposal;
use super::schema::CHILD;
use super::ts::{dynamic, selector};
use super::value::{Fields, ValueError, duration, number, offset, switch, volume, word};

/// All children of a connection.
pub(crate) fn children(fields: &Fields<'_>, legacy: bool) -> Vec<Arc<ChildConfig>> {
    each(fields, CHILD, |fields| Arc::new(read(fields, legacy)))
}

/// Reads the sections below `children` with the keys of `table`.
pub(crate) fn each<T>(
    fields: &Fields<'_>,
    table: &'static [super::schema::Key],
    read: impl Fn(&Fields<'_>) -> T,
) -> Vec<T> {
    let Some(section) = fields.section().section("children") else { return Vec::new() };
    let path = format!("{}.children", fields.path());
    let names: Vec<&str> = section.sections.iter().map(|child| child.name.as_str()).collect();
    Fields::new(section, path.clone(), fields.sink()).finish(&names, |key| {
        Some(format!("'{key}' belongs into a subsection: 'children {{ NAME {{ {key} = … }} }}'"))
    });
    let child = |child| {
        let fields = Fields::of(child, format!("{path}.{}", child.name), table, fields.sink());
        let read = read(&fields);
        fields.finish(&[], elsewhere);
        read
    };
    section.sections.iter().map(child).collect()
}

/// Returns the correct section of a key that does not belong in a child.
fn elsewhere(key: &str) -> Option<String> {
    use super::schema::{AUTH, CONNECTION, find};
    if find(CONNECTION, key).is_some() {
        return Some(format!("'{key}' is a setting of the connection: move it out of 'children'"));
    }
    find(AUTH, key).map(|_| format!("move '{key}' into the section 'local' or 'remote' of the connection"))
}

fn read(fields: &Fields<'_>, legacy: bool) -> ChildConfig {
    let flag = |key, default| fields.get(key, switch).unwrap_or(default);
    let wide = |key| fields.get(key, number(0..=u64::from(u32::MAX))).map_or(0, |n| n as u32);
    let count = number(0..=u64::MAX);
    let mode = fields.get("mode", mode).unwrap_or(ChildMode::Tunnel);
    let proposals = proposals(fields, mode, legacy);
    let eesp = proposals.iter().any(|proposal| proposal.protocol == ChildProtocol::Eesp);
    let time = ["rekey_time", "life_time", "rand_time"];
    let text = |text: &str| Ok::<_, ValueError>(text.to_owned());
    let child = ChildConfig {
        name: fields.section().name.clone(),
        local_ts: selectors(fields, "local_ts"),
        remote_ts: selectors(fields, "remote_ts"),
        mode,
        iptfs: iptfs(fields),
        time: in_time(life(fields, time, |text| duration(text).map(|time| time.as_secs()), 3600)),
        bytes: life(fields, ["rekey_bytes", "life_bytes", "rand_bytes"], volume, 0),
        packets: life(fields, ["rekey_packets", "life_packets", "rand_packets"], &count, 0),
        dpd_action: fields.get("dpd_action", action).unwrap_or(Action::Clear),
        start_action: fields.get("start_action", start_action).unwrap_or_default(),
        close_action: fields.get("close_action", action).unwrap_or(Action::Clear),
        inactivity: fields.get("inactivity", duration).unwrap_or_default(),
        priority: wide("priority"),
        reqid: wide("reqid"),
        replay_window: fields.get("replay_window", number(0..=65_536)).map_or(1024, |packets| packets as u32),
        per_cpu_sas: fields.get("per_cpu_sas", per_cpu_sas).unwrap_or(PerCpuSas::No),
        tfc_padding: fields.get("tfc_padding", tfc).unwrap_or(0),
        copy_df: flag("copy_df", true),
        copy_ecn: flag("copy_ecn", true),
        copy_dscp: fields.get("copy_dscp", copy_dscp).unwrap_or(true),
        sha256_96: flag("sha256_96", false),
        eesp_max_sub_sa_id: fields.get("eesp_max_sub_sa_id", number(0..=65_535)).map(|id| id as u16),
        eesp_max_crypt_offset: fields
            .get("eesp_max_crypt_offset", offset)
            .map(|bytes| bytes / 4)
            .filter(|units| *units > 0),
        updown: fields.get("updown", text).filter(|command| !command.trim().is_empty()),
        hostaccess: flag("hostaccess", false),
        proposals,
    };
    check(fields, &child, eesp);
    child
}

/// Settings of `mode = iptfs`.
fn iptfs(fields: &Fields<'_>) -> IptfsConfig {
    let flag = |key, default| fields.get(key, switch).unwrap_or(default);
    let default = IptfsConfig::default();
    let ms = |time: u64| Duration::from_millis(time);
    let rate_kbps = fields.get("iptfs_rate", rate).unwrap_or(default.rate_kbps);
    IptfsConfig {
        // A tunnel instead would show what the constant rate is to hide.
        required: flag("iptfs_required", default.required || rate_kbps > 0),
        accept_fragments: flag("iptfs_accept_fragments", default.accept_fragments),
        dont_fragment: flag("iptfs_dont_fragment", default.dont_fragment),
        prefer_whole: flag("iptfs_prefer_whole", default.prefer_whole),
        packet_size: fields.get("iptfs_packet_size", packet_size).unwrap_or(default.packet_size),
        rate_kbps,
        reorder_window: fields
            .get("iptfs_reorder_window", number(0..=MAX_REORDER_WINDOW.into()))
            .map_or(default.reorder_window, |packets| packets as u8),
        drop_time: fields.get("iptfs_drop_time", number(1..=10_000)).map_or(default.drop_time, ms),
    }
}

fn packet_size(text: &str) -> Result<u16, ValueError> {
    let least = u64::from(MIN_PACKET_SIZE);
    match number(0..=u64::from(u16::MAX))(text)? {
        bytes if bytes == 0 || bytes >= least => Ok(bytes as u16),
        _ => Err(format!("write 0 for the path MTU, or {least} to 65535").into()),
    }
}

/// Bounds of `iptfs_rate` in kbit/s.
const RATES_KBPS: std::ops::RangeInclusive<u64> = 64..=10_000_000;

/// A rate in bits per second, with kbit, mbit or gbit for powers of 1000, in kbit/s.
fn rate(text: &str) -> Result<u32, ValueError> {
    let lower = text.to_ascii_lowercase();
    let units = [("kbit", 1), ("mbit", 1_000), ("gbit", 1_000_000)];
    let of = |(unit, kbit): &(&str, u64)| {
        let digits = lower.strip_suffix(unit)?.trim_end();
        number(0..=u64::from(u32::MAX))(digits).ok()?.checked_mul(*kbit)
    };
    let kbps = if lower == "0" { Some(0) } else { units.iter().find_map(of) };
    let within = |kbps: &u64| *kbps == 0 || RATES_KBPS.contains(kbps);
    kbps.filter(within).and_then(|kbps| u32::try_from(kbps).ok()).ok_or_else(|| {
        "write a rate with kbit, mbit or gbit from 64kbit to 10gbit, for example 100mbit, or 0 to send on demand".into()
    })
}

/// Keys that have an effect in `mode = iptfs` alone.
const IPTFS_KEYS: &[&str] = &[
    "iptfs_required",
    "iptfs_accept_fragments",
    "iptfs_dont_fragment",
    "iptfs_prefer_whole",
    "iptfs_packet_size",
    "iptfs_rate",
    "iptfs_reorder_window",
    "iptfs_drop_time",
];

/// Reports what contradicts `mode = iptfs`, or has no effect without it.
fn check_iptfs(fields: &Fields<'_>, child: &ChildConfig) {
    if child.mode != ChildMode::Iptfs {
        for key in IPTFS_KEYS.iter().filter(|key| fields.section().setting(key).is_some()) {
            fields.fault_of(key, "this is a setting of IP-TFS", "add 'mode = iptfs', or remove it");
        }
        return;
    }
    if child.proposals.iter().any(|proposal| proposal.protocol == ChildProtocol::Ah) {
        fields.fault_of("mode", "AH has no IP-TFS", "write 'mode = tunnel', or remove 'ah_proposals'");
    }
    // The peer chooses one of a proposal's transforms, so that one of them is enough.
    let unnumbered = |proposal: &ChildProposal| proposal.sn.contains(&SequenceNumbers::None);
    if child.proposals.iter().any(unnumbered) {
        fields.fault_of(
            "mode",
            "IP-TFS orders packets by their sequence numbers",
            "write 'mode = tunnel', or proposals without 'snnone'",
        );
    }
    if child.iptfs.rate_kbps > 0 {
        check_rate(fields, child);
    }
    if child.tfc_padding > 0 {
        fields.warn("tfc_padding", "no effect in 'mode = iptfs'; remove it");
    }
    if child.eesp_max_crypt_offset.is_some() {
        fields.warn("eesp_max_crypt_offset", "no effect in 'mode = iptfs'; remove it");
    }
}

/// Longest time between two packets at a constant rate in ms: receivers keep a part of a packet for
/// a second, and a packet may have several parts.
const MAX_INTERVAL_MS: u64 = 250;

/// Reports what contradicts a constant rate.
fn check_rate(fields: &Fields<'_>, child: &ChildConfig) {
    if child.iptfs.packet_size == 0 {
        fields.fault_of(
            "iptfs_rate",
            "packets at a constant rate have one size, whatever the path MTU is",
            "add 'iptfs_packet_size = 1400', or what fits the path",
        );
    }
    check_interval(fields, child.iptfs.packet_size.into(), child.iptfs.rate_kbps);
    if child.start_action.trap && !child.start_action.start {
        fields.warn(
            "start_action",
            "the setup of the Child SA shows the time of the first packet; write 'start' to hide it",
        );
    }
    if !child.iptfs.required {
        fields.fault_of(
            "iptfs_required",
            "a tunnel without IP-TFS would show what a constant rate hides",
            "remove it, or 'iptfs_rate'",
        );
    }
    if child.per_cpu_sas != PerCpuSas::No {
        fields.fault_of(
            "per_cpu_sas",
            "each Child SA would have the whole rate, and the number of SAs follows the traffic",
            "remove it, or 'iptfs_rate'",
        );
    }
    if !child.inactivity.is_zero() {
        fields.fault_of("inactivity", "a Child SA with a constant rate is never idle", "remove it, or 'iptfs_rate'");
    }
}

/// Reports packets of `size` bytes that are too far apart or too close together at `rate_kbps`.
fn check_interval(fields: &Fields<'_>, size: u64, rate_kbps: u32) {
    use dataplane::{MAX_BURST, MIN_INTERVAL_NS, burst, slot_ns};
    if size == 0 {
        return;
    }
    let interval_ns = slot_ns(burst(size, rate_kbps), size, rate_kbps);
    // Bits per ms are kbit/s.
    let most = u64::from(rate_kbps) * MAX_INTERVAL_MS / 8;
    if interval_ns > MAX_INTERVAL_MS * 1_000_000 {
        let ms = interval_ns as f64 / 1e6;
        let message = format!("a packet of {size} bytes every {ms:.1} ms is too rare: at most {MAX_INTERVAL_MS} ms");
        fields.fault_of("iptfs_rate", message, format!("write 'iptfs_packet_size = {most}' or less, or a higher rate"));
    }
    let least = (u64::from(rate_kbps) * MIN_INTERVAL_NS).div_ceil(MAX_BURST * 8 * 1_000_000);
    if interval_ns < MIN_INTERVAL_NS {
        let us = MIN_INTERVAL_NS / 1000;
        let message = format!("more than {MAX_BURST} packets of {size} bytes in {us} µs");
        fields.fault_of("iptfs_rate", message, format!("write 'iptfs_packet_size = {least}' or more, or a lower rate"));
    }
}

/// Reports contradictions between settings.
fn check(fields: &Fields<'_>, child: &ChildConfig, eesp: bool) {
    if child.per_cpu_sas != PerCpuSas::No && !child.start_action.trap {
        fields.warn("per_cpu_sas", "Child SAs per CPU are set up on demand: add 'start_action = trap'");
    }
    let sha256 = |proposal: &ChildProposal| proposal.integ.iter().any(|integ| integ.truncated_to_96() != *integ);
    if child.sha256_96 && !child.proposals.iter().any(sha256) {
        fields.warn(
            "sha256_96",
            "no proposal contains sha256, so there is nothing to truncate; add '-sha256' or remove it",
        );
    }
    if child.hostaccess && child.updown.is_none() {
        fields.warn("hostaccess", "no effect without 'updown', which receives it as PLUTO_HOST_ACCESS");
    }
    if !eesp {
        for key in ["eesp_max_sub_sa_id", "eesp_max_crypt_offset"] {
            if fields.section().setting(key).is_some() {
                fields.fault_of(key, "no EESP proposal", "add 'eesp_proposals = default', or remove it");
            }
        }
    }
    let ah = child.proposals.iter().any(|proposal| proposal.protocol == ChildProtocol::Ah);
    if child.mode == ChildMode::Beet && ah {
        fields.fault_of(
            "mode",
            "BEET exists for ESP and EESP only",
            "use tunnel or transport, or remove 'ah_proposals'",
        );
    }
    check_iptfs(fields, child);
    if matches!(child.mode, ChildMode::Pass | ChildMode::Drop) && child.start_action.start {
        fields.fault_of("start_action", "a policy without an SA cannot be started", "write 'start_action = trap'");
    }
    for (key, rekey, life) in [
        ("life_time", child.time.rekey.as_secs(), child.time.life.as_secs()),
        ("life_bytes", child.bytes.rekey, child.bytes.life),
        ("life_packets", child.packets.rekey, child.packets.life),
    ] {
        if life > 0 && life < rekey {
            let soft = key.replace("life", "rekey");
            fields.fault_of(
                key,
                format!("the Child SA would expire before {soft}"),
                format!("write more than {soft}, or remove it"),
            );
        }
    }
}

/// Proposals of all protocols, in the order of their keys in the file; ESP by default.
fn proposals(fields: &Fields<'_>, mode: ChildMode, legacy: bool) -> Vec<ChildProposal> {
    let place = |key: &str| fields.section().settings.iter().position(|setting| setting.name == key);
    let mut keys = [
        ("eesp_proposals", ChildProtocol::Eesp),
        ("esp_proposals", ChildProtocol::Esp),
        ("ah_proposals", ChildProtocol::Ah),
    ];
    keys.sort_by_key(|(key, _)| place(key));
    let lists = keys.map(|(key, protocol)| fields.list(key, |text| proposal::child(protocol, text, legacy)));
    let written = keys.iter().any(|(key, _)| place(key).is_some());
    let read: Vec<ChildProposal> = lists.into_iter().flatten().flatten().flatten().collect();
    if !written && !matches!(mode, ChildMode::Pass | ChildMode::Drop) {
        return ChildProposal::defaults(ChildProtocol::Esp);
    }
    read
}

pub(crate) fn selectors(fields: &Fields<'_>, key: &'static str) -> Vec<TsConfig> {
    fields.list(key, selector).filter(|read| !read.is_empty()).unwrap_or_else(|| vec![dynamic()])
}

/// Soft limit, hard limit and chance: the hard limit is 10 % above the soft one, chance takes the
/// difference, and at most half of the soft one: otherwise an SA could be replaced as soon as it is
/// installed, and its successor again.
fn life(
    fields: &Fields<'_>,
    [rekey, life, rand]: [&'static str; 3],
    parse: impl Fn(&str) -> Result<u64, ValueError>,
    default: u64,
) -> Life<u64> {
    let (soft, hard, chance) = (fields.get(rekey, &parse), fields.get(life, &parse), fields.get(rand, &parse));
    limits(soft, hard, chance, default)
}

fn limits(soft: Option<u64>, hard: Option<u64>, chance: Option<u64>, default: u64) -> Life<u64> {
    let tenth_off = |n: u64| (u128::from(n) * 10 / 11) as u64;
    let rekey = soft.unwrap_or_else(|| hard.map_or(default, tenth_off));
    let life = hard.unwrap_or_else(|| rekey.saturating_add(rekey / 10));
    Life { rekey, life, rand: chance.unwrap_or_else(|| life.saturating_sub(rekey)).min(rekey / 2) }
}

fn in_time(life: Life<u64>) -> Life<Duration> {
    let s = Duration::from_secs;
    Life { rekey: s(life.rekey), life: s(life.life), rand: s(life.rand) }
}

fn mode(text: &str) -> Result<ChildMode, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "transport_proxy" => Err("write 'mode = transport': the proxy mode of Mobile IPv6 is not supported".into()),
        _ => word(&[
            ("tunnel", ChildMode::Tunnel),
            ("transport", ChildMode::Transport),
            ("beet", ChildMode::Beet),
            ("iptfs", ChildMode::Iptfs),
            ("pass", ChildMode::Pass),
            ("drop", ChildMode::Drop),
        ])(text),
    }
}

/// `dpd_action` and `close_action` take the same words.
fn action(text: &str) -> Result<Action, ValueError> {
    word(&[
        ("none", Action::Clear),
        ("clear", Action::Clear),
        ("trap", Action::Trap),
        ("route", Action::Trap),
        ("start", Action::Restart),
        ("restart", Action::Restart),
    ])(text)
}

pub(crate) fn start_action(text: &str) -> Result<StartAction, ValueError> {
    let mut actions = StartAction::default();
    for part in text.split('|') {
        let action = action(part.trim()).map_err(|_| "write none, trap, start or trap|start".to_owned())?;
        actions.trap |= action == Action::Trap;
        actions.start |= action == Action::Restart;
    }
    Ok(actions)
}

fn per_cpu_sas(text: &str) -> Result<PerCpuSas, ValueError> {
    if text.eq_ignore_ascii_case("encap") {
        return Ok(PerCpuSas::Encap);
    }
    let yes = switch(text).map_err(|_| "write yes, no or encap".to_owned())?;
    Ok(if yes { PerCpuSas::Yes } else { PerCpuSas::No })
}

fn tfc(text: &str) -> Result<u16, ValueError> {
    if text.eq_ignore_ascii_case("mtu") {
        return Ok(u16::MAX);
    }
    number(0..=65_534)(text).map(|bytes| bytes as u16).map_err(|why| format!("{why}, or mtu").into())
}

fn copy_dscp(text: &str) -> Result<bool, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "out" => Ok(true),
        "no" => Ok(false),
        "in" | "yes" => {
            Err("write out or no: the outer header is not protected, so its DSCP is not copied inwards".into())
        }
        _ => Err("write out or no".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_from_each_other() {
        let of = |soft, hard, chance, default| {
            let life = limits(soft, hard, chance, default);
            (life.rekey, life.life, life.rand)
        };
        assert_eq!(of(None, None, None, 3600), (3600, 3960, 360));
        assert_eq!(of(Some(600), None, None, 3600), (600, 660, 60));
        assert_eq!(of(None, Some(1100), None, 3600), (1000, 1100, 100));
        assert_eq!(of(Some(0), None, None, 3600), (0, 0, 0));
        assert_eq!(of(None, None, None, 0), (0, 0, 0));
        assert_eq!(of(Some(600), Some(700), Some(5), 0), (600, 700, 5));
        assert_eq!(of(Some(u64::MAX), None, None, 0), (u64::MAX, u64::MAX, 0));
        assert_eq!(of(Some(600), Some(0), None, 0), (600, 0, 0));
        assert_eq!(of(Some(60), Some(600), None, 0), (60, 600, 30));
        assert_eq!(of(Some(60), Some(600), Some(50), 0), (60, 600, 30));
    }

    #[test]
    fn actions_have_two_names_each() {
        assert_eq!(start_action("trap|start"), Ok(StartAction { trap: true, start: true }));
        assert_eq!(start_action("start | trap"), Ok(StartAction { trap: true, start: true }));
        assert_eq!(start_action("route"), Ok(StartAction { trap: true, start: false }));
        assert_eq!((action("clear"), action("Restart")), (Ok(Action::Clear), Ok(Action::Restart)));
        assert!(start_action("begin").is_err() && start_action("").is_err() && action("trap|start").is_err());
    }
}
