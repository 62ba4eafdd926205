//! What is read out of answers, and what acknowledgements look like. Nothing else of the protocol is known here.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use hyper::Uri;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::body::Producer;

/// Where messages are pushed to.
pub(crate) fn push_uri() -> Uri {
    Uri::from_static("/api/v1/push")
}

/// Where one message is acknowledged.
pub(crate) fn ack_uri() -> Uri {
    Uri::from_static("/api/v1/ack")
}

/// Where many are.
pub(crate) fn ack_batch_uri() -> Uri {
    Uri::from_static("/api/v1/ack/batch")
}

/// How to pop.
#[derive(Clone, Copy)]
pub(crate) struct Pop<'a> {
    /// Queue; needs no escape.
    pub(crate) queue: &'a str,
    /// Group; needs no escape.
    pub(crate) group: Option<&'a str>,
    /// Most messages.
    pub(crate) batch: usize,
    /// Most partitions.
    pub(crate) claim: usize,
    /// Long poll, in milliseconds.
    pub(crate) wait_ms: Option<u32>,
    /// Commit at delivery.
    pub(crate) auto_ack: bool,
}

impl Pop<'_> {
    /// Path and query.
    pub(crate) fn uri(self) -> Uri {
        let mut text = format!(
            "/api/v1/pop/queue/{}?batch={}&partitions={}&wait={}",
            self.queue,
            self.batch,
            self.claim,
            self.wait_ms.is_some()
        );
        if let Some(ms) = self.wait_ms {
            let _ = write!(text, "&timeout={ms}");
        }
        if let Some(group) = self.group {
            let _ = write!(text, "&consumerGroup={group}&subscriptionMode=all");
        }
        if self.auto_ack {
            text.push_str("&autoAck=true");
        }
        Uri::try_from(text).expect("names were checked to need no escape")
    }
}

/// One item of a push's answer.
#[derive(Deserialize)]
pub(crate) struct Pushed<'a> {
    /// Its verdict.
    #[serde(borrow)]
    pub(crate) status: Cow<'a, str>,
    /// Why, if refused.
    #[serde(borrow, default)]
    pub(crate) error: Option<Cow<'a, str>>,
}

/// A pop's answer.
#[derive(Deserialize)]
pub(crate) struct Popped<'a> {
    /// What was delivered.
    #[serde(borrow)]
    pub(crate) messages: Vec<Message<'a>>,
}

/// One delivered message.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message<'a> {
    /// Its transaction id.
    #[serde(borrow)]
    pub(crate) transaction_id: Cow<'a, str>,
    /// Id of its partition.
    #[serde(borrow)]
    pub(crate) partition_id: Cow<'a, str>,
    /// Name of its partition.
    #[serde(borrow)]
    pub(crate) partition: Cow<'a, str>,
    /// Its lease, empty without one.
    #[serde(borrow)]
    pub(crate) lease_id: Cow<'a, str>,
    /// Its payload.
    #[serde(borrow)]
    pub(crate) data: &'a RawValue,
}

impl Message<'_> {
    /// What `push` put into the payload; `None` for a payload of somebody else.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            p: &'a str,
            s: &'a str,
            t: &'a str,
        }
        let fields: Fields = serde_json::from_str(self.data.get()).ok()?;
        let (run, number) = fields.p.split_at_checked(8)?;
        Some(Stamp {
            producer: Producer {
                run: u32::from_str_radix(run, 16).ok()?,
                number: u16::from_str_radix(number, 16).ok()?,
            },
            sequence: u64::from_str_radix(fields.s, 16).ok()?,
            time_us: u64::from_str_radix(fields.t, 16).ok()?,
        })
    }
}

/// What `push` puts into every payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Who pushed it.
    pub(crate) producer: Producer,
    /// The how-manieth of that producer, from 0.
    pub(crate) sequence: u64,
    /// When, in microseconds after the start of that run.
    pub(crate) time_us: u64,
}

