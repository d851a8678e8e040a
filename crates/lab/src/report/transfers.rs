//! Transfers between hosts: protocols and sets of SAs against each other, and the answer to the
//! question of the thesis. Everything is computed from trials; no sentence of the answer is fixed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::analysis::{Folder, over_sessions, shown, ticks, typical, values};
use super::chart::{short, trimmed};
use crate::campaign::{Kind, Study};
use crate::metric::Metric;
use crate::subject::{Encapsulation, Subject};
use crate::trial::{Direction, Trial};
use stats::{Estimate, Judged, Limits, Ratio, Rng, Unit, Verdict, judge_all, median, paired};
use testbed::pair::Lanes;

/// Margins of equivalence as shares, the smaller first: stated before measuring.
const MARGINS: [f64; 2] = [0.01, 0.05];
/// The error rate of the tests.
const ALPHA: f64 = 0.05;

/// What is compared.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Figure {
    /// Bit/s.
    Rate,
    /// Processor time of the programs at both ends per Gbit.
    Cost,
}

impl Figure {
    fn of(self, trial: &Trial) -> Option<f64> {
        let figure = match self {
            Self::Rate => Some(trial.measured.bps()),
            Self::Cost => trial.measured.values.get(Metric::CpuSPerGbit),
        };
        figure.filter(|figure| figure.is_finite() && *figure > 0.0)
    }
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Compared {
    pub(super) ratio: Estimate,
    pub(super) verdict: String,
    /// The interval is outside of 1, also for so many comparisons at once (Holm).
    pub(super) different: bool,
    /// The smallest margin that two one-sided tests keep to, in percent.
    pub(super) within_percent: Option<f64>,
}

/// Judges comparisons of one figure together.
fn judge(ratios: &[Option<Ratio>]) -> Vec<Option<Compared>> {
    let limits = Limits { floor: 0.0, margin: None };
    let family: Vec<(&Ratio, Limits)> = ratios.iter().flatten().map(|ratio| (ratio, limits)).collect();
    let mut judged = judge_all(&family).into_iter();
    ratios.iter().map(|ratio| Some(compared(ratio.as_ref()?, &judged.next()?))).collect()
}

fn compared(ratio: &Ratio, judged: &Judged) -> Compared {
    // Rounds of one process do not represent other processes.
    let known = ratio.unit == Unit::Sessions;
    let different = known && judged.verdict == Verdict::Different;
    let within = MARGINS.into_iter().find(|margin| known && ratio.p_equivalent(margin.ln_1p()) < ALPHA);
    let Estimate { value, low, high } = ratio.ratio;
    let margin = within.map_or_else(String::new, |margin| format!("within {} %", trimmed(margin * 100.0)));
    let change = format!("{} % {}", percent(value), if value > 1.0 { "more" } else { "less" });
    let verdict = match (different, within) {
        _ if !known => "inconclusive: one session only".to_owned(),
        (true, Some(_)) => format!("{change}, {margin}"),
        (true, None) => change,
        (false, Some(_)) => format!("equivalent {margin}"),
        (false, None) if low > 1.0 || high < 1.0 => "inconclusive among so many comparisons".to_owned(),
        (false, None) => "inconclusive".to_owned(),
    };
    Compared { ratio: ratio.ratio, verdict, different, within_percent: within.map(|margin| margin * 100.0) }
}

/// Distance of a ratio from 1 in percent.
fn percent(ratio: f64) -> String {
    short((100.0 * (ratio - 1.0).abs() * 10.0).round() / 10.0)
}

/// Logarithms of a figure by session and round; of two arms the mean.
fn by_round(trials: &[&Trial], figure: Figure) -> BTreeMap<(u32, u32), f64> {
    let mut rounds: BTreeMap<(u32, u32), Vec<f64>> = BTreeMap::new();
    for trial in trials {
        if let Some(value) = figure.of(trial) {
            rounds.entry((trial.session, trial.round)).or_default().push(value.ln());
        }
    }
    rounds.into_iter().map(|(round, logs)| (round, logs.iter().sum::<f64>() / logs.len() as f64)).collect()
}

/// Differences within rounds, by session.
fn differences(a: &BTreeMap<(u32, u32), f64>, b: &BTreeMap<(u32, u32), f64>) -> Vec<Vec<f64>> {
    let mut sessions: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (round, a) in a {
        if let Some(b) = b.get(round) {
            sessions.entry(round.0).or_default().push(a - b);
        }
    }
    sessions.into_values().collect()
}

fn parse(name: &str) -> Option<Subject> {
    name.parse().ok()
}

/// Returns whether two subjects may be compared: both protect, in one encapsulation.
fn comparable(a: &str, b: &str) -> bool {
    let encapsulation = |name| parse(name).and_then(|subject| subject.encapsulation());
    encapsulation(a).is_some() && encapsulation(a) == encapsulation(b)
}

/// The trials of one study, by subject.
struct Measured<'a> {
    study: &'a Study,
    trials: Vec<&'a Trial>,
}

