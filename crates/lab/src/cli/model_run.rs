//! `weir lab model fit` and `validate` on a results directory: all of its variants at once.

use std::path::{Path, PathBuf};

use comfy_table::{ContentArrangement, Table};

use super::model::{FitArgs, FormName, ValidateArgs, WIDTH, digits, judgement_text, read_cost, table};
use crate::campaign::{Campaign, env::Environment, store};
use crate::model::{Beyond, Machine, ModelKey, Profile, RunTrials, Validation, ValidationError, read_run_folder};
use crate::trial::{Direction, Trial};
use throughput::Errors;

/// A run that was read.
pub(super) struct Run {
    dir: PathBuf,
    campaign: Campaign,
    trials: Vec<Trial>,
}

impl Run {
    /// The run in `dir`; `None` when it holds none.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, String> {
        if !dir.is_dir() {
            return Ok(None);
        }
        let Some((campaign, trials, notes)) = read_run_folder(dir).map_err(|e| e.to_string())? else { return Ok(None) };
        notes.iter().for_each(|note| eprintln!("weir: model: note: {note}"));
        Ok(Some(Self { dir: dir.to_owned(), campaign, trials }))
    }

    /// The machine that measured it.
    fn machine(&self) -> Machine {
        let read = std::fs::read(self.dir.join(store::ENV)).ok();
        let known: Vec<Environment> = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        known.first().map_or_else(Machine::default, Machine::of)
    }
}

/// Directory of the profiles of a run.
const PROFILES: &str = "profiles";

fn wanted(key: &ModelKey, subjects: &[String], direction: Option<Direction>) -> bool {
    (subjects.is_empty() || subjects.contains(&key.subject)) && direction.is_none_or(|d| d == key.direction)
}

/// Fits every selected variant of a run; returns whether all beat the two-point line.
pub(super) fn fit(args: &FitArgs, run: &Run) -> Result<bool, String> {
    let sorted = RunTrials::new(&run.campaign, &run.trials);
    let keys: Vec<ModelKey> = sorted.keys().into_iter().filter(|w| wanted(w, &args.subject, args.direction)).collect();
    if keys.is_empty() {
        let have: Vec<String> = sorted.keys().iter().map(name).collect();
        let have = if have.is_empty() { "none".to_owned() } else { have.join(", ") };
        return Err(format!(
            "{}: nothing to fit: a variant needs 4 sizes or more in a study of the kind 'sizes'; variants here: {have}",
            run.dir.display()
        ));
    }
    let cost = |key: &ModelKey| args.cost_table.as_deref().map(|path| read_cost(path, suite_of(run, key))).transpose();
    let single = args.out.as_ref().filter(|out| out.extension().is_some_and(|e| e == "toml"));
    if single.is_some() && keys.len() > 1 {
        return Err(format!(
            "--out names one file, but there are {} variants: give a directory, or one --subject and --direction",
            keys.len()
        ));
    }
    let folder = args.out.clone().unwrap_or_else(|| run.dir.join(PROFILES));
    if single.is_none() {
        std::fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    }
    let machine = run.machine();
    let (mut fitted, mut listed, mut good) = (vec![], vec![], true);
    for key in &keys {
        let family = args.form.map(FormName::family);
        let calibration =
            sorted.calibrate(key, machine.clone(), cost(key)?, family).map_err(|e| format!("{}: {e}", name(key)))?;
        let profile = &calibration.profile;
        let path = single.cloned().unwrap_or_else(|| folder.join(key.file()));
        profile.save(&path).map_err(|e| e.to_string())?;
        good &= profile.beats_two_point();
        listed.push(serde_json::json!({ "file": path, "profile": profile, "parameters": calibration.parameters }));
        if keys.len() == 1 && !args.json {
            print!("{}", super::model::calibration_text(&calibration));
        }
        fitted.push((key, calibration.profile));
    }
    if args.json {
        super::model::json(&listed)?;
    } else {
        print!("{}", fitted_text(&fitted));
    }
    eprintln!("weir: model: {} profiles in {}", keys.len(), single.unwrap_or(&folder).display());
    if !good {
        eprintln!("weir: model: not every profile is better than the two-point line at held-out sizes");
    }
    Ok(good)
}

