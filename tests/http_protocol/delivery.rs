//! Claims and the clients they are for: whatever goes wrong between them, the claims go back; delivered, they stay.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use comb::broker::command::{Command, Source};
use comb::config::Config;
use comb::format::entry::skip;
use comb::io::ReadAt;
use tokio::time::{sleep, timeout};

use crate::harness::{Act, LEASE, claim, run, scripted};

#[tokio::test]
async fn a_client_that_leaves_a_parked_poll_is_noticed() {
    let mut server = scripted(Config::defaults(), |_| Act::Hold).await;
    let mut client = server.client().await;
    client.write("GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let Command::Pop(pop) = server.command().await else { panic!() };
    assert!(!pop.presence.left());
    drop(client);
    let Command::Gone(ticket) = server.command().await else {
        panic!("the broker hears that the client left")
    };
    assert_eq!(ticket, pop.ticket);
    assert!(pop.presence.left());

    // Storage had claimed for it in the same moment: the claims go back.
    let (run, bytes) = run(&[b"1"]);
    let slot = server.held.recv().await.unwrap();
    server.answers.send(vec![(slot, claim(run, Source::Memory(bytes), 40, 40))]).unwrap();
    assert!(matches!(server.command().await, Command::Return(LEASE)));
}

#[tokio::test]
async fn a_reset_while_parked_is_noticed_too() {
    let mut server = scripted(Config::defaults(), |_| Act::Hold).await;
    let mut client = server.client().await;
    client.write("GET /api/v1/pop?task=t&wait=true HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let Command::Pop(pop) = server.command().await else { panic!() };
    client.socket.set_zero_linger().unwrap();
    drop(client);
    assert!(matches!(server.command().await, Command::Gone(ticket) if ticket == pop.ticket));
}

#[tokio::test]
async fn delivered_claims_stay() {
    let (run, bytes) = run(&[b"1", b"2", b"3"]);
    let mut server = scripted(Config::defaults(), move |command| match command {
        Command::Pop(_) => Act::Reply(claim(run, Source::Memory(bytes.clone()), 41, 42)),
        _ => Act::Usual,
    })
    .await;
    let mut client = server.client().await;
    for _ in 0..3 {
        let answer = client.get("/api/v1/pop/queue/q").await;
        assert_eq!(answer.json()["messages"].as_array().unwrap().len(), 2);
        assert!(matches!(server.command().await, Command::Pop(_)));
    }
    drop(client);
    sleep(Duration::from_millis(200)).await;
    server.assert_untouched("after delivery");
}

#[tokio::test]
async fn an_answer_that_breaks_off_gives_its_claims_back() {
    let payload = vec![b'1'; 32 << 20];
    let (run, bytes) = run(&[&payload]);
    let mut server = scripted(Config::defaults(), move |command| match command {
        Command::Pop(_) => Act::Reply(claim(run, Source::Memory(bytes.clone()), 40, 40)),
        _ => Act::Usual,
    })
    .await;
    let mut client = server.client().await;
    client.write("GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(matches!(server.command().await, Command::Pop(_)));
    sleep(Duration::from_millis(50)).await;
    server.assert_untouched("the answer is still on its way");
    drop(client);
    assert!(matches!(server.command().await, Command::Return(LEASE)));
}

/// A segment in memory that counts what is read of it.
struct Segment {
    bytes: Vec<u8>,
    read: std::sync::atomic::AtomicUsize,
}

impl ReadAt for Segment {
    fn read_at(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        self.read.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        let position = usize::try_from(position).unwrap();
        match self.bytes.get(position..position + bytes) {
            Some(bytes) => Ok(Bytes::copy_from_slice(bytes)),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no more bytes")),
        }
    }

    fn path(&self) -> &Path {
        Path::new("/data/segment-7")
    }
}

fn segment(entries: &[u8]) -> Arc<Segment> {
    Arc::new(Segment { bytes: [&[0xaa; 100], entries].concat(), read: 0.into() })
}

#[tokio::test]
async fn messages_come_from_segments_and_only_the_beginning_is_read() {
    let payload = format!("\"{}\"", "5".repeat(300_000)).into_bytes();
    let payloads: Vec<&[u8]> = vec![&payload; 40];
    let (run, entries) = run(&payloads);
    let file = segment(&entries);
    let shared = Arc::clone(&file);
    let server = scripted(Config::defaults(), move |_| {
        let file: Arc<dyn ReadAt> = shared.clone();
        Act::Reply(claim(run, Source::File { file, position: 100, bytes: run.bytes }, 43, 44))
    })
    .await;
    let json = server.client().await.get("/api/v1/pop/queue/q").await.json();
    let got: Vec<&str> =
        json["messages"].as_array().unwrap().iter().map(|m| m["transactionId"].as_str().unwrap()).collect();
    assert_eq!(got, ["t43", "t44"]);
    assert!(file.read.load(std::sync::atomic::Ordering::Relaxed) < 3 << 20, "not all of the run");
}

#[tokio::test]
async fn a_damaged_or_missing_message_is_500_with_its_place_and_goes_back() {
    let (run, entries) = run(&[b"11", b"22"]);
    let second = skip(&entries).unwrap();
    let mut damaged = entries.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    for (bytes, place) in [(damaged, 100 + second), (entries[..second].to_vec(), 100)] {
        let file = segment(&bytes);
        let mut server = scripted(Config::defaults(), move |command| match command {
            Command::Pop(_) => {
                let file: Arc<dyn ReadAt> = file.clone();
                Act::Reply(claim(run, Source::File { file, position: 100, bytes: run.bytes }, 40, 41))
            }
            _ => Act::Usual,
        })
        .await;
        let answer = server.client().await.get("/api/v1/pop/queue/q").await;
        let fault = answer.fault(500, "internal");
        assert!(fault.contains("/data/segment-7") && fault.contains(&place.to_string()), "{fault}");
        assert!(matches!(server.command().await, Command::Pop(_)));
        assert!(matches!(server.command().await, Command::Return(LEASE)));
    }
}

#[tokio::test]
async fn many_polls_leave_at_once() {
    let mut server = scripted(Config::defaults(), |_| Act::Hold).await;
    let mut clients = Vec::new();
    for _ in 0..200 {
        let mut client = server.client().await;
        client.write("GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: x\r\n\r\n").await;
        clients.push(client);
    }
    let mut parked = 0;
    let mut gone = 0;
    while parked < 200 {
        match server.command().await {
            Command::Pop(_) => parked += 1,
            other => panic!("{other:?}"),
        }
    }
    drop(clients);
    while gone < 200 {
        match server.command().await {
            Command::Gone(_) => gone += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(timeout(Duration::from_millis(50), server.seen.recv()).await.is_err());
}
