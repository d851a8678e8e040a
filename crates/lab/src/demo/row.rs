//! One row: start its processes, send traffic, count, stop.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::DemoError;
use super::check::{Check, Count};
use super::child::{Interrupt, Running};
use super::conf::{Secret, Secrets};
use super::counters::{self, CoreTime, CpuSample, CpuSampler, NetCount};
use super::gateway::{Gateway, Status};
use super::iperf::{self, Transfer};
use super::ping::{self, RoundTrips};
use super::pki::Pki;
use super::probe::{self, SetUp};
use super::progress::Progress;
use super::way::{DemoVariant, Keying, Keys};
use super::world::{CABLE, End, World};
use stats::quantile_sorted;

/// Timeout of the first packet.
const REACH_WITHIN: Duration = Duration::from_secs(5);
/// Number of starts of both gateways for the set-up time.
pub(super) const SET_UPS: usize = 5;
/// One ping of so many may be lost.
const MAX_LOSS: usize = 20;
/// Grace period of a transfer beyond its duration.
const GRACE: Duration = Duration::from_secs(15);
/// iperf's listening socket in /proc/net/tcp: port 5001, state LISTEN.
const LISTENING: (&str, &str) = (":1389", " 0A ");

/// Traffic of one row, measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    /// Set-up times of the first packet, one per start of both gateways.
    pub(super) set_ups: Vec<SetUp>,
    pub(super) transfer: Transfer,
    pub(super) round_trips: Vec<RoundTrips>,
    /// Time of each core during the transfer, one sample per second.
    pub(super) cpu: Vec<CpuSample>,
    /// Working time of all cores per Gbit of payload.
    pub(super) cpu_s_per_gbit: f64,
    /// Processor time of Weir on sun and moon during the transfer, in seconds.
    pub(super) weir_cpu_s: [f64; 2],
    /// Counters of sun's end of the cable during the transfer.
    pub(super) cable: NetCount,
    /// Bytes on the cable from sun to moon, Ethernet headers included, per 1,000 bytes of payload.
    pub(super) wire_per_1000: f64,
    pub(super) check: Check,
    /// Packets that went no further, by reason, on sun and moon, over the whole row.
    pub(super) drops: [BTreeMap<String, u64>; 2],
}

impl Measured {
    /// Median of the times to the arrival of the first packet, in milliseconds.
    pub(super) fn set_up_ms(&self) -> f64 {
        let mut times: Vec<f64> = self.set_ups.iter().map(|set_up| set_up.ms).collect();
        times.sort_by(f64::total_cmp);
        quantile_sorted(&times, 0.5)
    }

    /// Time of each core over all of the transfer.
    pub(super) fn cores(&self) -> Vec<CoreTime> {
        counters::sum(&self.cpu)
    }
}

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DemoRow {
    #[serde(serialize_with = "key")]
    pub(super) way: DemoVariant,
    pub(super) label: String,
    pub(super) keying: Keying,
    /// Reason why it does not count.
    pub(super) failure: Option<String>,
    pub(super) measured: Option<Measured>,
    pub(super) took_s: f64,
    /// Commands, with their hosts.
    pub(super) commands: Vec<String>,
}

fn key<S: Serializer>(way: &DemoVariant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(way.key())
}

/// Context of the measurement of rows.
pub(super) struct Workplace<'a> {
    pub(super) world: &'a World,
    /// Private and empty between rows.
    pub(super) dir: &'a Path,
    /// Output directory.
    pub(super) out: &'a Path,
    pub(super) interrupt: &'a Interrupt,
    pub(super) progress: &'a Progress,
    pub(super) seconds: u16,
    pub(super) sub_sas: usize,
    pub(super) keys: Keys,
    pub(super) pki: &'a Pki,
}

