//! A study by itself: its kind, subjects and settings come from the command line and become the
//! text of a campaign, which is run, stored and reported like any other.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crypto::Engine;

use super::format::{self, CampaignError};
use super::{Kind, store};
use crate::overhead::every_subject;
use crate::{host, many};
use testbed::MemorySubject;

/// A key of a study with its value, as in `cores=1,2`.
#[derive(Clone, Debug)]
pub struct Setting {
    key: String,
    value: String,
}

/// Text that is no [`Setting`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected KEY=VALUE, for example rounds=10")]
pub struct NoSetting;

impl FromStr for Setting {
    type Err = NoSetting;

    fn from_str(text: &str) -> Result<Self, NoSetting> {
        let (key, value) = text.split_once('=').ok_or(NoSetting)?;
        Ok(Self { key: key.trim().to_owned(), value: value.trim().to_owned() })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// Error in a study by itself, which has no campaign file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("--study {study}: {what}")]
pub struct SingleError {
    study: &'static str,
    what: String,
}

/// Keys of a study whose values are lists.
const LISTS: [&str; 13] = [
    "traffic",
    "directions",
    "loads",
    "replay",
    "sas",
    "cores",
    "schedulers",
    "sets",
    "spreads",
    "batch",
    "memory_mib",
    "flows",
    "goals",
];
/// Keys of the campaign itself.
const CAMPAIGN: [&str; 2] = ["title", "seed"];

/// A study by itself.
#[derive(Clone, Debug)]
pub struct Single {
    kind: Kind,
    subjects: Vec<String>,
    settings: Vec<Setting>,
}

impl Single {
    /// The usual subjects and settings of a kind, except for those given.
    pub fn new(kind: Kind, subjects: &[String], given: &[Setting]) -> Self {
        let (usual, settings) = usual(kind);
        let every = || every_subject().into_iter().map(|subject| MemorySubject::Path(subject).to_string()).collect();
        let subjects = match subjects {
            [] => usual,
            [all] if all == "all" && kind == Kind::Overheads => every(),
            given => given.to_vec(),
        };
        let of = |(key, value): (&str, String)| Setting { key: key.to_owned(), value };
        let mut settings: Vec<Setting> = settings.into_iter().map(of).collect();
        for setting in given {
            settings.retain(|other| other.key != setting.key);
            settings.push(setting.clone());
        }
        Self { kind, subjects, settings }
    }

    /// The campaign's text.
    ///
    /// # Errors
    /// What is wrong with a subject or a setting.
    pub fn text(&self) -> Result<String, SingleError> {
        let text = self.render(host::memory_bytes());
        format::parse("campaign", &text)
            .map_err(|CampaignError { what, .. }| SingleError { study: self.kind.name(), what })?;
        Ok(text)
    }

    /// On a machine with so much memory.
    fn render(&self, memory_bytes: u64) -> String {
        let mut text = format!("name = \"{}\"\n", self.kind.name());
        if self.settings.iter().all(|setting| setting.key != "title") {
            let _ = writeln!(text, "title = \"Study '{}'\"", self.kind.name());
        }
        for setting in self.settings.iter().filter(|setting| CAMPAIGN.contains(&setting.key.as_str())) {
            let _ = writeln!(text, "{} = {}", setting.key, value(&setting.key, &setting.value));
        }
        // Verdicts need the difference that the machine shows between equal subjects.
        if matches!(self.kind, Kind::Modes | Kind::Sizes)
            && let Some(subject) = self.subjects.iter().find(|name| *name != "plain")
        {
            let kept =
                self.settings.iter().filter(|setting| !["name", "flows", "loads"].contains(&setting.key.as_str()));
            study(&mut text, Kind::Noise, std::slice::from_ref(subject), &kept.collect::<Vec<_>>());
        }
        let settings: Vec<&Setting> = self.settings.iter().collect();
        // A study has one number of flows, except of cores.
        let flows = self.settings.iter().find(|setting| setting.key == "flows" && setting.value.contains(','));
        if let Some(flows) = flows.filter(|_| self.kind != Kind::Scaling) {
            for number in flows.value.split(',').map(str::trim) {
                let own = |key: &str, value: String| Setting { key: key.into(), value };
                let own = [own("name", format!("{}-{number}", self.kind.name())), own("flows", number.to_owned())];
                let rest =
                    settings.iter().copied().filter(|setting| !["name", "flows"].contains(&setting.key.as_str()));
                study(&mut text, self.kind, &self.subjects, &rest.chain(&own).collect::<Vec<_>>());
            }
            return text;
        }
        if self.fit_together(memory_bytes) {
            study(&mut text, self.kind, &self.subjects, &settings);
            return text;
        }
        // Each in processes of its own, whose memory is that of its SAs.
        for (number, subject) in self.subjects.iter().enumerate() {
            let name = Setting { key: "name".into(), value: format!("{}-{}", self.kind.name(), number + 1) };
            let settings = settings.iter().copied().filter(|setting| setting.key != "name").chain([&name]);
            study(&mut text, self.kind, std::slice::from_ref(subject), &settings.collect::<Vec<_>>());
        }
        text
    }

    /// Returns whether the SAs of all subjects together fit into half of the memory.
    fn fit_together(&self, memory_bytes: u64) -> bool {
        let sas = self.settings.iter().find(|setting| setting.key == "sas").map_or("1", |setting| &setting.value);
        let sas: u64 =
            sas.split(',').filter_map(|number| number.trim().parse::<u32>().ok()).map(many::need_bytes).sum();
        self.kind != Kind::Sas || sas * self.subjects.len() as u64 <= memory_bytes / 2
    }

    /// The first folder `lab-KIND`, `lab-KIND-2`, … without a finished run or another campaign.
    pub fn folder(&self, text: &str) -> PathBuf {
        let name = |number: u32| match number {
            1 => format!("lab-{}", self.kind.name()),
            _ => format!("lab-{}-{number}", self.kind.name()),
        };
        (1..).map(|number| PathBuf::from(name(number))).find(|dir| is_free(dir, text)).expect("numbers do not end")
    }
}

/// Returns whether a campaign can begin or go on in a folder.
fn is_free(dir: &Path, text: &str) -> bool {
    match std::fs::read_to_string(dir.join(store::CAMPAIGN)) {
        Ok(there) => there == text && !dir.join(crate::report::PAGE).exists(),
        Err(_) => !dir.exists() || std::fs::read_dir(dir).is_ok_and(|mut files| files.next().is_none()),
    }
}

fn study(text: &mut String, kind: Kind, subjects: &[String], settings: &[&Setting]) {
    let names: Vec<String> = subjects.iter().map(|name| format!("{name:?}")).collect();
    let _ = writeln!(text, "\n[[study]]\nkind = \"{}\"\nsubjects = [{}]", kind.name(), names.join(", "));
    for Setting { key, value: text_of } in settings.iter().filter(|setting| !CAMPAIGN.contains(&setting.key.as_str())) {
        let _ = writeln!(text, "{key} = {}", value(key, text_of));
    }
}

/// A value in TOML.
fn value(key: &str, text: &str) -> String {
    let one = |text: &str| {
        let text = text.trim();
        let is_number =
            text.parse::<f64>().is_ok_and(f64::is_finite) && !["title", "name", "from", "to"].contains(&key);
        let is_number = is_number || key == "real_time";
        if is_number { text.to_owned() } else { format!("{text:?}") }
    };
    if LISTS.contains(&key) {
        format!("[{}]", text.split(',').map(one).collect::<Vec<_>>().join(", "))
    } else {
        one(text)
    }
}

const ESP: &str = "weir-esp-tunnel-aes128gcm16";
const EESP: &str = "weir-eesp-tunnel-aes128gcm16";
const PSP: &str = "weir-psp-tunnel-aes128gcm16";

/// Subjects that are taken apart: the suites of the paper, and the usual one of each protocol.
const USUAL_OVERHEADS: [&str; 10] = [
    "weir-esp-tunnel-3des-md5",
    "weir-esp-tunnel-aes128-md5",
    "weir-esp-tunnel-aes256-md5",
    ESP,
    "weir-esp-tunnel-aes256gcm16",
    "weir-esp-tunnel-chacha20poly1305",
    "weir-esp-tunnel-aes128-sha256",
    "weir-ah-transport-sha256",
    EESP,
    PSP,
];

/// Set-ups: the paper's suite with signatures and with a shared key, in both modes, and today's.
const USUAL_SESSIONS: [&str; 6] = [
    "ikev1-main-rsa2048-aes128-md5-modp1024",
    "ikev1-main-psk-aes128-md5-modp1024",
    "ikev1-aggressive-rsa2048-aes128-md5-modp1024",
    "ikev2-psk-aes128gcm16-prfsha256-x25519",
    "ikev2-ecdsa256-aes128gcm16-prfsha256-x25519",
    "ikev2-ecdsa256-aes128gcm16-prfsha256-x25519-ke1_mlkem768",
];

/// Suites for a comparison of engines: the most common ones, and one of each type.
const SUITES: [&str; 10] = [
    "aes128gcm16",
    "aes256gcm16",
    "chacha20poly1305",
    "aes128ccm16",
    "aes128gmac",
    "aes128-sha1",
    "aes128-sha256",
    "aes256-sha512",
    "aes128ctr-sha256",
    "3des-sha1",
];

/// Subjects for a comparison of path and engine.
const USUAL_PATH: [&str; 12] = [
    ESP,
    "weir-esp-tunnel-aes256gcm16",
    "weir-esp-tunnel-chacha20poly1305",
    "weir-esp-transport-aes128gcm16",
    "weir-esp-transport-aes128-sha256",
    "weir-ah-transport-sha256",
    EESP,
    "weir-eesp-tunnel-aes256gcm16",
    "weir-eesp-transport-aes128gcm16",
    PSP,
    "weir-psp-tunnel-aes256gcm16",
    "weir-psp-transport-aes128gcm16",
];

/// Subjects and settings of a kind where none are given, besides the defaults of a study.
fn usual(kind: Kind) -> (Vec<String>, Vec<(&'static str, String)>) {
    if kind == Kind::Engines {
        // Ratios are to the first engine of a suite.
        let engines: Vec<Engine> =
            [Engine::AwsLc].into_iter().chain(Engine::real().filter(|e| *e != Engine::AwsLc)).collect();
        let of = |suite: &str| -> Vec<String> {
            engines.iter().map(|engine| format!("cipher-esp-tunnel-{suite},engine={}", engine.name())).collect()
        };
        let settings = [("traffic", "64,512,1400"), ("directions", "out,in"), ("batch", "16,256")];
        let more = [("sessions", "3"), ("rounds", "4"), ("duration_ms", "2")];
        let settings = settings.into_iter().chain(more).map(|(key, value)| (key, value.to_owned()));
        return (SUITES.into_iter().flat_map(of).collect(), settings.collect());
    }
    let (subjects, settings) = of_kind(kind);
    (subjects.into_iter().map(str::to_owned).collect(), settings)
}

fn of_kind(kind: Kind) -> (Vec<&'static str>, Vec<(&'static str, String)>) {
    let of =
        |settings: &[(&'static str, &str)]| settings.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    match kind {
        Kind::Scaling => {
            let here = ports::cpus::allowed().len().max(1);
            let cores = (0..).map(|n| 1 << n).take_while(|n| *n <= here).map(|n: usize| n.to_string());
            let mut settings: Vec<_> = of(&[("traffic", "64,512,1280"), ("rounds", "3"), ("duration_ms", "40")]);
            settings.push(("cores", cores.collect::<Vec<_>>().join(",")));
            (vec![ESP, EESP, PSP, "weir-esp-tunnel-aes128-sha1"], settings)
        }
        Kind::Sas => {
            let sas = ("sas", "1,10,100,1000,10000,100000");
            (
                vec![ESP, EESP, PSP],
                of(&[("traffic", "64"), ("directions", "out,in"), sas, ("sessions", "3"), ("rounds", "4")]),
            )
        }
        Kind::Modes => {
            let subjects = [
                "plain",
                ESP,
                "weir-esp-transport-aes128gcm16",
                "weir-esp-tunnel-aes128gcm16,udp",
                "weir-esp-transport-aes128gcm16,udp",
            ];
            let settings = [
                ("place", "namespaces"),
                ("traffic", "64,160,736,1400"),
                ("directions", "out,in"),
                ("rounds", "4"),
                ("duration_ms", "100"),
            ];
            (subjects.to_vec(), of(&settings))
        }
        Kind::Series => {
            let settings = [
                ("place", "namespaces"),
                ("flows", "8"),
                ("sessions", "1"),
                ("rounds", "600"),
                ("duration_ms", "1000"),
            ];
            (vec!["weir-esp-transport-aes128-sha256"], of(&settings))
        }
        Kind::Overheads => {
            let settings =
                [("traffic", "64,256,736,1400"), ("directions", "out,in,both"), ("rounds", "2"), ("duration_ms", "45")];
            (USUAL_OVERHEADS.to_vec(), of(&settings))
        }
        // Sizes of the grid first, then twelve that are no multiples of 16: engines differ in their
        // tails.
        Kind::Path => {
            let sizes = ("traffic", "64,512,1400,65,97,131,201,257,349,449,577,731,915,1111,1337");
            let settings = [sizes, ("directions", "out,in"), ("sessions", "3"), ("rounds", "4"), ("duration_ms", "4")];
            (USUAL_PATH.to_vec(), of(&settings))
        }
        Kind::Transfers => {
            let subjects = [
                "weir-esp-tunnel-aes128gcm16,udp",
                // WireGuard has no other suite.
                "weir-esp-tunnel-chacha20poly1305,udp",
                "weir-eesp-tunnel-aes128gcm16,udp",
                PSP,
                "wireguard-go",
                "boringtun",
                "strongswan-aes128gcm16",
            ];
            let settings =
                [("flows", "1,8"), ("cores", "1"), ("cable", "veth"), ("rounds", "2"), ("duration_ms", "2000")];
            (subjects.to_vec(), of(&settings))
        }
        Kind::Sessions => (USUAL_SESSIONS.to_vec(), of(&[("rounds", "5"), ("duration_ms", "100")])),
        Kind::Keying => (vec![ESP], of(&[("sas", "10000"), ("sessions", "3")])),
        Kind::Search => {
            let settings = [("sessions", "1"), ("rounds", "1"), ("duration_ms", "500"), ("budget_s", "3600")];
            (vec![ESP], of(&settings))
        }
        _ => (vec![ESP], vec![]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(kind: Kind, subjects: &[&str], settings: &[&str]) -> Single {
        let subjects: Vec<String> = subjects.iter().map(|name| (*name).to_owned()).collect();
        Single::new(kind, &subjects, &settings.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn a_study_of_every_kind_that_has_usual_settings_is_a_campaign() {
        for kind in [
            Kind::Scaling,
            Kind::Sas,
            Kind::Modes,
            Kind::Series,
            Kind::Search,
            Kind::Overheads,
            Kind::Sizes,
            Kind::Keying,
            Kind::Sessions,
            Kind::Path,
            Kind::Engines,
        ] {
            let text = single(kind, &[], &[]).text().unwrap();
            let campaign = format::parse("t.toml", &text).unwrap();
            let kinds: Vec<Kind> = campaign.studies.iter().map(|study| study.kind).collect();
            let with_noise = matches!(kind, Kind::Modes | Kind::Sizes);
            assert_eq!(kinds, if with_noise { vec![Kind::Noise, kind] } else { vec![kind] });
            assert!(campaign.studies.iter().all(|study| study.place == campaign.studies[0].place));
        }
    }

    #[test]
    fn several_numbers_of_flows_are_as_many_studies() {
        let text = single(Kind::Transfers, &[], &[]).text().unwrap();
        let studies = format::parse("t.toml", &text).unwrap().studies;
        let of: Vec<(&str, u32, bool)> =
            studies.iter().map(|study| (study.name.as_str(), study.flows[0], study.veth)).collect();
        assert_eq!(of, [("transfers-1", 1, true), ("transfers-8", 8, true)]);
        let text = single(Kind::Scaling, &[], &["flows=1,64"]).text().unwrap();
        assert_eq!(format::parse("t.toml", &text).unwrap().studies[0].flows, [1, 64]);
    }

    #[test]
    fn what_is_given_comes_before_what_is_usual() {
        let given = ["cores=1, 2", "sets=one,per-cpu", "seed=7", "rounds=9", "traffic=64,imix"];
        let text = single(Kind::Scaling, &["weir-esp-tunnel-aes256gcm16"], &given).text().unwrap();
        let campaign = format::parse("t.toml", &text).unwrap();
        let study = &campaign.studies[0];
        assert_eq!((campaign.seed, &study.cores[..], study.rounds, study.sets.len()), (7, &[1, 2][..], 9, 2), "{text}");
        assert_eq!(
            (&study.traffic[..], &study.subjects[..]),
            (&["64".to_owned(), "imix".into()][..], &["weir-esp-tunnel-aes256gcm16".to_owned()][..])
        );
    }

    #[test]
    fn what_is_wrong_is_named_without_lines_that_nobody_wrote() {
        let why = |subjects: &[&str], settings: &[&str]| {
            single(Kind::Scaling, subjects, settings).text().unwrap_err().to_string()
        };
        assert_eq!(why(&[], &["core=1"]), "--study scaling: unknown key 'core'; did you mean 'cores'?");
        assert_eq!(why(&[], &["cores=0"]), "--study scaling: cores: '0' is out of range; use 1 to 1024");
        assert!(why(&["weir-esp-tunel-aes128gcm16"], &[]).contains("did you mean 'weir-esp-tunnel-aes128gcm16'?"));
        assert!("cores".parse::<Setting>().unwrap_err().to_string().contains("KEY=VALUE"));
    }

    #[test]
    fn sas_that_would_fill_the_memory_together_are_measured_apart() {
        let studies = |sas: &str, gib: u64| {
            let text = single(Kind::Sas, &[], &[sas]).render(gib << 30);
            format::parse("t.toml", &text).unwrap().studies.into_iter().map(|study| study.name).collect::<Vec<_>>()
        };
        assert_eq!(studies("sas=1,100000", 16), ["sas"]);
        assert_eq!(studies("sas=1,1000000", 24), ["sas-1", "sas-2", "sas-3"]);
    }

    #[test]
    fn a_finished_run_keeps_its_folder_and_an_interrupted_one_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let of = |there: &[(&str, &str)]| {
            there.iter().for_each(|(name, text)| std::fs::write(dir.path().join(name), text).unwrap());
            is_free(dir.path(), "mine")
        };
        assert!(is_free(&dir.path().join("new"), "mine") && of(&[]), "an empty folder");
        assert!(of(&[(store::CAMPAIGN, "mine")]), "interrupted");
        assert!(!of(&[(crate::report::PAGE, "")]), "finished");
        assert!(!of(&[(store::CAMPAIGN, "another")]));
        assert_eq!(single(Kind::Keying, &[], &[]).folder("mine"), PathBuf::from("lab-keying"));
    }
}
