//! The opt-in binary forms, as the client writes and reads them.

use queen_mq::push_binary::{PushBatch, PushCounts, encode_push_binary, encode_push_frames};
use queen_mq::{AckStatus, BufferOptions, Config, Message, PushItem, PushStatus, Queen, SubscriptionMode};
use serde_json::{Value, json};

use super::{Client, ids, number, numbered};
use crate::common::unique;

/// A client of the shared daemon with these forms.
fn client(binary: bool, compressed: bool, framed: bool) -> Client {
    let mut client = Client::new();
    let config = Config::new(client.daemon.url())
        .retry_attempts(1)
        .binary_push(binary)
        .push_compression(compressed)
        .framed_pop(framed);
    client.queen = Queen::connect(config).unwrap();
    client
}

/// Plain and compressed.
fn clients() -> [Client; 2] {
    [client(true, false, true), client(true, true, true)]
}

/// What two forms of the same delivery must agree on.
fn facts(messages: &[Message]) -> Vec<Value> {
    let fact =
        |m: &Message| json!([m.id, m.transaction_id, m.data, m.created_at, m.partition_id, m.trace_id]);
    messages.iter().map(fact).collect()
}

#[tokio::test]
async fn pushes_arrive_in_order_and_in_their_partitions() {
    for client in clients() {
        let queue = unique("binary");
        let items = (0..60)
            .map(|n| {
                let partition = ["a", "a", "b"][n % 3];
                PushItem::new(&queue, json!({"n": n, "text": "ü".repeat(n)})).partition(partition)
            })
            .collect();
        let pushed = client.queue(&queue).push_items(items).await.unwrap();
        assert_eq!(pushed.iter().map(|p| p.index).collect::<Vec<_>>(), (0..60).collect::<Vec<_>>());
        assert!(pushed.iter().all(|p| p.status == PushStatus::Queued && p.queue_name == queue));
        for (partition, rest) in [("a", [0, 1]), ("b", [2, 2])] {
            let popped =
                client.queue(&queue).partition(partition).batch(100).wait(false).pop().await.unwrap();
            let expected: Vec<u64> = (0..60).filter(|n| rest.contains(&(n % 3))).collect();
            assert_eq!(popped.iter().map(number).collect::<Vec<_>>(), expected);
            for message in &popped {
                let of = &pushed[usize::try_from(number(message)).unwrap()];
                assert_eq!((&message.id, &message.transaction_id), (&of.message_id, &of.transaction_id));
            }
            assert!(client.ack_all(&popped).await.unwrap().iter().all(|a| a.success));
        }
        assert!(client.take(&queue, None, 1).await.is_empty());
    }
}

#[tokio::test]
async fn a_framed_pop_is_what_a_json_pop_is() {
    for client in clients() {
        let plain = Client::new();
        let queue = unique("same");
        let values =
            [json!(null), json!(-1.5), json!("\u{0}\"😀"), json!([]), json!({"a": [1, {"b": null}]})];
        client.queue(&queue).push_many(values.clone()).await.unwrap();
        plain.queue(&queue).push_many(values).await.unwrap();
        let by_frames = client.take(&queue, Some("f"), 100).await;
        let by_json = plain.take(&queue, Some("j"), 100).await;
        assert_eq!(by_frames.len(), 10);
        assert_eq!(facts(&by_frames), facts(&by_json));
        assert!(client.take(&queue, Some("f"), 100).await.is_empty(), "leased");
        assert!(by_frames.iter().all(|m| m.consumer_group == "f" && !m.lease_id.is_empty()));
        assert!(client.ack_all(&by_frames).await.unwrap().iter().all(|a| a.success));
        let pop = client
            .queue(&queue)
            .group("once")
            .subscription_mode(SubscriptionMode::All)
            .batch(100)
            .wait(false);
        let once = pop.commit_on_delivery(true).pop().await.unwrap();
        assert!(once.len() == 10 && once.iter().all(|m| m.lease_id.is_empty()));
    }
}

#[tokio::test]
async fn duplicates_are_found_across_the_forms() {
    for client in clients() {
        let queue = unique("dedup");
        let item = |n| vec![PushItem::new(&queue, json!(n)).transaction_id("order-1")];
        let first = client.queue(&queue).push_items(item(1)).await.unwrap();
        for again in [
            client.queue(&queue).push_items(item(2)).await,
            Client::new().queue(&queue).push_items(item(3)).await,
        ] {
            let again = again.unwrap();
            assert_eq!(again[0].status, PushStatus::Duplicate);
            assert_eq!((&again[0].message_id, again[0].offset), (&first[0].message_id, first[0].offset));
        }
        assert_eq!(ids(&client.take(&queue, None, 10).await), ["order-1"]);
    }
}

