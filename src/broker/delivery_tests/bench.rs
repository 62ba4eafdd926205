//! A core, a clock that stands still, and shorthands for what clients send. Every command is settled and every step
//! of time ticked, as the storage thread does.

use std::borrow::Cow;
use std::sync::Arc;

use crate::broker::command::{
    AckCall, AckItem, AckStatus, AckVerdict, Command, Configure, Piece, Pop, PopReply, PopTarget, PopTicket,
    Presence, PushGroup, PushItem, Reference, Reply, Source, StartRequest,
};
use crate::broker::core::{Block, Caller, Core, CoreSettings, Step, Work};
use crate::broker::journal::memory::{MemoryIndex, MemoryJournal};
use crate::broker::journal::{Fit, Journal};
use crate::broker::state::State;
use crate::format::delta::{CursorState, Delta};
use crate::format::entry::Entry;
use crate::format::id_hash;
use crate::format::run::RunHeader;
use crate::index::runs::{Place, Run};
use crate::io::{Clock, IdSource, ManualClock};
use crate::types::{Epoch, GroupId, LeaseId, LogId, LogTime, MessageId, PartitionId, QueueOptions};

/// A journal in memory whose room can be taken away.
#[derive(Default)]
pub(super) struct Script {
    pub(super) inner: MemoryJournal,
    /// Records that still fit; no limit if unset.
    pub(super) room: Option<usize>,
}

impl Journal for Script {
    fn fits(&self, run_bytes: u64, delta_bytes: u64) -> Fit {
        if self.room == Some(0) { Fit::Later } else { self.inner.fits(run_bytes, delta_bytes) }
    }

    fn stage(&mut self, delta: &Delta<'_>) {
        if let Some(room) = &mut self.room {
            *room = room.checked_sub(1).expect("staged without room");
        }
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
    index: MemoryIndex,
    pub(super) hands: ManualClock,
    clock: Clock,
    messages: u128,
    callers: u64,
}

const LOG: LogId = LogId(77);

/// Time between two sweeps of retention: 60 seconds.
pub(super) const SWEEP_US: u64 = 60_000_000;

pub(super) const GROUP: &str = "g";

/// A span as (partition name, first offset, last offset).
pub(super) type Spans = Vec<(String, u64, u64)>;

pub(super) fn spans(reply: &PopReply) -> Spans {
    let span = |claim: &crate::broker::command::Claim| {
        let (first, last) = (claim.pieces.first().unwrap().first.0, claim.pieces.last().unwrap().last.0);
        let mut expected = first;
        for piece in &claim.pieces {
            assert_eq!(piece.first.0, expected, "pieces are contiguous");
            assert!(
                piece.first >= piece.run.base && piece.last.0 < piece.run.base.0 + u64::from(piece.run.count)
            );
            assert!(piece.first <= piece.last);
            expected = piece.last.0 + 1;
        }
        (claim.partition_name.to_string(), first, last)
    };
    reply.claims.iter().map(span).collect()
}

pub(super) fn span(partition: &str, first: u64, last: u64) -> Spans {
    vec![(partition.to_owned(), first, last)]
}

/// A pop of the group `g` that begins with everything: 10 messages of one partition, no waiting.
pub(super) fn pop(queue: &str) -> Pop {
    Pop {
        ticket: PopTicket(0),
        target: PopTarget::Queue(queue.to_owned()),
        group: GROUP.to_owned(),
        batch: 10,
        partitions: 1,
        auto_ack: false,
        wait_us: 0,
        lease_seconds: None,
        start: StartRequest::All,
        presence: Arc::new(Presence::default()),
    }
}

pub(super) fn pinned(queue: &str, partition: &str) -> Pop {
    let target = PopTarget::Partition { queue: queue.to_owned(), partition: partition.to_owned() };
    Pop { target, ..pop(queue) }
}

pub(super) fn discovery(namespace: Option<&str>, task: Option<&str>) -> Pop {
    let target =
        PopTarget::Discovery { namespace: namespace.map(str::to_owned), task: task.map(str::to_owned) };
    Pop { target, ..pop("") }
}

/// The same, waiting for 20 seconds.
pub(super) fn waiting(pop: Pop) -> Pop {
    Pop { wait_us: 20_000_000, ..pop }
}

pub(super) fn named(group: &str, pop: Pop) -> Pop {
    Pop { group: group.to_owned(), ..pop }
}

/// Hash of the transaction id of a piece's last message.
fn last_hash(piece: &Piece) -> crate::types::IdHash {
    let Source::Memory(entries) = &piece.source else { panic!("{piece:?}") };
    let mut rest = &entries[..];
    for _ in piece.run.base.0..piece.last.0 {
        rest = &rest[Entry::decode(rest).unwrap().1..];
    }
    Entry::decode(rest).unwrap().0.hash
}

fn core_over(state: State, journal: Script, clock: &Clock, epoch: u64, now: LogTime) -> Core<Script> {
    let settings = CoreSettings {
        parked_polls: 100_000,
        pop_bytes: 1 << 20,
        name_bytes: 447,
        data_dir: "data".to_owned(),
        retention_sweep_us: SWEEP_US,
    };
    let ids = IdSource::seeded(clock.clone(), 1);
    Core::new(state, journal, settings, clock.clone(), ids, Epoch(epoch), now)
}

impl Bench {
    pub(super) fn new() -> Bench {
        let (clock, hands) = Clock::manual(0, 1_800_000_000_000_000);
        let core = core_over(State::default(), Script::default(), &clock, 1, LogTime(1_000_000_000));
        Bench { core, index: MemoryIndex::default(), hands, clock, messages: 0, callers: 0 }
    }

