//! What to do next with a write that wants to be durable, whatever the kernel has answered so far.
//!
//! Purpose: the decisions of short writes, interruptions, broken links and failures, apart from any system
//! call, so that both back ends share them and a test can feed them any sequence of results.
//!
//! Invariants:
//! - `Step::Done` only when every byte was written and, with `Sync::Chained`, a sync that started after the last
//!   write's end has succeeded.
//! - A failed write or sync ends the operation; nothing is issued after it. Only EINTR, EAGAIN, short writes and
//!   a sync that its broken link cancelled go on, and only `MAX_STALLS` times in a row without progress.
//! - A step is given only when every result that was outstanding has been reported, so buffers are free to go
//!   with `Done` and `Failed`.
//!
//! Must not: make system calls.

use std::io;

use rustix::io::Errno;

use super::BLOCK_BYTES;

/// Results without progress in a row after which an operation gives up.
const MAX_STALLS: u16 = 100;

/// What makes the bytes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sync {
    /// A data sync behind each write: a write is answered by two results, the sync's usually second.
    Chained,
    /// The write itself (or nothing at all): a write is answered by one result.
    Within,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Results are outstanding.
    Wait,
    /// Write the bytes from here to the end; with `Sync::Chained`, with a sync linked behind.
    Write {
        /// Bytes to leave out at the front; a multiple of `BLOCK_BYTES`.
        from: usize,
    },
    /// Only sync.
    Sync,
    /// Finished.
    Done,
    /// Failed for good.
    Failed(Failure),
}

/// Why an operation failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// What the operating system said to the write.
    Write(Errno),
    /// What the operating system said to the sync.
    Sync(Errno),
    /// Neither an error nor progress, too often.
    Stalled {
        /// Bytes that were written.
        written: usize,
    },
}

impl Failure {
    /// The error to report.
    pub(super) fn error(&self) -> io::Error {
        match self {
            Failure::Write(errno) | Failure::Sync(errno) => io::Error::from(*errno),
            Failure::Stalled { written } => io::Error::new(
                io::ErrorKind::WriteZero,
                format!("no progress in {MAX_STALLS} attempts after {written} bytes"),
            ),
        }
    }

    /// What was being done, for the error's text.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Failure::Write(_) | Failure::Stalled { .. } => "writing",
            Failure::Sync(_) => "syncing after writing",
        }
    }
}

/// One write on its way.
#[derive(Debug)]
pub(super) struct Progress {
    length: usize,
    written: usize,
    sync: Sync,
    outstanding: u8,
    write_result: Option<Result<usize, Errno>>,
    sync_result: Option<Result<(), Errno>>,
    /// The sync may have run before its write ended: its success proves nothing.
    distrust_sync: bool,
    stalls: u16,
}

impl Progress {
    /// A write of `length` bytes, a multiple of `BLOCK_BYTES`, and its first step.
    pub(super) fn start(length: usize, sync: Sync) -> (Progress, Step) {
        let mut progress = Progress {
            length,
            written: 0,
            sync,
            outstanding: 0,
            write_result: None,
            sync_result: None,
            distrust_sync: false,
            stalls: 0,
        };
        let step = progress.write();
        (progress, step)
    }

    /// The result of a write.
    pub(super) fn write_ended(&mut self, result: Result<usize, Errno>) -> Step {
        self.distrust_sync |= self.sync_result.is_some();
        self.write_result = Some(result);
        self.ended()
    }

    /// The result of a sync.
    pub(super) fn sync_ended(&mut self, result: Result<(), Errno>) -> Step {
        self.sync_result = Some(result);
        self.ended()
    }

    /// Says that the kernel may have taken the write without the sync linked to it.
    pub(super) fn link_in_doubt(&mut self) {
        self.distrust_sync |= self.outstanding > 0;
    }

