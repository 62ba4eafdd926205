//! A core, a clock that stands still, and shorthands for what clients send.

use std::borrow::Cow;
use std::cell::Cell;

use crate::broker::command::{
    AckCall, AckItem, AckStatus, AckVerdict, Command, DeadLetterPage, DeadLetterQuery, PushGroup, PushItem,
    PushVerdict, Reference, Reply, Source, Transaction, TransactionAck, TransactionReply,
};
use crate::broker::core::{Block, Caller, Core, CoreSettings, Step, Work};
use crate::broker::journal::memory::{MemoryIndex, MemoryJournal};
use crate::broker::journal::{Fit, Journal};
use crate::broker::state::State;
use crate::format::delta::{Cause, CursorDelta, CursorState, Delta, GroupDef, Lease, StartPolicy};
use crate::format::entry::Entry;
use crate::format::id_hash;
use crate::format::run::RunHeader;
use crate::index::runs::{Place, Run};
use crate::io::{Clock, IdSource, ManualClock};
use crate::types::{
    Epoch, GroupId, IdHash, LeaseId, LogId, LogTime, MessageId, Offset, PartitionId, QueueOptions,
};

/// A journal in memory whose room can be taken away.
#[derive(Default)]
pub(super) struct Script {
    pub(super) inner: MemoryJournal,
    /// Answer `Now` so many times more, then what `MemoryJournal` is told to; no limit if unset.
    pub(super) now_left: Cell<Option<u32>>,
    /// Largest runs that fit at all.
    pub(super) limit: Option<u64>,
    /// Largest demand that `fits` was asked for.
    pub(super) asked: Cell<(u64, u64)>,
}

impl Journal for Script {
    fn fits(&self, run_bytes: u64, delta_bytes: u64) -> Fit {
        self.asked.set((run_bytes, delta_bytes));
        match self.limit {
            Some(limit) if run_bytes > limit => return Fit::TooLarge { limit },
            _ => {}
        }
        match self.now_left.get() {
            Some(0) => Fit::Later,
            Some(left) => {
                self.now_left.set(Some(left - 1));
                Fit::Now
            }
            None => self.inner.fits(run_bytes, delta_bytes),
        }
    }

    fn stage(&mut self, delta: &Delta<'_>) {
        self.inner.stage(delta);
    }

    fn stage_run(&mut self, run: &RunHeader, entries: &[&[u8]]) -> Place {
        self.inner.stage_run(run, entries)
    }

    fn source(&self, partition: PartitionId, run: &Run) -> Source {
        self.inner.source(partition, run)
    }
}

pub(super) struct Bench {
    pub(super) core: Core<Script>,
    pub(super) index: MemoryIndex,
    clock: ManualClock,
    leases: u128,
    messages: u128,
}

const LOG: LogId = LogId(77);

pub(super) fn hash(text: &str) -> IdHash {
    id_hash(LOG, text)
}

/// An acknowledgement, to be completed by `with`.
pub(super) fn item(partition: PartitionId, id: &str, status: AckStatus) -> AckItem {
    AckItem {
        hash: Some(hash(id)),
        partition: Reference::Id(partition),
        status,
        lease: Reference::Absent,
        error: None,
    }
}

/// Adds a lease.
pub(super) fn with(lease: LeaseId, mut item: AckItem) -> AckItem {
    item.lease = Reference::Id(lease);
    item
}

/// Adds a reason.
pub(super) fn because(reason: &str, mut item: AckItem) -> AckItem {
    item.error = Some(reason.to_owned());
    item
}

impl Bench {
    pub(super) fn new() -> Bench {
        let (clock, hands) = Clock::manual(0, 1_800_000_000_000_000);
        let settings = CoreSettings {
            parked_polls: 8,
            pop_bytes: 1 << 20,
            name_bytes: 447,
            data_dir: "data".to_owned(),
            retention_sweep_us: 60_000_000,
        };
        let ids = IdSource::seeded(clock.clone(), 1);
        let core = Core::new(
            State::default(),
            Script::default(),
            settings,
            clock,
            ids,
            Epoch(1),
            LogTime(1_000_000_000_000),
        );
        Bench { core, index: MemoryIndex::default(), clock: hands, leases: 0, messages: 0 }
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, seconds: u64) {
        self.clock.advance_us(seconds * 1_000_000);
        self.core.now = self.core.now.plus_seconds(seconds);
    }

    pub(super) fn run(&mut self, work: &mut Work) -> Step {
        self.index.seal(&mut self.core);
        loop {
            match self.core.execute(Caller(1), work) {
                Step::Blocked(Block::Index(lookups)) => self.index.answer(&mut self.core, &lookups),
                step => return step,
            }
        }
    }

