//! State notifications for a service manager (sd_notify(3)): ready, reloading, stopping, status
//! line, watchdog.
//!
//! The socket is connected before the confinement, after which this process can connect no UNIX
//! socket.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Interval at which the status line is updated.
const STATUS_EVERY: Duration = Duration::from_secs(5);

/// Connection to the service manager; nothing is sent where there is none.
#[derive(Default)]
pub(crate) struct Notify {
    socket: Option<UnixDatagram>,
    /// Time between two signs of life: half of the watchdog timeout of the service manager, as
    /// sd_watchdog_enabled(3) advises.
    watchdog: Option<Duration>,
    /// When the next sign of life, and the next status line, are due.
    alive_at: Option<Instant>,
    status_at: Option<Instant>,
    /// Status line that was sent last.
    status: String,
}

impl Notify {
    /// Connects to the socket that the variable NOTIFY_SOCKET names.
    pub(crate) fn connect() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let variable = |name| std::env::var(name).ok();
        let watchdog = watchdog(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), std::process::id());
        match open(&name) {
            Ok(socket) => Self { socket: Some(socket), watchdog, ..Self::default() },
            Err(error) => {
                let name = name.to_string_lossy();
                tracing::warn!(target: "control", "NOTIFY_SOCKET {name}: {error}; the service manager gets no notification");
                Self::default()
            }
        }
    }

    /// To be called several times a second by the control thread. Sends a sign of life when one is
    /// due, but only while every worker is `alive`: without it the service manager ends and
    /// restarts the gateway. Sends the status line when it has changed.
    pub(crate) fn tick(&mut self, now: Instant, alive: bool, status: impl FnOnce() -> String) {
        if self.socket.is_none() {
            return;
        }
        if let Some(every) = self.watchdog
            && alive
            && self.alive_at.is_none_or(|at| now >= at)
        {
            self.alive_at = Some(now + every);
            self.send("WATCHDOG=1");
        }
        if self.status_at.is_none_or(|at| now >= at) {
            self.status_at = Some(now + STATUS_EVERY);
            let status = status();
            if status != self.status {
                self.send(&format!("STATUS={status}"));
                self.status = status;
            }
        }
    }

    /// The gateway runs, or a reload has ended.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// A reload begins.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
    }

    /// The gateway ends.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Never waits: a service manager that does not read must not hold up the control thread.
    fn send(&self, state: &str) {
        if let Some(Err(error)) = self.socket.as_ref().map(|socket| socket.send(state.as_bytes())) {
            tracing::debug!(target: "control", "NOTIFY_SOCKET: {error}");
        }
    }
}

/// Half of the period after which the service manager misses a sign of life, where it expects one
/// of this process.
fn watchdog(period_us: Option<String>, process: Option<String>, own: u32) -> Option<Duration> {
    let expected = process.is_none_or(|process| process.parse() == Ok(own));
    let period_us: u64 = period_us.filter(|_| expected)?.parse().ok()?;
    (period_us > 0).then(|| Duration::from_micros(period_us) / 2)
}

/// A name that begins with `@` is one of the abstract namespace.
fn open(name: &OsStr) -> io::Result<UnixDatagram> {
    let addr = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&addr)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn states_go_to_sockets_of_files_and_of_the_abstract_namespace() {
        let path = std::env::temp_dir().join(format!("weir-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let hidden = format!("weir-notify-{}", std::process::id());
        let manager = UnixDatagram::bind(&path).unwrap();
        let other = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&hidden).unwrap()).unwrap();
        for (manager, name) in [(&manager, path.clone().into_os_string()), (&other, format!("@{hidden}").into())] {
            let notify = Notify { socket: Some(open(&name).unwrap()), ..Notify::default() };
            notify.ready();
            notify.reloading();
            notify.stopping();
            assert_eq!(received(manager), "READY=1");
            let reloading = received(manager);
            let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(since.parse::<u64>().unwrap() > 0);
            assert_eq!(received(manager), "STOPPING=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(open(path.as_os_str()).is_err());
    }

    #[test]
    fn a_manager_that_does_not_read_holds_nothing_up() {
        let (manager, own) = UnixDatagram::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let notify = Notify { socket: Some(own), ..Notify::default() };
        (0..10_000).for_each(|_| notify.ready());
        drop(manager);
        notify.stopping();
    }
    #[test]
    fn the_watchdog_gets_signs_of_life_while_workers_are_alive() {
        let (manager, own) = UnixDatagram::pair().unwrap();
        manager.set_nonblocking(true).unwrap();
        let every = Duration::from_secs(5);
        let mut notify = Notify { socket: Some(own), watchdog: Some(every), ..Notify::default() };
        let sent = |manager: &UnixDatagram| {
            let mut bytes = [0; 256];
            std::iter::from_fn(|| manager.recv(&mut bytes).ok().map(|length| bytes[..length].to_vec()))
                .map(|bytes| String::from_utf8(bytes).unwrap())
                .collect::<Vec<_>>()
        };
        let start = Instant::now();
        notify.tick(start, true, || "one".into());
        assert_eq!(sent(&manager), ["WATCHDOG=1", "STATUS=one"]);
        notify.tick(start + every / 2, true, || panic!("too early"));
        assert_eq!(sent(&manager), [""; 0]);
        // The same line is not repeated; a worker that hangs leaves the service manager without a
        // sign.
        notify.tick(start + every, false, || "one".into());
        assert_eq!(sent(&manager), [""; 0]);
        notify.tick(start + every * 2, false, || "a worker hangs".into());
        assert_eq!(sent(&manager), ["STATUS=a worker hangs"]);
        notify.tick(start + every * 2, true, || panic!("too early"));
        assert_eq!(sent(&manager), ["WATCHDOG=1"]);
    }

    #[test]
    fn the_watchdog_is_that_of_this_process() {
        let text = |text: &str| Some(text.to_owned());
        let half = Some(Duration::from_secs(5));
        assert_eq!(watchdog(text("10000000"), None, 7), half);
        assert_eq!(watchdog(text("10000000"), text("7"), 7), half);
        assert_eq!(watchdog(text("10000000"), text("8"), 7), None);
        assert_eq!(watchdog(text("10000000"), text("?"), 7), None);
        assert_eq!(watchdog(text("0"), None, 7), None);
        assert_eq!(watchdog(text("often"), None, 7), None);
        assert_eq!(watchdog(None, text("7"), 7), None);
    }
}
