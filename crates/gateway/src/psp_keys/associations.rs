//! PSP associations of the data plane, and their policies.
//!
//! A policy is installed when its child is loaded (or its peer is known) and removed when the child
//! is unloaded. Without keys it drops; it never passes a packet in clear text.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crypto::{Engine, KeyTable};
use ipsec::{Action, DfPolicy, DscpPolicy, InboundSa, Lifetime, Mode, OutboundSa, Outer, Peer, Policy, SaCommon};
use ipsec::{SaError, psp};
use wire::Selector;
use wire::psp::PspSpi;

use super::issuer::Issued;
use super::message::{self, Grant};

use crate::negotiated::{Assembly, NO_SLOT, drops, specificity};

/// Name of a child of a peer.
pub(crate) type ChildKey = (u64, usize);

/// Settings of a child that the data plane needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    /// Name, for reports.
    pub(crate) name: String,
    pub(crate) mode: message::Mode,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    /// Bytes left in the clear, if the peer accepts so many.
    pub(crate) crypt_offset: u8,
    pub(crate) max_crypt_offset: u8,
    pub(crate) cookie: Option<u64>,
    /// Packets; 0 is none.
    pub(crate) window: u32,
    pub(crate) copy_df: bool,
    pub(crate) copy_ecn: bool,
    pub(crate) copy_dscp: bool,
    /// Key of the hash for source ports.
    pub(crate) port_key: u64,
    /// Workers that send. Each counts its IVs for itself, with its number in front, unless the peer
    /// has a replay window.
    pub(crate) workers: u8,
}

/// Policy of a child without a peer address.
#[derive(Clone, Debug)]
pub(crate) struct Closed {
    pub(crate) name: String,
    pub(crate) mode: message::Mode,
    pub(crate) selectors: Vec<Selector>,
}

/// One child of one peer.
struct Association {
    shape: Shape,
    selectors: Vec<Selector>,
    receiving: Vec<Arc<InboundSa>>,
    sending: Option<Arc<OutboundSa>>,
    /// Number of the last [`Associations::install_tx`], 0 before the first: of equal selectors the
    /// newest come first.
    installed: u64,
    /// Packets and bytes of the associations before.
    before: Traffic,
}

/// Packets and bytes, in and out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Traffic {
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) packets_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) drops: u64,
}

/// All of them.
pub(crate) struct Associations {
    all: BTreeMap<ChildKey, Association>,
    /// Policies of connections without a peer address. They drop.
    closed: Vec<Closed>,
    /// Outbound halves that were installed.
    installs: u64,
    /// Crypto engine of the keys.
    engine: Engine,
}

impl Default for Associations {
    fn default() -> Self {
        Self { all: BTreeMap::new(), closed: Vec::new(), installs: 0, engine: Engine::best() }
    }
}

impl Shape {
    fn common(&self) -> SaCommon {
        let mode = match self.mode {
            message::Mode::Tunnel => Mode::Tunnel,
            message::Mode::Transport => Mode::Transport,
        };
        let outer = Outer {
            peer: Peer { local: self.local, remote: self.remote },
            hop_limit: 64,
            dscp: if self.copy_dscp { DscpPolicy::Copy } else { DscpPolicy::Set(0) },
            ecn: self.copy_ecn,
            df: if self.copy_df { DfPolicy::Copy } else { DfPolicy::Clear },
            udp: None,
            udp_checksum: self.remote.is_ipv6(),
        };
        SaCommon::new(&self.name, mode, outer, Lifetime::NONE)
    }
}

impl Associations {
    /// Makes keys for `engine` from now on: that of the workers.
    pub(crate) fn compute_with(&mut self, engine: Engine) {
        self.engine = engine;
    }

    /// Puts the policy of a child in place; packets are dropped until there are keys.
    pub(crate) fn stand(&mut self, place: ChildKey, shape: Shape, selectors: Vec<Selector>) {
        let (receiving, sending) = (Vec::new(), None);
        let before = Traffic::default();
        self.all.entry(place).or_insert(Association { shape, selectors, receiving, sending, installed: 0, before });
    }

    /// Changes the settings for future associations.
    pub(crate) fn reshape(&mut self, place: ChildKey, shape: Shape) {
        if let Some(there) = self.all.get_mut(&place) {
            there.shape = shape;
        }
    }

