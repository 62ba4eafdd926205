#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Invocation, ConfigError> {
    load(
        std::iter::once("combd").chain(arguments.iter().copied()).map(OsString::from),
        environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))),
    )
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("comb.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path.to_str().unwrap().to_owned())
}

#[test]
fn flags_win_over_environment_over_file() {
    let (_dir, path) = file("port = 1\n[limits]\nbody_bytes = 2048\nheaders = 9\njson_depth = 33\n[log]\n");
    let config = read(
        &["--config", &path, "--limits-body-bytes=4096"],
        &[("COMB_LIMITS_BODY_BYTES", "8192"), ("COMB_LIMITS_HEADERS", "10"), ("HOME", "/")],
    )
    .unwrap()
    .config;
    assert_eq!(config.port, 1);
    assert_eq!(config.limits.body_bytes, 4096);
    assert_eq!(config.limits.headers, 10);
    assert_eq!(config.limits.json_depth, 33);
}

#[test]
fn port_variable_is_read_and_ours_wins() {
    assert_eq!(read(&[], &[("PORT", "7000")]).unwrap().config.port, 7000);
    assert_eq!(read(&[], &[("PORT", "7000"), ("COMB_PORT", "7001")]).unwrap().config.port, 7001);
}

#[test]
fn printed_configuration_reads_back_to_itself() {
    let config = read(&["--data", "/a \"b\"", "--log-json", "--io-backend=threads"], &[]).unwrap().config;
    assert!(config.log_json);
    let (_dir, path) = file(&config.to_toml());
    assert_eq!(read(&["--config", &path], &[]).unwrap().config, config);
}

/// Arguments, environment, and what the error names.
type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a [&'a str]);

#[test]
fn errors_name_the_setting_the_value_and_what_is_allowed() {
    let (_dir, typo) = file("[limits]\nbody_byte = 1\n");
    let (_dir2, wrong) = file("[limits]\nbody_bytes = \"64MiB\"\n");
    let (_dir3, negative) = file("[limits]\nbody_bytes = -1\n");
    let (_dir4, table) = file("limits = 3\n");
    let cases: &[Case] = &[
        (&["--config", &typo], &[], &["limits.body_byte", "limits.body_bytes"]),
        (&["--config", &wrong], &[], &["limits.body_bytes", "64MiB", "1024", "1073741824"]),
        (&["--config", &negative], &[], &["limits.body_bytes", "-1", "1024"]),
        (&["--config", &table], &[], &["limits", "limits.body_bytes"]),
        (&["--config", "/nowhere/comb.toml"], &[], &["/nowhere/comb.toml"]),
        (&[], &[("COMB_LIMIT_BODY_BYTES", "1")], &["COMB_LIMIT_BODY_BYTES", "COMB_LIMITS_BODY_BYTES"]),
        (&[], &[("COMB_LIMITS_BODY_BYTES", "")], &["COMB_LIMITS_BODY_BYTES", "1024"]),
        (&[], &[("PORT", "65536")], &["PORT", "65536", "65535"]),
        (&[], &[("COMB_LOG_JSON", "maybe")], &["COMB_LOG_JSON", "maybe", "yes"]),
        (&["--limits-body-bytes=-1"], &[], &["--limits-body-bytes", "-1", "1024"]),
        (&["--bind=localhost"], &[], &["bind", "localhost", "127.0.0.1"]),
        (&["--io-backend=aio"], &[], &["--io-backend", "aio", "uring"]),
        (&["--log-segment-bytes=1048577"], &[], &["log.segment_bytes", "1048577", "4096"]),
        (&["--log-filter=a=b=c"], &[], &["log_filter", "a=b=c"]),
        (&["--limits-inflight-bytes=65536"], &[], &["limits.body_bytes", "limits.inflight_bytes", "65536"]),
        (&["--no-such-flag"], &[], &["--no-such-flag"]),
        (&["--port=1", "--port=2"], &[], &["--port"]),
    ];
    for (arguments, environment, words) in cases {
        let error = read(arguments, environment).unwrap_err().to_string();
        for word in *words {
            assert!(error.contains(word), "{arguments:?} {environment:?}: {error:?} lacks {word:?}");
        }
    }
}

#[test]
fn truth_values_in_the_environment() {
    for (text, value) in
        [("true", true), ("1", true), ("YES", true), ("on", true), ("0", false), ("off", false)]
    {
        assert_eq!(read(&[], &[("COMB_LOG_JSON", text)]).unwrap().config.log_json, value, "{text}");
    }
}

#[test]
fn workers_leave_a_core_for_storage_and_are_never_none() {
    assert!(Config::defaults().http.workers >= 1);
    assert_eq!(read(&["--http-workers=3"], &[]).unwrap().config.http.workers, 3);
}
