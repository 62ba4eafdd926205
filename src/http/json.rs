//! JSON in and out: reading envelopes without losing a byte of what they carry, writing answers by hand.
//!
//! Invariants:
//! - Duplicate keys of an envelope are an error; unknown keys are ignored.
//! - An error names the item and the field it is about.
//! - Nothing here recurses with the input: nesting is bounded by `check_depth` before anything is parsed.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use super::error::ApiError;
use crate::types::WallTime;

/// A JSON string, borrowed from the body where it holds no escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Text of a field that may be absent or null; empty counts as absent.
pub(crate) fn given<'a>(field: &'a Option<Option<Text<'_>>>) -> Option<&'a str> {
    field.as_ref().and_then(Option::as_ref).map(Text::as_str).filter(|text| !text.is_empty())
}

/// An array whose errors name the index.
#[derive(Debug, Default)]
pub(crate) struct Items<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ItemsVisitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ItemsVisitor<T> {
            type Value = Items<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Items<T>, A::Error> {
                let mut items = Vec::new();
                loop {
                    match seq.next_element() {
                        Ok(Some(item)) => items.push(item),
                        Ok(None) => return Ok(Items(items)),
                        Err(error) => {
                            return Err(de::Error::custom(format_args!("[{}] {error}", items.len())));
                        }
                    }
                }
            }
        }
        deserializer.deserialize_seq(ItemsVisitor(std::marker::PhantomData))
    }
}

/// Defines an envelope: a struct of optional fields that refuses duplicate keys, ignores unknown ones and names the
/// field in its errors. A null is an error unless the field's own type is an `Option`.
macro_rules! envelope {
    ($(#[$meta:meta])* $name:ident { $($key:literal $field:ident: $kind:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(crate) struct $name<'a> { $(pub(crate) $field: Option<$kind>,)* }

        impl<'de: 'a, 'a> serde::Deserialize<'de> for $name<'a> {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct EnvelopeVisitor<'a>(std::marker::PhantomData<&'a ()>);
                impl<'de: 'a, 'a> serde::de::Visitor<'de> for EnvelopeVisitor<'a> {
                    type Value = $name<'a>;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name<'a>, A::Error> {
                        let mut envelope = $name::default();
                        while let Some(key) = map.next_key::<$crate::http::json::Text<'de>>()? {
                            match key.as_str() {
                                $($key => {
                                    if envelope.$field.is_some() {
                                        return Err(serde::de::Error::custom(concat!($key, " is there twice")));
                                    }
                                    let value = map.next_value::<$kind>().map_err(|error| {
                                        serde::de::Error::custom(format_args!(concat!($key, ": {}"), error))
                                    })?;
                                    envelope.$field = Some(value);
                                })*
                                _ => { map.next_value::<serde::de::IgnoredAny>()?; }
                            }
                        }
                        Ok(envelope)
                    }
                }
                deserializer.deserialize_map(EnvelopeVisitor(std::marker::PhantomData))
            }
        }
    };
}
pub(crate) use envelope;

/// An object whose keys are not known beforehand, in order; duplicate keys are an error.
#[derive(Debug, Default)]
pub(crate) struct Object(pub(crate) Vec<(String, serde_json::Value)>);

impl Object {
    pub(crate) fn get(&self, key: &str) -> Option<&serde_json::Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut object = Object::default();
                // A body may hold millions of keys: each is looked up, never searched for.
                let mut known = hashbrown::HashSet::new();
                while let Some(key) = map.next_key::<String>()? {
                    if !known.insert(key.clone()) {
                        return Err(de::Error::custom(format_args!("{key} is there twice")));
                    }
                    let value = map
                        .next_value()
                        .map_err(|error| de::Error::custom(format_args!("{key}: {error}")))?;
                    object.0.push((key, value));
                }
                Ok(object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// Parses a body: UTF-8, nesting, then the envelope. `what` names the body in errors.
///
/// # Errors
/// 400 `bad_body`.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], depth: u32, what: &str) -> Result<T, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        ApiError::bad_body(format!("bad {what} body: not UTF-8 after byte {}", error.valid_up_to()))
    })?;
    check_depth(bytes, depth, what)?;
    serde_json::from_str(text).map_err(|error| ApiError::bad_body(format!("bad {what} body: {error}")))
}

/// Bounds the nesting of a body.
fn check_depth(bytes: &[u8], limit: u32, what: &str) -> Result<(), ApiError> {
    if deeper(bytes, limit) {
        return Err(ApiError::bad_body(format!(
            "bad {what} body: nested deeper than {limit} (limits.json_depth)"
        )));
    }
    Ok(())
}

/// Whether arrays and objects are nested deeper than this; found in one pass without recursion.
pub(crate) fn deeper(bytes: &[u8], limit: u32) -> bool {
    let mut depth = 0_u32;
    let mut bytes = bytes.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => {
                            bytes.next();
                        }
                        _ => {}
                    }
                }
            }
            b'[' | b'{' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The text of a JSON value that should be a string but must never be the reason for a refusal: lone surrogates
