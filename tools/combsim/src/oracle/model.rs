//! The oracle's memory: what was asked, what was answered, and what follows from it.
//!
//! Facts come from answers only. Storage answers in the order in which it decides, so an answer tells the state at its
//! place in that order; what has no answer, because its client left or its process died, is kept as something that
//! may have happened.
//!
//! Must not: look into the daemon's state.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use comb::types::{LeaseId, MessageId, PartitionId};

use super::expiry::Limits;
use crate::profile::{GROUPS, Options, PARTITIONS, QUEUES};

/// Number of a command in its history.
pub type CommandId = u64;

/// One incarnation of a queue's partition, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub usize);

/// What became of one pushed item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Not answered; `true`: nor will it be.
    Open(bool),
    /// Stored.
    Stored,
    /// Nothing of it was stored: it is a duplicate.
    Duplicate,
    /// Nothing of it was stored.
    Refused,
}

/// One pushed item.
#[derive(Clone, Debug)]
pub struct Item {
    /// The command that pushed it.
    pub command: CommandId,
    /// Where it goes.
    pub lane: Lane,
    /// Its transaction id.
    pub transaction: String,
    /// The id it was given.
    pub id: MessageId,
    /// Least bytes of its payload.
    pub bytes: u64,
    /// What became of it.
    pub fate: Fate,
    /// Where it is, once an answer or a delivery said so.
    pub offset: Option<u64>,
    /// Time at which it was sent.
    pub sent: u64,
    /// Time of its answer.
    pub answered: u64,
    /// The process that it was answered by.
    pub life: u32,
    /// Another item may be taken for it: its transaction id was used before or after.
    pub shared: bool,
}

/// A queue by name.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Lanes of the present incarnation, by partition.
    pub lanes: Vec<Lane>,
    /// It is being deleted, or that was asked and never answered.
    pub deleting: bool,
    /// Least and greatest deduplication window of this incarnation.
    pub dedup: (u32, u32),
    /// Changes of the options that were not answered; one that was lost counts for good.
    pub configuring: u32,
    /// The options, if they are known for certain.
    pub options: Option<Options>,
    /// Least limits of age of this incarnation.
    pub limits: Limits,
    /// Least length of a lease of this incarnation.
    pub lease_min: u32,
    /// When a claim first showed that a group is registered in this incarnation, by index of the group.
    pub registered: BTreeMap<usize, u64>,
}

/// One partition of one incarnation of a queue.
#[derive(Clone, Debug)]
pub struct LaneFacts {
    /// Index of the queue's name.
    pub queue: usize,
    /// Index of its own name.
    pub partition: usize,
    /// Its id, once a pop showed it.
    pub id: Option<PartitionId>,
    /// Items by offset.
    pub places: BTreeMap<u64, u64>,
    /// Items by transaction id, duplicates and refused ones left out.
    pub by_transaction: HashMap<String, Vec<u64>>,
    /// It was seen to begin here: what is below expired.
    pub start: u64,
    /// The queue was deleted.
    pub gone: bool,
}

/// Something that may move a cursor and has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The command.
    pub command: CommandId,
    /// The process it was sent to.
    pub life: u32,
    /// The cursor may be there afterwards; `None`: anywhere.
    pub top: Option<u64>,
}

/// A claim that was answered and may be live.
#[derive(Clone, Debug)]
pub struct Hold {
    /// Its lease.
    pub lease: LeaseId,
    /// Last offset.
    pub last: u64,
    /// It certainly lives until then, unless something below ended it.
    pub until: u64,
    /// Commands that may have ended it.
    pub doubts: BTreeSet<CommandId>,
}

/// What is known of a cursor.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// It is here at least.
    pub low: u64,
    /// It is here at most, but for what is pending; `None`: anywhere.
    pub high: Option<u64>,
    /// Offsets that were committed at delivery.
    pub taken: BTreeSet<u64>,
    /// What may move it and has no answer.
    pub pending: Vec<Pending>,
    /// The last claim.
    pub hold: Option<Hold>,
}

impl Cursor {
    /// The greatest offset at which it can be.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.pending.iter().map(|pending| pending.top).fold(self.high, |a, b| Some(a?.max(b?)))
    }
}

/// A dead letter that was answered or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// It may be there.
    Perhaps,
    /// It is there.
    Filed,
}

