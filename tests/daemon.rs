//! The daemon as a process: its configuration, its log, how it ends and what its exit status says.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

/// `combd` without the settings of whoever runs the tests.
fn combd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_combd"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("COMB_") || name == "PORT" {
            command.env_remove(name);
        }
    }
    command
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A daemon on an empty directory and a free port.
struct Daemon {
    child: Child,
    address: SocketAddr,
    lines: mpsc::Receiver<String>,
    home: TempDir,
}

impl Daemon {
    fn start() -> Daemon {
        Daemon::start_in(TempDir::with_prefix("combd-test-").unwrap(), &[])
    }

    fn start_in(home: TempDir, flags: &[&str]) -> Daemon {
        let mut command = combd(&["--port=0", "--log-json", "--log-segment-bytes=1048576"]);
        command.args(flags).arg("--data").arg(home.path().join("data"));
        Daemon::of(command, home)
    }

    fn of(mut command: Command, home: TempDir) -> Daemon {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut daemon = Daemon { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), lines, home };
        let listening = daemon.line("listening");
        daemon.address = listening["fields"]["address"].as_str().unwrap().parse().unwrap();
        daemon.line("ready");
        daemon
    }

    /// The next line of the log with this message.
    fn line(&self, message: &str) -> serde_json::Value {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no line {message:?}"));
            let json: serde_json::Value = serde_json::from_str(&line).unwrap();
            if json["fields"]["message"] == message {
                return json;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Kills it and starts another on its directory.
    fn restart(mut self, flags: &[&str]) -> Daemon {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let home = std::mem::replace(&mut self.home, TempDir::new().unwrap());
        Daemon::start_in(home, flags)
    }

    /// Status and JSON of an answer.
    fn call(&self, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
        let mut socket = self.connect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        socket.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        let answer = text(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
    }

    /// Offsets that a group that begins with everything is given, without keeping them.
    fn offsets(&self, group: &str) -> Vec<u64> {
        let path = format!("/api/v1/pop/queue/q?consumerGroup={group}&subscriptionMode=all&autoAck=true");
        let (status, popped) = self.call("GET", &path, "");
        assert!(matches!(status, 200 | 204), "{status}: {popped}");
        let messages = popped["messages"].as_array().into_iter().flatten();
        messages.map(|message| message["offset"].as_u64().unwrap()).collect()
    }

    fn exit_code(&mut self) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("it does not end");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status line's code of the next answer.
fn status(socket: &mut TcpStream) -> u16 {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(socket.read(&mut byte).unwrap(), 1, "closed after {:?}", text(&head));
        head.push(byte[0]);
    }
    text(&head).split(' ').nth(1).unwrap().parse().unwrap()
}

/// Arguments, environment, and what the error names.
type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a [&'a str]);

#[test]
fn a_bad_configuration_is_status_2_and_names_what_is_wrong() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("comb.toml");
    std::fs::write(&file, "[limits]\nbodybytes = 5\n").unwrap();
    let cases: &[Case] = &[
        (&["--limits-body-bytes=lots"], &[], &["--limits-body-bytes", "lots", "1024"]),
        (&["--nonsense"], &[], &["--nonsense"]),
        (&[], &[("COMB_LIMITS_BODYBYTES", "5")], &["COMB_LIMITS_BODYBYTES", "COMB_LIMITS_BODY_BYTES"]),
        (&[], &[("COMB_LOG_JSON", "")], &["COMB_LOG_JSON", "true"]),
        (&["--config", file.to_str().unwrap()], &[], &["limits.bodybytes", "limits.body_bytes"]),
    ];
    for (arguments, environment, words) in cases {
        let out = output(combd(arguments).envs(environment.iter().copied()).current_dir(home.path()));
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(out.stdout.is_empty());
        for word in *words {
            assert!(error.contains(word), "{error:?} lacks {word:?}");
        }
    }
    assert!(!home.path().join("data").exists(), "nothing was touched");
}

#[test]
fn the_effective_configuration_can_be_printed_and_read_back() {
    let home = TempDir::new().unwrap();
    let printed = output(combd(&["--print-config", "--limits-headers=9"]).env("COMB_LOG_NOOP_IDLE_MS", "77"));
    assert_eq!(printed.status.code(), Some(0));
    let shown = text(&printed.stdout);
    for line in
        ["port = 6632", "bind = \"127.0.0.1\"", "headers = 9", "noop_idle_ms = 77", "[limits]", "[log]"]
    {
        assert!(shown.lines().any(|got| got == line), "{shown} lacks {line}");
    }
    let file = home.path().join("comb.toml");
    std::fs::write(&file, &shown).unwrap();
    let again =
        output(combd(&["--print-config", "--config", file.to_str().unwrap()]).current_dir(home.path()));
    assert_eq!(text(&again.stdout), shown);
    assert!(!home.path().join("data").exists());
    let help = output(&mut combd(&["--help"]));
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("--limits-body-bytes"));
}

#[test]
fn what_keeps_it_from_starting_is_status_1_and_named() {
    let home = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let data = home.path().join("data");
    let out = output(combd(&["--port", &address.port().to_string()]).arg("--data").arg(&data));
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains(&address.to_string()), "{}", text(&out.stderr));
    assert!(!data.exists(), "the port comes before the directory");

    let file = home.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let out = output(combd(&["--port=0"]).arg("--data").arg(&file));
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains(file.to_str().unwrap()), "{}", text(&out.stderr));
}

