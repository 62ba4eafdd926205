//! Retention: what goes when, what holds it, and what becomes of those who had not read it.

use proptest::prelude::*;

use super::bench::{Bench, GROUP, SWEEP_US, named, pinned, pop, span, spans, waiting};
use crate::broker::command::{
    AckRefusal, AckStatus, Command, DeadLetterQuery, OptionsPatch, Patch, Pop, Reply, StartRequest,
};
use crate::broker::retention::Expired;
use crate::broker::state::State;
use crate::engine::machine::Machine;
use crate::format::delta::Delta;
use crate::types::{FileNumber, PartitionId, QueueOptions};

const DAY_MS: u64 = 86_400_000;

/// A bench that sweeps with every microsecond.
fn quick() -> Bench {
    let mut bench = Bench::new();
    bench.core.settings.retention_sweep_us = 1;
    bench
}

fn set(bench: &mut Bench, change: impl FnOnce(&mut OptionsPatch)) {
    bench.options("q", |configure| change(&mut configure.options));
}

fn age(bench: &mut Bench, seconds: u32) {
    set(bench, |options| {
        options.retention_enabled = Patch::Set(true);
        options.retention_seconds = Patch::Set(seconds);
    });
}

fn completed(bench: &mut Bench, seconds: u32) {
    set(bench, |options| {
        options.retention_enabled = Patch::Set(true);
        options.completed_retention_seconds = Patch::Set(seconds);
    });
}

fn max_wait(bench: &mut Bench, seconds: u32) {
    set(bench, |options| options.max_wait_seconds = Patch::Set(seconds));
}

fn start(bench: &Bench, partition: &str) -> u64 {
    bench.core.state.partitions[&bench.partition("q", partition)].start.0
}

fn expired(bench: &Bench) -> (u64, u64) {
    let Expired { messages, skipped } = bench.core.expired(bench.core.state.queue_named("q").unwrap().id);
    (messages, skipped)
}

/// What all segments count as live is what partitions keep.
fn check_live(bench: &Bench) {
    let state = &bench.core.state;
    let live: u64 = (1..=40).map(|segment| state.index.live(FileNumber(segment))).sum();
    let kept: u64 = state.partitions.values().map(|known| known.next.0 - known.start.0).sum();
    assert_eq!(live, kept);
    state.verify().unwrap();
}

#[test]
fn nothing_expires_by_default_and_nobody_wakes_for_it() {
    let mut bench = Bench::new();
    bench.push("q", "p", 3);
    assert_eq!(bench.core.next_due(), None);
    let mut bench = bench.restart(0);
    assert_eq!(bench.core.next_due(), None);
    bench.pass_ms(3650 * DAY_MS);
    assert_eq!(bench.spans(pop("q")), span("p", 0, 2));
    set(&mut bench, |options| {
        options.retention_seconds = Patch::Set(1);
        options.completed_retention_seconds = Patch::Set(1);
    });
    bench.pass_ms(DAY_MS);
    assert_eq!(start(&bench, "p"), 0, "the gate is closed");
    assert_eq!(bench.records_of("PartitionStart"), 0);
}

#[test]
fn a_message_is_there_at_its_limit_and_gone_behind_it() {
    for limit in [age as fn(&mut Bench, u32), max_wait] {
        let mut bench = quick();
        limit(&mut bench, 10);
        bench.push("q", "p", 2);
        bench.pass_us(10_000_000);
        assert_eq!(start(&bench, "p"), 0);
        bench.pass_us(1);
        assert_eq!(start(&bench, "p"), 2);
        assert_eq!(bench.records_of("PartitionStart"), 1);
        check_live(&bench);
        assert!(bench.spans(pop("q")).is_empty());
        bench.push("q", "p", 1);
        assert_eq!(bench.spans(pop("q")), span("p", 2, 2), "offsets go on");
    }
}

