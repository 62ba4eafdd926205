//! Completion-style operations on a simulated disk.
//!
//! Each attempt of a write and each sync behind it is an event of its own at a time of its own, so that completions come
//! in any order; what to do next is decided by the state machine that the real back ends share.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::machine::Machine;
use super::{SimFile, lock};
use crate::io::progress::{Progress, Step, Sync};
use crate::io::{AlignedBuf, BLOCK_BYTES, Completion, ManualClock, ReadAt, Ring, Waker};

/// Longest time that an attempt takes, in microseconds.
const SLOWEST_US: u64 = 300;

enum Operation {
    Write { file: Arc<SimFile>, position: u64, data: Arc<AlignedBuf>, progress: Progress, step: Step },
    Read { file: Arc<dyn ReadAt>, position: u64, bytes: usize },
}

/// Completion-style operations of one process.
pub struct SimRing {
    machine: Arc<Mutex<Machine>>,
    life: u64,
    clock: ManualClock,
    /// Time of this ring: what its waits have passed.
    now: u64,
    /// When the next attempt of each operation ends, and its token.
    queue: Vec<(u64, u64, Operation)>,
    waker: Waker,
}

impl SimRing {
    pub(super) fn new(machine: Arc<Mutex<Machine>>, life: u64, clock: ManualClock) -> io::Result<SimRing> {
        Ok(SimRing { machine, life, clock, now: 0, queue: Vec::new(), waker: Waker::new()? })
    }

    fn enqueue(&mut self, token: u64, operation: Operation) {
        let ends = self.now + lock(&self.machine).chance.below(SLOWEST_US);
        if self.queue.last().is_some_and(|(other, ..)| ends < *other) {
            lock(&self.machine).seen.reordered += 1;
        }
        self.queue.push((ends, token, operation));
    }

    fn pass(&mut self, until: u64) {
        if until > self.now {
            self.clock.advance_us(until - self.now);
            self.now = until;
        }
    }

    /// One attempt; the completion, or the operation that goes on.
    fn attempt(&self, operation: Operation) -> Result<io::Result<Option<bytes::Bytes>>, Operation> {
        match operation {
            Operation::Read { file, position, bytes } => Ok(file.read_at(position, bytes).map(Some)),
            Operation::Write { file, position, data, mut progress, step } => {
                let mut machine = lock(&self.machine);
                let step = match step {
                    Step::Write { from } => {
                        let rest = data.as_slice().get(from..).unwrap_or_default();
                        let wrote = machine.write_once(self.life, &file.inode, position + from as u64, rest);
                        let whole = wrote == Ok(rest.len());
                        progress.write_ended(wrote);
                        progress.sync_ended(if whole {
                            sync(&mut machine, self.life, &file)
                        } else {
                            Err(rustix::io::Errno::CANCELED)
                        })
                    }
                    Step::Sync => progress.sync_ended(sync(&mut machine, self.life, &file)),
                    other => other,
                };
                match step {
                    Step::Done => Ok(Ok(None)),
                    Step::Failed(failure) => Ok(Err(failure.error())),
                    step => Err(Operation::Write { file, position, data, progress, step }),
                }
            }
        }
    }
}

fn sync(machine: &mut Machine, life: u64, file: &SimFile) -> Result<(), rustix::io::Errno> {
    machine.sync(life, &file.inode).map_err(|_| rustix::io::Errno::IO)
}

impl Drop for SimRing {
    /// Writes in flight leave a part.
    fn drop(&mut self) {
        let mut machine = lock(&self.machine);
        if machine.life != self.life {
            return;
        }
        for (_, _, operation) in self.queue.drain(..) {
            if let Operation::Write { file, position, data, .. } = operation {
                machine.seen.partial_in_flight += 1;
                let blocks = machine.chance.index(data.len().div_ceil(BLOCK_BYTES) + 1);
                let part = data.as_slice().get(..blocks * BLOCK_BYTES).unwrap_or(data.as_slice());
                lock(&file.inode).write(position, part);
            }
        }
    }
}

impl Ring for SimRing {
    type File = SimFile;

    fn write_sync(&mut self, file: &Arc<SimFile>, position: u64, data: Arc<AlignedBuf>, token: u64) {
        let (progress, step) = Progress::start(data.len(), Sync::Chained);
        self.enqueue(token, Operation::Write { file: Arc::clone(file), position, data, progress, step });
    }

    fn read(&mut self, file: &Arc<dyn ReadAt>, position: u64, bytes: usize, token: u64) {
        self.enqueue(token, Operation::Read { file: Arc::clone(file), position, bytes });
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()> {
        let limit = timeout
            .map(|timeout| self.now.saturating_add(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX)));
        let first = self.queue.iter().map(|(ends, ..)| *ends).min();
        let until = if self.waker.disarm() {
            self.now + 30 // a turn takes some time
        } else {
            // However busy the caller is, looking takes time too.
            limit.into_iter().chain(first).min().unwrap_or(self.now).max(self.now + 1)
        };
        self.pass(until);
        let now = self.now;
        let (mut due, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.queue).into_iter().partition(|(ends, ..)| *ends <= now);
        self.queue = waiting;
        due.sort_by_key(|(ends, token, _)| (*ends, *token));
        for (_, token, operation) in due {
            match self.attempt(operation) {
                Ok(result) => out.push(Completion { token, result }),
                Err(operation) => self.enqueue(token, operation),
            }
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn name(&self) -> &'static str {
        "sim"
    }
}
