//! How an IKE SA ends, and what its end sets in motion.

use std::sync::Arc;
use std::time::Duration;

use super::{Active, Task, counters, done};
use crate::child::Child;
use crate::config::{Action, ChildConfig};
use crate::context::Context;
use crate::output::{Event, Level, Output};
use crate::sa::{Ending, Established};

/// Time that a replaced IKE SA waits for its deletion: longer than any retransmission of the peer.
pub(super) const REPLACED: Duration = Duration::from_secs(180);
/// Time that a deleted IKE SA responds to retransmissions, if the first response was lost.
const LINGER: Duration = Duration::from_secs(10);

/// The party that ended an IKE SA: determines the handling of its Child SAs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Cause {
    /// This host wanted it.
    Here,
    /// The peer wanted it: `close_action`.
    Peer,
    /// The peer is dead: `dpd_action`.
    Dead,
}

impl Established {
    /// Ends the IKE SA: with a Delete, or at once when `force`. `reason` is empty when it was
    /// wanted.
    pub(crate) fn terminate(&mut self, ctx: &mut Context<'_>, force: bool, reason: &str, command: Option<u64>) {
        if force {
            return self.terminate_now(ctx, reason, command);
        }
        if self.ending == Ending::Lingering {
            return done(ctx, command, Ok(()));
        }
        if !matches!(self.tasks.active, Some(Active::RekeyIke(_))) {
            // `begin_end` reads the deletions in the queue, which is therefore cleared afterwards.
            self.begin_end(ctx, reason);
            self.clear_queue(ctx, "the IKE SA is deleted");
        }
        // While it is being rekeyed the Delete waits, and goes over to the successor.
        self.queue(ctx, Task::DeleteIke(command));
    }

    /// Ends the IKE SA unexpectedly: protected traffic stays protected.
    pub(super) fn give_up(&mut self, ctx: &mut Context<'_>, reason: &str) {
        self.leave_traps(ctx, &[]);
        self.terminate(ctx, false, reason, None);
    }

    /// Installs a trap policy for each Child SA with `dpd_action` or `close_action` set to `trap`,
    /// unless another IKE SA has one of its section: those are `elsewhere`.
    pub(crate) fn leave_traps(&self, ctx: &mut Context<'_>, elsewhere: &[String]) {
        let mine = |child: &&Child| child.is_live() && child.cpu.is_none() && !self.is_unwanted(child.id);
        let bare = self.children.iter().filter(mine).filter(|child| !elsewhere.contains(&child.config.name));
        if self.ending == Ending::No && !self.is_unwanted_ike() {
            bare.for_each(|child| self.leave_trap(ctx, &child.config));
        }
    }

    /// Likewise for one Child SA.
    pub(super) fn leave_trap(&self, ctx: &mut Context<'_>, config: &Arc<ChildConfig>) {
        if [config.dpd_action, config.close_action].contains(&Action::Trap) {
            self.trap(ctx, config);
        }
    }

    /// The Delete cannot wait for a response: it is sent once, without retransmission.
    fn terminate_now(&mut self, ctx: &mut Context<'_>, reason: &str, command: Option<u64>) {
        self.begin_end(ctx, reason);
        self.clear_queue(ctx, "the IKE SA is deleted");
        if let Some(active) = self.tasks.active.take() {
            self.fail_active(ctx, active, "the IKE SA is deleted");
        }
        // The window is one request: with another one outstanding, the Delete would not be sent.
        self.exchanges.forget_request();
        if self.ending != Ending::Lingering {
            self.queue(ctx, Task::DeleteIke(None));
            self.start_next(ctx);
            self.tasks.active = None;
        }
        self.over(ctx, Duration::ZERO);
        done(ctx, command, Ok(()));
    }

    /// Stops sending; packets in flight are still received.
    pub(super) fn begin_end(&mut self, ctx: &mut Context<'_>, reason: &str) {
        if self.ending == Ending::No {
            self.ending = Ending::Deleting;
            self.remove_children(ctx, ctx.settings.old_inbound, reason);
            self.down(ctx, reason);
        }
    }

    /// The IKE SA is over without a Delete from here.
    pub(super) fn end(&mut self, ctx: &mut Context<'_>, reason: &str, cause: Cause) {
        if self.ending == Ending::Ended {
            return;
        }
        let after = if cause == Cause::Dead { Duration::ZERO } else { ctx.settings.old_inbound };
        if self.ending == Ending::No {
            // Before the Child SAs and the queue are cleared: the actions depend on both.
            self.act(ctx, cause);
            // Requests to end it succeed, regardless of the cause.
            let reason_of_children = if self.is_unwanted_ike() { "" } else { reason };
            self.remove_children(ctx, after, reason_of_children);
            self.down(ctx, reason);
        }
        self.exchanges.forget_request();
        if let Some(active) = self.tasks.active.take() {
            self.fail_active(ctx, active, reason);
        }
        self.clear_queue(ctx, reason);
        if cause == Cause::Peer {
            self.ending = Ending::Lingering;
            self.over_at = Some(ctx.now + LINGER);
            (self.rekey_at, self.reauth_at, self.keepalive_at) = (None, None, None);
        } else {
            self.over(ctx, after);
        }
    }

