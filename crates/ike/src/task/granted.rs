//! Packets of a trap for which the peer grants no Child SA: it refuses, or narrows the selectors so
//! that the packet is not among them. The next packet would request the same again, so such
//! requests wait, longer each time.

use std::time::{Duration, Instant};

use super::Task;
use crate::child::ChildState;
use crate::context::Context;
use crate::output::{ChildId, Level, Subsystem};
use crate::sa::{ChildRequest, Established};

/// First wait after a request that was not granted; it doubles.
const BACK_OFF: Duration = Duration::from_secs(2);
/// The longest.
const BACK_OFF_MAX: Duration = Duration::from_secs(300);
/// Sections that are remembered; more than a connection usually has. Beyond that the oldest is
/// forgotten.
const SECTIONS_MAX: usize = 64;

/// A section for which the peer refused a Child SA.
pub(super) struct NotGranted {
    section: String,
    until: Instant,
    times: u32,
}

impl Established {
    /// A packet requests selectors that the peer refused recently.
    pub(super) fn waits_for_grant(&self, now: Instant, request: &ChildRequest) -> bool {
        let by_packet = request.packet.is_some() && request.command.is_none() && request.cpu.is_none();
        let same = |one: &&NotGranted| one.section == request.config.name;
        by_packet && self.tasks.not_granted.iter().find(same).is_some_and(|one| now < one.until)
    }

    /// A Child SA came up: does it carry the packet that requested it? One that does not and has
    /// the selectors of another one is deleted again.
    pub(crate) fn granted(&mut self, ctx: &mut Context<'_>, request: &ChildRequest, new: ChildId) {
        let Some((local, remote)) = request.packet.filter(|_| request.cpu.is_none()) else { return };
        // A request for a virtual address cannot have had it; the trap uses it from now on.
        let is_virtual = |address: &crate::output::VirtualIp| address.addr == local.addrs.start;
        if !self.virtual_local.is_empty() && !self.virtual_local.iter().any(is_virtual) {
            return;
        }
        let Some(child) = self.children.iter().find(|child| child.id == new) else { return };
        if super::create::covers(&child.local_ts, &local) && super::create::covers(&child.remote_ts, &remote) {
            self.tasks.not_granted.retain(|one| one.section != request.config.name);
            return;
        }
        let has = (child.local_ts.clone(), child.remote_ts.clone());
        let is_same = |other: &crate::child::Child| {
            other.id != new
                && other.state == ChildState::Installed
                && (&other.local_ts, &other.remote_ts) == (&has.0, &has.1)
                && other.config.name == request.config.name
        };
        if self.children.iter().any(is_same) {
            self.queue(ctx, Task::DeleteChild(new, None));
        }
        if self.wait_longer(ctx.now, &request.config.name) == 1 {
            let text = format!(
                "child '{}': the peer accepted only {} === {}; other packets are dropped, such as {local} === {remote}",
                request.config.name,
                crate::child::list(&has.0),
                crate::child::list(&has.1)
            );
            ctx.log(Level::Warn, Subsystem::Child, Some(self.id), text);
        }
    }

    /// The peer refused the selectors that a packet requested.
    pub(super) fn refused_to_packet(&mut self, now: Instant, request: &ChildRequest) {
        if request.packet.is_some() && request.command.is_none() && request.cpu.is_none() {
            self.wait_longer(now, &request.config.name);
        }
    }

    /// Number of consecutive refusals.
    fn wait_longer(&mut self, now: Instant, section: &str) -> u32 {
        let list = &mut self.tasks.not_granted;
        let times = match list.iter().position(|one| one.section == section) {
            // Moved to the end, so that `remove(0)` drops the section that was refused longest ago.
            Some(at) => list.remove(at).times + 1,
            None => 1,
        };
        if list.len() >= SECTIONS_MAX {
            list.remove(0);
        }
        // `times` has no limit: an unbounded shift would overflow after 32 refusals.
        let wait = BACK_OFF.saturating_mul(1 << (times - 1).min(16)).min(BACK_OFF_MAX);
        list.push(NotGranted { section: section.to_owned(), until: now + wait, times });
        times
    }
}
