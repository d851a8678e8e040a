//! Naming what binds a measured result: which term of the model, or what outside it.

use serde::Serialize;

use super::profile::Profile;
use crate::trial::Trial;
use stats::median;
use throughput::Parts;

/// Limiting factor of a result.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Term {
    /// Work per packet.
    FixedCost,
    /// Work per byte besides the cipher, or including it if they are not separate.
    LengthCost,
    /// The cipher.
    Cipher,
    /// The link.
    Link,
    /// The generator: everything that was offered came through.
    Offered,
    /// A full ring or queue while the processor was not the limit.
    Ring,
    /// Time that the hypervisor gave to others.
    Steal,
    /// Replay or ICV failures: packets were lost because of their type, not because of load.
    Refused,
    /// The model is too fast or too slow here: a feature that it does not have.
    Unexplained,
}

impl Term {
    /// Words for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedCost => "fixed cost of a packet",
            Self::LengthCost => "cost per byte",
            Self::Cipher => "cipher",
            Self::Link => "link",
            Self::Offered => "offered load",
            Self::Ring => "ring or queue",
            Self::Steal => "time taken by the hypervisor",
            Self::Refused => "packets refused",
            Self::Unexplained => "not in the model",
        }
    }
}

/// Trials of one kind with what bound them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Subject, direction, traffic, cores.
    pub what: String,
    /// Trials.
    pub trials: usize,
    /// Median 10⁶ bit/s of inner packets.
    pub mbps: f64,
    /// Median nanoseconds per packet and core.
    pub ns: f64,
    /// Predicted nanoseconds, with a profile.
    pub predicted_ns: Option<f64>,
    /// Its parts.
    pub parts: Option<Parts>,
    /// Limiting factor.
    pub term: Term,
    /// Evidence.
    pub evidence: String,
}

/// Error of a prediction beyond which the model does not explain a result, in percent.
const EXPLAINED: f64 = 10.0;

/// Share of time stolen that explains a result.
const STOLEN: f64 = 0.1;

/// Share of a link that counts as full: preamble, gaps and headers of layer 2 are not in its bytes.
const FULL_LINK: f64 = 0.93;

/// Share of losses that makes a result.
const LOSSY: f64 = 0.001;

/// Explains `trials`, grouped by subject, direction, traffic and cores, in their order.
pub fn explain(trials: &[Trial], profiles: &[Profile], link_mbps: Option<f64>) -> Vec<Explanation> {
    let mut groups: Vec<(String, Vec<&Trial>)> = vec![];
    for trial in trials.iter().filter(|t| t.measured.received > 0 && t.measured.dur_ns > 0) {
        let direction = format!("{:?}", trial.direction).to_lowercase();
        let mut what = format!("{} {direction} {} on {} cores", trial.subject, trial.traffic, trial.cores);
        if let Some(way) = trial.way {
            what += &format!(", {way}");
        }
        match groups.iter_mut().find(|(known, _)| *known == what) {
            Some((_, group)) => group.push(trial),
            None => groups.push((what, vec![trial])),
        }
    }
    groups.into_iter().map(|(what, group)| explain_group(what, &group, profiles, link_mbps)).collect()
}

fn explain_group(what: String, group: &[&Trial], profiles: &[Profile], link_mbps: Option<f64>) -> Explanation {
    let of = |f: &dyn Fn(&Trial) -> f64| median(&group.iter().map(|t| f(t)).collect::<Vec<_>>());
    let first = group[0];
    let mbps = of(&|t| t.measured.bps() / 1e6);
    let ns = of(&|t| t.measured.dur_ns as f64 * f64::from(t.cores.max(1)) / t.measured.received as f64);
    let size = of(&|t| t.measured.received_bytes as f64 / t.measured.received as f64);
    let direction = format!("{:?}", first.direction).to_lowercase();
    let profile = profiles.iter().find(|p| p.identity.subject == first.subject && p.identity.direction == direction);
    let cost = profile.map(Profile::cost);
    let parts = cost.as_ref().map(|cost| cost.parts(size));
    let predicted_ns = profile.map(|p| p.time_ns(size));
    let wire = profile.map_or(size, |p| p.wire_bytes(size));
    let outer_mbps = mbps * wire / size;
    let share = |f: &dyn Fn(&Trial) -> f64| of(&|t| f(t) / t.measured.sent.max(1) as f64);
    let stolen =
        of(&|t| t.measured.steal_ns.map_or(0.0, |s| s as f64 / (t.measured.dur_ns as f64 * f64::from(t.cores.max(1)))));
    let refused = share(&|t| (t.measured.lost.replay + t.measured.lost.auth) as f64);
    let ring = share(&|t| t.measured.lost.ring as f64);
    let offered = first.offered_pps.filter(|_| of(&|t| t.measured.loss_ratio()) <= LOSSY);
    let (term, evidence) = if refused > LOSSY {
        (Term::Refused, format!("{:.2} % failed the replay window or the ICV", refused * 100.0))
    } else if stolen > STOLEN {
        (Term::Steal, format!("{:.0} % of the time went to other guests: measure again", stolen * 100.0))
    } else if link_mbps.is_some_and(|link| outer_mbps >= FULL_LINK * link) {
        (Term::Link, format!("{outer_mbps:.0} Mbps on the wire of a link of {:.0}", link_mbps.unwrap_or_default()))
    } else if let Some(pps) = offered {
        (Term::Offered, format!("all of the {pps:.0} offered packets/s arrived; increase the load to find a limit"))
    } else {
        by_model(ns, predicted_ns.zip(parts), ring)
    };
    Explanation { what, trials: group.len(), mbps, ns, predicted_ns, parts, term, evidence }
}

