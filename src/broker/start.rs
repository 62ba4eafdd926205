//! Starting the broker: lock, recovery, maintenance, storage thread.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;

use thiserror::Error;
use tokio::sync::mpsc;

use super::core::{Core, CoreSettings};
use super::handle::{Answers, Handle, Request};
use super::state::State;
use super::status::Status;
use super::storage::{Ended, Storage};
use crate::engine::commit::{Channels, Engine};
use crate::engine::lookup::{Ask, LookedUp, LookupWorker, Lookups};
use crate::engine::maintenance::{Job, Maintenance, Outcome};
use crate::engine::recovery::{RecoveryError, recover};
use crate::engine::removal::Removal;
use crate::engine::{EngineSettings, Layout};
use crate::io::{self as seam, Backend, Clock, Fs, IdSource, LockGuard, OsFs, Ring, SyncMode, Waker};
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
    pub fn nudge(&self) -> impl FnOnce() + Send + 'static {
        let waker = self.waker.clone();
        move || waker.wake()
    }

    /// Splits into the parts that different owners need: the calls, the answers, and a wait for the end that blocks.
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

/// What storage runs on.
pub struct Seams<F, R> {
    /// The file system.
    pub fs: F,
    /// Completion-style operations.
    pub ring: R,
    /// The clock.
    pub clock: Clock,
    /// Ids and randomness.
    pub ids: IdSource,
}

/// Storage that recovered: to be run on threads, or step by step by whoever simulates them.
pub struct Assembled<F: Fs, R: Ring<File = F::File>> {
    /// The storage thread's state.
    pub storage: Storage<R>,
    /// The maintenance thread's state.
    pub maintenance: Maintenance<F>,
    /// What maintenance is asked for.
    pub jobs: std_mpsc::Receiver<Job<F::File>>,
    /// Where its outcomes go.
    pub outcomes: std_mpsc::Sender<Outcome<F::File>>,
    /// The lookup thread's state.
    pub lookups: LookupWorker<F>,
    /// What it is asked.
    pub asks: std_mpsc::Receiver<Ask>,
    /// Where its answers go.
    pub looked_up: std_mpsc::Sender<LookedUp>,
    /// Identity of the log.
    pub log: LogId,
}

/// Recovers a data directory and puts storage together over it.
///
/// # Errors
/// The data directory cannot be used.
pub fn assemble<F: Fs, R: Ring<File = F::File>>(
    seams: Seams<F, R>,
    settings: &BrokerSettings,
    requests: mpsc::Receiver<Request>,
    answers: mpsc::UnboundedSender<Answers>,
    status: Arc<Status>,
) -> Result<Assembled<F, R>, StartError> {
    let Seams { fs, ring, clock, ids } = seams;
    let layout = Layout::new(&settings.data);
    let began_us = clock.boot_us();
    let progress = |done, all| status.set_progress(done, all);
    let recovered = recover::<State, F>(&fs, &layout, &settings.engine, LogId(ids.random_u128()), &progress)?;
    let report = recovered.report;
    tracing::info!(
        checkpoint = report.checkpoint.0,
        groups = report.groups,
        runs = report.runs,
        last_seq = recovered.parts.last_seq.0,
        epoch = recovered.parts.epoch.0,
        took_ms = (clock.boot_us() - began_us) / 1000,
        "recovered {}",
        layout.root().display()
    );
    let log = recovered.parts.log;
    let epoch = recovered.parts.epoch;
    let (jobs, jobs_receiver) = std_mpsc::channel();
    let (outcomes, outcomes_receiver) = std_mpsc::channel();
    let (asks, asks_receiver) = std_mpsc::channel();
    let (looked_up, looked_up_receiver) = std_mpsc::channel();
    let lookups = LookupWorker::new(fs.clone(), layout.clone(), log);
    let maintenance = Maintenance {
        fs,
        layout,
        settings: settings.engine.clone(),
        log,
        epoch,
        superblock: recovered.superblock,
        checkpoints: recovered.checkpoints,
        writing: None,
        removal: Removal::default(),
        filters: crate::index::tiers::Builder::default(),
    };
    let channels =
        Channels { jobs, outcomes: outcomes_receiver, lookups: Lookups::new(asks, looked_up_receiver) };
    let engine = Engine::new(ring, clock.clone(), settings.engine.clone(), recovered.parts, channels);
    let now = engine.log_time();
    let mut state = recovered.machine;
    state.last_stamp = state.last_stamp.max(recovered.last_stamp);
    let core = Core::new(state, engine, settings.core.clone(), clock, ids, epoch, now);
    status.set_epoch(epoch.0);
    status.recovered();
    let storage = Storage::new(core, requests, answers, status);
    Ok(Assembled {
        storage,
        maintenance,
        jobs: jobs_receiver,
        outcomes,
        lookups,
        asks: asks_receiver,
        looked_up,
        log,
    })
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
        requests: mpsc::Receiver<Request>,
        answers: mpsc::UnboundedSender<Answers>,
    ) -> Result<Ended, StartError> {
        let Start { settings, status, clock, ids, ready } = self;
        let root = &settings.data;
        seam::create_data_dir(root)?;
        let _lock = LockGuard::acquire(root)?;
        let fs = OsFs::new(root)?;
        // The threads keep the plain form: it is the one that every tool that watches system calls understands.
        let sync = match settings.backend {
            Backend::Threads => SyncMode::LinkedFsync,
            Backend::Auto | Backend::Uring => fs.sync_mode(),
        };
        let ring = seam::open_ring(settings.backend, RING_CAPACITY, sync)?;
        status.set_backend(ring.name());
        tracing::info!(direct = fs.is_direct(), backend = ring.name(), "storage");
        let (waker, maintenance_waker, lookups_waker) = (ring.waker(), ring.waker(), ring.waker());
        let seams = Seams { fs, ring, clock, ids };
        let Assembled { storage, maintenance, jobs, outcomes, lookups, asks, looked_up, log } =
            assemble(seams, &settings, requests, answers, status)?;
        let maintenance = seam::spawn("maintenance", move || {
            maintenance.run(&jobs, &outcomes, &maintenance_waker);
        })?;
        let lookups = seam::spawn("lookups", move || lookups.run(&asks, &looked_up, &lookups_waker))?;
        // Whoever waits for it may have gone; then the status says `Stopping` and the loop ends by itself.
        let _ = ready.send((waker, log));
        let ended = storage.run();
        // These threads end with the engine that talked to them.
        if maintenance.join().is_err() {
            tracing::error!("the maintenance thread panicked");
        }
        if lookups.join().is_err() {
            tracing::error!("the lookup thread panicked");
        }
        Ok(ended)
    }
}
