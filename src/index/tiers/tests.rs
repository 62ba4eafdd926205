//! The tiers against what segments hold, segment by segment.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{Builder, Due, Keys, Leaf};
use crate::format::index::Filter;
use crate::types::{FileNumber, LogTime};

/// Segments as their index files would say: the key of each message.
#[derive(Default)]
struct Files(BTreeMap<FileNumber, Vec<u64>>);

impl Files {
    fn time(segment: FileNumber) -> LogTime {
        LogTime(segment.0 * 10)
    }

    fn leaf(&self, segment: FileNumber) -> Leaf {
        let keys = &self.0[&segment];
        let mut leaf = Leaf::empty(u32::try_from(keys.len()).unwrap(), Files::time(segment));
        keys.iter().for_each(|key| leaf.insert(Keys::from_leaf(*key)));
        leaf
    }

    /// Does one step of what is due; whether there was one.
    fn step(&self, builder: &mut Builder) -> bool {
        match builder.due() {
            None => return false,
            Some(Due::Filter(segment)) => {
                let keys = &self.0[&segment];
                let mut filter = Filter::for_messages(u32::try_from(keys.len()).unwrap());
                keys.iter().for_each(|key| filter.insert(*key));
                let messages = u32::try_from(keys.len()).unwrap();
                builder.insert(segment, Leaf::new(filter, messages, Files::time(segment)));
            }
            Some(Due::Leaf(segment)) => builder.insert(segment, self.leaf(segment)),
            Some(Due::Ids(segment)) => {
                let sharing = builder.sharing().unwrap();
                self.0[&segment].iter().for_each(|key| sharing.insert(Keys::from_leaf(*key)));
                builder.read();
            }
        }
        true
    }
}

