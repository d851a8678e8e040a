//! HTML of the status page. The same code renders the page as it is loaded and the parts that its
//! events replace, so that a browser without scripts shows the same.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::http::{Answer, Body, Response};
use crate::rates::{Flow, History, ROW_SAMPLES, Rates, TOTAL_SAMPLES, Track, guarded, short};
use crate::status::connection::State;
use crate::status::details::blocks;
use crate::status::line::{Line, lines};
use crate::status::{Status, printable, scaled, span};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const LOGIN: &str = include_str!("login.html");
/// Rows of connections; at most about 2 MB of HTML. The others are counted.
pub(super) const ROWS_MAX: usize = 2000;
/// Columns of the details of an SA.
const DETAIL_COLUMNS: usize = 76;

/// What surrounds the parts: style, script and header fields.
pub(super) struct Shell {
    host: String,
    fields: String,
}

impl Shell {
    /// `host`: name of this host.
    pub(super) fn new(host: &str) -> Self {
        let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())));
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'self'; frame-ancestors 'none'",
            hash(SCRIPT),
            hash(STYLE)
        );
        // No field of CORS: a page of another origin cannot read anything here.
        let fields = format!(
            "Content-Security-Policy: {policy}\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n"
        );
        Self { host: escaped(host), fields }
    }

    /// Header fields of every response.
    pub(super) fn fields(&self) -> String {
        self.fields.clone()
    }

    /// A line of text.
    pub(super) fn plain(&self, status: &'static str, text: &str) -> Answer {
        let body = Body::Own(text.as_bytes().to_vec());
        Answer::Whole(Response { status, kind: "text/plain; charset=utf-8", fields: self.fields(), body })
    }

    /// The question for the token. `wrong`: one was given.
    pub(super) fn login(&self, wrong: bool) -> Answer {
        let alert = if wrong { "<p role=\"alert\">This token is wrong.</p>" } else { "" };
        let body = fill(LOGIN, &[("host", &self.host), ("style", STYLE), ("wrong", alert)]).into_bytes();
        let fields = format!("WWW-Authenticate: Bearer realm=\"weir\"\r\n{}", self.fields);
        let kind = "text/html; charset=utf-8";
        Answer::Whole(Response { status: "401 Unauthorized", kind, fields, body: Body::Own(body) })
    }

    /// The page of all connections.
    pub(super) fn overview(&self, parts: &Parts) -> String {
        let part = |id: &str| parts.fixed.iter().find(|(known, _)| *known == id).map_or("", |(_, html)| html);
        let rows: String = parts.rows.iter().map(|(_, html)| html.as_str()).collect();
        let main = format!(
            "{}{}<section aria-labelledby=\"h-connections\"><h2 id=\"h-connections\">Connections</h2>\
             <p class=\"tools\" hidden><label>Filter <input type=\"search\" id=\"filter\" autocomplete=\"off\" \
             spellcheck=\"false\"></label> <span id=\"matches\" role=\"status\"></span></p>\
             <table id=\"connections\" class=\"cards\"><thead><tr><th scope=\"col\">State</th>\
             <th scope=\"col\">Connection</th><th scope=\"col\">Peer</th><th scope=\"col\" class=\"n\">Up for</th>\
             <th scope=\"col\" class=\"n\">Rekey in</th><th scope=\"col\" class=\"n\">In</th>\
             <th scope=\"col\" class=\"n\">Out</th><th scope=\"col\">Last minute</th>\
             <th scope=\"col\" class=\"n\">Dropped</th></tr></thead>{rows}</table>{}</section>\
             <div class=\"pair\">{}{}</div>{}",
            part("summary"),
            part("flow"),
            part("more"),
            part("drops"),
            part("workers"),
            part("about"),
        );
        self.page("", &main)
    }

    /// A page with this content.
    pub(super) fn page(&self, title: &str, main: &str) -> String {
        let title = if title.is_empty() { String::new() } else { format!("{} – ", escaped(title)) };
        fill(TEMPLATE, &[("host", &self.host), ("title", &title), ("style", STYLE), ("script", SCRIPT), ("main", main)])
    }
}

