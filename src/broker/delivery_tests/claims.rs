//! What one pop takes.

use super::bench::{Bench, GROUP, Spans, discovery, named, pinned, pop, span, spans};
use crate::broker::command::{AckStatus, Command, Patch, Pop, PopTarget, Reply, StartRequest};
use crate::types::QUEUE_MODE_GROUP;

#[test]
fn a_pop_of_nothing_is_empty_and_has_no_lease() {
    let mut bench = Bench::new();
    for request in [pop("q"), pinned("x", "p"), discovery(Some("n"), None)] {
        let reply = bench.pop(request);
        assert!(reply.claims.is_empty() && reply.lease.is_none());
    }
}

#[test]
fn a_claim_is_one_contiguous_span_from_the_cursor_up_to_the_batch() {
    let mut bench = Bench::new();
    for count in [3, 4, 5] {
        bench.push("q", "p", count);
    }
    let reply = bench.pop(pop("q"));
    assert_eq!(spans(&reply), span("p", 0, 9), "three runs, the last in part");
    assert_eq!(reply.claims[0].pieces.len(), 3);
    let cursor = bench.cursor("q", "p", GROUP);
    assert_eq!((cursor.next.0, cursor.lease.unwrap().end.0), (0, 9), "leased, not committed");
    bench.complete(GROUP, &reply);
    assert_eq!(bench.spans(pop("q")), span("p", 10, 11));
}

#[test]
fn a_claim_skips_what_retention_deleted() {
    let mut bench = Bench::new();
    bench.push("q", "p", 5);
    let reply = bench.pop(Pop { batch: 1, ..pop("q") });
    bench.complete(GROUP, &reply);
    let partition = bench.partition("q", "p");
    bench.core.state.partitions.get_mut(&partition).unwrap().start.0 = 3;
    assert_eq!(bench.spans(pop("q")), span("p", 3, 4));
}

#[test]
fn a_partition_has_one_live_lease_per_group_and_pushes_do_not_touch_it() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    let held = bench.pop(pop("q"));
    bench.push("q", "p", 5);
    let before = bench.cursor("q", "p", GROUP);
    assert!(bench.spans(pop("q")).is_empty(), "the lease is live");
    assert!(bench.spans(pinned("q", "p")).is_empty(), "for a pinned pop as well");
    assert_eq!(bench.cursor("q", "p", GROUP), before);
    assert_eq!(bench.spans(named("other", pop("q"))), span("p", 0, 5), "another group has its own cursor");
    bench.complete(GROUP, &held);
    assert_eq!(bench.spans(pop("q")), span("p", 1, 5));
}

#[test]
fn batch_is_a_cap_over_the_whole_pop() {
    let mut bench = Bench::new();
    for partition in ["a", "b", "c"] {
        bench.push("q", partition, 4);
    }
    let reply = bench.pop(Pop { partitions: 3, ..pop("q") });
    let expected: Spans = vec![("a".to_owned(), 0, 3), ("b".to_owned(), 0, 3), ("c".to_owned(), 0, 1)];
    assert_eq!(spans(&reply), expected);
}

#[test]
fn one_partition_is_claimed_unless_more_are_asked_for() {
    let mut bench = Bench::new();
    bench.push("q", "a", 2);
    bench.push("q", "b", 2);
    assert_eq!(bench.spans(pop("q")), span("a", 0, 1));
}

#[test]
fn all_claims_of_one_pop_share_one_lease_and_no_two_pops_do() {
    let mut bench = Bench::new();
    for partition in ["a", "b", "c"] {
        bench.push("q", partition, 1);
    }
    let two = bench.pop(Pop { partitions: 2, ..pop("q") });
    let one = bench.pop(pop("q"));
    assert_ne!(two.lease, one.lease);
    for partition in ["a", "b"] {
        assert_eq!(bench.cursor("q", partition, GROUP).lease.map(|lease| lease.id), two.lease);
    }
    bench.complete(GROUP, &two);
    assert_eq!(bench.cursor("q", "c", GROUP).lease.map(|lease| lease.id), one.lease);
}

