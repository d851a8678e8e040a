//! From specifications to the tables of the packet path: SAs, policies, keys.
//!
//! Tables are rebuilt as a whole. On a reload an SA with an unchanged specification is carried
//! over, with counters, numbers and windows; its keys keep their slots in the key table.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crypto::kdf::PspMasterKey;
use crypto::{Engine, KeyTable};
use dataplane::{Snapshot, SpareTables};
use ipsec::{Action, InboundSa, OutboundSa, SaCommon, SaError, Spd, ah, eesp, esp, psp};
use wire::Spi;
use wire::psp::{PspSpi, PspVersion};

use crate::config::problem::{Problem, Problems};
use crate::config::{Config, Half, HalfProto, PolicyAction, Sa};
use crate::negotiated::{Assembly, NO_SLOT, Negotiated};
use crate::state::{Identity, Receiver, Record, Sender};

/// An SA in use: its specification and its two halves.
pub(crate) struct Entry {
    pub(crate) sa: Sa,
    pub(crate) outbound: Option<Live<OutboundSa>>,
    pub(crate) inbound: Option<Live<InboundSa>>,
}

/// One half.
pub(crate) struct Live<T> {
    pub(crate) sa: Arc<T>,
    identity: Identity,
    /// Time of creation, and lifetime.
    born: Instant,
    life_time: Option<Duration>,
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Self { sa: Arc::clone(&self.sa), ..*self }
    }
}

/// Finds the saved state of an SA by name and identity.
pub(crate) type Resume<'a> = dyn Fn(&str, Identity) -> Result<Option<Record>, Problem> + 'a;

/// Saved sequence numbers, and properties of the host.
pub(crate) struct HostContext<'a> {
    /// Time from which lifetimes of new SAs count.
    pub(crate) now: Instant,
    /// Saved numbers of an identity; `None` offline.
    pub(crate) resume: Option<&'a Resume<'a>>,
    /// Path MTU to a host, in bytes.
    pub(crate) path_mtu: &'a dyn Fn(IpAddr) -> u32,
    /// Key of the hash for PSP source ports.
    pub(crate) port_key: u64,
}

/// SAs in use, in the order of the file.
pub(crate) struct Tables {
    pub(crate) entries: Vec<Entry>,
}

impl Tables {
    /// The directions with numbers to save.
    pub(crate) fn kept(&self) -> (Vec<Sender>, Vec<Receiver>) {
        let senders = self.entries.iter().filter_map(|entry| {
            let live = entry.outbound.as_ref()?;
            let iv_ahead = entry.sa.outbound.as_ref().map_or(0, iv_ahead);
            let lanes = lane_names(entry, &live.sa);
            Some(Sender { identity: live.identity, sa: Arc::clone(&live.sa), lanes, iv_ahead })
        });
        let receivers = self.entries.iter().filter_map(|entry| {
            let live = entry.inbound.as_ref()?;
            // The top is useless without a window, and there is none without sequence numbers.
            (live.sa.window > 0).then(|| Receiver { identity: live.identity, sa: Arc::clone(&live.sa) })
        });
        (senders.collect(), receivers.collect())
    }

    /// Ends the SAs with an expired lifetime; returns names and directions of those that just
    /// ended.
    pub(crate) fn expire(&self, now: Instant) -> Vec<(String, &'static str)> {
        let mut ended = Vec::new();
        for entry in &self.entries {
            let out = entry.outbound.as_ref().filter(|live| live.over(now)).map(|live| (&live.sa.common, "out"));
            let inbound = entry.inbound.as_ref().filter(|live| live.over(now)).map(|live| (&live.sa.common, "in"));
            for (common, direction) in out.into_iter().chain(inbound) {
                if !common.expired.swap(true, Ordering::Relaxed) {
                    ended.push((common.name.to_string(), direction));
                }
            }
        }
        ended
    }
}

impl Tables {
    /// Ends all SAs: their packets are dropped and counted. Returns the number of those that had
    /// not ended before.
    pub(crate) fn end(&self) -> usize {
        let ends = |entry: &&Entry| {
            let out = entry.outbound.as_ref().map(|live| &live.sa.common);
            let inbound = entry.inbound.as_ref().map(|live| &live.sa.common);
            let ended: Vec<bool> =
                out.into_iter().chain(inbound).map(|common| common.expired.swap(true, Ordering::Relaxed)).collect();
            ended.contains(&false)
        };
        self.entries.iter().filter(ends).count()
    }
}