#[test]
fn a_limit_is_kept_within_two_sweeps() {
    let mut bench = Bench::new();
    age(&mut bench, 10);
    for _ in 0..7 {
        bench.push("q", "p", 1);
        bench.pass_ms(17_000);
    }
    // 119 s: there was one sweep, at 68 s; what was older than 10 s then went.
    assert_eq!(start(&bench, "p"), 4);
    bench.pass_ms(10_000 + 2 * SWEEP_US / 1000);
    assert_eq!(start(&bench, "p"), 7);
}

#[test]
fn whole_runs_go_across_segments_and_the_rest_stays() {
    let mut bench = quick();
    age(&mut bench, 100);
    let mut ends = vec![0];
    for count in [3, 1, 2, 5, 1, 4] {
        bench.push("q", "other", 1); // so that each segment holds two partitions
        bench.push("q", "p", count);
        ends.push(ends.last().unwrap() + count as u64);
        bench.pass_ms(10_000);
    }
    bench.pass_ms(40_000);
    for end in ends {
        assert_eq!(start(&bench, "p"), end);
        check_live(&bench);
        bench.pass_us(1);
        bench.pass_us(9_999_999);
    }
}

#[test]
fn rows_of_the_segment_at_the_limit_are_looked_up_once() {
    let mut bench = quick();
    bench.push("q", "p", 2);
    bench.pass_ms(1_000);
    bench.push("q", "p", 2);
    bench.pass_ms(1_000);
    bench.push("q", "p", 1); // the segment of the first two is sealed by this
    bench.push("q", "p", 1);
    age(&mut bench, 100);
    bench.pass_ms(98_500);
    assert_eq!(start(&bench, "p"), 2);
    bench.core.now = bench.core.now.plus_us(1);
    bench.core.sweep();
    assert!(bench.core.wanted.is_empty(), "how old the oldest is, is known now");
    bench.pass_us(500_000);
    assert_eq!(start(&bench, "p"), 4, "the last message of a segment needs no look");
}

#[test]
fn changed_options_take_effect_with_the_next_sweep() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    bench.pass_ms(1_000_000);
    bench.push("q", "p", 1);
    age(&mut bench, 500);
    assert_eq!(start(&bench, "p"), 0);
    bench.pass_us(SWEEP_US);
    assert_eq!(start(&bench, "p"), 1);
    age(&mut bench, 5_000);
    bench.pass_ms(4_000_000);
    assert_eq!(start(&bench, "p"), 1);
    set(&mut bench, |options| options.retention_enabled = Patch::Set(false));
    bench.pass_ms(9_000_000);
    assert_eq!((start(&bench, "p"), bench.core.ready.claimable(PROBE)), (1, 0));
    max_wait(&mut bench, 1);
    bench.pass_us(SWEEP_US);
    assert_eq!(start(&bench, "p"), 2);
}

/// A group that no bench registers.
const PROBE: crate::types::GroupId = crate::types::GroupId(999);

#[test]
fn the_shorter_of_two_age_limits_counts() {
    let mut bench = quick();
    age(&mut bench, 100);
    max_wait(&mut bench, 10);
    bench.push("q", "p", 1);
    bench.pass_us(10_000_001);
    assert_eq!(start(&bench, "p"), 1);
}

#[test]
fn what_every_group_passed_goes_earlier() {
    let mut bench = quick();
    age(&mut bench, 1_000);
    completed(&mut bench, 10);
    for _ in 0..4 {
        bench.push("q", "p", 2);
    }
    let fast = bench.pop(pop("q"));
    bench.complete(GROUP, &fast);
    let slow = bench.pop(named("slow", Pop { batch: 5, ..pop("q") }));
    bench.pass_us(10_000_001);
    assert_eq!(start(&bench, "p"), 0, "a lease is not passed");
    bench.complete("slow", &slow);
    bench.pass_us(1);
    assert_eq!(start(&bench, "p"), 4, "of the third run one message is left");
    bench.pass_us(989_999_998);
    assert_eq!(start(&bench, "p"), 4);
    bench.pass_us(1);
    assert_eq!(start(&bench, "p"), 8);
    assert_eq!(expired(&bench), (8, 3), "slow had not passed three");
    check_live(&bench);
}

