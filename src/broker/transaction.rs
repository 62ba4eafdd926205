//! Transactions: acknowledgements and pushes that stand or fall together.
//!
//! Purpose: decide all of a bundle against the state, then stage all of it as one unit.
//!
//! Invariants:
//! - Nothing is staged before everything is decided and room for all of it is certain.
//! - Every refusal says that the transaction rolled back, and nothing of it happened.
//! - The repeat of a committed bundle rolls back: its acks do not pass as repeats, so its pushes cannot happen twice.
//!
//! Must not: keep what was decided while a bundle waits; it is decided again.

use hashbrown::HashMap;

use super::ack::{self, AckGroup, AckOutcome, AckPlan, CursorKey};
use super::command::{
    AckItem, AckRefusal, AckVerdict, PushVerdict, Reference, Reply, RollbackReason, Transaction,
    TransactionReply,
};
use super::core::{Block, Core, Step};
use super::journal::{Fit, Journal};
use super::push::PushPlan;
use crate::format::delta::CursorState;
use crate::types::{LeaseId, PartitionId};

/// A transaction being carried out.
#[derive(Debug)]
pub struct TransactionWork {
    transaction: Transaction,
    /// The acks by (partition, group, lease), in order of first appearance.
    groups: Vec<AckGroup>,
    /// First ack that cannot be addressed.
    malformed: Option<(usize, AckRefusal)>,
}

impl TransactionWork {
    /// Groups the acks and finds the lease that each is held to.
    #[must_use]
    pub fn new(transaction: Transaction) -> TransactionWork {
        let common = common_lease(&transaction);
        let mut groups: Vec<AckGroup> = Vec::new();
        let mut malformed = None;
        let mut known: HashMap<(PartitionId, &str, Reference<LeaseId>), usize> = HashMap::new();
        for (index, ack) in transaction.acks.iter().enumerate() {
            let lease = match ack.item.lease {
                Reference::Absent => common,
                own => own,
            };
            match ack::address(&ack.item) {
                Err(refusal) => malformed = malformed.or(Some((index, refusal))),
                Ok((partition, _)) => {
                    let at = *known.entry((partition, &ack.group, lease)).or_insert(groups.len());
                    match groups.get_mut(at) {
                        Some(group) => group.items.push(index),
                        None => groups.push(AckGroup { partition, lease, items: vec![index] }),
                    }
                }
            }
        }
        drop(known);
        TransactionWork { transaction, groups, malformed }
    }
}

/// The one lease that required leases and acks name; absent if they name none or several.
fn common_lease(transaction: &Transaction) -> Reference<LeaseId> {
    let own = transaction.acks.iter().map(|ack| ack.item.lease);
    let mut named =
        transaction.required.iter().copied().chain(own).filter(|lease| *lease != Reference::Absent);
    match named.next() {
        Some(first) if named.all(|other| other == first) => first,
        _ => Reference::Absent,
    }
}

/// Why a bundle is not carried out now: an answer, or something to wait for.
type Stop = Box<Step>;

fn rolled_back(reason: RollbackReason, why: &str) -> Stop {
    let error = format!("{why}; the transaction rolled back");
    Box::new(Step::Done(Reply::Transaction(TransactionReply::RolledBack { reason, error })))
}

fn rejected(index: usize, refusal: AckRefusal) -> Stop {
    rolled_back(RollbackReason::RejectedAck, &format!("ack {index} was refused: {refusal}"))
}

impl<J: Journal> Core<J> {
    pub(super) fn transaction(&mut self, work: &mut TransactionWork) -> Step {
        let TransactionWork { transaction, groups, malformed } = work;
        let planned = match *malformed {
            Some((index, refusal)) => Err(rejected(index, refusal)),
            None => self.plan_transaction(transaction, groups),
        };
        let (acks, pushes) = match planned {
            Ok(plans) => plans,
            Err(stop) => return *stop,
        };
        let mut ack_verdicts = vec![AckVerdict::default(); transaction.acks.len()];
        for (group, plan) in groups.iter().zip(&acks) {
            self.stage_ack(plan);
            for (index, verdict) in group.items.iter().zip(plan.verdicts()) {
                if let Some(slot) = ack_verdicts.get_mut(*index) {
                    *slot = *verdict;
                }
            }
        }
        let push_verdicts: Vec<Vec<PushVerdict>> =
            transaction.pushes.iter().zip(pushes).map(|(group, plan)| self.stage_push(group, plan)).collect();
        Step::Done(Reply::Transaction(TransactionReply::Committed {
            acks: ack_verdicts,
            pushes: push_verdicts,
        }))
    }

