use bytes::Bytes;

use super::bench::{Bench, because, hash, item, with};
use crate::broker::command::{
    AckCall, AckItem, AckRefusal, AckStatus, AckVerdict, Command, Piece, Reference, Reply, Source,
};
use crate::broker::core::{Block, Step, Work};
use crate::broker::journal::Fit;
use crate::format::entry::{self, Entry};
use crate::types::{LeaseId, Offset, PartitionId};
use AckStatus::{Completed, DeadLetter, Failed, Retry};

const G: &str = "g";

/// Messages "0", "1", ... in queue q, partition p, all leased by G.
fn leased(count: usize) -> (Bench, PartitionId, LeaseId) {
    let mut bench = Bench::new();
    let ids: Vec<String> = (0..count).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    bench.push("q", "p", &ids);
    let partition = bench.partition("q", "p");
    let lease = bench.lease(partition, G, count as u64 - 1);
    (bench, partition, lease)
}

fn next(bench: &Bench, partition: PartitionId) -> u64 {
    bench.cursor(partition, G).next.0
}

fn refusals(verdicts: &[AckVerdict]) -> Vec<Option<AckRefusal>> {
    verdicts.iter().map(|verdict| verdict.refusal).collect()
}

pub(super) fn payload(piece: &Piece) -> (String, String) {
    let Source::Memory(bytes) = &piece.source else { panic!() };
    let mut rest = &bytes[..];
    for _ in piece.run.base.0..piece.first.0 {
        rest = &rest[entry::skip(rest).unwrap()..];
    }
    let (entry, _) = Entry::decode(rest).unwrap();
    (entry.transaction_id.into_owned(), String::from_utf8(entry.payload.to_vec()).unwrap())
}

#[test]
fn acking_the_last_message_commits_the_whole_span() {
    let (mut bench, p, lease) = leased(10);
    let verdict = bench.ack(G, vec![with(lease, item(p, "9", Completed))])[0];
    assert!(verdict.success() && verdict.lease_released && !verdict.noop && !verdict.dead_lettered);
    let cursor = bench.cursor(p, G);
    assert_eq!((cursor.next, cursor.lease, cursor.attempts), (Offset(10), None, 0));
    assert!(!bench.core.state.leases.contains_key(&lease));
}

#[test]
fn one_cursor_record_per_group_however_many_items() {
    let (mut bench, p, lease) = leased(500);
    let before = bench.records();
    let items = (0..500).map(|n| with(lease, item(p, &n.to_string(), Completed))).collect();
    assert!(bench.ack(G, items).iter().all(AckVerdict::success));
    assert_eq!(bench.records(), before + 1);
}

#[test]
fn an_ack_that_changes_nothing_writes_nothing() {
    let (mut bench, p, lease) = leased(3);
    bench.ack(G, vec![with(lease, item(p, "1", Completed))]);
    let before = bench.records();
    bench.core.journal.inner.fit = Some(Fit::Later); // needs no room either
    let items = vec![
        with(lease, item(p, "0", Completed)),
        with(lease, item(p, "ghost", Failed)),
        with(LeaseId(9), item(p, "2", Completed)),
    ];
    bench.ack(G, items);
    assert_eq!(bench.records(), before);
}

#[test]
fn a_partial_ack_keeps_the_lease_and_the_rest_can_still_be_acked() {
    let (mut bench, p, lease) = leased(3);
    let verdict = bench.ack(G, vec![with(lease, item(p, "1", Completed))])[0];
    assert!(verdict.success() && !verdict.lease_released);
    assert_eq!(next(&bench, p), 2);
    let again = bench.ack(G, vec![with(lease, item(p, "0", Completed))])[0];
    assert!(again.success() && again.noop);
    let failed = bench.ack(G, vec![with(lease, item(p, "0", Failed))])[0];
    assert_eq!(failed.refusal, Some(AckRefusal::AlreadyCommitted));
    let last = bench.ack(G, vec![with(lease, item(p, "2", Completed))])[0];
    assert!(last.success() && !last.noop && last.lease_released);
}