    fn over(&mut self, ctx: &mut Context<'_>, inbound_after: Duration) {
        self.remove_children(ctx, inbound_after, "");
        for pending in std::mem::take(&mut self.tasks.followups) {
            pending.abandon(ctx);
        }
        self.tasks.rival = None;
        self.ending = Ending::Ended;
    }

    /// Reports the end of an IKE SA without a successor, and releases its leases.
    fn down(&mut self, ctx: &mut Context<'_>, reason: &str) {
        ctx.names.forget_peer(&self.identities(), self.id);
        ctx.count(counters::IKE_DOWN);
        ctx.event(Event::IkeDown(self.id, reason.to_owned()));
        if !reason.is_empty() {
            self.log(ctx, Level::Info, format!("the IKE SA with {} ended: {reason}", self.path.remote));
        }
        for address in std::mem::take(&mut self.virtual_local) {
            ctx.drop_address(self.id, address);
        }
        for leased in std::mem::take(&mut self.virtual_remote) {
            ctx.pools.release(&leased);
        }
    }

    /// `dpd_action` and `close_action` of each live Child SA.
    fn act(&self, ctx: &mut Context<'_>, cause: Cause) {
        if self.is_unwanted_ike() {
            return;
        }
        let mut again = Vec::new();
        let (local, remote) = self.identities();
        let goes_on = ctx.names.with_peer(&local, &remote).any(|other| other != self.id);
        let mine = |child: &&Child| child.is_live() && child.cpu.is_none() && !self.is_unwanted(child.id);
        for child in self.children.iter().filter(mine) {
            let action = match cause {
                Cause::Here => continue,
                Cause::Peer => child.config.close_action,
                Cause::Dead => child.config.dpd_action,
            };
            match action {
                Action::Clear => (),
                Action::Trap => self.trap(ctx, &child.config),
                // The peer reauthenticated, or ends a duplicate: the remaining IKE SA has the Child
                // SAs.
                Action::Restart if (cause == Cause::Peer && goes_on) || self.has_heir(ctx) => (),
                Action::Restart if !self.is_loaded(ctx) => (),
                Action::Restart => again.push(child.config.clone()),
            }
        }
        if !again.is_empty() {
            let remote = self.peer_without_address();
            self.initiate_children(ctx, again, (remote, None), None, None);
        }
    }

    /// Its deletion is queued after a rekey.
    pub(crate) fn is_unwanted_ike(&self) -> bool {
        self.tasks.queue.iter().any(|waiting| matches!(waiting.task, Task::DeleteIke(_)))
    }

    fn is_loaded(&self, ctx: &Context<'_>) -> bool {
        ctx.connections.iter().any(|connection| connection.name == self.connection.name)
    }

    /// Installs a trap policy, but none of an unloaded connection.
    pub(super) fn trap(&self, ctx: &mut Context<'_>, config: &Arc<ChildConfig>) {
        let loaded = ctx.connections.iter().find(|connection| connection.name == self.connection.name);
        let Some(connection) = loaded.cloned() else { return };
        let config = connection.children.iter().find(|child| child.name == config.name).cloned();
        if let Some(config) = config {
            ctx.out.push_back(Output::Trap(connection, config, true));
        }
    }

    fn clear_queue(&mut self, ctx: &mut Context<'_>, reason: &str) {
        for waiting in std::mem::take(&mut self.tasks.queue) {
            match waiting.task {
                Task::DeleteIke(command) | Task::DeleteChild(_, command) => done(ctx, command, Ok(())),
                task => done(ctx, task.command(), Err(reason)),
            }
        }
    }

    /// All retransmissions of the outstanding request were sent without a response.
    pub(crate) fn gave_up(&mut self, ctx: &mut Context<'_>) {
        if self.ending != Ending::No {
            return self.end(ctx, "the peer does not answer", Cause::Here);
        }
        // A requested end must not start `dpd_action`, which could establish the IKE SA again.
        if self.is_unwanted_ike() {
            return self.end(ctx, "the peer does not answer", Cause::Here);
        }
        if !self.try_other_path(ctx) {
            ctx.count(counters::IKE_DEAD);
            self.end(ctx, "the peer does not answer", Cause::Dead);
        }
    }
}
