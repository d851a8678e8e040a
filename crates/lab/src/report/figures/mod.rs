//! All figures of a report, by section.

mod compare;
mod cores;
mod cost;
mod engine;
mod hosts;
mod load;
mod model;
mod path;
mod rivals;
mod search;
mod sessions;
mod stages;
mod sweeps;
mod time;
mod transfers;
mod wire;

use super::analysis::{Folder, shown, way};
use super::figure::Section;
use crate::trial::Direction;
use stats::Estimate;

pub(super) use cores::{Cores, facts as cores_facts};
pub(super) use cost::Line;
pub(super) use engine::{EnginePart, fact as engine_fact, figure_by_session};
pub(super) use hosts::{pairs, through};
pub(super) use load::words as latency_words;
pub(super) use search::{searches, throughputs};
pub(super) use sessions::{facts as session_facts, terminal as session_table};
pub(super) use sweeps::crossover;
pub(super) use transfers::figure as transfers;

/// Identification and text of a figure.
struct Caption<'a> {
    id: &'static str,
    title: &'a str,
    text: &'a str,
}

/// Everything, in the order of the page.
pub(super) fn sections(folder: &Folder) -> Vec<Section> {
    let section = |title, figures| Section { title, figures };
    vec![
        section("Cost by size", cost::figures(folder)),
        section("The model", model::figures(folder)),
        section("Comparison", compare::figures(folder)),
        section("Load, loss, latency", [load::figures(folder), search::figures(folder)].concat()),
        section("Where the time goes", [vec![path::path(folder)], stages::figures(folder)].concat()),
        section("Between hosts", [hosts::figures(folder), rivals::figures(folder)].concat()),
        section("Over time", time::figures(folder)),
        section("On the wire", wire::figures(folder)),
        section("Sessions", sessions::figures(folder)),
        section("Cores", cores::figures(folder)),
        section("Asynchronous engine", vec![engine::figure(folder)]),
        section("Sweeps", sweeps::figures(folder)),
    ]
}

/// Colour, shape and dashes of a subject: the same in all plots.
fn style(folder: &Folder, subject: &str) -> usize {
    let mut subjects: Vec<&String> = Vec::new();
    for name in folder.campaign.studies.iter().flat_map(|study| &study.subjects) {
        if !subjects.contains(&name) {
            subjects.push(name);
        }
    }
    subjects.iter().position(|name| *name == subject).unwrap_or(0)
}

/// `ESP tunnel aes128gcm16, protecting`.
fn label(subject: &str, direction: Direction) -> String {
    format!("{}, {}", shown(subject), way(direction))
}

/// A value with its interval as three cells.
fn cells(estimate: Estimate) -> [String; 3] {
    [estimate.value, estimate.low, estimate.high].map(exact)
}

/// Six significant digits, for tables of data.
fn exact(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    if value == 0.0 {
        return "0".into();
    }
    let digits = (5 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;
    use crate::svg::assert_well_formed;

    #[test]
    fn every_figure_of_a_whole_run_is_drawn_with_its_data() {
        let folder = synthetic::folder();
        for section in sections(&folder) {
            for figure in section.figures {
                assert_well_formed(&figure.html());
                let expected = !["energy", "keying-daemon", "transfer-rates", "rivals"].contains(&figure.id);
                assert_eq!(figure.is_drawn(), expected, "{}: {}", figure.id, figure.html());
            }
        }
    }

    #[test]
    fn a_run_without_trials_says_for_every_figure_why() {
        let mut folder = synthetic::folder();
        folder.trials.clear();
        for figure in sections(&folder).into_iter().flat_map(|section| section.figures) {
            assert!(!figure.is_drawn(), "{}", figure.id);
            assert_well_formed(&figure.html());
        }
    }

    #[test]
    fn ids_are_there_once() {
        let mut ids: Vec<_> =
            sections(&synthetic::folder()).into_iter().flat_map(|s| s.figures).map(|f| f.id).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }
}
