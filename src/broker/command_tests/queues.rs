use super::bench::{Bench, item, with};
use crate::broker::command::{
    AckStatus, BrokerError, Command, Configure, ConfigureReply, OptionsPatch, Patch, Reference, Reply,
};
use crate::broker::core::{Block, Step, Work};
use crate::broker::journal::Fit;
use crate::types::{Offset, QueueOptions};

fn configure(bench: &mut Bench, change: Configure) -> ConfigureReply {
    match bench.done(Command::Configure(change)) {
        Reply::Configure(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn named(queue: &str) -> Configure {
    Configure { queue: queue.to_owned(), ..Configure::default() }
}

fn delete(bench: &mut Bench, queue: &str) -> bool {
    match bench.done(Command::DeleteQueue(queue.to_owned())) {
        Reply::DeleteQueue(existed) => existed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn configure_creates_with_its_own_defaults_and_no_namespace_from_the_name() {
    let mut bench = Bench::new();
    let reply = configure(&mut bench, named("a.b"));
    assert_eq!((reply.namespace.as_str(), reply.task.as_str()), ("", ""));
    assert_eq!(reply.options, QueueOptions::configured());
    assert_eq!(reply.options.lease_seconds, 300);
    assert_eq!(bench.core.state.queue_named("a.b").unwrap().id, reply.queue);
}

#[test]
fn merge_keeps_what_is_absent_resets_what_is_null_and_sets_what_is_there() {
    let mut bench = Bench::new();
    let set = Configure {
        namespace: Patch::Set("ns".to_owned()),
        task: Patch::Set("t".to_owned()),
        options: OptionsPatch {
            lease_seconds: Patch::Set(10),
            retry_limit: Patch::Set(7),
            priority: Patch::Set(-5),
            ..OptionsPatch::default()
        },
        ..named("q")
    };
    let first = configure(&mut bench, set);
    let merged = configure(
        &mut bench,
        Configure {
            task: Patch::Reset,
            options: OptionsPatch {
                lease_seconds: Patch::Reset,
                dedup_window_seconds: Patch::Set(0),
                ..OptionsPatch::default()
            },
            ..named("q")
        },
    );
    assert_eq!(merged.queue, first.queue);
    assert_eq!((merged.namespace.as_str(), merged.task.as_str()), ("ns", ""));
    assert_eq!(
        merged.options,
        QueueOptions { retry_limit: 7, priority: -5, dedup_window_seconds: 0, ..QueueOptions::configured() }
    );
    let queue = bench.core.state.queue_named("q").unwrap();
    assert_eq!((queue.namespace.as_str(), &queue.options), ("ns", &merged.options));
}

#[test]
fn replace_resets_what_is_absent() {
    let mut bench = Bench::new();
    let options = OptionsPatch { retry_limit: Patch::Set(7), ..OptionsPatch::default() };
    configure(&mut bench, Configure { namespace: Patch::Set("ns".to_owned()), options, ..named("q") });
    let options = OptionsPatch { ttl_seconds: Patch::Set(1), ..OptionsPatch::default() };
    let reply = configure(&mut bench, Configure { options, replace: true, ..named("q") });
    assert_eq!(reply.namespace, "");
    assert_eq!(reply.options, QueueOptions { ttl_seconds: 1, ..QueueOptions::configured() });
}

#[test]
fn every_option_can_be_set_and_comes_back() {
    let all = QueueOptions {
        lease_seconds: 1,
        retry_limit: 2,
        dead_letter_queue: false,
        dlq_after_max_retries: false,
        delayed_processing_seconds: 3,
        window_buffer_seconds: 4,
        dedup_window_seconds: 5,
        retention_enabled: true,
        retention_seconds: 6,
        completed_retention_seconds: 7,
        max_wait_seconds: 8,
        encryption_enabled: true,
        min_pop_wait_ms: 9,
        priority: 10,
        retry_delay_ms: 11,
        ttl_seconds: 12,
        max_size: 13,
        retention_sink_hold: "hold".to_owned(),
        retention_sink_hold_max_seconds: 60,
    };
    let options = OptionsPatch {
        lease_seconds: Patch::Set(1),
        retry_limit: Patch::Set(2),
        dead_letter_queue: Patch::Set(false),
        dlq_after_max_retries: Patch::Set(false),
        delayed_processing_seconds: Patch::Set(3),
        window_buffer_seconds: Patch::Set(4),
        dedup_window_seconds: Patch::Set(5),
        retention_enabled: Patch::Set(true),
        retention_seconds: Patch::Set(6),
        completed_retention_seconds: Patch::Set(7),
        max_wait_seconds: Patch::Set(8),
        encryption_enabled: Patch::Set(true),
        min_pop_wait_ms: Patch::Set(9),
        priority: Patch::Set(10),
        retry_delay_ms: Patch::Set(11),
        ttl_seconds: Patch::Set(12),
        max_size: Patch::Set(13),
        retention_sink_hold: Patch::Set("hold".to_owned()),
        retention_sink_hold_max_seconds: Patch::Set(60),
    };
    assert_eq!(configure(&mut Bench::new(), Configure { options, ..named("q") }).options, all);
}

#[test]
fn merging_into_a_pushed_queue_keeps_what_its_creation_gave() {
    let mut bench = Bench::new();
    bench.push("a.b", "p", &["1"]);
    let created = bench.core.state.queue_named("a.b").unwrap().created;
    let options = OptionsPatch { retry_limit: Patch::Set(1), ..OptionsPatch::default() };
    let reply = configure(&mut bench, Configure { options, ..named("a.b") });
    assert_eq!((reply.namespace.as_str(), reply.task.as_str()), ("a", "b"));
    assert_eq!(reply.options.lease_seconds, 60);
    assert_eq!(bench.core.state.queue_named("a.b").unwrap().created, created);
    assert_eq!(bench.push("a.b", "p", &["1"])[0].offset, Offset(0), "messages are untouched");
}

#[test]
fn configure_of_what_is_there_writes_nothing() {
    let mut bench = Bench::new();
    let first = configure(&mut bench, named("q"));
    let before = bench.records();
    assert_eq!(configure(&mut bench, named("q")), first);
    assert_eq!(bench.records(), before);
}

#[test]
fn configure_waits_for_room_and_works_on_a_full_disk() {
    let mut bench = Bench::new();
    bench.core.journal.inner.fit = Some(Fit::Later);
    let mut work = Work::new(Command::Configure(named("q")));
    assert!(matches!(bench.run(&mut work), Step::Blocked(Block::Room)));
    assert!(bench.core.state.queues.is_empty());
    bench.core.journal.inner.fit = Some(Fit::Full { free_bytes: 0, copies: true });
    assert!(matches!(bench.run(&mut work), Step::Done(Reply::Configure(_))));
}

#[test]
fn an_empty_queue_name_can_be_configured_and_a_long_one_cannot() {
    let mut bench = Bench::new();
    configure(&mut bench, named(""));
    configure(&mut bench, named(&"q".repeat(447 - 36)));
    let reply = bench.done(Command::Configure(named(&"q".repeat(447 - 35))));
    assert!(matches!(reply, Reply::Failed(BrokerError::NameTooLong { bytes: 448, limit: 447 })), "{reply:?}");
}

#[test]
fn delete_says_whether_it_existed_and_a_new_queue_of_that_name_starts_empty() {
    let mut bench = Bench::new();
    assert!(!delete(&mut bench, "q"));
    bench.push("q", "p", &["1", "2"]);
    let p = bench.partition("q", "p");
    let lease = bench.lease(p, "g", 1);
    bench.ack("g", vec![with(lease, item(p, "1", AckStatus::DeadLetter))]);
    assert_eq!(bench.all_letters().total, 1);
    bench.core.journal.inner.fit = Some(Fit::Full { free_bytes: 0, copies: true });
    assert!(delete(&mut bench, "q"));
    bench.core.journal.inner.fit = None;
    assert!(!delete(&mut bench, "q"));
    assert_eq!(bench.all_letters().total, 0, "gone, freed or not");
    while bench.core.state.free_some(1) {}
    let state = &bench.core.state;
    assert!(state.queues.is_empty() && state.partitions.is_empty() && state.groups.is_empty());
    assert!(state.cursors.is_empty() && state.leases.is_empty() && state.dead_letters.is_empty());

    let verdict = bench.push("q", "p", &["1"])[0];
    assert_eq!((verdict.offset, verdict.duplicate), (Offset(0), false));
    assert!(bench.partition("q", "p") > p, "ids are never used again");
    let stale = bench.ack("g", vec![with(lease, item(p, "2", AckStatus::Completed))])[0];
    assert!(!stale.success());
}

#[test]
fn delete_waits_for_room() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1"]);
    bench.core.journal.inner.fit = Some(Fit::Later);
    let mut work = Work::new(Command::DeleteQueue("q".to_owned()));
    assert!(matches!(bench.run(&mut work), Step::Blocked(Block::Room)));
    bench.core.journal.inner.fit = None;
    assert!(matches!(bench.run(&mut work), Step::Done(Reply::DeleteQueue(true))));
}

#[test]
fn a_lease_on_a_deleted_queue_is_gone_before_its_cursor_is() {
    let mut bench = Bench::new();
    bench.push("q", "p", &["1"]);
    let p = bench.partition("q", "p");
    let lease = bench.lease(p, "g", 1);
    assert!(delete(&mut bench, "q"));
    assert!(bench.core.state.has_remains() && bench.core.state.leases.contains_key(&lease));
    let extend = Command::Extend { lease: Reference::Id(lease), seconds: 60 };
    let Reply::Extend(reply) = bench.done(extend) else { panic!("no answer to an extension") };
    assert_eq!(reply.renewed, 0);
    let stale = bench.ack("g", vec![with(lease, item(p, "1", AckStatus::Completed))])[0];
    assert!(!stale.success());
    while bench.core.state.free_some(1) {}
    assert!(bench.core.state.leases.is_empty());
}
