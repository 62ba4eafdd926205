//! Paths, methods, names in paths, queries.

use comb::broker::command::{Command, PopTarget};
use comb::broker::status::Phase;
use comb::config::Config;

use crate::harness::{Client, recovering, start};

#[tokio::test]
async fn methods_by_route() {
    let server = start(Config::defaults()).await;
    let posts = [
        "/api/v1/push",
        "/api/v1/ack",
        "/api/v1/ack/batch",
        "/api/v1/lease/x/extend",
        "/api/v1/transaction",
        "/api/v1/configure",
    ];
    let pops = ["/api/v1/pop", "/api/v1/pop/queue/q", "/api/v1/pop/queue/q/partition/p"];
    let gets = ["/api/v1/dlq", "/health", "/health/live"];
    let routes: Vec<(&str, &[&str], &str)> = posts
        .iter()
        .map(|path| (*path, &["POST", "OPTIONS"][..], "POST, OPTIONS"))
        .chain(pops.iter().map(|path| (*path, &["GET"][..], "GET")))
        .chain(gets.iter().map(|path| (*path, &["GET", "HEAD", "OPTIONS"][..], "GET, HEAD, OPTIONS")))
        .chain([(
            "/api/v1/resources/queues/q",
            &["GET", "DELETE", "HEAD", "OPTIONS"][..],
            "GET, DELETE, HEAD, OPTIONS",
        )])
        .collect();
    for (path, allowed, allow) in routes {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "TRACE"] {
            let answer = server.client().await.request(method, path, "").await;
            if method == "OPTIONS" && allowed.contains(&method) {
                assert_eq!((answer.status, answer.header("allow")), (204, Some(allow)), "{path}");
                assert!(answer.header("content-length").is_none_or(|bytes| bytes == "0"));
            } else if allowed.contains(&method) {
                // The queue is not there, which is another 404.
                assert!(answer.status != 405, "{method} {path}: {}", answer.status);
                assert!(!String::from_utf8_lossy(&answer.body).contains("no_such_route"), "{method} {path}");
            } else {
                answer.fault(405, "method_not_allowed");
                assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
            }
        }
        let head = server.client().await.head(path).await;
        assert_eq!(head.status == 405, !allowed.contains(&"HEAD"), "HEAD {path}: {}", head.status);
    }
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let head = client.head("/health/live").await;
    let get = client.get("/health/live").await;
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-length"), get.header("content-length"));
    assert!(!get.body.is_empty());
}

#[tokio::test]
async fn unknown_paths_are_404_as_json() {
    let mut server = start(Config::defaults()).await;
    for path in [
        "/",
        "/api",
        "/api/v1/push/",
        "/api/v1/nope",
        "/api/v1/pop/queue/",
        "/api/v1//pop",
        "/api/v1/pop/queue/a/b",
        "/api/v1/pop/queue/a/partition/",
        "/API/v1/push",
        "/api/v1/queues/q/clear",
        "/health/",
        "/index.html",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let answer = server.client().await.request(method, path, "").await;
            assert_eq!(answer.fault(404, "no_such_route"), "Not Found", "{method} {path}");
        }
    }
    server.assert_untouched("unknown paths");
}

