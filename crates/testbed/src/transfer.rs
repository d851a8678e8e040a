//! TCP through a subject by iperf, sample by sample.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::TestbedError;
use crate::child::{Interrupt, Running};
use crate::iperf::Line;
use crate::world::{End, World};

/// Timeout of a transfer beyond its duration, and of the start of a server.
const GRACE: Duration = Duration::from_secs(20);
/// Congestion control of the sender: Linux's default, not the host's, because rates and round trips
/// under load depend on it.
const CONGESTION_CONTROL: &str = "cubic";
/// iperf's listening socket in /proc/net/tcp: port 5001, state LISTEN.
const LISTENING: (&str, &str) = (":1389", " 0A ");

/// TCP from sun to moon, by iperf. Dropping it ends both programs.
pub struct RunningTransfer {
    client: Running,
    _server: Running,
    flows: usize,
    sample: Duration,
    samples: Samples,
}

impl RunningTransfer {
    /// Starts a server on moon and then, on sun, a client that sends to `target` in `flows` flows
    /// for the first of `times` and reports the amount in every interval of the second. Files are
    /// written in `dir`.
    pub fn begin(
        world: &World,
        target: IpAddr,
        flows: u32,
        [whole, sample]: [Duration; 2],
        dir: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, TestbedError> {
        let server = serve(world, &[], &dir.join("server.txt"), interrupt)?;
        let csv = dir.join("client.csv");
        let client = send(world, target, flows, [whole, sample], &csv)?;
        let file = File::open(&csv).map_err(|error| TestbedError::Failed(format!("{}: {error}", csv.display())))?;
        let samples = Samples { csv: file, line: Vec::new(), rates: BTreeMap::new() };
        Ok(Self { client, _server: server, flows: flows as usize, sample, samples })
    }

    /// Bits per second of each flow in sample `number`, as soon as all flows have reported it;
    /// samples must be requested in order. `meanwhile` runs while there is no data; its error ends
    /// the wait.
    pub fn sample(
        &mut self,
        number: usize,
        late: Duration,
        interrupt: &Interrupt,
        mut meanwhile: impl FnMut() -> Result<(), TestbedError>,
    ) -> Result<Vec<f64>, TestbedError> {
        let limit = Instant::now() + self.sample + late;
        loop {
            let ended = self.client.poll();
            self.samples.read_on(self.sample);
            if let Some(rates) = self.samples.sample(number, self.flows) {
                return Ok(rates);
            }
            let why = match ended {
                Some(status) => format!("iperf ended with {status} before sample {number}"),
                None if Instant::now() > limit => format!("iperf printed nothing for sample {number}"),
                None => {
                    meanwhile()?;
                    interrupt.tick()?;
                    continue;
                }
            };
            return Err(TestbedError::Failed(format!("{why}: {}", self.client.errors().trim())));
        }
    }
}

/// Starts iperf's server on moon, with further `options`, and waits until it listens.
pub fn serve(world: &World, options: &[&str], output: &Path, interrupt: &Interrupt) -> Result<Running, TestbedError> {
    let mut command = world.command(End::Moon, "iperf");
    command.arg("-s").args(options).args(world.plan.v6.then_some("-V"));
    let server = Running::start(command, output)?;
    let limit = Instant::now() + GRACE;
    loop {
        let sockets = world.read(End::Moon, &["/proc/net/tcp", "/proc/net/tcp6"])?;
        if sockets.lines().any(|line| line.contains(LISTENING.0) && line.contains(LISTENING.1)) {
            return Ok(server);
        }
        if Instant::now() > limit {
            return Err(TestbedError::Failed(format!("iperf does not listen: {}", server.errors().trim())));
        }
        interrupt.tick()?;
    }
}

/// Starts iperf's client on sun, which sends to `target` in `flows` flows for the first of `times`
/// and reports the amount in every interval of the second as CSV.
///
/// # Errors
/// It cannot be started.
pub fn send(
    world: &World,
    target: IpAddr,
    flows: u32,
    times: [Duration; 2],
    output: &Path,
) -> Result<Running, TestbedError> {
    let mut command = world.command(End::Sun, "iperf");
    let [whole, sample] = times.map(|time| time.as_secs_f64().to_string());
    command.args(["-c", &target.to_string(), "-P", &flows.to_string(), "-t", &whole, "-i", &sample, "-y", "C"]);
    command.args(["-Z", CONGESTION_CONTROL]);
    // Its times have no zone: they are to be those of the samples.
    command.args(target.is_ipv6().then_some("-V")).env("TZ", "UTC");
    Running::start(command, output)
}

/// Output of iperf so far. Its CSV is read from the last position, so that a read has a constant
/// cost: it runs on the measured cores.
struct Samples {
    csv: File,
    /// Buffer for an incomplete last line.
    line: Vec<u8>,
    /// Bits per second by flow, of samples that were not requested yet.
    rates: BTreeMap<usize, BTreeMap<i64, f64>>,
}

impl Samples {
    /// Reads new output, in samples of `length`.
    fn read_on(&mut self, length: Duration) {
        // Incomplete output is read the next time; without any the sample is late, which is
        // reported.
        let _ = self.csv.read_to_end(&mut self.line);
        let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') else { return };
        let whole: Vec<u8> = self.line.drain(..=end).collect();
        for (number, flow, bits) in String::from_utf8_lossy(&whole).lines().filter_map(|line| interval(line, length)) {
            self.rates.entry(number).or_default().insert(flow, bits);
        }
    }

