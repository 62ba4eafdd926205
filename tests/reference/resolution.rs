//! How an acknowledgement finds its message.

use serde_json::json;

use crate::common::lane::{LEASE_OVER, Lane, all_succeed};

#[tokio::test]
async fn an_ack_names_its_message_by_transaction_id_and_never_by_offset() {
    let lane = Lane::with("by-id", &["m1", "m2"]).await;
    let batch = lane.pop(2).await;
    let verdicts = lane
        .ack_raw(json!([{"transactionId": "m1", "partitionId": batch.partition_id, "leaseId": batch.lease_id,
                         "status": "completed", "offset": 1, "message_id": batch.messages[1].id}]))
        .await;
    assert!(all_succeed(&verdicts));
    assert!(!verdicts[0].lease_released, "offset 1 was not what the ack said");
    let by_message_id = lane.settle(&batch, &[(batch.messages[1].id.as_str(), "completed")]).await;
    assert!(
        by_message_id[0].refused_with("unresolv"),
        "a message id is no transaction id: {by_message_id:?}"
    );
}

#[tokio::test]
async fn a_message_without_its_own_id_is_acked_by_the_id_it_was_given() {
    let lane = Lane::new("minted");
    let pushed = lane.api.push_items(json!([{"queue": lane.queue, "payload": 1}])).await;
    assert_eq!(pushed[0].transaction_id, pushed[0].message_id);
    let batch = lane.pop(1).await;
    assert_eq!(batch.ids(), [pushed[0].message_id.as_str()]);
    assert!(all_succeed(&lane.complete(&batch).await));
}

#[tokio::test]
async fn an_ack_resolves_on_a_queue_without_deduplication() {
    let lane = Lane::new("no-dedup");
    lane.configure(json!({"dedupWindowSeconds": 0})).await;
    lane.push(&["m1"]).await;
    let again = lane.push(&["m1"]).await;
    assert_eq!(again[0].status, "queued", "no window, no duplicate");
    let batch = lane.pop(2).await;
    assert_eq!(batch.ids(), ["m1", "m1"]);
    assert!(!lane.settle(&batch, &[("m1", "completed")]).await[0].lease_released);
    // The same id again means the copy that is still open.
    let second = lane.settle(&batch, &[("m1", "completed")]).await;
    assert!(all_succeed(&second) && second[0].lease_released, "{second:?}");
}

#[tokio::test]
async fn a_later_copy_of_an_id_does_not_hide_the_delivered_one() {
    let lane = Lane::new("two-copies");
    lane.configure(json!({"dedupWindowSeconds": 0})).await;
    lane.push(&["m1", "m2"]).await;
    let batch = lane.pop(2).await;
    lane.push(&["m1"]).await;
    assert!(all_succeed(&lane.settle(&batch, &[("m1", "completed"), ("m2", "completed")]).await));
    assert_eq!(lane.ids().await, ["m1"], "the copy above the span was not acknowledged");
}

#[tokio::test]
async fn an_open_copy_of_an_id_wins_over_one_below_the_cursor() {
    let lane = Lane::new("open-copy");
    lane.configure(json!({"dedupWindowSeconds": 0})).await;
    lane.push(&["m1"]).await;
    let first = lane.pop(1).await;
    lane.complete(&first).await;
    lane.push(&["m1"]).await;
    let second = lane.pop(1).await;
    let verdicts = lane.settle(&second, &[("m1", "failed")]).await;
    assert!(all_succeed(&verdicts), "the delivered copy can fail: {verdicts:?}");
    assert_eq!(lane.ids().await, ["m1"]);
}

