//! What the black-box tests share: the real daemon on a data directory of its own, and its HTTP interface.
//!
//! Purpose: start `combd`, kill it, stop it, start it again on the same directory, and show its log when a test
//! fails. `api` speaks the wire and nothing else, `lane` is one queue with the words that tests about it need, `frames` the
//! binary forms.
//!
//! Must not: use the crate's library. What is tested here is what a client or an operator can see.

#![allow(dead_code, reason = "every test file compiles this on its own and uses another part of it")]

pub(crate) mod api;
pub(crate) mod frames;
pub(crate) mod lane;

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longest time from start to a 200 of `/health`.
const READY_MAX: Duration = Duration::from_secs(60);

/// Lines of the daemon's log that a failing test prints.
const LOG_LINES_SHOWN: usize = 120;

/// Settings of the tests that share a daemon: small files, so that a start writes little.
pub(crate) const SHARED: &[&str] = &["--log-segment-bytes=33554432", "--log-cursor-file-bytes=4194304"];

/// The smallest files that there are and nothing sealed in memory, so that a short load rolls, checkpoints and looks up
/// many times.
pub(crate) const SMALL_FILES: &[&str] = &[
    "--log-segment-bytes=1048576",
    "--log-cursor-file-bytes=262144",
    "--log-checkpoint-cursor-bytes=1048576",
    "--log-group-bytes=131072",
    "--log-tail-cache-bytes=1048576",
    "--log-resident-index-bytes=0",
    "--log-checkpoint-message-bytes=4194304",
];

/// A `combd` process, and the directory that outlives it.
pub(crate) struct Daemon {
    child: Mutex<Option<Child>>,
    address: Mutex<SocketAddr>,
    flags: Vec<String>,
    home: TempDir,
}

impl Daemon {
    /// Starts a daemon with these flags on an empty directory and waits until it is ready.
    pub(crate) fn start(flags: &[&str]) -> Daemon {
        let home = TempDir::with_prefix("combd-test-").unwrap();
        let daemon = Daemon {
            child: Mutex::new(None),
            address: Mutex::new(SocketAddr::from(([127, 0, 0, 1], 0))),
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            home,
        };
        daemon.restart();
        daemon
    }

    /// The daemon of all tests of this process that need none of their own. It ends with its last user.
    pub(crate) fn shared() -> Arc<Daemon> {
        static SHARED_DAEMON: Mutex<Weak<Daemon>> = Mutex::new(Weak::new());
        let mut shared = SHARED_DAEMON.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(daemon) = shared.upgrade() {
            return daemon;
        }
        let daemon = Arc::new(Daemon::start(SHARED));
        *shared = Arc::downgrade(&daemon);
        daemon
    }

    /// Starts the process again on the same directory and waits until it is ready.
    pub(crate) fn restart(&self) {
        assert!(self.child.lock().unwrap_or_else(PoisonError::into_inner).is_none(), "it still runs");
        // A port that was free a moment ago can be taken now; another one is tried then.
        for _ in 0..5 {
            let address = free_address();
            let mut child = self.spawn(address);
            if self.wait_ready(&mut child, address) {
                *self.address.lock().unwrap() = address;
                *self.child.lock().unwrap() = Some(child);
                return;
            }
        }
        panic!("combd does not start\n{}", self.log_tail());
    }

    fn spawn(&self, address: SocketAddr) -> Child {
        let mut log = self.open_log();
        writeln!(log, "---- start on {address}").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_combd"));
        command
            .arg("--data")
            .arg(self.data())
            .arg("--port")
            .arg(address.port().to_string())
            .args(&self.flags);
        // Settings of whoever runs the tests are none of ours.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("COMB_") || name == "PORT" {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    /// Whether it became ready. False: it ended, as it does when the port was taken.
    fn wait_ready(&self, child: &mut Child, address: SocketAddr) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < READY_MAX {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            if health(address).is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("combd is not ready after {READY_MAX:?}\n{}", self.log_tail());
    }

    /// `http://127.0.0.1:port`
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.lock().unwrap().as_ref().map(Child::id).unwrap()
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts it and kills it after this time, whatever it has got to by then.
    pub(crate) fn start_and_kill(&self, after: Duration) {
        let mut child = self.spawn(free_address());
        thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM, and waits until the process is gone. Returns how it ended and how long that took.
    pub(crate) fn terminate(&self, patience: Duration) -> (ExitStatus, Duration) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap();
        let begun = Instant::now();
        signal(&child, Signal::TERM);
        while begun.elapsed() < patience {
            if let Some(status) = child.try_wait().unwrap() {
                return (status, begun.elapsed());
            }
            thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("combd did not end within {patience:?} of SIGTERM\n{}", self.log_tail());
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("combd.log")
    }

    fn open_log(&self) -> File {
        OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap()
    }

    /// The end of everything that it logged, over all its starts.
    pub(crate) fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let shown = lines.len().saturating_sub(LOG_LINES_SHOWN);
        lines.iter().skip(shown).map(|line| format!("    {line}\n")).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            eprintln!("log of combd:\n{}", self.log_tail());
        }
    }
}

/// Runs `combd` to its end with these arguments and nothing of ours in its environment.
pub(crate) fn run(arguments: &[&str], directory: &Path) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_combd"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("COMB_") || name == "PORT" {
            command.env_remove(name);
        }
    }
    command.output().unwrap()
}

/// A name that no other test of this run has.
pub(crate) fn unique(prefix: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("{prefix}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn free_address() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap()
}

/// The raw answer of `/health`, if there was one.
fn health(address: SocketAddr) -> Option<String> {
    let patience = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