impl<'a> Measured<'a> {
    fn all(folder: &'a Folder) -> Vec<Self> {
        let studies = folder.campaign.studies.iter().filter(|study| study.kind == Kind::Transfers);
        let of = |study: &Study| folder.trials.iter().filter(|trial| trial.study == study.name).collect();
        studies.map(|study| Self { study, trials: of(study) }).collect()
    }

    fn of(&self, subject: &str) -> Vec<&'a Trial> {
        self.trials.iter().filter(|trial| trial.subject == subject).copied().collect()
    }

    /// Logarithms of the ratio of two subjects by session; `None` where they are not comparable.
    fn logs(&self, of: &str, over: &str, figure: Figure) -> Option<Vec<Vec<f64>>> {
        let rounds = |subject| by_round(&self.of(subject), figure);
        comparable(of, over).then(|| differences(&rounds(of), &rounds(over)))
    }

    fn ratio(&self, of: &str, over: &str, figure: Figure) -> Option<Ratio> {
        paired(&self.logs(of, over, figure)?, &mut Rng::new(1))
    }

    /// The second transfer of the reference in a round over the first one.
    fn noise(&self, figure: Figure) -> Option<Ratio> {
        let all = self.of(self.reference());
        let arm = |arm: f64| {
            let mine: Vec<&Trial> =
                all.iter().filter(|trial| trial.measured.values.get(Metric::Arm) == Some(arm)).copied().collect();
            by_round(&mine, figure)
        };
        paired(&differences(&arm(1.0), &arm(0.0)), &mut Rng::new(1))
    }

    /// The subject that the others are compared with: the first one.
    fn reference(&self) -> &str {
        &self.study.subjects[0]
    }

    fn encapsulation(&self) -> Option<Encapsulation> {
        self.study.subjects.iter().find_map(|name| parse(name)?.encapsulation())
    }

    /// The first subject of a protocol with these SAs, of the reference's mode and suite and
    /// without further options.
    fn find(&self, protocol: &str, lanes: Lanes) -> Option<&'a str> {
        let reference = parse(self.reference())?;
        let plain = |name: &str| {
            name.split(',').skip(1).all(|option| option == "udp" || option == "per-cpu" || option == "sub-sas")
        };
        let study: &'a Study = self.study;
        study.subjects.iter().map(String::as_str).find(|name| {
            parse(name).is_some_and(|subject| {
                (subject.protocol(), subject.lanes()) == (protocol, lanes)
                    && (subject.mode(), subject.suite()) == (reference.mode(), reference.suite())
                    && plain(name)
            })
        })
    }
}

/// Cost of the start of a subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SetUp {
    /// Messages of the key exchange, and SAs in each direction; `None` where they are not counted.
    pub(super) messages: Option<f64>,
    pub(super) sas: Option<f64>,
    pub(super) first_packet_ms: Estimate,
    /// Resident memory of the programs at both ends.
    pub(super) resident_mib: Option<f64>,
}

/// A subject of a study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Line {
    pub(super) subject: String,
    /// Name without what all have in common.
    pub(super) name: String,
    pub(super) trials: usize,
    pub(super) gbps: Option<Estimate>,
    pub(super) cpu_s_per_gbit: Option<Estimate>,
    /// Against the reference.
    pub(super) rate: Option<Compared>,
    pub(super) cost: Option<Compared>,
    pub(super) set_up: Option<SetUp>,
    /// Why trials are missing: it failed, or is not installed.
    pub(super) failed: Option<String>,
    pub(super) missing: Option<String>,
}

