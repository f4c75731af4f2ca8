//! `services.*`: systemd's units over D-Bus. A job is waited for until systemd says what became of it.

use futures_util::StreamExt as _;
use muster_shared::time::Timestamp;
use serde_json::{Value, json};
use zbus::Connection;

use super::{
    Failed,
    apart::Done,
    parameter::{Arguments, Kind, Parameter, plain},
    systemd::{Properties, refused},
    unit_name,
};
use crate::systemd::{ListedUnit, ManagerProxy};

/// What may be started and stopped. Targets are left out: some of them are the whole machine.
const KINDS: [&str; 4] = [".service", ".socket", ".timer", ".path"];
/// Restarting it loses nothing, because this process is under a supervisor; stopping it would leave the node deaf.
const OWN_UNIT: &str = "musterd.service";

pub(super) const LIST: &[Parameter] = &[
    Parameter {
        name: "state",
        kind: Kind::Choice(&[
            "active",
            "inactive",
            "failed",
            "activating",
            "deactivating",
            "reloading",
        ]),
        required: false,
        default: None,
        description: "Only services in this state: active, inactive, failed, activating, deactivating or reloading",
    },
    Parameter::text("name", plain, "Only services whose name holds this text"),
    Parameter::number(
        "limit",
        (1, 5000),
        "1000",
        "How many services are listed, up to 5000",
    ),
];
pub(super) const ONE: &[Parameter] = &[Parameter::text(
    "unit",
    serviceable,
    "A service, socket, timer or path unit; without an ending a service is meant",
)
.required()];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Start,
    Stop,
    Restart,
    Reload,
}

pub(super) async fn list(arguments: Arguments) -> Result<Done, Failed> {
    let bus = super::systemd::bus().await?;
    let manager = manager(&bus).await?;
    let units = manager.list_units().await.map_err(|err| refused(&err))?;
    Ok(Done::well(listing(units, &arguments)))
}

fn listing(mut units: Vec<ListedUnit>, arguments: &Arguments) -> Value {
    let (state, name) = (arguments.text("state"), arguments.text("name"));
    units.retain(|unit| {
        unit.0.ends_with(".service")
            && state.is_none_or(|state| unit.3 == state)
            && name.is_none_or(|text| unit.0.contains(text))
    });
    units.sort_by(|a, b| a.0.cmp(&b.0));
    let total = units.len();
    units.truncate(arguments.count("limit"));
    let listed: Vec<Value> = units
        .into_iter()
        .map(|(name, description, load_state, active_state, sub_state, ..)| {
            json!({
                "unit": name,
                "description": description,
                "load_state": load_state,
                "active_state": active_state,
                "sub_state": sub_state,
            })
        })
        .collect();
    json!({ "total": total, "truncated": listed.len() < total, "services": listed })
}

pub(super) async fn status(arguments: Arguments) -> Result<Done, Failed> {
    let bus = super::systemd::bus().await?;
    let unit = whole_name(arguments.text("unit").unwrap_or_default());
    let state = state_of(&bus, &manager(&bus).await?, &unit).await?;
    if state["load_state"] == "not-found" {
        return Ok(Done::badly(state, 1, format!("systemd knows no unit {unit}")));
    }
    Ok(Done::well(state))
}

pub(super) async fn act(verb: Verb, arguments: Arguments) -> Result<Done, Failed> {
    let unit = whole_name(arguments.text("unit").unwrap_or_default());
    if unit == OWN_UNIT && verb == Verb::Stop {
        let why = "it would leave the node without its daemon, and nobody could start it from afar";
        return Err(Failed::Work(format!("{unit} is not stopped: {why}")));
    }
    let bus = super::systemd::bus().await?;
    let manager = manager(&bus).await?;
    // Listened for before the job is made: it may be over before its name is known.
    manager.subscribe().await.map_err(|err| refused(&err))?;
    let mut removed = manager.receive_job_removed().await.map_err(|err| refused(&err))?;
    let job = match verb {
        Verb::Start => manager.start_unit(&unit, "replace").await,
        Verb::Stop => manager.stop_unit(&unit, "replace").await,
        Verb::Restart => manager.restart_unit(&unit, "replace").await,
        Verb::Reload => manager.reload_unit(&unit, "replace").await,
    };
    let job = job.map_err(|err| refused(&err))?;
    let result = loop {
        let Some(signal) = removed.next().await else {
            return Err(Failed::Work(
                "systemd left the bus before the job had ended".to_owned(),
            ));
        };
        let told = signal.args().map_err(|err| refused(&err))?;
        if told.job().as_str() == job.as_str() {
            break (*told.result()).to_owned();
        }
    };
    let mut state = state_of(&bus, &manager, &unit).await?;
    state["job_result"] = json!(result);
    if result == "done" {
        return Ok(Done::well(state));
    }
    let text = |name: &str| state[name].as_str().unwrap_or("unknown").to_owned();
    let why = format!(
        "the job for {unit} ended as {result}: it is {} ({}), result {}",
        text("active_state"),
        text("sub_state"),
        text("result")
    );
    Ok(Done::badly(state, 1, why))
}

