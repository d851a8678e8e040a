//! The end of Child SAs and IKE SAs by Delete payloads (RFC 7296 §1.4.1).
//!
//! A Delete names the SPIs that its sender receives under; the answer names those of the other
//! direction. When both ends delete the same Child SA at once, neither answer names it (§2.25.1).
//!
//! The outbound half of a Child SA without successor ends when the Delete is sent: from then on the
//! peer may have no inbound half any more. One with a successor is not sent on any more, but the
//! peer may still send on its half until it has the Delete: it is removed with the response.

use std::time::Duration;

use wire::Spi;
use wire::ike::{Chain, Delete, ExchangeType, ProtocolId};

use super::end::Cause;
use super::{Active, Task, counters, done};
use crate::child::{Child, ChildState, Parts, protocol_id};
use crate::config::Action;
use crate::context::Context;
use crate::output::{ChildId, Event, Level, Subsystem};
use crate::sa::{ChildRequest, Established};

impl Established {
    /// Ends a Child SA. Returns false if it does not exist.
    pub(crate) fn terminate_child(
        &mut self,
        ctx: &mut Context<'_>,
        child: ChildId,
        reason: &str,
        command: Option<u64>,
    ) -> bool {
        let id = self.id;
        let Some(child) = self.child(child) else { return false };
        let (name, child) = (child.config.name.clone(), child.id);
        if !reason.is_empty() {
            let text = format!("child '{name}' {{{}}} is deleted: {reason}", child.0);
            ctx.log(Level::Info, Subsystem::Child, Some(id), text);
        }
        self.queue(ctx, Task::DeleteChild(child, command));
        true
    }

    pub(super) fn start_delete_child(&mut self, ctx: &mut Context<'_>, id: ChildId, command: Option<u64>) {
        let id = command.and_then(|_| self.unused_successor(id)).unwrap_or(id);
        let Some(child) = self.child(id) else { return done(ctx, command, Ok(())) };
        let protocol = child.protocol(ctx);
        let was = std::mem::replace(&mut child.state, ChildState::Deleting);
        let (spi, name) = (child.spi_in.get().to_be_bytes(), child.config.name.clone());
        if was != ChildState::Rekeyed {
            if let Some(old) = child.replaces.take() {
                // A successor that ends before it was used.
                ctx.event(Event::ChildRekeyed(old, id));
            }
            child.remove(ctx, ctx.settings.old_inbound);
            child_down(ctx, id, "");
        }
        self.inherit(ctx, id);
        let text = format!("child '{name}' {{{}}}: a Delete is sent", id.0);
        ctx.log(Level::Debug, Subsystem::Child, Some(self.id), text);
        self.send(ctx, Active::DeleteChild(id, command), ExchangeType::INFORMATIONAL, |chain| {
            chain.delete(protocol, &[&spi]);
        });
    }

    /// A Child SA that the peer has just rekeyed continues as this one, so a request to end it
    /// applies to the successor. The peer deletes the old one, which carries packets until then.
    fn unused_successor(&self, old: ChildId) -> Option<ChildId> {
        let rekeyed = |child: &&Child| child.id == old && child.state == ChildState::Rekeyed;
        self.children.iter().find(rekeyed)?;
        self.children.iter().find(|child| child.replaces == Some(old)).map(|child| child.id)
    }

    pub(super) fn start_delete_spi(&mut self, ctx: &mut Context<'_>, protocol: ProtocolId, spi: Spi) {
        self.send(ctx, Active::DeleteSpi, ExchangeType::INFORMATIONAL, |chain| {
            chain.delete(protocol, &[&spi.get().to_be_bytes()]);
        });
    }

    /// The peer has answered our Delete, or deleted the same one itself before.
    pub(super) fn child_deleted(&mut self, ctx: &mut Context<'_>, id: ChildId, command: Option<u64>) {
        self.forget_child(ctx, id, ctx.settings.old_inbound);
        done(ctx, command, Ok(()));
    }

    pub(super) fn start_delete_ike(&mut self, ctx: &mut Context<'_>, command: Option<u64>) {
        self.begin_end(ctx, "");
        self.send(ctx, Active::DeleteIke(command), ExchangeType::INFORMATIONAL, |chain| {
            chain.delete(ProtocolId::IKE, &[]);
        });
    }

    pub(super) fn ike_deleted(&mut self, ctx: &mut Context<'_>, command: Option<u64>) {
        self.end(ctx, "", Cause::Here);
        done(ctx, command, Ok(()));
    }

