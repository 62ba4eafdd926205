//! Repeating an acknowledgement, as a client does that lost the answer.

use std::sync::Arc;

use crate::common::lane::{Lane, all_succeed};
use crate::common::{Daemon, SHARED};

#[tokio::test]
async fn repeating_the_ack_that_finished_a_batch_succeeds_again() {
    let lane = Lane::with("repeat", &["m1", "m2"]).await;
    let batch = lane.pop(2).await;
    assert!(all_succeed(&lane.complete(&batch).await));
    for _ in 0..2 {
        let verdicts = lane.complete(&batch).await;
        assert!(verdicts.iter().all(|v| v.success && v.error.is_none()), "{verdicts:?}");
    }
    assert_eq!(lane.ids().await, [""; 0]);
}

#[tokio::test]
async fn the_repeat_is_known_after_a_restart() {
    let daemon = Arc::new(Daemon::start(SHARED));
    let lane = Lane::on(Arc::clone(&daemon), "repeat-restart");
    lane.push(&["m1", "m2"]).await;
    let batch = lane.pop(2).await;
    lane.complete(&batch).await;
    daemon.kill();
    daemon.restart();
    let verdicts = lane.complete(&batch).await;
    assert!(verdicts.iter().all(|v| v.success), "{verdicts:?}");
}

#[tokio::test]
async fn a_failure_cannot_be_repeated_under_the_settled_lease() {
    let lane = Lane::with("repeat-failed", &["m1"]).await;
    let batch = lane.pop(1).await;
    assert!(lane.settle(&batch, &[("m1", "failed")]).await[0].success);
    let verdicts = lane.settle(&batch, &[("m1", "failed")]).await;
    assert!(verdicts[0].refused_with("lease"), "a repeat must not charge twice: {verdicts:?}");
    let finished = lane.pop(1).await;
    lane.complete(&finished).await;
    let verdicts = lane.settle(&finished, &[("m1", "failed")]).await;
    assert!(!verdicts[0].success, "nor can a finished batch fail afterwards: {verdicts:?}");
    assert_eq!(lane.ids().await, [""; 0]);
}

#[tokio::test]
async fn without_lease_id_a_repeat_is_a_noop() {
    let lane = Lane::with("repeat-noop", &["m1", "m2"]).await;
    let batch = lane.pop(2).await;
    lane.complete(&batch).await;
    let verdicts = lane.ack(&batch, "", &[("m1", "completed"), ("m2", "completed")]).await;
    assert!(verdicts.iter().all(|v| v.success && v.noop), "{verdicts:?}");
}