#[test]
fn the_lowest_failure_of_a_call_is_not_skipped_by_later_completed_items() {
    let (mut bench, p, lease) = leased(4);
    let items = [("0", Completed), ("1", Failed), ("2", Completed), ("3", Completed)];
    let verdicts = bench.ack(G, items.map(|(id, status)| with(lease, item(p, id, status))).to_vec());
    assert!(verdicts.iter().all(|verdict| verdict.success() && verdict.lease_released));
    let cursor = bench.cursor(p, G);
    assert_eq!((cursor.next, cursor.retries_used, cursor.lease), (Offset(1), 1, None));
    assert_eq!(bench.all_letters().total, 0);
}

#[test]
fn after_a_nack_the_same_lease_is_refused_and_the_message_is_wanted_again() {
    let (mut bench, p, lease) = leased(3);
    assert!(bench.ack(G, vec![with(lease, item(p, "0", Failed))])[0].success());
    let rest = ["1", "2"].map(|id| with(lease, item(p, id, Completed))).to_vec();
    assert_eq!(refusals(&bench.ack(G, rest)), [Some(AckRefusal::Lease); 2]);
    assert_eq!(next(&bench, p), 0);
}

#[test]
fn retry_never_charges_and_failed_exhausts_into_the_dead_letters() {
    let (mut bench, p, mut lease) = leased(1);
    for _ in 0..6 {
        assert!(!bench.ack(G, vec![with(lease, item(p, "0", Retry))])[0].dead_lettered);
        lease = bench.lease(p, G, 0);
    }
    assert_eq!(bench.cursor(p, G).retries_used, 0);
    for used in 1..=3 {
        assert!(!bench.ack(G, vec![with(lease, item(p, "0", Failed))])[0].dead_lettered);
        assert_eq!(bench.cursor(p, G).retries_used, used);
        lease = bench.lease(p, G, 0);
    }
    let verdict = bench.ack(G, vec![with(lease, item(p, "0", Failed))])[0];
    assert!(verdict.success() && verdict.dead_lettered && verdict.lease_released);
    let cursor = bench.cursor(p, G);
    assert_eq!((cursor.next, cursor.retries_used), (Offset(1), 0));
    let page = bench.all_letters();
    assert_eq!((page.total, page.rows[0].retries_used), (1, 3));
    assert_eq!(&*page.rows[0].error, "Retries exhausted");
}

#[test]
fn an_expired_lease_charges_nothing() {
    let (mut bench, p, _) = leased(1);
    for _ in 0..4 {
        bench.pass(31);
        bench.lease(p, G, 0);
    }
    let cursor = bench.cursor(p, G);
    assert_eq!((cursor.retries_used, cursor.attempts), (0, 5));
}

#[test]
fn a_completed_batch_resets_the_budget() {
    let (mut bench, p, lease) = leased(2);
    bench.ack(G, vec![with(lease, item(p, "0", Failed))]);
    let lease = bench.lease(p, G, 1);
    bench.ack(G, vec![with(lease, item(p, "0", Completed))]);
    assert_eq!(bench.cursor(p, G).retries_used, 1, "not by a partial ack");
    bench.ack(G, vec![with(lease, item(p, "1", Completed))]);
    assert_eq!(bench.cursor(p, G).retries_used, 0);
}

#[test]
fn a_forced_dead_letter_keeps_a_copy_the_reason_and_where_it_came_from() {
    let (mut bench, p, lease) = leased(3);
    let items = vec![
        with(lease, item(p, "0", Completed)),
        with(lease, because("forced by test", item(p, "1", DeadLetter))),
        with(lease, item(p, "2", Completed)),
    ];
    let verdicts = bench.ack(G, items);
    assert_eq!(
        verdicts.iter().map(|verdict| verdict.dead_lettered).collect::<Vec<_>>(),
        [false, true, false]
    );
    assert_eq!(next(&bench, p), 2, "the next message is wanted at once");
    let page = bench.all_letters();
    let row = &page.rows[0];
    assert_eq!((&*row.queue, &*row.partition_name, &*row.group), ("q", "p", G));
    assert_eq!((row.partition, row.offset, row.retries_used), (p, Offset(1), 0));
    assert_eq!(&*row.error, "forced by test");
    assert!(row.failed > row.created);
    assert_eq!(payload(&row.copy), ("1".to_owned(), "\"1\"".to_owned()));
    assert_eq!(row.copy.first, row.copy.last);
}