    /// Whether the kernel still owes a result, so that the buffer has to stay.
    pub(super) fn is_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    fn ended(&mut self) -> Step {
        debug_assert!(self.outstanding > 0, "a result that nobody asked for");
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding > 0 {
            return Step::Wait;
        }
        let sync = self.sync_result.take();
        if let Some(Err(errno)) = sync
            && !passing(errno)
        {
            // The write's own failure is the better explanation of the two.
            return match self.write_result.take() {
                Some(Err(write)) if !passing(write) => Step::Failed(Failure::Write(write)),
                _ => Step::Failed(Failure::Sync(errno)),
            };
        }
        match self.write_result.take() {
            Some(Err(errno)) if passing(errno) && errno != Errno::CANCELED => {
                return if self.stalled() { self.give_up() } else { self.write() };
            }
            Some(Err(errno)) => return Step::Failed(Failure::Write(errno)),
            Some(Ok(bytes)) => {
                let total = self.written.saturating_add(bytes);
                if total < self.length {
                    // A short write may end anywhere; the next one has to start on a block again.
                    let whole = total - total % BLOCK_BYTES;
                    let progressed = whole > self.written;
                    self.written = whole;
                    if progressed {
                        self.stalls = 0;
                    } else if self.stalled() {
                        return self.give_up();
                    }
                    return self.write();
                }
                self.written = self.length;
            }
            None => {}
        }
        match (self.sync, sync) {
            (Sync::Within, _) => Step::Done,
            (Sync::Chained, Some(Ok(()))) if !self.distrust_sync => Step::Done,
            (Sync::Chained, Some(Ok(())) | None) => self.sync(),
            (Sync::Chained, Some(Err(_))) => {
                if self.stalled() {
                    self.give_up()
                } else {
                    self.sync()
                }
            }
        }
    }

    fn write(&mut self) -> Step {
        self.distrust_sync = false;
        self.outstanding = match self.sync {
            Sync::Chained => 2,
            Sync::Within => 1,
        };
        Step::Write { from: self.written }
    }

    fn sync(&mut self) -> Step {
        self.distrust_sync = false;
        self.outstanding = 1;
        Step::Sync
    }

    fn stalled(&mut self) -> bool {
        self.stalls += 1;
        self.stalls >= MAX_STALLS
    }

    fn give_up(&self) -> Step {
        Step::Failed(Failure::Stalled { written: self.written })
    }
}

