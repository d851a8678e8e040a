//! The section `gateway`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use crypto::Engine;
use dataplane::Scheduler;
use wire::IpProto;
use wire::registry::{CodePoints, PORT_IKE};

use crate::account::User;
use crate::http::tls::TlsFiles;
use crate::resolver::Resolver;

use super::problem::{Problem, Problems};
use super::syntax::Section;
use super::value::{Fields, ValueError, list, number, parsed, switch, word, word_or_number};

/// An address of the TUN device with its prefix length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Interface {
    /// Address.
    pub addr: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

/// Settings of the daemon, each as docs/configuration.md describes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Gateway {
    /// Name of the TUN device.
    pub tun: String,
    /// User that the daemon becomes, by name or number; `None`: it does not change.
    pub user: Option<String>,
    /// Addresses of the device.
    pub addresses: Vec<Interface>,
    /// MTU of the device in bytes; `None`: what fits the narrowest SA.
    pub mtu: Option<u32>,
    /// True if routes are set.
    pub routes: bool,
    /// Routing table, and preference of its rule.
    pub route_table: u32,
    /// Firewall mark of Weir's own packets.
    pub fwmark: u32,
    /// True if clear text that policies protect is dropped by an nftables table.
    pub guard: bool,
    /// True if that table also drops local sources that arrive where no route leads back to them.
    pub guard_rpf: bool,
    /// True if protected traffic stays blocked after an orderly stop; otherwise it leaves in clear
    /// text.
    pub stays_closed: bool,
    /// True if traffic of a loaded child is dropped (`true`) or passes in clear text while there is
    /// no SA for it.
    pub unprotected_drops: bool,
    /// True if networks of private addresses on this host's links are reached without a tunnel that
    /// covers them.
    pub bypass_lan: bool,
    /// Limit for the MSS option of TCP connections through the tunnel.
    pub mss: Mss,
    /// Packet threads.
    pub workers: usize,
    /// GSO and GRO are enabled if the kernel supports them.
    pub offload: bool,
    /// Time in milliseconds after which packets of a standing queue are dropped early; 0: never.
    pub aqm_interval_ms: u64,
    /// Interfaces that use AF_XDP for protected packets.
    pub xdp: Vec<String>,
    /// Crypto engine; `None` selects the fastest on this host.
    pub engine: Option<Engine>,
    /// Scheduler of the workers; `None` selects it by the rule in `scheduling.rs`.
    pub scheduler: Option<Scheduler>,
    /// Crypto threads of each worker, with the scheduler `async`.
    pub crypto_threads: usize,
    /// True if each flow has a queue of the device for itself, whatever its answers do.
    pub flow_queues: bool,
    /// Directory of saved sequence numbers.
    pub state_dir: PathBuf,
    /// Sequence numbers that one write to `state_dir` makes usable.
    pub state_block: u64,
    /// Control socket, where swanctl and weir's own commands ask.
    pub socket: PathBuf,
    /// Destination of the peers' name servers; `None`: they are ignored.
    pub resolver: Option<Resolver>,
    /// The process confines itself.
    pub confine: bool,
    /// Address of the metrics endpoint; `None`: no endpoint.
    pub metrics: Option<SocketAddr>,
    /// Certificate and key of the metrics endpoint; `None`: no TLS, and a loopback address.
    pub metrics_tls: Option<TlsFiles>,
    /// Address of the status page; `None`: no page.
    pub web: Option<SocketAddr>,
    /// Names in requests for the status page, besides loopback addresses and `localhost`.
    pub web_hosts: Vec<String>,
    /// True if IKE is spoken; `None`: when there is a connection.
    pub ike: Option<bool>,
    /// UDP port of IKE.
    pub ike_port: u16,
    /// Directory for Wireshark's key tables; set by the command line, not by the file.
    pub log_secrets: Option<PathBuf>,
    /// Log filter.
    pub log: String,
    /// Log as JSON.
    pub log_json: bool,
    /// DES, 3DES, MD5, NULL are permitted.
    pub allow_legacy: bool,
    /// IKEv1: aggressive mode with shared keys is answered.
    pub aggressive_mode_psk: bool,
    /// IKEv1: Unity is announced.
    pub cisco_unity: bool,
    /// PSP versions 2 and 3 are permitted.
    pub allow_psp_gmac: bool,
    /// Protocol number and ports.
    pub code_points: CodePoints,
}