impl Workplace<'_> {
    /// Measures one configuration. Only a signal is an error; other failures are part of the row.
    pub(super) fn row(&self, way: DemoVariant) -> Result<DemoRow, DemoError> {
        let began = Instant::now();
        let label = way.label(self.sub_sas);
        let number = self.progress.number() + 1;
        let keying = way.keying(self.keys);
        let mut session = Session { place: self, way, keying, label: &label, commands: Vec::new() };
        let result = session.measure();
        let commands = session.commands;
        self.keep(way);
        let (measured, failure) = match result {
            Ok(measured) if measured.check.agrees() => (Some(measured), None),
            Ok(measured) => {
                let complaint = measured.check.complaint(measured.cable.retransmitted);
                let drops = describe_drops(&measured.drops);
                (Some(measured), Some(complaint + &drops))
            }
            Err(DemoError::Failed(why)) => (None, Some(why)),
            Err(other) => return Err(other),
        };
        let took_s = began.elapsed().as_secs_f64();
        let verdict = match (&measured, &failure) {
            (Some(measured), None) => format!("{:.2} Gbit/s", measured.transfer.rate()),
            (_, why) => format!("FAILED: {}", why.as_deref().and_then(|why| why.lines().next()).unwrap_or("no result")),
        };
        self.progress.row_done(number, &format!("{label:<23} {verdict} ({took_s:.0} s)"));
        Ok(DemoRow { way, label, keying, failure, measured, took_s, commands })
    }

    /// Keeps the raw data of a row and empties the folder. Configurations are not kept: keys.
    fn keep(&self, way: DemoVariant) {
        for entry in fs::read_dir(self.dir).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let raw = ["csv", "txt", "log", "err"].iter().any(|ext| path.extension().is_some_and(|e| e == *ext));
            if raw && entry.metadata().is_ok_and(|meta| meta.len() > 0) {
                let kept = self.out.join("raw").join(format!("{}-{}", way.key(), name.to_string_lossy()));
                let _ = fs::copy(&path, kept);
            }
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

/// Drop reasons for a message; empty when there are none.
fn describe_drops(drops: &[BTreeMap<String, u64>; 2]) -> String {
    let mut text = String::new();
    for (end, drops) in End::BOTH.iter().zip(drops) {
        for (reason, count) in drops {
            text.push_str(&format!("; {end} dropped {count} as {reason}"));
        }
    }
    text
}

/// The life of one row.
struct Session<'a> {
    place: &'a Workplace<'a>,
    way: DemoVariant,
    keying: Keying,
    label: &'a str,
    commands: Vec<String>,
}

