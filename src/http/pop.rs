//! `GET /api/v1/pop…`: three routes, one answer.

use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use super::App;
use super::binary;
use super::body::Answer;
use super::error::ApiError;
use super::json::{put_number, put_text, wire_time};
use super::names::check_names;
use super::query::Query;
use super::read;
use crate::broker::command::{Piece, Pop, PopReply, PopTarget, StartRequest};
use crate::config::{Config, Subscription};
use crate::types::{QUEUE_MODE_GROUP, WallTime};

/// Delivers messages: 200 with a body, or 204.
pub(crate) async fn pop(
    app: &App,
    target: PopTarget,
    query: &Query<'_>,
) -> Result<Response<Answer>, ApiError> {
    let handle = app.handle()?;
    let wanted = Wanted::parse(&target, query, &app.config).map_err(|refusal| match refusal {
        Refusal::Parameter(text) => ApiError::bad_pop(text),
        Refusal::Other(error) => error,
    })?;
    let queue = match &target {
        PopTarget::Queue(queue) | PopTarget::Partition { queue, .. } => queue.clone(),
        PopTarget::Discovery { .. } => String::new(),
    };
    let (group, frames) = (wanted.group.clone(), wanted.frames);
    let (ticket, presence) = handle.pop_identity();
    let call = handle.pop(Pop {
        ticket,
        target,
        group: wanted.group,
        batch: wanted.batch,
        partitions: wanted.partitions,
        auto_ack: wanted.auto_ack,
        wait_us: wanted.wait_us,
        lease_seconds: wanted.lease_seconds,
        start: wanted.start,
        presence,
    });
    let delivery = app.within(Duration::from_micros(wanted.wait_us), call).await?;
    // From here on every way out drops the guard, armed, until the answer takes it.
    let (reply, guard) = delivery.split();
    if reply.claims.is_empty() {
        return Ok(super::no_content());
    }
    let bytes = read::bytes(reply.claims.iter().flat_map(|claim| &claim.pieces));
    let permit = if wanted.auto_ack { app.room_for_consumed(bytes).await? } else { app.room(bytes).await? };
    let pieces = reply.claims.iter().flat_map(|claim| claim.pieces.iter().cloned()).collect();
    let loaded = read::load(pieces).await?;
    // What an answer says beside its messages goes into the head of the framed form; nothing does so far.
    let (body, content_type) = match frames {
        true => (binary::pop::answer(&queue, &group, &reply, &loaded, None)?, binary::POP_CONTENT_TYPE),
        false => (answer(&queue, &group, &reply, &loaded)?, "application/json"),
    };
    drop(loaded);
    let mut response = Response::new(Answer::with_claims(body.into(), guard, Some(permit)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

/// What a pop's parameters say.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    group: String,
    batch: u32,
    partitions: u32,
    auto_ack: bool,
    wait_us: u64,
    lease_seconds: Option<u32>,
    start: StartRequest,
    /// Answer with frames.
    frames: bool,
}

/// Why not.
enum Refusal {
    Parameter(String),
    Other(ApiError),
}

impl From<String> for Refusal {
    fn from(text: String) -> Refusal {
        Refusal::Parameter(text)
    }
}

impl Wanted {
    fn parse(target: &PopTarget, query: &Query<'_>, config: &Config) -> Result<Wanted, Refusal> {
        let limits = &config.limits;
        if query.flag("conflation")? {
            return Err(Refusal::Parameter("conflation is not supported by this broker".to_owned()));
        }
        // Accepted and without effect, as the contract allows; a value that makes no sense is still an error.
        query.flag("autopilot")?;
        let group = query.text("consumerGroup").unwrap_or(QUEUE_MODE_GROUP);
        let (queue, partition) = match target {
            PopTarget::Queue(queue) => (queue.as_str(), ""),
            PopTarget::Partition { queue, partition } => (queue.as_str(), partition.as_str()),
            PopTarget::Discovery { namespace: None, task: None } => {
                return Err(Refusal::Parameter("namespace or task is required".to_owned()));
            }
            PopTarget::Discovery { .. } => ("", ""),
        };
        check_names(queue, partition, group, limits.name_bytes).map_err(Refusal::Other)?;
        let bounded = |wish: Option<i64>, default: u32, limit: u32| match wish {
            None => default.min(limit),
            Some(wish) => u32::try_from(wish.max(1)).unwrap_or(u32::MAX).min(limit),
        };
        let batch = bounded(query.number("batch")?, limits.pop_batch_default, limits.pop_batch_max);
        let partitions = bounded(query.number("partitions")?, 1, limits.pop_partitions_max);
        let timeout_ms = bounded(query.number("timeout")?, limits.poll_ms_default, limits.poll_ms_max);
        Ok(Wanted {
            group: group.to_owned(),
            batch,
            partitions: if matches!(target, PopTarget::Partition { .. }) { 1 } else { partitions },
            auto_ack: query.flag("autoAck")? || query.flag("commitOnDelivery")?,
            wait_us: if query.flag("wait")? { u64::from(timeout_ms) * 1000 } else { 0 },
            lease_seconds: lease_seconds(query.number("leaseSeconds")?, limits.lease_seconds_max)?,
            start: start(group, query, config.groups.default_subscription),
            frames: query.flag("frames")?,
        })
    }
}

fn lease_seconds(wish: Option<i64>, limit: u32) -> Result<Option<u32>, String> {
    match wish {
        None | Some(0) => Ok(None),
        Some(seconds) => u32::try_from(seconds).ok().filter(|seconds| *seconds <= limit).map(Some).ok_or_else(|| {
            format!("leaseSeconds is {seconds}, it must be from 1 to {limit} (limits.lease_seconds_max), or 0 for the queue's own")
        }),
    }
}

/// Where a new group begins. Queue mode has no say: it always begins with the first kept message.
fn start(group: &str, query: &Query<'_>, default: Subscription) -> StartRequest {
    if group == QUEUE_MODE_GROUP {
        return StartRequest::All;
    }
    if let Some(from) = query.get("subscriptionFrom").map(str::trim) {
        if from.eq_ignore_ascii_case("now") {
            return StartRequest::New;
        }
        if let Some(time) = instant(from) {
            return StartRequest::From(time);
        }
    }
    match query.get("subscriptionMode") {
        None => match default {
            Subscription::New => StartRequest::New,
            Subscription::All => StartRequest::All,
        },
        Some(mode) => match mode.trim().to_ascii_lowercase().as_str() {
            "new" | "new-only" | "new_only" | "newonly" => StartRequest::New,
            _ => StartRequest::All,
        },
    }
}

/// An ISO timestamp. Without a zone it is UTC; a `+` that became a space on its way is put back.
pub(crate) fn instant(text: &str) -> Option<WallTime> {
    let parse = |text: &str| -> Option<jiff::Timestamp> {
        if let Ok(timestamp) = text.parse() {
            return Some(timestamp);
        }
        let civil: jiff::civil::DateTime = text.parse().ok()?;
        civil.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    };
    let plus = || text.rsplit_once(' ').map(|(time, zone)| format!("{time}+{zone}"));
    let timestamp = text
        .parse::<jiff::Timestamp>()
        .ok()
        .or_else(|| plus().and_then(|text| text.parse().ok()))
        .or_else(|| parse(text))?;
    Some(WallTime(u64::try_from(timestamp.as_microsecond()).unwrap_or(0)))
}

/// The body of an answer with messages.
fn answer(
    queue: &str,
    group: &str,
    reply: &PopReply,
    loaded: &[(Piece, Bytes)],
) -> Result<Vec<u8>, ApiError> {
    let lease = reply.lease.map(|lease| lease.text()).unwrap_or_default();
    let payloads: usize = loaded.iter().map(|(_, bytes)| bytes.len()).sum();
    let messages: u64 = loaded.iter().map(|(piece, _)| piece.last.0 - piece.first.0 + 1).sum();
    let heads = usize::try_from(messages).unwrap_or(usize::MAX).saturating_mul(400);
    let mut out = Vec::with_capacity(payloads.saturating_add(heads).min(1 << 26));
    let (name, id) = reply
        .claims
        .first()
        .map_or(("", String::new()), |claim| (&*claim.partition_name, claim.partition.to_string()));
    out.extend_from_slice(b"{\"success\":true,\"queue\":");
    put_text(&mut out, queue);
    out.extend_from_slice(b",\"partition\":");
    put_text(&mut out, name);
    out.extend_from_slice(b",\"partitionId\":");
    put_text(&mut out, &id);
    out.extend_from_slice(b",\"leaseId\":");
    put_text(&mut out, &lease);
    out.extend_from_slice(b",\"consumerGroup\":");
    put_text(&mut out, group);
    out.extend_from_slice(b",\"messages\":[");
    let mut loaded = loaded.iter();
    let mut first = true;
    for claim in &reply.claims {
        // What every message of the claim ends with.
        let mut tail = b",\"partitionId\":".to_vec();
        put_text(&mut tail, &claim.partition.to_string());
        tail.extend_from_slice(b",\"partition\":");
        put_text(&mut tail, &claim.partition_name);
        tail.extend_from_slice(b",\"leaseId\":");
        put_text(&mut tail, &lease);
        tail.extend_from_slice(b",\"consumerGroup\":");
        put_text(&mut tail, group);
        tail.extend_from_slice(b",\"deliveryAttempt\":");
        put_number(&mut tail, u64::from(claim.attempt));
        tail.extend_from_slice(b",\"offset\":");
        for (piece, bytes) in loaded.by_ref().take(claim.pieces.len()) {
            let created = wire_time(piece.run.created);
            read::entries(piece, bytes, |offset, entry| {
                if !std::mem::take(&mut first) {
                    out.push(b',');
                }
                out.extend_from_slice(b"{\"id\":");
                put_text(&mut out, &entry.id.text());
                out.extend_from_slice(b",\"transactionId\":");
                put_text(&mut out, &entry.transaction_id);
                out.extend_from_slice(b",\"traceId\":");
                put_optional(
                    &mut out,
                    entry.trace.map(|trace| uuid::Uuid::from_u128(trace).to_string()).as_deref(),
                );
                out.extend_from_slice(b",\"data\":");
                put_payload(&mut out, entry.payload);
                out.extend_from_slice(b",\"producerSub\":");
                put_optional(&mut out, entry.producer);
                out.extend_from_slice(b",\"createdAt\":");
                put_text(&mut out, &created);
                out.extend_from_slice(&tail);
                put_number(&mut out, offset);
                out.push(b'}');
            })?;
        }
    }
    out.extend_from_slice(b"],\"partitionsClaimed\":");
    put_number(&mut out, reply.claims.len() as u64);
    out.push(b'}');
    Ok(out)
}

/// Appends a payload as it was pushed.
pub(crate) fn put_payload(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend_from_slice(if payload.is_empty() { b"null" } else { payload });
}

/// Appends a JSON string or null.
pub(crate) fn put_optional(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => put_text(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn wanted(query: &str) -> Result<Wanted, String> {
        let query = Query::parse(Some(query)).unwrap();
        Wanted::parse(&PopTarget::Queue("q".to_owned()), &query, &Config::defaults()).map_err(|refusal| {
            match refusal {
                Refusal::Parameter(text) => text,
                Refusal::Other(_) => "other".to_owned(),
            }
        })
    }

    #[test]
    fn defaults() {
        let wanted = wanted("wait=true").unwrap();
        assert_eq!(wanted.group, QUEUE_MODE_GROUP);
        assert_eq!((wanted.batch, wanted.partitions, wanted.wait_us), (200, 1, 30_000_000));
        assert_eq!((wanted.auto_ack, wanted.lease_seconds, wanted.start), (false, None, StartRequest::All));
    }

    #[test]
    fn ranges() {
        for (query, batch, partitions, wait_us) in [
            ("batch=0&partitions=0&wait=true&timeout=0", 1, 1, 1000),
            ("batch=-5&partitions=-1&wait=true&timeout=-1", 1, 1, 1000),
            ("batch=10000&partitions=64&wait=true&timeout=60000", 10_000, 64, 60_000_000),
            ("batch=10001&partitions=65&wait=true&timeout=60001", 10_000, 64, 60_000_000),
            ("batch=9223372036854775807&wait=false&timeout=5", 10_000, 1, 0),
        ] {
            let wanted = wanted(query).unwrap();
            assert_eq!(
                (wanted.batch, wanted.partitions, wanted.wait_us),
                (batch, partitions, wait_us),
                "{query}"
            );
        }
        for (query, seconds) in [("leaseSeconds=0", None), ("leaseSeconds=604800", Some(604_800))] {
            assert_eq!(wanted(query).unwrap().lease_seconds, seconds, "{query}");
        }
        for query in [
            "batch=abc",
            "batch=1.5",
            "batch=",
            "batch=9223372036854775808",
            "wait=maybe",
            "autoAck=yes",
            "timeout=NaN",
            "leaseSeconds=-1",
            "leaseSeconds=604801",
            "leaseSeconds=1.5",
            "partitions=x",
            "conflation=true",
            "conflation=x",
            "autopilot=x",
            "frames=x",
        ] {
            let key = query.split('=').next().unwrap();
            assert!(wanted(query).unwrap_err().contains(key), "{query}");
        }
        assert!(wanted("autopilot=true&frames=true&conflation=false").is_ok());
        assert!(!wanted("wait=true").unwrap().frames && wanted("frames=true").unwrap().frames);
        assert!(wanted("commitOnDelivery=true").unwrap().auto_ack);
    }

    #[test]
    fn subscriptions() {
        let time = StartRequest::From(WallTime(1_796_040_000_000_000));
        for (query, start) in [
            ("", StartRequest::New),
            ("subscriptionMode=%20NEW-only%20", StartRequest::New),
            ("subscriptionMode=from_beginning", StartRequest::All),
            ("subscriptionMode=all&subscriptionFrom=NOW", StartRequest::New),
            ("subscriptionFrom=2026-11-30T12:00:00Z", time),
            ("subscriptionFrom=2026-11-30T12:00:00.000000", time),
            ("subscriptionFrom=2026-11-30T13:00:00%2B01:00", time),
            ("subscriptionFrom=2026-11-30T13:00:00+01:00", time),
            ("subscriptionFrom=2026-11-30%2012:00:00", time),
            ("subscriptionMode=all&subscriptionFrom=yesterday", StartRequest::All),
            ("subscriptionFrom=1960-01-01T00:00:00Z", StartRequest::From(WallTime(0))),
        ] {
            assert_eq!(wanted(&format!("consumerGroup=g&{query}")).unwrap().start, start, "{query}");
        }
        assert_eq!(wanted("subscriptionMode=new").unwrap().start, StartRequest::All, "queue mode has no say");
    }
}
