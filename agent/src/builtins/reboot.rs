//! `reboot`: asked for once, and `succeeded` when the machine is back. This process writes into its run directory that
//! it asks, before it does; the daemon that comes up under another boot id finds that and tells it (`run_dir.rs`).

use std::time::Duration;

use super::{
    Failed,
    apart::Done,
    parameter::{Arguments, Parameter, plain},
    systemd::{self, LoginProxy},
};
use crate::{
    run_dir::{DOWN_WITHIN, RunDir},
    systemd::ManagerProxy,
};

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::number(
        "delay_seconds",
        (0, 3600),
        "0",
        "How long to wait before, up to 3600; until then it can be cancelled",
    ),
    Parameter::text("message", plain, "What users who are logged in are told"),
];

pub(super) async fn run(arguments: Arguments, run: RunDir) -> Result<Done, Failed> {
    // Reached before the wait: that there is no systemd need not be learnt after it.
    let bus = systemd::bus().await?;
    tokio::time::sleep(Duration::from_secs(arguments.number("delay_seconds"))).await;
    run.mark_reboot().map_err(|err| {
        Failed::Work(format!(
            "the reboot was not asked for, because that could not be written down: {err}"
        ))
    })?;
    if let Err(err) = ask(&bus, arguments.text("message")).await {
        // Nothing was asked, so nothing must be made of a later reboot.
        return match run.unmark_reboot() {
            Ok(()) => Err(systemd::refused(&err)),
            Err(kept) => Err(Failed::Work(format!(
                "{}; and that it was asked for stays written down: {kept}",
                systemd::why(&err)
            ))),
        };
    }
    tokio::time::sleep(DOWN_WITHIN).await;
    let seconds = DOWN_WITHIN.as_secs();
    Err(Failed::Work(format!(
        "the machine was asked to reboot and did not go down within {seconds} s"
    )))
}

async fn ask(bus: &zbus::Connection, message: Option<&str>) -> zbus::Result<()> {
    let login = LoginProxy::new(bus).await?;
    if let Some(message) = message {
        match login.set_wall_message(message, true).await {
            Err(err) if !systemd::is_absent(&err) => return Err(err),
            Ok(()) | Err(_) => {}
        }
    }
    match login.reboot(false).await {
        // systemd's own method of that name would stop no service first; its target does.
        Err(err) if systemd::is_absent(&err) => ManagerProxy::new(bus)
            .await?
            .start_unit("reboot.target", "replace-irreversibly")
            .await
            .map(drop),
        asked => asked,
    }
}
