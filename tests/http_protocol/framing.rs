//! HTTP framing: ambiguity, broken chunks, expectations, pipelines, oversized bodies that still hear why.

use std::time::Duration;

use comb::broker::command::{Command, PopReply, Reply};
use comb::config::Config;
use tokio::time::{Instant, timeout};

use crate::harness::{Act, PATIENCE, scripted, start};

const BODY: &str = r#"{"items":[{"queue":"q","payload":1}]}"#;

#[tokio::test]
async fn ambiguous_or_broken_requests_are_400_and_close() {
    let mut server = start(Config::defaults()).await;
    let length = BODY.len();
    let chunk = format!("{length:x}\r\n{BODY}\r\n0\r\n\r\n");
    let post = "POST /api/v1/push HTTP/1.1\r\nHost: x\r\n";
    let cases = [
        (
            "length, then chunks",
            format!("{post}Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}"),
        ),
        (
            "chunks, then length",
            format!("{post}Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n{chunk}"),
        ),
        ("two lengths", format!("{post}Content-Length: {length}\r\nContent-Length: 5\r\n\r\n{BODY}")),
        (
            "two equal lengths",
            format!("{post}Content-Length: {length}\r\nContent-Length: {length}\r\n\r\n{BODY}"),
        ),
        ("a list of lengths", format!("{post}Content-Length: {length}, {length}\r\n\r\n{BODY}")),
        ("a signed length", format!("{post}Content-Length: +{length}\r\n\r\n{BODY}")),
        ("a negative length", format!("{post}Content-Length: -1\r\n\r\n{BODY}")),
        ("an overflowing length", format!("{post}Content-Length: 18446744073709551617\r\n\r\n{BODY}")),
        ("an encoding that is not chunked", format!("{post}Transfer-Encoding: gzip\r\n\r\n{chunk}")),
        ("chunked not last", format!("{post}Transfer-Encoding: chunked, gzip\r\n\r\n{chunk}")),
        (
            "chunks in HTTP/1.0",
            format!("POST /api/v1/push HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}"),
        ),
        (
            "an overflowing chunk size",
            format!("{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "a negative chunk size",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n-1\r\n{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "a prefixed chunk size",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n0x10\r\n{BODY}\r\n0\r\n\r\n"),
        ),
        (
            "a chunk without its line end",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{BODY}0\r\n\r\n"),
        ),
        (
            "bare line feeds",
            format!("POST /api/v1/push HTTP/1.1\nHost: x\nContent-Length: {length}\n\n{BODY}"),
        ),
        (
            "one bare line feed",
            format!("POST /api/v1/push HTTP/1.1\r\nHost: x\nContent-Length: {length}\r\n\r\n{BODY}"),
        ),
        ("a folded header", format!("{post}X: a\r\n b\r\nContent-Length: {length}\r\n\r\n{BODY}")),
        ("a space before the colon", format!("{post}Content-Length : {length}\r\n\r\n{BODY}")),
        ("no request line", "hello\r\n\r\n".to_owned()),
        ("a nameless header", format!("{post}: x\r\n\r\n")),
    ];
    for (what, request) in cases {
        let mut client = server.client().await;
        client.write(&request).await;
        if let Some(answer) = client.answer().await {
            assert_eq!(answer.status, 400, "{what}");
            if !answer.body.is_empty() {
                assert!(answer.json()["error"].is_string(), "{what}");
            }
        }
        assert!(client.closed().await, "{what}: the connection is closed");
    }
    server.assert_untouched("broken framing");
}

#[tokio::test]
async fn a_request_cannot_hide_in_a_pipelined_body() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    // The second head arrives together with the first, where its raw lines are not looked at: the connection ends
    // after it instead.
    client
        .write(
            "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\nPOST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nDELETE /api/v1/resources/queues/q HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        .await;
    assert_eq!(client.answer().await.unwrap().status, 200);
    assert_eq!(client.answer().await.unwrap().status, 400);
    assert!(client.closed().await);
    server.assert_untouched("a hidden request");
}

#[tokio::test]
async fn chunked_bodies_work() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let (left, right) = BODY.split_at(10);
    for _ in 0..2 {
        client.write("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        for part in [left, right] {
            client.write(format!("{:x};x=y\r\n{part}\r\n", part.len())).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client.write("0\r\n\r\n").await;
        assert_eq!(client.answer().await.unwrap().status, 201);
        assert!(matches!(server.command().await, Command::Push(_)));
    }
}