    /// Starts the daemon again over the same log, after so many seconds of log time.
    pub(super) fn restart(self, seconds: u64) -> Bench {
        let now = self.core.now.plus_seconds(seconds);
        let core = core_over(self.core.state, self.core.journal, &self.clock, 2, now);
        Bench { core, ..self }
    }

    pub(super) fn pass_us(&mut self, us: u64) {
        self.hands.advance_us(us);
        self.core.now = self.core.now.plus_us(us);
        self.core.tick();
        self.look_up_wanted();
        self.sweep();
    }

    /// Sweeps until there is nothing more to do now, as the storage thread does step by step.
    pub(super) fn sweep(&mut self) {
        self.index.seal(&mut self.core);
        loop {
            self.core.sweep();
            self.core.settle();
            self.look_up_wanted();
            if self.core.sweep_due().is_none_or(|due| due > self.core.now) {
                return;
            }
        }
    }

    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.pass_us(ms * 1000);
    }

    pub(super) fn step(&mut self, mut work: Work) -> (Caller, Step) {
        self.callers += 1;
        let caller = Caller(self.callers);
        self.index.seal(&mut self.core);
        loop {
            let step = self.core.execute(caller, &mut work);
            self.core.settle();
            self.look_up_wanted();
            match step {
                Step::Blocked(Block::Index(lookups)) => self.index.answer(&mut self.core, &lookups),
                step => return (caller, step),
            }
        }
    }

    fn look_up_wanted(&mut self) {
        while !self.core.wanted.is_empty() {
            let lookups = std::mem::take(&mut self.core.wanted);
            self.index.answer(&mut self.core, &lookups);
            self.core.settle();
        }
    }