/// Limit for the MSS option of TCP connections through the tunnel (RFC 9293 §3.7.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mss {
    /// Derived from the MTU of the device.
    Auto,
    /// None: the option is not changed.
    Unchanged,
    /// At most so many bytes over IPv4, 20 less over IPv6.
    AtMost(u16),
}

/// Below, a loop of the control side could not keep up with the packets; above, a few crashes would
/// use up 32 bits.
const STATE_BLOCK: std::ops::RangeInclusive<u64> = 1024..=1 << 28;

/// Crypto threads of all workers together: each has two rings and a stack, and each of these
/// threads beyond the CPUs of the host only takes time from the others.
const MAX_CRYPTO_THREADS: usize = 256;

/// Names of engines.
const ENGINES: &[(&str, Option<Engine>)] = &[
    ("auto", None),
    ("ipsec_mb", Some(Engine::IpsecMb)),
    ("aws_lc", Some(Engine::AwsLc)),
    ("vaes", Some(Engine::Vaes)),
    ("null", Some(Engine::Null)),
];

impl Default for Gateway {
    fn default() -> Self {
        Self {
            tun: "weir0".into(),
            user: None,
            addresses: Vec::new(),
            mtu: None,
            routes: true,
            route_table: 30_565,
            fwmark: 0x7765,
            guard: true,
            guard_rpf: true,
            stays_closed: true,
            unprotected_drops: true,
            bypass_lan: true,
            mss: Mss::Auto,
            workers: 1,
            offload: true,
            aqm_interval_ms: 0,
            xdp: Vec::new(),
            engine: None,
            scheduler: Some(ports::usual_scheduler()),
            crypto_threads: 1,
            flow_queues: false,
            state_dir: "/var/lib/weir".into(),
            state_block: 1 << 20,
            socket: "/run/weir/weir.vici".into(),
            resolver: None,
            confine: true,
            metrics: None,
            metrics_tls: None,
            web: None,
            web_hosts: Vec::new(),
            log_secrets: None,
            ike: None,
            ike_port: PORT_IKE,
            log: "info".into(),
            log_json: false,
            allow_legacy: false,
            aggressive_mode_psk: false,
            cisco_unity: false,
            allow_psp_gmac: false,
            code_points: CodePoints::default(),
        }
    }
}

/// Schedulers by their names.
const SCHEDULERS: [(&str, Option<Scheduler>); 4] = [
    ("auto", None),
    (Scheduler::RunToCompletion.name(), Some(Scheduler::RunToCompletion)),
    (Scheduler::Pipeline.name(), Some(Scheduler::Pipeline)),
    (Scheduler::Async.name(), Some(Scheduler::Async)),
];

impl Gateway {
    /// Crypto engine to use.
    pub fn engine(&self) -> Engine {
        self.engine.unwrap_or_else(Engine::best)
    }

    /// The user that the daemon becomes when it is started by this process; `None` where it stays
    /// the same.
    ///
    /// # Errors
    /// There is no such user.
    pub(crate) fn future_user(&self) -> Result<Option<User>, Problem> {
        // Another user than root cannot become anybody: the files that it can read are decisive.
        let name = self.user.as_ref().filter(|_| rustix::process::geteuid().is_root());
        name.map(|name| User::find(name)).transpose()
    }

