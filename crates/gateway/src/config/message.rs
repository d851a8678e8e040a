//! Messages of vici as sections: `load-conn` and its kin carry the keys of swanctl.conf, with lists
//! as lists and certificates as octets.

use std::collections::HashSet;

use vici::{Message, Value};
use zeroize::Zeroizing;

use super::problem::Origin;
use super::syntax::{Section, Setting};

/// Values that are octets even where they look like text.
const OCTETS: &[&str] = &["data", "certs", "cacerts", "pubkeys", "cacert"];

impl Section {
    /// The section that `message` is, for messages about it called `name`: usually the command.
    pub fn of_message(name: &str, message: &Message) -> Self {
        fill(name, &Origin::message(name), message)
    }
}

impl From<&Message> for Section {
    fn from(message: &Message) -> Self {
        Self::of_message("", message)
    }
}

fn fill(name: &str, at: &Origin, message: &Message) -> Section {
    let mut section = Section::new(name, at.clone());
    // The first entry of a name counts. A set, because a client may send tens of thousands of
    // entries.
    let (mut sections, mut settings) = (HashSet::new(), HashSet::new());
    for (name, value) in &message.entries {
        match value {
            Value::Section(inner) if sections.insert(name) => section.sections.push(fill(name, at, inner)),
            Value::Text(_) | Value::List(_) if settings.insert(name) => section.settings.push(setting(name, at, value)),
            _ => {}
        }
    }
    section
}

fn setting(name: &str, at: &Origin, value: &Value) -> Setting {
    let items = match value {
        Value::List(items) => items.clone(),
        Value::Text(octets) => vec![octets.clone()],
        Value::Section(_) => Vec::new(),
    };
    let texts: Vec<&str> = items.iter().filter_map(|item| std::str::from_utf8(item).ok()).collect();
    // Reserve the full size at once: a buffer that grows leaves copies of the secret in freed
    // memory.
    let mut text = Zeroizing::new(String::with_capacity(texts.iter().map(|text| text.len() + 2).sum()));
    for (i, part) in texts.iter().enumerate() {
        text.push_str(if i == 0 { "" } else { ", " });
        text.push_str(part);
    }
    let is_list = matches!(value, Value::List(_)) || texts.len() < items.len() || OCTETS.contains(&name);
    // A text in place of a list is split as in a file.
    let items = is_list.then_some(items);
    Setting { name: name.to_owned(), at: at.clone(), value: text, value_at: at.clone(), items }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_message_of_many_entries_is_read_in_linear_time() {
        let mut message = Message::new();
        for i in 0..60_000 {
            message.entries.push((format!("k{i}"), Value::Text(Zeroizing::new(b"v".to_vec()))));
        }
        message.entries.push(("k7".to_owned(), Value::Text(Zeroizing::new(b"second".to_vec()))));
        let started = Instant::now();
        let section = Section::of_message("load-shared", &message);
        // A search of the entries so far for each entry takes half a minute here.
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert_eq!((section.settings.len(), section.settings[7].value.as_str()), (60_000, "v"));
    }
}
