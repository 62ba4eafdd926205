//! Room in memory for what a binary body becomes: bounded by the configuration, admitted before it is used.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::body::take;
use super::super::error::ApiError;
use crate::config::Limits;

/// What one message costs beside its bytes until it is answered: its places in the lists of the request and of the
/// storage thread, its hash, its entry's head and its element of the answer.
pub(super) const MESSAGE_BYTES: u64 = 512;
/// The same for a group of messages.
pub(super) const GROUP_BYTES: u64 = 512;

/// Counts against `limits.inflight_bytes` until it is dropped.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    limits: &'a Limits,
    inflight: &'a Arc<Semaphore>,
    /// Bytes held, the body's included.
    held: u64,
    /// Bytes that the body inflates to, so far.
    inflated: u64,
    permit: Option<OwnedSemaphorePermit>,
}

impl<'a> Room<'a> {
    /// Room beside a body of so many bytes, which has a permit of its own.
    pub(crate) fn new(limits: &'a Limits, inflight: &'a Arc<Semaphore>, body: usize) -> Room<'a> {
        Room { limits, inflight, held: body as u64, inflated: 0, permit: None }
    }

    /// Deepest nesting of a payload: what `limits.json_depth` leaves inside the JSON form, whose payloads stand in an
    /// item in a list in an object.
    pub(super) fn payload_depth(&self) -> u32 {
        self.limits.json_depth.saturating_sub(3)
    }

    /// Room to inflate so many bytes.
    ///
    /// # Errors
    /// 413 when the body inflates to more than is allowed, 429 when there is no room now.
    pub(super) fn inflate(&mut self, bytes: u64) -> Result<(), ApiError> {
        self.inflated = self.inflated.saturating_add(bytes);
        if self.inflated > u64::from(self.limits.inflate_bytes) {
            return Err(ApiError::inflates_too_large(self.inflated, self.limits.inflate_bytes));
        }
        self.take(bytes)
    }

    /// Room for so many messages in so many groups.
    ///
    /// # Errors
    /// 413 when there can never be room for them, 429 when there is none now.
    pub(super) fn list(&mut self, groups: u64, messages: u64) -> Result<(), ApiError> {
        self.take(groups.saturating_mul(GROUP_BYTES).saturating_add(messages.saturating_mul(MESSAGE_BYTES)))
    }

    fn take(&mut self, bytes: u64) -> Result<(), ApiError> {
        self.held = self.held.saturating_add(bytes);
        let limit = self.limits.inflight_bytes;
        if self.held > u64::from(limit) {
            return Err(ApiError::takes_too_much(self.held, limit));
        }
        // Bounded by a 32-bit limit a line above.
        let more = take(self.inflight, usize::try_from(bytes).unwrap_or(usize::MAX), self.limits)?;
        match self.permit.as_mut() {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }
}