/// Replaces `{{name}}` in a template by its value; values are not searched.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        text.push_str(before);
        text.push_str(values.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value));
        rest = after;
    }
    text.push_str(rest);
    text
}

/// Text for HTML, in elements and attributes.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

/// A value of a query.
fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// What events replace, each by the id of its element.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    fixed: Vec<(&'static str, String)>,
    pub(super) rows: Vec<(String, String)>,
}

/// Rows: those that need attention first, then by name.
pub(super) fn ordered(status: &Status) -> Vec<Line> {
    let mut lines = lines(status, false);
    lines.sort_by(|a, b| (!a.missing, a.remark.is_none(), &a.key).cmp(&(!b.missing, b.remark.is_none(), &b.key)));
    lines
}

/// Renders everything that changes.
pub(super) fn parts(status: &Status, lines: &[Line], rates: &Rates, history: &History) -> Parts {
    let shown = lines.iter().take(ROWS_MAX);
    let more = match lines.len().saturating_sub(ROWS_MAX) {
        0 if lines.is_empty() => "no connections are configured".to_owned(),
        0 => String::new(),
        more => format!("and {more} more: weir status"),
    };
    Parts {
        fixed: vec![
            ("summary", summary(status, rates, history)),
            ("flow", flow(history)),
            ("more", format!("<p id=\"more\">{more}</p>")),
            ("drops", drops(status, rates)),
            ("workers", workers(rates)),
            ("about", about(status)),
        ],
        rows: shown.map(|line| row(line, rates.row(&line.key))).collect(),
    }
}

/// An event with what changed since `before`, or with everything.
pub(super) fn event(number: u64, parts: &Parts, before: Option<&Parts>) -> Vec<u8> {
    let old: HashMap<&str, &str> =
        before.iter().flat_map(|parts| &parts.rows).map(|(id, html)| (&**id, &**html)).collect();
    let fixed = parts.fixed.iter().filter(|part| !before.is_some_and(|before| before.fixed.contains(part)));
    let rows = parts.rows.iter().filter(|(id, html)| old.get(&**id) != Some(&&**html));
    let pairs = |all: Vec<(&str, &str)>| -> serde_json::Map<String, serde_json::Value> {
        all.into_iter().map(|(id, html)| (id.to_owned(), html.into())).collect()
    };
    let same_order =
        before.is_some_and(|before| before.rows.iter().map(|row| &row.0).eq(parts.rows.iter().map(|row| &row.0)));
    let data = serde_json::json!({
        "parts": pairs(fixed.map(|(id, html)| (*id, &**html)).collect()),
        "rows": pairs(rows.map(|(id, html)| (&**id, &**html)).collect()),
        "order": (!same_order).then(|| parts.rows.iter().map(|(id, _)| &**id).collect::<Vec<&str>>()),
    });
    // JSON has no line breaks of its own, which would end the field.
    format!("id: {number}\nevent: page\ndata: {data}\n\n").into_bytes()
}

fn bits(flow: f32) -> String {
    let number = short(flow.into());
    if number.contains(' ') { format!("{number}bit/s") } else { format!("{number} bit/s") }
}

/// Class of a state: its colour.
fn class(state: State) -> &'static str {
    match state {
        State::Up => "good",
        State::Partial | State::Connecting => "warn",
        State::Down => "bad",
        State::Trapped | State::Idle => "calm",
    }
}

