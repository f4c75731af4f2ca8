//! Values as people read them. Whatever a node or a server wrote passes through [`line`] before a terminal sees it:
//! the screen and the tables do that themselves, for every command.

use std::{borrow::Cow, fmt::Write as _, time::Duration};

use muster_shared::{
    ids::Digest,
    labels::{Labels, NODE_PREFIX},
    terminal::is_unprintable,
    time::{Timestamp, span},
};

/// One line without control characters, so that foreign text neither breaks a table nor commands a terminal.
pub(crate) fn line(raw: &str) -> Cow<'_, str> {
    if !raw.chars().any(is_unprintable) {
        return Cow::Borrowed(raw);
    }
    let mut out = String::with_capacity(raw.len() + 8);
    for c in raw.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push(' '),
            c => push(&mut out, c),
        }
    }
    Cow::Owned(out)
}

fn push(out: &mut String, c: char) {
    match c {
        '\r' => out.push_str("\\r"),
        c if is_unprintable(c) => {
            // Writing into a String cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
        c => out.push(c),
    }
}

/// Text of an output: its lines and tabs stay, and all else is as in [`line`].
pub(crate) fn push_printable(out: &mut String, raw: &str) {
    for c in raw.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c => push(out, c),
        }
    }
}

/// The same of several lines, which stay lines.
pub(crate) fn lines(raw: &str) -> Cow<'_, str> {
    if !raw.chars().any(|c| c != '\n' && is_unprintable(c)) {
        return Cow::Borrowed(raw);
    }
    let lines: Vec<_> = raw.split('\n').map(line).collect();
    Cow::Owned(lines.join("\n"))
}

/// JSON that says the same to whoever parses it, and commands no terminal: what is unprintable is only inside strings.
pub(crate) fn json(raw: &str) -> Cow<'_, str> {
    if !raw.chars().any(|c| c != '\n' && is_unprintable(c)) {
        return Cow::Borrowed(raw);
    }
    let mut out = String::with_capacity(raw.len() + 8);
    for c in raw.chars() {
        if c != '\n' && is_unprintable(c) {
            // Writing into a String cannot fail. No such character needs more than four digits.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// At most `max` characters, the cut said by three dots.
pub(crate) fn clip(raw: &str, max: usize) -> Cow<'_, str> {
    if raw.chars().count() <= max {
        return Cow::Borrowed(raw);
    }
    let mut kept: String = raw.chars().take(max.saturating_sub(3)).collect();
    kept.push_str("...");
    Cow::Owned(kept)
}

/// How long ago, as [`span`] says it.
pub(crate) fn age(now: Timestamp, then: Timestamp) -> String {
    span(then, now)
}

/// How long something took: `0.4s`, `12.0s`, `3m05s`, `2h03m`.
pub(crate) fn took(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        _ => format!("{}h{:02}m", s / 3_600, s % 3_600 / 60),
    }
}

pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{value:.1} {unit}")
}

/// Enough of a digest to tell two apart by eye; approving one takes the whole.
pub(crate) fn digest_short(digest: Digest) -> String {
    let mut text = digest.to_string();
    text.truncate("sha256:".len() + 12);
    text
}

/// The labels that operators gave, and with `all` also those that the node says of itself.
pub(crate) fn labels(labels: &Labels, all: bool) -> String {
    let shown: Vec<_> = labels
        .iter()
        .filter(|(key, _)| all || !key.starts_with(NODE_PREFIX))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if shown.is_empty() {
        "-".to_owned()
    } else {
        shown.join(",")
    }
}

/// `1 node`, `2 nodes`.
pub(crate) fn count(n: usize, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_command_the_terminal() {
        assert_eq!(line("plain ü"), "plain ü");
        assert_eq!(line("a\x1b[31m\nb\tc\u{202e}"), "a\\u{1b}[31m\\nb c\\u{202e}");
    }

    #[test]
    fn lines_stay_lines_and_json_means_the_same() {
        assert_eq!(lines("one\ntwo"), "one\ntwo");
        assert_eq!(lines("one\x1b[2J\n\ttwo\r\n"), "one\\u{1b}[2J\n two\\r\n");
        let name = "a\u{9b}2J\x1b\u{202e}\n";
        let raw = serde_json::to_string_pretty(&[name]).unwrap();
        let shown = json(&raw);
        assert!(
            !shown.chars().any(|c| c != '\n' && is_unprintable(c)),
            "{shown:?}"
        );
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [name]);
    }

    #[test]
    fn a_cut_is_said() {
        assert_eq!(clip("abcdef", 6), "abcdef");
        assert_eq!(clip("äbcdefg", 6), "äbc...");
    }

    #[test]
    fn ages_and_durations_keep_one_or_two_units() {
        let at = |s: i64| Timestamp::from_millis(s * 1000);
        assert_eq!(age(at(59), at(0)), "59s");
        assert_eq!(age(at(200), at(0)), "3m");
        assert_eq!(age(at(90_000), at(0)), "25h");
        assert_eq!(age(at(200_000), at(0)), "2d");
        // A clock that is behind control's shows no negative age.
        assert_eq!(age(at(0), at(10)), "0s");
        assert_eq!(took(Duration::from_millis(420)), "0.4s");
        assert_eq!(took(Duration::from_secs(185)), "3m05s");
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(64 << 20), "64.0 MiB");
    }

    #[test]
    fn a_nodes_own_labels_are_left_to_the_wide_view() {
        let all = muster_shared::labels::parse_list("role=web,node/os=debian").unwrap();
        assert_eq!(labels(&all, false), "role=web");
        assert_eq!(labels(&all, true), "node/os=debian,role=web");
        assert_eq!(labels(&Labels::new(), true), "-");
    }
}
