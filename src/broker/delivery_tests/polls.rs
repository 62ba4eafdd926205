//! Parked polls: whose turn it is, how they end, what they cost.

use super::bench::{Bench, GROUP, discovery, named, pinned, pop, span, spans, waiting};
use crate::broker::command::{BrokerError, Command, Pop, PopTicket, Reply};
use crate::broker::core::{Block, Caller, Step, Work};

#[test]
fn waiters_are_served_in_the_order_of_their_arrival() {
    let mut bench = Bench::new();
    bench.push("n.t", "first", 1);
    bench.pop(pop("n.t"));
    let callers = [
        bench.park(waiting(pop("n.t"))),
        bench.park(waiting(discovery(Some("n"), None))),
        bench.park(waiting(pop("n.t"))),
        bench.park(waiting(discovery(None, Some("t")))),
    ];
    let mut order = Vec::new();
    for partition in ["a", "b", "c", "d"] {
        bench.push("n.t", partition, 1);
        let served = bench.served();
        assert_eq!(served.len(), 1, "one partition serves one waiter");
        order.push(served[0].0);
    }
    assert_eq!(order, callers);
}

#[test]
fn pinned_waiters_come_first() {
    let mut bench = Bench::new();
    bench.pop(pop("q"));
    let wide = bench.park(waiting(Pop { partitions: 2, ..pop("q") }));
    let narrow = bench.park(waiting(pinned("q", "b")));
    let pushes = ["a", "b"].map(|partition| bench.group_of("q", partition, &[1]).0);
    bench.done(Command::Push(pushes.into()));
    assert_eq!(bench.served(), [(narrow, span("b", 0, 0)), (wide, span("a", 0, 0))]);
}

#[test]
fn as_many_waiters_as_possible_are_served_at_once() {
    let mut bench = Bench::new();
    bench.pop(pop("q"));
    let callers: Vec<Caller> =
        (0..3).map(|_| bench.park(waiting(Pop { partitions: 9, ..pop("q") }))).collect();
    let pushes = ["a", "b", "c", "d"].map(|partition| bench.group_of("q", partition, &[1]).0);
    bench.done(Command::Push(pushes.into()));
    let served = bench.served();
    assert_eq!(served.iter().map(|(caller, _)| *caller).collect::<Vec<_>>(), callers);
    assert_eq!(served.iter().map(|(_, spans)| spans.len()).collect::<Vec<_>>(), [2, 1, 1]);
}

#[test]
fn waiters_that_commit_at_delivery_share_one_partition() {
    let mut bench = Bench::new();
    let callers: Vec<Caller> =
        (0..3).map(|_| bench.park(waiting(Pop { batch: 2, auto_ack: true, ..pop("q") }))).collect();
    bench.push("q", "p", 5);
    let expected =
        vec![(callers[0], span("p", 0, 1)), (callers[1], span("p", 2, 3)), (callers[2], span("p", 4, 4))];
    assert_eq!(bench.served(), expected);
}

#[test]
fn whoever_waits_comes_before_a_pop_that_arrives() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    bench.pop(Pop { lease_seconds: Some(1), ..pop("q") });
    let waiter = bench.park(waiting(pop("q")));
    bench.core.now = bench.core.now.plus_us(1_000_001); // over, but not ticked yet
    assert!(bench.spans(pop("q")).is_empty());
    assert_eq!(bench.served(), [(waiter, span("p", 0, 0))]);
}

#[test]
fn a_quiet_poll_ends_empty_at_its_deadline() {
    let mut bench = Bench::new();
    let caller = bench.park(Pop { wait_us: 2_000_000, ..pop("q") });
    bench.pass_us(1_999_999);
    assert!(bench.served().is_empty());
    bench.pass_us(1);
    assert_eq!(bench.served(), [(caller, vec![])]);
    assert!(bench.core.parked.is_empty());
}

#[test]
fn nothing_is_claimed_in_the_last_moments_before_a_deadline() {
    for (wait_ms, margin_ms) in [(60_000, 250), (10_000, 100), (2_000, 50), (100, 25)] {
        let mut bench = Bench::new();
        bench.park(Pop { wait_us: wait_ms * 1000, ..pop("q") });
        bench.pass_us((wait_ms - margin_ms) * 1000 - 1);
        bench.push("q", "p", 1);
        assert_eq!(bench.served().len(), 1, "{wait_ms}: in time");

        let mut bench = Bench::new();
        let caller = bench.park(Pop { wait_us: wait_ms * 1000, ..pop("q") });
        bench.core.now = bench.core.now.plus_us((wait_ms - margin_ms) * 1000); // and no tick
        bench.push("q", "p", 1);
        assert!(bench.served().is_empty(), "{wait_ms}: too late");
        assert_eq!(bench.spans(pop("q")), span("p", 0, 0), "others get it, as a first delivery");
        bench.pass_ms(margin_ms);
        assert_eq!(bench.served(), [(caller, vec![])]);
    }
}

