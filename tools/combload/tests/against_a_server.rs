//! The real binary against a small queue in memory that checks every request it gets.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// How the server misbehaves.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Every tenth push is answered 503.
    Refuse,
    /// Every tenth message is not stored although it is answered so.
    Lose,
    /// Every tenth message is stored twice.
    Repeat,
    /// Messages of a push are stored in reverse.
    Reverse,
}

#[derive(Default)]
struct Broker {
    ready: BTreeMap<String, VecDeque<Value>>,
    leased: BTreeMap<String, VecDeque<Value>>,
    leases: u64,
    pushes: u64,
    stored: u64,
    acked: u64,
    /// Requests that are not what the protocol says.
    wrong: Vec<String>,
}

impl Broker {
    fn push(&mut self, body: &Value, fault: Fault) -> (StatusCode, Value) {
        self.pushes += 1;
        if fault == Fault::Refuse && self.pushes.is_multiple_of(10) {
            return (StatusCode::SERVICE_UNAVAILABLE, json!({"error": "later", "code": "retry"}));
        }
        let mut items = body["items"].as_array().unwrap().clone();
        let answer = items.iter().enumerate().map(|(index, item)| {
            json!({"index": index, "message_id": "m", "transaction_id": item["transactionId"],
                   "queueName": item["queue"], "status": "queued", "offset": index})
        });
        let answer = Value::Array(answer.collect());
        if fault == Fault::Reverse {
            items.reverse();
        }
        for item in items {
            let id = item["transactionId"].as_str().unwrap();
            if id.len() != 36 || item["queue"] != "load" || !item["payload"].is_object() {
                self.wrong.push(item.to_string());
            }
            let partition = item["partition"].as_str().unwrap().to_owned();
            self.stored += 1;
            let copies = match fault {
                Fault::Lose if self.stored.is_multiple_of(10) => 0,
                Fault::Repeat if self.stored.is_multiple_of(10) => 2,
                _ => 1,
            };
            for _ in 0..copies {
                self.ready.entry(partition.clone()).or_default().push_back(item.clone());
            }
        }
        (StatusCode::CREATED, answer)
    }

    fn pop(&mut self, query: &str) -> Option<Value> {
        let options: BTreeMap<&str, &str> =
            query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let batch: usize = options["batch"].parse().unwrap();
        let auto = options.get("autoAck") == Some(&"true");
        let partition = self
            .ready
            .iter()
            .find(|(name, messages)| !messages.is_empty() && !self.leased.contains_key(*name))
            .map(|(name, _)| name.clone())?;
        let messages = self.ready.get_mut(&partition).unwrap();
        let taken: VecDeque<Value> = messages.drain(..batch.min(messages.len())).collect();
        self.leases += 1;
        let lease = if auto { String::new() } else { format!("lease-{}", self.leases) };
        let shown: Vec<Value> = taken
            .iter()
            .map(|item| {
                json!({"id": "m", "transactionId": item["transactionId"], "traceId": null, "data": item["payload"],
                       "partitionId": format!("id-{partition}"), "partition": partition, "leaseId": lease,
                       "consumerGroup": "g", "createdAt": "t", "deliveryAttempt": 1, "offset": 0})
            })
            .collect();
        if !auto {
            self.leased.insert(partition, taken);
        }
        Some(
            json!({"success": true, "queue": "load", "leaseId": lease, "messages": shown, "partitionsClaimed": 1}),
        )
    }

