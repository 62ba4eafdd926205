//! The HTTP server: bytes and JSON on one side, typed commands on the other.
//!
//! Purpose: speak the wire contract exactly; refuse what is malformed, too long, too much or too slow with an answer
//! that says so; do everything that needs no state (parsing, hashing, encoding) before a command reaches storage.
//!
//! Invariants:
//! - Nothing of a request that is refused here reaches the broker.
//! - Payload bytes are taken as they came and given back as they are.
//! - Claims whose answer did not leave are handed back: every way out of a pop drops an armed guard.
//! - Every buffer is bounded by `limits`.
//!
//! Must not: know files, leases, cursors or dedup; decide anything that depends on state.

mod ack;
mod binary;
mod body;
mod configure;
mod conn;
mod consumer_groups;
mod dlq;
mod error;
mod groups;
mod head;
mod health;
mod json;
mod lease;
mod names;
mod pop;
mod push;
mod query;
mod read;
mod resources;
mod router;
pub mod server;
mod transaction;

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::body::Answer;
use self::error::ApiError;
use crate::broker::command::BrokerError;
use crate::broker::handle::Handle;
use crate::broker::status::{Phase, Status};
use crate::config::Config;

/// What every request shares.
pub struct App {
    config: Config,
    status: Arc<Status>,
    handle: OnceLock<Handle>,
    inflight: Arc<Semaphore>,
}

impl App {
    /// An application that answers health checks, and everything else with 503 until `ready`.
    #[must_use]
    pub fn new(config: Config, status: Arc<Status>) -> Arc<App> {
        let bytes = usize::try_from(config.limits.inflight_bytes).unwrap_or(usize::MAX);
        let inflight = Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)));
        Arc::new(App { config, status, handle: OnceLock::new(), inflight })
    }

    /// Recovery is done: requests go to this handle. A second call does nothing.
    pub fn ready(&self, handle: Handle) {
        let _ = self.handle.set(handle);
    }

    /// The broker, once there is one.
    fn handle(&self) -> Result<&Handle, ApiError> {
        self.handle.get().ok_or_else(|| {
            ApiError::from(match self.status.phase() {
                Phase::Stopping => BrokerError::Stopping,
                Phase::Poisoned => BrokerError::OutcomeUnknown(self.status.cause().unwrap_or_default()),
                _ => {
                    let (done, all) = self.status.progress();
                    BrokerError::Starting(format!("recovering, {done} of {all} bytes"))
                }
            })
        })
    }

    /// Waits for the broker, at most `limits.request_seconds` and `beyond`.
    async fn within<T>(
        &self,
        beyond: Duration,
        call: impl Future<Output = Result<T, BrokerError>>,
    ) -> Result<T, ApiError> {
        let seconds = self.config.limits.request_seconds;
        let limit = Duration::from_secs(u64::from(seconds)) + beyond;
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(BrokerError::Timeout { seconds }.into()),
        }
    }

    /// Waits for room for an answer of so many bytes whose messages are consumed already: nobody would get them again,
    /// so it is never too late for them.
    async fn room_for_consumed(&self, bytes: u64) -> Result<OwnedSemaphorePermit, ApiError> {
        let limit = self.config.limits.inflight_bytes;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(limit);
        let acquire = Arc::clone(&self.inflight).acquire_many_owned(bytes);
        acquire.await.map_err(|_| ApiError::too_many_bytes(limit))
    }

    /// Waits for room for an answer of so many bytes.
    ///
    /// Waits rather than refusing, because what is to be read was claimed already.
    async fn room(&self, bytes: u64) -> Result<OwnedSemaphorePermit, ApiError> {
        let limit = self.config.limits.inflight_bytes;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(limit);
        let acquire = Arc::clone(&self.inflight).acquire_many_owned(bytes);
        let wait = Duration::from_secs(u64::from(self.config.limits.request_seconds));
        match tokio::time::timeout(wait, acquire).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(ApiError::too_many_bytes(limit)),
        }
    }
}

/// A JSON answer.
fn json_response(status: StatusCode, body: Vec<u8>) -> Response<Answer> {
    let mut response = Response::new(Answer::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON answer with 200.
fn json_value(value: &serde_json::Value) -> Response<Answer> {
    json_response(StatusCode::OK, value.to_string().into_bytes())
}

/// An answer without a body.
fn no_content() -> Response<Answer> {
    let mut response = Response::new(Answer::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
