//! Query strings and path segments: decoded once, strictly.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::error::ApiError;

/// The parameters of a query, in order.
#[derive(Debug, Default)]
pub(crate) struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    /// Splits and decodes. `+` is a space.
    ///
    /// # Errors
    /// 400 when an escape is broken or the bytes are no UTF-8.
    pub(crate) fn parse(text: Option<&'a str>) -> Result<Query<'a>, ApiError> {
        let mut pairs = Vec::new();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode_form(key)?, decode_form(value)?));
        }
        Ok(Query(pairs))
    }

    /// The last value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// As `get`; an empty value counts as absent.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|value| !value.is_empty())
    }

    /// A whole number.
    ///
    /// # Errors
    /// A sentence when it is none.
    pub(crate) fn number(&self, key: &str) -> Result<Option<i64>, String> {
        self.get(key)
            .map(|text| {
                text.parse().map_err(|_| {
                    format!("{key} is {:?}, it must be a whole number", super::error::clip(text, 100))
                })
            })
            .transpose()
    }

    /// A truth value; absent is false.
    ///
    /// # Errors
    /// A sentence when it is none.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, String> {
        match self.get(key) {
            None => Ok(false),
            Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(text) => {
                Err(format!("{key} is {:?}, it must be true or false", super::error::clip(text, 100)))
            }
        }
    }
}

fn decode_form(text: &str) -> Result<Cow<'_, str>, ApiError> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return Ok(Cow::Owned(decode(&spaced)?.into_owned()));
    }
    decode(text)
}

/// Decodes the escapes of a path segment or of one part of a query.
///
/// # Errors
/// 400 when an escape is broken or the bytes are no UTF-8.
pub(crate) fn decode(text: &str) -> Result<Cow<'_, str>, ApiError> {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit());
        if byte == b'%' && !(hex(bytes.next()) && hex(bytes.next())) {
            return Err(ApiError::bad_request("the URL holds a % that two hexadecimal digits do not follow"));
        }
    }
    percent_decode(text.as_bytes())
        .decode_utf8()
        .map_err(|_| ApiError::bad_request("the URL holds escapes that are not UTF-8"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded_once() {
        assert_eq!(decode("a%2Fb").unwrap(), "a/b");
        assert_eq!(decode("a%252Fb").unwrap(), "a%2Fb");
        assert_eq!(decode("a+b").unwrap(), "a+b");
        assert_eq!(decode("%F0%9F%98%80").unwrap(), "😀");
        for bad in ["%", "%2", "%zz", "%C0%AF", "%FF%FE", "%ED%A0%80"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_last_value_counts_and_plus_is_a_space() {
        let query = Query::parse(Some("a=1&b=x+y%20z&a=2&c&&wait=maybe")).unwrap();
        assert_eq!(query.number("a").unwrap(), Some(2));
        assert_eq!(query.get("b"), Some("x y z"));
        assert_eq!(query.get("c"), Some(""));
        assert_eq!(query.text("c"), None);
        assert!(query.flag("wait").is_err());
        assert!(query.number("b").is_err());
        assert!(!query.flag("z").unwrap());
    }
}