#[test]
fn what_was_passed_just_now_stays_for_its_time() {
    let mut bench = quick();
    completed(&mut bench, 10);
    bench.push("q", "p", 1);
    let reply = bench.pop(pop("q"));
    bench.complete(GROUP, &reply);
    bench.pass_us(10_000_000);
    assert_eq!(start(&bench, "p"), 0);
    bench.pass_us(1);
    assert_eq!((start(&bench, "p"), expired(&bench)), (1, (1, 0)));
}

#[test]
fn without_a_group_nothing_is_completed() {
    let mut bench = quick();
    completed(&mut bench, 1);
    bench.push("q", "p", 1);
    bench.pass_ms(DAY_MS);
    assert_eq!(start(&bench, "p"), 0);
    assert_eq!(bench.spans(pop("q")), span("p", 0, 0));
}

#[test]
fn a_group_that_never_met_the_partition_counts_where_it_would_begin() {
    let mut bench = quick();
    completed(&mut bench, 10);
    for count in [1, 2, 3, 1] {
        bench.push("q", "p", count);
    }
    // One that begins with what comes: everything before is behind it.
    bench.pass_ms(1_000);
    assert!(bench.spans(named("new", Pop { start: StartRequest::New, ..pinned("q", "x") })).is_empty());
    bench.push("q", "p", 2);
    bench.pass_us(10_000_001);
    assert_eq!(start(&bench, "p"), 7);
    // One that begins with everything.
    assert!(bench.spans(named("all", pinned("q", "x"))).is_empty());
    let reply = bench.pop(named("new", pop("q")));
    assert_eq!(spans(&reply), span("p", 7, 8));
    bench.complete("new", &reply);
    bench.pass_ms(DAY_MS);
    assert_eq!(start(&bench, "p"), 7);
    assert_eq!(bench.spans(named("all", pop("q"))), span("p", 7, 8), "it begins at the first kept");
}

#[test]
fn a_cursor_below_the_start_goes_on_there_and_is_counted() {
    let mut bench = quick();
    max_wait(&mut bench, 10);
    bench.push("q", "p", 4);
    let reply = bench.pop(Pop { batch: 1, ..pop("q") });
    bench.complete(GROUP, &reply);
    assert!(bench.spans(named("late", pinned("q", "x"))).is_empty());
    bench.pass_ms(9_000);
    bench.push("q", "p", 2);
    bench.pass_ms(1_001);
    assert_eq!((start(&bench, "p"), expired(&bench)), (4, (4, 3 + 4)));
    for group in [GROUP, "late"] {
        assert_eq!(bench.spans(named(group, pop("q"))), span("p", 4, 5));
    }
}

#[test]
fn a_poll_that_waits_is_not_served_with_what_is_gone() {
    let mut bench = quick();
    set(&mut bench, |options| options.delayed_processing_seconds = Patch::Set(20));
    max_wait(&mut bench, 10);
    bench.push("q", "p", 1);
    let caller = bench.park(waiting(pop("q")));
    bench.pass_us(10_000_001);
    bench.pass_ms(9_000);
    assert!(bench.answers().is_empty());
    max_wait(&mut bench, 100);
    bench.push("q", "p", 1);
    bench.pass_ms(1_000);
    assert_eq!(bench.served(), [(caller, vec![])], "its time is over");
    bench.pass_ms(20_000);
    assert_eq!(bench.spans(pop("q")), span("p", 1, 1));
}

#[test]
fn what_is_gone_leaves_the_ready_list() {
    let mut bench = quick();
    max_wait(&mut bench, 10);
    bench.push("q", "p", 1);
    assert!(bench.spans(pinned("q", "x")).is_empty());
    let group = bench.registered("q", GROUP).unwrap();
    assert_eq!(bench.core.ready.claimable(group), 1);
    bench.pass_us(10_000_001);
    assert_eq!((bench.core.ready.claimable(group), bench.core.ready.kept().0), (0, 0));
}