/// become U+FFFD, anything that is no string becomes its JSON text, null and the empty string become nothing.
pub(crate) fn lossy_text(raw: &serde_json::value::RawValue) -> Option<String> {
    let raw = raw.get();
    if raw == "null" || raw == "\"\"" {
        return None;
    }
    if !raw.starts_with('"') {
        return Some(raw.to_owned());
    }
    match serde_json::from_str::<String>(raw) {
        Ok(text) => Some(text),
        Err(_) => Some(unescape(raw.trim_matches('"'))),
    }
}

/// Undoes the escapes of a JSON string that was found well formed, except for its surrogates.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut units: Vec<u16> = Vec::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let plain = if character == '\\' {
            match characters.next() {
                Some('u') => {
                    let digits: String = characters.by_ref().take(4).collect();
                    units.push(u16::from_str_radix(&digits, 16).unwrap_or(0xFFFD));
                    continue;
                }
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some('b') => '\u{8}',
                Some('f') => '\u{c}',
                Some(other) => other,
                None => break,
            }
        } else {
            character
        };
        out.extend(
            char::decode_utf16(units.drain(..)).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)),
        );
        out.push(plain);
    }
    out.extend(char::decode_utf16(units.drain(..)).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)));
    out
}

/// Appends a JSON string.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a Vec takes every byte and a str is always valid");
}

/// Appends a whole number.
pub(crate) fn put_number(out: &mut Vec<u8>, number: u64) {
    serde_json::to_writer(out, &number).expect("a Vec takes every byte");
}

/// A time as the wire shows it: UTC, milliseconds.
pub(crate) fn wire_time(time: WallTime) -> String {
    let us = i64::try_from(time.0).unwrap_or(i64::MAX);
    let timestamp = jiff::Timestamp::from_microsecond(us).unwrap_or(jiff::Timestamp::MAX);
    format!("{timestamp:.3}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::value::RawValue;

    /// A search per key would take minutes for these; a look-up takes well under a second.
    #[test]
    fn many_keys_cost_a_look_up_each_and_a_duplicate_is_still_found() {
        let keys: Vec<String> = (0..300_000).map(|key| format!("\"k{key}\":0")).collect();
        let body = format!("{{{}}}", keys.join(","));
        let object = super::parse::<super::Object>(body.as_bytes(), 8, "test").ok();
        assert_eq!(object.map(|object| object.0.len()), Some(300_000));
        let twice = format!("{{{},\"k0\":1}}", keys.join(","));
        assert!(super::parse::<super::Object>(twice.as_bytes(), 8, "test").is_err());
    }

    use super::*;

    #[test]
    fn times_have_three_digits_and_a_z() {
        assert_eq!(wire_time(WallTime(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(wire_time(WallTime(1_796_040_000_123_999)), "2026-11-30T12:00:00.123Z");
        assert!(wire_time(WallTime(u64::MAX)).ends_with('Z'));
    }

    #[test]
    fn nesting_is_counted_outside_strings_only() {
        assert!(check_depth(br#"{"a":"[[[[\"[[[","b":[1]}"#, 2, "x").is_ok());
        assert!(check_depth(b"[[[]]]", 2, "x").is_err());
        assert!(check_depth(b"[[],[],[]]", 2, "x").is_ok());
        assert!(check_depth("[".repeat(1_000_000).as_bytes(), 120, "x").is_err());
    }

    #[test]
    fn reasons_survive_whatever_they_hold() {
        let lossy = |json: &str| lossy_text(&RawValue::from_string(json.to_owned()).unwrap());
        assert_eq!(lossy("null"), None);
        assert_eq!(lossy("\"\""), None);
        assert_eq!(lossy(r#""a\u0000b""#).unwrap(), "a\0b");
        assert_eq!(lossy(r#""x\ud800y\n\ud83d\ude00""#).unwrap(), "x\u{FFFD}y\n😀");
        assert_eq!(lossy(r#""\udc00\ud800""#).unwrap(), "\u{FFFD}\u{FFFD}");
        assert_eq!(lossy(r#"{"a":1}"#).unwrap(), r#"{"a":1}"#);
    }

    envelope!(Sample { "a" a: Text<'a>, "b" b: Option<Text<'a>> });

    #[test]
    fn envelopes_name_the_index_and_the_field() {
        let fault = |json: &str| serde_json::from_str::<Items<Sample<'_>>>(json).unwrap_err().to_string();
        assert!(fault(r#"[{},{"a":5}]"#).starts_with("[1] a: invalid type"));
        assert!(fault(r#"[{"a":"x","a":"y"}]"#).starts_with("[0] a is there twice"));
        assert!(fault(r#"[{"a":"\ud800"}]"#).starts_with("[0] a: "));
        assert!(fault(r#"[{"a":null}]"#).starts_with("[0] a: invalid type: null"));
        let good =
            serde_json::from_str::<Items<Sample<'_>>>(r#"[{"b":null,"z":[{"q":1}],"a":"é"}]"#).unwrap();
        assert_eq!(good.0.first().unwrap().a.as_ref().unwrap().as_str(), "é");
    }
}
