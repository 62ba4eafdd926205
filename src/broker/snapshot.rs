//! The records of a checkpoint, taken from the state in slices while it changes, and what a state takes that is built
//! from them.
//!
//! Method: a checkpoint begins behind group K1 and its last slice is taken with K2 staged. The tables are walked
//! downwards, one after the other; `state::Table` says why that meets every entry that stays. Over the records, every
//! group from K1 + 1 to K2 is replayed, in order, while the state is *catching up* (`Machine::set_catching_up`). Only
//! what the window changed can differ from the state as of K1, in one of these ways:
//!
//! - **Queue**. Created in the window: its record is there or not; replay creates or replaces. Reconfigured: replay
//!   sets older options on newer ones, and the newest last. Deleted: it may be there still, until its deletion is
//!   replayed; replayed records about it are passed over where it is not there any more.
//! - **Name used again**. A queue deleted and created anew in the window may be there together with its successor, or
//!   the successor alone. The name goes to whatever was applied last, and a deletion frees it. The creation of the
//!   successor comes behind the deletions of all that had the name before, and gives it the name again.
//! - **Partition**. Created in the window: replaced by its creation, at offset 0, and all of its runs follow, since all
//!   are above K1. Of a queue or group that is unknown: passed over. That is one that was created in the window too, so
//!   replay brings both; or one that replay knows to be gone.
//!   Its first kept offset may be that of a later record; older ones change nothing. Deleted: it may be there still,
//!   empty by the time its deletion is replayed, beside a successor of its name. The name goes to whatever was applied
//!   last, and the successor's creation, which comes behind the deletion, gives it the name again.
//! - **Group**. Created in the window: replaced. It has no state besides its definition and its dead-letter partition,
//!   whose creation comes behind and links it again. Changed in the window: replay sets older policies on newer ones,
//!   and the newest last. Deleted: it may be there still until its deletion is replayed, and a record that says it is
//!   retired is final. Its name goes as a queue's does.
//! - **Cursor**. Absolute: an older one replaces a newer one and may move it back; the newest comes last. The table of
//!   leases follows each step. Of a partition or group that is unknown: passed over, as above. One lease on several
//!   partitions may be there on some of them only, until replay comes to the claim or to the release.
//! - **Run**. Of a partition that is older than the window: its record says `next` as of the slice. A run up to there
//!   is indexed and changes nothing else; one that begins there is appended. None can lie across, because slices are
//!   taken between runs. Of a partition that is not there: passed over, like those of every deleted one.
//! - **Dead letter**. There already: replaced by the same. Removed in the window: the removal takes it away again.
//!   Of a partition or group that is unknown: passed over.
//! - **Next ids and stamps** only grow, and every creation that is passed over counts for them all the same.
//!
//! Above K2 a state that was built this way refuses what any state refuses, and `verify` holds.
//!
//! Must not: change the state.

use std::ops::Bound;

use super::cursors::CursorKey;
use super::state::{Group, State};
use crate::engine::machine::SnapshotCursor;
use crate::format::delta::{
    Cause, CursorDelta, CursorState, DeadLetterDef, Delta, GroupDef, PartitionDef, QueueDef,
};
use crate::types::GroupId;

/// The tables, in their order: what others refer to comes first.
const NEXT_IDS: u8 = 0;
const QUEUES: u8 = 1;
const GROUPS: u8 = 2;
/// A group that moves into this table meanwhile changes by that, so replay brings it.
const RETIRED: u8 = 3;
const PARTITIONS: u8 = 4;
/// A cursor that moves from one of these tables to the other meanwhile changes by that, so replay brings it.
const IDLE_CURSORS: u8 = 5;
const FULL_CURSORS: u8 = 6;
const DEAD_LETTERS: u8 = 7;

