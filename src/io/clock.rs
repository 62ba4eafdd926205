//! Time and randomness, replaceable as a whole.
//!
//! Purpose: nobody else asks the machine for the time or for a random number, so that a test or a simulation
//! can decide both.
//!
//! Invariants:
//! - Boot time never runs backwards and counts suspended time; wall time may jump either way.
//! - A clone shows the same time and continues the same sequence of ids.
//!
//! Must not: interpret times; log time is the engine's business.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use uuid::{Builder, Uuid};

use crate::types::MessageId;

/// The machine's clocks, or hands that a test moves.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<Hands>),
}

#[derive(Debug)]
struct Hands {
    boot_us: AtomicU64,
    wall_us: AtomicU64,
}

/// Moves the hands of a manual `Clock`.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Hands>);

impl Clock {
    /// The machine's clocks.
    #[must_use]
    pub fn system() -> Clock {
        Clock(Source::System)
    }

    /// A clock that stands still until its hands are moved. Both times are in microseconds.
    #[must_use]
    pub fn manual(boot_us: u64, wall_us: u64) -> (Clock, ManualClock) {
        let hands = Arc::new(Hands { boot_us: AtomicU64::new(boot_us), wall_us: AtomicU64::new(wall_us) });
        (Clock(Source::Manual(Arc::clone(&hands))), ManualClock(hands))
    }

    /// Microseconds since the machine started, suspended time included. Never decreases.
    #[must_use]
    pub fn boot_us(&self) -> u64 {
        match &self.0 {
            Source::System => read_us(ClockId::Boottime),
            Source::Manual(hands) => hands.boot_us.load(Ordering::Acquire),
        }
    }

    /// Microseconds since the Unix epoch, 0 before it. May jump.
    #[must_use]
    pub fn wall_us(&self) -> u64 {
        match &self.0 {
            Source::System => read_us(ClockId::Realtime),
            Source::Manual(hands) => hands.wall_us.load(Ordering::Acquire),
        }
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::system()
    }
}

impl ManualClock {
    /// Moves both clocks forward.
    pub fn advance_us(&self, us: u64) {
        self.0.boot_us.fetch_add(us, Ordering::AcqRel);
        self.0.wall_us.fetch_add(us, Ordering::AcqRel);
    }

    /// Sets the wall clock alone, as an operator or a time service would.
    pub fn set_wall_us(&self, us: u64) {
        self.0.wall_us.store(us, Ordering::Release);
    }

    /// Sets the boot clock alone, as a restart of the machine would.
    pub fn set_boot_us(&self, us: u64) {
        self.0.boot_us.store(us, Ordering::Release);
    }
}

