use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use super::table::ALL;
use super::*;

/// Tables of docs/metrics.md.
fn to_markdown() -> String {
    let mut text = String::from("| Metric | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n");
    for metric in ALL {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels) = (metric.name, metric.kind.name(), labels.join(", "));
        let _ = writeln!(text, "| `{name}` | {kind} | {} | {labels} | {} |", metric.unit, metric.meaning);
    }
    for (name, meaning) in ike::counters() {
        let _ = writeln!(text, "| `{name}` | {} |", meaning.trim_end_matches('.'));
    }
    let causes = Cause::ALL.iter().map(|cause| format!("`{}`", cause.name())).collect::<Vec<_>>().join(", ");
    let states = STATES.iter().map(|state| format!("`{}`", state.name().to_lowercase())).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "{causes}\n{states}");
    text
}

#[test]
fn the_documentation_has_the_same_metrics() {
    let docs = include_str!("../../../../docs/metrics.md");
    let table = to_markdown();
    // Prose is wrapped anywhere.
    let in_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let documented = in_one_line(docs);
    for line in table.lines() {
        assert!(documented.contains(&in_one_line(line)), "docs/metrics.md lacks: {line}\nof these:\n{table}");
    }
    for name in docs.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()) {
        assert!(table.contains(&format!("| `{name}` |")), "docs/metrics.md has {name}, the table has not");
    }
}

#[test]
fn each_drop_reason_has_a_row_in_the_troubleshooting_guide() {
    let docs = include_str!("../../../../docs/troubleshooting.md");
    let table = docs.split("## Drop reasons").nth(1).unwrap();
    let documented: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let reasons: Vec<&str> = ipsec::DropReason::ALL.iter().map(|reason| reason.key()).collect();
    assert_eq!(documented, reasons);
}

/// One line of the format: name, labels, value.
type Sample = (String, Vec<(String, String)>, f64);

/// Reads the text format strictly; families are declared before their samples and not taken up
/// again.
fn parse(text: &str) -> Result<Vec<Sample>, String> {
    let (mut samples, mut families, mut seen): (Vec<Sample>, Vec<String>, _) = Default::default();
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    for line in text.strip_suffix('\n').ok_or("no newline at the end")?.split('\n') {
        if let Some(help) = line.strip_prefix("# HELP ") {
            families.push(help.split_once(' ').ok_or(line)?.0.to_owned());
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').ok_or(line)?;
            let fits = families.last().is_some_and(|family| family == name) && ["counter", "gauge"].contains(&kind);
            let total = (kind == "counter") == name.ends_with("_total");
            if !fits || !total {
                return Err(line.to_owned());
            }
            continue;
        }
        let (name, rest) = line.split_at(line.find(['{', ' ']).ok_or(line)?);
        let (labels, value) = if let Some(rest) = rest.strip_prefix('{') { labels(rest)? } else { (Vec::new(), rest) };
        let value: f64 = value.strip_prefix(' ').ok_or(line)?.parse().map_err(|_| line)?;
        let fits = families.last().is_some_and(|family| family == name) && is_name(name);
        if !fits || !labels.iter().all(|(name, _)| is_name(name)) {
            return Err(format!("out of place: {line}"));
        }
        let key = (name.to_owned(), labels.clone());
        let seen: &mut BTreeSet<_> = &mut seen;
        if !seen.insert(key) {
            return Err(format!("twice: {line}"));
        }
        samples.push((name.to_owned(), labels, value));
    }
    let unique: BTreeSet<_> = families.iter().collect();
    if unique.len() == families.len() { Ok(samples) } else { Err("a family twice".into()) }
}

type Labels = Vec<(String, String)>;

/// Labels after `{`, and what follows `}`.
fn labels(mut text: &str) -> Result<(Labels, &str), String> {
    let mut all = Vec::new();
    loop {
        let (name, rest) = text.split_once("=\"").ok_or(text)?;
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next().ok_or(rest)? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().ok_or(rest)?.1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => return Err(format!("\\{c}")),
                }),
                (_, c) => value.push(c),
            }
        };
        all.push((name.to_owned(), value));
        text = &rest[end + 1..];
        match text.strip_prefix(',') {
            Some(more) => text = more,
            None => return Ok((all, text.strip_prefix('}').ok_or(text)?)),
        }
    }
}

fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let wanted: Vec<(String, String)> = labels.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
    samples.iter().find(|sample| sample.0 == name && sample.1 == wanted).map(|sample| sample.2)
}

fn published(metrics: &mut Metrics, now: Instant, tables: &Tables) -> Vec<Sample> {
    let endpoint = Endpoint::new(ike::Settings::default(), Never);
    let core = dataplane::CoreCounters::default();
    core.drops[ipsec::DropReason::Replay as usize].store(3, Ordering::Relaxed);
    core.outer_rx.bytes.store(1500, Ordering::Relaxed);
    metrics.publish(now, Some(&endpoint), std::iter::empty(), tables, (Totals::of([&core]), true));
    let text = text::render(&metrics.board().newest());
    parse(&text).unwrap_or_else(|line| panic!("{line}\n{text}"))
}

/// No randomness is needed to look at an endpoint.
struct Never;

impl rand_core::RngCore for Never {
    fn next_u32(&mut self) -> u32 {
        0
    }
    fn next_u64(&mut self) -> u64 {
        0
    }
    fn fill_bytes(&mut self, dest: &mut [u8]) {
        dest.fill(0);
    }
}

impl CryptoRng for Never {}

#[test]
fn what_is_counted_is_served() {
    let start = Instant::now();
    let mut metrics = Metrics::new(start);
    assert!(metrics.due(start));
    metrics.count("ike_retransmissions");
    metrics.count("ike_retransmissions");
    metrics.failed("a \"strange\\ name\n", "no response from the peer any more");
    metrics.failed("sun", "the peer refused: AUTHENTICATION_FAILED");
    metrics.failed("sun", "");
    metrics.rekeyed("sun", start);
    metrics.now.guard = Some(crate::guard::Counters { clear_in: (5, 420), ..Default::default() });
    let now = start + Duration::from_secs(90);
    let samples = published(&mut metrics, now, &Tables { entries: Vec::new() });
    assert!(!metrics.due(now) && metrics.due(now + PERIOD));
    let get = |name, labels: &[_]| value(&samples, name, labels);
    assert_eq!(get("weir_ike_events_total", &[("event", "ike_retransmissions")]), Some(2.0));
    assert_eq!(get("weir_ike_events_total", &[("event", "ike_up")]), Some(0.0), "there before the first");
    let strange = [("connection", "a \"strange\\ name\n"), ("cause", "timeout")];
    assert_eq!(get("weir_connection_failures_total", &strange), Some(1.0));
    let refused = [("connection", "sun"), ("cause", "authentication")];
    assert_eq!(get("weir_connection_failures_total", &refused), Some(1.0));
    assert_eq!(get("weir_connection_rekey_age_seconds", &[("connection", "sun")]), Some(90.0));
    assert_eq!(get("weir_drops_total", &[("reason", "replay")]), Some(3.0));
    assert_eq!(get("weir_path_bytes_total", &[("side", "outer"), ("direction", "rx")]), Some(1500.0));
    assert_eq!(get("weir_guard_dropped_packets_total", &[("kind", "clear-in")]), Some(5.0));
    assert_eq!(get("weir_uptime_seconds", &[]), Some(90.0));
    for metric in ALL {
        let text = text::render(&metrics.board().newest());
        assert!(text.contains(&format!("# TYPE {} {}\n", metric.name, metric.kind.name())));
    }
}

#[test]
fn sums_do_not_fall_when_an_sa_starts_anew() {
    let mut metrics = Metrics::new(Instant::now());
    let pair = |n| Traffic { inbound: (n, 10 * n), outbound: (2 * n, 20 * n) };
    for n in [5, 7, 1, 4] {
        metrics.look_at_manual("moon", pair(n));
    }
    assert_eq!(metrics.child("moon", "").traffic, pair(7 + 4));
}

#[test]
fn names_are_bounded() {
    let start = Instant::now();
    let mut metrics = Metrics::new(start);
    for i in 0..3 * NAMES_MAX {
        metrics.failed(&format!("connection {i}"), "no proposal");
        metrics.look_at_manual(&format!("connection {i}"), Traffic { inbound: (1, 1), outbound: (1, 1) });
    }
    assert_eq!(metrics.now.connections.len(), NAMES_MAX + 1);
    assert!(metrics.children <= NAMES_MAX);
    let samples = published(&mut metrics, start, &Tables { entries: Vec::new() });
    let rest = [("connection", REST), ("child", REST), ("direction", "in")];
    assert_eq!(value(&samples, "weir_connection_packets_total", &rest), Some(2.0 * NAMES_MAX as f64));
    assert_eq!(value(&samples, "weir_metrics_folded_names", &[]), Some(NAMES_MAX as f64));
    assert!(text::render(&metrics.board().newest()).len() < 2 << 20);
}