    fn ack(&mut self, items: &[Value]) -> Value {
        let verdicts = items.iter().enumerate().map(|(index, item)| {
            let partition = item["partitionId"].as_str().unwrap().strip_prefix("id-").unwrap().to_owned();
            if !item["leaseId"].as_str().unwrap().starts_with("lease-") || item["status"] != "completed" {
                self.wrong.push(item.to_string());
            }
            let held = self.leased.get_mut(&partition);
            let known = held.is_some_and(|held| {
                let found = held.front().is_some_and(|first| first["transactionId"] == item["transactionId"]);
                if found {
                    held.pop_front();
                }
                found
            });
            if self.leased.get(&partition).is_some_and(VecDeque::is_empty) {
                self.leased.remove(&partition);
            }
            self.acked += u64::from(known);
            json!({"index": index, "transactionId": item["transactionId"], "success": known,
                   "error": null, "leaseReleased": true, "dlq": false, "noop": false})
        });
        Value::Array(verdicts.collect())
    }
}

struct Server {
    address: String,
    broker: Arc<Mutex<Broker>>,
    _runtime: tokio::runtime::Runtime,
}

fn serve(fault: Fault) -> Server {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let broker = Arc::new(Mutex::new(Broker::default()));
    let shared = Arc::clone(&broker);
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(request, Arc::clone(&shared), fault));
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Server { address, broker, _runtime: runtime }
}

async fn answer(
    request: Request<Incoming>,
    broker: Arc<Mutex<Broker>>,
    fault: Fault,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or("").to_owned();
    let host = request.headers().contains_key("host");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let body: Value = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
    let (status, answer) = {
        let mut broker = broker.lock().unwrap();
        if !host {
            broker.wrong.push(format!("{path} without a host header"));
        }
        match path.as_str() {
            "/api/v1/push" => {
                let (status, answer) = broker.push(&body, fault);
                (status, Some(answer))
            }
            "/api/v1/pop/queue/load" => match broker.pop(&query) {
                Some(answer) => (StatusCode::OK, Some(answer)),
                None => (StatusCode::NO_CONTENT, None),
            },
            "/api/v1/ack" => (StatusCode::OK, Some(broker.ack(std::slice::from_ref(&body)))),
            "/api/v1/ack/batch" => {
                let items = body["acknowledgments"].as_array().unwrap().clone();
                (StatusCode::OK, Some(broker.ack(&items)))
            }
            _ => (StatusCode::NOT_FOUND, Some(json!({"error": "Not Found"}))),
        }
    };
    if status == StatusCode::NO_CONTENT && query.contains("wait=true") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let bytes = answer.map_or_else(Bytes::new, |answer| Bytes::from(answer.to_string()));
    let mut response = Response::new(Full::new(bytes));
    *response.status_mut() = status;
    Ok(response)
}

fn combload(address: &str, words: &[&str]) -> (Output, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_combload"))
        .args(["--address", address])
        .args(words)
        .output()
        .unwrap();
    let line = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, line)
}

/// A file of this test alone, removed at the end.
struct Ledger(PathBuf);

