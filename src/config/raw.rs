//! Raw settings: what flags, environment and file say, checked for names and types but not yet for sense.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, ArgAction, Command};

use super::ConfigError;
use super::settings::{Kind, SETTINGS, Setting};

/// A value with the type of its setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Flag(bool),
    Text(String),
}

/// The value of every setting, by key.
pub(super) struct Values(HashMap<&'static str, Value>);

impl Values {
    pub(super) fn number(&self, key: &str) -> u64 {
        match self.0.get(key) {
            Some(Value::Number(number)) => *number,
            other => unreachable!("setting {key} is a number in the table, not {other:?}"),
        }
    }

    /// A number whose range in the table fits 32 bits.
    pub(super) fn number32(&self, key: &str) -> u32 {
        u32::try_from(self.number(key)).expect("the table bounds it to 32 bits")
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        match self.0.get(key) {
            Some(Value::Flag(flag)) => *flag,
            other => unreachable!("setting {key} is a truth value in the table, not {other:?}"),
        }
    }

    pub(super) fn text(&self, key: &str) -> &str {
        match self.0.get(key) {
            Some(Value::Text(text)) => text,
            other => unreachable!("setting {key} is text in the table, not {other:?}"),
        }
    }
}

/// What the command line says beside the settings.
pub(super) struct Raw {
    pub(super) values: Values,
    pub(super) print: bool,
}

/// The command line's grammar, from the table.
fn grammar() -> Command {
    let mut command = Command::new("combd")
        .about("Comb: a durable queue daemon")
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(
            "Every setting is also an environment variable (--limits-body-bytes: COMB_LIMITS_BODY_BYTES) and a \
             key of the configuration file (body_bytes in [limits]). Flags win over the environment, the \
             environment wins over the file.",
        )
        .arg(Arg::new("config").long("config").value_name("FILE").help("Configuration file (TOML); COMB_CONFIG"))
        .arg(
            Arg::new("print-config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Print the effective configuration as TOML and exit"),
        );
    for setting in SETTINGS {
        let arg = Arg::new(setting.key).long(setting.flag()).help(help(setting)).allow_hyphen_values(true);
        command = command.arg(match setting.kind {
            Kind::Flag => {
                arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL")
            }
            Kind::Number { .. } => arg.value_name("N"),
            Kind::Word(_) => arg.value_name("WORD"),
            Kind::Text(_) => arg.value_name("TEXT"),
        });
    }
    command
}

fn help(setting: &Setting) -> String {
    match setting.kind {
        Kind::Number { min, max, default } => format!("{} [{min}..={max}, default {default}]", setting.help),
        Kind::Flag => setting.help.to_owned(),
        Kind::Word(words) => format!("{} [{}]", setting.help, words.join(", ")),
        Kind::Text(default) => format!("{} [default {default}]", setting.help),
    }
}

/// Reads flags, then environment, then the file that one of them names.
pub(super) fn read(
    arguments: impl Iterator<Item = OsString>,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Raw, ConfigError> {
    let matches = grammar().try_get_matches_from(arguments).map_err(ConfigError::Usage)?;
    let mut environment = variables(environment)?;
    let config = matches.get_one::<String>("config").cloned().or_else(|| environment.remove("COMB_CONFIG"));
    let mut file = match config {
        Some(path) => from_file(Path::new(&path))?,
        None => HashMap::new(),
    };
    let mut values = HashMap::new();
    for setting in SETTINGS {
        let value = if let Some(text) = matches.get_one::<String>(setting.key) {
            parse(setting, text, &format!("--{}", setting.flag()))?
        } else if let Some(text) = environment.get(&setting.variable()) {
            parse(setting, text, &setting.variable())?
        } else if let Some(text) = environment.get("PORT").filter(|_| setting.key == "port") {
            parse(setting, text, "PORT")?
        } else if let Some(value) = file.remove(setting.key) {
            value
        } else {
            default(setting)
        };
        values.insert(setting.key, value);
    }
    Ok(Raw { values: Values(values), print: matches.get_flag("print-config") })
}

/// Our variables. One that nobody knows is refused: it is a typing error that would silently change nothing.
fn variables(
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<HashMap<String, String>, ConfigError> {
    let mut ours = HashMap::new();
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        if name != "PORT" && !name.starts_with("COMB_") {
            continue;
        }
        if name != "PORT" && name != "COMB_CONFIG" && !SETTINGS.iter().any(|s| s.variable() == name) {
            let mut allowed: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
            allowed.push("COMB_CONFIG".to_owned());
            return Err(ConfigError::Unknown {
                what: "environment variable",
                name,
                allowed: allowed.join(", "),
            });
        }
        let value = value.into_string().map_err(|value| ConfigError::Value {
            key: name.clone(),
            value: format!("{value:?}"),
            allowed: "UTF-8 text".to_owned(),
        })?;
        ours.insert(name, value);
    }
    Ok(ours)
}

fn from_file(path: &Path) -> Result<HashMap<&'static str, Value>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::File { path: path.to_owned(), reason: source.to_string() })?;
    let table: toml::Table = toml::from_str(&text)
        .map_err(|e| ConfigError::File { path: path.to_owned(), reason: e.to_string() })?;
    let mut values = HashMap::new();
    for (key, value) in table {
        let inner = match value {
            toml::Value::Table(inner) => {
                inner.into_iter().map(|(name, value)| (format!("{key}.{name}"), value)).collect()
            }
            other => vec![(key, other)],
        };
        for (key, value) in inner {
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else {
                let allowed = SETTINGS.iter().map(|s| s.key).collect::<Vec<_>>().join(", ");
                return Err(ConfigError::Unknown { what: "configuration key", name: key, allowed });
            };
            values.insert(setting.key, from_toml(setting, value, path)?);
        }
    }
    Ok(values)
}

fn from_toml(setting: &Setting, value: toml::Value, path: &Path) -> Result<Value, ConfigError> {
    let name = format!("{} in {}", setting.key, path.display());
    match (setting.kind, value) {
        (Kind::Number { .. }, toml::Value::Integer(number)) => parse(setting, &number.to_string(), &name),
        (Kind::Flag, toml::Value::Boolean(flag)) => Ok(Value::Flag(flag)),
        (Kind::Word(_) | Kind::Text(_), toml::Value::String(text)) => parse(setting, &text, &name),
        (kind, other) => {
            Err(ConfigError::Value { key: name, value: other.to_string(), allowed: typed(kind) })
        }
    }
}

/// What a TOML value may be: the type matters there.
fn typed(kind: Kind) -> String {
    match kind {
        Kind::Number { .. } => kind.allowed(),
        Kind::Flag => "true or false".to_owned(),
        Kind::Word(_) | Kind::Text(_) => format!("a string: {}", kind.allowed()),
    }
}

fn default(setting: &Setting) -> Value {
    match setting.kind {
        Kind::Number { default, .. } => Value::Number(default),
        Kind::Flag => Value::Flag(false),
        Kind::Word(words) => Value::Text(words.first().copied().unwrap_or_default().to_owned()),
        Kind::Text(default) => Value::Text(default.to_owned()),
    }
}

fn parse(setting: &Setting, text: &str, name: &str) -> Result<Value, ConfigError> {
    let value = match setting.kind {
        Kind::Number { min, max, .. } => text
            .parse::<u64>()
            .ok()
            .filter(|number| (min..=max).contains(number) && !text.starts_with('+'))
            .map(Value::Number),
        Kind::Flag => match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(Value::Flag(true)),
            "false" | "0" | "no" | "off" => Some(Value::Flag(false)),
            _ => None,
        },
        Kind::Word(words) => words.contains(&text).then(|| Value::Text(text.to_owned())),
        Kind::Text(_) => (!text.is_empty()).then(|| Value::Text(text.to_owned())),
    };
    value.ok_or_else(|| ConfigError::Value {
        key: name.to_owned(),
        value: format!("{text:?}"),
        allowed: setting.kind.allowed(),
    })
}