#[test]
fn failures_are_read_from_the_log() {
    assert_eq!(failure("the IKE SA of 'sun' did not come up: no answer", None), Some(("sun", "no answer")));
    assert_eq!(failure("the IKE SA did not come up: no answer", None), None, "of an unknown peer");
    assert_eq!(failure("child 'net' failed: TS_UNACCEPTABLE", None), None);
    assert_eq!(failure("child 'net' failed: TS_UNACCEPTABLE", Some("sun")), Some(("sun", "TS_UNACCEPTABLE")));
    assert_eq!(failure("anything else", Some("sun")), None);
}

#[test]
fn reasons_are_sorted_by_their_words() {
    for (reason, cause) in [
        ("no response from the peer any more", Cause::Timeout),
        ("the peer refused: NO_PROPOSAL_CHOSEN", Cause::Proposal),
        ("TS_UNACCEPTABLE", Cause::Selectors),
        ("the peer does not have the post-quantum preshared key", Cause::Ppk),
        ("EAP alone has not authenticated the peer", Cause::Eap),
        ("the certificate of moon is revoked", Cause::Certificate),
        ("the peer did not authenticate itself", Cause::Authentication),
        ("an answer does not fit its question", Cause::Protocol),
        ("the moon is full", Cause::Other),
    ] {
        assert_eq!(Cause::of(reason), cause, "{reason}");
    }
}

#[test]
fn the_dashboard_has_metrics_and_labels_that_exist() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/grafana/weir.json");
    let board: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    queries.push(board["templating"]["list"][1]["query"]["query"].as_str().unwrap());
    assert!(queries.len() > 15);
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned).collect()
    };
    for query in queries {
        let names: Vec<String> = words(query).into_iter().filter(|word| word.starts_with("weir_")).collect();
        let known: Vec<_> = names.iter().map(|name| ALL.iter().find(|metric| metric.name == *name)).collect();
        assert!(!known.is_empty() && known.iter().all(Option::is_some), "{query}: {names:?}");
        // Labels: in braces before '=', and after 'by'. Prometheus adds the instance.
        let braces = query.split('{').skip(1).flat_map(|rest| rest.split('}').next().unwrap_or_default().split("\","));
        let in_braces = braces.filter_map(|pair| pair.split(['=', '!']).next()).map(str::to_owned);
        let after_by = query.split("by (").skip(1).flat_map(|rest| words(rest.split(')').next().unwrap_or_default()));
        for label in in_braces.chain(after_by).filter(|label| !label.is_empty() && label != "instance") {
            assert!(known.iter().flatten().all(|metric| metric.labels.contains(&&*label)), "{query}: {label}");
        }
    }
}

#[test]
fn a_reload_uses_the_certificate_that_it_read_or_fails() {
    let folder = std::env::temp_dir().join(format!("weir-metrics-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let files = TlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
    let issue = || {
        let made = rcgen::generate_simple_self_signed(vec!["gw.example".to_owned()]).unwrap();
        std::fs::write(&files.certificate, made.cert.pem()).unwrap();
        std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    };
    issue();
    let gateway = Gateway {
        metrics: Some("127.0.0.1:0".parse().unwrap()),
        metrics_tls: Some(files.clone()),
        state_dir: folder.clone(),
        ..Gateway::default()
    };
    let (metrics, _server) = Metrics::serve(&gateway).unwrap().unwrap();
    issue();
    let read = metrics.read_tls(&gateway).unwrap().unwrap();
    std::fs::remove_file(&files.key).unwrap();
    let why = metrics.read_tls(&gateway).unwrap_err().to_string();
    assert!(why.contains("key.pem"), "{why}");
    // What was read before is used, although the file is gone.
    metrics.replace_tls(Some(Arc::clone(&read)));
    assert!(Arc::ptr_eq(&metrics.tls.as_ref().unwrap().current(), &read));
    assert!(Metrics::new(Instant::now()).read_tls(&gateway).unwrap().is_none(), "a change of that needs a restart");
    std::fs::remove_dir_all(&folder).unwrap();
}