fn suite_of<'a>(run: &'a Run, key: &ModelKey) -> &'a str {
    run.trials.iter().find(|t| t.subject == key.subject).map_or("", |t| &t.suite)
}

fn name(key: &ModelKey) -> String {
    format!("{} {}", key.subject, key.direction_name())
}

/// Table of a run with narrow column gaps, because the names of variants are long.
fn close(rows: &mut Table) -> &Table {
    rows.set_width(WIDTH).set_content_arrangement(ContentArrangement::Dynamic);
    rows.column_iter_mut().for_each(|column| {
        column.set_padding((0, 1));
    });
    rows
}

fn fitted_text(fitted: &[(&ModelKey, Profile)]) -> String {
    let mut rows = table(&["profile", "form", "sizes", "sessions", "p95 %", "two-point"]);
    for (key, profile) in fitted {
        rows.add_row([
            name(key),
            profile.fitted.family.name().to_owned(),
            profile.sizes.len().to_string(),
            profile.sessions.len().to_string(),
            percent(profile.held_out.p95),
            percent(profile.two_point.held_out.p95),
        ]);
    }
    let note = "p95: 95 % of errors at sizes that were left out are smaller; two-point: of the line through two sizes";
    format!("{}\n{note}\n", close(&mut rows))
}

fn percent(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { "–".into() }
}

/// A profile with its statistics.
struct Judged {
    key: ModelKey,
    profile: Profile,
    validation: Validation,
    beyond: Beyond,
}

/// Judges every profile in a folder; whether all were accepted.
pub(super) fn validate(args: &ValidateArgs) -> Result<bool, String> {
    let dir = &args.profile;
    let trials = args.trials.as_ref().unwrap_or(dir);
    let run = Run::read(trials)?.ok_or_else(|| {
        format!("{}: not a results directory; give one, or a profile and its trials", trials.display())
    })?;
    let inside = dir.join(PROFILES);
    let folder = if inside.is_dir() { &inside } else { dir };
    let sorted = RunTrials::new(&run.campaign, &run.trials);
    let mut judged = vec![];
    for path in profiles(folder)? {
        let profile = Profile::load(&path).map_err(|e| e.to_string())?;
        let Some(key) = ModelKey::of(&profile).filter(|key| wanted(key, &args.subject, args.direction)) else {
            continue;
        };
        match sorted.validate(&profile) {
            Ok(validation) => {
                let beyond = sorted.beyond(&profile);
                judged.push(Judged { key, profile, validation, beyond });
            }
            Err(ValidationError::NothingHeldOut(_)) => {
                eprintln!("weir: model: note: {}: the run has no sizes held out from this profile", name(&key))
            }
        }
    }
    if judged.is_empty() {
        return Err(format!(
            "{}: nothing to validate: it needs a profile of a variant that {} has in a study of the kind 'validate'",
            folder.display(),
            trials.display()
        ));
    }
    let accepted = |j: &Judged| j.validation.accepted() && (!args.strict || j.beyond.checks.iter().all(|c| c.holds()));
    if args.json {
        let listed: Vec<_> = judged
            .iter()
            .map(|j| {
                serde_json::json!({
                    "subject": j.key.subject, "direction": j.key.direction_name(), "form": j.profile.fitted.family,
                    "accepted": accepted(j), "validation": j.validation, "beyond": j.beyond, "vector": j.profile.vector,
                })
            })
            .collect();
        super::model::json(&listed)?;
    } else {
        print!("{}", text(&judged));
    }
    Ok(judged.iter().all(accepted))
}