#[test]
fn dead_letters_of_a_group_share_one_internal_partition_that_no_client_can_reach() {
    let (mut bench, p, lease) = leased(2);
    bench.ack(G, vec![with(lease, item(p, "0", DeadLetter))]);
    let lease = bench.lease(p, G, 1);
    bench.ack(G, vec![with(lease, item(p, "1", DeadLetter))]);
    let page = bench.all_letters();
    assert_eq!(page.total, 2);
    assert_eq!(page.rows[0].copy.run.partition, page.rows[1].copy.run.partition);
    let copies = page.rows[0].copy.run.partition;
    assert_eq!(bench.core.state.queue_named("q").unwrap().partitions.len(), 1);
    let verdict = bench.ack(G, vec![item(copies, "0", Completed)])[0];
    assert_eq!(verdict.refusal, Some(AckRefusal::NoPartition(copies)));
    assert_eq!(bench.push("q", "p", &["0"])[0].offset, Offset(0), "the copy is no second original");
}

#[test]
fn a_dead_letter_is_of_its_group_alone() {
    let (mut bench, p, lease) = leased(1);
    let other = bench.lease(p, "other", 0);
    bench.ack(G, vec![with(lease, item(p, "0", DeadLetter))]);
    let cursor = bench.cursor(p, "other");
    assert_eq!((cursor.next, cursor.lease.unwrap().id), (Offset(0), other));
    assert!(bench.ack("other", vec![with(other, item(p, "0", Completed))])[0].success());
}

#[test]
fn one_flag_does_not_switch_dead_letters_off_and_both_drop() {
    for (dead_letter_queue, dlq_after_max_retries, letters) in
        [(true, false, 1), (false, true, 1), (false, false, 0)]
    {
        let (mut bench, p, lease) = leased(2);
        bench.options("q", |options| {
            options.retry_limit = 0;
            options.dead_letter_queue = dead_letter_queue;
            options.dlq_after_max_retries = dlq_after_max_retries;
        });
        let verdict = bench.ack(G, vec![with(lease, item(p, "0", Failed))])[0];
        assert!(verdict.success());
        assert_eq!(verdict.dead_lettered, letters == 1);
        assert_eq!((next(&bench, p), bench.all_letters().total), (1, letters));
    }
}

#[test]
fn groups_never_affect_each_other() {
    let (mut bench, p, lease) = leased(2);
    bench.lease(p, "other", 1);
    let before = bench.cursor(p, "other");
    bench.ack(G, vec![with(lease, item(p, "1", Completed))]);
    assert_eq!(bench.cursor(p, "other"), before);
}

#[test]
fn an_unknown_id_is_unresolvable_and_costs_no_lease() {
    for status in [Completed, Failed, Retry, DeadLetter] {
        let (mut bench, p, lease) = leased(3);
        let verdict = bench.ack(G, vec![with(lease, item(p, "ghost", status))])[0];
        assert_eq!(verdict.refusal, Some(AckRefusal::Unresolvable));
        assert!(!verdict.lease_released && !verdict.dead_lettered);
        assert!(bench.ack(G, vec![with(lease, item(p, "2", Completed))])[0].success());
    }
}

#[test]
fn an_id_above_the_leased_span_is_unresolvable_even_without_a_lease_id() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["0", "1", "2"]);
    let p = bench.partition("q", "p");
    let lease = bench.lease(p, G, 1);
    for item in [with(lease, item(p, "2", Completed)), item(p, "2", Completed)] {
        assert_eq!(bench.ack(G, vec![item])[0].refusal, Some(AckRefusal::Unresolvable));
    }
    assert_eq!(next(&bench, p), 0);
}

