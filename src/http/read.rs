//! Reads the messages of pieces: from memory, or from a segment on a blocking thread.

use bytes::{Bytes, BytesMut};

use super::error::ApiError;
use crate::broker::command::{Piece, Source};
use crate::format::DecodeError;
use crate::format::entry::{self, Entry};

/// Read at once of a run of which only a part is wanted.
const WINDOW_BYTES: u32 = 1 << 20;

/// Bytes that reading the pieces may take, for admission.
pub(crate) fn bytes<'a>(pieces: impl Iterator<Item = &'a Piece>) -> u64 {
    pieces.map(|piece| u64::from(piece.run.bytes)).sum()
}

/// The bytes of every piece, each from the beginning of its run at least to its last wanted entry.
///
/// # Errors
/// 500 that names file and position.
pub(crate) async fn load(pieces: Vec<Piece>) -> Result<Vec<(Piece, Bytes)>, ApiError> {
    if pieces.iter().all(|piece| matches!(piece.source, Source::Memory(_))) {
        return load_now(pieces);
    }
    match tokio::task::spawn_blocking(move || load_now(pieces)).await {
        Ok(loaded) => loaded,
        Err(error) => Err(ApiError::internal(format!("reading messages was cut short: {error}"))),
    }
}

fn load_now(pieces: Vec<Piece>) -> Result<Vec<(Piece, Bytes)>, ApiError> {
    pieces
        .into_iter()
        .map(|piece| {
            let bytes = match &piece.source {
                Source::Memory(bytes) => bytes.clone(),
                Source::File { .. } => read_file(&piece)?,
            };
            Ok((piece, bytes))
        })
        .collect()
}

/// Reads a run, or its beginning when the wanted entries end early.
fn read_file(piece: &Piece) -> Result<Bytes, ApiError> {
    let Source::File { file, position, bytes } = &piece.source else { return Ok(Bytes::new()) };
    let wanted = piece.last.0.saturating_sub(piece.run.base.0).saturating_add(1);
    let whole = wanted >= u64::from(piece.run.count);
    let mut read = BytesMut::new();
    let (mut entries, mut walked) = (0_u64, 0_usize);
    loop {
        let done = u32::try_from(read.len()).unwrap_or(u32::MAX);
        let rest = bytes.saturating_sub(done);
        let window = if whole { rest } else { rest.min(WINDOW_BYTES) };
        let at = position + u64::from(done);
        let got = file
            .read_at(at, window as usize)
            .map_err(|error| unreadable(piece, u64::from(done), &format!("cannot be read: {error}")))?;
        if whole {
            return Ok(got);
        }
        read.extend_from_slice(&got);
        while entries < wanted
            && let Some(rest) = read.get(walked..)
            && let Ok(bytes) = entry::skip(rest)
        {
            walked += bytes;
            entries += 1;
        }
        if entries == wanted || read.len() >= *bytes as usize {
            return Ok(read.freeze());
        }
        if got.is_empty() {
            return Err(unreadable(piece, u64::from(done), "ends early"));
        }
    }
}

/// Calls `each` with the offset and the entry of every wanted message.
///
/// # Errors
/// 500 that names file and position of an entry that is damaged or missing.
pub(crate) fn entries<'a>(
    piece: &Piece,
    bytes: &'a [u8],
    mut each: impl FnMut(u64, &Entry<'a>),
) -> Result<(), ApiError> {
    let mut rest = bytes;
    let mut offset = piece.run.base.0;
    while offset <= piece.last.0 {
        let at = (bytes.len() - rest.len()) as u64;
        let damaged = |error: DecodeError| unreadable(piece, at, &format!("is damaged: {error}"));
        let taken = if offset < piece.first.0 {
            entry::skip(rest).map_err(damaged)?
        } else {
            let (entry, taken) = Entry::decode(rest).map_err(damaged)?;
            each(offset, &entry);
            taken
        };
        rest = rest.get(taken..).unwrap_or_default();
        offset += 1;
    }
    Ok(())
}

fn unreadable(piece: &Piece, at: u64, what: &str) -> ApiError {
    let place = match &piece.source {
        Source::Memory(_) => format!("byte {at} of a run in memory"),
        Source::File { file, position, .. } => {
            format!("{} at position {}", file.path().display(), position + at)
        }
    };
    let (partition, base) = (piece.run.partition, piece.run.base);
    tracing::error!(%partition, %base, "stored messages are unreadable: {place} {what}");
    ApiError::internal(format!(
        "a stored message of partition {partition} {what} ({place}); see the daemon's log"
    ))
}
