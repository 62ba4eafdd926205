//! The exact shapes of requests and answers, route by route.

use comb::broker::command::{
    AckRefusal, AckStatus, AckVerdict, BrokerError, Command, DeadLetterPage, DeadLetterRow, ExtendReply,
    Patch, Piece, PopReply, Reference, Reply, RollbackReason, Source, StartRequest, TransactionReply,
};
use comb::config::Config;
use comb::format::entry::Entries;
use comb::format::id_hash;
use comb::types::{DeadLetterId, MessageId, Offset, PartitionId, QUEUE_MODE_GROUP, WallTime};
use serde_json::{Value, json};

use crate::harness::{Act, LEASE, LOG, claim, items, run, scripted, start};

#[tokio::test]
async fn push_groups_by_partition_and_answers_in_request_order() {
    let mut server = start(Config::defaults()).await;
    let body = items(
        r#"{"queue":"a","payload":1,"transactionId":"x"},
           {"queue":"b","partition":"p","payload":2},
           {"queue":"a","partition":null,"payload":3,"transactionId":"x"},
           {"queue":"a","partition":"Default","payload":4,"transactionId":""},
           {"queue":"b","partition":"p","payload":5,"transactionId":"x\n"}"#,
    );
    let answer = server.client().await.push(body).await;
    assert_eq!((answer.status, answer.header("content-type")), (201, Some("application/json")));
    let Command::Push(groups) = server.command().await else { panic!() };
    let names: Vec<(&str, &str)> = groups.iter().map(|g| (g.queue.as_str(), g.partition.as_str())).collect();
    assert_eq!(names, [("a", "Default"), ("b", "p")]);
    let [a, b] = &groups[..] else { panic!() };
    assert_eq!(
        a.items.iter().map(|i| (i.minted, i.repeat_of)).collect::<Vec<_>>(),
        [(false, None), (false, Some(0)), (true, None)]
    );
    assert_eq!(a.items[0].hash, id_hash(LOG, "x"));
    assert_eq!(a.items[1].end, a.items[0].end, "a repeat has no bytes");
    assert_eq!(a.items[2].end as usize, a.entries.len());
    let stored: Vec<_> = Entries::new(&a.entries).map(Result::unwrap).collect();
    assert_eq!(stored.len(), 2);
    assert_eq!((stored[0].transaction_id.as_ref(), stored[0].hash), ("x", a.items[0].hash));
    assert_eq!(stored[1].transaction_id, stored[1].id.text(), "a minted transaction id is the message id");
    assert_eq!(a.items[2].hash, id_hash(LOG, &a.items[2].id.text()));

    let id = |group: usize, item: usize| groups[group].items[item].id.text();
    assert_eq!(
        answer.json(),
        json!([
            {"index":0,"message_id":id(0, 0),"transaction_id":"x","queueName":"a","status":"queued","offset":0},
            {"index":1,"message_id":id(1, 0),"transaction_id":id(1, 0),"queueName":"b","status":"queued","offset":0},
            {"index":2,"message_id":id(0, 0),"transaction_id":"x","queueName":"a","status":"duplicate","offset":0},
            {"index":3,"message_id":id(0, 2),"transaction_id":id(0, 2),"queueName":"a","status":"queued","offset":2},
            {"index":4,"message_id":id(1, 1),"transaction_id":"x\n","queueName":"b","status":"queued","offset":1},
        ])
    );
    assert_eq!(b.items.len(), 2);
}