#[test]
fn lease_length_is_the_pops_then_the_queues_then_a_minute() {
    let mut bench = Bench::new();
    bench.options("configured.t", |change| change.options.lease_seconds = Patch::Set(7));
    bench.options("zero.t", |change| change.options.lease_seconds = Patch::Set(0));
    let cases = [
        ("made", None, 60),
        ("configured.t", None, 7),
        ("configured.t", Some(2), 2),
        ("zero.t", None, 60),
        ("made", Some(u32::MAX), u64::from(u32::MAX)),
    ];
    for (index, (queue, own, seconds)) in cases.into_iter().enumerate() {
        let partition = format!("p{index}");
        bench.push(queue, &partition, 1);
        bench.pop(Pop { lease_seconds: own, ..pinned(queue, &partition) });
        let lease = bench.cursor(queue, &partition, GROUP).lease.unwrap();
        assert_eq!(lease.expires, bench.core.now.plus_seconds(seconds), "{queue} {own:?}");
    }
}

#[test]
fn a_discovery_pop_uses_each_queues_own_lease_length_under_one_lease() {
    let mut bench = Bench::new();
    for (queue, seconds) in [("n.a", 5), ("n.b", 9)] {
        bench.options(queue, |change| {
            change.namespace = Patch::Set("n".to_owned());
            change.options.lease_seconds = Patch::Set(seconds);
        });
        bench.push(queue, "p", 1);
    }
    let reply = bench.pop(Pop { partitions: 2, ..discovery(Some("n"), None) });
    for (queue, seconds) in [("n.a", 5), ("n.b", 9)] {
        let lease = bench.cursor(queue, "p", GROUP).lease.unwrap();
        assert_eq!((Some(lease.id), lease.expires), (reply.lease, bench.core.now.plus_seconds(seconds)));
    }
}

#[test]
fn an_expired_lease_is_taken_over_from_the_cursor_under_a_new_id() {
    let mut bench = Bench::new();
    bench.push("q", "p", 5);
    let first = bench.pop(Pop { lease_seconds: Some(1), batch: 3, ..pop("q") });
    bench.pass_us(1_000_000);
    assert!(bench.spans(pop("q")).is_empty(), "it lives through its last microsecond");
    bench.pass_us(1);
    let second = bench.pop(pop("q"));
    assert_eq!(spans(&second), span("p", 0, 4));
    assert_ne!(first.lease, second.lease);
    assert_eq!(second.claims[0].attempt, 2);
    assert!(!bench.core.state.leases.contains_key(&first.lease.unwrap()));
    assert_eq!(bench.cursor("q", "p", GROUP).retries_used, 0, "an expiry costs no retry");
}

#[test]
fn an_expired_lease_is_found_by_a_pop_that_comes_before_the_tick() {
    let mut bench = Bench::new();
    bench.push("q", "p", 1);
    bench.pop(Pop { lease_seconds: Some(1), ..pop("q") });
    bench.core.now = bench.core.now.plus_us(1_000_001);
    assert_eq!(bench.spans(pop("q")), span("p", 0, 0));
}

#[test]
fn delivery_attempt_counts_claims_that_begin_at_the_same_message() {
    let mut bench = Bench::new();
    let ids = bench.push("q", "p", 4);
    let mut attempts = Vec::new();
    let mut claim = |bench: &mut Bench| {
        let reply = bench.pop(pop("q"));
        attempts.push(reply.claims[0].attempt);
        reply
    };
    let reply = claim(&mut bench);
    bench.ack(&reply, &ids[0], AckStatus::Retry);
    let reply = claim(&mut bench); // 2: given back
    bench.ack(&reply, &ids[0], AckStatus::Failed);
    let reply = claim(&mut bench); // 3: failed
    bench.ack(&reply, &ids[0], AckStatus::Completed);
    bench.ack(&reply, &ids[1], AckStatus::Retry);
    claim(&mut bench); // 1: begins elsewhere
    bench.pass_ms(60_001);
    let reply = claim(&mut bench); // 2: the lease ran out
    bench.complete(GROUP, &reply);
    bench.push("q", "p", 1);
    claim(&mut bench); // 1: after a completed batch
    assert_eq!(attempts, [1, 2, 3, 1, 2, 1]);
}

