//! Latencies, errors and the line that a run prints.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};

/// Longest latency that is told apart, in microseconds: ten minutes.
const LONGEST_US: u64 = 600_000_000;

/// Samples of bad answers that one worker prints.
const SAMPLES: u32 = 3;

/// Lateness of a timer that is the load generator's own and not charged to the server.
const TIMER_SLACK: Duration = Duration::from_millis(2);

/// A histogram of microseconds with three significant digits.
pub(crate) struct Latency(Histogram<u64>);

impl Latency {
    /// An empty one.
    pub(crate) fn new() -> Latency {
        Latency(Histogram::new_with_bounds(1, LONGEST_US, 3).expect("constant bounds are valid"))
    }

    /// One latency; above ten minutes it counts as ten minutes.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(LONGEST_US));
    }

    /// Adds everything of another one.
    pub(crate) fn merge(&mut self, other: &Latency) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Percentiles, in microseconds.
    pub(crate) fn json(&self) -> Value {
        json!({
            "p50": self.0.value_at_quantile(0.5),
            "p90": self.0.value_at_quantile(0.9),
            "p99": self.0.value_at_quantile(0.99),
            "p999": self.0.value_at_quantile(0.999),
            "max": self.0.max(),
        })
    }
}

/// Decides when a worker sends, and from when its latency counts.
///
/// Paced: requests are due at fixed instants. One whose connection was still busy counts from when it was due,
/// and what was due but never sent before the end counts as waiting until then. So a server that stops for a
/// second shows a second in many requests and not in one.
pub(crate) struct Pacer {
    interval: Option<Duration>,
    due: Instant,
    end: Instant,
}

impl Pacer {
    /// `rate` is over all `workers`; their due times are spread evenly.
    pub(crate) fn new(
        rate: Option<f64>,
        workers: usize,
        worker: usize,
        start: Instant,
        length: Duration,
    ) -> Pacer {
        let interval = rate.map(|rate| Duration::from_secs_f64(workers as f64 / rate));
        let due = start + interval.map_or(Duration::ZERO, |i| i.mul_f64(worker as f64 / workers as f64));
        Pacer { interval, due, end: start + length }
    }

    /// Waits until the next request may be sent. `None`: the run is over.
    pub(crate) async fn turn(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let Some(interval) = self.interval else {
            return (now < self.end).then_some(now);
        };
        if self.due >= self.end || now >= self.end {
            return None;
        }
        let due = self.due;
        self.due += interval;
        if now >= due {
            return Some(due);
        }
        tokio::time::sleep_until(due.into()).await;
        Some(counted_from(due, Instant::now()))
    }

    /// Whether requests are due at fixed instants.
    pub(crate) fn paced(&self) -> bool {
        self.interval.is_some()
    }

    /// How long every request that was due and never sent had waited when the run ended.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = Duration> {
        let (end, first) = (self.end, self.due);
        let interval = self.interval;
        (0u32..).map_while(move |n| {
            let due = first + interval?.checked_mul(n)?;
            (due < end).then(|| end - due)
        })
    }
}

/// A request of an idle connection counts from when it went out, unless that was later than a timer explains.
fn counted_from(due: Instant, sent: Instant) -> Instant {
    sent.min(due + TIMER_SLACK)
}

/// What went wrong, counted.
#[derive(Default)]
pub(crate) struct Errors {
    by_kind: BTreeMap<String, u64>,
    sampled: u32,
}

impl Errors {
    /// An answer with a status that is none of those expected.
    pub(crate) fn status(&mut self, doing: &str, status: u16, body: &[u8]) {
        self.add(&format!("status_{status}"), 1);
        self.sample(|| {
            let text: String = String::from_utf8_lossy(body.get(..300).unwrap_or(body)).into_owned();
            format!("{doing}: status {status}: {text}")
        });
    }