#[tokio::test]
async fn an_empty_push_never_reaches_the_broker() {
    let mut server = start(Config::defaults()).await;
    let answer = server.client().await.push(r#"{"items":[]}"#).await;
    assert_eq!((answer.status, answer.text().as_str()), (201, "[]"));
    server.assert_untouched("an empty push");
}

#[tokio::test]
async fn broker_errors_by_status_and_code() {
    let cases = [
        (BrokerError::Stopping, 503, "retry", Some("1")),
        (BrokerError::OutcomeUnknown("EIO".into()), 503, "outcome_unknown", Some("1")),
        (BrokerError::Overloaded { retry_seconds: 3 }, 429, "overloaded", Some("3")),
        (BrokerError::TooManyPolls { limit: 5 }, 429, "overloaded", Some("1")),
        (BrokerError::StorageFull { dir: "/d\"".into(), free_bytes: 5 }, 507, "storage_full", None),
        (BrokerError::GroupTooLarge { bytes: 9, limit: 8 }, 413, "group_too_large", None),
        (BrokerError::NameTooLong { bytes: 9, limit: 8 }, 413, "name_too_long", None),
    ];
    for (error, status, code, retry) in cases {
        let text = error.to_string();
        let server = scripted(Config::defaults(), move |_| Act::Reply(Reply::Failed(error.clone()))).await;
        let answer = server.client().await.push(items(r#"{"queue":"q","payload":1}"#)).await;
        assert_eq!(answer.fault(status, code), text);
        assert_eq!(answer.header("retry-after"), retry, "{code}");
    }
}

#[tokio::test]
async fn a_pop_with_messages() {
    let (run, bytes) = run(&[b"{\"n\":1}", b"2"]);
    let mut server =
        scripted(Config::defaults(), move |_| Act::Reply(claim(run, Source::Memory(bytes.clone()), 40, 41)))
            .await;
    let path = "/api/v1/pop/queue/orders?consumerGroup=billing&batch=3&partitions=4&leaseSeconds=9&autopilot=true&frames=false&subscriptionMode=all&wait=true&timeout=1500";
    let answer = server.client().await.get(path).await;
    let message = |index: u64, data: Value| {
        json!({"id": MessageId(0x0193_0000_0000_7000_8000_0000_0000_0000 + u128::from(index)).text(),
            "transactionId": format!("t{}", 40 + index), "traceId": null, "data": data, "producerSub": null,
            "createdAt": "2026-11-30T12:00:00.123Z", "partitionId": "17", "partition": "eu",
            "leaseId": LEASE.text(), "consumerGroup": "billing", "deliveryAttempt": 1, "offset": 40 + index})
    };
    assert_eq!(
        answer.json(),
        json!({"success": true, "queue": "orders", "partition": "eu", "partitionId": "17", "leaseId": LEASE.text(),
            "consumerGroup": "billing", "messages": [message(0, json!({"n": 1})), message(1, json!(2))],
            "partitionsClaimed": 1})
    );
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let Command::Pop(pop) = server.command().await else { panic!() };
    assert_eq!((pop.batch, pop.partitions, pop.lease_seconds, pop.wait_us), (3, 4, Some(9), 1_500_000));
    assert_eq!((pop.group.as_str(), pop.start, pop.auto_ack), ("billing", StartRequest::All, false));
}

#[tokio::test]
async fn a_pop_committed_at_delivery_has_an_empty_lease() {
    let (run, bytes) = run(&[b"1"]);
    let mut server = scripted(Config::defaults(), move |_| {
        let Reply::Pop(reply) = claim(run, Source::Memory(bytes.clone()), 40, 40) else { panic!() };
        Act::Reply(Reply::Pop(PopReply { lease: None, ..reply }))
    })
    .await;
    let json = server.client().await.get("/api/v1/pop?namespace=n&autoAck=true").await.json();
    assert_eq!((&json["leaseId"], &json["messages"][0]["leaseId"]), (&"".into(), &"".into()));
    assert_eq!((&json["queue"], &json["consumerGroup"]), (&"".into(), &QUEUE_MODE_GROUP.into()));
    assert!(matches!(server.command().await, Command::Pop(pop) if pop.auto_ack));
}

#[tokio::test]
async fn nothing_to_pop_is_204_without_a_body() {
    let server = start(Config::defaults()).await;
    let answer = server.client().await.get("/api/v1/pop/queue/q").await;
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    assert!(answer.header("content-length").is_none_or(|bytes| bytes == "0"));
}

#[tokio::test]
async fn acks_single_and_batch_on_both_routes() {
    let verdicts = [
        AckVerdict { lease_released: true, ..AckVerdict::default() },
        AckVerdict { refusal: Some(AckRefusal::Lease), ..AckVerdict::default() },
        AckVerdict { dead_lettered: true, noop: true, ..AckVerdict::default() },
    ];
    let mut server = scripted(Config::defaults(), move |command| match command {
        Command::Ack(call) => Act::Reply(Reply::Ack(verdicts[..call.items.len()].to_vec())),
        _ => Act::Usual,
    })
    .await;
    let mut client = server.client().await;
    for path in ["/api/v1/ack", "/api/v1/ack/batch"] {
        let body = json!({"transactionId": "a\"b", "partitionId": "17", "status": null, "consumerGroup": null,
            "leaseId": LEASE.text(), "error": null});
        let answer = client.post(path, body.to_string()).await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.json(),
            json!([{"index": 0, "transactionId": "a\"b", "success": true, "error": null, "leaseReleased": true,
                "dlq": false, "noop": false}])
        );
        let Command::Ack(call) = server.command().await else { panic!() };
        assert_eq!((call.group.as_str(), call.items.len()), (QUEUE_MODE_GROUP, 1));
        let item = &call.items[0];
        assert_eq!(item.hash, Some(id_hash(LOG, "a\"b")));
        assert_eq!((item.partition, item.lease), (Reference::Id(PartitionId(17)), Reference::Id(LEASE)));
        assert_eq!((item.status, item.error.as_deref()), (AckStatus::Completed, None));

        let body = json!({"consumerGroup": "g", "transactionId": "single", "acknowledgments": [
            {"transactionId": "a", "partitionId": "1", "status": "retry", "consumerGroup": "other"},
            {"status": "COMPLETED", "leaseId": "mine", "partitionId": "x"},
            {"transactionId": "c", "partitionId": "3", "status": "dlq", "leaseId": "", "error": "why"}]});
        let answer = client.post(path, body.to_string()).await;
        let json = answer.json();
        assert_eq!(json.as_array().unwrap().len(), 3);
        for row in json.as_array().unwrap() {
            for key in ["index", "transactionId", "success", "error", "leaseReleased", "dlq", "noop"] {
                assert!(row.get(key).is_some(), "{key}");
            }
        }
        assert_eq!((&json[1]["success"], &json[1]["transactionId"]), (&false.into(), &"".into()));
        assert!(json[1]["error"].as_str().unwrap().contains("lease"));
        assert_eq!((&json[2]["dlq"], &json[2]["noop"]), (&true.into(), &true.into()));
        let Command::Ack(call) = server.command().await else { panic!() };
        assert_eq!(call.group, "g");
        let fields: Vec<_> =
            call.items.iter().map(|i| (i.hash.is_some(), i.partition, i.status, i.lease)).collect();
        assert_eq!(
            fields,
            [
                (true, Reference::Id(PartitionId(1)), AckStatus::Retry, Reference::Absent),
                (false, Reference::Malformed, AckStatus::Failed, Reference::Malformed),
                (true, Reference::Id(PartitionId(3)), AckStatus::DeadLetter, Reference::Absent),
            ]
        );
        assert_eq!(call.items[2].error.as_deref(), Some("why"));

        assert_eq!(client.post(path, r#"{"acknowledgments":[]}"#).await.text(), "[]");
        for body in [
            "",
            "[]",
            "{",
            r#"{"transactionId":5}"#,
            r#"{"acknowledgments":[1]}"#,
            r#"{"acknowledgments":{}}"#,
        ] {
            client.post(path, body).await.fault(400, "bad_body");
        }
        server.assert_untouched("bad acks");
    }
}

#[tokio::test]
async fn lease_extension_is_always_200() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let path = format!("/api/v1/lease/{}/extend", LEASE.text());
    client.write(format!("POST {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    let answer = client.answer().await.unwrap();
    let time = "2026-11-30T12:00:00.123Z";
    assert_eq!(
        answer.json(),
        json!({"leaseId": LEASE.text(), "success": true, "renewed": 2, "newExpiresAt": time, "expiresAt": time,
            "lease_expires_at": time})
    );
    assert!(matches!(server.command().await, Command::Extend { lease: Reference::Id(LEASE), seconds: 60 }));
    client.post(&path, r#"{"seconds":7}"#).await;
    assert!(matches!(server.command().await, Command::Extend { seconds: 7, .. }));
    client.post(&path, r#"{"seconds":604801}"#).await.fault(400, "bad_request");

    let server = scripted(Config::defaults(), |_| {
        Act::Reply(Reply::Extend(ExtendReply { renewed: 0, expires: None }))
    })
    .await;
    let answer = server.client().await.post("/api/v1/lease/no%20lease/extend", "{}").await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.json(),
        json!({"leaseId": "no lease", "success": false, "renewed": 0, "newExpiresAt": null, "expiresAt": null,
            "lease_expires_at": null})
    );
}

#[tokio::test]
async fn transactions() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let trace = "0193aaaa-0000-4000-8000-000000000001";
    let body = json!({"operations": [
        {"type": "push", "items": [{"queue": "a", "payload": 1, "transactionId": "x", "traceId": trace}, {"queue": "a", "payload": 2, "transactionId": "x"}]},
        {"type": "ack", "transactionId": "m", "partitionId": "4", "status": "failed", "consumerGroup": "g", "leaseId": LEASE.text()},
        {"type": "push", "queue": "b", "partition": "p", "payload": 3, "transactionId": "y", "traceId": "no uuid"}],
        "requiredLeases": [LEASE.text(), "stale"], "kv": [], "timers": null});
    let answer = client.post("/api/v1/transaction", body.to_string()).await;
    assert_eq!(answer.status, 200);
    let Command::Transaction(transaction) = server.command().await else { panic!() };
    assert_eq!(transaction.required, [Reference::Id(LEASE), Reference::Malformed]);
    assert_eq!((transaction.acks.len(), transaction.pushes.len()), (1, 2));
    assert_eq!(
        (transaction.acks[0].group.as_str(), transaction.acks[0].item.status),
        ("g", AckStatus::Failed)
    );
    let traces: Vec<_> =
        transaction.pushes.iter().map(|g| Entries::new(&g.entries).next().unwrap().unwrap().trace).collect();
    assert_eq!(traces, [Some(0x0193_aaaa_0000_4000_8000_0000_0000_0001), None]);
    let json = answer.json();
    assert!(uuid_text(&json["transactionId"]));
    assert_eq!(json["success"], true);
    let x = transaction.pushes[0].items[0].id.text();
    let y = transaction.pushes[1].items[0].id.text();
    assert_eq!(
        json["results"],
        json!([
            {"index": 0, "type": "push", "success": true, "transactionId": "x", "messageId": x, "queueName": "a", "offset": 0},
            {"index": 1, "type": "push", "success": true, "transactionId": "x", "messageId": x, "queueName": "a", "offset": 0, "duplicate": true},
            {"index": 2, "type": "ack", "success": true, "transactionId": "m", "error": null, "dlq": false, "noop": false},
            {"index": 3, "type": "push", "success": true, "transactionId": "y", "messageId": y, "queueName": "b", "offset": 0},
        ])
    );

    for (body, code, word) in [
        ("{}", "bad_request", "empty"),
        (r#"{"operations":[],"requiredLeases":[]}"#, "bad_request", "empty"),
        (r#"{"operations":[{"type":"push","items":[]}]}"#, "bad_request", "empty"),
        (r#"{"operations":[{"type":"kv"}]}"#, "bad_request", "push or ack"),
        (r#"{"operations":[{}]}"#, "bad_body", "type"),
        (r#"{"operations":[{"type":"push","queue":"q"}]}"#, "bad_body", "payload"),
        (r#"{"operations":[{"type":"push","queue":"q","data":1}]}"#, "bad_body", "payload"),
        (r#"{"operations":[{"type":"ack","type":"push"}]}"#, "bad_body", "twice"),
        (r#"{"operations":[{"type":"ack","transactionId":"t"}],"kv":[{"op":"put"}]}"#, "bad_request", "kv"),
        (r#"{"operations":[{"type":"ack","transactionId":"t"}],"timers":[{}]}"#, "bad_request", "timers"),
        (r#"{"operations":[],"positions":[{}]}"#, "bad_request", "positions"),
        (
            r#"{"operations":[{"type":"ack","transactionId":"t"}],"requiredLeases":"x"}"#,
            "bad_body",
            "requiredLeases",
        ),
    ] {
        let fault = client.post("/api/v1/transaction", body).await.fault(400, code);
        assert!(fault.contains(word), "{body}: {fault}");
    }
    server.assert_untouched("refused transactions");
}

fn uuid_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.len() == 36 && text.as_bytes()[14] == b'7')
}

#[tokio::test]
async fn a_rolled_back_transaction_is_200_with_its_reason() {
    for (reason, word) in [
        (RollbackReason::Duplicate, "duplicate"),
        (RollbackReason::RejectedAck, "rejected_ack"),
        (RollbackReason::TooLarge, "too_large"),
    ] {
        let server = scripted(Config::defaults(), move |_| {
            let error = "why; the transaction rolled back".to_owned();
            Act::Reply(Reply::Transaction(TransactionReply::RolledBack { reason, error }))
        })
        .await;
        let body = r#"{"operations":[{"type":"ack","transactionId":"t","partitionId":"1"}]}"#;
        let answer = server.client().await.post("/api/v1/transaction", body).await;
        let mut json = answer.json();
        assert!(uuid_text(&json["transactionId"].take()));
        assert_eq!(
            (answer.status, json),
            (
                200,
                json!({"transactionId": null, "success": false, "reason": word,
                "error": "why; the transaction rolled back", "results": []})
            )
        );
    }
}

#[tokio::test]
async fn configure_merges_resets_and_replaces() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let body = json!({"queue": "q", "namespace": null, "task": "t", "mode": "replace", "retryLimit": 9, "leaseTime": 5,
        "options": {"leaseTime": 30, "ttl": null, "minPopWaitTime": 90000, "dedupWindowSeconds": -3, "priority": -2,
            "deadLetterQueue": false, "retentionSinkHold": "a.B_c-9", "future": {}}});
    let answer = client.post("/api/v1/configure", body.to_string()).await;
    let json = answer.json();
    assert_eq!(answer.status, 200);
    assert!(json.get("error").is_none());
    for (key, value) in [
        ("configured", json!(true)),
        ("queueId", json!("3")),
        ("partitionId", Value::Null),
        ("queue", json!("q")),
        ("namespace", json!("n")),
        ("task", json!("t")),
        ("storage", json!("segments")),
    ] {
        assert_eq!(json[key], value, "{key}");
    }
    assert_eq!(json["options"].as_object().unwrap().len(), 21);
    assert_eq!((&json["options"]["leaseTime"], &json["options"]["retryDelay"]), (&300.into(), &1000.into()));
    let Command::Configure(configure) = server.command().await else { panic!() };
    assert!(configure.replace);
    assert_eq!((configure.namespace, configure.task), (Patch::Keep, Patch::Set("t".to_owned())));
    let options = configure.options;
    assert_eq!((options.lease_seconds, options.retry_limit), (Patch::Set(30), Patch::Set(9)));
    assert_eq!((options.ttl_seconds, options.max_size), (Patch::Reset, Patch::Keep));
    assert_eq!((options.min_pop_wait_ms, options.dedup_window_seconds), (Patch::Set(60_000), Patch::Set(0)));
    assert_eq!((options.priority, options.dead_letter_queue), (Patch::Set(-2), Patch::Set(false)));

    assert_eq!(
        client.post("/api/v1/configure", r#"{"queue":"","options":null,"mode":"merge"}"#).await.status,
        200
    );
    assert!(matches!(server.command().await, Command::Configure(c) if !c.replace && c.queue.is_empty()));
    for (body, word) in [
        ("{}", "queue"),
        (r#"{"queue":5}"#, "queue"),
        (r#"{"queue":"q","queue":"r"}"#, "twice"),
        (r#"{"queue":"q","options":[1]}"#, "expected an object"),
        (r#"{"queue":"q","options":{"ttl":1,"ttl":2}}"#, "ttl is there twice"),
        (r#"{"queue":"q","mode":"upsert"}"#, r#"mode must be "merge" or "replace", got "upsert""#),
        (r#"{"queue":"q","options":{"retryLimit":"3"}}"#, "retryLimit"),
        (r#"{"queue":"q","options":{"retryLimit":1.5}}"#, "retryLimit"),
        (r#"{"queue":"q","options":{"retryLimit":-1}}"#, "retryLimit"),
        (r#"{"queue":"q","options":{"leaseTime":604801}}"#, "604800"),
        (r#"{"queue":"q","options":{"deadLetterQueue":1}}"#, "deadLetterQueue"),
        (r#"{"queue":"q","options":{"retentionSinkHold":"a/b"}}"#, "retentionSinkHold"),
        (r#"{"queue":"q","options":{"retentionSinkHoldMaxSeconds":59}}"#, "retentionSinkHoldMaxSeconds"),
    ] {
        let answer = client.post("/api/v1/configure", body).await;
        assert_eq!(answer.status, 400, "{body}");
        let json = answer.json();
        assert!(json["error"].as_str().unwrap().contains(word), "{body}: {json}");
        if body.contains("Sink") {
            assert_eq!(json["invalid"], word);
        }
    }
    server.assert_untouched("refused configurations");
}

#[tokio::test]
async fn deleting_a_queue_is_200_either_way() {
    let server = scripted(Config::defaults(), |command| match command {
        Command::DeleteQueue(queue) => Act::Reply(Reply::DeleteQueue(queue == "there")),
        _ => Act::Usual,
    })
    .await;
    let mut client = server.client().await;
    let json = client.request("DELETE", "/api/v1/resources/queues/there", "").await.json();
    assert_eq!(json, json!({"deleted": true, "queue": "there", "existed": true}));
    let answer = client.request("DELETE", "/api/v1/resources/queues/gone", "").await;
    assert_eq!(
        (answer.status, &answer.json()["deleted"], &answer.json()["existed"]),
        (200, &true.into(), &false.into())
    );
}

#[tokio::test]
async fn dead_letters() {
    let (run, bytes) = run(&[b"{\"x\":1.0}"]);
    let mut server = scripted(Config::defaults(), move |_| {
        let row = DeadLetterRow {
            id: DeadLetterId(5),
            queue: "q".into(),
            partition_name: "eu".into(),
            partition: PartitionId(17),
            group: "g".into(),
            offset: Offset(40),
            error: "a \"bad\"\0 one".into(),
            retries_used: 3,
            created: WallTime(1_796_040_000_123_456),
            failed: WallTime(1_796_040_001_000_000),
            copy: Piece { run, source: Source::Memory(bytes.clone()), first: Offset(40), last: Offset(40) },
        };
        Act::Reply(Reply::DeadLetters(DeadLetterPage { rows: vec![row], total: 3 }))
    })
    .await;
    let mut client = server.client().await;
    let answer = client.get("/api/v1/dlq?queue=q&consumerGroup=g&limit=5000&offset=2&partition=p").await;
    assert!(answer.text().contains(r#""data":{"x":1.0}"#));
    assert_eq!(
        answer.json(),
        json!({"messages": [{"id": DeadLetterId(5).text(), "messageId": MessageId(0x0193_0000_0000_7000_8000_0000_0000_0000).text(),
            "transactionId": "t40", "partitionId": "17", "queue": "q", "partition": "eu", "consumerGroup": "g",
            "errorMessage": "a \"bad\"\0 one", "retryCount": 3, "data": {"x": 1.0}, "producerSub": null,
            "createdAt": "2026-11-30T12:00:00.123Z", "failedAt": "2026-11-30T12:00:01.000Z", "offset": 40}],
            "pagination": {"limit": 1000, "offset": 2}, "total": 3})
    );
    let Command::DeadLetters(query) = server.command().await else { panic!() };
    assert_eq!(
        (query.queue.as_deref(), query.group.as_deref(), query.limit, query.offset),
        (Some("q"), Some("g"), 1000, 2)
    );
    // A page that ended early for its size names the limit that was in effect, so that nobody pages past a row.
    let early = client.get("/api/v1/dlq?limit=10").await.json();
    assert_eq!((&early["pagination"]["limit"], &early["total"]), (&1.into(), &3.into()));
    for query in ["limit=-1", "offset=-1", "limit=x", "offset=1.5"] {
        client.get(&format!("/api/v1/dlq?{query}")).await.fault(400, "bad_request");
    }
}
