//! What a seed configures, as the text of each gateway's configuration.

use std::fmt::Write as _;

use crate::Dice;

/// What a child of one end does.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Actions {
    start: &'static str,
    close: &'static str,
    dpd: &'static str,
}

impl Actions {
    const NONE: Self = Self { start: "none", close: "none", dpd: "clear" };
}

/// One child of a connection: the networks of this number at both ends.
#[derive(Clone, Debug)]
pub struct Child {
    /// Number of the network at either end.
    pub net: usize,
    /// Of the initiating end, and of the other.
    actions: [Actions; 2],
    proposal: &'static str,
    /// `rekey_time` of either end in seconds.
    rekey: [u32; 2],
}

impl Child {
    /// Returns whether a packet from that end starts it, or it starts by itself.
    pub(crate) fn starts_by_packet(&self, end: usize) -> bool {
        self.actions[end].start.contains("trap")
    }
}

/// A connection between two sites.
#[derive(Clone, Debug)]
pub struct Link {
    /// The site that initiates, and the other one.
    pub ends: [usize; 2],
    /// Its children.
    pub children: Vec<Child>,
    /// Either end may initiate.
    pub both: bool,
    /// The initiating end changes its address.
    pub moves: bool,
    /// Version of IKE.
    pub version: u8,
    /// Aggressive mode of IKEv1.
    aggressive: bool,
    fragmentation: &'static str,
    mobike: bool,
    encap: &'static str,
    proposal: &'static str,
    /// Changes with a reload.
    secret: [u32; 2],
    unique: &'static str,
    dpd: [u32; 2],
    rekey: [u32; 2],
    reauth: u32,
    keyingtries: u32,
}

/// Everything that a seed configures.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of sites.
    pub sites: usize,
    /// Connections.
    pub links: Vec<Link>,
    /// Severity of disturbances.
    pub noise: usize,
}

const IKE: [&str; 3] = ["aes128gcm16-prfsha256-x25519", "aes256-sha256-x25519", "chacha20poly1305-prfsha256-x25519"];
const IKE_V1: [&str; 3] = ["aes128-sha256-ecp256", "aes256-sha1-ecp256", "3des-sha1-ecp256"];
const CHILD_V1: [&str; 4] = ["aes128gcm16", "aes128-sha256-ecp256", "aes256-sha256-ecp256-none", "aes256-sha1"];
const CHILD: [&str; 4] = ["aes128gcm16", "aes128gcm16-x25519", "aes256-sha256-x25519-none", "chacha20poly1305"];

impl Plan {
    /// Draws a configuration.
    pub fn draw(dice: &mut Dice) -> Self {
        let sites = dice.pick(&[2, 2, 2, 3, 3, 4]);
        let mut links: Vec<Link> = (1..sites).map(|site| draw_link(dice, site, 0)).collect();
        if sites == 3 && dice.chance(500) {
            links.push(draw_link(dice, 2, 1));
        }
        // An address that changes changes for all connections of a site.
        for site in 1..sites {
            let of_site = |link: &Link| link.ends.contains(&site);
            if links.iter().any(|link| of_site(link) && link.moves && link.ends[0] == site)
                && links.iter().filter(|link| of_site(link)).count() > 1
            {
                links.iter_mut().filter(|link| of_site(link)).for_each(|link| link.moves = false);
            }
        }
        Self { sites, links, noise: dice.pick(&[0, 20, 60, 150, 300]) }
    }

    /// Makes some of the connections those of IKEv1. `dice` differ from those of [`Plan::draw`], so
    /// that the connections of IKEv2 of a seed stay as they are.
    pub fn draw_versions(&mut self, dice: &mut Dice) {
        for link in &mut self.links {
            if dice.chance(300) {
                link.make_v1(dice);
            }
        }
    }

    /// Returns whether a connection is one of IKEv1.
    pub fn has_v1(&self) -> bool {
        self.links.iter().any(|link| link.version == 1)
    }

    /// Name of a connection at one of its ends.
    pub fn name(link: &Link, site: usize) -> String {
        let peer = if link.ends[0] == site { link.ends[1] } else { link.ends[0] };
        format!("s{}-s{}", site + 1, peer + 1)
    }

