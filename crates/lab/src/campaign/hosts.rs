//! Studies between two hosts on this machine, or between two addresses that the user named: traffic
//! of the generator, pings, TCP flows over time.
//!
//! All processes started here end with the session: programs when their owners are dropped, and
//! after a crash by the kernel, because the session runs in a sandbox of namespaces
//! ([`testbed::sandbox`]).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Study;
use super::format::SHORTEST_SAMPLE;
use super::memory::Loaded;
use super::runner::{NotOpen, Runner, Setting, one_size};
use super::schedule::Cell;
use crate::host::cpu::CpuSample;
use crate::host::{Observer, Window};
use crate::keying;
use crate::meter::{MeterError, Place, PortMeter, PortOptions, ReceivePort, SendPort, store_latency};
use crate::metric::Metric;
use crate::subject::{self, Availability, Establishment, Subject, SubjectMeter, account};
use crate::traffic::Addresses;
use crate::trial::{Direction, Lost, Measurement};
use stats::Latency;
use testbed::TestbedError;
use testbed::child::Interrupt;
use testbed::ping::RoundTrips;
use testbed::relay::{Punctuality, Relay};
use testbed::transfer::RunningTransfer;
use testbed::world::{Cable, End};

/// Time between two pings.
const PING_EVERY: Duration = Duration::from_millis(2);
/// Fewest pings of a trial.
const FEWEST_PINGS: u128 = 10;
/// Bytes of a ping beside a transfer, and the time between two: 1.2 Mbit/s together.
const BESIDE: (u16, Duration) = (736, Duration::from_millis(5));
/// Delay of a sample after which the transfer counts as stalled.
const LATE: Duration = Duration::from_secs(20);

impl From<TestbedError> for NotOpen {
    fn from(error: TestbedError) -> Self {
        match error {
            TestbedError::Unable(why) => Self::Missing(why),
            TestbedError::Failed(why) => Self::Failed(why),
            TestbedError::Interrupted => Self::Interrupted,
        }
    }
}

fn meter_error(subject: &Subject, error: TestbedError) -> MeterError {
    match error {
        TestbedError::Interrupted => MeterError::Interrupted,
        other => MeterError::Subject { subject: subject.to_string(), why: other.to_string() },
    }
}

/// A running subject on its own two hosts.
struct Pair {
    subject: Subject,
    meter: SubjectMeter,
    dir: PathBuf,
    interrupt: Interrupt,
}

impl Pair {
    fn start(setting: &Setting, name: &str, delay: Duration) -> Result<Self, NotOpen> {
        let wire = Cable::wire_of(delay);
        let begin = |subject: &Subject, dir: &Path| SubjectMeter::start(subject, dir, &setting.interrupt, wire);
        Self::start_by(setting, name, |subject, dir| Ok((begin(subject, dir)?, ()))).map(|(pair, ())| pair)
    }

    /// Starts a subject by `begin` in a folder of its own.
    fn start_by<T>(
        setting: &Setting,
        name: &str,
        begin: impl FnOnce(&Subject, &Path) -> Result<(SubjectMeter, T), TestbedError>,
    ) -> Result<(Self, T), NotOpen> {
        let subject: Subject = name.parse().map_err(|_| NotOpen::Missing(format!("'{name}' cannot run on a host")))?;
        let Some(private) = &setting.private else {
            return Err(NotOpen::Missing("hosts are created only within a session of weir lab run".into()));
        };
        if let Availability::Missing { why, remedy } = subject.availability() {
            return Err(NotOpen::Missing(format!("not installed: {why}; {remedy}")));
        }
        // Names of subjects hold what names of files may hold; several pairs may have the same
        // subject.
        let dir = private.join(format!("pair-{}", setting.number()));
        let (meter, more) = begin(&subject, &dir)?;
        Ok((Self { subject, meter, dir, interrupt: setting.interrupt.clone() }, more))
    }
}

/// Traffic of the generator from one host to the other.
pub(super) fn load(study: &Study, cell: &Cell, setting: &Setting) -> Result<Loaded, NotOpen> {
    let pair = Pair::start(setting, &cell.subject, Duration::ZERO)?;
    Ok(Loaded::over(Box::new(pair.meter), study.flows[0]))
}

