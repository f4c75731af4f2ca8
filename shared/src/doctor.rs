//! What the doctors of the programs say: for each thing that was looked at whether it is well, and what to do where it is not.
//!
//! Only how it is said. What is looked at, and which text may reach a terminal, each program knows for itself.

use crate::terminal::line;
use serde::Serialize;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckVerdict {
    Ok,
    /// It works, and will not for long, or not for all.
    Warn,
    Fail,
    /// It cannot be looked at, or not yet.
    Skip,
}

impl CheckVerdict {
    /// As people read it: what fails stands out.
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
pub struct Finding {
    pub check: &'static str,
    pub verdict: CheckVerdict,
    pub finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, finding: impl Into<String>) -> Self {
        Self::of(check, CheckVerdict::Ok, finding, None)
    }

    pub fn skip(check: &'static str, finding: impl Into<String>) -> Self {
        Self::of(check, CheckVerdict::Skip, finding, None)
    }

    pub fn warn(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::of(check, CheckVerdict::Warn, finding, Some(remedy.into()))
    }

    pub fn fail(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::of(check, CheckVerdict::Fail, finding, Some(remedy.into()))
    }

    pub fn of(
        check: &'static str,
        verdict: CheckVerdict,
        finding: impl Into<String>,
        remedy: Option<String>,
    ) -> Self {
        Self {
            check,
            verdict,
            finding: finding.into(),
            remedy,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether anything is broken; a warning is not.
    pub fn failed(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.verdict == CheckVerdict::Fail)
    }

    /// A line for each finding, its remedy below it. The checks have `check_width` columns.
    pub fn text(&self, check_width: usize) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let head = format!("{:4}  {:check_width$}  ", finding.verdict.as_str(), finding.check);
            text.push_str(&format!("{head}{}\n", line(&finding.finding)));
            if let Some(remedy) = &finding.remedy {
                let below = check_width + 8;
                text.push_str(&format!("{:below$}remedy: {}\n", "", line(remedy)));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            findings: vec![
                Finding::ok("journal", "it is whole"),
                Finding::warn("hooks", "a\nb", "mend it"),
                Finding::fail("systemd", "away", "boot"),
                Finding::skip("control", "not yet"),
            ],
        }
    }

    #[test]
    fn findings_stand_in_columns_with_their_remedies_below() {
        let text = report().text(7);
        let lines = [
            "ok    journal  it is whole",
            "warn  hooks    a\\nb",
            "               remedy: mend it",
            "FAIL  systemd  away",
            "               remedy: boot",
            "skip  control  not yet",
            "",
        ];
        assert_eq!(text, lines.join("\n"));
    }

    #[test]
    fn a_document_has_the_same_words_for_every_verdict_and_no_empty_remedy() {
        let document = serde_json::to_value(report()).unwrap();
        assert_eq!(
            document,
            serde_json::json!({"findings": [
                {"check": "journal", "verdict": "ok", "finding": "it is whole"},
                {"check": "hooks", "verdict": "warn", "finding": "a\nb", "remedy": "mend it"},
                {"check": "systemd", "verdict": "fail", "finding": "away", "remedy": "boot"},
                {"check": "control", "verdict": "skip", "finding": "not yet"},
            ]})
        );
    }

    #[test]
    fn only_what_is_broken_fails() {
        let mut report = report();
        assert!(report.failed());
        report
            .findings
            .retain(|finding| finding.verdict != CheckVerdict::Fail);
        assert!(!report.failed());
    }
}
