//! The table of settings: names, kinds, ranges and defaults, each exactly once.
//!
//! Flags, environment variables, TOML keys, error texts and the printed configuration are all derived from it, so
//! none of them can disagree. `limits.body_bytes` is `--limits-body-bytes`, `COMB_LIMITS_BODY_BYTES` and the key
//! `body_bytes` of the table `[limits]`.

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// What a setting holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole number of this range, and its default.
    Number { min: u64, max: u64, default: u64 },
    /// A truth value, false unless set.
    Flag,
    /// One of these words; the first is the default.
    Word(&'static [&'static str]),
    /// Any text that is not empty, and its default.
    Text(&'static str),
}

impl Kind {
    /// What a value may be, for error texts.
    pub(super) fn allowed(&self) -> String {
        match self {
            Kind::Number { min, max, .. } => format!("a whole number from {min} to {max}"),
            Kind::Flag => "true, false, 1, 0, yes, no, on or off".to_owned(),
            Kind::Word(words) => format!("one of {}", words.join(", ")),
            Kind::Text(_) => "text that is not empty".to_owned(),
        }
    }
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    /// TOML path: `table.key`, or `key` at the top.
    pub(super) key: &'static str,
    /// What it holds.
    pub(super) kind: Kind,
    /// One line for `--help`.
    pub(super) help: &'static str,
}

impl Setting {
    /// The flag without its dashes.
    pub(super) fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }

    /// The environment variable.
    pub(super) fn variable(&self) -> String {
        format!("COMB_{}", self.key.replace('.', "_").to_ascii_uppercase())
    }
}

const fn number(key: &'static str, min: u64, max: u64, default: u64, help: &'static str) -> Setting {
    Setting { key, kind: Kind::Number { min, max, default }, help }
}

