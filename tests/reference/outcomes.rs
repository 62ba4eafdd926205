//! What the answer says about acknowledgements that can act no more, or not in this way.

use serde_json::json;

use crate::common::lane::{Lane, all_succeed};

#[tokio::test]
async fn a_completed_ack_below_the_cursor_is_a_noop() {
    let lane = Lane::with("noop", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(3).await;
    lane.settle(&batch, &[("m2", "completed")]).await;
    let verdicts = lane.settle(&batch, &[("m1", "completed")]).await;
    assert!(verdicts[0].success && verdicts[0].noop && verdicts[0].error.is_none(), "{verdicts:?}");
    assert!(!verdicts[0].lease_released, "{verdicts:?}");
    let verdicts = lane.settle(&batch, &[("m3", "completed")]).await;
    assert!(all_succeed(&verdicts), "this one did move the cursor: {verdicts:?}");
}

#[tokio::test]
async fn a_signal_below_the_cursor_is_refused_as_committed() {
    for status in ["failed", "retry", "dlq"] {
        let lane = Lane::with("too-late", &["m1", "m2", "m3"]).await;
        lane.configure(json!({"retryLimit": 0})).await;
        let batch = lane.pop(3).await;
        lane.settle(&batch, &[("m2", "completed")]).await;
        let verdicts = lane.settle(&batch, &[("m1", status)]).await;
        assert!(verdicts[0].refused_with("committed"), "{status}: {verdicts:?}");
        assert!(!verdicts[0].dlq && !verdicts[0].noop && !verdicts[0].lease_released, "{verdicts:?}");
        assert!(lane.dead_letters().await.is_empty(), "{status}");
        assert!(all_succeed(&lane.settle(&batch, &[("m3", "completed")]).await), "the lease was not touched");
    }
}

#[tokio::test]
async fn an_unresolvable_ack_is_refused_whatever_it_says() {
    let lane = Lane::with("unresolvable", &["m1"]).await;
    let batch = lane.pop(1).await;
    for status in ["completed", "failed", "retry", "dlq"] {
        let verdicts = lane.settle(&batch, &[("never-pushed", status)]).await;
        assert!(verdicts[0].refused_with("unresolv"), "{status}: {verdicts:?}");
        assert!(!verdicts[0].noop && !verdicts[0].dlq, "{verdicts:?}");
    }
    assert!(all_succeed(&lane.complete(&batch).await));
}

#[tokio::test]
async fn a_completed_ack_above_the_failure_is_heard_and_redelivers() {
    let lane = Lane::with("heard", &["m1", "m2"]).await;
    let batch = lane.pop(2).await;
    let verdicts = lane.settle(&batch, &[("m1", "failed"), ("m2", "completed")]).await;
    assert!(verdicts[1].success && !verdicts[1].noop && verdicts[1].error.is_none(), "{verdicts:?}");
    assert_eq!(lane.ids().await, ["m1", "m2"]);
}

#[tokio::test]
async fn an_unresolvable_sibling_of_an_honoured_failure_is_still_refused() {
    let lane = Lane::with("sibling", &["m1", "m2"]).await;
    lane.configure(json!({"retryLimit": 0})).await;
    let batch = lane.pop(2).await;
    let verdicts = lane.settle(&batch, &[("m1", "failed"), ("ghost", "failed"), ("m2", "completed")]).await;
    assert!(verdicts[0].success && verdicts[0].dlq, "{verdicts:?}");
    assert!(verdicts[1].refused_with("unresolv") && !verdicts[1].dlq, "{verdicts:?}");
    assert!(verdicts[2].success && !verdicts[2].dlq, "{verdicts:?}");
}

#[tokio::test]
async fn late_and_unknown_items_do_not_stop_the_rest_of_the_call() {
    let lane = Lane::with("mixed", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(3).await;
    lane.settle(&batch, &[("m1", "completed")]).await;
    let verdicts = lane
        .settle(&batch, &[("m1", "completed"), ("m1", "failed"), ("ghost", "completed"), ("m3", "completed")])
        .await;
    assert!(verdicts[0].success && verdicts[0].noop, "{verdicts:?}");
    assert!(verdicts[1].refused_with("committed"), "{verdicts:?}");
    assert!(verdicts[2].refused_with("unresolv"), "{verdicts:?}");
    assert!(verdicts[3].success && !verdicts[3].noop && verdicts[3].lease_released, "{verdicts:?}");
    assert_eq!(lane.ids().await, [""; 0]);
}

#[tokio::test]
async fn lease_released_says_whether_the_lease_is_gone() {
    let lane = Lane::with("released", &["m1", "m2", "m3", "m4"]).await;
    let batch = lane.pop(4).await;
    let steps: [(&[(&str, &str)], bool); 4] = [
        (&[("m1", "completed")], false),
        (&[("ghost", "failed")], false),
        (&[("m1", "failed")], false),
        (&[("m2", "completed"), ("m4", "completed")], true),
    ];
    for (items, released) in steps {
        let verdicts = lane.settle(&batch, items).await;
        assert!(verdicts.iter().all(|v| v.lease_released == released), "{items:?}: {verdicts:?}");
    }
}
