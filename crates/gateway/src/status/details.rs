//! Details of SAs and policies: `weir status --verbose`.

use super::connection::{ChildStatus, ConnectionStatus, IkeStatus, Kind};
use super::layout::{pack, printable};
use super::table::{scaled, span};
use super::{PacedStatus, PolicyStatus, SaStatus, Status};
use crate::negotiated::sa_name;

/// A text of indented lines that break between values.
struct Lines {
    text: String,
    width: usize,
}

impl Lines {
    /// Values of one thing, after the first with a comma between.
    fn add(&mut self, indent: usize, values: impl IntoIterator<Item = String>) {
        self.pack(indent, ", ", values);
    }

    fn words(&mut self, indent: usize, words: impl IntoIterator<Item = String>) {
        self.pack(indent, " ", words);
    }

    fn pack(&mut self, indent: usize, between: &str, values: impl IntoIterator<Item = String>) {
        let values = values.into_iter().filter(|value| !value.is_empty()).map(|value| printable(&value));
        for (at, line) in pack(values, between, self.width.saturating_sub(indent + 2)).iter().enumerate() {
            let indent = if at == 0 { indent } else { indent + 2 };
            self.text.push_str(&format!("{:indent$}{line}\n", ""));
        }
    }
}

/// Writes engine, IKE SAs with their Child SAs, manual SAs and policies.
pub(super) fn render(status: &Status, width: usize) -> String {
    let mut lines = Lines { text: String::new(), width };
    let engine = format!("engine {}: {}", status.head.engine, status.head.engine_why);
    lines.add(0, engine.split("; ").flat_map(|part| part.split(", ")).map(str::to_owned));
    for connection in &status.connections {
        lines.text.push('\n');
        of_connection(&mut lines, connection, status);
    }
    if !status.policies.is_empty() {
        lines.text.push_str("\npolicies in the order of lookup\n");
        status.policies.iter().for_each(|policy| of_policy(&mut lines, policy));
    }
    lines.text
}

fn of_connection(lines: &mut Lines, connection: &ConnectionStatus, status: &Status) {
    lines.add(0, [format!("{} {}, {}", connection.name, connection.state.word(), kind(connection))]);
    for sa in &connection.ike_sas {
        of_ike(lines, sa, connection.kind);
        sa.children.iter().for_each(|child| of_child(lines, child, paced(connection, child, status)));
    }
    manual(connection, status).for_each(|sa| of_sa(lines, sa));
}

fn kind(connection: &ConnectionStatus) -> &'static str {
    match connection.kind {
        Kind::IkeV1 => "IKEv1",
        Kind::IkeV2 => "IKEv2",
        Kind::Psp => "PSP key service",
        Kind::Manual => "manual keys",
    }
}

fn manual<'a>(connection: &'a ConnectionStatus, status: &'a Status) -> impl Iterator<Item = &'a SaStatus> {
    status.sas.iter().filter(move |sa| connection.kind == Kind::Manual && sa.name == connection.name)
}

/// An SA that a command can end or rekey.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Target {
    /// Number of an IKE SA.
    Ike(u32),
    /// Number of a Child SA.
    Child(u32),
}

/// Lines about one SA.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// `None`: manual keys.
    #[cfg_attr(not(feature = "top"), expect(dead_code, reason = "for weir top"))]
    pub(crate) target: Option<Target>,
    /// Name for a question.
    #[cfg_attr(not(feature = "top"), expect(dead_code, reason = "for weir top"))]
    pub(crate) name: String,
    pub(crate) lines: Vec<String>,
}

