//! The table of decisions, case by case, and against a model that keeps a state per message.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::*;

use super::*;
use AckStatus::{Completed, DeadLetter, Failed, Retry};

const NOW: LogTime = LogTime(5_000_000);
const MINE: LeaseId = LeaseId(0xA);
const OTHER: LeaseId = LeaseId(0xB);
const RULES: Rules = Rules { retry_limit: 3, dead_letters: true, repeats: true };

fn cursor(next: u64, lease_end: Option<u64>) -> CursorState {
    CursorState {
        next: Offset(next),
        retries_used: 2,
        attempt_first: Offset(next),
        attempts: 4,
        lease: lease_end.map(|end| Lease { id: MINE, end: Offset(end), expires: NOW.plus_seconds(30) }),
        settled: None,
    }
}

fn expired(next: u64, lease_end: u64) -> CursorState {
    let mut cursor = cursor(next, Some(lease_end));
    cursor.lease.as_mut().unwrap().expires = LogTime(NOW.0 - 1);
    cursor
}

fn at(offset: u64, status: AckStatus) -> Item<'static> {
    Item { status, found: Found::In(Offset(offset)), error: None }
}

fn below(status: AckStatus) -> Item<'static> {
    Item { status, found: Found::Below, error: None }
}

fn nowhere(status: AckStatus) -> Item<'static> {
    Item { status, found: Found::Nowhere, error: None }
}

fn held<'a>(cursor: &CursorState, items: &[Item<'a>]) -> Decision<'a> {
    decide(cursor, Reference::Id(MINE), items, RULES, NOW)
}

fn leaseless<'a>(cursor: &CursorState, items: &[Item<'a>]) -> Decision<'a> {
    decide(cursor, Reference::Absent, items, RULES, NOW)
}

fn assert_released(decision: &Decision<'_>, released: bool) {
    assert!(decision.verdicts.iter().all(|verdict| verdict.lease_released == released), "{decision:?}");
}

#[test]
fn completing_the_last_message_completes_the_batch() {
    let before = cursor(100, Some(109));
    let decision = held(&before, &[at(109, Completed)]);
    let expected = CursorState {
        next: Offset(110),
        retries_used: 0,
        attempts: 0,
        lease: None,
        settled: Some(MINE),
        ..before
    };
    assert_eq!(decision.state, expected);
    assert_eq!(decision.fate, Fate::Kept);
    assert_eq!(decision.cause, Cause::Ack);
    let verdict = decision.verdicts[0];
    assert!(verdict.success() && verdict.lease_released && !verdict.noop && !verdict.dead_lettered);
}

#[test]
fn completing_each_message_in_one_call_equals_completing_the_last() {
    let before = cursor(100, Some(109));
    let all: Vec<_> = (100..110).rev().map(|offset| at(offset, Completed)).collect();
    assert_eq!(held(&before, &all).state, held(&before, &[at(109, Completed)]).state);
}

#[test]
fn a_partial_ack_completes_what_is_below_and_keeps_the_lease_and_the_budget() {
    let before = cursor(1, Some(3));
    let decision = held(&before, &[at(2, Completed)]);
    assert_eq!(decision.state, CursorState { next: Offset(3), ..before });
    assert_released(&decision, false);
}

#[test]
fn completed_below_the_cursor_is_a_noop_that_succeeds() {
    let before = cursor(3, Some(3));
    let decision = held(&before, &[below(Completed)]);
    assert_eq!(decision.state, before);
    assert!(decision.verdicts[0].success() && decision.verdicts[0].noop);
    assert_released(&decision, false);
}

#[test]
fn a_signal_below_the_cursor_is_refused_as_already_committed() {
    for status in [Failed, Retry, DeadLetter] {
        for decide in [held, leaseless] {
            let before = cursor(3, Some(3));
            let decision = decide(&before, &[below(status)]);
            assert_eq!(decision.state, before);
            assert_eq!(decision.verdicts[0].refusal, Some(AckRefusal::AlreadyCommitted));
            assert!(!decision.verdicts[0].noop);
        }
    }
}

#[test]
fn the_lowest_signal_clamps_a_later_completed_ack() {
    let before = cursor(1, Some(4));
    let items = [at(1, Completed), at(2, Failed), at(3, Completed), at(4, Completed)];
    let decision = held(&before, &items);
    assert_eq!(
        decision.state,
        CursorState { next: Offset(2), retries_used: 3, lease: None, ..before },
        "one charge, released, clamped below the failure"
    );
    assert!(decision.verdicts.iter().all(AckVerdict::success));
    assert_eq!(decision.cause, Cause::Nack);
    assert_released(&decision, true);
}