    /// Policies that drop, see [`Associations::close`].
    pub(crate) fn closed(&self) -> &[Closed] {
        &self.closed
    }

    /// Replaces the policies of connections without a peer address.
    pub(crate) fn close(&mut self, closed: Vec<Closed>) {
        self.closed = closed;
    }

    /// Takes it away, with everything that hangs on it.
    pub(crate) fn fall(&mut self, place: ChildKey, keys: &mut KeyTable) {
        if let Some(gone) = self.all.remove(&place) {
            gone.sending.iter().for_each(|sa| forget(sa, keys));
        }
    }

    /// Receives under one SPI more.
    ///
    /// # Errors
    /// Settings that are invalid for the protocol.
    pub(crate) fn install_rx(
        &mut self,
        place: ChildKey,
        issued: &Issued,
        window: bool,
        keys: &mut KeyTable,
    ) -> Result<(), SaError> {
        let Some(there) = self.all.get_mut(&place) else { return Ok(()) };
        let spec = psp::ReceiveSpec {
            masters: Arc::clone(&issued.masters),
            issued: vec![(issued.spi, issued.spi)],
            versions: 1 << issued.version.get(),
            max_crypt_offset: there.shape.max_crypt_offset,
            window: if window { there.shape.window } else { 0 },
            first_seq: Vec::new(),
            honour_drop: false,
        };
        let sa = psp::inbound(there.shape.common(), &spec, self.engine, keys)?;
        there.receiving.push(Arc::new(sa));
        Ok(())
    }

    /// Removes an inbound SPI.
    pub(crate) fn remove_rx(&mut self, place: ChildKey, spi: PspSpi) {
        let Some(there) = self.all.get_mut(&place) else { return };
        let is = |sa: &Arc<InboundSa>| issued_to(sa) == Some(spi.get());
        for gone in there.receiving.iter().filter(|sa| is(sa)) {
            there.before.packets_in += gone.common.counters.packets();
            there.before.bytes_in += gone.common.counters.bytes();
            there.before.drops += drops(&gone.common.counters);
        }
        there.receiving.retain(|sa| !is(sa));
    }

    /// Sends with this from now on. The key must never have been installed before: its counter
    /// starts at 1.
    ///
    /// # Errors
    /// Settings that are invalid for the protocol.
    pub(crate) fn install_tx(
        &mut self,
        place: ChildKey,
        grant: &Grant,
        path_mtu: u32,
        keys: &mut KeyTable,
    ) -> Result<(), SaError> {
        let Some(there) = self.all.get_mut(&place) else { return Ok(()) };
        let shape = &there.shape;
        let spec = psp::SendSpec {
            spi: grant.spi,
            version: grant.version.get(),
            key: grant.key.octets(grant.version),
            iv: psp::IvCounter { first: 1, persistent: false, cores: if grant.window { 1 } else { shape.workers } },
            crypt_offset: if grant.version.is_gmac() { 0 } else { shape.crypt_offset.min(grant.max_crypt_offset & !3) },
            cookie: shape.cookie,
            sample: false,
            drop: false,
            port: grant.port,
            port_key: shape.port_key,
            source_port: None,
        };
        let sa = psp::outbound(shape.common(), &spec, self.engine, keys)?;
        sa.set_path_mtu(path_mtu as usize);
        there.end_sending(keys);
        there.sending = Some(Arc::new(sa));
        self.installs += 1;
        there.installed = self.installs;
        Ok(())
    }

    /// Removes the outbound association.
    pub(crate) fn remove_tx(&mut self, place: ChildKey, keys: &mut KeyTable) {
        if let Some(there) = self.all.get_mut(&place) {
            there.end_sending(keys);
        }
    }

    /// Packets that went out under the present key.
    pub(crate) fn sent(&self, place: ChildKey) -> u64 {
        let sending = self.all.get(&place).and_then(|there| there.sending.as_ref());
        sending.map_or(0, |sa| sa.common.counters.packets())
    }

    /// Total traffic of a child.
    pub(crate) fn traffic(&self, place: ChildKey) -> Traffic {
        let Some(there) = self.all.get(&place) else { return Traffic::default() };
        let mut sum = there.before;
        for sa in &there.receiving {
            sum.packets_in += sa.common.counters.packets();
            sum.bytes_in += sa.common.counters.bytes();
            sum.drops += drops(&sa.common.counters);
        }
        if let Some(sa) = &there.sending {
            sum.packets_out += sa.common.counters.packets();
            sum.bytes_out += sa.common.counters.bytes();
            sum.drops += drops(&sa.common.counters);
        }
        sum
    }