#[tokio::test]
async fn path_segments_are_decoded_once_after_splitting() {
    let mut server = start(Config::defaults()).await;
    let cases = [
        ("a%2Fb", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("a+b", "a+b"),
        ("a%20b", "a b"),
        ("%C3%BC%F0%9F%98%80", "ü😀"),
        ("..", ".."),
        (".", "."),
        ("a%00b", "a\0b"),
        ("%3F%23", "?#"),
        ("a:b", "a:b"),
        ("a;b=c", "a;b=c"),
        ("{queue}", "{queue}"),
    ];
    let mut client = server.client().await;
    for (raw, name) in cases {
        let answer = client.get(&format!("/api/v1/pop/queue/{raw}/partition/{raw}")).await;
        assert_eq!(answer.status, 204, "{raw}");
        match server.command().await {
            Command::Pop(pop) => assert_eq!(
                pop.target,
                PopTarget::Partition { queue: name.to_owned(), partition: name.to_owned() },
                "{raw}"
            ),
            other => panic!("{other:?}"),
        }
        assert_eq!(
            client.request("DELETE", &format!("/api/v1/resources/queues/{raw}"), "").await.status,
            200
        );
        match server.command().await {
            Command::DeleteQueue(queue) => assert_eq!(queue, name),
            other => panic!("{other:?}"),
        }
    }
    for raw in ["%", "%2", "%zz", "%FF", "%C0%AF", "%ED%A0%80", "a%"] {
        client.get(&format!("/api/v1/pop/queue/{raw}")).await.fault(400, "bad_request");
        client.get(&format!("/api/v1/pop/queue/q?consumerGroup={raw}")).await.fault(400, "bad_request");
    }
    server.assert_untouched("broken escapes");
}

#[tokio::test]
async fn queries() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let path = "/api/v1/pop?namespace=a+b&task=c%20d&batch=1&batch=7&nonsense=%41&consumerGroup=g";
    assert_eq!(client.get(path).await.status, 204);
    match server.command().await {
        Command::Pop(pop) => {
            let target =
                PopTarget::Discovery { namespace: Some("a b".to_owned()), task: Some("c d".to_owned()) };
            assert_eq!((pop.target, pop.batch, pop.group), (target, 7, "g".to_owned()));
        }
        other => panic!("{other:?}"),
    }
    for (query, word) in [
        ("", "namespace or task is required"),
        ("?namespace=&task=", "namespace or task is required"),
        ("?task=t&batch=abc", "batch"),
        ("?task=t&wait=maybe", "wait"),
        ("?task=t&conflation=true", "conflation"),
        ("?task=t&leaseSeconds=604801", "604800"),
        ("?task=t&timeout=1.5", "timeout"),
    ] {
        let answer = client.get(&format!("/api/v1/pop{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        let json = answer.json();
        assert_eq!(json["success"], false);
        assert_eq!(json["messages"].as_array().map(Vec::len), Some(0));
        assert!(json["error"].as_str().unwrap().contains(word), "{query}: {json}");
        assert!(json.get("code").is_none());
    }
    server.assert_untouched("bad queries");
}

#[tokio::test]
async fn absolute_form_old_versions_and_hosts() {
    let server = start(Config::defaults()).await;
    for (request, status) in [
        ("GET http://x/health/live HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        ("GET /health/live HTTP/1.0\r\n\r\n", 200),
        ("GET /health/live HTTP/1.1\r\nhOST: x\r\n\r\n", 200),
        ("GET /health/live HTTP/1.1\r\n\r\n", 400),
        ("GET /health/live HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (
            "POST /api/v1/push HTTP/1.1\r\nHost: x\r\ncontent-TYPE: text/plain\r\nContent-Length: 12\r\n\r\n{\"items\":[]}",
            201,
        ),
        ("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n", 415),
    ] {
        let mut client = server.client().await;
        client.write(request).await;
        assert_eq!(client.answer().await.unwrap().status, status, "{request:?}");
    }
}

#[tokio::test]
async fn health_tells_readiness_from_liveness() {
    let (address, status) = recovering().await;
    let mut client = Client::connect(address).await;
    status.set_progress(5, 10);
    status.enter(Phase::Ready);
    let health = client.get("/health").await;
    assert_eq!(health.status, 503, "no handle yet, whatever the phase");
    assert_eq!(health.header("retry-after"), Some("1"));
    let json = health.json();
    assert_eq!((&json["status"], &json["phase"]), (&"settling".into(), &"recovering".into()));
    assert_eq!(json["progress"]["doneBytes"], 5);
    assert_eq!(client.get("/health/live").await.status, 200);
    status.enter(Phase::Recovering);
    for answer in
        [client.push("{}").await, client.get("/api/v1/pop/queue/q").await, client.get("/api/v1/dlq").await]
    {
        assert!(answer.fault(503, "retry").contains("starting"));
        assert_eq!(answer.header("retry-after"), Some("1"));
    }

    let server = start(Config::defaults()).await;
    let mut client = server.client().await;
    server.status.set_backend("threads");
    server.status.set_positions(8, 9);
    let json = client.get("/health").await.json();
    assert_eq!(
        (&json["status"], &json["backend"], &json["raft"]["lag"]),
        (&"healthy".into(), &"threads".into(), &1.into())
    );
    server.status.enter(Phase::Full);
    assert_eq!(client.get("/health").await.json()["status"], "full");
    server.status.poison("fsync: \"EIO\"");
    let health = client.get("/health").await;
    assert_eq!((health.status, health.json()["cause"].clone()), (503, "fsync: \"EIO\"".into()));
    client.push(crate::harness::items(r#"{"queue":"q","payload":1}"#)).await.fault(503, "outcome_unknown");
    assert_eq!(client.get("/health/live").await.status, 200);
}