impl<T> Live<T> {
    fn over(&self, now: Instant) -> bool {
        self.life_time.is_some_and(|life| now.saturating_duration_since(self.born) >= life)
    }
}

/// Identifiers of an outbound SA's lanes in its state file.
fn lane_names(entry: &Entry, sa: &OutboundSa) -> Vec<u32> {
    let sub_sas =
        matches!(entry.sa.outbound.as_ref().map(|half| &half.proto), Some(HalfProto::Eesp { sub_sas: Some(_), .. }));
    let name = |(index, lane): (usize, &ipsec::OutLane)| if sub_sas { u32::from(lane.session.0) } else { index as u32 };
    sa.lanes.iter().enumerate().map(name).collect()
}

/// Offset of the explicit IVs to the sequence numbers.
fn iv_ahead(half: &Half) -> u64 {
    match half.proto {
        HalfProto::Eesp { first_iv: Some(first), .. } => first.wrapping_sub(1),
        _ => 0,
    }
}

/// Builds tables from a configuration. Keys that are new go into `keys`, those of SAs that are gone
/// leave it; an error does not change it.
///
/// # Errors
/// Settings that are invalid for the protocol of an SA, and saved numbers that are invalid.
pub(crate) fn build(
    config: &Config,
    previous: Option<&Tables>,
    keys: &mut KeyTable,
    around: &HostContext<'_>,
) -> Result<Tables, Problems> {
    let known = |sa: &Sa| previous.and_then(|tables| tables.entries.iter().find(|entry| same_ends(&entry.sa, sa)));
    let mut next_keys = keys.clone();
    let mut builder = Builder { config, around, keys: &mut next_keys, masters: Vec::new() };
    let mut problems = Vec::new();
    let mut entries = Vec::new();
    for sa in &config.sas {
        let old = known(sa);
        let outbound = sa.outbound.as_ref().map(|half| {
            let old = old.filter(|entry| entry.sa.outbound.as_ref() == Some(half));
            let kept = old.and_then(|entry| Some((entry, entry.outbound.clone()?)));
            match kept {
                Some((entry, live)) if reply_spi(&entry.sa) == reply_spi(sa) => Ok(live),
                // Workers use the SA, so that only a copy may have other lanes.
                Some((_, live)) => Ok(builder.replied(sa, half, live)),
                None => builder.outbound(sa, half),
            }
        });
        let inbound = sa.inbound.as_ref().map(|half| {
            let kept = old.filter(|entry| entry.sa.inbound.as_ref() == Some(half)).and_then(|e| e.inbound.clone());
            kept.map_or_else(|| builder.inbound(sa, half, previous), Ok)
        });
        match (outbound.transpose(), inbound.transpose()) {
            (Ok(outbound), Ok(inbound)) => entries.push(Entry { sa: sa.clone(), outbound, inbound }),
            (out, inn) => problems.extend(out.err().into_iter().chain(inn.err())),
        }
    }
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    *keys = next_keys;
    let tables = Tables { entries };
    if let Some(previous) = previous {
        forget_unused(previous, &tables, keys);
    }
    Ok(tables)
}

/// Takes out the keys of SAs that are in `old` only.
fn forget_unused(old: &Tables, new: &Tables, keys: &mut KeyTable) {
    let sends = |tables: &Tables| -> Vec<Arc<OutboundSa>> {
        tables.entries.iter().filter_map(|entry| Some(Arc::clone(&entry.outbound.as_ref()?.sa))).collect()
    };
    let receives = |tables: &Tables| -> Vec<Arc<InboundSa>> {
        tables.entries.iter().filter_map(|entry| Some(Arc::clone(&entry.inbound.as_ref()?.sa))).collect()
    };
    let (stay_out, stay_in) = (sends(new), receives(new));
    // By lanes: a copy has those of its original, with their keys.
    for gone in sends(old).iter().filter(|sa| !stay_out.iter().any(|other| Arc::ptr_eq(&sa.lanes, &other.lanes))) {
        gone.lanes.iter().for_each(|lane| keys.remove(lane.key));
    }
    for gone in receives(old).iter().filter(|sa| !stay_in.iter().any(|other| Arc::ptr_eq(&sa.lanes, &other.lanes))) {
        gone.lanes.iter().filter_map(|lane| lane.key).for_each(|key| keys.remove(key));
    }
}