fn profiles(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    let is_profile = |path: &PathBuf| path.extension().is_some_and(|e| e == "toml") && !path.ends_with(store::CAMPAIGN);
    let mut found: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).filter(is_profile).collect();
    found.sort();
    if found.is_empty() {
        return Err(format!("{}: contains no profile; create one with weir lab model fit", folder.display()));
    }
    Ok(found)
}

fn text(judged: &[Judged]) -> String {
    let mut text = String::new();
    if let [one] = judged {
        text += &judgement_text(&one.validation);
    }
    let mut rows = table(&["profile", "repeat %", "bias %", "p95 %", "max %", "two-point", ""]);
    let mut others = table(&["profile", "form", "unseen sizes", "constant pps", "bps"]);
    for j in judged {
        let v = &j.validation;
        let Errors { bias, p95, max, .. } = v.errors;
        rows.add_row([
            name(&j.key),
            v.repeatability.map_or_else(|| "–".into(), percent),
            format!("{bias:+.2}"),
            percent(p95),
            percent(max),
            percent(v.two_point.p95),
            if v.accepted() { "accepted" } else { "not accepted" }.to_owned(),
        ]);
        others.add_row([
            name(&j.key),
            j.profile.fitted.family.name().to_owned(),
            v.points.len().to_string(),
            percent(v.constant[0].p95),
            percent(v.constant[1].p95),
        ]);
    }
    text += &format!("{}\n", close(&mut rows));
    text += "two-point, constant pps and bps: p95 % of simpler models\n";
    text += &format!("{}\n", close(&mut others));
    for j in judged {
        for criterion in j.validation.criteria.iter().filter(|c| !c.holds) {
            text += &format!("{}: fails: {}: {}\n", name(&j.key), criterion.what, criterion.found);
        }
    }
    text + &beyond_text(judged)
}

fn beyond_text(judged: &[Judged]) -> String {
    let (mut tables, mut notes) = (String::new(), String::new());
    for j in judged {
        let name = name(&j.key);
        let mut rows = table(&[&name, "measured", "predicted", "unit", "error %", "limit %", ""]);
        for c in &j.beyond.checks {
            rows.add_row([
                c.what.clone(),
                digits(c.measured),
                digits(c.predicted),
                c.unit.to_owned(),
                format!("{:+.2}", c.error_percent),
                format!("{:.0}", c.limit_percent),
                if c.holds() { "holds" } else { "FAILS" }.to_owned(),
            ]);
        }
        if !rows.is_empty() {
            tables += &format!("{}\n", close(&mut rows));
        }
        if let Some(v) = &j.profile.vector {
            notes += &format!(
                "{name}: a batch costs {} ns ({} to {}) and {} ns ({} to {}) for each packet; largest error {:.1} %\n",
                digits(v.call_ns.value),
                digits(v.call_ns.low),
                digits(v.call_ns.high),
                digits(v.packet_ns.value),
                digits(v.packet_ns.low),
                digits(v.packet_ns.high),
                v.worst_percent
            );
        }
        for (size, ratio) in &j.beyond.cold {
            let r = ratio.ratio;
            notes += &format!(
                "{name}: {size} bytes with cold caches take {:.3} times as long ({:.3} to {:.3})\n",
                r.value, r.low, r.high
            );
        }
        for t in &j.beyond.tails {
            notes += &format!(
                "{name}: {:.0} % of packets are faster than {} ns ({} to {}) + {} ns ({} to {}) × ρ/(1 − ρ)\n",
                100.0 * t.quantile,
                digits(t.idle_ns.value),
                digits(t.idle_ns.low),
                digits(t.idle_ns.high),
                digits(t.per_ns.value),
                digits(t.per_ns.low),
                digits(t.per_ns.high)
            );
        }
        if judged.len() == 1 {
            j.beyond.missing.iter().for_each(|missing| notes += &format!("no verdict: {missing}\n"));
        }
    }
    if tables.is_empty() { notes } else { format!("\nbeyond sizes\n{tables}\n{notes}") }
}
