//! Queues, partitions, namespaces and tasks in numbers.
//!
//! Purpose: render surveys of the state as the admin plane shows them. `broker::survey` says how messages are counted.
//!
//! Lists of partitions are bounded by `limits.list_rows`; an answer that left some out carries the header
//! `x-comb-truncated: true`.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Response;
use hyper::header::HeaderValue;
use serde_json::{Value, json};

use super::App;
use super::body::Answer;
use super::configure::options_value;
use super::error::ApiError;
use super::json::wire_time;
use super::names::check_names;
use super::query::Query;
use crate::broker::survey::{Counts, PartitionRow, QueueRow, Survey, SurveyQuery};
use crate::types::WallTime;

/// Rows of `resources/partitions` where the request does not say.
const PARTITIONS_DEFAULT: u32 = 610;
/// Rows of a page of `status/queues` where the request does not say.
const PAGE_DEFAULT: u32 = 100;

/// Takes a survey within the request's deadline.
pub(crate) async fn survey(app: &App, query: SurveyQuery) -> Result<Survey, ApiError> {
    app.within(Duration::ZERO, app.handle()?.survey(query)).await
}

/// An answer from a survey; says so when rows were left out.
pub(crate) fn rendered(survey: &Survey, body: &Value) -> Response<Answer> {
    let mut response = super::json_value(body);
    if survey.truncated {
        response.headers_mut().insert("x-comb-truncated", HeaderValue::from_static("true"));
    }
    response
}

/// A number of a query, not negative.
pub(crate) fn whole(query: &Query<'_>, key: &str, default: u32) -> Result<usize, ApiError> {
    let Some(number) = query.number(key).map_err(ApiError::bad_request)? else { return Ok(default as usize) };
    usize::try_from(number)
        .map_err(|_| ApiError::bad_request(format!("{key} is {number}, it must not be negative")))
}

/// Seconds since a moment.
pub(crate) fn age(now: WallTime, since: Option<WallTime>) -> Option<u64> {
    since.map(|since| now.0.saturating_sub(since.0) / 1_000_000)
}

fn rows(app: &App) -> usize {
    app.config.limits.list_rows as usize
}

/// `GET /api/v1/resources/queues`. Parameters are ignored, as the contract has it.
pub(crate) async fn queues(app: &App, _: &Query<'_>) -> Result<Response<Answer>, ApiError> {
    let survey = survey(app, SurveyQuery::default()).await?;
    let queues: Vec<Value> = survey
        .queues
        .iter()
        .map(|row| {
            json!({
                "id": row.id.to_string(),
                "name": &*row.name,
                "namespace": row.namespace,
                "task": row.task,
                "createdAt": wire_time(row.created),
                "partitions": row.partitions,
                "retainedBytes": row.bytes,
                "segments": segments(row),
                "messages": messages(&row.counts),
            })
        })
        .collect();
    Ok(rendered(&survey, &json!({"queues": queues})))
}

fn segments(row: &QueueRow) -> Value {
    json!({"segments": row.spans, "messages": row.counts.total})
}

fn messages(counts: &Counts) -> Value {
    json!({
        "total": counts.total,
        "pending": counts.pending,
        "processing": counts.processing,
        "completed": counts.completed(),
        "deadLetter": counts.dead_letters,
    })
}

fn stats(counts: &Counts) -> Value {
    let mut stats = messages(counts);
    if let Some(stats) = stats.as_object_mut() {
        stats.insert("failed".to_owned(), Value::Null);
    }
    stats
}

/// The queue of a survey of one queue.
fn only(survey: &Survey) -> Result<&QueueRow, ApiError> {
    survey.queues.first().ok_or_else(|| ApiError::not_found("Queue not found"))
}

/// One queue with rows of its partitions, by name.
async fn one(app: &App, queue: String) -> Result<Survey, ApiError> {
    check_names(&queue, "", "", app.config.limits.name_bytes)?;
    let query = SurveyQuery { queue: Some(queue), partitions: rows(app), ..SurveyQuery::default() };
    let mut survey = survey(app, query).await?;
    survey.partitions.sort_by_key(|row| row.id);
    Ok(survey)
}

