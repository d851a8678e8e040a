//! Overhead of protection on the wire, and the share of the payload.

use super::{exact, style};
use crate::campaign::Kind;
use crate::metric::Metric;
use crate::report::analysis::{Folder, shown};
use crate::report::chart::{Axis, Chart, Series};
use crate::report::figure::{Data, Figure};

/// Bytes of Ethernet around a packet: header, checksum, preamble and gap.
const ETHERNET: f64 = 38.0;

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let (added, share) = (("wire", "Bytes that protection adds"), ("efficiency", "Share of inner packets on the wire"));
    let trials = folder.of(Kind::Wire);
    let mut points: Vec<(&str, f64, f64)> = trials
        .iter()
        .filter_map(|trial| {
            Some((trial.subject.as_str(), f64::from(trial.size?), trial.measured.values.get(Metric::WireBytes)?))
        })
        .collect();
    if points.is_empty() {
        let why = folder.why_not(Kind::Wire);
        return [added, share].map(|(id, title)| Figure::absent(id, title, &why)).into();
    }
    points
        .sort_by(|a, b| (style(folder, a.0), a.1).partial_cmp(&(style(folder, b.0), b.1)).expect("sizes are numbers"));
    points.dedup();
    let mut data = Data::new(&["subject", "inner bytes", "outer IP bytes", "added", "share of the wire, %"]);
    let axis = || Axis::linear("inner packet, bytes").covering(0.0, 1.0);
    let mut bytes = Chart::new(added.1, axis(), Axis::linear("bytes added").covering(0.0, 1.0));
    let mut efficiency = Chart::new(share.1, axis(), Axis::linear("%").covering(0.0, 100.0));
    for (subject, inner, outer) in points {
        let name = shown(subject);
        if bytes.series.last().is_none_or(|series| series.name != name) {
            let series = Series::new(&name, style(folder, subject));
            bytes.series.push(series.clone());
            efficiency.series.push(series);
        }
        let part = inner / (outer + ETHERNET) * 100.0;
        bytes.series.last_mut().expect("it was pushed").push(inner, outer - inner);
        efficiency.series.last_mut().expect("it was pushed").push(inner, part);
        data.push([name, exact(inner), exact(outer), exact(outer - inner), exact(part)]);
    }
    let text = "Outer IP packet less inner IP packet, from real packets. The steps are padding.";
    let share_text =
        "Inner IP packet over everything on the wire, with 38 bytes of Ethernet header, checksum, preamble and gap.";
    vec![
        Figure::drawn(added.0, added.1, text, bytes.draw(), data.clone()),
        Figure::drawn(share.0, share.1, share_text, efficiency.draw(), data),
    ]
}
