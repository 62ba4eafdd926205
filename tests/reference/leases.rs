//! With a lease, with a stale one, and without.

use serde_json::json;

use crate::common::lane::{LEASE_OVER, Lane, all_succeed};

const NEVER_A_LEASE: &str = "0193a000-0000-7000-8000-000000000000";

#[tokio::test]
async fn a_pop_returns_the_lease_that_its_acks_name() {
    let lane = Lane::with("lease", &["m1", "m2"]).await;
    let batch = lane.pop(2).await;
    assert_eq!(batch.lease_id.len(), 36);
    assert!(batch.messages.iter().all(|m| m.lease_id == batch.lease_id && m.consumer_group == lane.group));
    assert!(all_succeed(&lane.complete(&batch).await));
}

#[tokio::test]
async fn a_pop_with_auto_ack_commits_at_delivery_and_takes_no_lease() {
    let lane = Lane::with("auto-ack", &["m1", "m2", "m3"]).await;
    let batch = lane.pop_with(&[("batch", "2"), ("autoAck", "true")]).await;
    assert_eq!(batch.ids(), ["m1", "m2"]);
    assert_eq!(batch.lease_id, "");
    assert!(batch.messages.iter().all(|m| m.lease_id.is_empty() && m.delivery_attempt == 1));
    let late = lane.ack(&batch, "", &[("m1", "completed"), ("m1", "failed")]).await;
    assert!(late[0].noop && late[1].refused_with("committed"), "{late:?}");
    assert_eq!(lane.ids().await, ["m3"]);
}

#[tokio::test]
async fn an_expired_lease_is_refused_and_the_cursor_stays() {
    let lane = Lane::with("expired", &["m1", "m2"]).await;
    let batch = lane.pop_and_let_expire(2).await;
    for status in ["completed", "failed", "retry", "dlq"] {
        let verdicts = lane.settle(&batch, &[("m1", status), ("m2", status)]).await;
        assert!(
            verdicts.iter().all(|v| v.refused_with("invalid or expired lease")),
            "{status}: {verdicts:?}"
        );
    }
    assert!(lane.dead_letters().await.is_empty());
    assert_eq!(lane.ids().await, ["m1", "m2"]);
}

#[tokio::test]
async fn a_lease_that_another_worker_took_over_is_refused() {
    let lane = Lane::with("taken-over", &["m1", "m2"]).await;
    let old = lane.pop_and_let_expire(2).await;
    let new = lane.pop(2).await;
    assert_eq!(new.ids(), ["m1", "m2"]);
    assert_ne!(new.lease_id, old.lease_id);
    assert_eq!(new.messages[0].delivery_attempt, 2);
    let verdicts = lane.complete(&old).await;
    assert!(verdicts.iter().all(|v| v.refused_with("lease")), "{verdicts:?}");
    assert!(all_succeed(&lane.complete(&new).await));
}

#[tokio::test]
async fn a_foreign_lease_is_refused_and_the_real_one_still_works() {
    let lane = Lane::with("foreign", &["m1", "m2"]).await;
    let batch = lane.pop(2).await;
    for lease in [NEVER_A_LEASE, "not-a-lease", "0"] {
        let verdicts = lane.ack(&batch, lease, &[("m1", "completed"), ("m2", "completed")]).await;
        assert!(
            verdicts.iter().all(|v| v.refused_with("lease") && !v.lease_released),
            "{lease}: {verdicts:?}"
        );
    }
    assert!(all_succeed(&lane.complete(&batch).await));
}

#[tokio::test]
async fn the_lease_of_another_group_or_partition_is_foreign() {
    let lane = Lane::new("neighbours");
    let (eu, us) = (lane.partition("eu"), lane.partition("us"));
    eu.push(&["m1"]).await;
    us.push(&["m1"]).await;
    let (here, there) = (eu.pop(1).await, us.pop(1).await);
    let other = eu.group("other").pop(1).await;
    for lease in [&there.lease_id, &other.lease_id] {
        let verdicts = eu.ack(&here, lease, &[("m1", "completed")]).await;
        assert!(verdicts[0].refused_with("lease"), "{verdicts:?}");
    }
    assert!(all_succeed(&eu.complete(&here).await));
}

#[tokio::test]
async fn without_lease_id_a_consumer_that_lost_its_lease_can_still_commit() {
    let lane = Lane::with("lost-lease", &["m1", "m2"]).await;
    let batch = lane.pop_and_let_expire(1).await;
    let stale = lane.complete(&batch).await;
    assert!(stale[0].refused_with("lease"), "sending it is an error: {stale:?}");
    let without = lane.ack(&batch, "", &[("m1", "completed")]).await;
    assert!(all_succeed(&without), "leaving it out is allowed: {without:?}");
    assert_eq!(lane.ids().await, ["m2"]);
}

