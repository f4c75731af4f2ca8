//! Hours of the week, as a rule of the policy names them: `Sat,Sun 02:00-05:00`, `Mon-Fri 22:00-04:00 UTC`, `12:00-13:00`.

use std::{fmt, str::FromStr};

use muster_shared::time::Timestamp;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MINUTES_OF_DAY: u16 = 24 * 60;

/// A minute of a week that begins on Monday.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    day: usize,
    minute: u16,
}

impl Moment {
    /// `None` where no week has it.
    pub(crate) fn new(day: usize, minute: u16) -> Option<Self> {
        (day < DAYS.len() && minute < MINUTES_OF_DAY).then_some(Self { day, minute })
    }

    pub(crate) fn of_utc(at: Timestamp) -> Self {
        let minutes = at.as_millis().div_euclid(60_000);
        // 1970 began on a Thursday.
        let days = minutes.div_euclid(i64::from(MINUTES_OF_DAY)) + 3;
        Self {
            day: usize::try_from(days.rem_euclid(7)).unwrap_or_default(),
            minute: u16::try_from(minutes.rem_euclid(i64::from(MINUTES_OF_DAY))).unwrap_or_default(),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", DAYS[self.day], clock(self.minute))
    }
}

/// One moment by the machine's own clock, in both readings that a rule may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    pub(crate) local: Moment,
    pub(crate) utc: Moment,
}

impl fmt::Display for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} here, {} UTC", self.local, self.utc)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hours {
    /// The days on which they begin.
    days: [bool; 7],
    from: u16,
    to: u16,
    utc: bool,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is no hours of the week: write [DAYS ]HH:MM-HH:MM[ UTC] with DAYS like Sat,Sun or Mon-Fri, 00:00 to 24:00, and an end \
     that is not the beginning"
)]
pub(crate) struct BadHours(String);

impl Hours {
    /// Those that end before they begin end on the next day.
    pub(crate) fn hold(&self, now: Now) -> bool {
        let Moment { day, minute } = if self.utc { now.utc } else { now.local };
        let began_today = self.days[day];
        if self.from < self.to {
            return began_today && (self.from..self.to).contains(&minute);
        }
        let began_yesterday = self.days[(day + 6) % 7];
        (began_today && minute >= self.from) || (began_yesterday && minute < self.to)
    }

    fn parse(raw: &str) -> Option<Self> {
        let mut words = raw.split(' ').peekable();
        let days = match words.next_if(|word| !word.contains(':')) {
            Some(word) => days(word)?,
            None => [true; 7],
        };
        let (from, to) = words.next()?.split_once('-')?;
        let (from, to) = (minute(from)?, minute(to)?);
        let utc = match (words.next(), words.next()) {
            (None, None) => false,
            (Some("UTC"), None) => true,
            (Some(_) | None, Some(_) | None) => return None,
        };
        (from != to && from < MINUTES_OF_DAY).then_some(Self { days, from, to, utc })
    }
}

impl FromStr for Hours {
    type Err = BadHours;
    fn from_str(raw: &str) -> Result<Self, BadHours> {
        Self::parse(raw).ok_or_else(|| BadHours(raw.to_owned()))
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.days != [true; 7] {
            let named = DAYS.iter().zip(self.days).filter(|(_, on)| *on);
            let names: Vec<&str> = named.map(|(name, _)| *name).collect();
            write!(f, "{} ", names.join(","))?;
        }
        write!(f, "{}-{}", clock(self.from), clock(self.to))?;
        f.write_str(if self.utc { " UTC" } else { "" })
    }
}

/// `Sat,Sun`, `Mon-Fri`, `Fri-Mon,Wed`.
fn days(raw: &str) -> Option<[bool; 7]> {
    let number = |name: &str| DAYS.iter().position(|day| *day == name);
    let mut days = [false; 7];
    for part in raw.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (number(first)?, number(last)?);
        days[day] = true;
        while day != last {
            day = (day + 1) % 7;
            days[day] = true;
        }
    }
    Some(days)
}

/// `05:30` to the minute; `24:00` is the end of a day.
fn minute(raw: &str) -> Option<u16> {
    let (hour, minute) = raw.split_once(':')?;
    let two = |text: &str| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u16>().ok()).flatten()
    };
    let (hour, minute) = (two(hour)?, two(minute)?);
    let of_day = hour * 60 + minute;
    (minute < 60 && of_day <= MINUTES_OF_DAY).then_some(of_day)
}

