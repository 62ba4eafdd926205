//! One history: a disk, a clock, a process that dies and starts again, clients, and the oracle.
//!
//! Invariants:
//! - Everything that happens follows from the seed.
//! - An answer is judged before the next one is taken, in the order in which storage decided.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use comb::broker::command::{Command, Presence, Reply};
use comb::broker::handle::{Answer, DeliveryGuard, Request};
use comb::broker::start::StartError;
use comb::broker::state::State;
use comb::broker::storage::Ended;
use comb::engine::Layout;
use comb::engine::machine::Machine;
use comb::engine::recovery::{RecoveryError, recover};
use comb::io::sim::{Crash, Faults, SimDisk};
use comb::io::{Clock, Fs, ManualClock};
use comb::types::{LogId, PartitionId};
use tokio::sync::oneshot;

use crate::audit::audit;
use crate::chance::Chance;
use crate::failure::{Failure, Invariant, check};
use crate::oracle::model::{CommandId, Lane};
use crate::oracle::{Oracle, SentAck, SentGroup};
use crate::process::Process;
use crate::profile::{self, Options, Profile, Weather};

/// One in so many steps everything on the disk is looked at.
const AUDIT_ONE_IN: u64 = 30;

/// Steps without any client, after so many microseconds at least, each so long.
const QUIET_STEPS: u64 = 60;
const QUIET_US: u64 = 1_000_000_000;
const QUIET_STEP_US: u64 = 200_000;

/// Steps in which everything must end once faults have stopped.
const STEPS_TO_END: u32 = 20_000;

/// What a command asked for.
#[derive(Clone, Debug)]
pub enum Asked {
    /// Store messages.
    Push(Vec<SentGroup>),
    /// Deliver messages.
    Pop {
        /// Index of the queue; `None` on discovery.
        queue: Option<usize>,
        /// Index of the group; `None` for a reader that only the end knows.
        group: Option<usize>,
        /// Committed at delivery.
        auto: bool,
        /// Least length of the lease.
        seconds: u32,
        /// To say that the client left.
        presence: Arc<Presence>,
        /// To cancel it.
        ticket: comb::broker::command::PopTicket,
    },
    /// Acknowledge.
    Ack(Vec<SentAck>),
    /// Extend a lease.
    Extend {
        /// The lease.
        lease: comb::types::LeaseId,
        /// By so much.
        seconds: u32,
    },
    /// Acknowledge and store.
    Transaction(Vec<SentAck>, Vec<SentGroup>),
    /// Set options.
    Configure(usize, Options),
    /// Delete a queue.
    Delete(usize),
    /// List dead letters.
    DeadLetters,
}

/// A command without an answer.
#[derive(Debug)]
pub struct Outstanding {
    /// Its number.
    pub id: CommandId,
    /// What it asked.
    pub asked: Asked,
    /// When it was sent.
    pub sent: u64,
    receiver: oneshot::Receiver<Answer>,
}

/// A claim that a client still holds, as far as it knows.
#[derive(Clone, Debug)]
pub struct Holding {
    /// The lane.
    pub lane: Lane,
    /// Index of the group.
    pub group: usize,
    /// The lease.
    pub lease: comb::types::LeaseId,
    /// The partition's id.
    pub partition: PartitionId,
    /// Offsets and transaction ids.
    pub messages: Vec<(u64, String)>,
}

/// What a history was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commands sent.
    pub commands: u64,
    /// Commands answered.
    pub answers: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Processes that started.
    pub starts: u64,
    /// Starts that were interrupted.
    pub interrupted: u64,
}

/// What a history came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Hash of the disk at the end.
    pub disk: u64,
    /// Hash of the whole history, answers included.
    pub history: u64,
    /// What it was made of.
    pub stats: Stats,
}

/// A history.
pub struct World {
    pub(crate) profile: Profile,
    pub(crate) chance: Chance,
    pub(crate) disk: SimDisk,
    clock: Clock,
    hands: ManualClock,
    /// Boot time that earlier boots of the machine added up to.
    earlier_us: u64,
    ids_seed: u64,
    pub(crate) process: Option<Process>,
    pub(crate) oracle: Oracle,
    pub(crate) outstanding: Vec<Outstanding>,
    pub(crate) holdings: Vec<Holding>,
    pub(crate) old_holdings: Vec<Holding>,
    pub(crate) next_command: CommandId,
    pub(crate) next_transaction: u64,
    /// Transactions of this process whose clients left.
    pub(crate) left_transactions: u64,
    pub(crate) transactions: BTreeSet<CommandId>,
    /// The log's id, which seeds the hashes of transaction ids.
    pub(crate) log: LogId,
    pub(crate) stats: Stats,
    /// Bytes of the disk; 0 is without end.
    capacity_bytes: u64,
    /// Bytes were changed: what cannot be read is counted, not judged.
    pub(crate) damaged: bool,
    /// Pieces that could not be read since.
    pub(crate) isolated: u64,
    history: String,
}