/// One item of an acknowledgement's answer.
#[derive(Deserialize)]
pub(crate) struct Acked<'a> {
    /// Whether the broker took it into account.
    pub(crate) success: bool,
    /// Why not.
    #[serde(borrow, default)]
    pub(crate) error: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ack<'a> {
    transaction_id: &'a str,
    partition_id: &'a str,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer_group: Option<&'a str>,
    lease_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AckBatch<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer_group: Option<&'a str>,
    acknowledgments: Vec<Ack<'a>>,
}

fn ack<'a>(message: &'a Message<'a>, group: Option<&'a str>) -> Ack<'a> {
    Ack {
        transaction_id: &message.transaction_id,
        partition_id: &message.partition_id,
        status: "completed",
        consumer_group: group,
        lease_id: &message.lease_id,
    }
}

/// Body that completes one message.
pub(crate) fn ack_body(message: &Message<'_>, group: Option<&str>) -> Bytes {
    Bytes::from(serde_json::to_vec(&ack(message, group)).expect("strings always serialise"))
}

/// Body that completes many.
pub(crate) fn ack_batch_body(messages: &[Message<'_>], group: Option<&str>) -> Bytes {
    let acknowledgments = messages.iter().map(|message| ack(message, None)).collect();
    let body = AckBatch { consumer_group: group, acknowledgments };
    Bytes::from(serde_json::to_vec(&body).expect("strings always serialise"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{"success":true,"queue":"q","leaseId":"l1","messages":[
        {"id":"m","transactionId":"a\"b","traceId":null,"partitionId":"17","partition":"p0000003","leaseId":"l1",
         "data":{"p":"deadbeef0123","s":"000000000000000a","t":"00000000000000ff","x":"…"},"offset":4},
        {"id":"m","transactionId":"t2","partitionId":"17","partition":"p0000003","leaseId":"l1","data":null}]}"#;

    #[test]
    fn a_delivered_message_is_acknowledged_as_it_came() {
        let popped: Popped = serde_json::from_str(ANSWER).unwrap();
        let body: serde_json::Value =
            serde_json::from_slice(&ack_batch_body(&popped.messages, Some("g"))).unwrap();
        assert_eq!(body["consumerGroup"], "g");
        assert_eq!(body["acknowledgments"].as_array().unwrap().len(), 2);
        assert_eq!(body["acknowledgments"][0]["transactionId"], "a\"b");
        assert_eq!(body["acknowledgments"][0]["partitionId"], "17");
        assert_eq!(body["acknowledgments"][0]["leaseId"], "l1");
        assert_eq!(body["acknowledgments"][0]["status"], "completed");
        let single: serde_json::Value = serde_json::from_slice(&ack_body(&popped.messages[1], None)).unwrap();
        assert_eq!(single["transactionId"], "t2");
        assert!(single.get("consumerGroup").is_none());
    }

    #[test]
    fn stamps_are_read_back_and_foreign_payloads_are_not() {
        let popped: Popped = serde_json::from_str(ANSWER).unwrap();
        let stamp = popped.messages[0].stamp().unwrap();
        assert_eq!(stamp.producer, Producer { run: 0xdead_beef, number: 0x123 });
        assert_eq!((stamp.sequence, stamp.time_us), (10, 255));
        assert!(popped.messages[1].stamp().is_none());
    }

    #[test]
    fn a_pop_names_everything_it_wants() {
        let pop = Pop { queue: "q", group: None, batch: 7, claim: 1, wait_ms: None, auto_ack: false };
        assert_eq!(pop.uri().to_string(), "/api/v1/pop/queue/q?batch=7&partitions=1&wait=false");
        let pop = Pop { group: Some("g"), wait_ms: Some(500), auto_ack: true, ..pop };
        assert_eq!(
            pop.uri().to_string(),
            "/api/v1/pop/queue/q?batch=7&partitions=1&wait=true&timeout=500&consumerGroup=g&subscriptionMode=all&autoAck=true"
        );
    }
}
