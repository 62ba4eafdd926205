//! The groups of a binary body: how both bodies carry messages.
//!
//! ```text
//! u32 groups, then per group: text queue | text partition | u32 n | messages
//! plain:  n x ([text transactionId] | u32 len | payload)
//! framed: u32 len | one zstd frame of n x (u32 body_len | u8 0 | 16 bytes id | text transactionId | payload)
//! ```
//!
//! `read` walks all of it and checks every length, takes room for what it found, and inflates; `each` hands out the
//! messages. Neither keeps a list of its own: a walk costs little and a list could be made to cost much.

use std::fmt;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::super::error::ApiError;
use super::super::groups::Item;
use super::super::json::deeper;
use super::reader::Reader;
use super::room::Room;
use super::zstd_frame::{Inflater, declared};
use crate::types::MessageId;

/// Bytes of the smallest frame: length, flags, id, an empty transaction id and one byte of payload.
const FRAME_MIN_BYTES: u64 = 4 + 1 + 16 + 2 + 1;

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One after the other, each with its transaction id or none with one.
    Plain { ids: bool },
    /// As frames with message ids, each group compressed.
    Framed,
}

/// Groups whose lengths were checked and whose frames are inflated.
pub(crate) struct Section<'l> {
    /// `push` or `transaction`, for errors.
    what: &'static str,
    form: Form,
    bytes: Bytes,
    /// What the groups inflated to, one after the other.
    inflated: Vec<u8>,
    payload_depth: u32,
    _room: Room<'l>,
}

/// The beginning of a group.
struct Head<'a> {
    queue: &'a str,
    partition: &'a str,
    messages: u32,
    /// Its zstd frame and what that declares; empty in the plain form.
    frame: &'a [u8],
    inflated: usize,
}

/// What the bytes of one message say.
struct Parts<'a> {
    id: Option<MessageId>,
    transaction_id: &'a str,
    payload: &'a [u8],
}

/// What a walk found.
#[derive(Default)]
struct Totals {
    groups: u64,
    messages: u64,
    inflated: u64,
}

impl<'l> Section<'l> {
    /// Checks the lengths of a section, which ends with the body, and inflates its groups.
    ///
    /// # Errors
    /// 400 that names the group, 413 or 429.
    pub(super) fn read(
        what: &'static str,
        bytes: Bytes,
        form: Form,
        mut room: Room<'l>,
    ) -> Result<Section<'l>, ApiError> {
        let totals = measure(&bytes, form).map_err(|text| bad(what, &text))?;
        room.inflate(totals.inflated)?;
        room.list(totals.groups, totals.messages)?;
        let mut inflated = vec![0; usize::try_from(totals.inflated).unwrap_or(usize::MAX)];
        if form == Form::Framed {
            inflate(&bytes, &mut inflated).map_err(|text| bad(what, &text))?;
        }
        Ok(Section { what, form, bytes, inflated, payload_depth: room.payload_depth(), _room: room })
    }

    /// Hands out every message in wire order, with a text that says which it is. The first error ends it.
    ///
    /// # Errors
    /// 400 that names group, item and field; whatever `take` says.
    pub(crate) fn each<'a>(
        &'a self,
        mut take: impl FnMut(Item<'a>, fmt::Arguments<'_>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let mut reader = Reader::new(&self.bytes);
        let mut inflated = Reader::new(&self.inflated);
        for group in 0..reader.u32().unwrap_or_default() {
            let in_group = |text: &str| bad(self.what, &format!("groups[{group}]: {text}"));
            let head = head(&mut reader, self.form).map_err(|text| in_group(&text))?;
            let mut frames = Reader::new(inflated.take(head.inflated).unwrap_or_default());
            for message in 0..head.messages {
                let in_message = |text: String| in_group(&format!("items[{message}]: {text}"));
                let parts = match self.form {
                    Form::Plain { ids } => plain(&mut reader, ids),
                    Form::Framed => framed(&mut frames),
                }
                .map_err(in_message)?;
                let item = Item {
                    queue: head.queue,
                    partition: head.partition,
                    transaction_id: parts.transaction_id,
                    id: parts.id,
                    trace: None,
                    payload: document(parts.payload, self.payload_depth).map_err(in_message)?,
                };
                take(item, format_args!("groups[{group}]: items[{message}]"))?;
            }
            if frames.left() > 0 {
                let (left, messages) = (frames.left(), head.messages);
                return Err(in_group(&format!("{left} bytes are left over behind its {messages} frames")));
            }
        }
        Ok(())
    }
}

