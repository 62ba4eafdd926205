//! `POST /api/v1/lease/{id}/extend`

use std::time::Duration;

use hyper::{Response, StatusCode};
use serde_json::json;

use super::App;
use super::body::{Answer, Received};
use super::error::ApiError;
use super::json::{Object, wire_time};
use super::names::lease_reference;

/// Seconds of an extension that does not say.
const SECONDS_DEFAULT: u32 = 60;

/// Extends a lease: 200 whether or not there was one to extend.
pub(crate) async fn extend(app: &App, id: &str, received: Received) -> Result<Response<Answer>, ApiError> {
    let handle = app.handle()?;
    let seconds = seconds(&received.bytes, app.config.limits.lease_seconds_max)?;
    let reply = app.within(Duration::ZERO, handle.extend(lease_reference(Some(id)), seconds)).await?;
    let expires = reply.expires.filter(|_| reply.renewed > 0).map(wire_time);
    let body = json!({
        "leaseId": id,
        "success": reply.renewed > 0,
        "renewed": reply.renewed,
        "newExpiresAt": expires,
        "expiresAt": expires,
        "lease_expires_at": expires,
    });
    Ok(super::json_response(StatusCode::OK, body.to_string().into_bytes()))
}

/// The contract wants 60 for a body that is absent, unreadable or silent about it. A number that is there is checked.
fn seconds(body: &[u8], limit: u32) -> Result<u32, ApiError> {
    let Ok(object) = serde_json::from_slice::<Object>(body) else { return Ok(SECONDS_DEFAULT) };
    match object.get("seconds") {
        None | Some(serde_json::Value::Null) => Ok(SECONDS_DEFAULT),
        Some(value) => value
            .as_u64()
            .and_then(|seconds| u32::try_from(seconds).ok())
            .filter(|seconds| (1..=limit).contains(seconds))
            .ok_or_else(|| {
                let value = value.to_string();
                let value = super::error::clip(&value, 100);
                ApiError::bad_request(format!(
                    "seconds is {value}, it must be a whole number from 1 to {limit} (limits.lease_seconds_max)"
                ))
            }),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn seconds_default_to_sixty_and_are_checked_when_given() {
        for body in ["", "{}", "nonsense", "[]", r#"{"seconds":null}"#, r#"{"other":1}"#] {
            assert_eq!(seconds(body.as_bytes(), 100).unwrap(), 60, "{body}");
        }
        assert_eq!(seconds(br#"{"seconds":1}"#, 100).unwrap(), 1);
        assert_eq!(seconds(br#"{"seconds":100}"#, 100).unwrap(), 100);
        for value in ["0", "-1", "1.5", "101", "\"60\"", "4294967297", "1e9", "[]"] {
            assert!(seconds(format!("{{\"seconds\":{value}}}").as_bytes(), 100).is_err(), "{value}");
        }
    }
}
