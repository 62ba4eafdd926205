//! Push, deduplication and the fidelity of payloads and names.

use std::collections::HashSet;

use queen_mq::{BufferOptions, PushItem, PushStatus, QueueOptions};
use serde_json::{Value, json};

use super::{Client, ids, number, numbered};
use crate::common::unique;

#[tokio::test]
async fn a_push_is_queued_and_popped() {
    let client = Client::new();
    let queue = unique("push");
    let pushed = client.queue(&queue).push(json!({"hello": "world"})).await.unwrap();
    assert_eq!(pushed.len(), 1);
    assert_eq!((pushed[0].status, pushed[0].index, pushed[0].offset), (PushStatus::Queued, 0, Some(0)));
    assert_eq!(pushed[0].queue_name, queue);
    let popped = client.take(&queue, None, 10).await;
    assert_eq!(popped.len(), 1);
    assert_eq!(popped[0].id, pushed[0].message_id);
    assert_eq!(popped[0].transaction_id, pushed[0].transaction_id);
    assert_eq!(popped[0].data, json!({"hello": "world"}));
    assert_eq!(
        (popped[0].partition.as_str(), popped[0].consumer_group.as_str()),
        ("Default", "__QUEUE_MODE__")
    );
    assert_eq!(popped[0].trace_id, None);
    assert_eq!(popped[0].producer_sub, None);
    let created = popped[0].created_at.as_bytes();
    assert_eq!((created.len(), created[23]), (24, b'Z'), "{}", popped[0].created_at);
}

#[tokio::test]
async fn many_messages_keep_their_order() {
    let client = Client::new();
    let queue = unique("order");
    for chunk in 0..10 {
        let pushed = client.queue(&queue).push_many(numbered(chunk * 100..chunk * 100 + 100)).await.unwrap();
        let expected: Vec<Option<i64>> =
            (0..100).map(|n| Some((chunk * 100 + n).try_into().unwrap())).collect();
        assert_eq!(pushed.iter().map(|p| p.offset).collect::<Vec<_>>(), expected);
    }
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        let popped = client.take(&queue, None, 150).await;
        assert!(!popped.is_empty(), "{} of 1000", seen.len());
        assert!(popped.len() <= 150);
        seen.extend(popped.iter().map(number));
        assert!(client.ack_all(&popped).await.unwrap().iter().all(|a| a.success));
    }
    assert_eq!(seen, (0..1000).collect::<Vec<_>>());
}

#[tokio::test]
async fn items_of_one_push_go_to_their_own_partitions() {
    let client = Client::new();
    let queue = unique("lanes");
    let items = (0..6)
        .map(|n| PushItem::new(&queue, json!({ "n": n })).partition(if n % 2 == 0 { "even" } else { "odd" }))
        .collect();
    let pushed = client.queue(&queue).push_items(items).await.unwrap();
    assert_eq!(pushed.iter().map(|p| p.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let odd = client.queue(&queue).partition("odd").batch(10).wait(false).pop().await.unwrap();
    assert_eq!(odd.iter().map(number).collect::<Vec<_>>(), [1, 3, 5]);
    let rest = client.take(&queue, None, 10).await;
    assert_eq!(rest.iter().map(number).collect::<Vec<_>>(), [0, 2, 4]);
}

#[tokio::test]
async fn a_repeated_id_is_a_duplicate_of_the_first_message() {
    let client = Client::new();
    let queue = unique("dedup");
    let item = || vec![PushItem::new(&queue, json!(1)).transaction_id("order-1")];
    let first = client.queue(&queue).push_items(item()).await.unwrap();
    let popped = client.take(&queue, None, 1).await;
    assert!(client.ack(&popped[0]).await.unwrap().success);
    // Delivered and acknowledged or not: the window is about the push.
    let second = client.queue(&queue).push_items(item()).await.unwrap();
    assert_eq!(second[0].status, PushStatus::Duplicate);
    assert_eq!((&second[0].message_id, second[0].offset), (&first[0].message_id, first[0].offset));
    assert!(client.take(&queue, None, 10).await.is_empty());
}

#[tokio::test]
async fn repeats_inside_one_push_collapse_even_without_a_window() {
    let client = Client::new();
    let queue = client
        .configured("dedup-inside", QueueOptions { dedup_window_seconds: Some(0), ..Default::default() })
        .await;
    let item = |n: u64| PushItem::new(&queue, json!({ "n": n })).transaction_id("same");
    let pushed = client.queue(&queue).push_items(vec![item(0), item(1), item(2)]).await.unwrap();
    assert_eq!(
        pushed.iter().map(|p| p.status).collect::<Vec<_>>(),
        [PushStatus::Queued, PushStatus::Duplicate, PushStatus::Duplicate]
    );
    assert!(pushed.iter().all(|p| p.message_id == pushed[0].message_id && p.offset == Some(0)));
    // And with no window the next push of the same id is a new message.
    let again = client.queue(&queue).push_items(vec![item(3)]).await.unwrap();
    assert_eq!((again[0].status, again[0].offset), (PushStatus::Queued, Some(1)));
}

#[tokio::test]
async fn the_window_is_per_queue_and_partition() {
    let client = Client::new();
    let (one, two) = (unique("dedup-a"), unique("dedup-b"));
    for (queue, partition) in [(&one, "p"), (&one, "q"), (&two, "p")] {
        let item = PushItem::new(queue, json!(1)).partition(partition).transaction_id("same");
        let pushed = client.queue(queue).push_items(vec![item]).await.unwrap();
        assert_eq!(pushed[0].status, PushStatus::Queued, "{queue} {partition}");
    }
}

#[tokio::test]
async fn eight_racing_pushes_of_one_id_store_one_message() {
    let client = Client::new();
    for round in 0..5 {
        let queue = unique("race");
        let racers: Vec<_> = (0..8)
            .map(|n| {
                let (queen, queue) = (client.queen.clone(), queue.clone());
                tokio::spawn(async move {
                    let item = PushItem::new(&queue, json!({ "n": n })).transaction_id("one");
                    queen.queue(&queue).push_items(vec![item]).await.unwrap().remove(0)
                })
            })
            .collect();
        let mut results = Vec::new();
        for racer in racers {
            results.push(racer.await.unwrap());
        }
        let queued = results.iter().filter(|r| r.status == PushStatus::Queued).count();
        let duplicates = results.iter().filter(|r| r.status == PushStatus::Duplicate).count();
        assert_eq!((queued, duplicates), (1, 7), "round {round}: {results:?}");
        assert_eq!(results.iter().map(|r| r.message_id.as_str()).collect::<HashSet<_>>().len(), 1);
        assert_eq!(client.take(&queue, None, 10).await.len(), 1);
    }
}

#[tokio::test]
async fn buffered_pushes_arrive_on_flush() {
    let client = Client::new();
    let queue = unique("buffered");
    let buffered = client.queue(&queue).buffer(BufferOptions::default());
    for n in 0..25 {
        buffered.push(json!({ "n": n })).await.unwrap();
    }
    client.flush_all_buffers().await.unwrap();
    let popped = client.take(&queue, None, 100).await;
    assert_eq!(popped.iter().map(number).collect::<Vec<_>>(), (0..25).collect::<Vec<_>>());
}

#[tokio::test]
async fn payloads_come_back_as_they_were() {
    let client = Client::new();
    let queue = unique("payloads");
    let payloads = vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1.5),
        json!(18_446_744_073_709_551_615_u64),
        json!(-9_223_372_036_854_775_808_i64),
        json!(""),
        json!("text with \"quotes\", \\ and \n and \u{0} and \u{1f41d}"),
        json!([]),
        json!({}),
        json!([[], {}, [null], {"": ""}]),
        json!({"": 1, "a b": {"ключ": "値"}, "nested": [[[[{"deep": [1, 2, {"x": null}]}]]]]}),
        json!({"data": {"payload": "names of the wire"}, "transactionId": "inside"}),
    ];
    client.queue(&queue).push_many(payloads.clone()).await.unwrap();
    let popped = client.take(&queue, None, 100).await;
    assert_eq!(popped.into_iter().map(|m| m.data).collect::<Vec<_>>(), payloads);
}

