//! The index file of a sealed segment against a naive model, and under damage.
//!
//! A file that was built from random runs answers every question as a list of those runs does. A file that was damaged,
//! cut, extended, mixed up with another one or made up answers the same or not at all.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use comb::format::index::{Builder, IndexInfo, RunRow, SpanRow, id_key, open_page};
use comb::format::{BLOCK_BYTES, DecodeError};
use comb::log::sealed::{IndexError, Sealed};
use comb::types::{FileNumber, IdHash, LogId, LogTime, MessageId, Offset, PartitionId, WallTime};
use proptest::collection::vec;
use proptest::prelude::*;

#[path = "index_file/memory.rs"]
mod memory;

use memory::{Memory, finish};

const LOG: LogId = LogId(0x0198_8f00_1122_7334_8556_6778_899a_abbc);
const SEGMENT: FileNumber = FileNumber(42);

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A run as it was appended.
#[derive(Clone, Debug)]
struct Appended {
    row: RunRow,
    ids: Vec<(IdHash, MessageId)>,
}

/// What a segment holds, in commit order.
#[derive(Clone, Debug)]
struct Model(Vec<Appended>);

impl Model {
    /// Runs of these partitions and counts; a gap is left in front of some, some are bare. Ids come from a small pool, so
    /// that some come twice.
    fn new(runs: &[(u64, u32, bool, bool)], pool: u64) -> Model {
        let (mut next, mut message) = ([0_u64; 16], 0_u64);
        let mut all = Vec::new();
        for (at, (partition, count, gap, bare)) in (1..).zip(runs) {
            let next = &mut next[*partition as usize % 16];
            *next += if *gap { 3 } else { 0 };
            let ids = (0..*count)
                .map(|_| {
                    message += 1;
                    let mixed = (message % pool).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    (IdHash(u128::from(mixed) << 64 | u128::from(!mixed)), MessageId(u128::from(message)))
                })
                .collect();
            let row = RunRow {
                partition: PartitionId(*partition % 16),
                base: Offset(*next),
                count: *count,
                bytes: 41 * count,
                created: WallTime(1000 + 10 * at),
                logged: LogTime(500 + 7 * at),
                position: 4096 * at as u32,
                first_id: 0,
                bare: *bare,
            };
            *next += u64::from(*count);
            all.push(Appended { row, ids });
        }
        Model(all)
    }

    fn file(&self, log: LogId, segment: FileNumber) -> Vec<u8> {
        let mut builder = Builder::new(log, segment);
        for run in &self.0 {
            builder.push_run(run.row, &run.ids);
        }
        finish(builder)
    }

    /// Runs of a partition in the order of offsets, by stretches without a gap.
    fn stretches(&self, partition: PartitionId) -> Vec<Vec<RunRow>> {
        let mut stretches: Vec<Vec<RunRow>> = Vec::new();
        for run in self.0.iter().map(|run| run.row).filter(|run| run.partition == partition) {
            match stretches.last_mut() {
                Some(stretch)
                    if stretch.last().is_some_and(|last| end(last) == run.base && last.bare == run.bare) =>
                {
                    stretch.push(run);
                }
                _ => stretches.push(vec![run]),
            }
        }
        stretches
    }

    fn find(&self, partition: PartitionId, hash: IdHash) -> Vec<(Offset, MessageId, LogTime)> {
        let mut found = Vec::new();
        for run in self.0.iter().filter(|run| run.row.partition == partition) {
            for (offset, (other, id)) in (run.row.base.0..).zip(&run.ids) {
                if *other == hash {
                    found.push((Offset(offset), *id, run.row.logged));
                }
            }
        }
        found.sort_unstable_by_key(|(offset, ..)| std::cmp::Reverse(*offset));
        found
    }

    fn partitions(&self) -> Vec<PartitionId> {
        let mut partitions: Vec<_> = self.0.iter().map(|run| run.row.partition).collect();
        partitions.sort_unstable();
        partitions.dedup();
        partitions
    }
}

fn end(run: &RunRow) -> Offset {
    Offset(run.base.0 + u64::from(run.count))
}

/// What of a run does not depend on where its row is.
fn bare_of_rows(run: RunRow) -> RunRow {
    RunRow { first_id: 0, ..run }
}

fn open(file: &[u8]) -> Result<Sealed<Memory>, IndexError> {
    Sealed::open(Memory(file.to_vec()), LOG, SEGMENT)
}

