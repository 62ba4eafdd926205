//! What the project asks of its own text: layers, unsafe, sizes, leftovers, and documents that name what exists.
//!
//! Method: read every source file as text. The rules are about lines, so no parser is needed; what a line cannot show
//! is not a rule here.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Longest source file in lines. A file that comes near asks to be two.
const FILE_LINES_MAX: usize = 800;

/// What each part of `src` may use of the others. Calls go down only.
const LAYERS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("format", &["types"]),
    ("io", &["types"]),
    ("index", &["types", "format"]),
    ("cursor", &["types", "format", "io"]),
    ("log", &["types", "format", "io"]),
    ("engine", &["types", "format", "io", "log", "index", "cursor"]),
    ("broker", &["types", "format", "io", "index", "engine"]),
    ("config", &["types"]),
    ("telemetry", &["config"]),
    ("http", &["types", "format", "io", "config", "broker"]),
];

/// Files that put the layers together and may use all of them.
const TOPS: &[&str] = &["main", "lib", "daemon", "wiring"];

/// Who may touch what the operating system offers: text to look for, and where it may stand.
const SYSTEM: &[(&str, &[&str])] = &[
    ("std::fs", &["src/io", "src/config"]),
    ("std::thread", &["src/io"]),
    ("SystemTime", &["src/io", "src/telemetry.rs"]),
    ("rand::", &["src/io"]),
    ("io_uring::", &["src/io"]),
    ("libc::", &["src/io"]),
];

/// Names of `std::thread` that start no thread.
const HARMLESS: &[&str] = &["std::thread::JoinHandle", "std::thread::available_parallelism"];

/// Where tokio may be used: HTTP, what starts it, and the channel between it and the storage thread.
const TOKIO: &[&str] = &[
    "src/http",
    "src/broker/handle.rs",
    "src/broker/start.rs",
    "src/broker/storage.rs",
    "src/daemon.rs",
    "src/main.rs",
    "src/wiring.rs",
];

struct Source {
    /// Relative to the workspace, with slashes.
    path: String,
    text: String,
}

impl Source {
    /// Whether it is nothing but tests.
    fn is_test(&self) -> bool {
        let ours = self.path.strip_prefix("src/").unwrap_or_default();
        ours.split('/').any(|part| part == "tests.rs" || part == "tests" || part.ends_with("_tests"))
    }

