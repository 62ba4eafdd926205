//! `GET /api/v1/dlq`

use std::time::Duration;

use hyper::{Response, StatusCode};

use super::App;
use super::body::Answer;
use super::error::ApiError;
use super::json::{put_number, put_text, wire_time};
use super::pop::{put_optional, put_payload};
use super::query::Query;
use super::read;
use crate::broker::command::DeadLetterQuery;

/// Rows of a page that does not say.
const LIMIT_DEFAULT: u32 = 100;
/// Most rows of a page.
const LIMIT_MAX: u32 = 1000;

/// Lists dead letters, newest first.
pub(crate) async fn list(app: &App, query: &Query<'_>) -> Result<Response<Answer>, ApiError> {
    let handle = app.handle()?;
    let number = |key: &str| match query.number(key).map_err(ApiError::bad_request)? {
        None => Ok(None),
        Some(number) => u64::try_from(number)
            .map(Some)
            .map_err(|_| ApiError::bad_request(format!("{key} is {number}, it must not be negative"))),
    };
    let limit = number("limit")?.map_or(LIMIT_DEFAULT, |limit| u32::try_from(limit).unwrap_or(u32::MAX));
    let limit = limit.min(LIMIT_MAX);
    let offset = number("offset")?.unwrap_or(0);
    let asked = DeadLetterQuery {
        queue: query.text("queue").map(str::to_owned),
        group: query.text("consumerGroup").map(str::to_owned),
        limit,
        offset,
    };
    let page = app.within(Duration::ZERO, handle.dead_letters(asked)).await?;
    let _room = app.room(read::bytes(page.rows.iter().map(|row| &row.copy))).await?;
    let loaded = read::load(page.rows.iter().map(|row| row.copy.clone()).collect()).await?;
    let mut out = b"{\"messages\":[".to_vec();
    for (index, (row, (piece, bytes))) in page.rows.iter().zip(&loaded).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"id\":");
        put_text(&mut out, &row.id.text());
        read::entries(piece, bytes, |_, entry| {
            out.extend_from_slice(b",\"messageId\":");
            put_text(&mut out, &entry.id.text());
            out.extend_from_slice(b",\"transactionId\":");
            put_text(&mut out, &entry.transaction_id);
            out.extend_from_slice(b",\"data\":");
            put_payload(&mut out, entry.payload);
            out.extend_from_slice(b",\"producerSub\":");
            put_optional(&mut out, entry.producer);
        })?;
        for (key, text) in [
            ("partitionId", &*row.partition.to_string()),
            ("queue", &*row.queue),
            ("partition", &*row.partition_name),
            ("consumerGroup", &*row.group),
            ("errorMessage", &*row.error),
            ("createdAt", &*wire_time(row.created)),
            ("failedAt", &*wire_time(row.failed)),
        ] {
            out.push(b',');
            put_text(&mut out, key);
            out.push(b':');
            put_text(&mut out, text);
        }
        out.extend_from_slice(b",\"retryCount\":");
        put_number(&mut out, u64::from(row.retries_used));
        out.extend_from_slice(b",\"offset\":");
        put_number(&mut out, row.offset.0);
        out.push(b'}');
    }
    // A page that ended early for its size says so: what it holds is the limit that was in effect.
    let rows = page.rows.len() as u64;
    let limit = if offset.saturating_add(rows) < page.total { rows } else { u64::from(limit) };
    out.extend_from_slice(b"],\"pagination\":{\"limit\":");
    put_number(&mut out, limit);
    out.extend_from_slice(b",\"offset\":");
    put_number(&mut out, offset);
    out.extend_from_slice(b"},\"total\":");
    put_number(&mut out, page.total);
    out.push(b'}');
    Ok(super::json_response(StatusCode::OK, out))
}
