//! Failed, retry and dlq: what they clamp, what they cost, and which of them decides.

use serde_json::json;

use crate::common::lane::{LEASE_OVER, Lane, all_succeed};

#[tokio::test]
async fn a_failure_is_never_skipped_by_a_later_completed_ack() {
    let lane = Lane::with("clamp", &["m1", "m2", "m3", "m4"]).await;
    let batch = lane.pop(4).await;
    let verdicts = lane
        .settle(&batch, &[("m1", "completed"), ("m2", "failed"), ("m3", "completed"), ("m4", "completed")])
        .await;
    assert!(all_succeed(&verdicts), "every item was heard: {verdicts:?}");
    assert!(verdicts.iter().all(|v| v.lease_released && !v.dlq), "{verdicts:?}");
    let again = lane.pop(4).await;
    assert_eq!(again.ids(), ["m2", "m3", "m4"], "the failure and everything above it");
    assert_eq!(again.messages[0].offset, 1);
}

#[tokio::test]
async fn the_order_of_the_items_does_not_matter() {
    let lane = Lane::with("clamp-order", &["m1", "m2", "m3", "m4"]).await;
    let batch = lane.pop(4).await;
    let items = [("m4", "completed"), ("m3", "completed"), ("m1", "completed"), ("m2", "retry")];
    assert!(all_succeed(&lane.settle(&batch, &items).await));
    assert_eq!(lane.ids().await, ["m2", "m3", "m4"]);
}

#[tokio::test]
async fn silent_gaps_below_a_completed_ack_are_complete_and_gaps_above_it_are_not() {
    let lane = Lane::with("gaps", &["m1", "m2", "m3", "m4", "m5", "m6"]).await;
    let batch = lane.pop(6).await;
    // m1 and m2 are below a completed one; m4 is between it and the failure.
    assert!(all_succeed(
        &lane.settle(&batch, &[("m3", "completed"), ("m5", "failed"), ("m6", "completed")]).await
    ));
    assert_eq!(lane.ids().await, ["m4", "m5", "m6"]);
}

#[tokio::test]
async fn each_signal_clamps() {
    for (status, back) in [("failed", "m2"), ("retry", "m2"), ("dlq", "m3")] {
        let lane = Lane::with("each", &["m1", "m2", "m3"]).await;
        let batch = lane.pop(3).await;
        let verdicts = lane.settle(&batch, &[("m1", "completed"), ("m2", status), ("m3", "completed")]).await;
        assert!(verdicts.iter().all(|v| v.success && v.lease_released), "{status}: {verdicts:?}");
        assert_eq!(lane.ids().await.first().map(String::as_str), Some(back), "{status}");
    }
}

#[tokio::test]
async fn the_lowest_signal_decides_what_happens() {
    let lane = Lane::with("lowest", &["m1", "m2", "m3"]).await;
    lane.configure(json!({"retryLimit": 0})).await;
    let batch = lane.pop(3).await;
    // Would m2 decide, it were dead-lettered at once.
    let verdicts = lane.settle(&batch, &[("m2", "failed"), ("m1", "retry"), ("m3", "dlq")]).await;
    assert!(verdicts.iter().all(|v| v.success && !v.dlq), "{verdicts:?}");
    assert!(lane.dead_letters().await.is_empty());
    let batch = lane.pop(3).await;
    assert_eq!(batch.ids(), ["m1", "m2", "m3"]);
    lane.settle(&batch, &[("m1", "dlq"), ("m2", "retry")]).await;
    let filed: Vec<String> = lane.dead_letters().await.into_iter().map(|d| d.transaction_id).collect();
    assert_eq!(filed, ["m1"]);
    assert_eq!(lane.ids().await, ["m2", "m3"]);
}