fn summary(status: &Status, rates: &Rates, history: &History) -> String {
    let states = [State::Down, State::Partial, State::Connecting, State::Up, State::Trapped, State::Idle];
    let mut counts = String::new();
    for state in states {
        let count = status.connections.iter().filter(|connection| connection.state == state).count();
        if count > 0 {
            let _ = write!(counts, "<li class=\"{}\">{count} {}</li>", class(state), state.word().to_lowercase());
        }
    }
    let now = history.flows().back().copied().unwrap_or_default();
    let lost: f64 = rates.drops().iter().filter_map(|drop| drop.per_second).sum();
    let health = if status.head.healthy {
        "<span class=\"state good\">running</span>"
    } else {
        "<span class=\"state bad\">not healthy</span> a worker stopped or hangs; the log has the reason"
    };
    format!(
        "<section id=\"summary\" aria-label=\"Summary\"><dl class=\"tiles\">\
         <div><dt>Gateway</dt><dd>{health}</dd><dd class=\"sub\">up for {}</dd></div>\
         <div><dt>Connections</dt><dd>{}</dd><dd class=\"sub\"><ul class=\"counts\">{counts}</ul></dd></div>\
         <div><dt>In</dt><dd>{}</dd><dd class=\"sub\">plaintext delivered</dd></div>\
         <div><dt>Out</dt><dd>{}</dd><dd class=\"sub\">plaintext protected</dd></div>\
         <div><dt>Dropped</dt><dd>{}/s</dd><dd class=\"sub\">{} packets so far</dd></div></dl></section>",
        span(status.head.uptime_s as u64),
        status.connections.len(),
        bits(now.incoming),
        bits(now.outgoing),
        short(lost),
        rates.drops().iter().map(|drop| drop.count).sum::<u64>(),
    )
}

/// Points of a curve in a box of `width` by `height`, the newest sample at the right edge. `most`
/// is the value at the top.
fn curve(values: &[f32], (width, height): (usize, f32), samples: usize, most: f32) -> String {
    let step = width as f32 / (samples.max(2) - 1) as f32;
    let first = samples.saturating_sub(values.len());
    let mut points = String::new();
    for (at, value) in values.iter().enumerate() {
        let (x, y) = ((first + at) as f32 * step, height - value / most * height);
        let _ = write!(points, "{}{:.0},{:.1}", if at == 0 { "" } else { " " }, x, y);
    }
    points
}

/// The next value of 1, 2, 3 or 5 times a power of ten.
fn ceiling(value: f32) -> f32 {
    let mut step = 1000.0_f32;
    loop {
        for factor in [1.0, 2.0, 3.0, 5.0] {
            if value <= step * factor {
                return step * factor;
            }
        }
        step *= 10.0;
    }
}

/// Throughput of five minutes in both directions.
fn flow(history: &History) -> String {
    let of = |pick: fn(&Flow) -> f32| history.flows().iter().map(pick).collect::<Vec<f32>>();
    let (incoming, outgoing) = (of(|flow| flow.incoming), of(|flow| flow.outgoing));
    let top = ceiling(incoming.iter().chain(&outgoing).copied().fold(0.0, f32::max));
    let points = |values: &[f32]| curve(values, (600, 100.0), TOTAL_SAMPLES, top);
    let now = history.flows().back().copied().unwrap_or_default();
    let (inbound, outbound) = (points(&incoming), points(&outgoing));
    let first = 600 - (incoming.len().max(1) - 1) * 600 / (TOTAL_SAMPLES - 1);
    format!(
        "<section id=\"flow\" aria-labelledby=\"h-flow\"><h2 id=\"h-flow\">Throughput</h2><figure>\
         <figcaption><span class=\"key in\">in {}</span> <span class=\"key out\">out {}</span></figcaption>\
         <div class=\"plot\"><span class=\"top\">{}</span><svg viewBox=\"0 0 600 100\" preserveAspectRatio=\"none\" \
         role=\"img\" aria-label=\"Throughput of the last five minutes\">\
         <path class=\"grid\" d=\"M0 0H600M0 50H600M0 100H600\"/>\
         <polygon class=\"in\" points=\"{first},100 {inbound} 600,100\"/>\
         <polyline class=\"in\" points=\"{inbound}\"/><polyline class=\"out\" points=\"{outbound}\"/></svg></div>\
         <p class=\"axis\"><span>5 min ago</span><span>now</span></p></figure></section>",
        bits(now.incoming),
        bits(now.outgoing),
        bits(top),
    )
}