#[tokio::test]
async fn under_a_lease_only_its_span_can_be_acked() {
    let lane = Lane::with("span", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(2).await;
    let verdicts = lane.settle(&batch, &[("m3", "completed")]).await;
    assert!(verdicts[0].refused_with("unresolv"), "{verdicts:?}");
    assert!(!verdicts[0].lease_released);
    assert!(all_succeed(&lane.complete(&batch).await));
    assert_eq!(lane.ids().await, ["m3"]);
}

#[tokio::test]
async fn a_lease_bounds_an_ack_that_leaves_its_lease_id_out() {
    let lane = Lane::with("bounded", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(2).await;
    let above = lane.ack(&batch, "", &[("m3", "completed")]).await;
    assert!(above[0].refused_with("unresolv"), "{above:?}");
    let inside = lane.ack(&batch, "", &[("m1", "completed")]).await;
    assert!(all_succeed(&inside), "{inside:?}");
    assert!(all_succeed(&lane.settle(&batch, &[("m2", "completed")]).await), "and the lease is still good");
}

#[tokio::test]
async fn without_a_lease_on_the_cursor_any_later_message_can_be_acked() {
    let lane = Lane::with("unbounded", &["m1", "m2", "m3", "m4"]).await;
    let batch = lane.pop_and_let_expire(1).await;
    // Nobody took it over: m3 lies beyond what was ever delivered.
    let verdicts = lane.ack(&batch, "", &[("m3", "completed")]).await;
    assert!(all_succeed(&verdicts), "{verdicts:?}");
    assert_eq!(lane.ids().await, ["m4"]);
}

#[tokio::test]
async fn an_unknown_id_is_reported_and_costs_neither_lease_nor_budget() {
    let lane = Lane::with("ghost", &["m1", "m2", "m3"]).await;
    lane.configure(json!({"retryLimit": 0})).await;
    let batch = lane.pop(3).await;
    for status in ["completed", "failed", "retry", "dlq"] {
        let verdicts = lane.settle(&batch, &[("ghost", status)]).await;
        assert!(verdicts[0].refused_with("unresolv"), "{status}: {verdicts:?}");
        assert!(!verdicts[0].lease_released && !verdicts[0].dlq, "{verdicts:?}");
    }
    assert!(lane.dead_letters().await.is_empty());
    assert!(all_succeed(&lane.complete(&batch).await), "all three can still be acked under the same lease");
}

#[tokio::test]
async fn the_same_id_in_two_partitions_is_two_messages() {
    let lane = Lane::new("same-id");
    let (eu, us) = (lane.partition("eu"), lane.partition("us"));
    assert_eq!(eu.push(&["m1"]).await[0].status, "queued");
    assert_eq!(us.push(&["m1"]).await[0].status, "queued");
    let (of_eu, of_us) = (eu.pop(1).await, us.pop(1).await);
    assert_ne!(of_eu.partition_id, of_us.partition_id);
    assert!(all_succeed(&eu.complete(&of_eu).await));
    // The other one is still leased and still its own.
    assert!(all_succeed(&us.settle(&of_us, &[("m1", "retry")]).await));
    assert_eq!(us.ids().await, ["m1"]);
    assert_eq!(eu.ids().await, [""; 0]);
}

#[tokio::test]
async fn a_failure_under_an_expired_lease_still_redelivers() {
    let lane = Lane::with("expired-signal", &["m1", "m2"]).await;
    lane.configure(json!({"retryLimit": 0})).await;
    let batch = lane.pop_and_let_expire(2).await;
    // Without a lease on the cursor a signal only clamps: nothing is charged, nothing is dead-lettered.
    for status in ["failed", "retry"] {
        let verdicts = lane.ack(&batch, "", &[("m1", status), ("m2", "completed")]).await;
        assert!(verdicts[0].success && !verdicts[0].dlq, "{verdicts:?}");
    }
    assert!(lane.dead_letters().await.is_empty());
    assert_eq!(lane.ids().await, ["m1", "m2"]);
}

#[tokio::test]
async fn a_dead_letter_without_a_lease_is_never_a_silent_success() {
    let lane = Lane::with("expired-dlq", &["m1"]).await;
    let batch = lane.pop_and_let_expire(1).await;
    let verdicts = lane.ack(&batch, "", &[("m1", "dlq")]).await;
    let filed = lane.dead_letters().await.len();
    if verdicts[0].success {
        assert_eq!((verdicts[0].dlq, filed), (true, 1), "{verdicts:?}");
    } else {
        assert!(verdicts[0].refused_with("lease"), "{verdicts:?}");
        assert_eq!(filed, 0);
        tokio::time::sleep(LEASE_OVER).await;
        assert_eq!(lane.ids().await, ["m1"]);
    }
}