#[test]
fn sigterm_answers_parked_polls_and_ends_with_status_0() {
    let mut daemon = Daemon::start();
    let mut parked: Vec<TcpStream> = (0..50).map(|_| daemon.connect()).collect();
    for (index, socket) in parked.iter_mut().enumerate() {
        let request = format!("GET /api/v1/pop/queue/q{index}?wait=true HTTP/1.1\r\nHost: x\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
    }
    let idle = daemon.connect();
    // Answered after the polls were read, because one storage thread does both.
    let mut push = daemon.connect();
    let body = r#"{"items":[{"queue":"other","payload":1}]}"#;
    let head = format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    std::thread::sleep(Duration::from_millis(200));
    push.write_all(format!("{head}{body}").as_bytes()).unwrap();
    assert_eq!(status(&mut push), 201);

    let begun = Instant::now();
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::INT);
    for socket in &mut parked {
        assert_eq!(status(socket), 204);
    }
    assert_eq!(daemon.exit_code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(idle);
}

#[test]
fn what_is_too_old_is_gone_and_stays_gone() {
    let flags = &["--log-retention-sweep-ms=200"];
    let daemon = Daemon::start_in(TempDir::with_prefix("combd-test-").unwrap(), flags);
    let push = |daemon: &Daemon| {
        let items = r#"{"items":[{"queue":"q","payload":1},{"queue":"q","payload":2}]}"#;
        assert_eq!(daemon.call("POST", "/api/v1/push", items).0, 201);
    };
    let keep = |daemon: &Daemon, seconds: u32| {
        let options =
            format!(r#"{{"queue":"q","options":{{"retentionEnabled":true,"retentionSeconds":{seconds}}}}}"#);
        let (status, answer) = daemon.call("POST", "/api/v1/configure", &options);
        assert!(matches!(status, 200 | 201), "{status}: {answer}");
    };
    push(&daemon);
    assert_eq!(daemon.offsets("before"), [0, 1]);
    keep(&daemon, 1);
    let line = daemon.line("messages expired");
    assert_eq!((&line["fields"]["queue"], &line["fields"]["messages"]), (&"q".into(), &2.into()));
    assert!(daemon.offsets("behind").is_empty());
    // Nothing more goes once the limit is raised, and what went does not come back.
    keep(&daemon, 3_600);
    push(&daemon);
    std::thread::sleep(Duration::from_millis(1_600));
    assert_eq!(daemon.offsets("kept"), [2, 3]);
    let daemon = daemon.restart(flags);
    assert_eq!(daemon.offsets("again"), [2, 3]);
    // A limit that was set before a restart holds after it.
    keep(&daemon, 1);
    let daemon = daemon.restart(flags);
    daemon.line("messages expired");
    assert!(daemon.offsets("last").is_empty());
}

/// A hundred segments and three hundred clients, and 256 open files for all of them.
#[test]
fn a_low_limit_of_open_files_is_enough_for_any_log() {
    let limited = |home: TempDir| {
        let combd = combd(&["--port=0", "--log-json", "--log-segment-bytes=1048576"]);
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]).arg(combd.get_program());
        command.args(combd.get_args()).arg("--data").arg(home.path().join("data")).stdin(Stdio::null());
        for (name, value) in combd.get_envs() {
            assert!(value.is_none());
            command.env_remove(name);
        }
        Daemon::of(command, home)
    };
    let mut daemon = limited(TempDir::with_prefix("combd-test-").unwrap());
    let payload = "x".repeat(90_000);
    let item = format!(r#"{{"queue":"q","payload":"{payload}"}}"#);
    let body = format!(r#"{{"items":[{}]}}"#, vec![item; 5].join(","));
    for _ in 0..220 {
        assert_eq!(daemon.call("POST", "/api/v1/push", &body).0, 201);
    }
    let segments = || std::fs::read_dir(daemon.home.path().join("data/segments")).unwrap().count();
    assert!(segments() > 100, "{}", segments());
    let drained = |daemon: &Daemon, group: &str| {
        std::iter::from_fn(|| Some(daemon.offsets(group)))
            .take_while(|found| !found.is_empty())
            .flatten()
            .count()
    };
    assert_eq!(drained(&daemon, "first"), 1_100);
    // Those that find no place wait, and nobody else suffers.
    let mut many: Vec<TcpStream> = (0..300).map(|_| daemon.connect()).collect();
    many[0].write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(status(&mut many[0]), 200);
    drop(many);
    assert_eq!(drained(&daemon, "second"), 1_100);
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let home = std::mem::replace(&mut daemon.home, TempDir::new().unwrap());
    let daemon = limited(home);
    assert_eq!(drained(&daemon, "third"), 1_100);
}

#[test]
fn the_log_is_json_in_utc() {
    let mut daemon = Daemon::start();
    daemon.signal(Signal::INT);
    let line = daemon.line("stopped");
    assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
    assert_eq!(daemon.exit_code(), Some(0));
}

#[test]
fn storage_that_fails_is_status_74() {
    use comb::broker::handle::Handle;
    use comb::broker::storage::Ended;
    use comb::daemon::{Running, run};
    use comb::io::{Clock, IdSource, Waker};
    use comb::types::LogId;
    use tokio::sync::mpsc;

    let mut config = comb::config::Config::defaults();
    config.port = 0;
    let code = run(config, |_, status| {
        let (requests, _) = mpsc::channel(1);
        let (_, answers) = mpsc::unbounded_channel();
        let ids = IdSource::seeded(Clock::system(), 1);
        let handle =
            Handle::new(requests, Waker::new().unwrap(), std::sync::Arc::clone(&status), ids, LogId(1));
        let join = move || {
            status.poison("sync failed");
            Ended::Poisoned("sync failed".to_owned())
        };
        Ok(Running { handle, answers, stop: Box::new(|| {}), join: Box::new(join) })
    });
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::from(74)));
}
