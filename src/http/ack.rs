//! `POST /api/v1/ack` and `POST /api/v1/ack/batch`: both take both shapes.

use std::time::Duration;

use hyper::{Response, StatusCode};
use serde_json::value::RawValue;

use super::App;
use super::body::{Answer, Received};
use super::error::{ApiError, clip};
use super::json::{Items, Text, envelope, given, lossy_text, parse, put_number, put_text};
use super::names::{check_names, lease_reference, partition_reference};
use crate::broker::command::{AckCall, AckItem, AckStatus, AckVerdict};
use crate::broker::handle::Handle;
use crate::config::Limits;
use crate::format::id_hash;
use crate::types::QUEUE_MODE_GROUP;

envelope!(
    /// One acknowledgement.
    Acknowledgement {
        "transactionId" transaction_id: Option<Text<'a>>,
        "partitionId" partition_id: Option<Text<'a>>,
        "status" status: Option<Text<'a>>,
        "leaseId" lease_id: Option<Text<'a>>,
        "error" error: &'a RawValue,
    }
);

envelope!(
    /// The body: a single acknowledgement, a batch, or both; a batch with items wins.
    Body {
        "acknowledgments" acknowledgments: Option<Items<Acknowledgement<'a>>>,
        "consumerGroup" group: Option<Text<'a>>,
        "transactionId" transaction_id: Option<Text<'a>>,
        "partitionId" partition_id: Option<Text<'a>>,
        "status" status: Option<Text<'a>>,
        "leaseId" lease_id: Option<Text<'a>>,
        "error" error: &'a RawValue,
    }
);

impl Acknowledgement<'_> {
    /// The transaction id as the answer echoes it.
    pub(crate) fn echo(&self) -> &str {
        given(&self.transaction_id).unwrap_or_default()
    }

    /// The command's form of it.
    pub(crate) fn item(&self, handle: &Handle, limits: &Limits) -> AckItem {
        AckItem {
            hash: given(&self.transaction_id).map(|text| id_hash(handle.log(), text)),
            partition: partition_reference(given(&self.partition_id)),
            status: status(self.status.as_ref().and_then(Option::as_ref).map(Text::as_str)),
            lease: lease_reference(given(&self.lease_id)),
            error: self.error.and_then(lossy_text).map(|text| {
                let bytes = usize::try_from(limits.error_bytes).unwrap_or(usize::MAX);
                clip(&text, bytes).to_owned()
            }),
        }
    }
}

/// Status words are exact. A word that nobody knows is a failure, so that a typing error never loses a message.
fn status(word: Option<&str>) -> AckStatus {
    match word {
        None | Some("completed" | "success" | "acked" | "ok") => AckStatus::Completed,
        Some("retry") => AckStatus::Retry,
        Some("dlq") => AckStatus::DeadLetter,
        Some(_) => AckStatus::Failed,
    }
}

/// Acknowledges: 200 with one element per acknowledgement.
pub(crate) async fn ack(app: &App, received: Received) -> Result<Response<Answer>, ApiError> {
    let handle = app.handle()?;
    let limits = &app.config.limits;
    let body: Body<'_> = parse(&received.bytes, limits.json_depth, "ack")?;
    let group = given(&body.group).unwrap_or(QUEUE_MODE_GROUP);
    check_names("", "", group, limits.name_bytes)?;
    let single = Acknowledgement {
        transaction_id: body.transaction_id,
        partition_id: body.partition_id,
        status: body.status,
        lease_id: body.lease_id,
        error: body.error,
    };
    let list = match body.acknowledgments.flatten() {
        Some(Items(list)) if !list.is_empty() || single.transaction_id.is_none() => list,
        _ => vec![single],
    };
    if list.is_empty() {
        return Ok(super::json_response(StatusCode::OK, b"[]".to_vec()));
    }
    let call = AckCall {
        group: group.to_owned(),
        items: list.iter().map(|item| item.item(handle, limits)).collect(),
    };
    let verdicts = app.within(Duration::ZERO, handle.ack(call)).await?;
    if verdicts.len() != list.len() {
        return Err(ApiError::internal("the broker answered without a verdict for every acknowledgement"));
    }
    let mut out = Vec::with_capacity(2 + list.len() * 160);
    out.push(b'[');
    for (index, (item, verdict)) in list.iter().zip(&verdicts).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        element(&mut out, index, item.echo(), verdict);
    }
    out.push(b']');
    Ok(super::json_response(StatusCode::OK, out))
}

fn element(out: &mut Vec<u8>, index: usize, transaction_id: &str, verdict: &AckVerdict) {
    out.extend_from_slice(b"{\"index\":");
    put_number(out, index as u64);
    out.extend_from_slice(b",\"transactionId\":");
    put_text(out, transaction_id);
    put_flag(out, "success", verdict.success());
    put_error(out, verdict);
    put_flag(out, "leaseReleased", verdict.lease_released);
    put_flag(out, "dlq", verdict.dead_lettered);
    put_flag(out, "noop", verdict.noop);
    out.push(b'}');
}

/// Appends `,"error":` and the refusal's text or null.
pub(crate) fn put_error(out: &mut Vec<u8>, verdict: &AckVerdict) {
    out.extend_from_slice(b",\"error\":");
    match verdict.refusal {
        None => out.extend_from_slice(b"null"),
        Some(refusal) => put_text(out, &refusal.to_string()),
    }
}

/// Appends `,"key":` and a truth value.
pub(crate) fn put_flag(out: &mut Vec<u8>, key: &str, value: bool) {
    out.push(b',');
    put_text(out, key);
    out.extend_from_slice(if value { b":true" } else { b":false" });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_words_are_exact() {
        for word in [None, Some("completed"), Some("success"), Some("acked"), Some("ok")] {
            assert_eq!(status(word), AckStatus::Completed, "{word:?}");
        }
        for word in ["failed", "", "nope", "COMPLETED", "Ok", " completed", "dead"] {
            assert_eq!(status(Some(word)), AckStatus::Failed, "{word:?}");
        }
        assert_eq!(status(Some("retry")), AckStatus::Retry);
        assert_eq!(status(Some("dlq")), AckStatus::DeadLetter);
    }
}
