//! `journal.read`: through `journalctl`, which reads every format that the journal ever had. A library of its own would
//! tie the daemon to one libsystemd.

use muster_shared::time::{self, Timestamp};
use serde_json::{Map, Value, json};

use super::{
    Failed,
    apart::Done,
    command::{self, Keep, Leave},
    parameter::{Arguments, Kind, Parameter, plain},
};
use crate::outcome::cut;

/// Of all entries together, as journalctl writes them.
const ENTRIES_BYTES_MAX: usize = 16 * 1024 * 1024;
const MESSAGE_BYTES_MAX: usize = 16 * 1024;
const FIELDS: &str = "MESSAGE,PRIORITY,SYSLOG_IDENTIFIER,_COMM,_PID,_SYSTEMD_UNIT,UNIT";
const PRIORITIES: &[&str] = &[
    "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug",
];

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::text("unit", super::unit_name, "Only entries of and about this unit"),
    Parameter::text(
        "identifier",
        plain,
        "Only entries of programs that call themselves so",
    ),
    Parameter::text(
        "since",
        moment,
        "Not before: an instant (RFC 3339), or a time ago such as 15m or 2h",
    ),
    Parameter::text("until", moment, "Not after: as since"),
    Parameter {
        name: "priority",
        kind: Kind::Choice(PRIORITIES),
        required: false,
        default: None,
        description: "This priority and those more urgent: emerg to debug",
    },
    Parameter::text(
        "grep",
        plain,
        "Only messages that match this regular expression (PCRE)",
    ),
    Parameter::flag("boot", "Only entries since the machine was started"),
    Parameter::number(
        "lines",
        (1, 10_000),
        "200",
        "How many entries, the last ones, up to 10000",
    ),
];

pub(super) async fn read(arguments: Arguments) -> Result<Done, Failed> {
    let given = command_line(&arguments, Timestamp::now());
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let ran = command::run(
        &Leave::given().await,
        "journalctl",
        &given,
        Keep::Tail(ENTRIES_BYTES_MAX),
    )
    .await?;
    if ran.complaint.contains("No journal files were found") {
        return Err(Failed::Work("this node keeps no journal".to_owned()));
    }
    // It answers 1 without a word where nothing matches.
    if !ran.status.success() && !ran.complaint.trim().is_empty() {
        return Ok(Done::badly(json!({ "entries": [] }), ran.exit_code(), ran.why()));
    }
    // Where the head was cut, it was cut within a line.
    let mut entries: Vec<Value> = ran
        .output
        .lines()
        .skip(usize::from(ran.output_cut))
        .filter_map(entry)
        .collect();
    let surplus = entries.len().saturating_sub(arguments.count("lines"));
    entries.drain(..surplus);
    Ok(Done::well(json!({
        "truncated": surplus > 0 || ran.output_cut,
        "entries": entries,
    })))
}

/// Every value is glued to its option, so that none can be taken for another one.
fn command_line(arguments: &Arguments, now: Timestamp) -> Vec<String> {
    // One more than asked for tells whether there are more.
    let mut line = vec![
        "--output=json".to_owned(),
        format!("--output-fields={FIELDS}"),
        "--no-pager".to_owned(),
        format!("--lines={}", arguments.number("lines") + 1),
    ];
    for (name, option) in [
        ("unit", "unit"),
        ("identifier", "identifier"),
        ("priority", "priority"),
        ("grep", "grep"),
    ] {
        line.extend(arguments.text(name).map(|value| format!("--{option}={value}")));
    }
    for name in ["since", "until"] {
        let at = arguments.text(name).and_then(|text| instant(text, now));
        line.extend(at.map(|at| {
            let (seconds, ms) = (at.as_millis().div_euclid(1000), at.as_millis().rem_euclid(1000));
            format!("--{name}=@{seconds}.{ms:03}")
        }));
    }
    if arguments.flag("boot") {
        line.push("--boot".to_owned());
    }
    line
}

fn moment(text: &str) -> Result<(), String> {
    instant(text, Timestamp::from_millis(0)).map(drop).ok_or_else(|| {
        format!("must be an instant such as 2026-01-31T12:00:00Z, or a time ago such as 15m, not {text:?}")
    })
}

