//! Where a group begins.

use super::bench::{Bench, GROUP, discovery, named, pinned, pop, span, spans, waiting};
use crate::broker::command::{Patch, Pop, StartRequest};
use crate::types::{QUEUE_MODE_GROUP, WallTime};

fn new(pop: Pop) -> Pop {
    Pop { start: StartRequest::New, ..pop }
}

#[test]
fn a_group_is_registered_durably_once_at_its_first_pop() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.pop(pop("q"));
    }
    assert_eq!((bench.records_of("Queue"), bench.records_of("Group")), (1, 1));
    bench.pop(named("h", pop("q")));
    assert_eq!(bench.records_of("Group"), 2);
}

#[test]
fn a_pinned_pop_registers_its_group_too() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    assert!(bench.spans(new(pinned("q", "p"))).is_empty());
    assert!(bench.registered("q", GROUP).is_some());
    bench.push("q", "p", 1);
    bench.push("q", "r", 1);
    let mut seen = [bench.spans(pop("q")), bench.spans(pop("q"))].concat();
    seen.sort();
    assert_eq!(
        seen,
        [("p".to_owned(), 1, 1), ("r".to_owned(), 0, 0)],
        "the policy holds for the whole queue"
    );
}

#[test]
fn new_sees_no_backlog_and_everything_after() {
    let mut bench = Bench::new();
    bench.push("q", "p", 3);
    assert!(bench.spans(new(pop("q"))).is_empty());
    bench.push("q", "p", 2);
    assert_eq!(bench.spans(new(pop("q"))), span("p", 3, 4));
}

#[test]
fn new_holds_although_the_wall_clock_steps_back() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    bench.hands.set_wall_us(1_700_000_000_000_000);
    assert!(bench.spans(new(pop("q"))).is_empty(), "stored before");
    bench.hands.set_wall_us(1_600_000_000_000_000);
    bench.push("q", "p", 1);
    assert_eq!(bench.spans(new(pop("q"))), span("p", 1, 1), "stored after");
}

#[test]
fn all_begins_at_the_first_kept_message() {
    let mut bench = Bench::new();
    bench.push("q", "p", 5);
    let partition = bench.partition("q", "p");
    bench.core.state.partitions.get_mut(&partition).unwrap().start.0 = 2;
    assert_eq!(bench.spans(pop("q")), span("p", 2, 4));
}

#[test]
fn from_an_instant_begins_at_the_first_message_not_before_it() {
    let mut bench = Bench::new();
    let mut created = Vec::new();
    for _ in 0..3 {
        bench.push("q", "p", 2);
        created.push(bench.core.state.partitions.get(&bench.partition("q", "p")).unwrap().last_created);
        bench.hands.advance_us(1_000);
    }
    for (group, time, first) in [("at", created[1].0, 2), ("after", created[1].0 + 1, 4), ("old", 0, 0)] {
        let start = StartRequest::From(WallTime(time));
        assert_eq!(bench.spans(Pop { start, ..named(group, pop("q")) }), span("p", first, 5), "{group}");
    }
}

#[test]
fn queue_mode_begins_at_the_oldest_kept_message_whatever_is_asked() {
    let mut bench = Bench::new();
    bench.push("q", "p", 3);
    assert_eq!(bench.spans(new(named(QUEUE_MODE_GROUP, pop("q")))), span("p", 0, 2));
}

#[test]
fn the_registered_policy_wins_over_later_requests() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    bench.pop(new(pop("q")));
    assert!(bench.spans(pop("q")).is_empty(), "all comes too late");
    bench.push("q", "r", 1);
    bench.pop(named("h", pop("q")));
    assert_eq!(bench.spans(new(named("h", pop("q")))), span("r", 0, 0), "new comes too late");
}

#[test]
fn a_partition_born_after_registration_delivers_from_its_start() {
    let mut bench = Bench::new();
    bench.pop(new(pop("q")));
    bench.push("q", "late", 3);
    bench.pass_ms(5_000);
    bench.push("q", "late", 1);
    assert_eq!(bench.spans(new(pop("q"))), span("late", 0, 3));
}