#[tokio::test]
async fn a_megabyte_comes_back_as_it_was() {
    let client = Client::new();
    let queue = unique("large");
    let text: String =
        (0..1_048_576_u32).map(|n| char::from(b'a' + u8::try_from(n * 7 % 26).unwrap())).collect();
    client.queue(&queue).push_many([json!({ "text": text }), json!("after")]).await.unwrap();
    let popped = client.take(&queue, None, 10).await;
    assert_eq!(popped[0].data["text"], Value::String(text));
    assert_eq!(popped[1].data, "after");
    assert!(client.ack_all(&popped).await.unwrap().iter().all(|a| a.success));
}

#[tokio::test]
async fn names_may_hold_anything() {
    let client = Client::new();
    for name in
        ["with space", "with/slash", "ünïcode \u{1f41d}", "colon:and?question#hash%percent", "..", "a+b&c=d"]
    {
        let queue = format!("{}{name}", unique(""));
        for partition in ["lane with space/and-slash", "ünïcode", "%2F", "?"] {
            client.queue(&queue).partition(partition).push(json!({ "p": partition })).await.unwrap();
            let pop = client.queue(&queue).partition(partition).group("g ü/1");
            let popped = pop
                .subscription_mode(queen_mq::SubscriptionMode::All)
                .batch(5)
                .wait(false)
                .pop()
                .await
                .unwrap();
            assert_eq!(popped.len(), 1, "{queue} {partition}");
            assert_eq!(popped[0].data["p"], partition);
            assert_eq!(
                (popped[0].partition.as_str(), popped[0].consumer_group.as_str()),
                (partition, "g ü/1")
            );
            assert!(client.ack(&popped[0]).await.unwrap().success);
        }
        assert_eq!(client.queue(&queue).delete().await.unwrap()["existed"], true, "{queue}");
    }
}

#[tokio::test]
async fn a_long_partition_name_works() {
    let client = Client::new();
    let queue = unique("long");
    let partition = "p".repeat(200);
    client.queue(&queue).partition(&partition).push(json!(1)).await.unwrap();
    let popped = client.take(&queue, None, 1).await;
    assert_eq!(popped[0].partition, partition);
}

#[tokio::test]
async fn a_queue_is_empty_after_its_deletion() {
    let client = Client::new();
    let queue = unique("deleted");
    client.put(&queue, &["m1", "m2"]).await;
    let before = client.take(&queue, None, 1).await;
    assert_eq!(client.queue(&queue).delete().await.unwrap()["deleted"], true);
    assert!(client.take(&queue, None, 10).await.is_empty());
    let ack = client.ack(&before[0]).await.unwrap();
    assert!(!ack.success, "the partition of that message is gone: {ack:?}");
    client.put(&queue, &["m1"]).await;
    let after = client.take(&queue, None, 10).await;
    assert_eq!(ids(&after), ["m1"], "its ids are forgotten too");
    assert_ne!(after[0].partition_id, before[0].partition_id);
}
