//! Accepting connections and answering the requests on them.
//!
//! Invariants:
//! - At most `limits.connections` connections; more wait in the kernel's backlog.
//! - The accept loop survives every error: it waits a little and goes on.
//! - A request whose framing can be read in two ways is refused and its connection closed.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, CONTENT_ENCODING, EXPECT, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use super::App;
use super::body::{Answer, Received, discard, receive};
use super::conn::{Begun, Conn, Watched};
use super::error::ApiError;
use super::router::Router;

/// Buffer of a connection. Larger than any allowed head, so that a head that is too large gets a JSON answer.
const BUFFER_BYTES: usize = 128 * 1024;
/// Headers that hyper parses beyond the limit, for the same reason.
const HEADERS_BEYOND: usize = 64;
/// Pauses after a failed accept: the first and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Of a refused body: read before the answer, so that the connection lives on.
const DISCARD_FIRST: (usize, Duration) = (64 * 1024, Duration::from_millis(500));
/// Of a refused body: read beside the answer, so that it reaches a client that is still sending. A connection that is
/// closed with unread bytes is reset, and the reset can overtake the answer.
const DISCARD_BESIDE: (usize, Duration) = (256 * 1024 * 1024, Duration::from_secs(30));
/// Time that connections get to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(4);

/// A request in work.
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) parts: Parts,
    body: Option<Incoming>,
}

impl Call {
    /// The request's body. On an error the rest of it stays here and is discarded later.
    ///
    /// # Errors
    /// See `body::receive`.
    pub(crate) async fn receive(&mut self) -> Result<Received, ApiError> {
        let Some(incoming) = self.body.as_mut() else {
            return Err(ApiError::internal("the body was read twice"));
        };
        let received =
            receive(incoming, &self.parts.headers, &self.app.config.limits, &self.app.inflight).await?;
        self.body = None;
        Ok(received)
    }
}

/// Serves until `shutdown` ends; then takes no more connections, lets every request in work be answered, and returns
/// when all connections are closed or four seconds have passed.
pub async fn serve(listener: TcpListener, app: Arc<App>, shutdown: impl Future<Output = ()>) {
    let router = Arc::new(Router::new());
    let connections = usize::try_from(app.config.limits.connections).unwrap_or(usize::MAX);
    let permits = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
    let (stop, stopping) = watch::channel(false);
    let mut shutdown = pin!(shutdown);
    let mut pause = PAUSE.0;
    loop {
        let accepted = async {
            // Never closed, so this cannot fail; if it did, accepting without a permit is the lesser evil.
            let permit = Arc::clone(&permits).acquire_owned().await.ok();
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            biased;
            () = shutdown.as_mut() => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                pause = PAUSE.0;
                let connection = connection(socket, Arc::clone(&app), Arc::clone(&router), stopping.clone());
                tokio::spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely; connections that end will give some back.
                warn!(%error, pause_ms = pause.as_millis(), "cannot accept a connection");
                tokio::select! {
                    () = shutdown.as_mut() => break,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
    drop(listener);
    let _ = stop.send(true);
    let all = app.config.limits.connections;
    if tokio::time::timeout(DRAIN, permits.acquire_many(all)).await.is_err() {
        warn!("connections were still open after {} s and are dropped", DRAIN.as_secs());
    }
}

async fn connection(
    socket: TcpStream,
    app: Arc<App>,
    router: Arc<Router>,
    mut stopping: watch::Receiver<bool>,
) {
    // Answers are small and complete; waiting to fill a packet only delays them.
    let _ = socket.set_nodelay(true);
    let conn = Arc::new(Conn::default());
    let limits = app.config.limits;
    let service =
        service_fn(|request| answer(Arc::clone(&app), Arc::clone(&router), Arc::clone(&conn), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // The watched socket keeps the times, idle ones apart from slow heads.
        .header_read_timeout(None)
        .max_buf_size(BUFFER_BYTES)
        .max_headers(limits.headers as usize + HEADERS_BEYOND)
        .serve_connection(TokioIo::new(Watched::new(socket, Arc::clone(&conn), limits)), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopping.changed() => {
            if conn.idle() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended early");
    }
}

async fn answer(
    app: Arc<App>,
    router: Arc<Router>,
    conn: Arc<Conn>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let begun = conn.begin();
    let (parts, body) = request.into_parts();
    let chunked = parts.headers.contains_key(TRANSFER_ENCODING);
    let expects = parts.headers.contains_key(EXPECT);
    let mut call = Call { app, parts, body: Some(body) };
    let mut response = match check(&call, begun) {
        Err(error) => error.into_response(),
        Ok(()) => match router.answer(&mut call).await {
            Ok(response) => response,
            Err(error) => error.into_response(),
        },
    };
    if let Some(body) = call.body.take().filter(|body| !body.is_end_stream()) {
        refuse_body(body, expects, &mut response).await;
    }
    if chunked && !begun.scanned {
        // A length beside the chunks would have been overlooked, and with it a request inside the body.
        close(&mut response);
    }
    if response.headers().contains_key(CONNECTION) {
        conn.end();
    }
    response.body_mut().attach(conn);
    Ok(response)
}

/// Does away with a body that nobody wants, without losing the answer on the way.
async fn refuse_body(mut body: Incoming, expected: bool, response: &mut Response<Answer>) {
    if response.headers().contains_key(CONNECTION) {
        return;
    }
    if expected {
        // The client waits for leave to send the body and does not get it.
        close(response);
        return;
    }
    let small = body.size_hint().exact().is_some_and(|bytes| bytes <= DISCARD_FIRST.0 as u64);
    if !(small && discard(&mut body, DISCARD_FIRST.0, DISCARD_FIRST.1).await) {
        close(response);
        tokio::spawn(async move { discard(&mut body, DISCARD_BESIDE.0, DISCARD_BESIDE.1).await });
    }
}

fn close(response: &mut Response<Answer>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// What is refused whatever the path.
fn check(call: &Call, begun: Begun) -> Result<(), ApiError> {
    let (parts, limits) = (&call.parts, &call.app.config.limits);
    if begun.ambiguous {
        return Err(ApiError::bad_http(
            "the request's head is ambiguous: one Content-Length or one Transfer-Encoding, and lines that end in CR LF",
        ));
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() || (host.is_none() && parts.version == Version::HTTP_11) {
        return Err(ApiError::bad_http("a request needs exactly one Host header"));
    }
    if parts.headers.len() > limits.headers as usize {
        return Err(ApiError::headers_too_large(format!(
            "the request has {} headers, the limit is {} (limits.headers)",
            parts.headers.len(),
            limits.headers
        )));
    }
    // Name, colon, space, value, line end; and the request line.
    let lines: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let uri = parts.uri.path_and_query().map_or(0, |path| path.as_str().len());
    let bytes = lines + uri + parts.method.as_str().len() + 12;
    if bytes > limits.header_bytes as usize {
        return Err(ApiError::headers_too_large(format!(
            "line and headers have {bytes} bytes, the limit is {} (limits.header_bytes)",
            limits.header_bytes
        )));
    }
    if let Some(expectation) = parts.headers.get(EXPECT)
        && !expectation.as_bytes().eq_ignore_ascii_case(b"100-continue")
    {
        return Err(ApiError::expectation());
    }
    if let Some(encoding) = parts.headers.get(CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        return Err(ApiError::encoding());
    }
    Ok(())
}