/// A study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Table {
    pub(super) study: String,
    /// What all subjects have in common.
    pub(super) title: String,
    pub(super) reference: String,
    pub(super) sessions: usize,
    pub(super) lines: Vec<Line>,
    /// The reference against itself: rate and cost.
    pub(super) noise: [Option<Compared>; 2],
}

/// A figure of SAs in memory, for the set-up (figure 3.7 of the thesis).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PerSa {
    pub(super) subject: String,
    pub(super) shown: String,
    /// Resident memory at sender and receiver, per SA or Sub SA.
    pub(super) bytes: Option<[f64; 2]>,
    /// Derivation of the key of one more SA or Sub SA.
    pub(super) derive_ns: Option<Estimate>,
}

/// Answer of a run to the question of the thesis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Answer {
    /// Sentences of the first paragraph.
    pub(super) sentences: Vec<String>,
    /// Those of the second one: cost without network, set-up, noise.
    pub(super) notes: Vec<String>,
    pub(super) tables: Vec<Table>,
    pub(super) per_sa: Vec<PerSa>,
}

impl Answer {
    /// `None` for a campaign without transfers.
    pub(super) fn of(folder: &Folder) -> Option<Self> {
        let studies = Measured::all(folder);
        if studies.is_empty() {
            return None;
        }
        let tables: Vec<Table> = studies.iter().map(|study| table(folder, study)).collect();
        let per_sa = per_sa(folder);
        let (sentences, notes) = (sentences(&studies, &tables), notes(folder, &studies, &tables, &per_sa));
        Some(Self { sentences, notes, tables, per_sa })
    }

    /// Both paragraphs.
    pub(super) fn paragraphs(&self) -> [String; 2] {
        [self.sentences.join(" "), self.notes.join(" ")]
    }
}

fn table(folder: &Folder, study: &Measured<'_>) -> Table {
    let reference = study.reference();
    let against = |figure| -> Vec<Option<Compared>> {
        let ratio = |name: &String| (name != reference).then(|| study.ratio(name, reference, figure)).flatten();
        judge(&study.study.subjects.iter().map(ratio).collect::<Vec<_>>())
    };
    let compared = against(Figure::Rate).into_iter().zip(against(Figure::Cost));
    let lines = study.study.subjects.iter().zip(compared).map(|(name, (rate, cost))| {
        let trials = study.of(name);
        let typical = |figure: Figure| Some(typical(&values(&trials, |trial| figure.of(trial)))).filter(is_known);
        let why = |failed: bool| {
            let mine = |p: &&crate::campaign::store::Problem| p.study == study.study.name && p.subject == *name;
            let found = folder.problems.iter().filter(mine).find(|problem| problem.failed == failed);
            // The end of a log follows; the section of what was not measured has it.
            found.map(|problem| problem.why.lines().next().unwrap_or_default().to_owned())
        };
        Line {
            subject: name.clone(),
            name: brief(name, reference),
            trials: trials.len(),
            gbps: typical(Figure::Rate).map(|bps| bps.map(|bps| bps / 1e9)),
            cpu_s_per_gbit: typical(Figure::Cost),
            rate,
            cost,
            set_up: set_up(&trials),
            failed: why(true),
            missing: why(false),
        }
    });
    let common = parse(reference);
    let suite = common.as_ref().map_or_else(String::new, |s| format!("{} {}", s.mode(), s.suite()));
    let encapsulation = study.encapsulation().map_or_else(String::new, |encapsulation| encapsulation.to_string());
    let workers = study.trials.first().map_or(0, |trial| trial.cores);
    let flows = study.study.flows[0];
    let sessions = study.trials.iter().map(|trial| trial.session).collect::<std::collections::BTreeSet<_>>().len();
    Table {
        study: study.study.name.clone(),
        title: format!("{encapsulation}, {suite}, {workers} workers at each end, {flows} TCP flows"),
        reference: brief(reference, reference),
        sessions,
        noise: [Figure::Rate, Figure::Cost].map(|figure| judge(&[study.noise(figure)]).remove(0)),
        lines: lines.collect(),
    }
}

