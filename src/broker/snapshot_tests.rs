//! Checkpoints taken in slices: whatever happens in between, records and replay give the state.
//!
//! Method: a live state and the log of what was applied to it. A checkpoint of it is taken in slices at chosen or random
//! moments; then a second state is built from the records and the log, as recovery does it, and compared.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::*;

use super::state::State;
use crate::engine::machine::{Impossible, Machine, SnapshotCursor};
use crate::format::delta::{
    Cause, CursorDelta, CursorState, DeadLetterDef, Delta, GroupDef, Lease, PartitionDef, QueueDef,
    StartPolicy,
};
use crate::format::run::{RunForm, RunHeader};
use crate::index::runs::Place;
use crate::types::{
    DeadLetterId, FileNumber, GroupId, IdHash, LeaseId, LogTime, MessageId, Offset, PartitionId, QueueId,
    QueueOptions, WallTime,
};

/// What a group holds: records by their bytes, and runs.
#[derive(Clone, Default)]
struct Staged {
    deltas: Vec<Vec<u8>>,
    runs: Vec<(RunHeader, Place)>,
}

fn apply_run(state: &mut State, run: &RunHeader, place: Place) -> Result<(), Impossible> {
    let id = |offset: u64| u128::from(run.partition.0) << 64 | u128::from(offset);
    let ids: Vec<_> = (run.base.0..run.base.0 + u64::from(run.count))
        .map(|offset| (IdHash(id(offset / 2)), MessageId(id(offset))))
        .collect();
    state.apply_run(run, &ids, place)
}

fn apply_bytes(state: &mut State, mut bytes: &[u8]) -> Result<(), Impossible> {
    state.apply(&Delta::decode(&mut bytes).unwrap())
}

/// A live state, its log, and a checkpoint that is being taken.
#[derive(Default)]
struct Bench {
    live: State,
    /// Groups in order; the last one is open.
    groups: Vec<Staged>,
    now: u64,
    cursor: SnapshotCursor,
    records: Vec<Vec<u8>>,
    /// Groups before the checkpoint, once it began.
    begun: Option<usize>,
    /// Groups that its records may know of, once it ended.
    until: Option<usize>,
}

impl Bench {
    fn open(&mut self) -> &mut Staged {
        if self.groups.is_empty() {
            self.groups.push(Staged::default());
        }
        self.groups.last_mut().unwrap()
    }

    fn close(&mut self) {
        if !self.open().deltas.is_empty() || !self.open().runs.is_empty() {
            self.groups.push(Staged::default());
        }
    }

    fn delta(&mut self, delta: &Delta<'_>) {
        let mut bytes = Vec::new();
        delta.encode(&mut bytes);
        self.open().deltas.push(bytes);
        self.live.apply(delta).unwrap();
        self.live.touched.clear();
    }

    fn queue(&mut self, id: u64, name: &str, lease_seconds: u32) {
        let options = QueueOptions { lease_seconds, ..QueueOptions::configured() };
        let created = WallTime(1);
        let queue = QueueId(id);
        self.delta(&Delta::Queue(QueueDef { queue, name, namespace: name, task: "", created, options }));
    }

    fn partition(&mut self, id: u64, queue: u64, name: &str, dead_letters_of: Option<GroupId>) {
        self.delta(&Delta::Partition(PartitionDef {
            partition: PartitionId(id),
            queue: QueueId(queue),
            name,
            dead_letters_of,
            next: Offset(0),
            start: Offset(0),
            last_created: WallTime(0),
            last_logged: LogTime(0),
            created: WallTime(1),
        }));
    }

    fn group(&mut self, id: u64, queue: u64, name: &str) {
        self.group_with(id, queue, name, StartPolicy::All, false);
    }

    fn group_with(&mut self, id: u64, queue: u64, name: &str, start: StartPolicy, retired: bool) {
        self.delta(&Delta::Group(GroupDef {
            group: GroupId(id),
            queue: QueueId(queue),
            name,
            start,
            conflating: false,
            retired,
            created: WallTime(1),
        }));
    }