/// Whether a result says nothing about the disk: it was interrupted, would have blocked, or was never started
/// because the write before it in the link fell short.
fn passing(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::AGAIN | Errno::CANCELED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 4 * BLOCK_BYTES;

    fn chained() -> Progress {
        let (progress, step) = Progress::start(LENGTH, Sync::Chained);
        assert_eq!(step, Step::Write { from: 0 });
        progress
    }

    #[test]
    fn both_results_are_needed() {
        let mut progress = chained();
        assert_eq!(progress.write_ended(Ok(LENGTH)), Step::Wait);
        assert!(progress.is_outstanding());
        assert_eq!(progress.sync_ended(Ok(())), Step::Done);
        assert!(!progress.is_outstanding());
    }

    #[test]
    fn a_short_write_is_finished_from_a_block_boundary_and_then_synced() {
        let mut progress = chained();
        assert_eq!(progress.write_ended(Ok(BLOCK_BYTES + 700)), Step::Wait);
        assert_eq!(progress.sync_ended(Err(Errno::CANCELED)), Step::Write { from: BLOCK_BYTES });
        assert_eq!(progress.write_ended(Ok(3 * BLOCK_BYTES)), Step::Wait);
        assert_eq!(progress.sync_ended(Ok(())), Step::Done);
    }

    #[test]
    fn a_sync_that_succeeded_beside_a_short_write_counts_for_nothing() {
        let mut progress = chained();
        assert_eq!(progress.write_ended(Ok(BLOCK_BYTES)), Step::Wait);
        assert_eq!(progress.sync_ended(Ok(())), Step::Write { from: BLOCK_BYTES });
        assert_eq!(progress.write_ended(Ok(3 * BLOCK_BYTES)), Step::Wait);
        assert_eq!(
            progress.sync_ended(Err(Errno::CANCELED)),
            Step::Sync,
            "the rest is there, its sync is not"
        );
        assert_eq!(progress.sync_ended(Ok(())), Step::Done);
    }

    #[test]
    fn a_sync_ahead_of_its_write_is_repeated() {
        let mut progress = chained();
        assert_eq!(progress.sync_ended(Ok(())), Step::Wait);
        assert_eq!(progress.write_ended(Ok(LENGTH)), Step::Sync);
        assert_eq!(progress.sync_ended(Ok(())), Step::Done);
    }

    #[test]
    fn a_link_in_doubt_is_synced_again() {
        let mut progress = chained();
        progress.link_in_doubt();
        assert_eq!(progress.write_ended(Ok(LENGTH)), Step::Wait);
        assert_eq!(progress.sync_ended(Ok(())), Step::Sync);
        assert_eq!(progress.sync_ended(Ok(())), Step::Done);
    }

    #[test]
    fn interruptions_go_on() {
        for errno in [Errno::INTR, Errno::AGAIN] {
            let mut progress = chained();
            assert_eq!(progress.write_ended(Err(errno)), Step::Wait);
            assert_eq!(progress.sync_ended(Err(Errno::CANCELED)), Step::Write { from: 0 });
            assert_eq!(progress.write_ended(Ok(LENGTH)), Step::Wait);
            assert_eq!(progress.sync_ended(Err(errno)), Step::Sync);
            assert_eq!(progress.sync_ended(Ok(())), Step::Done);
        }
    }

    #[test]
    fn a_failed_write_is_final_and_waits_for_its_sync_first() {
        let mut progress = chained();
        assert_eq!(progress.write_ended(Err(Errno::NOSPC)), Step::Wait);
        assert_eq!(progress.sync_ended(Err(Errno::CANCELED)), Step::Failed(Failure::Write(Errno::NOSPC)));
    }

    #[test]
    fn a_failed_sync_is_final_even_beside_a_short_write() {
        for written in [LENGTH, BLOCK_BYTES] {
            let mut progress = chained();
            assert_eq!(progress.write_ended(Ok(written)), Step::Wait);
            assert_eq!(progress.sync_ended(Err(Errno::IO)), Step::Failed(Failure::Sync(Errno::IO)));
        }
    }

    #[test]
    fn a_cancelled_write_is_a_failure() {
        let mut progress = chained();
        assert_eq!(progress.write_ended(Err(Errno::CANCELED)), Step::Wait);
        assert_eq!(progress.sync_ended(Err(Errno::CANCELED)), Step::Failed(Failure::Write(Errno::CANCELED)));
    }

    #[test]
    fn no_progress_ends() {
        for result in [Ok(0), Ok(BLOCK_BYTES - 1), Err(Errno::AGAIN)] {
            let (mut progress, mut step) = Progress::start(LENGTH, Sync::Within);
            let mut writes = 0;
            while step == (Step::Write { from: 0 }) {
                writes += 1;
                assert!(writes <= MAX_STALLS);
                step = progress.write_ended(result);
            }
            assert_eq!(step, Step::Failed(Failure::Stalled { written: 0 }));
        }
    }

    #[test]
    fn a_write_that_syncs_itself_ends_with_its_last_byte() {
        let (mut progress, step) = Progress::start(LENGTH, Sync::Within);
        assert_eq!(step, Step::Write { from: 0 });
        assert_eq!(progress.write_ended(Ok(2 * BLOCK_BYTES)), Step::Write { from: 2 * BLOCK_BYTES });
        assert_eq!(progress.write_ended(Ok(2 * BLOCK_BYTES)), Step::Done);
    }
}