#[tokio::test]
async fn without_lease_id_the_cursor_moves_under_a_live_lease_too() {
    let lane = Lane::with("live-lease", &["m1", "m2", "m3"]).await;
    let batch = lane.pop_with(&[("batch", "3"), ("leaseSeconds", "1")]).await;
    assert!(all_succeed(&lane.ack(&batch, "", &[("m2", "completed")]).await));
    tokio::time::sleep(LEASE_OVER).await;
    assert_eq!(lane.ids().await, ["m3"]);
}

#[tokio::test]
async fn an_empty_or_null_lease_id_is_an_absent_one() {
    let lane = Lane::with("no-lease-id", &["m1", "m2", "m3"]).await;
    let batch = lane.pop_and_let_expire(3).await;
    let item = |id: &str| json!({"transactionId": id, "partitionId": batch.partition_id});
    let mut nothing = item("m1");
    nothing["leaseId"] = json!(null);
    let mut empty = item("m2");
    empty["leaseId"] = json!("");
    assert!(all_succeed(&lane.ack_raw(json!([nothing, empty, item("m3")])).await));
}

#[tokio::test]
async fn a_released_lease_is_refused() {
    let lane = Lane::with("released-lease", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(3).await;
    assert!(lane.settle(&batch, &[("m1", "failed")]).await[0].lease_released);
    let verdicts = lane.settle(&batch, &[("m2", "completed"), ("m3", "completed")]).await;
    assert!(verdicts.iter().all(|v| v.refused_with("lease")), "{verdicts:?}");
    assert_eq!(lane.ids().await, ["m1", "m2", "m3"]);
}

#[tokio::test]
async fn a_live_lease_keeps_its_partition_from_the_rest_of_the_group() {
    let lane = Lane::with("exclusive", &["m1", "m2"]).await;
    let batch = lane.pop(1).await;
    assert_eq!(lane.ids().await, [""; 0], "not even the message that the lease does not cover");
    lane.complete(&batch).await;
    assert_eq!(lane.ids().await, ["m2"]);
}

#[tokio::test]
async fn a_lease_can_be_extended_while_it_lives_and_not_after() {
    let lane = Lane::with("extend", &["m1"]).await;
    let batch = lane.pop_with(&[("leaseSeconds", "1")]).await;
    let extended = lane.api.extend(&batch.lease_id, r#"{"seconds":3}"#).await;
    assert_eq!((&extended["success"], &extended["renewed"]), (&json!(true), &json!(1)), "{extended}");
    assert_eq!(extended["leaseId"], json!(batch.lease_id));
    assert!(extended["newExpiresAt"].is_string());
    assert!(
        extended["expiresAt"] == extended["newExpiresAt"]
            && extended["lease_expires_at"] == extended["newExpiresAt"]
    );
    // An extension never shortens: after this one it must still last its three seconds.
    assert_eq!(lane.api.extend(&batch.lease_id, r#"{"seconds":1}"#).await["success"], true);
    tokio::time::sleep(LEASE_OVER).await;
    assert_eq!(lane.ids().await, [""; 0], "its first second is over and it still holds");
    tokio::time::sleep(LEASE_OVER * 2).await;
    let after = lane.api.extend(&batch.lease_id, "").await;
    assert_eq!(
        (&after["success"], &after["renewed"], &after["newExpiresAt"]),
        (&json!(false), &json!(0), &json!(null))
    );
    assert_eq!(lane.ids().await, ["m1"]);
}

#[tokio::test]
async fn an_extension_without_body_is_for_a_minute() {
    let lane = Lane::with("extend-empty", &["m1"]).await;
    let batch = lane.pop_with(&[("leaseSeconds", "1")]).await;
    for body in ["", "{}", r#"{"seconds":null}"#, "not json"] {
        let extended = lane.api.extend(&batch.lease_id, body).await;
        assert_eq!(extended["success"], true, "{body:?}: {extended}");
    }
    tokio::time::sleep(LEASE_OVER).await;
    assert!(all_succeed(&lane.complete(&batch).await));
    assert_eq!(lane.api.extend(&batch.lease_id, "").await["success"], false, "released by the ack");
    assert_eq!(lane.api.extend(NEVER_A_LEASE, "").await["success"], false);
}