fn is_known(estimate: &Estimate) -> bool {
    estimate.value.is_finite()
}

/// `EESP, Sub SA per CPU`; with the suite where it is not that of the reference.
fn brief(name: &str, reference: &str) -> String {
    let Some(subject) = parse(name).filter(|_| name.starts_with("weir-")) else { return shown(name) };
    let protocol = subject.protocol().to_uppercase();
    let suite = match parse(reference) {
        Some(other) if (other.mode(), other.suite()) == (subject.mode(), subject.suite()) => String::new(),
        _ => format!(" {} {}", subject.mode(), subject.suite()),
    };
    let options = shown(name);
    let options = options.split_once(subject.suite()).map_or("", |(_, options)| options);
    let options = options.replace(" in UDP", "");
    let sas = match subject.lanes() {
        Lanes::One if options.is_empty() => ", one SA",
        _ => "",
    };
    format!("{protocol}{suite}{sas}{options}")
}

fn set_up(trials: &[&Trial]) -> Option<SetUp> {
    let of = |metric: Metric<'static>| values(trials, move |trial| trial.measured.values.get(metric));
    let middle = |metric: Metric<'static>| {
        let all = of(metric).concat();
        (!all.is_empty()).then(|| median(&all))
    };
    let first_packet_ms = Some(typical(&of(Metric::SetupFirstPacketMs))).filter(is_known)?;
    Some(SetUp {
        messages: middle(Metric::SetupMessages),
        sas: middle(Metric::SetupSas),
        first_packet_ms,
        resident_mib: middle(Metric::SetupResidentMib),
    })
}

fn per_sa(folder: &Folder) -> Vec<PerSa> {
    let trials = folder.of(Kind::Sas);
    let mut subjects: Vec<&String> = trials.iter().map(|trial| &trial.subject).collect();
    subjects.sort();
    subjects.dedup();
    let one = |subject: &String| {
        let mine: Vec<&Trial> = trials.iter().filter(|trial| trial.subject == *subject).copied().collect();
        let of = |metric: Metric<'static>| values(&mine, move |trial| trial.measured.values.get(metric));
        let bytes = |metric: Metric<'static>| Some(over_sessions(&of(metric)).value).filter(|bytes| bytes.is_finite());
        PerSa {
            subject: subject.clone(),
            shown: shown(subject),
            bytes: bytes(Metric::SaBytesSender)
                .zip(bytes(Metric::SaBytesReceiver))
                .map(|(sender, receiver)| [sender, receiver]),
            derive_ns: Some(typical(&of(Metric::DeriveNs))).filter(is_known),
        }
    };
    subjects.into_iter().map(one).filter(|sa| sa.bytes.is_some() || sa.derive_ns.is_some()).collect()
}

/// Logarithms of the ratio of two subjects by session, for claims: those of the first study with a
/// pair that `fits`.
pub(super) fn logs(
    folder: &Folder,
    fits: impl Fn(&[&Trial]) -> Option<(String, String)>,
    figure: Figure,
) -> Option<Vec<Vec<f64>>> {
    Measured::all(folder).iter().find_map(|study| {
        let (of, over) = fits(&study.trials)?;
        study.logs(&of, &over, figure)
    })
}

/// A planned comparison of the answer.
struct Question<'a> {
    /// The question; the same in every study.
    label: &'static str,
    study: &'a Measured<'a>,
    of: &'a str,
    over: &'a str,
}

/// The question of the title.
const TITLE: &str = "PSP over EESP";

/// `1.030 [0.990, 1.070]`.
fn interval(estimate: Estimate) -> String {
    let three = |value: f64| format!("{value:.3}");
    format!("{} [{}, {}]", three(estimate.value), three(estimate.low), three(estimate.high))
}