    pub(super) fn done(&mut self, command: Command) -> Reply {
        match self.step(Work::new(command)).1 {
            Step::Done(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn silent(&mut self, command: Command) {
        assert!(matches!(self.step(Work::new(command)).1, Step::Silent));
    }

    /// A pop that is answered at once.
    pub(super) fn pop(&mut self, pop: Pop) -> PopReply {
        match self.done(Command::Pop(pop)) {
            Reply::Pop(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn spans(&mut self, pop: Pop) -> Spans {
        spans(&self.pop(pop))
    }

    /// A pop that parks.
    pub(super) fn park(&mut self, mut pop: Pop) -> Caller {
        pop.ticket = PopTicket(self.callers + 1);
        match self.step(Work::new(Command::Pop(pop))) {
            (caller, Step::Parked) => caller,
            (_, other) => panic!("{other:?}"),
        }
    }

    /// Answers of parked polls since the last call.
    pub(super) fn answers(&mut self) -> Vec<(Caller, PopReply)> {
        let answers = self.core.answers.drain(..);
        let pops = answers.map(|(caller, reply)| match reply {
            Reply::Pop(reply) => (caller, reply),
            other => panic!("{other:?}"),
        });
        pops.collect()
    }

    /// The same as spans.
    pub(super) fn served(&mut self) -> Vec<(Caller, Spans)> {
        self.answers().iter().map(|(caller, reply)| (*caller, spans(reply))).collect()
    }

    /// Messages of one push to one partition, with payloads of so many bytes; the group and their transaction ids.
    pub(super) fn group_of(
        &mut self,
        queue: &str,
        partition: &str,
        sizes: &[usize],
    ) -> (PushGroup, Vec<String>) {
        let mut group =
            PushGroup { queue: queue.to_owned(), partition: partition.to_owned(), ..PushGroup::default() };
        let mut names = Vec::new();
        for size in sizes {
            self.messages += 1;
            let (name, id) = (format!("t{}", self.messages), MessageId(self.messages));
            let hash = id_hash(LOG, &name);
            let payload = vec![b'1'; *size];
            let transaction_id = Cow::Borrowed(name.as_str());
            Entry { id, hash, transaction_id, trace: None, producer: None, payload: &payload }
                .encode(&mut group.entries);
            let end = u32::try_from(group.entries.len()).unwrap();
            group.items.push(PushItem { id, hash, minted: false, repeat_of: None, end });
            names.push(name);
        }
        (group, names)
    }

    pub(super) fn push_sized(&mut self, queue: &str, partition: &str, sizes: &[usize]) -> Vec<String> {
        let (group, names) = self.group_of(queue, partition, sizes);
        assert!(matches!(self.done(Command::Push(vec![group])), Reply::Push(_)));
        names
    }

    /// One push of so many small messages; their transaction ids.
    pub(super) fn push(&mut self, queue: &str, partition: &str, count: usize) -> Vec<String> {
        self.push_sized(queue, partition, &vec![1; count])
    }

    /// One acknowledgement that succeeds.
    pub(super) fn ack_as(
        &mut self,
        group: &str,
        partition: PartitionId,
        id: &str,
        status: AckStatus,
        lease: Option<LeaseId>,
    ) -> AckVerdict {
        let verdict = self.try_ack(group, partition, id, status, lease);
        assert!(verdict.success(), "{verdict:?}");
        verdict
    }

    /// One acknowledgement.
    pub(super) fn try_ack(
        &mut self,
        group: &str,
        partition: PartitionId,
        id: &str,
        status: AckStatus,
        lease: Option<LeaseId>,
    ) -> AckVerdict {
        let item = AckItem {
            hash: Some(id_hash(LOG, id)),
            partition: Reference::Id(partition),
            status,
            lease: lease.map_or(Reference::Absent, Reference::Id),
            error: None,
        };
        match self.done(Command::Ack(AckCall { group: group.to_owned(), items: vec![item] })) {
            Reply::Ack(verdicts) => verdicts[0],
            other => panic!("{other:?}"),
        }
    }

    /// One acknowledgement of the group `g` under the lease of a pop of one partition.
    pub(super) fn ack(&mut self, reply: &PopReply, id: &str, status: AckStatus) -> AckVerdict {
        self.ack_as(GROUP, reply.claims[0].partition, id, status, reply.lease)
    }

    /// Completes every claim of a pop of `group`.
    pub(super) fn complete(&mut self, group: &str, reply: &PopReply) {
        for claim in &reply.claims {
            let hash = last_hash(claim.pieces.last().unwrap());
            let item = AckItem {
                hash: Some(hash),
                partition: Reference::Id(claim.partition),
                status: AckStatus::Completed,
                lease: Reference::Id(reply.lease.unwrap()),
                error: None,
            };
            let call = AckCall { group: group.to_owned(), items: vec![item] };
            let Reply::Ack(verdicts) = self.done(Command::Ack(call)) else { panic!() };
            assert!(verdicts[0].success() && verdicts[0].lease_released, "{verdicts:?}");
        }
    }

    pub(super) fn configure(&mut self, change: Configure) {
        assert!(matches!(self.done(Command::Configure(change)), Reply::Configure(_)));
    }

    /// Creates a queue, or changes it as an operator does.
    pub(super) fn options(&mut self, queue: &str, change: impl FnOnce(&mut Configure)) {
        let mut configure = Configure { queue: queue.to_owned(), ..Configure::default() };
        change(&mut configure);
        self.configure(configure);
    }

    pub(super) fn delete(&mut self, queue: &str) {
        assert!(matches!(self.done(Command::DeleteQueue(queue.to_owned())), Reply::DeleteQueue(true)));
    }

    pub(super) fn effective(&self, queue: &str) -> QueueOptions {
        self.core.state.queue_named(queue).unwrap().options.clone()
    }

    pub(super) fn partition(&self, queue: &str, partition: &str) -> PartitionId {
        let state = &self.core.state;
        state.queue_named(queue).unwrap().partitions.get(&state.partitions, partition).unwrap()
    }

    pub(super) fn registered(&self, queue: &str, group: &str) -> Option<GroupId> {
        self.core.state.queue_named(queue)?.groups.get(group).copied()
    }

    pub(super) fn cursor(&self, queue: &str, partition: &str, group: &str) -> CursorState {
        let key = (self.partition(queue, partition), self.registered(queue, group).unwrap());
        self.core.state.cursors.get(&key).unwrap()
    }

    /// Records staged so far.
    pub(super) fn records(&self) -> usize {
        self.core.journal.inner.records.len()
    }

    pub(super) fn records_of(&self, kind: &str) -> usize {
        self.core.journal.inner.records.iter().filter(|record| record.starts_with(kind)).count()
    }
}