/// SPI of the replies to an SA; its Session IDs depend on it.
fn reply_spi(sa: &Sa) -> Option<Spi> {
    sa.inbound.as_ref().filter(|_| sa.protocol == ipsec::Protocol::Eesp)?.proto.spi()
}

/// Returns whether two sections have the same hosts and mode.
fn same_ends(a: &Sa, b: &Sa) -> bool {
    a.name == b.name && a.protocol == b.protocol && a.mode == b.mode && a.peer == b.peer
}

/// Random bytes.
///
/// # Errors
/// The operating system returned an error.
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    random_bytes_from(aws_lc_rs::rand::fill)
}

/// Likewise, from another source.
fn random_bytes_from<const N: usize, E>(fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes).map_err(|_| io::Error::other("the operating system returned no random bytes"))?;
    Ok(bytes)
}

/// Snapshot for the data plane: SAs and policies of the file, and those that were negotiated. What
/// did not change is shared with the `previous` policies; the snapshot is made in the memory of an
/// `earlier` one.
///
/// # Errors
/// Two inbound SAs that no packet could tell apart.
pub(crate) fn snapshot(
    config: &Config,
    tables: &Tables,
    negotiated: &mut Negotiated,
    keys: &KeyTable,
    (previous, earlier): (Option<&Spd>, SpareTables),
) -> Result<Snapshot, Problems> {
    let (mut all, mut copy, index) = Assembly::over(earlier);
    copy.follow(keys);
    let mut slots: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for entry in &tables.entries {
        let outbound = entry.outbound.as_ref().map_or(NO_SLOT, |live| all.send(&live.sa));
        let inbound = entry.inbound.as_ref().map_or(NO_SLOT, |live| all.receive(&live.sa, None));
        slots.insert(&entry.sa.name, (outbound, inbound));
    }
    all.policies.extend(config.policies.iter().map(|policy| ipsec::Policy {
        name: policy.name.as_str().into(),
        selectors: policy.selectors.as_slice().into(),
        action: match &policy.action {
            PolicyAction::Protect(sa) => {
                let (outbound, inbound) = slots.get(sa.as_str()).copied().unwrap_or((NO_SLOT, NO_SLOT));
                Action::Protect { outbound, inbound }
            }
            PolicyAction::Bypass => Action::Bypass,
            PolicyAction::Drop => Action::Drop,
        },
    }));
    negotiated.assemble(config.gateway.workers, &mut all);
    let Assembly { outbound, inbound, groups, per_core, unconfirmed, paced, grace_period, policies, .. } = all;
    let (sas, spd) = ((inbound, outbound, index), Spd::after(previous, policies));
    let mut snapshot = Snapshot::over(sas, spd, copy, config.gateway.code_points)
        .map_err(|why| Problems::from(Problem::whole(why.to_string())))?;
    (snapshot.groups, snapshot.per_core) = (groups, per_core);
    (snapshot.unconfirmed, snapshot.grace_period, snapshot.paced) = (unconfirmed, grace_period, paced);
    Ok(snapshot)
}

struct Builder<'a> {
    config: &'a Config,
    around: &'a HostContext<'a>,
    keys: &'a mut KeyTable,
    /// Master keys already made: SAs with the same ones share them.
    masters: Vec<([Option<crate::config::Secret>; 2], Arc<psp::MasterKeys>)>,
}

