//! Small bodies that would become large ones: refused by size, and never more of them at once than there is room for.

use std::sync::Arc;

use serde_json::json;

use super::send;
use crate::common::Daemon;
use crate::common::api::Api;
use crate::common::frames::{FRAMES, packed, push, zstd};

const LIMITS: &[&str] = &[
    "--log-segment-bytes=33554432",
    "--log-cursor-file-bytes=4194304",
    "--limits-inflight-bytes=16777216",
    "--limits-body-bytes=1048576",
    "--limits-inflate-bytes=8388608",
    "--limits-pop-bytes-max=1048576",
    "--limits-atomic-group-bytes=1048576",
    "--http-workers=32",
];
const INFLATE: usize = 8 << 20;

/// The most memory that the daemon ever had, in KiB.
fn peak_kib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_bombs_at_once_take_no_more_than_the_room_for_them() {
    let daemon = Arc::new(Daemon::start(LIMITS));
    let api = Api::of(Arc::clone(&daemon));
    let payload = format!("\"{}\"", "1".repeat(INFLATE - 100));
    let id = uuid::Uuid::now_v7().as_u128();
    // A real message that is too large to be stored, a frame that is no message, and one beyond the limit.
    let bodies = [
        push(FRAMES, &[("q", "p", vec![(id, "x", &payload)])]),
        packed("q", 1, &zstd(&vec![b'1'; INFLATE - 1])),
        packed("q", 1, &zstd(&vec![b'1'; INFLATE + 1])),
    ];
    assert!(bodies.iter().all(|body| body.len() < 2000));
    let before = peak_kib(&daemon);
    let mut tasks = Vec::new();
    for n in 0..150 {
        let (api, body) = (api.clone(), bodies[n % 3].clone());
        tasks.push(tokio::spawn(async move { (n % 3, send(&api, "/api/v1/push", body).await) }));
    }
    for task in tasks {
        let (kind, (status, json)) = task.await.unwrap();
        let expected: &[(u16, &str)] = match kind {
            0 => &[(413, "group_too_large"), (429, "overloaded")],
            1 => &[(400, "bad_body"), (429, "overloaded")],
            _ => &[(413, "body_too_large")],
        };
        assert!(
            expected.iter().any(|(code, word)| *code == status && json["code"] == *word),
            "{status} {json}"
        );
    }
    // 150 bombs of 8 MiB are 1.2 GB. The room for bodies is 16 MiB; what else a request needs is small beside it.
    let grown = peak_kib(&daemon) - before;
    assert!(grown < 100 * 1024, "{grown} KiB");
    // The daemon works on, and all of its room is there again.
    let payload = format!("\"{}\"", "1".repeat(1_000_000));
    let body = push(FRAMES, &[("q", "p", vec![(id, "x", &payload)])]);
    assert_eq!(send(&api, "/api/v1/push", body).await.0, 201);
    assert_eq!(api.pop("/queue/q", &[]).await.messages.len(), 1);
}

#[tokio::test]
async fn what_inflates_to_more_than_allowed_is_413() {
    let api = Api::of(Arc::new(Daemon::start(LIMITS)));
    let (status, json) = send(&api, "/api/v1/push", packed("q", 1, &zstd(&vec![b'1'; INFLATE + 1]))).await;
    assert_eq!((status, &json["code"]), (413, &json!("body_too_large")));
    assert!(json["error"].as_str().unwrap().contains("limits.inflate_bytes"), "{json}");
    let huge = [&[0x28, 0xb5, 0x2f, 0xfd, 0xe0][..], &(1_u64 << 62).to_le_bytes(), &[1, 0, 0]].concat();
    assert_eq!(send(&api, "/api/v1/push", packed("q", 1, &huge)).await.0, 413);
    let tiny: Vec<_> = (0..40_000).map(|_| (0, "", "1")).collect();
    let (status, json) = send(&api, "/api/v1/push", push(1, &[("q", "p", tiny)])).await;
    assert_eq!(status, 413, "{json}");
    assert!(json["error"].as_str().unwrap().contains("limits.inflight_bytes"), "{json}");
    assert!(api.pop("/queue/q", &[]).await.messages.is_empty());
}