#[test]
fn ids_of_another_partition_or_queue_are_unresolvable() {
    let (mut bench, p, lease) = leased(1);
    bench.push("q", "p2", &["elsewhere"]);
    bench.push("q2", "p", &["far"]);
    let items = ["elsewhere", "far"].map(|id| with(lease, item(p, id, Completed))).to_vec();
    assert_eq!(refusals(&bench.ack(G, items)), [Some(AckRefusal::Unresolvable); 2]);
}

#[test]
fn a_foreign_lease_changes_nothing_and_the_holder_goes_on() {
    let (mut bench, p, lease) = leased(2);
    let before = bench.cursor(p, G);
    for status in [Completed, Failed, Retry, DeadLetter] {
        let mut malformed = item(p, "0", status);
        malformed.lease = Reference::Malformed;
        let items = vec![with(LeaseId(999), item(p, "0", status)), malformed];
        assert_eq!(refusals(&bench.ack(G, items)), [Some(AckRefusal::Lease); 2]);
        assert_eq!(bench.cursor(p, G), before);
    }
    assert!(bench.ack(G, vec![with(lease, item(p, "1", Completed))])[0].success());
}

#[test]
fn a_worker_that_is_too_late_cannot_touch_the_new_holder() {
    let (mut bench, p, late) = leased(1);
    bench.pass(31);
    assert_eq!(bench.ack(G, vec![with(late, item(p, "0", Completed))])[0].refusal, Some(AckRefusal::Lease));
    let lease = bench.lease(p, G, 0);
    let before = bench.cursor(p, G);
    for status in [Completed, Failed, Retry, DeadLetter] {
        assert_eq!(bench.ack(G, vec![with(late, item(p, "0", status))])[0].refusal, Some(AckRefusal::Lease));
    }
    assert_eq!(bench.cursor(p, G), before);
    assert!(bench.ack(G, vec![with(lease, item(p, "0", Completed))])[0].success());
}

#[test]
fn an_expired_lease_can_be_committed_past_without_its_id() {
    let (mut bench, p, _) = leased(2);
    bench.push("q", "p", &["later"]);
    bench.pass(31);
    assert!(bench.ack(G, vec![item(p, "later", Completed)])[0].success(), "unbounded above");
    assert_eq!(next(&bench, p), 3);
}

#[test]
fn without_a_lease_failed_and_retry_have_no_effect_but_the_clamp() {
    let (mut bench, p, _) = leased(4);
    bench.pass(31);
    for status in [Failed, Retry] {
        let before = bench.cursor(p, G);
        assert!(bench.ack(G, vec![item(p, "1", status)])[0].success());
        assert_eq!(bench.cursor(p, G), before);
    }
    let verdicts = bench.ack(G, vec![item(p, "3", Completed), item(p, "1", Failed), item(p, "0", Completed)]);
    assert!(verdicts.iter().all(AckVerdict::success));
    assert_eq!(next(&bench, p), 1);
}

#[test]
fn without_a_lease_a_dead_letter_is_refused_with_the_word_lease() {
    let (mut bench, p, _) = leased(1);
    bench.pass(31);
    let verdict = bench.ack(G, vec![item(p, "0", DeadLetter)])[0];
    assert_eq!(verdict.refusal, Some(AckRefusal::DeadLetterWithoutLease));
    assert!(!verdict.dead_lettered);
    assert!(verdict.refusal.unwrap().to_string().contains("lease"));
    assert_eq!(bench.all_letters().total, 0);
}

