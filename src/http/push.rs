//! `POST /api/v1/push`

use std::time::Duration;

use hyper::{Response, StatusCode};
use serde_json::json;

use super::App;
use super::binary::Room;
use super::binary::push::Push;
use super::body::{Answer, Received};
use super::error::ApiError;
use super::groups::{Groups, Message, Place};
use super::json::{Items, envelope, parse, put_number, put_text};
use crate::broker::command::PushVerdict;
use crate::broker::handle::Handle;

envelope!(
    /// The body.
    Body { "items" items: Items<Message<'a>> }
);

/// Stores messages: 201 with one element per item or with counts, or an error and nothing is stored.
pub(crate) async fn push(app: &App, binary: bool, received: Received) -> Result<Response<Answer>, ApiError> {
    let handle = app.handle()?;
    let limits = &app.config.limits;
    if binary {
        let room = Room::new(limits, &app.inflight, received.bytes.len());
        let push = Push::read(&received.bytes, room)?;
        let mut groups = Groups::new(handle, limits);
        push.section.each(|item, at| groups.put(item, at))?;
        return store(app, handle, groups, push.short).await;
    }
    let body: Body<'_> = parse(&received.bytes, limits.json_depth, "push")?;
    let Some(Items(items)) = body.items else {
        return Err(ApiError::bad_body("bad push body: items is required"));
    };
    let mut groups = Groups::new(handle, limits);
    for (index, message) in items.iter().enumerate() {
        groups.add(message, format_args!("items[{index}]"), false)?;
    }
    store(app, handle, groups, false).await
}

async fn store(
    app: &App,
    handle: &Handle,
    groups: Groups<'_>,
    short: bool,
) -> Result<Response<Answer>, ApiError> {
    let (groups, places) = groups.finish();
    let verdicts = match groups.is_empty() {
        true => Vec::new(),
        false => app.within(Duration::ZERO, handle.push(groups)).await?,
    };
    let body = if short { counts(&places, &verdicts)? } else { answer(&places, &verdicts)? };
    Ok(super::json_response(StatusCode::CREATED, body))
}

/// `{"count","queued","duplicate","error"}`. No item ever fails alone, so `error` is 0.
fn counts(places: &[Place<'_>], verdicts: &[Vec<PushVerdict>]) -> Result<Vec<u8>, ApiError> {
    let mut duplicates = 0_usize;
    for place in places {
        duplicates += usize::from(verdict(verdicts, place)?.duplicate);
    }
    let count = places.len();
    let body = json!({"count": count, "queued": count - duplicates, "duplicate": duplicates, "error": 0});
    Ok(body.to_string().into_bytes())
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
