//! The broker's handle: what `http` calls. The one place below `http` that touches tokio.
//!
//! A call goes through a bounded queue to the storage thread and waits for its answer there. Answers come back in
//! batches, one wake-up per group commit; `dispatch` hands them to the waiting calls on the runtime's own threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::command::{
    AckCall, AckVerdict, BrokerError, Command, Configure, ConfigureReply, DeadLetterPage, DeadLetterQuery,
    ExtendReply, GroupChange, GroupReply, Pop, PopReply, PopTicket, Presence, PushGroup, PushVerdict,
    Reference, Reply, Transaction, TransactionReply,
};
use super::status::{Phase, Status};
use super::survey::{Survey, SurveyQuery};
use crate::io::{IdSource, Waker};
use crate::types::{LeaseId, LogId};

/// A command on its way to the storage thread.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub command: Command,
    /// Where the answer goes; `None` for commands without one.
    pub reply: Option<ReplySlot>,
}

/// Where an answer goes.
pub type ReplySlot = oneshot::Sender<Answer>;

/// An answer on its way to its caller. However it is lost on that way, its guard hands claims back.
pub struct Answer {
    reply: Reply,
    guard: DeliveryGuard,
}

impl Answer {
    /// The reply, and the guard that hands claims back when it is dropped armed.
    #[must_use]
    pub fn split(self) -> (Reply, DeliveryGuard) {
        (self.reply, self.guard)
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.reply.fmt(f)
    }
}

/// Answers of one or more group commits on their way back.
pub type Answers = Vec<(ReplySlot, Reply)>;

/// Cheap to clone; one per connection.
#[derive(Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

struct Inner {
    requests: mpsc::Sender<Request>,
    waker: Waker,
    status: Arc<Status>,
    ids: IdSource,
    log: LogId,
    next_ticket: AtomicU64,
}

impl Handle {
    /// A handle to a storage thread that receives from the other end of `requests` and sleeps on `waker`.
    #[must_use]
    pub fn new(
        requests: mpsc::Sender<Request>,
        waker: Waker,
        status: Arc<Status>,
        ids: IdSource,
        log: LogId,
    ) -> Handle {
        Handle {
            inner: Arc::new(Inner { requests, waker, status, ids, log, next_ticket: AtomicU64::new(1) }),
        }
    }

    /// Shared status.
    #[must_use]
    pub fn status(&self) -> &Arc<Status> {
        &self.inner.status
    }

    /// Source of message ids.
    #[must_use]
    pub fn ids(&self) -> &IdSource {
        &self.inner.ids
    }

