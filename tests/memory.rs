//! What the state costs in memory: bytes of a partition, a cursor and a group that nobody uses at the moment.
//!
//! Method: the state alone, filled by the records that a log holds; the difference in resident memory, divided. The
//! budgets are those of the design: 200 bytes for an idle partition, 32 for an idle cursor. One test, so that nothing
//! else of this process takes memory meanwhile.

#![expect(clippy::unwrap_used, reason = "tests")]

use comb::broker::state::State;
use comb::engine::machine::Machine;
use comb::format::delta::{
    Cause, CursorDelta, CursorState, Delta, GroupDef, PartitionDef, QueueDef, StartPolicy,
};
use comb::format::index::{IndexInfo, SpanRow};
use comb::types::{
    FileNumber, GroupId, LogId, LogTime, Offset, PartitionId, QueueId, QueueOptions, WallTime,
};

const PARTITIONS: u64 = 1_000_000;
const CURSORS: u64 = 1_000_000;
const GROUPS: u64 = 100_000;

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn apply(state: &mut State, delta: &Delta<'_>) {
    state.apply(delta).unwrap();
    state.forget_notes();
}

fn queue(state: &mut State, id: u64) {
    apply(
        state,
        &Delta::Queue(QueueDef {
            queue: QueueId(id),
            name: &format!("queue-{id}"),
            namespace: "",
            task: "",
            created: WallTime(1),
            options: QueueOptions::configured(),
        }),
    );
}

fn group(state: &mut State, id: u64, queue: u64) {
    apply(
        state,
        &Delta::Group(GroupDef {
            group: GroupId(id),
            queue: QueueId(queue),
            name: &format!("group-{id}"),
            start: StartPolicy::All,
            conflating: false,
            retired: false,
            created: WallTime(1),
        }),
    );
}

/// Set in the process that measures.
const MEASURING: &str = "COMB_TEST_MEASURING";

/// The measuring is done by a process whose allocator gives large blocks back at once: what tables left behind while
/// they grew is not part of what the state takes.
#[test]
fn idle_partitions_cursors_and_groups_take_what_they_may() {
    if std::env::var_os(MEASURING).is_some() {
        return measure();
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "idle_partitions_cursors_and_groups_take_what_they_may", "--nocapture"])
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        .env(MEASURING, "1")
        .status()
        .unwrap();
    assert!(status.success());
}

fn measure() {
    let mut state = State::default();
    queue(&mut state, 1);
    group(&mut state, 1, 1);

    let before = resident();
    for id in 1..=PARTITIONS {
        apply(
            &mut state,
            &Delta::Partition(PartitionDef {
                partition: PartitionId(id),
                queue: QueueId(1),
                name: &format!("customer-{id:08}"),
                dead_letters_of: None,
                next: Offset(3),
                start: Offset(0),
                last_created: WallTime(2),
                last_logged: LogTime(2),
                created: WallTime(1),
            }),
        );
    }
    state.attach_segment(&IndexInfo {
        log: LogId(1),
        segment: FileNumber(1),
        runs: 0,
        spans: 0,
        messages: 0,
        bare: 0,
        entry_bytes: 0,
        last_logged: LogTime(2),
    });
    for id in 1..=PARTITIONS {
        state.attach_span(
            FileNumber(1),
            &SpanRow {
                partition: PartitionId(id),
                base: Offset(0),
                end: Offset(3),
                first_run: 0,
                runs: 1,
                first_created: WallTime(2),
                last_logged: LogTime(2),
                bare: false,
            },
        );
    }
    let partition = (resident() - before) / PARTITIONS;

    let before = resident();
    for id in 1..=CURSORS {
        let state_of = CursorState { next: Offset(3), ..CursorState::default() };
        let delta = CursorDelta {
            partition: PartitionId(id),
            group: GroupId(1),
            cause: Cause::Checkpoint,
            state: state_of,
        };
        apply(&mut state, &Delta::Cursor(delta));
    }
    let cursor = (resident() - before) / CURSORS;

    let before = resident();
    for id in 2..=GROUPS {
        group(&mut state, id, 1);
    }
    let of_group = (resident() - before) / GROUPS;

    println!("bytes each: partition {partition}, cursor {cursor}, group {of_group}");
    assert!(partition <= 200, "an idle partition takes {partition} bytes");
    assert!(cursor <= 32, "an idle cursor takes {cursor} bytes");
    assert!(of_group <= 400, "a group takes {of_group} bytes");
}
