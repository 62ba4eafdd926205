//! The binary wire forms against the real daemon: what is pushed as frames is there as JSON, and the other way round.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod bombs;
mod pop;
mod push;
mod transaction;

use common::api::Api;
use serde_json::Value;

/// What both binary bodies are sent as.
const CONTENT_TYPE: &str = "application/x-queen-push";

/// Posts a binary body.
async fn send(api: &Api, path: &str, body: Vec<u8>) -> (u16, Value) {
    let answer = api.post_bytes(path, CONTENT_TYPE, body).await;
    (answer.status.as_u16(), answer.json())
}

/// Pushes and expects 201.
async fn pushed(api: &Api, body: Vec<u8>) -> Value {
    let (status, json) = send(api, "/api/v1/push", body).await;
    assert_eq!(status, 201, "{json}");
    json
}

/// The texts under a key, element by element.
fn texts<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|element| element[key].as_str().unwrap()).collect()
}