    fn push(&mut self, partition: u64, count: u32) -> Offset {
        self.now += 1;
        let base = self.live.partitions[&PartitionId(partition)].next;
        let run = RunHeader {
            form: RunForm::Pushed,
            partition: PartitionId(partition),
            base,
            count,
            bytes: 100 * count,
            created: WallTime(self.now),
            logged: LogTime(self.now),
        };
        let place = Place { segment: FileNumber(1), position: self.now * 4096 };
        apply_run(&mut self.live, &run, place).unwrap();
        self.live.touched.clear();
        self.open().runs.push((run, place));
        base
    }

    fn cursor(&mut self, partition: u64, group: u64, next: u64, lease: Option<u128>) {
        let key = (PartitionId(partition), GroupId(group));
        let back = self.live.cursors.get(&key).is_some_and(|known| known.next.0 > next);
        let lease =
            lease.map(|id| Lease { id: LeaseId(id), end: Offset(next + 5), expires: LogTime(self.now + 9) });
        self.delta(&Delta::Cursor(CursorDelta {
            partition: key.0,
            group: key.1,
            cause: if back { Cause::Seek } else { Cause::Ack },
            state: CursorState { next: Offset(next), lease, ..CursorState::default() },
        }));
    }

    fn dead_letter(&mut self, id: u128, partition: u64, group: u64, copy: (u64, Offset)) {
        self.now += 1;
        self.delta(&Delta::DeadLetter(DeadLetterDef {
            id: DeadLetterId(id),
            partition: PartitionId(partition),
            group: GroupId(group),
            offset: Offset(0),
            copy_partition: PartitionId(copy.0),
            copy_offset: copy.1,
            retries_used: 3,
            error: "no",
            created: WallTime(1),
            failed: WallTime(self.now),
        }));
    }

    /// Begins the checkpoint if it was not, and takes a slice of it.
    fn slice(&mut self, budget: usize) {
        if self.until.is_some() {
            return;
        }
        if self.begun.is_none() {
            self.close();
            self.begun = Some(self.groups.len().saturating_sub(1));
        }
        let records = &mut self.records;
        let before = records.len();
        let done = self.live.snapshot_slice(&mut self.cursor, budget, &mut |delta| {
            let mut bytes = Vec::new();
            delta.encode(&mut bytes);
            records.push(bytes);
        });
        assert!(self.records.len() - before <= budget);
        if done {
            self.until = Some(self.groups.len());
        }
    }

    /// The state that recovery would build, strict again behind the checkpoint's window.
    fn rebuilt(&self) -> State {
        let (begun, until) = (self.begun.unwrap(), self.until.unwrap());
        let mut state = State::default();
        state.set_catching_up(true);
        for bytes in &self.records {
            apply_bytes(&mut state, bytes).unwrap();
        }
        state.forget_notes();
        for (number, group) in self.groups.iter().enumerate() {
            if number >= begun {
                for bytes in &group.deltas {
                    apply_bytes(&mut state, bytes).unwrap();
                }
            }
            for (run, place) in &group.runs {
                apply_run(&mut state, run, *place).unwrap();
            }
            state.forget_notes();
            if number + 1 == until.max(begun) {
                state.set_catching_up(false);
                state.verify().unwrap();
            }
        }
        state.verify().unwrap();
        state
    }

    /// Takes the rest of the checkpoint, rebuilds, compares.
    fn check(&mut self) -> State {
        while self.until.is_none() {
            self.slice(100);
        }
        self.live.forget_notes();
        let rebuilt = self.rebuilt();
        assert_eq!(picture(&rebuilt), picture(&self.live));
        rebuilt
    }
}

/// Everything that a state says, free of order.
fn picture(state: &State) -> Vec<String> {
    let mut lines = Vec::new();
    state.snapshot(&mut |delta| lines.push(format!("{delta:?}")));
    for (name, id) in &state.queue_names {
        lines.push(format!("name {name} {id}"));
    }
    for queue in state.queues.values() {
        lines.extend(queue.partitions.values().map(|link| format!("{} {link:?}", queue.id)));
        lines.extend(queue.groups.iter().map(|link| format!("{} {link:?}", queue.id)));
        lines.push(format!("{} {:?}", queue.id, queue.letters));
    }
    for group in state.groups.values().chain(state.retired.values()) {
        lines.push(format!("{} {:?} {}", group.id, group.dead_letter_partition, group.letters));
    }
    for (lease, holders) in &state.leases {
        let mut holders = holders.to_vec();
        holders.sort_unstable();
        lines.push(format!("{lease:?} {holders:?}"));
    }
    for (id, time) in &state.dead_letter_times {
        lines.push(format!("{id:?} {time:?}"));
    }
    for partition in state.partitions.values() {
        lines.extend(state.runs(partition, Offset(0)).map(|run| format!("{} {run:?}", partition.id)));
    }
    lines.sort();
    lines
}