/// The questions of the thesis that the studies can answer.
fn questions<'a>(studies: &'a [Measured<'a>]) -> Vec<Question<'a>> {
    let (one, cpu, sub) = (Lanes::One, Lanes::PerCpu, Lanes::SubSas(None));
    let mut all = Vec::new();
    for study in studies {
        let find = |protocol, lanes| study.find(protocol, lanes);
        // PSP has a counter for each worker, which is what a Sub SA is.
        let eesp = find("eesp", sub).or(find("eesp", one));
        let asked = [
            (TITLE, find("psp", one), eesp),
            ("EESP over ESP with one SA each", find("eesp", one), find("esp", one)),
            ("an SA per CPU over one SA (ESP)", find("esp", cpu), find("esp", one)),
            ("Sub SAs over one SA (EESP)", find("eesp", sub), find("eesp", one)),
            ("EESP with Sub SAs over ESP with an SA per CPU", find("eesp", sub), find("esp", cpu)),
        ];
        let whole = |(label, of, over): (_, Option<&'a str>, Option<&'a str>)| {
            Some(Question { label, study, of: of?, over: over? })
        };
        all.extend(asked.into_iter().filter_map(whole));
    }
    all
}

/// The first paragraph: the question of the title, then the others.
fn sentences(studies: &[Measured<'_>], tables: &[Table]) -> Vec<String> {
    // The question of the title is judged by itself, the others are corrected for their number.
    let (titles, others): (Vec<_>, Vec<_>) = questions(studies).into_iter().partition(|q| q.label == TITLE);
    let of = |family: &[Question<'_>], figure| {
        judge(&family.iter().map(|q| q.study.ratio(q.of, q.over, figure)).collect::<Vec<_>>())
    };
    let rates = [of(&titles, Figure::Rate), of(&others, Figure::Rate)].concat();
    let costs = [of(&titles, Figure::Cost), of(&others, Figure::Cost)].concat();
    let answers = rates.into_iter().zip(costs);
    let questions: Vec<Question<'_>> = titles.into_iter().chain(others).collect();
    let mut findings: Vec<(&str, Vec<String>)> = Vec::new();
    for (question, (rate, cost)) in questions.iter().zip(answers) {
        let place = question.study.encapsulation().map_or_else(String::new, |place| place.to_string());
        let text = match rate {
            Some(rate) if question.label == TITLE => headline(&rate, cost.as_ref(), &place),
            Some(rate) => format!("{place} {} ({})", interval(rate.ratio), rate.verdict),
            None => format!("{place} not measured ({})", why_not(tables, question)),
        };
        match findings.iter_mut().find(|(label, _)| *label == question.label) {
            Some((_, texts)) => texts.push(text),
            None => findings.push((question.label, vec![text])),
        }
    }
    if !findings.iter().any(|(label, _)| *label == TITLE) {
        let text = "no study of transfers has both with the suite and mode of its first subject";
        findings.insert(0, (TITLE, vec![format!("EESP against PSP was not measured: {text}")]));
    }
    let sentence = |(label, texts): (&str, Vec<String>)| match label {
        TITLE => format!("{}.", texts.join("; ")),
        label => format!("Throughput of {label}: {}.", texts.join("; ")),
    };
    findings.sort_by_key(|(label, _)| *label != TITLE);
    findings.into_iter().map(sentence).collect()
}

fn headline(rate: &Compared, cost: Option<&Compared>, place: &str) -> String {
    let head = match (rate.different, rate.within_percent) {
        (true, None) if rate.ratio.value > 1.0 => "PSP is faster than EESP here".to_owned(),
        (true, None) => "EESP is faster than PSP here".to_owned(),
        (_, Some(margin)) => format!("PSP and EESP are equally fast here within {} %", trimmed(margin)),
        (false, None) => "Whether PSP or EESP is faster is inconclusive here".to_owned(),
    };
    let cost =
        cost.map_or_else(|| "not measured".to_owned(), |cost| format!("{} ({})", interval(cost.ratio), cost.verdict));
    let rate = format!("{} ({})", interval(rate.ratio), rate.verdict);
    format!("{head}, both {place}: throughput of PSP over EESP {rate}, processor time per Gbit {cost}")
}

/// Why two subjects have no ratio.
fn why_not(tables: &[Table], question: &Question<'_>) -> String {
    let lines = tables.iter().filter(|table| table.study == question.study.study.name).flat_map(|table| &table.lines);
    let why = lines.filter(|line| [question.of, question.over].contains(&line.subject.as_str())).find_map(|line| {
        let why = line.failed.as_ref().map(|why| format!("failed: {why}"));
        let why = why.or_else(|| line.missing.as_ref().map(|why| format!("was not measured: {why}")));
        Some(format!("{} {}", line.name, why?))
    });
    why.unwrap_or_else(|| "fewer than two transfers of both in the same round".into())
}

/// The second paragraph: what belongs to the answer and is not transfers.
fn notes(folder: &Folder, studies: &[Measured<'_>], tables: &[Table], per_sa: &[PerSa]) -> Vec<String> {
    let mut findings: Vec<String> =
        [one_core(folder), set_ups(studies), derivation(per_sa)].into_iter().flatten().collect();
    findings.extend(studies.iter().filter_map(uneven));
    findings.extend(tables.iter().filter_map(noise));
    findings
}

/// The protocols in memory: sealing and opening of a packet of 1400 bytes on one core.
fn one_core(folder: &Folder) -> Option<String> {
    let trials: Vec<&Trial> = folder.of(Kind::Sizes).into_iter().filter(|trial| trial.traffic == "1400").collect();
    let of = |protocol: &str| -> BTreeMap<(u32, u32), f64> {
        let first = trials.iter().find(|trial| trial.subject.starts_with(&format!("weir-{protocol}-")));
        let Some(subject) = first.map(|trial| &trial.subject) else { return BTreeMap::new() };
        let mut both: BTreeMap<(u32, u32), BTreeMap<Direction, f64>> = BTreeMap::new();
        for trial in trials.iter().filter(|trial| trial.subject == *subject) {
            let directions = both.entry((trial.session, trial.round)).or_default();
            directions.extend(ticks(trial).map(|ticks| (trial.direction, ticks)));
        }
        let whole = both.into_iter().filter(|(_, directions)| directions.len() == 2);
        whole.map(|(round, directions)| (round, directions.values().sum::<f64>().ln())).collect()
    };
    let [esp, eesp, psp] = ["esp", "eesp", "psp"].map(of);
    let pairs = [("PSP over EESP", &psp, &eesp), ("EESP over ESP", &eesp, &esp), ("PSP over ESP", &psp, &esp)];
    let ratios: Vec<Option<Ratio>> =
        pairs.iter().map(|(_, a, b)| paired(&differences(a, b), &mut Rng::new(1))).collect();
    let words = pairs.iter().zip(judge(&ratios)).filter_map(|((name, ..), compared)| {
        let compared = compared?;
        Some(format!("{name} {} ({})", interval(compared.ratio), compared.verdict))
    });
    let words: Vec<String> = words.collect();
    let text = "Time to seal and open a packet of 1400 bytes in memory, without kernel and queues";
    (!words.is_empty()).then(|| format!("{text}: {}.", words.join(", ")))
}

/// Figure 3.7 of the thesis: SAs per CPU are negotiated one by one, Sub SAs all at once.
fn set_ups(studies: &[Measured<'_>]) -> Option<String> {
    studies.iter().find_map(|study| {
        let of = |protocol: &str, lanes| {
            let name = study.find(protocol, lanes)?;
            let set_up = set_up(&study.of(name))?;
            let first = short(set_up.first_packet_ms.value);
            let sas = set_up.sas.map_or_else(String::new, |sas| format!(" for {}", plural(sas, "SA")));
            let text = format!("{} messages{sas}, first packet after {first} ms", trimmed(set_up.messages?));
            Some(format!("{} {text}", brief(name, study.reference())))
        };
        let all =
            [of("esp", Lanes::One), of("esp", Lanes::PerCpu), of("eesp", Lanes::SubSas(None)), of("psp", Lanes::One)];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (all.len() > 1).then(|| format!("Set-up: {}.", all.join("; ")))
    })
}

fn plural(count: f64, what: &str) -> String {
    format!("{} {what}{}", trimmed(count), if count == 1.0 { "" } else { "s" })
}

fn derivation(per_sa: &[PerSa]) -> Option<String> {
    let of = |sa: &PerSa| Some(format!("{} ns for {}", short(sa.derive_ns?.value), sa.shown));
    let all: Vec<String> = per_sa.iter().filter_map(of).collect();
    (!all.is_empty()).then(|| format!("Derivation of the key of one more SA: {}.", all.join(", ")))
}

/// Factor between the slowest and the fastest transfer of a subject from which on a mean describes
/// neither.
const APART: f64 = 3.0;

/// Subjects whose transfers are far apart: other starts of the same programs did something else.
fn uneven(study: &Measured<'_>) -> Option<String> {
    let subjects = &study.study.subjects;
    let of = |name: &String| {
        let rates: Vec<f64> = study.of(name).iter().map(|trial| trial.measured.bps() / 1e9).collect();
        let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let high = rates.iter().copied().fold(0.0, f64::max);
        (high > APART * low).then(|| (high / low, brief(name, study.reference()), [low, high].map(short)))
    };
    let all: Vec<_> = subjects.iter().filter_map(of).collect();
    let (_, name, [low, high]) = all.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let place = study.encapsulation().map_or_else(String::new, |place| format!(", {place}"));
    Some(format!(
        "Transfers of {} of {} subjects differ by more than {APART} times{place}, most of all {name} ({low} to {high} Gbit/s): a mean \
         describes none of them. Repeat this on an idle machine.",
        all.len(),
        subjects.len()
    ))
}

/// What the machine calls different although it is not.
fn noise(table: &Table) -> Option<String> {
    let rate = table.noise[0].as_ref()?;
    let text = format!("{} against itself, study '{}': {}", table.reference, table.study, interval(rate.ratio));
    let off =
        if rate.different { ", which should be 1: the machine changed, and the figures are unreliable" } else { "" };
    Some(format!("{text}{off}."))
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;
    use crate::campaign::store::Problem;

    const TEXT: &str = r#"
name = "transfers"
[[study]]
name = "udp"
kind = "transfers"
subjects = ["weir-esp-tunnel-aes128gcm16,udp", "weir-esp-tunnel-aes128gcm16,udp,per-cpu",
    "weir-eesp-tunnel-aes128gcm16,udp", "weir-eesp-tunnel-aes128gcm16,udp,sub-sas", "weir-psp-tunnel-aes128gcm16"]
rounds = 2
duration_ms = 500
[[study]]
name = "raw"
kind = "transfers"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-eesp-tunnel-aes128gcm16", "weir-ah-tunnel-sha256", "plain"]
rounds = 2
duration_ms = 500
[[study]]
kind = "sizes"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-eesp-tunnel-aes128gcm16", "weir-psp-tunnel-aes128gcm16"]
traffic = [1400]
directions = ["out", "in"]
"#;

    fn folder() -> Folder {
        let mut folder = synthetic::folder_of(TEXT);
        folder.problems.clear();
        folder
    }

    /// Gives every trial of a subject so much more time, with `spread` from session to session.
    fn slow(folder: &mut Folder, subject: &str, factor: f64, spread: f64) {
        for trial in folder.trials.iter_mut().filter(|trial| trial.subject.starts_with(subject)) {
            let own = 1.0 + spread * (f64::from(trial.session % 10) - 1.0);
            trial.measured.dur_ns = (trial.measured.dur_ns as f64 * factor * own) as u64;
        }
    }

    fn answer(folder: &Folder) -> Answer {
        Answer::of(folder).expect("it has transfers")
    }

    #[test]
    fn the_answer_turns_with_what_was_measured() {
        let first = |folder: &Folder| answer(folder).sentences[0].clone();
        let same = first(&folder());
        assert!(same.starts_with("PSP and EESP are equally fast here within 1 %, both in UDP"), "{same}");
        let mut slower = folder();
        slow(&mut slower, "weir-eesp", 1.2, 0.0);
        let sentence = first(&slower);
        assert!(sentence.starts_with("PSP is faster than EESP here") && sentence.contains("% more"), "{sentence}");
        let mut faster = folder();
        slow(&mut faster, "weir-eesp", 0.8, 0.0);
        assert!(first(&faster).starts_with("EESP is faster than PSP here"), "{}", first(&faster));
        let mut little = folder();
        slow(&mut little, "weir-eesp", 1.03, 0.0);
        assert!(first(&little).starts_with("PSP and EESP are equally fast here within 5 %"), "{}", first(&little));
        // As much as before on average, but sessions contradict each other.
        let mut noisy = folder();
        slow(&mut noisy, "weir-eesp", 1.05, 0.1);
        let sentence = first(&noisy);
        assert!(sentence.starts_with("Whether PSP or EESP is faster is inconclusive here"), "{sentence}");
        assert!(sentence.contains("throughput of PSP over EESP 1.0"), "{sentence}");
        let mut one = folder();
        one.trials.retain(|trial| trial.session % 10 == 0);
        assert!(first(&one).contains("one session only"), "{}", first(&one));
    }

    #[test]
    fn a_subject_that_failed_is_named_and_so_is_one_that_is_not_there() {
        let mut folder = folder();
        folder.trials.retain(|trial| !trial.subject.contains("psp"));
        let problem = |why: &str, failed: bool| Problem {
            study: "udp".into(),
            subject: "weir-psp-tunnel-aes128gcm16".into(),
            why: why.into(),
            failed,
        };
        folder.problems.push(problem("it ended with signal 9\n    sun: a line of its log", true));
        let failed = answer(&folder);
        assert!(
            failed.sentences[0].contains("not measured (PSP, one SA failed: it ended with signal 9)"),
            "{failed:?}"
        );
        let line = failed.tables[0].lines.last().expect("it stays in the table");
        assert_eq!((line.trials, line.failed.as_deref()), (0, Some("it ended with signal 9")));
        folder.problems = vec![problem("not installed", false)];
        let missing = answer(&folder);
        assert!(missing.sentences[0].contains("was not measured: not installed"), "{}", missing.sentences[0]);
        folder.campaign.studies.retain(|study| study.name == "raw");
        let none = answer(&folder);
        assert!(none.sentences[0].starts_with("EESP against PSP was not measured: no study"), "{}", none.sentences[0]);
    }

    #[test]
    fn nothing_is_compared_across_encapsulations_or_with_plain_forwarding() {
        assert!(comparable("weir-esp-tunnel-aes128gcm16,udp", "weir-psp-tunnel-aes128gcm16"));
        assert!(!comparable("weir-esp-tunnel-aes128gcm16", "weir-psp-tunnel-aes128gcm16"));
        assert!(!comparable("weir-esp-tunnel-aes128gcm16", "plain"));
        let answer = answer(&folder());
        let raw = &answer.tables[1];
        assert!(raw.title.starts_with("raw IP, tunnel aes128gcm16"), "{}", raw.title);
        assert_eq!(raw.lines.iter().filter(|line| line.rate.is_some()).count(), 2, "EESP and AH");
        let names: Vec<&str> = raw.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["ESP, one SA", "EESP, one SA", "AH tunnel sha256, one SA", "plain"]);
    }

    #[test]
    fn equals_that_differ_are_called_unreliable() {
        let mut folder = folder();
        let noise = |folder: &Folder| answer(folder).notes.last().cloned().unwrap_or_default();
        assert!(!noise(&folder).contains("unreliable"), "{}", noise(&folder));
        for trial in folder.trials.iter_mut().filter(|trial| trial.measured.values.get(Metric::Arm) == Some(1.0)) {
            trial.measured.dur_ns = (trial.measured.dur_ns as f64 * 1.2) as u64;
        }
        assert!(noise(&folder).ends_with("the machine changed, and the figures are unreliable."), "{}", noise(&folder));
    }

    #[test]
    fn transfers_that_are_far_apart_are_named() {
        let text = |folder: &Folder| answer(folder).paragraphs()[1].clone();
        assert!(!text(&folder()).contains("differ by more"), "{}", text(&folder()));
        let mut folder = folder();
        let mut slow = folder.trials.iter_mut().filter(|trial| trial.subject.contains("psp") && trial.study == "udp");
        slow.next().expect("it has PSP").measured.dur_ns *= 4;
        assert!(
            text(&folder).contains("differ by more than 3 times, in UDP, most of all PSP, one SA (0."),
            "{}",
            text(&folder)
        );
    }

    #[test]
    fn set_up_and_one_core_are_part_of_the_answer() {
        let text = answer(&folder()).paragraphs().join(" ");
        assert!(
            text.contains("Set-up: ESP, one SA 4 messages, first packet after 12.1 ms; ESP, SA per CPU 8 messages"),
            "{text}"
        );
        assert!(text.contains("in memory, without kernel and queues: PSP over EESP 1."), "{text}");
    }
}