#[tokio::test]
async fn at_one_message_dlq_beats_failed_beats_retry() {
    // dlq over failed: filed although there is budget.
    let lane = Lane::with("tie", &["m1"]).await;
    let batch = lane.pop(1).await;
    let verdicts = lane.settle(&batch, &[("m1", "retry"), ("m1", "failed"), ("m1", "dlq")]).await;
    assert!(verdicts.iter().all(|v| v.success), "{verdicts:?}");
    assert_eq!(lane.dead_letters().await.len(), 1);
    // failed over retry: charged, so that a limit of 0 dead-letters.
    let lane = Lane::with("tie", &["m1"]).await;
    lane.configure(json!({"retryLimit": 0})).await;
    let batch = lane.pop(1).await;
    lane.settle(&batch, &[("m1", "failed"), ("m1", "retry")]).await;
    assert_eq!(lane.dead_letters().await.len(), 1);
    // A signal over completed.
    let lane = Lane::with("tie", &["m1"]).await;
    let batch = lane.pop(1).await;
    lane.settle(&batch, &[("m1", "completed"), ("m1", "retry")]).await;
    assert_eq!(lane.ids().await, ["m1"]);
}

#[tokio::test]
async fn a_failure_with_budget_charges_it_and_redelivers() {
    let lane = Lane::with("budget", &["m1"]).await;
    lane.configure(json!({"retryLimit": 2})).await;
    for attempt in 1..=3 {
        let batch = lane.pop(1).await;
        assert_eq!(batch.ids(), ["m1"]);
        assert_eq!(batch.messages[0].delivery_attempt, attempt);
        let verdicts = lane.settle(&batch, &[("m1", "failed")]).await;
        assert!(verdicts[0].success && verdicts[0].lease_released, "{verdicts:?}");
        assert_eq!(verdicts[0].dlq, attempt == 3, "two redeliveries, then the dead letter");
    }
    assert_eq!(lane.ids().await, [""; 0]);
    let filed = lane.dead_letters().await;
    assert_eq!((filed.len(), filed[0].retry_count), (1, 2));
}

#[tokio::test]
async fn a_retry_limit_of_zero_dead_letters_the_first_failure() {
    let lane = Lane::with("zero", &["m1", "m2"]).await;
    lane.configure(json!({"retryLimit": 0})).await;
    let batch = lane.pop(2).await;
    let verdicts = lane.settle(&batch, &[("m1", "failed")]).await;
    assert!(verdicts[0].dlq && verdicts[0].lease_released, "{verdicts:?}");
    assert_eq!(lane.ids().await, ["m2"]);
}

#[tokio::test]
async fn a_call_charges_once_however_many_items_failed() {
    let ids: Vec<String> = (0..100).map(|n| format!("m{n}")).collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    let lane = Lane::with("charge-once", &names).await;
    lane.configure(json!({"retryLimit": 2})).await;
    for _ in 0..2 {
        let batch = lane.pop(100).await;
        assert_eq!(batch.messages.len(), 100);
        let failed: Vec<(&str, &str)> = names.iter().map(|id| (*id, "failed")).collect();
        assert!(all_succeed(&lane.settle(&batch, &failed).await));
    }
    assert!(lane.dead_letters().await.is_empty());
    let batch = lane.pop(100).await;
    assert!(all_succeed(&lane.complete(&batch).await));
    assert_eq!(lane.ids().await, [""; 0]);
}

#[tokio::test]
async fn a_retry_never_charges_the_budget() {
    let lane = Lane::with("retry-free", &["m1"]).await;
    // The queue is as a push made it: three retries, dead letters on.
    for _ in 0..6 {
        let batch = lane.pop(1).await;
        assert_eq!(batch.ids(), ["m1"]);
        assert!(all_succeed(&lane.settle(&batch, &[("m1", "retry")]).await));
    }
    assert!(lane.dead_letters().await.is_empty());
    for failure in 1..=4 {
        let batch = lane.pop(1).await;
        assert_eq!(lane.settle(&batch, &[("m1", "failed")]).await[0].dlq, failure == 4);
    }
    assert_eq!(lane.dead_letters().await.len(), 1);
}

#[tokio::test]
async fn an_expiry_never_charges_the_budget() {
    let lane = Lane::with("expiry-free", &["m1"]).await;
    lane.configure(json!({"retryLimit": 1})).await;
    for attempt in 1..=3 {
        let batch = lane.pop_and_let_expire(1).await;
        assert_eq!(batch.messages[0].delivery_attempt, attempt);
    }
    assert!(lane.dead_letters().await.is_empty());
    let batch = lane.pop(1).await;
    assert!(!lane.settle(&batch, &[("m1", "failed")]).await[0].dlq, "the whole budget is still there");
    let batch = lane.pop(1).await;
    assert!(lane.settle(&batch, &[("m1", "failed")]).await[0].dlq);
}

