//! Ending the storage thread's wait from other threads.
//!
//! Purpose: a wake-up that costs one atomic instruction while the sleeper is awake, and one system call when it
//! sleeps.
//!
//! Why no wake-up is lost. The whole protocol is one atomic word, changed by read-modify-write operations only,
//! so all threads agree on one order of the changes:
//! - `wake` swaps in `NOTIFIED` and writes the eventfd only if it replaced `ASLEEP`.
//! - `arm`, the sleeper's last act before it blocks, changes `AWAKE` to `ASLEEP` and fails on `NOTIFIED`.
//! - `disarm`, its first act afterwards, swaps in `AWAKE`.
//!
//! A `wake` is therefore either ordered before `arm`, which then fails and the sleeper does not block; or between
//! `arm` and `disarm`, and then the eventfd is written, whose counter stays up until the sleeper reads it, so that
//! it does not matter whether the sleeper has reached its system call yet; or after `disarm`, and then the next
//! `arm` fails. What a thread published before `wake` is visible to the sleeper after the `arm` or `disarm` that
//! saw its `NOTIFIED`, because both are acquire and `wake` is release; two wakers in a row do not break this, as
//! a read-modify-write continues the release sequence of the value it replaces. For the same reason `wake` must
//! not skip the swap after a plain load that shows `NOTIFIED`: the load may be ordered before the publication.
//!
//! A waker that is delayed between its swap and its write makes the eventfd readable late. That is one spurious
//! end of a later wait, which `Ring::wait` hides.
//!
//! Must not: carry data; whoever wakes has put it elsewhere before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

const AWAKE: u8 = 0;
const NOTIFIED: u8 = 1;
const ASLEEP: u8 = 2;

/// Wakes the thread that waits on a `Ring`. Clones wake the same thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: AtomicU8,
    eventfd: OwnedFd,
}

impl Waker {
    /// A waker whose sleeper is awake. For implementations of `Ring`.
    ///
    /// # Errors
    /// When the process may not open another file descriptor.
    pub fn new() -> io::Result<Waker> {
        // Blocking on purpose: io_uring would answer EAGAIN at once to a read of a non-blocking one, and the
        // sleeper reads only when it is readable.
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Waker(Arc::new(Inner { state: AtomicU8::new(AWAKE), eventfd })))
    }

    /// Ends the sleeper's wait, now or the next time it waits.
    pub fn wake(&self) {
        if self.0.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
            self.signal();
        }
    }

    /// The sleeper announces that it will block on `eventfd`. False: it was woken already and must not block.
    pub(super) fn arm(&self) -> bool {
        self.0.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The sleeper is awake again. True: it was woken since the last call.
    pub(super) fn disarm(&self) -> bool {
        self.0.state.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }

    /// Becomes readable when an armed sleeper is woken; eight bytes must be read then.
    pub(super) fn eventfd(&self) -> BorrowedFd<'_> {
        self.0.eventfd.as_fd()
    }

    /// Makes the eventfd readable whatever the state, so that a pending read of it ends.
    pub(super) fn signal(&self) {
        // The only other failure is a counter at its maximum, which is as readable as it can be.
        while rustix::io::write(&self.0.eventfd, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn readable(waker: &Waker) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(waker.eventfd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn an_awake_sleeper_costs_no_system_call_and_still_does_not_sleep() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.wake();
        assert!(!readable(&waker));
        assert!(!waker.arm(), "woken before it slept");
        assert!(waker.disarm());
        assert!(waker.arm(), "the wake-ups were consumed");
    }

    #[test]
    fn an_armed_sleeper_is_signalled_once() {
        let waker = Waker::new().unwrap();
        assert!(waker.arm());
        waker.clone().wake();
        waker.wake();
        let mut counter = [0u8; 8];
        rustix::io::read(waker.eventfd(), &mut counter).unwrap();
        assert_eq!(u64::from_ne_bytes(counter), 1);
        assert!(waker.disarm());
        assert!(!waker.disarm());
    }
}