fn instant(text: &str, now: Timestamp) -> Option<Timestamp> {
    let ago = time::parse_duration(text).ok().map(|ago| now.minus(ago));
    ago.or_else(|| serde_json::from_value(Value::from(text)).ok())
}

/// A field that is no UTF-8 comes as a list of bytes, and one that is too long as null.
fn field(raw: &Map<String, Value>, name: &str) -> Option<String> {
    match raw.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(bytes) => {
            let bytes: Option<Vec<u8>> = bytes
                .iter()
                .map(|byte| u8::try_from(byte.as_u64()?).ok())
                .collect();
            Some(String::from_utf8_lossy(&bytes?).into_owned())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

fn entry(line: &str) -> Option<Value> {
    let raw: Map<String, Value> = serde_json::from_str(line).ok()?;
    let micros: i64 = field(&raw, "__REALTIME_TIMESTAMP")?.parse().ok()?;
    let priority = field(&raw, "PRIORITY").and_then(|text| text.parse::<usize>().ok());
    Some(json!({
        "time": Timestamp::from_millis(micros / 1000),
        "unit": field(&raw, "_SYSTEMD_UNIT").or_else(|| field(&raw, "UNIT")),
        "identifier": field(&raw, "SYSLOG_IDENTIFIER").or_else(|| field(&raw, "_COMM")),
        "pid": field(&raw, "_PID").and_then(|pid| pid.parse::<u32>().ok()),
        "priority": priority.and_then(|priority| PRIORITIES.get(priority)),
        "message": field(&raw, "MESSAGE").map(|text| cut(&text, MESSAGE_BYTES_MAX)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(given: &Value) -> Vec<String> {
        let arguments = Arguments::check("journal.read", PARAMETERS, given.as_object().unwrap()).unwrap();
        command_line(&arguments, Timestamp::from_millis(1_000_000)).split_off(3)
    }

    #[test]
    fn the_command_line_is_made_of_glued_options() {
        assert_eq!(line(&json!({})), ["--lines=201"]);
        let given = json!({"unit": "cron", "priority": "err", "since": "10m", "until": "1970-01-01T00:16:40.5Z",
            "grep": "-x --help", "lines": 5, "boot": true});
        assert_eq!(
            line(&given),
            [
                "--lines=6",
                "--unit=cron",
                "--priority=err",
                "--grep=-x --help",
                "--since=@400.000",
                "--until=@1000.500",
                "--boot"
            ]
        );
        for bad in [
            json!({"since": "yesterday"}),
            json!({"unit": "a b"}),
            json!({"unit": "*"}),
            json!({"priority": "7"}),
        ] {
            let checked = Arguments::check("journal.read", PARAMETERS, bad.as_object().unwrap());
            assert!(matches!(checked, Err(Failed::Parameters(_))), "{bad}");
        }
    }

    #[test]
    fn an_entry_is_read_whatever_its_fields_are() {
        let read = entry(
            r#"{"__REALTIME_TIMESTAMP":"1700000000123456","PRIORITY":"3","_PID":"7","MESSAGE":"no",
                "SYSLOG_IDENTIFIER":"cron","_SYSTEMD_UNIT":"cron.service","__CURSOR":"x"}"#,
        );
        let expected = json!({"time": "2023-11-14T22:13:20.123Z", "unit": "cron.service", "identifier": "cron",
            "pid": 7, "priority": "err", "message": "no"});
        assert_eq!(read, Some(expected));
        let read = entry(r#"{"__REALTIME_TIMESTAMP":"0","MESSAGE":[104,255],"_COMM":"x"}"#).unwrap();
        assert_eq!(
            (&read["message"], &read["identifier"]),
            (&json!("h\u{fffd}"), &json!("x"))
        );
        assert_eq!(
            entry(r#"{"__REALTIME_TIMESTAMP":"0","MESSAGE":null}"#).unwrap()["message"],
            json!(null)
        );
        assert_eq!(entry("no json"), None);
    }
}
