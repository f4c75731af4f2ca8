//! `Retry-After`, in both of its forms (RFC 9110, section 10.2.3).

use std::time::{Duration, SystemTime};

use muster_shared::time::Timestamp;

/// How long the server asks to be left alone. A date is an instant of the server's clock, so it is compared with what
/// that clock said in the same answer (`Date`), and with `now` only where the answer does not say.
pub(crate) fn wait(retry_after: &str, date: Option<&str>, now: Timestamp) -> Option<Duration> {
    let retry_after = retry_after.trim();
    if let Ok(seconds) = retry_after.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let asked = instant(retry_after)?;
    Some(date.and_then(instant).unwrap_or(now).until(asked))
}

/// What a `Date` header says, to the second.
pub(crate) fn instant(date: &str) -> Option<Timestamp> {
    let at = httpdate::parse_http_date(date.trim()).ok()?;
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(Timestamp::from_millis(i64::try_from(since.as_millis()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_nothing_else() {
        let now = Timestamp::from_millis(784_111_777_000);
        let seconds = |n| Some(Duration::from_secs(n));
        for (text, expected) in [
            ("7", seconds(7)),
            (" 0 ", seconds(0)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", seconds(10)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", seconds(10)),
            ("Sun Nov  6 08:49:47 1994", seconds(10)),
            ("Sun, 06 Nov 1994 08:49:30 GMT", seconds(0)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(wait(text, None, now), expected, "{text}");
        }
    }

    #[test]
    fn a_date_is_read_by_the_clock_of_the_server() {
        let (asked, said) = ("Sun, 06 Nov 1994 08:49:47 GMT", "Sun, 06 Nov 1994 08:49:37 GMT");
        for now in [0, 784_111_777_000, 4_000_000_000_000] {
            let wait = wait(asked, Some(said), Timestamp::from_millis(now));
            assert_eq!(wait, Some(Duration::from_secs(10)), "{now}");
        }
    }
}
