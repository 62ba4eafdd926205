use super::bench::{Bench, item};
use crate::broker::command::AckStatus::Completed;
use crate::broker::command::{AckRefusal, BrokerError, Command, PushVerdict, Reply};
use crate::broker::core::{Block, Step, Work};
use crate::broker::journal::Fit;
use crate::format::delta::StartPolicy;
use crate::format::run::RUN_HEADER_BYTES;
use crate::types::{Offset, QueueOptions};

fn shape(verdicts: &[PushVerdict]) -> Vec<(u64, bool)> {
    verdicts.iter().map(|verdict| (verdict.offset.0, verdict.duplicate)).collect()
}

#[test]
fn a_push_creates_queue_and_partition_and_offsets_follow_the_request() {
    let mut bench = Bench::new();
    assert_eq!(shape(&bench.push("a.b.c", "p", &["1", "2", "3"])), [(0, false), (1, false), (2, false)]);
    assert_eq!(shape(&bench.push("a.b.c", "p", &["4"])), [(3, false)]);
    let queue = bench.core.state.queue_named("a.b.c").unwrap();
    assert_eq!((queue.namespace.as_str(), queue.task.as_str()), ("a", "b"));
    assert_eq!(queue.options, QueueOptions::created_on_use());
    assert_eq!(queue.options.lease_seconds, 60);
    assert_eq!(queue.partitions.len(), 1);
}

#[test]
fn a_name_without_a_dot_is_its_own_namespace() {
    let mut bench = Bench::new();
    bench.push("jobs", "p", &["1"]);
    let queue = bench.core.state.queue_named("jobs").unwrap();
    assert_eq!((queue.namespace.as_str(), queue.task.as_str()), ("jobs", ""));
}

#[test]
fn messages_of_one_push_share_a_creation_time_that_grows_even_when_the_clock_steps_back() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1", "2"]);
    let partition = bench.partition("q", "p");
    let newest = |bench: &Bench, offset: u64| -> Vec<_> {
        let state = &bench.core.state;
        let runs = state.runs(state.partitions.get(&partition).unwrap(), Offset(offset));
        runs.map(|run| run.unwrap()).map(|run| (run.count, run.created)).collect()
    };
    let mut runs = newest(&bench, 0);
    bench.core.state.last_stamp.0 += 50_000_000; // as if the clock had been ahead
    bench.push("q", "p", &["3"]);
    runs.extend(newest(&bench, 2));
    bench.push("q", "p", &["4"]);
    runs.extend(newest(&bench, 3));
    assert_eq!(runs.iter().map(|(count, _)| *count).collect::<Vec<_>>(), [2, 1, 1]);
    assert!(runs.is_sorted_by(|a, b| a.1 < b.1));
}

#[test]
fn a_duplicate_stores_nothing_and_answers_the_originals_id_and_offset() {
    let mut bench = Bench::new();
    let first = bench.push("q", "p", &["1", "2"]);
    let before = bench.core.state.partitions.get(&bench.partition("q", "p")).unwrap().next;
    let again = bench.push("q", "p", &["2"]);
    assert_eq!(again, [PushVerdict { duplicate: true, ..first[1] }]);
    assert_eq!(bench.core.state.partitions.get(&bench.partition("q", "p")).unwrap().next, before);
}

#[test]
fn a_batch_with_duplicates_has_a_verdict_per_item() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1", "2"]);
    let verdicts = bench.push("q", "p", &["2", "3", "1", "4", "3"]);
    assert_eq!(shape(&verdicts), [(1, true), (2, false), (0, true), (3, false), (2, true)]);
    assert_eq!(verdicts[4].id, verdicts[1].id);
    // What was stored are the bytes of the new ones.
    let partition = bench.partition("q", "p");
    let expected = bench.group("q", "p", &["3", "4"]);
    let stored = bench.core.state.partitions.get(&partition).unwrap();
    assert_eq!(stored.next, Offset(4));
    let run = bench.core.state.runs(stored, Offset(2)).next().unwrap().unwrap();
    assert_eq!(run.bytes as usize, expected.entries.len());
}

#[test]
fn a_push_of_duplicates_alone_creates_nothing() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1", "2"]);
    let before = bench.records();
    let last = bench.core.state.last_stamp;
    assert_eq!(shape(&bench.push("q", "p", &["1", "2", "1"])), [(0, true), (1, true), (0, true)]);
    assert_eq!((bench.records(), bench.core.state.last_stamp), (before, last));
}

#[test]
fn a_push_without_items_creates_nothing() {
    let mut bench = Bench::new();
    assert_eq!(bench.push("q", "p", &[]), []);
    assert!(bench.core.state.queues.is_empty());
}

