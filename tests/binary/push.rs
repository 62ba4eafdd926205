//! Pushes of every form.

use serde_json::{Value, json};

use super::{pushed, send, texts};
use crate::common::api::Api;
use crate::common::frames::{FRAMES, IDS, SHORT, push};
use crate::common::unique;

fn uuid() -> u128 {
    uuid::Uuid::now_v7().as_u128()
}

fn text(id: u128) -> String {
    uuid::Uuid::from_u128(id).to_string()
}

async fn delivered(api: &Api, queue: &str, partition: &str) -> Vec<(String, Value, u64)> {
    let popped = api.pop(&format!("/queue/{queue}/partition/{partition}"), &[("batch", "100")]).await;
    popped.messages.iter().map(|m| (m.transaction_id.clone(), m.data.clone(), m.offset)).collect()
}

#[tokio::test]
async fn every_flag_stores_the_same_messages() {
    let api = Api::shared();
    for flags in 0..16 {
        let queue = unique("flags");
        let ids: Vec<u128> = (0..5).map(|_| uuid()).collect();
        let groups = vec![
            (queue.as_str(), "eu", vec![(ids[0], "a", "{\"n\": 1.0}"), (ids[1], "", "18446744073709551616")]),
            (&queue, "", vec![(ids[2], "a", "null")]),
            // Back to the first partition: it continues there.
            (&queue, "eu", vec![(ids[3], "b", "\"\\ud83d\\ude00\""), (ids[4], "a", "2")]),
        ];
        let answer = pushed(&api, push(flags, &groups)).await;
        let with_ids = flags & (IDS | FRAMES) != 0;
        if flags & SHORT != 0 {
            let duplicate = u64::from(with_ids);
            let counts = json!({"count": 5, "queued": 5 - duplicate, "duplicate": duplicate, "error": 0});
            assert_eq!(answer, counts, "{flags}");
        } else {
            let indexes: Vec<u64> =
                answer.as_array().unwrap().iter().map(|item| item["index"].as_u64().unwrap()).collect();
            assert_eq!(indexes, [0, 1, 2, 3, 4]);
            let offsets: Vec<u64> =
                answer.as_array().unwrap().iter().map(|item| item["offset"].as_u64().unwrap()).collect();
            let last = if with_ids { 0 } else { 3 };
            assert_eq!(offsets, [0, 1, 0, 2, last], "{flags}");
            if flags & FRAMES != 0 {
                let own: Vec<String> = [ids[0], ids[1], ids[2], ids[3], ids[0]].map(text).to_vec();
                assert_eq!(texts(&answer, "message_id"), own);
            }
        }
        let eu = delivered(&api, &queue, "eu").await;
        let offsets: Vec<u64> = eu.iter().map(|(_, _, offset)| *offset).collect();
        let data: Vec<&Value> = eu.iter().map(|(_, data, _)| data).collect();
        let big: Value = serde_json::from_str("18446744073709551616").unwrap();
        let mut expected = vec![json!({"n": 1.0}), big, json!("😀")];
        if with_ids {
            assert_eq!((&eu[0].0[..], &eu[2].0[..]), ("a", "b"));
            if flags & FRAMES != 0 {
                assert_eq!(eu[1].0, text(ids[1]), "the message id takes the transaction id's place");
            }
        } else {
            expected.push(json!(2));
        }
        assert_eq!(data, expected.iter().collect::<Vec<_>>(), "{flags}");
        assert_eq!(offsets, (0..expected.len() as u64).collect::<Vec<_>>());
        assert_eq!(delivered(&api, &queue, "Default").await.len(), 1);
    }
}

