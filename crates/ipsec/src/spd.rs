//! The SPD: ordered policies, first match, default drop (RFC 4301 §4.4.1).

use wire::{FlowKey, Selector};

/// Index of a policy in its SPD.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PolicyId(pub u32);

/// What a policy does with its packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Through the outbound SA in this slot of the snapshot; inbound, only from the SA in slot
    /// `inbound`.
    Protect {
        /// Outbound SA slot.
        outbound: u32,
        /// Inbound SA slot.
        inbound: u32,
    },
    /// In the clear.
    Bypass,
    /// Not at all.
    Drop,
}

/// One policy. Selectors are written from this host's point of view, outbound: source is local.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Name in the configuration.
    pub name: Box<str>,
    /// Any of them matches.
    pub selectors: Vec<Selector>,
    /// What happens.
    pub action: Action,
}

/// The policies in order.
#[derive(Default)]
pub struct Spd {}

impl Spd {
    /// The ordered list.
    pub fn new(policies: Vec<Policy>) -> Self {
        let _ = policies;
        todo!("tables helper")
    }

    /// First policy that matches an outbound packet.
    pub fn outbound(&self, key: &FlowKey) -> Option<(PolicyId, Action)> {
        let _ = key;
        todo!("tables helper")
    }

    /// First policy that matches an inbound packet (selectors reversed).
    pub fn inbound(&self, key: &FlowKey) -> Option<(PolicyId, Action)> {
        let _ = key;
        todo!("tables helper")
    }

    /// The policy with this id.
    pub fn get(&self, id: PolicyId) -> Option<&Policy> {
        let _ = id;
        todo!("tables helper")
    }
}