fn by_model(ns: f64, model: Option<(f64, Parts)>, ring: f64) -> (Term, String) {
    let Some((predicted, parts)) = model else {
        return if ring > LOSSY {
            (
                Term::Ring,
                format!(
                    "{:.2} % lost to full rings; a profile is needed to determine whether the processor was busy",
                    ring * 100.0
                ),
            )
        } else {
            (Term::Unexplained, "no profile for this subject and direction; make one with weir lab model fit".into())
        };
    };
    let error = 100.0 * (ns / predicted - 1.0);
    if error > EXPLAINED && ring > LOSSY {
        return (
            Term::Ring,
            format!("{error:.0} % slower than the processor allows, with {:.2} % lost to full rings", ring * 100.0),
        );
    }
    if error.abs() > EXPLAINED {
        let way = if error > 0.0 { "slower" } else { "faster" };
        return (Term::Unexplained, format!("{:.0} % {way} than predicted by the profile", error.abs()));
    }
    let Parts { fixed_ns, length_ns, cipher_ns } = parts;
    let percent = |part: f64| 100.0 * part / predicted;
    let evidence = format!(
        "{:.0} % fixed, {:.0} % per byte, {:.0} % cipher; measured {error:+.1} % of the prediction",
        percent(fixed_ns),
        percent(length_ns),
        percent(cipher_ns)
    );
    let term = if cipher_ns >= fixed_ns && cipher_ns >= length_ns {
        Term::Cipher
    } else if fixed_ns >= length_ns {
        Term::FixedCost
    } else {
        Term::LengthCost
    };
    (term, evidence)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::profile::tests::calibration;
    use super::*;
    use crate::trial::{Lost, Measurement};

    /// 1000 packets of `size` bytes at `ns` each.
    pub(in crate::model) fn trial(size: u64, ns: u64) -> Trial {
        let line = r#"{"schema":1,"run":"r","session":0,"round":0,"order":0,"seed":1,"at_ms":1,"study":"sizes","subject":"x",
            "protocol":"esp","mode":"tunnel","suite":"aes128gcm16","direction":"out","traffic":"t","cores":1,"sas":1,"replay":64,
            "batch":256,"sent":1,"received":1,"received_bytes":1,"verified":1,"lost":{"ring":0,"replay":0,"auth":0,"other":0},
            "dur_ns":1,"env":"e"}"#;
        let mut trial: Trial = serde_json::from_str(line).unwrap();
        let measured = Measurement {
            sent: 1000,
            received: 1000,
            received_bytes: 1000 * size,
            dur_ns: 1000 * ns,
            ..Default::default()
        };
        trial.measured = measured;
        trial
    }

    /// 100 ns + 0.4 ns per byte.
    fn profile() -> Profile {
        let mut profile = calibration().profile;
        profile.identity.subject = "x".into();
        profile.identity.direction = "out".into();
        profile
    }

    fn term(trial: Trial, link: Option<f64>) -> Term {
        explain(&[trial], &[profile()], link)[0].term
    }

    #[test]
    fn the_larger_part_of_the_time_binds() {
        assert_eq!(term(trial(64, 126), None), Term::FixedCost);
        assert_eq!(term(trial(1400, 660), None), Term::LengthCost);
        assert_eq!(term(trial(1400, 900), None), Term::Unexplained);
    }

    #[test]
    fn what_is_outside_the_model_comes_first() {
        // 1400 bytes in 660 ns are 17 Gbit/s.
        assert_eq!(term(trial(1400, 660), Some(17_500.0)), Term::Link);
        assert_eq!(term(trial(1400, 660), Some(40_000.0)), Term::LengthCost);
        let lossy = |lost| {
            let mut t = trial(1400, 900);
            t.measured.sent = 1100;
            t.measured.lost = lost;
            t
        };
        assert_eq!(term(lossy(Lost { ring: 100, ..Default::default() }), None), Term::Ring);
        assert_eq!(term(lossy(Lost { replay: 100, ..Default::default() }), None), Term::Refused);
        let mut stolen = trial(1400, 900);
        stolen.measured.steal_ns = Some(300_000);
        assert_eq!(term(stolen, None), Term::Steal);
        let mut offered = trial(1400, 5000);
        offered.offered_pps = Some(2e5);
        assert_eq!(term(offered, None), Term::Offered);
    }

    #[test]
    fn without_a_profile_it_says_how_to_make_one() {
        let all = explain(&[trial(64, 126), trial(64, 130), trial(64, 128)], &[], None);
        assert_eq!((all.len(), all[0].trials, all[0].ns), (1, 3, 128.0));
        assert!(all[0].evidence.contains("weir lab model fit"));
    }
}