/// Traffic of the generator between the two addresses that a study names.
pub(super) fn between(study: &Study, cell: &Cell, setting: &Setting) -> Result<Loaded, NotOpen> {
    let Some([from, to]) = &study.between else { return Err(NotOpen::Missing("no addresses are given".into())) };
    let place = |text: &str| text.parse::<Place>().map_err(|error| NotOpen::Missing(error.to_string()));
    let (from, to) = (place(from)?, place(to)?);
    let missing = |error: std::io::Error| NotOpen::Missing(error.to_string());
    let rx = ReceivePort::open(&to, from.addr).map_err(missing)?;
    let tx = SendPort::open(&from, to.addr, study.flows[0]).map_err(missing)?;
    let addresses = Addresses { src: from.addr, dst: to.addr };
    let options = PortOptions { stop: setting.interrupt.flag(), packet_bytes: 9500, ..PortOptions::default() };
    let lost = Box::new(Lost::default);
    let meter = PortMeter::new(&cell.subject, Box::new(tx), Box::new(rx), addresses, lost, options);
    Ok(Loaded::over(Box::new(meter), study.flows[0]))
}

/// Round trips.
pub(super) struct Pings {
    pair: Pair,
    /// Delay that each host adds to sent packets: a response is delayed by twice this value.
    delay: Duration,
}

impl Pings {
    pub(super) fn open(study: &Study, cell: &Cell, setting: &Setting) -> Result<Box<dyn Runner>, NotOpen> {
        let delay = Duration::from_millis(study.delay_ms.into());
        Ok(Box::new(Self { pair: Pair::start(setting, &cell.subject, delay)?, delay }))
    }
}

impl Runner for Pings {
    /// `out` initiates from sun, `in` from moon.
    fn trial(&mut self, cell: &Cell, duration: Duration, _: u64) -> Result<Measurement, MeterError> {
        let Pair { subject, meter, dir, interrupt } = &mut self.pair;
        let size = one_size(&cell.traffic).and_then(|size| u16::try_from(size).ok()).filter(|size| *size >= 64);
        let size = size.ok_or_else(|| MeterError::Unsupported("a ping has one size of 64 bytes or more".into()))?;
        let end = if cell.direction == Direction::In { End::Moon } else { End::Sun };
        let count = (duration.as_millis() / PING_EVERY.as_millis()).max(FEWEST_PINGS) as u32;
        let began = Instant::now();
        let before = meter.cpu_s();
        let pings = subject::Pings { from: end, size, count, every: PING_EVERY, delay: 2 * self.delay };
        let sent = pings.send(meter, subject, dir, interrupt);
        let (trips, wire) = sent.map_err(|error| meter_error(subject, error))?;
        let mut latency = Latency::default();
        trips.us.iter().for_each(|us| latency.record(0, (us * 1e3) as u64));
        let received = trips.us.len() as u64;
        let lost = (trips.sent as u64).saturating_sub(received);
        let mut measured = Measurement {
            sent: trips.sent as u64,
            received,
            received_bytes: received * u64::from(size),
            // ping compares the reply with the request, byte by byte.
            verified: received,
            lost: Lost { other: lost, ..Lost::default() },
            dur_ns: began.elapsed().as_nanos() as u64,
            cpu_ns: before.zip(meter.cpu_s()).map(|(then, now)| ((now - then).max(0.0) * 1e9) as u64),
            ..Measurement::default()
        };
        store_latency(&latency, &mut measured);
        measured.values.extend(rtt(&trips));
        measured.values.extend(wire.map(|bytes| (Metric::WireBytes, bytes)));
        // Since the cable was made: the last trial of a session has all of it.
        if let Some(Punctuality { dropped, late_us, .. }) = meter.world().relay.as_ref().map(Relay::punctuality) {
            let late = ["p50", "p99", "max"].into_iter().zip(late_us);
            let late = late.filter_map(|(of, us)| Some((Metric::CableLate(of), us?)));
            measured.values.extend(late.chain([(Metric::CableDropped, dropped as f64)]));
        }
        Ok(measured)
    }
}