    /// Makes the paths of `metrics_cert` and `metrics_key` relative to `folder`, that of the
    /// configuration, and reads both files.
    ///
    /// # Errors
    /// A file cannot be read, or the key is that of another certificate.
    pub(crate) fn metrics_files(&mut self, folder: &Path, root: &Section) -> Result<(), Problems> {
        let Some(files) = &mut self.metrics_tls else { return Ok(()) };
        *files = TlsFiles { certificate: folder.join(&files.certificate), key: folder.join(&files.key) };
        files.read().map(drop).map_err(|(of_key, why)| {
            let name = if of_key { "metrics_key" } else { "metrics_cert" };
            let message = format!("gateway.{name}: {why}");
            let setting = root.section("gateway").and_then(|section| section.setting(name));
            let problem = match setting {
                Some(setting) => Problem::at(&setting.value_at, message),
                None => Problem::whole(message),
            };
            problem.help("'weir pki issue --server' makes both files; paths are relative to the configuration").into()
        })
    }

    pub(crate) fn read(fields: &Fields<'_>) -> Self {
        let default = Self::default();
        let port = number(1..=65_535);
        let points = default.code_points;
        let path = |text: &str| Ok::<_, ValueError>(PathBuf::from(text));
        let wide = number(1..=u64::from(u32::MAX));
        let metrics_tls = match (fields.get("metrics_cert", path), fields.get("metrics_key", path)) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (Some(_), None) => {
                fields.fault_of("metrics_cert", "metrics_key is missing", "set it to the file of the private key");
                None
            }
            (None, Some(_)) => {
                fields.fault_of("metrics_key", "metrics_cert is missing", "set it to the file of the certificate");
                None
            }
            (None, None) => None,
        };
        let gateway = Self {
            tun: fields.get("tun", device).unwrap_or(default.tun),
            user: fields.get("user", user),
            addresses: fields.get("addresses", list(interface)).unwrap_or_default(),
            mtu: fields.get("mtu", word_or_number("auto", 576..=65_535)).flatten().map(|n| n as u32),
            routes: fields.get("routes", word(&[("auto", true), ("none", false)])).unwrap_or(true),
            route_table: fields.get("route_table", &wide).map_or(default.route_table, |n| n as u32),
            fwmark: fields.get("fwmark", &wide).map_or(default.fwmark, |n| n as u32),
            guard: fields.get("guard", word(&[("nftables", true), ("none", false)])).unwrap_or(default.guard),
            guard_rpf: fields.get("guard_rpf", switch).unwrap_or(default.guard_rpf),
            stays_closed: fields
                .get("on_stop", word(&[("closed", true), ("open", false)]))
                .unwrap_or(default.stays_closed),
            unprotected_drops: fields
                .get("unprotected", word(&[("drop", true), ("pass", false)]))
                .unwrap_or(default.unprotected_drops),
            bypass_lan: fields.get("bypass_lan", switch).unwrap_or(default.bypass_lan),
            mss: fields.get("mss", mss).unwrap_or(default.mss),
            workers: fields.get("workers", number(1..=64)).map_or(1, |n| n as usize),
            offload: fields.get("offload", word(&[("auto", true), ("no", false)])).unwrap_or(true),
            aqm_interval_ms: fields.get("aqm_interval", number(0..=10_000)).unwrap_or(0),
            xdp: fields.get("xdp", list(device)).unwrap_or_default(),
            engine: fields.get("engine", word(ENGINES)).flatten(),
            scheduler: fields.get("scheduler", word(&SCHEDULERS)).unwrap_or(default.scheduler),
            crypto_threads: fields.get("crypto_threads", number(1..=63)).map_or(1, |n| n as usize),
            flow_queues: fields
                .get("queues", word(&[("answers", false), ("flows", true)]))
                .unwrap_or(default.flow_queues),
            state_dir: fields.get("state_dir", path).unwrap_or(default.state_dir),
            state_block: fields.get("state_block", number(STATE_BLOCK)).unwrap_or(default.state_block),
            socket: fields.get("socket", path).unwrap_or(default.socket),
            resolver: fields.get("resolver", resolver).flatten(),
            confine: fields.get("confine", word(&[("auto", true), ("no", false)])).unwrap_or(true),
            metrics: fields.get(
                "metrics",
                endpoint(9790, metrics_tls.is_some(), "or set metrics_cert and metrics_key for TLS and a token"),
            ),
            metrics_tls,
            web: fields.get("web", endpoint(9791, false, "and reach it by 'ssh -L' or through a proxy with TLS")),
            web_hosts: fields.list("web_hosts", host_name).unwrap_or_default(),
            log_secrets: None,
            ike: fields.get("ike", word(&[("auto", None), ("yes", Some(true)), ("no", Some(false))])).flatten(),
            ike_port: fields.get("ike_port", &port).map_or(default.ike_port, |n| n as u16),
            log: fields.get("log", crate::log::check_filter).unwrap_or(default.log),
            log_json: fields.get("log_json", switch).unwrap_or(false),
            allow_legacy: fields.get("allow_legacy", switch).unwrap_or(false),
            aggressive_mode_psk: fields.get("aggressive_mode_psk", switch).unwrap_or(false),
            cisco_unity: fields.get("cisco_unity", switch).unwrap_or(false),
            allow_psp_gmac: fields.get("allow_psp_gmac", switch).unwrap_or(false),
            code_points: CodePoints {
                eesp_protocol: fields.get("eesp_protocol", eesp_protocol).unwrap_or(points.eesp_protocol),
                nat_t_port: fields.get("nat_t_port", &port).map_or(points.nat_t_port, |n| n as u16),
                psp_port: fields.get("psp_port", &port).map_or(points.psp_port, |n| n as u16),
                ike: points.ike,
            },
        };
        if gateway.code_points.nat_t_port == gateway.code_points.psp_port {
            fields.fault_of("psp_port", "nat_t_port and psp_port are the same", "use two different ports");
        }
        if gateway.ike_port == gateway.code_points.nat_t_port {
            fields.fault_of("ike_port", "ike_port and nat_t_port are the same", "use two different ports");
        }
        if gateway.metrics_tls.is_some() && fields.setting("metrics").is_none() {
            fields.fault_of(
                "metrics_cert",
                "metrics is not set",
                "write the address, for example metrics = 0.0.0.0:9790",
            );
        }
        if fields.setting("crypto_threads").is_some() && gateway.scheduler != Some(Scheduler::Async) {
            let message = format!("no effect with 'scheduler = {}'", gateway.scheduler.map_or("auto", Scheduler::name));
            fields.fault_of("crypto_threads", message, "set 'scheduler = async', or remove it");
        }
        let is_pipeline = fields.setting("scheduler").is_some() && gateway.scheduler == Some(Scheduler::Pipeline);
        if is_pipeline && gateway.workers == 1 {
            fields.fault_of(
                "scheduler",
                "a pipeline of one worker has no second one to pass batches to",
                "set 'workers' to 2 or more, or use 'scheduler = auto'",
            );
        }
        if gateway.scheduler == Some(Scheduler::Async) && gateway.workers * gateway.crypto_threads > MAX_CRYPTO_THREADS
        {
            fields.fault_of(
                "crypto_threads",
                format!(
                    "{} workers with {} threads each: more than {MAX_CRYPTO_THREADS} crypto threads",
                    gateway.workers, gateway.crypto_threads
                ),
                format!("use at most {} with these workers", MAX_CRYPTO_THREADS / gateway.workers),
            );
        }
        if gateway.web.is_some() && gateway.web == gateway.metrics {
            fields.fault_of("web", "metrics and web have the same address", "use two different ports");
        }
        if let Some(twice) =
            gateway.xdp.iter().enumerate().find_map(|(i, name)| gateway.xdp[..i].contains(name).then_some(name))
        {
            fields.fault_of("xdp", format!("{twice} is listed twice"), "list it once");
        }
        if gateway.aggressive_mode_psk {
            let warning = "every host that sends a first message receives a hash of the shared key, and can test \
                           guesses of it without limit; use main mode, signatures, or random keys";
            fields.warn("aggressive_mode_psk", warning);
        }
        fields.finish(&[], |_| None);
        gateway
    }
}

