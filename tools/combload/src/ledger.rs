//! The ledger: what a broker answered to `push`, one line per request.
//!
//! `<producer> <partition> <first sequence> <count> stored|unknown`; a request without an answer is `unknown`:
//! its messages may be there or not, but not in part of them twice.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::LoadError;
use crate::body::Producer;

/// Writes lines; shared by all workers.
#[derive(Clone)]
pub(crate) struct LedgerWriter {
    path: String,
    file: Arc<Mutex<BufWriter<File>>>,
}

impl LedgerWriter {
    /// Opens a ledger to append to.
    ///
    /// # Errors
    /// `LoadError::Ledger`.
    pub(crate) fn open(path: &Path) -> Result<LedgerWriter, LoadError> {
        let name = path.display().to_string();
        match OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => Ok(LedgerWriter { path: name, file: Arc::new(Mutex::new(BufWriter::new(file))) }),
            Err(source) => Err(LoadError::Ledger { path: name, source }),
        }
    }

    /// One answered, or unanswered, request.
    ///
    /// # Errors
    /// `LoadError::Ledger`.
    pub(crate) fn line(
        &self,
        producer: Producer,
        partition: usize,
        first: u64,
        count: usize,
        stored: bool,
    ) -> Result<(), LoadError> {
        let word = if stored { "stored" } else { "unknown" };
        self.with(|file| writeln!(file, "{} {partition:x} {first:x} {count} {word}", producer.text()))
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    /// `LoadError::Ledger`.
    pub(crate) fn finish(&self) -> Result<(), LoadError> {
        self.with(BufWriter::flush)
    }

    fn with(&self, act: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Result<(), LoadError> {
        // A worker that panicked aborts the process or ends its run as failed; its half line is dealt with there.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut file).map_err(|source| LoadError::Ledger { path: self.path.clone(), source })
    }
}

/// Verdict on one message that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sighting {
    /// Expected, seen for the first time.
    First,
    /// Seen before.
    Duplicate,
    /// In another partition than it was pushed to.
    Misplaced,
    /// After a later one of the same producer and partition.
    Misordered,
    /// Not in the ledger.
    Foreign,
}

struct Range {
    first: u64,
    count: u64,
    partition: u64,
    stored: bool,
    seen: Vec<u64>,
}

/// A ledger read back, with a bit per message.
#[derive(Default)]
pub(crate) struct Ledger {
    producers: HashMap<Producer, Vec<Range>>,
    newest: HashMap<(Producer, u64), u64>,
}

/// What is missing at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remainder {
    /// Messages answered as stored.
    pub(crate) stored: u64,
    /// Of those, never seen.
    pub(crate) lost: u64,
    /// Messages of unanswered requests that are there.
    pub(crate) unknown_kept: u64,
    /// Requests of which some messages are there and some are not.
    pub(crate) torn_requests: u64,
}

impl Ledger {
    /// Reads a ledger.
    ///
    /// # Errors
    /// `LoadError::Ledger`, `LoadError::LedgerLine`.
    pub(crate) fn read(path: &Path) -> Result<Ledger, LoadError> {
        let name = path.display().to_string();
        let failed = |source| LoadError::Ledger { path: name.clone(), source };
        let mut ledger = Ledger::default();
        for (number, line) in BufReader::new(File::open(path).map_err(failed)?).lines().enumerate() {
            let line = line.map_err(failed)?;
            ledger
                .add(&line)
                .ok_or_else(|| LoadError::LedgerLine { path: name.clone(), line: number + 1 })?;
        }
        for ranges in ledger.producers.values_mut() {
            ranges.sort_unstable_by_key(|range| range.first);
        }
        Ok(ledger)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let (run, number) = words.next()?.split_at_checked(8)?;
        let producer = Producer {
            run: u32::from_str_radix(run, 16).ok()?,
            number: u16::from_str_radix(number, 16).ok()?,
        };
        let partition = u64::from_str_radix(words.next()?, 16).ok()?;
        let first = u64::from_str_radix(words.next()?, 16).ok()?;
        let count: u64 = words.next()?.parse().ok().filter(|count| (1..=100_000).contains(count))?;
        let stored = match words.next()? {
            "stored" => true,
            "unknown" => false,
            _ => return None,
        };
        first.checked_add(count)?;
        let seen = vec![0; usize::try_from(count.div_ceil(64)).ok()?];
        self.producers.entry(producer).or_default().push(Range { first, count, partition, stored, seen });
        words.next().is_none().then_some(())
    }

