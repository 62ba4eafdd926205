//! Samples, medians and the tables.

use std::time::{Duration, Instant};

use crate::Args;
use crate::disk::{Counters, Device};

/// One cell in one round.
pub(crate) struct Sample {
    started: Instant,
    elapsed: Duration,
    prepared: Duration,
    size: u64,
    latencies: Vec<Duration>,
    before: Option<Counters>,
    device: Option<Counters>,
}

impl Sample {
    /// Starts the clock and reads the device's counters.
    pub(crate) fn start(device: &Device, size: u64) -> Sample {
        Sample {
            started: Instant::now(),
            elapsed: Duration::ZERO,
            prepared: Duration::ZERO,
            size,
            latencies: Vec::new(),
            before: device.counters(),
            device: None,
        }
    }

    /// One commit took this long.
    pub(crate) fn commit(&mut self, latency: Duration) {
        self.latencies.push(latency);
    }

    /// Preparing the file took this long.
    pub(crate) fn prepared(&mut self, took: Duration) {
        self.prepared = took;
    }

    /// Stops the clock.
    pub(crate) fn end(mut self, device: &Device) -> Sample {
        self.elapsed = self.started.elapsed();
        self.device = self.before.zip(device.counters()).map(|(before, after)| after.since(before));
        self.latencies.sort_unstable();
        self
    }

    fn count(&self) -> f64 {
        self.latencies.len().max(1) as f64
    }

    fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.saturating_sub(self.prepared).as_secs_f64()
    }

    fn percentile_us(&self, percent: usize) -> f64 {
        let at = self.latencies.len().saturating_sub(1) * percent / 100;
        self.latencies.get(at).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
    }
}

/// All rounds of all cells of one table, in the order in which they were first measured.
#[derive(Default)]
pub(crate) struct Rounds {
    cells: Vec<Cell>,
}

struct Cell {
    name: String,
    size: usize,
    samples: Vec<Sample>,
}

impl Rounds {
    /// One more round of a cell.
    pub(crate) fn add(&mut self, name: &str, size: usize, sample: Sample) {
        match self.cells.iter_mut().find(|cell| cell.name == name && cell.size == size) {
            Some(cell) => cell.samples.push(sample),
            None => self.cells.push(Cell { name: name.to_owned(), size, samples: vec![sample] }),
        }
    }

    /// Rates, latencies and device counters.
    pub(crate) fn print(&self, what: &str) {
        println!(
            "| bytes | {what} | commits/s | MB/s | p10 µs | p50 µs | p99 µs | writes/commit | KiB/commit | flushes/commit |"
        );
        println!("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|");
        for cell in &self.cells {
            let rate = median(cell.samples.iter().map(Sample::per_second));
            println!(
                "| {} | {} | {rate:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {} | {} | {} |",
                size_word(cell.size),
                cell.name,
                rate * cell.samples.first().map_or(0, |sample| sample.size) as f64 / 1e6,
                median(cell.samples.iter().map(|sample| sample.percentile_us(10))),
                median(cell.samples.iter().map(|sample| sample.percentile_us(50))),
                median(cell.samples.iter().map(|sample| sample.percentile_us(99))),
                cell.least(|counters| counters.writes as f64),
                cell.least(|counters| counters.sectors as f64 / 2.0),
                cell.least(|counters| counters.flushes as f64),
            );
        }
    }

    /// Preparation and writes of one file, apart and together.
    pub(crate) fn print_preparation(&self) {
        println!("| bytes | layout | prepare ms | commits | writing ms | together ms | device MB in all |");
        println!("|---:|---|---:|---:|---:|---:|---:|");
        for cell in &self.cells {
            let ms =
                |of: fn(&Sample) -> Duration| median(cell.samples.iter().map(|s| of(s).as_secs_f64() * 1e3));
            let written = cell
                .samples
                .iter()
                .filter_map(|sample| Some(sample.device?.sectors as f64 * 512.0 / 1e6))
                .min_by(f64::total_cmp)
                .map_or_else(|| "-".to_owned(), |mb| format!("{mb:.0}"));
            println!(
                "| {} | {} | {:.0} | {} | {:.0} | {:.0} | {written} |",
                size_word(cell.size),
                cell.name,
                ms(|sample| sample.prepared),
                cell.samples.first().map_or(0, |sample| sample.latencies.len()),
                ms(|sample| sample.elapsed.saturating_sub(sample.prepared)),
                ms(|sample| sample.elapsed),
            );
        }
    }
}

impl Cell {
    /// Smallest value per commit over the rounds: other writers of the device can only add.
    fn least(&self, of: fn(&Counters) -> f64) -> String {
        self.samples
            .iter()
            .filter_map(|sample| Some(of(sample.device.as_ref()?) / sample.count()))
            .min_by(f64::total_cmp)
            .map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
    }
}

/// The middle value; the lower one of two.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

fn size_word(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Load averages of the machine; above the number of cores, others are working here too.
pub(crate) fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").map_or_else(
        |_| "unknown".to_owned(),
        |text| text.split_ascii_whitespace().take(3).collect::<Vec<_>>().join(" "),
    )
}

/// Everything needed to judge the tables.
pub(crate) fn conditions(device: &Device, args: &Args, load_before: &str) {
    let kernel =
        std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".to_owned());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!(
        "Conditions: {cores} cores, {} kept awake; kernel {}; device {} (write cache {}, FUA {}, scheduler {});",
        args.awake,
        kernel.trim(),
        device.name(),
        device.setting("write_cache"),
        device.setting("fua"),
        device.setting("scheduler")
    );
    println!(
        "{} rounds of {} ms per cell; load average before {load_before}, after {}.",
        args.rounds,
        args.cell_ms,
        load_average()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 1.0);
        assert!(median(std::iter::empty()).is_nan());
    }

    #[test]
    fn sizes_have_their_units() {
        assert_eq!(size_word(65_536), "64 KiB");
        assert_eq!(size_word(1 << 20), "1 MiB");
    }
}
