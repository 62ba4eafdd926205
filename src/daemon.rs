//! The daemon's life: listen, recover, serve, stop.
//!
//! Purpose: put configuration, storage and HTTP together, and turn how it ends into an exit status: 0 after a clean
//! stop, 1 when it cannot start, 2 for a bad configuration (`main`), 74 when storage failed.
//!
//! Invariants:
//! - The port is bound before recovery, so that health checks are answered while it runs; data routes answer 503.
//! - A stop answers what is in work: parked polls with 204, everything else as storage decides.
//!
//! Must not: know how storage starts or works; that comes in as one function.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use crate::broker::handle::{Answers, Handle, dispatch};
use crate::broker::status::{Phase, Status};
use crate::broker::storage::Ended;
use crate::config::Config;
use crate::http::{App, server};

/// Storage failed while serving (`EX_IOERR`).
const EXIT_POISONED: u8 = 74;
/// Connections that the kernel keeps for us until they are accepted.
const BACKLOG: u32 = 4096;
/// Time that storage gets to finish after a stop, beyond the time that connections get.
const STORAGE_DRAIN: Duration = Duration::from_secs(10);
/// Time for the last answers after storage failed.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// A broker that was started and serves.
pub struct Running {
    /// What requests go to.
    pub handle: Handle,
    /// Its answers.
    pub answers: mpsc::UnboundedReceiver<Answers>,
    /// Asks it to stop: answer parked polls with nothing, finish what is in work, make it durable, end. Called at
    /// most once; returns at once.
    pub stop: Box<dyn FnOnce() + Send>,
    /// Waits until it has ended; called once, from a thread that may block.
    pub join: Box<dyn FnOnce() -> Ended + Send>,
}

/// Why a broker does not start.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct StartFailure(pub Box<dyn std::error::Error + Send + Sync>);

/// Why the daemon does not start.
#[derive(Debug, Error)]
enum DaemonError {
    #[error("cannot start the HTTP threads: {0}")]
    Runtime(std::io::Error),
    #[error("cannot listen on {address}: {error}; choose another --bind or --port, or stop who has it")]
    Listen { address: SocketAddr, error: std::io::Error },
    #[error("cannot receive signals: {0}")]
    Signals(std::io::Error),
    #[error("storage does not start: {0}")]
    Storage(#[from] StartFailure),
    #[error("the thread that starts storage was lost")]
    Lost,
}

/// Runs the daemon to its end.
///
/// `start` opens and recovers storage and starts the storage thread; it may block for as long as that takes, reports
/// progress and phase through the status, and is the only place where storage comes in.
pub fn run<S>(config: Config, start: S) -> ExitCode
where
    S: FnOnce(&Config, Arc<Status>) -> Result<Running, StartFailure> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.http.workers as usize)
        .thread_name("comb-http")
        .enable_all()
        .build();
    let ended = match runtime {
        Err(error) => Err(DaemonError::Runtime(error)),
        Ok(runtime) => {
            let ended = runtime.block_on(live(config, start));
            // Whatever still runs was given its time.
            runtime.shutdown_background();
            ended
        }
    };
    match ended {
        Ok(Ended::Cleanly) => {
            info!("stopped");
            ExitCode::SUCCESS
        }
        Ok(Ended::Poisoned(cause)) => {
            error!(%cause, "storage failed; what was answered is durable, what was in flight may or may not be");
            ExitCode::from(EXIT_POISONED)
        }
        Err(error) => {
            error!(%error, "the daemon does not start");
            ExitCode::FAILURE
        }
    }
}

async fn live<S>(config: Config, start: S) -> Result<Ended, DaemonError>
where
    S: FnOnce(&Config, Arc<Status>) -> Result<Running, StartFailure> + Send + 'static,
{
    let mut signals = Signals::new().map_err(DaemonError::Signals)?;
    let listener = listen(SocketAddr::new(config.bind, config.port))?;
    info!(configuration = config.one_line(), "effective configuration");
    if let Ok(address) = listener.local_addr() {
        info!(%address, version = env!("CARGO_PKG_VERSION"), "listening");
    }
    let status = Arc::new(Status::default());
    let app = App::new(config.clone(), Arc::clone(&status));
    let (stop_http, http_stops) = oneshot::channel::<()>();
    let mut serving = tokio::spawn(server::serve(listener, Arc::clone(&app), async move {
        let _ = http_stops.await;
    }));

    let starting = {
        let status = Arc::clone(&status);
        tokio::task::spawn_blocking(move || start(&config, status))
    };
    let running = tokio::select! {
        started = starting => started.map_err(|_| DaemonError::Lost)??,
        () = signals.next() => {
            // Recovery changes nothing that the next recovery could not take, so it needs no goodbye.
            info!("stopping during recovery");
            status.enter(Phase::Stopping);
            let _ = stop_http.send(());
            let _ = serving.await;
            return Ok(Ended::Cleanly);
        }
    };
    let Running { handle, answers, stop, join } = running;
    app.ready(handle.clone());
    tokio::spawn(dispatch(handle, answers));
    let mut ended = tokio::task::spawn_blocking(join);
    info!(backend = status.backend(), "ready");

    tokio::select! {
        ended = &mut ended => {
            // Nobody asked it to end. Its last answers are on their way to the connections.
            let ended = ended.map_err(|_| DaemonError::Lost)?;
            let _ = stop_http.send(());
            let _ = tokio::time::timeout(LAST_ANSWERS, serving).await;
            return Ok(ended);
        }
        () = signals.next() => {}
    }
    info!("stopping");
    status.enter(Phase::Stopping);
    stop();
    let _ = stop_http.send(());
    let drained = async {
        let _ = (&mut serving).await;
        tokio::time::timeout(STORAGE_DRAIN, &mut ended).await
    };
    let mut drained = std::pin::pin!(drained);
    loop {
        tokio::select! {
            drained = drained.as_mut() => return match drained {
                Ok(Ok(ended)) => Ok(ended),
                Ok(Err(_)) => Err(DaemonError::Lost),
                Err(_) => Ok(Ended::Poisoned(format!(
                    "storage did not finish within {} s of the stop",
                    STORAGE_DRAIN.as_secs()
                ))),
            },
            () = signals.next() => warn!("already stopping"),
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let bind = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restart must not wait for connections of the last life to time out.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bind().map_err(|error| DaemonError::Listen { address, error })
}

/// The signals that stop the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