#[test]
fn a_leased_message_that_is_gone_can_be_acknowledged_by_its_id() {
    let mut bench = quick();
    max_wait(&mut bench, 10);
    let ids = bench.push("q", "p", 3);
    let reply = bench.pop(pop("q"));
    bench.pass_us(10_000_001);
    assert_eq!((start(&bench, "p"), expired(&bench)), (3, (3, 3)));
    assert!(!bench.ack(&reply, &ids[0], AckStatus::Completed).lease_released);
    assert!(bench.spans(pop("q")).is_empty());
    assert!(bench.ack(&reply, &ids[2], AckStatus::Completed).lease_released);
    bench.push("q", "p", 1);
    let reply = bench.pop(pop("q"));
    assert_eq!((spans(&reply), reply.claims[0].attempt), (span("p", 3, 3), 1));
}

#[test]
fn a_failure_of_a_message_that_is_gone_goes_on_behind_it() {
    let mut bench = quick();
    max_wait(&mut bench, 10);
    let ids = bench.push("q", "p", 2);
    let reply = bench.pop(pop("q"));
    bench.pass_ms(9_000);
    bench.push("q", "p", 1);
    bench.pass_us(1_000_001);
    bench.ack(&reply, &ids[1], AckStatus::Failed);
    assert_eq!(bench.spans(pop("q")), span("p", 2, 2));
}

#[test]
fn dead_letters_and_their_copies_stay() {
    let mut bench = quick();
    let ids = bench.push("q", "p", 1);
    let reply = bench.pop(pop("q"));
    bench.ack(&reply, &ids[0], AckStatus::DeadLetter);
    max_wait(&mut bench, 1);
    bench.pass_ms(400 * DAY_MS);
    assert_eq!(start(&bench, "p"), 1);
    assert_eq!(bench.records_of("PartitionDeleted"), 0, "the dead letter names it");
    let query = DeadLetterQuery { queue: Some("q".to_owned()), group: None, limit: 10, offset: 0 };
    let Reply::DeadLetters(page) = bench.done(Command::DeadLetters(query)) else { panic!() };
    assert_eq!((page.total, page.rows.len(), &*page.rows[0].partition_name), (1, 1, "p"));
    // Once it is removed, nothing holds the partition.
    let id = page.rows[0].id;
    bench.core.state.apply(&Delta::DeadLetterRemoved(id)).unwrap();
    bench.pass_ms(2 * DAY_MS);
    assert_eq!(bench.records_of("PartitionDeleted"), 1);
}

#[test]
fn a_dead_letter_of_a_message_that_is_gone_is_refused() {
    let mut bench = quick();
    max_wait(&mut bench, 10);
    for _ in 0..3 {
        bench.push("q", "p", 1);
    }
    let reply = bench.pop(pop("q"));
    bench.pass_us(10_000_001);
    let item = crate::broker::command::AckItem {
        hash: Some(crate::format::id_hash(crate::types::LogId(77), "t1")),
        partition: crate::broker::command::Reference::Id(reply.claims[0].partition),
        status: AckStatus::DeadLetter,
        lease: crate::broker::command::Reference::Id(reply.lease.unwrap()),
        error: None,
    };
    let call = crate::broker::command::AckCall { group: GROUP.to_owned(), items: vec![item] };
    let Reply::Ack(verdicts) = bench.done(Command::Ack(call)) else { panic!() };
    assert_eq!(verdicts[0].refusal, Some(AckRefusal::PayloadExpired));
    assert!(bench.core.state.dead_letters.is_empty());
}

