//! The broker's core: the state, the journal, and how a command is carried through.
//!
//! A command may have to wait in the middle: for the next group to open (`Block::Room`) or for the bytes of a
//! message that is not in memory (`Block::Load`). It keeps what it has done and goes on from there; commands behind
//! it wait for room, and overtake it while it loads. Deciding again after a wait starts from the state as it is then.

use hashbrown::HashMap;

use super::command::{BrokerError, Command, Reply};
use super::journal::Journal;
use super::parked::Parked;
use super::ready::Ready;
use super::retention::Retention;
use super::settled::Settled;
use super::state::State;
use crate::engine::machine::Machine;
use crate::format::delta::Delta;
use crate::format::run::{RunForm, RunHeader};
use crate::index::{Found, Ids, Lookup};
use crate::io::{Clock, IdSource};
use crate::types::{Epoch, IdHash, LeaseId, LogTime, MessageId, Offset, PartitionId, WallTime};

/// Names who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller(pub u64);

/// Limits and defaults of the core.
#[derive(Clone, Debug)]
pub struct CoreSettings {
    /// Most polls parked at once.
    pub parked_polls: u32,
    /// Most bytes of entries in one pop's answer; one message is delivered whatever its size.
    pub pop_bytes: u64,
    /// Tenant, queue and the longer of partition and group, in bytes.
    pub name_bytes: u64,
    /// Directory shown when it is full.
    pub data_dir: String,
    /// Time between two sweeps of retention, in microseconds.
    pub retention_sweep_us: u64,
}

/// What a command waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Room in the next group.
    Room,
    /// Nothing: it did a bounded part of its work and lets others go first.
    Yield,
    /// What the index files say; the answers go to `Core::answer_lookup`.
    Index(Vec<Lookup>),
    /// The bytes of the run that holds this message; they are to be found in `Core::loaded` afterwards.
    Load {
        /// The partition.
        partition: PartitionId,
        /// The message.
        offset: Offset,
    },
}

/// How far a command got.
#[derive(Debug)]
pub enum Step {
    /// Done; the answer waits for durability.
    Done(Reply),
    /// Done, and nobody waits.
    Silent,
    /// A pop was parked; its answer comes through `Core::answers`.
    Parked,
    /// Waits; call again with the same work.
    Blocked(Block),
}

/// A command being carried out.
#[derive(Debug)]
pub enum Work {
    /// A push.
    Push(super::push::PushWork),
    /// An ack call.
    Ack(super::ack::AckWork),
    /// A transaction.
    Transaction(super::transaction::TransactionWork),
    /// A change of a consumer group.
    Group(super::groups::GroupWork),
    /// A count of what there is.
    Survey(Box<super::survey::SurveyWork>),
    /// Anything that is done in one step.
    Plain(Command),
}

impl Work {
    /// Work for a command.
    #[must_use]
    pub fn new(command: Command) -> Work {
        match command {
            Command::Push(groups) => Work::Push(super::push::PushWork::new(groups)),
            Command::Ack(call) => Work::Ack(super::ack::AckWork::new(call)),
            Command::Transaction(transaction) => {
                Work::Transaction(super::transaction::TransactionWork::new(transaction))
            }
            Command::Group(change) => Work::Group(super::groups::GroupWork::new(change)),
            Command::Survey(query) => Work::Survey(Box::new(super::survey::SurveyWork::new(query))),
            other => Work::Plain(other),
        }
    }
}