fn clock(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: &str, minute_of_day: &str) -> Now {
        let local = Moment::new(
            DAYS.iter().position(|name| *name == day).unwrap(),
            minute(minute_of_day).unwrap(),
        )
        .unwrap();
        Now {
            local,
            // Another day and hour: whoever reads the wrong one is found out.
            utc: Moment::new((local.day + 3) % 7, (local.minute + 727) % MINUTES_OF_DAY).unwrap(),
        }
    }

    #[test]
    fn hours_hold_from_their_first_minute_to_before_their_last() {
        for (hours, day, time, hold) in [
            ("02:00-05:00", "Wed", "02:00", true),
            ("02:00-05:00", "Wed", "04:59", true),
            ("02:00-05:00", "Wed", "05:00", false),
            ("02:00-05:00", "Wed", "01:59", false),
            ("Sat,Sun 02:00-05:00", "Sun", "03:00", true),
            ("Sat,Sun 02:00-05:00", "Mon", "03:00", false),
            ("Mon-Fri 00:00-24:00", "Fri", "23:59", true),
            ("Mon-Fri 00:00-24:00", "Sat", "00:00", false),
            ("Sat-Mon 10:00-11:00", "Sun", "10:30", true),
            ("Sat-Mon 10:00-11:00", "Tue", "10:30", false),
            // Over midnight: the day is the one on which they begin.
            ("Fri 22:00-04:00", "Fri", "22:00", true),
            ("Fri 22:00-04:00", "Sat", "03:59", true),
            ("Fri 22:00-04:00", "Sat", "04:00", false),
            ("Fri 22:00-04:00", "Fri", "03:00", false),
            ("Sun 22:00-04:00", "Mon", "01:00", true),
        ] {
            let parsed: Hours = hours.parse().unwrap();
            assert_eq!(parsed.hold(at(day, time)), hold, "{hours} at {day} {time}");
        }
    }

    #[test]
    fn utc_is_read_where_it_is_asked_for() {
        let now = Now {
            local: Moment::new(6, 60).unwrap(),
            utc: Moment::new(5, 23 * 60).unwrap(),
        };
        let hold = |hours: &str| hours.parse::<Hours>().unwrap().hold(now);
        assert!(hold("Sun 01:00-01:01") && hold("Sat 23:00-23:01 UTC"));
        assert!(!hold("Sat 23:00-23:01") && !hold("Sun 01:00-01:01 UTC"));
    }

    #[test]
    fn an_instant_has_its_day_in_utc() {
        for (instant, shown) in [
            ("1970-01-01T00:00:00Z", "Thu 00:00"),
            ("2026-11-29T14:03:59Z", "Sun 14:03"),
            ("2026-11-30T00:00:00Z", "Mon 00:00"),
            ("1969-12-31T23:59:00Z", "Wed 23:59"),
        ] {
            assert_eq!(Moment::of_utc(instant.parse().unwrap()).to_string(), shown);
        }
        assert_eq!(Moment::new(7, 0), None);
        assert_eq!(Moment::new(0, MINUTES_OF_DAY), None);
    }

    #[test]
    fn hours_are_written_as_they_are_read_and_else_refused() {
        for (raw, shown) in [
            ("02:00-05:00", "02:00-05:00"),
            ("Mon-Wed 02:00-24:00 UTC", "Mon,Tue,Wed 02:00-24:00 UTC"),
            ("Sun,Sat 22:15-04:00", "Sat,Sun 22:15-04:00"),
        ] {
            assert_eq!(raw.parse::<Hours>().unwrap().to_string(), shown);
        }
        for bad in [
            "",
            "Sat",
            "2:00-5:00",
            "02:00",
            "02:00-02:00",
            "24:00-02:00",
            "02:60-03:00",
            "25:00-26:00",
            "sat 02:00-05:00",
            "Sat, Sun 02:00-05:00",
            "Sat 02:00-05:00 CET",
            "Sat 02:00-05:00 UTC UTC",
            "+2:00-05:00",
        ] {
            assert!(bad.parse::<Hours>().is_err(), "{bad:?}");
        }
    }
}