#[test]
fn many_failures_in_one_group_charge_once() {
    let before = cursor(1, Some(4));
    let items = [at(4, Failed), at(2, Failed), at(3, Failed)];
    assert_eq!(held(&before, &items).state.retries_used, 3);
}

#[test]
fn retry_gives_back_without_a_charge() {
    let before = cursor(1, Some(3));
    let decision = held(&before, &[at(1, Completed), at(2, Retry), at(3, Completed)]);
    assert_eq!(decision.state, CursorState { next: Offset(2), lease: None, ..before });
    assert_eq!(decision.fate, Fate::Kept);
    assert_released(&decision, true);
}

#[test]
fn a_gap_below_a_failed_head_is_delivered_again() {
    let before = cursor(1, Some(9));
    let decision = held(&before, &[at(2, Completed), at(6, Failed)]);
    assert_eq!(decision.state.next, Offset(3));
}

#[test]
fn an_exhausted_head_is_filed_and_everything_below_it_completed() {
    let before = CursorState { retries_used: 3, ..cursor(1, Some(9)) };
    let decision = held(&before, &[at(2, Completed), at(6, Failed), at(8, Completed), at(9, Failed)]);
    assert_eq!(decision.state, CursorState { next: Offset(7), retries_used: 0, lease: None, ..before });
    assert_eq!(
        decision.fate,
        Fate::Filed { offset: Offset(6), retries_used: 3, reason: "Retries exhausted" }
    );
    let flags: Vec<bool> = decision.verdicts.iter().map(|verdict| verdict.dead_lettered).collect();
    assert_eq!(flags, [false, true, false, false], "the flag is the head's");
    assert!(decision.verdicts.iter().all(AckVerdict::success));
    assert_released(&decision, true);
}

#[test]
fn an_exhausted_head_is_dropped_where_dead_letters_are_off() {
    let before = CursorState { retries_used: 3, ..cursor(1, Some(9)) };
    let rules = Rules { dead_letters: false, ..RULES };
    let decision = decide(&before, Reference::Id(MINE), &[at(6, Failed)], rules, NOW);
    assert_eq!(decision.state, CursorState { next: Offset(7), retries_used: 0, lease: None, ..before });
    assert_eq!(decision.fate, Fate::Dropped { offset: Offset(6), retries_used: 3 });
    assert!(!decision.verdicts[0].dead_lettered && decision.verdicts[0].success());
}

#[test]
fn a_retry_limit_of_zero_files_the_first_failure() {
    let before = CursorState { retries_used: 0, ..cursor(1, Some(9)) };
    let rules = Rules { retry_limit: 0, ..RULES };
    let decision = decide(&before, Reference::Id(MINE), &[at(1, Failed)], rules, NOW);
    assert!(matches!(decision.fate, Fate::Filed { retries_used: 0, .. }));
}

#[test]
fn an_explicit_dead_letter_is_filed_whatever_the_budget_and_the_flags() {
    let before = CursorState { retries_used: 0, ..cursor(1, Some(3)) };
    let rules = Rules { dead_letters: false, ..RULES };
    let decision = decide(&before, Reference::Id(MINE), &[at(2, DeadLetter)], rules, NOW);
    assert_eq!(
        decision.fate,
        Fate::Filed { offset: Offset(2), retries_used: 0, reason: "Retries exhausted" }
    );
    assert_eq!(decision.state, CursorState { next: Offset(3), lease: None, ..before });
}

#[test]
fn at_one_offset_dead_letter_beats_failed_beats_retry() {
    let before = cursor(1, Some(3));
    let all = [at(2, Retry), at(2, Failed), at(2, DeadLetter)];
    let decision = held(&before, &all);
    assert!(matches!(decision.fate, Fate::Filed { offset: Offset(2), .. }));
    let flags: Vec<bool> = decision.verdicts.iter().map(|verdict| verdict.dead_lettered).collect();
    assert_eq!(flags, [false, true, true], "a retry was not what filed it");
    let decision = held(&before, &all[..2]);
    assert_eq!((decision.fate, decision.state.retries_used), (Fate::Kept, 3));
}

#[test]
fn a_lower_retry_beats_a_higher_dead_letter() {
    let before = cursor(1, Some(3));
    let decision = held(&before, &[at(3, DeadLetter), at(2, Retry)]);
    assert_eq!(decision.fate, Fate::Kept);
    assert_eq!(decision.state.next, Offset(1));
    assert!(decision.verdicts.iter().all(|verdict| verdict.success() && !verdict.dead_lettered));
}

