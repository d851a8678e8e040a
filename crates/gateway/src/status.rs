//! `weir status`: a Unix socket that answers one question with one JSON document.
//!
//! The server is one thread that takes one connection at a time and never waits longer than
//! [`PATIENCE`] for anybody, so that a stuck client costs nothing but itself.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use dataplane::{CoreCounters, Totals};
use ipsec::{Drop as Reason, InboundSa, Mode, OutboundSa, SaCommon};
use serde::{Deserialize, Serialize};
use wire::Selector;

use crate::config::{self, Config, PolicyAction};
use crate::negotiated::Negotiated;
use crate::state;
use crate::tables::Tables;

const PATIENCE: Duration = Duration::from_secs(2);
/// What a client may say, in bytes.
const MAX_REQUEST: u64 = 1024;
/// What a client believes a server, in bytes: 100,000 SAs.
const MAX_RESPONSE: u64 = 128 << 20;
/// Sub SAs listed per SA; the others are in its totals.
const MAX_LANES: usize = 64;
const REQUEST: &str = "status";

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Count {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// Where the numbers of a lane stand.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Lane {
    /// Session ID of a Sub SA, otherwise 0.
    pub(crate) session: u32,
    /// Outbound: next number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<u64>,
    /// Outbound: numbers below are on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) saved: Option<u64>,
    /// Inbound: highest number seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top: Option<u64>,
}

/// One direction of an SA.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SaStatus {
    pub(crate) name: String,
    pub(crate) direction: String,
    pub(crate) protocol: String,
    pub(crate) spi: String,
    pub(crate) mode: String,
    pub(crate) suite: String,
    pub(crate) local: String,
    pub(crate) remote: String,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) drops: BTreeMap<String, u64>,
    pub(crate) unknown_options: u64,
    pub(crate) expired: bool,
    /// Outbound: largest inner packet in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inner_mtu: Option<u32>,
    pub(crate) lanes: Vec<Lane>,
}

/// One policy.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PolicyStatus {
    pub(crate) name: String,
    pub(crate) selectors: Vec<String>,
    pub(crate) action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sa: Option<String>,
}

/// Counters of the data plane.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct CoreStatus {
    pub(crate) inner_rx: Count,
    pub(crate) inner_tx: Count,
    pub(crate) outer_rx: Count,
    pub(crate) outer_tx: Count,
    pub(crate) bypassed: u64,
    pub(crate) audit_lost: u64,
    pub(crate) batches: u64,
    pub(crate) drops: BTreeMap<String, u64>,
}

/// Everything.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) uptime_s: f64,
    pub(crate) healthy: bool,
    pub(crate) engine: String,
    pub(crate) sas: Vec<SaStatus>,
    pub(crate) policies: Vec<PolicyStatus>,
    pub(crate) total: CoreStatus,
    pub(crate) cores: Vec<CoreStatus>,
}

/// What the server looks at.
pub(crate) struct Shared {
    started: Instant,
    pub(crate) healthy: AtomicBool,
    /// What the file says.
    file: Mutex<View>,
    /// What was negotiated, and what stands where nothing is yet.
    negotiated: Mutex<View>,
    counters: Mutex<Vec<Arc<CoreCounters>>>,
}

