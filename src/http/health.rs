//! `GET /health` (readiness) and `GET /health/live` (liveness).

use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::json;

use super::App;
use super::body::Answer;
use crate::broker::status::Phase;

/// Whether pushes work now: 200, or 503 with what is in the way.
pub(crate) fn readiness(app: &App) -> Response<Answer> {
    let status = &app.status;
    // Ready only with a handle: the phase may be set an instant before requests can be served.
    let phase = match status.phase() {
        Phase::Ready if app.handle.get().is_none() => Phase::Recovering,
        phase => phase,
    };
    let (word, name, role) = match phase {
        Phase::Recovering => ("settling", "recovering", "stopped"),
        Phase::Ready => ("healthy", "ready", "leader"),
        Phase::Poisoned => ("poisoned", "poisoned", "stopped"),
        Phase::Stopping => ("stopping", "stopping", "stopped"),
        Phase::Full => ("full", "full", "leader"),
    };
    let (epoch, watermark, staged) = status.positions();
    let (done, all) = status.progress();
    let body = json!({
        "status": word,
        "engine": "comb",
        "version": env!("CARGO_PKG_VERSION"),
        "phase": name,
        "backend": status.backend(),
        "cause": status.cause(),
        "progress": {"doneBytes": done, "totalBytes": all},
        "raft": {
            "role": role,
            "leader": role == "leader",
            "term": epoch,
            "applied": watermark,
            "commit": staged,
            "lag": staged.saturating_sub(watermark),
            "storageReady": phase == Phase::Ready,
            "clusterVersion": 1,
            "kinds": 0,
        },
    });
    let code = if phase == Phase::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = super::json_response(code, body.to_string().into_bytes());
    if phase != Phase::Ready {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// The process runs.
pub(crate) fn liveness() -> Response<Answer> {
    super::json_response(StatusCode::OK, b"{\"status\":\"alive\"}".to_vec())
}
