//! A whole table of the guard applied to packets.

use std::collections::BTreeMap;

use wire::AddrRange;

use super::super::super::nft::{Expr, Family, Field};
use super::super::{
    Fixed, GuardPolicy, Rules, Verdict, exempt_in, exempt_out, forwarded, local_sources, merged, of_policies,
    postrouting, prerouting,
};
use super::{Packet, is_met};

/// A table as the kernel has it after `build`.
pub(crate) struct Table {
    sets: BTreeMap<String, Vec<AddrRange>>,
    chains: BTreeMap<String, Vec<Vec<Expr>>>,
}

impl Table {
    /// Sets and chains of `rules`, for a gateway with that mark and reverse path filter.
    pub(crate) fn new(mark: u32, reverse_path: bool, Rules { policies, exempt, .. }: &Rules) -> Self {
        let fixed = Fixed { table: "weir-model".into(), tun: "model".into(), mark, reverse_path };
        let mut table = Self { sets: BTreeMap::new(), chains: BTreeMap::new() };
        for family in Family::BOTH {
            let is_of = |policy: &&GuardPolicy| Family::of(&policy.selector.dst) == family;
            let protected = || policies.iter().filter(|policy| policy.verdict == Verdict::Protect).filter(is_of);
            let name = |name: &str| format!("{name}{}", family.suffix());
            table.sets.insert(name("remote"), merged(protected().map(|policy| policy.selector.dst)));
            table.sets.insert(name("local"), local_sources(protected()));
            let of_host = protected().filter(|policy| policy.host).map(|policy| policy.selector.src);
            table.sets.insert(name("host"), merged(of_host));
            table.chains.insert(name("forwarded"), forwarded(policies, family));
            let (clear_in, clear_out) = (exempt_in(exempt, family), exempt_out(policies, family));
            let policies = |inbound| of_policies(policies, family, inbound);
            table.chains.insert(name("clear-in"), [clear_in, policies(true)].concat());
            table.chains.insert(name("clear-out"), [clear_out, policies(false)].concat());
        }
        table.chains.insert("prerouting".into(), prerouting(&fixed, policies));
        table.chains.insert("postrouting".into(), postrouting(&fixed));
        table
    }

    /// Returns whether a packet that arrives from outside is accepted.
    pub(crate) fn accepts(&self, packet: &Packet) -> bool {
        self.run("prerouting", packet) != Some(Expr::Drop)
    }

    /// Returns whether a packet without mark may leave to the outside.
    pub(crate) fn lets_out(&self, packet: &Packet) -> bool {
        self.run("postrouting", packet) != Some(Expr::Drop)
    }

    fn run(&self, chain: &str, packet: &Packet) -> Option<Expr> {
        for rule in self.chains.get(chain)? {
            let (end, matches) = rule.split_last()?;
            if !matches.iter().all(|expression| self.is_met(expression, packet)) {
                continue;
            }
            match end {
                Expr::Jump(to) => match self.run(to, packet) {
                    Some(Expr::Return) | None => {}
                    verdict => return verdict,
                },
                end => return Some(end.clone()),
            }
        }
        None
    }

    fn is_met(&self, expression: &Expr, packet: &Packet) -> bool {
        match expression {
            // Neither through the TUN device or the loopback device nor one of the gateway's own.
            Expr::Interface(..) | Expr::Mark(_) => false,
            Expr::InSet(field, name) => {
                let addr = if matches!(field, Field::Source(_)) { packet.src } else { packet.dst };
                self.sets.get(name).is_some_and(|set| set.iter().any(|range| range.contains(addr)))
            }
            other => is_met(other, packet),
        }
    }
}
