//! Clients that are slow or silent, and the end of the server.

use std::time::Duration;

use comb::broker::command::{Command, PopReply, Reply, Source};
use comb::broker::status::Phase;
use comb::config::Config;
use tokio::time::{Instant, sleep, timeout};

use crate::harness::{Act, PATIENCE, claim, run, scripted, start};

fn quick() -> Config {
    let mut config = Config::defaults();
    config.limits.header_timeout_ms = 150;
    config.limits.body_timeout_ms = 150;
    config.limits.idle_timeout_ms = 400;
    config
}

#[tokio::test]
async fn a_slow_head_ends_the_connection() {
    let server = start(quick()).await;
    let mut client = server.client().await;
    let begun = Instant::now();
    let trickle = async {
        for byte in b"GET /health/live HTTP/1.1\r\nHost: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" {
            use tokio::io::AsyncWriteExt as _;
            if client.socket.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        client
    };
    let mut client = trickle.await;
    assert!(client.closed().await);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn an_idle_connection_ends_later_than_a_slow_head_and_a_served_one_lives_on() {
    let server = start(quick()).await;
    let mut fresh = server.client().await;
    let mut served = server.client().await;
    for _ in 0..3 {
        // Longer than a head may take, shorter than an idle time.
        sleep(Duration::from_millis(220)).await;
        assert_eq!(served.get("/health/live").await.status, 200);
    }
    assert!(fresh.closed().await, "never sent a byte");
    let begun = Instant::now();
    assert!(served.closed().await);
    assert!(
        begun.elapsed() > Duration::from_millis(200),
        "idle time begins with the last answer: {:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn a_slow_body_is_408_and_ends_the_connection() {
    let mut server = start(quick()).await;
    let mut client = server.client().await;
    client.write("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n").await;
    for _ in 0..5 {
        client.write("{").await;
        sleep(Duration::from_millis(20)).await;
    }
    let answer = client.answer().await.unwrap();
    assert!(answer.fault(408, "body_timeout").contains("limits.body_timeout_ms"));
    assert!(client.closed().await);
    server.assert_untouched("half a body");
}

#[tokio::test]
async fn a_parked_poll_outlives_every_timeout() {
    let mut server = scripted(quick(), |_| Act::Hold).await;
    let mut client = server.client().await;
    client.write("GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let slot = timeout(PATIENCE, server.held.recv()).await.unwrap().unwrap();
    sleep(Duration::from_millis(700)).await;
    server.answers.send(vec![(slot, Reply::Pop(PopReply::default()))]).unwrap();
    assert_eq!(client.answer().await.unwrap().status, 204);
}

#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up_and_its_claims_go_back() {
    let payload = vec![b'1'; 32 << 20];
    let (run, bytes) = run(&[&payload]);
    let mut server = scripted(quick(), move |command| match command {
        Command::Pop(_) => Act::Reply(claim(run, Source::Memory(bytes.clone()), 40, 40)),
        _ => Act::Usual,
    })
    .await;
    let mut client = server.client().await;
    client.write("GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(matches!(server.command().await, Command::Pop(_)));
    // The client stays connected and reads nothing.
    assert!(matches!(server.command().await, Command::Return(lease) if lease == crate::harness::LEASE));
}

#[tokio::test]
async fn storage_that_does_not_answer_is_503_timeout() {
    let mut config = quick();
    config.limits.request_seconds = 1;
    let server = scripted(config, |_| Act::Hold).await;
    let answer = server.client().await.push(r#"{"items":[{"queue":"q","payload":1}]}"#).await;
    assert!(answer.fault(503, "timeout").contains("outcome is unknown"));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_their_turn() {
    let mut config = quick();
    config.limits.connections = 2;
    let server = start(config).await;
    let mut first = server.client().await;
    let mut second = server.client().await;
    assert_eq!(first.get("/health/live").await.status, 200);
    assert_eq!(second.get("/health/live").await.status, 200);
    let mut third = server.client().await;
    third.write("GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(timeout(Duration::from_millis(100), third.answer()).await.is_err());
    drop(first);
    assert_eq!(third.answer().await.unwrap().status, 200);
}

#[tokio::test]
async fn a_stop_answers_parked_polls_and_closes_idle_connections() {
    let mut server = scripted(Config::defaults(), |_| Act::Hold).await;
    let mut parked = server.client().await;
    let mut idle = server.client().await;
    assert_eq!(idle.get("/health/live").await.status, 200);
    let mut fresh = server.client().await;
    parked.write("GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let slot = timeout(PATIENCE, server.held.recv()).await.unwrap().unwrap();
    let begun = Instant::now();
    server.status.enter(Phase::Stopping);
    server.stop.take().unwrap().send(()).unwrap();
    assert!(idle.closed().await);
    assert!(fresh.closed().await);
    server.answers.send(vec![(slot, Reply::Pop(PopReply::default()))]).unwrap();
    assert_eq!(parked.answer().await.unwrap().status, 204);
    timeout(PATIENCE, &mut server.serving).await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err());
}