impl World {
    /// The history of a seed, before it begins.
    #[must_use]
    pub fn new(seed: u64) -> World {
        let profile = Profile::new(seed);
        let (clock, hands) = Clock::manual(1_000_000, 1_700_000_000_000_000);
        let disk = SimDisk::new(seed, Faults::none());
        World {
            oracle: Oracle::new(&profile.options),
            profile,
            chance: Chance::new(seed, 2),
            disk,
            clock,
            hands,
            earlier_us: 0,
            ids_seed: seed,
            process: None,
            outstanding: Vec::new(),
            holdings: Vec::new(),
            old_holdings: Vec::new(),
            next_command: 1,
            next_transaction: 1,
            left_transactions: 0,
            transactions: BTreeSet::new(),
            log: LogId(0),
            stats: Stats::default(),
            capacity_bytes: 0,
            damaged: false,
            isolated: 0,
            history: String::new(),
        }
    }

    /// Runs the whole history and judges it.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn run(&mut self) -> Result<Finished, Failure> {
        self.begin()?;
        self.finish()?;
        Ok(Finished {
            disk: self.disk.digest(),
            history: xxhash_rust::xxh3::xxh3_64(self.history.as_bytes()),
            stats: self.stats,
        })
    }

    /// The history but for its end.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        self.start(false)?;
        self.configure_all()?;
        for _ in 0..self.profile.steps {
            self.act()?;
        }
        Ok(())
    }

    pub(crate) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        let now = self.now();
        tracing::info!("{now:>12} {what}");
        // Writing to a string cannot fail.
        let _ = writeln!(self.history, "{now:>12} {what}");
    }

    /// Time that passed, whatever the machine's clocks were set to.
    pub(crate) fn now(&self) -> u64 {
        self.earlier_us + self.clock.boot_us()
    }

    fn act(&mut self) -> Result<(), Failure> {
        let pause = self.chance.pick(&[0, 1, 20, 200]);
        self.hands.advance_us(pause);
        if self.chance.one_in(self.profile.crash_one_in) {
            let operations = self.chance.below(30);
            self.note(format_args!("crash armed in {operations} operations"));
            self.disk.crash_after(operations);
        }
        match self.chance.below(100) {
            0..=39 => self.client()?,
            40..=74 => self.step(false)?,
            75..=81 => self.step(true)?,
            82..=91 => {
                if let Some(process) = &mut self.process {
                    process.maintain();
                }
            }
            92..=95 => {
                let us = self.chance.pick(&[10, 1_000, 100_000, 1_500_000, 40_000_000, 4_000_000_000]);
                let us = self.chance.below(us);
                self.note(format_args!("{us} us pass"));
                self.hands.advance_us(us);
                if self.chance.one_in(4) {
                    self.set_the_wall_clock();
                }
                if us > QUIET_US && self.chance.one_in(3) {
                    self.quiet_spell()?;
                }
            }
            96..=97 => self.leave(),
            98 if self.chance.one_in(3) => self.end_cleanly()?,
            98 => self.change_weather(),
            _ if self.chance.one_in(3) => self.die_and_start("killed")?,
            _ => {}
        }
        if self.chance.one_in(AUDIT_ONE_IN) {
            self.audit()?;
        }
        if self.disk.crashed() {
            self.die_and_start("the power failed")?;
        }
        Ok(())
    }

    /// Nothing durable, and nothing promised, rests on what is not durable.
    fn audit(&self) -> Result<(), Failure> {
        let Some(process) = &self.process else { return Ok(()) };
        let layout = Layout::new(&self.profile.settings.data);
        audit(&self.disk, &layout, self.log, process.watermark())
            .map_err(|error| Failure::new(Invariant::Durable, error))
    }

    fn change_weather(&mut self) {
        let faults = match self.profile.weather {
            Weather::Stormy if self.chance.one_in(2) => Faults::storms(),
            Weather::Stormy | Weather::Calm => Faults::crashes_only(),
        };
        self.capacity_bytes = match self.profile.tight && self.chance.one_in(2) {
            true => {
                self.disk.used_bytes() + self.chance.below(4 * self.profile.settings.engine.segment_bytes)
            }
            false => 0,
        };
        self.set_faults(faults);
    }

    fn set_faults(&self, faults: Faults) {
        self.disk.set_faults(Faults { capacity_bytes: self.capacity_bytes, ..faults });
    }

    /// Nobody asks anything for a while, so that space comes back; then the process may die.
    fn quiet_spell(&mut self) -> Result<(), Failure> {
        self.note(format_args!("a quiet spell"));
        for _ in 0..self.chance.below(QUIET_STEPS) {
            if let Some(process) = &mut self.process {
                process.maintain();
            }
            self.step(true)?;
            self.hands.advance_us(QUIET_STEP_US);
        }
        if self.chance.one_in(2) { self.die_and_start("killed in a quiet spell") } else { Ok(()) }
    }

    /// An index file may be removed by anybody while the daemon is down, and the disk may be full to the last byte.
    fn lose_an_index(&mut self) -> Result<(), Failure> {
        let files = self.disk.files();
        let indexes: Vec<_> =
            files.iter().filter(|path| path.extension().is_some_and(|e| e == "idx")).collect();
        if !indexes.is_empty() {
            let index = self.chance.index(indexes.len());
            if let Some(path) = indexes.get(index) {
                self.note(format_args!("{} is removed", path.display()));
                let removed = self.disk.fs().remove(path);
                removed.map_err(|error| Failure::new(Invariant::Recovery, error.to_string()))?;
            }
        }
        self.capacity_bytes = self.disk.used_bytes();
        self.set_faults(Faults::crashes_only());
        Ok(())
    }

    fn set_the_wall_clock(&mut self) {
        const DAY_US: u64 = 86_400_000_000;
        let wall = self.clock.wall_us();
        let wall = match self.chance.below(4) {
            0 => wall - DAY_US,
            1 => wall + 400 * DAY_US,
            2 => wall - self.chance.below(5_000_000),
            _ => wall + self.chance.below(5_000_000),
        };
        self.note(format_args!("the wall clock is set to {wall}"));
        self.hands.set_wall_us(wall);
    }

    /// One turn of the storage thread, and its answers judged.
    pub(crate) fn step(&mut self, may_wait: bool) -> Result<(), Failure> {
        let Some(process) = &mut self.process else { return Ok(()) };
        let ended = if may_wait { process.step() } else { process.step_awake() };
        self.take_answers()?;
        match ended {
            None => Ok(()),
            Some(Ended::Cleanly) => self.die_and_start("ended cleanly"),
            Some(Ended::Poisoned(cause)) => {
                self.note(format_args!("poisoned: {cause}"));
                check(
                    self.profile.weather == Weather::Stormy || self.disk.crashed(),
                    Invariant::Progress,
                    || format!("storage failed without a fault: {cause}"),
                )?;
                self.die_and_start("poisoned")
            }
        }
    }

    /// Hands out the answers of the last turn one by one and judges each.
    pub(crate) fn take_answers(&mut self) -> Result<(), Failure> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let mut result = Ok(());
        process.take_answers(|| {
            if result.is_ok() {
                result = self.take_answer();
            }
        });
        self.process = Some(process);
        result
    }

    fn take_answer(&mut self) -> Result<(), Failure> {
        let mut found = None;
        for (index, outstanding) in self.outstanding.iter_mut().enumerate() {
            if let Ok(answer) = outstanding.receiver.try_recv() {
                found = Some((index, answer));
                break;
            }
        }
        // Its client left.
        let Some((index, answer)) = found else { return Ok(()) };
        let outstanding = self.outstanding.remove(index);
        let (reply, guard) = answer.split();
        self.stats.answers += 1;
        self.answered(&outstanding, reply, guard)
    }

    /// Sends a command; what it asks is the oracle's already.
    pub(crate) fn send(&mut self, command: Command, asked: Asked, id: CommandId) -> Result<(), Failure> {
        let sent = self.now();
        let Some(process) = &self.process else { return self.not_sent(id, &asked) };
        let (sender, receiver) = oneshot::channel();
        self.stats.commands += 1;
        match process.handle.send(Request { command, reply: Some(sender) }) {
            Ok(()) => self.outstanding.push(Outstanding { id, asked, sent, receiver }),
            Err(error) => {
                self.note(format_args!("command {id} was not taken: {error}"));
                self.not_sent(id, &asked)?;
            }
        }
        Ok(())
    }

    /// A client goes away, with or without a word.
    fn leave(&mut self) {
        if self.outstanding.is_empty() {
            return;
        }
        let index = self.chance.index(self.outstanding.len());
        let left = self.outstanding.remove(index);
        self.note(format_args!("the client of {} leaves", left.id));
        if let (Asked::Pop { presence, ticket, .. }, Some(process)) = (&left.asked, &self.process) {
            presence.leave();
            // As in the handle: the flag alone keeps anything from being claimed.
            let _ = process.handle.send(Request { command: Command::Gone(*ticket), reply: None });
        }
        if matches!(left.asked, Asked::Transaction(..)) {
            self.left_transactions += 1;
        }
        self.oracle.abandoned(left.id);
    }

    fn end_cleanly(&mut self) -> Result<(), Failure> {
        self.note(format_args!("asked to stop"));
        let life = self.oracle.model.life;
        if let Some(process) = &self.process {
            process.stop();
        }
        for _ in 0..STEPS_TO_END {
            if self.oracle.model.life != life {
                return Ok(());
            }
            if let Some(process) = &mut self.process {
                process.maintain();
            }
            self.step(true)?;
            if self.disk.crashed() {
                return self.die_and_start("the power failed");
            }
        }
        // A file that cannot be prepared may hold the end up until it is killed, as `daemon` does after its deadline.
        let excused = self.profile.weather == Weather::Stormy || self.capacity_bytes > 0;
        check(excused, Invariant::Progress, || {
            let waiting: Vec<_> = self.outstanding.iter().map(|one| (one.id, &one.asked)).collect();
            format!("it does not stop, and these have no answer: {waiting:?}")
        })?;
        self.die_and_start("killed because it did not stop")
    }

    /// The process is gone; the machine too, perhaps. Then another one starts.
    pub(crate) fn die_and_start(&mut self, why: &str) -> Result<(), Failure> {
        self.die(why);
        self.start(true)
    }

    pub(crate) fn die(&mut self, why: &str) {
        self.note(format_args!("{why}"));
        let power = self.chance.one_in(2);
        self.disk.crash();
        self.process = None;
        self.outstanding.clear();
        self.left_transactions = 0;
        self.oracle.died();
        self.settle(power);
    }

    fn settle(&mut self, power: bool) {
        self.disk.settle(if power { Crash::Power } else { Crash::Kill });
        if power {
            // The machine booted.
            self.earlier_us += self.clock.boot_us();
            self.hands.set_boot_us(0);
            let us = self.chance.below(60_000_000);
            self.hands.advance_us(us);
        }
    }

    fn start(&mut self, again: bool) -> Result<(), Failure> {
        if again && self.profile.tight && self.chance.one_in(3) {
            self.lose_an_index()?;
        }
        if again && self.profile.resettled && self.chance.one_in(3) {
            let engine = profile::engine(&mut self.chance);
            self.note(format_args!("other settings: {engine:?}"));
            self.profile.settings.engine = engine;
        }
        for attempt in 0..8_u32 {
            let gentle = attempt >= 5;
            if gentle || self.profile.weather == Weather::Calm {
                self.set_faults(Faults::crashes_only());
            }
            self.disk.crash_after(u64::MAX);
            if again && !gentle && self.chance.one_in(3) {
                let operations = self.chance.below(80);
                self.disk.crash_after(operations);
            }
            if again && self.chance.one_in(6) && self.recover_twice(gentle)? {
                continue;
            }
            match self.start_once() {
                Ok(()) if !self.disk.crashed() => {
                    self.stats.starts += 1;
                    self.note(format_args!("started"));
                    return Ok(());
                }
                Ok(()) => {
                    self.process = None;
                    self.interrupted();
                }
                Err(error) => {
                    self.refused_start(&error, gentle)?;
                    self.interrupted();
                }
            }
        }
        Err(Failure::new(Invariant::Recovery, "eight starts in a row failed"))
    }

    pub(crate) fn start_once(&mut self) -> Result<(), StartError> {
        self.ids_seed = self.ids_seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let process =
            Process::start(&self.disk, &self.clock, &self.hands, self.ids_seed, &self.profile.settings)?;
        self.log = process.handle.log();
        self.process = Some(process);
        Ok(())
    }

    fn interrupted(&mut self) {
        self.stats.interrupted += 1;
        self.note(format_args!("the start is interrupted"));
        let power = self.chance.one_in(2);
        self.disk.crash();
        self.settle(power);
    }

    /// Whether a start may be refused like this.
    fn refused_start(&mut self, error: &StartError, gentle: bool) -> Result<(), Failure> {
        self.note(format_args!("start refused: {error}"));
        let faults = self.profile.weather == Weather::Stormy && !gentle;
        let excused = match error {
            _ if self.disk.crashed() => true,
            StartError::Io(_) | StartError::Recovery(RecoveryError::Io(_)) => faults,
            // Neither of the two could be read.
            StartError::Recovery(RecoveryError::Checkpoint { .. }) => faults,
            StartError::Recovery(_) => false,
        };
        check(excused, Invariant::Recovery, || format!("the start is refused: {error}"))
    }

    /// Recovers twice without work between and compares; whether it was interrupted.
    fn recover_twice(&mut self, gentle: bool) -> Result<bool, Failure> {
        let mut before: Option<(u64, u64, Vec<String>)> = None;
        for _ in 0..2 {
            let fs = self.disk.fs();
            let layout = Layout::new(&self.profile.settings.data);
            let engine = self.profile.settings.engine.clone();
            let recovered = recover::<State, _>(&fs, &layout, &engine, LogId(1), &|_, _| {});
            if self.disk.crashed() {
                self.interrupted();
                return Ok(true);
            }
            match recovered {
                Ok(recovered) => {
                    let mut records = Vec::new();
                    recovered.machine.snapshot(&mut |delta| records.push(format!("{delta:?}")));
                    records.sort();
                    let state = (recovered.parts.last_seq.0, recovered.parts.log_time.0, records);
                    if let Some(before) = &before {
                        check(*before == state, Invariant::Recovery, || {
                            format!("two recoveries in a row differ:\n{before:?}\n{state:?}")
                        })?;
                    }
                    before = Some(state);
                }
                Err(error) => {
                    self.refused_start(&StartError::Recovery(error), gentle)?;
                    self.interrupted();
                    return Ok(true);
                }
            }
        }
        self.note(format_args!("recovered twice"));
        Ok(false)
    }

    /// No fault from here on.
    pub(crate) fn stop_faults(&mut self) {
        self.profile.weather = Weather::Calm;
        self.capacity_bytes = 0;
        self.set_faults(Faults::none());
        self.disk.crash_after(u64::MAX);
        self.note(format_args!("faults stop"));
    }

    /// The process dies once more and starts without faults.
    pub(crate) fn calm_down(&mut self) -> Result<(), Failure> {
        self.stop_faults();
        self.die("the last crash");
        self.start(false)?;
        self.stop_faults();
        Ok(())
    }

    /// Lets everything outstanding end.
    pub(crate) fn run_dry(&mut self) -> Result<(), Failure> {
        for _ in 0..STEPS_TO_END {
            if self.outstanding.is_empty() {
                return Ok(());
            }
            if let Some(process) = &mut self.process {
                while process.maintain() {}
            }
            self.step(true)?;
        }
        let waiting: Vec<_> = self.outstanding.iter().map(|one| (one.id, &one.asked)).collect();
        Err(Failure::new(Invariant::Progress, format!("no answer in {STEPS_TO_END} steps: {waiting:?}")))
    }

    /// Sends a command of the end and waits for its answer.
    pub(crate) fn call(&mut self, command: Command) -> Result<(Reply, DeliveryGuard), Failure> {
        let (sender, mut receiver) = oneshot::channel();
        let Some(process) = &mut self.process else {
            return Err(Failure::new(Invariant::Progress, "no process at the end"));
        };
        if let Err(error) = process.handle.send(Request { command, reply: Some(sender) }) {
            return Err(Failure::new(Invariant::Progress, format!("not taken at the end: {error}")));
        }
        for _ in 0..STEPS_TO_END {
            while process.maintain() {}
            let ended = process.step();
            process.take_answers(|| {});
            if let Ok(answer) = receiver.try_recv() {
                return Ok(answer.split());
            }
            check(ended.is_none(), Invariant::Progress, || format!("ended at the end: {ended:?}"))?;
        }
        Err(Failure::new(Invariant::Progress, "no answer at the end"))
    }

    /// Moves the clocks.
    pub(crate) fn pass(&mut self, us: u64) {
        self.hands.advance_us(us);
    }
}