fn read_us(id: ClockId) -> u64 {
    let now = clock_gettime(id);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let micros = u64::try_from(now.tv_nsec).unwrap_or(0) / 1000;
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

/// Ids may run ahead of the clock by this much (in ticks of 1/4096 ms) before they follow it again: ten seconds.
/// More means that the clock was set back.
const MAX_LEAD_TICKS: u64 = 10_000 << 12;

/// Where ids and random numbers come from.
///
/// Ids need to be unique, not unguessable: their random part comes from a fast generator that the operating
/// system seeds once, because one system call per message would be felt. They grow strictly within one source,
/// except when the wall clock is set back by more than ten seconds.
#[derive(Clone, Debug)]
pub struct IdSource(Arc<Ids>);

#[derive(Debug)]
struct Ids {
    clock: Clock,
    seed: u64,
    seeded: bool,
    drawn: AtomicU64,
    last_tick: AtomicU64,
}

impl IdSource {
    /// Seeded by the operating system; ids carry the time of `clock`.
    #[must_use]
    pub fn system(clock: Clock) -> IdSource {
        IdSource::build(clock, os_random(), false)
    }

    /// The same sequence of everything for the same seed and times. For tests and simulation.
    #[must_use]
    pub fn seeded(clock: Clock, seed: u64) -> IdSource {
        IdSource::build(clock, seed, true)
    }

    fn build(clock: Clock, seed: u64, seeded: bool) -> IdSource {
        IdSource(Arc::new(Ids {
            clock,
            seed,
            seeded,
            drawn: AtomicU64::new(0),
            last_tick: AtomicU64::new(0),
        }))
    }

    /// A new UUIDv7: 48 bits of milliseconds, 12 bits that count within the millisecond, 62 random bits.
    #[must_use]
    pub fn message_id(&self) -> MessageId {
        let tick = self.next_tick();
        let within = u16::try_from(tick & 0xfff).expect("twelve bits");
        let [within_high, within_low] = within.to_be_bytes();
        let [a, b, c, d, e, f, g, h] = self.draw().to_be_bytes();
        let tail = [within_high, within_low, a, b, c, d, e, f, g, h];
        MessageId(Builder::from_unix_timestamp_millis(tick >> 12, &tail).into_uuid().as_u128())
    }

    /// 64 random bits, from the operating system unless seeded.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        if self.0.seeded { self.draw() } else { os_random() }
    }

    /// 128 random bits, from the operating system unless seeded.
    #[must_use]
    pub fn random_u128(&self) -> u128 {
        (u128::from(self.random_u64()) << 64) | u128::from(self.random_u64())
    }

    /// The time in 1/4096 ms, moved on so that no two calls get the same.
    fn next_tick(&self) -> u64 {
        let now_us = self.0.clock.wall_us();
        let now = ((now_us / 1000) << 12) | ((now_us % 1000) * 4096 / 1000);
        let mut tick = now;
        // Relaxed: only the number itself matters, nothing else is published with it.
        let _ = self.0.last_tick.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            tick = if last >= now && last - now < MAX_LEAD_TICKS { last + 1 } else { now };
            Some(tick)
        });
        tick
    }

    /// The next number of the generator: splitmix64, whose state is a counter and so needs no lock.
    fn draw(&self) -> u64 {
        let drawn = self.0.drawn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut x = self.0.seed.wrapping_add(drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// 64 bits of the operating system's randomness. A version 4 UUID fixes four bits of its upper half and two of
/// its lower half, at different places, so that their sum modulo two is random throughout.
fn os_random() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use super::*;

    #[test]
    fn the_system_clock_moves_forward_and_knows_the_year() {
        let clock = Clock::system();
        let before = clock.boot_us();
        thread::sleep(std::time::Duration::from_millis(5));
        let passed = clock.boot_us() - before;
        assert!((5_000..5_000_000).contains(&passed), "{passed} us for a sleep of 5 ms");
        assert!(clock.wall_us() > 1_700_000_000_000_000, "microseconds since 1970");
    }

    #[test]
    fn manual_hands_move_every_clone() {
        let (clock, hands) = Clock::manual(10, 1_000);
        let clone = clock.clone();
        hands.advance_us(5);
        assert_eq!((clone.boot_us(), clone.wall_us()), (15, 1_005));
        hands.set_wall_us(3);
        assert_eq!((clone.boot_us(), clone.wall_us()), (15, 3), "a set wall clock leaves boot time alone");
    }

    #[test]
    fn message_ids_are_version_7_carry_the_time_and_grow() {
        let (clock, hands) = Clock::manual(0, 1_700_000_000_123_456);
        let ids = IdSource::system(clock);
        let mut last = MessageId(0);
        for _ in 0..10_000 {
            let id = ids.message_id();
            assert!(id > last);
            last = id;
        }
        let uuid = Uuid::from_u128(last.0);
        assert_eq!((uuid.get_version_num(), uuid.get_variant()), (7, uuid::Variant::RFC4122));
        let (seconds, _) = uuid.get_timestamp().unwrap().to_unix();
        assert_eq!(seconds, 1_700_000_000);

        hands.set_wall_us(1_600_000_000_000_000);
        let (seconds, _) = Uuid::from_u128(ids.message_id().0).get_timestamp().unwrap().to_unix();
        assert_eq!(seconds, 1_600_000_000, "a clock set far back is followed, not outrun for ever");
    }

    #[test]
    fn no_id_twice_across_threads_and_sources() {
        let (clock, _hands) = Clock::manual(0, 1_700_000_000_000_000);
        let shared = IdSource::system(clock.clone());
        let other = IdSource::system(clock);
        let drawn: Vec<Vec<MessageId>> = thread::scope(|scope| {
            let workers: Vec<_> = [&shared, &shared, &shared, &other]
                .into_iter()
                .map(|ids| scope.spawn(move || (0..20_000).map(|_| ids.message_id()).collect()))
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        let distinct: HashSet<u128> = drawn.iter().flatten().map(|id| id.0).collect();
        assert_eq!(distinct.len(), 80_000);
    }

    #[test]
    fn a_seed_repeats_everything_and_the_system_nothing() {
        let draw = |ids: IdSource| (ids.message_id(), ids.random_u64(), ids.random_u128());
        let (clock, _hands) = Clock::manual(0, 5_000_000);
        assert_eq!(draw(IdSource::seeded(clock.clone(), 7)), draw(IdSource::seeded(clock.clone(), 7)));
        assert_ne!(draw(IdSource::seeded(clock.clone(), 7)), draw(IdSource::seeded(clock.clone(), 8)));
        let system = IdSource::system(clock);
        assert_ne!(system.random_u128(), system.random_u128());
    }

    #[test]
    fn no_bit_of_the_systems_randomness_is_fixed() {
        let (mut ever, mut always) = (0, u64::MAX);
        for _ in 0..200 {
            let drawn = os_random();
            ever |= drawn;
            always &= drawn;
        }
        assert_eq!((ever, always), (u64::MAX, 0));
    }
}