/// One queue with one partition, one group, messages and a cursor, in groups of their own.
fn bench() -> Bench {
    let mut bench = Bench::default();
    bench.queue(1, "a", 10);
    bench.partition(1, 1, "p", None);
    bench.group(1, 1, "g");
    bench.push(1, 3);
    bench.cursor(1, 1, 1, None);
    bench.close();
    bench
}

/// Records of the checkpoint until the table of partitions was walked: next ids, queue, group, partition.
const PAST_PARTITIONS: usize = 4;

#[test]
fn a_checkpoint_of_one_slice_is_the_state() {
    let mut bench = bench();
    bench.check();
    assert_eq!(bench.records.len(), 5);
}

#[test]
fn runs_that_the_record_of_their_partition_covers_are_indexed_only() {
    let mut bench = bench();
    bench.slice(1);
    bench.push(1, 2);
    bench.close();
    bench.slice(PAST_PARTITIONS - 1);
    bench.push(1, 4);
    bench.check();
    assert_eq!(bench.live.partitions[&PartitionId(1)].next, Offset(9));
}

#[test]
fn a_queue_that_is_created_or_changed_or_deleted_meanwhile() {
    let mut bench = bench();
    bench.slice(1);
    bench.queue(1, "a", 20);
    bench.queue(2, "b", 10);
    bench.close();
    bench.slice(2); // both queues
    bench.queue(1, "a", 30);
    bench.partition(2, 2, "p", None);
    bench.group(2, 2, "g");
    bench.push(2, 2);
    bench.cursor(2, 2, 1, Some(5));
    bench.close();
    bench.slice(4); // groups and partitions
    bench.queue(3, "c", 10); // in no record
    bench.partition(3, 3, "p", None);
    bench.push(3, 1);
    bench.close();
    bench.delta(&Delta::QueueDeleted(QueueId(1)));
    let rebuilt = bench.check();
    assert!(!rebuilt.queues.contains_key(&QueueId(1)) && rebuilt.partitions.len() == 2);
}

#[test]
fn a_name_that_is_used_again_meanwhile() {
    let reuse = |bench: &mut Bench, old: u64, id: u64| {
        bench.delta(&Delta::QueueDeleted(QueueId(old)));
        bench.close();
        bench.queue(id, "a", 10);
        bench.partition(id, id, "p", None);
        bench.group(id, id, "g");
        bench.push(id, 1);
        bench.cursor(id, id, 1, Some(u128::from(id)));
        bench.close();
    };
    // Slices before the first time and between the two: the records know the first queue, the second, the third, or two.
    for (before, after) in [(3, 0), (2, 1), (1, 1), (0, 5), (0, 0)] {
        let mut bench = bench();
        bench.queue(9, "z", 10); // walked first
        bench.slice(before);
        reuse(&mut bench, 1, 10);
        bench.slice(after);
        reuse(&mut bench, 10, 11);
        bench.slice(1);
        let rebuilt = bench.check();
        assert_eq!(rebuilt.queue_named("a").unwrap().id, QueueId(11));
    }
}

#[test]
fn cursors_go_back_and_forth_and_leases_follow() {
    let mut bench = bench();
    bench.partition(2, 1, "q", None);
    bench.push(2, 3);
    bench.close();
    bench.slice(1);
    bench.cursor(1, 1, 2, Some(7));
    bench.cursor(2, 1, 0, Some(7)); // one lease on two partitions
    bench.close();
    bench.cursor(1, 1, 3, None);
    bench.close();
    bench.slice(6); // the first cursor as it is by now: past its own replayed records
    bench.cursor(2, 1, 1, Some(8));
    let rebuilt = bench.check();
    assert_eq!(rebuilt.leases.len(), 1);
    assert_eq!(rebuilt.cursors.get(&(PartitionId(1), GroupId(1))).unwrap().next, Offset(3));
}

