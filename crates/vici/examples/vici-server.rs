//! A vici server with a small answer to every command and no SAs behind it: `vici-server SOCKET
//! [CERTIFICATE.der]`.
//!
//! `testing/interop/swanctl` points `swanctl` and the Python package at it to check how they parse
//! each message. Loaded objects are stored by name; a command fails where its connection is called
//! `missing`. It ends when its standard input does.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vici::listing::{
    self, Algorithms, AuthListing, AuthorityListing, CertFlag, CertKind, CertListing, ChildConfigListing, ChildIpsec,
    ChildListing, ChildState, ConnListing, IkeSaListing, IkeState, Lease, LogListing, Mode, PolicyListing, PoolListing,
    StatsListing, Usage,
};
use vici::{ClientId, Command, Event, Incoming, Message, Server, ViciHandle};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let socket = arguments.next().expect("usage: vici-server SOCKET [CERTIFICATE.der]");
    let certificate = arguments.next().map(|path| std::fs::read(path).expect("certificate"));
    let (server, requests) = Server::start(Path::new(&socket), None).expect("socket");
    let mut daemon = Daemon { vici: server.handle(), loaded: BTreeMap::new(), certificate };
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        end.store(true, Ordering::Relaxed);
    });
    println!("ready");
    while !ended.load(Ordering::Relaxed) {
        if let Ok(Some(Incoming::Request { client, command, message })) =
            requests.next_within(Duration::from_millis(100))
        {
            println!("{} {message:?}", command.name());
            daemon.run(client, command, &message);
        }
        daemon.tell();
    }
}

struct Daemon {
    vici: ViciHandle,
    /// Loaded sections, by kind.
    loaded: BTreeMap<&'static str, Vec<String>>,
    certificate: Option<Vec<u8>>,
}

impl Daemon {
    fn run(&mut self, client: ClientId, command: Command, request: &Message) {
        let list = |event, items: Vec<Message>| self.vici.list(client, event, items, Message::new());
        match command {
            Command::ListSas => {
                let sas = ike_sas().into_iter().filter(|sa| request.text("ike").is_none_or(|name| name == sa.name));
                list(Event::ListSa, sas.map(|sa| sa.list_sa()).collect());
            }
            Command::ListConns => list(Event::ListConn, vec![connection().list_conn()]),
            Command::ListPolicies => {
                let asked = policies().into_iter().filter(|policy| policy.is_asked_for(request));
                list(Event::ListPolicy, asked.map(|policy| policy.list_policy()).collect());
            }
            Command::ListCerts => {
                let asked = self.certificates().into_iter().filter(|cert| cert.is_asked_for(request));
                list(Event::ListCert, asked.map(|cert| cert.list_cert()).collect());
            }
            Command::ListAuthorities => {
                let authority = AuthorityListing {
                    name: "root".into(),
                    cacert: "CN=Root".into(),
                    crl_uris: vec!["http://192.0.2.9/root.crl".into()],
                    ocsp_uris: vec!["http://192.0.2.9:8888".into()],
                    cert_uri_base: None,
                };
                list(Event::ListAuthority, vec![authority.list_authority()]);
            }
            _ => {
                let reply = self.answer(client, command, request);
                self.vici.reply(client, &reply);
            }
        }
    }

    fn answer(&mut self, client: ClientId, command: Command, request: &Message) -> Message {
        let asked_for = request.text("child").or(request.text("ike"));
        let matches = usize::from(asked_for != Some("missing"));
        match command {
            Command::Version => listing::version("weir-example", "1.2.3"),
            Command::Stats => stats(),
            Command::GetPools => listing::get_pools(&pools(request)),
            Command::GetAlgorithms => listing::get_algorithms([
                ("encryption", vec![("AES_CBC".to_owned(), "aws-lc")]),
                ("ke", vec![("CURVE_25519".to_owned(), "aws-lc")]),
            ]),
            Command::GetCounters => listing::get_counters([("", vec![("ike-rekey-init", 2), ("ike-rekey-resp", 3)])]),
            Command::GetConns => self.names("conns", "conn"),
            Command::GetKeys => self.names("keys", "key"),
            Command::GetShared => self.names("keys", "shared"),
            Command::GetAuthorities => self.names("authorities", "authority"),
            Command::LoadConn => self.load("conn", request.sections().map(|(name, _)| name).next()),
            Command::LoadPool => self.load("pool", request.sections().map(|(name, _)| name).next()),
            Command::LoadAuthority => self.load("authority", request.sections().map(|(name, _)| name).next()),
            Command::LoadShared => self.load("shared", request.text("id")),
            Command::LoadKey => {
                self.load("key", Some(&"ab".repeat(20)));
                listing::loaded_key(&[0xab; 20])
            }
            Command::UnloadConn => self.unload("conn", request.text("name")),
            Command::UnloadKey => self.unload("key", request.text("id")),
            Command::UnloadShared => self.unload("shared", request.text("id")),
            Command::Initiate if matches == 0 => {
                listing::failure_because("CHILD_SA config 'missing' not found", "no-config")
            }
            Command::Initiate => {
                for text in ["initiating IKE_SA site[1]", "CHILD_SA net{1} established"] {
                    let line = LogListing { group: "IKE", level: 1, ike_sa: Some(("site", 1)), text };
                    line.control_log().for_each(|line| self.vici.event_to(client, Event::ControlLog, &line));
                }
                listing::success()
            }
            Command::Terminate => listing::terminated(matches, matches),
            Command::Rekey => listing::matched(matches, "rekey"),
            Command::Redirect => listing::matched(matches, "redirect"),
            _ => listing::success(),
        }
    }