    /// Networks that the configuration of a site protects: peer, number of the network.
    pub fn protected(&self, site: usize) -> Vec<(usize, usize)> {
        let of_site = self.links.iter().filter(|link| link.ends.contains(&site));
        of_site
            .flat_map(|link| {
                let peer = link.ends[usize::from(link.ends[0] == site)];
                link.children.iter().map(move |child| (peer, child.net))
            })
            .collect()
    }

    /// The configuration of a site in the language of swanctl.
    pub fn text(&self, site: usize) -> String {
        let mut text = "gateway {\n engine = aws_lc\n bypass_lan = no\n mtu = 1400\n aggressive_mode_psk = yes\n}\nconnections {\n"
            .to_owned();
        for link in self.links.iter().filter(|link| link.ends.contains(&site)) {
            self.connection(&mut text, link, site);
        }
        text.push_str("}\nsecrets {\n");
        for link in self.links.iter().filter(|link| link.ends.contains(&site)) {
            let end = usize::from(link.ends[1] == site);
            let peer = link.ends[1 - end];
            let (low, high) = (site.min(peer) + 1, site.max(peer) + 1);
            let _ = writeln!(
                text,
                " ike-{low}-{high} {{\n id-1 = s{low}.test\n id-2 = s{high}.test\n secret = \"between {low} and {high}, {}\"\n }}",
                link.secret[end]
            );
        }
        text.push_str("}\n");
        text
    }

    fn connection(&self, text: &mut String, link: &Link, site: usize) {
        let end = usize::from(link.ends[1] == site);
        let peer = link.ends[1 - end];
        let yes = |on: bool| if on { "yes" } else { "no" };
        // Who moves is not found at an address.
        let remote = if link.moves && end == 1 { "%any".to_owned() } else { super::site::usual_addr(peer).to_string() };
        let reauth = if end == 0 || link.both { link.reauth } else { 0 };
        let _ = write!(
            text,
            " {} {{\n version = {}\n aggressive = {}\n fragmentation = {}\n allow_legacy = yes\n \
             remote_addrs = {remote}\n proposals = {}\n mobike = {}\n encap = {}\n \
             unique = {}\n dpd_delay = {}s\n rekey_time = {}s\n reauth_time = {reauth}s\n over_time = 60s\n \
             rand_time = 20s\n keyingtries = {}\n retransmit_timeout = 2s\n retransmit_tries = 4\n \
             local {{\n auth = psk\n id = s{}.test\n }}\n remote {{\n auth = psk\n id = s{}.test\n }}\n children {{\n",
            Self::name(link, site),
            link.version,
            yes(link.aggressive),
            link.fragmentation,
            link.proposal,
            yes(link.mobike),
            link.encap,
            link.unique,
            link.dpd[end],
            link.rekey[end],
            link.keyingtries,
            site + 1,
            peer + 1,
        );
        for child in &link.children {
            let actions = &child.actions[end];
            let (net, rekey) = (child.net, child.rekey[end]);
            let life = if rekey == 0 { 0 } else { rekey + 60 };
            let _ = write!(
                text,
                " n{net} {{\n local_ts = 10.{}.{net}.0/24\n remote_ts = 10.{}.{net}.0/24\n esp_proposals = {}\n \
                 start_action = {}\n close_action = {}\n dpd_action = {}\n rekey_time = {rekey}s\n life_time = {life}s\n \
                 rand_time = 10s\n }}\n",
                site + 1,
                peer + 1,
                child.proposal,
                actions.start,
                actions.close,
                actions.dpd,
            );
        }
        text.push_str(" }\n }\n");
    }

