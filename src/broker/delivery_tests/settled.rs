//! A cursor forgets a settled batch when nobody can ask for it any more, and not before.

use super::bench::{Bench, GROUP, named, pop};
use crate::broker::command::{AckRefusal, AckStatus, PopReply};

/// Beyond the default window of deduplication, for which ids are known.
const FORGOTTEN_MS: u64 = 3_600_000 + 2 * 300_000;

fn repeat(bench: &mut Bench, reply: &PopReply, id: &str) -> Option<AckRefusal> {
    let partition = reply.claims[0].partition;
    bench.try_ack(GROUP, partition, id, AckStatus::Completed, reply.lease).refusal
}

fn settle(bench: &mut Bench) -> (PopReply, String) {
    let ids = bench.push("q", "p", 1);
    let reply = bench.pop(pop("q"));
    bench.complete(GROUP, &reply);
    (reply, ids[0].clone())
}

#[test]
fn a_settled_batch_is_forgotten_with_its_ids() {
    let mut bench = Bench::new();
    let (reply, id) = settle(&mut bench);
    let cursors = |bench: &Bench| (bench.core.state.cursors.idle_len(), bench.core.state.cursors.full_len());
    assert_eq!(cursors(&bench), (0, 1));
    bench.pass_ms(3_500_000);
    assert_eq!(cursors(&bench), (0, 1));
    assert_eq!(repeat(&mut bench, &reply, &id), None);
    let before = bench.records();
    bench.pass_ms(FORGOTTEN_MS - 3_500_000);
    assert_eq!((cursors(&bench), bench.records()), ((1, 0), before + 1));
    assert_eq!(bench.cursor("q", "p", GROUP).next.0, 1);
    assert_eq!(bench.core.next_due(), None, "there is nothing left to forget");
    assert!(repeat(&mut bench, &reply, &id).is_some());
}

#[test]
fn a_repeat_is_answered_for_as_long_as_another_group_keeps_the_ids() {
    let mut bench = Bench::new();
    let (reply, id) = settle(&mut bench);
    let other = bench.pop(named("slow", pop("q")));
    assert_eq!(other.claims.len(), 1);
    bench.pass_ms(10 * FORGOTTEN_MS);
    assert_eq!(repeat(&mut bench, &reply, &id), None);
    let again = bench.pop(named("slow", pop("q")));
    bench.complete("slow", &again);
    bench.pass_ms(FORGOTTEN_MS);
    assert_eq!(bench.core.state.cursors.full_len(), 0);
    let refusal = repeat(&mut bench, &reply, &id);
    assert!(matches!(refusal, Some(AckRefusal::Unresolvable | AckRefusal::Lease)), "{refusal:?}");
}

#[test]
fn what_a_later_delivery_needs_is_not_forgotten() {
    let mut bench = Bench::new();
    settle(&mut bench);
    bench.push("q", "p", 1);
    let reply = bench.pop(pop("q"));
    bench.ack(&reply, "t2", AckStatus::Failed);
    bench.pass_ms(10 * FORGOTTEN_MS);
    let cursor = bench.cursor("q", "p", GROUP);
    assert_eq!((bench.core.state.cursors.full_len(), cursor.retries_used), (1, 1));
}
