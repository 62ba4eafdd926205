//! `POST /api/v1/push`

use std::time::Duration;

use hyper::{Response, StatusCode};

use super::App;
use super::body::{Answer, Received};
use super::error::ApiError;
use super::groups::{Groups, Message, Place};
use super::json::{Items, envelope, parse, put_number, put_text};
use crate::broker::command::PushVerdict;

envelope!(
    /// The body.
    Body { "items" items: Items<Message<'a>> }
);

/// Stores messages: 201 with one element per item, or an error and nothing is stored.
pub(crate) async fn push(app: &App, received: Received) -> Result<Response<Answer>, ApiError> {
    let handle = app.handle()?;
    let limits = &app.config.limits;
    let body: Body<'_> = parse(&received.bytes, limits.json_depth, "push")?;
    let Some(Items(items)) = body.items else {
        return Err(ApiError::bad_body("bad push body: items is required"));
    };
    if items.is_empty() {
        return Ok(super::json_response(StatusCode::CREATED, b"[]".to_vec()));
    }
    let mut groups = Groups::new(handle, limits);
    for (index, message) in items.iter().enumerate() {
        groups.add(message, format_args!("items[{index}]"), false)?;
    }
    let (groups, places) = groups.finish();
    let verdicts = app.within(Duration::ZERO, handle.push(groups)).await?;
    Ok(super::json_response(StatusCode::CREATED, answer(&places, &verdicts)?))
}

fn answer(places: &[Place<'_>], verdicts: &[Vec<PushVerdict>]) -> Result<Vec<u8>, ApiError> {
    let mut out = Vec::with_capacity(2 + places.len() * 200);
    out.push(b'[');
    for (index, place) in places.iter().enumerate() {
        let verdict = verdict(verdicts, place)?;
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"index\":");
        put_number(&mut out, index as u64);
        out.extend_from_slice(b",\"message_id\":");
        put_text(&mut out, &verdict.id.text());
        out.extend_from_slice(b",\"transaction_id\":");
        put_text(&mut out, &place.transaction_id);
        out.extend_from_slice(b",\"queueName\":");
        put_text(&mut out, place.queue);
        out.extend_from_slice(b",\"status\":");
        put_text(&mut out, if verdict.duplicate { "duplicate" } else { "queued" });
        out.extend_from_slice(b",\"offset\":");
        put_number(&mut out, verdict.offset.0);
        out.push(b'}');
    }
    out.push(b']');
    Ok(out)
}

/// The verdict of one item.
///
/// # Errors
/// 500 when the broker answered fewer verdicts than there are items, which is a fault of the daemon.
pub(crate) fn verdict(verdicts: &[Vec<PushVerdict>], place: &Place<'_>) -> Result<PushVerdict, ApiError> {
    verdicts
        .get(place.group)
        .and_then(|group| group.get(place.item))
        .copied()
        .ok_or_else(|| ApiError::internal("the broker answered without a verdict for every item"))
}
