//! Configuration: every setting as a flag, an environment variable and a key of a TOML file.
//!
//! Purpose: turn what was said into one validated `Config`, or into an error that names what is wrong and what would
//! be right. `settings` is the table of them all, `raw` reads it from its three sources.
//!
//! Invariants:
//! - Flags win over the environment, the environment over the file, the file over defaults.
//! - Nothing is accepted and ignored: unknown names, wrong types and values out of range are errors.
//! - A `Config` is sound as a whole: limits that depend on each other were compared.
//!
//! Must not: open anything but the configuration file, nor act on a setting.

mod raw;
mod settings;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use self::raw::{Raw, Values};

/// What is wrong with the configuration. The process ends with status 2.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The command line is wrong, or asked for help or the version.
    #[error("{0}")]
    Usage(clap::Error),
    /// The configuration file cannot be read or is not TOML.
    #[error("configuration file {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A name that is no setting.
    #[error("unknown {what} {name}; allowed are: {allowed}")]
    Unknown {
        /// Where it was found.
        what: &'static str,
        /// The name.
        name: String,
        /// Every name that is one.
        allowed: String,
    },
    /// A value of the wrong type or out of range.
    #[error("{key} is {value}; it must be {allowed}")]
    Value {
        /// The setting as it was written.
        key: String,
        /// The value as it was written.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// Two settings that cannot both be.
    #[error("{small_key} ({small}) must not be larger than {large_key} ({large})")]
    Conflict {
        /// The setting that is too large.
        small_key: &'static str,
        /// Its value.
        small: u64,
        /// The setting that bounds it.
        large_key: &'static str,
        /// Its value.
        large: u64,
    },
}

/// The effective configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Data directory.
    pub data: PathBuf,
    /// TCP port; 0 takes a free one.
    pub port: u16,
    /// Address to listen on.
    pub bind: IpAddr,
    /// Filter of the daemon's log.
    pub log_filter: String,
    /// JSON lines instead of text.
    pub log_json: bool,
    /// How files are written.
    pub io: Io,
    /// Bounds of everything a client can make large, many or slow.
    pub limits: Limits,
    /// The storage engine.
    pub log: Log,
    /// Consumer groups.
    pub groups: Groups,
    /// The HTTP server.
    pub http: Http,
}

/// `[io]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Which back end.
    pub backend: Backend,
}

/// Which back end writes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// io_uring where the kernel allows it, else threads.
    Auto,
    /// io_uring or no start.
    Uring,
    /// Threads.
    Threads,
}

/// `[limits]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest request body in bytes.
    pub body_bytes: u64,
    /// Most bytes that a compressed body inflates to.
    pub inflate_bytes: u32,
    /// Most bytes that are stored together or not at all.
    pub atomic_group_bytes: u32,
    /// Deepest nesting of a JSON body.
    pub json_depth: u32,
    /// Longest transaction id in bytes, at most 65535.
    pub transaction_id_bytes: u32,
    /// Most bytes of 36 + queue + max(partition, group).
    pub name_bytes: u32,
    /// Bytes kept of a dead letter's reason.
    pub error_bytes: u32,
    /// Most headers of a request.
    pub headers: u32,
    /// Most bytes of a request's line and headers.
    pub header_bytes: u32,
    /// Time for a request's line and headers, in milliseconds.
    pub header_timeout_ms: u32,
    /// Time without progress of a body or an answer, in milliseconds.
    pub body_timeout_ms: u32,
    /// Time that a connection may idle between requests, in milliseconds.
    pub idle_timeout_ms: u32,
    /// Most connections.
    pub connections: u32,
    /// Most long polls that wait.
    pub parked_polls: u32,
    /// Most bytes of bodies and answers in memory.
    pub inflight_bytes: u32,
    /// Longest lease in seconds.
    pub lease_seconds_max: u32,
    /// Longest long poll in milliseconds.
    pub poll_ms_max: u32,
    /// Long poll without timeout, in milliseconds.
    pub poll_ms_default: u32,
    /// Messages of a pop without batch.
    pub pop_batch_default: u32,
    /// Most messages of a pop.
    pub pop_batch_max: u32,
    /// Most partitions of a pop.
    pub pop_partitions_max: u32,
    /// Most rows of partitions in an answer of the admin plane.
    pub list_rows: u32,
    /// Most bytes of a pop's messages, beyond the first.
    pub pop_bytes_max: u32,
    /// Time for storage to answer, in seconds.
    pub request_seconds: u32,
    /// Most commands that wait for the storage thread.
    pub queue_commands: u32,
}

