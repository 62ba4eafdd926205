//! Routes, bodies and answers of an acknowledgement.

use serde_json::{Value, json};

use crate::common::lane::{Lane, all_succeed};

const ROUTES: [&str; 2] = ["/api/v1/ack", "/api/v1/ack/batch"];

#[tokio::test]
async fn both_routes_answer_200_whatever_the_verdict() {
    let lane = Lane::with("always-200", &["m1"]).await;
    let batch = lane.pop(1).await;
    for route in ROUTES {
        for (id, partition, lease) in [
            ("ghost", batch.partition_id.as_str(), ""),
            ("m1", batch.partition_id.as_str(), "0193a000-0000-7000-8000-000000000000"),
            ("m1", "18446744073709551615", ""),
            ("m1", "not-a-number", ""),
        ] {
            let item = json!({"transactionId": id, "partitionId": partition, "leaseId": lease,
                              "consumerGroup": lane.group});
            let answer = lane.api.post(route, &item).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.json()[0]["success"], false, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn a_single_ack_is_an_object_and_its_answer_an_array_of_one() {
    let lane = Lane::with("single", &["order-4711"]).await;
    let batch = lane.pop(1).await;
    let body = json!({"transactionId": "order-4711", "partitionId": batch.partition_id, "status": "completed",
                      "consumerGroup": lane.group, "leaseId": batch.lease_id, "error": null});
    let answer = lane.api.post("/api/v1/ack", &body).await;
    assert_eq!(
        answer.json(),
        json!([{"index": 0, "transactionId": "order-4711", "success": true, "error": null, "leaseReleased": true,
                "dlq": false, "noop": false}])
    );
}

#[tokio::test]
async fn both_routes_take_both_shapes() {
    for route in ROUTES {
        let lane = Lane::with("shapes", &["m1", "m2"]).await;
        let batch = lane.pop(2).await;
        let item = |id: &str| json!({"transactionId": id, "partitionId": batch.partition_id, "leaseId": batch.lease_id});
        let mut single = item("m1");
        single["consumerGroup"] = json!(lane.group);
        assert!(all_succeed(&lane.api.ack(route, &single).await));
        let many = json!({"consumerGroup": lane.group, "acknowledgments": [item("m2")]});
        assert!(all_succeed(&lane.api.ack(route, &many).await));
    }
}

#[tokio::test]
async fn the_answer_has_one_element_per_item_in_request_order() {
    let lane = Lane::with("order", &["m1", "m2", "m3"]).await;
    let batch = lane.pop(3).await;
    let ids = ["m3", "ghost", "m1", "m2", "m1"];
    let verdicts = lane.settle(&batch, &ids.map(|id| (id, "completed"))).await;
    assert_eq!(verdicts.iter().map(|v| v.transaction_id.as_str()).collect::<Vec<_>>(), ids);
    assert_eq!(verdicts.iter().map(|v| v.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(verdicts.iter().map(|v| v.success).collect::<Vec<_>>(), [true, false, true, true, true]);
}

#[tokio::test]
async fn no_acknowledgements_is_an_empty_answer() {
    let lane = Lane::new("none");
    assert_eq!(lane.ack_raw(json!([])).await, []);
}

#[tokio::test]
async fn an_item_without_partition_id_is_refused() {
    let lane = Lane::with("no-partition", &["m1"]).await;
    let batch = lane.pop(1).await;
    let verdicts = lane
        .ack_raw(json!([{"transactionId": "m1", "leaseId": batch.lease_id}, {"transactionId": "m1", "partitionId": null},
                        {"transactionId": "m1", "partitionId": ""}]))
        .await;
    assert_eq!(verdicts.len(), 3);
    assert!(verdicts.iter().all(|v| v.refused_with("partition")), "{verdicts:?}");
    assert!(all_succeed(&lane.complete(&batch).await), "and nothing else changed");
}

#[tokio::test]
async fn an_item_without_transaction_id_is_refused() {
    let lane = Lane::with("no-id", &["m1"]).await;
    let batch = lane.pop(1).await;
    let verdicts = lane
        .ack_raw(
            json!([{"partitionId": batch.partition_id, "leaseId": batch.lease_id, "status": "completed"}]),
        )
        .await;
    assert!(verdicts[0].refused_with("transactionid"), "{verdicts:?}");
    assert!(all_succeed(&lane.complete(&batch).await));
}

#[tokio::test]
async fn a_group_inside_an_item_of_a_batch_is_not_read() {
    let lane = Lane::with("item-group", &["m1"]).await;
    let (a, b) = (lane.group("a"), lane.group("b"));
    let (of_a, of_b) = (a.pop(1).await, b.pop(1).await);
    let item = json!({"transactionId": "m1", "partitionId": of_a.partition_id, "leaseId": of_a.lease_id,
                      "consumerGroup": "b"});
    assert!(all_succeed(&a.ack_raw(json!([item])).await));
    assert!(all_succeed(&b.complete(&of_b).await), "b's cursor was not moved");
}

#[tokio::test]
async fn null_fields_are_absent_fields() {
    let lane = Lane::with("nulls", &["m1"]).await;
    let queue_mode = lane.api.pop(&format!("/queue/{}", lane.queue), &[]).await;
    let verdicts = lane
        .api
        .ack(
            "/api/v1/ack",
            &json!({"transactionId": "m1", "partitionId": queue_mode.partition_id, "status": null,
                    "consumerGroup": null, "leaseId": null, "error": null}),
        )
        .await;
    assert!(all_succeed(&verdicts), "{verdicts:?}");
}

#[tokio::test]
async fn a_body_of_another_shape_is_400_and_changes_nothing() {
    let lane = Lane::with("bad-body", &["m1"]).await;
    let batch = lane.pop(1).await;
    for route in ROUTES {
        for body in ["", "{", "[1]", "7", "\"ack\"", r#"{"acknowledgments":7}"#, r#"{"acknowledgments":[7]}"#]
        {
            let answer = lane.api.post_text(route, body.to_owned()).await;
            assert_eq!(answer.status, 400, "{route} {body}: {answer:?}");
            assert_eq!(answer.json()["code"], "bad_body", "{route} {body}: {answer:?}");
            assert!(answer.json()["error"].is_string());
        }
    }
    assert!(all_succeed(&lane.complete(&batch).await));
}

#[tokio::test]
async fn status_words_mean_what_the_contract_says() {
    let completed = [Value::Null, json!("completed"), json!("success"), json!("acked"), json!("ok")];
    let failed = ["failed", "", "nope", "COMPLETED", "Completed", "complete", "Retry", "DLQ"];
    for status in completed {
        let lane = Lane::with("word", &["m1", "m2"]).await;
        let batch = lane.pop(1).await;
        let item = json!({"transactionId": "m1", "partitionId": batch.partition_id, "leaseId": batch.lease_id,
                          "status": status});
        assert!(all_succeed(&lane.ack_raw(json!([item])).await));
        assert_eq!(lane.ids().await, ["m2"], "{status}");
    }
    for status in failed {
        let lane = Lane::with("word", &["m1"]).await;
        lane.configure(json!({"retryLimit": 0})).await;
        let batch = lane.pop(1).await;
        let verdicts = lane.settle(&batch, &[("m1", status)]).await;
        // With no retries left a failure is a dead letter, which neither retry nor completed would be.
        assert!(verdicts[0].success && verdicts[0].dlq, "{status:?}: {verdicts:?}");
        assert_eq!(lane.dead_letters().await.len(), 1, "{status:?}");
    }
    let lane = Lane::with("word", &["m1"]).await;
    lane.configure(json!({"retryLimit": 0})).await;
    let batch = lane.pop(1).await;
    let verdicts = lane.settle(&batch, &[("m1", "retry")]).await;
    assert!(verdicts[0].success && !verdicts[0].dlq, "{verdicts:?}");
    let batch = lane.pop(1).await;
    assert_eq!(batch.ids(), ["m1"]);
    assert!(lane.settle(&batch, &[("m1", "dlq")]).await[0].dlq);
}

#[tokio::test]
async fn an_absent_status_means_completed() {
    let lane = Lane::with("no-status", &["m1", "m2"]).await;
    let batch = lane.pop(1).await;
    let item = json!({"transactionId": "m1", "partitionId": batch.partition_id, "leaseId": batch.lease_id});
    assert!(all_succeed(&lane.ack_raw(json!([item])).await));
    assert_eq!(lane.ids().await, ["m2"]);
}

#[tokio::test]
async fn items_are_decided_in_groups_of_partition_and_lease() {
    let lane = Lane::new("grouping");
    let (eu, us) = (lane.partition("eu"), lane.partition("us"));
    eu.push(&["m1", "m2"]).await;
    us.push(&["m1"]).await;
    let (of_eu, of_us) = (eu.pop(2).await, us.pop(1).await);
    let foreign = "0193a000-0000-7000-8000-000000000000";
    let verdicts = lane
        .ack_raw(json!([
            {"transactionId": "m1", "partitionId": of_eu.partition_id, "leaseId": of_eu.lease_id, "status": "failed"},
            {"transactionId": "m1", "partitionId": of_us.partition_id, "leaseId": of_us.lease_id, "status": "completed"},
            {"transactionId": "m2", "partitionId": of_eu.partition_id, "leaseId": foreign, "status": "completed"},
        ]))
        .await;
    assert!(verdicts[0].success, "{verdicts:?}");
    assert!(verdicts[1].success && verdicts[1].lease_released, "{verdicts:?}");
    assert!(verdicts[2].refused_with("lease"), "one group's refusal stays its own: {verdicts:?}");
    assert_eq!(eu.ids().await, ["m1", "m2"], "the failure in one lane did not touch the other");
    assert_eq!(us.ids().await, [""; 0]);
}

#[tokio::test]
async fn a_partition_id_that_is_none_says_so_per_item() {
    let lane = Lane::with("partition-texts", &["m1"]).await;
    let batch = lane.pop(1).await;
    let verdicts = lane
        .ack_raw(json!([
            {"transactionId": "m1", "partitionId": "eu"},
            {"transactionId": "m1", "partitionId": "9999999"},
            {"transactionId": "m1", "partitionId": batch.partition_id},
        ]))
        .await;
    assert!(verdicts[0].refused_with("not a partition id"), "{verdicts:?}");
    assert!(verdicts[1].refused_with("no partition 9999999"), "{verdicts:?}");
    assert!(verdicts[2].success, "{verdicts:?}");
}
