//! The admin plane against the real daemon over HTTP: numbers that are known, groups that are moved and deleted.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;

use common::Daemon;
use common::api::Api;
use common::lane::Lane;
use serde_json::{Value, json};

fn fresh() -> Arc<Daemon> {
    Arc::new(Daemon::start(&[]))
}

#[tokio::test]
async fn the_lists_agree_with_what_was_done() {
    let daemon = fresh();
    let api = Api::of(daemon.clone());
    let lane = Lane::on(daemon.clone(), "shop.orders");
    lane.push(&["m1", "m2", "m3", "m4", "m5"]).await;
    let queue = lane.queue.clone();
    let row = api.get("/api/v1/resources/queues").await.json()["queues"][0].clone();
    assert_eq!(row["name"], json!(queue));
    assert_eq!(row["messages"]["pending"], 5, "nobody reads: everything is pending");
    assert!(row["retainedBytes"].as_u64().unwrap() > 0);

    let batch = lane.pop(2).await;
    lane.complete(&batch).await;
    let batch = lane.pop(2).await;
    let detail = api.get(&format!("/api/v1/resources/queues/{queue}")).await.json();
    let expected =
        json!({"total": 5, "pending": 1, "processing": 2, "completed": 2, "failed": null, "deadLetter": 0});
    assert_eq!(detail["totals"], expected);
    assert_eq!(detail["partitions"][0]["stats"], expected);
    assert_eq!(detail["segments"]["messages"], 5);
    assert_eq!(detail["options"].as_object().unwrap().len(), 21);
    assert!(detail["partitions"][0]["oldestMessage"].is_string());
    let depth = api.get(&format!("/api/v1/resources/queues/{queue}/depth")).await.json();
    assert_eq!((&depth["pending"], &depth["partitionsPending"]), (&json!(1), &json!(1)));
    let partitions = api.get(&format!("/api/v1/resources/partitions?queue={queue}")).await.json();
    assert!(partitions["partitions"][0]["lagSeconds"].is_u64());
    let overview = api.get("/api/v1/resources/overview").await.json();
    assert_eq!((&overview["queues"], &overview["messages"]["total"]), (&json!(1), &json!(5)));
    let namespaces = api.get("/api/v1/resources/namespaces").await.json();
    assert_eq!(namespaces["namespaces"][0]["messages"]["total"], 5);
    let status = api.get(&format!("/api/v1/status/queues/{queue}")).await.json();
    assert_eq!(status["queue"]["config"]["retryDelay"], 1000);
    assert_eq!(api.get("/api/v1/status/queues?limit=0").await.json()["queues"], json!([]));

    lane.complete(&batch).await;
    let groups = api.get("/api/v1/consumer-groups").await.json();
    assert_eq!((&groups[0]["totalLag"], &groups[0]["state"]), (&json!(1), &json!("Stable")));
    let lagging = api.get("/api/v1/consumer-groups/lagging?minLagSeconds=0").await.json();
    assert_eq!(lagging[0]["offset_lag"], 1);
    assert_eq!(api.get("/api/v1/consumer-groups/lagging").await.json(), json!([]));
    let name = groups[0]["name"].as_str().unwrap();
    let detail = api.get(&format!("/api/v1/consumer-groups/{name}")).await.json();
    assert_eq!(detail[&queue]["partitions"][0]["totalConsumed"], 4);
    assert_eq!(api.get("/api/v1/consumer-groups/nobody").await.json(), json!({}));
    let missing = api.get("/api/v1/resources/queues/nowhere").await;
    assert_eq!((missing.status.as_u16(), &missing.json()["error"]), (404, &json!("Queue not found")));
}

