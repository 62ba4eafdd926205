//! Choosing a ring.
//!
//! Purpose: io_uring where it is to be had, threads elsewhere, and one line in the log that says so.
//!
//! Must not: weaken durability; both back ends give the same.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::threads::ThreadsRing;
use super::uring::UringRing;
use super::{AlignedBuf, Completion, DirectFile, ReadAt, Ring, Waker};

/// Which ring to use: the setting `io.backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// io_uring, or threads with a warning.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads.
    Threads,
}

/// A name that is no back end.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no I/O back end: use auto, uring or threads")]
pub struct UnknownBackend {
    /// What was given.
    pub name: String,
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Backend, UnknownBackend> {
        match name {
            "auto" => Ok(Backend::Auto),
            "uring" => Ok(Backend::Uring),
            "threads" => Ok(Backend::Threads),
            _ => Err(UnknownBackend { name: name.to_owned() }),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Auto => "auto",
            Backend::Uring => "uring",
            Backend::Threads => "threads",
        })
    }
}

/// How a write is made durable. Both forms are complete: every byte is on the medium before success is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncMode {
    /// A write and, linked behind it, a data sync of the file.
    #[default]
    LinkedFsync,
    /// One write that syncs its own range (`RWF_DSYNC`); where the device can, a single forced-unit-access write.
    WriteDsync,
}

/// Either ring.
pub enum AnyRing {
    /// io_uring.
    Uring(Box<UringRing>),
    /// Threads.
    Threads(Box<ThreadsRing>),
}

/// Opens a ring. Call it on the thread that will use the ring. At most `capacity` operations (1..=8192) may be
/// unfinished.
///
/// # Errors
/// With `Backend::Uring`, why io_uring is not to be had; otherwise, why no threads can be started.
pub fn open_ring(backend: Backend, capacity: usize, mode: SyncMode) -> io::Result<AnyRing> {
    let uring = |capacity| UringRing::new(capacity, mode).map(|ring| AnyRing::Uring(Box::new(ring)));
    let threads = || ThreadsRing::new(capacity, mode).map(|ring| AnyRing::Threads(Box::new(ring)));
    match backend {
        Backend::Uring => uring(capacity).map_err(|error| {
            let text = format!("setting up io_uring: {error}; io.backend = auto or threads does without");
            io::Error::new(error.kind(), text)
        }),
        Backend::Threads => threads(),
        Backend::Auto => or_threads(uring(capacity), threads),
    }
}

fn or_threads(
    uring: io::Result<AnyRing>,
    threads: impl FnOnce() -> io::Result<AnyRing>,
) -> io::Result<AnyRing> {
    match uring {
        Ok(ring) => Ok(ring),
        Err(error) => {
            tracing::warn!(
                %error,
                "io_uring is not available, using threads instead: slower, with the same durability; \
                 io.backend = threads silences this"
            );
            threads()
        }
    }
}

impl Ring for AnyRing {
    type File = DirectFile;

    fn write_sync(&mut self, file: &Arc<DirectFile>, position: u64, data: Arc<AlignedBuf>, token: u64) {
        match self {
            AnyRing::Uring(ring) => ring.write_sync(file, position, data, token),
            AnyRing::Threads(ring) => ring.write_sync(file, position, data, token),
        }
    }

    fn read(&mut self, file: &Arc<dyn ReadAt>, position: u64, bytes: usize, token: u64) {
        match self {
            AnyRing::Uring(ring) => ring.read(file, position, bytes, token),
            AnyRing::Threads(ring) => ring.read(file, position, bytes, token),
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        match self {
            AnyRing::Uring(ring) => ring.submit(),
            AnyRing::Threads(ring) => ring.submit(),
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()> {
        match self {
            AnyRing::Uring(ring) => ring.wait(timeout, out),
            AnyRing::Threads(ring) => ring.wait(timeout, out),
        }
    }

    fn waker(&self) -> Waker {
        match self {
            AnyRing::Uring(ring) => ring.waker(),
            AnyRing::Threads(ring) => ring.waker(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            AnyRing::Uring(ring) => ring.name(),
            AnyRing::Threads(ring) => ring.name(),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for backend in [Backend::Auto, Backend::Uring, Backend::Threads] {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        let error = "epoll".parse::<Backend>().unwrap_err();
        assert!(error.to_string().contains("epoll"));
    }

    #[test]
    fn auto_falls_back_to_threads() {
        for errno in [rustix::io::Errno::NOMEM, rustix::io::Errno::PERM, rustix::io::Errno::NOSYS] {
            let threads = || open_ring(Backend::Threads, 4, SyncMode::default());
            let ring = or_threads(Err(errno.into()), threads).unwrap();
            assert_eq!(ring.name(), "threads");
        }
    }

    #[test]
    fn auto_prefers_io_uring() {
        let auto = open_ring(Backend::Auto, 4, SyncMode::default()).unwrap();
        let uring = open_ring(Backend::Uring, 4, SyncMode::default()).is_ok();
        assert_eq!(auto.name(), if uring { "uring" } else { "threads" });
    }
}