#[test]
fn racing_pushes_of_one_id_store_one_message() {
    let mut bench = Bench::new();
    let verdicts: Vec<PushVerdict> = (0..8).map(|_| bench.push("q", "p", &["same"])[0]).collect();
    assert_eq!(verdicts.iter().filter(|verdict| !verdict.duplicate).count(), 1);
    assert!(verdicts.iter().all(|verdict| verdict.id == verdicts[0].id && verdict.offset == Offset(0)));
}

#[test]
fn the_window_counts_from_the_first_accept_and_a_duplicate_does_not_renew_it() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1"]);
    bench.options("q", |options| options.dedup_window_seconds = 100);
    bench.pass(60);
    assert_eq!(shape(&bench.push("q", "p", &["1"])), [(0, true)]);
    bench.pass(40);
    assert_eq!(shape(&bench.push("q", "p", &["1"])), [(0, true)], "the window's last moment");
    bench.pass(1);
    assert_eq!(shape(&bench.push("q", "p", &["1"])), [(1, false)]);
    assert_eq!(shape(&bench.push("q", "p", &["1"])), [(1, true)], "the newest is the original now");
}

#[test]
fn an_ack_does_not_end_the_window() {
    use super::bench::{item, with};
    use crate::broker::command::AckStatus;
    let mut bench = Bench::new();
    bench.push("q", "p", &["1"]);
    let partition = bench.partition("q", "p");
    let lease = bench.lease(partition, "g", 0);
    assert!(bench.ack("g", vec![with(lease, item(partition, "1", AckStatus::Completed))])[0].success());
    assert_eq!(shape(&bench.push("q", "p", &["1"])), [(0, true)]);
}

#[test]
fn a_window_of_zero_is_off_except_inside_one_request() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1"]);
    bench.options("q", |options| options.dedup_window_seconds = 0);
    assert_eq!(shape(&bench.push("q", "p", &["1", "1"])), [(1, false), (1, true)]);
}

#[test]
fn a_minted_id_is_not_looked_up() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1"]);
    let mut group = bench.group("q", "p", &["1"]);
    group.items[0].minted = true;
    assert_eq!(shape(&bench.push_groups(vec![group])[0]), [(1, false)]);
}

#[test]
fn ids_are_scoped_by_queue_and_partition_and_compared_exactly() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["id"]);
    assert_eq!(shape(&bench.push("q", "other", &["id"])), [(0, false)]);
    assert_eq!(shape(&bench.push("other", "p", &["id"])), [(0, false)]);
    let distinct = ["ID", "id ", "\u{e9}", "e\u{301}"];
    assert!(bench.push("q", "p", &distinct).iter().all(|verdict| !verdict.duplicate));
}

#[test]
fn groups_of_one_partition_in_one_request_see_each_other() {
    let mut bench = Bench::new();
    let groups = vec![bench.group("q", "p", &["1"]), bench.group("q", "p", &["1", "2"])];
    let verdicts = bench.push_groups(groups);
    assert_eq!(shape(&verdicts[1]), [(0, true), (1, false)]);
}

#[test]
fn a_push_that_waits_for_room_keeps_what_is_stored() {
    let mut bench = Bench::new();
    let groups =
        vec![bench.group("q", "a", &["1"]), bench.group("q", "b", &["1"]), bench.group("q", "c", &["1"])];
    let mut work = Work::new(Command::Push(groups));
    bench.core.journal.now_left.set(Some(3 + 1 + 2)); // the sizes of all three, all together, then two of them
    assert!(matches!(bench.run(&mut work), Step::Blocked(Block::Room)));
    assert_eq!(bench.core.state.queue_named("q").unwrap().partitions.len(), 2);
    // While it waits, somebody else stores what it was about to store.
    bench.core.journal.now_left.set(None);
    let other = bench.push("q", "c", &["1"])[0];
    let Step::Done(Reply::Push(verdicts)) = bench.run(&mut work) else { panic!() };
    assert_eq!(shape(&verdicts[0]), [(0, false)]);
    assert_eq!(shape(&verdicts[1]), [(0, false)]);
    assert_eq!(verdicts[2], [PushVerdict { duplicate: true, ..other }], "decided again");
    assert_eq!(bench.core.state.partitions.len(), 3);
}

#[test]
fn a_full_disk_refuses_a_push_over_several_partitions_whole() {
    let mut bench = Bench::new();
    // Each of the two would fit by itself; together they do not.
    let groups = vec![bench.group("q", "a", &["1"]), bench.group("q", "b", &["1"])];
    let one = (RUN_HEADER_BYTES + groups[0].entries.len()) as u64;
    bench.core.journal.inner.full_above = Some(one);
    let mut work = Work::new(Command::Push(groups));
    let Step::Done(Reply::Failed(error)) = bench.run(&mut work) else { panic!() };
    assert!(matches!(error, BrokerError::StorageFull { .. }), "{error}");
    assert!(bench.core.state.queue_named("q").is_none(), "nothing of it was stored");
    assert!(!bench.push("q", "a", &["1"])[0].duplicate, "one of them alone still fits");
}

