//! Limits, each exact: one below, at it, one above.

use comb::broker::command::Command;
use comb::config::Config;

use crate::harness::{items, start};

fn push(queue: &str, partition: &str, transaction_id: &str) -> String {
    items(&format!(
        r#"{{"queue":"{queue}","partition":"{partition}","transactionId":"{transaction_id}","payload":1}}"#
    ))
}

#[tokio::test]
async fn the_body() {
    let mut config = Config::defaults();
    config.limits.body_bytes = 2000;
    let server = start(config).await;
    for (bytes, status) in [(1999, 201), (2000, 201), (2001, 413)] {
        let body = format!("{:<bytes$}", r#"{"items":[]}"#);
        assert_eq!(server.client().await.push(&body).await.status, status, "{bytes} announced");
        let mut client = server.client().await;
        let head = "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.write(format!("{head}{bytes:x}\r\n{body}\r\n0\r\n\r\n")).await;
        assert_eq!(client.answer().await.unwrap().status, status, "{bytes} in a chunk");
    }
}

#[tokio::test]
async fn bytes_in_memory() {
    let mut config = Config::defaults();
    config.limits.inflight_bytes = 100_000;
    let server = start(config).await;
    let mut client = server.client().await;
    let body = format!("{}{}", r#"{"items":[]}"#, " ".repeat(100_000 - 12));
    assert_eq!(client.push(&body).await.status, 201);
    let answer = client.push(format!("{body} ")).await;
    assert!(answer.fault(429, "overloaded").contains("limits.inflight_bytes"));
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(client.push(&body).await.status, 201, "what was taken came back");
}

#[tokio::test]
async fn nesting() {
    let server = start(Config::defaults()).await;
    for (depth, status) in [(116, 201), (117, 201), (118, 400)] {
        // The envelope itself is three deep.
        let payload = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let body = items(&format!(r#"{{"queue":"q","payload":{payload}}}"#));
        assert_eq!(server.client().await.push(body).await.status, status, "{depth}");
    }
}

#[tokio::test]
async fn transaction_ids() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    for (id, status) in [
        ("x".repeat(65_534), 201),
        ("x".repeat(65_535), 201),
        ("x".repeat(65_536), 400),
        ("x".repeat(1 << 20), 400),
        (format!("x{}", "é".repeat(32_767)), 201),
        ("é".repeat(32_768), 400),
    ] {
        let answer = client.push(push("q", "p", &id)).await;
        assert_eq!(answer.status, status, "{} bytes", id.len());
        if status == 400 {
            assert!(answer.fault(400, "bad_request").contains("65535"));
            let operations = format!(
                r#"{{"operations":[{{"type":"push","queue":"q","payload":1,"transactionId":"{id}"}}]}}"#
            );
            client.post("/api/v1/transaction", operations).await.fault(400, "bad_request");
        } else {
            let Command::Push(groups) = server.command().await else { panic!() };
            assert_eq!(groups[0].items.len(), 1);
        }
    }
    server.assert_untouched("refused ids");
}

#[tokio::test]
async fn names_in_bodies_paths_and_queries() {
    let server = start(Config::defaults()).await;
    let mut client = server.client().await;
    for (bytes, ok) in [(410, true), (411, true), (412, false), (65_536, false)] {
        let name = "n".repeat(bytes);
        let short = "n".repeat(bytes.saturating_sub(11));
        let mut answers = vec![
            client.push(push(&name, "", "t")).await,
            client.post("/api/v1/configure", format!(r#"{{"queue":"{name}"}}"#)).await,
            client.post("/api/v1/ack", format!(r#"{{"consumerGroup":"{name}","transactionId":"t"}}"#)).await,
            client.push(push(&short, "ppppppppppp", "t")).await,
        ];
        if bytes < 10_000 {
            answers.push(
                client.get(&format!("/api/v1/pop/queue/{short}/partition/ppppppppppp?consumerGroup=g")).await,
            );
            answers.push(client.get(&format!("/api/v1/pop/queue/{short}?consumerGroup=ggggggggggg")).await);
            answers.push(client.request("DELETE", &format!("/api/v1/resources/queues/{name}"), "").await);
        }
        for (index, answer) in answers.iter().enumerate() {
            // A queue name alone leaves room for `Default`.
            let ok = if index == 0 { bytes + 7 <= 411 } else { ok };
            if ok {
                assert!(answer.status < 300, "{bytes} bytes, case {index}: {}", answer.text());
            } else {
                assert!(answer.fault(413, "name_too_long").contains("447"), "case {index}");
            }
        }
    }
    let multibyte = "é".repeat(206);
    client.get(&format!("/api/v1/pop/queue/{}", "%C3%A9".repeat(206))).await.fault(413, "name_too_long");
    client
        .post("/api/v1/configure", format!(r#"{{"queue":"{multibyte}"}}"#))
        .await
        .fault(413, "name_too_long");
}

#[tokio::test]
async fn what_is_stored_together() {
    let mut config = Config::defaults();
    config.limits.atomic_group_bytes = 4096;
    let mut server = start(config).await;
    let mut client = server.client().await;
    let item = |bytes: usize, partition: &str| {
        format!(r#"{{"queue":"q","partition":"{partition}","payload":"{}"}}"#, "x".repeat(bytes))
    };
    // Two groups of 3 kB each are fine; one of 6 kB is not.
    assert_eq!(client.push(items(&format!("{},{}", item(3000, "a"), item(3000, "b")))).await.status, 201);
    let Command::Push(groups) = server.command().await else { panic!() };
    let overhead = groups[0].entries.len() - 3000;
    for (bytes, status) in [(4095, 201), (4096, 201), (4097, 413)] {
        let answer = client.push(items(&item(bytes - overhead, "a"))).await;
        assert_eq!(answer.status, status, "{bytes}");
        if status == 201 {
            server.command().await;
        }
    }
    let answer =
        client.push(items(&format!("{},{},{}", item(10, "b"), item(3000, "a"), item(3000, "a")))).await;
    assert!(answer.fault(413, "group_too_large").contains("limits.atomic_group_bytes"));
    server.assert_untouched("a group that is too large");
}

#[tokio::test]
async fn headers() {
    let server = start(Config::defaults()).await;
    for (count, status) in [(63, 200), (64, 200), (65, 431), (128, 431), (1000, 431)] {
        let more: String = (1..count).map(|index| format!("X-{index}: y\r\n")).collect();
        let mut client = server.client().await;
        client.write(format!("GET /health/live HTTP/1.1\r\nHost: x\r\n{more}\r\n")).await;
        let answer = client.answer().await.unwrap();
        assert_eq!(answer.status, status, "{count} headers");
        if count == 65 {
            assert!(answer.fault(431, "headers_too_large").contains("limits.headers"));
        }
    }
    for (bytes, status) in [(16_200, 200), (16_500, 431), (65_000, 431)] {
        let mut client = server.client().await;
        client
            .write(format!("GET /health/live HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(bytes)))
            .await;
        let answer = client.answer().await.unwrap();
        assert_eq!(answer.status, status, "{bytes} bytes");
        if status == 431 {
            assert!(answer.fault(431, "headers_too_large").contains("limits.header_bytes"));
        }
        let mut client = server.client().await;
        client.write(format!("GET /health/live?{} HTTP/1.1\r\nHost: x\r\n\r\n", "y".repeat(bytes))).await;
        assert_eq!(client.answer().await.unwrap().status, status, "{bytes} bytes of URL");
    }
    let mut client = server.client().await;
    client.write(format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "y".repeat(70_000))).await;
    assert!([414, 431].contains(&client.answer().await.unwrap().status));
    let mut client = server.client().await;
    let _ = tokio::io::AsyncWriteExt::write_all(
        &mut client.socket,
        format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(1 << 20)).as_bytes(),
    )
    .await;
    if let Some(answer) = client.answer().await {
        assert_eq!(answer.status, 431);
    }
}
