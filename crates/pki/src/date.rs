//! Times of certificates: seconds since 1970, written as RFC 3339 in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use time::{Date, Month, OffsetDateTime, Time};

/// Seconds of a day.
pub(crate) const DAY_S: i64 = 86_400;

/// The clock, seconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// For certificates.
///
/// # Errors
/// The time is beyond the year 9999, which X.509 cannot express.
pub(crate) fn at(seconds: i64) -> anyhow::Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(seconds).ok().filter(|time| time.year() <= 9999).context("a time beyond 9999")
}

/// `2026-11-23T08:00:00Z`.
pub(crate) fn text(seconds: i64) -> String {
    let Ok(time) = at(seconds) else { return "9999-12-31T23:59:59Z".to_owned() };
    format!("{}T{:02}:{:02}:{:02}Z", day(seconds), time.hour(), time.minute(), time.second())
}

/// `2026-11-23`.
pub(crate) fn day(seconds: i64) -> String {
    let Ok(time) = at(seconds) else { return "9999-12-31".to_owned() };
    format!("{:04}-{:02}-{:02}", time.year(), u8::from(time.month()), time.day())
}

/// Reads what [`text`] writes.
///
/// # Errors
/// Not such a text.
pub(crate) fn parse(text: &str) -> anyhow::Result<i64> {
    let fault = || format!("'{text}' is not a time such as 2026-11-23T08:00:00Z");
    let digits = |from: usize, to: usize| text.get(from..to).and_then(|part| part.parse::<u32>().ok());
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'Z')];
    if text.len() != 20 || marks.iter().any(|(at, mark)| text.as_bytes()[*at] != *mark) {
        bail!(fault());
    }
    let field = |from, to| digits(from, to).with_context(fault);
    let month = Month::try_from(u8::try_from(field(5, 7)?)?).with_context(fault)?;
    let date = Date::from_calendar_date(i32::try_from(field(0, 4)?)?, month, u8::try_from(field(8, 10)?)?);
    let time =
        Time::from_hms(u8::try_from(field(11, 13)?)?, u8::try_from(field(14, 16)?)?, u8::try_from(field(17, 19)?)?);
    Ok(date.with_context(fault)?.with_time(time.with_context(fault)?).assume_utc().unix_timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        assert_eq!(text(0), "1970-01-01T00:00:00Z");
        assert_eq!(text(1_795_507_201), "2026-11-24T08:00:01Z");
        for seconds in [0, 951_782_399, 1_795_507_201, 4_102_444_800, 253_402_300_799] {
            assert_eq!(parse(&text(seconds)).expect("a time"), seconds);
        }
        assert!(at(253_402_300_800).is_err());
        for bad in [
            "",
            "2026-11-23",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-11-23T24:00:00Z",
            "2026-11-23 08:00:00Z",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
