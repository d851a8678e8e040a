//! Round trips through a subject, by `ping` of iputils.

use std::path::Path;
use std::time::Duration;

use super::{Subject, SubjectMeter, cable};
use testbed::TestbedError;
use testbed::child::{Interrupt, Running};
use testbed::ping::RoundTrips;
use testbed::world::{ETHERNET, End, World};

/// Timeout of a ping after its last request.
const GRACE: Duration = Duration::from_secs(20);

/// Pings of one size.
pub(crate) struct Pings {
    /// Initiating host.
    pub(crate) from: End,
    /// Bytes of the inner packet, IP header included.
    pub(crate) size: u16,
    /// Requests.
    pub(crate) count: u32,
    /// Time between two of them: users other than root may choose 2 ms or more.
    pub(crate) every: Duration,
    /// Delay of a request and of its answer together.
    pub(crate) delay: Duration,
}

impl Pings {
    /// Sends them through `subject` with files in `dir`. Returns the round trips, and the bytes of
    /// a packet on the cable without the Ethernet header; none if the initiating host sent other
    /// packets in between, such as multicast reports.
    ///
    /// # Errors
    /// No answer, the subject ended, or a signal.
    pub(crate) fn send(
        &self,
        meter: &mut SubjectMeter,
        subject: &Subject,
        dir: &Path,
        interrupt: &Interrupt,
    ) -> Result<(RoundTrips, Option<f64>), TestbedError> {
        let before = cable(meter.world(), self.from)?;
        let running = self.start(meter.world(), subject, &dir.join("ping.txt"))?;
        let trips = self.finish(running, interrupt, || meter.check())?;
        let sent = cable(meter.world(), self.from)?.since(before);
        // Each request is as many packets as the others.
        let alone = trips.sent > 0 && sent.tx_packets > 0 && sent.tx_packets.is_multiple_of(trips.sent as u64);
        let wire = alone.then(|| sent.tx_bytes as f64 / sent.tx_packets as f64 - ETHERNET as f64);
        Ok((trips, wire))
    }

    /// Starts the pings, with output in a file.
    pub(crate) fn start(&self, world: &World, subject: &Subject, output: &Path) -> Result<Running, TestbedError> {
        let [source, target] = [self.from, self.from.other()].map(|end| subject.address(world, end).to_string());
        let payload = (u64::from(self.size) - 8 - world.plan.ip_header()).to_string();
        let [every, patience] = [self.every, self.patience()].map(|time| time.as_secs_f64().to_string());
        let mut command = world.command(self.from, "ping");
        command.args(["-n", "-c", &self.count.to_string(), "-i", &every, "-W", &patience]);
        command.args(["-s", &payload, "-I", &source, &target]);
        Running::start(command, output)
    }

    /// Waits for the last response, while `check` finds no error.
    pub(crate) fn finish(
        &self,
        mut running: Running,
        interrupt: &Interrupt,
        check: impl FnMut() -> Result<(), TestbedError>,
    ) -> Result<RoundTrips, TestbedError> {
        running.wait(interrupt, GRACE + self.patience() + 2 * self.every * self.count, check)?;
        let trips = RoundTrips::parse(self.size, &running.output()).filter(|trips| !trips.us.is_empty());
        trips.ok_or_else(|| {
            let (text, errors) = (&running.text, running.errors());
            TestbedError::Failed(format!("no response to {} bytes: '{text}' {}", self.size, errors.trim()))
        })
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(2) + self.delay
    }
}