impl Ledger {
    fn new(test: &str) -> Ledger {
        let name = format!("combload-{test}-{}.ledger", std::process::id());
        Ledger(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const SHORT: [&str; 10] =
    ["push", "--connections", "4", "--batch", "10", "--partitions", "3", "--seconds", "0.3", "--payload"];

fn short_push<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SHORT.iter().copied().chain(["128"]).chain(more.iter().copied()).collect()
}

#[test]
fn pushes_are_well_formed_and_counted() {
    let server = serve(Fault::None);
    let (output, line) = combload(&server.address, &short_push(&["--rate", "200"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let broker = server.broker.lock().unwrap();
    assert!(broker.wrong.is_empty(), "{:?}", broker.wrong);
    assert!(broker.stored > 0);
    assert_eq!(line["messages"], broker.stored);
    assert_eq!(line["requests"], broker.pushes);
    assert_eq!(broker.stored, broker.pushes * 10);
    // Paced: 200 requests per second for 0.3 seconds, less what a busy machine did not get sent.
    assert!(broker.pushes <= 60);
    assert_eq!(broker.pushes + line["never_sent"].as_u64().unwrap_or(0), 60);
    assert_eq!(broker.ready.len(), 3);
    assert_eq!(line["subcommand"], "push");
    assert_eq!(line["params"]["batch"], 10);
    assert!(line["latency_us"]["p99"].as_u64().unwrap() > 0);
    assert_eq!(line["errors"], json!({}));
}

#[test]
fn refusals_are_counted_by_status_and_fail_the_run() {
    let server = serve(Fault::Refuse);
    let (output, line) = combload(&server.address, &short_push(&[]));
    assert_eq!(output.status.code(), Some(1));
    let broker = server.broker.lock().unwrap();
    assert_eq!(line["errors"]["status_503"], broker.pushes / 10);
    assert!(String::from_utf8_lossy(&output.stderr).contains("status 503"));
}

#[test]
fn drain_and_single_acks_take_everything() {
    for word in ["drain", "ack"] {
        let server = serve(Fault::None);
        combload(&server.address, &short_push(&["--rate", "100"]));
        let (output, line) = combload(&server.address, &[word, "--connections", "3", "--batch", "7"]);
        assert!(output.status.success(), "{word}: {}", String::from_utf8_lossy(&output.stderr));
        let broker = server.broker.lock().unwrap();
        assert!(broker.stored > 0);
        assert_eq!(broker.acked, broker.stored, "{word}");
        assert_eq!(line["messages"], broker.stored, "{word}");
        assert!(broker.wrong.is_empty(), "{:?}", broker.wrong);
    }
}

#[test]
fn the_pipeline_acknowledges_what_it_pushes() {
    let server = serve(Fault::None);
    let words = ["pipeline", "--producers", "2", "--consumers", "2", "--batch", "10", "--pop-batch", "10"];
    let words: Vec<&str> = words.into_iter().chain(["--seconds", "0.3", "--rate", "100"]).collect();
    let (output, line) = combload(&server.address, &words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let broker = server.broker.lock().unwrap();
    assert!(broker.stored > 0);
    assert_eq!(line["messages"], broker.stored);
    assert_eq!(line["pushed"], broker.stored);
    assert_eq!(broker.acked, broker.stored);
    assert!(broker.wrong.is_empty(), "{:?}", broker.wrong);
}

fn verdict(fault: Fault, test: &str) -> (Output, Value) {
    let server = serve(fault);
    let ledger = Ledger::new(test);
    combload(&server.address, &short_push(&["--rate", "100", "--ledger", ledger.path()]));
    combload(&server.address, &["verify", "--ledger", ledger.path(), "--batch", "25"])
}

#[test]
fn verify_finds_nothing_wrong_with_a_good_queue() {
    let (output, line) = verdict(Fault::None, "good");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(line["messages"].as_u64().unwrap() > 0);
    assert_eq!(line["messages"], line["stored"]);
}

#[test]
fn verify_finds_what_a_bad_queue_did() {
    for (fault, word) in [(Fault::Lose, "lost"), (Fault::Repeat, "duplicate"), (Fault::Reverse, "misordered")]
    {
        let (output, line) = verdict(fault, word);
        assert_eq!(output.status.code(), Some(1), "{word}");
        assert!(line["errors"][word].as_u64().unwrap() > 0, "{word}: {line}");
    }
}

#[test]
fn the_bare_server_takes_pushes() {
    // A free port, found by letting it go again.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new(env!("CARGO_BIN_EXE_combload"))
        .args(["server204", "--seconds", "60", "--port", &port.to_string()])
        .spawn()
        .unwrap();
    let address = format!("127.0.0.1:{port}");
    for _ in 0..200 {
        if std::net::TcpStream::connect(&address).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let (output, line) = combload(&address, &short_push(&["--target-204"]));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(line["messages"].as_u64().unwrap(), line["requests"].as_u64().unwrap() * 10);
}

#[test]
fn a_server_that_is_not_there_is_said_plainly() {
    let (output, _) = combload("127.0.0.1:1", &["push", "--seconds", "0.1"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("connecting to 127.0.0.1:1") && text.contains("--address"), "{text}");
}
