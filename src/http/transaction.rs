//! `POST /api/v1/transaction`: acks and pushes that stand or fall together.

use std::time::Duration;

use hyper::{Response, StatusCode};
use serde_json::json;
use serde_json::value::RawValue;

use super::App;
use super::ack::{Acknowledgement, put_error, put_flag};
use super::binary::Room;
use super::binary::transaction::Transaction as Packed;
use super::body::{Answer, Received};
use super::error::ApiError;
use super::groups::{Groups, Message, Place};
use super::json::{Items, Text, envelope, given, parse, put_number, put_text};
use super::names::{check_names, lease_reference};
use super::push::verdict;
use crate::broker::command::{
    AckVerdict, PushVerdict, Reference, RollbackReason, Transaction, TransactionAck, TransactionReply,
};
use crate::types::QUEUE_MODE_GROUP;

envelope!(
    /// The body.
    Body {
        "operations" operations: Option<Items<Operation<'a>>>,
        "requiredLeases" required: Option<Items<Option<Text<'a>>>>,
        "kv" kv: Option<Items<&'a RawValue>>,
        "timers" timers: Option<Items<&'a RawValue>>,
        "positions" positions: Option<Items<&'a RawValue>>,
    }
);

envelope!(
    /// One operation: the fields of every kind; `type` says which count.
    Operation {
        "type" kind: Text<'a>,
        "items" items: Option<Items<Message<'a>>>,
        "queue" queue: Text<'a>,
        "partition" partition: Option<Text<'a>>,
        "payload" payload: &'a RawValue,
        "traceId" trace: &'a RawValue,
        "transactionId" transaction_id: Option<Text<'a>>,
        "partitionId" partition_id: Option<Text<'a>>,
        "status" status: Option<Text<'a>>,
        "consumerGroup" group: Option<Text<'a>>,
        "leaseId" lease_id: Option<Text<'a>>,
        "error" error: &'a RawValue,
    }
);

/// An operation of known kind.
enum Step<'a> {
    Push(Vec<Message<'a>>),
    Ack(String, Acknowledgement<'a>),
}

impl<'a> Operation<'a> {
    fn step(self, index: usize) -> Result<Step<'a>, ApiError> {
        match self.kind.as_ref().map(Text::as_str) {
            Some("push") => Ok(Step::Push(match self.items.flatten() {
                Some(Items(items)) => items,
                None => vec![Message {
                    queue: self.queue,
                    partition: self.partition,
                    payload: self.payload,
                    transaction_id: self.transaction_id,
                    trace: self.trace,
                }],
            })),
            Some("ack") => Ok(Step::Ack(
                given(&self.group).unwrap_or(QUEUE_MODE_GROUP).to_owned(),
                Acknowledgement {
                    transaction_id: self.transaction_id,
                    partition_id: self.partition_id,
                    status: self.status,
                    lease_id: self.lease_id,
                    error: self.error,
                },
            )),
            Some(other) => Err(ApiError::bad_request(format!(
                "operations[{index}]: type is {:?}, it must be push or ack",
                super::error::clip(other, 100)
            ))),
            None => Err(ApiError::bad_body(format!(
                "bad transaction body: operations[{index}]: type is required"
            ))),
        }
    }
}

/// Runs a transaction: 200 whether it committed or rolled back.
pub(crate) async fn transaction(
    app: &App,
    binary: bool,
    received: Received,
) -> Result<Response<Answer>, ApiError> {
    let handle = app.handle()?;
    let limits = &app.config.limits;
    let packed = match binary {
        true => Some(Packed::read(&received.bytes, Room::new(limits, &app.inflight, received.bytes.len()))?),
        false => None,
    };
    let body: Body<'_> = match &packed {
        None => parse(&received.bytes, limits.json_depth, "transaction")?,
        Some(packed) if packed.head.is_empty() => Body::default(),
        Some(packed) => parse(&packed.head, limits.json_depth, "transaction")?,
    };
    for (name, rider) in [("kv", &body.kv), ("timers", &body.timers), ("positions", &body.positions)] {
        if rider.as_ref().and_then(Option::as_ref).is_some_and(|Items(rider)| !rider.is_empty()) {
            return Err(ApiError::bad_request(format!(
                "{name} is not supported in a transaction by this broker"
            )));
        }
    }
    let mut steps = Vec::new();
    for (index, operation) in body.operations.flatten().unwrap_or_default().0.into_iter().enumerate() {
        steps.push(operation.step(index)?);
    }
    let mut groups = Groups::new(handle, limits);
    let mut acks = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        match step {
            Step::Push(_) if binary => {
                return Err(ApiError::bad_body(format!(
                    "bad transaction body: operations[{index}] of the head is a push; pushes of a binary transaction \
                     are in its groups"
                )));
            }
            Step::Push(messages) => {
                for (item, message) in messages.iter().enumerate() {
                    groups.add(message, format_args!("operations[{index}]: items[{item}]"), true)?;
                }
            }
            Step::Ack(group, item) => {
                check_names("", "", group, limits.name_bytes)?;
                acks.push(TransactionAck { group: group.clone(), item: item.item(handle, limits) });
            }
        }
    }
    if let Some(packed) = &packed {
        packed.section.each(|item, at| groups.put(item, at))?;
    }
    let (pushes, places) = groups.finish();
    if acks.is_empty() && places.is_empty() {
        return Err(ApiError::bad_request("the transaction is empty: it needs a push or an ack"));
    }
    let required = body.required.flatten().unwrap_or_default().0;
    let required = required
        .iter()
        .map(|text| match text {
            // An entry that names nothing is a fence that cannot be met.
            None => Reference::Malformed,
            Some(text) => lease_reference(Some(text.as_str())),
        })
        .collect();
    let own_id = handle.ids().message_id().text();
    let reply =
        app.within(Duration::ZERO, handle.transaction(Transaction { acks, pushes, required })).await?;
    let out = match reply {
        TransactionReply::Committed { acks, pushes }
            if packed.as_ref().is_some_and(|packed| packed.short) =>
        {
            counted(&own_id, &places, &acks, &pushes)?
        }
        TransactionReply::Committed { acks, pushes } => committed(&own_id, &steps, &places, &acks, &pushes)?,
        TransactionReply::RolledBack { reason, error } => json!({
            "transactionId": own_id,
            "success": false,
            "reason": word(reason),
            "error": error,
            "results": [],
        })
        .to_string()
        .into_bytes(),
    };
    Ok(super::json_response(StatusCode::OK, out))
}

