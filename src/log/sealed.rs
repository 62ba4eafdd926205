//! Reading the index file of a sealed segment, page by page.
//!
//! Invariant: an answer rests on pages whose checksums were right; anything else is an error.
//!
//! Must not: be used by the storage thread.

use std::io;

use bytes::Bytes;
use thiserror::Error;

use crate::format::index::{
    FILTER_BLOCK_BYTES, Filter, IdRow, IndexInfo, Row, RunRow, Section, SlotRow, SpanRow, id_key, open_page,
    place_of, print_of, span_key,
};
use crate::format::{BLOCK_BYTES, DecodeError};
use crate::io::FsFile;
use crate::types::{FileNumber, IdHash, LogId, LogTime, MessageId, Offset, PartitionId, WallTime};

/// Why an index file does not answer.
#[derive(Debug, Error)]
pub enum IndexError {
    /// The operating system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The header is not that of this segment's index.
    #[error("{0}")]
    Header(#[from] DecodeError),
    /// A page is damaged.
    #[error("page {page}: {error}")]
    Page {
        /// Page, from 0 behind the header.
        page: u32,
        /// What is wrong.
        error: DecodeError,
    },
    /// Rows name rows that are not there.
    #[error("row {row} of {section:?} is not there")]
    Missing {
        /// Section.
        section: Section,
        /// Row.
        row: u32,
    },
}

/// Pages that are read at once where all of a section are wanted.
const SCAN_PAGES: u32 = 64;

/// Takes the number and the rows of a page.
type EachPage<'a> = dyn FnMut(u32, &[u8]) -> Result<(), IndexError> + 'a;

/// An open index file.
#[derive(Debug)]
pub struct Sealed<File> {
    file: File,
    info: IndexInfo,
}

impl<File: FsFile> Sealed<File> {
    /// Reads and checks the header.
    ///
    /// # Errors
    /// It is not the header of this segment's index.
    pub fn open(file: File, log: LogId, segment: FileNumber) -> Result<Sealed<File>, IndexError> {
        let file_bytes = file.bytes()?;
        let most = usize::try_from(file_bytes).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        let info = IndexInfo::decode(&file.read_at(0, most)?, log, segment, file_bytes)?;
        Ok(Sealed { file, info })
    }

    /// What it says about itself.
    pub fn info(&self) -> &IndexInfo {
        &self.info
    }

    fn page(&self, page: u32) -> Result<Bytes, IndexError> {
        let data = self.file.read_at((u64::from(page) + 1) * BLOCK_BYTES as u64, BLOCK_BYTES)?;
        let rows = open_page(&self.info, page, &data).map_err(|error| IndexError::Page { page, error })?;
        Ok(data.slice_ref(rows))
    }

    /// Every page of a section, in order, read some at a time.
    fn scan(&self, section: Section, each: &mut EachPage<'_>) -> Result<(), IndexError> {
        let mut page = self.info.first_page(section);
        let end = page + self.info.pages(section);
        while page < end {
            let pages = (end - page).min(SCAN_PAGES);
            let position = (u64::from(page) + 1) * BLOCK_BYTES as u64;
            let data = self.file.read_at(position, pages as usize * BLOCK_BYTES)?;
            for data in data.chunks(BLOCK_BYTES) {
                let rows =
                    open_page(&self.info, page, data).map_err(|error| IndexError::Page { page, error })?;
                each(page, rows)?;
                page += 1;
            }
        }
        Ok(())
    }

    /// Every row of a section, in order. How many there were.
    fn scan_rows<R: Row>(&self, section: Section, each: &mut dyn FnMut(R)) -> Result<u32, IndexError> {
        let mut rows = 0;
        self.scan(section, &mut |page, data| {
            for row in decode_rows(page, data)? {
                each(row);
                rows += 1;
            }
            Ok(())
        })?;
        Ok(rows)
    }

    /// The rows of a page.
    fn rows<R: Row>(&self, page: u32) -> Result<Vec<R>, IndexError> {
        decode_rows(page, &self.page(page)?)
    }

