//! Control's refusals in words: the detail and its code, the caret under a selector, the nodes that gates dropped.

use std::fmt::Write as _;

use muster_shared::{
    terminal::is_unprintable,
    wire::{Dropped, Problem},
};

use crate::{exit::Exit, lookup::NodeNames, text};

/// What control refuses a dispatch with that matches nodes, none of which passes the gates: it names whom they dropped.
/// Without anybody dropped each of them is another refusal.
const NONE_PASSED: [&str; 4] = [
    "action_not_declared",
    "hook_integrity_violation",
    "invalid_parameters",
    "permission_denied",
];

pub(crate) fn exit(problem: &Problem) -> Exit {
    match (problem.status, problem.code.as_deref()) {
        (_, Some("selector_empty_cohort")) => Exit::NoMatch,
        (_, Some(code)) if NONE_PASSED.contains(&code) && !problem.dropped.is_empty() => Exit::NoMatch,
        (502..=504, _) => Exit::Unreachable,
        (500.., _) => Exit::Other,
        _ => Exit::Refused,
    }
}

/// Follows `muster: ` on standard error.
pub(crate) fn explain(problem: &Problem, selector: Option<&str>, names: &NodeNames) -> String {
    let verb = if problem.status >= 500 {
        "control failed"
    } else {
        "refused"
    };
    let detail = if problem.detail.is_empty() {
        &problem.title
    } else {
        &problem.detail
    };
    let code = problem.code.clone().unwrap_or_else(|| problem.status.to_string());
    let mut words = format!("{verb}: {} ({})", text::line(detail), text::line(&code));
    // Writing into a String cannot fail.
    if let Some(reason) = &problem.reason {
        let _ = write!(words, "\n  reason: {}", text::line(reason));
    }
    if let (Some(selector), Some(position)) = (selector, problem.position) {
        let _ = write!(words, "\n{}", caret(selector, position));
    }
    if !problem.dropped.is_empty() {
        let _ = write!(words, "\n{}", dropped(&problem.dropped, names));
    }
    if let Some(id) = &problem.correlation_id {
        let _ = write!(words, "\n  correlation id: {}", text::line(id));
    }
    words
}

/// The selector and, below it, a caret under the byte at `position`.
fn caret(selector: &str, position: usize) -> String {
    // One character stays one column, or the caret would point elsewhere.
    let shown: String = selector
        .chars()
        .map(|c| if is_unprintable(c) { '?' } else { c })
        .collect();
    let column = selector
        .char_indices()
        .take_while(|(at, c)| at + c.len_utf8() <= position)
        .count();
    format!("  {shown}\n  {:column$}^", "")
}

/// One line per gate that dropped nodes; those without a name go by their ids.
pub(crate) fn dropped(gates: &[Dropped], names: &NodeNames) -> String {
    let lines: Vec<_> = gates
        .iter()
        .map(|gate| {
            let called = |id| match names.get(id) {
                Some(name) => text::line(name).into_owned(),
                None => id.to_string(),
            };
            let sample: Vec<_> = gate.sample.iter().map(called).collect();
            let count = usize::try_from(gate.count).unwrap_or(usize::MAX);
            let which = match sample.len() {
                0 => String::new(),
                shown if shown >= count => format!(": {}", sample.join(", ")),
                _ => format!(", among them {}", sample.join(", ")),
            };
            format!(
                "  dropped {}: {}{which}",
                text::count(count, "node"),
                text::line(&gate.reason)
            )
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use muster_shared::{ids::NodeId, time::Timestamp};

    pub(crate) fn problem(status: u16, code: &str, detail: &str) -> Problem {
        Problem {
            kind: "about:blank".into(),
            title: "title".into(),
            status,
            detail: detail.into(),
            instance: "/v1/x".into(),
            code: Some(code.into()),
            position: None,
            dropped: Vec::new(),
            reason: None,
            correlation_id: None,
        }
    }

    #[test]
    fn the_caret_points_at_the_byte() {
        let mut refusal = problem(400, "malformed_selector", "expected a comma or the end");
        refusal.position = Some(9);
        assert_eq!(
            explain(&refusal, Some("role=web tier"), &NodeNames::new()),
            "refused: expected a comma or the end (malformed_selector)\n  role=web tier\n           ^"
        );
    }

    #[test]
    fn the_caret_counts_characters_and_survives_any_position() {
        assert_eq!(caret("ä=b c", 5), "  ä=b c\n      ^");
        assert_eq!(caret("a\nb", 2), "  a?b\n    ^");
        assert_eq!(caret("ab", 99), "  ab\n    ^");
        assert_eq!(caret("ä", 1), "  ä\n  ^");
        assert_eq!(caret("", 0), "  \n  ^");
    }

    #[test]
    fn an_empty_cohort_says_who_was_dropped_and_why() {
        let node = |n| NodeId::mint(Timestamp::from_millis(0), [n; 10]);
        let names = NodeNames::from([(node(1), "db\n1".to_owned())]);
        let mut refusal = problem(422, "selector_empty_cohort", "no node is left");
        refusal.dropped = vec![
            Dropped {
                reason: "action_not_declared".into(),
                count: 1,
                sample: vec![node(1)],
            },
            Dropped {
                reason: "insufficient_relation".into(),
                count: 3,
                sample: vec![node(1), node(2)],
            },
        ];
        assert_eq!(
            explain(&refusal, Some("role=web"), &names),
            format!(
                "refused: no node is left (selector_empty_cohort)\n  dropped 1 node: action_not_declared: db\\n1\n  \
                 dropped 3 nodes: insufficient_relation, among them db\\n1, {}",
                node(2)
            )
        );
        assert_eq!(exit(&refusal), Exit::NoMatch);
    }

    #[test]
    fn a_cohort_that_the_gates_emptied_is_no_match_whatever_the_gate() {
        let dropped = Dropped {
            reason: "hook_integrity_violation".into(),
            count: 1,
            sample: Vec::new(),
        };
        for (status, code) in [
            (400, "action_not_declared"),
            (400, "invalid_parameters"),
            (403, "permission_denied"),
            (409, "hook_integrity_violation"),
        ] {
            let mut refusal = problem(status, code, "");
            assert_eq!(exit(&refusal), Exit::Refused, "{code}");
            refusal.dropped = vec![dropped.clone()];
            assert_eq!(exit(&refusal), Exit::NoMatch, "{code}");
        }
        // Some passed, and not as many as was said.
        let mut mismatch = problem(422, "cohort_mismatch", "");
        mismatch.dropped = vec![dropped];
        assert_eq!(exit(&mismatch), Exit::Refused);
    }

    #[test]
    fn a_status_leads_to_its_exit_code() {
        for status in [400, 401, 403, 404, 409, 413, 429] {
            assert_eq!(exit(&problem(status, "x", "")), Exit::Refused, "{status}");
        }
        assert_eq!(exit(&problem(503, "x", "")), Exit::Unreachable);
        assert_eq!(exit(&problem(500, "x", "")), Exit::Other);
    }
}