#[test]
fn dead_letters_come_and_go_meanwhile() {
    let mut bench = bench();
    bench.partition(2, 1, "", Some(GroupId(1)));
    for id in 1..=4 {
        let copy = bench.push(2, 1);
        bench.dead_letter(id, 1, 1, (2, copy));
    }
    bench.close();
    bench.slice(PAST_PARTITIONS + 4); // two of the letters
    bench.delta(&Delta::DeadLetterRemoved(DeadLetterId(1))); // in a record
    bench.delta(&Delta::DeadLetterRemoved(DeadLetterId(3))); // in none
    bench.dead_letter(5, 1, 1, (2, Offset(0)));
    bench.delta(&Delta::DeadLetterRemoved(DeadLetterId(5)));
    bench.dead_letter(6, 1, 1, (2, Offset(0)));
    let rebuilt = bench.check();
    assert_eq!(rebuilt.dead_letters.len(), 3);
}

#[test]
fn what_a_deleted_queue_had_is_passed_over_and_ids_are_not_used_again() {
    let mut bench = bench();
    bench.partition(2, 1, "", Some(GroupId(1)));
    bench.close();
    bench.slice(1); // next ids
    let copy = bench.push(2, 1);
    bench.dead_letter(1, 1, 1, (2, copy));
    bench.partition(3, 1, "q", None);
    bench.group(2, 1, "h");
    bench.push(3, 2);
    bench.cursor(3, 2, 1, Some(4));
    bench.close();
    bench.delta(&Delta::QueueDeleted(QueueId(1)));
    let rebuilt = bench.check();
    assert!(rebuilt.partitions.is_empty() && rebuilt.dead_letters.is_empty() && rebuilt.leases.is_empty());
    assert_eq!(rebuilt.next_partition, PartitionId(4));
    assert_eq!(rebuilt.next_group, GroupId(3));
}

#[test]
fn behind_the_window_and_without_one_everything_is_strict() {
    let mut bench = bench();
    let mut states = vec![bench.check()];
    let mut live = bench;
    live.close();
    states.push(std::mem::take(&mut live.live));
    for state in &mut states {
        let name = "a";
        let options = QueueOptions::configured();
        let created = WallTime(1);
        let queue = QueueId(2);
        let refused = [
            Delta::Queue(QueueDef { queue, name, namespace: "", task: "", created, options }),
            Delta::Partition(PartitionDef {
                partition: PartitionId(1),
                queue: QueueId(1),
                name: "p",
                dead_letters_of: None,
                next: Offset(0),
                start: Offset(0),
                last_created: WallTime(0),
                last_logged: LogTime(0),
                created,
            }),
            Delta::Cursor(CursorDelta {
                partition: PartitionId(1),
                group: GroupId(1),
                cause: Cause::Ack,
                state: CursorState::default(),
            }),
            Delta::Cursor(CursorDelta {
                partition: PartitionId(9),
                group: GroupId(1),
                cause: Cause::Ack,
                state: CursorState::default(),
            }),
            Delta::DeadLetter(DeadLetterDef {
                id: DeadLetterId(1),
                partition: PartitionId(9),
                group: GroupId(1),
                offset: Offset(0),
                copy_partition: PartitionId(1),
                copy_offset: Offset(0),
                retries_used: 0,
                error: "",
                created,
                failed: created,
            }),
        ];
        for delta in refused {
            assert!(state.apply(&delta).is_err(), "{delta:?}");
        }
        let run = RunHeader {
            form: RunForm::Pushed,
            partition: PartitionId(1),
            base: Offset(0),
            count: 3,
            bytes: 300,
            created,
            logged: LogTime(1),
        };
        let place = Place { segment: FileNumber(1), position: 4096 };
        assert!(apply_run(state, &run, place).is_err(), "a run that is there");
    }
}