impl Builder<'_> {
    fn engine(&self) -> Engine {
        self.config.gateway.engine()
    }

    fn common(sa: &Sa, half: &Half) -> SaCommon {
        SaCommon::new(&sa.name, sa.mode, half.outer, half.lifetime)
    }

    /// Saved record of one direction.
    fn resume(&self, sa: &Sa, identity: Identity) -> Result<Option<Record>, Problem> {
        self.around.resume.map_or(Ok(None), |resume| resume(&sa.name, identity))
    }

    fn outbound(&mut self, sa: &Sa, half: &Half) -> Result<Live<OutboundSa>, Problem> {
        let refused = |why: SaError| refused(sa, "out", &why);
        let key = self.sending_key(half).map_err(refused)?;
        let identity = Identity::of(true, key.octets());
        let saved = self.resume(sa, identity)?;
        if let Some(record) = &saved {
            if record.iv_ahead != iv_ahead(half) {
                let first = record.iv_ahead.wrapping_add(1);
                return Err(Problem::at(
                    &sa.at,
                    format!(
                        "sas.{}.out: this key was used with another first_iv, so IVs would repeat; set a new \
                         key, or 'first_iv = {first}' as before",
                        sa.name
                    ),
                ));
            }
            report_resumed(&sa.name, half.seq, record);
        }
        let first = |lane: u32| {
            let saved = saved.as_ref().and_then(|record| record.numbers.get(&lane)).copied();
            saved.unwrap_or(0).max(half.seq)
        };
        let persistent = self.around.resume.is_some();
        let common = Self::common(sa, half);
        let engine = self.engine();
        let built = match &half.proto {
            HalfProto::Esp { spi, suite, enc, integ, esn, tfc_padding, iv } => esp::outbound(
                common,
                &esp::Spec {
                    spi: *spi,
                    suite: *suite,
                    enc_key: enc.octets(),
                    integ_key: integ.octets(),
                    esn: *esn,
                    window: half.window,
                    first_seq: first(0),
                    persistent,
                    tfc_padding: *tfc_padding,
                    iv: iv.map_or(esp::CbcIv::Encrypted, esp::CbcIv::Fixed),
                },
                engine,
                self.keys,
            ),
            HalfProto::Ah { spi, suite, integ, esn, align8 } => ah::outbound(
                common,
                &ah::Spec {
                    spi: *spi,
                    suite: *suite,
                    integ_key: integ.octets(),
                    esn: *esn,
                    window: half.window,
                    first_seq: first(0),
                    persistent,
                    align8_v4: *align8,
                },
                engine,
                self.keys,
            ),
            HalfProto::Eesp { sub_sas, session, .. } => {
                let numbers: Vec<u64> = match sub_sas {
                    Some((_, count)) => {
                        let lanes = (*count).min(eesp::MAX_READY_SUB_SAS as u32);
                        (0..lanes).map(|lane| first((u32::from(*session) + lane) % count)).collect()
                    }
                    None => vec![first(0)],
                };
                let spec = self.eesp(half, &numbers, persistent);
                match spec {
                    Some(spec) => eesp::outbound(common, &spec, engine, self.keys),
                    None => Err(SaError::Conflict("not an EESP SA")),
                }
            }
            HalfProto::PspOut { spi, version, crypt_offset, cookie, sample, drop, source_port, .. } => psp::outbound(
                common,
                &psp::SendSpec {
                    spi: *spi,
                    version: *version,
                    key: key.octets(),
                    iv: psp::IvCounter { first: first(0), persistent, cores: 1 },
                    crypt_offset: *crypt_offset,
                    cookie: *cookie,
                    sample: *sample,
                    drop: *drop,
                    port: self.config.gateway.code_points.psp_port,
                    port_key: self.around.port_key,
                    source_port: *source_port,
                },
                engine,
                self.keys,
            ),
            HalfProto::PspIn { .. } => Err(SaError::Conflict("a receiving PSP association cannot send")),
        };
        let built = self.complete(sa, half, built.map_err(refused)?);
        Ok(Live { sa: Arc::new(built), identity, born: self.around.now, life_time: half.life_time })
    }

    /// A copy of an SA with another SPI of the replies.
    fn replied(&self, sa: &Sa, half: &Half, live: Live<OutboundSa>) -> Live<OutboundSa> {
        let copy = self.complete(sa, half, live.sa.moved(live.sa.common.outer));
        Live { sa: Arc::new(copy), ..live }
    }

    /// Sets what a new SA takes from its surroundings: the path MTU, and the SPI of the replies.
    fn complete(&self, sa: &Sa, half: &Half, mut built: OutboundSa) -> OutboundSa {
        built.set_path_mtu(half.path_mtu.unwrap_or_else(|| (self.around.path_mtu)(sa.peer.remote)) as usize);
        if let Some(spi) = reply_spi(sa) {
            built.set_reply_spi(spi.get(), self.config.gateway.workers);
        }
        built
    }

    /// The key that numbers are counted under.
    fn sending_key(&mut self, half: &Half) -> Result<crate::config::Secret, SaError> {
        use crate::config::Secret;
        Ok(match &half.proto {
            HalfProto::Esp { enc, integ, .. } => {
                if enc.len() > 0 {
                    enc.clone()
                } else {
                    integ.clone()
                }
            }
            HalfProto::Ah { integ, .. } => integ.clone(),
            HalfProto::Eesp { key, .. } => key.clone(),
            HalfProto::PspOut { key: Some(key), .. } => key.clone(),
            HalfProto::PspOut { spi, version, masters, .. } => {
                let version = PspVersion::try_from(*version).map_err(|_| SaError::Conflict("unknown PSP version"))?;
                let derived = self.masters(masters).traffic_key(*spi, version);
                let derived = derived.ok_or(SaError::Conflict("no master key for this SPI"))?;
                Secret::new(derived.key().to_vec())
            }
            HalfProto::PspIn { masters, issued, .. } => {
                // One file per peer: peers share master keys, but not SPIs.
                let mut name = Vec::with_capacity(64 + 8 * issued.len());
                masters.iter().flatten().for_each(|master| name.extend_from_slice(master.octets()));
                issued.iter().for_each(|(first, last)| name.extend([first.to_be_bytes(), last.to_be_bytes()].concat()));
                Secret::new(name)
            }
        })
    }

    fn masters(&mut self, masters: &[Option<crate::config::Secret>; 2]) -> Arc<psp::MasterKeys> {
        if let Some((_, made)) = self.masters.iter().find(|(known, _)| known == masters) {
            return Arc::clone(made);
        }
        let slots = masters.each_ref().map(|master| {
            let octets: &[u8; 32] = master.as_ref()?.octets().try_into().ok()?;
            Some(PspMasterKey::new(octets))
        });
        let made = Arc::new(psp::MasterKeys::new(slots));
        self.masters.push((masters.clone(), Arc::clone(&made)));
        made
    }

    fn eesp<'s>(&self, half: &'s Half, numbers: &'s [u64], persistent: bool) -> Option<eesp::Spec<'s>> {
        let HalfProto::Eesp { spi, suite, key, sub_sas, session, seq, crypt_offset, options, strict_options, first_iv } =
            &half.proto
        else {
            return None;
        };
        Some(eesp::Spec {
            spi: *spi,
            suite: *suite,
            key: key.octets(),
            sub_sas: *sub_sas,
            session: *session,
            seq: *seq,
            window: half.window,
            first_seq: numbers,
            persistent,
            crypt_offset: *crypt_offset,
            extra_options: options,
            strict_options: *strict_options,
            ip_proto: self.config.gateway.code_points.eesp_protocol,
            first_iv: *first_iv,
        })
    }

    fn inbound(&mut self, sa: &Sa, half: &Half, previous: Option<&Tables>) -> Result<Live<InboundSa>, Problem> {
        let refused = |why: SaError| refused(sa, "in", &why);
        let key = self.sending_key(half).map_err(refused)?;
        let identity = Identity::of(false, key.octets());
        let saved = self.resume(sa, identity)?;
        let last = |lane: u32| {
            let saved = saved.as_ref().and_then(|record| record.numbers.get(&lane)).copied();
            saved.unwrap_or(0).max(half.seq)
        };
        let common = Self::common(sa, half);
        let engine = self.engine();
        let built = match &half.proto {
            HalfProto::Esp { spi, suite, enc, integ, esn, .. } => esp::inbound(
                common,
                &esp::Spec {
                    spi: *spi,
                    suite: *suite,
                    enc_key: enc.octets(),
                    integ_key: integ.octets(),
                    esn: *esn,
                    window: half.window,
                    first_seq: last(0),
                    persistent: false,
                    tfc_padding: false,
                    iv: esp::CbcIv::Encrypted,
                },
                engine,
                self.keys,
            ),
            HalfProto::Ah { spi, suite, integ, esn, align8 } => ah::inbound(
                common,
                &ah::Spec {
                    spi: *spi,
                    suite: *suite,
                    integ_key: integ.octets(),
                    esn: *esn,
                    window: half.window,
                    first_seq: last(0),
                    persistent: false,
                    align8_v4: *align8,
                },
                engine,
                self.keys,
            ),
            HalfProto::Eesp { sub_sas, .. } => {
                let lanes = sub_sas.map_or(1, |(_, count)| count);
                let numbers: Vec<u64> = (0..lanes).map(last).collect();
                match self.eesp(half, &numbers, false) {
                    Some(spec) => eesp::inbound(common, &spec, engine, self.keys),
                    None => Err(SaError::Conflict("not an EESP SA")),
                }
            }
            HalfProto::PspIn { masters, issued, versions, max_crypt_offset, honour_drop } => {
                let windows = if half.window == 0 { 0 } else { spis(issued).min(psp::MAX_WINDOWS) };
                let spec = psp::ReceiveSpec {
                    masters: self.masters(masters),
                    issued: issued.clone(),
                    versions: *versions,
                    max_crypt_offset: *max_crypt_offset,
                    window: half.window,
                    first_seq: (0..windows as u32).map(last).collect(),
                    honour_drop: *honour_drop,
                };
                psp::inbound(common, &spec, engine, self.keys)
            }
            HalfProto::PspOut { .. } => Err(SaError::Conflict("a sending PSP association cannot receive")),
        };
        let mut built = built.map_err(refused)?;
        let mut received = previous.into_iter().flat_map(|tables| &tables.entries).filter_map(Entry::receiving);
        // Until the new tables are published, workers move the windows of the old SA: what it
        // receives in the meantime must be a replay for the new one, too.
        if let Some((old, live)) = received.find(|(old, live)| live.identity == identity && accept_same(old, half))
            && built.window > 0
            && live.sa.window > 0
        {
            let same = |a: &InboundSa, b: &InboundSa| (a.window, a.lanes.len()) == (b.window, b.lanes.len());
            if old.seq != half.seq || !same(&live.sa, &built) {
                return Err(Problem::at(
                    &sa.at,
                    format!(
                        "sas.{}.in: replay window, last number and number of Sub SAs cannot change while the key is \
                         in use: packets could be replayed; set a new key, or restart",
                        sa.name
                    ),
                ));
            }
            built.lanes.iter().filter_map(|lane| lane.key).for_each(|key| self.keys.remove(key));
            built = built.with_lanes_of(&live.sa);
        }
        Ok(Live { sa: Arc::new(built), identity, born: self.around.now, life_time: half.life_time })
    }
}

