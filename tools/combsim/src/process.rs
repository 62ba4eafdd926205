//! One process of the daemon: storage and maintenance as they ship, put together over the simulated disk and stepped
//! by hand.
//!
//! Must not: decide when anything happens.

use std::sync::{Arc, mpsc as std_mpsc};

use comb::broker::handle::{Answers, Handle, deliver};
use comb::broker::start::{Assembled, BrokerSettings, Seams, StartError, assemble};
use comb::broker::status::{Phase, Status};
use comb::broker::storage::{Ended, Storage};
use comb::engine::lookup::{Ask, LookedUp, LookupWorker};
use comb::engine::maintenance::{Job, Maintenance, Outcome};
use comb::io::sim::{SimDisk, SimFile, SimFs, SimRing};
use comb::io::{Clock, IdSource, ManualClock, Ring, Waker};
use comb::types::Seq;
use tokio::sync::mpsc;

/// A running process.
pub struct Process {
    storage: Storage<SimRing>,
    maintenance: Maintenance<SimFs>,
    jobs: std_mpsc::Receiver<Job<SimFile>>,
    outcomes: std_mpsc::Sender<Outcome<SimFile>>,
    lookups: LookupWorker<SimFs>,
    asks: std_mpsc::Receiver<Ask>,
    looked_up: std_mpsc::Sender<LookedUp>,
    answers: mpsc::UnboundedReceiver<Answers>,
    waker: Waker,
    status: Arc<Status>,
    /// What clients call.
    pub handle: Handle,
}

impl Process {
    /// Recovers the disk and starts.
    ///
    /// # Errors
    /// The start is refused.
    pub fn start(
        disk: &SimDisk,
        clock: &Clock,
        hands: &ManualClock,
        ids_seed: u64,
        settings: &BrokerSettings,
    ) -> Result<Process, StartError> {
        let status = Arc::new(Status::default());
        let ids = IdSource::seeded(clock.clone(), ids_seed);
        let ring = disk.ring(hands.clone());
        let waker = ring.waker();
        let (requests, requests_receiver) = mpsc::channel(settings.queue_commands);
        let (answers_sender, answers) = mpsc::unbounded_channel();
        let seams = Seams { fs: disk.fs(), ring, clock: clock.clone(), ids: ids.clone() };
        let Assembled { storage, maintenance, jobs, outcomes, lookups, asks, looked_up, log } =
            assemble(seams, settings, requests_receiver, answers_sender, Arc::clone(&status))?;
        let handle = Handle::new(requests, waker.clone(), Arc::clone(&status), ids, log);
        Ok(Process {
            storage,
            maintenance,
            jobs,
            outcomes,
            lookups,
            asks,
            looked_up,
            answers,
            waker,
            status,
            handle,
        })
    }

    /// One turn of the storage thread, which may wait: then time passes up to whatever is due next.
    pub fn step(&mut self) -> Option<Ended> {
        self.storage.step()
    }

    /// One turn of the storage thread that does not wait.
    pub fn step_awake(&mut self) -> Option<Ended> {
        self.waker.wake();
        self.storage.step()
    }

    /// One job of the maintenance thread or one question to the lookup thread; whether there was one.
    pub fn maintain(&mut self) -> bool {
        if let Ok(ask) = self.asks.try_recv() {
            if let Some(answer) = self.lookups.work(ask) {
                let _ = self.looked_up.send(answer);
                self.waker.wake();
            }
            return true;
        }
        let Ok(job) = self.jobs.try_recv() else { return false };
        let outcome = self.maintenance.work(job);
        // The engine holds the other end as long as the process lives.
        let _ = self.outcomes.send(outcome);
        self.waker.wake();
        true
    }

    /// Answers in the order in which they were decided, one at a time; each is handed to its caller.
    pub fn take_answers(&mut self, mut each: impl FnMut()) {
        while let Ok(batch) = self.answers.try_recv() {
            for answer in batch {
                deliver(&self.handle, vec![answer]);
                each();
            }
        }
    }

    /// The highest seq whose answers were given out.
    #[must_use]
    pub fn watermark(&self) -> Seq {
        Seq(self.status.positions().1)
    }

    /// Asks for a clean end.
    pub fn stop(&self) {
        self.status.enter(Phase::Stopping);
        self.waker.wake();
    }

    /// Whether pushes are refused for want of space.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.status.phase() == Phase::Full
    }
}
