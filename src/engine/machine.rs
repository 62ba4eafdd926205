//! What the engine asks of the state it makes durable.

use thiserror::Error;

use crate::format::delta::Delta;
use crate::format::index::{IndexInfo, SpanRow};
use crate::format::run::RunHeader;
use crate::index::runs::Place;
use crate::types::{DeadLetterId, FileNumber, IdHash, LogId, MessageId, WallTime};

/// A record that no writer writes: a bug or tampering. Recovery refuses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("impossible record: {0}")]
pub struct Impossible(pub String);

/// State that is changed by records and by nothing else, live and in recovery alike.
pub trait Machine {
    /// Applies one record of a cursor frame or checkpoint.
    ///
    /// # Errors
    /// The record contradicts the state.
    fn apply(&mut self, delta: &Delta<'_>) -> Result<(), Impossible>;

    /// Applies one run of a message frame. `ids` holds hash and id of each message. A run that the state covers
    /// already (it is below a checkpoint) is only indexed; one of a deleted partition is passed over.
    ///
    /// # Errors
    /// The run contradicts the state.
    fn apply_run(
        &mut self,
        run: &RunHeader,
        ids: &[(IdHash, MessageId)],
        place: Place,
    ) -> Result<(), Impossible>;

    /// Takes in that the index file of a segment is there.
    fn attach_segment(&mut self, info: &IndexInfo);

    /// Takes in what the index file of a segment says about a stretch of a partition, in place of its runs. One of a
    /// deleted partition is passed over.
    fn attach_span(&mut self, segment: FileNumber, span: &SpanRow);

    /// Whether a record said that a segment holds nothing that counts any more: its files may be gone.
    fn is_dropped(&self, segment: FileNumber) -> bool;

    /// The log that it is the state of, before anything is applied. Its id is a secret of the daemon, and the same at
    /// every start.
    fn set_log(&mut self, _log: LogId) {}

    /// Forgets what `apply` noted for waiters: recovery has none, and calls this after each group.
    fn forget_notes(&mut self);

    /// Checks, once recovery is through, that what the records promise is there: every kept offset has its run.
    ///
    /// # Errors
    /// Messages are missing.
    fn verify(&self) -> Result<(), Impossible>;

    /// Recovery only: whether what is applied may be about things that the state knows from later, or not at all,
    /// because a checkpoint's records were taken while groups went on (`engine::checkpoint`). A state that nobody
    /// told otherwise is not catching up.
    fn set_catching_up(&mut self, catching_up: bool);

    /// Hands out records of this state, runs excepted, from where `cursor` stands, at most `budget` of them, and moves
    /// it. Whether that was the last of them.
    ///
    /// The state may change between two calls. Everything that is there from the first call to the last is handed out,
    /// once at least, as it is at that moment; what comes or goes meanwhile may be or not. Applied in order to an empty
    /// state that is catching up, and with everything applied behind them that was applied here since the first call,
    /// the records rebuild this state.
    fn snapshot_slice(
        &self,
        cursor: &mut SnapshotCursor,
        budget: usize,
        each: &mut dyn FnMut(&Delta<'_>),
    ) -> bool;

    /// Hands out records that rebuild this state when they are applied to an empty one, runs excepted.
    fn snapshot(&self, each: &mut dyn FnMut(&Delta<'_>)) {
        self.snapshot_slice(&mut SnapshotCursor::default(), usize::MAX, each);
    }
}

/// Where a snapshot stands. What the parts mean is the machine's business.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotCursor {
    /// Which of its tables.
    pub table: u8,
    /// In a table that is walked downwards: what lies below this position is yet to come. Unset: all of it.
    pub below: Option<usize>,
    /// In the table of dead letters: what lies above this key is yet to come. Unset: all of it.
    pub after: Option<(WallTime, DeadLetterId)>,
}
