//! Errors as the wire shows them, and the one place that gives each its status and code.
//!
//! Invariant: every error body is made by serde_json and is short, whatever the client sent.

use hyper::StatusCode;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::{Map, Value};

use super::body::Answer;
use crate::broker::command::BrokerError;

/// Longest error text in bytes; what a client sent may be part of it.
const TEXT_BYTES: usize = 1024;

/// The shape of an error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `{"error","code"}`
    Plain,
    /// `{"success":false,"error","messages":[]}`: how a pop refuses its parameters.
    Pop,
}

/// An answer that says why not.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    text: String,
    shape: Shape,
    retry_seconds: Option<u32>,
    allow: Option<String>,
    invalid: Option<&'static str>,
    close: bool,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, text: impl Into<String>) -> ApiError {
        ApiError {
            status,
            code,
            text: text.into(),
            shape: Shape::Plain,
            retry_seconds: None,
            allow: None,
            invalid: None,
            close: false,
        }
    }

    /// The body does not parse.
    pub(crate) fn bad_body(text: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "bad_body", text)
    }

    /// The request parses and cannot be done.
    pub(crate) fn bad_request(text: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "bad_request", text)
    }

    /// The request is not sound HTTP; nothing more is read from the connection.
    pub(crate) fn bad_http(text: impl Into<String>) -> ApiError {
        ApiError::bad_request(text).closing()
    }

    /// A pop's parameters are refused.
    pub(crate) fn bad_pop(text: impl Into<String>) -> ApiError {
        ApiError { shape: Shape::Pop, ..ApiError::bad_request(text) }
    }

    /// A queue option is refused; the answer names it.
    pub(crate) fn bad_option(option: &'static str, text: impl Into<String>) -> ApiError {
        ApiError { invalid: Some(option), ..ApiError::bad_request(text) }
    }

    /// No such path.
    pub(crate) fn no_such_route() -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "no_such_route", "Not Found")
    }

    /// The path is one of ours, and what it names is not there.
    pub(crate) fn not_found(text: &str) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", text)
    }

    /// The path does not take this method.
    pub(crate) fn method_not_allowed(allow: &str) -> ApiError {
        let text = format!("this path allows {allow}");
        ApiError {
            allow: Some(allow.to_owned()),
            ..ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", text)
        }
    }

    /// The body is longer than allowed.
    pub(crate) fn body_too_large(limit: u64) -> ApiError {
        let text = format!("the body is longer than {limit} bytes (limits.body_bytes)");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", text)
    }

    /// The body inflates to more than allowed.
    pub(crate) fn inflates_too_large(bytes: u64, limit: u32) -> ApiError {
        let text = format!(
            "the body inflates to {bytes} bytes or more, the limit is {limit} (limits.inflate_bytes)"
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", text)
    }

    /// The messages of the body take more memory than there is for all requests together.
    pub(crate) fn takes_too_much(bytes: u64, limit: u32) -> ApiError {
        let text = format!(
            "the body and its messages take {bytes} bytes of memory or more, the limit is {limit} \
             (limits.inflight_bytes); send it in parts"
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", text)
    }

    /// Line and headers are longer or more than allowed.
    pub(crate) fn headers_too_large(text: String) -> ApiError {
        ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", text).closing()
    }

    /// The body stopped coming.
    pub(crate) fn body_timeout(milliseconds: u32) -> ApiError {
        let text = format!("the body made no progress for {milliseconds} ms (limits.body_timeout_ms)");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", text).closing()
    }

    /// An expectation that nobody here can meet.
    pub(crate) fn expectation() -> ApiError {
        ApiError::new(
            StatusCode::EXPECTATION_FAILED,
            "bad_request",
            "the only known expectation is 100-continue",
        )
    }

    /// A content encoding that is not supported.
    pub(crate) fn encoding() -> ApiError {
        let text = "encoded request bodies are not supported; send the body without Content-Encoding";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_request", text)
    }

    /// Too many bytes are in memory.
    pub(crate) fn too_many_bytes(limit: u32) -> ApiError {
        let text = format!(
            "bodies and answers in memory reach {limit} bytes (limits.inflight_bytes); try again in 1 s"
        );
        ApiError {
            retry_seconds: Some(1),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", text)
        }
    }

    /// The broker has a fault, or its storage does.
    pub(crate) fn internal(text: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", text)
    }

    /// The same, and the connection ends with it.
    pub(crate) fn closing(self) -> ApiError {
        ApiError { close: true, ..self }
    }

    /// The answer.
    pub(crate) fn into_response(self) -> hyper::Response<Answer> {
        let text = clip(&self.text, TEXT_BYTES);
        let mut body = Map::new();
        if self.shape == Shape::Pop {
            body.insert("success".to_owned(), Value::Bool(false));
            body.insert("messages".to_owned(), Value::Array(Vec::new()));
        } else {
            body.insert("code".to_owned(), Value::from(self.code));
        }
        body.insert("error".to_owned(), Value::from(text));
        if let Some(option) = self.invalid {
            body.insert("invalid".to_owned(), Value::from(option));
        }
        let mut response = hyper::Response::new(Answer::new(Value::Object(body).to_string().into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            headers.insert(ALLOW, allow);
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<BrokerError> for ApiError {
    fn from(error: BrokerError) -> ApiError {
        let (status, code, retry_seconds) = match &error {
            BrokerError::Starting(_) | BrokerError::Stopping => {
                (StatusCode::SERVICE_UNAVAILABLE, "retry", Some(1))
            }
            BrokerError::OutcomeUnknown(_) => (StatusCode::SERVICE_UNAVAILABLE, "outcome_unknown", Some(1)),
            BrokerError::IndexUnreadable(_) => (StatusCode::INTERNAL_SERVER_ERROR, "unreadable", None),
            BrokerError::Timeout { .. } => (StatusCode::SERVICE_UNAVAILABLE, "timeout", Some(1)),
            BrokerError::Overloaded { retry_seconds } => {
                (StatusCode::TOO_MANY_REQUESTS, "overloaded", Some((*retry_seconds).clamp(1, 5)))
            }
            BrokerError::TooManyPolls { .. } => (StatusCode::TOO_MANY_REQUESTS, "overloaded", Some(1)),
            BrokerError::StorageFull { .. } => (StatusCode::INSUFFICIENT_STORAGE, "storage_full", None),
            BrokerError::GroupTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "group_too_large", None),
            BrokerError::NameTooLong { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "name_too_long", None),
        };
        ApiError { retry_seconds, ..ApiError::new(status, code, error.to_string()) }
    }
}

/// The beginning of a text, at most so many bytes, cut between characters.
pub(crate) fn clip(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.split_at(end).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clip_cuts_between_characters() {
        assert_eq!(clip("aé", 2), "a");
        assert_eq!(clip("aé", 3), "aé");
        assert_eq!(clip("", 3), "");
    }

    #[test]
    fn overload_says_when_to_come_back() {
        let response = ApiError::from(BrokerError::Overloaded { retry_seconds: 90 }).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers().get(RETRY_AFTER).map(HeaderValue::as_bytes), Some(&b"5"[..]));
    }
}