#[test]
fn the_repeat_of_a_completing_ack_succeeds_and_the_next_batch_does_not_mind() {
    let (mut bench, p, lease) = leased(2);
    let ack = || vec![with(lease, item(p, "0", Completed)), with(lease, item(p, "1", Completed))];
    bench.ack(G, ack());
    bench.push("q", "p", &["2"]);
    let next_lease = bench.lease(p, G, 2);
    let before = bench.cursor(p, G);
    let again = bench.ack(G, ack());
    assert!(again.iter().all(|verdict| verdict.success() && verdict.noop && verdict.lease_released));
    assert_eq!(bench.cursor(p, G), before);
    let failed = bench.ack(G, vec![with(lease, item(p, "1", Failed))])[0];
    assert_eq!(failed.refusal, Some(AckRefusal::Lease));
    assert!(bench.ack(G, vec![with(next_lease, item(p, "2", Completed))])[0].success());
    assert_eq!(refusals(&bench.ack(G, ack())), [Some(AckRefusal::Lease); 2], "two leases ago");
}

#[test]
fn a_repeat_without_a_lease_id_is_a_noop() {
    let (mut bench, p, lease) = leased(1);
    bench.ack(G, vec![with(lease, item(p, "0", Completed))]);
    let verdict = bench.ack(G, vec![item(p, "0", Completed)])[0];
    assert!(verdict.success() && verdict.noop);
}

#[test]
fn a_group_that_never_popped_is_refused_and_never_succeeds() {
    let (mut bench, p, lease) = leased(1);
    bench.push("q", "p2", &["x"]);
    let p2 = bench.partition("q", "p2");
    let cases = [
        bench.ack("stranger", vec![with(lease, item(p, "0", Completed)), item(p, "0", Completed)]),
        bench.ack(G, vec![item(p2, "x", Completed), item(p2, "x", Failed)]),
    ];
    for verdicts in cases {
        assert_eq!(refusals(&verdicts), [Some(AckRefusal::NoCursor); 2]);
    }
    assert!(AckRefusal::NoCursor.to_string().contains("unresolvable"));
}

#[test]
fn items_that_cannot_be_addressed_are_refused_one_by_one() {
    let (mut bench, p, lease) = leased(2);
    let base = with(lease, item(p, "1", Completed));
    let items = vec![
        AckItem { hash: None, ..base.clone() },
        AckItem { partition: Reference::Absent, ..base.clone() },
        AckItem { partition: Reference::Malformed, ..base.clone() },
        AckItem { partition: Reference::Id(PartitionId(4711)), ..base.clone() },
        base,
    ];
    let verdicts = bench.ack(G, items);
    assert_eq!(
        refusals(&verdicts),
        [
            Some(AckRefusal::NoTransactionId),
            Some(AckRefusal::NoPartitionId),
            Some(AckRefusal::MalformedPartitionId),
            Some(AckRefusal::NoPartition(PartitionId(4711))),
            None
        ]
    );
    assert_eq!(verdicts.iter().map(|verdict| verdict.lease_released).collect::<Vec<_>>()[4..], [true]);
}

#[test]
fn refusals_hold_the_words_that_clients_look_for() {
    for (refusal, word) in [
        (AckRefusal::Lease, "lease"),
        (AckRefusal::Unresolvable, "unresolv"),
        (AckRefusal::AlreadyCommitted, "committed"),
        (AckRefusal::PayloadUnreadable, "dlq rejected"),
        (AckRefusal::PayloadExpired, "dlq rejected"),
        (AckRefusal::CopyWithoutSpace, "dlq rejected"),
        (AckRefusal::CopyTooLarge, "dlq rejected"),
        (AckRefusal::NoTransactionId, "transactionId is required"),
        (AckRefusal::MalformedPartitionId, "partitionId is not a partition id"),
        (AckRefusal::NoPartition(PartitionId(5)), "no partition 5"),
    ] {
        assert!(refusal.to_string().contains(word), "{refusal}");
    }
    assert!(!AckRefusal::AlreadyCommitted.to_string().contains("unresolv"));
    assert!(!AckRefusal::Unresolvable.to_string().contains("committed"));
}