/// Quantiles are over the pings with a response, so that the others belong to them.
fn rtt(trips: &RoundTrips) -> [(Metric<'static>, f64); 3] {
    let lost = 100.0 * trips.lost() as f64 / trips.sent.max(1) as f64;
    [(Metric::RttP50, trips.quantile(0.5)), (Metric::RttP99, trips.quantile(0.99)), (Metric::PingsLost, lost)]
}

/// TCP in several flows: a trial is a sample of the running transfer.
pub(super) struct Flows {
    // Ends before the hosts do.
    running: Option<Going>,
    flows: u32,
    /// Planned duration of the transfer.
    whole: Duration,
    pair: Pair,
}

/// The transfer.
struct Going {
    transfer: RunningTransfer,
    observer: Observer,
    window: Window,
    cpu_s: Option<f64>,
    /// Samples that were taken.
    taken: usize,
}

impl Flows {
    pub(super) fn open(study: &Study, cell: &Cell, setting: &Setting) -> Result<Box<dyn Runner>, NotOpen> {
        let pair = Pair::start(setting, &cell.subject, Duration::ZERO)?;
        Ok(Box::new(Self { running: None, flows: study.flows[0], whole: study.duration * study.rounds, pair }))
    }

    fn begin(&self, sample: Duration) -> Result<Going, TestbedError> {
        let Pair { subject, meter, dir, interrupt } = &self.pair;
        let target = subject.address(meter.world(), End::Moon);
        let transfer = RunningTransfer::begin(meter.world(), target, self.flows, [self.whole, sample], dir, interrupt)?;
        let mut observer = Observer::open();
        // Cycles would be those of this thread, which only waits.
        observer.perf = None;
        let window = observer.start();
        Ok(Going { transfer, observer, window, cpu_s: meter.cpu_s(), taken: 0 })
    }
}

impl Runner for Flows {
    fn trial(&mut self, _: &Cell, duration: Duration, _: u64) -> Result<Measurement, MeterError> {
        let mut going = match self.running.take() {
            Some(going) => going,
            None => self.begin(duration).map_err(|error| meter_error(&self.pair.subject, error))?,
        };
        let Pair { subject, meter, interrupt, .. } = &mut self.pair;
        let sample = going.transfer.sample(going.taken, LATE, interrupt, || meter.check());
        let rates = sample.map_err(|error| meter_error(subject, error))?;
        going.taken += 1;
        let bytes: f64 = rates.iter().map(|rate| rate * duration.as_secs_f64() / 8.0).sum();
        let mut measured =
            Measurement { received_bytes: bytes as u64, dur_ns: duration.as_nanos() as u64, ..Measurement::default() };
        let window = std::mem::replace(&mut going.window, going.observer.start());
        going.observer.finish(&window, &mut measured);
        let now = meter.cpu_s();
        measured.cpu_ns = going.cpu_s.zip(now).map(|(then, now)| ((now - then).max(0.0) * 1e9) as u64);
        going.cpu_s = now;
        for (number, rate) in rates.iter().enumerate() {
            measured.values.set(Metric::Flow(&(number + 1).to_string()), rate / 1e9);
        }
        self.running = Some(going);
        Ok(measured)
    }
}

/// Worker threads that `cores` of a study of transfers stand for.
pub(super) fn workers(cores: u32) -> u32 {
    let all = u32::try_from(crate::host::cpus()).unwrap_or(1);
    if cores == 0 { all.min(MAX_WORKERS) } else { cores }
}

/// Most worker threads that "all cores" stands for: more than a machine for measurements has.
const MAX_WORKERS: u32 = 64;

/// A TCP transfer per trial, through a subject with negotiated keys.
pub(super) struct Transfers {
    /// Cost of the start, until it is in a trial.
    establishment: Option<Establishment>,
    flows: u32,
    pair: Pair,
}

impl Transfers {
    pub(super) fn open(study: &Study, cell: &Cell, setting: &Setting) -> Result<Box<dyn Runner>, NotOpen> {
        let (workers, here) = (workers(cell.cores), crate::host::cpus());
        if workers as usize > here {
            return Err(NotOpen::Missing(format!("{workers} workers: only {here} processors are available")));
        }
        let cable = if study.veth { Cable::Veth } else { Cable::Wire };
        let begin =
            |subject: &Subject, dir: &Path| SubjectMeter::establish(subject, workers, dir, &setting.interrupt, cable);
        let (pair, establishment) = Pair::start_by(setting, &cell.subject, begin)?;
        Ok(Box::new(Self { establishment: Some(establishment), flows: study.flows[0], pair }))
    }

    fn transfer(&mut self, duration: Duration) -> Result<Measurement, TestbedError> {
        let Pair { subject, meter, dir, interrupt } = &mut self.pair;
        let samples = (duration.as_secs_f64() / SHORTEST_SAMPLE.as_secs_f64()).round().max(1.0) as u32;
        let target = subject.address(meter.world(), End::Moon);
        let mut observer = Observer::open();
        // Cycles would be those of this thread, which only waits.
        observer.perf = None;
        let (before, machine) = (meter.effort()?, CpuSample::now());
        let window = observer.start();
        let times = [SHORTEST_SAMPLE * (samples + WARM_UP), SHORTEST_SAMPLE];
        let mut transfer = RunningTransfer::begin(meter.world(), target, self.flows, times, dir, interrupt)?;
        let (size, every) = BESIDE;
        // Until shortly before the end of the transfer.
        let count = (duration.as_millis() * 9 / 10 / every.as_millis()) as u32;
        let pings = subject::Pings { from: End::Sun, size, count, every, delay: Duration::ZERO };
        let (mut bytes, mut pinging) = (Vec::new(), None);
        for number in 0..samples + WARM_UP {
            if number == WARM_UP {
                pinging = Some(pings.start(meter.world(), subject, &dir.join("ping.txt"))?);
            }
            let rates = transfer.sample(number as usize, LATE, interrupt, || meter.check())?;
            bytes.push(rates.iter().map(|rate| rate * SHORTEST_SAMPLE.as_secs_f64() / 8.0).sum::<f64>());
        }
        let mut measured = Measurement::default();
        observer.finish(&window, &mut measured);
        let machine_s = machine
            .zip(CpuSample::now())
            .map(|(then, now)| now.since(&then).iter().flatten().map(|times| times.busy() as f64 / 1e9).sum::<f64>());
        let after = meter.effort()?;
        account(&mut measured, &before, &after);
        if let Some(running) = pinging {
            measured.values.extend(rtt(&pings.finish(running, interrupt, || meter.check())?));
        }
        // Processor time and its bytes are those of the whole transfer, the rate that of the part
        // after the slow start.
        let gbit = |bytes: &[f64]| bytes.iter().sum::<f64>() * 8.0 / 1e9;
        if let Some(seconds) = machine_s {
            measured.values.set(Metric::MachineSPerGbit, seconds / gbit(&bytes));
        }
        if let Some(cpu_ns) = measured.cpu_ns {
            measured.values.set(Metric::CpuSPerGbit, cpu_ns as f64 / 1e9 / gbit(&bytes));
        }
        measured.received_bytes = bytes[WARM_UP as usize..].iter().sum::<f64>() as u64;
        measured.dur_ns = (SHORTEST_SAMPLE * samples).as_nanos() as u64;
        if after.counters[0].sas[0] > 0 {
            measured.values.set(Metric::SasUsed, after.counters[0].sas[1].into());
        }
        Ok(measured)
    }
}

/// Samples before those that count.
const WARM_UP: u32 = 1;

impl Runner for Transfers {
    fn trial(&mut self, _: &Cell, duration: Duration, _: u64) -> Result<Measurement, MeterError> {
        let measured = self.transfer(duration);
        let mut measured = measured.map_err(|error| meter_error(&self.pair.subject, error))?;
        if measured.received_bytes == 0 {
            let why = "nothing was transferred".to_owned();
            return Err(MeterError::Subject { subject: self.pair.subject.to_string(), why });
        }
        if let Some(Establishment { first, messages, sas, resident_bytes }) = self.establishment.take() {
            let figures = [
                (Metric::SetupFirstPacketMs, if self.pair.subject.is_keyed_on_demand() { first.ms } else { 0.0 }),
                (Metric::SetupMessages, messages as f64),
                (Metric::SetupSas, sas.into()),
                (Metric::SetupResidentMib, resident_bytes as f64 / f64::from(1 << 20)),
            ];
            // What is not counted is 0.
            measured.values.extend(figures.into_iter().filter(|(_, value)| *value > 0.0));
        }
        Ok(measured)
    }
}

/// `weir up` with many peers: a trial is a whole measurement.
pub(super) struct Daemon {
    dir: PathBuf,
    trials: u32,
    interrupt: Interrupt,
}

impl Daemon {
    pub(super) fn open(setting: &Setting) -> Result<Box<dyn Runner>, NotOpen> {
        let Some(private) = &setting.private else {
            return Err(NotOpen::Missing("hosts are created only within a session of weir lab run".into()));
        };
        Ok(Box::new(Self { dir: private.clone(), trials: 0, interrupt: setting.interrupt.clone() }))
    }
}

impl Runner for Daemon {
    fn trial(&mut self, cell: &Cell, _: Duration, _: u64) -> Result<Measurement, MeterError> {
        let began = Instant::now();
        self.trials += 1;
        let dir = self.dir.join(format!("daemon-{}", self.trials));
        let outcome = keying::daemon::run(cell.sas as usize, &dir, &self.interrupt).map_err(|error| {
            match error.downcast_ref() {
                Some(TestbedError::Interrupted) => MeterError::Interrupted,
                _ => MeterError::Subject { subject: "weir up".into(), why: format!("{error:#}") },
            }
        })?;
        let values = outcome.values().collect();
        Ok(Measurement { dur_ns: began.elapsed().as_nanos() as u64, values, ..Measurement::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::format;
    use crate::campaign::schedule::cells;

    /// The sandbox requires a session; the subject is named, and nothing is started.
    #[test]
    fn hosts_need_a_session_and_addresses_must_be_there() {
        let text = "name = \"t\"\n[[study]]\nkind = \"modes\"\nplace = \"namespaces\"\nsubjects = [\"plain\"]\n";
        let study = format::parse("t.toml", text).unwrap().studies.remove(0);
        let refused = Pings::open(&study, &cells(&study)[0], &Setting::default()).err().unwrap();
        assert!(matches!(refused, NotOpen::Missing(why) if why.contains("session")));
        let text = "name = \"t\"\n[[study]]\nkind = \"sizes\"\nplace = \"interfaces\"\nfrom = \"192.0.2.77\"\nto = \"192.0.2.78\"\n\
                    subjects = [\"mine\"]\n";
        let study = format::parse("t.toml", text).unwrap().studies.remove(0);
        let refused = between(&study, &cells(&study)[0], &Setting::default()).err().unwrap();
        assert!(matches!(refused, NotOpen::Missing(why) if !why.is_empty()));
    }

    #[test]
    fn pings_without_a_response_are_stored_beside_the_round_trips() {
        let trips = RoundTrips { ip_bytes: 736, sent: 4, us: vec![10.0, 20.0, 30.0] };
        assert_eq!(rtt(&trips)[2], (Metric::PingsLost, 25.0));
    }

    /// The cable is not a subject that could fail: it loses no packets.
    #[test]
    fn loopback_is_an_interface_like_any_other() {
        let text = "name = \"t\"\n[[study]]\nkind = \"sizes\"\nplace = \"interfaces\"\nfrom = \"127.0.0.1\"\nto = \"127.0.0.1\"\n\
                    subjects = [\"loopback\"]\nloads = [0.05]\nduration_ms = 30\ntraffic = [200]\n";
        let study = format::parse("t.toml", text).unwrap().studies.remove(0);
        let cell = &cells(&study)[0];
        let mut runner = between(&study, cell, &Setting::default()).map_err(|_| "not open").unwrap();
        let measured = runner.trial(cell, study.duration, 1).unwrap();
        assert!(measured.received > 0 && measured.values.get(Metric::CapacityPps).unwrap() > 0.0, "{measured:?}");
        assert!(measured.verified > 0 && measured.tsc.is_none());
    }
}
