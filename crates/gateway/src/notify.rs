//! State notifications for a service manager (sd_notify(3)): ready, reloading, stopping.
//!
//! The socket is connected before the confinement, after which this process can connect no UNIX socket.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// Way to the service manager; nothing is sent where there is none.
pub(crate) struct Notify(Option<UnixDatagram>);

impl Notify {
    /// Connects to the socket that the variable NOTIFY_SOCKET names.
    pub(crate) fn connect() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Self(None) };
        match open(&name) {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                let name = name.to_string_lossy();
                tracing::warn!(target: "control", "NOTIFY_SOCKET {name}: {error}; the service manager gets no notification");
                Self(None)
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
        if let Some(Err(error)) = self.0.as_ref().map(|socket| socket.send(state.as_bytes())) {
            tracing::debug!(target: "control", "NOTIFY_SOCKET: {error}");
        }
    }
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
            let notify = Notify(Some(open(&name).unwrap()));
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
        let notify = Notify(Some(own));
        (0..10_000).for_each(|_| notify.ready());
        drop(manager);
        notify.stopping();
    }
}
