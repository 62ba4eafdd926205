//! `POST /api/v1/configure` and `DELETE /api/v1/resources/queues/{queue}`

use std::time::Duration;

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::App;
use super::body::{Answer, Received};
use super::error::{ApiError, clip};
use super::json::{Object, parse};
use super::names::check_names;
use crate::broker::command::{Configure, ConfigureReply, OptionsPatch, Patch};
use crate::types::QueueOptions;

/// The part of the body that has keys of its own.
#[derive(serde::Deserialize)]
struct Options {
    #[serde(default)]
    options: Option<Object>,
}

/// Creates or changes a queue.
pub(crate) async fn configure(app: &App, received: Received) -> Result<Response<Answer>, ApiError> {
    let handle = app.handle()?;
    let limits = &app.config.limits;
    // Values are parsed recursively here, which serde_json bounds by itself at 128.
    let body: Object = parse(&received.bytes, limits.json_depth, "configure")?;
    // Once more for the options, so that a key that is there twice is refused in them, too.
    let Options { options } = parse(&received.bytes, limits.json_depth, "configure")?;
    let queue = match body.get("queue") {
        Some(Value::String(queue)) => queue.clone(),
        _ => return Err(ApiError::bad_body("bad configure body: queue must be a string")),
    };
    check_names(&queue, "", "", limits.name_bytes)?;
    let replace = match body.get("mode") {
        None | Some(Value::Null) => false,
        Some(Value::String(mode)) if mode == "merge" => false,
        Some(Value::String(mode)) if mode == "replace" => true,
        Some(other) => {
            let got = other.to_string();
            return Err(ApiError::bad_request(format!(
                "mode must be \"merge\" or \"replace\", got {}",
                clip(&got, 100)
            )));
        }
    };
    let fields = Fields { options: options.unwrap_or_default(), top: body };
    let configure = Configure {
        queue: queue.clone(),
        namespace: fields.label("namespace")?,
        task: fields.label("task")?,
        options: fields.options(limits.lease_seconds_max)?,
        replace,
    };
    for (name, label) in [("namespace", &configure.namespace), ("task", &configure.task)] {
        if let Patch::Set(text) = label
            && text.len() as u64 > u64::from(limits.name_bytes)
        {
            return Err(ApiError::bad_option(
                name,
                format!(
                    "{name} has {} bytes, the limit is {} (limits.name_bytes)",
                    text.len(),
                    limits.name_bytes
                ),
            ));
        }
    }
    let reply = app.within(Duration::ZERO, handle.configure(configure)).await?;
    Ok(super::json_response(StatusCode::OK, answer(&queue, &reply).to_string().into_bytes()))
}

/// The fields of a body: those in `options` win over those at the top.
struct Fields {
    options: Object,
    top: Object,
}

impl Fields {
    fn get(&self, key: &str) -> Option<&Value> {
        self.options.get(key).or_else(|| self.top.get(key))
    }

    /// Namespace or task. At the top only a text that is not empty counts, because a client sends null there always.
    fn label(&self, key: &'static str) -> Result<Patch<String>, ApiError> {
        match (self.top.get(key), self.options.get(key)) {
            (Some(Value::String(text)), _) if !text.is_empty() => Ok(Patch::Set(text.clone())),
            (_, None) => Ok(Patch::Keep),
            (_, Some(Value::Null)) => Ok(Patch::Reset),
            (_, Some(Value::String(text))) => Ok(Patch::Set(text.clone())),
            (_, Some(other)) => Err(wrong(key, other, "a string")),
        }
    }

    fn flag(&self, key: &'static str) -> Result<Patch<bool>, ApiError> {
        match self.get(key) {
            None => Ok(Patch::Keep),
            Some(Value::Null) => Ok(Patch::Reset),
            Some(Value::Bool(flag)) => Ok(Patch::Set(*flag)),
            Some(other) => Err(wrong(key, other, "true or false")),
        }
    }

    fn number(&self, key: &'static str) -> Result<Patch<i64>, ApiError> {
        match self.get(key) {
            None => Ok(Patch::Keep),
            Some(Value::Null) => Ok(Patch::Reset),
            Some(value) => {
                value.as_i64().map(Patch::Set).ok_or_else(|| wrong(key, value, "a whole number of 64 bits"))
            }
        }
    }

    fn range(&self, key: &'static str, min: u32, max: u32) -> Result<Patch<u32>, ApiError> {
        match self.number(key)? {
            Patch::Keep => Ok(Patch::Keep),
            Patch::Reset => Ok(Patch::Reset),
            Patch::Set(number) => u32::try_from(number)
                .ok()
                .filter(|number| (min..=max).contains(number))
                .map(Patch::Set)
                .ok_or_else(|| {
                    wrong(key, &Value::from(number), &format!("a whole number from {min} to {max}"))
                }),
        }
    }

