//! Histories by the thousand, the kept seeds, and which decisions of recovery they reach.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use comb::engine::recovery::marks::{self, Mark};
use combsim::damage::Hurt;

/// Decisions that one history in some thousands reaches.
const RARE: [Mark; 3] = [Mark::SegmentSealed, Mark::SegmentUnsealed, Mark::DroppedEnd];

/// With so many histories all decisions are reached.
const MANY: u64 = 10_000;

/// Histories of the short run; `COMBSIM_SEEDS` asks for another number.
fn seeds() -> u64 {
    std::env::var("COMBSIM_SEEDS").map_or(1_000, |text| text.parse().unwrap())
}

/// Runs seeds in two threads and gives the failures and the marks.
fn run(seeds: u64, one: impl Fn(u64) -> Vec<String> + Sync) -> (Vec<String>, BTreeMap<Mark, u64>) {
    let mut failures = Vec::new();
    let mut hits: BTreeMap<Mark, u64> = BTreeMap::new();
    std::thread::scope(|scope| {
        let one = &one;
        let halves: Vec<_> = (0..2)
            .map(|half| {
                scope.spawn(move || {
                    let failures: Vec<String> = (half..seeds).step_by(2).flat_map(one).collect();
                    (failures, marks::take())
                })
            })
            .collect();
        for half in halves {
            let (failed, marks) = half.join().unwrap();
            failures.extend(failed);
            for (mark, count) in marks {
                *hits.entry(mark).or_default() += count;
            }
        }
    });
    (failures, hits)
}

fn damages(seed: u64) -> Vec<String> {
    let each = Hurt::ALL.into_iter();
    each.filter_map(|hurt| combsim::run_damaged(seed, hurt).err().map(|e| format!("{seed}, {hurt:?}: {e}")))
        .collect()
}

#[test]
fn histories_keep_every_rule_and_reach_every_decision() {
    let history = |seed| combsim::run(seed).err().map(|e| format!("{seed}: {e}")).into_iter().collect();
    let (mut failures, mut hits) = run(seeds(), history);
    let (more, reached) = run((seeds() / 10).max(50), damages);
    failures.extend(more);
    for (mark, count) in reached {
        *hits.entry(mark).or_default() += count;
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let missed: BTreeSet<Mark> = Mark::ALL.into_iter().filter(|mark| !hits.contains_key(mark)).collect();
    let excused: BTreeSet<Mark> = if seeds() < MANY { RARE.into_iter().collect() } else { BTreeSet::new() };
    println!("{hits:?}");
    assert!(missed.is_subset(&excused), "missed: {missed:?}, reached: {hits:?}");
}

#[test]
fn kept_seeds_keep_every_rule() {
    for line in include_str!("../seeds.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (kind, seed) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        let failures = match kind {
            "damage" => damages(seed),
            _ => combsim::run(seed).err().map(|e| e.to_string()).into_iter().collect(),
        };
        assert!(failures.is_empty(), "{line}: {failures:?}");
    }
}

#[test]
fn the_same_seed_makes_the_same_history_and_the_same_bytes() {
    for seed in 0..50 {
        assert_eq!(combsim::run(seed).unwrap(), combsim::run(seed).unwrap(), "seed {seed}");
    }
}