impl Limits {
    /// `header_timeout_ms` as a duration.
    #[must_use]
    pub fn header_timeout(&self) -> Duration {
        Duration::from_millis(u64::from(self.header_timeout_ms))
    }

    /// `body_timeout_ms` as a duration.
    #[must_use]
    pub fn body_timeout(&self) -> Duration {
        Duration::from_millis(u64::from(self.body_timeout_ms))
    }

    /// `idle_timeout_ms` as a duration.
    #[must_use]
    pub fn idle_timeout(&self) -> Duration {
        Duration::from_millis(u64::from(self.idle_timeout_ms))
    }
}

/// `[log]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Size of a segment in bytes, a multiple of 4096.
    pub segment_bytes: u64,
    /// Size of a cursor file in bytes, a multiple of 4096.
    pub cursor_file_bytes: u64,
    /// A group commit closes when it has so many bytes.
    pub group_bytes: u64,
    /// Most group commits in flight, 1..=8.
    pub pipeline_depth: u32,
    /// Segments written ahead.
    pub spare_segments: u32,
    /// Idle time after which the watermark is written down, in milliseconds.
    pub noop_idle_ms: u32,
    /// Newest bytes of the log kept in memory.
    pub tail_cache_bytes: u64,
    /// Index rows of sealed segments kept in memory.
    pub resident_index_bytes: u64,
    /// Bytes kept free on the file system; below, pushes are refused.
    pub reserve_bytes: u64,
    /// Cursor bytes between two checkpoints.
    pub checkpoint_cursor_bytes: u64,
    /// Message bytes between two checkpoints.
    pub checkpoint_message_bytes: u64,
    /// Time between two sweeps of retention, in milliseconds.
    pub retention_sweep_ms: u32,
}

/// `[groups]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Where a new consumer group begins when its pop does not say.
    pub default_subscription: Subscription,
}

/// Where a new consumer group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// With what is pushed from now on.
    New,
    /// With the first kept message.
    All,
}

/// `[http]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http {
    /// Threads, at least 1.
    pub workers: u32,
}

/// What the command line asks for.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The effective configuration.
    pub config: Config,
    /// Print it and exit.
    pub print: bool,
}

