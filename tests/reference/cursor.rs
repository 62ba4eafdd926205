//! One number per partition and group.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::Daemon;
use crate::common::api::Api;
use crate::common::lane::{LEASE_OVER, Lane, all_succeed};

#[tokio::test]
async fn the_next_message_is_the_one_after_the_cursor() {
    let lane = Lane::with("next", &["m1", "m2", "m3"]).await;
    let first = lane.pop(2).await;
    assert_eq!(first.ids(), ["m1", "m2"]);
    assert_eq!(first.messages.iter().map(|m| m.offset).collect::<Vec<_>>(), [0, 1]);
    assert!(all_succeed(&lane.complete(&first).await));
    let next = lane.pop(2).await;
    assert_eq!(next.ids(), ["m3"]);
    assert_eq!(next.messages[0].offset, 2);
}

#[tokio::test]
async fn acking_the_last_message_completes_the_whole_batch() {
    let ids = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"];
    let lane = Lane::with("last", &ids).await;
    let batch = lane.pop_with(&[("batch", "10"), ("leaseSeconds", "1")]).await;
    assert_eq!(batch.messages.len(), 10);
    let verdicts = lane.settle(&batch, &[("m9", "completed")]).await;
    assert!(all_succeed(&verdicts));
    assert!(verdicts[0].lease_released, "the batch is finished, so its lease is gone");
    assert_eq!(lane.ids().await, [""; 0]);
    tokio::time::sleep(LEASE_OVER).await;
    assert_eq!(lane.ids().await, [""; 0], "not after the lease's time either");
    lane.push(&["m10"]).await;
    assert_eq!(lane.ids().await, ["m10"]);
}

#[tokio::test]
async fn a_hole_below_an_acked_message_cannot_be_kept_open() {
    let lane = Lane::with("hole", &["m1", "m2", "m3"]).await;
    let batch = lane.pop_with(&[("batch", "3"), ("leaseSeconds", "1")]).await;
    let verdicts = lane.settle(&batch, &[("m2", "completed")]).await;
    assert!(all_succeed(&verdicts));
    assert!(!verdicts[0].lease_released, "m3 is still leased");
    tokio::time::sleep(LEASE_OVER).await;
    assert_eq!(lane.ids().await, ["m3"], "m1 was never mentioned and is complete");
}

