//! What `/health` reports: shared, lock-free where it is hot.
//!
//! Written by the storage thread and, for a stop, by the daemon; read by anyone.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Where the daemon is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading the log; nothing is served.
    Recovering = 0,
    /// Serving.
    Ready = 1,
    /// A write or sync failed; nothing is acknowledged any more.
    Poisoned = 2,
    /// Answering what is in flight, taking nothing new.
    Stopping = 3,
    /// Serving, but pushes are refused for want of space.
    Full = 4,
}

/// Shared status.
#[derive(Debug, Default)]
pub struct Status {
    phase: AtomicU8,
    epoch: AtomicU64,
    watermark: AtomicU64,
    staged: AtomicU64,
    recovered_bytes: AtomicU64,
    recover_bytes: AtomicU64,
    cause: Mutex<Option<String>>,
    backend: Mutex<&'static str>,
}

impl Status {
    /// The phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Recovering,
            1 => Phase::Ready,
            2 => Phase::Poisoned,
            3 => Phase::Stopping,
            _ => Phase::Full,
        }
    }

    /// Enters a phase. Poison is final.
    pub fn enter(&self, phase: Phase) {
        let enter = |now| (now != Phase::Poisoned as u8).then_some(phase as u8);
        // Failure means that it is poisoned.
        let _ = self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter);
    }

    /// Goes from one phase to another; whatever else was entered meanwhile stands.
    pub fn turn(&self, from: Phase, to: Phase) {
        // Failure means that another phase was entered already.
        let _ = self.phase.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Recovery is through; a stop that came meanwhile stands.
    pub fn recovered(&self) {
        self.turn(Phase::Recovering, Phase::Ready);
    }

    /// Keeps the first cause and poisons.
    pub fn poison(&self, cause: &str) {
        let mut kept = self.cause.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        kept.get_or_insert_with(|| cause.to_owned());
        self.phase.store(Phase::Poisoned as u8, Ordering::Release);
    }

    /// The first cause of the poison.
    #[must_use]
    pub fn cause(&self) -> Option<String> {
        self.cause.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Sets the epoch of this process.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Sets the positions of the log.
    pub fn set_positions(&self, watermark: u64, staged: u64) {
        self.watermark.store(watermark, Ordering::Relaxed);
        self.staged.store(staged, Ordering::Relaxed);
    }

    /// (epoch, watermark, last staged seq).
    #[must_use]
    pub fn positions(&self) -> (u64, u64, u64) {
        (
            self.epoch.load(Ordering::Relaxed),
            self.watermark.load(Ordering::Relaxed),
            self.staged.load(Ordering::Relaxed),
        )
    }

    /// Sets recovery progress in bytes: done, in all.
    pub fn set_progress(&self, done: u64, all: u64) {
        self.recovered_bytes.store(done, Ordering::Relaxed);
        self.recover_bytes.store(all, Ordering::Relaxed);
    }

    /// Recovery progress in bytes: done, in all.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.recovered_bytes.load(Ordering::Relaxed), self.recover_bytes.load(Ordering::Relaxed))
    }

    /// Sets the name of the io back end in use.
    pub fn set_backend(&self, name: &'static str) {
        *self.backend.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = name;
    }

    /// Name of the io back end in use; empty before it is opened.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        *self.backend.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