#[test]
fn a_partition_that_is_empty_for_long_is_deleted() {
    let mut bench = Bench::new();
    max_wait(&mut bench, 10);
    bench.push("q", "p", 2);
    let reply = bench.pop(pop("q"));
    bench.complete(GROUP, &reply);
    let old = bench.partition("q", "p");
    bench.pass_us(2 * SWEEP_US);
    max_wait(&mut bench, 0);
    bench.pass_us(2 * SWEEP_US);
    assert_eq!((start(&bench, "p"), bench.partition("q", "p")), (2, old));
    bench.pass_ms(3_700_000); // until the settled batch is forgotten
    // No limit is left, and the daemon still wakes for this, but not before.
    let due = bench.core.next_due().unwrap();
    let ms = (due.0 - bench.core.now.0) / 1000;
    assert!((29 * DAY_MS..30 * DAY_MS).contains(&ms), "{ms}");
    bench.pass_ms(ms);
    assert_eq!(bench.records_of("PartitionDeleted"), 0);
    bench.pass_ms(1);
    assert_eq!(bench.records_of("PartitionDeleted"), 1);
    let state = &bench.core.state;
    assert!(state.partitions.is_empty() && state.cursors.is_empty());
    assert!(state.queue_named("q").unwrap().partitions.is_empty());
    assert_eq!(bench.core.ready.kept().0, 0);
    bench.pass_us(SWEEP_US);
    assert_eq!(bench.core.next_due(), None, "nothing can expire any more");
    bench.push("q", "p", 1);
    assert!(bench.partition("q", "p") > old);
    assert_eq!(bench.spans(pop("q")), span("p", 0, 0), "the group meets a new partition");
}

#[test]
fn an_empty_partition_stays_while_its_ids_are_to_be_known_or_a_lease_is_live() {
    let mut bench = Bench::new();
    max_wait(&mut bench, 10);
    bench.push("q", "p", 1);
    bench.pop(Pop { lease_seconds: Some(35 * 86_400), ..pop("q") });
    set(&mut bench, |options| options.dedup_window_seconds = Patch::Set(32 * 86_400));
    bench.pass_ms(31 * DAY_MS);
    assert_eq!((start(&bench, "p"), bench.records_of("PartitionDeleted")), (1, 0), "ids");
    bench.pass_ms(2 * DAY_MS);
    assert_eq!(bench.records_of("PartitionDeleted"), 0, "the lease");
    bench.pass_ms(3 * DAY_MS);
    assert_eq!(bench.records_of("PartitionDeleted"), 1);
}

#[test]
fn a_sweep_goes_step_by_step_and_waits_for_room() {
    let mut bench = Bench::new();
    age(&mut bench, 1);
    for number in 0..2_000 {
        bench.push("q", &format!("p{number}"), 1);
    }
    bench.core.now = bench.core.now.plus_us(SWEEP_US);
    bench.core.tick();
    let (mut steps, mut before) = (0, 0);
    while bench.core.sweep_due().is_some_and(|due| due <= bench.core.now) {
        if steps == 1 {
            bench.core.journal.room = Some(3);
        }
        bench.core.sweep();
        bench.core.settle();
        let staged = bench.records_of("PartitionStart");
        assert!(staged - before <= 512);
        if steps == 1 {
            assert_eq!(staged - before, 3);
            assert!(bench.core.sweep_wants_room());
            assert_eq!(bench.core.sweep_due(), None, "room comes with a completion, not with time");
            bench.core.sweep();
            assert_eq!(bench.records_of("PartitionStart"), staged);
            bench.core.journal.room = None;
            bench.core.sweep();
            assert!(!bench.core.sweep_wants_room());
        }
        before = bench.records_of("PartitionStart");
        steps += 1;
    }
    assert!(steps > 3, "{steps}");
    assert_eq!((before, expired(&bench)), (2_000, (2_000, 0)));
}

#[test]
fn queues_and_partitions_that_come_and_go_leave_nothing_behind() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        age(&mut bench, 1);
        bench.push("q", "p", 1);
        bench.pass_us(2 * SWEEP_US);
        assert_eq!((start(&bench, "p"), expired(&bench)), (1, (1, 0)));
        let queue = bench.core.state.queue_named("q").unwrap().id;
        bench.delete("q");
        assert_eq!(bench.core.expired(queue), Expired::default());
    }
    bench.pass_us(2 * SWEEP_US);
    assert_eq!(bench.core.next_due(), None);
}

#[test]
fn a_start_is_kept_over_a_restart() {
    let mut bench = Bench::new();
    max_wait(&mut bench, 10);
    bench.push("q", "p", 2);
    bench.pass_us(SWEEP_US);
    bench.push("q", "p", 1);
    let mut bench = bench.restart(5);
    assert_eq!((start(&bench, "p"), bench.spans(pop("q"))), (2, span("p", 2, 2)));
    bench.pass_us(SWEEP_US);
    assert_eq!(start(&bench, "p"), 3, "limits go on");
}

