use super::ack::payload;
use super::bench::{Bench, because, item, with};
use crate::broker::command::{AckStatus, DeadLetterPage, DeadLetterQuery};

fn reasons(page: &DeadLetterPage) -> Vec<&str> {
    page.rows.iter().map(|row| &*row.error).collect()
}

/// Gives up the next message of a partition.
fn give_up(bench: &mut Bench, queue: &str, group: &str, id: &str) {
    let partition = bench.partition(queue, "p");
    let next = bench.core.state.partitions.get(&partition).unwrap().next.0;
    let lease = bench.lease(partition, group, next - 1);
    let reason = format!("{queue} {group} {id}");
    let ack = with(lease, because(&reason, item(partition, id, AckStatus::DeadLetter)));
    assert!(bench.ack(group, vec![ack])[0].dead_lettered);
}

fn some() -> Bench {
    let mut bench = Bench::new();
    bench.push("a", "p", &["0", "1"]);
    bench.push("b", "p", &["0"]);
    give_up(&mut bench, "a", "g", "0");
    give_up(&mut bench, "b", "g", "0");
    give_up(&mut bench, "a", "h", "0");
    give_up(&mut bench, "a", "g", "1");
    bench
}

#[test]
fn the_newest_failure_comes_first() {
    let mut bench = some();
    let page = bench.all_letters();
    assert_eq!(reasons(&page), ["a g 1", "a h 0", "b g 0", "a g 0"]);
    assert_eq!(page.total, 4);
    assert!(page.rows.is_sorted_by(|a, b| a.failed > b.failed));
    assert_eq!(payload(&page.rows[1].copy).0, "0");
    assert_eq!(payload(&page.rows[0].copy).0, "1");
}

#[test]
fn queue_and_group_filter_together() {
    let mut bench = some();
    let mut ask = |queue: Option<&str>, group: Option<&str>| {
        let query = DeadLetterQuery {
            queue: queue.map(str::to_owned),
            group: group.map(str::to_owned),
            limit: 10,
            offset: 0,
        };
        let page = bench.letters(query);
        assert_eq!(page.total, page.rows.len() as u64);
        reasons(&page).join(", ")
    };
    assert_eq!(ask(Some("a"), None), "a g 1, a h 0, a g 0");
    assert_eq!(ask(None, Some("h")), "a h 0");
    assert_eq!(ask(Some("b"), Some("g")), "b g 0");
    assert_eq!(ask(Some("b"), Some("h")), "");
    assert_eq!(ask(Some("nowhere"), None), "");
}

#[test]
fn pages_pass_over_rows_and_count_all_that_match() {
    let mut bench = some();
    let mut ask = |offset, limit| {
        let query = DeadLetterQuery { queue: Some("a".to_owned()), group: None, limit, offset };
        let page = bench.letters(query);
        (reasons(&page).join(", "), page.total)
    };
    assert_eq!(ask(0, 2), ("a g 1, a h 0".to_owned(), 3));
    assert_eq!(ask(2, 2), ("a g 0".to_owned(), 3));
    assert_eq!(ask(3, 2), (String::new(), 3));
    assert_eq!(ask(0, 0), (String::new(), 3));
    assert_eq!(ask(u64::MAX, u32::MAX), (String::new(), 3));
}

#[test]
fn looking_changes_nothing() {
    let mut bench = some();
    let before = bench.records();
    for _ in 0..10 {
        assert_eq!(bench.all_letters().total, 4);
    }
    assert_eq!(bench.records(), before);
}

#[test]
fn dead_letters_are_rebuilt_from_a_snapshots_records() {
    use crate::broker::state::State;
    use crate::engine::machine::Machine;
    let bench = some();
    let mut again = State::default();
    bench.core.state.snapshot(&mut |delta| again.apply(delta).unwrap());
    assert_eq!(again.dead_letters.len(), 4);
    let group = bench.core.state.queue_named("a").unwrap().groups.get("g").unwrap();
    let copies = again.groups.get(group).unwrap().dead_letter_partition;
    assert!(copies.is_some());
    assert_eq!(copies, bench.core.state.groups.get(group).unwrap().dead_letter_partition);
}
