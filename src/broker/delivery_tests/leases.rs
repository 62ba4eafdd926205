//! Leases that are extended and handed back.

use super::bench::{Bench, GROUP, discovery, pop, span, spans, waiting};
use crate::broker::command::{AckStatus, Command, ExtendReply, Patch, Pop, PopReply, Reference, Reply};
use crate::broker::core::{Block, Caller, Step, Work};
use crate::types::{LeaseId, WallTime};

const NOT_RENEWED: ExtendReply = ExtendReply { renewed: 0, expires: None };

fn extend(bench: &mut Bench, lease: Reference<LeaseId>, seconds: u32) -> ExtendReply {
    match bench.done(Command::Extend { lease, seconds }) {
        Reply::Extend(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn id(reply: &PopReply) -> Reference<LeaseId> {
    Reference::Id(reply.lease.unwrap())
}

#[test]
fn an_extension_renews_every_partition_of_the_pop_and_shows_the_earliest_end() {
    let mut bench = Bench::new();
    for (queue, seconds) in [("n.a", 5), ("n.b", 50)] {
        bench.options(queue, |change| {
            change.namespace = Patch::Set("n".to_owned());
            change.options.lease_seconds = Patch::Set(seconds);
        });
        bench.push(queue, "p", 1);
    }
    let reply = bench.pop(Pop { partitions: 2, ..discovery(Some("n"), None) });
    let wall = 1_800_000_000_000_000;
    let renewed = extend(&mut bench, id(&reply), 10);
    assert_eq!(renewed, ExtendReply { renewed: 2, expires: Some(WallTime(wall + 10_000_000)) });
    let expires = |bench: &Bench, queue| bench.cursor(queue, "p", GROUP).lease.unwrap().expires;
    assert_eq!(expires(&bench, "n.a"), bench.core.now.plus_seconds(10));
    assert_eq!(expires(&bench, "n.b"), bench.core.now.plus_seconds(50), "never shortened");
}

#[test]
fn an_extension_that_changes_nothing_counts_but_writes_nothing() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    let reply = bench.pop(pop("q"));
    let records = bench.records();
    let renewed = extend(&mut bench, id(&reply), 1);
    assert_eq!(renewed.expires, Some(WallTime(1_800_000_000_000_000 + 60_000_000)));
    assert_eq!((renewed.renewed, bench.records()), (1, records));
}

#[test]
fn a_lease_renewed_in_time_stays_ours() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    let reply = bench.pop(Pop { lease_seconds: Some(2), ..pop("q") });
    for _ in 0..2 {
        bench.pass_ms(1_500);
        assert_eq!(extend(&mut bench, id(&reply), 2).renewed, 1);
    }
    bench.pass_ms(1_500);
    assert!(bench.spans(pop("q")).is_empty(), "4.5 s into a lease of 2 s");
    bench.complete(GROUP, &reply);
}

#[test]
fn a_lease_that_is_over_cannot_be_renewed() {
    let mut bench = Bench::new();
    bench.push("q", "p", 2);
    let expired = bench.pop(Pop { lease_seconds: Some(1), ..pop("q") });
    bench.pass_us(1_000_000);
    assert_eq!(extend(&mut bench, id(&expired), 1).renewed, 1, "it lives through its last microsecond");
    bench.pass_us(1_000_001);
    assert_eq!(extend(&mut bench, id(&expired), 60), NOT_RENEWED, "although nobody took it over");
    let holder = bench.pop(pop("q"));
    let before = bench.cursor("q", "p", GROUP);
    assert_eq!(extend(&mut bench, id(&expired), 600), NOT_RENEWED, "nor afterwards");
    assert_eq!(bench.cursor("q", "p", GROUP), before, "the new holder is untouched");
    bench.complete(GROUP, &holder);
    for lease in [id(&holder), Reference::Id(LeaseId(5)), Reference::Absent, Reference::Malformed] {
        assert_eq!(extend(&mut bench, lease, 60), NOT_RENEWED);
    }
}

#[test]
fn only_what_is_still_held_is_renewed() {
    let mut bench = Bench::new();
    let ids = bench.push("q", "a", 1);
    bench.push("q", "b", 1);
    let reply = bench.pop(Pop { partitions: 2, ..pop("q") });
    bench.ack(&reply, &ids[0], AckStatus::Completed);
    assert_eq!(extend(&mut bench, id(&reply), 100).renewed, 1);
}

#[test]
fn a_claim_handed_back_is_delivered_again_as_if_for_the_first_time() {
    let mut bench = Bench::new();
    for partition in ["a", "b"] {
        bench.push("q", partition, 2);
    }
    let lost = bench.pop(Pop { partitions: 2, ..pop("q") });
    bench.silent(Command::Return(lost.lease.unwrap()));
    let cursor = bench.cursor("q", "a", GROUP);
    assert_eq!((cursor.next.0, cursor.lease, cursor.attempts, cursor.retries_used), (0, None, 0, 0));
    let reply = bench.pop(Pop { partitions: 2, ..pop("q") });
    assert_eq!(reply.claims.iter().map(|claim| claim.attempt).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(spans(&reply).len(), 2);
}

#[test]
fn a_claim_handed_back_keeps_the_attempts_before_it() {
    let mut bench = Bench::new();
    let ids = bench.push("q", "p", 1);
    let first = bench.pop(pop("q"));
    bench.ack(&first, &ids[0], AckStatus::Failed);
    let second = bench.pop(pop("q"));
    assert_eq!(second.claims[0].attempt, 2);
    bench.silent(Command::Return(second.lease.unwrap()));
    assert_eq!(bench.pop(pop("q")).claims[0].attempt, 2);
    assert_eq!(bench.cursor("q", "p", GROUP).retries_used, 1);
}

#[test]
fn a_claim_handed_back_goes_to_whoever_waits() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    let lost = bench.pop(pop("q"));
    let caller = bench.park(waiting(pop("q")));
    bench.silent(Command::Return(lost.lease.unwrap()));
    let answers = bench.answers();
    assert_eq!((answers[0].0, spans(&answers[0].1)), (caller, span("p", 0, 0)));
    assert_eq!(answers[0].1.claims[0].attempt, 1);
}

#[test]
fn only_the_live_holder_can_hand_back() {
    let mut bench = Bench::new();
    let ids = bench.push("q", "p", 3);
    let stale = bench.pop(Pop { lease_seconds: Some(1), ..pop("q") });
    bench.pass_ms(1_001);
    let records = bench.records();
    bench.silent(Command::Return(stale.lease.unwrap()));
    let holder = bench.pop(pop("q"));
    bench.silent(Command::Return(stale.lease.unwrap()));
    bench.silent(Command::Return(LeaseId(9)));
    assert_eq!(bench.records(), records + 1, "the claim alone");
    bench.ack(&holder, &ids[0], AckStatus::Completed);
    bench.silent(Command::Return(holder.lease.unwrap()));
    let lease = bench.cursor("q", "p", GROUP).lease.map(|lease| lease.id);
    assert_eq!(lease, holder.lease, "something was acknowledged, so somebody has it");
}

#[test]
fn extensions_and_returns_wait_for_room() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    let reply = bench.pop(pop("q"));
    let lease = reply.lease.unwrap();
    for command in [Command::Extend { lease: Reference::Id(lease), seconds: 100 }, Command::Return(lease)] {
        let mut work = Work::new(command);
        bench.core.journal.room = Some(0);
        assert!(matches!(bench.core.execute(Caller(9), &mut work), Step::Blocked(Block::Room)));
        bench.core.journal.room = Some(1);
        assert!(!matches!(bench.core.execute(Caller(9), &mut work), Step::Blocked(_)));
        assert_eq!(bench.core.journal.room, Some(0));
    }
    assert!(bench.core.state.leases.is_empty());
    let mut work = Work::new(Command::Return(lease));
    assert!(matches!(bench.core.execute(Caller(9), &mut work), Step::Silent), "nothing to do needs no room");
}

#[test]
fn a_lease_survives_a_restart_and_no_id_is_given_twice() {
    let mut bench = Bench::new();
    bench.push("q", "a", 1);
    bench.push("q", "b", 1);
    let held = bench.pop(Pop { lease_seconds: Some(10), ..pop("q") });
    let mut bench = bench.restart(0);
    let other = bench.pop(pop("q"));
    assert_eq!(spans(&other), span("b", 0, 0), "the first is still held");
    assert_ne!(held.lease, other.lease);
    assert_eq!(extend(&mut bench, id(&held), 20).renewed, 1);
}
