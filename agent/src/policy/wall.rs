//! What the machine's own clock shows. Control has no say in it: it measures how far off the clock is, and expiry goes by
//! that, but whoever could move these hours could open them.

use muster_shared::time::Timestamp;

use super::hours::{Moment, Now};

#[expect(unsafe_code, reason = "libc does not declare it")]
unsafe extern "C" {
    /// Reads the time zone again where `/etc/localtime` has changed; `localtime_r` alone keeps the first one for ever.
    safe fn tzset();
}

pub(crate) fn now() -> Now {
    let now = Timestamp::now();
    let utc = Moment::of_utc(now);
    Now {
        // A time that no calendar has is told in UTC.
        local: local(now).unwrap_or(utc),
        utc,
    }
}

fn local(now: Timestamp) -> Option<Moment> {
    tzset();
    let seconds: libc::time_t = now.as_millis().div_euclid(1000);
    let mut fields = std::mem::MaybeUninit::<libc::tm>::zeroed();
    #[expect(unsafe_code, reason = "no safe wrapper knows the machine's time zone")]
    // SAFETY: both point to values of ours that live through the call, and all zeroes are a sound `tm`.
    let fields = unsafe {
        if libc::localtime_r(&raw const seconds, fields.as_mut_ptr()).is_null() {
            return None;
        }
        fields.assume_init()
    };
    // Its weeks begin on Sunday.
    let day = usize::try_from(fields.tm_wday).ok()?.checked_add(6)? % 7;
    let minute = u16::try_from(fields.tm_hour * 60 + fields.tm_min).ok()?;
    Moment::new(day, minute)
}