#[derive(Default)]
struct View {
    outbound: Vec<(Arc<OutboundSa>, String)>,
    inbound: Vec<(Arc<InboundSa>, String, String)>,
    policies: Vec<PolicyStatus>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            healthy: AtomicBool::new(true),
            file: Mutex::default(),
            negotiated: Mutex::default(),
            counters: Mutex::default(),
        }
    }

    /// Shows other counters from now on.
    pub(crate) fn set_counters(&self, counters: &[Arc<CoreCounters>]) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters.to_vec();
    }

    /// Shows other tables from now on.
    pub(crate) fn set_tables(&self, config: &Config, tables: &Tables) {
        let mut view = View::default();
        for entry in &tables.entries {
            if let (Some(live), Some(half)) = (&entry.outbound, &entry.sa.outbound) {
                view.outbound.push((Arc::clone(&live.sa), half.proto.suite_name()));
            }
            if let (Some(live), Some(half)) = (&entry.inbound, &entry.sa.inbound) {
                view.inbound.push((Arc::clone(&live.sa), half.proto.suite_name(), half.spi_text()));
            }
        }
        view.policies.extend(config.policies.iter().map(|policy| PolicyStatus {
            name: policy.name.clone(),
            selectors: both_sides(&policy.selectors),
            action: policy.action.word().into(),
            sa: match &policy.action {
                PolicyAction::Protect(sa) => Some(sa.clone()),
                _ => None,
            },
        }));
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    /// Shows other Child SAs, and policies of connections, from now on.
    pub(crate) fn set_negotiated(&self, negotiated: &Negotiated) {
        let mut view = View::default();
        for child in negotiated.children() {
            let suite = child.suite.to_string();
            view.outbound.push((Arc::clone(&child.outbound), suite.clone()));
            view.inbound.push((Arc::clone(&child.inbound), suite, format!("{:#010x}", child.inbound.spi)));
        }
        view.policies.extend(negotiated.policies().into_iter().map(|line| PolicyStatus {
            name: format!("{}.{}", line.connection.name, line.config.name),
            selectors: both_sides(line.selectors),
            action: line.action.into(),
            sa: line.sa.map(str::to_owned),
        }));
        let psp = &negotiated.psp;
        for sa in psp.sending() {
            if let ipsec::OutProto::Psp(proto) = &sa.proto {
                view.outbound.push((Arc::clone(sa), format!("psp v{}", proto.version().get())));
            }
        }
        for (sa, spi) in psp.receiving() {
            if let ipsec::InProto::Psp(proto) = &sa.proto {
                let suite = config::psp_versions(proto.versions());
                view.inbound.push((Arc::clone(sa), suite, format!("{spi:#010x}")));
            }
        }
        view.policies.extend(psp.policies().map(|(name, selectors, keyed)| PolicyStatus {
            name: name.to_owned(),
            selectors: both_sides(selectors),
            action: if keyed { "protect" } else { "drop" }.into(),
            sa: keyed.then(|| name.to_owned()),
        }));
        *self.negotiated.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    /// Everything, now.
    pub(crate) fn status(&self) -> Status {
        let views = [&self.file, &self.negotiated].map(|view| view.lock().unwrap_or_else(PoisonError::into_inner));
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let outbound = views.iter().flat_map(|view| &view.outbound).map(|(sa, suite)| outbound(sa, suite));
        let inbound = views.iter().flat_map(|view| &view.inbound).map(|(sa, suite, spi)| inbound(sa, suite, spi));
        let mut sas: Vec<SaStatus> = outbound.chain(inbound).collect();
        sas.sort_by(|a, b| a.name.cmp(&b.name).then(b.direction.cmp(&a.direction)));
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: (self.started.elapsed().as_secs_f64() * 1000.0).round() / 1000.0,
            healthy: self.healthy.load(Ordering::Relaxed),
            engine: "aws_lc".into(),
            sas,
            policies: views.iter().flat_map(|view| view.policies.iter().cloned()).collect(),
            total: core(&Totals::of(counters.iter().map(|c| &**c))),
            cores: counters.iter().map(|c| core(&Totals::of([&**c]))).collect(),
        }
    }
}

fn both_sides(selectors: &[Selector]) -> Vec<String> {
    let text = |selector: &Selector| {
        let (local, remote) = selector.sides();
        format!("{local} === {remote}")
    };
    selectors.iter().map(text).collect()
}

impl PolicyAction {
    fn word(&self) -> &'static str {
        match self {
            Self::Protect(_) => "protect",
            Self::Bypass => "bypass",
            Self::Drop => "drop",
        }
    }
}

fn core(totals: &Totals) -> CoreStatus {
    let count = |(packets, bytes)| Count { packets, bytes };
    CoreStatus {
        inner_rx: count(totals.inner_rx),
        inner_tx: count(totals.inner_tx),
        outer_rx: count(totals.outer_rx),
        outer_tx: count(totals.outer_tx),
        bypassed: totals.bypassed,
        audit_lost: totals.audit_lost,
        batches: totals.batches,
        drops: drops(Reason::ALL.iter().map(|reason| (*reason, totals.drops[*reason as usize]))),
    }
}

/// Reasons that occurred, by name.
fn drops(counts: impl Iterator<Item = (Reason, u64)>) -> BTreeMap<String, u64> {
    counts.filter(|(_, count)| *count > 0).map(|(reason, count)| (reason.key().into(), count)).collect()
}

fn half(common: &SaCommon, direction: &str, protocol: &str, spi: String, suite: &str) -> SaStatus {
    let (packets, bytes) = state::packets(&common.counters);
    let count = |reason: &Reason| common.counters.drops[*reason as usize].load(Ordering::Relaxed);
    SaStatus {
        name: common.name.to_string(),
        direction: direction.into(),
        protocol: protocol.into(),
        spi,
        mode: match common.mode {
            Mode::Tunnel => "tunnel".into(),
            Mode::Transport => "transport".into(),
            Mode::Beet(_) => "beet".into(),
        },
        suite: suite.into(),
        local: common.outer.peer.local.to_string(),
        remote: common.outer.peer.remote.to_string(),
        packets,
        bytes,
        drops: drops(Reason::ALL.iter().map(|reason| (*reason, count(reason)))),
        unknown_options: common.counters.unknown_options.load(Ordering::Relaxed),
        expired: common.check_lifetime().is_err(),
        inner_mtu: None,
        lanes: Vec::new(),
    }
}