fn bad(what: &str, text: &str) -> ApiError {
    ApiError::bad_body(format!("bad {what} body: {text}"))
}

/// Walks a section to its end.
fn measure(bytes: &[u8], form: Form) -> Result<Totals, String> {
    let mut totals = Totals::default();
    let mut reader = Reader::new(bytes);
    let groups = reader.u32().ok_or("the number of groups is cut off")?;
    for group in 0..groups {
        let in_group = |text: String| format!("groups[{group}]: {text}");
        let head = head(&mut reader, form).map_err(in_group)?;
        if let Form::Plain { ids } = form {
            for message in 0..head.messages {
                plain(&mut reader, ids).map_err(|text| in_group(format!("items[{message}]: {text}")))?;
            }
        }
        totals.groups += 1;
        totals.messages += u64::from(head.messages);
        totals.inflated = totals.inflated.saturating_add(head.inflated as u64);
    }
    match reader.left() {
        0 => Ok(totals),
        left => Err(format!("{left} bytes are left over behind its {groups} groups")),
    }
}

/// Inflates every group into its part of `into`, which is as long as they say they are together.
fn inflate(bytes: &[u8], into: &mut [u8]) -> Result<(), String> {
    let mut inflater = Inflater::new();
    let mut reader = Reader::new(bytes);
    let mut rest = into;
    for group in 0..reader.u32().unwrap_or_default() {
        let in_group = |text: String| format!("groups[{group}]: {text}");
        let head = head(&mut reader, Form::Framed).map_err(in_group)?;
        let (part, behind) = rest
            .split_at_mut_checked(head.inflated)
            .ok_or_else(|| in_group("its frame declares another size than before".to_owned()))?;
        inflater.inflate(head.frame, part).map_err(|text| in_group(format!("its frame {text}")))?;
        rest = behind;
    }
    Ok(())
}

/// Reads the beginning of a group; in the framed form all of it.
fn head<'a>(reader: &mut Reader<'a>, form: Form) -> Result<Head<'a>, String> {
    let queue = reader.text("queue")?;
    let partition = reader.text("partition")?;
    let messages = reader.u32().ok_or("the number of messages is cut off")?;
    if form != Form::Framed {
        return Ok(Head { queue, partition, messages, frame: &[], inflated: 0 });
    }
    let frame = reader.bytes().ok_or("its frame is cut off")?;
    let inflated = declared(frame)
        .map_err(|text| format!("its frame {text}"))?
        .ok_or("its frame does not declare its content size")?;
    if u64::from(messages) * FRAME_MIN_BYTES > inflated {
        return Err(format!(
            "{messages} messages do not fit into the {inflated} bytes that its frame declares"
        ));
    }
    let inflated = usize::try_from(inflated).unwrap_or(usize::MAX);
    Ok(Head { queue, partition, messages, frame, inflated })
}

/// Reads a message of the plain form.
fn plain<'a>(reader: &mut Reader<'a>, ids: bool) -> Result<Parts<'a>, String> {
    let transaction_id = if ids { reader.text("transactionId")? } else { "" };
    let payload = reader.bytes().ok_or("payload is cut off")?;
    Ok(Parts { id: None, transaction_id, payload })
}

/// Reads a message of the framed form.
fn framed<'a>(reader: &mut Reader<'a>) -> Result<Parts<'a>, String> {
    let mut frame = Reader::new(reader.bytes().ok_or("its frame is cut off")?);
    match frame.u8() {
        Some(0) => {}
        Some(flags) => return Err(format!("flags are {flags}, a pushed frame has none")),
        None => return Err("flags are cut off".to_owned()),
    }
    let id = frame.uuid().ok_or("message id is cut off")?;
    let transaction_id = frame.text("transactionId")?;
    Ok(Parts { id: Some(MessageId(id)), transaction_id, payload: frame.rest() })
}

/// A payload as it is stored: one JSON document without the white space around it.
fn document(payload: &[u8], depth: u32) -> Result<&str, String> {
    if payload.is_empty() {
        return Err("payload is empty; it must be one JSON document".to_owned());
    }
    let text = std::str::from_utf8(payload)
        .map_err(|error| format!("payload is not UTF-8 after byte {}", error.valid_up_to()))?;
    if deeper(payload, depth) {
        return Err(format!(
            "payload is nested deeper than {depth} (limits.json_depth, less the three levels around a payload in the \
             JSON form)"
        ));
    }
    serde_json::from_str::<&RawValue>(text)
        .map(RawValue::get)
        .map_err(|error| format!("payload is not one JSON document: {error}"))
}
