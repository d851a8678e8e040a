//! Body of a packet: a tree of sections, values and lists.
//!
//! A [`Message`] is an owned tree in the order of its bytes. Values are text by convention;
//! certificates and keys are bytes. As any value may be a private key or a secret, all of them are
//! zeroed on drop and so is every emitted buffer, and [`Debug`] shows neither bytes nor values with
//! the name of a secret.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};
use zeroize::Zeroizing;

/// Longest segment, and so message, in bytes.
pub const MAX_SEGMENT: usize = 512 << 10;
/// Sections within sections. The deepest of swanctl is 4.
pub const MAX_DEPTH: usize = 16;
/// Elements of one message: as many names as `get-conns` may list. A tree of them takes up to 4 MiB
/// besides its bytes.
pub const MAX_ELEMENTS: usize = 32_768;
/// Longest name in bytes: its length is one byte.
pub const MAX_NAME: usize = u8::MAX as usize;
/// Longest value in bytes: its length is two bytes.
pub const MAX_VALUE: usize = u16::MAX as usize;

/// Names of values that are never shown.
const SECRETS: &[&str] = &["data", "pin", "secret"];

const SECTION_START: u8 = 1;
const SECTION_END: u8 = 2;
const KEY_VALUE: u8 = 3;
const LIST_START: u8 = 4;
const LIST_ITEM: u8 = 5;
const LIST_END: u8 = 6;

/// One value of a section.
#[derive(Clone, Eq, PartialEq)]
pub enum Value {
    /// Text, or bytes if the command defines them.
    Text(Zeroizing<Vec<u8>>),
    /// Any number of texts.
    List(Vec<Zeroizing<Vec<u8>>>),
    /// Named values.
    Section(Message),
}

/// A section with all below it; a whole message is the root section.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Message {
    /// Names and values in their order. Names are unique in messages of other implementations;
    /// where they are not, the first counts.
    pub entries: Vec<(String, Value)>,
}

/// Reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer bytes than announced.
    #[error("the message ends within an element")]
    Truncated,
    /// A type other than 1 to 6.
    #[error("there is no element type {0}")]
    UnknownElement(u8),
    /// An end without a start, an item outside a list, or something other than an item inside one.
    #[error("element type {0} is out of place")]
    Misplaced(u8),
    /// A start without an end.
    #[error("a section or list is not closed")]
    Unclosed,
    /// A name that is not text.
    #[error("a name is not UTF-8")]
    Name,
    /// More than [`MAX_DEPTH`] sections within each other.
    #[error("sections nest deeper than {MAX_DEPTH}")]
    TooDeep,
    /// More than [`MAX_ELEMENTS`] elements or [`MAX_SEGMENT`] bytes.
    #[error("the message is too large")]
    TooLarge,
}

/// Reason why a message cannot be sent.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// A name longer than [`MAX_NAME`].
    #[error("the name '{0}…' is longer than {MAX_NAME} bytes")]
    LongName(String),
    /// A value longer than [`MAX_VALUE`].
    #[error("the value of '{0}' is longer than {MAX_VALUE} bytes")]
    LongValue(String),
    /// More than [`MAX_SEGMENT`] in all, or more than the other end parses.
    #[error("the message is larger than {MAX_SEGMENT} bytes or {MAX_ELEMENTS} elements")]
    TooLarge,
}

impl Message {
    /// An empty message.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Adds a text.
    pub fn set(&mut self, name: &str, text: impl AsRef<[u8]>) -> &mut Self {
        self.entries.push((name.to_owned(), Value::Text(Zeroizing::new(text.as_ref().to_vec()))));
        self
    }

    /// Adds anything as its text.
    pub fn set_display(&mut self, name: &str, value: impl fmt::Display) -> &mut Self {
        self.set(name, value.to_string())
    }

    /// Adds a text if there is one.
    pub fn set_some(&mut self, name: &str, value: Option<impl fmt::Display>) -> &mut Self {
        if let Some(value) = value {
            self.set_display(name, value);
        }
        self
    }

    /// Adds `yes` if true: absence means no.
    pub fn set_flag(&mut self, name: &str, value: bool) -> &mut Self {
        if value {
            self.set(name, "yes");
        }
        self
    }