#[test]
fn a_deleted_queue_is_gone_at_once_and_freed_step_by_step() {
    let mut bench = bench();
    bench.push(1, 100);
    bench.partition(2, 1, "", Some(GroupId(1)));
    for id in 1..=50 {
        let copy = bench.push(2, 1);
        bench.dead_letter(id, 1, 1, (2, copy));
    }
    bench.queue(2, "b", 10);
    bench.partition(3, 2, "p", None);
    bench.group(2, 2, "g");
    bench.dead_letter(99, 3, 2, (3, Offset(0)));
    let state = &mut bench.live;
    state.apply(&Delta::QueueDeleted(QueueId(1))).unwrap();
    assert!(state.queue_named("a").is_none() && state.groups.len() == 1);
    let left = (state.partitions.len(), state.cursors.len(), state.dead_letters.len());
    assert_eq!(left, (3, 1, 51), "these are not looked at in the step of the deletion");
    let mut steps = 1;
    while state.free_some(10) {
        steps += 1;
    }
    assert!((5..=7).contains(&steps), "{steps}");
    assert_eq!((state.partitions.len(), state.cursors.len()), (1, 0));
    assert_eq!((state.dead_letters.len(), state.dead_letter_times.len()), (1, 1));
    assert!(!state.has_remains());
}

#[test]
fn a_group_that_is_changed_or_deleted_meanwhile() {
    for before in 0..8 {
        let mut bench = bench();
        bench.partition(2, 1, "", Some(GroupId(1)));
        let copy = bench.push(2, 1);
        bench.dead_letter(1, 1, 1, (2, copy));
        bench.group(2, 1, "h");
        bench.cursor(1, 2, 2, Some(9));
        bench.close();
        bench.slice(before);
        bench.group_with(2, 1, "h", StartPolicy::From(WallTime(3)), false);
        bench.close();
        bench.delta(&Delta::GroupDeleted(GroupId(2)));
        bench.group_with(1, 1, "g", StartPolicy::All, true); // it has a dead letter
        bench.close();
        bench.group(3, 1, "g");
        bench.cursor(1, 3, 0, Some(10));
        bench.close();
        let rebuilt = bench.check();
        assert_eq!(rebuilt.queues[&QueueId(1)].groups.get("g"), Some(&GroupId(3)));
        assert_eq!((rebuilt.groups.len(), rebuilt.retired.len(), rebuilt.cursors.len()), (1, 1, 1));
        assert_eq!(rebuilt.dead_letters.len(), 1);
        let state = &mut bench.live;
        let refused = state.apply(&Delta::GroupDeleted(GroupId(1)));
        assert!(refused.is_err(), "a group with dead letters is not forgotten");
    }
}

/// Something that happens, by numbers that are bent to what exists.
#[derive(Clone, Copy, Debug)]
struct Act {
    kind: u8,
    pick: usize,
    other: usize,
    number: u64,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = (0..23_u8, any::<usize>(), any::<usize>(), any::<u64>());
    proptest::collection::vec(
        act.prop_map(|(kind, pick, other, number)| Act { kind, pick, other, number }),
        1..250,
    )
}

