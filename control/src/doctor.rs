//! `muster-control doctor`: everything that commonly keeps a control from working, looked at one after the other. Each finding
//! says what is so, and what to do where it is not well. It changes nothing but a small object that it puts into the output
//! store and takes away again.

pub(crate) mod machine;
mod service;

use muster_shared::time::Timestamp;
use serde::Serialize;

use crate::config::{Config, ConfigError};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Ok,
    /// It works, and will not for long, or not for all.
    Warn,
    Fail,
    /// It cannot be looked at.
    Skip,
}

impl Verdict {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
            Self::Skip => "skip",
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    check: &'static str,
    verdict: Verdict,
    finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, finding: impl Into<String>) -> Self {
        Self::of(check, Verdict::Ok, finding, None)
    }

    fn skip(check: &'static str, finding: impl Into<String>) -> Self {
        Self::of(check, Verdict::Skip, finding, None)
    }

    fn warn(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::of(check, Verdict::Warn, finding, Some(remedy.into()))
    }

    fn fail(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::of(check, Verdict::Fail, finding, Some(remedy.into()))
    }

    fn of(check: &'static str, verdict: Verdict, finding: impl Into<String>, remedy: Option<String>) -> Self {
        Self {
            check,
            verdict,
            finding: finding.into(),
            remedy,
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn failed(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.verdict == Verdict::Fail)
    }

    pub(crate) fn text(&self) -> String {
        let lines = self.findings.iter().map(|finding| {
            let mut text = format!(
                "{:4}  {:14}  {}\n",
                finding.verdict.as_str(),
                finding.check,
                line(&finding.finding)
            );
            if let Some(remedy) = &finding.remedy {
                text.push_str(&format!("{:22}remedy: {}\n", "", line(remedy)));
            }
            text
        });
        lines.collect()
    }
}

/// What a file or a service wrote must not reach a terminal as anything but text.
fn line(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
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
