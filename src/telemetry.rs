//! The daemon's log: lines or JSON on standard error, times in UTC.
//!
//! Must not: hold anything a client sent without bounding it; that is up to whoever logs.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

use crate::config::Config;

/// Installs the log of this process. A second call does nothing.
pub fn init(config: &Config) {
    // The filter was checked when the configuration was validated.
    let filter = EnvFilter::try_new(&config.log_filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(SystemTime)
        .with_writer(std::io::stderr)
        .with_ansi(false);
    // It fails only where another log is installed already, as in tests.
    let _ = if config.log_json { builder.json().try_init() } else { builder.try_init() };
}