    /// Sends an event to all listeners.
    fn tell(&self) {
        if self.vici.is_registered(Event::Log) {
            let line = LogListing { group: "NET", level: 1, ike_sa: None, text: "first line\nsecond line" };
            line.log(3).for_each(|line| self.vici.event(Event::Log, &line));
        }
        if let (true, Some(sa)) = (self.vici.is_registered(Event::ChildUpdown), ike_sas().first()) {
            self.vici.event(Event::IkeUpdown, &sa.updown(true));
            self.vici.event(Event::ChildUpdown, &sa.child_updown(true, &sa.children[0]));
        }
    }

    fn names(&self, key: &str, kind: &'static str) -> Message {
        listing::names(key, self.loaded.get(kind).into_iter().flatten().map(String::as_str))
    }

    fn load(&mut self, kind: &'static str, name: Option<&str>) -> Message {
        match name {
            Some("missing") | None => listing::failure("this one cannot be loaded"),
            Some(name) => {
                let names = self.loaded.entry(kind).or_default();
                names.retain(|known| known != name);
                names.push(name.to_owned());
                listing::success()
            }
        }
    }

    fn unload(&mut self, kind: &'static str, name: Option<&str>) -> Message {
        self.loaded.entry(kind).or_default().retain(|known| Some(known.as_str()) != name);
        listing::success()
    }

    fn certificates(&self) -> Vec<CertListing> {
        let listed = |der: &Vec<u8>| CertListing {
            kind: CertKind::X509,
            flag: CertFlag::Ca,
            has_private_key: true,
            der: der.clone(),
            subject: None,
        };
        self.certificate.iter().map(listed).collect()
    }
}

fn ike_sas() -> Vec<IkeSaListing> {
    let established = IkeSaListing {
        name: "site".into(),
        unique_id: 1,
        version: 2,
        state: IkeState::Established,
        local: ([192, 0, 2, 1], 4500).into(),
        local_id: "moon.example".into(),
        remote: ([192, 0, 2, 2], 4500).into(),
        remote_id: "sun.example".into(),
        remote_eap_id: Some("carol".into()),
        initiator: true,
        initiator_spi: 0x0102_0304_0506_0708,
        responder_spi: 0xa1a2_a3a4_a5a6_a7a8,
        nat_local: true,
        nat_remote: false,
        nat_fake: false,
        algorithms: Some(Algorithms {
            encryption: Some((listing::transform_name(1, 20), Some(256))),
            prf: Some(listing::transform_name(2, 6)),
            key_exchange: Some(listing::transform_name(4, 31)),
            additional: vec![(1, listing::transform_name(6, 36))],
            ..Algorithms::default()
        }),
        ppk: true,
        established_s: Some(61),
        rekey_s: Some(13_000),
        reauth_s: None,
        local_vips: vec![],
        remote_vips: vec![[10, 3, 0, 1].into()],
        tasks_queued: vec![],
        tasks_active: vec!["CHILD_CREATE".into()],
        tasks_passive: vec![],
        children: vec![
            child_sa("net", 2, Mode::Tunnel, "ESP", Some(1)),
            child_sa("host", 3, Mode::Transport, "EESP", None),
        ],
    };
    let connecting = IkeSaListing {
        name: "branch".into(),
        unique_id: 2,
        state: IkeState::Connecting,
        remote_id: "%any".into(),
        remote_eap_id: None,
        responder_spi: 0,
        algorithms: None,
        ppk: false,
        established_s: None,
        rekey_s: None,
        remote_vips: vec![],
        tasks_active: vec![],
        children: vec![],
        ..established.clone()
    };
    vec![established, connecting]
}

