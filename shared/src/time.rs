//! Instants as both ends store and print them: milliseconds since the Unix epoch, RFC 3339 in UTC on the wire.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A wall-clock instant with millisecond resolution.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Asks the system. Everything that decides takes `now` as an argument instead.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that asks the system for the time"
    )]
    pub fn now() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // A clock before 1970 is read as 1970: a node with a dead battery still works and reports its skew.
        Self(since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
    }

    #[must_use]
    pub const fn from_millis(ms: i64) -> Self {
        Self(ms)
    }

    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    #[must_use]
    pub fn plus(self, d: Duration) -> Self {
        Self(self.0.saturating_add(millis(d)))
    }

    #[must_use]
    pub fn minus(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(millis(d)))
    }

    /// Moves by a signed number of milliseconds, as a measured clock offset does.
    #[must_use]
    pub fn shifted(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// How long from `self` until `later`; zero when it has passed.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }
}

fn millis(d: Duration) -> i64 {
    i64::try_from(d.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(instant) => write!(f, "{instant:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

/// The text is not an RFC 3339 instant.
#[derive(Debug, thiserror::Error)]
#[error("not an RFC 3339 instant: {0:?}")]
pub struct BadTimestamp(String);

impl FromStr for Timestamp {
    type Err = BadTimestamp;
    fn from_str(raw: &str) -> Result<Self, BadTimestamp> {
        raw.parse::<jiff::Timestamp>()
            .map(|t| Self(t.as_millisecond()))
            .map_err(|_| BadTimestamp(raw.to_owned()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(feature = "openapi")]
impl schemars::JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

/// A duration as people type it: `90s`, `15m`, `2h`, `1d`, or bare seconds.
///
/// # Errors
/// A sentence that names what is wrong with the text.
pub fn parse_duration(raw: &str) -> Result<Duration, String> {
    let raw = raw.trim();
    let digits = raw.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = raw.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{raw:?} is not a duration: write 90s, 15m, 2h or 1d"))?;
    let unit_s: u64 = match unit {
        "" | "s" => 1,
        "ms" => return Ok(Duration::from_millis(number)),
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        other => return Err(format!("{other:?} is not a unit of time: write s, m, h or d")),
    };
    number
        .checked_mul(unit_s)
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{raw:?} is too long"))
}

/// How long from one instant to a later one, as people read it: `45s`, `3m`, `7h`, `12d`.
pub fn span(from: Timestamp, to: Timestamp) -> String {
    let seconds = from.until(to).as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_in_the_unit_that_fits() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        for (seconds, text) in [(59, "59s"), (200, "3m"), (90_000, "25h"), (200_000, "2d")] {
            assert_eq!(span(at(0), at(seconds)), text);
        }
        // A clock that is behind.
        assert_eq!(span(at(10), at(0)), "0s");
    }

    #[test]
    fn an_instant_survives_the_wire() {
        let at = Timestamp::from_millis(1_764_201_600_123);
        let text = serde_json::to_string(&at).unwrap();
        assert_eq!(text, "\"2025-11-27T00:00:00.123Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), at);
    }

    #[test]
    fn an_offset_other_than_utc_is_the_same_instant() {
        assert_eq!(
            "2026-01-01T01:00:00+01:00"
                .parse::<Timestamp>()
                .unwrap()
                .to_string(),
            "2026-01-01T00:00:00.000Z"
        );
    }

    #[test]
    fn durations_as_people_type_them() {
        assert_eq!(parse_duration("90").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_duration("2h").unwrap(), Duration::from_secs(7200));
        assert_eq!(parse_duration("250ms").unwrap(), Duration::from_millis(250));
        for bad in [
            "",
            "h",
            "-1s",
            "1w",
            "1.5h",
            "99999999999999999999d",
            "18446744073709551615d",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