impl Bench {
    fn act(&mut self, act: Act) {
        let Act { kind, pick, other, number } = act;
        let nth = |at: usize, len: usize| (len > 0).then(|| at % len);
        let names = ["a", "b", "c", "d"];
        let name = names[other % names.len()];
        let queue_name = names[other % 2];
        let queue = nth(pick, self.live.queues.len()).map(|at| self.live.queues[at].id.0);
        let partition = nth(pick, self.live.partitions.len()).map(|at| {
            let partition = &self.live.partitions[at];
            (partition.id.0, partition.queue, partition.next.0, partition.dead_letters_of.is_some())
        });
        let partition = partition.filter(|(_, queue, ..)| self.live.queues.contains_key(queue));
        match kind {
            0 | 1 => match self.live.queue_named(queue_name).map(|queue| queue.id.0) {
                Some(id) => self.queue(id, queue_name, u32::try_from(number % 100).unwrap()),
                None => self.queue(self.live.next_queue.0, queue_name, 10),
            },
            2 => {
                if let Some(queue) = queue {
                    self.delta(&Delta::QueueDeleted(QueueId(queue)));
                    self.live.touched.clear();
                    self.live.free_some(usize::try_from(number % 50).unwrap());
                }
            }
            3..=5 => {
                if let Some(queue) = queue
                    && self.live.queues[&QueueId(queue)].partitions.get(&self.live.partitions, name).is_none()
                {
                    self.partition(self.live.next_partition.0, queue, name, None);
                }
            }
            6 | 7 => {
                if let Some(queue) = queue
                    && !self.live.queues[&QueueId(queue)].groups.contains_key(name)
                {
                    self.group(self.live.next_group.0, queue, name);
                }
            }
            8..=10 => {
                if let Some((id, ..)) = partition {
                    self.push(id, u32::try_from(number % 3 + 1).unwrap());
                }
            }
            11..=13 => self.act_on_cursor(partition, other, number),
            14 => self.act_on_dead_letter(partition, other, number),
            15 => {
                let keys: Vec<_> = self.live.dead_letter_times.keys().copied().collect();
                let known = keys.iter().filter(|id| {
                    let letter = &self.live.dead_letters[&(self.live.dead_letter_times[*id], **id)];
                    let partition = self.live.partitions.get(&letter.partition);
                    partition.is_some_and(|partition| self.live.queues.contains_key(&partition.queue))
                });
                if let Some(id) = known.min().copied() {
                    self.delta(&Delta::DeadLetterRemoved(id));
                }
            }
            16 | 17 => self.close(),
            18..=20 => self.act_on_group(queue, other, number),
            _ => self.slice(usize::try_from(number % 4).unwrap()),
        }
    }

    /// Changes a group, deletes it, or removes the last trace of a deleted one.
    fn act_on_group(&mut self, queue: Option<u64>, other: usize, number: u64) {
        if number.is_multiple_of(5) {
            let done = self.live.retired.values().filter(|group| group.letters == 0);
            if let Some(id) = done.map(|group| group.id).min() {
                self.delta(&Delta::GroupDeleted(id));
            }
            return;
        }
        let Some(queue) = queue else { return };
        let mut groups: Vec<GroupId> = self.live.queues[&QueueId(queue)].groups.values().copied().collect();
        groups.sort_unstable();
        if groups.is_empty() {
            return;
        }
        let known = &self.live.groups[&groups[other % groups.len()]];
        let (id, letters, name) = (known.id, known.letters, known.name.clone());
        match number % 5 {
            1 | 2 => self.group_with(id.0, queue, &name, StartPolicy::From(WallTime(number % 7)), false),
            _ if letters > 0 => self.group_with(id.0, queue, &name, StartPolicy::All, true),
            _ => self.delta(&Delta::GroupDeleted(id)),
        }
        self.live.touched.clear();
        self.live.free_some(usize::try_from(number % 3).unwrap());
    }

    fn act_on_cursor(&mut self, partition: Option<(u64, QueueId, u64, bool)>, other: usize, number: u64) {
        let Some((id, queue, next, false)) = partition else { return };
        let mut groups: Vec<GroupId> = self.live.queues[&queue].groups.values().copied().collect();
        groups.sort_unstable();
        if groups.is_empty() {
            return;
        }
        let group = groups[other % groups.len()];
        let lease = (!number.is_multiple_of(3)).then(|| u128::from(number >> 8) % 4 + 1);
        self.cursor(id, group.0, (number >> 16) % (next + 1), lease);
    }

    fn act_on_dead_letter(
        &mut self,
        partition: Option<(u64, QueueId, u64, bool)>,
        other: usize,
        number: u64,
    ) {
        let Some((id, queue, _, false)) = partition else { return };
        let mut groups: Vec<GroupId> = self.live.queues[&queue].groups.values().copied().collect();
        groups.sort_unstable();
        if groups.is_empty() {
            return;
        }
        let group = groups[other % groups.len()];
        let copies = match self.live.groups[&group].dead_letter_partition {
            Some(known) => known.0,
            None => {
                let fresh = self.live.next_partition.0;
                self.partition(fresh, queue.0, "", Some(group));
                fresh
            }
        };
        let copy = self.push(copies, 1);
        self.dead_letter(u128::from(self.now) << 8 | u128::from(number % 256), id, group.0, (copies, copy));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_between_the_slices_the_state_is_rebuilt(acts in acts()) {
        let mut bench = Bench::default();
        for act in acts {
            bench.act(act);
        }
        bench.check();
    }
}