    /// The lines that are neither comments nor in the tests at a file's end.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let in_tests = self.is_test();
        self.text
            .lines()
            .take_while(move |line| !in_tests && line.trim() != "#[cfg(test)]")
            .enumerate()
            .map(|(n, line)| (n + 1, line.split("//").next().unwrap_or_default()))
    }

    fn is_below(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path == *place || self.path.starts_with(&format!("{place}/")))
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | ".git" | "data" | "__pycache__") {
                walk(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// Every file of the workspace with one of these endings.
fn files(endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found.sort();
    found
        .into_iter()
        .filter(|path| {
            // A script may have no ending; its name counts then.
            let kind = path.extension().or(path.file_name()).unwrap();
            endings.iter().any(|ending| kind == *ending)
        })
        .map(|path| Source {
            path: path.strip_prefix(root()).unwrap().to_string_lossy().into_owned(),
            text: fs::read_to_string(&path).unwrap(),
        })
        .collect()
}

fn rust() -> Vec<Source> {
    files(&["rs"])
}

fn daemon() -> impl Iterator<Item = Source> {
    rust().into_iter().filter(|source| source.path.starts_with("src/"))
}

/// `src/log/walk.rs` and `src/types.rs` belong to `log` and `types`.
fn layer_of(path: &str) -> &str {
    let inside = path.strip_prefix("src/").unwrap_or(path);
    inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs")
}

fn report(what: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{what}:\n  {}", faults.join("\n  "));
}

/// The modules that a `crate::` path or group on this line names.
fn used_layers(line: &str) -> Vec<String> {
    let mut used = Vec::new();
    for rest in line.split("crate::").skip(1) {
        if let Some(group) = rest.strip_prefix('{') {
            // A group of several modules: the names right after its braces and top-level commas.
            let mut depth = 0_usize;
            let mut name = String::new();
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => used.push(std::mem::take(&mut name)),
                    _ if depth == 0 => name.push(c),
                    _ => {}
                }
            }
            used.push(name);
        } else {
            used.push(rest.to_owned());
        }
    }
    used.iter()
        .map(|name| name.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
        .filter(|name: &String| !name.is_empty())
        .collect()
}

#[test]
fn layers_use_only_what_is_below_them() {
    let mut faults = Vec::new();
    let mut known: BTreeSet<&str> = TOPS.iter().copied().collect();
    known.extend(LAYERS.iter().map(|(layer, _)| *layer));
    for source in daemon() {
        let layer = layer_of(&source.path);
        if !known.contains(layer) {
            faults.push(format!("{}: {layer} has no place among the layers", source.path));
        }
        let Some((_, below)) = LAYERS.iter().find(|(name, _)| *name == layer) else { continue };
        for (number, line) in source.code() {
            for used in used_layers(line) {
                let is_module = known.contains(used.as_str());
                if is_module && used != layer && !below.contains(&used.as_str()) {
                    faults.push(format!("{}:{number}: {layer} uses {used}", source.path));
                }
            }
        }
    }
    report("calls go down only", &faults);
}

#[test]
fn the_layer_rule_reads_paths_and_groups() {
    assert_eq!(used_layers("use crate::log::walk;"), ["log"]);
    assert_eq!(used_layers("use crate::{log::{a, b}, types::X};"), ["log", "types"]);
    assert_eq!(used_layers("    let x = crate::io::now();"), ["io"]);
    assert_eq!(used_layers("use super::x;"), [""; 0]);
}

#[test]
fn the_operating_system_is_reached_through_io_only() {
    let mut faults = Vec::new();
    for source in daemon() {
        for (number, line) in source.code() {
            for (text, places) in SYSTEM {
                let harmless = HARMLESS.iter().any(|harmless| line.contains(harmless));
                if line.contains(text) && !source.is_below(places) && !harmless {
                    faults.push(format!("{}:{number}: {text}", source.path));
                }
            }
            // HTTP has timeouts by tokio's clock; what is decided or stored uses the clock that io hands down.
            if line.contains("std::time") && line.contains("Instant") && !source.is_below(&["src/io"]) {
                faults.push(format!("{}:{number}: std::time::Instant", source.path));
            }
            if line.contains("tokio::") && !source.is_below(TOKIO) {
                faults.push(format!("{}:{number}: tokio", source.path));
            }
        }
    }
    report(
        "only io touches files, clocks, randomness and threads; only http and what starts it touch tokio",
        &faults,
    );
}

#[test]
fn unsafe_is_in_io_only_and_says_why() {
    let mut faults = Vec::new();
    for source in rust() {
        let lines: Vec<&str> = source.text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let unsafe_code = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
            if !unsafe_code.iter().any(|text| code.contains(text)) || source.path == "tests/tidy.rs" {
                continue;
            }
            if !source.path.starts_with("src/io/") {
                faults.push(format!("{}:{}: unsafe outside src/io", source.path, number + 1));
            }
            let above = lines.iter().take(number).rev().take(6).chain([line]);
            if !above.into_iter().any(|l| l.contains("SAFETY") || l.contains("# Safety")) {
                faults.push(format!("{}:{}: unsafe without a SAFETY comment", source.path, number + 1));
            }
        }
    }
    report("unsafe code", &faults);
}

#[test]
fn files_are_short_enough_to_read() {
    let faults: Vec<String> = rust()
        .iter()
        .map(|source| (source.text.lines().count(), &source.path))
        .filter(|(lines, _)| *lines > FILE_LINES_MAX)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    report("files are too long", &faults);
}

#[test]
fn modules_say_what_they_are_for() {
    let faults: Vec<String> = rust()
        .iter()
        .filter(|source| !source.is_test() && !source.text.starts_with("//!"))
        .map(|source| source.path.clone())
        .collect();
    report("files that do not begin with //!", &faults);
}

#[test]
fn nothing_is_left_lying_about() {
    // Written in two parts so that this file does not find itself.
    let texts: Vec<String> = [
        ("to", "do!("),
        ("dbg", "!("),
        ("unimple", "mented!("),
        ("/ro", "ot/"),
        ("/wo", "rk/"),
        ("/ho", "me/"),
        ("<<<<", "<<<"),
        (">>>>", ">>>"),
    ]
    .iter()
    .map(|(a, b)| format!("{a}{b}"))
    .collect();
    let mut faults = Vec::new();
    for source in files(&["rs", "md", "toml", "sh", "py", "run"]) {
        for (number, line) in source.text.lines().enumerate() {
            for text in &texts {
                if line.contains(text.as_str()) {
                    faults.push(format!("{}:{}: {text}", source.path, number + 1));
                }
            }
        }
    }
    report("leftovers", &faults);
}

