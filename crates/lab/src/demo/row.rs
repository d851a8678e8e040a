//! One row: start its processes, send traffic, count, stop.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::check::{Check, Count};
use super::variant::{DemoVariant, Keying, Keys};
use crate::host::cpu::{CpuSample, CpuTimes};
use crate::progress::Display;
use crate::subject::{self, Started, Subject, cable};
use stats::quantile_sorted;
use testbed::TestbedError;
use testbed::child::{Interrupt, Running};
use testbed::counters::{NetCount, process_seconds};
use testbed::iperf::{self, TransferResult};
use testbed::ping::{self, RoundTrips};
use testbed::probe::{self, SetUp};
use testbed::transfer;
use testbed::world::{End, World};

/// Timeout of the first packet.
const REACH_WITHIN: Duration = Duration::from_secs(5);
/// Number of starts of both gateways for the set-up time.
pub(super) const SET_UPS: usize = 5;
/// One ping of so many may be lost.
const MAX_LOSS: usize = 20;
/// Grace period of a transfer beyond its duration.
const GRACE: Duration = Duration::from_secs(15);

/// Traffic of one row, measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    /// Set-up times of the first packet, one per start of both gateways.
    pub(super) set_ups: Vec<SetUp>,
    pub(super) transfer: TransferResult,
    pub(super) round_trips: Vec<RoundTrips>,
    /// Time of each core during the transfer.
    pub(super) cpu: Vec<CpuTimes>,
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
}

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DemoRow {
    #[serde(rename = "configuration", serialize_with = "key")]
    pub(super) variant: DemoVariant,
    pub(super) label: String,
    pub(super) keying: Keying,
    /// Reason why it does not count.
    pub(super) failure: Option<String>,
    pub(super) measured: Option<Measured>,
    pub(super) took_s: f64,
    /// Commands, with their hosts.
    pub(super) commands: Vec<String>,
}

fn key<S: Serializer>(variant: &DemoVariant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(variant.key())
}

/// Context of the measurement of rows.
pub(super) struct Workplace<'a> {
    pub(super) world: &'a World,
    /// Private and empty between rows.
    pub(super) dir: &'a Path,
    /// Output directory.
    pub(super) out: &'a Path,
    pub(super) interrupt: &'a Interrupt,
    pub(super) progress: &'a Display,
    pub(super) seconds: u16,
    pub(super) sub_sas: usize,
    pub(super) keys: Keys,
}

