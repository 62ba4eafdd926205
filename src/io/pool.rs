//! Worker threads that do blocking operations and report them to one waiting thread.
//!
//! Purpose: all operations of the `threads` back end, and the reads of the `uring` back end, whose sources are
//! arbitrary `ReadAt`s that the kernel knows nothing of.
//!
//! Invariants:
//! - A job owns its file and its buffer until its result is in the done list.
//! - A result is in the done list before the waker is called, so a woken sleeper finds it.
//! - Dropping the pool finishes every job that was handed over, then ends the threads.
//! - Queue and done list are bounded by the capacity of the ring that owns the pool.
//!
//! Must not: reorder or merge anything; jobs are independent of each other.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::{AlignedBuf, Completion, DirectFile, ReadAt, SyncMode, Waker};

/// One blocking operation.
pub(super) enum Job {
    /// Write, sync, report.
    WriteSync { file: Arc<DirectFile>, position: u64, data: Arc<AlignedBuf>, mode: SyncMode, token: u64 },
    /// Read, report.
    Read { file: Arc<dyn ReadAt>, position: u64, bytes: usize, token: u64 },
}

impl Job {
    fn run(self) -> Completion {
        match self {
            Job::WriteSync { file, position, data, mode, token } => {
                Completion { token, result: file.write_sync_at(position, &data, mode).map(|()| None) }
            }
            Job::Read { file, position, bytes, token } => {
                Completion { token, result: file.read_at(position, bytes).map(Some) }
            }
        }
    }
}

/// The threads and what they share with the owner.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    todo: Mutex<Todo>,
    work: Condvar,
    done: Mutex<Vec<Completion>>,
    waker: Waker,
}

struct Todo {
    jobs: VecDeque<Job>,
    closing: bool,
}

impl Pool {
    /// Starts `threads` threads named `name`. At most `capacity` jobs will be unfinished.
    pub(super) fn start(name: &str, threads: usize, capacity: usize, waker: Waker) -> io::Result<Pool> {
        let mut pool = Pool {
            shared: Arc::new(Shared {
                todo: Mutex::new(Todo { jobs: VecDeque::with_capacity(capacity), closing: false }),
                work: Condvar::new(),
                done: Mutex::new(Vec::with_capacity(capacity)),
                waker,
            }),
            threads: Vec::with_capacity(threads),
        };
        for _ in 0..threads {
            let shared = Arc::clone(&pool.shared);
            // On a failure the pool is dropped, which ends the threads that did start.
            pool.threads.push(Builder::new().name(name.to_owned()).spawn(move || work(&shared))?);
        }
        Ok(pool)
    }

    /// Hands over jobs, leaving `jobs` empty.
    pub(super) fn hand_over(&self, jobs: &mut Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let many = jobs.len() > 1;
        lock(&self.shared.todo).jobs.extend(jobs.drain(..));
        if many {
            self.shared.work.notify_all();
        } else {
            self.shared.work.notify_one();
        }
    }

    /// Moves finished operations to `out` and says how many.
    pub(super) fn take_done(&self, out: &mut Vec<Completion>) -> usize {
        let mut done = lock(&self.shared.done);
        let taken = done.len();
        out.append(&mut done);
        taken
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.todo).closing = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panicked worker has said so itself, and there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    loop {
        let job = {
            let mut todo = lock(&shared.todo);
            loop {
                if let Some(job) = todo.jobs.pop_front() {
                    break job;
                }
                if todo.closing {
                    return;
                }
                todo = shared.work.wait(todo).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let completion = job.run();
        lock(&shared.done).push(completion);
        shared.waker.wake();
    }
}

/// Locks; a panic elsewhere leaves these lists valid, since each change of them is one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
