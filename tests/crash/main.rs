//! The real daemon under load, killed at random instants, with the clients' memory as the judge.
//!
//! Every client writes down what it was answered, and what it asked without getting an answer. After each restart:
//!
//! - what was answered is there, unchanged, at its offset; what was not answered is there once or not at all;
//! - offsets of a partition are contiguous and every producer's messages are in its order;
//! - nothing that was acknowledged comes back to its group, and no group skips what nobody acknowledged;
//! - leases still hold, attempts and retry charges are remembered, duplicates are known by id and offset;
//! - of a transaction both halves are there or neither.
//!
//! SIGKILL leaves the kernel's page cache alone: these tests show that the process may die at any instant, not that
//! the machine may. `COMB_CRASH_ROUNDS` sets the number of rounds (10), `COMB_CRASH_SEED` repeats a run's choices.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod chance;
mod judge;
mod keepsakes;
mod ledger;
mod load;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chance::Chance;
use common::api::Api;
use common::{Daemon, SMALL_FILES};
use judge::Judge;
use keepsakes::Keepsakes;
use load::Load;

/// Rounds before a new data directory, so that a long run is not spent on reading an ever longer log.
const ROUNDS_PER_LIFE: u64 = 20;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn chance() -> Chance {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = setting("COMB_CRASH_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    println!("COMB_CRASH_SEED={seed}");
    Chance::new(seed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_answered_is_lost_or_changed_by_sigkill() {
    let rounds = setting("COMB_CRASH_ROUNDS").unwrap_or(10);
    let mut chance = chance();
    // Both back ends have their turn, in the shortest run too.
    let per_life = ROUNDS_PER_LIFE.min(rounds.div_ceil(2));
    let mut backends = ["auto", "threads"].into_iter().cycle();
    let mut done = 0;
    while done < rounds {
        let some = per_life.min(rounds - done);
        kill_again_and_again(done..done + some, backends.next().unwrap(), &mut chance).await;
        done += some;
    }
}

/// Rounds on one data directory.
async fn kill_again_and_again(rounds: Range<u64>, backend: &str, chance: &mut Chance) {
    let backend = format!("--io-backend={backend}");
    let daemon = Arc::new(Daemon::start(&[SMALL_FILES, &[backend.as_str()]].concat()));
    let api = Api::of(Arc::clone(&daemon));
    let mut judge = Judge::new(api.clone());
    judge.prepare().await;
    for round in rounds {
        let keepsakes = Keepsakes::make(&api, round).await;
        let load = Load::start(&api, judge.ledger(), round, chance);
        tokio::time::sleep(Duration::from_millis(chance.between(50, 1200))).await;
        load.expect_the_end();
        daemon.kill();
        load.join().await;
        while chance.one_in(3) {
            // Recovery may be killed as well, any number of times.
            daemon.start_and_kill(Duration::from_millis(chance.between(0, 120)));
        }
        daemon.restart();
        keepsakes.check(&api).await;
        judge.check(chance).await;
        println!("round {round}: {}", judge.ledger().summary());
    }
    judge.check_everything_again().await;
    assert!(judge.ledger().summary().stored > 100, "the load stored next to nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_under_load_answers_parked_polls_and_ends_in_time_with_nothing_lost() {
    const POLLS: usize = 50;
    let mut chance = chance();
    let daemon = Arc::new(Daemon::start(SMALL_FILES));
    let api = Api::of(Arc::clone(&daemon));
    let mut judge = Judge::new(api.clone());
    judge.prepare().await;
    for round in 0..3 {
        let keepsakes = Keepsakes::make(&api, round).await;
        let polls: Vec<_> = (0..POLLS)
            .map(|n| {
                let api = api.clone();
                tokio::spawn(async move {
                    api.try_get(&format!("/api/v1/pop/queue/quiet-{n}?wait=true&timeout=30000")).await
                })
            })
            .collect();
        let load = Load::start(&api, judge.ledger(), round, &mut chance);
        tokio::time::sleep(Duration::from_millis(700)).await;
        load.expect_the_end();
        let stopping = Arc::clone(&daemon);
        let (status, took) =
            tokio::task::spawn_blocking(move || stopping.terminate(Duration::from_secs(10))).await.unwrap();
        assert_eq!(status.code(), Some(0), "exit status after SIGTERM\n{}", daemon.log_tail());
        assert!(took < Duration::from_secs(5), "the stop took {took:?}");
        for poll in polls {
            let answer = poll.await.unwrap().expect("a parked poll gets an answer");
            assert_eq!(answer.status, 204, "{answer:?}");
        }
        load.join().await;
        daemon.restart();
        keepsakes.check(&api).await;
        judge.check(&mut chance).await;
    }
    judge.check_everything_again().await;
}

#[tokio::test]
async fn a_second_daemon_on_the_same_directory_is_refused() {
    let daemon = Arc::new(Daemon::start(SMALL_FILES));
    let data = daemon.data();
    let output = common::run(&["--data", data.to_str().unwrap(), "--port", "0"], &std::env::temp_dir());
    assert!(!output.status.success());
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(data.to_str().unwrap()), "{said}");
    // The first one never noticed.
    assert_eq!(Api::of(daemon).get("/health").await.status, 200);
}