    /// Adds a list, also an empty one.
    pub fn set_list<T: fmt::Display>(&mut self, name: &str, items: impl IntoIterator<Item = T>) -> &mut Self {
        let items = items.into_iter().map(|item| Zeroizing::new(item.to_string().into_bytes())).collect();
        self.entries.push((name.to_owned(), Value::List(items)));
        self
    }

    /// Adds a section.
    pub fn set_section(&mut self, name: &str, section: Message) -> &mut Self {
        self.entries.push((name.to_owned(), Value::Section(section)));
        self
    }

    /// The value of that name in this section, which may hold dots.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.entries.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The value at a path as in `workers.active.high`. Names in the path contain no dots.
    pub fn at(&self, path: &str) -> Option<&Value> {
        match path.split_once('.') {
            None => self.get(path),
            Some((section, rest)) => match self.get(section)? {
                Value::Section(section) => section.at(rest),
                _ => None,
            },
        }
    }

    /// The text at a path, if it is one and UTF-8.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.bytes(path).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The bytes at a path.
    pub fn bytes(&self, path: &str) -> Option<&[u8]> {
        match self.at(path)? {
            Value::Text(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The number at a path, in decimal.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Parses the text at a path as a boolean, in any spelling. No value, or another word, is
    /// `None`.
    pub fn flag(&self, path: &str) -> Option<bool> {
        let word = self.text(path)?;
        let is = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known));
        if is(&["yes", "true", "enabled", "1"]) {
            Some(true)
        } else if is(&["no", "false", "disabled", "0"]) {
            Some(false)
        } else {
            None
        }
    }

    /// The items of the list at a path; those that are not UTF-8 are left out.
    pub fn list(&self, path: &str) -> Option<Vec<&str>> {
        match self.at(path)? {
            Value::List(items) => Some(items.iter().filter_map(|item| std::str::from_utf8(item).ok()).collect()),
            _ => None,
        }
    }

    /// The section at a path.
    pub fn section(&self, path: &str) -> Option<&Message> {
        match self.at(path)? {
            Value::Section(section) => Some(section),
            _ => None,
        }
    }

    /// The sections directly below, by name.
    pub fn sections(&self) -> impl Iterator<Item = (&str, &Message)> {
        self.entries.iter().filter_map(|(name, value)| match value {
            Value::Section(section) => Some((name.as_str(), section)),
            _ => None,
        })
    }

    /// Reads a message that fills `bytes`.
    ///
    /// # Errors
    /// When it is malformed or beyond a limit; never a panic.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > MAX_SEGMENT {
            return Err(ParseError::TooLarge);
        }
        let mut reader = Reader { rest: bytes, elements: 0 };
        // Sections that are open, with the names they will have; the root is at the bottom.
        let mut open = vec![(String::new(), Self::new())];
        while let Some(element) = reader.element()? {
            let depth = open.len();
            let (_, current) = open.last_mut().ok_or(ParseError::Misplaced(SECTION_END))?;
            match element {
                SECTION_START if depth > MAX_DEPTH => return Err(ParseError::TooDeep),
                SECTION_START => open.push((reader.name()?, Self::new())),
                SECTION_END => {
                    let (name, section) = open.pop().ok_or(ParseError::Misplaced(SECTION_END))?;
                    let (_, parent) = open.last_mut().ok_or(ParseError::Misplaced(SECTION_END))?;
                    parent.entries.push((name, Value::Section(section)));
                }
                KEY_VALUE => {
                    let name = reader.name()?;
                    current.entries.push((name, Value::Text(reader.value()?)));
                }
                LIST_START => {
                    let name = reader.name()?;
                    current.entries.push((name, Value::List(reader.items()?)));
                }
                LIST_ITEM | LIST_END => return Err(ParseError::Misplaced(element)),
                unknown => return Err(ParseError::UnknownElement(unknown)),
            }
        }
        match (open.pop(), open.is_empty()) {
            (Some((_, root)), true) => Ok(root),
            _ => Err(ParseError::Unclosed),
        }
    }

    /// Writes the message.
    ///
    /// # Errors
    /// If a part exceeds its length field, or the message exceeds the limit of the peer.
    pub fn emit(&self) -> Result<Zeroizing<Vec<u8>>, EmitError> {
        // Computes the size first: a buffer that grows leaves copies of secrets in freed memory.
        let (bytes, elements) = self.measure(0)?;
        if bytes > MAX_SEGMENT || elements > MAX_ELEMENTS {
            return Err(EmitError::TooLarge);
        }
        let mut out = Zeroizing::new(Vec::with_capacity(bytes));
        self.emit_into(&mut out);
        Ok(out)
    }

    /// Bytes and elements. Checks each length.
    fn measure(&self, depth: usize) -> Result<(usize, usize), EmitError> {
        if depth > MAX_DEPTH {
            return Err(EmitError::TooLarge);
        }
        let (mut bytes, mut elements) = (0, 0);
        for (name, value) in &self.entries {
            if name.len() > MAX_NAME {
                return Err(EmitError::LongName(name.chars().take(40).collect()));
            }
            let fits = |text: &[u8]| {
                if text.len() > MAX_VALUE { Err(EmitError::LongValue(name.clone())) } else { Ok(3 + text.len()) }
            };
            bytes += 2 + name.len();
            match value {
                Value::Text(text) => {
                    bytes += fits(text)? - 1;
                    elements += 1;
                }
                Value::List(items) => {
                    for item in items {
                        bytes += fits(item)?;
                    }
                    bytes += 1;
                    elements += 2 + items.len();
                }
                Value::Section(section) => {
                    let (inner_bytes, inner_elements) = section.measure(depth + 1)?;
                    bytes += inner_bytes + 1;
                    elements += inner_elements + 2;
                }
            }
        }
        Ok((bytes, elements))
    }

    fn emit_into(&self, out: &mut Vec<u8>) {
        for (name, value) in &self.entries {
            match value {
                Value::Text(text) => {
                    emit_name(out, KEY_VALUE, name);
                    emit_value(out, text);
                }
                Value::List(items) => {
                    emit_name(out, LIST_START, name);
                    for item in items {
                        out.push(LIST_ITEM);
                        emit_value(out, item);
                    }
                    out.push(LIST_END);
                }
                Value::Section(section) => {
                    emit_name(out, SECTION_START, name);
                    section.emit_into(out);
                    out.push(SECTION_END);
                }
            }
        }
    }
}