#[test]
fn one_group_may_be_refused_while_others_commit_and_answers_keep_the_request_order() {
    let (mut bench, p, lease) = leased(2);
    bench.push("q2", "p", &["a", "b"]);
    let p2 = bench.partition("q2", "p");
    bench.lease_as(lease, p2, G, 1); // one pop's lease over two partitions
    let items = vec![
        with(LeaseId(5), item(p, "1", Failed)),
        with(lease, item(p2, "b", Completed)),
        with(lease, item(p, "0", Completed)),
        with(LeaseId(5), item(p, "0", Failed)),
        with(lease, item(p2, "a", Completed)),
    ];
    let verdicts = bench.ack(G, items);
    let lease_refused = Some(AckRefusal::Lease);
    assert_eq!(refusals(&verdicts), [lease_refused, None, None, lease_refused, None]);
    let released: Vec<bool> = verdicts.iter().map(|verdict| verdict.lease_released).collect();
    assert_eq!(released, [false, true, false, false, true], "exact per group");
    assert_eq!((next(&bench, p), next(&bench, p2)), (1, 2));
}

#[test]
fn an_ack_that_waits_for_room_keeps_what_is_done() {
    let (mut bench, p, lease) = leased(1);
    bench.push("q2", "p", &["a"]);
    let p2 = bench.partition("q2", "p");
    bench.lease_as(lease, p2, G, 0);
    let items = vec![with(lease, item(p, "0", Completed)), with(lease, item(p2, "a", Completed))];
    let mut work = Work::new(Command::Ack(AckCall { group: G.to_owned(), items }));
    bench.core.journal.now_left.set(Some(1));
    assert!(matches!(bench.run(&mut work), Step::Blocked(Block::Room)));
    assert_eq!((next(&bench, p), next(&bench, p2)), (1, 0));
    bench.pass(31); // the lease ends while it waits
    bench.core.journal.now_left.set(None);
    let Step::Done(Reply::Ack(verdicts)) = bench.run(&mut work) else { panic!() };
    assert_eq!(refusals(&verdicts), [None, Some(AckRefusal::Lease)]);
    assert!(!verdicts[0].noop);
}

#[test]
fn a_full_disk_refuses_no_ack_and_no_dead_letter() {
    let (mut bench, p, lease) = leased(2);
    bench.core.journal.inner.fit = Some(Fit::Full { free_bytes: 0, copies: true });
    assert!(bench.ack(G, vec![with(lease, item(p, "0", DeadLetter))])[0].dead_lettered);
    let lease = bench.lease(p, G, 1);
    assert!(bench.ack(G, vec![with(lease, item(p, "1", Completed))])[0].success());
}

#[test]
fn a_cold_payload_is_loaded_before_anything_is_staged() {
    let (mut bench, p, lease) = leased(3);
    let entries = bench.group("q", "p", &["0", "1", "2"]).entries;
    bench.core.journal.inner.cold = true;
    let before = bench.records();
    let items = vec![with(lease, because("cold", item(p, "1", DeadLetter)))];
    let mut work = Work::new(Command::Ack(AckCall { group: G.to_owned(), items }));
    let step = bench.run(&mut work);
    let Step::Blocked(Block::Load { partition, offset }) = step else { panic!("{step:?}") };
    assert_eq!((partition, offset), (p, Offset(1)));
    assert_eq!(bench.records(), before);
    bench.core.loaded.insert((p, Offset(0)), Ok(Bytes::from(entries)));
    let Step::Done(Reply::Ack(verdicts)) = bench.run(&mut work) else { panic!() };
    assert!(verdicts[0].dead_lettered);
    bench.core.journal.inner.cold = false;
    let page = bench.all_letters();
    assert_eq!(payload(&page.rows[0].copy), ("1".to_owned(), "\"1\"".to_owned()));
    assert_eq!(bench.cursor(p, G).next, Offset(2));
}