async fn manager(bus: &Connection) -> Result<ManagerProxy<'static>, Failed> {
    ManagerProxy::new(bus).await.map_err(|err| refused(&err))
}

async fn state_of(bus: &Connection, manager: &ManagerProxy<'_>, name: &str) -> Result<Value, Failed> {
    let path = manager.load_unit(name).await.map_err(|err| refused(&err))?;
    let unit = Properties::of(bus, &path, "org.freedesktop.systemd1.Unit").await?;
    let mut state = json!({
        "unit": unit.text("Id"),
        "description": unit.text("Description"),
        "load_state": unit.text("LoadState"),
        "active_state": unit.text("ActiveState"),
        "sub_state": unit.text("SubState"),
        "unit_file_state": unit.text("UnitFileState"),
        "unit_file": unit.text("FragmentPath"),
        "since": unit.unsigned("StateChangeTimestamp").and_then(instant),
    });
    if name.ends_with(".service") && unit.text("LoadState").is_some_and(|state| state == "loaded") {
        let service = Properties::of(bus, &path, "org.freedesktop.systemd1.Service").await?;
        state["main_pid"] = json!(service.unsigned("MainPID").filter(|pid| *pid != 0));
        state["result"] = json!(service.text("Result"));
        state["restarts"] = json!(service.unsigned("NRestarts"));
        state["memory_bytes"] = json!(
            service
                .unsigned("MemoryCurrent")
                .filter(|bytes| *bytes != u64::MAX)
        );
        let (code, status) = (service.signed("ExecMainCode"), service.signed("ExecMainStatus"));
        state["last_exit_code"] = json!(status.filter(|_| code == Some(CLD_EXITED)));
        state["last_signal"] = json!(status.filter(|_| code.is_some_and(|code| code > CLD_EXITED)));
    }
    Ok(state)
}

/// Of `waitid(2)`: what it ended by was an exit and no signal.
const CLD_EXITED: i32 = 1;

fn instant(micros: u64) -> Option<Timestamp> {
    let ms = i64::try_from(micros / 1000).ok()?;
    (ms != 0).then(|| Timestamp::from_millis(ms))
}

fn whole_name(given: &str) -> String {
    if KINDS.iter().any(|kind| given.ends_with(kind)) {
        given.to_owned()
    } else {
        format!("{given}.service")
    }
}

fn serviceable(text: &str) -> Result<(), String> {
    unit_name(text)?;
    let other_kind = [
        ".target",
        ".slice",
        ".scope",
        ".mount",
        ".automount",
        ".swap",
        ".device",
    ];
    if other_kind.iter().any(|kind| text.ends_with(kind)) {
        return Err(format!(
            "must be a service, socket, timer or path unit, not {text:?}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::wire::OwnedObjectPath;

    fn unit(name: &str, state: &str) -> ListedUnit {
        let path = || OwnedObjectPath::try_from("/").unwrap();
        let text = |text: &str| text.to_owned();
        (
            text(name),
            text("a unit"),
            text("loaded"),
            text(state),
            text("running"),
            text(""),
            path(),
            0,
            text(""),
            path(),
        )
    }

    fn listed(given: &Value) -> Value {
        let units = vec![
            unit("b.service", "active"),
            unit("a.service", "failed"),
            unit("c.timer", "active"),
        ];
        listing(
            units,
            &Arguments::check("services.list", LIST, given.as_object().unwrap()).unwrap(),
        )
    }

    #[test]
    fn the_list_is_sorted_filtered_and_bounded() {
        let all = listed(&json!({}));
        assert_eq!((&all["total"], &all["truncated"]), (&json!(2), &json!(false)));
        assert_eq!(
            (&all["services"][0]["unit"], &all["services"][1]["unit"]),
            (&json!("a.service"), &json!("b.service"))
        );
        assert_eq!(listed(&json!({"state": "failed"}))["total"], json!(1));
        assert_eq!(
            listed(&json!({"name": "b"}))["services"][0]["unit"],
            json!("b.service")
        );
        assert_eq!(listed(&json!({"limit": 1}))["truncated"], json!(true));
    }

    #[test]
    fn a_service_is_meant_where_no_kind_is_named_and_a_target_never_is() {
        assert_eq!(whole_name("cron"), "cron.service");
        assert_eq!(whole_name("getty@tty1"), "getty@tty1.service");
        assert_eq!(whole_name("apt-daily.timer"), "apt-daily.timer");
        for bad in ["reboot.target", "", "-x", "a b", "a*", "x/y", ".service"] {
            assert!(serviceable(bad).is_err(), "{bad}");
        }
        assert!(serviceable(r"dev-disk\x2d1").is_ok());
    }
}