#[test]
fn a_new_group_that_waits_on_an_empty_queue_gets_what_is_pushed_meanwhile() {
    let mut bench = Bench::new();
    let caller = bench.park(waiting(new(pop("q"))));
    bench.push("q", "p", 2);
    assert_eq!(bench.served(), [(caller, span("p", 0, 1))]);
}

#[test]
fn a_new_group_begins_when_its_pop_arrived_not_when_its_queue_appeared() {
    for request in [pinned("n.t", "p"), discovery(Some("n"), None), discovery(None, Some("t"))] {
        let mut bench = Bench::new();
        let caller = bench.park(waiting(new(request)));
        bench.pass_ms(3_000);
        bench.push("n.t", "p", 2);
        assert_eq!(bench.served(), [(caller, span("p", 0, 1))]);
    }
}

#[test]
fn a_poll_about_to_end_still_registers_its_group() {
    let mut bench = Bench::new();
    let caller = bench.park(waiting(new(pinned("q", "p"))));
    bench.pass_ms(19_900);
    bench.push("q", "p", 2);
    bench.pass_ms(100);
    assert_eq!(bench.served(), [(caller, vec![])], "too late to be served");
    assert_eq!(bench.spans(new(pinned("q", "p"))), span("p", 0, 1), "but nothing is missed");
}

#[test]
fn a_pop_that_waits_for_room_keeps_the_instant_at_which_it_arrived() {
    use crate::broker::command::Command;
    use crate::broker::core::{Block, Caller, Step, Work};
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    let mut work = Work::new(Command::Pop(new(pop("q"))));
    bench.core.journal.room = Some(0);
    assert!(matches!(bench.core.execute(Caller(99), &mut work), Step::Blocked(Block::Room)));
    assert!(bench.registered("q", GROUP).is_none());
    bench.core.journal.room = None;
    bench.push("q", "p", 1);
    match bench.core.execute(Caller(99), &mut work) {
        Step::Done(crate::broker::command::Reply::Pop(reply)) => assert_eq!(spans(&reply), span("p", 1, 1)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_waiter_of_a_group_decides_its_policy() {
    let mut bench = Bench::new();
    bench.park(waiting(Pop { start: StartRequest::From(WallTime(5)), ..pinned("q", "x") }));
    bench.park(waiting(new(pinned("q", "p"))));
    bench.push("q", "p", 1);
    let group = bench.registered("q", GROUP).unwrap();
    let start = bench.core.state.groups[&group].start;
    assert_eq!(start, crate::format::delta::StartPolicy::From(WallTime(5)));
}

#[test]
fn discovery_registers_in_every_matching_queue_and_in_no_other() {
    let mut bench = Bench::new();
    for queue in ["n.a", "n.b", "m.c"] {
        bench.push(queue, "p", 1);
    }
    bench.pop(Pop { batch: 1, ..discovery(Some("n"), None) });
    let registered = ["n.a", "n.b", "m.c"].map(|queue| bench.registered(queue, GROUP).is_some());
    assert_eq!(registered, [true, true, false]);
    bench.park(waiting(named("w", discovery(Some("k"), None))));
    bench.push("k.d", "p", 1);
    assert!(bench.registered("k.d", "w").is_some(), "appeared");
    bench.park(waiting(named("w", discovery(Some("k"), None))));
    bench.options("m.c", |change| change.namespace = Patch::Set("k".to_owned()));
    assert!(bench.registered("m.c", "w").is_some(), "came to match");
    bench.options("k.e", |change| change.namespace = Patch::Set("k".to_owned()));
    assert!(bench.registered("k.e", "w").is_some() || bench.core.parked.is_empty());
}

#[test]
fn groups_never_affect_each_other() {
    let mut bench = Bench::new();
    bench.push("q", "p", 4);
    let one = bench.pop(named("one", pop("q")));
    bench.complete("one", &one);
    let two = bench.pop(named("two", pop("q")));
    assert_eq!(spans(&two), span("p", 0, 3));
    assert!(bench.spans(named("one", pop("q"))).is_empty());
    assert_eq!(bench.spans(named(QUEUE_MODE_GROUP, pop("q"))), span("p", 0, 3));
}
