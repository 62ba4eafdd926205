//! The binary forms as a client writes and reads them: an encoder of bodies, a decoder of framed answers.

#![allow(dead_code, reason = "every test file uses another part of it")]

use serde_json::{Map, Value, json};

/// The body is one zstd frame.
pub(crate) const ZSTD: u8 = 1;
/// Answer with counts.
pub(crate) const SHORT: u8 = 2;
/// Every item has a transaction id.
pub(crate) const IDS: u8 = 4;
/// Groups of compressed frames.
pub(crate) const FRAMES: u8 = 8;

/// Message id (framed form only), transaction id, payload.
pub(crate) type Message<'a> = (u128, &'a str, &'a str);
/// Queue, partition, messages.
pub(crate) type Group<'a> = (&'a str, &'a str, Vec<Message<'a>>);

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
    out.extend(bytes);
}

/// One zstd frame that declares its content size.
pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).unwrap()
}

/// Groups in the form that the flags name.
pub(crate) fn section(flags: u8, groups: &[Group<'_>]) -> Vec<u8> {
    let mut out = u32::try_from(groups.len()).unwrap().to_le_bytes().to_vec();
    for (queue, partition, messages) in groups {
        put_text(&mut out, queue);
        put_text(&mut out, partition);
        out.extend(u32::try_from(messages.len()).unwrap().to_le_bytes());
        let mut frames = Vec::new();
        for (id, transaction_id, payload) in messages {
            if flags & FRAMES != 0 {
                let mut frame = vec![0];
                frame.extend(id.to_be_bytes());
                put_text(&mut frame, transaction_id);
                frame.extend(payload.as_bytes());
                put_bytes(&mut frames, &frame);
                continue;
            }
            if flags & IDS != 0 {
                put_text(&mut out, transaction_id);
            }
            put_bytes(&mut out, payload.as_bytes());
        }
        if flags & FRAMES != 0 {
            put_bytes(&mut out, &zstd(&frames));
        }
    }
    out
}

/// A push.
pub(crate) fn push(flags: u8, groups: &[Group<'_>]) -> Vec<u8> {
    let section = section(flags, groups);
    let mut out = [b"QPB1", &[flags][..]].concat();
    if flags & ZSTD == 0 {
        out.extend(section);
    } else {
        out.extend(u32::try_from(section.len()).unwrap().to_le_bytes());
        out.extend(zstd(&section));
    }
    out
}

/// A transaction.
pub(crate) fn transaction(flags: u8, head: &str, groups: &[Group<'_>]) -> Vec<u8> {
    let mut out = [b"QTB1", &[flags][..]].concat();
    put_bytes(&mut out, head.as_bytes());
    out.extend(section(FRAMES, groups));
    out
}

/// A push whose only group is this zstd frame of so many messages.
pub(crate) fn packed(queue: &str, messages: u32, frame: &[u8]) -> Vec<u8> {
    let mut out = b"QPB1\x08\x01\0\0\0".to_vec();
    put_text(&mut out, queue);
    put_text(&mut out, "");
    out.extend(messages.to_le_bytes());
    put_bytes(&mut out, frame);
    out
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    fn number(&mut self, bytes: usize) -> u64 {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(self.take(bytes));
        u64::from_le_bytes(number)
    }

    fn size(&mut self, bytes: usize) -> usize {
        usize::try_from(self.number(bytes)).unwrap()
    }

    fn text(&mut self) -> String {
        let bytes = self.size(2);
        String::from_utf8(self.take(bytes).to_vec()).unwrap()
    }

    fn uuid(&mut self) -> String {
        uuid::Uuid::from_slice(self.take(16)).unwrap().to_string()
    }
}

/// A framed answer as the JSON answer that it stands for. Panics where a byte is missing or left over.
pub(crate) fn decode(bytes: &[u8]) -> Value {
    let mut fields = Fields(bytes);
    assert_eq!(fields.take(4), b"QPF1");
    let mut answer = match fields.number(1) {
        0 => Map::new(),
        1 => {
            let bytes = fields.size(4);
            serde_json::from_slice(fields.take(bytes)).unwrap()
        }
        version => panic!("version {version}"),
    };
    let (queue, lease, group) = (fields.text(), fields.text(), fields.text());
    let claims = fields.number(4);
    let mut messages = Vec::new();
    let mut first = (String::new(), String::new());
    for claim in 0..claims {
        let (partition_id, partition) = (fields.number(8).to_string(), fields.text());
        let span = fields.number(8)..=fields.number(8);
        let (attempt, records) = (fields.number(4), fields.number(4));
        if claim == 0 {
            first = (partition.clone(), partition_id.clone());
        }
        for _ in 0..records {
            let base = fields.number(8);
            let created =
                jiff::Timestamp::from_microsecond(i64::try_from(fields.number(8)).unwrap()).unwrap();
            let (count, codec, bytes) = (fields.number(4), fields.number(1), fields.size(4));
            assert_eq!(codec, 0);
            let mut frames = Fields(fields.take(bytes));
            for offset in base..base + count {
                let bytes = frames.size(4);
                let mut frame = Fields(frames.take(bytes));
                let flags = frame.number(1);
                assert_eq!(flags & !3, 0);
                let id = frame.uuid();
                let trace = (flags & 1 != 0).then(|| frame.uuid());
                let transaction_id = frame.text();
                let producer = (flags & 2 != 0).then(|| frame.text());
                let data: Value = match frame.0 {
                    [] => Value::Null,
                    payload => serde_json::from_slice(payload).unwrap(),
                };
                if span.contains(&offset) {
                    messages.push(json!({
                        "id": id, "transactionId": transaction_id, "traceId": trace, "data": data,
                        "producerSub": producer, "createdAt": format!("{created:.3}"),
                        "partitionId": partition_id, "partition": partition, "leaseId": lease,
                        "consumerGroup": group, "deliveryAttempt": attempt, "offset": offset,
                    }));
                }
            }
            assert!(frames.0.is_empty(), "bytes are left over in a record");
        }
    }
    assert!(fields.0.is_empty(), "bytes are left over");
    for (key, value) in [
        ("success", true.into()),
        ("queue", queue.into()),
        ("partition", first.0.into()),
        ("partitionId", first.1.into()),
        ("leaseId", lease.into()),
        ("consumerGroup", group.into()),
        ("messages", messages.into()),
        ("partitionsClaimed", claims.into()),
    ] {
        answer.insert(key.to_owned(), value);
    }
    answer.into()
}
