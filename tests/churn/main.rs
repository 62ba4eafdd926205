//! Memory stays flat while queues, partitions, groups and parked polls come and go.
//!
//! Method: the real daemon with the smallest files; cycle after cycle creates all of them, uses them and drops them. The
//! resident memory of the process is read after each cycle: once it has settled it must not grow any more. A few cycles
//! by default; `COMB_CHURN_SECONDS` makes it a soak.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::api::Api;
use common::{Daemon, SMALL_FILES};
use serde_json::{Value, json};

/// Queues of a cycle.
const QUEUES: usize = 40;
/// Partitions of a queue.
const PARTITIONS: usize = 50;
/// Groups of a queue.
const GROUPS: usize = 5;
/// Polls that park on queues that do not exist yet.
const POLLS: usize = 200;

/// Cycles until tables and allocator have their size.
const SETTLING: usize = 4;
/// What may still come on top of that: noise of the allocator and of caches that are bounded.
const NOISE_BYTES: u64 = 24 << 20;

fn resident(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

async fn cycle(api: &Api, number: usize) {
    let polls: Vec<_> = (0..POLLS)
        .map(|poll| {
            let api = api.clone();
            tokio::spawn(async move {
                let queue = format!("/queue/never-{number}-{poll}");
                api.pop(&queue, &[("wait", "true"), ("timeout", "1500")]).await
            })
        })
        .collect();
    for queue in 0..QUEUES {
        let name = format!("churn-{number}-{queue}");
        let items: Vec<Value> = (0..PARTITIONS)
            .map(|partition| {
                json!({
                    "queue": name,
                    "partition": format!("partition-{partition}"),
                    "transactionId": format!("{number}-{queue}-{partition}"),
                    "payload": "x".repeat(300),
                })
            })
            .collect();
        api.push_items(json!(items)).await;
        for group in 0..GROUPS {
            let group = format!("group-{group}");
            let query = [
                ("batch", "100"),
                ("partitions", "50"),
                ("autoAck", "true"),
                ("consumerGroup", group.as_str()),
                ("subscriptionMode", "all"),
            ];
            let popped = api.pop(&format!("/queue/{name}"), &query).await;
            assert_eq!(popped.messages.len(), PARTITIONS);
        }
    }
    for queue in 0..QUEUES {
        let answer = api.delete(&format!("/api/v1/resources/queues/churn-{number}-{queue}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    for poll in polls {
        assert!(poll.await.unwrap().messages.is_empty());
    }
    for poll in 0..POLLS {
        api.delete(&format!("/api/v1/resources/queues/never-{number}-{poll}")).await;
    }
}

#[tokio::test]
async fn memory_is_flat_while_everything_comes_and_goes() {
    let seconds: u64 = std::env::var("COMB_CHURN_SECONDS").map_or(12, |text| text.parse().unwrap());
    let daemon = Arc::new(Daemon::start(SMALL_FILES));
    let api = Api::of(Arc::clone(&daemon));
    let begun = Instant::now();
    let mut sizes = Vec::new();
    while begun.elapsed() < Duration::from_secs(seconds) || sizes.len() < SETTLING + 2 {
        cycle(&api, sizes.len()).await;
        sizes.push(resident(&daemon));
    }
    let settled = sizes.iter().take(SETTLING).max().unwrap();
    let last = sizes.last().unwrap();
    println!(
        "{} cycles, resident MiB: {:?}",
        sizes.len(),
        sizes.iter().map(|size| size >> 20).collect::<Vec<_>>()
    );
    assert!(
        *last <= settled + NOISE_BYTES,
        "{settled} bytes after {SETTLING} cycles, {last} in the end: {sizes:?}"
    );
}