    /// Anything else, with a word for the counter and a text for people.
    pub(crate) fn other(&mut self, word: &str, doing: &str, text: &dyn std::fmt::Display) {
        self.add(word, 1);
        self.sample(|| format!("{doing}: {text}"));
    }

    /// Counts without a sample.
    pub(crate) fn add(&mut self, word: &str, count: u64) {
        if count > 0 {
            *self.by_kind.entry(word.to_owned()).or_default() += count;
        }
    }

    /// Adds those of another worker.
    pub(crate) fn merge(&mut self, other: Errors) {
        for (word, count) in other.by_kind {
            *self.by_kind.entry(word).or_default() += count;
        }
    }

    /// Whether there was any.
    pub(crate) fn any(&self) -> bool {
        !self.by_kind.is_empty()
    }

    fn sample(&mut self, text: impl Fn() -> String) {
        if self.sampled < SAMPLES {
            self.sampled += 1;
            eprintln!("combload: {}", text());
        }
    }
}

/// What one worker did.
pub(crate) struct Tally {
    /// Latency of what the subcommand is about.
    pub(crate) latency: Latency,
    /// Answered requests of any kind.
    pub(crate) requests: u64,
    /// Messages stored, delivered or acknowledged, by subcommand.
    pub(crate) messages: u64,
    /// What went wrong.
    pub(crate) errors: Errors,
    /// More counters for the line.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// More latencies for the line.
    pub(crate) others: BTreeMap<&'static str, Latency>,
}

impl Tally {
    /// Nothing yet.
    pub(crate) fn new() -> Tally {
        Tally {
            latency: Latency::new(),
            requests: 0,
            messages: 0,
            errors: Errors::default(),
            counts: BTreeMap::new(),
            others: BTreeMap::new(),
        }
    }

    /// Adds to a counter of the line.
    pub(crate) fn count(&mut self, word: &'static str, number: u64) {
        *self.counts.entry(word).or_default() += number;
    }

    /// Adds to a further latency of the line.
    pub(crate) fn other(&mut self, word: &'static str, latency: Duration) {
        self.others.entry(word).or_insert_with(Latency::new).record(latency);
    }

    /// Adds everything that another worker did.
    pub(crate) fn merge(&mut self, other: Tally) {
        self.latency.merge(&other.latency);
        self.requests += other.requests;
        self.messages += other.messages;
        self.errors.merge(other.errors);
        for (word, number) in other.counts {
            self.count(word, number);
        }
        for (word, latency) in &other.others {
            self.others.entry(word).or_insert_with(Latency::new).merge(latency);
        }
    }

    /// The run's report.
    pub(crate) fn report(self, elapsed: Duration) -> Report {
        Report { tally: self, elapsed }
    }
}

/// Everything about a run.
pub(crate) struct Report {
    tally: Tally,
    elapsed: Duration,
}

impl Report {
    /// Whether anything went wrong.
    pub(crate) fn failed(&self) -> bool {
        self.tally.errors.any()
    }

    /// The one line.
    pub(crate) fn line(&self, subcommand: &str, params: &impl Serialize) -> String {
        let tally = &self.tally;
        let seconds = self.elapsed.as_secs_f64();
        let rate = |number: u64| (number as f64 / seconds.max(1e-9)).round();
        let line = Line {
            subcommand,
            params,
            seconds: (seconds * 1e3).round() / 1e3,
            messages: tally.messages,
            messages_per_s: rate(tally.messages),
            requests: tally.requests,
            requests_per_s: rate(tally.requests),
            latency_us: tally.latency.json(),
            counts: &tally.counts,
            others: tally.others.iter().map(|(word, latency)| (*word, latency.json())).collect(),
            errors: &tally.errors.by_kind,
            conditions: conditions(),
        };
        serde_json::to_string(&line).expect("numbers and strings always serialise")
    }
}