/// Reads the configuration of a process with these arguments (the program's name first) and this environment.
///
/// # Errors
/// What is wrong, where, and what would be right. `ConfigError::Usage` also carries `--help` and `--version`.
pub fn load(
    arguments: impl Iterator<Item = OsString>,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Invocation, ConfigError> {
    let Raw { values, print } = raw::read(arguments, environment)?;
    Ok(Invocation { config: Config::resolve(&values)?, print })
}

impl Config {
    /// The defaults with nothing set anywhere.
    ///
    /// # Panics
    /// Never: the table's defaults are sound.
    #[must_use]
    pub fn defaults() -> Config {
        load(std::iter::once(OsString::from("combd")), std::iter::empty()).expect("defaults are sound").config
    }

    fn resolve(values: &Values) -> Result<Config, ConfigError> {
        let config = Config {
            data: PathBuf::from(values.text("data")),
            port: u16::try_from(values.number("port")).expect("the table bounds it"),
            bind: values.text("bind").parse().map_err(|_| ConfigError::Value {
                key: "bind".to_owned(),
                value: format!("{:?}", values.text("bind")),
                allowed: "an IP address such as 127.0.0.1, 0.0.0.0 or ::1".to_owned(),
            })?,
            log_filter: values.text("log_filter").to_owned(),
            log_json: values.flag("log_json"),
            io: Io {
                backend: match values.text("io.backend") {
                    "uring" => Backend::Uring,
                    "threads" => Backend::Threads,
                    _ => Backend::Auto,
                },
            },
            limits: limits(values),
            log: Log {
                segment_bytes: blocks(values, "log.segment_bytes")?,
                cursor_file_bytes: blocks(values, "log.cursor_file_bytes")?,
                group_bytes: values.number("log.group_bytes"),
                pipeline_depth: values.number32("log.pipeline_depth"),
                spare_segments: values.number32("log.spare_segments"),
                noop_idle_ms: values.number32("log.noop_idle_ms"),
                tail_cache_bytes: values.number("log.tail_cache_bytes"),
                resident_index_bytes: values.number("log.resident_index_bytes"),
                reserve_bytes: values.number("log.reserve_bytes"),
                checkpoint_cursor_bytes: values.number("log.checkpoint_cursor_bytes"),
                checkpoint_message_bytes: values.number("log.checkpoint_message_bytes"),
                retention_sweep_ms: values.number32("log.retention_sweep_ms"),
            },
            groups: Groups {
                default_subscription: match values.text("groups.default_subscription") {
                    "all" => Subscription::All,
                    _ => Subscription::New,
                },
            },
            http: Http { workers: workers(values) },
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        tracing_subscriber::EnvFilter::try_new(&self.log_filter).map_err(|error| ConfigError::Value {
            key: "log_filter".to_owned(),
            value: format!("{:?} ({error})", self.log_filter),
            allowed: "error, warn, info, debug, trace, off, or target=level pairs with commas".to_owned(),
        })?;
        let limits = &self.limits;
        let pairs = [
            (
                "limits.body_bytes",
                limits.body_bytes,
                "limits.inflight_bytes",
                u64::from(limits.inflight_bytes),
            ),
            (
                "limits.inflate_bytes",
                u64::from(limits.inflate_bytes),
                "limits.inflight_bytes",
                u64::from(limits.inflight_bytes),
            ),
            (
                "limits.atomic_group_bytes",
                u64::from(limits.atomic_group_bytes),
                "limits.inflight_bytes",
                u64::from(limits.inflight_bytes),
            ),
            (
                "limits.pop_bytes_max",
                u64::from(limits.pop_bytes_max),
                "limits.inflight_bytes",
                u64::from(limits.inflight_bytes),
            ),
            (
                "limits.poll_ms_default",
                u64::from(limits.poll_ms_default),
                "limits.poll_ms_max",
                u64::from(limits.poll_ms_max),
            ),
            (
                "limits.pop_batch_default",
                u64::from(limits.pop_batch_default),
                "limits.pop_batch_max",
                u64::from(limits.pop_batch_max),
            ),
        ];
        for (small_key, small, large_key, large) in pairs {
            if small > large {
                return Err(ConfigError::Conflict { small_key, small, large_key, large });
            }
        }
        Ok(())
    }

    /// The effective configuration as TOML; `load` reads it back to the same.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut table = "";
        for setting in settings::SETTINGS {
            let (inside, key) = setting.key.split_once('.').unwrap_or(("", setting.key));
            if inside != table {
                table = inside;
                let _ = write!(text, "\n[{table}]\n");
            }
            let _ = writeln!(text, "{key} = {}", self.shown(setting.key));
        }
        text
    }

    /// The effective configuration as `key=value` pairs in one line, for the log.
    #[must_use]
    pub fn one_line(&self) -> String {
        let pairs: Vec<String> = settings::SETTINGS
            .iter()
            .map(|setting| format!("{}={}", setting.key, self.shown(setting.key)))
            .collect();
        pairs.join(" ")
    }

    /// One setting as a TOML value.
    fn shown(&self, key: &str) -> String {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let (limits, log) = (&self.limits, &self.log);
        match key {
            "data" => quoted(&self.data.to_string_lossy()),
            "port" => self.port.to_string(),
            "bind" => quoted(&self.bind.to_string()),
            "log_filter" => quoted(&self.log_filter),
            "log_json" => self.log_json.to_string(),
            "io.backend" => quoted(match self.io.backend {
                Backend::Auto => "auto",
                Backend::Uring => "uring",
                Backend::Threads => "threads",
            }),
            "limits.body_bytes" => limits.body_bytes.to_string(),
            "limits.inflate_bytes" => limits.inflate_bytes.to_string(),
            "limits.atomic_group_bytes" => limits.atomic_group_bytes.to_string(),
            "limits.json_depth" => limits.json_depth.to_string(),
            "limits.transaction_id_bytes" => limits.transaction_id_bytes.to_string(),
            "limits.name_bytes" => limits.name_bytes.to_string(),
            "limits.error_bytes" => limits.error_bytes.to_string(),
            "limits.headers" => limits.headers.to_string(),
            "limits.header_bytes" => limits.header_bytes.to_string(),
            "limits.header_timeout_ms" => limits.header_timeout_ms.to_string(),
            "limits.body_timeout_ms" => limits.body_timeout_ms.to_string(),
            "limits.idle_timeout_ms" => limits.idle_timeout_ms.to_string(),
            "limits.connections" => limits.connections.to_string(),
            "limits.parked_polls" => limits.parked_polls.to_string(),
            "limits.inflight_bytes" => limits.inflight_bytes.to_string(),
            "limits.lease_seconds_max" => limits.lease_seconds_max.to_string(),
            "limits.poll_ms_max" => limits.poll_ms_max.to_string(),
            "limits.poll_ms_default" => limits.poll_ms_default.to_string(),
            "limits.pop_batch_default" => limits.pop_batch_default.to_string(),
            "limits.pop_batch_max" => limits.pop_batch_max.to_string(),
            "limits.pop_partitions_max" => limits.pop_partitions_max.to_string(),
            "limits.list_rows" => limits.list_rows.to_string(),
            "limits.pop_bytes_max" => limits.pop_bytes_max.to_string(),
            "limits.request_seconds" => limits.request_seconds.to_string(),
            "limits.queue_commands" => limits.queue_commands.to_string(),
            "log.segment_bytes" => log.segment_bytes.to_string(),
            "log.cursor_file_bytes" => log.cursor_file_bytes.to_string(),
            "log.group_bytes" => log.group_bytes.to_string(),
            "log.pipeline_depth" => log.pipeline_depth.to_string(),
            "log.spare_segments" => log.spare_segments.to_string(),
            "log.noop_idle_ms" => log.noop_idle_ms.to_string(),
            "log.tail_cache_bytes" => log.tail_cache_bytes.to_string(),
            "log.resident_index_bytes" => log.resident_index_bytes.to_string(),
            "log.reserve_bytes" => log.reserve_bytes.to_string(),
            "log.checkpoint_cursor_bytes" => log.checkpoint_cursor_bytes.to_string(),
            "log.checkpoint_message_bytes" => log.checkpoint_message_bytes.to_string(),
            "log.retention_sweep_ms" => log.retention_sweep_ms.to_string(),
            "groups.default_subscription" => quoted(match self.groups.default_subscription {
                Subscription::New => "new",
                Subscription::All => "all",
            }),
            "http.workers" => self.http.workers.to_string(),
            other => unreachable!("setting {other} is in the table but not printed"),
        }
    }
}

fn limits(values: &Values) -> Limits {
    Limits {
        body_bytes: values.number("limits.body_bytes"),
        inflate_bytes: values.number32("limits.inflate_bytes"),
        atomic_group_bytes: values.number32("limits.atomic_group_bytes"),
        json_depth: values.number32("limits.json_depth"),
        transaction_id_bytes: values.number32("limits.transaction_id_bytes"),
        name_bytes: values.number32("limits.name_bytes"),
        error_bytes: values.number32("limits.error_bytes"),
        headers: values.number32("limits.headers"),
        header_bytes: values.number32("limits.header_bytes"),
        header_timeout_ms: values.number32("limits.header_timeout_ms"),
        body_timeout_ms: values.number32("limits.body_timeout_ms"),
        idle_timeout_ms: values.number32("limits.idle_timeout_ms"),
        connections: values.number32("limits.connections"),
        parked_polls: values.number32("limits.parked_polls"),
        inflight_bytes: values.number32("limits.inflight_bytes"),
        lease_seconds_max: values.number32("limits.lease_seconds_max"),
        poll_ms_max: values.number32("limits.poll_ms_max"),
        poll_ms_default: values.number32("limits.poll_ms_default"),
        pop_batch_default: values.number32("limits.pop_batch_default"),
        pop_batch_max: values.number32("limits.pop_batch_max"),
        pop_partitions_max: values.number32("limits.pop_partitions_max"),
        list_rows: values.number32("limits.list_rows"),
        pop_bytes_max: values.number32("limits.pop_bytes_max"),
        request_seconds: values.number32("limits.request_seconds"),
        queue_commands: values.number32("limits.queue_commands"),
    }
}

/// A size of whole blocks.
fn blocks(values: &Values, key: &'static str) -> Result<u64, ConfigError> {
    let bytes = values.number(key);
    if bytes.is_multiple_of(crate::types::BLOCK_BYTES as u64) {
        return Ok(bytes);
    }
    Err(ConfigError::Value {
        key: key.to_owned(),
        value: bytes.to_string(),
        allowed: format!("a multiple of {}", crate::types::BLOCK_BYTES),
    })
}

/// The storage thread has a core for itself where there is more than one.
fn workers(values: &Values) -> u32 {
    match values.number32("http.workers") {
        0 => {
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            u32::try_from(cores.saturating_sub(1).clamp(1, 1024)).unwrap_or(1)
        }
        workers => workers,
    }
}

#[cfg(test)]
mod tests;
