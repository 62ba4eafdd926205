//! Bodies: reading a request's within its bounds, writing an answer's and knowing that it went out.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::CONTENT_LENGTH;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::conn::Conn;
use super::error::ApiError;
use crate::broker::handle::DeliveryGuard;
use crate::config::Limits;

/// A body must bring so many bytes, or its end, within each progress timeout.
const PROGRESS_BYTES: usize = 1024;
/// Reserved at once for an announced body; the rest as it comes.
const RESERVE_BYTES: u64 = 1 << 20;
/// Frames of an answer.
const FRAME_BYTES: usize = 64 * 1024;
/// A request's body in memory; counts against `limits.inflight_bytes` until it is dropped.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Reads a body. On an error `incoming` still holds what was not read.
///
/// # Errors
/// 413, 408, 429, or 400 when the client's framing is broken.
pub(crate) async fn receive(
    incoming: &mut Incoming,
    headers: &HeaderMap,
    limits: &Limits,
    inflight: &Arc<Semaphore>,
) -> Result<Received, ApiError> {
    // Announced too long: refused before a byte is asked for. A length that hyper let through is a number.
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > limits.body_bytes) {
        return Err(ApiError::body_too_large(limits.body_bytes));
    }
    let mut permit: Option<OwnedSemaphorePermit> = None;
    let mut whole: Option<BytesMut> = None;
    let mut first = Bytes::new();
    let mut total = 0_usize;
    'window: loop {
        let window = async {
            let mut progress = 0_usize;
            while progress < PROGRESS_BYTES {
                match incoming.frame().await {
                    None => return Ok(None),
                    Some(Err(error)) => {
                        return Err(ApiError::bad_body(format!(
                            "the body broke off or its framing is wrong: {error}"
                        ))
                        .closing());
                    }
                    Some(Ok(frame)) => {
                        let Ok(data) = frame.into_data() else { continue };
                        progress += data.len();
                        total += data.len();
                        if total as u64 > limits.body_bytes {
                            return Err(ApiError::body_too_large(limits.body_bytes));
                        }
                        let more = take(inflight, data.len(), limits)?;
                        match permit.as_mut() {
                            Some(permit) => permit.merge(more),
                            None => permit = Some(more),
                        }
                        if first.is_empty() && whole.is_none() {
                            first = data;
                            continue;
                        }
                        let whole = whole.get_or_insert_with(|| {
                            let reserve = announced.unwrap_or(0).min(RESERVE_BYTES);
                            let mut whole = BytesMut::with_capacity(usize::try_from(reserve).unwrap_or(0));
                            whole.extend_from_slice(&first);
                            whole
                        });
                        whole.extend_from_slice(&data);
                    }
                }
            }
            Ok(Some(()))
        };
        match timeout(limits.body_timeout(), window).await {
            Ok(Ok(Some(()))) => continue 'window,
            Ok(Ok(None)) => break,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(ApiError::body_timeout(limits.body_timeout_ms)),
        }
    }
    Ok(Received { bytes: whole.map_or(first, BytesMut::freeze), _permit: permit })
}

/// Takes room for so many bytes, or none.
///
/// # Errors
/// 429.
pub(crate) fn take(
    inflight: &Arc<Semaphore>,
    bytes: usize,
    limits: &Limits,
) -> Result<OwnedSemaphorePermit, ApiError> {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    Arc::clone(inflight)
        .try_acquire_many_owned(bytes)
        .map_err(|_| ApiError::too_many_bytes(limits.inflight_bytes))
}

/// Reads the rest of a refused body and throws it away. True when it ended, and the connection can be used on; false
/// when it did not end within the bounds, or broke.
pub(crate) async fn discard(incoming: &mut Incoming, bytes: usize, within: Duration) -> bool {
    let ended = async {
        let mut total = 0;
        while total <= bytes {
            match incoming.frame().await {
                None => return true,
                Some(Ok(frame)) => total += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(_)) => return false,
            }
        }
        false
    };
    timeout(within, ended).await.unwrap_or(false)
}

/// An answer's body.
///
/// Holds the guard of the claims it carries, and hands it to the connection with the last frame; the connection
/// disarms it when everything was flushed. Dropped before, it stays armed and the claims go back.
#[derive(Default)]
pub(crate) struct Answer {
    rest: Bytes,
    guard: Option<DeliveryGuard>,
    permit: Option<OwnedSemaphorePermit>,
    conn: Option<Arc<Conn>>,
}

impl Answer {
    /// A body without claims.
    pub(crate) fn new(bytes: Bytes) -> Answer {
        Answer { rest: bytes, guard: None, permit: None, conn: None }
    }

    /// A body that carries claims.
    pub(crate) fn with_claims(
        bytes: Bytes,
        guard: DeliveryGuard,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Answer {
        Answer { rest: bytes, guard: Some(guard), permit, conn: None }
    }

    /// Names the connection it goes out on.
    pub(crate) fn attach(&mut self, conn: Arc<Conn>) {
        self.conn = Some(conn);
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            return Poll::Ready(None);
        }
        let frame = this.rest.split_to(this.rest.len().min(FRAME_BYTES));
        if this.rest.is_empty()
            && let Some(conn) = this.conn.take()
        {
            conn.last_frame(this.guard.take(), this.permit.take());
        }
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // Dropped without its last frame (no body, a HEAD, a connection that broke): the guard stays armed.
        if let Some(conn) = self.conn.take() {
            conn.last_frame(None, None);
        }
    }
}
