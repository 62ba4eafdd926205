//! Starting the broker: lock, recovery, maintenance, storage thread.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;

use thiserror::Error;
use tokio::sync::mpsc;

use super::core::{Core, CoreSettings};
use super::handle::{Answers, Handle};
use super::state::State;
use super::status::Status;
use super::storage::{Ended, Storage};
use crate::engine::EngineSettings;
use crate::engine::commit::Engine;
use crate::engine::maintenance::Maintenance;
use crate::engine::recovery::{RecoveryError, recover};
use crate::io::{self as seam, Backend, Clock, IdSource, LockGuard, OsFs, Ring, SyncMode, Waker};
use crate::log::files::Layout;
use crate::types::LogId;

/// Operations that may be unfinished at once: a few groups in flight and the loads of blocked commands.
const RING_CAPACITY: usize = 256;

/// Everything the broker is told.
#[derive(Clone, Debug)]
pub struct BrokerSettings {
    /// The data directory.
    pub data: PathBuf,
    /// Which io back end.
    pub backend: Backend,
    /// Commands that may wait for the storage thread; more are answered with 429.
    pub queue_commands: usize,
    /// Limits of the core.
    pub core: CoreSettings,
    /// Sizes of the engine.
    pub engine: EngineSettings,
}

/// Why the broker did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The data directory cannot be used, or another process holds it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The log cannot be recovered.
    #[error("{0}")]
    Recovery(#[from] RecoveryError),
}

/// A broker that recovered and serves.
pub struct Running {
    /// What to call.
    pub handle: Handle,
    /// Answers for `handle::dispatch`.
    pub answers: mpsc::UnboundedReceiver<Answers>,
    waker: Waker,
    thread: JoinHandle<Result<Ended, StartError>>,
}

impl Running {
    /// Lets the storage thread look at the status; call it after `Stopping` was entered.
    #[must_use]
    pub fn nudge(&self) -> impl FnOnce() + Send + 'static {
        let waker = self.waker.clone();
        move || waker.wake()
    }

    /// Splits into the parts that different owners need: the calls, the answers, and a wait for the end that blocks.
    #[must_use]
    pub fn split(
        self,
    ) -> (Handle, mpsc::UnboundedReceiver<Answers>, impl FnOnce() -> Ended + Send + 'static) {
        let thread = self.thread;
        let join = move || match thread.join() {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => Ended::Poisoned(error.to_string()),
            Err(_) => Ended::Poisoned("the storage thread panicked".to_owned()),
        };
        (self.handle, self.answers, join)
    }
}

/// Starts the storage thread and waits until it has recovered the data directory. Progress and phase are reported
/// through the status.
///
/// # Errors
/// The data directory cannot be used; nothing in it was changed unless the error says so.
pub fn start(settings: BrokerSettings, status: Arc<Status>) -> Result<Running, StartError> {
    let clock = Clock::system();
    let ids = IdSource::system(clock.clone());
    let (requests, receiver) = mpsc::channel(settings.queue_commands);
    let (answers, answers_receiver) = mpsc::unbounded_channel();
    let (ready, is_ready) = std_mpsc::sync_channel(1);
    let parts = Start { settings, status: Arc::clone(&status), clock, ids: ids.clone(), ready };
    let thread = seam::spawn("storage", move || parts.run(receiver, answers))?;
    match is_ready.recv() {
        Ok((waker, log)) => {
            let handle = Handle::new(requests, waker.clone(), status, ids, log);
            Ok(Running { handle, answers: answers_receiver, waker, thread })
        }
        // The other end is dropped when the thread ends before it is ready.
        Err(_) => match thread.join() {
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) | Err(_) => Err(io::Error::other("the storage thread ended during recovery").into()),
        },
    }
}

struct Start {
    settings: BrokerSettings,
    status: Arc<Status>,
    clock: Clock,
    ids: IdSource,
    ready: std_mpsc::SyncSender<(Waker, LogId)>,
}

impl Start {
    fn run(
        self,
        requests: mpsc::Receiver<super::handle::Request>,
        answers: mpsc::UnboundedSender<Answers>,
    ) -> Result<Ended, StartError> {
        let Start { settings, status, clock, ids, ready } = self;
        let layout = Layout::new(&settings.data);
        seam::create_data_dir(layout.root())?;
        let _lock = LockGuard::acquire(layout.root())?;
        let fs = OsFs::new(layout.root())?;
        let ring = seam::open_ring(settings.backend, RING_CAPACITY, SyncMode::default())?;
        status.set_backend(ring.name());
        let began_us = clock.boot_us();
        let progress = |done, all| status.set_progress(done, all);
        let recovered =
            recover::<State, OsFs>(&fs, &layout, &settings.engine, LogId(ids.random_u128()), &progress)?;
        let report = recovered.report;
        tracing::info!(
            checkpoint = report.checkpoint.0,
            groups = report.groups,
            runs = report.runs,
            last_seq = recovered.parts.last_seq.0,
            epoch = recovered.parts.epoch.0,
            direct = fs.is_direct(),
            took_ms = (clock.boot_us() - began_us) / 1000,
            "recovered {}",
            layout.root().display()
        );
        let log = recovered.parts.log;
        let epoch = recovered.parts.epoch;
        let (jobs, jobs_receiver) = std_mpsc::channel();
        let (outcomes, outcomes_receiver) = std_mpsc::channel();
        let maintenance = Maintenance {
            fs,
            layout,
            settings: settings.engine.clone(),
            log,
            epoch,
            superblock: recovered.superblock,
            checkpoints: recovered.checkpoints,
        };
        let waker = ring.waker();
        let maintenance_waker = ring.waker();
        let maintenance = seam::spawn("maintenance", move || {
            maintenance.run(&jobs_receiver, &outcomes, &maintenance_waker);
        })?;
        let engine =
            Engine::new(ring, clock.clone(), settings.engine, recovered.parts, jobs, outcomes_receiver);
        let now = engine.log_time();
        let mut state = recovered.machine;
        state.last_stamp = state.last_stamp.max(recovered.last_stamp);
        let core = Core::new(state, engine, settings.core, clock, ids, epoch, now);
        status.set_epoch(epoch.0);
        status.recovered();
        // Whoever waits for it may have gone; then the status says `Stopping` and the loop ends by itself.
        let _ = ready.send((waker, log));
        let ended = Storage::new(core, requests, answers, status).run();
        // The maintenance thread ends with the engine that talked to it.
        if maintenance.join().is_err() {
            tracing::error!("the maintenance thread panicked");
        }
        Ok(ended)
    }
}
