//! The storage thread: takes commands, lets the core decide, lets the engine commit, sends answers.
//!
//! One thread owns the core, the engine and the ring. It never waits for anything but `Engine::poll`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::mpsc;

use super::command::{BrokerError, Reply};
use super::core::{Block, Caller, Core, Step, Work};
use super::handle::{Answers, ReplySlot, Request};
use super::space::Space;
use super::state::State;
use super::status::{Phase, Status};
use crate::engine::commit::Engine;
use crate::engine::machine::Machine;
use crate::index::Lookup;
use crate::io::Ring;
use crate::types::{FileNumber, Offset, PartitionId, Seq};

/// Reads for blocked commands that may be under way at once.
const LOADS_MAX: usize = 64;

/// Bytes of runs that may be held for blocked commands; one run is loaded whatever its size.
const LOAD_BYTES_MAX: u64 = 64 << 20;

/// Commands taken between two looks at the disk.
const COMMANDS_PER_STEP: usize = 4096;

/// Things of deleted queues freed in a step: 50 to 100 ns each, so about 100 µs.
const FREED_PER_STEP: usize = 1024;

/// Longest wait of a step while the engine is being closed.
const CLOSING_WAIT: Duration = Duration::from_millis(10);

/// How a storage thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything answered is durable and the files say so.
    Cleanly,
    /// Storage failed.
    Poisoned(String),
}

/// Lookups that are asked for at once; who needs more asks again.
const LOOKUPS_MAX: usize = 4096;

/// A command on its way.
struct Job {
    caller: Caller,
    work: Work,
    /// Runs that were loaded for this work so far; forgotten when it is done.
    loaded: Vec<(PartitionId, Offset)>,
    /// Bytes of those runs.
    bytes: u64,
    /// What was looked up for this work so far; forgotten when it is done.
    finds: Vec<Lookup>,
    /// Segments that are being looked into for it.
    asked: Vec<FileNumber>,
}

impl Job {
    /// Whether a segment that it looked into was dropped.
    fn dropped_since(&self, state: &State) -> bool {
        self.asked.iter().any(|segment| state.is_dropped(*segment))
    }
}

/// The storage thread's state.
pub struct Storage<R: Ring> {
    pub(super) core: Core<Engine<R>>,
    pub(super) space: Space,
    requests: mpsc::Receiver<Request>,
    answers: mpsc::UnboundedSender<Answers>,
    status: Arc<Status>,
    /// Answers in the order of the seq they wait for.
    waiting: VecDeque<(Seq, Caller, Reply)>,
    slots: HashMap<Caller, ReplySlot>,
    blocked: VecDeque<Job>,
    /// Long work that lets others go first; each gets one turn per step.
    yielded: VecDeque<Job>,
    loading: HashMap<u64, Job>,
    /// Lookups for parked polls that are under way.
    looking: Option<u64>,
    /// Bytes of runs held for blocked commands.
    load_bytes: u64,
    next_id: u64,
    batch: Answers,
    /// How long the next step may wait when nothing happens before.
    timeout: Option<Duration>,
    /// Everything is answered and the engine is being closed: nothing more is taken.
    closing: bool,
}

impl<R: Ring> Storage<R> {
    /// A storage thread that is ready to `run`.
    #[must_use]
    pub fn new(
        core: Core<Engine<R>>,
        requests: mpsc::Receiver<Request>,
        answers: mpsc::UnboundedSender<Answers>,
        status: Arc<Status>,
    ) -> Storage<R> {
        let mut core = core;
        for segment in core.journal.take_dropped() {
            core.journal.drop_segment(segment);
        }
        core.journal.load_filters(core.state.index.unknown().collect());
        Storage {
            core,
            space: Space::default(),
            requests,
            answers,
            status,
            waiting: VecDeque::new(),
            slots: HashMap::new(),
            blocked: VecDeque::new(),
            yielded: VecDeque::new(),
            loading: HashMap::new(),
            looking: None,
            load_bytes: 0,
            next_id: 0,
            batch: Vec::new(),
            timeout: Some(Duration::ZERO),
            closing: false,
        }
    }