fn outbound(sa: &OutboundSa, suite: &str) -> SaStatus {
    let lanes = sa.lanes.iter().take(MAX_LANES).map(|lane| Lane {
        session: lane.session.0.into(),
        next: Some(lane.seq.next()),
        saved: Some(lane.seq.saved()),
        top: None,
    });
    SaStatus {
        inner_mtu: Some(sa.inner_mtu.load(Ordering::Relaxed)),
        lanes: lanes.collect(),
        ..half(&sa.common, "out", sa.protocol().name(), format!("{:#010x}", sa.spi), suite)
    }
}

fn inbound(sa: &InboundSa, suite: &str, spi: &str) -> SaStatus {
    let tops = state::window_tops(sa);
    let lanes = tops.iter().take(MAX_LANES).map(|(lane, top)| Lane {
        session: *lane,
        next: None,
        saved: None,
        top: Some(*top),
    });
    SaStatus { lanes: lanes.collect(), ..half(&sa.common, "in", sa.protocol().name(), spi.into(), suite) }
}

/// The running server. Stops, and removes its socket, when dropped.
pub(crate) struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, for its owner only. A socket that nobody listens at is replaced.
    ///
    /// # Errors
    /// With the path and what to do.
    pub(crate) fn start(path: &Path, shared: Arc<Shared>) -> io::Result<Self> {
        let explained = |error: io::Error| {
            let text =
                format!("status socket {}: {error}; set another 'socket' in the section 'gateway'", path.display());
            io::Error::new(error.kind(), text)
        };
        remove_stale(path).map_err(explained)?;
        // Nobody else may connect between bind and chmod.
        let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        rustix::process::umask(mask);
        let listener = listener.map_err(explained)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(explained)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serve = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = stream.and_then(|stream| answer(stream, &shared)) {
                    tracing::debug!(target: "status", "{error}");
                }
            }
        };
        let thread = std::thread::Builder::new().name("status".into()).spawn(serve).map_err(explained)?;
        Ok(Self { path: path.to_owned(), stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread up.
        let _ = UnixStream::connect(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of that name that is no socket"))
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another weir answers there"))
        }
        Ok(_) => std::fs::remove_file(path),
    }
}

fn answer(mut stream: UnixStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    (&stream).take(MAX_REQUEST).read_to_string(&mut request)?;
    let response = if request.trim() == REQUEST {
        serde_json::to_vec(&shared.status())?
    } else {
        br#"{"error":"unknown request; send 'status'"}"#.to_vec()
    };
    stream.write_all(&response)
}

/// Asks a running gateway.
///
/// # Errors
/// With the path and what to do.
pub(crate) fn ask(path: &Path) -> io::Result<Vec<u8>> {
    let explained = |error: io::Error| {
        let text = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                format!("no weir answers at {}; is 'weir up' running? another place: --socket PATH", path.display())
            }
            io::ErrorKind::PermissionDenied => {
                format!("{}: permission denied; ask as the user that runs 'weir up'", path.display())
            }
            _ => format!("{}: {error}", path.display()),
        };
        io::Error::new(error.kind(), text)
    };
    let mut stream = UnixStream::connect(path).map_err(explained)?;
    stream.set_read_timeout(Some(PATIENCE * 5)).map_err(explained)?;
    stream.write_all(REQUEST.as_bytes()).map_err(explained)?;
    stream.shutdown(std::net::Shutdown::Write).map_err(explained)?;
    let mut response = Vec::new();
    stream.take(MAX_RESPONSE).read_to_end(&mut response).map_err(explained)?;
    Ok(response)
}

