//! What an authenticated IKE SA does: the exchanges it starts and the requests it answers.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::child::ChildFault;
use crate::context::Context;
use crate::exchange::{Inner, Plain};
use crate::output::ChildId;
use crate::sa::{ChildRequest, Established, Role};

/// What is going on and what waits.
pub(crate) struct Tasks {
    /// Who started the first IKE SA of this line: decides about addresses (RFC 4555) and reauthentication.
    pub(crate) origin: Role,
}

impl Tasks {
    /// Nothing to do yet.
    pub(crate) fn new(origin: Role) -> Self {
        Self { origin }
    }
}

/// Whoever owns an `Established` calls these. `handle_*` take what [`crate::exchange::Exchanges`] has
/// authenticated and put in order; `start_next` is harmless at any time.
impl Established {
    /// Sets lifetimes by the connection's configuration; the first call of its life, after IKE_AUTH.
    pub(crate) fn begin(&mut self, ctx: &mut Context<'_>) {
        let _ = ctx;
        todo!()
    }
    /// Answers a new request. `from` is (local, remote) of its datagram.
    pub(crate) fn handle_request(&mut self, ctx: &mut Context<'_>, from: (SocketAddr, SocketAddr), request: &Plain) -> Inner {
        let _ = (ctx, from, request);
        todo!()
    }
    /// Takes the response to the request that is out.
    pub(crate) fn handle_response(&mut self, ctx: &mut Context<'_>, from: (SocketAddr, SocketAddr), response: &Plain) {
        let _ = (ctx, from, response);
        todo!()
    }
    /// Starts what waits, when no request is out. To be called after every step.
    pub(crate) fn start_next(&mut self, ctx: &mut Context<'_>) {
        let _ = ctx;
        todo!()
    }
    /// Lifetimes, liveness, keepalives, back-off. Not the retransmissions of `exchanges`.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        let _ = ctx;
        todo!()
    }
    /// When [`Established::handle_timeout`] has something to do. Not the deadline of `exchanges`.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        todo!()
    }
    /// The retransmissions of the request that is out are exhausted.
    pub(crate) fn gave_up(&mut self, ctx: &mut Context<'_>) {
        let _ = ctx;
        todo!()
    }
    /// A Child SA is wanted: by a command, a packet, or another IKE SA.
    pub(crate) fn request_child(&mut self, ctx: &mut Context<'_>, request: ChildRequest) {
        let _ = (ctx, request);
        todo!()
    }
    /// The Child SA of IKE_AUTH failed while the IKE SA came up.
    pub(crate) fn child_failed(&mut self, ctx: &mut Context<'_>, request: &ChildRequest, fault: ChildFault) {
        let _ = (ctx, request, fault);
        todo!()
    }
    /// Ends the IKE SA: with a Delete, or at once when `force`. `reason` is empty when it was wanted.
    pub(crate) fn terminate(&mut self, ctx: &mut Context<'_>, force: bool, reason: &str, command: Option<u64>) {
        let _ = (ctx, force, reason, command);
        todo!()
    }
    /// Ends a Child SA. False when there is none of that name.
    pub(crate) fn terminate_child(&mut self, ctx: &mut Context<'_>, child: ChildId, reason: &str, command: Option<u64>) -> bool {
        let _ = (ctx, child, reason, command);
        todo!()
    }
    /// Rekeys, or authenticates anew.
    pub(crate) fn rekey(&mut self, ctx: &mut Context<'_>, reauth: bool, command: Option<u64>) {
        let _ = (ctx, reauth, command);
        todo!()
    }
    /// Rekeys a Child SA. False when there is none of that name.
    pub(crate) fn rekey_child(&mut self, ctx: &mut Context<'_>, child: ChildId, command: Option<u64>) -> bool {
        let _ = (ctx, child, command);
        todo!()
    }
    /// A limit of bytes or packets was reached.
    pub(crate) fn child_expired(&mut self, ctx: &mut Context<'_>, child: ChildId, hard: bool) {
        let _ = (ctx, child, hard);
        todo!()
    }
    /// Authentic inbound traffic on a Child SA, with its outer source when it came in UDP.
    pub(crate) fn traffic(&mut self, ctx: &mut Context<'_>, child: ChildId, from: Option<SocketAddr>) {
        let _ = (ctx, child, from);
        todo!()
    }
    /// Addresses of this host changed.
    pub(crate) fn local_addresses(&mut self, ctx: &mut Context<'_>, addresses: &[IpAddr]) {
        let _ = (ctx, addresses);
        todo!()
    }
    /// AUTH_LIFETIME (RFC 4478), in IKE_AUTH or later.
    pub(crate) fn auth_lifetime(&mut self, ctx: &mut Context<'_>, seconds: u32) {
        let _ = (ctx, seconds);
        todo!()
    }
}