/// The core.
pub struct Core<J> {
    /// The state.
    pub state: State,
    /// The engine.
    pub journal: J,
    /// Limits.
    pub settings: CoreSettings,
    /// Log time of this step; the storage thread sets it before each command and tick.
    pub now: LogTime,
    /// Answers that `settle` and `tick` produced for parked pops: the caller and what it gets.
    pub answers: Vec<(Caller, Reply)>,
    /// Entries of runs that were loaded for a blocked command, by partition and run base. `Err`: unreadable.
    pub loaded: HashMap<(PartitionId, Offset), Result<bytes::Bytes, String>>,
    /// Messages with a transaction id that were looked up for a blocked command.
    pub finds: HashMap<Lookup, Ids>,
    /// What has to be looked up so that parked polls can be served. No more than pairs of partition and group.
    pub wanted: Vec<Lookup>,
    pub(super) ready: Ready,
    pub(super) parked: Parked,
    pub(super) retention: Retention,
    pub(super) settled: Settled,
    pub(super) ids: IdSource,
    clock: Clock,
    epoch: Epoch,
    leases_minted: u64,
}

impl<J: Journal> Core<J> {
    /// A core over a recovered state.
    #[must_use]
    pub fn new(
        state: State,
        journal: J,
        settings: CoreSettings,
        clock: Clock,
        ids: IdSource,
        epoch: Epoch,
        now: LogTime,
    ) -> Core<J> {
        let retention = Retention::new(&state, now.plus_us(settings.retention_sweep_us));
        let mut core = Core {
            state,
            journal,
            settings,
            now,
            answers: Vec::new(),
            loaded: HashMap::new(),
            finds: HashMap::new(),
            wanted: Vec::new(),
            ready: Ready::default(),
            parked: Parked::default(),
            retention,
            settled: Settled::new(now),
            ids,
            clock,
            epoch,
            leases_minted: 0,
        };
        core.state.touched.clear();
        core.rebuild_ready();
        core
    }

    /// Carries a command on. Call `settle` afterwards.
    pub fn execute(&mut self, caller: Caller, work: &mut Work) -> Step {
        match work {
            Work::Push(work) => self.push(work),
            Work::Ack(work) => self.ack(work),
            Work::Transaction(work) => self.transaction(work),
            Work::Group(work) => self.change_groups(work),
            Work::Survey(work) => self.survey(work),
            Work::Plain(command) => match command {
                Command::Pop(pop) => self.pop(caller, pop),
                Command::Gone(ticket) => {
                    self.gone(*ticket);
                    Step::Silent
                }
                Command::Return(lease) => self.return_lease(*lease),
                Command::Extend { lease, seconds } => self.extend(*lease, *seconds),
                Command::Configure(configure) => self.configure(configure),
                Command::DeleteQueue(name) => self.delete_queue(name),
                Command::DeadLetters(query) => self.dead_letters(query),
                Command::Push(_)
                | Command::Ack(_)
                | Command::Transaction(_)
                | Command::Group(_)
                | Command::Survey(_) => {
                    unreachable!("Work::new gives these kinds of their own")
                }
            },
        }
    }

    /// Stages a record and applies it.
    pub(super) fn stage(&mut self, delta: &Delta<'_>) {
        self.journal.stage(delta);
        if let Err(error) = self.state.apply(delta) {
            unreachable!("a staged record must apply: {error}: {delta:?}");
        }
    }

    /// Stages messages at the end of a partition and applies them; the offset of the first. `entries` and `ids` have
    /// one element per message, at least one.
    pub(super) fn stage_run(
        &mut self,
        partition: PartitionId,
        entries: &[&[u8]],
        ids: &[(IdHash, MessageId)],
    ) -> Offset {
        let created = self.stamp();
        let base = match self.state.partitions.get(&partition) {
            Some(partition) => partition.next,
            None => unreachable!("messages are staged for partitions that exist"),
        };
        let bytes: usize = entries.iter().map(|entry| entry.len()).sum();
        let run = RunHeader {
            form: RunForm::Pushed,
            partition,
            base,
            count: u32::try_from(entries.len()).expect("a group's messages are counted in 32 bits"),
            bytes: u32::try_from(bytes).expect("a group's bytes are counted in 32 bits"),
            created,
            logged: self.now,
        };
        let place = self.journal.stage_run(&run, entries);
        if let Err(error) = self.state.apply_run(&run, ids, place) {
            unreachable!("a staged run must apply: {error}: {run:?}");
        }
        base
    }

