//! `muster-control doctor`: everything that commonly keeps a control from working, looked at one after the other. Each finding
//! says what is so, and what to do where it is not well. It changes nothing but a small object that it puts into the output
//! store and takes away again.

pub(crate) mod machine;
mod service;

use muster_shared::{
    doctor::{Finding, Report},
    time::Timestamp,
};

use crate::config::{Config, ConfigError};

/// As wide as the longest name of a check.
const CHECK_WIDTH: usize = 14;

pub(crate) fn text(report: &Report) -> String {
    report.text(CHECK_WIDTH)
}

pub(crate) async fn examine(config: Result<Config, ConfigError>, now: Timestamp) -> Report {
    let config = match config {
        Ok(config) => config,
        Err(err) => {
            let findings = vec![Finding::fail(
                "configuration",
                crate::error_chain(&err),
                "mend the setting; nothing else can be looked at before",
            )];
            return Report { findings };
        }
    };
    let mut findings = vec![Finding::ok(
        "configuration",
        format!("sound: {} on {}", config.server_url, config.listen),
    )];
    findings.extend(machine::settings(&config));
    findings.extend(machine::folder(&config.data));
    findings.push(machine::space(&config.data));
    findings.extend(machine::certificates(&config, now));
    findings.extend(service::database(&config, now).await);
    findings.extend(service::outputs(&config, now).await);
    findings.push(service::issuer(&config).await);
    findings.push(machine::address(&config).await);
    Report { findings }
}
