//! What a seed decides before its history begins: sizes, options, how often what happens.
//!
//! Everything is small, so that files are rolled, sealed and left behind all the time.

use std::path::PathBuf;

use comb::broker::core::CoreSettings;
use comb::broker::start::BrokerSettings;
use comb::engine::EngineSettings;
use comb::io::Backend;

use crate::chance::Chance;

/// Queues of a history. Their names share a namespace, for discovery.
pub const QUEUES: [&str; 3] = ["sim.a", "sim.b", "other"];
/// Partitions of each queue.
pub const PARTITIONS: [&str; 4] = ["Default", "p1", "p2", "p3"];
/// Consumer groups; the first is the one of callers that name none, the last begins at new messages.
pub const GROUPS: [&str; 4] = ["__QUEUE_MODE__", "g1", "g2", "late"];
/// Index of the group that begins at new messages.
pub const LATE: usize = 3;

/// Limits of age in seconds: some are over within a history, some at its end, some never.
const LIMITS: [u32; 5] = [1, 60, 2_000, 5_000, 1_000_000];

/// How the disk behaves while the broker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Nothing fails but the power.
    Calm,
    /// Reads, writes and syncs fail as well.
    Stormy,
}

/// The options of a queue that a history sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Length of a lease.
    pub lease_seconds: u32,
    /// Redeliveries after a failure.
    pub retry_limit: u32,
    /// Both dead-letter switches.
    pub dead_letters: bool,
    /// Invisible after the push for so long.
    pub delay_seconds: u32,
    /// Invisible while the partition is younger than that.
    pub window_seconds: u32,
    /// Deduplication.
    pub dedup_seconds: u32,
    /// The switch of the next two.
    pub retention: bool,
    /// Everything older goes.
    pub retention_seconds: u32,
    /// What every group passed goes when it is older.
    pub completed_seconds: u32,
    /// Everything older goes, whatever the switch says.
    pub max_wait_seconds: u32,
}

/// Decisions of a seed.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The broker's settings.
    pub settings: BrokerSettings,
    /// Steps of the history.
    pub steps: u64,
    /// Queues in use.
    pub queues: usize,
    /// Partitions in use.
    pub partitions: usize,
    /// Commands without an answer at once.
    pub outstanding: usize,
    /// Largest payload of most messages.
    pub payload_bytes: u64,
    /// One in so many payloads is larger than everything the broker keeps in memory.
    pub large_one_in: u64,
    /// One in so many steps a crash is armed.
    pub crash_one_in: u64,
    /// Messages expire in some queues.
    pub expires: bool,
    /// The disk fills up now and then.
    pub tight: bool,
    /// A start may have other settings than the one before.
    pub resettled: bool,
    /// The disk.
    pub weather: Weather,
    /// Options of each queue at the beginning; `None`: created on use.
    pub options: Vec<Option<Options>>,
}

impl Options {
    /// Some options.
    pub fn draw(chance: &mut Chance, dedup_seconds: u32, expires: bool) -> Options {
        let quiet = !chance.one_in(4);
        let mut limit = || if expires && chance.one_in(3) { chance.pick(&LIMITS) } else { 0 };
        let (retention_seconds, completed_seconds, max_wait_seconds) = (limit(), limit(), limit());
        Options {
            lease_seconds: chance.pick(&[1, 5, 30, 300]),
            retry_limit: chance.pick(&[0, 1, 3]),
            dead_letters: !chance.one_in(4),
            delay_seconds: if quiet { 0 } else { chance.pick(&[0, 1, 20]) },
            window_seconds: if quiet { 0 } else { chance.pick(&[0, 1, 10]) },
            dedup_seconds,
            retention: expires && !chance.one_in(5),
            retention_seconds,
            completed_seconds,
            max_wait_seconds,
        }
    }
}

/// The engine's settings; another start may have others.
pub fn engine(chance: &mut Chance) -> EngineSettings {
    let segment_bytes = chance.pick(&[64 << 10, 128 << 10, 256 << 10]);
    let cursor_file_bytes = chance.pick(&[48 << 10, 64 << 10, 128 << 10]);
    EngineSettings {
        segment_bytes,
        cursor_file_bytes,
        group_bytes: chance.pick(&[8 << 10, 16 << 10, 32 << 10]),
        atomic_group_bytes: chance.pick(&[16 << 10, 48 << 10]),
        pipeline_depth: u32::try_from(chance.between(1, 4)).unwrap_or(1),
        noop_idle_us: chance.pick(&[1_000, 50_000, 1_000_000]),
        tail_cache_bytes: chance.pick(&[0, 16 << 10, 256 << 10]),
        resident_index_bytes: chance.pick(&[0, 0, 4 << 10, 1 << 20]),
        checkpoint_message_bytes: chance.pick(&[64 << 10, 256 << 10, 1 << 30]),
        checkpoint_cursor_bytes: chance.pick(&[4 << 10, 24 << 10, 64 << 10, 1 << 20]),
        prepared_files: chance.pick(&[1, 1, 2]),
        reserve_bytes: 0,
    }
}

impl Profile {
    /// What a seed decides.
    #[must_use]
    pub fn new(seed: u64) -> Profile {
        let mut chance = Chance::new(seed, 1);
        let engine = engine(&mut chance);
        let data = PathBuf::from("/data");
        let core = CoreSettings {
            parked_polls: chance.pick(&[2, 16]),
            pop_bytes: chance.pick(&[2 << 10, 64 << 10]),
            name_bytes: 447,
            data_dir: data.display().to_string(),
            retention_sweep_us: chance.pick(&[10_000, 1_000_000, 60_000_000]),
        };
        let settings = BrokerSettings { data, backend: Backend::Threads, queue_commands: 64, core, engine };
        let queues = chance.index(QUEUES.len()) + 1;
        let expires = chance.one_in(3);
        let options = (0..queues)
            .map(|_| {
                let dedup = chance.pick(&[0, 30, 3600, 3600]);
                (!chance.one_in(3)).then(|| Options::draw(&mut chance, dedup, expires))
            })
            .collect();
        Profile {
            settings,
            steps: chance.pick(&[100, 250, 500]),
            queues,
            partitions: chance.index(PARTITIONS.len()) + 1,
            outstanding: chance.pick(&[1, 4, 12]),
            payload_bytes: chance.pick(&[60, 600, 4000]),
            large_one_in: chance.pick(&[20, 200]),
            crash_one_in: chance.pick(&[15, 60, 200]),
            expires,
            tight: chance.one_in(4),
            resettled: chance.one_in(4),
            weather: if chance.one_in(3) { Weather::Stormy } else { Weather::Calm },
            options,
        }
    }
}
