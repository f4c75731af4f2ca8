//! A part of a body, as `Range` asks for it (RFC 9110, section 14).

use std::ops::Range;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// No part is asked for, or in a way that a server may pass over.
    Whole,
    /// At least one byte, and none outside of the body.
    Part(Range<u64>),
    /// A part that lies outside of the body.
    Outside,
}

/// What of `len` bytes is wanted. Several parts at once are not served: they get the whole, as the RFC allows.
pub(super) fn wanted(header: Option<&str>, len: u64) -> Wanted {
    let spec = header
        .and_then(|header| header.split_once('='))
        .filter(|(unit, _)| unit.trim().eq_ignore_ascii_case("bytes"));
    let Some((first, last)) = spec.and_then(|(_, spec)| spec.trim().split_once('-')) else {
        return Wanted::Whole;
    };
    match (number(first), number(last)) {
        (Ok(None), Ok(Some(0))) => Wanted::Outside,
        // There is no way to say which part of nothing it is.
        (Ok(None), Ok(Some(_))) if len == 0 => Wanted::Whole,
        (Ok(None), Ok(Some(suffix))) => Wanted::Part(len - suffix.min(len)..len),
        (Ok(Some(first)), Ok(Some(last))) if last < first => Wanted::Whole,
        (Ok(Some(first)), Ok(_)) if first >= len => Wanted::Outside,
        (Ok(Some(first)), Ok(last)) => {
            let end = last.map_or(len, |last| last.saturating_add(1).min(len));
            Wanted::Part(first..end)
        }
        (Ok(None), Ok(None)) | (Err(NoNumber), _) | (_, Err(NoNumber)) => Wanted::Whole,
    }
}

struct NoNumber;

fn number(raw: &str) -> Result<Option<u64>, NoNumber> {
    if raw.is_empty() {
        return Ok(None);
    }
    if !raw.bytes().all(|b| b.is_ascii_digit()) {
        return Err(NoNumber);
    }
    // More digits than fit name a byte beyond every end.
    Ok(Some(raw.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_is_cut_to_what_is_there() {
        for (header, part) in [
            ("bytes=0-0", 0..1),
            ("bytes=2-4", 2..5),
            ("bytes=2-", 2..10),
            ("bytes=9-99999999999999999999", 9..10),
            ("bytes=-3", 7..10),
            ("bytes=-99", 0..10),
            ("Bytes=0-9", 0..10),
        ] {
            assert_eq!(wanted(Some(header), 10), Wanted::Part(part), "{header}");
        }
    }

    #[test]
    fn what_lies_outside_is_said_and_what_makes_no_sense_is_passed_over() {
        for header in [
            "bytes=10-",
            "bytes=10-20",
            "bytes=99999999999999999999-",
            "bytes=-0",
        ] {
            assert_eq!(wanted(Some(header), 10), Wanted::Outside, "{header}");
        }
        for header in [
            "bytes=",
            "bytes=-",
            "bytes=5-2",
            "bytes=0-1,4-5",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1",
            "lines=0-1",
            "",
        ] {
            assert_eq!(wanted(Some(header), 10), Wanted::Whole, "{header}");
        }
        assert_eq!(wanted(None, 10), Wanted::Whole);
        assert_eq!(wanted(Some("bytes=0-"), 0), Wanted::Outside);
        assert_eq!(wanted(Some("bytes=-1"), 0), Wanted::Whole);
    }
}
