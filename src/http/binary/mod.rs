//! The binary wire forms: `QPB1` pushes, `QTB1` transactions and `QPF1` pop answers.
//!
//! Purpose: turn bytes that anybody may have made into the items that the JSON forms give too, and claims into frames.
//! All integers are little-endian; a text is a 16-bit length and UTF-8.
//!
//! Invariants:
//! - A body is walked to its end before anything is allocated for it. A number that it declares is compared with the
//!   bytes that came, with `limits.inflate_bytes` and with the room in `limits.inflight_bytes` first.
//! - Every byte belongs to something: too few and too many are errors, and an error names group, item and field.
//! - A zstd frame is one whole frame and inflates to exactly what was declared.
//!
//! Must not: decide what a message means or whether it may be stored; `groups` does that for every form alike.

pub(crate) mod pop;
pub(crate) mod push;
mod reader;
mod room;
mod section;
pub(crate) mod transaction;
mod zstd_frame;

use super::error::ApiError;

pub(crate) use self::room::Room;

/// The content type of both binary bodies.
const CONTENT_TYPE: &[u8] = b"application/x-queen-push";

/// The content type of a framed pop answer.
pub(crate) const POP_CONTENT_TYPE: &str = "application/x-queen-pop";

/// Flag: one zstd frame holds the rest of the body.
const FLAG_ZSTD: u8 = 1;
/// Flag: answer with counts.
const FLAG_SHORT: u8 = 2;
/// Flag: a transaction id before each payload.
const FLAG_IDS: u8 = 4;
/// Flag: groups of stored frames.
const FLAG_FRAMES: u8 = 8;

/// A binary body, by its first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `QPB1`
    Push,
    /// `QTB1`
    Transaction,
}

impl Kind {
    fn magic(self) -> &'static [u8; 4] {
        match self {
            Kind::Push => b"QPB1",
            Kind::Transaction => b"QTB1",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Push => "QPB1",
            Kind::Transaction => "QTB1",
        }
    }
}

/// Whether a body is the binary form that its route takes. False: it is to be read as JSON.
///
/// # Errors
/// 400 for a binary form that the route does not take, and for a body whose content type says binary and whose first
/// bytes say otherwise.
pub(crate) fn is_binary(content_type: &[u8], body: &[u8], route: Option<Kind>) -> Result<bool, ApiError> {
    let content_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let found = [Kind::Push, Kind::Transaction].into_iter().find(|kind| body.starts_with(kind.magic()));
    if found.is_none() && !content_type.eq_ignore_ascii_case(CONTENT_TYPE) {
        return Ok(false);
    }
    match route {
        Some(kind) if found == Some(kind) => Ok(true),
        Some(kind) => Err(ApiError::bad_body(format!(
            "a binary body of this route begins with {}; send that, or JSON as application/json",
            kind.name()
        ))),
        None => Err(ApiError::bad_body("this route takes no binary body; send JSON as application/json")),
    }
}

/// The flags of a body, if all of them are known.
fn known_flags(flags: u8, known: u8, what: &str) -> Result<u8, ApiError> {
    if flags & !known == 0 {
        return Ok(flags);
    }
    Err(ApiError::bad_body(format!(
        "bad {what} body: flags are {flags}, this broker knows the bits of {known} here"
    )))
}

#[cfg(test)]
mod tests;