impl Entry {
    /// Specification and SA of the inbound half.
    fn receiving(&self) -> Option<(&Half, &Live<InboundSa>)> {
        self.sa.inbound.as_ref().zip(self.inbound.as_ref())
    }
}

/// Returns whether a packet that one inbound half accepts may be authentic for the other, if their
/// keys have the same identity: the ICV depends on everything that is compared.
fn accept_same(a: &Half, b: &Half) -> bool {
    use HalfProto::{Ah, Eesp, Esp, PspIn};
    a.proto.spi() == b.proto.spi()
        && match (&a.proto, &b.proto) {
            (Esp { suite, enc, integ, esn, .. }, Esp { suite: s, enc: e, integ: i, esn: n, .. }) => {
                (suite, enc, integ, esn) == (s, e, i, n)
            }
            (Ah { suite, integ, esn, .. }, Ah { suite: s, integ: i, esn: n, .. }) => (suite, integ, esn) == (s, i, n),
            (Eesp { suite, key, sub_sas, .. }, Eesp { suite: s, key: k, sub_sas: other, .. }) => {
                (suite, key, sub_sas.map(|(kdf, _)| kdf)) == (s, k, other.map(|(kdf, _)| kdf))
            }
            (PspIn { .. }, PspIn { .. }) => true,
            _ => false,
        }
}

