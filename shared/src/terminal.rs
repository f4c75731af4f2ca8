//! What must not reach a terminal in the words of others.

/// Control characters, and those that change the direction of the text around them.
pub fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What a file or a service wrote, as one line that is nothing but text.
#[must_use]
pub fn line(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        if is_unprintable(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_a_terminal_or_turns_its_text_around_is_unprintable() {
        for c in ['\x1b', '\n', '\u{9b}', '\u{200f}', '\u{202e}', '\u{2066}'] {
            assert!(is_unprintable(c), "{c:?}");
        }
        for c in ['a', ' ', 'ä', '\u{200d}', '人'] {
            assert!(!is_unprintable(c), "{c:?}");
        }
        assert_eq!(line("a\x1b[2J\u{202e}ä\n"), r"a\u{1b}[2J\u{202e}ä\n");
    }
}