    /// One delivered message. Within a partition, call in the order of delivery.
    pub(crate) fn see(&mut self, producer: Producer, partition: &str, sequence: u64) -> Sighting {
        let Some(range) = self.producers.get_mut(&producer).and_then(|ranges| {
            let after = ranges.partition_point(|range| range.first <= sequence);
            ranges.get_mut(after.checked_sub(1)?).filter(|range| sequence - range.first < range.count)
        }) else {
            return Sighting::Foreign;
        };
        let bit = sequence - range.first;
        let Some(word) = usize::try_from(bit / 64).ok().and_then(|at| range.seen.get_mut(at)) else {
            return Sighting::Foreign;
        };
        let mask = 1 << (bit % 64);
        if *word & mask != 0 {
            return Sighting::Duplicate;
        }
        *word |= mask;
        let number = partition.strip_prefix('p').and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if number != Some(range.partition) {
            return Sighting::Misplaced;
        }
        match self.newest.insert((producer, range.partition), sequence) {
            Some(newest) if newest > sequence => Sighting::Misordered,
            _ => Sighting::First,
        }
    }

    /// What was not seen.
    pub(crate) fn remainder(&self) -> Remainder {
        let mut sum = Remainder::default();
        for range in self.producers.values().flatten() {
            let seen: u64 = range.seen.iter().map(|word| u64::from(word.count_ones())).sum();
            if range.stored {
                sum.stored += range.count;
                sum.lost += range.count - seen;
            } else {
                sum.unknown_kept += seen;
            }
            if seen > 0 && seen < range.count {
                sum.torn_requests += 1;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Producer = Producer { run: 0xaa, number: 1 };

    fn ledger(lines: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        for line in lines {
            assert!(ledger.add(line).is_some(), "{line}");
        }
        ledger
    }

    #[test]
    fn loss_duplicates_order_and_place_are_told_apart() {
        let mut ledger = ledger(&[
            "000000aa0001 3 0 100 stored",
            "000000aa0001 3 64 10 unknown",
            "000000aa0001 4 6e 1 stored",
        ]);
        for sequence in 0..99 {
            assert_eq!(ledger.see(A, "p0000003", sequence), Sighting::First);
        }
        assert_eq!(ledger.see(A, "p0000003", 5), Sighting::Duplicate);
        assert_eq!(ledger.see(A, "p0000003", 0x65), Sighting::First);
        assert_eq!(ledger.see(A, "p0000003", 0x64), Sighting::Misordered);
        assert_eq!(ledger.see(A, "p0000003", 0x6e), Sighting::Misplaced);
        assert_eq!(ledger.see(A, "p0000003", 0x6f), Sighting::Foreign);
        assert_eq!(ledger.see(Producer { run: 1, number: 1 }, "p0000003", 0), Sighting::Foreign);
        let remainder = ledger.remainder();
        assert_eq!(remainder, Remainder { stored: 101, lost: 1, unknown_kept: 2, torn_requests: 2 });
    }

    #[test]
    fn only_ledger_lines_are_taken() {
        for bad in [
            "",
            "zz 1 2 3 stored",
            "000000aa0001 3 0 0 stored",
            "000000aa0001 3 0 5 lost",
            "000000aa0001 3 0 5 stored x",
        ] {
            assert!(Ledger::default().add(bad).is_none(), "{bad}");
        }
    }
}
