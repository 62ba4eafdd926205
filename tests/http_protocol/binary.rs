//! The binary forms against the scripted broker: what of them reaches it, and what its claims become.

use std::borrow::Cow;

use bytes::Bytes;
use comb::broker::command::{
    Command, Piece, PopReply, PushGroup, Reference, Reply, Source, TransactionReply,
};
use comb::config::Config;
use comb::format::entry::{Entries, Entry};
use comb::format::id_hash;
use comb::types::{LeaseId, MessageId, Offset};
use serde_json::{Value, json};

use crate::frames::{FRAMES, Group, IDS, SHORT, decode, packed, push, transaction, zstd};
use crate::harness::{Act, LEASE, LOG, claim, items, run, scripted, start};

const A: u128 = 0x0193_0000_0000_7000_8000_0000_0000_0a01;
const B: u128 = 0x0193_0000_0000_7000_8000_0000_0000_0a02;

/// Two partitions, a return to the first, a repeated id, an id left out, white space around a payload.
fn sample() -> Vec<Group<'static>> {
    vec![
        ("orders", "eu", vec![(A, "x", "{\"n\":1.0}"), (B, "", " [2] ")]),
        ("jobs", "", vec![(A + 2, "x", "null")]),
        ("orders", "eu", vec![(A + 3, "x", "3"), (A + 4, "y", "\"é\"")]),
    ]
}

/// Queue, partition, repeats, and per stored entry its transaction id and payload.
type Seen = (String, String, Vec<Option<u32>>, Vec<(Option<String>, Vec<u8>)>);

fn seen(groups: &[PushGroup], ids: bool) -> Vec<Seen> {
    let entries = |group: &PushGroup| {
        let entries = Entries::new(&group.entries).map(Result::unwrap);
        entries
            .map(|entry| {
                let own = entry.transaction_id != entry.id.text();
                (
                    ids.then(|| if own { entry.transaction_id.to_string() } else { String::new() }),
                    entry.payload.to_vec(),
                )
            })
            .collect()
    };
    groups
        .iter()
        .map(|group| {
            let repeats = group.items.iter().map(|item| item.repeat_of).collect();
            (group.queue.clone(), group.partition.clone(), repeats, entries(group))
        })
        .collect()
}

#[tokio::test]
async fn every_form_of_a_push_is_the_same_push() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let body = items(
        r#"{"queue":"orders","partition":"eu","transactionId":"x","payload":{"n":1.0}},
           {"queue":"orders","partition":"eu","payload":[2]},
           {"queue":"jobs","transactionId":"x","payload":null},
           {"queue":"orders","partition":"eu","transactionId":"x","payload":3},
           {"queue":"orders","partition":"eu","transactionId":"y","payload":"é"}"#,
    );
    let by_json = client.push(&body).await.json();
    let Command::Push(expected) = server.command().await else { panic!() };
    for flags in 0..16 {
        let answer = client.push(push(flags, &sample())).await;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (201, Some("application/json")),
            "{flags}"
        );
        let Command::Push(groups) = server.command().await else { panic!() };
        let with_ids = flags & (IDS | FRAMES) != 0;
        if with_ids {
            assert_eq!(seen(&groups, true), seen(&expected, true), "{flags}");
        } else {
            assert_eq!(groups.iter().map(|group| group.items.len()).collect::<Vec<_>>(), [4, 1]);
            assert!(
                groups
                    .iter()
                    .flat_map(|group| &group.items)
                    .all(|item| item.minted && item.repeat_of.is_none())
            );
        }
        let answer = answer.json();
        if flags & SHORT != 0 {
            let duplicate = u64::from(with_ids);
            assert_eq!(
                answer,
                json!({"count": 5, "queued": 5 - duplicate, "duplicate": duplicate, "error": 0})
            );
            continue;
        }
        for index in 0..5 {
            let (got, json) = (&answer[index], &by_json[index]);
            assert_eq!((&got["index"], &got["queueName"]), (&json["index"], &json["queueName"]));
            if with_ids {
                assert_eq!(
                    (&got["status"], &got["offset"]),
                    (&json["status"], &json["offset"]),
                    "{flags} {index}"
                );
            }
            if with_ids && index != 1 {
                assert_eq!(got["transaction_id"], json["transaction_id"]);
            } else {
                assert_eq!(got["transaction_id"], got["message_id"], "{flags} {index}");
            }
        }
        if flags & FRAMES != 0 {
            let ids: Vec<&str> = (0..5).map(|index| answer[index]["message_id"].as_str().unwrap()).collect();
            let own = [A, B, A + 2, A, A + 4].map(|id| MessageId(id).text());
            assert_eq!(ids, own, "the client's ids; for the repeat that of the first");
            let items: Vec<_> = groups.iter().flat_map(|group| &group.items).collect();
            assert!(
                items.iter().all(|item| !item.minted),
                "a client's id may be stored already, so it is looked up"
            );
            assert_eq!(groups[0].items[1].hash, id_hash(LOG, &MessageId(B).text()));
        }
    }
}