#[test]
fn the_same_message_completed_and_failed_is_failed() {
    let before = cursor(1, Some(3));
    let decision = held(&before, &[at(2, Completed), at(2, Failed)]);
    assert_eq!(decision.state.next, Offset(1));
}

#[test]
fn an_unresolvable_item_is_refused_and_costs_no_lease() {
    for status in [Completed, Failed, Retry, DeadLetter] {
        let before = cursor(1, Some(3));
        let decision = held(&before, &[nowhere(status)]);
        assert_eq!(decision.state, before);
        assert_eq!(decision.verdicts[0].refusal, Some(AckRefusal::Unresolvable));
        assert_released(&decision, false);
    }
}

#[test]
fn an_unresolvable_sibling_of_a_filed_head_is_refused_and_not_flagged() {
    let before = cursor(1, Some(3));
    let decision = held(&before, &[at(1, DeadLetter), nowhere(DeadLetter)]);
    assert!(decision.verdicts[0].dead_lettered);
    assert_eq!(decision.verdicts[1].refusal, Some(AckRefusal::Unresolvable));
    assert!(!decision.verdicts[1].dead_lettered);
}

#[test]
fn a_foreign_a_malformed_and_an_expired_lease_are_refused_and_change_nothing() {
    let cases = [
        (cursor(1, Some(2)), Reference::Id(OTHER)),
        (cursor(1, Some(2)), Reference::Malformed),
        (cursor(1, None), Reference::Id(MINE)),
        (expired(1, 2), Reference::Id(MINE)),
    ];
    for (before, lease) in cases {
        for status in [Completed, Failed, Retry, DeadLetter] {
            let items = [at(1, status), below(status), nowhere(status)];
            let decision = decide(&before, lease, &items, RULES, NOW);
            assert_eq!((decision.state, decision.fate), (before, Fate::Kept));
            assert!(decision.verdicts.iter().all(|verdict| verdict.refusal == Some(AckRefusal::Lease)));
            assert_released(&decision, false);
        }
    }
}

#[test]
fn a_lease_lives_through_the_microsecond_it_names() {
    let mut before = cursor(1, Some(2));
    before.lease.as_mut().unwrap().expires = NOW;
    assert!(held(&before, &[at(2, Completed)]).verdicts[0].success());
}

#[test]
fn without_a_lease_id_the_check_is_skipped_and_the_batch_of_the_holder_is_completed() {
    let before = cursor(1, Some(2));
    let decision = leaseless(&before, &[at(2, Completed)]);
    assert_eq!(decision.state.next, Offset(3));
    assert_eq!(decision.state.settled, Some(MINE));
    assert_released(&decision, true);
}

#[test]
fn without_a_live_lease_completed_moves_the_cursor_without_an_upper_bound_and_resets_nothing() {
    let before = cursor(1, None);
    let decision = leaseless(&before, &[at(5000, Completed)]);
    assert_eq!(decision.state, CursorState { next: Offset(5001), ..before });
    let before = expired(1, 3);
    let decision = leaseless(&before, &[at(7, Completed)]);
    assert_eq!(decision.state, CursorState { next: Offset(8), lease: None, ..before });
}

#[test]
fn without_a_live_lease_failed_and_retry_only_clamp() {
    for status in [Failed, Retry] {
        for before in [CursorState { retries_used: 9, ..cursor(1, None) }, expired(1, 9)] {
            let decision = leaseless(&before, &[at(2, Completed), at(4, status), at(6, Completed)]);
            assert_eq!(decision.state, CursorState { next: Offset(3), lease: None, ..before });
            assert_eq!(decision.fate, Fate::Kept);
            assert!(decision.verdicts.iter().all(AckVerdict::success));
        }
    }
}

#[test]
fn a_dead_letter_without_a_live_lease_is_never_a_silent_success() {
    for before in [cursor(1, None), expired(1, 9)] {
        let decision = leaseless(&before, &[at(2, Completed), at(4, DeadLetter), at(6, Completed)]);
        assert_eq!(decision.state.next, Offset(3), "it still clamps");
        assert_eq!(decision.fate, Fate::Kept);
        let refusals: Vec<_> = decision.verdicts.iter().map(|verdict| verdict.refusal).collect();
        assert_eq!(refusals, [None, Some(AckRefusal::DeadLetterWithoutLease), None]);
        assert!(!decision.verdicts[1].dead_lettered);
    }
}