    /// Serves until the status says `Stopping` and everything is answered, or until storage fails.
    pub fn run(mut self) -> Ended {
        loop {
            if let Some(ended) = self.step() {
                return ended;
            }
        }
    }

    /// One turn: waits until something happens or is due, and does what there is to do. How it ended, once it has;
    /// it must not be called again then.
    pub fn step(&mut self) -> Option<Ended> {
        self.core.journal.poll(self.timeout);
        if let Some(poison) = self.core.journal.poison().cloned() {
            self.fail_all(&poison.0);
            return Some(Ended::Poisoned(poison.0));
        }
        if self.closing {
            self.core.journal.submit();
            self.timeout = Some(CLOSING_WAIT);
            return self.core.journal.close().then_some(Ended::Cleanly);
        }
        self.core.now = self.core.journal.log_time();
        self.publish();
        let stopping = self.status.phase() == Phase::Stopping;
        if stopping {
            self.core.release_all_parked();
        }
        self.tend_index();
        self.finish_loads();
        self.finish_lookups();
        self.go_on();
        let drained = self.take_commands();
        for job in std::mem::take(&mut self.yielded) {
            self.carry_on(job);
        }
        if !stopping {
            self.core.sweep();
        }
        self.core.tick();
        self.core.settle();
        self.collect_parked_answers();
        self.look_up_wanted();
        self.tend_space();
        let made_room = self.core.journal.submit();
        // Behind `submit`: under steady load this is where the open group is empty every now and then.
        let last_stamp = self.core.state.last_stamp;
        self.core.journal.checkpoint(&self.core.state, last_stamp);
        self.core.state.free_some(FREED_PER_STEP);
        self.publish();
        self.send_batch();
        self.report();
        self.closing = stopping && drained && self.is_done();
        self.timeout =
            if self.closing { Some(Duration::ZERO) } else { self.next_timeout(drained, made_room, stopping) };
        None
    }

    fn is_done(&self) -> bool {
        self.waiting.is_empty()
            && self.blocked.is_empty()
            && self.yielded.is_empty()
            && self.loading.is_empty()
            && self.looking.is_none()
            && self.core.journal.is_idle()
    }

    fn report(&self) {
        let engine = &self.core.journal;
        self.status.set_positions(engine.watermark().0, engine.staged().0);
        match (self.status.phase(), engine.is_full()) {
            (Phase::Ready, true) => self.status.turn(Phase::Ready, Phase::Full),
            (Phase::Full, false) => self.status.turn(Phase::Full, Phase::Ready),
            _ => {}
        }
    }

    /// `None`: only a completion, a message or the waker brings something to do.
    fn next_timeout(&self, drained: bool, made_room: bool, stopping: bool) -> Option<Duration> {
        let engine = &self.core.journal;
        let waits_for_room =
            !self.blocked.is_empty() || self.core.wants_room() || self.core.sweep_wants_room();
        let can_go_on =
            (made_room && waits_for_room) || (!drained && self.blocked.is_empty() && engine.takes_more());
        let can_retry = !self.blocked.is_empty() && !engine.has_open() && engine.is_idle();
        if can_go_on || self.core.state.has_remains() || !self.yielded.is_empty() {
            return Some(Duration::ZERO);
        }
        let space = self.space.next_due(self.core.state.index.changes());
        // Nothing is swept while it stops, so that is not due either.
        let core = if stopping { self.core.tick_due() } else { self.core.next_due() };
        let due = core.into_iter().chain(space).min();
        let due = due.map(|due| Duration::from_micros(due.0.saturating_sub(self.core.now.0)));
        // Blocked work with nothing in flight waits for maintenance, which wakes; the cap only bounds the wait.
        let retry = can_retry.then_some(Duration::from_millis(100));
        [due, engine.idle_timeout(), retry].into_iter().flatten().min()
    }

