//! The ways to consume that the model supports, and when messages come back.

use std::sync::Arc;
use std::time::Duration;

use crate::common::lane::{LEASE_OVER, Lane, all_succeed};
use crate::common::{Daemon, SHARED};

#[tokio::test]
async fn one_by_one_with_a_stop_at_the_first_failure() {
    let lane = Lane::with("one-by-one", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(3).await;
    assert!(all_succeed(&lane.settle(&batch, &[("m1", "completed")]).await));
    assert!(lane.settle(&batch, &[("m2", "failed")]).await[0].lease_released);
    // Going on would only earn refusals; the rest comes back by itself.
    let verdicts = lane.settle(&batch, &[("m3", "completed")]).await;
    assert!(verdicts[0].refused_with("lease"), "{verdicts:?}");
    assert_eq!(lane.ids().await, ["m2", "m3"]);
}

#[tokio::test]
async fn a_failing_message_does_not_make_its_neighbours_run_twice() {
    let lane = Lane::with("neighbours", &["m1", "m2", "m3", "m4", "m5"]).await;
    lane.configure(serde_json::json!({"retryLimit": 1})).await;
    let mut handled = Vec::new();
    loop {
        let batch = lane.pop(5).await;
        if batch.messages.is_empty() {
            break;
        }
        for id in batch.ids() {
            handled.push(id.to_owned());
            let status = if id == "m2" { "failed" } else { "completed" };
            lane.settle(&batch, &[(id, status)]).await;
            if id == "m2" {
                break;
            }
        }
    }
    assert_eq!(handled, ["m1", "m2", "m2", "m3", "m4", "m5"]);
    assert_eq!(lane.dead_letters().await.len(), 1);
}

#[tokio::test]
async fn all_outcomes_of_a_batch_in_one_call_protect_the_failures() {
    let lane = Lane::with("parallel", &["m1", "m2", "m3", "m4", "m5"]).await;
    let batch = lane.pop(5).await;
    let items = [
        ("m5", "completed"),
        ("m3", "failed"),
        ("m1", "completed"),
        ("m4", "completed"),
        ("m2", "completed"),
    ];
    assert!(all_succeed(&lane.settle(&batch, &items).await));
    assert_eq!(lane.ids().await, ["m3", "m4", "m5"]);
}

#[tokio::test]
async fn acking_out_of_order_in_single_calls_loses_the_right_to_fail() {
    let lane = Lane::with("out-of-order", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(3).await;
    assert!(all_succeed(&lane.settle(&batch, &[("m3", "completed")]).await));
    let verdicts = lane.ack(&batch, "", &[("m1", "failed")]).await;
    assert!(verdicts[0].refused_with("committed"), "{verdicts:?}");
    assert_eq!(lane.ids().await, [""; 0]);
}

#[tokio::test]
async fn acking_only_the_last_of_every_batch_is_enough() {
    let lane = Lane::with("commit-style", &["m1", "m2", "m3", "m4", "m5"]).await;
    let mut seen = Vec::new();
    loop {
        let batch = lane.pop(2).await;
        let Some(last) = batch.messages.last() else { break };
        seen.extend(batch.ids().into_iter().map(str::to_owned));
        assert!(lane.settle(&batch, &[(last.transaction_id.as_str(), "completed")]).await[0].lease_released);
    }
    assert_eq!(seen, ["m1", "m2", "m3", "m4", "m5"]);
}

#[tokio::test]
async fn messages_come_back_when_their_lease_expires() {
    let lane = Lane::with("expiry", &["m1", "m2"]).await;
    let first = lane.pop_with(&[("batch", "2"), ("leaseSeconds", "1")]).await;
    assert_eq!(lane.ids().await, [""; 0]);
    tokio::time::sleep(LEASE_OVER).await;
    let second = lane.pop(2).await;
    assert_eq!(second.ids(), ["m1", "m2"]);
    for (a, b) in first.messages.iter().zip(&second.messages) {
        assert_eq!((&a.id, a.offset, &a.created_at, &a.data), (&b.id, b.offset, &b.created_at, &b.data));
        assert_eq!((a.delivery_attempt, b.delivery_attempt), (1, 2));
    }
}

#[tokio::test]
async fn messages_come_back_at_once_after_a_failure_even_of_another_message_below() {
    let lane = Lane::with("nack", &["m1", "m2"]).await;
    let batch = lane.pop(2).await;
    lane.settle(&batch, &[("m1", "retry")]).await;
    assert_eq!(lane.ids().await, ["m1", "m2"]);
}

#[tokio::test]
async fn a_nack_wakes_a_waiting_poll() {
    let lane = Lane::with("wake", &["m1"]).await;
    let batch = lane.pop(1).await;
    let waiting = lane.clone();
    let poll = tokio::spawn(async move {
        let begun = std::time::Instant::now();
        (waiting.pop_with(&[("wait", "true"), ("timeout", "20000")]).await, begun.elapsed())
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    lane.settle(&batch, &[("m1", "retry")]).await;
    let (popped, waited) = poll.await.unwrap();
    assert_eq!(popped.ids(), ["m1"]);
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

#[tokio::test]
async fn a_restart_keeps_cursors_and_gives_back_only_what_was_not_acked() {
    for clean in [true, false] {
        let daemon = Arc::new(Daemon::start(SHARED));
        let lane = Lane::on(Arc::clone(&daemon), "restart");
        lane.push(&["m1", "m2", "m3"]).await;
        let batch = lane.pop_with(&[("batch", "3"), ("leaseSeconds", "4")]).await;
        assert!(all_succeed(&lane.settle(&batch, &[("m1", "completed")]).await));
        if clean {
            assert!(daemon.terminate(Duration::from_secs(10)).0.success());
        } else {
            daemon.kill();
        }
        daemon.restart();
        // The lease is as durable as the cursor: it still holds, and still acks.
        assert_eq!(lane.ids().await, [""; 0], "clean: {clean}");
        assert!(all_succeed(&lane.settle(&batch, &[("m2", "completed")]).await), "clean: {clean}");
        // Its time goes on; m3 is delivered again, and nothing that was acknowledged is.
        tokio::time::sleep(Duration::from_millis(4300)).await;
        let again = lane.pop(3).await;
        assert_eq!(again.ids(), ["m3"], "clean: {clean}");
        assert_ne!(again.lease_id, batch.lease_id);
    }
}

#[tokio::test]
async fn partitions_are_independent_lanes() {
    let lane = Lane::new("lanes");
    let (a, b) = (lane.partition("a"), lane.partition("b"));
    a.push(&["a1", "a2"]).await;
    b.push(&["b1", "b2"]).await;
    let (of_a, of_b) = (a.pop(2).await, b.pop(2).await);
    a.settle(&of_a, &[("a1", "failed")]).await;
    assert!(all_succeed(&b.complete(&of_b).await), "a failure in one lane blocks only that lane");
    assert_eq!(a.ids().await, ["a1", "a2"]);
    assert_eq!(b.ids().await, [""; 0]);
}

#[tokio::test]
async fn one_lease_covers_every_partition_of_a_pop_and_each_is_acked_for_itself() {
    let lane = Lane::new("many-lanes");
    for partition in ["a", "b", "c"] {
        lane.partition(partition).push(&["m1"]).await;
    }
    let path = format!("/queue/{}", lane.queue);
    let query =
        [("consumerGroup", "g"), ("subscriptionMode", "all"), ("partitions", "3"), ("leaseSeconds", "1")];
    let popped = lane.api.pop(&path, &query).await;
    assert_eq!((popped.messages.len(), popped.partitions_claimed), (3, 3));
    assert!(popped.messages.iter().all(|m| m.lease_id == popped.lease_id));
    let one = &popped.messages[0];
    let item = serde_json::json!({"transactionId": "m1", "partitionId": one.partition_id, "leaseId": one.lease_id,
                                  "consumerGroup": "g"});
    assert!(all_succeed(&lane.api.ack("/api/v1/ack", &item).await));
    tokio::time::sleep(LEASE_OVER).await;
    let again = lane.api.pop(&path, &query).await;
    assert_eq!(again.messages.len(), 2, "the acked lane is done, the others are not");
    assert!(again.messages.iter().all(|m| m.partition_id != one.partition_id));
}