#[test]
fn the_repeat_of_a_completing_ack_succeeds_for_completed_items_only() {
    let completed = held(&cursor(1, Some(2)), &[at(2, Completed)]).state;
    let items = [below(Completed), below(Failed), nowhere(Completed), at(3, Completed)];
    let decision = held(&completed, &items);
    assert_eq!(decision.state, completed);
    let first = decision.verdicts[0];
    assert!(first.success() && first.noop && first.lease_released);
    assert!(decision.verdicts[1..].iter().all(|verdict| verdict.refusal == Some(AckRefusal::Lease)));
    let never = decide(&completed, Reference::Id(OTHER), &items[..1], RULES, NOW);
    assert_eq!(never.verdicts[0].refusal, Some(AckRefusal::Lease));
}

#[test]
fn the_repeat_is_known_until_another_lease_completes() {
    let mut state = held(&cursor(1, Some(2)), &[at(2, Completed)]).state;
    state.lease = Some(Lease { id: OTHER, end: Offset(5), expires: NOW.plus_seconds(9) });
    assert!(held(&state, &[below(Completed)]).verdicts[0].success(), "while the next lease runs");
    let nacked = decide(&state, Reference::Id(OTHER), &[at(4, Failed)], RULES, NOW).state;
    assert!(held(&nacked, &[below(Completed)]).verdicts[0].success(), "after the next lease failed");
    let next = decide(&state, Reference::Id(OTHER), &[at(5, Completed)], RULES, NOW).state;
    assert_eq!(held(&next, &[below(Completed)]).verdicts[0].refusal, Some(AckRefusal::Lease));
}

#[test]
fn inside_a_transaction_a_repeat_is_a_foreign_lease() {
    let completed = held(&cursor(1, Some(2)), &[at(2, Completed)]).state;
    let rules = Rules { repeats: false, ..RULES };
    let decision = decide(&completed, Reference::Id(MINE), &[below(Completed)], rules, NOW);
    assert_eq!(decision.verdicts[0].refusal, Some(AckRefusal::Lease));
}

