use bytes::Bytes;

use super::bench::{Bench, because, bundle, item, with};
use crate::broker::command::{
    AckItem, AckStatus, AckVerdict, BrokerError, Command, PushVerdict, Reference, Reply, RollbackReason,
    TransactionReply,
};
use crate::broker::core::{Block, Step, Work};
use crate::broker::journal::Fit;
use crate::types::{LeaseId, Offset, PartitionId};
use AckStatus::{Completed, DeadLetter, Failed, Retry};

const G: &str = "g";

fn leased(ids: &[&str]) -> (Bench, PartitionId, LeaseId) {
    let mut bench = Bench::new();
    bench.push("q", "p", ids);
    let p = bench.partition("q", "p");
    let lease = bench.lease(p, G, ids.len() as u64 - 1);
    (bench, p, lease)
}

fn committed(reply: TransactionReply) -> (Vec<AckVerdict>, Vec<Vec<PushVerdict>>) {
    match reply {
        TransactionReply::Committed { acks, pushes } => (acks, pushes),
        other => panic!("{other:?}"),
    }
}

/// Carries out a bundle that must roll back without a trace; its text.
fn rolls_back(
    bench: &mut Bench,
    reason: RollbackReason,
    acks: Vec<(&str, AckItem)>,
    ids: &[&str],
    required: Vec<LeaseId>,
) -> String {
    let pushes = if ids.is_empty() { vec![] } else { vec![bench.group("out", "p", ids)] };
    let (records, stamp) = (bench.records(), bench.core.state.last_stamp);
    match bench.transact(acks, pushes, required) {
        TransactionReply::RolledBack { reason: got, error } => {
            assert_eq!(got, reason, "{error}");
            assert!(error.contains("rolled back"), "{error}");
            assert_eq!(
                (bench.records(), bench.core.state.last_stamp),
                (records, stamp),
                "nothing was staged"
            );
            error
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn acks_and_pushes_commit_together_over_queues_and_partitions() {
    let (mut bench, p, lease) = leased(&["0", "1"]);
    let pushes = vec![bench.group("x.y", "a", &["m", "n", "m"]), bench.group("z", "b", &["m"])];
    let acks = vec![(G, with(lease, item(p, "0", Completed))), (G, with(lease, item(p, "1", Completed)))];
    let (acks, pushes) = committed(bench.transact(acks, pushes, vec![lease]));
    assert!(acks.iter().all(|ack| ack.success() && ack.lease_released));
    let shape: Vec<Vec<(u64, bool)>> = pushes
        .iter()
        .map(|group| group.iter().map(|verdict| (verdict.offset.0, verdict.duplicate)).collect())
        .collect();
    assert_eq!(shape, [vec![(0, false), (1, false), (0, true)], vec![(0, false)]], "a repeat inside is fine");
    assert_eq!(bench.cursor(p, G).next, Offset(2));
    let queue = bench.core.state.queue_named("x.y").unwrap();
    assert_eq!((queue.namespace.as_str(), queue.task.as_str()), ("x", "y"));
}

#[test]
fn acks_of_one_cursor_are_one_group_with_one_record() {
    let (mut bench, p, lease) = leased(&["0", "1", "2"]);
    let cursors = bench.records_of("Cursor");
    let acks = vec![
        (G, with(lease, item(p, "2", Completed))),
        (G, with(lease, item(p, "1", Failed))), // clamps although it comes later
        (G, item(p, "0", Completed)),           // held to the one lease that is named
    ];
    let (acks, _) = committed(bench.transact(acks, vec![], vec![]));
    assert!(acks.iter().all(AckVerdict::success));
    assert_eq!((bench.cursor(p, G).next, bench.cursor(p, G).retries_used), (Offset(1), 1));
    assert_eq!(bench.records_of("Cursor"), cursors + 1);
}

#[test]
fn a_second_group_of_one_cursor_starts_where_the_first_leaves_it() {
    let (mut bench, p, lease) = leased(&["0", "1", "2"]);
    bench.push("q", "p2", &["a"]);
    let p2 = bench.partition("q", "p2");
    let other = bench.lease(p2, G, 0);
    let acks = vec![
        (G, with(lease, item(p, "1", Completed))),
        (G, with(other, item(p2, "a", Completed))),
        (G, item(p, "0", Completed)), // two leases are named, so this one is held to none
    ];
    let (acks, _) = committed(bench.transact(acks, vec![], vec![]));
    assert_eq!(acks.iter().map(|ack| ack.noop).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!((bench.cursor(p, G).next, bench.cursor(p2, G).next), (Offset(2), Offset(1)));
}

#[test]
fn a_transaction_moves_only_its_own_groups_cursor() {
    let (mut bench, p, lease) = leased(&["0"]);
    bench.lease(p, "other", 0);
    let before = bench.cursor(p, "other");
    committed(bench.transact(vec![(G, with(lease, item(p, "0", Completed)))], vec![], vec![]));
    assert_eq!(bench.cursor(p, "other"), before);
}

#[test]
fn a_stale_lease_rolls_back_and_leaves_the_pushes_out() {
    let (mut bench, p, lease) = leased(&["0"]);
    bench.pass(31);
    let acks = || vec![(G, with(lease, item(p, "0", Completed)))];
    let text = rolls_back(&mut bench, RollbackReason::RejectedAck, acks(), &["m"], vec![]);
    assert!(text.contains("lease"), "{text}");
    let text = rolls_back(&mut bench, RollbackReason::RejectedAck, vec![], &["m"], vec![lease]);
    assert!(text.contains("lease"), "{text}");
    assert!(bench.core.state.queue_named("out").is_none());
}

#[test]
fn every_required_lease_must_be_live() {
    let (mut bench, p, lease) = leased(&["0"]);
    let acks = || vec![(G, with(lease, item(p, "0", Completed)))];
    let required = vec![lease, LeaseId(404)];
    let text = rolls_back(&mut bench, RollbackReason::RejectedAck, acks(), &["m"], required);
    assert!(text.contains(&LeaseId(404).text()), "{text}");
    let mut malformed = bundle(acks(), vec![], vec![]);
    malformed.required.push(Reference::Malformed);
    let reply = bench.done(Command::Transaction(malformed));
    assert!(
        matches!(
            &reply,
            Reply::Transaction(TransactionReply::RolledBack { reason: RollbackReason::RejectedAck, .. })
        ),
        "{reply:?}"
    );
    committed(bench.transact(acks(), vec![], vec![lease]));
}

#[test]
fn a_required_lease_is_live_while_it_holds_any_partition() {
    let (mut bench, p, lease) = leased(&["0"]);
    bench.push("q", "p2", &["a"]);
    let p2 = bench.partition("q", "p2");
    bench.lease_as(lease, p2, G, 0);
    bench.ack(G, vec![with(lease, item(p, "0", Completed))]);
    committed(bench.transact(vec![(G, with(lease, item(p2, "a", Completed)))], vec![], vec![lease]));
    rolls_back(&mut bench, RollbackReason::RejectedAck, vec![], &["m"], vec![lease]);
}

#[test]
fn an_ack_without_a_lease_is_held_to_the_only_one_named() {
    let (mut bench, p, lease) = leased(&["0"]);
    // The required lease is live elsewhere, but not the holder of p.
    bench.push("q", "p2", &["a"]);
    let p2 = bench.partition("q", "p2");
    let elsewhere = bench.lease(p2, G, 0);
    let ack = || vec![(G, item(p, "0", Completed))];
    rolls_back(&mut bench, RollbackReason::RejectedAck, ack(), &["m"], vec![elsewhere]);
    // Two leases are named: none is meant.
    committed(bench.transact(ack(), vec![], vec![elsewhere, lease]));
    assert_eq!(bench.cursor(p, G).next, Offset(1));
}

#[test]
fn an_ack_without_any_lease_skips_the_check() {
    let (mut bench, p, _) = leased(&["0"]);
    committed(bench.transact(vec![(G, item(p, "0", Completed))], vec![], vec![]));
    assert_eq!(bench.cursor(p, G).next, Offset(1));
}

#[test]
fn every_refusal_of_an_ack_rolls_back() {
    let (mut bench, p, lease) = leased(&["0", "1", "2"]);
    bench.ack(G, vec![with(lease, item(p, "0", Completed))]);
    let good = || (G, with(lease, item(p, "1", Completed)));
    let base = item(p, "1", Completed);
    let mut malformed_lease = base.clone();
    malformed_lease.lease = Reference::Malformed;
    let bad = [
        (G, with(lease, item(p, "ghost", Completed)), "unresolv"),
        (G, with(lease, item(p, "0", Failed)), "committed"),
        (G, with(lease, item(p, "0", Retry)), "committed"),
        (G, with(lease, item(p, "0", DeadLetter)), "committed"),
        (G, with(LeaseId(9), item(p, "1", Completed)), "lease"),
        (G, malformed_lease, "lease"),
        ("stranger", item(p, "1", Completed), "unresolvable"),
        (G, AckItem { hash: None, ..base.clone() }, "transactionId"),
        (G, AckItem { partition: Reference::Absent, ..base.clone() }, "partitionId"),
        (G, AckItem { partition: Reference::Malformed, ..base.clone() }, "partitionId"),
        (G, AckItem { partition: Reference::Id(PartitionId(99)), ..base.clone() }, "no partition 99"),
    ];
    for (group, item, word) in bad {
        let text =
            rolls_back(&mut bench, RollbackReason::RejectedAck, vec![good(), (group, item)], &["m"], vec![]);
        assert!(text.contains(word), "{text}");
    }
    assert_eq!(bench.cursor(p, G).next, Offset(1));
}

#[test]
fn a_dead_letter_without_a_live_lease_rolls_back() {
    let (mut bench, p, _) = leased(&["0"]);
    bench.pass(31);
    let acks = vec![(G, item(p, "0", DeadLetter))];
    let text = rolls_back(&mut bench, RollbackReason::RejectedAck, acks, &[], vec![]);
    assert!(text.contains("lease"), "{text}");
}

#[test]
fn completed_below_the_cursor_is_a_noop_that_commits() {
    let (mut bench, p, lease) = leased(&["0"]);
    bench.ack(G, vec![with(lease, item(p, "0", Completed))]);
    let pushes = vec![bench.group("out", "p", &["m"])];
    let (acks, _) = committed(bench.transact(vec![(G, item(p, "0", Completed))], pushes, vec![]));
    assert!(acks[0].success() && acks[0].noop);
}

#[test]
fn the_repeat_of_a_committed_bundle_rolls_back_so_its_pushes_happen_once() {
    let (mut bench, p, lease) = leased(&["0"]);
    let acks = || vec![(G, with(lease, item(p, "0", Completed)))];
    let pushes = vec![bench.group("out", "p", &["m"])];
    committed(bench.transact(acks(), pushes, vec![]));
    // Other ids, as a broker that mints them would give: deduplication cannot save it.
    rolls_back(&mut bench, RollbackReason::RejectedAck, acks(), &["fresh"], vec![]);
}

#[test]
fn a_duplicate_of_a_stored_message_rolls_back() {
    let (mut bench, p, lease) = leased(&["0"]);
    bench.push("out", "p", &["m"]);
    let acks = || vec![(G, with(lease, item(p, "0", Completed)))];
    rolls_back(&mut bench, RollbackReason::Duplicate, acks(), &["n", "m"], vec![lease]);
    rolls_back(&mut bench, RollbackReason::Duplicate, vec![], &["m", "m"], vec![]);
    assert_eq!(bench.cursor(p, G).next, Offset(0));
}

#[test]
fn a_refused_ack_is_named_before_a_duplicate() {
    let (mut bench, p, lease) = leased(&["0"]);
    bench.push("out", "p", &["m"]);
    let acks = vec![(G, with(lease, item(p, "ghost", Completed)))];
    rolls_back(&mut bench, RollbackReason::RejectedAck, acks, &["m"], vec![]);
}

#[test]
fn dead_letters_are_filed_inside_a_transaction() {
    let (mut bench, p, lease) = leased(&["0", "1"]);
    let acks = vec![
        (G, with(lease, because("why", item(p, "0", DeadLetter)))),
        (G, with(lease, item(p, "1", Completed))),
    ];
    let (acks, _) = committed(bench.transact(acks, vec![], vec![lease]));
    assert_eq!(acks.iter().map(|ack| ack.dead_lettered).collect::<Vec<_>>(), [true, false]);
    let page = bench.all_letters();
    assert_eq!((page.total, &*page.rows[0].error), (1, "why"));
    assert_eq!(super::ack::payload(&page.rows[0].copy).0, "0");
}

#[test]
fn a_cold_dead_letter_is_loaded_before_anything_is_staged() {
    let (mut bench, p, lease) = leased(&["0"]);
    let entries = bench.group("q", "p", &["0"]).entries;
    bench.core.journal.inner.cold = true;
    let before = bench.records();
    let pushes = vec![bench.group("out", "p", &["m"])];
    let acks = vec![(G, with(lease, item(p, "0", DeadLetter)))];
    let mut work = Work::new(Command::Transaction(bundle(acks, pushes, vec![lease])));
    assert!(matches!(bench.run(&mut work), Step::Blocked(Block::Load { .. })));
    assert_eq!(bench.records(), before);
    bench.core.loaded.insert((p, Offset(0)), Ok(Bytes::from(entries)));
    let step = bench.run(&mut work);
    assert!(matches!(step, Step::Done(Reply::Transaction(TransactionReply::Committed { .. }))), "{step:?}");
}

#[test]
fn an_unreadable_dead_letter_rolls_back() {
    let (mut bench, p, lease) = leased(&["0"]);
    bench.core.journal.inner.cold = true;
    bench.core.loaded.insert((p, Offset(0)), Err("gone".to_owned()));
    let acks = vec![(G, with(lease, item(p, "0", DeadLetter)))];
    let text = rolls_back(&mut bench, RollbackReason::RejectedAck, acks, &["m"], vec![]);
    assert!(text.contains("dlq rejected"), "{text}");
}

#[test]
fn a_transaction_asks_once_for_all_its_room_and_stages_nothing_before() {
    let (mut bench, p, lease) = leased(&["0"]);
    let pushes = vec![bench.group("a", "p", &["m"]), bench.group("b", "p", &["m"])];
    let entries: u64 = pushes.iter().map(|group| group.entries.len() as u64 + 48).sum();
    let before = bench.records();
    let acks = vec![(G, with(lease, item(p, "0", Completed)))];
    let mut work = Work::new(Command::Transaction(bundle(acks, pushes, vec![])));
    bench.core.journal.inner.fit = Some(Fit::Later);
    assert!(matches!(bench.run(&mut work), Step::Blocked(Block::Room)));
    assert_eq!(bench.records(), before);
    assert_eq!(bench.core.journal.asked.get().0, entries);
    bench.core.journal.inner.fit = None;
    assert!(matches!(bench.run(&mut work), Step::Done(_)));
}

#[test]
fn a_transaction_is_decided_again_after_it_waited() {
    let (mut bench, p, lease) = leased(&["0"]);
    let acks = vec![(G, with(lease, item(p, "0", Completed)))];
    let mut work = Work::new(Command::Transaction(bundle(acks, vec![], vec![lease])));
    bench.core.journal.now_left.set(Some(0));
    assert!(matches!(bench.run(&mut work), Step::Blocked(Block::Room)));
    bench.pass(31);
    let step = bench.run(&mut work);
    assert!(matches!(step, Step::Done(Reply::Transaction(TransactionReply::RolledBack { .. }))), "{step:?}");
}

#[test]
fn a_full_disk_refuses_pushes_but_no_transaction_of_acks_alone() {
    let (mut bench, p, lease) = leased(&["0"]);
    bench.core.journal.inner.fit = Some(Fit::Full { free_bytes: 7, copies: true });
    let acks = || vec![(G, with(lease, item(p, "0", Completed)))];
    let pushes = vec![bench.group("out", "p", &["m"])];
    let before = bench.records();
    let reply = bench.done(Command::Transaction(bundle(acks(), pushes, vec![])));
    assert!(matches!(reply, Reply::Failed(BrokerError::StorageFull { free_bytes: 7, .. })), "{reply:?}");
    assert_eq!(bench.records(), before);
    committed(bench.transact(acks(), vec![], vec![]));
}

#[test]
fn a_bundle_larger_than_a_group_rolls_back() {
    let (mut bench, p, lease) = leased(&["0"]);
    bench.core.journal.limit = Some(50);
    let acks = vec![(G, with(lease, item(p, "0", Completed)))];
    rolls_back(&mut bench, RollbackReason::TooLarge, acks, &["m"], vec![]);
}

#[test]
fn names_that_are_too_long_are_refused_before_anything_else() {
    let (mut bench, ..) = leased(&["0"]);
    let pushes = vec![bench.group(&"q".repeat(400), &"p".repeat(100), &["m"])];
    let reply = bench.done(Command::Transaction(bundle(vec![], pushes, vec![LeaseId(404)])));
    assert!(matches!(reply, Reply::Failed(BrokerError::NameTooLong { .. })), "{reply:?}");
}