    /// Answers the Delete payloads of an INFORMATIONAL request. True when the IKE SA is deleted.
    pub(super) fn answer_deletes(&mut self, ctx: &mut Context<'_>, parts: &Parts<'_>, chain: &mut Chain<'_>) -> bool {
        // The end of the IKE SA includes all Child SAs (RFC 7296 §1.4.1), so other Deletes are
        // redundant.
        if parts.deletes.iter().any(|delete| delete.protocol == ProtocolId::IKE) {
            self.deleted_by_peer(ctx);
            return true;
        }
        for delete in &parts.deletes {
            let gone = self.delete_named(ctx, delete);
            if !gone.is_empty() {
                let spis: Vec<&[u8]> = gone.iter().map(|spi| &spi[..]).collect();
                chain.delete(delete.protocol, &spis);
            }
        }
        false
    }

    /// The peer ends the IKE SA; one that both peers rekeyed continues as the peer's successor.
    fn deleted_by_peer(&mut self, ctx: &mut Context<'_>) {
        if let Some(active) = self.tasks.active.take_if(|_| self.tasks.rival.is_some()) {
            self.adopt_rival(ctx);
            let Active::RekeyIke(rekeying) = active else { return };
            done(ctx, rekeying.command(), Ok(()));
        }
        // After `adopt_rival` the state is `Replaced`, so that no `close_action` starts and the
        // leases stay.
        self.end(ctx, "the peer deleted it", Cause::Peer);
    }

    /// Removes the SAs of a Delete; the SPIs for the answer, at most as many as Child SAs.
    fn delete_named(&mut self, ctx: &mut Context<'_>, delete: &Delete<'_>) -> Vec<[u8; 4]> {
        let mut gone = Vec::new();
        for spi in delete.spis() {
            let named = |child: &&Child| {
                child.spi_out.get().to_be_bytes() == spi && protocol_id(ctx, child.suite.protocol) == delete.protocol
            };
            let Some(child) = self.children.iter().find(named) else {
                if let (Some(Active::Create(create)), Ok(spi)) = (&mut self.tasks.active, spi.try_into()) {
                    create.remember_deleted(spi);
                }
                continue;
            };
            let (id, state, spi_in) = (child.id, child.state, child.spi_in);
            if state != ChildState::Deleting {
                gone.push(spi_in.get().to_be_bytes());
            }
            self.child_deleted_by_peer(ctx, id);
        }
        gone
    }

    /// The peer has no such Child SA any more.
    pub(super) fn child_deleted_by_peer(&mut self, ctx: &mut Context<'_>, id: ChildId) {
        let Some(child) = self.child(id) else { return };
        let (config, state) = (child.config.clone(), child.state);
        // Determined before `inherit`, which clears `replaces`.
        let replaced = state == ChildState::Rekeyed || self.children.iter().any(|child| child.replaces == Some(id));
        // Requests to end it are fulfilled, without a successor.
        let unwanted = self.is_unwanted(id);
        if state != ChildState::Deleting && !replaced {
            child_down(ctx, id, if unwanted { "" } else { "the peer deleted it" });
        }
        self.inherit(ctx, id);
        self.forget_child(ctx, id, ctx.settings.old_inbound);
        if !unwanted && !replaced && matches!(state, ChildState::Installed | ChildState::Rekeying) {
            match config.close_action {
                Action::Clear => (),
                Action::Trap => self.trap(ctx, &config),
                Action::Restart => {
                    self.request_child(ctx, ChildRequest { config, packet: None, cpu: None, command: None });
                }
            }
        }
    }

    /// The successor of a Child SA that is ending takes its traffic over.
    fn inherit(&mut self, ctx: &mut Context<'_>, old: ChildId) {
        if let Some(new) = self.children.iter().find(|child| child.replaces == Some(old)).map(|child| child.id) {
            self.use_outbound(ctx, new);
        }
    }

    /// Removes a Child SA on this side alone.
    pub(super) fn drop_child(&mut self, ctx: &mut Context<'_>, id: ChildId, reason: &str) {
        child_down(ctx, id, reason);
        self.forget_child(ctx, id, Duration::ZERO);
    }

    fn forget_child(&mut self, ctx: &mut Context<'_>, id: ChildId, inbound_after: Duration) {
        if let Some(at) = self.children.iter().position(|child| child.id == id) {
            let mut child = self.children.remove(at);
            child.remove(ctx, inbound_after);
            // A deleted Child SA frees a slot for one that the peer refused with TS_MAX_QUEUE.
            self.tasks.full.retain(|name| *name != child.config.name);
        }
    }

    /// Every Child SA ends with the IKE SA.
    pub(super) fn remove_children(&mut self, ctx: &mut Context<'_>, inbound_after: Duration, reason: &str) {
        for mut child in std::mem::take(&mut self.children) {
            child.remove(ctx, inbound_after);
            if child.is_live() {
                child_down(ctx, child.id, if self.is_unwanted(child.id) { "" } else { reason });
            }
        }
    }
}

fn child_down(ctx: &mut Context<'_>, id: ChildId, reason: &str) {
    ctx.count(counters::CHILD_DOWN);
    ctx.event(Event::ChildDown(id, reason.to_owned()));
}