/// `GET /api/v1/resources/queues/{queue}`
pub(crate) async fn queue(app: &App, queue: String) -> Result<Response<Answer>, ApiError> {
    let survey = one(app, queue).await?;
    let row = only(&survey)?;
    let partitions: Vec<Value> = survey
        .partitions
        .iter()
        .map(|partition| {
            json!({
                "id": partition.id.to_string(),
                "name": &*partition.name,
                "createdAt": wire_time(partition.created),
                "stats": stats(&partition.counts),
                "oldestMessage": partition.oldest.map(wire_time),
                "newestMessage": partition.newest.map(wire_time),
            })
        })
        .collect();
    let body = json!({
        "id": row.id.to_string(),
        "name": &*row.name,
        "namespace": row.namespace,
        "task": row.task,
        "createdAt": wire_time(row.created),
        "options": options_value(&row.namespace, &row.task, &row.options),
        "partitions": partitions,
        "totals": stats(&row.counts),
        "retainedBytes": row.bytes,
        "segments": segments(row),
    });
    Ok(rendered(&survey, &body))
}

/// `GET /api/v1/resources/queues/{queue}/depth`
pub(crate) async fn depth(app: &App, queue: String, query: &Query<'_>) -> Result<Response<Answer>, ApiError> {
    let group = query.text("group").map(str::to_owned);
    check_names(&queue, "", group.as_deref().unwrap_or_default(), app.config.limits.name_bytes)?;
    let query = SurveyQuery { queue: Some(queue), group, partitions: rows(app), ..SurveyQuery::default() };
    let group = query.group.clone();
    let survey = survey(app, query).await?;
    let row = only(&survey)?;
    let partitions: Vec<Value> = survey
        .partitions
        .iter()
        .map(|row| json!({"partition": &*row.name, "pending": row.counts.pending}))
        .collect();
    let pending = row.counts.pending;
    let body = json!({
        "queue": &*row.name,
        "group": group,
        "pending": pending,
        "partitionsPending": row.partitions_pending,
        "conflation": row.conflating,
        "effectivePending": if row.conflating { row.partitions_pending } else { pending },
        "partitions": partitions,
    });
    Ok(rendered(&survey, &body))
}

/// `GET /api/v1/resources/partitions`
pub(crate) async fn partitions(app: &App, query: &Query<'_>) -> Result<Response<Answer>, ApiError> {
    let queue = query.text("queue").map(str::to_owned);
    let limit = whole(query, "limit", PARTITIONS_DEFAULT)?.min(rows(app));
    let survey = survey(app, SurveyQuery { queue, partitions: limit, ..SurveyQuery::default() }).await?;
    let partitions: Vec<Value> = survey
        .partitions
        .iter()
        .map(|row| {
            json!({
                "queue": &*row.queue,
                "partition": &*row.name,
                "id": row.id.to_string(),
                "pending": row.counts.pending,
                "processing": row.counts.processing,
                "lagSeconds": age(survey.now, row.unread_since),
            })
        })
        .collect();
    Ok(rendered(&survey, &json!({"partitions": partitions})))
}

/// `GET /api/v1/resources/overview`
pub(crate) async fn overview(app: &App) -> Result<Response<Answer>, ApiError> {
    let survey = survey(app, SurveyQuery { groups: true, ..SurveyQuery::default() }).await?;
    let mut counts = Counts::default();
    let mut partitions = 0;
    for row in &survey.queues {
        counts.add(&row.counts);
        partitions += row.partitions;
    }
    let distinct = |label: fn(&QueueRow) -> &String| {
        let labels: std::collections::BTreeSet<&String> =
            survey.queues.iter().map(label).filter(|label| !label.is_empty()).collect();
        labels.len()
    };
    let ages = survey.groups.iter().filter_map(|row| age(survey.now, row.unread_since)).collect();
    let lags = survey.groups.iter().map(|row| row.lag).collect();
    let body = json!({
        "queues": survey.queues.len(),
        "partitions": partitions,
        "namespaces": distinct(|row| &row.namespace),
        "tasks": distinct(|row| &row.task),
        "messages": {
            "total": counts.total,
            "pending": counts.pending,
            "processing": counts.processing,
            "completed": counts.completed(),
            "failed": 0, // a failed message is pending again or a dead letter
            "deadLetter": counts.dead_letters,
        },
        "lag": {"time": spread(ages), "offset": spread(lags)},
        "throughput": {"ingestedPerSecond": null, "processedPerSecond": null},
        "timestamp": wire_time(survey.now),
        "statsAge": 0, // counted now
    });
    Ok(rendered(&survey, &body))
}