    fn row<R: Row>(&self, section: Section, row: u32) -> Result<R, IndexError> {
        let per_page = R::PER_PAGE as u32;
        let page = row / per_page;
        let missing = IndexError::Missing { section, row };
        if page >= self.info.pages(section) {
            return Err(missing);
        }
        let page = self.info.first_page(section) + page;
        let data = self.page(page)?;
        let at = (row % per_page) as usize * R::BYTES;
        let cell = data.get(at..at + R::BYTES).unwrap_or_default();
        R::decode(cell).map_err(|error| IndexError::Page { page, error })?.ok_or(missing)
    }

    /// The rows of a table under a key, and others that share their pages.
    fn bucket<R: Row>(&self, section: Section, key: u64) -> Result<Vec<R>, IndexError> {
        let pages = self.info.pages(section);
        let mut place = place_of(key, pages);
        let mut all = Vec::new();
        for _ in 0..pages {
            let rows: Vec<R> = self.rows(self.info.first_page(section) + place)?;
            let is_full = rows.len() == R::PER_PAGE;
            all.extend(rows);
            if !is_full {
                break;
            }
            place = (place + 1) % pages;
        }
        Ok(all)
    }

    /// Every span, page by page.
    ///
    /// # Errors
    /// A page is damaged; spans of the pages before it were handed out.
    pub fn spans(&self, each: &mut dyn FnMut(SpanRow)) -> Result<(), IndexError> {
        let spans = self.scan_rows(Section::Spans, each)?;
        if spans != self.info.spans {
            return Err(IndexError::Missing { section: Section::Spans, row: self.info.spans });
        }
        Ok(())
    }

    /// What each message is filed under, page by page. In memory: the partitions of the runs.
    ///
    /// # Errors
    /// A page is damaged, or rows are missing; keys of the pages before it were handed out.
    pub fn keys(&self, each: &mut dyn FnMut(u64)) -> Result<(), IndexError> {
        let mut partitions = Vec::with_capacity(self.info.runs as usize);
        self.scan_rows(Section::Runs, &mut |run: RunRow| partitions.push(run.partition))?;
        let mut missing = None;
        let messages = self.scan_rows(Section::Messages, &mut |message: IdRow| match partitions
            .get(message.run as usize)
        {
            Some(partition) => each(id_key(*partition, message.hash)),
            None => missing = Some(IndexError::Missing { section: Section::Runs, row: message.run }),
        })?;
        if messages != self.info.messages {
            return Err(IndexError::Missing { section: Section::Messages, row: messages });
        }
        missing.map_or(Ok(()), Err)
    }

    /// The readable span of a partition that holds an offset.
    ///
    /// # Errors
    /// A page is damaged.
    pub fn span(&self, partition: PartitionId, offset: Offset) -> Result<Option<SpanRow>, IndexError> {
        let rows: Vec<SpanRow> = self.bucket(Section::Spans, span_key(partition))?;
        Ok(rows
            .into_iter()
            .find(|row| row.partition == partition && !row.bare && row.base <= offset && offset < row.end))
    }

    /// A run of a span by its place in it.
    fn run(&self, span: &SpanRow, place: u32) -> Result<RunRow, IndexError> {
        let row = span.first_run.saturating_add(place);
        let run: RunRow = self.row(Section::Runs, row)?;
        if !is_of(&run, span) {
            return Err(IndexError::Missing { section: Section::Runs, row });
        }
        Ok(run)
    }

