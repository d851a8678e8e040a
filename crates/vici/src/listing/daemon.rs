//! The daemon itself: its work, its version, its algorithms, its counters.

use super::Message;

/// Status of the daemon.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatsListing {
    /// Since the start, in seconds.
    pub uptime_s: u64,
    /// The start, in seconds since 1970.
    pub started_unix_s: u64,
    /// Threads in all.
    pub workers_total: u32,
    /// Threads without work.
    pub workers_idle: u32,
    /// Threads at work: critical, high, medium and low priority.
    pub workers_active: [u32; 4],
    /// Queued jobs, likewise.
    pub queues: [u64; 4],
    /// Timers.
    pub scheduled: u64,
    /// IKE SAs in all.
    pub ike_sas: u64,
    /// Half-open IKE SAs.
    pub half_open: u64,
    /// Parts that are loaded.
    pub plugins: Vec<String>,
}

impl StatsListing {
    /// The reply to `stats`.
    pub fn stats(&self) -> Message {
        let by_priority = |counts: [u64; 4]| {
            let mut section = Message::new();
            for (name, count) in ["critical", "high", "medium", "low"].iter().zip(counts) {
                section.set_display(name, count);
            }
            section
        };
        let (mut uptime, mut workers, mut ike_sas) = (Message::new(), Message::new(), Message::new());
        uptime.set("running", span(self.uptime_s)).set("since", date(self.started_unix_s));
        workers.set_display("total", self.workers_total).set_display("idle", self.workers_idle);
        workers.set_section("active", by_priority(self.workers_active.map(u64::from)));
        ike_sas.set_display("total", self.ike_sas).set_display("half-open", self.half_open);
        let mut message = Message::new();
        message.set_section("uptime", uptime).set_section("workers", workers);
        message.set_section("queues", by_priority(self.queues)).set_display("scheduled", self.scheduled);
        message.set_section("ikesas", ike_sas).set_list("plugins", &self.plugins);
        message
    }
}

/// A time span in its largest unit, as in `3 hours`.
fn span(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..=119 => (seconds, "second"),
        120..=7199 => (seconds / 60, "minute"),
        7200..=172_799 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// A point in time as in `Nov 21 05:07:43 UTC 2026`.
fn date(unix_s: u64) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Years begin in March, so that the leap day is their last; there are 719,468 days from March
    // of year 0 to 1970.
    let day = days + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{} {day_of_month:02} {hour:02}:{minute:02}:{second:02} UTC {year}", MONTHS[month as usize])
}

/// The reply to `version`.
pub fn version(daemon: &str, version: &str) -> Message {
    let system = rustix::system::uname();
    let mut message = Message::new();
    message.set("daemon", daemon).set("version", version);
    message.set("sysname", system.sysname().to_bytes()).set("release", system.release().to_bytes());
    message.set("machine", system.machine().to_bytes());
    message
}

/// The reply to `get-algorithms`: kinds such as `encryption`, each with the algorithms and their
/// providers.
pub fn get_algorithms<'a, I>(kinds: impl IntoIterator<Item = (&'a str, I)>) -> Message
where
    I: IntoIterator<Item = (String, &'a str)>,
{
    let mut message = Message::new();
    for (kind, algorithms) in kinds {
        let mut section = Message::new();
        for (name, provider) in algorithms {
            section.set(&name, provider);
        }
        message.set_section(kind, section);
    }
    message
}

/// The reply to `get-counters`: a section per connection, with an empty name for the whole daemon.
pub fn get_counters<'a>(counters: impl IntoIterator<Item = (&'a str, Vec<(&'a str, u64)>)>) -> Message {
    let mut sections = Message::new();
    for (connection, values) in counters {
        let mut section = Message::new();
        for (name, value) in values {
            section.set_display(name, value);
        }
        sections.set_section(connection, section);
    }
    let mut message = Message::new();
    message.set_section("counters", sections).set("success", "yes");
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_spans() {
        assert_eq!(date(0), "Jan 01 00:00:00 UTC 1970");
        assert_eq!(date(951_782_400), "Feb 29 00:00:00 UTC 2000");
        assert_eq!(date(951_868_799), "Feb 29 23:59:59 UTC 2000");
        assert_eq!(date(4_107_542_400), "Mar 01 00:00:00 UTC 2100");
        assert_eq!(date(1_795_237_663), "Nov 21 05:07:43 UTC 2026");
        assert_eq!(
            [1, 119, 120, 7200, 172_800].map(span),
            ["1 second", "119 seconds", "2 minutes", "2 hours", "2 days"]
        );
    }
}
