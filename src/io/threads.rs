//! The back end without io_uring: threads with positional writes and data syncs.
//!
//! Purpose: the same guarantees where io_uring is not to be had.
//!
//! Invariants: those of `Ring`. Operations run in any order, each on one worker thread from start to end.
//!
//! Must not: differ from `uring` in anything that a caller can observe but speed and name.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::fs::check_aligned;
use super::pool::{Job, Pool};
use super::{AlignedBuf, Completion, DirectFile, ReadAt, Ring, SyncMode, Waker, ring_is_full, with_path};

/// Fewest worker threads: two group commits of two files each.
const MIN_WORKERS: usize = 4;

/// Most worker threads; more operations than that wait for a free one.
const MAX_WORKERS: usize = 16;

/// A `Ring` on worker threads.
pub struct ThreadsRing {
    pool: Pool,
    waker: Waker,
    mode: SyncMode,
    capacity: usize,
    unfinished: usize,
    queued: Vec<Job>,
    /// Refused before they were queued.
    refused: Vec<Completion>,
}

impl ThreadsRing {
    /// Starts the worker threads. At most `capacity` operations (at least 1) may be unfinished; one more is
    /// completed with an error and not done.
    ///
    /// # Errors
    /// When the process may not start threads or open a file descriptor.
    pub fn new(capacity: usize, mode: SyncMode) -> io::Result<ThreadsRing> {
        let capacity = capacity.max(1);
        let waker = Waker::new()?;
        let workers = capacity.clamp(MIN_WORKERS, MAX_WORKERS);
        Ok(ThreadsRing {
            pool: Pool::start("comb-io", workers, capacity, waker.clone())?,
            waker,
            mode,
            capacity,
            unfinished: 0,
            queued: Vec::with_capacity(capacity),
            refused: Vec::new(),
        })
    }

    fn queue(&mut self, job: Job, token: u64) {
        if self.unfinished >= self.capacity {
            self.refused.push(Completion { token, result: Err(ring_is_full(self.capacity)) });
            return;
        }
        self.unfinished += 1;
        self.queued.push(job);
    }

    fn take_done(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.refused);
        self.unfinished -= self.pool.take_done(out);
    }

    /// Blocks until the eventfd is readable or the time is up, and empties it.
    fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [PollFd::from_borrowed_fd(self.waker.eventfd(), PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => match rustix::io::read(self.waker.eventfd(), &mut [0u8; 8]) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(errno) => Err(errno.into()),
            },
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Ring for ThreadsRing {
    type File = DirectFile;

    fn write_sync(&mut self, file: &Arc<DirectFile>, position: u64, data: Arc<AlignedBuf>, token: u64) {
        if let Err(error) = check_aligned(position, data.len()) {
            let error = with_path(&error, "writing", file.path());
            self.refused.push(Completion { token, result: Err(error) });
            return;
        }
        self.queue(Job::WriteSync { file: Arc::clone(file), position, data, mode: self.mode, token }, token);
    }

    fn read(&mut self, file: &Arc<dyn ReadAt>, position: u64, bytes: usize, token: u64) {
        self.queue(Job::Read { file: Arc::clone(file), position, bytes, token }, token);
    }

    fn submit(&mut self) -> io::Result<()> {
        self.pool.hand_over(&mut self.queued);
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()> {
        let started = Instant::now();
        let had = out.len();
        self.submit()?;
        let mut woken = self.waker.disarm();
        loop {
            self.take_done(out);
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            if woken || out.len() > had || left == Some(Duration::ZERO) {
                return Ok(());
            }
            if self.waker.arm() {
                let slept = self.sleep(left);
                woken = self.waker.disarm();
                slept?;
            } else {
                woken = self.waker.disarm();
            }
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}

impl Drop for ThreadsRing {
    fn drop(&mut self) {
        // The pool finishes what it was given before its threads end.
        self.pool.hand_over(&mut self.queued);
    }
}