type Each<'a> = &'a mut dyn FnMut(&Delta<'_>);

/// Hands out at most `budget` records from where `cursor` stands; whether the last one is out.
pub(super) fn slice(state: &State, cursor: &mut SnapshotCursor, budget: usize, each: Each<'_>) -> bool {
    let mut left = budget;
    while left > 0 {
        let ended = match cursor.table {
            NEXT_IDS => {
                each(&Delta::NextIds {
                    queue: state.next_queue,
                    partition: state.next_partition,
                    group: state.next_group,
                });
                // Few: ranges that touch are one.
                for (first, last) in &state.dropped {
                    each(&Delta::SegmentsDropped { first: *first, last: *last });
                }
                left = left.saturating_sub(1 + state.dropped.len());
                true
            }
            QUEUES => down(&mut cursor.below, state.queues.len(), &mut left, |at| queue(state, at, each)),
            GROUPS => down(&mut cursor.below, state.groups.len(), &mut left, |at| {
                group(state.groups.get_index(at), false, each);
            }),
            RETIRED => down(&mut cursor.below, state.retired.len(), &mut left, |at| {
                group(state.retired.get_index(at), true, each);
            }),
            PARTITIONS => {
                down(&mut cursor.below, state.partitions.len(), &mut left, |at| partition(state, at, each))
            }
            IDLE_CURSORS => down(&mut cursor.below, state.cursors.idle_len(), &mut left, |at| {
                cursor_at(state.cursors.idle_at(at), each);
            }),
            FULL_CURSORS => down(&mut cursor.below, state.cursors.full_len(), &mut left, |at| {
                cursor_at(state.cursors.full_at(at), each);
            }),
            DEAD_LETTERS => dead_letters(state, cursor, &mut left, each),
            _ => return true,
        };
        if ended {
            cursor.table += 1;
            cursor.below = None;
        }
    }
    cursor.table > DEAD_LETTERS
}

/// Walks positions downwards, from `below` or the top; whether the bottom was reached.
fn down(below: &mut Option<usize>, len: usize, left: &mut usize, mut each: impl FnMut(usize)) -> bool {
    // Entries may have gone since; those that were moved down were seen, or are newer than the checkpoint.
    let mut at = below.unwrap_or(len).min(len);
    while at > 0 && *left > 0 {
        at -= 1;
        *left -= 1;
        each(at);
    }
    *below = Some(at);
    at == 0
}

fn queue(state: &State, at: usize, each: Each<'_>) {
    let Some((_, queue)) = state.queues.get_index(at) else { return };
    each(&Delta::Queue(QueueDef {
        queue: queue.id,
        name: &queue.name,
        namespace: &queue.namespace,
        task: &queue.task,
        created: queue.created,
        options: queue.options.clone(),
    }));
}

fn group(at: Option<(&GroupId, &Group)>, retired: bool, each: Each<'_>) {
    let Some((_, group)) = at else { return };
    each(&Delta::Group(GroupDef {
        group: group.id,
        queue: group.queue,
        name: &group.name,
        start: group.start,
        conflating: group.conflating,
        retired,
        created: group.created,
    }));
}

fn partition(state: &State, at: usize, each: Each<'_>) {
    let Some((_, partition)) = state.partitions.get_index(at) else { return };
    each(&Delta::Partition(PartitionDef {
        partition: partition.id,
        queue: partition.queue,
        name: &partition.name,
        dead_letters_of: partition.dead_letters_of.map(|group| GroupId(group.get())),
        next: partition.next,
        start: partition.start,
        last_created: partition.last_created,
        last_logged: partition.last_logged,
        created: partition.created,
    }));
}

fn cursor_at(at: Option<(CursorKey, CursorState)>, each: Each<'_>) {
    let Some(((partition, group), state)) = at else { return };
    each(&Delta::Cursor(CursorDelta { partition, group, cause: Cause::Checkpoint, state }));
}

/// Walks upwards by key: letters come and go on either side of where the walk stands, and keys stay.
fn dead_letters(state: &State, cursor: &mut SnapshotCursor, left: &mut usize, each: Each<'_>) -> bool {
    let from = cursor.after.map_or(Bound::Unbounded, Bound::Excluded);
    for (key, letter) in state.dead_letters.range((from, Bound::Unbounded)) {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        cursor.after = Some(*key);
        each(&Delta::DeadLetter(DeadLetterDef {
            id: letter.id,
            partition: letter.partition,
            group: letter.group,
            offset: letter.offset,
            copy_partition: letter.copy_partition,
            copy_offset: letter.copy_offset,
            retries_used: letter.retries_used,
            error: &letter.error,
            created: letter.created,
            failed: letter.failed,
        }));
    }
    true
}