#[tokio::test]
async fn a_push_of_nothing_stores_nothing() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    for flags in 0..16 {
        for groups in [vec![], vec![("q", "p", vec![])]] {
            let answer = client.push(push(flags, &groups)).await;
            let expected = match flags & SHORT {
                0 => json!([]),
                _ => json!({"count": 0, "queued": 0, "duplicate": 0, "error": 0}),
            };
            assert_eq!((answer.status, answer.json()), (201, expected), "{flags}");
        }
    }
    server.assert_untouched("pushes of nothing");
}

#[tokio::test]
async fn a_refused_body_reaches_nobody() {
    let mut config = Config::defaults();
    config.limits.inflate_bytes = 100_000;
    config.limits.transaction_id_bytes = 10;
    config.limits.atomic_group_bytes = 50_000;
    let mut server = start(config).await;
    let mut client = server.client().await;
    let good = ("q", "p", vec![(A, "x", "1")]);
    let long = "n".repeat(500);
    let large = format!("\"{}\"", "1".repeat(50_000));
    let with = |queue, partition, id, payload| [good.clone(), (queue, partition, vec![(B, id, payload)])];
    for (groups, status, code, words) in [
        (with("q", "p", "x", "1,"), 400, "bad_body", "groups[1]: items[0]: payload"),
        (with("q", "p", "x", ""), 400, "bad_body", "groups[1]: items[0]: payload is empty"),
        (with("", "p", "x", "1"), 400, "bad_request", "groups[1]: items[0]: queue is empty"),
        (
            with("q", "p", "12345678901", "1"),
            400,
            "bad_request",
            "groups[1]: items[0]: transactionId has 11 bytes",
        ),
        (with(&long, "p", "x", "1"), 413, "name_too_long", "447"),
        (with("q", "p", "y", &large), 413, "group_too_large", "limits.atomic_group_bytes"),
    ] {
        for flags in [IDS, IDS | 1, FRAMES, FRAMES | 1] {
            let fault = client.push(push(flags, &groups)).await.fault(status, code);
            assert!(fault.contains(words), "{flags}: {fault:?} lacks {words:?}");
        }
        let fault = client.post("/api/v1/transaction", transaction(0, "", &groups)).await.fault(status, code);
        assert!(fault.contains(words), "{fault:?} lacks {words:?}");
    }
    let bomb = packed("q", 1, &zstd(&vec![b'1'; 100_001]));
    assert!(client.push(bomb).await.fault(413, "body_too_large").contains("limits.inflate_bytes"));

    let (push, bundle) = (push(0, std::slice::from_ref(&good)), transaction(0, "", &[good]));
    for path in ["/api/v1/ack", "/api/v1/ack/batch", "/api/v1/configure"] {
        for body in [&push, &bundle] {
            assert!(
                client.post(path, body).await.fault(400, "bad_body").contains("no binary body"),
                "{path}"
            );
        }
    }
    assert!(client.push(&bundle).await.fault(400, "bad_body").contains("QPB1"));
    assert!(client.post("/api/v1/transaction", &push).await.fault(400, "bad_body").contains("QTB1"));
    for (path, magic) in [("push", "QPB1"), ("transaction", "QTB1"), ("ack", "no binary body")] {
        client
            .write(format!("POST /api/v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-queen-push\r\nContent-Length: 12\r\n\r\n{{\"items\":[]}}"))
            .await;
        assert!(client.answer().await.unwrap().fault(400, "bad_body").contains(magic), "{path}");
    }
    server.assert_untouched("refused bodies");
}