    /// Peers with a selector that is equal to one of these.
    pub(crate) fn peers_with(&self, selectors: &[Selector]) -> impl Iterator<Item = u64> {
        let shares = |there: &Association| there.selectors.iter().any(|one| selectors.contains(one));
        self.all.iter().filter(move |(_, there)| shares(there)).map(|((peer, _), _)| *peer)
    }

    /// Selectors of everything that must not leave in clear text: all of it. True with those of
    /// transport mode.
    pub(crate) fn captured(&self) -> impl Iterator<Item = (&Selector, bool)> {
        fn of(selectors: &[Selector], mode: message::Mode) -> impl Iterator<Item = (&Selector, bool)> {
            selectors.iter().map(move |selector| (selector, mode == message::Mode::Transport))
        }
        let closed = self.closed.iter().flat_map(|closed| of(&closed.selectors, closed.mode));
        self.all.values().flat_map(|there| of(&there.selectors, there.shape.mode)).chain(closed)
    }

    /// Associations that receive, each with its SPI.
    pub(crate) fn receiving(&self) -> impl Iterator<Item = (&Arc<InboundSa>, u32)> {
        let all = self.all.values().flat_map(|there| &there.receiving);
        all.map(|sa| (sa, issued_to(sa).unwrap_or_default()))
    }

    /// Associations that send.
    pub(crate) fn sending(&self) -> impl Iterator<Item = &Arc<OutboundSa>> {
        self.all.values().filter_map(|there| there.sending.as_ref())
    }

    /// Policies for people: name, selectors, and whether there are keys.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (&str, &[Selector], bool)> {
        let closed = self.closed.iter().map(|closed| (&*closed.name, &*closed.selectors, false));
        self.all.values().map(|there| (&*there.shape.name, &*there.selectors, there.sending.is_some())).chain(closed)
    }

    /// Appends SAs and policies, narrower selectors first.
    pub(crate) fn assemble(&self, into: &mut Assembly) {
        let mut rows = Vec::new();
        for there in self.all.values() {
            let mut group = None;
            for sa in &there.receiving {
                let slot = into.receive(sa, group);
                group.get_or_insert(slot);
            }
            let outbound = there.sending.as_ref().map(|sa| into.send(sa));
            let action = match (outbound, group) {
                (None, None) => Action::Drop,
                (outbound, inbound) => {
                    Action::Protect { outbound: outbound.unwrap_or(NO_SLOT), inbound: inbound.unwrap_or(NO_SLOT) }
                }
            };
            let rank = there.selectors.iter().map(specificity).max().unwrap_or(0);
            let name = there.shape.name.as_str().into();
            rows.push((rank, there.installed, Policy { name, selectors: there.selectors.as_slice().into(), action }));
        }
        for Closed { name, selectors, .. } in &self.closed {
            let rank = selectors.iter().map(specificity).max().unwrap_or(0);
            let (name, selectors) = (name.as_str().into(), selectors.as_slice().into());
            rows.push((rank, 0, Policy { name, selectors, action: Action::Drop }));
        }
        // A peer that has moved has new keys, and those of its old address are of no use until
        // their deadline.
        rows.sort_by(|(a, i, p), (b, j, q)| b.cmp(a).then_with(|| p.name.cmp(&q.name)).then_with(|| j.cmp(i)));
        into.policies.extend(rows.into_iter().map(|(_, _, policy)| policy));
    }
}

impl Association {
    fn end_sending(&mut self, keys: &mut KeyTable) {
        if let Some(gone) = self.sending.take() {
            self.before.packets_out += gone.common.counters.packets();
            self.before.bytes_out += gone.common.counters.bytes();
            self.before.drops += drops(&gone.common.counters);
            forget(&gone, keys);
        }
    }
}

fn forget(sa: &OutboundSa, keys: &mut KeyTable) {
    sa.lanes.iter().for_each(|lane| keys.remove(lane.key));
}

/// The one SPI of a receiving association.
fn issued_to(sa: &InboundSa) -> Option<u32> {
    match &sa.proto {
        ipsec::InProto::Psp(psp) => psp.issued().next().map(|(first, _)| first),
        _ => None,
    }
}
