//! Weir on both hosts, and the cable without it.

use std::fmt::Write;
use std::path::Path;

use crypto::Suite;
use ipsec::Protocol;

use super::{Count, Counters, Started};
use crate::demo::DemoError;
use crate::demo::child::Interrupt;
use crate::demo::counters::NetCount;
use crate::demo::gateway::Gateway;
use crate::demo::row::random;
use crate::demo::world::{CABLE, End, World};
use crate::pair::{self, PSP_SUITES, Shape};

/// The cable: the kernel forwards, and its counters count.
pub(super) struct Cable;

impl Started for Cable {
    fn check(&mut self) -> Result<(), DemoError> {
        Ok(())
    }

    fn counters(&self, world: &World) -> Result<[Counters; 2], DemoError> {
        let one = |end| {
            let count = cable(world, end)?;
            Ok(Counters {
                sent: Count { packets: Some(count.tx_packets), bytes: count.tx_bytes },
                received: Count { packets: Some(count.rx_packets), bytes: count.rx_bytes },
                ..Counters::default()
            })
        };
        Ok([one(End::Sun)?, one(End::Moon)?])
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Counters of a host's end of the cable.
pub(crate) fn cable(world: &World, end: End) -> Result<NetCount, DemoError> {
    let text = world.read(end, &["/proc/net/dev", "/proc/net/snmp"])?;
    NetCount::parse(&text, CABLE).ok_or_else(|| DemoError::Row(format!("no counters of {CABLE} on {end}")))
}

/// `weir up` twice.
pub(super) struct Weir(Vec<Gateway>);

impl Weir {
    pub(super) fn start(
        subject: &pair::Subject,
        world: &World,
        dir: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, DemoError> {
        let length = key_bytes(subject);
        let keys = [random(length)?, random(length)?];
        let mut gateways = Vec::new();
        for end in End::BOTH {
            let text = configuration(subject, world, end, &keys, dir);
            gateways.push(Gateway::start(world, end, &text, None, dir)?);
        }
        for gateway in &mut gateways {
            gateway.wait_until_ready(interrupt)?;
        }
        Ok(Self(gateways))
    }
}

impl Started for Weir {
    fn check(&mut self) -> Result<(), DemoError> {
        self.0.iter_mut().try_for_each(Gateway::check)
    }

    fn counters(&self, world: &World) -> Result<[Counters; 2], DemoError> {
        let one = |gateway: &Gateway| {
            let status = gateway.status(world)?;
            let count = |count: crate::demo::check::Count| Count { packets: Some(count.packets), bytes: count.bytes };
            Ok(Counters {
                sent: count(status.outbound()),
                received: count(status.inbound()),
                drops: status.drops().clone(),
            })
        };
        Ok([one(&self.0[0])?, one(&self.0[1])?])
    }

    fn processes(&self) -> Vec<u32> {
        self.0.iter().map(Gateway::process).collect()
    }
}

/// Key material of one direction in bytes; for PSP the master key.
fn key_bytes(subject: &pair::Subject) -> usize {
    let suite = match subject.protocol {
        Protocol::Psp => return 32,
        Protocol::Ah => Suite::parse_ah(&subject.suite),
        Protocol::Esp | Protocol::Eesp => Suite::parse_esp(&subject.suite),
    };
    suite.map_or(0, |suite| suite.enc_material_len() + suite.integ_material_len())
}

/// The configuration of one end; `keys` by sender.
fn configuration(subject: &pair::Subject, world: &World, end: End, keys: &[Vec<u8>; 2], dir: &Path) -> String {
    let (there, folder) = (end.other(), dir.display());
    let tunnel = subject.shape == Shape::Tunnel;
    let mut text = format!(
        "gateway {{\n    socket = \"{folder}/{end}.vici\"\n    state_dir = \"{folder}/{end}.state\"\n    workers = 1\n}}\n\
         sas {{\n    {there} {{\n        protocol = {protocol}\n        mode = {mode}\n        local = {local}\n        \
         remote = {remote}\n",
        protocol = subject.protocol.name(),
        mode = if tunnel { "tunnel" } else { "transport" },
        local = world.plan.outer(end),
        remote = world.plan.outer(there),
    );
    let version = PSP_SUITES.iter().position(|suite| *suite == subject.suite);
    let psp = subject.protocol == Protocol::Psp;
    let _ = match version.filter(|_| psp) {
        Some(version) => writeln!(text, "        version = {version}"),
        None => writeln!(text, "        suite = {}", subject.suite),
    };
    for (on, switch) in [(subject.udp, "encap"), (subject.esn, "esn")] {
        if on {
            let _ = writeln!(text, "        {switch} = yes");
        }
    }
    let sender = |end| if end == End::Sun { 0 } else { 1 };
    for (direction, from) in [("out", end), ("in", there)] {
        let key = if psp { "master_key_0" } else { "key" };
        let spi = if psp && direction == "in" { "issued" } else { "spi" };
        let _ = write!(
            text,
            "        {direction} {{\n            {spi} = {:#x}\n            {key} = 0x",
            0x1001 + sender(from)
        );
        for byte in &keys[sender(from)] {
            let _ = write!(text, "{byte:02x}");
        }
        text.push_str("\n        }\n");
    }
    text.push_str("    }\n}\npolicies {\n    lab {\n");
    if tunnel {
        let (here, there) = (world.plan.network(end), world.plan.network(there));
        let _ = write!(text, "        local_ts = {here}\n        remote_ts = {there}\n");
    }
    let _ = write!(text, "        sa = {there}\n    }}\n}}\n");
    text
}