#[tokio::test]
async fn what_bodies_inflate_to_counts_as_bytes_in_memory() {
    let mut config = Config::defaults();
    config.limits.inflight_bytes = 100_000;
    config.limits.inflate_bytes = 70_000;
    let mut server = scripted(config, |_| Act::Hold).await;
    let payload = format!("\"{}\"", "1".repeat(60_000));
    let body = push(FRAMES, &[("q", "p", vec![(A, "x", &payload)])]);
    assert!(body.len() < 1000);
    let mut first = server.client().await;
    first
        .write(format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len()))
        .await;
    first.write(&body).await;
    let command = server.command().await;
    let mut second = server.client().await;
    for _ in 0..3 {
        let answer = second.push(&body).await;
        assert!(answer.fault(429, "overloaded").contains("limits.inflight_bytes"));
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    server.assert_untouched("what there is no room for");
    let slot = server.held.recv().await.unwrap();
    server.answers.send(vec![(slot, crate::harness::usual(&command))]).unwrap();
    assert_eq!(first.answer().await.unwrap().status, 201);
    // The room is free again. What can never have room is told so.
    second
        .write(format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len()))
        .await;
    second.write(&body).await;
    assert!(matches!(server.command().await, Command::Push(_)));
    let many = push(1, &[("q", "p", vec![(0, "", "1"); 300])]);
    let fault = server.client().await.push(many).await.fault(413, "body_too_large");
    assert!(fault.contains("limits.inflight_bytes"), "{fault}");
}