    /// Bits per second of each flow in sample `number`; `None` until all `flows` have a line of it.
    fn sample(&mut self, number: usize, flows: usize) -> Option<Vec<f64>> {
        // Earlier samples were already requested.
        self.rates = self.rates.split_off(&number);
        self.rates.get(&number).filter(|rates| rates.len() >= flows)?;
        self.rates.remove(&number).map(|rates| rates.into_values().collect())
    }
}

/// Number of the sample, flow and bits per second of a line of iperf's CSV. `None` for the sum over
/// all flows, numbered -1, and for the line over the whole time.
fn interval(line: &str, length: Duration) -> Option<(usize, i64, f64)> {
    let (length, line) = (length.as_secs_f64(), Line::parse(line).ok()?);
    let number = (line.start_s / length).round() as usize;
    (line.flow >= 0 && line.seconds() < 1.5 * length).then_some((number, line.flow, line.bits_per_s))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// iperf 2.1.8, two flows, half-second samples; the second sample is not whole yet, and a line
    /// is cut short.
    const CSV: &str = "\
20261121113117,10.1.0.1,58116,10.2.0.1,5001,1,0.0-0.5,62500,1000000
20261121113117,10.1.0.1,58118,10.2.0.1,5001,2,0.0-0.5,125000,2000000
20261121113117,10.1.0.1,0,10.2.0.1,5001,-1,0.0-0.5,187500,3000000
20261121113118,10.1.0.1,58116,10.2.0.1,5001,1,0.5-1.0,62500,1000000
20261121113118,10.1.0.1,58118,10.2.0.1,5001,2,0.5-1.0,125000,200";

    #[test]
    fn a_sample_is_complete_with_a_line_of_each_flow() {
        let half = Duration::from_millis(500);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut samples = Samples { csv: file.reopen().unwrap(), line: Vec::new(), rates: BTreeMap::new() };
        let mut append = |samples: &mut Samples, more: &str| {
            file.write_all(more.as_bytes()).unwrap();
            samples.read_on(half);
        };
        append(&mut samples, "");
        assert_eq!(samples.sample(0, 2), None);
        append(&mut samples, CSV);
        assert_eq!(samples.sample(0, 2), Some(vec![1e6, 2e6]));
        assert_eq!(samples.sample(1, 2), None);
        append(&mut samples, "0000\n20261121113118,10.1.0.1,58116,10.2.0.1,5001,1,0.0-1.0,125000,1000000\n");
        assert_eq!(samples.sample(1, 2), Some(vec![1e6, 2e6]));
        append(
            &mut samples,
            "20261121113119,10.1.0.1,58116,10.2.0.1,5001,1,1.0-1.5,187500,3000000\nno line of iperf\n",
        );
        assert_eq!((samples.sample(2, 2), samples.sample(2, 1)), (None, Some(vec![3e6])));
        assert!(samples.rates.is_empty() && samples.line.is_empty(), "requested samples are not kept");
    }
}
