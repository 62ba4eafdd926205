//! Consumer groups: lists, lag, moved, deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::App;
use super::body::{Answer, Received};
use super::error::ApiError;
use super::json::{Object, parse, wire_time};
use super::names::check_names;
use super::pop::instant;
use super::query::Query;
use super::resources::{age, rendered, survey, whole};
use crate::broker::command::{GroupChange, GroupReply, SeekTo};
use crate::broker::survey::{GroupRow, SurveyQuery};
use crate::format::delta::StartPolicy;
use crate::types::QUEUE_MODE_GROUP;

/// Seconds behind from which a partition is listed where the request does not say.
const LAG_DEFAULT: u32 = 3600;
/// Seconds behind above which a group is called lagging.
const LAGGING_SECONDS: u64 = 300;

/// `GET /api/v1/consumer-groups`: a bare array, one element per group and queue.
pub(crate) async fn list(app: &App) -> Result<Response<Answer>, ApiError> {
    let survey = survey(app, SurveyQuery { groups: true, ..SurveyQuery::default() }).await?;
    let row = |row: &GroupRow| {
        let seconds = age(survey.now, row.unread_since).unwrap_or(0);
        let state = match (seconds > LAGGING_SECONDS, row.consumed) {
            (true, _) => "Lagging",
            (false, true) => "Stable",
            (false, false) => "Dead",
        };
        let (mode, time) = match row.start {
            StartPolicy::All => ("all", None),
            StartPolicy::From(time) => ("new", Some(wire_time(time))),
        };
        json!({
            "name": &*row.name,
            "topics": [&*row.queue],
            "queueName": &*row.queue,
            "members": row.cursors,
            "partitionCursors": row.cursors,
            "partitionsWithLag": row.lagging,
            "totalLag": row.lag,
            "maxTimeLag": seconds,
            "state": state,
            "storage": "segments",
            "subscriptionMode": mode,
            "subscriptionTimestamp": time,
            "subscriptionCreatedAt": wire_time(row.created),
            "conflation": row.conflating,
        })
    };
    Ok(rendered(&survey, &survey.groups.iter().map(row).collect()))
}

/// `GET /api/v1/consumer-groups/lagging`: a bare array of partitions in which a group is behind, furthest first.
pub(crate) async fn lagging(app: &App, query: &Query<'_>) -> Result<Response<Answer>, ApiError> {
    let seconds = whole(query, "minLagSeconds", LAG_DEFAULT)? as u64;
    let pairs = app.config.limits.list_rows as usize;
    let survey = survey(app, SurveyQuery { pairs, lagging: true, ..SurveyQuery::default() }).await?;
    let rows: Vec<Value> = survey
        .pairs
        .iter()
        .filter_map(|row| {
            let behind = age(survey.now, row.unread_since).unwrap_or(0);
            (behind >= seconds).then(|| {
                json!({
                    "consumer_group": &*row.group,
                    "queue_name": &*row.queue,
                    "partition_name": &*row.partition,
                    "partition_id": row.id.to_string(),
                    "worker_id": row.lease.map(|lease| lease.text()),
                    "offset_lag": row.lag,
                    "time_lag_seconds": behind,
                    "lag_hours": behind / 3600,
                    "oldest_unconsumed_at": row.unread_since.map(wire_time),
                    "last_consumed_at": null,
                })
            })
        })
        .collect();
    Ok(rendered(&survey, &Value::Array(rows)))
}

/// `GET /api/v1/consumer-groups/{group}`: an object by queue; empty for a group that is nowhere.
pub(crate) async fn detail(app: &App, group: String) -> Result<Response<Answer>, ApiError> {
    check_names("", "", &group, app.config.limits.name_bytes)?;
    let pairs = app.config.limits.list_rows as usize;
    let query = SurveyQuery { group: Some(group), groups: true, pairs, ..SurveyQuery::default() };
    let survey = survey(app, query).await?;
    let mut partitions: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for row in &survey.pairs {
        partitions.entry(&row.queue).or_default().push(json!({
            "partition": &*row.partition,
            "workerId": row.lease.map(|lease| lease.text()),
            "lastConsumedAt": null,
            "totalConsumed": row.next.0,
            "offsetLag": row.lag,
            "timeLagSeconds": age(survey.now, row.unread_since).unwrap_or(0),
            "leaseActive": row.lease.is_some(),
        }));
    }
    let mut queues = Map::new();
    for row in &survey.groups {
        let partitions = partitions.remove(&*row.queue).unwrap_or_default();
        queues.insert(row.queue.to_string(), json!({"conflation": row.conflating, "partitions": partitions}));
    }
    Ok(rendered(&survey, &Value::Object(queues)))
}

async fn change(app: &App, change: GroupChange) -> Result<GroupReply, ApiError> {
    app.within(Duration::ZERO, app.handle()?.change_group(change)).await
}