/// Every setting. Keys at the top come first, then table by table: TOML needs it so, and printing follows it.
pub(super) const SETTINGS: &[Setting] = &[
    Setting { key: "data", kind: Kind::Text("./data"), help: "Data directory; created when it is not there" },
    number("port", 0, 65_535, 6632, "TCP port; 0 takes a free one. PORT is read too, COMB_PORT wins"),
    Setting { key: "bind", kind: Kind::Text("127.0.0.1"), help: "IP address to listen on" },
    Setting {
        key: "log_filter",
        kind: Kind::Text("info"),
        help: "What to log: a level, or target=level,...",
    },
    Setting { key: "log_json", kind: Kind::Flag, help: "Log one JSON object per line" },
    Setting {
        key: "io.backend",
        kind: Kind::Word(&["auto", "uring", "threads"]),
        help: "How files are written; auto takes io_uring where the kernel allows it",
    },
    number("limits.body_bytes", KIB, GIB, 64 * MIB, "Longest request body"),
    number("limits.inflate_bytes", KIB, GIB, 64 * MIB, "Most that a compressed body inflates to"),
    number("limits.atomic_group_bytes", 4 * KIB, GIB, 32 * MIB, "Most that is stored together or not at all"),
    number("limits.json_depth", 8, 1000, 120, "Deepest nesting of a JSON body"),
    number("limits.transaction_id_bytes", 1, 65_535, 65_535, "Longest transaction id"),
    number(
        "limits.name_bytes",
        64,
        447,
        447,
        "Most of 36 + queue name + the longer of partition and group name",
    ),
    number("limits.error_bytes", 64, 8 * KIB, 8 * KIB, "Kept of the reason of a dead letter"),
    number("limits.headers", 8, 1000, 64, "Most headers of a request"),
    number("limits.header_bytes", KIB, MIB, 16 * KIB, "Most bytes of a request's line and headers"),
    number("limits.header_timeout_ms", 10, 600_000, 10_000, "Time for a request's line and headers"),
    number("limits.body_timeout_ms", 10, 600_000, 10_000, "Time without progress of a body or an answer"),
    number(
        "limits.idle_timeout_ms",
        10,
        86_400_000,
        75_000,
        "Time that a connection may idle between requests",
    ),
    number("limits.connections", 1, 1_000_000, 15_000, "Most connections; more wait to be accepted"),
    number("limits.parked_polls", 1, 10_000_000, 100_000, "Most long polls that wait"),
    number(
        "limits.inflight_bytes",
        64 * KIB,
        4 * GIB - 1,
        256 * MIB,
        "Most bytes of bodies and answers in memory",
    ),
    number("limits.lease_seconds_max", 1, 31_536_000, 604_800, "Longest lease"),
    number("limits.poll_ms_max", 1, 600_000, 60_000, "Longest long poll; a longer one is cut to it"),
    number("limits.poll_ms_default", 1, 600_000, 30_000, "Long poll without timeout"),
    number("limits.pop_batch_default", 1, 1_000_000, 200, "Messages of a pop without batch"),
    number(
        "limits.pop_batch_max",
        1,
        1_000_000,
        10_000,
        "Most messages of a pop; a larger batch is cut to it",
    ),
    number("limits.pop_partitions_max", 1, 1024, 64, "Most partitions of a pop; a larger wish is cut to it"),
    number(
        "limits.list_rows",
        1,
        1_000_000,
        10_000,
        "Most rows of partitions in an answer of the admin plane; what is left out is marked",
    ),
    number(
        "limits.pop_bytes_max",
        64 * KIB,
        GIB,
        64 * MIB,
        "Most bytes of a pop's messages, beyond the first",
    ),
    number("limits.request_seconds", 1, 60, 30, "Time for storage to answer before a request fails"),
    number("limits.queue_commands", 16, 1_000_000, 65_536, "Most commands that wait for the storage thread"),
    number("log.segment_bytes", MIB, GIB, 64 * MIB, "Size of a segment; a multiple of 4096"),
    number("log.cursor_file_bytes", 256 * KIB, GIB, 16 * MIB, "Size of a cursor file; a multiple of 4096"),
    number("log.group_bytes", 64 * KIB, GIB, 8 * MIB, "A group commit closes when it has so many bytes"),
    number("log.pipeline_depth", 1, 8, 2, "Most group commits in flight"),
    number("log.spare_segments", 0, 64, 2, "Segments written ahead"),
    number("log.noop_idle_ms", 1, 60_000, 100, "Idle time after which the watermark is written down"),
    number("log.tail_cache_bytes", 0, 64 * GIB, 128 * MIB, "Newest bytes of the log kept in memory"),
    number("log.resident_index_bytes", 0, 64 * GIB, 64 * MIB, "Index of sealed segments kept in memory"),
    number("log.reserve_bytes", 0, 64 * GIB, 128 * MIB, "Kept free on the disk; below it pushes are refused"),
    number("log.checkpoint_cursor_bytes", MIB, 64 * GIB, 256 * MIB, "Cursor bytes between two checkpoints"),
    number("log.checkpoint_message_bytes", MIB, 64 * GIB, 256 * MIB, "Message bytes between two checkpoints"),
    number("log.retention_sweep_ms", 10, 86_400_000, 60_000, "Time between two looks for expired messages"),
    Setting {
        key: "groups.default_subscription",
        kind: Kind::Word(&["new", "all"]),
        help: "Where a new consumer group begins when its pop does not say",
    },
    number("http.workers", 0, 1024, 0, "Threads for HTTP; 0 takes one less than the cores"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_derived() {
        let setting = number("limits.body_bytes", 0, 1, 0, "");
        assert_eq!(setting.flag(), "limits-body-bytes");
        assert_eq!(setting.variable(), "COMB_LIMITS_BODY_BYTES");
    }

    #[test]
    fn no_two_settings_share_a_name() {
        let mut names: Vec<String> = SETTINGS.iter().flat_map(|s| [s.flag(), s.variable()]).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn defaults_are_allowed() {
        for setting in SETTINGS {
            if let Kind::Number { min, max, default } = setting.kind {
                assert!((min..=max).contains(&default), "{}", setting.key);
            }
        }
    }
}
