//! Building an index file.
//!
//! Memory: the rows; the file itself is handed out page by page.

use super::{
    FILTER_BLOCK_BYTES, Filter, IdRow, IndexInfo, PAGE_ROW_BYTES, Row, RunRow, Section, SlotRow, SpanRow,
    id_key, place_of, print_of, seal_page, span_key,
};
use crate::format::BLOCK_BYTES;
use crate::types::{FileNumber, IdHash, LogId, LogTime, MessageId};

/// Collects runs in commit order and writes the file.
#[derive(Debug)]
pub struct Builder {
    log: LogId,
    segment: FileNumber,
    runs: Vec<RunRow>,
    ids: Vec<IdRow>,
}

impl Builder {
    /// A builder for the index of a segment.
    #[must_use]
    pub fn new(log: LogId, segment: FileNumber) -> Builder {
        Builder { log, segment, runs: Vec::new(), ids: Vec::new() }
    }

    /// Adds the next run of the segment with the ids of its messages; `first_id` is filled in.
    pub fn push_run(&mut self, run: RunRow, ids: &[(IdHash, MessageId)]) {
        let row = number(self.runs.len());
        self.runs.push(RunRow { first_id: number(self.ids.len()), ..run });
        self.ids.extend(ids.iter().map(|(hash, id)| IdRow { hash: *hash, id: *id, run: row }));
    }

    /// Writes the file: the header block and every page, in order.
    ///
    /// # Errors
    /// What `write` said.
    pub fn finish<E>(mut self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<IndexInfo, E> {
        self.sort();
        let spans = self.spans();
        let info = IndexInfo {
            log: self.log,
            segment: self.segment,
            runs: number(self.runs.len()),
            spans: number(spans.len()),
            messages: number(self.ids.len()),
            bare: self.runs.iter().filter(|run| run.bare).map(|run| run.count).sum(),
            entry_bytes: self.runs.iter().filter(|run| !run.bare).map(|run| u64::from(run.bytes)).sum(),
            last_logged: self.runs.iter().map(|run| run.logged).max().unwrap_or(LogTime(0)),
        };
        write(&info.encode())?;
        let mut pages = Pages { info, number: 0, write: &mut write };
        pages.packed(&self.runs)?;
        pages.table(Section::Spans, spans.iter().map(|span| (span_key(span.partition), *span)))?;
        pages.packed(&self.ids)?;
        let mut filter = Filter::for_messages(info.messages);
        let (runs, ids) = (&self.runs, &self.ids);
        let slots = ids.iter().zip(0..).filter_map(|(id, message)| {
            let key = id_key(runs.get(id.run as usize)?.partition, id.hash);
            Some((key, SlotRow { print: print_of(key), message }))
        });
        pages.table(Section::Slots, slots.inspect(|(key, _)| filter.insert(*key)))?;
        pages.filter(filter.bytes())?;
        Ok(info)
    }

    /// Sorts runs by partition and offset; messages stay where they are and name their runs' new rows.
    fn sort(&mut self) {
        let mut order: Vec<u32> = (0..number(self.runs.len())).collect();
        order.sort_by_key(|row| {
            self.runs.get(*row as usize).map(|run| (run.partition, run.base, run.position))
        });
        let mut new_rows = vec![0; order.len()];
        for (new, old) in (0..).zip(&order) {
            if let Some(row) = new_rows.get_mut(*old as usize) {
                *row = new;
            }
        }
        self.runs = order.iter().filter_map(|row| self.runs.get(*row as usize).copied()).collect();
        for id in &mut self.ids {
            id.run = new_rows.get(id.run as usize).copied().unwrap_or(id.run);
        }
    }

    fn spans(&self) -> Vec<SpanRow> {
        let mut spans: Vec<SpanRow> = Vec::new();
        for (row, run) in (0..).zip(&self.runs) {
            let end = crate::types::Offset(run.base.0 + u64::from(run.count));
            match spans.last_mut() {
                Some(last)
                    if last.partition == run.partition && last.end == run.base && last.bare == run.bare =>
                {
                    last.end = end;
                    last.runs += 1;
                    last.last_logged = run.logged;
                }
                _ => spans.push(SpanRow {
                    partition: run.partition,
                    base: run.base,
                    end,
                    first_run: row,
                    runs: 1,
                    first_created: run.created,
                    last_logged: run.logged,
                    bare: run.bare,
                }),
            }
        }
        spans
    }
}

fn number(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or_else(|_| unreachable!("a segment is below 4 GiB, and a message has bytes"))
}

struct Pages<'a, W> {
    info: IndexInfo,
    number: u32,
    write: &'a mut W,
}

impl<E, W: FnMut(&[u8]) -> Result<(), E>> Pages<'_, W> {
    fn page(&mut self, mut page: Vec<u8>) -> Result<(), E> {
        page.resize(BLOCK_BYTES, 0);
        seal_page(&self.info, self.number, &mut page);
        self.number += 1;
        (self.write)(&page)
    }

    fn packed<R: Row>(&mut self, rows: &[R]) -> Result<(), E> {
        for rows in rows.chunks(R::PER_PAGE) {
            let mut page = vec![0; R::PER_PAGE * R::BYTES];
            for (cell, row) in page.chunks_exact_mut(R::BYTES).zip(rows) {
                row.encode(cell);
            }
            self.page(page)?;
        }
        Ok(())
    }

    /// Puts each row into the page of its key, or the next one with room, around the end.
    fn table<R: Row + Copy>(
        &mut self,
        section: Section,
        rows: impl Iterator<Item = (u64, R)>,
    ) -> Result<(), E> {
        let count = self.info.pages(section);
        let mut buckets: Vec<Vec<R>> = (0..count).map(|_| Vec::new()).collect();
        for (key, row) in rows {
            let mut place = place_of(key, count);
            while let Some(bucket) = buckets.get_mut(place as usize) {
                if bucket.len() < R::PER_PAGE {
                    bucket.push(row);
                    break;
                }
                place = (place + 1) % count;
            }
        }
        for bucket in &buckets {
            if bucket.is_empty() {
                self.page(Vec::new())?;
            }
            self.packed(bucket)?;
        }
        Ok(())
    }

    fn filter(&mut self, bits: &[u8]) -> Result<(), E> {
        for bits in bits.chunks(PAGE_ROW_BYTES / FILTER_BLOCK_BYTES * FILTER_BLOCK_BYTES) {
            self.page(bits.to_vec())?;
        }
        Ok(())
    }
}