#[tokio::test]
async fn buffered_pushes_and_consumers_work_as_ever() {
    for client in clients() {
        let queue = unique("consume");
        let options = BufferOptions { message_count: 10, ..BufferOptions::default() };
        for value in numbered(0..45) {
            client.queue(&queue).buffer(options).push(value).await.unwrap();
        }
        client.queue(&queue).flush_buffer().await.unwrap();
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = std::sync::Arc::clone(&seen);
        client
            .queue(&queue)
            .batch(7)
            .limit(45)
            .consume(move |message: Message| {
                sink.lock().unwrap().push(number(&message));
                async { Ok::<(), String>(()) }
            })
            .await
            .unwrap();
        assert_eq!(*seen.lock().unwrap(), (0..45).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn transactions_commit_and_roll_back() {
    for client in clients() {
        let (from, to) = (unique("from"), unique("to"));
        client.put(&from, &["m1", "m2"]).await;
        let popped = client.take(&from, None, 2).await;
        // The push stands between the acks: the answer is in the caller's order all the same.
        let done = client
            .transaction()
            .ack(&popped[0])
            .push(&to, json!({"n": 1}))
            .unwrap()
            .ack(&popped[1])
            .push_to(&to, "lane", json!({"n": 2}))
            .unwrap()
            .commit()
            .await
            .unwrap();
        let kinds: Vec<&str> = done.results.iter().map(|r| r.op_type.as_str()).collect();
        assert_eq!(kinds, ["ack", "push", "ack", "push"]);
        assert_eq!(done.results.iter().map(|r| r.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let moved = client.queue(&to).batch(10).partitions(10).wait(false).pop().await.unwrap();
        let mut numbers: Vec<u64> = moved.iter().map(number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2]);
        assert!(moved.iter().any(|m| Some(m.id.as_str()) == done.results[1].message_id.as_deref()));

        client.put(&from, &["m3"]).await;
        client.put(&to, &["taken"]).await;
        let popped = client.take(&from, None, 1).await;
        assert_eq!(ids(&popped), ["m3"]);
        let mut item = queen_mq::TxnPushItem::new(&to, json!(1));
        item.transaction_id = Some("taken".to_owned());
        let bundle = client.transaction().ack(&popped[0]).push(&to, json!({"n": 3})).unwrap();
        let error = bundle.push_item(item).unwrap().commit().await.unwrap_err().to_string();
        assert!(error.contains("rolled back"), "{error}");
        assert!(client.ack_with(&popped[0], AckStatus::Retry, None).await.unwrap().success);
        assert_eq!(ids(&client.take(&from, None, 1).await), ["m3"]);
    }
}

#[tokio::test]
async fn a_refusal_reaches_the_caller() {
    for client in clients() {
        let deep = (0..200).fold(json!(1), |value, _| json!([value]));
        let error = client.queue(unique("deep")).push(deep).await.unwrap_err().to_string();
        assert!(error.contains("limits.json_depth"), "{error}");
        let long = "n".repeat(500);
        let error = client.queue(&long).push(1).await.unwrap_err().to_string();
        assert!(error.contains("447"), "{error}");
    }
}

#[tokio::test]
async fn the_public_encoders_reach_every_flag() {
    let client = Client::new();
    let http = reqwest::Client::new();
    let queue = unique("encoded");
    for (n, (compress, counts)) in
        [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
    {
        let ids = [format!("i{n}"), String::new()];
        let batch = |ids: Option<Vec<&'static str>>| PushBatch {
            queue: &queue,
            partition: "",
            payloads: vec![&b"{\"n\":1}"[..], b"[2]"],
            transaction_ids: ids,
        };
        let named =
            PushBatch { transaction_ids: Some(ids.iter().map(String::as_str).collect()), ..batch(None) };
        let bodies = [
            encode_push_binary(&[named.clone(), batch(None)], compress, counts).unwrap(),
            encode_push_frames(&[named, batch(None)], counts).unwrap(),
        ];
        for (second, body) in bodies.into_iter().enumerate() {
            let request = http.post(format!("{}/api/v1/push", client.daemon.url())).body(body);
            let response =
                request.header("content-type", queen_mq::push_binary::CONTENT_TYPE).send().await.unwrap();
            assert_eq!(response.status(), 201);
            let duplicate = u64::from(second == 1);
            if counts {
                let counts: PushCounts = response.json().await.unwrap();
                assert_eq!((counts.count, counts.queued, counts.duplicate), (4, 4 - duplicate, duplicate));
                assert_eq!(counts.error, 0);
            } else {
                assert_eq!(response.json::<Vec<Value>>().await.unwrap().len(), 4);
            }
        }
    }
}
