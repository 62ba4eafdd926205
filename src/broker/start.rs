//! Starting the broker: lock, recovery, maintenance, storage thread.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc as std_mpsc};

use thiserror::Error;
use tokio::sync::mpsc;

use super::core::{Core, CoreSettings};
use super::handle::{Answers, Handle};
use super::state::State;
use super::status::{Phase, Status};
use super::storage::{Ended, Storage};
use crate::engine::EngineSettings;
use crate::engine::commit::Engine;
use crate::engine::maintenance::Maintenance;
use crate::engine::recovery::{RecoveryError, recover};
use crate::io::{self as seam, Backend, Clock, IdSource, LockGuard, OsFs, Ring, SyncMode};
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

/// A broker whose storage thread runs. It serves once the status says `Ready`.
pub struct Running {
    /// What to call.
    pub handle: Handle,
    /// Answers for `handle::dispatch`.
    pub answers: mpsc::UnboundedReceiver<Answers>,
    /// Ends when the storage thread does.
    pub ended: tokio::sync::oneshot::Receiver<Result<Ended, StartError>>,
}

/// Starts the storage thread, which recovers and then serves. Returns at once.
///
/// # Errors
/// No thread can be started.
pub fn start(settings: BrokerSettings, status: Arc<Status>) -> io::Result<Running> {
    let clock = Clock::system();
    let ids = IdSource::system(clock.clone());
    let (requests, receiver) = mpsc::channel(settings.queue_commands);
    let (answers, answers_receiver) = mpsc::unbounded_channel();
    let (ended, ended_receiver) = tokio::sync::oneshot::channel();
    let handle = Handle::pending(requests, Arc::clone(&status), ids.clone());
    let attach = handle.clone();
    seam::spawn("storage", move || {
        let parts = Start { settings, status, clock, ids, handle: attach };
        // Whoever waits for the end may have gone first; then nobody wants to know.
        let _ = ended.send(parts.run(receiver, answers));
    })?;
    Ok(Running { handle, answers: answers_receiver, ended: ended_receiver })
}

struct Start {
    settings: BrokerSettings,
    status: Arc<Status>,
    clock: Clock,
    ids: IdSource,
    handle: Handle,
}

impl Start {
    fn run(
        self,
        requests: mpsc::Receiver<super::handle::Request>,
        answers: mpsc::UnboundedSender<Answers>,
    ) -> Result<Ended, StartError> {
        let Start { settings, status, clock, ids, handle } = self;
        let layout = Layout::new(&settings.data);
        seam::create_data_dir(layout.root())?;
        let _lock = LockGuard::acquire(layout.root())?;
        let fs = OsFs::new(layout.root())?;
        let ring = seam::open_ring(settings.backend, RING_CAPACITY, SyncMode::default())?;
        status.set_backend(ring.name());
        let began_us = clock.boot_us();
        let progress = |done, all| status.set_progress(done, all);
        let recovered = recover::<State, OsFs>(
            &fs,
            &layout,
            &settings.engine,
            LogId(ids.random_u128()),
            &progress,
        )?;
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
        let engine = Engine::new(
            ring,
            clock.clone(),
            settings.engine,
            recovered.parts,
            jobs,
            outcomes_receiver,
        );
        let now = engine.log_time();
        let mut state = recovered.machine;
        state.last_stamp = state.last_stamp.max(recovered.last_stamp);
        let core = Core::new(state, engine, settings.core, clock, ids, epoch, now);
        handle.attach(waker, log);
        status.set_epoch(epoch.0);
        status.enter(Phase::Ready);
        let ended = Storage::new(core, requests, answers, status).run();
        // The maintenance thread ends with the engine that talked to it.
        if maintenance.join().is_err() {
            tracing::error!("the maintenance thread panicked");
        }
        Ok(ended)
    }
}
