//! The options of a queue, inside its record.
//!
//! Invariant: fields of fixed size in one order, under a version of their own, so that a later build that knows
//! more options reads the shorter list of an earlier one. Must not: judge values; that is whoever configures.

use super::DecodeError;
use super::wire::{Reader, put_varint_text};
use crate::types::QueueOptions;

/// Version of the option fields inside a queue record. A longer list of options raises it.
const OPTIONS_VERSION: u8 = 1;

/// Appends the options of a queue record.
pub(super) fn encode(options: &QueueOptions, out: &mut Vec<u8>) {
    // Every field by name, so that a new option cannot be forgotten here.
    let QueueOptions {
        lease_seconds,
        retry_limit,
        dead_letter_queue,
        dlq_after_max_retries,
        delayed_processing_seconds,
        window_buffer_seconds,
        dedup_window_seconds,
        retention_enabled,
        retention_seconds,
        completed_retention_seconds,
        max_wait_seconds,
        encryption_enabled,
        min_pop_wait_ms,
        priority,
        retry_delay_ms,
        ttl_seconds,
        max_size,
        retention_sink_hold,
        retention_sink_hold_max_seconds,
    } = options;
    out.push(OPTIONS_VERSION);
    let switches = [dead_letter_queue, dlq_after_max_retries, retention_enabled, encryption_enabled];
    out.push(switches.into_iter().rev().fold(0, |bits, switch| bits << 1 | u8::from(*switch)));
    for number in [
        lease_seconds,
        retry_limit,
        delayed_processing_seconds,
        window_buffer_seconds,
        dedup_window_seconds,
        retention_seconds,
        completed_retention_seconds,
        max_wait_seconds,
        min_pop_wait_ms,
        retention_sink_hold_max_seconds,
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    for number in [priority, retry_delay_ms, ttl_seconds, max_size] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    put_varint_text(out, retention_sink_hold);
}

/// Reads the options of a queue record.
pub(super) fn decode(reader: &mut Reader<'_>) -> Result<QueueOptions, DecodeError> {
    let version = reader.u8()?;
    if version != OPTIONS_VERSION {
        return Err(reader.field("version of the options", u64::from(version)));
    }
    let switches = reader.u8()?;
    if switches > 0b1111 {
        return Err(reader.field("switches", u64::from(switches)));
    }
    // Fields of a struct expression are read in the order written here, which is the order on disk.
    Ok(QueueOptions {
        dead_letter_queue: switches & 1 != 0,
        dlq_after_max_retries: switches & 2 != 0,
        retention_enabled: switches & 4 != 0,
        encryption_enabled: switches & 8 != 0,
        lease_seconds: reader.u32()?,
        retry_limit: reader.u32()?,
        delayed_processing_seconds: reader.u32()?,
        window_buffer_seconds: reader.u32()?,
        dedup_window_seconds: reader.u32()?,
        retention_seconds: reader.u32()?,
        completed_retention_seconds: reader.u32()?,
        max_wait_seconds: reader.u32()?,
        min_pop_wait_ms: reader.u32()?,
        retention_sink_hold_max_seconds: reader.u32()?,
        priority: reader.i64()?,
        retry_delay_ms: reader.i64()?,
        ttl_seconds: reader.i64()?,
        max_size: reader.i64()?,
        retention_sink_hold: reader.varint_text("retention sink hold")?.to_owned(),
    })
}
