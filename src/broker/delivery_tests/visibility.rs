//! Delays, windows, ready lists and timers.

use super::bench::{Bench, GROUP, discovery, named, pop, span, waiting};
use crate::broker::command::{Command, Patch, Pop, Reference};
use crate::broker::ready::{Visibility, evaluate};

fn delayed(bench: &mut Bench, delay: u32, window: u32) {
    bench.options("q", |change| {
        change.options.delayed_processing_seconds = Patch::Set(delay);
        change.options.window_buffer_seconds = Patch::Set(window);
    });
}

#[test]
fn a_delayed_message_is_visible_once_its_delay_is_over() {
    let mut bench = Bench::new();
    delayed(&mut bench, 2, 0);
    bench.push("q", "p", 1);
    assert!(bench.spans(pop("q")).is_empty());
    bench.pass_us(1_999_999);
    assert!(bench.spans(pop("q")).is_empty());
    bench.pass_us(1);
    assert_eq!(bench.spans(pop("q")), span("p", 0, 0));
}

#[test]
fn a_claim_ends_where_the_delay_begins() {
    let mut bench = Bench::new();
    delayed(&mut bench, 2, 0);
    bench.push("q", "p", 2);
    bench.pass_ms(1_000);
    bench.push("q", "p", 2);
    bench.pass_ms(1_000);
    let reply = bench.pop(pop("q"));
    assert_eq!(super::bench::spans(&reply), span("p", 0, 1));
    bench.complete(GROUP, &reply);
    assert!(bench.spans(pop("q")).is_empty());
    bench.pass_ms(1_000);
    assert_eq!(bench.spans(pop("q")), span("p", 2, 3));
}

#[test]
fn a_window_holds_a_partition_until_it_has_been_quiet() {
    let mut bench = Bench::new();
    delayed(&mut bench, 0, 2);
    bench.push("q", "p", 1);
    for _ in 0..4 {
        bench.pass_ms(1_500);
        assert!(bench.spans(pop("q")).is_empty());
        bench.push("q", "p", 1);
    }
    bench.push("q", "other", 1);
    bench.pass_us(1_999_999);
    assert!(bench.spans(pop("q")).is_empty());
    bench.pass_us(1);
    assert_eq!(bench.spans(pop("q")), span("p", 0, 4));
    bench.push("q", "other", 1);
    assert!(bench.spans(pop("q")).is_empty(), "it was in the list and is no longer quiet");
}

#[test]
fn delay_and_window_both_apply_and_everything_arrives() {
    let mut bench = Bench::new();
    delayed(&mut bench, 3, 2);
    bench.push("q", "p", 1);
    bench.pass_ms(2_000);
    assert!(bench.spans(pop("q")).is_empty(), "quiet, but delayed");
    bench.push("q", "p", 1);
    bench.pass_ms(1_000);
    assert!(bench.spans(pop("q")).is_empty(), "the delay of the first is over, but not quiet");
    bench.pass_ms(1_000);
    let reply = bench.pop(pop("q"));
    assert_eq!(super::bench::spans(&reply), span("p", 0, 0));
    bench.complete(GROUP, &reply);
    bench.pass_ms(1_000);
    assert_eq!(bench.spans(pop("q")), span("p", 1, 1));
}

#[test]
fn times_are_log_times_so_a_wall_clock_that_jumps_does_nothing() {
    let mut bench = Bench::new();
    delayed(&mut bench, 2, 0);
    bench.push("q", "p", 1);
    bench.hands.set_wall_us(2_800_000_000_000_000);
    bench.core.tick();
    assert!(bench.spans(pop("q")).is_empty());
    bench.hands.set_wall_us(5);
    bench.pass_ms(2_000);
    let reply = bench.pop(Pop { lease_seconds: Some(1), ..pop("q") });
    assert_eq!(super::bench::spans(&reply), span("p", 0, 0));
    bench.hands.set_wall_us(3_800_000_000_000_000);
    bench.core.tick();
    assert!(bench.spans(pop("q")).is_empty(), "the lease is live");
}

#[test]
fn visibility_says_now_later_or_never() {
    let mut bench = Bench::new();
    bench.pop(pop("q"));
    bench.push("q", "p", 2);
    let (partition, group) = (bench.partition("q", "p"), bench.registered("q", GROUP).unwrap());
    let look = |bench: &Bench| evaluate(&bench.core.state, bench.core.now, partition, group);
    assert_eq!(look(&bench), Visibility::Now);
    let reply = bench.pop(Pop { lease_seconds: Some(3), ..pop("q") });
    assert_eq!(look(&bench), Visibility::At(bench.core.now.plus_us(3_000_001)));
    bench.complete(GROUP, &reply);
    assert_eq!(look(&bench), Visibility::Never);
    delayed(&mut bench, 5, 0);
    bench.push("q", "p", 1);
    assert_eq!(look(&bench), Visibility::At(bench.core.now.plus_seconds(5)));
    let group = crate::types::GroupId(99);
    assert_eq!(evaluate(&bench.core.state, bench.core.now, partition, group), Visibility::Never);
}

