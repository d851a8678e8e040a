//! Round trips through a subject, by `ping` of iputils.

use std::path::Path;
use std::time::Duration;

use super::{Subject, SubjectMeter, cable};
use testbed::TestbedError;
use testbed::child::{Interrupt, Running};
use testbed::ping::RoundTrips;
use testbed::world::{ETHERNET, End};

/// Time between two pings in seconds: the least that users other than root may choose.
const INTERVAL: &str = "0.002";
/// Timeout of a ping after its last request.
const GRACE: Duration = Duration::from_secs(20);

/// Pings of one size, one after the other.
pub(crate) struct Pings {
    /// Initiating host.
    pub(crate) from: End,
    /// Bytes of the inner packet, IP header included.
    pub(crate) size: u16,
    /// Requests.
    pub(crate) count: u32,
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
        let Self { from, size, count, delay } = *self;
        let world = meter.world();
        let [source, target] = [from, from.other()].map(|end| subject.address(world, end).to_string());
        let payload = (u64::from(size) - 8 - world.plan.ip_header()).to_string();
        let mut command = world.command(from, "ping");
        let patience = Duration::from_secs(2) + delay;
        command.args(["-n", "-c", &count.to_string(), "-i", INTERVAL, "-W", &patience.as_secs_f64().to_string()]);
        command.args(["-s", &payload, "-I", &source, &target]);
        let before = cable(world, from)?;
        let mut running = Running::start(command, &dir.join("ping.txt"))?;
        running.wait(interrupt, GRACE + patience + Duration::from_millis(u64::from(count) * 4), || Ok(()))?;
        let sent = cable(world, from)?.since(before);
        meter.check()?;
        let trips = RoundTrips::parse(size, &running.output()).filter(|trips| !trips.us.is_empty());
        let trips = trips.ok_or_else(|| {
            let (text, errors) = (&running.text, running.errors());
            TestbedError::Failed(format!(
                "{subject}: no response to {size} bytes from {from}: '{text}' {}",
                errors.trim()
            ))
        })?;
        // Each request is as many packets as the others.
        let alone = trips.sent > 0 && sent.tx_packets > 0 && sent.tx_packets.is_multiple_of(trips.sent as u64);
        let wire = alone.then(|| sent.tx_bytes as f64 / sent.tx_packets as f64 - ETHERNET as f64);
        Ok((trips, wire))
    }
}