#[test]
fn auto_ack_commits_exactly_what_it_returned() {
    let mut bench = Bench::new();
    bench.push("q", "p", 12);
    bench.push("q", "p", 8);
    let mut seen = Vec::new();
    for batch in [1, 3, 4, 5, 20] {
        let reply = bench.pop(Pop { batch, auto_ack: true, ..pop("q") });
        assert!(reply.lease.is_none() && reply.claims[0].attempt == 1);
        let (_, first, last) = spans(&reply).remove(0);
        assert_eq!(bench.cursor("q", "p", GROUP).next.0, last + 1);
        seen.extend(first..=last);
    }
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
    assert!(bench.spans(Pop { auto_ack: true, ..pop("q") }).is_empty());
    assert!(bench.core.state.leases.is_empty());
}

#[test]
fn auto_ack_commits_every_lane_and_takes_over_an_expired_lease() {
    let mut bench = Bench::new();
    bench.push("q", "a", 2);
    bench.push("q", "b", 2);
    bench.pop(Pop { lease_seconds: Some(1), partitions: 2, ..pop("q") });
    bench.pass_ms(1_001);
    let reply = bench.pop(Pop { auto_ack: true, partitions: 5, ..pop("q") });
    assert_eq!(reply.claims.iter().map(|claim| claim.attempt).collect::<Vec<_>>(), [1, 1]);
    for partition in ["a", "b"] {
        let cursor = bench.cursor("q", partition, GROUP);
        assert_eq!((cursor.next.0, cursor.lease, cursor.attempts), (2, None, 0));
    }
}

#[test]
fn auto_ack_resets_the_retry_budget_as_a_completed_batch_does() {
    let mut bench = Bench::new();
    let ids = bench.push("q", "p", 2);
    let reply = bench.pop(pop("q"));
    bench.ack(&reply, &ids[0], AckStatus::Failed);
    assert_eq!(bench.cursor("q", "p", GROUP).retries_used, 1);
    bench.pop(Pop { auto_ack: true, ..pop("q") });
    assert_eq!(bench.cursor("q", "p", GROUP).retries_used, 0);
}

#[test]
fn only_a_wildcard_pop_creates_its_queue() {
    let mut bench = Bench::new();
    bench.pop(discovery(Some("a"), None));
    bench.pop(pinned("a.b.c", "p"));
    assert_eq!(bench.records(), 0);
    bench.pop(pop("a.b.c"));
    let queue = bench.core.state.queue_named("a.b.c").unwrap();
    assert_eq!((queue.namespace.as_str(), queue.task.as_str()), ("a", "b"));
    assert_eq!(bench.effective("a.b.c").lease_seconds, 60);
    assert_eq!(bench.core.state.partitions.len(), 0);
    bench.pop(pinned("a.b.c", "p"));
    assert_eq!(bench.core.state.partitions.len(), 0, "nor does a pinned pop create its partition");
}

#[test]
fn bytes_are_counted_by_whole_runs() {
    let mut bench = Bench::new();
    bench.core.settings.pop_bytes = 5_000;
    for _ in 0..4 {
        bench.push_sized("q", "p", &[950, 950]);
    }
    assert_eq!(bench.spans(pop("q")), span("p", 0, 3), "two runs of 2 KB fit, three do not");
}