    pub(super) fn done(&mut self, command: Command) -> Reply {
        match self.run(&mut Work::new(command)) {
            Step::Done(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Messages with these transaction ids; the payload is the id as a JSON string.
    pub(super) fn group(&mut self, queue: &str, partition: &str, ids: &[&str]) -> PushGroup {
        let mut group =
            PushGroup { queue: queue.to_owned(), partition: partition.to_owned(), ..PushGroup::default() };
        for (index, text) in ids.iter().enumerate() {
            self.messages += 1;
            let id = MessageId(self.messages);
            let first = ids.iter().position(|other| other == text).unwrap();
            let repeat_of = (first < index).then(|| u32::try_from(first).unwrap());
            if repeat_of.is_none() {
                let payload = format!("{text:?}");
                Entry {
                    id,
                    hash: hash(text),
                    transaction_id: Cow::Borrowed(text),
                    trace: None,
                    producer: None,
                    payload: payload.as_bytes(),
                }
                .encode(&mut group.entries);
            }
            let end = u32::try_from(group.entries.len()).unwrap();
            group.items.push(PushItem { id, hash: hash(text), minted: false, repeat_of, end });
        }
        group
    }

    pub(super) fn push_groups(&mut self, groups: Vec<PushGroup>) -> Vec<Vec<PushVerdict>> {
        match self.done(Command::Push(groups)) {
            Reply::Push(verdicts) => verdicts,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn push(&mut self, queue: &str, partition: &str, ids: &[&str]) -> Vec<PushVerdict> {
        let group = self.group(queue, partition, ids);
        self.push_groups(vec![group]).remove(0)
    }

    pub(super) fn partition(&self, queue: &str, partition: &str) -> PartitionId {
        let state = &self.core.state;
        state.queue_named(queue).unwrap().partitions.get(&state.partitions, partition).unwrap()
    }

    pub(super) fn consumer(&mut self, queue: &str, group: &str) -> GroupId {
        let queue = self.core.state.queue_named(queue).unwrap();
        if let Some(known) = queue.groups.get(group) {
            return *known;
        }
        let (queue, id) = (queue.id, self.core.state.next_group);
        let created = self.core.stamp();
        self.core.stage(&Delta::Group(GroupDef {
            group: id,
            queue,
            name: group,
            start: StartPolicy::All,
            conflating: false,
            retired: false,
            created,
        }));
        id
    }

    /// Claims up to `end` for 30 seconds, as a pop does.
    pub(super) fn lease(&mut self, partition: PartitionId, group: &str, end: u64) -> LeaseId {
        self.leases += 1;
        let lease = LeaseId(self.leases << 64);
        self.lease_as(lease, partition, group, end);
        lease
    }

    pub(super) fn lease_as(&mut self, id: LeaseId, partition: PartitionId, group: &str, end: u64) {
        let queue = self.core.state.partitions.get(&partition).unwrap().queue;
        let queue = self.core.state.queues.get(&queue).unwrap().name.clone();
        let group = self.consumer(&queue, group);
        let state = &self.core.state;
        let mut cursor = state
            .cursor_or_seed(state.partitions.get(&partition).unwrap(), state.groups.get(&group).unwrap())
            .unwrap();
        let again = cursor.attempts > 0 && cursor.attempt_first == cursor.next;
        cursor.attempts = if again { cursor.attempts + 1 } else { 1 };
        cursor.attempt_first = cursor.next;
        let expires = self.core.now.plus_seconds(30);
        cursor.lease = Some(Lease { id, end: Offset(end), expires });
        self.core.stage(&Delta::Cursor(CursorDelta { partition, group, cause: Cause::Claim, state: cursor }));
    }

    pub(super) fn cursor(&self, partition: PartitionId, group: &str) -> CursorState {
        let queue = self.core.state.partitions.get(&partition).unwrap().queue;
        let group = self.core.state.queues.get(&queue).unwrap().groups.get(group).unwrap();
        self.core.state.cursors.get(&(partition, *group)).unwrap()
    }

    pub(super) fn ack(&mut self, group: &str, items: Vec<AckItem>) -> Vec<AckVerdict> {
        match self.done(Command::Ack(AckCall { group: group.to_owned(), items })) {
            Reply::Ack(verdicts) => verdicts,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn transact(
        &mut self,
        acks: Vec<(&str, AckItem)>,
        pushes: Vec<PushGroup>,
        required: Vec<LeaseId>,
    ) -> TransactionReply {
        match self.done(Command::Transaction(bundle(acks, pushes, required))) {
            Reply::Transaction(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn letters(&mut self, query: DeadLetterQuery) -> DeadLetterPage {
        match self.done(Command::DeadLetters(query)) {
            Reply::DeadLetters(page) => page,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn all_letters(&mut self) -> DeadLetterPage {
        self.letters(DeadLetterQuery { limit: 100, ..DeadLetterQuery::default() })
    }

    /// Changes a queue's options behind the commands.
    pub(super) fn options(&mut self, queue: &str, change: impl FnOnce(&mut QueueOptions)) {
        let id = *self.core.state.queue_names.get(queue).unwrap();
        change(&mut self.core.state.queues.get_mut(&id).unwrap().options);
    }

    /// Records staged so far.
    pub(super) fn records(&self) -> usize {
        self.core.journal.inner.records.len()
    }

    pub(super) fn records_of(&self, kind: &str) -> usize {
        self.core.journal.inner.records.iter().filter(|record| record.starts_with(kind)).count()
    }
}

pub(super) fn bundle(
    acks: Vec<(&str, AckItem)>,
    pushes: Vec<PushGroup>,
    required: Vec<LeaseId>,
) -> Transaction {
    let acks =
        acks.into_iter().map(|(group, item)| TransactionAck { group: group.to_owned(), item }).collect();
    Transaction { acks, pushes, required: required.into_iter().map(Reference::Id).collect() }
}