fn child_sa(name: &str, unique_id: u32, mode: Mode, protocol: &str, cpu: Option<u32>) -> ChildListing {
    ChildListing {
        name: name.into(),
        unique_id,
        reqid: 1,
        state: ChildState::Installed,
        mode,
        label: None,
        ipsec: Some(ChildIpsec {
            protocol: protocol.into(),
            encap: true,
            spi_in: 0xc000_0001,
            spi_out: 0x0000_0abc,
            if_id_in: None,
            if_id_out: None,
            per_cpu_sas: cpu.is_some(),
            cpu,
            algorithms: Algorithms {
                encryption: Some((listing::transform_name(1, 12), Some(128))),
                integrity: Some((listing::transform_name(3, 12), None)),
                ..Algorithms::default()
            },
            esn: true,
            usage_in: Usage { bytes: 84_000, packets: 1000, last_s: Some(2) },
            usage_out: Usage { bytes: 168, packets: 2, last_s: None },
            rekey_s: Some(3000),
            life_s: Some(3900),
            install_s: 60,
        }),
        local_ts: vec!["10.1.0.0/16".into(), "fd00:1::/64[tcp/443]".into()],
        remote_ts: vec!["10.2.0.0/16".into()],
    }
}

fn connection() -> ConnListing {
    let child = ChildConfigListing {
        name: "net".into(),
        mode: Mode::Tunnel,
        label: None,
        rekey_s: 3600,
        rekey_bytes: 0,
        rekey_packets: 1_000_000,
        dpd_action: "restart".into(),
        close_action: "none".into(),
        local_ts: vec!["10.1.0.0/16".into()],
        remote_ts: vec!["dynamic".into()],
        interface: None,
        priority: Some(5),
        proposals: vec!["aes256gcm16".into()],
    };
    ConnListing {
        name: "site".into(),
        local_addrs: vec!["192.0.2.1".into()],
        remote_addrs: vec!["192.0.2.2".into(), "sun.example".into()],
        local_port: 500,
        remote_port: 500,
        version: 2,
        reauth_s: 0,
        rekey_s: 14_400,
        unique: "UNIQUE_NO",
        dpd_delay_s: 30,
        dpd_timeout_s: 0,
        ppk_id: Some("ppk@example".into()),
        ppk_required: true,
        proposals: vec!["aes256gcm16-prfsha384-x25519".into()],
        local: vec![AuthListing {
            class: "public key".into(),
            id: Some("moon.example".into()),
            certs: vec!["CN=moon".into()],
            ..AuthListing::default()
        }],
        remote: vec![AuthListing {
            class: "EAP".into(),
            eap_type: Some("EAP_MSCHAPV2".into()),
            id: Some("%any".into()),
            groups: vec!["staff".into()],
            ..AuthListing::default()
        }],
        children: vec![child],
    }
}

fn policies() -> Vec<PolicyListing> {
    let trap = PolicyListing {
        ike: Some("site".into()),
        child: "net".into(),
        reqid: Some(1),
        mode: Mode::Tunnel,
        label: None,
        local_ts: vec!["10.1.0.0/16".into()],
        remote_ts: vec!["10.2.0.0/16".into()],
    };
    let pass = PolicyListing { ike: None, child: "lan".into(), reqid: None, mode: Mode::Pass, ..trap.clone() };
    vec![trap, pass]
}

fn pools(request: &Message) -> Vec<PoolListing> {
    let lease = Lease { address: [10, 3, 0, 1].into(), identity: "carol".into(), online: true };
    vec![PoolListing {
        name: "road".into(),
        base: [10, 3, 0, 0].into(),
        size: 254,
        online: 1,
        offline: 0,
        leases: request.flag("leases").is_some_and(|wanted| wanted).then(|| vec![lease]),
    }]
}

fn stats() -> Message {
    StatsListing {
        uptime_s: 7300,
        started_unix_s: 1_795_237_663,
        workers_total: 4,
        workers_idle: 2,
        workers_active: [1, 0, 1, 0],
        queues: [0, 0, 3, 0],
        scheduled: 12,
        ike_sas: 2,
        half_open: 1,
        plugins: vec!["esp".into(), "eesp".into()],
    }
    .stats()
}