#[test]
fn a_payload_that_cannot_be_read_is_not_dead_lettered_and_nothing_changes() {
    let damaged = {
        let (mut bench, ..) = leased(1);
        let mut entries = bench.group("q", "p", &["0", "1", "2"]).entries;
        let last = entries.len() - 1;
        entries[last] ^= 1;
        Ok(Bytes::from(entries))
    };
    for loaded in [Err("I/O error".to_owned()), damaged, Ok(Bytes::new())] {
        let (mut bench, p, lease) = leased(3);
        bench.core.journal.inner.cold = true;
        bench.core.loaded.insert((p, Offset(0)), loaded);
        let (before, cursor) = (bench.records(), bench.cursor(p, G));
        let items = vec![with(lease, item(p, "0", Completed)), with(lease, item(p, "2", DeadLetter))];
        let verdicts = bench.ack(G, items);
        assert_eq!(refusals(&verdicts), [Some(AckRefusal::PayloadUnreadable); 2]);
        assert!(verdicts.iter().all(|verdict| !verdict.dead_lettered && !verdict.lease_released));
        assert_eq!((bench.records(), bench.cursor(p, G)), (before, cursor));
    }
}

#[test]
fn a_copy_larger_than_any_group_is_refused_and_changes_nothing() {
    let (mut bench, p, lease) = leased(2);
    bench.core.journal.limit = Some(10);
    let (before, cursor) = (bench.records(), bench.cursor(p, G));
    let items = vec![with(lease, item(p, "0", Completed)), with(lease, item(p, "1", DeadLetter))];
    let verdicts = bench.ack(G, items);
    assert_eq!(refusals(&verdicts), [Some(AckRefusal::CopyTooLarge); 2]);
    assert!(verdicts.iter().all(|verdict| !verdict.dead_lettered && !verdict.lease_released));
    assert_eq!((bench.records(), bench.cursor(p, G)), (before, cursor));
}

#[test]
fn a_dead_letter_asks_for_room_for_its_copy() {
    let (mut bench, p, lease) = leased(1);
    let entry = bench.group("q", "p", &["0"]).entries.len() as u64;
    bench.ack(G, vec![with(lease, because("why", item(p, "0", DeadLetter)))]);
    let (runs, records) = bench.core.journal.asked.get();
    assert_eq!(runs, entry + 48);
    assert!(records >= 3 * 256 + 3);
}

#[test]
fn an_id_pushed_again_never_hides_the_delivered_copy() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["x", "y"]);
    bench.options("q", |options| options.dedup_window_seconds = 0);
    let p = bench.partition("q", "p");
    bench.push("q", "p", &["x", "z"]);
    let lease = bench.lease(p, G, 3);
    bench.ack(G, vec![with(lease, item(p, "x", Completed)), with(lease, item(p, "x", Completed))]);
    assert_eq!(next(&bench, p), 1, "the lowest copy in the span");
    bench.ack(G, vec![with(lease, item(p, "y", Completed))]);
    let verdict = bench.ack(G, vec![with(lease, item(p, "x", Failed))])[0];
    assert!(verdict.success(), "the later copy, though one below the cursor has the id as well");
    assert_eq!(next(&bench, p), 2);
}

#[test]
fn pushes_do_not_touch_leases_or_cursors() {
    let (mut bench, p, lease) = leased(1);
    let before = bench.cursor(p, G);
    bench.push("q", "p", &["1", "2", "3", "4", "5"]);
    assert_eq!(bench.cursor(p, G), before);
    let verdict = bench.ack(G, vec![with(lease, item(p, "0", Completed))])[0];
    assert!(verdict.lease_released, "the span is what was leased");
    assert_eq!(next(&bench, p), 1);
}

#[test]
fn a_released_partition_is_marked_so_that_polls_wake() {
    use crate::broker::state::Touched;
    let (mut bench, p, lease) = leased(1);
    let group = bench.consumer("q", G);
    bench.core.state.touched.clear();
    bench.ack(G, vec![with(lease, item(p, "0", Failed))]);
    assert!(bench.core.state.touched.contains(&Touched::Cursor(p, group)));
}

#[test]
fn an_empty_call_is_answered_with_nothing() {
    assert_eq!(Bench::new().ack(G, vec![]), []);
}

#[test]
fn hashes_are_of_the_exact_text() {
    assert_ne!(hash("a"), hash("A"));
}
