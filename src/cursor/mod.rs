//! The body of a cursor frame: which messages its group appended, and the records.
//!
//! The cursor frame is the commit record: a message frame without it never happened.
//!
//! Must not: do I/O, know what records mean.

use crate::format::DecodeError;
use crate::format::delta::Deltas;
use crate::format::frame::MessageRef;
use crate::io::AlignedBuf;

/// Appends the body of a cursor frame to its buffer.
pub fn write_body(data: &mut AlignedBuf, messages: Option<&MessageRef>, deltas: &[u8]) {
    let mut head = Vec::with_capacity(64);
    MessageRef::encode_option(messages, &mut head);
    data.extend_from_slice(&head);
    data.extend_from_slice(deltas);
}

/// Takes a body apart.
///
/// # Errors
/// The message reference is not one.
pub fn read_body(mut body: &[u8]) -> Result<(Option<MessageRef>, Deltas<'_>), DecodeError> {
    let messages = MessageRef::decode_option(&mut body)?;
    Ok((messages, Deltas::new(body)))
}