    /// Takes commands while the open group has room; whether all that came were taken.
    fn take_commands(&mut self) -> bool {
        for _ in 0..COMMANDS_PER_STEP {
            if !self.blocked.is_empty() || !self.core.journal.takes_more() {
                return self.requests.is_empty();
            }
            let Ok(request) = self.requests.try_recv() else { return true };
            self.next_id += 1;
            let caller = Caller(self.next_id);
            if let Some(slot) = request.reply {
                self.slots.insert(caller, slot);
            }
            let work = Work::new(request.command);
            self.carry_on(Job {
                caller,
                work,
                loaded: Vec::new(),
                bytes: 0,
                finds: Vec::new(),
                asked: Vec::new(),
            });
        }
        self.requests.is_empty()
    }

    /// Goes on with work that waited for room.
    fn go_on(&mut self) {
        while let Some(work) = self.blocked.pop_front() {
            let before = self.blocked.len();
            self.carry_on(work);
            if self.blocked.len() > before {
                return;
            }
        }
    }

    fn carry_on(&mut self, mut job: Job) {
        match self.core.execute(job.caller, &mut job.work) {
            Step::Done(reply) => {
                self.forget(&job);
                self.answer(job.caller, reply);
            }
            Step::Silent => {
                self.forget(&job);
                self.slots.remove(&job.caller);
            }
            Step::Parked => {}
            Step::Blocked(Block::Load { partition, offset }) if self.loading.len() < LOADS_MAX => {
                self.load(job, partition, offset);
            }
            Step::Blocked(Block::Index(lookups)) if self.loading.len() < LOADS_MAX => {
                self.look_up(job, lookups);
            }
            Step::Blocked(Block::Yield) => self.yielded.push_back(job),
            Step::Blocked(_) => self.blocked.push_front(job),
        }
        self.core.settle();
        self.collect_parked_answers();
    }

    fn load(&mut self, mut job: Job, partition: PartitionId, offset: Offset) {
        let state = &self.core.state;
        let partition_of = state.partitions.get(&partition);
        let Some(Ok(run)) = partition_of.and_then(|known| state.runs(known, offset).next()) else {
            // It was deleted between the decision and now: decide again.
            self.blocked.push_front(job);
            return;
        };
        let bytes = u64::from(run.bytes);
        if self.load_bytes > 0 && job.bytes == 0 && self.load_bytes + bytes > LOAD_BYTES_MAX {
            self.blocked.push_front(job);
            return;
        }
        self.next_id += 1;
        let key = self.next_id;
        job.loaded.push((partition, run.base));
        job.bytes += bytes;
        self.load_bytes += bytes;
        self.loading.insert(key, job);
        self.core.journal.load(&run, key);
    }

    fn look_up(&mut self, mut job: Job, mut lookups: Vec<Lookup>) {
        lookups.truncate(LOOKUPS_MAX);
        job.asked = lookups.iter().map(Lookup::segment).collect();
        job.asked.dedup();
        job.finds.extend(lookups.iter().filter(|lookup| matches!(lookup, Lookup::Find { .. })));
        self.next_id += 1;
        self.loading.insert(self.next_id, job);
        self.core.journal.look_up(self.next_id, lookups);
    }

    /// Asks for what parked polls need, one batch at a time.
    fn look_up_wanted(&mut self) {
        if self.looking.is_some() || self.core.wanted.is_empty() {
            return;
        }
        let most = self.core.wanted.len().min(LOOKUPS_MAX);
        let lookups = self.core.wanted.drain(..most).collect();
        self.next_id += 1;
        self.looking = Some(self.next_id);
        self.core.journal.look_up(self.next_id, lookups);
    }