#[tokio::test]
async fn a_partial_ack_keeps_the_lease_and_moves_the_cursor() {
    let lane = Lane::with("partial", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(3).await;
    assert!(!lane.settle(&batch, &[("m1", "completed")]).await[0].lease_released);
    assert_eq!(lane.ids().await, [""; 0], "the lease still covers m2 and m3");
    assert!(all_succeed(&lane.settle(&batch, &[("m2", "completed")]).await));
    let last = lane.settle(&batch, &[("m3", "completed")]).await;
    assert!(all_succeed(&last));
    assert!(last[0].lease_released);
}

#[tokio::test]
async fn groups_have_cursors_of_their_own() {
    let lane = Lane::with("groups", &["m1", "m2"]).await;
    let (a, b) = (lane.group("a"), lane.group("b"));
    let popped = a.pop(10).await;
    assert!(all_succeed(&a.complete(&popped).await));
    assert_eq!(a.ids().await, [""; 0]);
    let of_b = b.pop(10).await;
    assert_eq!(of_b.ids(), ["m1", "m2"], "a's acks are nothing to b");
    // And the other way round: a failure in b does not give a anything back.
    b.settle(&of_b, &[("m1", "failed")]).await;
    assert_eq!(a.ids().await, [""; 0]);
    assert_eq!(b.ids().await, ["m1", "m2"]);
}

#[tokio::test]
async fn a_lease_of_one_group_does_not_hide_messages_from_another() {
    let lane = Lane::with("leased-by-a", &["m1"]).await;
    let a = lane.group("a").pop(1).await;
    let b = lane.group("b").pop(1).await;
    assert_eq!(a.ids(), b.ids());
    assert_ne!(a.lease_id, b.lease_id);
}

#[tokio::test]
async fn an_ack_without_group_moves_the_queue_mode_cursor_only() {
    let lane = Lane::with("queue-mode", &["m1"]).await;
    let named = lane.group("named").pop(1).await;
    let path = format!("/queue/{}", lane.queue);
    let plain = lane.api.pop(&path, &[("batch", "1")]).await;
    assert_eq!(plain.consumer_group, "__QUEUE_MODE__");
    let item = json!({"transactionId": "m1", "partitionId": plain.partition_id, "leaseId": plain.lease_id});
    let verdicts = lane.api.ack("/api/v1/ack", &item).await;
    assert!(all_succeed(&verdicts), "{verdicts:?}");
    // The named group's lease and message are untouched by that.
    assert!(all_succeed(&lane.group("named").complete(&named).await));
}

#[tokio::test]
async fn an_ack_without_group_is_not_taken_for_the_group_that_popped() {
    let lane = Lane::with("forgotten-group", &["m1"]).await;
    let popped = lane.pop_with(&[("leaseSeconds", "1")]).await;
    for group in [Value::Null, json!(""), json!("__QUEUE_MODE__")] {
        let item = json!({"transactionId": "m1", "partitionId": popped.partition_id, "consumerGroup": group});
        let verdicts = lane.api.ack("/api/v1/ack", &item).await;
        assert!(verdicts[0].refused_with("unresolv"), "{verdicts:?}");
    }
    tokio::time::sleep(LEASE_OVER).await;
    assert_eq!(lane.ids().await, ["m1"]);
}

#[tokio::test]
async fn an_ack_by_a_group_that_never_popped_is_refused() {
    let lane = Lane::with("never-popped", &["m1"]).await;
    let popped = lane.pop(1).await;
    let verdicts = lane.group("stranger").ack(&popped, "", &[("m1", "completed")]).await;
    assert!(verdicts[0].refused_with("unresolv"), "{verdicts:?}");
}

#[tokio::test]
async fn a_new_group_can_read_everything_again() {
    let lane = Lane::with("replay", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(3).await;
    lane.complete(&batch).await;
    assert_eq!(lane.group("later").ids().await, ["m1", "m2", "m3"]);
}

#[tokio::test]
async fn an_ack_of_thousands_costs_what_an_ack_of_one_costs() {
    // A daemon of its own, quiet but for this test, so that its group commits can be counted.
    let daemon = Arc::new(Daemon::start(&["--log-noop-idle-ms=60000"]));
    let ids: Vec<String> = (0..5000).map(|n| format!("m{n}")).collect();
    let lane = Lane::on(daemon, "cost");
    lane.push(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let one = lane.pop(1).await;
    let before = quiet(&lane.api).await;
    lane.complete(&one).await;
    let of_one = cost(&lane.api).await.since(&before);
    let many = lane.pop(4999).await;
    assert_eq!(many.messages.len(), 4999);
    let before = quiet(&lane.api).await;
    assert!(all_succeed(&lane.complete(&many).await));
    let of_many = cost(&lane.api).await.since(&before);
    assert_eq!(of_one.commits, 1);
    assert_eq!(of_many.commits, 1);
    // One delta of a few dozen bytes in either case; 4,999 of them would be several blocks.
    assert!(of_many.bytes <= of_one.bytes + 16_384, "{of_one:?} {of_many:?}");
}

#[derive(Debug)]
struct Cost {
    commits: u64,
    bytes: u64,
}

impl Cost {
    fn since(&self, before: &Cost) -> Cost {
        Cost { commits: self.commits - before.commits, bytes: self.bytes - before.bytes }
    }
}

/// The cost so far, once files that are prepared in the background are written.
async fn quiet(api: &Api) -> Cost {
    loop {
        let before = cost(api).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let after = cost(api).await;
        if after.bytes == before.bytes {
            return after;
        }
    }
}

/// Group commits so far, and bytes that the process has sent to the disk.
async fn cost(api: &Api) -> Cost {
    let commits = api.health().await["raft"]["commit"].as_u64().unwrap();
    let io = std::fs::read_to_string(format!("/proc/{}/io", api.daemon.pid())).unwrap_or_default();
    let bytes = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok()).unwrap_or(0);
    Cost { commits, bytes }
}