/// Address of the metrics endpoint or of the status page. Both reveal peers and traffic volumes, so
/// without TLS the address must not be reachable from other hosts. `port` is that of the example,
/// `instead` the advice for access from other hosts.
fn endpoint(port: u16, tls: bool, instead: &'static str) -> impl Fn(&str) -> Result<SocketAddr, ValueError> {
    move |text| {
        let address: SocketAddr =
            text.parse().map_err(|_| format!("write ADDRESS:PORT, for example 127.0.0.1:{port} or [::1]:{port}"))?;
        if !tls && !address.ip().is_loopback() {
            return Err(format!(
                "{} is reachable by other hosts; write 127.0.0.1:{port} or [::1]:{port}, {instead}",
                address.ip(),
                port = address.port()
            )
            .into());
        }
        if address.port() == 0 {
            return Err("port 0 is invalid; use 1 to 65535".into());
        }
        Ok(address)
    }
}

/// A name without a port, as in the address line of a browser.
fn host_name(text: &str) -> Result<String, ValueError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let fits = (1..=253).contains(&text.len()) && text.bytes().all(plain);
    fits.then(|| text.to_ascii_lowercase())
        .ok_or_else(|| "write a name without a port, for example gw.example.org".into())
}

fn resolver(text: &str) -> Result<Option<Resolver>, ValueError> {
    match text {
        "none" => Ok(None),
        "resolvconf" => Ok(Some(Resolver::Resolvconf)),
        path if path.starts_with('/') => Ok(Some(Resolver::File(path.into()))),
        _ => Err("write none, resolvconf, or the path of a file from the root, for example /etc/resolv.conf".into()),
    }
}

