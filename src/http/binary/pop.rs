//! `QPF1`: a pop's answer as frames.
//!
//! ```text
//! "QPF1" | u8 version | [u32 len | JSON object, version 1] | text queue | text leaseId | text consumerGroup
//! u32 claims, then per claim:  u64 partitionId | text partition | u64 first | u64 last | u32 deliveryAttempt | u32 records
//! per record: u64 first offset | i64 created in us | u32 count | u8 codec | u32 len | count frames
//! per frame:  u32 len | u8 flags | 16 bytes id | [16 bytes trace id, flag 1] | text transactionId
//!             | [text producer, flag 2] | payload
//! ```
//!
//! A record is what a claim takes of one run, and nothing beside it. Its frames are not compressed (codec 0).

use bytes::Bytes;

use super::super::error::ApiError;
use super::super::read;
use crate::broker::command::{Claim, Piece, PopReply};
use crate::format::entry::Entry;

const MAGIC: &[u8; 4] = b"QPF1";
/// Nothing but the messages.
const VERSION_PLAIN: u8 = 0;
/// A JSON object with the answer's own keys comes first.
const VERSION_HEAD: u8 = 1;
/// Frames as they are.
const CODEC_RAW: u8 = 0;
const FRAME_TRACE: u8 = 1;
const FRAME_PRODUCER: u8 = 2;
/// Bytes of a frame beside its texts and its payload, rounded up, to reserve once.
const FRAME_BYTES: usize = 64;
/// Reserved at most; the rest as it comes.
const RESERVE_BYTES: usize = 1 << 26;

/// The body of an answer with messages. `head` is a JSON object of what the answer says beside them (`autopilot`, and
/// whatever else a JSON answer has next to `messages`), if it says anything.
///
/// # Errors
/// 500 that names what is damaged or does not fit.
pub(crate) fn answer(
    queue: &str,
    group: &str,
    reply: &PopReply,
    loaded: &[(Piece, Bytes)],
    head: Option<&[u8]>,
) -> Result<Vec<u8>, ApiError> {
    let lease = reply.lease.map(|lease| lease.text()).unwrap_or_default();
    let bytes: usize = loaded.iter().map(|(_, bytes)| bytes.len()).sum();
    let messages: u64 = loaded.iter().map(|(piece, _)| piece.last.0 - piece.first.0 + 1).sum();
    let frames = usize::try_from(messages).unwrap_or(usize::MAX).saturating_mul(FRAME_BYTES);
    let mut out = Vec::with_capacity(bytes.saturating_add(frames).min(RESERVE_BYTES));
    out.extend_from_slice(MAGIC);
    match head {
        None => out.push(VERSION_PLAIN),
        Some(head) => {
            out.push(VERSION_HEAD);
            put_u32(&mut out, length(head.len())?);
            out.extend_from_slice(head);
        }
    }
    put_text(&mut out, queue)?;
    put_text(&mut out, &lease)?;
    put_text(&mut out, group)?;
    put_u32(&mut out, length(reply.claims.len())?);
    let mut loaded = loaded.iter();
    for claim in &reply.claims {
        put_claim(&mut out, claim)?;
        for (piece, bytes) in loaded.by_ref().take(claim.pieces.len()) {
            put_record(&mut out, piece, bytes)?;
        }
    }
    Ok(out)
}

fn put_claim(out: &mut Vec<u8>, claim: &Claim) -> Result<(), ApiError> {
    // Without a message the span is empty: it ends before it begins.
    let first = claim.pieces.first().map_or(1, |piece| piece.first.0);
    let last = claim.pieces.last().map_or(0, |piece| piece.last.0);
    put_u64(out, claim.partition.0);
    put_text(out, &claim.partition_name)?;
    put_u64(out, first);
    put_u64(out, last);
    put_u32(out, claim.attempt);
    put_u32(out, length(claim.pieces.len())?);
    Ok(())
}

fn put_record(out: &mut Vec<u8>, piece: &Piece, bytes: &[u8]) -> Result<(), ApiError> {
    let count = u32::try_from(piece.last.0 - piece.first.0 + 1).map_err(|_| too_large())?;
    put_u64(out, piece.first.0);
    out.extend_from_slice(&i64::try_from(piece.run.created.0).unwrap_or(i64::MAX).to_le_bytes());
    put_u32(out, count);
    out.push(CODEC_RAW);
    let record = out.len();
    put_u32(out, 0);
    let mut fits = Ok(());
    read::entries(piece, bytes, |_, entry| {
        if fits.is_ok() {
            fits = put_frame(out, entry);
        }
    })?;
    fits?;
    set_length(out, record)
}

fn put_frame(out: &mut Vec<u8>, entry: &Entry<'_>) -> Result<(), ApiError> {
    let frame = out.len();
    put_u32(out, 0);
    let flags = if entry.trace.is_some() { FRAME_TRACE } else { 0 }
        | if entry.producer.is_some() { FRAME_PRODUCER } else { 0 };
    out.push(flags);
    out.extend_from_slice(&entry.id.0.to_be_bytes());
    if let Some(trace) = entry.trace {
        out.extend_from_slice(&trace.to_be_bytes());
    }
    put_text(out, &entry.transaction_id)?;
    if let Some(producer) = entry.producer {
        put_text(out, producer)?;
    }
    out.extend_from_slice(entry.payload);
    set_length(out, frame)
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) -> Result<(), ApiError> {
    let bytes = u16::try_from(text.len()).map_err(|_| too_large())?;
    out.extend_from_slice(&bytes.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Writes how much follows the length at `at` into it.
fn set_length(out: &mut [u8], at: usize) -> Result<(), ApiError> {
    let bytes = length(out.len() - at - 4)?;
    if let Some(field) = out.get_mut(at..at + 4) {
        field.copy_from_slice(&bytes.to_le_bytes());
    }
    Ok(())
}

fn length(length: usize) -> Result<u32, ApiError> {
    u32::try_from(length).map_err(|_| too_large())
}

fn too_large() -> ApiError {
    ApiError::internal("the messages do not fit a framed answer; pop fewer at once, or without frames=true")
}