fn word(reason: RollbackReason) -> &'static str {
    match reason {
        RollbackReason::Duplicate => "duplicate",
        RollbackReason::RejectedAck => "rejected_ack",
        RollbackReason::TooLarge => "too_large",
    }
}

/// The results of pushes and acks as counts; `duplicate` are those of the pushed that repeat another of the bundle.
fn counted(
    own_id: &str,
    places: &[Place<'_>],
    acks: &[AckVerdict],
    pushes: &[Vec<PushVerdict>],
) -> Result<Vec<u8>, ApiError> {
    let mut duplicates = 0_usize;
    for place in places {
        duplicates += usize::from(verdict(pushes, place)?.duplicate);
    }
    Ok(json!({
        "transactionId": own_id,
        "success": true,
        "results": [],
        "pushed": places.len(),
        "duplicate": duplicates,
        "acked": acks.len(),
    })
    .to_string()
    .into_bytes())
}

fn committed(
    own_id: &str,
    steps: &[Step<'_>],
    places: &[Place<'_>],
    acks: &[AckVerdict],
    pushes: &[Vec<PushVerdict>],
) -> Result<Vec<u8>, ApiError> {
    let mut out = b"{\"transactionId\":".to_vec();
    put_text(&mut out, own_id);
    out.extend_from_slice(b",\"success\":true,\"results\":[");
    let (mut places, mut acks) = (places.iter(), acks.iter());
    let mut index = 0_u64;
    let missing = || ApiError::internal("the broker answered without a verdict for every operation");
    for step in steps {
        match step {
            Step::Push(messages) => {
                for _ in messages {
                    let place = places.next().ok_or_else(missing)?;
                    put_pushed(&mut out, &mut index, place, verdict(pushes, place)?);
                }
            }
            Step::Ack(_, item) => {
                let verdict = acks.next().ok_or_else(missing)?;
                begin(&mut out, &mut index, "ack", verdict.success(), item.echo());
                put_error(&mut out, verdict);
                put_flag(&mut out, "dlq", verdict.dead_lettered);
                put_flag(&mut out, "noop", verdict.noop);
                out.push(b'}');
            }
        }
    }
    // The groups of a binary transaction come behind its operations.
    for place in places {
        put_pushed(&mut out, &mut index, place, verdict(pushes, place)?);
    }
    out.extend_from_slice(b"]}");
    Ok(out)
}

fn put_pushed(out: &mut Vec<u8>, index: &mut u64, place: &Place<'_>, verdict: PushVerdict) {
    begin(out, index, "push", true, &place.transaction_id);
    out.extend_from_slice(b",\"messageId\":");
    put_text(out, &verdict.id.text());
    out.extend_from_slice(b",\"queueName\":");
    put_text(out, place.queue);
    out.extend_from_slice(b",\"offset\":");
    put_number(out, verdict.offset.0);
    if verdict.duplicate {
        put_flag(out, "duplicate", true);
    }
    out.push(b'}');
}

fn begin(out: &mut Vec<u8>, index: &mut u64, kind: &str, success: bool, transaction_id: &str) {
    if *index > 0 {
        out.push(b',');
    }
    out.extend_from_slice(b"{\"index\":");
    put_number(out, *index);
    out.extend_from_slice(b",\"type\":");
    put_text(out, kind);
    put_flag(out, "success", success);
    out.extend_from_slice(b",\"transactionId\":");
    put_text(out, transaction_id);
    *index += 1;
}
