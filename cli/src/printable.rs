//! The output of an action as a terminal may have it: lines of text, with everything else in them escaped.

use std::fmt::Write as _;

use crate::text;

/// Goes over an output piece by piece; a character that two pieces share waits for its other half.
#[derive(Default)]
pub(crate) struct Printable {
    /// The beginning of a character: three bytes at most.
    rest: Vec<u8>,
}

impl Printable {
    pub(crate) fn piece(&mut self, piece: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(piece);
        let mut out = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text::push_printable(&mut out, chunk.valid());
            if chunks.peek().is_none() && is_begun(chunk.invalid()) {
                self.rest = chunk.invalid().to_vec();
            } else {
                push_bytes(&mut out, chunk.invalid());
            }
        }
        out
    }

    /// What is left when nothing more comes.
    pub(crate) fn end(self) -> String {
        let mut out = String::new();
        push_bytes(&mut out, &self.rest);
        out
    }
}

/// Whether more bytes could make a character of it.
fn is_begun(bytes: &[u8]) -> bool {
    // An error without a length is an end that came too early.
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|err| err.error_len().is_none())
}

fn push_bytes(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing into a String cannot fail.
        let _ = write!(out, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let mut printable = Printable::default();
        let mut out: String = pieces.iter().map(|piece| printable.piece(piece)).collect();
        out.push_str(&printable.end());
        out
    }

    #[test]
    fn lines_and_tabs_stay_and_what_commands_a_terminal_does_not() {
        assert_eq!(shown(&["a\tü\n人\n".as_bytes()]), "a\tü\n人\n");
        assert_eq!(
            shown(&["\x1b]0;x\x07\r\n\u{9b}2J\u{202e}\0".as_bytes()]),
            "\\u{1b}]0;x\\u{7}\\r\n\\u{9b}2J\\u{202e}\\u{0}"
        );
        assert_eq!(shown(&[b"a\x9b2J\xff\xe4\xbab"]), "a\\x9b2J\\xff\\xe4\\xbab");
    }

    #[test]
    fn wherever_the_pieces_are_cut_the_same_is_shown() {
        let whole = "ä人🦀\u{202e}\x1b\n".as_bytes();
        let expected = shown(&[whole]);
        for cut in 0..=whole.len() {
            let (head, tail) = whole.split_at(cut);
            assert_eq!(shown(&[head, tail]), expected, "{cut}");
        }
        let bytes: Vec<_> = whole.chunks(1).collect();
        assert_eq!(shown(&bytes), expected);
    }

    #[test]
    fn a_character_that_never_ends_is_shown_by_its_bytes() {
        assert_eq!(shown(&[b"a\xe4", b"\xba"]), "a\\xe4\\xba");
        assert_eq!(shown(&[b"a\xe4", b"b"]), "a\\xe4b");
    }
}