    /// The messages of a partition with an id that were appended at or after `since`, newest first. Appends to `asked`
    /// what has to be looked up before that can be said; the answer is not whole then. `enough`: whether what is in
    /// memory answers the question already.
    pub(super) fn find_ids(
        &self,
        partition: PartitionId,
        hash: IdHash,
        since: LogTime,
        enough: impl FnOnce(&Ids) -> bool,
        asked: &mut Vec<Lookup>,
    ) -> Ids {
        let mut hits = Ids::new();
        self.state.index.find_resident(partition, hash, since, &mut hits);
        in_order(&mut hits, since);
        if enough(&hits) {
            return hits;
        }
        for segment in self.state.index.elsewhere(partition, hash, since) {
            let lookup = Lookup::Find { segment, partition, hash };
            match self.finds.get(&lookup) {
                Some(ids) => hits.extend_from_slice(ids),
                None => asked.push(lookup),
            }
        }
        in_order(&mut hits, since);
        hits
    }

    /// Takes the answer to a lookup in, for whoever asks again.
    pub fn answer_lookup(&mut self, lookup: Lookup, found: Found) {
        let partition = lookup.partition();
        match (lookup, found) {
            (Lookup::Find { .. }, Found::Ids(ids)) => {
                self.finds.insert(lookup, ids);
            }
            (Lookup::Runs { segment, .. }, Found::Runs(runs)) => {
                self.state.index.cold.insert(segment, partition, runs);
                self.rows_arrived(partition);
            }
            (Lookup::Created { time, .. }, Found::Created(offset)) => {
                self.state.seed(partition, time, offset);
                self.rows_arrived(partition);
            }
            (lookup, found) => unreachable!("{found:?} is no answer to {lookup:?}"),
        }
    }

    /// A wall time above every one in any record: the clock, or one microsecond after the last stamp.
    pub(super) fn stamp(&mut self) -> WallTime {
        let stamp = WallTime(self.clock.wall_us().max(self.state.last_stamp.0 + 1));
        self.state.last_stamp = stamp;
        stamp
    }

    /// Wall time of a moment in log time, for display.
    pub(super) fn wall_of(&self, time: LogTime) -> WallTime {
        let ahead = time.0.saturating_sub(self.now.0);
        WallTime(self.clock.wall_us().saturating_add(ahead))
    }

    /// A lease id that no other lease of this log has: a UUIDv7 whose free bits hold the epoch and a counter.
    pub(super) fn mint_lease(&mut self) -> LeaseId {
        self.leases_minted += 1;
        let ms = u128::from(self.clock.wall_us() / 1000) & 0xFFFF_FFFF_FFFF;
        let epoch = u128::from(self.epoch.0) & 0xFFFF_FFFF; // 32 bits
        let count = u128::from(self.leases_minted) & 0x3FF_FFFF_FFFF; // 42 bits
        let free = epoch << 42 | count; // 74 bits: 12 in rand_a, 62 in rand_b
        let bits = ms << 80 | 0x7 << 76 | (free >> 62) << 64 | 0b10 << 62 | (free & 0x3FFF_FFFF_FFFF_FFFF);
        LeaseId(bits)
    }

    /// The error for a full disk.
    pub(super) fn storage_full(&self, free_bytes: u64) -> BrokerError {
        BrokerError::StorageFull { dir: self.settings.data_dir.clone(), free_bytes }
    }
}

/// Sorts hits, newest first. Segments are not in the order of offsets where messages were moved, and a message that was
/// moved is there twice.
fn in_order(hits: &mut Ids, since: LogTime) {
    hits.retain(|hit| hit.logged >= since);
    if hits.len() > 1 {
        hits.sort_unstable_by_key(|hit| std::cmp::Reverse(hit.offset));
        hits.dedup_by_key(|hit| hit.offset);
    }
}