#[tokio::test]
async fn the_budget_belongs_to_the_partition_and_not_to_the_message() {
    let lane = Lane::with("shared-budget", &["m1", "m2"]).await;
    lane.configure(json!({"retryLimit": 1})).await;
    let batch = lane.pop(2).await;
    lane.settle(&batch, &[("m1", "failed")]).await;
    let batch = lane.pop(2).await;
    // m1 is done, but its batch is not: the charge stays and m2 finds nothing left.
    let verdicts = lane.settle(&batch, &[("m1", "completed"), ("m2", "failed")]).await;
    assert!(verdicts[1].dlq, "{verdicts:?}");
}

#[tokio::test]
async fn a_partial_ack_does_not_give_the_budget_back_and_a_completed_batch_does() {
    for whole in [false, true] {
        let lane = Lane::with("reset", &["m1", "m2", "m3"]).await;
        lane.configure(json!({"retryLimit": 1})).await;
        let batch = lane.pop(2).await;
        lane.settle(&batch, &[("m1", "failed")]).await;
        let batch = lane.pop(2).await;
        lane.settle(&batch, &[("m1", "completed")]).await;
        if whole {
            assert!(lane.settle(&batch, &[("m2", "completed")]).await[0].lease_released);
            let batch = lane.pop(2).await;
            assert!(!lane.settle(&batch, &[("m3", "failed")]).await[0].dlq, "a closed batch starts anew");
        } else {
            assert!(lane.settle(&batch, &[("m2", "failed")]).await[0].dlq, "the charge is still on the lane");
        }
    }
}

#[tokio::test]
async fn completing_exactly_the_leased_batch_gives_the_budget_back_too() {
    // One call, every message, all completed, with the lease: a shortcut must not change the verdict.
    let lane = Lane::with("shortcut", &["m1", "m2"]).await;
    lane.configure(json!({"retryLimit": 1})).await;
    let batch = lane.pop(1).await;
    lane.settle(&batch, &[("m1", "failed")]).await;
    let batch = lane.pop(1).await;
    assert!(all_succeed(&lane.complete(&batch).await));
    let batch = lane.pop(1).await;
    assert_eq!(batch.messages[0].delivery_attempt, 1);
    assert!(!lane.settle(&batch, &[("m2", "failed")]).await[0].dlq);
    assert_eq!(lane.ids().await, ["m2"]);
}

#[tokio::test]
async fn an_exhausted_failure_is_filed_and_the_tail_redelivers() {
    let lane = Lane::with("head-only", &["m1", "m2", "m3", "m4"]).await;
    lane.configure(json!({"retryLimit": 0})).await;
    let batch = lane.pop(4).await;
    let verdicts = lane.settle(&batch, &[("m2", "failed"), ("m4", "completed")]).await;
    assert!(verdicts[0].dlq, "{verdicts:?}");
    assert!(verdicts.iter().all(|v| v.success && v.lease_released), "{verdicts:?}");
    // m1, a silent gap below the filed message, is complete; what is above it comes back.
    assert_eq!(lane.ids().await, ["m3", "m4"]);
}

#[tokio::test]
async fn without_dead_letters_an_exhausted_message_is_dropped() {
    for (options, kept) in [
        (json!({"retryLimit": 0, "deadLetterQueue": false, "dlqAfterMaxRetries": false}), 0),
        (json!({"retryLimit": 0, "deadLetterQueue": false}), 1),
        (json!({"retryLimit": 0, "dlqAfterMaxRetries": false}), 1),
    ] {
        let lane = Lane::with("dropped", &["m1", "m2"]).await;
        lane.configure(options.clone()).await;
        let batch = lane.pop(2).await;
        let verdicts = lane.settle(&batch, &[("m1", "failed")]).await;
        assert!(verdicts[0].success && verdicts[0].lease_released, "{verdicts:?}");
        assert_eq!(verdicts[0].dlq, kept == 1, "{options}: {verdicts:?}");
        assert_eq!(lane.dead_letters().await.len(), kept, "{options}");
        assert_eq!(lane.ids().await, ["m2"], "{options}");
    }
}