/// Everything.
#[derive(Debug)]
pub struct Model {
    /// Queues by index of the name.
    pub queues: Vec<Queue>,
    /// Lanes of all incarnations.
    pub lanes: Vec<LaneFacts>,
    /// Items; the index is the number.
    pub items: Vec<Item>,
    /// Items by message id.
    pub by_id: HashMap<MessageId, u64>,
    /// Lanes by partition id.
    pub by_partition: HashMap<PartitionId, Lane>,
    /// Cursors by lane and index of the group.
    pub cursors: BTreeMap<(Lane, usize), Cursor>,
    /// Every lease seen and the pop that it was answered to.
    pub leases: HashMap<LeaseId, CommandId>,
    /// Messages that a group was asked to give up, by transaction id: (lane, group, id).
    pub given_up: HashSet<(Lane, usize, String)>,
    /// Dead letters by (lane, group, offset).
    pub letters: BTreeMap<(Lane, usize, u64), Letter>,
    /// Number of the process.
    pub life: u32,
}

impl Model {
    /// An empty data directory.
    #[must_use]
    pub fn new(options: &[Option<Options>]) -> Model {
        let mut model = Model {
            queues: Vec::new(),
            lanes: Vec::new(),
            items: Vec::new(),
            by_id: HashMap::new(),
            by_partition: HashMap::new(),
            cursors: BTreeMap::new(),
            leases: HashMap::new(),
            given_up: HashSet::new(),
            letters: BTreeMap::new(),
            life: 0,
        };
        for queue in 0..QUEUES.len() {
            let lanes = model.incarnate(queue);
            let drawn = options.get(queue).copied().flatten();
            let dedup = drawn.map_or(3600, |options| options.dedup_seconds);
            model.queues.push(Queue {
                lanes,
                deleting: false,
                dedup: (dedup.min(3600), dedup.max(3600)),
                configuring: 0,
                options: None,
                limits: Limits::default(),
                lease_min: 1,
                registered: BTreeMap::new(),
            });
        }
        model
    }

    fn incarnate(&mut self, queue: usize) -> Vec<Lane> {
        (0..PARTITIONS.len())
            .map(|partition| {
                let lane = Lane(self.lanes.len());
                self.lanes.push(LaneFacts {
                    queue,
                    partition,
                    id: None,
                    places: BTreeMap::new(),
                    by_transaction: HashMap::new(),
                    start: 0,
                    gone: false,
                });
                for group in 0..GROUPS.len() {
                    let high = if group == crate::profile::LATE { None } else { Some(0) };
                    self.cursors.insert((lane, group), Cursor { high, ..Cursor::default() });
                }
                lane
            })
            .collect()
    }

    /// The queue is gone for certain; the next use begins another incarnation.
    pub fn forget_queue(&mut self, index: usize) {
        let fresh = self.incarnate(index);
        let Some(queue) = self.queues.get_mut(index) else { return };
        let old = std::mem::replace(&mut queue.lanes, fresh);
        queue.deleting = false;
        queue.dedup = (3600, 3600);
        queue.options = None;
        queue.limits = Limits::default();
        queue.registered.clear();
        for lane in old {
            if let Some(facts) = self.lanes.get_mut(lane.0) {
                facts.gone = true;
            }
            self.cursors.retain(|(of, _), _| *of != lane);
            self.letters.retain(|(of, ..), _| *of != lane);
        }
    }

    /// The lane of a partition of the present incarnation.
    ///
    /// # Panics
    /// When there is no such queue or partition in the profile.
    #[must_use]
    pub fn lane(&self, queue: usize, partition: usize) -> Lane {
        let queue = self.queues.get(queue).expect("a queue of the profile");
        *queue.lanes.get(partition).expect("a partition of the profile")
    }

    /// Facts of a lane.
    ///
    /// # Panics
    /// When the lane is not of this model.
    #[must_use]
    pub fn facts(&self, lane: Lane) -> &LaneFacts {
        self.lanes.get(lane.0).expect("a lane of this model")
    }

    /// Facts of a lane.
    ///
    /// # Panics
    /// When the lane is not of this model.
    pub fn facts_mut(&mut self, lane: Lane) -> &mut LaneFacts {
        self.lanes.get_mut(lane.0).expect("a lane of this model")
    }

    /// An item.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn item(&self, number: u64) -> &Item {
        usize::try_from(number).ok().and_then(|index| self.items.get(index)).expect("an item of this model")
    }

    /// An item.
    ///
    /// # Panics
    /// When there is none.
    pub fn item_mut(&mut self, number: u64) -> &mut Item {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        self.items.get_mut(index).expect("an item of this model")
    }

    /// A cursor.
    pub fn cursor(&mut self, lane: Lane, group: usize) -> &mut Cursor {
        self.cursors.entry((lane, group)).or_default()
    }

    /// Names of a lane, for texts.
    #[must_use]
    pub fn name(&self, lane: Lane) -> String {
        let facts = self.facts(lane);
        let queue = QUEUES.get(facts.queue).copied().unwrap_or_default();
        let partition = PARTITIONS.get(facts.partition).copied().unwrap_or_default();
        format!("{queue}/{partition} (incarnation lane {})", lane.0)
    }
}