#[test]
fn a_full_disk_refuses_new_messages_and_still_knows_duplicates() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1"]);
    bench.core.journal.inner.fit = Some(Fit::Full { free_bytes: 5, copies: true });
    let before = bench.records();
    let group = bench.group("q", "p", &["2"]);
    let reply = bench.done(Command::Push(vec![group]));
    assert!(
        matches!(&reply, Reply::Failed(BrokerError::StorageFull { dir, free_bytes: 5 }) if dir == "data"),
        "{reply:?}"
    );
    assert_eq!(bench.records(), before);
    assert_eq!(shape(&bench.push("q", "p", &["1"])), [(0, true)]);
}

#[test]
fn one_group_that_is_too_large_refuses_the_request_before_anything_is_stored() {
    let mut bench = Bench::new();
    let big = "x".repeat(500);
    let groups = vec![bench.group("q", "a", &["1"]), bench.group("q", "b", &[&big])];
    bench.core.journal.limit = Some(400);
    let reply = bench.done(Command::Push(groups));
    let Reply::Failed(BrokerError::GroupTooLarge { bytes, limit: 400 }) = reply else { panic!("{reply:?}") };
    assert!(bytes > 400);
    assert!(bench.core.state.queues.is_empty() && bench.records() == 0);
}

#[test]
fn names_are_limited_exactly_and_together() {
    let mut bench = Bench::new();
    let room = 447 - 36;
    let fits = "q".repeat(room - 3);
    assert!(!bench.push(&fits, "ppp", &["1"])[0].duplicate);
    let groups = vec![bench.group("fine", "p", &["1"]), bench.group(&fits, "pppp", &["1"])];
    let reply = bench.done(Command::Push(groups));
    assert!(matches!(reply, Reply::Failed(BrokerError::NameTooLong { bytes: 448, limit: 447 })), "{reply:?}");
    assert!(bench.core.state.queue_named("fine").is_none());
}

#[test]
fn a_push_asks_for_room_for_its_headers_too() {
    let mut bench = Bench::new();
    let group = bench.group("q", "p", &["1"]);
    let entries = group.entries.len() as u64;
    bench.push_groups(vec![group]);
    let (runs, records) = bench.core.journal.asked.get();
    assert_eq!(runs, entries + 48);
    assert!(records >= 2 * 256);
}

/// Whether an acknowledgement below the group's cursor still finds its message.
fn knows(bench: &mut Bench, group: &str, id: &str) -> bool {
    let partition = bench.partition("q", "p");
    let verdict = bench.ack(group, vec![item(partition, id, Completed)])[0];
    assert!(verdict.noop || verdict.refusal == Some(AckRefusal::Unresolvable), "{verdict:?}");
    verdict.noop
}

#[test]
fn ids_expire_behind_every_cursor_only() {
    let mut bench = Bench::new();
    let old: Vec<String> = (0..10).map(|n| format!("old{n}")).collect();
    let old: Vec<&str> = old.iter().map(String::as_str).collect();
    bench.push("q", "p", &old);
    let partition = bench.partition("q", "p");
    bench.pass(10_000);
    bench.lease(partition, "fast", 9);
    bench.lease(partition, "slow", 9);
    assert!(bench.ack("fast", vec![item(partition, "old9", Completed)])[0].success());
    assert!(knows(&mut bench, "fast", "old0"), "the slow group has not passed");
    assert!(bench.ack("slow", vec![item(partition, "old5", Completed)])[0].success());
    assert!(!knows(&mut bench, "fast", "old5"));
    assert!(knows(&mut bench, "fast", "old6"), "not beyond the slow group's cursor");
    assert!(bench.ack("slow", vec![item(partition, "old6", Completed)])[0].success(), "still resolvable");
    assert_eq!(shape(&bench.push("q", "p", &["old0"])), [(10, false)], "may be pushed again");
}

#[test]
fn ids_inside_the_horizon_never_expire() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1", "2"]);
    let partition = bench.partition("q", "p");
    bench.lease(partition, "g", 1);
    bench.ack("g", vec![item(partition, "2", Completed)]);
    bench.pass(3600);
    assert!(knows(&mut bench, "g", "1"));
    bench.pass(1);
    assert!(!knows(&mut bench, "g", "1"));
}

#[test]
fn a_group_that_has_not_met_the_partition_keeps_its_ids() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1"]);
    let partition = bench.partition("q", "p");
    bench.lease(partition, "g", 0);
    bench.ack("g", vec![item(partition, "1", Completed)]);
    let idle = bench.consumer("q", "idle");
    assert_eq!(bench.core.state.groups.get(&idle).unwrap().start, StartPolicy::All);
    bench.pass(10_000);
    assert!(knows(&mut bench, "g", "1"));
}
