//! Which setting goes where in storage, and how the daemon gets a broker.
//!
//! Must not: decide anything.

use std::sync::Arc;

use crate::broker::core::CoreSettings;
use crate::broker::start::{BrokerSettings, start};
use crate::broker::status::{Phase, Status};
use crate::config::{self, Config};
use crate::daemon::{Running, StartFailure};
use crate::engine::EngineSettings;
use crate::io::Backend;

/// The broker's settings.
#[must_use]
pub fn broker_settings(config: &Config) -> BrokerSettings {
    BrokerSettings {
        data: config.data.clone(),
        backend: match config.io.backend {
            config::Backend::Auto => Backend::Auto,
            config::Backend::Uring => Backend::Uring,
            config::Backend::Threads => Backend::Threads,
        },
        queue_commands: config.limits.queue_commands as usize,
        core: CoreSettings {
            parked_polls: config.limits.parked_polls,
            pop_bytes: u64::from(config.limits.pop_bytes_max),
            name_bytes: u64::from(config.limits.name_bytes),
            data_dir: config.data.display().to_string(),
            retention_sweep_us: u64::from(config.log.retention_sweep_ms) * 1000,
        },
        engine: EngineSettings {
            segment_bytes: config.log.segment_bytes,
            cursor_file_bytes: config.log.cursor_file_bytes,
            group_bytes: config.log.group_bytes,
            atomic_group_bytes: u64::from(config.limits.atomic_group_bytes),
            pipeline_depth: config.log.pipeline_depth,
            noop_idle_us: u64::from(config.log.noop_idle_ms) * 1000,
            tail_cache_bytes: config.log.tail_cache_bytes,
            resident_index_bytes: config.log.resident_index_bytes,
            checkpoint_cursor_bytes: config.log.checkpoint_cursor_bytes,
            checkpoint_message_bytes: config.log.checkpoint_message_bytes,
            prepared_files: config.log.spare_segments as usize,
            reserve_bytes: config.log.reserve_bytes,
        },
    }
}

/// Raises the limit of open files, and takes as many connections as it leaves room for: a daemon that has no descriptor
/// left for a segment would stall everybody, one that lets connections wait does not.
#[must_use]
pub fn fit_connections(mut config: Config) -> Config {
    let Some(files) = crate::io::raise_file_limit() else { return config };
    let storage = broker_settings(&config).engine.descriptors();
    let room = u32::try_from(files.saturating_sub(storage).max(1)).unwrap_or(u32::MAX);
    if room < config.limits.connections {
        let wanted = config.limits.connections;
        tracing::warn!(
            files,
            storage,
            room,
            wanted,
            "fewer connections are taken than limits.connections says: raise the limit of open files (LimitNOFILE of systemd, ulimit -n)"
        );
        config.limits.connections = room;
    }
    config
}

/// Recovers the data directory and starts the storage thread.
///
/// # Errors
/// The data directory cannot be used; the text says which file and why.
pub fn start_storage(config: &Config, status: Arc<Status>) -> Result<Running, StartFailure> {
    let running =
        start(broker_settings(config), Arc::clone(&status)).map_err(|error| StartFailure(Box::new(error)))?;
    let nudge = running.nudge();
    let (handle, answers, join) = running.split();
    let stop = move || {
        status.enter(Phase::Stopping);
        nudge();
    };
    Ok(Running { handle, answers, stop: Box::new(stop), join: Box::new(join) })
}