    /// A number that is moved into its range instead of being refused; the answer shows what became of it.
    fn clamped(&self, key: &'static str, max: u32) -> Result<Patch<u32>, ApiError> {
        Ok(match self.number(key)? {
            Patch::Keep => Patch::Keep,
            Patch::Reset => Patch::Reset,
            Patch::Set(number) => Patch::Set(u32::try_from(number.clamp(0, i64::from(max))).unwrap_or(max)),
        })
    }

    fn hold(&self) -> Result<Patch<String>, ApiError> {
        const KEY: &str = "retentionSinkHold";
        match self.get(KEY) {
            None => Ok(Patch::Keep),
            Some(Value::Null) => Ok(Patch::Reset),
            Some(Value::String(text))
                if text.len() <= 64
                    && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) =>
            {
                Ok(Patch::Set(text.clone()))
            }
            Some(other) => Err(wrong(KEY, other, "at most 64 characters of A-Z a-z 0-9 . _ -")),
        }
    }

    fn options(&self, lease_max: u32) -> Result<OptionsPatch, ApiError> {
        // Signed 32 bits, which is what the published clients can read back.
        const SECONDS: u32 = i32::MAX as u32;
        Ok(OptionsPatch {
            lease_seconds: self.range("leaseTime", 1, lease_max)?,
            retry_limit: self.range("retryLimit", 0, SECONDS)?,
            dead_letter_queue: self.flag("deadLetterQueue")?,
            dlq_after_max_retries: self.flag("dlqAfterMaxRetries")?,
            delayed_processing_seconds: self.range("delayedProcessing", 0, SECONDS)?,
            window_buffer_seconds: self.range("windowBuffer", 0, SECONDS)?,
            dedup_window_seconds: self.clamped("dedupWindowSeconds", SECONDS)?,
            retention_enabled: self.flag("retentionEnabled")?,
            retention_seconds: self.range("retentionSeconds", 0, SECONDS)?,
            completed_retention_seconds: self.range("completedRetentionSeconds", 0, SECONDS)?,
            max_wait_seconds: self.range("maxWaitTimeSeconds", 0, SECONDS)?,
            encryption_enabled: self.flag("encryptionEnabled")?,
            min_pop_wait_ms: self.clamped("minPopWaitTime", 60_000)?,
            priority: self.number("priority")?,
            retry_delay_ms: self.number("retryDelay")?,
            ttl_seconds: self.number("ttl")?,
            max_size: self.number("maxSize")?,
            retention_sink_hold: self.hold()?,
            retention_sink_hold_max_seconds: self.range("retentionSinkHoldMaxSeconds", 60, 31_536_000)?,
        })
    }
}

fn wrong(key: &'static str, value: &Value, allowed: &str) -> ApiError {
    let value = value.to_string();
    ApiError::bad_option(key, format!("{key} is {}, it must be {allowed}", clip(&value, 100)))
}

fn answer(queue: &str, reply: &ConfigureReply) -> Value {
    json!({
        "configured": true,
        "queueId": reply.queue.to_string(),
        "partitionId": null,
        "queue": queue,
        "namespace": reply.namespace,
        "task": reply.task,
        "storage": "segments",
        "options": options_value(&reply.namespace, &reply.task, &reply.options),
    })
}

/// All options of a queue as the wire shows them.
pub(crate) fn options_value(namespace: &str, task: &str, options: &QueueOptions) -> Value {
    json!({
        "namespace": namespace,
        "task": task,
        "leaseTime": options.lease_seconds,
        "retryLimit": options.retry_limit,
        "deadLetterQueue": options.dead_letter_queue,
        "dlqAfterMaxRetries": options.dlq_after_max_retries,
        "delayedProcessing": options.delayed_processing_seconds,
        "windowBuffer": options.window_buffer_seconds,
        "dedupWindowSeconds": options.dedup_window_seconds,
        "retentionEnabled": options.retention_enabled,
        "retentionSeconds": options.retention_seconds,
        "completedRetentionSeconds": options.completed_retention_seconds,
        "maxWaitTimeSeconds": options.max_wait_seconds,
        "encryptionEnabled": options.encryption_enabled,
        "minPopWaitTime": options.min_pop_wait_ms,
        "priority": options.priority,
        "retryDelay": options.retry_delay_ms,
        "ttl": options.ttl_seconds,
        "maxSize": options.max_size,
        "retentionSinkHold": options.retention_sink_hold,
        "retentionSinkHoldMaxSeconds": options.retention_sink_hold_max_seconds,
    })
}

/// Deletes a queue: 200 whether or not it was there.
pub(crate) async fn delete(app: &App, queue: String) -> Result<Response<Answer>, ApiError> {
    let handle = app.handle()?;
    check_names(&queue, "", "", app.config.limits.name_bytes)?;
    let existed = app.within(Duration::ZERO, handle.delete_queue(queue.clone())).await?;
    let mut body = json!({"deleted": true, "queue": queue, "existed": existed});
    if !existed && let Some(body) = body.as_object_mut() {
        body.insert("message".to_owned(), Value::from("there was no such queue"));
    }
    Ok(super::json_response(StatusCode::OK, body.to_string().into_bytes()))
}