/// The SAs of a connection, each Child SA after its IKE SA.
pub(crate) fn blocks(connection: &ConnectionStatus, status: &Status, width: usize) -> Vec<Block> {
    let block = |target, name, of: &dyn Fn(&mut Lines)| {
        let mut lines = Lines { text: String::new(), width };
        of(&mut lines);
        Block { target, name, lines: lines.text.lines().map(str::to_owned).collect() }
    };
    let mut blocks = Vec::new();
    for sa in &connection.ike_sas {
        let name = format!("IKE SA #{} of '{}'", sa.unique_id, connection.name);
        blocks.push(block(Some(Target::Ike(sa.unique_id)), name, &|lines| of_ike(lines, sa, connection.kind)));
        for child in &sa.children {
            let name = format!("Child SA '{}' #{}", child.name, child.unique_id);
            blocks.push(block(Some(Target::Child(child.unique_id)), name, &|lines| {
                of_child(lines, child, paced(connection, child, status))
            }));
        }
    }
    blocks.extend(manual(connection, status).map(|sa| block(None, sa.name.clone(), &|lines| of_sa(lines, sa))));
    blocks
}

fn of_ike(lines: &mut Lines, sa: &IkeStatus, kind: Kind) {
    let role = match (kind, sa.initiator) {
        (Kind::IkeV1 | Kind::IkeV2, true) => "initiator",
        (Kind::IkeV1 | Kind::IkeV2, false) => "responder",
        (_, true) => "this host connects",
        (_, false) => "the peer connects",
    };
    let what = if matches!(kind, Kind::IkeV1 | Kind::IkeV2) { "IKE SA" } else { "peer" };
    let due =
        |name: &str, seconds: Option<i64>| seconds.map_or_else(String::new, |s| format!("{name} in {}", ahead(s)));
    let age = sa.established_s.map_or_else(String::new, |seconds| format!("established {} ago", span(seconds)));
    let values = [
        format!("{what} #{} {}", sa.unique_id, sa.state.to_lowercase()),
        role.to_owned(),
        sa.suite.clone().unwrap_or_default(),
        age,
        due("rekey", sa.rekey_s),
        due("reauthentication", sa.reauth_s),
    ];
    lines.add(2, values);
    let nat = |behind: bool| if behind { " behind NAT" } else { "" };
    lines.add(4, [format!("local  {} {}{}", sa.local, sa.local_id, nat(sa.nat_local))]);
    let eap = sa.remote_eap_id.as_ref().map_or_else(String::new, |id| format!(" EAP {id}"));
    lines.add(4, [format!("remote {} {}{eap}{}", sa.remote, sa.remote_id, nat(sa.nat_remote))]);
    if !sa.virtual_addresses.is_empty() {
        lines.add(4, [format!("virtual addresses {}", sa.virtual_addresses.join(" "))]);
    }
}

/// Packets of a Child SA with a constant rate.
fn paced<'a>(connection: &ConnectionStatus, child: &ChildStatus, status: &'a Status) -> Option<&'a PacedStatus> {
    // Two peers may have chosen the same SPI.
    let name = sa_name(&connection.name, &child.name, child.unique_id);
    status.sas.iter().filter(|sa| sa.direction == "out" && sa.name == name).find_map(|sa| sa.paced.as_ref())
}

fn of_child(lines: &mut Lines, child: &ChildStatus, paced: Option<&PacedStatus>) {
    let udp = if child.encap { " in UDP" } else { "" };
    let values = [
        format!("{} #{} {}", child.name, child.unique_id, child.state.to_lowercase()),
        format!("{} {}{udp}", child.protocol, child.mode),
        child.suite.clone(),
        if child.sub_sas > 0 { format!("{} Sub SAs", child.sub_sas) } else { String::new() },
        child.cpu.map_or_else(String::new, |cpu| format!("CPU {cpu}")),
        if child.reqid > 0 { format!("reqid {}", child.reqid) } else { String::new() },
        format!("installed {} ago", span(child.age_s)),
        child.rekey_s.map_or_else(String::new, |seconds| format!("rekey in {}", ahead(seconds))),
        child.life_s.map_or_else(String::new, |seconds| format!("expires in {}", ahead(seconds))),
    ];
    lines.add(4, values);
    // Local selectors, the sign, remote ones: each on the line where it fits.
    let selectors = child.local_ts.iter().cloned().chain(["===".to_owned()]).chain(child.remote_ts.iter().cloned());
    lines.words(6, selectors);
    let ago = |seconds: Option<u64>| seconds.map_or_else(String::new, |s| format!("last {} ago", span(s)));
    let flow = |name: &str, spi: &str, packets: u64, bytes: u64, last: Option<u64>| {
        [format!("{name} SPI {spi}"), format!("{packets} packets"), scaled(bytes), ago(last)]
    };
    lines.add(6, flow("in ", &child.spi_in, child.packets_in, child.bytes_in, child.use_in_s));
    lines.add(6, flow("out", &child.spi_out, child.packets_out, child.bytes_out, child.use_out_s));
    if let Some(paced) = paced {
        of_stream(lines, paced);
    }
    if child.drops > 0 {
        lines.add(6, [format!("dropped {} packets", child.drops)]);
    }
}