fn row(line: &Line, track: Option<&Track>) -> (String, String) {
    let id = escaped(&format!("c:{}:{}", line.name(), line.key.1.map_or_else(String::new, |id| id.to_string())));
    let small = |text: &str| if text.is_empty() { String::new() } else { format!("<small>{}</small>", escaped(text)) };
    let cell = |label: &str, text: &str| {
        let empty = if text.is_empty() { " empty" } else { "" };
        format!("<td class=\"n{empty}\" data-l=\"{label}\">{text}</td>")
    };
    let flow = track.and_then(Track::now);
    let rate = |pick: fn(Flow) -> f32| flow.map_or_else(String::new, |flow| bits(pick(flow)));
    let figures = |of: fn(crate::status::line::Figures) -> String| line.figures.map_or_else(String::new, of);
    let mut html = format!(
        "<tbody id=\"{id}\"><tr><td data-l=\"State\"><span class=\"state {}\">{}</span></td>\
         <th scope=\"row\" data-l=\"Connection\"><a href=\"/connection?name={}\">{}</a>{}</th>\
         <td data-l=\"Peer\">{}{}</td>",
        class(line.connection_state),
        escaped(&line.state.to_lowercase()),
        percent(line.name()),
        escaped(line.name()),
        small(&line.cipher),
        escaped(&line.peer),
        small(&line.address),
    );
    html.push_str(&cell("Up for", &line.age_s.map(span).unwrap_or_default()));
    html.push_str(&cell("Rekey in", &line.rekey_s.map(span).unwrap_or_default()));
    html.push_str(&cell("In", &rate(|flow| flow.incoming)));
    html.push_str(&cell("Out", &rate(|flow| flow.outgoing)));
    let _ = write!(html, "<td class=\"spark\" data-l=\"Last minute\">{}</td>", track.map(spark).unwrap_or_default());
    html.push_str(&cell("Dropped", &figures(|figures| figures.drops.to_string())));
    html.push_str("</tr>");
    if let Some(remark) = &line.remark {
        let class = class(line.connection_state);
        let _ = write!(html, "<tr class=\"remark {class}\"><td colspan=\"9\">{}</td></tr>", escaped(remark));
    }
    html.push_str("</tbody>");
    (id, html)
}

/// The history of a row; nothing while it carried no traffic.
fn spark(track: &Track) -> String {
    let values: Vec<f32> = track.flows.iter().map(|flow| flow.most()).collect();
    let most = values.iter().copied().fold(0.0, f32::max);
    if most <= 0.0 || values.len() < 2 {
        return String::new();
    }
    let points = curve(&values, (ROW_SAMPLES * 2, 20.0), ROW_SAMPLES, most);
    format!(
        "<svg viewBox=\"0 -1 120 22\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <polyline points=\"{points}\"/></svg>"
    )
}

fn drops(status: &Status, rates: &Rates) -> String {
    let mut rows = String::new();
    for drop in rates.drops() {
        let _ = write!(
            rows,
            "<tr><th scope=\"row\" data-l=\"Reason\">{}<small>{}</small></th><td class=\"n\" data-l=\"Packets\">{}</td>\
             <td class=\"n\" data-l=\"Per second\">{}</td></tr>",
            drop.reason,
            escaped(drop.meaning),
            drop.count,
            drop.per_second.map(short).unwrap_or_default(),
        );
    }
    for (packets, what) in status.head.guard.as_ref().map(guarded).unwrap_or_default() {
        let _ = write!(
            rows,
            "<tr><th scope=\"row\" data-l=\"Reason\">guard<small>{what}</small></th>\
             <td class=\"n\" data-l=\"Packets\">{packets}</td><td></td></tr>"
        );
    }
    let table = if rows.is_empty() {
        "<p>No packets dropped.</p>".to_owned()
    } else {
        format!(
            "<table><thead><tr><th scope=\"col\">Reason</th><th scope=\"col\" class=\"n\">Packets</th>\
             <th scope=\"col\" class=\"n\">Per second</th></tr></thead><tbody>{rows}</tbody></table>"
        )
    };
    format!(
        "<section id=\"drops\" aria-labelledby=\"h-drops\"><h2 id=\"h-drops\">Dropped packets</h2>{table}</section>"
    )
}