#[test]
fn a_client_that_left_gets_nothing_and_costs_no_attempt() {
    let mut bench = Bench::new();
    let lost = waiting(pop("q"));
    let presence = lost.presence.clone();
    let lost_caller = bench.park(lost);
    let live_caller = bench.park(waiting(pop("q")));
    presence.leave(); // the message that says so is still on its way
    bench.push("q", "p", 1);
    let answers = bench.answers();
    assert_eq!(answers[0].0, lost_caller);
    assert!(answers[0].1.claims.is_empty());
    assert_eq!((answers[1].0, spans(&answers[1].1)), (live_caller, span("p", 0, 0)));
    assert_eq!(answers[1].1.claims[0].attempt, 1);
    assert_eq!(bench.records_of("Cursor"), 1, "one claim in all");
}

#[test]
fn a_pop_whose_client_left_before_it_was_decided_claims_nothing() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    let request = pop("q");
    request.presence.leave();
    assert!(bench.pop(request).claims.is_empty());
    assert_eq!(bench.records_of("Cursor"), 0);
}

#[test]
fn a_poll_that_is_cancelled_is_forgotten() {
    let mut bench = Bench::new();
    let caller = bench.park(waiting(pop("q")));
    bench.silent(Command::Gone(PopTicket(caller.0)));
    bench.silent(Command::Gone(PopTicket(caller.0)));
    assert!(bench.core.parked.is_empty());
    bench.core.answers.clear();
    bench.push("q", "p", 1);
    assert!(bench.answers().is_empty());
    assert_eq!(bench.spans(pop("q")), span("p", 0, 0));
}

#[test]
fn fifty_clients_that_left_do_not_keep_a_live_one_waiting() {
    let mut bench = Bench::new();
    for _ in 0..50 {
        let lost = waiting(pop("q"));
        let presence = lost.presence.clone();
        bench.park(lost);
        presence.leave();
    }
    bench.park(waiting(pop("q")));
    bench.push("q", "p", 10);
    let claimed: Vec<_> = bench.answers().into_iter().filter(|(_, reply)| !reply.claims.is_empty()).collect();
    assert_eq!(claimed.len(), 1);
    assert_eq!(spans(&claimed[0].1), span("p", 0, 9));
    assert_eq!(claimed[0].1.claims[0].attempt, 1);
}

#[test]
fn parked_polls_are_limited() {
    let mut bench = Bench::new();
    bench.core.settings.parked_polls = 2;
    for _ in 0..2 {
        bench.park(waiting(pop("q")));
    }
    match bench.done(Command::Pop(waiting(pop("q")))) {
        Reply::Failed(error) => assert_eq!(error, BrokerError::TooManyPolls { limit: 2 }),
        other => panic!("{other:?}"),
    }
    bench.push("q", "p", 1);
    assert_eq!(bench.served().len(), 1);
    bench.park(waiting(pop("q")));
}

#[test]
fn a_poll_outlives_the_deletion_of_its_queue() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    bench.pop(Pop { auto_ack: true, ..pop("q") });
    let wild = bench.park(waiting(pop("q")));
    bench.delete("q");
    assert!(bench.served().is_empty());
    bench.pass_ms(20_000);
    assert_eq!(bench.served(), [(wild, vec![])], "empty at the end");
}

#[test]
fn a_parked_poll_costs_nothing_until_something_happens() {
    let mut bench = Bench::new();
    bench.park(waiting(pop("q")));
    let due = bench.core.now.plus_us(20_000_000 - 200_000);
    assert_eq!(bench.core.next_due(), Some(due), "the loop sleeps until the poll closes");
    let records = bench.records();
    bench.core.tick();
    bench.core.settle();
    assert_eq!((bench.core.next_due(), bench.records()), (Some(due), records));
    bench.pass_us(19_800_000);
    assert_eq!(bench.core.next_due(), Some(bench.core.now.plus_us(200_000)), "then until it ends");
}

#[test]
fn ten_thousand_polls_leave_nothing_behind() {
    let mut bench = Bench::new();
    for round in 0..2 {
        for index in 0..10_000 {
            let queue = format!("n.{index}");
            let group = format!("g{}", index % 7);
            bench.park(match index % 3 {
                0 => waiting(named(&group, pinned(&queue, "p"))),
                1 => waiting(named(&group, pop(&queue))),
                _ => waiting(named(&group, discovery(Some(&queue), None))),
            });
        }
        for index in 0..5_000 {
            bench.push(&format!("n.{index}"), "p", 1);
        }
        let served = bench.answers().iter().filter(|(_, reply)| !reply.claims.is_empty()).count();
        assert_eq!(served, 3_334, "round {round}: pinned and wildcard ones");
        bench.pass_ms(20_000);
        assert!(bench.core.parked.is_empty());
        assert_eq!(bench.core.parked.index_entries(), 0);
        bench.core.answers.clear();
        for index in 0..10_000 {
            let name = format!("n.{index}");
            if bench.core.state.queue_named(&name).is_some() {
                bench.delete(&name);
            }
        }
        assert_eq!(bench.core.ready.kept(), (0, 0, 0));
        bench.core.state.free_some(usize::MAX);
        assert_eq!(bench.core.next_due(), None);
    }
}