impl Workplace<'_> {
    /// Measures one configuration; returns the row and its summary. Only a signal is an error;
    /// other failures are part of the row.
    pub(super) fn row(&self, variant: DemoVariant) -> Result<(DemoRow, String), TestbedError> {
        let began = Instant::now();
        let label = variant.label(self.sub_sas);
        let keying = variant.keying(self.keys);
        let subject = variant.subject(self.world.plan.v6);
        let mut session = Session { place: self, variant, subject, label: &label, commands: Vec::new() };
        let result = session.measure();
        let commands = session.commands;
        self.keep(variant);
        let (measured, failure) = match result {
            Ok(measured) if measured.check.agrees(measured.cable.retransmitted) => (Some(measured), None),
            Ok(measured) => {
                let complaint = measured.check.complaint(measured.cable.retransmitted);
                let drops = describe_drops(&measured.drops);
                (Some(measured), Some(complaint + &drops))
            }
            Err(TestbedError::Failed(why)) => (None, Some(why)),
            Err(other) => return Err(other),
        };
        let took_s = began.elapsed().as_secs_f64();
        let verdict = match (&measured, &failure) {
            (Some(measured), None) => format!("{:.2} Gbit/s", measured.transfer.rate()),
            (_, why) => format!("FAILED: {}", why.as_deref().and_then(|why| why.lines().next()).unwrap_or("no result")),
        };
        let line = format!("{label:<23} {verdict} ({took_s:.0} s)");
        Ok((DemoRow { variant, label, keying, failure, measured, took_s, commands }, line))
    }

    /// Keeps the raw data of a row and empties the folder. Configurations are not kept: keys.
    fn keep(&self, variant: DemoVariant) {
        for entry in fs::read_dir(self.dir).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let raw = ["csv", "txt", "log", "err"].iter().any(|ext| path.extension().is_some_and(|e| e == *ext));
            if raw && entry.metadata().is_ok_and(|meta| meta.len() > 0) {
                let kept = self.out.join("raw").join(format!("{}-{}", variant.key(), name.to_string_lossy()));
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
    variant: DemoVariant,
    subject: Subject,
    label: &'a str,
    commands: Vec<String>,
}

impl Session<'_> {
    fn measure(&mut self) -> Result<Measured, TestbedError> {
        let (mut started, set_ups) = self.set_up()?;
        let mut round_trips = Vec::new();
        for size in ping::SIZES {
            self.step(&format!("ping {size}"));
            let trips = self.ping(size, &mut *started);
            round_trips.push(trips.map_err(|error| self.explain(error, &*started))?);
        }
        self.step("iperf");
        let measured = self.transfer(&mut *started, set_ups, round_trips);
        measured.map_err(|error| self.explain(error, &*started))
    }

    fn step(&self, what: &str) {
        self.place.progress.step(&format!("{}: {what}", self.label));
    }

    fn target(&self) -> IpAddr {
        self.subject.address(self.place.world, End::Moon)
    }

    /// Starts the subject on both hosts, several times, and sends a first packet each time. The
    /// last one runs on.
    fn set_up(&mut self) -> Result<(Box<dyn Started>, Vec<SetUp>), TestbedError> {
        let (place, mut set_ups) = (self.place, Vec::new());
        let workers = if self.variant == DemoVariant::EespSub { place.sub_sas as u32 } else { 1 };
        let keying = match place.keys {
            Keys::Manual => subject::Keying::Manual { workers },
            Keys::Ike => subject::Keying::Negotiated { workers },
        };
        loop {
            self.step(&format!("start {} of {SET_UPS}", set_ups.len() + 1));
            let started = self.subject.start(keying, place.world, place.dir, place.interrupt)?;
            let first = self.first_packet(&*started);
            set_ups.push(first.map_err(|error| self.explain(error, &*started))?);
            if set_ups.len() == SET_UPS {
                self.commands = started.commands();
                return Ok((started, set_ups));
            }
        }
    }

    fn first_packet(&self, started: &dyn Started) -> Result<SetUp, TestbedError> {
        let place = self.place;
        let begun = started.initiate(place.world)?;
        let set_up = probe::first_packet(place.world, self.target(), place.interrupt)?;
        if let Some(mut begun) = begun {
            begun.wait(place.interrupt, REACH_WITHIN, || Ok(()))?;
        }
        if started.counters(place.world)?[1].received.packets == Some(0) {
            return Err(TestbedError::Failed("the first packet arrived without protection".into()));
        }
        Ok(set_up)
    }

    /// Adds counters and logs of the subject to an error.
    fn explain(&self, error: TestbedError, started: &dyn Started) -> TestbedError {
        let TestbedError::Failed(mut text) = error else { return error };
        for (counters, end) in started.counters(self.place.world).iter().flatten().zip(End::BOTH) {
            let [sent, received] = [counters.sent, counters.received].map(|count| count.packets.unwrap_or(0));
            text.push_str(&format!("\n    {end}: sent {sent} and received {received} packets"));
            for (reason, count) in &counters.drops {
                text.push_str(&format!(", dropped {count} as {reason}"));
            }
        }
        TestbedError::Failed(text + &started.log_tail())
    }

    fn ping(&mut self, size: u16, started: &mut dyn Started) -> Result<RoundTrips, TestbedError> {
        let place = self.place;
        let pings =
            subject::Pings { from: End::Sun, size, count: ping::COUNT, every: ping::EVERY, delay: Duration::ZERO };
        let running = pings.start(place.world, &self.subject, &place.dir.join(format!("ping-{size}.txt")))?;
        self.commands.push(format!("sun: {}", running.text));
        let trips = pings.finish(running, place.interrupt, || started.check())?;
        if trips.lost() * MAX_LOSS > trips.sent {
            let why = format!("{} of {} pings of {size} bytes were lost", trips.lost(), trips.sent);
            return Err(TestbedError::Failed(why));
        }
        Ok(trips)
    }

    fn transfer(
        &mut self,
        started: &mut dyn Started,
        set_ups: Vec<SetUp>,
        round_trips: Vec<RoundTrips>,
    ) -> Result<Measured, TestbedError> {
        let place = self.place;
        let options = ["-i", "1", "-y", "C"];
        let mut server = transfer::serve(place.world, &options, &place.dir.join("iperf-server.csv"), place.interrupt)?;
        self.commands.push(format!("moon: {}", server.text));
        let counters_before = started.counters(place.world)?;
        let net_before = cable(place.world, End::Sun)?;
        let process_before: Vec<f64> = started.processes().into_iter().map(process_seconds).collect();

        let times = [u64::from(place.seconds), 1].map(Duration::from_secs);
        let (streams, output) = (iperf::STREAMS as u32, place.dir.join("iperf-client.csv"));
        let cpu_before = CpuSample::now();
        let mut client = transfer::send(place.world, self.target(), streams, times, &output)?;
        self.commands.push(format!("sun: {}", client.text));
        let (began, mut second) = (Instant::now(), 0);
        let limit = Duration::from_secs(place.seconds.into()) + GRACE;
        client.wait(place.interrupt, limit, || {
            if began.elapsed().as_secs() > second && second < place.seconds.into() {
                second += 1;
                self.step(&format!("iperf, second {second} of {}", place.seconds));
            }
            started.check()
        })?;
        let cpu = CpuSample::passed(cpu_before.as_ref());
        let transfer = self.collect(&server, &client)?;
        server.stop();

        let net = cable(place.world, End::Sun)?.since(net_before);
        let [sun, moon] = started.counters(place.world)?;
        let mut weir_cpu_s = [0.0; 2];
        for ((spent, process), before) in weir_cpu_s.iter_mut().zip(started.processes()).zip(process_before) {
            *spent = process_seconds(process) - before;
        }
        let count = |count: subject::Count| Count { packets: count.packets.unwrap_or(0), bytes: count.bytes };
        let sent = count(sun.sent).since(count(counters_before[0].sent));
        let received = count(moon.received).since(count(counters_before[1].received));
        let on_cable = self.variant == DemoVariant::Plain;
        let check = Check::new(sent, received, transfer.bytes, place.world.plan.ip_header(), on_cable);
        let busy = cpu.iter().map(CpuTimes::busy).sum::<u64>() as f64 / 1e9;
        Ok(Measured {
            set_ups,
            cpu_s_per_gbit: busy / (transfer.bytes as f64 * 8.0 / 1e9),
            wire_per_1000: net.tx_bytes as f64 / transfer.bytes as f64 * 1000.0,
            cable: net,
            drops: [sun.drops, moon.drops],
            transfer,
            round_trips,
            cpu,
            weir_cpu_s,
            check,
        })
    }

    /// The server's view of the transfer, once it has seen the end of every stream.
    fn collect(&self, server: &Running, client: &Running) -> Result<TransferResult, TestbedError> {
        let end = Instant::now() + REACH_WITHIN;
        while !TransferResult::is_complete(&server.output(), iperf::STREAMS) && Instant::now() < end {
            self.place.interrupt.tick()?;
        }
        let failed = |why: String| {
            TestbedError::Failed(format!("iperf: {why}; {}{}", client.errors().trim(), server.errors().trim()))
        };
        let transfer =
            TransferResult::parse(&server.output(), self.place.seconds).map_err(|error| failed(error.to_string()))?;
        if transfer.flows != iperf::STREAMS {
            return Err(failed(format!("{} of {} streams completed", transfer.flows, iperf::STREAMS)));
        }
        Ok(transfer)
    }
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
}