    fn plan_transaction<'a>(
        &self,
        transaction: &'a Transaction,
        groups: &[AckGroup],
    ) -> Result<(Vec<Box<AckPlan<'a>>>, Vec<PushPlan>), Stop> {
        if let Some(error) = self.refuse_names(&transaction.pushes) {
            return Err(Box::new(Step::Done(Reply::Failed(error))));
        }
        self.check_required(&transaction.required)?;
        let acks = self.plan_acks(transaction, groups)?;
        let mut pushes = Vec::with_capacity(transaction.pushes.len());
        let (mut run_bytes, mut delta_bytes, mut stores) = (0, 0, false);
        let mut asked = Vec::new();
        for group in &transaction.pushes {
            let mut plan = self.plan_push(group);
            if !plan.asked.is_empty() {
                asked.append(&mut plan.asked);
                continue;
            }
            if let Some(original) = plan.stored.and_then(|index| plan.verdict(index)) {
                let why = format!(
                    "a transaction id is already stored in queue {:?}, partition {:?}, as message {} at offset {}",
                    group.queue, group.partition, original.id, original.offset
                );
                return Err(rolled_back(RollbackReason::Duplicate, &why));
            }
            stores |= !plan.idle();
            pushes.push((plan, group));
        }
        if !asked.is_empty() {
            return Err(Box::new(Step::Blocked(Block::Index(asked))));
        }
        let costs =
            acks.iter().map(|plan| plan.cost()).chain(pushes.iter().map(|(plan, group)| plan.cost(group)));
        for (run, delta) in costs {
            run_bytes += run;
            delta_bytes += delta;
        }
        if delta_bytes > 0 {
            match self.journal.fits(run_bytes, delta_bytes) {
                Fit::Now => {}
                Fit::Later => return Err(Box::new(Step::Blocked(Block::Room))),
                Fit::Full { free_bytes, copies } if stores || !copies => {
                    return Err(Box::new(Step::Done(Reply::Failed(self.storage_full(free_bytes)))));
                }
                Fit::Full { .. } => {} // what acks take is held in reserve
                Fit::TooLarge { limit } => {
                    let why = format!(
                        "it takes {} bytes, more than the {limit} of one atomic group (limits.atomic_group_bytes)",
                        run_bytes + delta_bytes
                    );
                    return Err(rolled_back(RollbackReason::TooLarge, &why));
                }
            }
        }
        Ok((acks, pushes.into_iter().map(|(plan, _)| plan).collect()))
    }

    fn check_required(&self, required: &[Reference<LeaseId>]) -> Result<(), Stop> {
        for lease in required {
            let live = match lease {
                Reference::Absent => true,
                Reference::Malformed => false,
                Reference::Id(id) => self.lease_is_live(*id),
            };
            if !live {
                let name = match lease {
                    Reference::Id(id) => id.text(),
                    _ => "(not a lease id)".to_owned(),
                };
                let why =
                    format!("required lease {name} is not live: it ended, was released or never existed");
                return Err(rolled_back(RollbackReason::RejectedAck, &why));
            }
        }
        Ok(())
    }

    /// Whether a lease holds any partition now.
    fn lease_is_live(&self, lease: LeaseId) -> bool {
        self.state.leases.get(&lease).is_some_and(|holders| {
            holders.iter().any(|holder| {
                if !self.state.groups.contains_key(&holder.1) {
                    return false; // gone with its queue, where the cursor may still be
                }
                let cursor = self.state.cursors.get(holder);
                cursor.and_then(|cursor| ack::live_lease(&cursor, self.now)).is_some()
            })
        })
    }

    fn plan_acks<'a>(
        &self,
        transaction: &'a Transaction,
        groups: &[AckGroup],
    ) -> Result<Vec<Box<AckPlan<'a>>>, Stop> {
        let mut ahead: HashMap<CursorKey, CursorState> = HashMap::new();
        let mut plans = Vec::with_capacity(groups.len());
        for group in groups {
            let acks: Vec<_> = group.items.iter().filter_map(|index| transaction.acks.get(*index)).collect();
            let items: Vec<&AckItem> = acks.iter().map(|ack| &ack.item).collect();
            let first = group.items.first().copied().unwrap_or_default();
            let consumer = acks.first().map_or("", |ack| ack.group.as_str());
            let plan = match self.plan_ack(consumer, group, &items, Some(&ahead), false) {
                AckOutcome::Plan(plan) => plan,
                AckOutcome::Refused(refusal) => return Err(rejected(first, refusal)),
                AckOutcome::Load(block) => return Err(Box::new(Step::Blocked(block))),
            };
            let refused = group
                .items
                .iter()
                .zip(plan.verdicts())
                .find_map(|(index, verdict)| verdict.refusal.map(|refusal| (*index, refusal)));
            if let Some((index, refusal)) = refused {
                return Err(rejected(index, refusal));
            }
            ahead.insert(plan.key(), plan.state());
            plans.push(plan);
        }
        Ok(plans)
    }
}