/// Number of SPIs in non-overlapping ranges.
fn spis(ranges: &[(PspSpi, PspSpi)]) -> u64 {
    ranges.iter().map(|(first, last)| u64::from(last.get().saturating_sub(first.get())) + 1).sum()
}

fn refused(sa: &Sa, direction: &str, why: &SaError) -> Problem {
    Problem::at(&sa.at, format!("sas.{}.{direction}: {why}", sa.name))
}

/// Logs the next number, except at the first start.
fn report_resumed(name: &str, configured: u64, record: &Record) {
    let Some(next) = record.numbers.values().copied().max() else { return };
    let next = next.max(configured);
    if record.clean {
        tracing::info!(target: "state", "sa {name}: continuing at {next}");
    } else {
        tracing::warn!(target: "state", "sa {name}: numbers below {next} may have been used before; continuing at {next}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Purpose};

    #[test]
    fn a_source_without_random_bytes_is_an_error() {
        let failed = random_bytes_from::<8, ()>(|_| Err(()));
        assert!(failed.is_err_and(|why| why.to_string().contains("no random bytes")));
        let filled = random_bytes_from::<4, ()>(|bytes| {
            bytes.fill(7);
            Ok(())
        });
        assert_eq!(filled.ok(), Some([7; 4]));
    }

    /// Builds the tables of `text` after `previous`.
    fn built(text: &str, previous: Option<&Tables>, keys: &mut KeyTable) -> Tables {
        let config = config::tests::read(text, Purpose::Offline).unwrap();
        let around = HostContext { now: Instant::now(), resume: None, path_mtu: &|_| 1500, port_key: 1 };
        build(&config, previous, keys, &around).unwrap()
    }

    #[test]
    fn an_sa_in_use_keeps_its_lanes_when_the_spi_of_the_replies_changes() {
        let of = |spi: &str| {
            format!(
                "gateway {{ workers = 2 }} sas {{ a {{ protocol = eesp\n local = 192.0.2.1\n remote = 192.0.2.2\n \
                 suite = aes128gcm16\n sub_sas = 2\n out {{ spi = 0x1001\n key = 0x{key}\n }} in {{ spi = {spi}\n \
                 key = 0x{other}\n }} }} }}",
                key = "0123456789abcdef".repeat(4),
                other = "1123456789abcdef".repeat(4)
            )
        };
        let mut keys = KeyTable::default();
        let old = built(&of("0x2001"), None, &mut keys);
        let count = keys.count();
        let sa = |tables: &Tables| Arc::clone(&tables.entries[0].outbound.as_ref().unwrap().sa);
        let lanes = |sa: &OutboundSa| [sa.lane_of(0), sa.lane_of(1)];
        assert_eq!(lanes(&sa(&old)), [1, 0]);
        let same = built(&of("0x2001"), Some(&old), &mut keys);
        assert!(Arc::ptr_eq(&sa(&old), &sa(&same)));
        let new = built(&of("0x2002"), Some(&old), &mut keys);
        assert_eq!((lanes(&sa(&old)), lanes(&sa(&new))), ([1, 0], [0, 1]));
        assert!(Arc::ptr_eq(&sa(&old).lanes, &sa(&new).lanes), "numbers go on");
        assert_eq!(keys.count(), count);
    }

    /// Lets the SA of `tables` receive a packet with this number.
    fn receive(tables: &Tables, number: u64, keys: &KeyTable) {
        let sa = &tables.entries[0].inbound.as_ref().unwrap().sa;
        let outer = ipsec::Outer::new([192, 0, 2, 2].into(), [192, 0, 2, 1].into());
        let common = SaCommon::new("peer", ipsec::Mode::Tunnel, outer, ipsec::Lifetime::NONE);
        let spec = esp::Spec {
            spi: sa.spi.try_into().unwrap(),
            suite: crypto::Suite::parse_esp("aes128gcm16").unwrap(),
            enc_key: &std::array::from_fn::<u8, 20, _>(|i| i as u8),
            integ_key: &[],
            esn: false,
            window: 64,
            first_seq: number,
            persistent: false,
            tfc_padding: false,
            iv: esp::CbcIv::Encrypted,
        };
        let mut context = ipsec::Context::new(Engine::best());
        let peer = esp::outbound(common, &spec, context.engine, &mut context.keys).unwrap();
        let mut bytes = [0; 1024];
        bytes[400..420].copy_from_slice(&[0x45, 0, 0, 20, 0, 1, 0, 0, 9, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let mut frame = ipsec::Frame::new(&mut bytes, 400..420).unwrap();
        context.seal(&peer, &mut frame).unwrap();
        context.keys = keys.clone();
        context.open(sa, &mut frame).unwrap();
    }

    #[test]
    fn a_reload_opens_no_window_again() {
        let of = |more: &str| {
            format!(
                "sas {{ a {{ protocol = esp\n local = 192.0.2.1\n remote = 192.0.2.2\n suite = aes128gcm16\n \
                 esn = no\n in {{ spi = 0x2001\n key = 0x000102030405060708090a0b0c0d0e0f10111213\n {more}\n }} }} }}"
            )
        };
        let build = |text: &str, previous: Option<&Tables>, keys: &mut KeyTable| {
            let config = config::tests::read(text, Purpose::Offline).unwrap();
            let around = HostContext { now: Instant::now(), resume: None, path_mtu: &|_| 1500, port_key: 1 };
            super::build(&config, previous, keys, &around)
        };
        let top = |tables: &Tables| {
            let sa = &tables.entries[0].inbound.as_ref().unwrap().sa;
            crate::state::window_tops(sa).get(&0).copied()
        };
        let mut keys = KeyTable::default();
        let old = build(&of("last_seq = 40"), None, &mut keys).unwrap();
        let count = keys.count();
        // Another name or another host is not another key.
        let moved = of("last_seq = 40").replace(" a {", " b {").replace("192.0.2.2", "192.0.2.3");
        let texts = [of("last_seq = 40\n life_time = 1h"), of("last_seq = 40\n hop_limit = 9"), moved];
        for (text, number) in texts.iter().zip(50..) {
            let mut next_keys = keys.clone();
            let new = build(text, Some(&old), &mut next_keys).unwrap();
            // A worker that still has the old tables.
            receive(&old, number, &keys);
            assert_eq!((top(&old), top(&new)), (Some(number), Some(number)));
            assert_eq!(next_keys.count(), count);
        }
        for other in ["last_seq = 41", "last_seq = 40\n replay_window = 64"] {
            let problems = build(&of(other), Some(&old), &mut keys).err().unwrap().to_string();
            assert!(problems.contains("cannot change while the key is in use"), "{problems}");
        }
        let another = of("replay_window = 64").replace("0x0001", "0x0002");
        assert_eq!(top(&build(&another, Some(&old), &mut keys).unwrap()), None);
    }

    #[test]
    fn each_psp_spi_goes_on_at_its_own_number() {
        let path = std::env::temp_dir().join(format!("weir-tables-{}.conf", std::process::id()));
        let master = "0123456789abcdef".repeat(4);
        let numbers = |last_iv: &str| {
            let text = format!(
                "sas {{ a {{ protocol = psp\n local = 192.0.2.1\n remote = 192.0.2.2\n in {{ issued = 0x102-0x103, \
                 0x100-0x101\n replay_window = 64\n master_key_0 = 0x{master}\n {last_iv}\n }} }} }}"
            );
            std::fs::write(&path, text).unwrap();
            let config = config::load(&path, Purpose::Offline).unwrap();
            let resume = |_: &str, _| {
                let numbers = BTreeMap::from([(0, 5000), (2, 7)]);
                Ok(Some(Record { clean: false, name: "a".into(), iv_ahead: 0, numbers }))
            };
            let around = HostContext { now: Instant::now(), resume: Some(&resume), path_mtu: &|_| 1500, port_key: 1 };
            let tables = build(&config, None, &mut KeyTable::default(), &around).unwrap();
            crate::state::window_tops(&tables.entries[0].inbound.as_ref().unwrap().sa)
        };
        assert_eq!(numbers(""), BTreeMap::from([(0, 5000), (2, 7)]));
        assert_eq!(numbers("last_iv = 9"), BTreeMap::from([(0, 5000), (1, 9), (2, 9), (3, 9)]));
        std::fs::remove_file(&path).unwrap();
    }
}
