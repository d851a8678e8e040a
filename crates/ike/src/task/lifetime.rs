//! Time: lifetimes of the IKE SA and its Child SAs, inactivity, liveness, NAT keepalives.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::end::Cause;
use super::{Task, earlier, jitter};
use crate::child::{Child, ChildState};
use crate::context::Context;
use crate::output::{ChildId, Level, Output, Path};
use crate::sa::{Ending, Established, Role};

/// A peer's AUTH_LIFETIME is honoured this much before its end, so that there is time for it.
const AUTH_LIFETIME_MARGIN: Duration = Duration::from_secs(30);

impl Established {
    /// Sets lifetimes by the connection's configuration; the first call of its life, after
    /// IKE_AUTH.
    pub(crate) fn begin(&mut self, ctx: &mut Context<'_>) {
        let reauth = self.connection.reauth_time;
        if !reauth.is_zero() {
            // Both at once would make two of one: the responder waits whether the initiator does
            // it.
            let wait = if self.role == Role::Responder { self.connection.over_time / 2 } else { Duration::ZERO };
            let reauth = reauth + wait;
            self.reauth_at = Some(ctx.now + reauth.saturating_sub(jitter(ctx, self.connection.rand_time)));
        }
        self.set_lifetimes(ctx);
        self.put_off_keepalive(ctx);
    }

    /// `rekey_time` from now, and the end `over_time` after whatever is due first.
    pub(super) fn set_lifetimes(&mut self, ctx: &mut Context<'_>) {
        let (rekey, over) = (self.connection.rekey_time, self.connection.over_time);
        if !rekey.is_zero() {
            // Random, so that both peers, and many IKE SAs of one start, do not rekey at the same
            // time.
            self.rekey_at = Some(ctx.now + rekey.saturating_sub(jitter(ctx, self.connection.rand_time)));
        }
        let rekey_end = (!rekey.is_zero()).then(|| ctx.now + rekey + over);
        // `reauth_at` is reduced by the jitter. `rand_time` compensates it, so that at least
        // `over_time` is left.
        self.over_at = earlier(rekey_end, self.reauth_at.map(|at| at + self.connection.rand_time + over));
    }

    /// AUTH_LIFETIME (RFC 4478), in IKE_AUTH or later.
    pub(crate) fn auth_lifetime(&mut self, ctx: &mut Context<'_>, seconds: u32) {
        let lifetime = Duration::from_secs(seconds.into());
        // Early enough for a complete handshake, because the peer deletes the IKE SA at the end
        // (RFC 4478).
        let at = ctx.now + lifetime.saturating_sub(AUTH_LIFETIME_MARGIN.min(lifetime / 10));
        self.reauth_at = earlier(self.reauth_at, Some(at));
        self.log(ctx, Level::Info, format!("the peer requires reauthentication within {seconds} s"));
    }