// `measure` saw that the lengths fit.
fn emit_name(out: &mut Vec<u8>, element: u8, name: &str) {
    out.extend([element, name.len() as u8]);
    out.extend(name.as_bytes());
}

fn emit_value(out: &mut Vec<u8>, value: &[u8]) {
    out.extend((value.len() as u16).to_be_bytes());
    out.extend(value);
}

struct Reader<'a> {
    rest: &'a [u8],
    elements: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], ParseError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(ParseError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next element's type; none at the end.
    fn element(&mut self) -> Result<Option<u8>, ParseError> {
        let Some((element, rest)) = self.rest.split_first() else { return Ok(None) };
        self.elements += 1;
        if self.elements > MAX_ELEMENTS {
            return Err(ParseError::TooLarge);
        }
        self.rest = rest;
        Ok(Some(*element))
    }

    fn name(&mut self) -> Result<String, ParseError> {
        let length = self.take(1)?[0];
        let name = std::str::from_utf8(self.take(length.into())?).map_err(|_| ParseError::Name)?;
        Ok(name.to_owned())
    }

    fn value(&mut self) -> Result<Zeroizing<Vec<u8>>, ParseError> {
        let length = self.take(2)?;
        let length = u16::from_be_bytes([length[0], length[1]]);
        Ok(Zeroizing::new(self.take(length.into())?.to_vec()))
    }

    /// A list up to its end.
    fn items(&mut self) -> Result<Vec<Zeroizing<Vec<u8>>>, ParseError> {
        let mut items = Vec::new();
        loop {
            match self.element()?.ok_or(ParseError::Unclosed)? {
                LIST_ITEM => items.push(self.value()?),
                LIST_END => return Ok(items),
                other @ (SECTION_START..=LIST_START) => return Err(ParseError::Misplaced(other)),
                unknown => return Err(ParseError::UnknownElement(unknown)),
            }
        }
    }
}

/// Text as it may be shown, or nothing for bytes.
fn printable(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')))
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Shown<'a>(&'a str, &'a Value);
        impl fmt::Debug for Shown<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let show = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| match printable(bytes) {
                    Some(text) if !SECRETS.contains(&self.0) => fmt::Debug::fmt(text, f),
                    _ => write!(f, "<{} bytes>", bytes.len()),
                };
                match self.1 {
                    Value::Text(text) => show(f, text),
                    Value::List(items) => {
                        f.write_str("[")?;
                        for (i, item) in items.iter().enumerate() {
                            f.write_str(if i == 0 { "" } else { ", " })?;
                            show(f, item)?;
                        }
                        f.write_str("]")
                    }
                    Value::Section(section) => fmt::Debug::fmt(section, f),
                }
            }
        }
        f.debug_map().entries(self.entries.iter().map(|(name, value)| (name, Shown(name, value)))).finish()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Without its name it may be a secret.
            Self::Text(text) => write!(f, "<{} bytes>", text.len()),
            Self::List(items) => write!(f, "<{} items>", items.len()),
            Self::Section(section) => fmt::Debug::fmt(section, f),
        }
    }
}