impl Session<'_> {
    fn measure(&mut self) -> Result<Measured, DemoError> {
        let (mut gateways, set_ups) = self.set_up()?;
        let target = self.target().to_string();
        self.reach(&target).map_err(|error| self.explain(error, &gateways))?;
        let mut round_trips = Vec::new();
        for size in ping::SIZES {
            self.step(&format!("ping {size}"));
            let trips = self.ping(&target, size, &mut gateways);
            round_trips.push(trips.map_err(|error| self.explain(error, &gateways))?);
        }
        self.step("iperf");
        let measured =
            self.transfer(&target, &mut gateways, set_ups, round_trips).map_err(|error| self.explain(error, &gateways));
        gateways.iter_mut().for_each(Gateway::stop);
        measured
    }

    fn step(&self, what: &str) {
        self.place.progress.step(&format!("{}: {what}", self.label));
    }

    fn target(&self) -> IpAddr {
        let plan = self.place.world.plan;
        if self.way.is_tunnel() { plan.inner(End::Moon) } else { plan.outer(End::Moon) }
    }

    /// Starts Weir on both hosts, several times, and sends a first packet each time. The last ones
    /// run on.
    fn set_up(&mut self) -> Result<(Vec<Gateway>, Vec<SetUp>), DemoError> {
        let mut set_ups = Vec::new();
        loop {
            self.step(&format!("start {} of {SET_UPS}", set_ups.len() + 1));
            let mut gateways = self.gateways()?;
            let first = self.first_packet(&gateways);
            set_ups.push(first.map_err(|error| self.explain(error, &gateways))?);
            if set_ups.len() == SET_UPS {
                return Ok((gateways, set_ups));
            }
            gateways.iter_mut().for_each(Gateway::stop);
            self.commands.clear();
        }
    }

    fn first_packet(&self, gateways: &[Gateway]) -> Result<SetUp, DemoError> {
        let place = self.place;
        let begun = match (self.keying, gateways) {
            (Keying::Psp, [sun, _]) => Some(sun.initiate(place.world, place.dir)?),
            _ => None,
        };
        let set_up = probe::first_packet(place.world, self.target(), place.interrupt)?;
        if let Some(mut begun) = begun {
            begun.wait(place.interrupt, REACH_WITHIN, || Ok(()))?;
        }
        if let [_, moon] = gateways
            && moon.status(place.world)?.inbound().packets == 0
        {
            return Err(DemoError::Failed("the first packet arrived without protection".into()));
        }
        Ok(set_up)
    }

    /// Starts Weir on both hosts, with fresh keys; none for plain traffic.
    fn gateways(&mut self) -> Result<Vec<Gateway>, DemoError> {
        let place = self.place;
        let Some(setting) = self.way.setting(&place.world.plan, place.dir, place.sub_sas) else {
            return Ok(Vec::new());
        };
        let (texts, pki) = match self.keying {
            Keying::None => return Ok(Vec::new()),
            Keying::Manual => {
                let secrets = Secrets {
                    from_sun: Secret { spi: 0x1001, key: random(self.way.key_bytes())? },
                    from_moon: Secret { spi: 0x1002, key: random(self.way.key_bytes())? },
                };
                (End::BOTH.map(|end| setting.manual(end, &secrets)), None)
            }
            Keying::Ike | Keying::Psp => (End::BOTH.map(|end| setting.keyed(end)), Some(place.pki)),
        };
        let mut gateways = Vec::new();
        for (end, text) in End::BOTH.into_iter().zip(&texts) {
            let gateway = Gateway::start(place.world, end, text, pki, place.dir)?;
            self.commands.push(format!("{end}: {}", gateway.command()));
            gateways.push(gateway);
        }
        for gateway in &mut gateways {
            gateway.wait_until_ready(place.interrupt)?;
        }
        Ok(gateways)
    }

    /// Adds the diagnostics of both gateways to an error.
    fn explain(&self, error: DemoError, gateways: &[Gateway]) -> DemoError {
        let DemoError::Failed(mut text) = error else { return error };
        for (gateway, end) in gateways.iter().zip(End::BOTH) {
            if let Ok(status) = gateway.status(self.place.world) {
                let (out, inward) = (status.outbound(), status.inbound());
                text.push_str(&format!("\n    {end}: sent {} and received {} packets", out.packets, inward.packets));
                for (reason, count) in status.drops() {
                    text.push_str(&format!(", dropped {count} as {reason}"));
                }
            }
            text.push_str(&gateway.log_tail());
        }
        DemoError::Failed(text)
    }

    /// Waits for the first answer, and warms the path.
    fn reach(&mut self, target: &str) -> Result<(), DemoError> {
        let end = Instant::now() + REACH_WITHIN;
        while Instant::now() < end {
            let mut command = self.place.world.command(End::Sun, "ping");
            command.args(["-n", "-c", "3", "-i", "0.01", "-w", "1", target]);
            let mut ping = Running::start(command, &self.place.dir.join("reach"))?;
            let status = ping.wait(self.place.interrupt, REACH_WITHIN, || Ok(()))?;
            if status.success() {
                return Ok(());
            }
        }
        Err(DemoError::Failed(format!("no response from {target}")))
    }

    fn ping(&mut self, target: &str, size: u16, gateways: &mut [Gateway]) -> Result<RoundTrips, DemoError> {
        let plan = self.place.world.plan;
        // What ping calls size is without its own header of 8 bytes and the IP header.
        let payload = (u64::from(size) - 8 - plan.ip_header()).to_string();
        let count = ping::COUNT.to_string();
        let mut command = self.place.world.command(End::Sun, "ping");
        command.args(["-n", "-c", &count, "-i", ping::INTERVAL, "-W", "1", "-w", "10", "-s", &payload, target]);
        let mut ping = Running::start(command, &self.place.dir.join(format!("ping-{size}.txt")))?;
        self.commands.push(format!("sun: {}", ping.text));
        ping.wait(self.place.interrupt, GRACE, || check(gateways))?;
        match RoundTrips::parse(size, &ping.output()) {
            None => Err(DemoError::Failed(format!("'{}' failed: {}", ping.text, ping.errors().trim()))),
            Some(trips) if trips.lost() * MAX_LOSS > trips.sent => {
                Err(DemoError::Failed(format!("{} of {} pings of {size} bytes were lost", trips.lost(), trips.sent)))
            }
            Some(trips) => Ok(trips),
        }
    }

    fn net(&self, end: End) -> Result<NetCount, DemoError> {
        let text = self.place.world.read(end, &["/proc/net/dev", "/proc/net/snmp"])?;
        NetCount::parse(&text, CABLE).ok_or_else(|| DemoError::Failed(format!("no counters of {CABLE} on {end}")))
    }

    fn statuses(&self, gateways: &[Gateway]) -> Result<Vec<Status>, DemoError> {
        gateways.iter().map(|gateway| gateway.status(self.place.world)).collect()
    }

    fn serve(&mut self) -> Result<Running, DemoError> {
        let place = self.place;
        let mut command = place.world.command(End::Moon, "iperf");
        command.args(["-s", "-i", "1", "-y", "C"]).args(place.world.plan.v6.then_some("-V"));
        let server = Running::start(command, &place.dir.join("iperf-server.csv"))?;
        self.commands.push(format!("moon: {}", server.text));
        let end = Instant::now() + REACH_WITHIN;
        while Instant::now() < end {
            let sockets = place.world.read(End::Moon, &["/proc/net/tcp", "/proc/net/tcp6"])?;
            if sockets.lines().any(|line| line.contains(LISTENING.0) && line.contains(LISTENING.1)) {
                return Ok(server);
            }
            place.interrupt.tick()?;
        }
        Err(DemoError::Failed(format!("iperf does not listen: {}", server.errors().trim())))
    }

    fn transfer(
        &mut self,
        target: &str,
        gateways: &mut [Gateway],
        set_ups: Vec<SetUp>,
        round_trips: Vec<RoundTrips>,
    ) -> Result<Measured, DemoError> {
        let place = self.place;
        let mut server = self.serve()?;
        let statuses_before = self.statuses(gateways)?;
        let net_before = [self.net(End::Sun)?, self.net(End::Moon)?];
        let process_before: Vec<f64> = gateways.iter().map(|g| counters::process_seconds(g.process())).collect();

        let (streams, seconds) = (iperf::STREAMS.to_string(), place.seconds.to_string());
        let mut command = place.world.command(End::Sun, "iperf");
        command.args(["-c", target, "-P", &streams, "-t", &seconds, "-i", "1", "-y", "C"]);
        command.args(place.world.plan.v6.then_some("-V"));
        let mut sampler = CpuSampler::start();
        let mut client = Running::start(command, &place.dir.join("iperf-client.csv"))?;
        self.commands.push(format!("sun: {}", client.text));
        let (began, mut second) = (Instant::now(), 0);
        let limit = Duration::from_secs(place.seconds.into()) + GRACE;
        client.wait(place.interrupt, limit, || {
            sampler.tick();
            if began.elapsed().as_secs() > second && second < place.seconds.into() {
                second += 1;
                self.step(&format!("iperf, second {second} of {}", place.seconds));
            }
            check(gateways)
        })?;
        let cpu = sampler.finish();
        let transfer = self.collect(&mut server, &client)?;
        server.stop();

        let net: Vec<NetCount> = [(End::Sun, net_before[0]), (End::Moon, net_before[1])]
            .into_iter()
            .map(|(end, before)| Ok(self.net(end)?.since(before)))
            .collect::<Result<_, DemoError>>()?;
        let statuses = self.statuses(gateways)?;
        let mut weir_cpu_s = [0.0; 2];
        for ((spent, gateway), before) in weir_cpu_s.iter_mut().zip(gateways.iter()).zip(process_before) {
            *spent = counters::process_seconds(gateway.process()) - before;
        }
        let check = self.check(&transfer, &statuses_before, &statuses, &net);
        let busy: f64 = counters::sum(&cpu).iter().map(|core| core.busy()).sum();
        Ok(Measured {
            set_ups,
            cpu_s_per_gbit: busy / (transfer.bytes as f64 * 8.0 / 1e9),
            wire_per_1000: net[0].tx_bytes as f64 / transfer.bytes as f64 * 1000.0,
            cable: net[0],
            drops: [0, 1].map(|i| statuses.get(i).map_or_else(BTreeMap::new, |status| status.drops().clone())),
            transfer,
            round_trips,
            cpu,
            weir_cpu_s,
            check,
        })
    }

    /// The server's view of the transfer, once it has seen the end of every stream.
    fn collect(&self, server: &mut Running, client: &Running) -> Result<Transfer, DemoError> {
        let end = Instant::now() + REACH_WITHIN;
        while !Transfer::is_complete(&server.output(), iperf::STREAMS) && Instant::now() < end {
            self.place.interrupt.tick()?;
        }
        let failed = |why: String| {
            DemoError::Failed(format!("iperf: {why}; {}{}", client.errors().trim(), server.errors().trim()))
        };
        let transfer =
            Transfer::parse(&server.output(), self.place.seconds).map_err(|error| failed(error.to_string()))?;
        if transfer.flows != iperf::STREAMS {
            return Err(failed(format!("{} of {} streams completed", transfer.flows, iperf::STREAMS)));
        }
        Ok(transfer)
    }

    /// Weir's counters where there is Weir, the cable's otherwise.
    fn check(&self, transfer: &Transfer, before: &[Status], after: &[Status], net: &[NetCount]) -> Check {
        let header = self.place.world.plan.ip_header();
        if let ([sun_before, moon_before], [sun, moon]) = (before, after) {
            let sent = sun.outbound().since(sun_before.outbound());
            let received = moon.inbound().since(moon_before.inbound());
            return Check::new(sent, received, transfer.bytes, header, false);
        }
        let sent = Count { packets: net[0].tx_packets, bytes: net[0].tx_bytes };
        let received = Count { packets: net[1].rx_packets, bytes: net[1].rx_bytes };
        Check::new(sent, received, transfer.bytes, header, true)
    }
}

fn check(gateways: &mut [Gateway]) -> Result<(), DemoError> {
    gateways.iter_mut().try_for_each(Gateway::check)
}

/// Random octets.
pub(crate) fn random(bytes: usize) -> Result<Vec<u8>, DemoError> {
    let mut key = vec![0; bytes];
    let read = fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut key));
    read.map(|()| key).map_err(|error| DemoError::Failed(format!("/dev/urandom: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_told_by_host() {
        assert_eq!(describe_drops(&[BTreeMap::new(), BTreeMap::new()]), "");
        let drops = [BTreeMap::new(), BTreeMap::from([("replay".to_owned(), 3)])];
        assert_eq!(describe_drops(&drops), "; moon dropped 3 as replay");
    }

    #[test]
    fn keys_differ() {
        assert_ne!(random(32).unwrap(), random(32).unwrap());
        assert_eq!(random(48).unwrap().len(), 48);
    }
}
