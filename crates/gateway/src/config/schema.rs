//! Every key that a configuration may have, in one table: readers, messages, documentation and
//! `weir check --schema` all look here.
//!
//! A key that is not [`Fate::Honoured`] is known nevertheless: a file that works with strongSwan
//! should have the same meaning here, or the message must state what to write instead.

mod keyed;
mod manual;
mod page;
#[cfg(test)]
mod readers;

use serde_json::{Value, json};

use super::value::{ValueError, duration, number, switch, volume};

pub use page::to_man;

pub(crate) use keyed::{AUTH, AUTHORITY, CERT, CHILD, CONNECTION, POOL, PSP, PSP_CHILD, SECRET};

/// Type of a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Anything.
    Text,
    /// `yes` or `no`.
    Switch,
    /// A number from … to ….
    Number(u64, u64),
    /// Six binary digits.
    Dscp,
    /// A time, in seconds unless it has a unit.
    Time,
    /// A number of bytes.
    Bytes,
    /// One of these.
    Words(&'static [&'static str]),
    /// Some of these, separated by commas.
    List(&'static str),
    /// File names, separated by commas, or their contents after `0x` or `0s`.
    Files,
    /// Bytes after `0x` or `0s`.
    Octets,
    /// Text, or bytes after `0x` or `0s`; never shown.
    Secret,
}

/// Handling of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// The key has its documented effect.
    Honoured,
    /// It is read and changes nothing, because ….
    NoEffect(&'static str),
    /// Other values than these are refused; the text states what to write instead.
    Refused(&'static [&'static str], &'static str),
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The name is the beginning of several: `id-1`, `id-2`.
    pub(crate) prefix: bool,
    pub(crate) kind: Kind,
    /// As text, empty if there is none.
    pub(crate) default: &'static str,
    pub(crate) about: &'static str,
    pub(crate) fate: Fate,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Key {
    Key { name, prefix: false, kind, default, about, fate: Fate::Honoured }
}

impl Key {
    const fn many(self) -> Self {
        Self { prefix: true, ..self }
    }

    const fn no_effect(self, why: &'static str) -> Self {
        Self { fate: Fate::NoEffect(why), ..self }
    }

    const fn refused(self, fine: &'static [&'static str], instead: &'static str) -> Self {
        Self { fate: Fate::Refused(fine, instead), ..self }
    }

    fn is_named(&self, name: &str) -> bool {
        if self.prefix { name.starts_with(self.name) } else { name == self.name }
    }
}