#[test]
fn a_pair_has_one_timer_whatever_happens_to_it() {
    let mut bench = Bench::new();
    delayed(&mut bench, 0, 2);
    bench.pop(pop("q"));
    bench.pop(named("h", pop("q")));
    for _ in 0..100 {
        bench.push("q", "p", 1);
        bench.pass_ms(10);
    }
    assert_eq!(bench.core.ready.kept(), (2, 2, 2), "one partition, two groups");
    bench.pass_ms(2_000);
    assert_eq!(bench.core.ready.kept(), (2, 2, 0));
    let reply = bench.pop(Pop { batch: 100, ..pop("q") });
    for seconds in 1..50 {
        bench.done(Command::Extend { lease: Reference::Id(reply.lease.unwrap()), seconds: 100 + seconds });
    }
    assert_eq!(bench.core.ready.kept(), (2, 2, 1));
    bench.complete(GROUP, &reply);
    assert_eq!(bench.core.ready.kept(), (1, 2, 0));
}

#[test]
fn a_busy_timer_costs_one_wake_up_per_window() {
    let mut bench = Bench::new();
    delayed(&mut bench, 0, 2);
    bench.pop(pop("q"));
    bench.push("q", "p", 1);
    let first = bench.core.next_due().unwrap();
    for _ in 0..50 {
        bench.pass_ms(10);
        bench.push("q", "p", 1);
    }
    assert_eq!(bench.core.next_due(), Some(first), "pushes do not move it");
    bench.pass_ms(1_500);
    assert_eq!(bench.core.next_due(), Some(bench.core.now.plus_us(500_000)), "it is set anew when it fires");
}

#[test]
fn lists_timers_and_matches_go_with_their_queue() {
    let mut bench = Bench::new();
    for round in 0..20 {
        let queue = format!("n.{round}");
        bench.push(&queue, "a", 2);
        bench.push(&queue, "b", 2);
        for group in ["x", "y"] {
            bench.pop(named(group, pop(&queue)));
        }
        bench.pop(Pop { partitions: 9, ..discovery(Some("n"), None) });
        bench.park(waiting(named("z", discovery(None, Some("none")))));
        bench.delete(&queue);
        assert!(bench.spans(Pop { partitions: 9, ..discovery(Some("n"), None) }).is_empty());
    }
    bench.pass_ms(100_000);
    assert_eq!(bench.core.ready.kept(), (0, 0, 0));
    assert_eq!(bench.core.ready.matching.len(), 0);
    assert!(bench.core.ready.fresh.is_empty() && bench.core.state.touched.is_empty());
    assert_eq!(bench.core.parked.index_entries(), 0);
    bench.core.state.free_some(usize::MAX);
    assert_eq!(bench.core.next_due(), None);
}

#[test]
fn a_deleted_queue_starts_afresh_under_its_name() {
    let mut bench = Bench::new();
    bench.push("q", "p", 3);
    bench.pop(Pop { auto_ack: true, ..pop("q") });
    bench.delete("q");
    assert!(bench.spans(pop("q")).is_empty());
    bench.push("q", "p", 1);
    assert_eq!(bench.spans(pop("q")), span("p", 0, 0));
}

#[test]
fn lists_and_timers_are_rebuilt_at_start() {
    let mut bench = Bench::new();
    bench.options("n.q", |change| {
        change.namespace = Patch::Set("n".to_owned());
        change.options.delayed_processing_seconds = Patch::Set(4);
    });
    for partition in ["leased", "open"] {
        bench.push("n.q", partition, 2);
    }
    bench.pass_ms(4_000);
    let leased = bench.pop(Pop { lease_seconds: Some(10), ..pop("n.q") });
    bench.push("n.q", "late", 1);
    let mut bench = bench.restart(1);
    assert_eq!(bench.core.ready.kept(), (3, 1, 2));
    let reply = bench.pop(Pop { partitions: 9, ..discovery(Some("n"), None) });
    assert_eq!(super::bench::spans(&reply), span("open", 0, 1));
    assert_ne!(reply.lease, leased.lease);
    bench.pass_ms(3_000);
    assert_eq!(bench.spans(pop("n.q")), span("late", 0, 0), "the delay went on");
    bench.pass_ms(6_001);
    let reply = bench.pop(pop("n.q"));
    assert_eq!(super::bench::spans(&reply), span("leased", 0, 1), "so did the lease");
    assert_eq!(reply.claims[0].attempt, 2);
}
