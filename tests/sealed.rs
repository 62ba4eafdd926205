//! Messages in sealed segments, through the daemon: with no index rows kept in memory, everything that needs one is
//! looked up in index files, and nobody who uses the daemon can tell.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

mod common;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use common::Daemon;
use common::api::{Popped, Pushed};
use common::lane::{Lane, all_succeed};

/// The smallest segments, a checkpoint now and then, and no rows of sealed segments in memory.
const SEALED: &[&str] = &[
    "--log-segment-bytes=1048576",
    "--log-resident-index-bytes=0",
    "--log-cursor-file-bytes=262144",
    "--log-checkpoint-cursor-bytes=1048576",
    "--log-group-bytes=131072",
    "--log-tail-cache-bytes=1048576",
];

const MESSAGES: usize = 6000;
const PER_PUSH: usize = 10;

/// Padding, so that the messages take some segments.
fn item(lane: &Lane, index: usize) -> Value {
    let payload = json!({"index": index, "padding": "x".repeat(900)});
    json!({"queue": lane.queue, "partition": lane.partition, "transactionId": id(index), "payload": payload})
}

fn id(index: usize) -> String {
    format!("m{index}")
}

async fn push(lane: &Lane, indexes: impl Iterator<Item = usize>) -> Vec<Pushed> {
    lane.api.push_items(indexes.map(|index| item(lane, index)).collect()).await
}

/// Index files that are there.
fn indexes(daemon: &Daemon) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(daemon.data().join("segments")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "idx")).collect()
}

async fn await_indexes(daemon: &Daemon, least: usize) {
    let begun = Instant::now();
    while indexes(daemon).len() < least {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} index files", indexes(daemon).len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Some messages from the first segment to the last.
fn samples() -> impl Iterator<Item = usize> {
    (0..MESSAGES).step_by(397)
}

/// What was pushed is known and told apart from what was not.
async fn duplicates_are_recognised(lane: &Lane, pushed: &[Pushed], round: usize) {
    for index in samples() {
        let again = push(lane, [index, MESSAGES + round * MESSAGES + index].into_iter()).await;
        assert_eq!(again[0].status, "duplicate", "{index}");
        assert_eq!(
            (&again[0].message_id, again[0].offset),
            (&pushed[index].message_id, pushed[index].offset),
            "{index}"
        );
        assert_eq!(again[1].status, "queued", "{index}");
    }
}

/// A group that sees everything from the beginning.
async fn everything_is_popped_in_order(lane: &Lane) {
    let mut next = 0;
    while next < MESSAGES {
        let batch = lane.pop_with(&[("batch", "500")]).await;
        assert!(!batch.messages.is_empty(), "nothing behind {next}");
        for message in &batch.messages {
            if next < MESSAGES {
                assert_eq!((message.offset, &message.transaction_id), (next as u64, &id(next)));
                assert_eq!(message.data["index"], next);
            }
            next += 1;
        }
        let last = batch.messages.last().unwrap().transaction_id.clone();
        let verdicts = lane.settle(&batch, &[(last.as_str(), "completed")]).await;
        assert!(all_succeed(&verdicts) && verdicts[0].lease_released, "{verdicts:?}");
    }
}

/// An ack without a lease moves the cursor behind its message, wherever that is stored.
async fn acks_without_a_lease_are_resolved(lane: &Lane, partition_id: &str) {
    let partition = Popped { partition_id: partition_id.to_owned(), ..Popped::default() };
    // Only a group that popped before may acknowledge.
    let first = lane.pop_with(&[("batch", "1")]).await;
    assert!(all_succeed(&lane.complete(&first).await));
    for index in samples().skip(1) {
        let verdicts = lane.ack(&partition, "", &[(&id(index), "completed")]).await;
        assert!(all_succeed(&verdicts), "{index}: {verdicts:?}");
        let next = lane.pop_with(&[("batch", "1"), ("leaseSeconds", "60")]).await;
        assert_eq!(next.messages[0].offset, index as u64 + 1);
        let returned = lane.settle(&next, &[(&id(index + 1), "completed")]).await;
        assert!(all_succeed(&returned), "{returned:?}");
        // One below the cursor is found too, and changes nothing.
        let verdicts = lane.ack(&partition, "", &[(&id(index - 100), "completed")]).await;
        assert!(verdicts[0].success && verdicts[0].noop, "{verdicts:?}");
    }
    let verdicts = lane.ack(&partition, "", &[("never pushed", "completed")]).await;
    assert!(verdicts[0].refused_with("unresolv"), "{verdicts:?}");
}

/// A group that begins at a time finds the first message of that time.
async fn groups_start_from_a_time(lane: &Lane, created: &[(usize, String)], round: usize) {
    for (at, (index, time)) in created.iter().enumerate() {
        let lane = lane.group(&format!("from-{round}-{at}"));
        let popped = lane.pop_with(&[("batch", "1"), ("subscriptionFrom", time)]).await;
        let first = &popped.messages[0];
        // Times on the wire have milliseconds: what came before in the same one is delivered too.
        assert!(first.offset <= *index as u64, "{} is behind {index}", first.offset);
        assert_eq!(&first.created_at, time, "{index}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_sealed_segments_is_as_good_as_what_is_in_memory() {
    let daemon = Arc::new(Daemon::start(SEALED));
    let lane = Lane::on(Arc::clone(&daemon), "sealed");
    let mut pushed = Vec::new();
    for first in (0..MESSAGES).step_by(PER_PUSH) {
        pushed.extend(push(&lane, first..first + PER_PUSH).await);
    }
    assert!(pushed.iter().all(|pushed| pushed.status == "queued"));
    await_indexes(&daemon, 5).await;

    let mut created = Vec::new();
    let mut partition_id = String::new();
    let reader = lane.group("times");
    for index in samples() {
        // The message itself, by going to the one before it.
        if index > 0 {
            let partition = Popped { partition_id: partition_id.clone(), ..Popped::default() };
            assert!(all_succeed(&reader.ack(&partition, "", &[(&id(index - 1), "completed")]).await));
        }
        let popped = reader.pop_with(&[("batch", "1")]).await;
        assert_eq!(popped.messages[0].offset, index as u64);
        created.push((index, popped.messages[0].created_at.clone()));
        partition_id = popped.partition_id.clone();
        assert!(all_succeed(&reader.complete(&popped).await));
    }

    for round in 0..3 {
        duplicates_are_recognised(&lane, &pushed, round).await;
        everything_is_popped_in_order(&lane.group(&format!("all-{round}"))).await;
        acks_without_a_lease_are_resolved(&lane.group(&format!("ids-{round}")), &partition_id).await;
        groups_start_from_a_time(&lane, &created, round).await;
        match round {
            0 => {
                daemon.kill();
                daemon.restart();
            }
            1 => {
                let (status, _) = daemon.terminate(Duration::from_secs(20));
                assert!(status.success());
                // Index files are never needed to be right, nor to be there.
                for (at, path) in indexes(&daemon).into_iter().enumerate() {
                    match at % 3 {
                        0 => fs::remove_file(path).unwrap(),
                        1 => fs::write(path, b"nonsense").unwrap(),
                        _ => {}
                    }
                }
                daemon.restart();
                assert!(indexes(&daemon).len() >= 5, "the start did not build them anew");
                assert!(daemon.log_tail().contains("anew"), "the start found nothing wrong");
            }
            _ => {}
        }
    }
}
