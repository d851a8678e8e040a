//! What listings show of ISAKMP SAs: the same as of IKEv2.

use super::established::{Child, ChildState, Ending, Established};
use super::{Sa, Table};
use crate::config::Version;
use crate::endpoint::{ChildView, IkeState, IkeView};
use crate::output::IkeId;
use crate::sa::Role;

impl Table {
    /// Every ISAKMP SA.
    pub(crate) fn views(&self) -> impl Iterator<Item = IkeView<'_>> {
        self.sas.values().map(|slot| view(&slot.sa))
    }

    /// The ISAKMP SA of a name.
    pub(crate) fn view(&self, id: IkeId) -> Option<IkeView<'_>> {
        self.sas.get(self.by_id.get(&id)?).map(|slot| view(&slot.sa))
    }
}

fn view(sa: &Sa) -> IkeView<'_> {
    match sa {
        Sa::Established(sa) => established(sa),
        Sa::Initiator(initiator) => {
            IkeView { unanswered: initiator.unanswered(), ..connecting(sa, initiator.basis.path) }
        }
        Sa::Responder(responder) => connecting(sa, responder.basis.path),
        Sa::Configuring(configuring) => {
            let path = configuring.up.sa.basis.path;
            IkeView { unanswered: configuring.unanswered(), ..connecting(sa, path) }
        }
    }
}

fn connecting(sa: &Sa, path: crate::output::Path) -> IkeView<'_> {
    let initiator = sa.role() == Role::Initiator;
    IkeView::connecting((sa.id(), Version::V1), Some(sa.connection()), initiator, (sa.cookies(), path))
}

fn established(sa: &Established) -> IkeView<'_> {
    IkeView {
        id: sa.id(),
        version: Version::V1,
        connection: Some(&sa.connection),
        state: match sa.ending {
            Ending::No => IkeState::Established,
            Ending::Replaced => IkeState::Rekeyed,
            Ending::Ended => IkeState::Deleting,
        },
        initiator: sa.role == Role::Initiator,
        spis: sa.basis.cookies,
        path: sa.basis.path,
        local_id: Some(&sa.local_id),
        remote_id: Some(&sa.remote_id),
        eap_name: sa.xauth_name.as_deref(),
        suite: Some(&sa.suite),
        established: Some(sa.established),
        rekey_at: sa.rekey_at,
        reauth_at: None,
        nat: sa.nat,
        agreed_udp: false,
        ppk: false,
        virtual_local: &sa.virtual_local,
        virtual_remote: &sa.virtual_remote,
        unanswered: sa.unanswered(),
        tasks_queued: Vec::new(),
        tasks_active: None,
        children: sa.children.iter().map(|child| child_view(sa, child)).collect(),
    }
}

fn child_view<'a>(sa: &Established, child: &'a Child) -> ChildView<'a> {
    ChildView {
        id: child.id,
        config: &child.config,
        state: match child.state {
            ChildState::Unconfirmed => "INSTALLING",
            ChildState::Installed => "INSTALLED",
            ChildState::Rekeying => "REKEYING",
            ChildState::Rekeyed => "REKEYED",
        },
        suite: &child.suite,
        mode: child.mode,
        encap: sa.basis.path.encap,
        spi_in: child.spi_in,
        spi_out: child.spi_out,
        local_ts: std::slice::from_ref(&child.local_ts),
        remote_ts: &child.networks,
        cpu: None,
        per_cpu: false,
        installed: child.installed,
        rekey_at: child.rekey_at,
        expire_at: child.expire_at,
    }
}