/// What a checkpoint would hold, in one order.
fn snapshot(state: &State) -> Vec<String> {
    let mut records = Vec::new();
    state.snapshot(&mut |delta| records.push(format!("{delta:?}")));
    records.sort();
    records
}

#[test]
fn a_start_never_goes_down_and_applies_twice() {
    let mut bench = Bench::new();
    bench.push("q", "p", 5);
    let partition = bench.partition("q", "p");
    let at = |start| Delta::PartitionStart { partition, start: crate::types::Offset(start) };
    bench.core.state.apply(&at(3)).unwrap();
    let once = snapshot(&bench.core.state);
    for offset in [3, 0] {
        bench.core.state.apply(&at(offset)).unwrap();
        assert_eq!(snapshot(&bench.core.state), once);
    }
    check_live(&bench);
    assert!(bench.core.state.apply(&Delta::PartitionDeleted(partition)).is_err(), "two messages are there");
    bench.core.state.apply(&at(5)).unwrap();
    for _ in 0..2 {
        bench.core.state.apply(&Delta::PartitionDeleted(partition)).unwrap();
    }
    let unknown = Delta::PartitionStart { partition, start: crate::types::Offset(6) };
    assert!(bench.core.state.apply(&unknown).is_err());
    bench.core.state.verify().unwrap();
}

#[test]
fn a_start_behind_the_end_is_refused_when_recovery_is_through() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    let partition = bench.partition("q", "p");
    let delta = Delta::PartitionStart { partition, start: crate::types::Offset(2) };
    bench.core.state.apply(&delta).unwrap();
    assert!(bench.core.state.verify().is_err());
}

/// What a run of the model test does.
#[derive(Clone, Debug)]
enum Act {
    Push { partition: usize, count: usize },
    Pop { partition: usize, group: usize, batch: u32, complete: bool },
    Pass { seconds: u64 },
    Limits { enabled: bool, age: u32, completed: u32, max_wait: u32 },
    Restart,
}

fn acts() -> impl Strategy<Value = Act> {
    let limit = || prop_oneof![1 => Just(0_u32), 2 => 1_u32..40];
    prop_oneof![
        6 => (0_usize..3, 1_usize..4).prop_map(|(partition, count)| Act::Push { partition, count }),
        6 => (0_usize..3, 0_usize..2, 1_u32..8, prop::bool::weighted(0.8))
            .prop_map(|(partition, group, batch, complete)| Act::Pop { partition, group, batch, complete }),
        6 => (1_u64..15).prop_map(|seconds| Act::Pass { seconds }),
        2 => (any::<bool>(), limit(), limit(), limit())
            .prop_map(|(enabled, age, completed, max_wait)| Act::Limits { enabled, age, completed, max_wait }),
        1 => Just(Act::Restart),
    ]
}

const PARTITIONS: [&str; 3] = ["a", "b", "c"];
const GROUPS: [&str; 2] = ["g", "h"];

/// Runs of one partition as (end, log time in µs), its first kept offset, and the cursors of both groups.
#[derive(Clone, Debug, Default)]
struct Lane {
    runs: Vec<(u64, u64)>,
    start: u64,
    cursors: [u64; 2],
}

#[derive(Debug, Default)]
struct Model {
    lanes: [Lane; 3],
    registered: [bool; 2],
    messages: u64,
    skipped: u64,
}