#[test]
fn the_reason_is_the_heads_then_the_first_signals_then_a_fixed_one() {
    let before = cursor(1, Some(5));
    let with = |mut item: Item<'static>, error| {
        item.error = Some(error);
        item
    };
    let reason = |items: &[Item<'static>]| match held(&before, items).fate {
        Fate::Filed { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    let other = with(at(4, Failed), "other");
    assert_eq!(reason(&[other, with(at(2, DeadLetter), "head")]), "head");
    assert_eq!(reason(&[with(at(2, Retry), "retry"), with(at(2, DeadLetter), "head")]), "head");
    assert_eq!(reason(&[with(at(1, Completed), "fine"), at(2, DeadLetter), other]), "other");
    assert_eq!(reason(&[with(at(1, Completed), "fine"), at(2, DeadLetter)]), "Retries exhausted");
}

#[test]
fn an_unreadable_head_takes_the_whole_group_back() {
    let before = cursor(1, Some(5));
    let items = [at(1, Completed), at(2, DeadLetter), below(Completed), nowhere(Completed)];
    let mut decision = held(&before, &items);
    decision.unfiled(&before, &items, AckRefusal::PayloadUnreadable);
    assert_eq!((decision.state, decision.fate), (before, Fate::Kept));
    let refusals: Vec<_> = decision.verdicts.iter().map(|verdict| verdict.refusal).collect();
    let unreadable = Some(AckRefusal::PayloadUnreadable);
    assert_eq!(refusals, [unreadable, unreadable, None, Some(AckRefusal::Unresolvable)]);
    assert_released(&decision, false);
    assert!(decision.verdicts.iter().all(|verdict| !verdict.dead_lettered));
}

#[test]
fn an_id_resolves_to_its_lowest_offset_in_the_span() {
    let offsets = |list: &'static [u64]| list.iter().map(|offset| Offset(*offset));
    let leased = Span::of(&cursor(10, Some(19)), NOW);
    assert_eq!(leased.locate(offsets(&[15, 12, 3])), Found::In(Offset(12)));
    assert_eq!(leased.locate(offsets(&[25, 12, 3])), Found::In(Offset(12)), "a re-push hides nothing");
    assert_eq!(leased.locate(offsets(&[12, 9])), Found::In(Offset(12)), "in the span beats below");
    assert_eq!(leased.locate(offsets(&[20])), Found::Nowhere, "above the lease");
    assert_eq!(leased.locate(offsets(&[25, 9])), Found::Below);
    assert_eq!(leased.locate(offsets(&[9])), Found::Below);
    assert_eq!(leased.locate(offsets(&[19, 10])), Found::In(Offset(10)), "both ends belong to it");
    assert_eq!(leased.locate(offsets(&[])), Found::Nowhere);
    for free in [cursor(10, None), expired(10, 19)] {
        assert_eq!(Span::of(&free, NOW).locate(offsets(&[5000])), Found::In(Offset(5000)));
    }
}

/// What a broker with a state per message does: it looks at every message of the span in turn.
struct Model {
    done: Vec<bool>,
    released: bool,
    retries_used: u32,
    given_up: Option<(u64, bool)>,
    completed_batch: bool,
}

fn model(next: u64, end: Option<u64>, retries_used: u32, rules: Rules, items: &[(u64, AckStatus)]) -> Model {
    let last = end.unwrap_or(MESSAGES - 1);
    let mut model = Model {
        done: (0..MESSAGES).map(|offset| offset < next).collect(),
        released: false,
        retries_used,
        given_up: None,
        completed_batch: false,
    };
    let mut pending = Vec::new();
    for offset in next..=last {
        let named: Vec<AckStatus> = items.iter().filter(|item| item.0 == offset).map(|item| item.1).collect();
        pending.push(offset);
        let has = |status| named.contains(&status);
        if has(Failed) || has(Retry) || has(DeadLetter) {
            if end.is_some() {
                model.released = true;
                let exhausted = has(Failed) && retries_used >= rules.retry_limit;
                if has(DeadLetter) || exhausted {
                    let filed = has(DeadLetter) || rules.dead_letters;
                    model.given_up = Some((offset, filed));
                    model.retries_used = 0;
                    pending.iter().for_each(|offset| model.done[*offset as usize] = true);
                } else if has(Failed) {
                    model.retries_used += 1;
                }
            }
            return model;
        }
        if has(Completed) {
            pending.drain(..).for_each(|offset| model.done[offset as usize] = true);
        }
    }
    if end.is_some() && model.done[..=last as usize].iter().all(|done| *done) {
        (model.released, model.retries_used, model.completed_batch) = (true, 0, true);
    }
    model
}

const MESSAGES: u64 = 12;

fn statuses() -> impl Strategy<Value = AckStatus> {
    prop_oneof![6 => Just(Completed), 1 => Just(Failed), 1 => Just(Retry), 1 => Just(DeadLetter)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_offset_decides_as_a_state_per_message_would(
        next in 0..MESSAGES,
        span in proptest::option::of(0..MESSAGES),
        retries_used in 0_u32..4,
        retry_limit in 0_u32..4,
        dead_letters: bool,
        items in proptest::collection::vec((0..MESSAGES + 2, statuses()), 0..8),
    ) {
        let end = span.map(|span| (next + span).min(MESSAGES - 1));
        let before = CursorState { retries_used, ..cursor(next, end) };
        let rules = Rules { retry_limit, dead_letters, repeats: true };
        let span = Span::of(&before, NOW);
        let resolved: Vec<Item<'_>> = items
            .iter()
            .map(|(offset, status)| {
                let stored = (*offset < MESSAGES).then_some(Offset(*offset));
                Item { status: *status, found: span.locate(stored.into_iter()), error: None }
            })
            .collect();
        let decision = decide(&before, Reference::Absent, &resolved, rules, NOW);
        let model = model(next, end, retries_used, rules, &items);

        let first_open = model.done.iter().position(|done| !done).map_or(MESSAGES, |index| index as u64);
        prop_assert_eq!(decision.state.next.0, first_open);
        prop_assert_eq!(decision.state.retries_used, model.retries_used);
        prop_assert_eq!(decision.state.lease.is_none(), end.is_none() || model.released);
        prop_assert_eq!(decision.state.settled.is_some(), model.completed_batch);
        let given_up = match decision.fate {
            Fate::Kept => None,
            Fate::Filed { offset, .. } => Some((offset.0, true)),
            Fate::Dropped { offset, .. } => Some((offset.0, false)),
        };
        prop_assert_eq!(given_up, model.given_up);
        for ((offset, status), verdict) in items.iter().zip(&decision.verdicts) {
            let inside = *offset >= next && *offset <= end.unwrap_or(MESSAGES - 1);
            let was_done = *offset < next;
            let expected = match status {
                Completed => inside || was_done,
                DeadLetter => inside && end.is_some(),
                Failed | Retry => inside,
            };
            prop_assert_eq!(verdict.success(), expected);
            prop_assert_eq!(verdict.noop, was_done && *status == Completed);
            // A signal that was heard is never behind the cursor unless its message was given up.
            if inside && *status != Completed && model.given_up.is_none_or(|(given_up, _)| given_up < *offset) {
                prop_assert!(decision.state.next.0 <= *offset);
            }
        }
    }
}