#[tokio::test]
async fn an_explicit_dlq_files_at_once_whatever_the_queue_says() {
    let lane = Lane::with("forced", &["m1", "m2"]).await;
    lane.configure(json!({"deadLetterQueue": false, "dlqAfterMaxRetries": false})).await;
    let batch = lane.pop(2).await;
    let verdicts = lane.settle(&batch, &[("m1", "dlq")]).await;
    assert!(verdicts[0].success && verdicts[0].dlq && verdicts[0].lease_released, "{verdicts:?}");
    let filed = lane.dead_letters().await;
    assert_eq!((filed.len(), filed[0].retry_count), (1, 0));
    assert_eq!(lane.ids().await, ["m2"]);
}

#[tokio::test]
async fn a_dead_letter_is_filed_for_its_group_only() {
    let lane = Lane::with("dlq-group", &["m1"]).await;
    let batch = lane.pop(1).await;
    lane.settle(&batch, &[("m1", "dlq")]).await;
    assert_eq!(lane.group("other").ids().await, ["m1"]);
    assert!(lane.group("other").dead_letters().await.is_empty());
}

#[tokio::test]
async fn a_dead_letter_keeps_the_message_and_the_reason() {
    let lane = Lane::new("snapshot");
    let payload = json!({"order": 4711, "big": 18_446_744_073_709_551_615_u64, "text": "ü"});
    lane.api
        .push_items(json!([{"queue": lane.queue, "transactionId": "order-4711", "payload": payload}]))
        .await;
    let batch = lane.pop(1).await;
    let reason = "forced by test: \u{0}\u{1f41d} \"quoted\"";
    let item = json!({"transactionId": "order-4711", "partitionId": batch.partition_id, "leaseId": batch.lease_id,
                      "status": "dlq", "error": reason});
    assert!(lane.ack_raw(json!([item])).await[0].dlq);
    let filed = lane.dead_letters().await.remove(0);
    assert_eq!(filed.queue, lane.queue);
    assert_eq!(filed.partition, "Default");
    assert_eq!(filed.partition_id, batch.partition_id);
    assert_eq!(filed.transaction_id, "order-4711");
    assert_eq!(filed.data, payload);
    assert_eq!(filed.error_message, reason);
}

#[tokio::test]
async fn the_reason_is_the_heads_then_any_other_failures_then_a_default() {
    let lane = Lane::with("reasons", &["m1", "m2", "m3"]).await;
    lane.configure(json!({"retryLimit": 0})).await;
    let cases = [
        (json!("of the head"), json!("of another"), "of the head"),
        (json!(""), json!("of another"), "of another"),
        (json!(null), json!(null), "Retries exhausted"),
    ];
    for (head, other, kept) in cases {
        let batch = lane.pop(3).await;
        let item = |message: usize, error: &serde_json::Value| {
            json!({"transactionId": batch.messages[message].transaction_id, "partitionId": batch.partition_id,
                   "leaseId": batch.lease_id, "status": "failed", "error": error})
        };
        let mut items = vec![item(0, &head)];
        if batch.messages.len() > 1 {
            items.insert(0, item(1, &other));
        }
        lane.ack_raw(json!(items)).await;
        let filed = lane.dead_letters().await;
        let this = filed.iter().find(|d| d.transaction_id == batch.messages[0].transaction_id).unwrap();
        assert_eq!(this.error_message, kept);
    }
    assert_eq!(lane.dead_letters().await.len(), 3);
}

#[tokio::test]
async fn a_signal_under_a_lapsed_lease_costs_nothing_later_either() {
    let lane = Lane::with("lapsed", &["m1"]).await;
    lane.configure(json!({"retryLimit": 1})).await;
    let batch = lane.pop_and_let_expire(1).await;
    for _ in 0..3 {
        lane.ack(&batch, "", &[("m1", "failed")]).await;
    }
    tokio::time::sleep(LEASE_OVER).await;
    let batch = lane.pop(1).await;
    assert!(!lane.settle(&batch, &[("m1", "failed")]).await[0].dlq, "nothing was charged before");
}