impl Model {
    fn sweep(&mut self, options: &QueueOptions, now: u64) {
        for lane in &mut self.lanes {
            let old = lane.start;
            let older = |logged: u64, limit: u32| limit > 0 && now - logged > u64::from(limit) * 1_000_000;
            let groups = self.registered.iter().zip(&lane.cursors).filter(|(known, _)| **known);
            let cursors: Vec<u64> = groups.map(|(_, cursor)| (*cursor).max(old)).collect();
            for (end, logged) in lane.runs.iter().filter(|(end, _)| *end > old) {
                let by_age = options.retention_enabled && older(*logged, options.retention_seconds);
                let by_wait = older(*logged, options.max_wait_seconds);
                let passed = !cursors.is_empty() && cursors.iter().all(|cursor| cursor >= end);
                let by_completion = options.retention_enabled
                    && passed
                    && older(*logged, options.completed_retention_seconds);
                if !(by_age || by_wait || by_completion) {
                    break;
                }
                lane.start = *end;
            }
            self.messages += lane.start - old;
            self.skipped += cursors.iter().map(|cursor| lane.start.saturating_sub(*cursor)).sum::<u64>();
        }
    }
}

fn check(bench: &Bench, model: &Model) {
    let state = &bench.core.state;
    for (name, lane) in PARTITIONS.iter().zip(&model.lanes) {
        let known = state.queue_named("q").unwrap().partitions.get(&state.partitions, name);
        let known = known.and_then(|id| state.partitions.get(&id));
        let (start, next) = known.map_or((0, 0), |known| (known.start.0, known.next.0));
        assert_eq!((start, next), (lane.start, lane.runs.last().map_or(0, |run| run.0)), "{name}");
    }
    check_live(bench);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_there_is_what_the_rules_say(acts in prop::collection::vec(acts(), 1..60)) {
        let mut bench = Bench::new();
        bench.core.settings.retention_sweep_us = 1_000_000;
        set(&mut bench, |options| options.lease_seconds = Patch::Set(20));
        let mut model = Model::default();
        let mut counted = (0, 0);
        for act in acts {
            match act {
                Act::Push { partition, count } => {
                    bench.push("q", PARTITIONS[partition], count);
                    let runs = &mut model.lanes[partition].runs;
                    let end = runs.last().map_or(0, |run| run.0) + count as u64;
                    runs.push((end, bench.core.now.0));
                }
                Act::Pop { partition, group, batch, complete } => {
                    let one = Pop { batch, ..named(GROUPS[group], pinned("q", PARTITIONS[partition])) };
                    let reply = bench.pop(one);
                    model.registered[group] = true;
                    let lane = &mut model.lanes[partition];
                    for (_, first, last) in spans(&reply) {
                        prop_assert_eq!(first, lane.cursors[group].max(lane.start));
                        if complete {
                            bench.complete(GROUPS[group], &reply);
                            lane.cursors[group] = last + 1;
                        } else {
                            lane.cursors[group] = first;
                        }
                    }
                }
                Act::Pass { seconds } => {
                    bench.pass_ms(seconds * 1000);
                    model.sweep(&bench.effective("q"), bench.core.now.0);
                }
                Act::Limits { enabled, age, completed, max_wait } => set(&mut bench, |options| {
                    options.retention_enabled = Patch::Set(enabled);
                    options.retention_seconds = Patch::Set(age);
                    options.completed_retention_seconds = Patch::Set(completed);
                    options.max_wait_seconds = Patch::Set(max_wait);
                }),
                Act::Restart => {
                    counted = (model.messages, model.skipped);
                    let before = snapshot(&bench.core.state);
                    bench = bench.restart(0);
                    bench.core.settings.retention_sweep_us = 1_000_000;
                    bench.core.sweep_in(1_000_000);
                    prop_assert_eq!(snapshot(&bench.core.state), before);
                }
            }
            check(&bench, &model);
            prop_assert_eq!(expired(&bench), (model.messages - counted.0, model.skipped - counted.1));
        }
        // A checkpoint rebuilds the same, runs excepted.
        let mut again = State::default();
        let mut failed = None;
        bench.core.state.snapshot(&mut |delta| failed = failed.take().or_else(|| again.apply(delta).err()));
        prop_assert_eq!(failed, None);
        prop_assert_eq!(snapshot(&again), snapshot(&bench.core.state));
        let starts = |state: &State| {
            let mut starts: Vec<(PartitionId, u64)> =
                state.partitions.values().map(|known| (known.id, known.start.0)).collect();
            starts.sort();
            starts
        };
        prop_assert_eq!(starts(&again), starts(&bench.core.state));
    }
}