/// Writes a status for a person, within 80 columns.
pub(crate) fn render(status: &Status) -> String {
    let health = if status.healthy { "running" } else { "NOT HEALTHY" };
    let mut text = format!("weir {}, {health} for {}\n\n", status.version, span(status.uptime_s));
    let mut sas = table(&["SA", "dir", "proto", "SPI", "peer", "packets", "bytes", "drops"], &[5, 6, 7]);
    for sa in &status.sas {
        let name = if sa.expired { format!("{} (expired)", sa.name) } else { sa.name.clone() };
        sas.add_row([
            name,
            sa.direction.clone(),
            format!("{} {}", sa.protocol, sa.mode),
            sa.spi.clone(),
            sa.remote.clone(),
            sa.packets.to_string(),
            scaled(sa.bytes),
            sa.drops.values().sum::<u64>().to_string(),
        ]);
    }
    text.push_str(&format!("{sas}\n\n"));
    let mut policies = table(&["policy", "action", "local === remote"], &[]);
    for policy in &status.policies {
        let action = policy.sa.as_ref().map_or_else(|| policy.action.clone(), |sa| format!("{} {sa}", policy.action));
        policies.add_row([policy.name.clone(), action, policy.selectors.join("\n")]);
    }
    text.push_str(&format!("{policies}\n\n"));
    let mut flow = table(&["", "packets", "bytes"], &[1, 2]);
    for (name, count) in [
        ("from the inner side", status.total.inner_rx),
        ("to the outer side", status.total.outer_tx),
        ("from the outer side", status.total.outer_rx),
        ("to the inner side", status.total.inner_tx),
    ] {
        flow.add_row([name.to_owned(), count.packets.to_string(), scaled(count.bytes)]);
    }
    text.push_str(&format!("{flow}\n"));
    if status.total.drops.is_empty() {
        text.push_str("\nNothing was dropped.\n");
    } else {
        let mut lost = table(&["dropped", "packets", "because"], &[1]);
        for reason in Reason::ALL {
            if let Some(count) = status.total.drops.get(reason.key()) {
                lost.add_row([reason.key().to_owned(), count.to_string(), reason.meaning().to_owned()]);
            }
        }
        text.push_str(&format!("\n{lost}\n"));
    }
    text
}

fn table(head: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic).set_width(80);
    table.set_header(head);
    for column in right {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

/// Bytes with three or four digits and a power of 1000.
fn scaled(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB", "TB"] {
        if value < 10_000.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} PB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Status {
        let core = || CoreStatus {
            inner_rx: Count { packets: u64::MAX / 1000, bytes: u64::MAX },
            inner_tx: Count::default(),
            outer_rx: Count::default(),
            outer_tx: Count::default(),
            bypassed: 0,
            audit_lost: 0,
            batches: 0,
            drops: BTreeMap::from([("bad_icv".into(), 3), ("seq_unsaved".into(), 12_345_678)]),
        };
        let sa = |direction: &str| SaStatus {
            name: "a-long-name-of-an-sa".into(),
            direction: direction.into(),
            protocol: "eesp".into(),
            spi: "0x80001001".into(),
            mode: "transport".into(),
            suite: "aes256gcm16".into(),
            local: "2001:db8:1234:5678:9abc:def0:1234:5678".into(),
            remote: "2001:db8:1234:5678:9abc:def0:1234:5679".into(),
            packets: 123_456_789_012,
            bytes: 99_999_999_999_999,
            drops: BTreeMap::from([("bad_icv".into(), 3)]),
            unknown_options: 0,
            expired: true,
            inner_mtu: None,
            lanes: Vec::new(),
        };
        Status {
            version: "0.1.0".into(),
            uptime_s: 90_061.0,
            healthy: true,
            engine: "aws_lc".into(),
            sas: vec![sa("out"), sa("in")],
            policies: vec![PolicyStatus {
                name: "sites".into(),
                selectors: vec!["10.1.0.0/16[tcp/80] === 2001:db8:1234:5678::/64[tcp]".into()],
                action: "protect".into(),
                sa: Some("a-long-name-of-an-sa".into()),
            }],
            total: core(),
            cores: vec![core()],
        }
    }

    #[test]
    fn the_table_fits_80_columns() {
        let text = render(&example());
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?}\n{text}");
        assert!(text.contains("1 d 1 h") && text.contains("Numbers") | text.contains("seq_unsaved"));
    }

    #[test]
    fn a_status_survives_json() {
        let json = serde_json::to_string(&example()).unwrap();
        let again: Status = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), json);
    }

    #[test]
    fn the_server_answers_its_owner_and_goes_without_a_trace() {
        let path = std::env::temp_dir().join(format!("weir-status-{}.sock", std::process::id()));
        assert!(ask(&path).unwrap_err().to_string().contains("weir up"));
        let server = Server::start(&path, Arc::new(Shared::new())).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let status: Status = serde_json::from_slice(&ask(&path).unwrap()).unwrap();
        assert!(status.healthy && status.sas.is_empty());
        assert_eq!(Server::start(&path, Arc::new(Shared::new())).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        // A client that says nothing for a while must not keep others out for good.
        let silent = UnixStream::connect(&path).unwrap();
        assert!(ask(&path).is_ok());
        drop(silent);
        drop(server);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(Server::start(&path, Arc::new(Shared::new())).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
    }
}