/// Well mixed numbers, each one once.
fn key(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

const SEGMENTS: u64 = 1000;
const MESSAGES: u64 = 500;

fn thousand_segments() -> Files {
    let keys = |segment: u64| (0..MESSAGES).map(|message| key(segment * MESSAGES + message)).collect();
    Files((1..=SEGMENTS).map(|segment| (FileNumber(segment), keys(segment))).collect())
}

/// Over a thousand segments: an id that is nowhere leads to hardly any index file, one that is somewhere to its own, and
/// the filters take less than five bytes per message. The same whether segments came one by one or after a start.
#[test]
fn a_thousand_segments_are_asked_at_once() {
    let files = thousand_segments();
    let mut one_by_one = Builder::default();
    for segment in files.0.keys() {
        one_by_one.insert_sealed(*segment, files.leaf(*segment));
        while files.step(&mut one_by_one) {}
    }
    let mut after_start = Builder::default();
    after_start.want(files.0.keys().copied());
    while files.step(&mut after_start) {}

    for builder in [one_by_one, after_start] {
        let tiers = builder.tiers();
        let messages = SEGMENTS * MESSAGES;
        let bytes = tiers.bytes() as f64 / messages as f64;
        assert!((4.0..5.0).contains(&bytes), "{bytes} bytes per message");

        let (mut all, mut most) = (0, 0);
        let absent = 200_000;
        for number in 0..absent {
            let found = tiers.candidates(Keys::from_leaf(key(1 << 40 | number)), LogTime(0)).len();
            all += found;
            most = most.max(found);
        }
        assert!(most <= 4, "{most} index files for one id that is nowhere");
        let mean = all as f64 / absent as f64;
        assert!(mean < 0.02, "{mean} index files for each id that is nowhere");
        assert!(all > 0, "filters that never err are no filters: the test asks too little");

        for (segment, keys) in files.0.iter().step_by(7) {
            for key in keys.iter().step_by(11) {
                let found = tiers.candidates(Keys::from_leaf(*key), LogTime(0));
                assert!(found.contains(segment), "{segment} denies what it holds");
                assert!(found.len() <= 4);
            }
        }
    }
}

/// What is asked for one absent id, in filters: this is what bounds the accesses to memory.
#[test]
fn an_id_that_is_nowhere_costs_few_filters() {
    let files = thousand_segments();
    let mut builder = Builder::default();
    builder.want(files.0.keys().copied());
    while files.step(&mut builder) {}
    let tiers = builder.tiers();
    // Segments 1..=1000 are three groups that are over and one that is not: 3 shared by all, then 14 shared by sixteen
    // and the leaves of the 9 segments from 992 on.
    let groups: Vec<_> = tiers.0.values().collect();
    assert_eq!(groups.len(), 4);
    assert_eq!(groups.iter().filter(|group| group.high.is_some()).count(), 3);
    let open = groups.last().unwrap();
    assert_eq!(open.low.iter().flatten().count(), 14);
    let seconds = groups.iter().flat_map(|group| &group.leaves).flatten().filter(|it| it.second.is_some());
    assert_eq!(seconds.count(), 9);
}

#[test]
fn old_segments_are_not_asked() {
    let files = thousand_segments();
    let mut builder = Builder::default();
    builder.want(files.0.keys().copied().take(40));
    while files.step(&mut builder) {}
    let tiers = builder.tiers();
    let first = FileNumber(7);
    let keys = Keys::from_leaf(files.0[&first][3]);
    assert_eq!(tiers.candidates(keys, Files::time(first)).as_slice(), [first]);
    assert!(!tiers.candidates(keys, LogTime(Files::time(first).0 + 1)).contains(&first));
    assert!(!tiers.knows(FileNumber(41)));
}

/// What happens to the segments.
#[derive(Clone, Debug)]
enum Event {
    /// A segment is sealed, after so many numbers that were passed over.
    Seal(u64),
    /// One of them is sealed late, its index was not written in time.
    Late(usize),
    Remove(usize),
    Steps(usize),
    /// What is due cannot be read.
    Fail,
    /// Everything is loaded anew.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => prop_oneof![9 => Just(0_u64), 1 => 1..20_u64].prop_map(Event::Seal),
        2 => any::<usize>().prop_map(Event::Late),
        2 => any::<usize>().prop_map(Event::Remove),
        6 => (1..40_usize).prop_map(Event::Steps),
        1 => Just(Event::Fail),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the order of sealing, loading, failing and removing: who holds an id is a candidate or unknown, and
    /// what is gone is never one. Copies that were handed out stay as they were.
    #[test]
    fn nobody_who_holds_an_id_is_denied(events in proptest::collection::vec(event(), 1..400)) {
        let mut files = Files::default();
        let mut builder = Builder::default();
        let (mut late, mut next) = (BTreeSet::new(), 1);
        let mut old = None;
        for event in events {
            match event {
                Event::Seal(skipped) => {
                    for number in next..next + skipped {
                        late.insert(FileNumber(number));
                    }
                    let segment = FileNumber(next + skipped);
                    next = segment.0 + 1;
                    files.0.insert(segment, (0..5).map(|message| key(segment.0 * 5 + message)).collect());
                    builder.insert_sealed(segment, files.leaf(segment));
                }
                Event::Late(which) if !late.is_empty() => {
                    let segment = *late.iter().nth(which % late.len()).unwrap();
                    late.remove(&segment);
                    files.0.insert(segment, (0..5).map(|message| key(segment.0 * 5 + message)).collect());
                    builder.insert_sealed(segment, files.leaf(segment));
                }
                Event::Remove(which) if !files.0.is_empty() => {
                    let segment = *files.0.keys().nth(which % files.0.len()).unwrap();
                    files.0.remove(&segment);
                    builder.remove(segment);
                }
                Event::Late(_) | Event::Remove(_) => {}
                Event::Steps(steps) => {
                    (0..steps).take_while(|_| files.step(&mut builder)).for_each(drop);
                }
                Event::Fail => {
                    if let Some(due) = builder.due() {
                        builder.fail(due);
                    }
                }
                Event::Restart => {
                    builder = Builder::default();
                    builder.want(files.0.keys().copied());
                }
            }
            let tiers = builder.tiers();
            for (segment, keys) in &files.0 {
                for key in keys {
                    let found = tiers.candidates(Keys::from_leaf(*key), Files::time(*segment));
                    prop_assert!(found.contains(segment) || !tiers.knows(*segment), "{} of {:?}", key, segment);
                    prop_assert!(found.iter().all(|found| files.0.contains_key(found)));
                    prop_assert!(found.is_sorted_by(|one, other| one > other));
                }
            }
            old.get_or_insert((tiers, files.0.clone()));
        }
        while files.step(&mut builder) {}
        if let Some((tiers, files)) = old {
            for (segment, keys) in &files {
                let found = tiers.candidates(Keys::from_leaf(keys[0]), LogTime(0));
                prop_assert!(found.contains(segment) || !tiers.knows(*segment));
            }
        }
    }
}