    /// Lifetimes, liveness, keepalives, back-off. Not the retransmissions of `exchanges`.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        if self.ending == Ending::Ended {
            return;
        }
        // The hard limit first: an expired IKE SA must not start new exchanges.
        if self.over_at.is_some_and(|at| at <= ctx.now) {
            return self.out_of_time(ctx);
        }
        if self.ending != Ending::No {
            return;
        }
        if self.rekey_at.take_if(|at| *at <= ctx.now).is_some() {
            self.queue(ctx, Task::RekeyIke(None));
        }
        if self.reauth_at.take_if(|at| *at <= ctx.now).is_some() {
            self.reauthenticate(ctx, None);
        }
        self.check_children(ctx);
        self.expire_followups(ctx);
        self.check_liveness(ctx);
        if self.keepalive_at.is_some_and(|at| at <= ctx.now) {
            ctx.out.push_back(Output::Keepalive(self.path));
            self.put_off_keepalive(ctx);
        }
    }

    fn out_of_time(&mut self, ctx: &mut Context<'_>) {
        self.over_at = None;
        if self.ending == Ending::No {
            self.give_up(ctx, "its lifetime is over");
        } else {
            self.end(ctx, "", Cause::Here);
        }
    }

    fn check_children(&mut self, ctx: &mut Context<'_>) {
        let due: Vec<(ChildId, Due)> =
            self.children.iter().filter_map(|child| Some((child.id, due(child, ctx.now)?))).collect();
        for (id, due) in due {
            match due {
                Due::Rekey => self.soft_expired(ctx, id),
                Due::Expired => self.hard_expired(ctx, id, "its lifetime is over"),
                Due::Inactive => self.hard_expired(ctx, id, "it was not used"),
            }
        }
    }

    fn soft_expired(&mut self, ctx: &mut Context<'_>, id: ChildId) {
        if let Some(child) = self.child(id) {
            child.rekey_at = None;
            self.queue(ctx, Task::RekeyChild(id, None));
        }
    }

    fn hard_expired(&mut self, ctx: &mut Context<'_>, id: ChildId, reason: &str) {
        if let Some(child) = self.child(id) {
            // The Delete may wait in the queue. Until then, times in the past would fire the timer
            // at once again.
            (child.rekey_at, child.expire_at) = (None, None);
            child.used = ctx.now;
            let protects = child.is_live() && child.cpu.is_none();
            let config = child.config.clone();
            // The trap must precede the removal, otherwise packets in between would leave in clear
            // text or be lost.
            if protects && !self.is_unwanted(id) {
                self.leave_trap(ctx, &config);
            }
            self.terminate_child(ctx, id, reason, None);
        }
    }

    fn expire_followups(&mut self, ctx: &mut Context<'_>) {
        while let Some(at) = self.tasks.followups.iter().position(|pending| pending.until() <= ctx.now) {
            self.tasks.followups.remove(at).abandon(ctx);
        }
    }

    /// Time of the next [`Established::handle_timeout`]. Not the deadline of `exchanges`.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.ending == Ending::Ended {
            return None;
        }
        // Tasks that cannot start must not count, otherwise a time in the past makes the timer
        // spin.
        let free = self.tasks.active.is_none() && self.exchanges.idle();
        let leaving = self.tasks.is_leaving();
        let may = |waiting: &&super::Waiting| free && !(leaving && waiting.task.is_about_child());
        let waiting = self.tasks.queue.iter().filter(may).filter_map(|waiting| waiting.not_before);
        let mut deadline = waiting.fold(self.over_at, |first, at| earlier(first, Some(at)));
        if self.ending != Ending::No {
            return deadline;
        }
        for at in [self.rekey_at, self.reauth_at, self.keepalive_at] {
            deadline = earlier(deadline, at);
        }
        let delay = self.connection.dpd_delay;
        if free && self.tasks.queue.is_empty() && !delay.is_zero() {
            deadline = earlier(deadline, Some(self.unasked_since() + delay));
        }
        deadline = self.tasks.followups.iter().fold(deadline, |first, pending| earlier(first, Some(pending.until())));
        self.children.iter().fold(deadline, |first, child| earlier(first, next_due(child)))
    }

    /// Behind a NAT a keepalive should be sent if there was no other traffic (RFC 3948 §4).
    pub(super) fn put_off_keepalive(&mut self, ctx: &Context<'_>) {
        let every = ctx.settings.keepalive;
        self.keepalive_at = (self.nat.0 && !every.is_zero() && self.ending == Ending::No).then(|| ctx.now + every);
    }

    /// Rekeys a Child SA. Returns false if it does not exist.
    pub(crate) fn rekey_child(&mut self, ctx: &mut Context<'_>, child: ChildId, command: Option<u64>) -> bool {
        let known = self.child(child).is_some();
        if known {
            self.queue(ctx, Task::RekeyChild(child, command));
        }
        known
    }

    /// A limit of bytes or packets was reached.
    pub(crate) fn child_expired(&mut self, ctx: &mut Context<'_>, child: ChildId, hard: bool) {
        match hard {
            true => self.hard_expired(ctx, child, "its limit of bytes or packets is reached"),
            false => self.soft_expired(ctx, child),
        }
    }

    /// Authentic inbound traffic on a Child SA, with its outer source when it came in UDP.
    pub(crate) fn traffic(&mut self, ctx: &mut Context<'_>, child: ChildId, from: Option<SocketAddr>) {
        // Authentic ESP traffic is proof of liveness (RFC 7296 §2.4).
        self.last_received = ctx.now;
        let Some(found) = self.child(child) else { return };
        found.used = ctx.now;
        if found.replaces.is_some() {
            self.use_outbound(ctx, child);
        }
        if let Some(remote) = from.filter(|_| self.path.encap) {
            self.follow_nat(ctx, &Path { remote, ..self.path });
        }
    }
}

/// Due action of a Child SA.
enum Due {
    Rekey,
    Expired,
    Inactive,
}

fn due(child: &Child, now: Instant) -> Option<Due> {
    if child.state == ChildState::Deleting {
        return None;
    }
    let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
    if is_due(child.expire_at) {
        Some(Due::Expired)
    } else if is_due(inactive_at(child)) {
        Some(Due::Inactive)
    } else {
        (child.state == ChildState::Installed && is_due(child.rekey_at)).then_some(Due::Rekey)
    }
}

fn next_due(child: &Child) -> Option<Instant> {
    if child.state == ChildState::Deleting {
        return None;
    }
    // The conditions must match `due`: a time without an action makes the timer spin.
    let rekey = child.rekey_at.filter(|_| child.state == ChildState::Installed);
    earlier(rekey, earlier(child.expire_at, inactive_at(child)))
}

/// Replaced ones are silent by nature.
fn inactive_at(child: &Child) -> Option<Instant> {
    let inactivity = child.config.inactivity;
    (!inactivity.is_zero() && child.is_live()).then(|| child.used + inactivity)
}