/// The key of that name.
pub(crate) fn find(keys: &'static [Key], name: &str) -> Option<&'static Key> {
    keys.iter().find(|key| key.is_named(name))
}

impl Kind {
    /// Returns whether a value that changes nothing is at least one.
    pub(crate) fn check(self, text: &str) -> Result<(), ValueError> {
        match self {
            Self::Switch => switch(text).map(|_| ()),
            Self::Number(low, high) => number(low..=high)(text).map(|_| ()),
            Self::Time => duration(text).map(|_| ()),
            Self::Bytes => volume(text).map(|_| ()),
            Self::Words(words) if !words.iter().any(|word| word.eq_ignore_ascii_case(text)) => {
                Err(format!("write one of: {}", words.join(", ")).into())
            }
            _ => Ok(()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Switch => "switch",
            Self::Number(..) => "number",
            Self::Dscp => "binary",
            Self::Time => "time",
            Self::Bytes => "bytes",
            Self::Words(_) => "word",
            Self::List(_) => "list",
            Self::Files => "files",
            Self::Octets => "octets",
            Self::Secret => "secret",
        }
    }

    /// Range or choices, for people.
    #[cfg(test)]
    fn range(self) -> String {
        match self {
            Self::Number(low, high) => format!("{low} to {high}"),
            Self::Dscp => "six binary digits".into(),
            Self::Words(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
            Self::List(of) => format!("list of {of}"),
            Self::Files => "list of files, or contents as `0x…`, `0s…`".into(),
            Self::Secret => "text, `0x…` or `0s…`".into(),
            other => other.name().into(),
        }
    }
}

/// All sections, by the path that a person would write.
fn sections() -> Vec<(&'static str, &'static [Key])> {
    let mut all = vec![
        ("connections.NAME", CONNECTION),
        ("connections.NAME.local…, connections.NAME.remote…", AUTH),
        ("connections.NAME.local….cert…, connections.NAME.remote….cacert…", CERT),
        ("connections.NAME.children.NAME", CHILD),
        ("connections.NAME with protocol = psp", PSP),
        ("connections.NAME.children.NAME with protocol = psp", PSP_CHILD),
        ("secrets.KIND…", SECRET),
        ("pools.NAME", POOL),
        ("authorities.NAME", AUTHORITY),
    ];
    all.extend([("gateway", manual::GATEWAY), ("sas.NAME", manual::SA), ("policies.NAME", manual::POLICY)]);
    all
}

/// The table as JSON: `{"sections": [{"path", "keys": [{"name", "type", "default", "description",
/// "fate", …}]}]}`.
pub fn to_json() -> Value {
    let describe = |key: &Key| {
        let mut described = json!({
            "name": key.name,
            "prefix": key.prefix,
            "type": key.kind.name(),
            "default": if key.default.is_empty() { Value::Null } else { key.default.into() },
            "description": key.about,
        });
        match key.kind {
            Kind::Words(words) => described["choices"] = json!(words),
            Kind::Number(low, high) => described["range"] = json!([low, high]),
            Kind::List(of) => described["items"] = json!(of),
            _ => {}
        }
        match key.fate {
            Fate::Honoured => described["fate"] = json!("honoured"),
            Fate::NoEffect(why) => {
                described["fate"] = json!("no effect");
                described["why"] = json!(why);
            }
            Fate::Refused(fine, instead) => {
                described["fate"] = json!("refused");
                described["accepted"] = json!(fine);
                described["instead"] = json!(instead);
            }
        }
        described
    };
    let sections: Vec<Value> = sections()
        .into_iter()
        .map(|(path, keys)| json!({ "path": path, "keys": keys.iter().map(describe).collect::<Vec<_>>() }))
        .collect();
    json!({ "sections": sections })
}

#[cfg(test)]
/// The keys of connections, secrets, pools and authorities as the tables of docs/configuration.md.
fn to_markdown() -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (path, keys) in sections().into_iter().take_while(|(path, _)| *path != "gateway") {
        let path = path.split(' ').map(|word| if word.contains('.') { quote(word) } else { word.to_owned() });
        let _ = write!(text, "#### {}\n\n| Key | Default | Values | Meaning |\n|---|---|---|---|\n", join(path));
        for key in keys {
            let name = if key.prefix { format!("{}…", key.name) } else { key.name.to_owned() };
            let default = if key.default.is_empty() { "none".into() } else { key.default.replace('|', "\\|") };
            let values = key.kind.range().replace('|', "\\|");
            let _ = match key.fate {
                Fate::Honoured => writeln!(text, "| `{name}` | {default} | {values} | {} |", key.about),
                Fate::NoEffect(why) => {
                    writeln!(text, "| `{name}` | {default} | {values} | **No effect**: {why}. {} |", key.about)
                }
                Fate::Refused(fine, instead) => {
                    let fine: Vec<String> = fine.iter().map(|value| format!("`{value}`")).collect();
                    let but = if fine.is_empty() { String::new() } else { format!(" (except {})", fine.join(", ")) };
                    writeln!(text, "| `{name}` | {default} | {values} | **Refused**{but}: {instead}. {} |", key.about)
                }
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
fn quote(word: &str) -> String {
    match word.strip_suffix(',') {
        Some(word) => format!("`{word}`,"),
        None => format!("`{word}`"),
    }
}

#[cfg(test)]
fn join(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(" ").replace("protocol = psp", "`protocol = psp`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_listed_twice() {
        for (path, keys) in sections() {
            for (i, key) in keys.iter().enumerate() {
                assert!(keys[..i].iter().all(|other| other.name != key.name), "{path}: {}", key.name);
                assert!(!key.about.is_empty() && !key.about.ends_with('.'), "{path}: {}: {}", key.name, key.about);
            }
        }
    }

    #[test]
    fn what_is_accepted_of_a_refused_key_is_of_its_kind() {
        for (path, keys) in sections() {
            for key in keys {
                if let Fate::Refused(fine, _) = key.fate {
                    assert!(fine.iter().all(|text| key.kind.check(text).is_ok()), "{path}: {}", key.name);
                }
            }
        }
    }

    #[test]
    fn the_documentation_has_the_same_tables() {
        let docs = include_str!("../../../../docs/configuration.md");
        let tables = to_markdown();
        for line in tables.lines() {
            assert!(
                docs.lines().any(|there| there == line),
                "docs/configuration.md lacks: {line}\nof these:\n{tables}"
            );
        }
    }

    #[test]
    fn the_documentation_has_every_manual_key() {
        let docs = include_str!("../../../../docs/configuration.md");
        for key in [manual::GATEWAY, manual::SA, manual::POLICY].into_iter().flatten() {
            assert!(docs.contains(&format!("`{}`", key.name)), "{}", key.name);
        }
    }
}