/// Asks everything that the model can answer. `Err`: which answer is another one than the model's. The number of
/// questions that got none.
fn compare(sealed: &Sealed<Memory>, model: &Model) -> Result<usize, String> {
    let mut unanswered = 0;
    let mut check = |what: &str, same: Result<bool, IndexError>| match same {
        Ok(true) => Ok(()),
        Ok(false) => Err(what.to_owned()),
        Err(_) => {
            unanswered += 1;
            Ok(())
        }
    };
    let mut spans: Vec<SpanRow> = Vec::new();
    let stretches: Vec<_> = model.partitions().into_iter().flat_map(|it| model.stretches(it)).collect();
    let read = sealed.spans(&mut |span| spans.push(span));
    let mut expected: Vec<_> = stretches.iter().map(|runs| span_of(runs)).collect();
    let key = |span: &SpanRow| (span.partition, span.base);
    spans.sort_by_key(key);
    expected.sort_by_key(key);
    let without_row = |span: &SpanRow| SpanRow { first_run: 0, ..*span };
    check("spans", read.map(|()| spans.iter().map(without_row).eq(expected.iter().copied())))?;

    for runs in &stretches {
        let span = span_of(runs);
        for offset in [span.base.0, span.base.0.midpoint(span.end.0), span.end.0 - 1] {
            let found = sealed.span(span.partition, Offset(offset));
            let wanted = (!span.bare).then_some(span);
            check("span", found.map(|found| found.map(|found| without_row(&found)) == wanted))?;
        }
        for outside in [span.end.0, span.base.0.wrapping_sub(1)] {
            let there = stretches.iter().map(|runs| span_of(runs)).find(|other| {
                other.partition == span.partition
                    && !other.bare
                    && (other.base.0..other.end.0).contains(&outside)
            });
            let found = sealed.span(span.partition, Offset(outside));
            check("no span", found.map(|found| found.map(|found| without_row(&found)) == there))?;
        }
        let Ok(Some(found)) = sealed.span(span.partition, span.base) else { continue };
        for (at, run) in runs.iter().enumerate().step_by(runs.len().div_ceil(7)) {
            for most in [1, 3, u32::MAX] {
                let got = sealed.runs(&found, Offset(end(run).0 - 1), most);
                let wanted = runs[at..].iter().copied().take(most as usize);
                check("runs", got.map(|got| got.into_iter().map(bare_of_rows).eq(wanted)))?;
            }
            for time in [run.created.0 - 1, run.created.0, run.created.0 + 1] {
                let wanted = runs.iter().find(|run| run.created.0 >= time).copied();
                let got = sealed.first_created(&found, WallTime(time));
                check("first created", got.map(|got| got.map(bare_of_rows) == wanted))?;
            }
        }
    }

    let filter = sealed.filter();
    let mut keys = Vec::new();
    let read = sealed.keys(&mut |key| keys.push(key));
    let mut wanted: Vec<u64> = Vec::new();
    for run in &model.0 {
        for (hash, _) in run.ids.iter().step_by(3) {
            let found = sealed.find(run.row.partition, *hash);
            check("find", found.map(|found| found == model.find(run.row.partition, *hash)))?;
            let other = PartitionId(run.row.partition.0 + 1);
            let found = sealed.find(other, *hash);
            check("find elsewhere", found.map(|found| found == model.find(other, *hash)))?;
        }
        wanted.extend(run.ids.iter().map(|(hash, _)| id_key(run.row.partition, *hash)));
    }
    check("an id that is nowhere", sealed.find(PartitionId(1), IdHash(5)).map(|found| found.is_empty()))?;
    check("filter", filter.map(|filter| wanted.iter().all(|key| filter.may_hold(*key))))?;
    keys.sort_unstable();
    wanted.sort_unstable();
    check("keys", read.map(|()| keys == wanted))?;
    Ok(unanswered)
}

fn span_of(runs: &[RunRow]) -> SpanRow {
    let (first, last) = (runs[0], runs[runs.len() - 1]);
    SpanRow {
        partition: first.partition,
        base: first.base,
        end: end(&last),
        first_run: 0,
        runs: u32::try_from(runs.len()).unwrap(),
        first_created: first.created,
        last_logged: last.logged,
        bare: first.bare,
    }
}

fn model() -> impl Strategy<Value = Model> {
    let run = (0..12_u64, 1..9_u32, prop::bool::weighted(0.1), prop::bool::weighted(0.05));
    (vec(run, 0..400), prop_oneof![Just(u64::MAX), 1..2000_u64])
        .prop_map(|(runs, pool)| Model::new(&runs, pool))
}