#[tokio::test]
async fn a_repeated_request_finds_its_first() {
    let api = Api::shared();
    for flags in [IDS, IDS | 1, FRAMES, FRAMES | 1] {
        let queue = unique("repeat");
        // A framed message without an id of its own is found by its message id; a plain one is new each time.
        let own = if flags & FRAMES == 0 { "y" } else { "" };
        let body = push(flags, &[(&queue, "p", vec![(uuid(), "x", "1"), (uuid(), own, "2")])]);
        let first = pushed(&api, body.clone()).await;
        assert_eq!(texts(&first, "status"), ["queued", "queued"]);
        for _ in 0..2 {
            let again = pushed(&api, body.clone()).await;
            assert_eq!(texts(&again, "status"), ["duplicate", "duplicate"], "{flags}");
            assert_eq!(texts(&again, "message_id"), texts(&first, "message_id"));
            assert_eq!((&again[0]["offset"], &again[1]["offset"]), (&json!(0), &json!(1)));
        }
        assert_eq!(delivered(&api, &queue, "p").await.len(), 2);
        // The same transaction id as JSON is the same message.
        let json = api
            .push_items(json!([{"queue": queue, "partition": "p", "transactionId": "x", "payload": 9}]))
            .await;
        assert_eq!(json[0].status, "duplicate");
    }
}

#[tokio::test]
async fn a_message_id_proves_nothing() {
    let api = Api::shared();
    let queue = unique("ids");
    let id = uuid();
    // The same message id under other transaction ids, in one request and in the next: all are messages.
    let answer = pushed(&api, push(FRAMES, &[(&queue, "p", vec![(id, "a", "1"), (id, "b", "2")])])).await;
    assert_eq!(texts(&answer, "status"), ["queued", "queued"]);
    let answer = pushed(&api, push(FRAMES, &[(&queue, "p", vec![(id, "c", "3"), (0, "d", "4")])])).await;
    assert_eq!(texts(&answer, "status"), ["queued", "queued"]);
    assert_eq!(texts(&answer, "message_id"), [text(id), text(0)]);
    assert_eq!(delivered(&api, &queue, "p").await.len(), 4);
}

#[tokio::test]
async fn a_body_with_one_bad_message_stores_none() {
    let api = Api::shared();
    let queue = unique("whole");
    for flags in [0, 1, IDS, FRAMES, FRAMES | 1] {
        for bad in ["", "{", "1 1", "\"\u{1}\""] {
            let groups = [
                (queue.as_str(), "a", vec![(uuid(), "x", "1")]),
                (&queue, "b", vec![(uuid(), "y", "2"), (uuid(), "z", bad)]),
            ];
            let (status, json) = send(&api, "/api/v1/push", push(flags, &groups)).await;
            assert_eq!((status, &json["code"]), (400, &json!("bad_body")), "{json}");
            assert!(json["error"].as_str().unwrap().contains("groups[1]: items[1]: payload"), "{json}");
        }
    }
    assert!(api.pop(&format!("/queue/{queue}"), &[]).await.messages.is_empty());
}

#[tokio::test]
async fn what_was_pushed_as_frames_is_acked_and_survives_a_kill() {
    let daemon = std::sync::Arc::new(crate::common::Daemon::start(crate::common::SHARED));
    let api = Api::of(std::sync::Arc::clone(&daemon));
    let id = uuid();
    pushed(&api, push(FRAMES | 1, &[("q", "p", vec![(id, "", "[1.50]"), (uuid(), "é", "2")])])).await;
    daemon.kill();
    daemon.restart();
    let popped = api.pop("/queue/q", &[]).await;
    assert_eq!(popped.ids(), [text(id).as_str(), "é"]);
    assert_eq!(popped.messages[0].id, text(id));
    let verdicts = api
        .ack(
            "/api/v1/ack",
            &json!({"transactionId": "é", "partitionId": popped.partition_id, "leaseId": popped.lease_id}),
        )
        .await;
    assert!(verdicts[0].success, "{verdicts:?}");
    let again = pushed(&api, push(FRAMES, &[("q", "p", vec![(id, "", "[1.50]")])])).await;
    assert_eq!(texts(&again, "status"), ["duplicate"]);
}
