//! What the engine asks of the state it makes durable.

use thiserror::Error;

use crate::format::delta::Delta;
use crate::format::index::SpanRow;
use crate::format::run::RunHeader;
use crate::index::runs::Place;
use crate::types::{FileNumber, IdHash, LogTime, MessageId};

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

    /// Takes in that the index file of a segment is there. `last_logged` is the newest append in it.
    fn attach_segment(&mut self, segment: FileNumber, last_logged: LogTime);

    /// Takes in what the index file of a segment says about a stretch of a partition, in place of its runs. One of a
    /// deleted partition is passed over.
    fn attach_span(&mut self, segment: FileNumber, span: &SpanRow);

    /// Forgets what `apply` noted for waiters: recovery has none, and calls this after each group.
    fn forget_notes(&mut self);

    /// Checks, once recovery is through, that what the records promise is there: every kept offset has its run.
    ///
    /// # Errors
    /// Messages are missing.
    fn verify(&self) -> Result<(), Impossible>;

    /// Hands out records that rebuild this state when they are applied to an empty one, runs excepted.
    fn snapshot(&self, each: &mut dyn FnMut(&Delta<'_>));
}