#[test]
fn bytes_end_a_pop_over_several_partitions() {
    let mut bench = Bench::new();
    bench.core.settings.pop_bytes = 5_000;
    for partition in ["a", "b", "c"] {
        bench.push_sized("q", partition, &[2_000]);
    }
    let reply = bench.pop(Pop { partitions: 3, ..pop("q") });
    assert_eq!(reply.claims.len(), 2);
    assert_eq!(bench.spans(pop("q")), span("c", 0, 0), "what did not fit is still to be had");
}

#[test]
fn one_message_is_delivered_whatever_its_size_and_large_runs_in_parts() {
    let mut bench = Bench::new();
    bench.core.settings.pop_bytes = 5_000;
    bench.push_sized("q", "huge", &[50_000]);
    bench.push_sized("q", "long", &[1_900; 10]);
    assert_eq!(bench.spans(pinned("q", "huge")), span("huge", 0, 0));
    let mut seen = Vec::new();
    for _ in 0..5 {
        let (_, first, last) = bench.spans(Pop { auto_ack: true, ..pinned("q", "long") }).remove(0);
        seen.extend(first..=last);
    }
    assert_eq!(seen, (0..10).collect::<Vec<_>>(), "two at a time, by their mean size");
}

#[test]
fn partitions_take_turns_and_none_starves() {
    let mut bench = Bench::new();
    for partition in ["a", "b", "c"] {
        bench.push("q", partition, 4);
    }
    let mut turns = String::new();
    for _ in 0..6 {
        bench.push("q", "a", 1); // a busy one gains nothing
        turns += &bench.spans(Pop { batch: 1, auto_ack: true, ..pop("q") })[0].0;
    }
    for _ in 0..6 {
        let reply = bench.pop(Pop { batch: 1, ..pop("q") });
        turns += &reply.claims[0].partition_name;
        bench.complete(GROUP, &reply);
    }
    assert_eq!(turns, "abcabcabcabc");
}

#[test]
fn queues_take_turns_under_discovery() {
    let mut bench = Bench::new();
    for queue in ["n.a", "n.b", "n.c"] {
        bench.push(queue, queue, 3);
    }
    let mut turns = Vec::new();
    for _ in 0..9 {
        turns.push(bench.spans(Pop { batch: 1, auto_ack: true, ..discovery(Some("n"), None) })[0].0.clone());
    }
    assert_eq!(turns, ["n.a", "n.b", "n.c"].repeat(3));
}

#[test]
fn discovery_matches_every_given_value() {
    let mut bench = Bench::new();
    for queue in ["n.t", "n.u", "m.t"] {
        bench.push(queue, queue, 1);
    }
    let found = |bench: &mut Bench, group: &str, namespace, task| {
        let reply = bench.pop(Pop { partitions: 9, ..named(group, discovery(namespace, task)) });
        spans(&reply).into_iter().map(|(partition, ..)| partition).collect::<Vec<_>>()
    };
    assert_eq!(found(&mut bench, "1", Some("n"), None), ["n.t", "n.u"]);
    assert_eq!(found(&mut bench, "2", None, Some("t")), ["n.t", "m.t"]);
    assert_eq!(found(&mut bench, "3", Some("n"), Some("t")), ["n.t"]);
    assert!(found(&mut bench, "4", Some("x"), Some("t")).is_empty());
    bench.options("m.t", |change| change.namespace = Patch::Set("n".to_owned()));
    assert_eq!(found(&mut bench, "5", Some("n"), Some("t")), ["n.t", "m.t"], "as the queue is now");
    bench.options("n.u", |change| change.task = Patch::Set("v".to_owned()));
    assert_eq!(found(&mut bench, "6", None, Some("v")), ["n.u"], "a task of its own may change, too");
    assert!(found(&mut bench, "7", None, Some("u")).is_empty());
}