fn of_stream(lines: &mut Lines, paced: &PacedStatus) {
    let burst = if paced.burst > 1 { format!("{} packets", paced.burst) } else { "1 packet".to_owned() };
    let values = [
        format!("constant rate {} kbit/s in packets of {} bytes", paced.rate_kbps, paced.packet_size),
        format!("{burst} every {:.1} µs", paced.interval_ns as f64 / 1000.0),
        if paced.running { String::new() } else { "STOPPED".to_owned() },
        format!("{} packets", paced.packets),
        format!("{} of padding alone", paced.padding),
        format!("{} late", paced.late),
        // The first start is none.
        match paced.restarts.saturating_sub(1) {
            0 => String::new(),
            1 => "1 restart".to_owned(),
            restarts => format!("{restarts} restarts"),
        },
        format!("{} queued", scaled(paced.queued_bytes)),
    ];
    lines.add(6, values);
}

fn of_sa(lines: &mut Lines, sa: &SaStatus) {
    let lanes = if sa.lanes.len() > 1 { format!("{} Sub SAs or lanes", sa.lanes.len()) } else { String::new() };
    let values = [
        format!("{:<3} SPI {}", sa.direction, sa.spi),
        format!("{} {}", sa.protocol.to_uppercase(), sa.mode),
        sa.suite.clone(),
        lanes,
        format!("{} packets", sa.packets),
        scaled(sa.bytes),
        if sa.expired { "EXPIRED".to_owned() } else { String::new() },
    ];
    lines.add(2, values);
    lines.add(4, sa.drops.iter().map(|(reason, count)| format!("dropped {count} {reason}")));
}

fn of_policy(lines: &mut Lines, policy: &PolicyStatus) {
    let sa = policy.sa.as_ref().map_or_else(String::new, |sa| format!(" by {sa}"));
    lines.add(2, [format!("{}: {}{sa}", policy.name, policy.action)]);
    policy.selectors.iter().for_each(|selector| lines.words(4, selector.split(' ').map(str::to_owned)));
}

fn ahead(seconds: i64) -> String {
    span(seconds.max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_stream_belongs_to_the_child_sa_of_its_name_and_restarts_are_shown() {
        // Another peer chose the same SPI.
        let mut status = example::status();
        status.sas = [("river.net-3", 1_000, 1), ("site.net-9", 2_000, 3)]
            .map(|(name, rate_kbps, restarts)| SaStatus {
                name: name.into(),
                spi: "0x0c81a2b3".into(),
                paced: Some(PacedStatus { rate_kbps, restarts, ..PacedStatus::default() }),
                ..example::status().sas.remove(0)
            })
            .into();
        let text = render(&status, 80);
        assert!(text.contains("constant rate 2000 kbit/s") && text.contains("2 restarts"), "{text}");
        assert!(!text.contains("constant rate 1000 kbit/s"), "{text}");
        // The first start is none.
        status.sas[1].paced.as_mut().unwrap().restarts = 1;
        assert!(!render(&status, 80).contains("restart"));
    }
}