/// `POST /api/v1/consumer-groups/{group}/subscription`
pub(crate) async fn subscription(
    app: &App,
    group: String,
    received: Received,
) -> Result<Response<Answer>, ApiError> {
    let limits = &app.config.limits;
    check_names("", "", &group, limits.name_bytes)?;
    let body: Object = parse(&received.bytes, limits.json_depth, "subscription")?;
    let text = match body.get("subscriptionTimestamp") {
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        _ => return Err(ApiError::bad_request("subscriptionTimestamp is required: an ISO timestamp")),
    };
    let Some(start) = instant(&text) else { return Err(bad_time("subscriptionTimestamp", &text)) };
    if group == QUEUE_MODE_GROUP {
        return Err(ApiError::bad_request(
            "queue mode begins with the first kept message always; use a consumer group, or seek",
        ));
    }
    let reply = change(app, GroupChange::Subscribe { group: group.clone(), start }).await?;
    Ok(super::json_value(&json!({
        "success": true,
        "consumerGroup": group,
        "newTimestamp": text,
        "rowsUpdated": reply.changed,
    })))
}

fn bad_time(key: &str, text: &str) -> ApiError {
    let text = super::error::clip(text, 100);
    ApiError::bad_request(format!("{key} is {text:?}, it must be an ISO timestamp like 2026-11-30T12:00:00Z"))
}

/// `POST …/queues/{queue}/seek` and `POST …/queues/{queue}/partitions/{partition}/seek`; without a body the second
/// seeks to the end.
pub(crate) async fn seek(
    app: &App,
    group: String,
    queue: String,
    partition: Option<String>,
    received: Received,
) -> Result<Response<Answer>, ApiError> {
    let limits = &app.config.limits;
    check_names(&queue, partition.as_deref().unwrap_or_default(), &group, limits.name_bytes)?;
    let body: Object = match (received.bytes.trim_ascii(), &partition) {
        (b"", Some(_)) => Object(vec![("toEnd".to_owned(), Value::Bool(true))]),
        (b"", None) => Object::default(),
        _ => parse(&received.bytes, limits.json_depth, "seek")?,
    };
    let refused = || ApiError::bad_request("Must specify toEnd=true or a timestamp");
    let time = match body.get("timestamp") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => return Err(refused()),
    };
    let to = match (body.get("toEnd"), &time) {
        (Some(Value::Bool(true)), None) => SeekTo::End,
        (None | Some(Value::Null | Value::Bool(false)), Some(text)) => {
            SeekTo::Time(instant(text).ok_or_else(|| bad_time("timestamp", text))?)
        }
        _ => return Err(refused()),
    };
    let asked =
        GroupChange::Seek { group: group.clone(), queue: queue.clone(), partition: partition.clone(), to };
    let reply = change(app, asked).await?;
    let mut answer = json!({"consumerGroup": group, "queueName": queue});
    let Some(fields) = answer.as_object_mut() else { return Err(ApiError::internal("an object is none")) };
    let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    put("success", Value::Bool(reply.changed > 0));
    if let Some(partition) = &partition {
        put("partitionName", Value::from(partition.as_str()));
        put("updated", Value::Bool(reply.changed > 0));
    } else {
        put("partitionsUpdated", Value::from(reply.changed));
    }
    if reply.changed == 0 {
        put(
            "error",
            Value::from(match (reply.queue_known, &partition) {
                (false, _) => "Queue not found",
                (true, Some(_)) => "Partition not found",
                (true, None) => "the queue has no partitions",
            }),
        );
        return Ok(super::json_response(StatusCode::NOT_FOUND, answer.to_string().into_bytes()));
    }
    put("seekToEnd", Value::Bool(to == SeekTo::End));
    put("targetTimestamp", time.map_or(Value::Null, Value::from));
    Ok(super::json_value(&answer))
}

/// `DELETE /api/v1/consumer-groups/{group}` and `…/queues/{queue}`: 200 whether or not there was one.
pub(crate) async fn delete(
    app: &App,
    group: String,
    queue: Option<String>,
    query: &Query<'_>,
) -> Result<Response<Answer>, ApiError> {
    check_names(queue.as_deref().unwrap_or_default(), "", &group, app.config.limits.name_bytes)?;
    // Forgetting the registration is what the clients mean when they do not say.
    let forget = query.get("deleteMetadata").is_none()
        || query.flag("deleteMetadata").map_err(ApiError::bad_request)?;
    let reply =
        change(app, GroupChange::Delete { group: group.clone(), queue: queue.clone(), forget }).await?;
    let mut body = json!({
        "success": true,
        "consumerGroup": group,
        "deletedPartitions": reply.changed,
        "metadataDeleted": forget,
    });
    if let (Some(queue), Some(body)) = (queue, body.as_object_mut()) {
        body.insert("queueName".to_owned(), Value::from(queue));
    }
    Ok(super::json_value(&body))
}
