//! A server with a scripted broker behind it, and a client that writes what it is told.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use comb::broker::command::{
    AckVerdict, Claim, Command, ConfigureReply, DeadLetterPage, ExtendReply, GroupReply, Piece, PopReply,
    PushGroup, PushVerdict, Reply, Source, TransactionReply,
};
use comb::broker::handle::{Answers, Handle, ReplySlot, Request, dispatch};
use comb::broker::status::{Phase, Status};
use comb::config::Config;
use comb::format::entry::Entry;
use comb::format::id_hash;
use comb::format::run::{RunForm, RunHeader};
use comb::http::{App, server};
use comb::io::{Clock, IdSource, Waker};
use comb::types::{LeaseId, LogId, LogTime, MessageId, Offset, PartitionId, QueueId, QueueOptions, WallTime};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Longer than anything a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const LOG: LogId = LogId(7);
pub(crate) const LEASE: LeaseId = LeaseId(0x0193_0000_0000_7000_8000_0000_0000_00aa);

/// What the scripted broker does with a command.
pub(crate) enum Act {
    Reply(Reply),
    /// Keep it waiting; its slot comes out of `Server::held`.
    Hold,
    /// The obvious success.
    Usual,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) status: Arc<Status>,
    pub(crate) seen: mpsc::UnboundedReceiver<Command>,
    pub(crate) held: mpsc::UnboundedReceiver<ReplySlot>,
    pub(crate) answers: mpsc::UnboundedSender<Answers>,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) serving: tokio::task::JoinHandle<()>,
}

pub(crate) async fn start(config: Config) -> Server {
    scripted(config, |_| Act::Usual).await
}

