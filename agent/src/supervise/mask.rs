//! Secrets in the output of a hook: each is masked on its way into the spool, also one that comes in pieces.

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};
use muster_shared::parameter_schema::MASK;

/// What is shorter stands in any output by chance: to mask it would say nothing less and spoil the rest.
const MASKED_BYTES_MIN: usize = 4;

pub(super) struct Mask {
    secrets: AhoCorasick,
    longest: usize,
    /// What may be the beginning of a secret. Shorter than the longest of them.
    held: Vec<u8>,
}

impl Mask {
    /// Of the values as a hook is given them. A value of several lines is masked as a whole and line by line. `None` where
    /// there is nothing to mask.
    pub(super) fn of<'s>(values: impl IntoIterator<Item = &'s str>) -> Option<Self> {
        let mut secrets: Vec<&str> = values
            .into_iter()
            .flat_map(|value| std::iter::once(value).chain(value.lines().map(str::trim)))
            .filter(|secret| secret.len() >= MASKED_BYTES_MIN)
            .collect();
        secrets.sort_unstable();
        secrets.dedup();
        let longest = secrets.iter().map(|secret| secret.len()).max()?;
        // The kind that takes a few bytes for each of a secret, and not a table of 1 KiB.
        let secrets = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(secrets)
            .ok()?;
        Some(Self {
            secrets,
            longest,
            held: Vec::new(),
        })
    }

    /// Hands on what is certain by now: any match that begins before the last `longest - 1` bytes is there as a whole.
    pub(super) fn pass(&mut self, bytes: &[u8], on: impl FnMut(&[u8])) {
        self.held.extend_from_slice(bytes);
        let certain = self.held.len().saturating_sub(self.longest - 1);
        self.hand_on(certain, on);
    }

    /// Nothing more will come.
    pub(super) fn finish(mut self, on: impl FnMut(&[u8])) {
        let all = self.held.len();
        self.hand_on(all, on);
    }

    fn hand_on(&mut self, certain: usize, mut on: impl FnMut(&[u8])) {
        let mut done = 0;
        while done < certain {
            let input = Input::new(&self.held).span(done..self.held.len());
            let Some(found) = self.secrets.find(input).filter(|found| found.start() < certain) else {
                break;
            };
            on(&self.held[done..found.start()]);
            on(MASK.as_bytes());
            done = found.end();
        }
        if done < certain {
            on(&self.held[done..certain]);
            done = certain;
        }
        self.held.drain(..done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of an output that is written in pieces of this many bytes.
    fn masked(secrets: &[&str], output: &str, piece: usize) -> String {
        let Some(mut mask) = Mask::of(secrets.iter().copied()) else {
            return output.to_owned();
        };
        let mut kept = Vec::new();
        for piece in output.as_bytes().chunks(piece) {
            mask.pass(piece, |bytes| kept.extend_from_slice(bytes));
        }
        mask.finish(|bytes| kept.extend_from_slice(bytes));
        String::from_utf8(kept).unwrap()
    }

    #[test]
    fn a_secret_is_masked_however_it_is_cut() {
        let output = "hunter2 and hunter22, hunterhunter2, hunte";
        for piece in 1..=output.len() {
            let kept = masked(&["hunter2", "hunter22"], output, piece);
            assert_eq!(kept, "******** and ********, hunter********, hunte", "{piece}");
        }
    }

    #[test]
    fn the_longest_of_two_that_begin_alike_is_masked_as_one() {
        for piece in 1..12 {
            assert_eq!(masked(&["abcd", "abcdefgh"], "abcdefgh", piece), MASK);
            assert_eq!(
                masked(&["abcd", "abcdefgh"], "abcdefgX", piece),
                format!("{MASK}efgX")
            );
        }
    }

    #[test]
    fn a_secret_of_several_lines_is_masked_line_by_line_too() {
        let key = "-----BEGIN-----\n  c2VjcmV0\nab\n-----END-----\n";
        assert_eq!(masked(&[key], key, 7), MASK);
        assert_eq!(
            masked(&[key], "ab> c2VjcmV0\n", 3),
            "ab> ********\n",
            "a line of two bytes is none"
        );
    }

    #[test]
    fn what_is_short_or_none_is_not_masked() {
        assert!(Mask::of(["abc", "", "\n1\n"]).is_none());
        assert!(Mask::of([]).is_none());
        assert_eq!(masked(&["pass"], "password", 1), "********word");
    }

    #[test]
    fn little_is_held_back() {
        let mut mask = Mask::of(["0123456789"]).unwrap();
        let mut kept = 0;
        for _ in 0..1000 {
            mask.pass(b"0123", |bytes| kept += bytes.len());
            assert!(mask.held.len() < 10);
        }
        mask.finish(|bytes| kept += bytes.len());
        assert_eq!(kept, 4000);
    }
}