#[test]
fn an_ignored_test_says_why() {
    let bare = format!("#[{}]", "ignore");
    let faults: Vec<String> = rust()
        .iter()
        .flat_map(|source| source.text.lines().enumerate().map(move |(n, line)| (source, n, line)))
        .filter(|(_, _, line)| line.trim() == bare)
        .map(|(source, number, _)| format!("{}:{}", source.path, number + 1))
        .collect();
    report("tests ignored without a reason", &faults);
}

/// Names of all test functions, as `file stem::function` and as `function`.
fn test_functions() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in rust() {
        let mut is_test = false;
        let mut in_proptest = false;
        for line in source.text.lines() {
            let line = line.trim();
            if line.starts_with("proptest!") {
                in_proptest = true;
            }
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            }
            let declared = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
            if let Some(declared) = declared {
                if is_test || in_proptest {
                    names.insert(declared.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
                }
                is_test = false;
            }
        }
    }
    names
}

/// Rows of the tables of `docs/TESTING.md` whose first cell is a number: (number, statement, tests).
fn statements() -> Vec<(String, String, Vec<String>)> {
    let text = fs::read_to_string(root().join("docs/TESTING.md")).unwrap();
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [number, statement, tests] = cells.as_slice() else { continue };
        if !number.chars().any(|c| c.is_ascii_digit()) {
            continue;
        }
        let tests = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        rows.push(((*number).to_owned(), (*statement).to_owned(), tests));
    }
    rows
}

#[test]
fn every_statement_names_tests_that_exist() {
    let known = test_functions();
    let rows = statements();
    assert!(rows.len() >= 40, "docs/TESTING.md has only {} statements", rows.len());
    let mut faults = Vec::new();
    let mut numbers = BTreeMap::new();
    for (number, statement, tests) in &rows {
        if statement.is_empty() || tests.is_empty() {
            faults.push(format!("statement {number} has no test"));
        }
        if let Some(before) = numbers.insert(number, statement) {
            faults.push(format!("{number} is both {before:?} and {statement:?}"));
        }
        for test in tests {
            if !known.contains(test) {
                faults.push(format!("statement {number}: there is no test {test}"));
            }
        }
    }
    report("docs/TESTING.md", &faults);
}

#[test]
fn every_test_of_the_reference_stands_for_a_statement() {
    let named: BTreeSet<String> = statements().into_iter().flat_map(|(_, _, tests)| tests).collect();
    let mut faults = Vec::new();
    for source in rust().iter().filter(|source| source.path.starts_with("tests/reference/")) {
        let mut is_test = false;
        for line in source.text.lines() {
            is_test |= line.starts_with("#[tokio::test");
            if let Some(rest) = line.strip_prefix("async fn ").filter(|_| is_test) {
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if !named.contains(&name) {
                    faults.push(format!("{}: {name}", source.path));
                }
                is_test = false;
            }
        }
    }
    report("tests that docs/TESTING.md does not name", &faults);
}

#[test]
fn documents_name_files_that_exist() {
    let mut faults = Vec::new();
    for document in files(&["md"]) {
        let directory = root().join(&document.path);
        let directory = directory.parent().unwrap();
        for (number, line) in document.text.lines().enumerate() {
            // Markdown links to files of ours.
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = target.split('#').next().unwrap_or_default();
                if file.is_empty() || target.contains("://") {
                    continue;
                }
                if !directory.join(file).exists() {
                    faults.push(format!("{}:{}: {target}", document.path, number + 1));
                }
            }
            // Paths in code spans.
            for span in line.split('`').skip(1).step_by(2) {
                let ours =
                    ["docs/", "src/", "tests/", "tools/", ".ci/"].iter().any(|start| span.starts_with(start));
                let plain = span.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
                if ours && plain && !root().join(span).exists() {
                    faults.push(format!("{}:{}: {span}", document.path, number + 1));
                }
            }
        }
    }
    report("documents name files that do not exist", &faults);
}

#[test]
fn operations_lists_every_setting() {
    let table = fs::read_to_string(root().join("src/config/settings.rs")).unwrap();
    let page = fs::read_to_string(root().join("docs/OPERATIONS.md")).unwrap();
    // In the table a key is the first string of a line `number("…"`, `"…",` or `key: "…"`.
    let table = table.split("#[cfg(test)]").next().unwrap();
    let keys: BTreeSet<&str> = table
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|text| {
            let known = ["io.", "limits.", "log.", "groups.", "http."];
            known.iter().any(|start| text.starts_with(start)) && !text.contains(' ')
        })
        .collect();
    assert!(keys.len() > 20, "{keys:?}");
    let missing: Vec<String> =
        keys.iter().filter(|key| !page.contains(&format!("`{key}`"))).map(|key| (*key).to_owned()).collect();
    report("docs/OPERATIONS.md does not mention", &missing);
}
