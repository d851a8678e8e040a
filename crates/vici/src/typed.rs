//! Conversion between messages and serde types.
//!
//! vici encodes all values as text; the type that reads a value determines whether it is a number
//! or a boolean. The field names of a type are therefore defined once, for its JSON and its
//! message. A struct or map is a section, a sequence of texts and numbers a list, any other
//! sequence a section of numbered entries; an absent option is omitted.

use serde::de::value::{Error, MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::{Serialize, forward_to_deserialize_any};
use serde_json::Value as Json;
use zeroize::Zeroizing;

use super::message::{Message, Value};

impl Message {
    /// Converts `value`, a struct or a map, to a message.
    pub fn of(value: &impl Serialize) -> Self {
        let mut message = Self::new();
        // Fails only for maps with other keys than text, which the types of this crate do not have.
        if let Ok(Json::Object(entries)) = serde_json::to_value(value) {
            entries.into_iter().for_each(|(name, value)| message.add(&name, value));
        }
        message
    }

    fn add(&mut self, name: &str, value: Json) {
        match value {
            Json::Null => {}
            Json::Object(entries) => {
                let mut section = Self::new();
                entries.into_iter().for_each(|(name, value)| section.add(&name, value));
                self.set_section(name, section);
            }
            Json::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
                let mut section = Self::new();
                items.into_iter().enumerate().for_each(|(i, item)| section.add(&i.to_string(), item));
                self.set_section(name, section);
            }
            Json::Array(items) => drop(self.set_list(name, items.into_iter().map(word))),
            scalar => drop(self.set(name, word(scalar))),
        }
    }

    /// Reads a type from this section.
    ///
    /// # Errors
    /// A missing field, or the expected form of a text.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        T::deserialize(Node::Section(self))
    }
}

fn word(scalar: Json) -> String {
    match scalar {
        Json::String(text) => text,
        Json::Bool(on) => if on { "yes" } else { "no" }.to_owned(),
        other => other.to_string(),
    }
}

/// A value of a message, as a serde deserializer.
#[derive(Clone, Copy)]
enum Node<'a> {
    Text(&'a [u8]),
    List(&'a [Zeroizing<Vec<u8>>]),
    Section(&'a Message),
}

impl<'a> Node<'a> {
    fn text(self) -> Result<&'a str, Error> {
        match self {
            Self::Text(octets) => std::str::from_utf8(octets).map_err(Error::custom),
            Self::List(_) | Self::Section(_) => Err(Error::custom("a list or a section where a text should be")),
        }
    }

    fn parse<T: std::str::FromStr>(self) -> Result<T, Error> {
        let text = self.text()?;
        text.parse().map_err(|_| Error::custom(format!("'{text}' where a number should be")))
    }
}

fn entries(section: &Message) -> impl Iterator<Item = (&str, Node<'_>)> {
    section.entries.iter().map(|(name, value)| (name.as_str(), Node::from(value)))
}

impl<'a> From<&'a Value> for Node<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Text(octets) => Self::Text(octets),
            Value::List(items) => Self::List(items),
            Value::Section(section) => Self::Section(section),
        }
    }
}

impl<'a> IntoDeserializer<'a, Error> for Node<'a> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// The requested type determines how the text is parsed.
macro_rules! numbers {
    ($($method:ident $visit:ident,)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.parse()?)
        })*
    };
}

impl<'de> Deserializer<'de> for Node<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Text(_) => visitor.visit_borrowed_str(self.text()?),
            Self::List(_) => self.deserialize_seq(visitor),
            Self::Section(section) => visitor.visit_map(MapDeserializer::new(entries(section))),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter().map(|item| Node::Text(item)))),
            Self::Section(section) => visitor.visit_seq(SeqDeserializer::new(entries(section).map(|(_, value)| value))),
            Self::Text(_) => Err(Error::custom("a text where a list should be")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.text()? {
            "yes" => visitor.visit_bool(true),
            "no" => visitor.visit_bool(false),
            other => Err(Error::custom(format!("'{other}' where 'yes' or 'no' should be"))),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Self::Section(section) => {
                visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(entries(section))))
            }
            Self::Text(_) | Self::List(_) => visitor.visit_enum(self.text()?.into_deserializer()),
        }
    }

    numbers! {
        deserialize_i8 visit_i8, deserialize_i16 visit_i16, deserialize_i32 visit_i32, deserialize_i64 visit_i64,
        deserialize_u8 visit_u8, deserialize_u16 visit_u16, deserialize_u32 visit_u32, deserialize_u64 visit_u64,
        deserialize_f32 visit_f32, deserialize_f64 visit_f64,
    }

    forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct map struct identifier
        ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Part {
        at: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        top: Option<u64>,
    }

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Whole {
        name: String,
        since_s: f64,
        well: bool,
        words: Vec<String>,
        parts: Vec<Part>,
        counts: BTreeMap<String, u64>,
        one: Part,
    }

    fn whole(parts: Vec<Part>) -> Whole {
        Whole {
            name: "17".into(),
            since_s: 1.5,
            well: true,
            words: vec!["yes".into(), "5".into()],
            parts,
            counts: BTreeMap::from([("bad_icv".into(), u64::MAX)]),
            one: Part { at: 3, top: None },
        }
    }

    #[test]
    fn types_survive_a_message_and_its_bytes() {
        for parts in [vec![], vec![Part { at: 0, top: Some(7) }, Part { at: u32::MAX, top: None }]] {
            let value = whole(parts);
            let bytes = Message::of(&value).emit().unwrap();
            assert_eq!(Message::parse(&bytes).unwrap().read::<Whole>().unwrap(), value);
        }
        let message = Message::of(&whole(vec![Part { at: 4, top: None }]));
        assert_eq!((message.text("well"), message.text("parts.0.at")), (Some("yes"), Some("4")));
        assert_eq!(message.list("words"), Some(vec!["yes", "5"]));
    }

    #[test]
    fn a_mismatch_is_reported() {
        let mismatch = |name: &str, instead: Option<&str>| {
            let mut message = Message::of(&whole(Vec::new()));
            message.entries.retain(|(known, _)| known != name);
            message.set_some(name, instead);
            message.read::<Whole>().unwrap_err().to_string()
        };
        assert!(mismatch("well", None).contains("missing field `well`"));
        assert!(mismatch("well", Some("perhaps")).contains("'perhaps' where 'yes' or 'no' should be"));
        assert!(mismatch("since_s", Some("soon")).contains("'soon' where a number should be"));
        assert!(mismatch("words", Some("a")).contains("a text where a list should be"));
        assert!(mismatch("one", Some("a")).contains("invalid type"));
    }
}