fn spread(mut values: Vec<u64>) -> Value {
    values.sort_unstable();
    let count = values.len() as u64;
    let average = values.iter().sum::<u64>().checked_div(count);
    json!({
        "avg": average,
        "median": values.get(values.len() / 2),
        "min": values.first(),
        "max": values.last(),
    })
}

/// `GET /api/v1/resources/namespaces` and `…/tasks`. `label`: which of the two.
pub(crate) async fn labels(app: &App, label: &str, list: &str) -> Result<Response<Answer>, ApiError> {
    let survey = survey(app, SurveyQuery::default()).await?;
    let mut sums: BTreeMap<&str, (u64, u64, Counts)> = BTreeMap::new();
    for row in &survey.queues {
        let text = if label == "task" { &row.task } else { &row.namespace };
        if text.is_empty() {
            continue; // it has none
        }
        let sum = sums.entry(text).or_default();
        sum.0 += 1;
        sum.1 += row.partitions;
        sum.2.add(&row.counts);
    }
    let labels: Vec<Value> = sums
        .into_iter()
        .map(|(text, (queues, partitions, counts))| {
            json!({
                label: text,
                "queues": queues,
                "partitions": partitions,
                "messages": {"total": counts.total, "pending": counts.pending},
            })
        })
        .collect();
    Ok(rendered(&survey, &json!({list: labels})))
}

/// `GET /api/v1/status/queues`
pub(crate) async fn status_queues(app: &App, query: &Query<'_>) -> Result<Response<Answer>, ApiError> {
    let text = |key: &str| query.text(key).map(str::to_owned);
    let (limit, offset) = (whole(query, "limit", PAGE_DEFAULT)?, whole(query, "offset", 0)?);
    let asked = SurveyQuery {
        queue: text("queue"),
        namespace: text("namespace"),
        task: text("task"),
        ..SurveyQuery::default()
    };
    let survey = survey(app, asked).await?;
    let queues: Vec<Value> = survey
        .queues
        .iter()
        .skip(offset)
        .take(limit)
        .map(|row| {
            json!({
                "id": row.id.to_string(),
                "name": &*row.name,
                "namespace": row.namespace,
                "task": row.task,
                "createdAt": wire_time(row.created),
                "partitions": row.partitions,
                "messages": messages(&row.counts),
            })
        })
        .collect();
    Ok(rendered(&survey, &json!({"queues": queues, "pagination": {"limit": limit, "offset": offset}})))
}

/// `GET /api/v1/status/queues/{queue}`
pub(crate) async fn status_queue(app: &App, queue: String) -> Result<Response<Answer>, ApiError> {
    let survey = one(app, queue).await?;
    let row = only(&survey)?;
    let partition = |row: &PartitionRow| {
        json!({
            "id": row.id.to_string(),
            "name": &*row.name,
            "messages": messages(&row.counts),
            "stats": stats(&row.counts),
            "cursor": {"batchesConsumed": 0, "totalConsumed": row.counts.completed()},
            "lastActivity": row.newest.map(wire_time),
            "oldestMessage": row.oldest.map(wire_time),
            "newestMessage": row.newest.map(wire_time),
        })
    };
    let body = json!({
        "queue": {
            "id": row.id.to_string(),
            "name": &*row.name,
            "namespace": row.namespace,
            "task": row.task,
            "createdAt": wire_time(row.created),
            "config": options_value(&row.namespace, &row.task, &row.options),
        },
        "partitions": survey.partitions.iter().map(partition).collect::<Vec<_>>(),
        "totals": stats(&row.counts),
    });
    Ok(rendered(&survey, &body))
}