pub(crate) async fn scripted(
    config: Config,
    mut script: impl FnMut(&Command) -> Act + Send + 'static,
) -> Server {
    let status = Arc::new(Status::default());
    status.enter(Phase::Ready);
    let app = App::new(config, Arc::clone(&status));
    let (requests, mut receiver) = mpsc::channel::<Request>(1024);
    let ids = IdSource::seeded(Clock::system(), 1);
    let handle = Handle::new(requests, Waker::new().unwrap(), Arc::clone(&status), ids, LOG);
    app.ready(handle.clone());
    let (answers, batches) = mpsc::unbounded_channel();
    tokio::spawn(dispatch(handle, batches));
    let (saw, seen) = mpsc::unbounded_channel();
    let (hold, held) = mpsc::unbounded_channel();
    let replies = answers.clone();
    tokio::spawn(async move {
        while let Some(Request { command, reply }) = receiver.recv().await {
            let act = script(&command);
            let usual = (reply.is_some() && matches!(act, Act::Usual)).then(|| usual(&command));
            let _ = saw.send(command);
            match (act, reply) {
                (Act::Hold, Some(slot)) => hold.send(slot).unwrap_or_default(),
                (Act::Reply(reply), Some(slot)) => replies.send(vec![(slot, reply)]).unwrap_or_default(),
                (Act::Usual, Some(slot)) => replies.send(vec![(slot, usual.unwrap())]).unwrap_or_default(),
                (_, None) => {}
            }
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(server::serve(listener, app, async move {
        let _ = stopped.await;
    }));
    Server { address, status, seen, held, answers, stop: Some(stop), serving }
}

/// A server without a broker yet.
pub(crate) async fn recovering() -> (SocketAddr, Arc<Status>) {
    let status = Arc::new(Status::default());
    let app = App::new(Config::defaults(), Arc::clone(&status));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(server::serve(listener, app, std::future::pending()));
    (address, status)
}

fn verdicts(groups: &[PushGroup]) -> Vec<Vec<PushVerdict>> {
    let verdict = |group: &PushGroup, index: usize| {
        let item = group.items[index];
        let original = item.repeat_of.map_or(index, |first| first as usize);
        PushVerdict {
            id: group.items[original].id,
            offset: Offset(original as u64),
            duplicate: item.repeat_of.is_some(),
        }
    };
    groups.iter().map(|group| (0..group.items.len()).map(|index| verdict(group, index)).collect()).collect()
}

pub(crate) fn usual(command: &Command) -> Reply {
    match command {
        Command::Push(groups) => Reply::Push(verdicts(groups)),
        Command::Pop(_) => Reply::Pop(PopReply::default()),
        Command::Ack(call) => Reply::Ack(vec![AckVerdict::default(); call.items.len()]),
        Command::Extend { .. } => {
            Reply::Extend(ExtendReply { renewed: 2, expires: Some(WallTime(1_796_040_000_123_456)) })
        }
        Command::Transaction(transaction) => Reply::Transaction(TransactionReply::Committed {
            acks: vec![AckVerdict::default(); transaction.acks.len()],
            pushes: verdicts(&transaction.pushes),
        }),
        Command::Configure(_) => Reply::Configure(ConfigureReply {
            queue: QueueId(3),
            namespace: "n".to_owned(),
            task: "t".to_owned(),
            options: QueueOptions::configured(),
        }),
        Command::DeleteQueue(_) => Reply::DeleteQueue(true),
        Command::DeadLetters(_) => Reply::DeadLetters(DeadLetterPage::default()),
        Command::Group(_) => Reply::Group(GroupReply::default()),
        Command::Survey(_) => Reply::Survey(Box::default()),
        Command::Gone(_) | Command::Return(_) => unreachable!("these have no answer"),
    }
}

impl Server {
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// The next command that reached the broker.
    pub(crate) async fn command(&mut self) -> Command {
        timeout(PATIENCE, self.seen.recv()).await.expect("a command reaches the broker").unwrap()
    }

    /// Nothing reached the broker so far.
    pub(crate) fn assert_untouched(&mut self, what: &str) {
        if let Ok(command) = self.seen.try_recv() {
            panic!("{what}: {command:?} reached the broker");
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:.300}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// Checks an error of the plain shape and gives its text.
    #[track_caller]
    pub(crate) fn fault(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        let json = self.json();
        assert_eq!(json["code"], code, "{json}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert!(self.body.len() < 5000, "errors are short");
        json["error"].as_str().unwrap().to_owned()
    }
}

pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    rest: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Client {
        Client { socket: TcpStream::connect(address).await.unwrap(), rest: Vec::new() }
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).await.unwrap();
    }

    /// The next answer; `None` when the connection ends without one.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        timeout(PATIENCE, self.read(false)).await.expect("an answer in time")
    }

    async fn read(&mut self, head_only: bool) -> Option<Answer> {
        let end = loop {
            if let Some(at) = self.rest.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.more().await?;
        };
        let head = String::from_utf8(self.rest.drain(..end).collect()).unwrap();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        let bytes: usize = answer.header("content-length").map_or(0, |bytes| bytes.parse().unwrap());
        if status != 100 && !head_only {
            while self.rest.len() < bytes {
                self.more().await?;
            }
            answer.body = self.rest.drain(..bytes).collect();
        }
        Some(answer)
    }

    async fn more(&mut self) -> Option<()> {
        let mut buffer = vec![0; 64 * 1024];
        match self.socket.read(&mut buffer).await {
            Ok(0) | Err(_) => None,
            Ok(bytes) => {
                self.rest.extend_from_slice(&buffer[..bytes]);
                Some(())
            }
        }
    }

    /// The server closes, with nothing more to read.
    pub(crate) async fn closed(&mut self) -> bool {
        timeout(PATIENCE, async { self.rest.is_empty() && self.more().await.is_none() })
            .await
            .unwrap_or(false)
    }

    /// The answer to a HEAD.
    pub(crate) async fn head(&mut self, path: &str) -> Answer {
        self.write(format!("HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        timeout(PATIENCE, self.read(true)).await.unwrap().unwrap()
    }

    pub(crate) async fn request(&mut self, method: &str, path: &str, body: impl AsRef<[u8]>) -> Answer {
        let body = body.as_ref();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        self.write([head.as_bytes(), body].concat()).await;
        self.answer().await.unwrap_or_else(|| panic!("{method} {path} is answered"))
    }

    pub(crate) async fn post(&mut self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.request("POST", path, body).await
    }

    pub(crate) async fn push(&mut self, body: impl AsRef<[u8]>) -> Answer {
        self.post("/api/v1/push", body).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.write(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        self.answer().await.unwrap_or_else(|| panic!("GET {path} is answered"))
    }
}

/// A run with these payloads, at offsets from 40, with transaction ids `t40`, `t41`, …
pub(crate) fn run(payloads: &[&[u8]]) -> (RunHeader, Bytes) {
    let mut entries = Vec::new();
    for (index, payload) in payloads.iter().enumerate() {
        let transaction_id = format!("t{}", 40 + index);
        Entry {
            id: MessageId(0x0193_0000_0000_7000_8000_0000_0000_0000 + index as u128),
            hash: id_hash(LOG, &transaction_id),
            transaction_id: Cow::Owned(transaction_id),
            trace: None,
            producer: None,
            payload,
        }
        .encode(&mut entries);
    }
    let run = RunHeader {
        form: RunForm::Pushed,
        partition: PartitionId(17),
        base: Offset(40),
        count: u32::try_from(payloads.len()).unwrap(),
        bytes: u32::try_from(entries.len()).unwrap(),
        created: WallTime(1_796_040_000_123_456),
        logged: LogTime(1),
    };
    (run, entries.into())
}

/// A claim of messages `first..=last` of a run.
pub(crate) fn claim(run: RunHeader, source: Source, first: u64, last: u64) -> Reply {
    Reply::Pop(PopReply {
        lease: Some(LEASE),
        claims: vec![Claim {
            partition: run.partition,
            partition_name: "eu".into(),
            attempt: 1,
            pieces: vec![Piece { run, source, first: Offset(first), last: Offset(last) }],
        }],
    })
}

/// Items of a push body.
pub(crate) fn items(json: &str) -> String {
    format!("{{\"items\":[{json}]}}")
}