#[tokio::test]
async fn a_group_is_moved_and_what_was_leased_comes_back() {
    let daemon = fresh();
    let api = Api::of(daemon.clone());
    let lane = Lane::on(daemon.clone(), "moved").group("billing");
    lane.push(&["m1", "m2", "m3"]).await;
    let path = format!("/api/v1/consumer-groups/billing/queues/{}", lane.queue);
    let seek = |body: Value| {
        let (api, path) = (api.clone(), format!("{path}/seek"));
        async move { api.post(&path, &body).await }
    };
    let start = seek(json!({"timestamp": "1970-01-01T00:00:00Z"})).await;
    assert_eq!(start.json()["partitionsUpdated"], 1, "the group was registered by it: {start:?}");
    let held = lane.pop(2).await;
    assert_eq!(held.ids(), ["m1", "m2"]);
    assert_eq!(seek(json!({"toEnd": true})).await.json()["seekToEnd"], true);
    assert!(lane.complete(&held).await.iter().all(|verdict| verdict.refused_with("lease")));
    assert!(lane.ids().await.is_empty());
    assert_eq!(seek(json!({"timestamp": "1970-01-01T00:00:00Z"})).await.status.as_u16(), 200);
    daemon.kill();
    daemon.restart();
    assert_eq!(lane.ids().await, ["m1", "m2", "m3"], "the seek is durable");
    for bad in [
        json!({}),
        json!({"position": "earliest"}),
        json!({"toEnd": "yes"}),
        json!({"timestamp": 5}),
        json!({"timestamp": "yesterday"}),
        json!({"toEnd": true, "timestamp": "1970-01-01T00:00:00Z"}),
    ] {
        assert_eq!(seek(bad.clone()).await.status.as_u16(), 400, "{bad}");
    }
    let one = api.post_text(&format!("{path}/partitions/nowhere/seek"), String::new()).await;
    assert_eq!((one.status.as_u16(), &one.json()["error"]), (404, &json!("Partition not found")));
    let none = api.post("/api/v1/consumer-groups/g/queues/nowhere/seek", &json!({"toEnd": true})).await;
    assert_eq!((none.status.as_u16(), &none.json()["partitionsUpdated"]), (404, &json!(0)));
}

#[tokio::test]
async fn a_deleted_group_begins_anew_and_its_dead_letters_stay() {
    let daemon = fresh();
    let api = Api::of(daemon.clone());
    let lane = Lane::on(daemon.clone(), "deleted").group("billing");
    lane.push(&["m1", "m2"]).await;
    let all = [("subscriptionMode", "all"), ("batch", "2")];
    let batch = lane.pop_with(&all).await;
    lane.settle(&batch, &[("m1", "dlq")]).await;
    assert!(lane.pop_with(&all).await.ids() == ["m2"]);
    let deleted = api.delete("/api/v1/consumer-groups/billing?deleteMetadata=true").await.json();
    assert_eq!((&deleted["deletedPartitions"], &deleted["metadataDeleted"]), (&json!(1), &json!(true)));
    assert_eq!(api.get("/api/v1/consumer-groups/billing").await.json(), json!({}));
    daemon.kill();
    daemon.restart();
    assert_eq!(lane.dead_letters().await.len(), 1, "a dead letter outlives its group");
    assert_eq!(lane.pop_with(&all).await.ids(), ["m1", "m2"], "it begins anew");
    let again = api.delete("/api/v1/consumer-groups/unheard-of").await;
    assert_eq!((again.status.as_u16(), &again.json()["deletedPartitions"]), (200, &json!(0)));
    assert_eq!(api.delete("/api/v1/consumer-groups/billing?deleteMetadata=maybe").await.status.as_u16(), 400);
}

#[tokio::test]
async fn a_subscription_moves_where_new_partitions_begin() {
    let daemon = fresh();
    let api = Api::of(daemon.clone());
    let lane = Lane::on(daemon.clone(), "subscribed").group("billing");
    lane.push(&["m1"]).await;
    assert!(lane.pop_with(&[("subscriptionMode", "new")]).await.messages.is_empty());
    let path = "/api/v1/consumer-groups/billing/subscription";
    let moved = api.post(path, &json!({"subscriptionTimestamp": "1970-01-01T00:00:00Z"})).await.json();
    assert_eq!((&moved["rowsUpdated"], &moved["newTimestamp"]), (&json!(1), &json!("1970-01-01T00:00:00Z")));
    assert_eq!(lane.ids().await, ["m1"]);
    for bad in [json!({}), json!({"subscriptionTimestamp": ""}), json!({"subscriptionTimestamp": "soon"})] {
        assert_eq!(api.post(path, &bad).await.status.as_u16(), 400, "{bad}");
    }
}

#[tokio::test]
async fn every_route_of_the_table_answers() {
    let api = Api::of(fresh());
    let table = api.get("/openapi.json").await.json();
    let paths = table["paths"].as_object().unwrap();
    assert!(paths.len() > 20);
    for (path, methods) in paths {
        let concrete = path.replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys() {
            let answer = match method.as_str() {
                "get" => api.get(&concrete).await,
                "delete" => api.delete(&concrete).await,
                _ => api.post_text(&concrete, String::new()).await,
            };
            assert!(answer.status.as_u16() < 500, "{method} {path}: {answer:?}");
            assert!(!answer.text.contains("no_such_route"), "{method} {path}: {answer:?}");
        }
    }
}