/// The line's fields in the order in which people look for them.
#[derive(Serialize)]
struct Line<'a, P: Serialize> {
    subcommand: &'a str,
    params: &'a P,
    seconds: f64,
    messages: u64,
    messages_per_s: f64,
    requests: u64,
    requests_per_s: f64,
    latency_us: Value,
    #[serde(flatten)]
    counts: &'a BTreeMap<&'static str, u64>,
    #[serde(flatten)]
    others: BTreeMap<&'static str, Value>,
    errors: &'a BTreeMap<String, u64>,
    conditions: Value,
}

/// Processor time of this process so far, in seconds: what the load generator took from the server beside it.
fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name may hold anything, so count from its closing parenthesis; times are in hundredths.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<f64>);
    Some((times.next()?.ok()? + times.next()?.ok()?) / 100.0)
}

/// What a reader needs in order to compare two lines.
fn conditions() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_else(|_| "unknown".to_owned());
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_average": read("/proc/loadavg").split_ascii_whitespace().take(3).collect::<Vec<_>>().join(" "),
        "own_cpu_s": processor_seconds(),
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn a_stall_shows_in_every_request_that_was_due_meanwhile() {
        // Ten requests are due, a millisecond apart; nothing is sent before they all are.
        let start = Instant::now() - Duration::from_millis(10);
        let mut pacer = Pacer::new(Some(1000.0), 1, 0, start, Duration::from_secs(60));
        block_on(async {
            for n in 0..10 {
                assert_eq!(pacer.turn().await.unwrap(), start + Duration::from_millis(n));
            }
        });
    }

    #[test]
    fn what_was_never_sent_counts_too() {
        let start = Instant::now() - Duration::from_secs(10);
        let mut pacer = Pacer::new(Some(100.0), 1, 0, start, Duration::from_secs(1));
        assert!(block_on(pacer.turn()).is_none());
        let unsent: Vec<Duration> = pacer.unsent().collect();
        assert_eq!(unsent.len(), 100);
        assert_eq!(unsent[0], Duration::from_secs(1));
        assert_eq!(unsent[99], Duration::from_millis(10));
    }

    #[test]
    fn a_closed_loop_leaves_nothing_unsent() {
        let mut pacer = Pacer::new(None, 4, 3, Instant::now(), Duration::from_secs(60));
        assert!(block_on(pacer.turn()).is_some());
        assert_eq!(pacer.unsent().count(), 0);
    }

    #[test]
    fn a_late_timer_is_forgiven_only_a_little() {
        let due = Instant::now();
        let ms = Duration::from_millis;
        assert_eq!(counted_from(due, due + ms(1)), due + ms(1));
        assert_eq!(counted_from(due, due + ms(50)), due + TIMER_SLACK);
    }

    #[test]
    fn workers_share_a_rate() {
        let start = Instant::now();
        let pacers: Vec<Pacer> =
            (0..4).map(|n| Pacer::new(Some(400.0), 4, n, start, Duration::from_secs(1))).collect();
        let sent: usize = pacers.iter().map(|pacer| pacer.unsent().count()).sum();
        assert_eq!(sent, 400);
        assert_eq!(pacers[1].due - pacers[0].due, Duration::from_micros(2500));
    }

    #[test]
    fn the_line_is_json_and_holds_the_figures() {
        let mut tally = Tally::new();
        for ms in 1..=100 {
            tally.latency.record(Duration::from_millis(ms));
        }
        tally.messages = 500;
        tally.requests = 100;
        tally.errors.add("status_503", 2);
        let report = tally.report(Duration::from_secs(2));
        assert!(report.failed());
        let line: Value = serde_json::from_str(&report.line("push", &json!({"batch": 5}))).unwrap();
        assert_eq!(line["messages_per_s"], 250.0);
        assert_eq!(line["requests_per_s"], 50.0);
        assert_eq!(line["params"]["batch"], 5);
        assert_eq!(line["errors"]["status_503"], 2);
        let p50 = line["latency_us"]["p50"].as_u64().unwrap();
        assert!((49_900..=50_100).contains(&p50), "{p50}");
    }
}