#[tokio::test]
async fn a_binary_transaction_answers_its_head_first() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let lease = LEASE.text();
    let head = json!({"operations": [
            {"type": "ack", "transactionId": "m1", "partitionId": "17", "consumerGroup": "g", "leaseId": lease},
            {"type": "ack", "transactionId": "m2", "partitionId": "17", "consumerGroup": "g", "leaseId": lease}],
        "requiredLeases": [lease], "kv": [], "timers": []})
    .to_string();
    let answer = client.post("/api/v1/transaction", transaction(0, &head, &sample())).await;
    assert_eq!(answer.status, 200);
    let json = answer.json();
    assert_eq!(json["success"], true);
    let results: Vec<(u64, &str, &str)> = json["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| {
            (r["index"].as_u64().unwrap(), r["type"].as_str().unwrap(), r["transactionId"].as_str().unwrap())
        })
        .collect();
    let minted = MessageId(B).text();
    assert_eq!(
        results,
        [
            (0, "ack", "m1"),
            (1, "ack", "m2"),
            (2, "push", "x"),
            (3, "push", &minted),
            (4, "push", "x"),
            (5, "push", "x"),
            (6, "push", "y")
        ]
    );
    assert_eq!(json["results"][2]["messageId"], MessageId(A).text());
    assert_eq!(
        (&json["results"][5]["duplicate"], &json["results"][4]["queueName"]),
        (&true.into(), &"jobs".into())
    );
    let Command::Transaction(seen) = server.command().await else { panic!() };
    assert_eq!((seen.acks.len(), seen.pushes.len()), (2, 2));
    assert_eq!(seen.required, [Reference::Id(LeaseId(LEASE.0))]);

    let short = client.post("/api/v1/transaction", transaction(SHORT, &head, &sample())).await.json();
    assert!(short["transactionId"].is_string());
    assert_eq!((&short["success"], &short["results"]), (&true.into(), &json!([])));
    assert_eq!((&short["pushed"], &short["duplicate"], &short["acked"]), (&5.into(), &1.into(), &2.into()));
    assert!(matches!(server.command().await, Command::Transaction(_)));

    let pushes_only = client.post("/api/v1/transaction", transaction(0, "", &sample())).await.json();
    assert_eq!(pushes_only["results"].as_array().unwrap().len(), 5);
    assert!(matches!(server.command().await, Command::Transaction(_)));

    for (head, code, words) in [
        (r#"{"operations":[{"type":"push","queue":"q","payload":1}]}"#, "bad_body", "operations[0]"),
        (r#"{"operations":[{"type":"push","items":[]}]}"#, "bad_body", "operations[0]"),
        (r#"{"operations":[{"type":"kv"}]}"#, "bad_request", "kv"),
        (r#"{"kv":[{"op":"get"}]}"#, "bad_request", "kv"),
        (r#"{"timers":[{"op":"cancel"}]}"#, "bad_request", "timers"),
        (r#"{"positions":[1]}"#, "bad_request", "positions"),
        ("{", "bad_body", "bad transaction body"),
        ("\u{0}", "bad_body", "bad transaction body"),
    ] {
        let fault =
            client.post("/api/v1/transaction", transaction(0, head, &sample())).await.fault(400, code);
        assert!(fault.contains(words), "{fault}");
    }
    client.post("/api/v1/transaction", transaction(0, "", &[])).await.fault(400, "bad_request");
    server.assert_untouched("refused transactions");
}

#[tokio::test]
async fn a_binary_transaction_that_rolls_back_looks_like_any_other() {
    let server = scripted(Config::defaults(), |_| {
        Act::Reply(Reply::Transaction(TransactionReply::RolledBack {
            reason: comb::broker::command::RollbackReason::Duplicate,
            error: "x; the transaction rolled back".to_owned(),
        }))
    })
    .await;
    for flags in [0, SHORT] {
        let json =
            server.client().await.post("/api/v1/transaction", transaction(flags, "", &sample())).await.json();
        assert_eq!((&json["success"], &json["reason"]), (&false.into(), &"duplicate".into()));
        assert_eq!(json["results"], json!([]));
    }
}

/// Claims of two partitions: one of two pieces, one of part of a run; with a trace, a producer and an empty payload.
fn claims(lease: Option<LeaseId>) -> Reply {
    let (mut first, _) = run(&[b"1"]);
    let mut entries = Vec::new();
    let texts =
        [("t40", None, None, "{\"a\":1.0}"), ("", Some(5), None, ""), ("é", None, Some("sub"), "[null]")];
    for (index, (transaction_id, trace, producer, payload)) in texts.into_iter().enumerate() {
        let id = MessageId(A + index as u128);
        let transaction_id = if transaction_id.is_empty() { id.text() } else { transaction_id.to_owned() };
        Entry {
            id,
            hash: id_hash(LOG, &transaction_id),
            transaction_id: Cow::Owned(transaction_id),
            trace,
            producer,
            payload: payload.as_bytes(),
        }
        .encode(&mut entries);
    }
    (first.count, first.bytes) = (3, u32::try_from(entries.len()).unwrap());
    let (mut second, bytes) = run(&[b"10", b"11", b"12", b"13"]);
    second.base = Offset(43);
    let piece = |run, bytes: &Bytes, first, last| Piece {
        run,
        source: Source::Memory(bytes.clone()),
        first: Offset(first),
        last: Offset(last),
    };
    let Reply::Pop(mut reply) = claim(first, Source::Memory(entries.into()), 40, 42) else { panic!() };
    reply.claims[0].pieces.push(piece(second, &bytes, 43, 44));
    reply.claims[0].attempt = 3;
    let mut other = reply.claims[0].clone();
    second.base = Offset(0);
    (other.partition.0, other.partition_name, other.attempt) = (u64::MAX, "us/é".into(), 1);
    other.pieces = vec![piece(second, &bytes, 1, 2)];
    reply.claims.push(other);
    Reply::Pop(PopReply { lease, ..reply })
}

#[tokio::test]
async fn a_framed_answer_says_what_the_json_answer_says() {
    for (lease, query) in [(Some(LEASE), ""), (None, "&autoAck=true")] {
        let server = scripted(Config::defaults(), move |_| Act::Reply(claims(lease))).await;
        let mut client = server.client().await;
        for path in ["/queue/q%20%C3%A9", "/queue/q/partition/p", ""] {
            let path = format!("/api/v1/pop{path}?task=t&consumerGroup=g%C3%A9{query}");
            let json = client.get(&path).await.json();
            assert_eq!(json["messages"].as_array().unwrap().len(), 7);
            let framed = client.get(&format!("{path}&frames=true")).await;
            assert_eq!(
                (framed.status, framed.header("content-type")),
                (200, Some("application/x-queen-pop"))
            );
            assert_eq!(decode(&framed.body), json);
            assert_eq!(client.get(&format!("{path}&frames=false")).await.json(), json);
        }
    }
    let server = start(Config::defaults()).await;
    let answer = server.client().await.get("/api/v1/pop/queue/q?frames=true").await;
    assert_eq!((answer.status, answer.body.len()), (204, 0));
}

#[tokio::test]
async fn claims_of_a_framed_answer_go_back_when_it_breaks_off_and_stay_when_it_arrives() {
    let payload = vec![b'1'; 32 << 20];
    let (run, bytes) = run(&[&payload, b"2"]);
    let mut server = scripted(Config::defaults(), move |command| match command {
        Command::Pop(pop) => {
            let first = if pop.batch == 1 { 41 } else { 40 };
            Act::Reply(claim(run, Source::Memory(bytes.clone()), first, 41))
        }
        _ => Act::Usual,
    })
    .await;
    let mut client = server.client().await;
    let got: Value = decode(&client.get("/api/v1/pop/queue/q?frames=true&batch=1").await.body);
    assert_eq!(got["messages"][0]["data"], 2);
    assert!(matches!(server.command().await, Command::Pop(_)));
    client.write("GET /api/v1/pop/queue/q?frames=true HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(matches!(server.command().await, Command::Pop(_)));
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    server.assert_untouched("one arrived, the other is still on its way");
    drop(client);
    assert!(matches!(server.command().await, Command::Return(LEASE)));
}

#[tokio::test]
async fn a_damaged_message_is_500_and_its_claims_go_back() {
    let (run, entries) = run(&[b"11", b"22"]);
    let mut damaged = entries.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let bytes = Bytes::from(damaged);
    let mut server = scripted(Config::defaults(), move |command| match command {
        Command::Pop(_) => Act::Reply(claim(run, Source::Memory(bytes.clone()), 40, 41)),
        _ => Act::Usual,
    })
    .await;
    server.client().await.get("/api/v1/pop/queue/q?frames=true").await.fault(500, "internal");
    assert!(matches!(server.command().await, Command::Pop(_)));
    assert!(matches!(server.command().await, Command::Return(LEASE)));
}

#[tokio::test]
async fn bytes_of_a_framed_answer_are_held_until_it_has_left() {
    let mut config = Config::defaults();
    config.limits.inflight_bytes = 40 << 20;
    config.limits.request_seconds = 1;
    let payload = format!("\"{}\"", "1".repeat(32 << 20)).into_bytes();
    let (run, bytes) = run(&[&payload]);
    let mut server = scripted(config, move |command| match command {
        Command::Pop(pop) => {
            let Reply::Pop(reply) = claim(run, Source::Memory(bytes.clone()), 40, 40) else { panic!() };
            let lease = reply.lease.filter(|_| !pop.auto_ack);
            Act::Reply(Reply::Pop(PopReply { lease, ..reply }))
        }
        _ => Act::Usual,
    })
    .await;
    // Its answer is too large for the buffers between us, and nobody reads it.
    let mut slow = server.client().await;
    slow.write("GET /api/v1/pop/queue/q?frames=true HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(matches!(server.command().await, Command::Pop(_)));
    let refused = server.client().await.get("/api/v1/pop/queue/q?frames=true").await;
    refused.fault(429, "overloaded");
    assert!(matches!(server.command().await, Command::Pop(_)));
    assert!(matches!(server.command().await, Command::Return(LEASE)), "what was refused goes back");
    // What is consumed already waits for as long as it takes.
    let mut consumed = server.client().await;
    consumed.write("GET /api/v1/pop/queue/q?frames=true&autoAck=true HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(matches!(server.command().await, Command::Pop(_)));
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    drop(slow);
    let answer = consumed.answer().await.unwrap();
    assert_eq!((answer.status, decode(&answer.body)["messages"].as_array().unwrap().len()), (200, 1));
}