#[test]
fn copies_of_dead_letters_are_never_delivered() {
    let mut bench = Bench::new();
    let ids = bench.push("q", "p", 1);
    let reply = bench.pop(pop("q"));
    bench.ack(&reply, &ids[0], AckStatus::DeadLetter);
    assert_eq!(bench.core.state.dead_letters.len(), 1);
    assert_eq!(bench.core.state.partitions.len(), 2, "the copy is in a partition of its own");
    for group in [GROUP, "late", QUEUE_MODE_GROUP] {
        let reply = bench.pop(Pop { partitions: 9, ..named(group, pop("q")) });
        assert!(reply.claims.iter().all(|claim| &*claim.partition_name == "p"), "{group}");
    }
}

#[test]
fn two_groups_and_many_consumers_get_everything_in_order_and_never_twice_at_once() {
    let mut bench = Bench::new();
    let mut seed = 7_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut held: Vec<(&str, crate::broker::command::PopReply)> = Vec::new();
    let mut completed = std::collections::BTreeMap::<(&str, String), u64>::new();
    for round in 0..3_000 {
        match random(4) {
            0 if round < 2_000 => {
                bench.push("q", &format!("p{}", random(5)), usize::try_from(1 + random(4)).unwrap());
            }
            1 => {
                let group = ["one", "two"][usize::try_from(random(2)).unwrap()];
                let (batch, partitions) = (1 + random(6) as u32, 1 + random(3) as u32);
                let start = StartRequest::New;
                let reply = bench.pop(Pop { batch, partitions, start, ..named(group, pop("q")) });
                for (partition, first, last) in spans(&reply) {
                    assert!(last - first < u64::from(batch));
                    let done = completed.get(&(group, partition.clone())).copied();
                    assert!(
                        done.is_none_or(|done| done == first),
                        "{group} {partition} continues where it was"
                    );
                    let taken = held.iter().any(|(other, reply)| {
                        *other == group
                            && reply.claims.iter().any(|claim| *claim.partition_name == *partition)
                    });
                    assert!(!taken, "{group} {partition} is held already");
                }
                if !reply.claims.is_empty() {
                    held.push((group, reply));
                }
            }
            _ if !held.is_empty() => {
                let index = usize::try_from(random(held.len() as u64)).unwrap();
                let (group, reply) = held.swap_remove(index);
                bench.complete(group, &reply);
                for (partition, _, last) in spans(&reply) {
                    completed.insert((group, partition), last + 1);
                }
            }
            _ => {}
        }
    }
    for (group, reply) in held {
        bench.complete(group, &reply);
    }
    for group in ["one", "two"] {
        while let reply = bench.pop(Pop { partitions: 9, batch: 100, ..named(group, pop("q")) })
            && !reply.claims.is_empty()
        {
            bench.complete(group, &reply);
        }
        for partition in 0..5 {
            let name = format!("p{partition}");
            let end = bench.core.state.partitions[&bench.partition("q", &name)].next;
            assert_eq!(bench.cursor("q", &name, group).next, end);
        }
    }
    assert!(bench.core.state.leases.is_empty());
}

#[test]
fn names_that_are_too_long_are_refused_before_anything_is_staged() {
    let mut bench = Bench::new();
    let long = "x".repeat(400);
    let cases = [
        named("123456789012", pop(&long)),
        named("g", pinned(&long, "123456789012")),
        named(&"y".repeat(412), discovery(Some("n"), None)),
    ];
    for request in cases {
        match bench.done(Command::Pop(request)) {
            Reply::Failed(error) => assert!(error.to_string().contains("448"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bench.records(), 0);
    bench.pop(named("12345678901", pop(&long)));
    assert_eq!(bench.records_of("Group"), 1, "447 bytes are allowed");
    let namespace = PopTarget::Discovery { namespace: Some(long), task: None };
    bench.pop(Pop { target: namespace, ..named("123456789012", pop("")) });
    assert_eq!(bench.records_of("Group"), 1, "discovery goes without a queue whose name leaves no room");
}