    fn finish_lookups(&mut self) {
        for (key, answers) in self.core.journal.take_looked_up() {
            let mut failure = None;
            for (lookup, found) in answers {
                match found {
                    Ok(found) => self.core.answer_lookup(lookup, found),
                    // What is wanted is elsewhere by now: whoever waits for it looks again.
                    Err(_) if self.core.state.is_dropped(lookup.segment()) => {
                        self.core.rows_arrived(lookup.partition());
                    }
                    Err(error) => {
                        tracing::error!("cannot read an index: {error}");
                        self.core.expiry_unknown(lookup.partition());
                        failure = Some(error);
                    }
                }
            }
            if self.looking == Some(key) {
                self.looking = None;
            }
            let Some(job) = self.loading.remove(&key) else { continue };
            match failure {
                None => self.carry_on(job),
                // What was asked for moved on meanwhile: decide again.
                Some(_) if job.dropped_since(&self.core.state) => self.carry_on(job),
                Some(error) => {
                    self.forget(&job);
                    self.answer(job.caller, Reply::Failed(BrokerError::IndexUnreadable(error)));
                }
            }
        }
    }

    /// Has index files written for segments that were sealed, and gives the memory of rows back that they know.
    fn tend_index(&mut self) {
        let core = &mut self.core;
        for segment in core.journal.take_sealed() {
            if let Some(rows) = core.state.index.rows(segment) {
                core.journal.index(segment, rows);
            }
        }
        for segment in core.journal.take_indexed() {
            core.state.index.set_indexed(segment);
        }
        if let Some(filters) = core.journal.take_filters() {
            let replaced = core.state.index.set_tiers(filters);
            core.journal.drop_filters(replaced);
        }
        let most = core.journal.resident_bytes_max();
        let partitions = &mut core.state.partitions;
        core.state.index.evict(most, |partition, see| {
            if let Some(partition) = partitions.get_mut(&partition) {
                see(&mut partition.spans);
            }
        });
    }

    fn finish_loads(&mut self) {
        for (key, result) in self.core.journal.take_loaded() {
            let Some(job) = self.loading.remove(&key) else { continue };
            if let Some(at) = job.loaded.last() {
                if let Err(error) = &result {
                    tracing::error!("cannot read a message: {error}");
                }
                self.core.loaded.insert(*at, result.map_err(|error| error.to_string()));
            }
            self.carry_on(job);
        }
    }

    fn forget(&mut self, job: &Job) {
        self.load_bytes -= job.bytes;
        for at in &job.loaded {
            self.core.loaded.remove(at);
        }
        for lookup in &job.finds {
            self.core.finds.remove(lookup);
        }
    }

    fn answer(&mut self, caller: Caller, reply: Reply) {
        let seq = self.core.journal.staged();
        self.waiting.push_back((seq, caller, reply));
    }

    fn collect_parked_answers(&mut self) {
        let seq = self.core.journal.staged();
        for (caller, reply) in self.core.answers.drain(..) {
            self.waiting.push_back((seq, caller, reply));
        }
    }

    /// Moves the answers that the watermark covers into the batch.
    fn publish(&mut self) {
        let watermark = self.core.journal.watermark();
        while self.waiting.front().is_some_and(|(seq, ..)| *seq <= watermark) {
            if let Some((_, caller, reply)) = self.waiting.pop_front()
                && let Some(slot) = self.slots.remove(&caller)
            {
                self.batch.push((slot, reply));
            }
        }
    }

    fn send_batch(&mut self) {
        if !self.batch.is_empty() {
            // The receiver lives as long as the runtime; without it nobody waits for answers.
            let _ = self.answers.send(std::mem::take(&mut self.batch));
        }
    }

    fn fail_all(&mut self, cause: &str) {
        self.status.poison(cause);
        self.publish();
        let error = BrokerError::OutcomeUnknown(cause.to_owned());
        let mut slots: Vec<(Caller, ReplySlot)> = self.slots.drain().collect();
        slots.sort_unstable_by_key(|(caller, _)| *caller); // in the order of arrival, as every other answer
        for (_, slot) in slots {
            self.batch.push((slot, Reply::Failed(error.clone())));
        }
        while let Ok(request) = self.requests.try_recv() {
            if let Some(slot) = request.reply {
                self.batch.push((slot, Reply::Failed(error.clone())));
            }
        }
        self.send_batch();
    }
}