#[tokio::test]
async fn expectations() {
    let mut server = start(Config::defaults()).await;
    let head = |length: u64, expect: &str| {
        format!(
            "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nExpect: {expect}\r\n\r\n"
        )
    };
    let mut client = server.client().await;
    let begun = Instant::now();
    client.write(head(BODY.len() as u64, "100-Continue")).await;
    assert_eq!(client.answer().await.unwrap().status, 100);
    assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());
    client.write(BODY).await;
    assert_eq!(client.answer().await.unwrap().status, 201);
    server.command().await;

    let mut client = server.client().await;
    client.write(head(1 << 40, "100-continue")).await;
    client.answer().await.unwrap().fault(413, "body_too_large");
    assert!(client.closed().await, "nothing may be taken for another request");

    let mut client = server.client().await;
    client.write(head(5, "tea")).await;
    client.answer().await.unwrap().fault(417, "bad_request");

    let mut client = server.client().await;
    client.write("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n").await;
    client.answer().await.unwrap().fault(400, "bad_body");
    server.assert_untouched("expectations");
}

#[tokio::test]
async fn a_body_beyond_the_limit_hears_413_while_it_is_sent() {
    let mut config = Config::defaults();
    config.limits.body_bytes = 1024;
    let mut server = start(config).await;
    for chunked in [false, true] {
        let mut client = server.client().await;
        let bytes = 8 << 20;
        let framing = if chunked {
            "Transfer-Encoding: chunked".to_owned()
        } else {
            format!("Content-Length: {bytes}")
        };
        client.write(format!("POST /api/v1/push HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n")).await;
        let block = vec![b' '; 1 << 16];
        for _ in 0..bytes >> 16 {
            if chunked {
                client.write("10000\r\n").await;
            }
            client.write(&block).await;
            if chunked {
                client.write("\r\n").await;
            }
        }
        if chunked {
            client.write("0\r\n\r\n").await;
        }
        let answer = client.answer().await.expect("not a reset");
        assert!(answer.fault(413, "body_too_large").contains("1024"));
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.closed().await);
    }
    server.assert_untouched("oversized bodies");
}

#[tokio::test]
async fn a_small_refused_body_costs_no_connection() {
    let server = start(Config::defaults()).await;
    let mut client = server.client().await;
    for path in ["/api/v1/nope", "/api/v1/dlq"] {
        assert!([404, 405].contains(&client.post(path, "x".repeat(60_000)).await.status));
    }
    assert_eq!(client.get("/health/live").await.status, 200);
    let answer = client.post("/api/v1/nope", "x".repeat(100_000)).await;
    assert_eq!(answer.header("connection"), Some("close"));
}

#[tokio::test]
async fn a_head_whose_beginning_was_missed_is_not_trusted() {
    let mut server = scripted(Config::defaults(), |command| match command {
        Command::Pop(_) => Act::Hold,
        _ => Act::Usual,
    })
    .await;
    let mut client = server.client().await;
    client.write("GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let slot = timeout(PATIENCE, server.held.recv()).await.unwrap().unwrap();
    // The length arrives while the first request is in work, the chunks after its answer.
    client.write("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nX: y").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.answers.send(vec![(slot, Reply::Pop(PopReply::default()))]).unwrap();
    assert_eq!(client.answer().await.unwrap().status, 204);
    let hidden = "DELETE /api/v1/resources/queues/q HTTP/1.1\r\nHost: x\r\n\r\n";
    client.write(format!("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}")).await;
    assert_eq!(client.answer().await.unwrap().status, 400);
    assert!(client.closed().await);
    assert!(matches!(server.command().await, Command::Pop(_)));
    server.assert_untouched("a hidden request");
}

#[tokio::test]
async fn pipelined_answers_keep_their_order() {
    let mut server = scripted(Config::defaults(), |command| match command {
        Command::Pop(_) => Act::Hold,
        _ => Act::Usual,
    })
    .await;
    let mut client = server.client().await;
    client
        .write(format!(
            "GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: x\r\n\r\nPOST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{BODY}",
            BODY.len()
        ))
        .await;
    let slot = timeout(PATIENCE, server.held.recv()).await.unwrap().unwrap();
    assert!(timeout(Duration::from_millis(100), client.answer()).await.is_err(), "the poll is first");
    server.answers.send(vec![(slot, Reply::Pop(PopReply::default()))]).unwrap();
    assert_eq!(client.answer().await.unwrap().status, 204);
    assert_eq!(client.answer().await.unwrap().status, 201);
}
