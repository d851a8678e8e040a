//! Changes of a reload to an established IKE SA.

use std::sync::Arc;

use super::Task;
use crate::config::{ChildConfig, Connection};
use crate::context::Context;
use crate::output::Level;
use crate::sa::Established;

impl Established {
    /// Switches to the reloaded connection: further negotiations follow it. Child SAs of removed
    /// sections end; those of changed sections end when they are to start again, and otherwise live
    /// until the peer or a lifetime ends them.
    pub(crate) fn reloaded(&mut self, ctx: &mut Context<'_>, connection: &Arc<Connection>) {
        self.connection = Arc::clone(connection);
        let find = |name: &str| connection.children.iter().find(|config| config.name == name);
        let mut over = Vec::new();
        for child in self.children.iter_mut().filter(|child| child.is_live()) {
            match find(&child.config.name) {
                None => over.push((child.id, "it is not loaded any more")),
                Some(config) if negotiates_alike(config, &child.config) => child.config = Arc::clone(config),
                Some(config) if config.start_action.start => over.push((child.id, "its configuration changed")),
                Some(_) => (),
            }
        }
        // A queued request holds its section, and would negotiate the old configuration.
        for waiting in &mut self.tasks.queue {
            if let Task::CreateChild(request) = &mut waiting.task
                && let Some(config) = find(&request.config.name)
            {
                request.config = Arc::clone(config);
            }
        }
        self.log(ctx, Level::Info, format!("connection '{}' is updated", connection.name));
        for (child, reason) in over {
            self.terminate_child(ctx, child, reason, None);
        }
    }
}

/// Returns whether a Child SA of one section equals the result of a negotiation for the other one.
pub(crate) fn negotiates_alike(one: &ChildConfig, other: &ChildConfig) -> bool {
    one.local_ts == other.local_ts
        && one.remote_ts == other.remote_ts
        && one.mode == other.mode
        && one.proposals == other.proposals
        && one.per_cpu_sas == other.per_cpu_sas
        && one.replay_window == other.replay_window
}