/// A few runs in a file of six blocks.
fn small() -> Model {
    Model::new(
        &[
            (1, 3, false, false),
            (2, 1, false, false),
            (1, 2, false, false),
            (1, 4, true, false),
            (3, 2, false, true),
        ],
        8,
    )
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn a_file_answers_like_a_list_of_runs(model in model()) {
        let sealed = open(&model.file(LOG, SEGMENT)).unwrap();
        prop_assert_eq!(compare(&sealed, &model), Ok(0));
        let messages: u32 = model.0.iter().map(|run| run.row.count).sum();
        prop_assert_eq!(sealed.info().messages, messages);
        let newest = model.0.iter().map(|run| run.row.logged).max().unwrap_or_default();
        prop_assert_eq!(sealed.info().last_logged, newest);
    }

    /// Nothing that happens to a file makes it answer wrongly.
    #[test]
    fn a_damaged_file_answers_the_same_or_not_at_all(
        model in model(),
        damages in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut file = model.file(LOG, SEGMENT);
        for (at, with) in damages {
            let at = at.index(file.len());
            file[at] = with;
        }
        if let Ok(sealed) = open(&file) {
            prop_assert!(compare(&sealed, &model).is_ok());
        }
    }

    #[test]
    fn pages_in_another_place_answer_nothing(
        model in model(),
        one in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
    ) {
        let whole = model.file(LOG, SEGMENT);
        let pages = whole.len() / BLOCK_BYTES - 1;
        let (one, other) = (one.index(pages) + 1, other.index(pages) + 1);
        let mut file = whole.clone();
        file[one * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&whole[other * BLOCK_BYTES..][..BLOCK_BYTES]);
        let sealed = open(&file).unwrap();
        prop_assert_eq!(compare(&sealed, &model).unwrap() > 0, one != other);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(mut bytes in vec(any::<u8>(), 0..20_000), with_header in any::<bool>()) {
        let model = small();
        if with_header {
            let whole = model.file(LOG, SEGMENT);
            bytes.resize(whole.len(), 0);
            bytes[..BLOCK_BYTES].copy_from_slice(&whole[..BLOCK_BYTES]);
        }
        if let Ok(sealed) = open(&bytes) {
            prop_assert!(with_header && compare(&sealed, &model).unwrap() > 0);
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let model = small();
    let whole = model.file(LOG, SEGMENT);
    assert_eq!(compare(&open(&whole).unwrap(), &model), Ok(0));
    let info = *open(&whole).unwrap().info();
    let mut block = whole[..BLOCK_BYTES].to_vec();
    for bit in 0..8 * BLOCK_BYTES {
        block[bit / 8] ^= 1 << (bit % 8);
        assert!(
            IndexInfo::decode(&block, LOG, SEGMENT, whole.len() as u64).is_err(),
            "bit {bit} of the header"
        );
        block[bit / 8] ^= 1 << (bit % 8);
    }
    for (number, page) in (0..).zip(whole[BLOCK_BYTES..].chunks(BLOCK_BYTES)) {
        let mut page = page.to_vec();
        assert!(open_page(&info, number, &page).is_ok());
        for bit in 0..8 * BLOCK_BYTES {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(open_page(&info, number, &page).is_err(), "bit {bit} of page {number}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
    // Through the reader: some question always reads the page, and gets an error.
    for at in (BLOCK_BYTES..whole.len()).step_by(97) {
        let mut file = whole.clone();
        file[at] ^= 4;
        assert!(compare(&open(&file).unwrap(), &model).unwrap() > 0, "byte {at}");
    }
}

#[test]
fn cut_extended_and_foreign_files_are_refused() {
    let model = small();
    let whole = model.file(LOG, SEGMENT);
    for bytes in
        [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, whole.len() / 2, whole.len() - BLOCK_BYTES, whole.len() - 1]
    {
        assert!(matches!(open(&whole[..bytes]), Err(IndexError::Header(_))), "{bytes} bytes");
    }
    for more in [1, BLOCK_BYTES, whole.len()] {
        let mut file = whole.clone();
        file.resize(whole.len() + more, 0);
        assert!(matches!(
            open(&file),
            Err(IndexError::Header(DecodeError::Field { field: "file bytes", .. }))
        ));
    }
    let field = |file: &[u8]| match open(file) {
        Err(IndexError::Header(DecodeError::Field { field, .. })) => field,
        other => panic!("{:?}", other.map(|sealed| *sealed.info())),
    };
    assert_eq!(field(&model.file(LogId(9), SEGMENT)), "log id, low half");
    assert_eq!(field(&model.file(LOG, FileNumber(41))), "segment");
    assert!(open(&vec![0; whole.len()]).is_err());
    // Pages of another segment or log under the right header.
    for other in [model.file(LogId(9), SEGMENT), model.file(LOG, FileNumber(41))] {
        let mut file = whole.clone();
        file[BLOCK_BYTES..].copy_from_slice(&other[BLOCK_BYTES..]);
        let sealed = open(&file).unwrap();
        assert!(sealed.filter().is_err() && sealed.spans(&mut |_| ()).is_err());
        assert!(sealed.keys(&mut |_| ()).is_err() && sealed.find(PartitionId(1), IdHash(1)).is_err());
    }
}

#[test]
fn a_newer_version_is_refused_by_name() {
    let mut file = small().file(LOG, SEGMENT);
    file[4..6].copy_from_slice(&2_u16.to_le_bytes());
    assert!(matches!(open(&file), Err(IndexError::Header(DecodeError::Checksum { .. }))));
    let covered = [&file[..8], &file[12..BLOCK_BYTES]].concat();
    file[8..12].copy_from_slice(&crc32fast::hash(&covered).to_le_bytes());
    match open(&file) {
        Err(IndexError::Header(error @ DecodeError::Version { got: 2, .. })) => {
            assert!(error.to_string().contains("version 2"), "{error}");
        }
        other => panic!("{:?}", other.map(|sealed| *sealed.info())),
    }
}

/// An empty segment has an index like any other.
#[test]
fn a_segment_without_messages_has_an_index() {
    let model = Model(Vec::new());
    let sealed = open(&model.file(LOG, SEGMENT)).unwrap();
    assert_eq!(compare(&sealed, &model), Ok(0));
    assert_eq!(sealed.info().messages, 0);
}