    /// Changes the configuration of a connection at both ends or at one: lifetimes, a secret, a
    /// child more or less. Returns the sites that have to reload.
    pub fn change(&mut self, dice: &mut Dice, at: usize) -> Vec<usize> {
        let link = &mut self.links[at];
        let end = dice.below(2);
        match dice.below(5) {
            0 => link.rekey[end] = finite(link.version, dice.pick(&REKEY_IKE)),
            1 => link.dpd[end] = dice.pick(&[30, 60, 120]),
            // In force with the next authentication.
            2 => link.secret = [link.secret[0] + 1; 2],
            3 if link.children.len() > 1 => drop(link.children.pop()),
            _ if link.children.len() < 4 => {
                let net = link.children.last().map_or(0, |child| child.net + 1);
                let (both, version) = (link.both, link.version);
                let mut child = draw_child(dice, net, both);
                if version == 1 {
                    child.make_v1(dice);
                }
                link.children.push(child);
            }
            _ => {}
        }
        link.ends.to_vec()
    }
}

const REKEY_IKE: [u32; 4] = [0, 300, 900, 3600];

/// Longest `rekey_time` of a Child SA of IKEv1, whose Deletes are not acknowledged: after a lost
/// one an end keeps an SA until it is replaced.
const REKEY_V1_MAX: u32 = 400;

/// A `rekey_time`, which no SA of IKEv1 goes without.
fn finite(version: u8, rekey: u32) -> u32 {
    match (version, rekey) {
        (1, 0 | 3600) => 600,
        _ => rekey,
    }
}

impl Link {
    fn make_v1(&mut self, dice: &mut Dice) {
        (self.version, self.moves, self.mobike) = (1, false, false);
        if self.encap == "auto" {
            self.encap = "yes";
        }
        self.proposal = dice.pick(&IKE_V1);
        self.aggressive = dice.chance(300);
        self.fragmentation = dice.pick(&["yes", "force", "no"]);
        self.rekey = self.rekey.map(|rekey| finite(1, rekey));
        self.children.iter_mut().for_each(|child| child.make_v1(dice));
    }
}

impl Child {
    fn make_v1(&mut self, dice: &mut Dice) {
        self.proposal = dice.pick(&CHILD_V1);
        for rekey in &mut self.rekey {
            if !(1..=REKEY_V1_MAX).contains(rekey) {
                *rekey = dice.pick(&[120, REKEY_V1_MAX]);
            }
        }
    }
}

fn draw_link(dice: &mut Dice, from: usize, to: usize) -> Link {
    let (moves, both) = (dice.chance(300), dice.chance(250));
    let both = both && !moves;
    let unique = dice.pick(&["no", "no", "never", "replace", "keep"]);
    let children = (0..dice.pick(&[1, 1, 2, 3])).map(|net| draw_child(dice, net, both)).collect();
    Link {
        ends: [from, to],
        children,
        both,
        moves,
        version: 2,
        aggressive: false,
        fragmentation: "yes",
        mobike: moves || dice.chance(700),
        encap: dice.pick(&["yes", "no", "auto", "no", "no"]),
        proposal: dice.pick(&IKE),
        secret: [1, 1],
        unique,
        dpd: [dice.pick(&[30, 60, 120]), dice.pick(&[30, 60, 120])],
        rekey: [dice.pick(&REKEY_IKE), dice.pick(&REKEY_IKE)],
        // A peer that keeps its old IKE SA refuses reauthentication; both at once make two.
        reauth: if unique == "keep" || both { 0 } else { dice.pick(&[0, 0, 700]) },
        keyingtries: dice.pick(&[1, 3, 0]),
    }
}

fn draw_child(dice: &mut Dice, net: usize, both: bool) -> Child {
    let draw = |dice: &mut Dice| {
        let start = dice.pick(&["none", "trap", "start", "trap|start"]);
        let (close, dpd) = match start {
            "none" => ("none", "clear"),
            "start" => (dice.pick(&["none", "start"]), dice.pick(&["clear", "restart"])),
            _ => (dice.pick(&["trap", "start"]), dice.pick(&["trap", "restart"])),
        };
        Actions { start, close, dpd }
    };
    let first = draw(dice);
    let second = if both { draw(dice) } else { Actions::NONE };
    let rekey = [0, 120, 400, 1800];
    Child { net, actions: [first, second], proposal: dice.pick(&CHILD), rekey: [dice.pick(&rekey), dice.pick(&rekey)] }
}
