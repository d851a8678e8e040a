//! The sections of `policies`.

use ipsec::Mode;
use wire::{AddrRange, Selector, TrafficSelector};

use super::problem::{Origin, Problem};
use super::sa::Sa;
use super::value::{Fields, suggestion, word};

/// Action of a policy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PolicyAction {
    /// Through the SA of that name.
    Protect(String),
    /// In the clear.
    Bypass,
    /// Not at all.
    Drop,
}

/// One policy.
#[derive(Clone)]
pub struct Policy {
    /// Name.
    pub name: String,
    /// Selectors from this host's point of view.
    pub selectors: Vec<Selector>,
    /// Action.
    pub action: PolicyAction,
    /// Location in the file; `None` for a policy that Weir added.
    pub at: Option<Origin>,
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.selectors == other.selectors && self.action == other.action
    }
}

#[derive(Clone, Copy)]
enum Word {
    Protect,
    Bypass,
    Drop,
}

impl Policy {
    pub(crate) fn read(name: &str, fields: &Fields<'_>, sas: &[Sa], sa_names: &[&str]) -> Option<Self> {
        let word = fields
            .get("action", word(&[("protect", Word::Protect), ("bypass", Word::Bypass), ("drop", Word::Drop)]))
            .unwrap_or(Word::Protect);
        let sa_name = fields.get("sa", |text| Ok(text.to_owned()));
        let local = sides(fields, "local_ts");
        let remote = sides(fields, "remote_ts");
        fields.finish(&[], |_| None);

        let sa = sa_name.as_deref().and_then(|name| sas.iter().find(|sa| sa.name == name));
        let action = match (word, sa_name) {
            (Word::Protect, None) => {
                fields.fault("'sa' is missing", "add the SA that protects this traffic: 'sa = NAME'");
                return None;
            }
            (Word::Protect, Some(wanted)) => {
                if !sa_names.contains(&wanted.as_str()) {
                    let help = suggestion(&wanted, sa_names.iter().copied());
                    fields.fault_of("sa", format!("unknown SA '{wanted}'; it must be in the section 'sas'"), help);
                    return None;
                }
                PolicyAction::Protect(wanted)
            }
            (_, Some(_)) => {
                fields.fault_of("sa", "only 'action = protect' uses an SA", "remove it");
                return None;
            }
            (Word::Bypass, None) => PolicyAction::Bypass,
            (Word::Drop, None) => PolicyAction::Drop,
        };
        let (local, remote) = (local?, remote?);
        let own = |local_side| sa.and_then(|sa| own_address(sa, local_side));
        let local = or_own(fields, "local_ts", local, own(true));
        let remote = or_own(fields, "remote_ts", remote, own(false));
        let selectors = combine(fields, &local?, &remote?)?;
        if let Some(sa) = sa {
            check_against(fields, sa, &selectors);
        }
        Some(Self { name: name.into(), selectors, action, at: Some(fields.at().clone()) })
    }
}

/// The inner address of an SA on one side, when it has only one.
fn own_address(sa: &Sa, local: bool) -> Option<TrafficSelector> {
    let addr = match sa.mode {
        Mode::Tunnel | Mode::Aggfrag(_) => return None,
        Mode::Transport => {
            if local {
                sa.peer.local
            } else {
                sa.peer.remote
            }
        }
        Mode::Beet(beet) => {
            if local {
                beet.local
            } else {
                beet.remote
            }
        }
    };
    Some(TrafficSelector::any(AddrRange::new(addr, addr)?))
}

/// Selectors of one side: `Some(empty)` when the key is absent, `None` after a fault.
fn sides(fields: &Fields<'_>, key: &'static str) -> Option<Vec<TrafficSelector>> {
    let Some(setting) = fields.setting(key) else { return Some(Vec::new()) };
    let mut selectors = Vec::new();
    for item in setting.value.split(',') {
        match item.parse() {
            Ok(selector) => selectors.push(selector),
            Err(why) => {
                let why: wire::SelectorError = why;
                fields.sink().push(
                    Problem::at(&setting.value_at, format!("{key}: {why}"))
                        .help("a selector is ADDR or ADDR[PROTO/PORT], ADDR an address, a network or FIRST-LAST"),
                );
                return None;
            }
        }
    }
    Some(selectors)
}

fn or_own(
    fields: &Fields<'_>,
    key: &'static str,
    written: Vec<TrafficSelector>,
    own: Option<TrafficSelector>,
) -> Option<Vec<TrafficSelector>> {
    if !written.is_empty() {
        return Some(written);
    }
    if own.is_none() {
        fields.fault(format!("'{key}' is missing"), format!("select the traffic, for example '{key} = 10.1.0.0/24'"));
    }
    own.map(|own| vec![own])
}

/// Every local selector with every remote one of its family.
fn combine(fields: &Fields<'_>, local: &[TrafficSelector], remote: &[TrafficSelector]) -> Option<Vec<Selector>> {
    let mut selectors = Vec::new();
    for ours in local {
        for theirs in remote.iter().filter(|theirs| theirs.addrs.is_v6() == ours.addrs.is_v6()) {
            match Selector::from_sides(*ours, *theirs) {
                Ok(selector) => selectors.push(selector),
                Err(why) => {
                    fields.fault_of("remote_ts", why, "use the same on both sides");
                    return None;
                }
            }
        }
    }
    if selectors.is_empty() {
        let message = "local_ts and remote_ts differ in address family";
        fields.fault_of("remote_ts", message, "write one policy for IPv4 and one for IPv6");
        return None;
    }
    Some(selectors)
}

/// Traffic that the SA could never carry.
fn check_against(fields: &Fields<'_>, sa: &Sa, selectors: &[Selector]) {
    let (local, remote) = match sa.mode {
        Mode::Tunnel | Mode::Aggfrag(_) => return,
        Mode::Transport => (sa.peer.local, sa.peer.remote),
        Mode::Beet(beet) => (beet.local, beet.remote),
    };
    let inside = |s: &&Selector| s.src.contains(local) && s.dst.contains(remote);
    if !selectors.iter().any(|s| inside(&s)) {
        let message = format!("in transport mode SA '{}' carries only traffic between {local} and {remote}", sa.name);
        fields.fault_of("remote_ts", message, "leave local_ts and remote_ts out, or use 'mode = tunnel'");
    }
}
