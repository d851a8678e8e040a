//! Changes of a reload to an established IKE SA.

use std::sync::Arc;

use super::Task;
use crate::config::{ChildConfig, Connection};
use crate::context::Context;
use crate::output::Level;
use crate::sa::Established;

impl Established {
    /// Switches to the reloaded connection, which further negotiations use. Child SAs of removed
    /// sections are deleted. Those of changed sections are deleted if `start_action` starts them
    /// again, and otherwise stay until the peer deletes them or their lifetime ends.
    pub(crate) fn reloaded(&mut self, ctx: &mut Context<'_>, connection: &Arc<Connection>) {
        self.connection = Arc::clone(connection);
        let find = |name: &str| connection.children.iter().find(|config| config.name == name);
        let mut ended = Vec::new();
        for child in self.children.iter_mut().filter(|child| child.is_live()) {
            match find(&child.config.name) {
                None => ended.push((child.id, "it is not loaded any more")),
                Some(config) if same_negotiation(config, &child.config) => child.config = Arc::clone(config),
                Some(config) if config.start_action.start => ended.push((child.id, "its configuration changed")),
                Some(_) => (),
            }
        }
        // A queued request has a copy of its section, and would negotiate the old configuration.
        for waiting in &mut self.tasks.queue {
            if let Task::CreateChild(request) = &mut waiting.task
                && let Some(config) = find(&request.config.name)
            {
                request.config = Arc::clone(config);
            }
        }
        self.log(ctx, Level::Info, format!("connection '{}' is updated", connection.name));
        for (child, reason) in ended {
            self.terminate_child(ctx, child, reason, None);
        }
    }
}

/// Returns whether two sections negotiate equal Child SAs, so that an existing one can be kept.
pub(crate) fn same_negotiation(one: &ChildConfig, other: &ChildConfig) -> bool {
    one.local_ts == other.local_ts
        && one.remote_ts == other.remote_ts
        && one.mode == other.mode
        && one.iptfs == other.iptfs
        && one.proposals == other.proposals
        && one.per_cpu_sas == other.per_cpu_sas
        && one.replay_window == other.replay_window
}