    /// Identity of the log, the seed of id hashes.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.inner.log
    }

    /// Queues a command for the storage thread.
    ///
    /// # Errors
    /// It was not queued: the broker is not ready, stops, failed, or too many wait.
    pub fn send(&self, request: Request) -> Result<(), BrokerError> {
        match self.inner.status.phase() {
            Phase::Recovering => return Err(BrokerError::Starting("recovering".to_owned())),
            Phase::Poisoned => {
                return Err(BrokerError::OutcomeUnknown(self.inner.status.cause().unwrap_or_default()));
            }
            // What undoes a claim is taken as long as anybody is there to take it.
            Phase::Stopping if !matches!(request.command, Command::Gone(_) | Command::Return(_)) => {
                return Err(BrokerError::Stopping);
            }
            Phase::Stopping | Phase::Ready | Phase::Full => {}
        }
        self.inner.requests.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => BrokerError::Overloaded { retry_seconds: 1 },
            mpsc::error::TrySendError::Closed(_) => BrokerError::Stopping,
        })?;
        self.inner.waker.wake();
        Ok(())
    }

    async fn call(&self, command: Command) -> Result<Reply, BrokerError> {
        Ok(self.call_guarded(command).await?.reply)
    }

    async fn call_guarded(&self, command: Command) -> Result<Answer, BrokerError> {
        let (sender, receiver) = oneshot::channel();
        self.send(Request { command, reply: Some(sender) })?;
        match receiver.await {
            Ok(Answer { reply: Reply::Failed(error), .. }) => Err(error),
            Ok(answer) => Ok(answer),
            // The storage thread dropped the request: it died or stopped before it could answer.
            Err(_) => Err(match self.inner.status.cause() {
                Some(cause) => BrokerError::OutcomeUnknown(cause),
                None => BrokerError::Stopping,
            }),
        }
    }

    /// Stores messages; verdicts per group and item. Durable when it returns.
    ///
    /// # Errors
    /// Nothing of a group was stored, or the outcome is unknown; the error says which.
    pub async fn push(&self, groups: Vec<PushGroup>) -> Result<Vec<Vec<PushVerdict>>, BrokerError> {
        match self.call(Command::Push(groups)).await? {
            Reply::Push(verdicts) => Ok(verdicts),
            other => Err(mismatch(&other)),
        }
    }

    /// A ticket and presence for a new pop.
    #[must_use]
    pub fn pop_identity(&self) -> (PopTicket, Arc<Presence>) {
        (PopTicket(self.inner.next_ticket.fetch_add(1, Ordering::Relaxed)), Arc::new(Presence::default()))
    }

    /// Delivers messages. If the returned future is dropped before it is done, the poll is cancelled and whatever
    /// was claimed for it is handed back.
    ///
    /// # Errors
    /// Nothing was claimed.
    pub async fn pop(&self, pop: Pop) -> Result<Delivery, BrokerError> {
        let mut guard = PopGuard {
            handle: self.clone(),
            ticket: pop.ticket,
            presence: Arc::clone(&pop.presence),
            done: false,
        };
        let answer = self.call_guarded(Command::Pop(pop)).await;
        guard.done = true;
        match answer? {
            Answer { reply: Reply::Pop(reply), guard } => Ok(Delivery { reply, guard }),
            Answer { reply, .. } => Err(mismatch(&reply)),
        }
    }

    /// Acknowledges; verdicts per item.
    ///
    /// # Errors
    /// The outcome is unknown or nothing was done; the error says which.
    pub async fn ack(&self, call: AckCall) -> Result<Vec<AckVerdict>, BrokerError> {
        match self.call(Command::Ack(call)).await? {
            Reply::Ack(verdicts) => Ok(verdicts),
            other => Err(mismatch(&other)),
        }
    }

    /// Extends a lease.
    ///
    /// # Errors
    /// As `ack`.
    pub async fn extend(&self, lease: Reference<LeaseId>, seconds: u32) -> Result<ExtendReply, BrokerError> {
        match self.call(Command::Extend { lease, seconds }).await? {
            Reply::Extend(reply) => Ok(reply),
            other => Err(mismatch(&other)),
        }
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// As `ack`.
    pub async fn transaction(&self, transaction: Transaction) -> Result<TransactionReply, BrokerError> {
        match self.call(Command::Transaction(transaction)).await? {
            Reply::Transaction(reply) => Ok(reply),
            other => Err(mismatch(&other)),
        }
    }

    /// Creates or changes a queue.
    ///
    /// # Errors
    /// As `ack`.
    pub async fn configure(&self, configure: Configure) -> Result<ConfigureReply, BrokerError> {
        match self.call(Command::Configure(configure)).await? {
            Reply::Configure(reply) => Ok(reply),
            other => Err(mismatch(&other)),
        }
    }

    /// Deletes a queue; whether it existed.
    ///
    /// # Errors
    /// As `ack`.
    pub async fn delete_queue(&self, queue: String) -> Result<bool, BrokerError> {
        match self.call(Command::DeleteQueue(queue)).await? {
            Reply::DeleteQueue(existed) => Ok(existed),
            other => Err(mismatch(&other)),
        }
    }

    /// Changes a consumer group.
    ///
    /// # Errors
    /// As `ack`; some of it may be done.
    pub async fn change_group(&self, change: GroupChange) -> Result<GroupReply, BrokerError> {
        match self.call(Command::Group(change)).await? {
            Reply::Group(reply) => Ok(reply),
            other => Err(mismatch(&other)),
        }
    }

    /// Counts what there is.
    ///
    /// # Errors
    /// An index cannot be read, or as `ack`.
    pub async fn survey(&self, query: SurveyQuery) -> Result<Survey, BrokerError> {
        match self.call(Command::Survey(query)).await? {
            Reply::Survey(survey) => Ok(*survey),
            other => Err(mismatch(&other)),
        }
    }

    /// Lists dead letters.
    ///
    /// # Errors
    /// As `ack`.
    pub async fn dead_letters(&self, query: DeadLetterQuery) -> Result<DeadLetterPage, BrokerError> {
        match self.call(Command::DeadLetters(query)).await? {
            Reply::DeadLetters(page) => Ok(page),
            other => Err(mismatch(&other)),
        }
    }
}

fn mismatch(reply: &Reply) -> BrokerError {
    unreachable!("the broker answered a command with another command's reply: {reply:?}")
}

/// Cancels a pop whose caller went away.
struct PopGuard {
    handle: Handle,
    ticket: PopTicket,
    presence: Arc<Presence>,
    done: bool,
}

impl Drop for PopGuard {
    fn drop(&mut self) {
        if !self.done {
            self.presence.leave();
            // A full queue is harmless: the presence flag alone keeps anything from being claimed.
            let _ = self.handle.send(Request { command: Command::Gone(self.ticket), reply: None });
        }
    }
}

/// What a pop claimed. Dropped without `delivered`, the claims are handed back.
pub struct Delivery {
    /// The answer.
    pub reply: PopReply,
    guard: DeliveryGuard,
}

impl Delivery {
    /// Splits the answer from the guard that hands the claims back when it is dropped armed.
    #[must_use]
    pub fn split(self) -> (PopReply, DeliveryGuard) {
        (self.reply, self.guard)
    }
}

/// Hands claims back unless it is disarmed.
pub struct DeliveryGuard {
    handle: Handle,
    lease: Option<LeaseId>,
}

impl DeliveryGuard {
    /// The answer was handed to the connection.
    pub fn delivered(mut self) {
        self.lease = None;
    }
}

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            // A full queue is harmless: the lease ends by itself.
            let _ = self.handle.send(Request { command: Command::Return(lease), reply: None });
        }
    }
}

/// Hands batches of answers to the calls that wait for them, until the storage thread is gone.
pub async fn dispatch(handle: Handle, mut batches: mpsc::UnboundedReceiver<Answers>) {
    while let Some(batch) = batches.recv().await {
        deliver(&handle, batch);
    }
}

/// Hands one batch of answers to the calls that wait for them.
pub fn deliver(handle: &Handle, batch: Answers) {
    for (slot, reply) in batch {
        let lease = match &reply {
            Reply::Pop(pop) => pop.lease,
            _ => None,
        };
        let guard = DeliveryGuard { handle: handle.clone(), lease };
        // A caller that left drops the answer, and the guard hands its claims back.
        let _ = slot.send(Answer { reply, guard });
    }
}
