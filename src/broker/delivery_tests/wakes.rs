//! Every path to visibility wakes whoever waits.

use super::bench::{Bench, GROUP, discovery, pinned, pop, waiting};
use crate::broker::command::{
    AckStatus, Command, Patch, Pop, PopReply, Reference, Reply, Transaction, TransactionReply,
};

const QUEUE: &str = "n.t";

/// What a setup hands to its trigger.
#[derive(Default)]
struct Held {
    reply: PopReply,
    ids: Vec<String>,
}

/// A path: what is there before the poll parks, and what makes something visible.
type Path = (&'static str, fn(&mut Bench) -> Held, fn(&mut Bench, &Held));

fn nothing(_: &mut Bench) -> Held {
    Held::default()
}

fn held(bench: &mut Bench) -> Held {
    let ids = bench.push(QUEUE, "p", 2);
    let reply = bench.pop(Pop { lease_seconds: Some(2), ..pop(QUEUE) });
    assert_eq!(reply.claims.len(), 1);
    Held { reply, ids }
}

fn half_held(bench: &mut Bench) -> Held {
    let ids = bench.push(QUEUE, "p", 2);
    let reply = bench.pop(Pop { batch: 1, ..pop(QUEUE) });
    Held { reply, ids }
}

fn optioned(bench: &mut Bench, delay: u32, window: u32) -> Held {
    bench.options(QUEUE, |change| {
        change.namespace = Patch::Set("n".to_owned());
        change.task = Patch::Set("t".to_owned());
        change.options.delayed_processing_seconds = Patch::Set(delay);
        change.options.window_buffer_seconds = Patch::Set(window);
    });
    bench.push(QUEUE, "p", 1);
    Held::default()
}

fn push(bench: &mut Bench, _: &Held) {
    bench.push(QUEUE, "p", 1);
}

fn two_seconds(bench: &mut Bench, _: &Held) {
    bench.pass_us(1_999_999);
    assert!(bench.core.answers.is_empty(), "too early");
    assert_eq!(bench.core.next_due(), Some(bench.core.now.plus_us(1)), "the loop wakes for it");
    bench.pass_us(1);
}

const PATHS: [Path; 15] = [
    ("a push that creates its queue", nothing, push),
    (
        "a push to a partition that is done",
        |bench| {
            let held = held(bench);
            bench.complete(GROUP, &held.reply);
            held
        },
        push,
    ),
    ("a transaction's push", nothing, |bench, _| {
        let (group, _) = bench.group_of(QUEUE, "p", &[1]);
        let transaction = Transaction { pushes: vec![group], ..Transaction::default() };
        let reply = bench.done(Command::Transaction(transaction));
        assert!(matches!(reply, Reply::Transaction(TransactionReply::Committed { .. })));
    }),
    ("a failed ack", held, |bench, held| {
        bench.ack(&held.reply, &held.ids[0], AckStatus::Failed);
    }),
    ("a retry", held, |bench, held| {
        bench.ack(&held.reply, &held.ids[1], AckStatus::Retry);
    }),
    ("a dead letter that is passed", held, |bench, held| {
        bench.ack(&held.reply, &held.ids[0], AckStatus::DeadLetter);
    }),
    ("a completed batch with more behind it", half_held, |bench, held| {
        bench.complete(GROUP, &held.reply);
    }),
    ("a claim handed back", held, |bench, held| {
        bench.silent(Command::Return(held.reply.lease.unwrap()));
    }),
    ("the end of a lease", held, |bench, _| {
        bench.pass_us(2_000_000);
        assert!(bench.core.answers.is_empty(), "too early");
        assert_eq!(bench.core.next_due(), Some(bench.core.now.plus_us(1)));
        bench.pass_us(1);
    }),
    ("the end of an extended lease", held, |bench, held| {
        bench.done(Command::Extend { lease: Reference::Id(held.reply.lease.unwrap()), seconds: 5 });
        bench.pass_us(5_000_000);
        assert!(bench.core.answers.is_empty(), "too early");
        bench.pass_us(1);
    }),
    ("the end of a delay", |bench| optioned(bench, 2, 0), two_seconds),
    ("the end of a window", |bench| optioned(bench, 0, 2), two_seconds),
    (
        "options that shorten a delay",
        |bench| optioned(bench, 1_000, 0),
        |bench, _| {
            bench.options(QUEUE, |change| change.options.delayed_processing_seconds = Patch::Set(0));
        },
    ),
    (
        "options that end a window",
        |bench| optioned(bench, 0, 1_000),
        |bench, _| {
            bench.options(QUEUE, |change| change.options.window_buffer_seconds = Patch::Reset);
        },
    ),
    ("a queue that comes back after its deletion", held, |bench, _| {
        bench.delete(QUEUE);
        bench.pass_ms(3_000);
        assert!(bench.core.answers.is_empty(), "a deleted queue answers nobody");
        bench.push(QUEUE, "p", 1);
    }),
];

#[test]
fn every_path_to_visibility_wakes_every_kind_of_poll() {
    for (name, setup, trigger) in PATHS {
        for request in [pop(QUEUE), pinned(QUEUE, "p"), discovery(Some("n"), Some("t"))] {
            for auto_ack in [false, true] {
                let mut bench = Bench::new();
                let held = setup(&mut bench);
                let caller = bench.park(Pop { auto_ack, ..waiting(request.clone()) });
                assert!(bench.core.answers.is_empty());
                trigger(&mut bench, &held);
                let answers = bench.answers();
                assert_eq!(answers.len(), 1, "{name}: {:?}", request.target);
                let (answered, reply) = &answers[0];
                assert_eq!((*answered, reply.claims.len()), (caller, 1), "{name}: {:?}", request.target);
                assert_eq!(reply.lease.is_some(), !auto_ack);
            }
        }
    }
}

#[test]
fn what_is_not_for_a_poll_does_not_wake_it() {
    let mut bench = Bench::new();
    bench.park(waiting(pinned(QUEUE, "p")));
    bench.park(waiting(pop("other")));
    bench.park(waiting(discovery(Some("n"), Some("x"))));
    bench.park(waiting(discovery(Some("x"), None)));
    bench.push(QUEUE, "r", 1);
    bench.pop(super::bench::named("another", pop(QUEUE)));
    assert!(bench.core.answers.is_empty());
}
