//! Child SAs with `dynamic` selectors after an address changed (MOBIKE): the end that moved makes
//! one with the new addresses and deletes the old one.

use std::net::IpAddr;

use super::{Task, done};
use crate::child::{CHILDREN_MAX, Child, ChildState, Offer};
use crate::config::TsConfig;
use crate::context::Context;
use crate::output::ChildId;
use crate::sa::{ChildRequest, Established, Role};

impl Established {
    /// The IKE SA has new addresses: Child SAs with selectors of the old ones are recreated.
    pub(super) fn follow_addresses(&mut self, ctx: &mut Context<'_>) {
        if self.tasks.origin != Role::Initiator {
            return;
        }
        let behind: Vec<ChildId> =
            self.children.iter().filter(|child| self.is_behind(child)).map(|child| child.id).collect();
        for child in behind {
            self.queue(ctx, Task::FollowAddresses(child));
        }
    }

    /// Its `dynamic` selectors are an outer address that changed.
    fn is_behind(&self, child: &Child) -> bool {
        let lacks = |configured: &[TsConfig], agreed: &[wire::TrafficSelector], addr: IpAddr| {
            configured.iter().any(|ts| ts.addrs.is_none()) && !agreed.iter().any(|ts| ts.addrs.contains(addr))
        };
        let local = self.virtual_local.is_empty()
            && self.connection.vips.is_empty()
            && lacks(&child.config.local_ts, &child.local_ts, self.path.local.ip());
        let remote =
            self.virtual_remote.is_empty() && lacks(&child.config.remote_ts, &child.remote_ts, self.path.remote.ip());
        child.state == ChildState::Installed && !child.removed && (local || remote)
    }

    pub(super) fn start_follow(&mut self, ctx: &mut Context<'_>, old: ChildId, attempt: u32) {
        let Some(child) = self.children.iter().find(|child| child.id == old && self.is_behind(child)) else { return };
        if self.children.len() >= CHILDREN_MAX {
            return done(ctx, None, Ok(()));
        }
        let request = ChildRequest { config: child.config.clone(), packet: None, cpu: child.cpu, command: None };
        let offer = Offer::for_create(ctx, &self.parent(), &request);
        self.send_create(ctx, offer, None, attempt);
    }

    /// A Child SA came up: those of its section with old addresses go.
    pub(super) fn followed(&mut self, ctx: &mut Context<'_>, new: ChildId) {
        let Some(child) = self.children.iter().find(|child| child.id == new) else { return };
        // The address may have changed again during the exchange. The old Child SAs wait for the
        // next successor.
        if self.is_behind(child) {
            return;
        }
        let (section, cpu) = (child.config.name.clone(), child.cpu);
        let of_section = |other: &&Child| other.config.name == section && other.cpu == cpu && self.is_behind(other);
        let old: Vec<ChildId> = self.children.iter().filter(of_section).map(|child| child.id).collect();
        for old in old {
            self.queue(ctx, Task::DeleteChild(old, None));
        }
    }
}