/// As JSON, for programs that process listings: an object in the order of the message, bytes in
/// hexadecimal.
impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len()))?;
        for (name, value) in &self.entries {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = |bytes: &[u8]| match printable(bytes) {
            Some(text) => text.to_owned(),
            None => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        match self {
            Self::Text(bytes) => serializer.serialize_str(&text(bytes)),
            Self::List(items) => serializer.collect_seq(items.iter().map(|item| text(item))),
            Self::Section(section) => section.serialize(serializer),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The example of the protocol's description: a value, a section in a section, a list.
    fn documented() -> (Message, Vec<u8>) {
        let mut bytes = Vec::new();
        bytes.extend(b"\x03\x04key1\x00\x06value1");
        bytes.extend(b"\x01\x08section1");
        bytes.extend(b"\x01\x0bsub-section");
        bytes.extend(b"\x03\x04key2\x00\x06value2");
        bytes.extend(b"\x02");
        bytes.extend(b"\x04\x05list1\x05\x00\x05item1\x05\x00\x05item2\x06");
        bytes.extend(b"\x02");
        let mut sub = Message::new();
        sub.set("key2", "value2");
        let mut section = Message::new();
        section.set_section("sub-section", sub).set_list("list1", ["item1", "item2"]);
        let mut message = Message::new();
        message.set("key1", "value1").set_section("section1", section);
        (message, bytes)
    }

    #[test]
    fn the_documented_example() {
        let (message, bytes) = documented();
        assert_eq!(*message.emit().unwrap(), bytes);
        let parsed = Message::parse(&bytes).unwrap();
        assert_eq!(parsed, message);
        assert_eq!(parsed.text("key1"), Some("value1"));
        assert_eq!(parsed.text("section1.sub-section.key2"), Some("value2"));
        assert_eq!(parsed.list("section1.list1"), Some(vec!["item1", "item2"]));
        assert_eq!(parsed.text("section1.list1"), None);
        assert_eq!(parsed.text("key1.deeper"), None);
        assert_eq!(
            serde_json::to_string(&parsed).unwrap(),
            r#"{"key1":"value1","section1":{"sub-section":{"key2":"value2"},"list1":["item1","item2"]}}"#
        );
    }

    #[test]
    fn every_prefix_is_refused_or_whole() {
        let (_, bytes) = documented();
        for end in 0..bytes.len() {
            // Between the elements of the root a message may end.
            let whole = end == 0 || end == b"\x03\x04key1\x00\x06value1".len();
            assert_eq!(Message::parse(&bytes[..end]).is_ok(), whole, "{end}");
        }
    }

    #[test]
    fn elements_out_of_place_are_refused() {
        let parse = |bytes: &[u8]| Message::parse(bytes).unwrap_err();
        assert_eq!(parse(b"\x02"), ParseError::Misplaced(2));
        assert_eq!(parse(b"\x05\0\0"), ParseError::Misplaced(5));
        assert_eq!(parse(b"\x06"), ParseError::Misplaced(6));
        assert_eq!(parse(b"\x00"), ParseError::UnknownElement(0));
        assert_eq!(parse(b"\x07"), ParseError::UnknownElement(7));
        assert_eq!(parse(b"\x01\x01a"), ParseError::Unclosed);
        assert_eq!(parse(b"\x04\x01a"), ParseError::Unclosed);
        assert_eq!(parse(b"\x04\x01a\x04\x01b"), ParseError::Misplaced(4));
        assert_eq!(parse(b"\x04\x01a\x02"), ParseError::Misplaced(2));
        assert_eq!(parse(b"\x03\x01\xff\0\0"), ParseError::Name);
    }

    #[test]
    fn limits_hold_both_ways() {
        let nested = |depth: usize| [[1, 0].repeat(depth), [2].repeat(depth)].concat();
        assert!(Message::parse(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(Message::parse(&nested(MAX_DEPTH + 1)), Err(ParseError::TooDeep));
        let deep = (0..=MAX_DEPTH).fold(Message::new(), |inner, _| {
            let mut outer = Message::new();
            outer.set_section("", inner);
            outer
        });
        assert_eq!(deep.emit(), Err(EmitError::TooLarge));

        let many = |count: usize| [3, 0, 0, 0].repeat(count);
        assert!(Message::parse(&many(MAX_ELEMENTS)).is_ok());
        assert_eq!(Message::parse(&many(MAX_ELEMENTS + 1)), Err(ParseError::TooLarge));
        assert_eq!(Message::parse(&vec![0; MAX_SEGMENT + 1]), Err(ParseError::TooLarge));

        let mut message = Message::new();
        message.set(&"n".repeat(MAX_NAME), vec![7; MAX_VALUE]);
        assert_eq!(Message::parse(&message.emit().unwrap()).unwrap(), message);
        message.set("more", vec![7; MAX_VALUE + 1]);
        assert_eq!(message.emit(), Err(EmitError::LongValue("more".into())));
        let mut message = Message::new();
        message.set(&"n".repeat(MAX_NAME + 1), "");
        assert!(matches!(message.emit(), Err(EmitError::LongName(_))));
        let mut message = Message::new();
        message.set_list("list", (0..8).map(|_| "x".repeat(MAX_VALUE - 8)));
        assert!(message.emit().is_ok());
        message.set("one", "x".repeat(100));
        assert_eq!(message.emit(), Err(EmitError::TooLarge));
    }

    #[test]
    fn words_for_yes_and_no() {
        let mut message = Message::new();
        message.set("a", "yes").set("b", "Enabled").set("c", "0").set("d", "maybe");
        assert_eq!(
            ["a", "b", "c", "d", "e"].map(|name| message.flag(name)),
            [Some(true), Some(true), Some(false), None, None]
        );
    }

    #[test]
    fn debug_shows_no_secret() {
        let mut inner = Message::new();
        inner.set("data", "s3cret-inner").set_list("secret", ["s3cret-list"]);
        let mut message = Message::new();
        message.set("type", "IKE").set("data", "s3cret-text").set("pin", "s3cret-pin").set_section("x", inner);
        message.set("blob", [0, 1, 2]);
        let shown = format!("{message:?} {message:#?} {:?}", message.entries);
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(shown.contains(r#""type": "IKE""#) && shown.contains("<3 bytes>"), "{shown}");
    }

    pub(in super::super) fn any_message() -> impl Strategy<Value = Message> {
        let name = "[a-z0-9._-]{0,12}";
        let bytes = || {
            prop_oneof![
                8 => vec(any::<u8>(), 0..12),
                1 => Just(vec![0x35; 255]),
                1 => Just(vec![0; 256]),
            ]
            .prop_map(Zeroizing::new)
        };
        let leaf = prop_oneof![
            bytes().prop_map(Value::Text),
            vec(bytes(), 0..4).prop_map(Value::List),
            Just(Value::Section(Message::new())),
        ];
        let value = leaf.prop_recursive(5, 64, 5, move |inner| {
            vec((name, inner), 0..5).prop_map(|entries| Value::Section(Message { entries }))
        });
        vec((name, value), 0..6).prop_map(|entries| Message { entries })
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(message in any_message()) {
            let bytes = message.emit().unwrap();
            prop_assert_eq!(Message::parse(&bytes).unwrap(), message);
        }

        #[test]
        fn a_cut_or_bent_message_is_refused_or_another(
            message in any_message(), at in any::<prop::sample::Index>(), bent in any::<u8>(),
        ) {
            let mut bytes = message.emit().unwrap().to_vec();
            prop_assume!(!bytes.is_empty());
            let at = at.index(bytes.len());
            if let Ok(shorter) = Message::parse(&bytes[..at]) {
                prop_assert!(message.entries.starts_with(&shorter.entries));
            }
            bytes[at] = bent;
            if let Ok(other) = Message::parse(&bytes) {
                prop_assert_eq!(&*other.emit().unwrap(), &bytes);
            }
        }

        #[test]
        fn what_parses_is_emitted_the_same(bytes in vec(prop_oneof![0..8u8, any::<u8>()], 0..64)) {
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(&*message.emit().unwrap(), &bytes);
            }
        }
    }
}