    /// The first run of a span for which `is_before` does not hold, as a row number; it holds for a prefix of them.
    fn first(&self, span: &SpanRow, is_before: impl Fn(&RunRow) -> bool) -> Result<u32, IndexError> {
        let (mut low, mut high) = (0, span.runs);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(&self.run(span, middle)?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Runs of a span from the one that holds `from` on, at most so many.
    ///
    /// # Errors
    /// A page is damaged.
    pub fn runs(&self, span: &SpanRow, from: Offset, most: u32) -> Result<Vec<RunRow>, IndexError> {
        let first = self.first(span, |run| run.base.0 + u64::from(run.count) <= from.0)?;
        let to = span.runs.min(first.saturating_add(most));
        let mut runs = Vec::new();
        let per_page = RunRow::PER_PAGE as u32;
        let mut row = span.first_run.saturating_add(first);
        let end = span.first_run.saturating_add(to);
        while row < end {
            let page = row / per_page;
            if page >= self.info.pages(Section::Runs) {
                return Err(IndexError::Missing { section: Section::Runs, row });
            }
            let rows: Vec<RunRow> = self.rows(self.info.first_page(Section::Runs) + page)?;
            let wanted = rows.get((row % per_page) as usize..).unwrap_or_default();
            let take = wanted.len().min((end - row) as usize);
            let wanted = wanted.get(..take).unwrap_or_default();
            if take == 0 || !wanted.iter().all(|run| is_of(run, span)) {
                return Err(IndexError::Missing { section: Section::Runs, row });
            }
            runs.extend_from_slice(wanted);
            row += take as u32;
        }
        Ok(runs)
    }

    /// The first run of a span that was created at or after a time.
    ///
    /// # Errors
    /// A page is damaged.
    pub fn first_created(&self, span: &SpanRow, time: WallTime) -> Result<Option<RunRow>, IndexError> {
        let first = self.first(span, |run| run.created < time)?;
        if first == span.runs {
            return Ok(None);
        }
        self.run(span, first).map(Some)
    }

    /// The messages of a partition with an id: offset, message id and log time, newest first.
    ///
    /// # Errors
    /// A page is damaged.
    pub fn find(
        &self,
        partition: PartitionId,
        hash: IdHash,
    ) -> Result<Vec<(Offset, MessageId, LogTime)>, IndexError> {
        let key = id_key(partition, hash);
        let slots: Vec<SlotRow> = self.bucket(Section::Slots, key)?;
        let mut found = Vec::new();
        for slot in slots.into_iter().filter(|slot| slot.print == print_of(key)) {
            let message: IdRow = self.row(Section::Messages, slot.message)?;
            if message.hash != hash {
                continue;
            }
            let run: RunRow = self.row(Section::Runs, message.run)?;
            let within = slot.message.checked_sub(run.first_id).filter(|within| *within < run.count);
            let within =
                within.ok_or(IndexError::Missing { section: Section::Messages, row: slot.message })?;
            if run.partition == partition {
                found.push((Offset(run.base.0 + u64::from(within)), message.id, run.logged));
            }
        }
        found.sort_unstable_by_key(|hit| std::cmp::Reverse(hit.0));
        found.dedup_by_key(|hit| hit.0);
        Ok(found)
    }

    /// The filter over its ids.
    ///
    /// # Errors
    /// A page is damaged.
    pub fn filter(&self) -> Result<Filter, IndexError> {
        let bytes = self.info.filter_blocks() as usize * FILTER_BLOCK_BYTES;
        let mut bits = Vec::with_capacity(bytes);
        self.scan(Section::Filter, &mut |_, rows| {
            let per_page = rows.len() - rows.len() % FILTER_BLOCK_BYTES;
            bits.extend_from_slice(rows.get(..per_page.min(bytes - bits.len())).unwrap_or_default());
            Ok(())
        })?;
        Filter::from_bytes(bits).ok_or(IndexError::Missing { section: Section::Filter, row: 0 })
    }
}

fn decode_rows<R: Row>(page: u32, data: &[u8]) -> Result<Vec<R>, IndexError> {
    let mut rows = Vec::new();
    for cell in data.chunks_exact(R::BYTES).take(R::PER_PAGE) {
        match R::decode(cell).map_err(|error| IndexError::Page { page, error })? {
            Some(row) => rows.push(row),
            None => break,
        }
    }
    Ok(rows)
}

/// Whether a run is where its span says that it is.
fn is_of(run: &RunRow, span: &SpanRow) -> bool {
    let end = run.base.0 + u64::from(run.count);
    run.partition == span.partition && run.bare == span.bare && run.base >= span.base && end <= span.end.0
}
