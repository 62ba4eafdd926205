//! JSON at its edges: what is kept to the byte, what is refused, and that refusals are always JSON themselves.

use comb::broker::command::{AckStatus, Command, Source};
use comb::config::Config;
use comb::format::entry::Entries;

use crate::harness::{Act, claim, items, run, scripted, start};

/// Payloads that must come back as they were sent.
const PAYLOADS: &[&str] = &[
    "18446744073709551616",
    "1e400",
    "0.10",
    "-0",
    "1E5",
    "null",
    "\"\"",
    "[]",
    "{}",
    "true",
    "1.0",
    r#"{"b":1,"a":2,"b":3}"#,
    r#""\u0000""#,
    r#""\ud800""#,
    r#""\udc00\ud800""#,
    r#""\u00fc ü 😀 \/""#,
    r#"{"a" : [ 1 ,2 ]}"#,
    "\"\u{2028}\u{7f}\"",
    "123456789012345678901234567890.123456789012345678901234567890",
];

#[tokio::test]
async fn payload_bytes_are_stored_and_delivered_verbatim() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let body = PAYLOADS
        .iter()
        .map(|p| format!(r#"{{"queue":"q","payload":  {p}  }}"#))
        .collect::<Vec<_>>()
        .join(",");
    assert_eq!(client.push(items(&body)).await.status, 201);
    let Command::Push(groups) = server.command().await else { panic!() };
    let stored: Vec<String> = Entries::new(&groups[0].entries)
        .map(|entry| String::from_utf8(entry.unwrap().payload.to_vec()).unwrap())
        .collect();
    assert_eq!(stored, PAYLOADS);

    let payloads: Vec<&[u8]> = PAYLOADS.iter().map(|payload| payload.as_bytes()).collect();
    let (run, bytes) = run(&payloads);
    let last = run.base.0 + u64::from(run.count) - 1;
    let server = scripted(Config::defaults(), move |_| {
        Act::Reply(claim(run, Source::Memory(bytes.clone()), run.base.0, last))
    })
    .await;
    let text = server.client().await.get("/api/v1/pop/queue/q").await.text();
    for payload in PAYLOADS {
        assert!(text.contains(&format!("\"data\":{payload},\"producerSub\":null")), "{payload}");
    }
}

#[tokio::test]
async fn refused_bodies_name_the_place_and_store_nothing() {
    let mut server = start(Config::defaults()).await;
    let good = r#"{"queue":"q","payload":1}"#;
    let cases: &[(String, &[&str])] = &[
        ("".into(), &["push body"]),
        ("[]".into(), &["object"]),
        ("null".into(), &["object"]),
        ("{}".into(), &["items is required"]),
        (r#"{"items":null}"#.into(), &["items", "array"]),
        (r#"{"items":[]} x"#.into(), &["trailing"]),
        (r#"{"items":[],"items":[]}"#.into(), &["items is there twice"]),
        (format!("\u{feff}{}", items(good)), &["push body"]),
        (items(&format!("{good},5")), &["items", "[1]", "object"]),
        (items(&format!(r#"{good},{{"payload":1}}"#)), &["items[1]", "queue is required"]),
        (items(r#"{"queue":null,"payload":1}"#), &["[0]", "queue"]),
        (items(r#"{"queue":5,"payload":1}"#), &["[0]", "queue", "string"]),
        (items(r#"{"queue":"q"}"#), &["items[0]", "payload is required"]),
        (items(r#"{"queue":"q","data":1}"#), &["payload is required"]),
        (items(r#"{"queue":"q","Payload":1}"#), &["payload is required"]),
        (items(r#"{"queue":"q","queue":"r","payload":1}"#), &["[0]", "queue is there twice"]),
        (items(r#"{"queue":"q","payload":1,"payload":2}"#), &["payload is there twice"]),
        (
            items(r#"{"queue":"q","payload":1,"transactionId":"a","transactionId":"b"}"#),
            &["transactionId is there twice"],
        ),
        (items(r#"{"queue":"q","payload":1,"transactionId":7}"#), &["transactionId", "string"]),
        (items(r#"{"queue":"q","payload":1,"partition":[]}"#), &["partition", "string"]),
        (items(r#"{"queue":"\ud800","payload":1}"#), &["[0]", "queue"]),
        (items(r#"{"queue":"q","payload":1,"transactionId":"\udc00\ud800"}"#), &["[0]", "transactionId"]),
        (items(r#"{"queue":"q","payload":1,"partition":"\ud800x"}"#), &["[0]", "partition"]),
        (items(r#"{"queue":"q","payload":NaN}"#), &["payload"]),
        (items(r#"{"queue":"q","payload":Infinity}"#), &["payload"]),
        (items(r#"{"queue":"q","payload":01}"#), &["payload"]),
        (items(r#"{"queue":"q","payload":"a	b"}"#), &["payload"]),
        (items(r#"{"queue":"q","payload":'x'}"#), &["payload"]),
    ];
    let mut client = server.client().await;
    for (body, words) in cases {
        let fault = client.push(body).await.fault(400, "bad_body");
        for word in *words {
            assert!(fault.contains(word), "{body}: {fault:?} lacks {word:?}");
        }
    }
    for bytes in [
        &b"{\"items\":[{\"queue\":\"q\xff\xfe\",\"payload\":1}]}"[..],
        b"\xc0\xaf",
        b"{\"items\":[{\"queue\":\"q\",\"payload\":\"\xed\xa0\x80\"}]}",
    ] {
        assert!(client.push(bytes).await.fault(400, "bad_body").contains("UTF-8"));
    }
    client.push(items(r#"{"queue":"","payload":1}"#)).await.fault(400, "bad_request");
    server.assert_untouched("refused bodies");
}

#[tokio::test]
async fn unknown_fields_are_ignored_whatever_they_hold() {
    let mut server = start(Config::defaults()).await;
    let body =
        items(r#"{"queue":"q","payload":1,"producerSub":"me","traceId":{"a":"\ud800"},"x":[[1]],"x":2}"#);
    assert_eq!(server.client().await.push(body).await.status, 201);
    let Command::Push(groups) = server.command().await else { panic!() };
    let entry = Entries::new(&groups[0].entries).next().unwrap().unwrap();
    assert_eq!((entry.producer, entry.trace), (None, None));
}

#[tokio::test]
async fn deep_nesting_is_400_wherever_it_is() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    for depth in [10_000, 100_000, 1_000_000] {
        for open in ["[", "{\"a\":"] {
            let deep = open.repeat(depth);
            for body in [
                deep.clone(),
                items(&format!(r#"{{"queue":"q","payload":{deep}"#)),
                items(&format!(r#"{{"queue":"q","unknown":{deep}"#)),
            ] {
                for path in ["/api/v1/push", "/api/v1/ack", "/api/v1/transaction", "/api/v1/configure"] {
                    assert!(
                        client.post(path, &body).await.fault(400, "bad_body").contains("limits.json_depth")
                    );
                }
            }
        }
    }
    server.assert_untouched("deep nesting");
    // The lease's body is optional: nonsense there counts as none.
    let answer = client.post("/api/v1/lease/x/extend", "[".repeat(1_000_000)).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn errors_are_short_json_whatever_they_quote() {
    let server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let nasty = "\\\"\\n\\u0000<>\\\\".repeat(100_000);
    for (path, body) in [
        ("/api/v1/push", format!("{{\"items\":\"{nasty}\"}}")),
        ("/api/v1/push", items(&format!("{{\"queue\":\"q\",\"payload\":1,\"partition\":[\"{nasty}\"]}}"))),
        ("/api/v1/ack", format!("{{\"acknowledgments\":\"{nasty}\"}}")),
        ("/api/v1/transaction", format!("{{\"operations\":[{{\"type\":\"{nasty}\"}}]}}")),
        ("/api/v1/configure", format!("{{\"queue\":\"q\",\"mode\":\"{nasty}\"}}")),
        ("/api/v1/configure", format!("{{\"queue\":\"q\",\"options\":{{\"leaseTime\":\"{nasty}\"}}}}")),
    ] {
        let answer = client.post(path, body).await;
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.json()["error"].is_string());
        assert!(answer.body.len() < 8000, "{path}: {} bytes", answer.body.len());
    }
}

#[tokio::test]
async fn the_reason_of_a_failure_never_stands_in_its_way() {
    let mut server = start(Config::defaults()).await;
    let mut client = server.client().await;
    let long = "é".repeat(500_000);
    for (error, kept) in [
        (r#""a\u0000b""#.to_owned(), Some("a\0b".to_owned())),
        (r#""x\ud800""#.to_owned(), Some("x\u{FFFD}".to_owned())),
        (r#""😀""#.to_owned(), Some("😀".to_owned())),
        (format!("\"{long}\""), Some("é".repeat(4096))),
        (r#"{"code":7}"#.to_owned(), Some(r#"{"code":7}"#.to_owned())),
        ("null".to_owned(), None),
        ("\"\"".to_owned(), None),
    ] {
        let body = format!(r#"{{"transactionId":"t","partitionId":"1","status":"failed","error":{error}}}"#);
        assert_eq!(client.post("/api/v1/ack", body).await.status, 200);
        let Command::Ack(call) = server.command().await else { panic!() };
        assert_eq!((call.items[0].status, call.items[0].error.clone()), (AckStatus::Failed, kept));
    }
}