#[test]
fn shutdown_answers_every_parked_poll_with_nothing() {
    let mut bench = Bench::new();
    let callers = [
        bench.park(waiting(pop("q"))),
        bench.park(waiting(pinned("x", "p"))),
        bench.park(waiting(discovery(Some("n"), None))),
    ];
    bench.core.release_all_parked();
    assert_eq!(bench.served(), callers.map(|caller| (caller, vec![])));
    assert_eq!(bench.core.parked.index_entries(), 0);
}

#[test]
fn a_pop_waits_for_room_with_nothing_done() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    bench.pop(pop("other"));
    for request in [pop("new"), pop("q"), pop("other")] {
        bench.core.journal.room = Some(0);
        let records = bench.records();
        let mut work = Work::new(Command::Pop(request));
        let step = bench.core.execute(Caller(77), &mut work);
        if matches!(step, Step::Done(_)) {
            assert_eq!(bench.records(), records, "nothing to be had needs no room");
            continue;
        }
        assert!(matches!(step, Step::Blocked(Block::Room)));
        assert_eq!(bench.records(), records);
        bench.core.journal.room = None;
        assert!(matches!(bench.core.execute(Caller(77), &mut work), Step::Done(Reply::Pop(_))));
        bench.core.settle();
    }
}

#[test]
fn a_full_disk_does_not_stop_pops() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    bench.core.journal.inner.fit = Some(crate::broker::journal::Fit::Full { free_bytes: 0, copies: true });
    assert_eq!(bench.spans(pop("q")), span("p", 0, 0));
}

#[test]
fn a_pop_takes_what_there_is_room_for() {
    let mut bench = Bench::new();
    bench.pop(pop("q"));
    for partition in ["a", "b", "c"] {
        bench.push("q", partition, 1);
    }
    bench.core.journal.room = Some(2);
    assert_eq!(bench.pop(Pop { partitions: 3, ..pop("q") }).claims.len(), 2);
    bench.core.journal.room = None;
    assert_eq!(bench.spans(pop("q")), span("c", 0, 0));
}

#[test]
fn waiters_that_find_no_room_are_served_when_there_is_some() {
    let mut bench = Bench::new();
    bench.pop(pop("q"));
    let callers = [bench.park(waiting(pop("q"))), bench.park(waiting(pop("q")))];
    for partition in ["a", "b"] {
        let (group, _) = bench.group_of("q", partition, &[1]);
        bench.core.execute(Caller(0), &mut Work::new(Command::Push(vec![group])));
    }
    bench.core.journal.room = Some(1);
    bench.core.settle();
    assert_eq!(bench.served(), [(callers[0], span("a", 0, 0))]);
    assert!(bench.core.wants_room());
    bench.core.tick();
    assert!(bench.served().is_empty() && bench.core.wants_room());
    bench.core.journal.room = None;
    bench.core.settle();
    assert_eq!(bench.served(), [(callers[1], span("b", 0, 0))]);
    assert!(!bench.core.wants_room());
}

#[test]
fn a_waiter_that_found_no_room_keeps_its_turn() {
    let mut bench = Bench::new();
    bench.pop(pop("q"));
    let waiter = bench.park(waiting(pop("q")));
    let (group, _) = bench.group_of("q", "p", &[1]);
    bench.core.execute(Caller(0), &mut Work::new(Command::Push(vec![group])));
    bench.core.journal.room = Some(0);
    bench.core.settle();
    bench.core.journal.room = None;
    assert!(bench.spans(pop("q")).is_empty(), "a later pop does not overtake");
    assert_eq!(bench.served(), [(waiter, span("p", 0, 0))]);
}

#[test]
fn a_queue_that_appears_without_room_registers_its_waiters_later() {
    let mut bench = Bench::new();
    let caller = bench.park(waiting(discovery(Some("n"), None)));
    let (group, _) = bench.group_of("n.t", "p", &[1]);
    bench.core.execute(Caller(0), &mut Work::new(Command::Push(vec![group])));
    bench.core.journal.room = Some(0);
    bench.core.settle();
    assert!(bench.core.wants_room() && bench.registered("n.t", GROUP).is_none());
    bench.core.journal.room = None;
    bench.core.tick();
    assert_eq!(bench.served(), [(caller, span("p", 0, 0))]);
}

#[test]
fn extreme_durations_do_not_overflow() {
    let mut bench = Bench::new();
    bench.park(Pop { wait_us: u64::MAX, ..pop("q") });
    bench.park(Pop { wait_us: 1, ..named("h", pop("q")) });
    bench.pass_ms(1);
    assert_eq!(bench.served().len(), 1);
    bench.push("q", "p", 1);
    assert_eq!(bench.served().len(), 1);
    bench.push("q", "r", 1);
    let request = Pop { lease_seconds: Some(u32::MAX), batch: u32::MAX, partitions: u32::MAX, ..pop("q") };
    assert_eq!(bench.spans(request), span("r", 0, 0));
}