fn workers(rates: &Rates) -> String {
    let mut rows = String::new();
    for (at, worker) in rates.workers().iter().enumerate() {
        let number = |value: Option<f64>| value.map(short).unwrap_or_default();
        let busy = worker.busy.map_or_else(String::new, |busy| {
            let share = busy * 100.0;
            let class = if share > 90.0 {
                "bad"
            } else if share > 70.0 {
                "warn"
            } else {
                "good"
            };
            format!(
                "{share:.0} % <svg class=\"bar {class}\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" \
                 aria-hidden=\"true\"><rect class=\"all\" width=\"100\" height=\"10\"/>\
                 <rect width=\"{share:.0}\" height=\"10\"/></svg>"
            )
        });
        let _ = write!(
            rows,
            "<tr><th scope=\"row\">{at}</th><td class=\"n\">{busy}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td></tr>",
            number(worker.packets),
            number(worker.batch),
            worker.wrong_core,
        );
    }
    format!(
        "<section id=\"workers\" aria-labelledby=\"h-workers\"><h2 id=\"h-workers\">Workers</h2><table><thead><tr>\
         <th scope=\"col\">Worker</th><th scope=\"col\" class=\"n\">Busy</th><th scope=\"col\" class=\"n\">Packets/s</th>\
         <th scope=\"col\" class=\"n\">Per batch</th><th scope=\"col\" class=\"n\" title=\"packets passed to the \
         worker that owns their SA, since the start\">Wrong core</th></tr></thead>\
         <tbody>{rows}</tbody></table></section>"
    )
}

fn about(status: &Status) -> String {
    let (head, total) = (&status.head, &status.head.total);
    let side = |rx: crate::status::Count, tx: crate::status::Count| {
        format!("received {}, sent {}", scaled(rx.bytes), scaled(tx.bytes))
    };
    format!(
        "<footer id=\"about\"><p>weir {}, engine {}, scheduler {}. LAN: {}. WAN: {}.</p>\
         <p>For programs: <a href=\"/status.json\">status.json</a></p></footer>",
        escaped(&head.version),
        escaped(&head.engine),
        escaped(&head.scheduler),
        side(total.inner_rx, total.inner_tx),
        side(total.outer_rx, total.outer_tx),
    )
}

/// SAs of a connection; `None` if there is none of that name.
pub(super) fn connection(status: &Status, name: &str) -> Option<String> {
    let connection = status.connections.iter().find(|connection| connection.name == name)?;
    let mut html = format!(
        "<section id=\"sas\"><p><a href=\"/\">All connections</a></p><h2>{} <span class=\"state {}\">{}</span></h2>",
        escaped(name),
        class(connection.state),
        connection.state.word().to_lowercase(),
    );
    let remarks: HashSet<String> =
        lines(status, true).into_iter().filter(|line| line.name() == name).filter_map(|line| line.remark).collect();
    for remark in remarks {
        let _ = write!(html, "<p class=\"note\">{}</p>", escaped(&remark));
    }
    let blocks = blocks(connection, status, DETAIL_COLUMNS);
    if blocks.is_empty() {
        html.push_str("<p>No SA.</p>");
    }
    for block in blocks {
        let _ = write!(html, "<pre>{}</pre>", escaped_lines(&block.lines));
    }
    html.push_str("</section>");
    Some(html)
}

/// Lines for `pre`, without the indentation of the first.
fn escaped_lines(lines: &[String]) -> String {
    let indent = lines.first().map_or(0, |line| line.len() - line.trim_start().len());
    let cut = lines.iter().map(|line| escaped(line.get(indent..).unwrap_or(line.trim_start())));
    cut.collect::<Vec<_>>().join("\n")
}
