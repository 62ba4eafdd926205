//! The wire as it is: paths, JSON bodies, status codes. No client library, no retries.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Daemon;

/// Longest time for one request; a long poll is shorter.
const REQUEST_MAX: Duration = Duration::from_secs(40);

/// A daemon and a connection pool to it.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) daemon: Arc<Daemon>,
    http: reqwest::Client,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

impl Answer {
    /// Its body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e} in the body of {self:?}"))
    }
}

/// One element of the answer to a push.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Pushed {
    pub(crate) index: usize,
    pub(crate) message_id: String,
    pub(crate) transaction_id: String,
    #[serde(rename = "queueName")]
    pub(crate) queue: String,
    pub(crate) status: String,
    pub(crate) offset: u64,
}

/// The answer to a pop.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Popped {
    pub(crate) queue: String,
    pub(crate) lease_id: String,
    pub(crate) partition_id: String,
    pub(crate) partition: String,
    pub(crate) consumer_group: String,
    pub(crate) partitions_claimed: u32,
    pub(crate) messages: Vec<Message>,
}

impl Popped {
    /// The transaction ids, in the order of delivery.
    pub(crate) fn ids(&self) -> Vec<&str> {
        self.messages.iter().map(|m| m.transaction_id.as_str()).collect()
    }
}

/// One delivered message.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) transaction_id: String,
    pub(crate) data: Value,
    pub(crate) created_at: String,
    pub(crate) partition_id: String,
    pub(crate) partition: String,
    pub(crate) lease_id: String,
    pub(crate) consumer_group: String,
    pub(crate) delivery_attempt: u32,
    pub(crate) offset: u64,
}

/// One element of the answer to an ack. Every key must be there.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Verdict {
    pub(crate) index: usize,
    pub(crate) transaction_id: String,
    pub(crate) success: bool,
    #[serde(deserialize_with = "present")]
    pub(crate) error: Option<String>,
    pub(crate) lease_released: bool,
    pub(crate) dlq: bool,
    pub(crate) noop: bool,
}

/// An optional value whose key must be there all the same.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(deserializer)
}

impl Verdict {
    /// Whether it was refused with a text that holds this word.
    pub(crate) fn refused_with(&self, word: &str) -> bool {
        !self.success && self.error.as_deref().is_some_and(|text| text.to_lowercase().contains(word))
    }
}

/// One row of the dead letters.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeadLetter {
    pub(crate) queue: String,
    pub(crate) partition: String,
    pub(crate) partition_id: String,
    pub(crate) transaction_id: String,
    pub(crate) data: Value,
    pub(crate) error_message: String,
    pub(crate) retry_count: u32,
    #[serde(flatten)]
    pub(crate) rest: serde_json::Map<String, Value>,
}

impl Api {
    /// The daemon that tests share.
    pub(crate) fn shared() -> Api {
        Api::of(Daemon::shared())
    }

    /// This daemon.
    pub(crate) fn of(daemon: Arc<Daemon>) -> Api {
        let http = reqwest::Client::builder().timeout(REQUEST_MAX).no_proxy().build().unwrap();
        Api { daemon, http }
    }

    /// A POST of a JSON body.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, body.to_string()).await
    }

    /// A POST of any body.
    pub(crate) async fn post_text(&self, path: &str, body: String) -> Answer {
        let request = self.http.post(format!("{}{path}", self.daemon.url()));
        Self::send(request.header("content-type", "application/json").body(body)).await.unwrap()
    }

    /// A POST of bytes.
    pub(crate) async fn post_bytes(&self, path: &str, content_type: &str, body: Vec<u8>) -> Answer {
        let request = self.http.post(format!("{}{path}", self.daemon.url()));
        Self::send(request.header("content-type", content_type).body(body)).await.unwrap()
    }

    /// A GET: status, content type and the bytes as they are.
    pub(crate) async fn get_bytes(&self, path: &str) -> (u16, String, Vec<u8>) {
        let response = self.http.get(format!("{}{path}", self.daemon.url())).send().await.unwrap();
        let content_type = response.headers().get("content-type").map(|v| v.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        (status, content_type.unwrap_or_default(), response.bytes().await.unwrap().to_vec())
    }

    /// A POST that may get no answer, as when the daemon is killed.
    pub(crate) async fn try_post(&self, path: &str, body: &Value) -> Option<Answer> {
        let request = self.http.post(format!("{}{path}", self.daemon.url()));
        Self::send(request.header("content-type", "application/json").body(body.to_string())).await.ok()
    }

    /// A GET.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.try_get(path).await.unwrap()
    }

    /// A GET that may get no answer.
    pub(crate) async fn try_get(&self, path: &str) -> Option<Answer> {
        Self::send(self.http.get(format!("{}{path}", self.daemon.url()))).await.ok()
    }

    /// A DELETE.
    pub(crate) async fn delete(&self, path: &str) -> Answer {
        Self::send(self.http.delete(format!("{}{path}", self.daemon.url()))).await.unwrap()
    }

    async fn send(request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
        let response = request.send().await?;
        let status = response.status();
        Ok(Answer { status, text: response.text().await? })
    }

    /// Sets queue options.
    pub(crate) async fn configure(&self, queue: &str, options: Value) {
        let answer = self.post("/api/v1/configure", &json!({"queue": queue, "options": options})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["configured"], true, "{answer:?}");
    }

    /// Pushes items as they are and expects 201.
    pub(crate) async fn push_items(&self, items: Value) -> Vec<Pushed> {
        let answer = self.post("/api/v1/push", &json!({ "items": items })).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        serde_json::from_str(&answer.text).unwrap_or_else(|e| panic!("{e} in {answer:?}"))
    }

    /// A pop with this path behind `/api/v1/pop` and this query. Nothing is an empty answer.
    pub(crate) async fn pop(&self, path: &str, query: &[(&str, &str)]) -> Popped {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        let answer = self.get(&format!("/api/v1/pop{path}?{query}")).await;
        match answer.status.as_u16() {
            204 => {
                assert_eq!(answer.text, "");
                Popped::default()
            }
            200 => serde_json::from_str(&answer.text).unwrap_or_else(|e| panic!("{e} in {answer:?}")),
            _ => panic!("pop {path}?{query}: {answer:?}"),
        }
    }

    /// An ack on this route; both always answer 200 with one verdict per item.
    pub(crate) async fn ack(&self, route: &str, body: &Value) -> Vec<Verdict> {
        let answer = self.post(route, body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_str(&answer.text).unwrap_or_else(|e| panic!("{e} in {answer:?}"))
    }

    /// Extends a lease.
    pub(crate) async fn extend(&self, lease: &str, body: &str) -> Value {
        let answer = self.post_text(&format!("/api/v1/lease/{lease}/extend"), body.to_owned()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// The dead letters of a queue.
    pub(crate) async fn dead_letters(&self, queue: &str, group: Option<&str>) -> Vec<DeadLetter> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("queue", queue).append_pair("limit", "1000");
        if let Some(group) = group {
            query.append_pair("consumerGroup", group);
        }
        let answer = self.get(&format!("/api/v1/dlq?{}", query.finish())).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let mut page = answer.json();
        let rows: Vec<DeadLetter> = serde_json::from_value(page["messages"].take()).unwrap();
        assert_eq!(page["total"], rows.len(), "{answer:?}");
        rows
    }

    /// What `/health` says.
    pub(crate) async fn health(&self) -> Value {
        self.get("/health").await.json()
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // A shared daemon may outlive the test that failed, so its log is shown here too.
        if thread::panicking() {
            eprintln!("log of combd:\n{}", self.daemon.log_tail());
        }
    }
}
