//! combd: reads its configuration, starts its log, runs the daemon.

use std::io::Write as _;
use std::process::ExitCode;

use comb::config::{ConfigError, load};
use comb::daemon::run;
use comb::telemetry;
use comb::wiring::{fit_connections, start_storage};

/// The configuration is wrong.
const EXIT_CONFIGURATION: u8 = 2;

fn main() -> ExitCode {
    let invocation = match load(std::env::args_os(), std::env::vars_os()) {
        Ok(invocation) => invocation,
        Err(ConfigError::Usage(usage)) => {
            // Help and version go to standard output, errors to standard error.
            let _ = usage.print();
            return if usage.use_stderr() { ExitCode::from(EXIT_CONFIGURATION) } else { ExitCode::SUCCESS };
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "combd: {error}");
            return ExitCode::from(EXIT_CONFIGURATION);
        }
    };
    if invocation.print {
        let printed = std::io::stdout().write_all(invocation.config.to_toml().as_bytes());
        return if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    telemetry::init(&invocation.config);
    run(fit_connections(invocation.config), start_storage)
}