fn mss(text: &str) -> Result<Mss, ValueError> {
    match text {
        "auto" => Ok(Mss::Auto),
        "no" => Ok(Mss::Unchanged),
        // The least that every IPv4 host accepts (RFC 9293 §3.7.1), and what fits the largest
        // packet.
        _ => number(536..=65_495)(text)
            .map(|mss| Mss::AtMost(mss as u16))
            .map_err(|_| "use auto, no, or a number of bytes from 536 to 65495".into()),
    }
}

fn user(text: &str) -> Result<String, ValueError> {
    let fits = (1..=32).contains(&text.len()) && !text.contains([':', '/', ',']) && !text.contains(char::is_whitespace);
    fits.then(|| text.to_owned()).ok_or_else(|| "write the name or the number of a user, for example weir".into())
}

fn device(text: &str) -> Result<String, ValueError> {
    let fits = (1..=15).contains(&text.len()) && !text.contains(['/', ' ', ':']) && text != "." && text != "..";
    fits.then(|| text.to_owned())
        .ok_or_else(|| "write a device name of 1 to 15 characters without '/', ':' or blanks".into())
}

fn interface(text: &str) -> Result<Interface, ValueError> {
    let wrong = || "write ADDRESS/PREFIX, for example 10.1.0.1/24".to_owned();
    let (addr, prefix) = text.split_once('/').ok_or_else(wrong)?;
    let addr: IpAddr = parsed("")(addr).map_err(|_| wrong())?;
    let longest = if addr.is_ipv4() { 32 } else { 128 };
    let prefix = number(0..=longest)(prefix).map_err(|_| wrong())? as u8;
    Ok(Interface { addr, prefix })
}

fn eesp_protocol(text: &str) -> Result<IpProto, ValueError> {
    let proto = number(1..=254)(text)? as u8;
    match IpProto(proto).name() {
        Some(name) => Err(format!("{proto} is assigned to {name}; write a free number, for example 253").into()),
        None => Ok(IpProto(proto)),
    }
}
