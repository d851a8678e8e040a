//! `weir down`: stops a running gateway and removes its routes and guard, so that its traffic
//! leaves unprotected.
//!
//! A gateway that stopped, or was killed, leaves its routing table and its nftables table closed.
//! This is the one command that opens them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vici::client::{Client, ClientError};
use vici::message::Message;
use vici::names::Command;

use crate::config::problem::Problems;
use crate::config::{self, Gateway, Purpose};
use crate::{guard, remote, routes};

/// Timeout of a stop: the gateway sends DELETE to its peers and saves sequence numbers.
const STOP: Duration = Duration::from_secs(30);

/// State found by `weir down`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Removed {
    /// A gateway was running.
    pub(crate) running: bool,
    /// A routing table or an nftables table was left.
    pub(crate) left: bool,
}

/// Reason why state may remain.
#[derive(Debug)]
pub(crate) enum Failure {
    Config(Problems),
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// Stops the gateway of that configuration, or the one with the default settings, and removes its
/// routes and guard.
pub(crate) fn run(file: Option<&Path>, socket: Option<PathBuf>) -> Result<Removed, Failure> {
    let gateway = match file {
        Some(file) => {
            let gateway = config::load_traces(file).map_err(Failure::Config)?;
            // The next start would fail, but traffic must not stay blocked for that.
            if let Err(problems) = config::load(file, Purpose::Gateway) {
                crate::log::say(
                    tracing::Level::WARN,
                    format_args!("weir: warning: the configuration has faults:\n{problems}"),
                );
            }
            gateway
        }
        None => Gateway::default(),
    };
    let running = stop(&socket.unwrap_or(gateway.socket))?;
    // A gateway that stops in order removes its state; a killed one does not.
    let routes = routes::remove(gateway.route_table)?;
    let guard = guard::remove(&gateway.tun)?;
    Ok(Removed { running, left: routes || guard })
}

/// Requests the gateway at `socket` to stop and open, and waits until it has ended. False if none
/// is running.
fn stop(socket: &Path) -> anyhow::Result<bool> {
    let mut client = match Client::connect(socket) {
        Ok(client) => client,
        Err(ClientError::NotListening(_)) => return Ok(false),
        Err(error) => anyhow::bail!(remote::explain(&error)),
    };
    let reply = client.request(Command::Stop, &Message::new(), Some(STOP), &mut |_| {});
    let reply = reply.map_err(|error| anyhow::Error::msg(remote::explain(&error)))?;
    reply.outcome()?;
    let until = Instant::now() + STOP;
    // The socket is removed near the end; connections are refused from then on.
    while Client::connect(socket).is_ok() {
        anyhow::ensure!(
            Instant::now() < until,
            "the gateway did not stop within {} s; its log states why",
            STOP.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `weir down` with a configuration of a gateway that does not exist.
    fn run_with(name: &str, text: &str) -> Result<Removed, Failure> {
        let folder = std::env::temp_dir().join(format!("weir-down-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("weir.conf");
        std::fs::write(&file, text).unwrap();
        let outcome = run(Some(&file), Some(folder.join("absent.vici")));
        std::fs::remove_dir_all(&folder).unwrap();
        outcome
    }

    #[test]
    fn faults_that_do_not_concern_the_traces_of_a_gateway_are_no_reason_to_leave_them() {
        let traces = "gateway {\n tun = weir-gone9\n route_table = 4000000009\n";
        for (name, rest) in [
            ("key", "metrics = 127.0.0.1:9790\n metrics_cert = a.pem\n metrics_key = absent.pem\n}\n"),
            ("typo", "workers = many\n}\nconnections { moon { remote_adrs = 192.0.2.1 } }\n"),
            ("trust", "}\nsas { moon { } }\n"),
        ] {
            // Without privileges the kernel refuses to look.
            let outcome = run_with(name, &format!("{traces}{rest}"));
            assert!(!matches!(outcome, Err(Failure::Config(_))), "{name}: {outcome:?}");
        }
    }

    #[test]
    fn what_names_the_traces_must_be_valid() {
        for (name, text) in [
            ("tun", "gateway { tun = a/b }"),
            ("table", "gateway { route_table = none }"),
            ("syntax", "gateway { tun = weir-gone9"),
        ] {
            let outcome = run_with(name, text);
            assert!(matches!(outcome, Err(Failure::Config(_))), "{name}: {outcome:?}");
        }
    }

    #[test]
    fn a_file_that_others_may_change_does_not_name_the_traces() {
        use std::os::unix::fs::PermissionsExt;
        let file = std::env::temp_dir().join(format!("weir-down-mode-{}.conf", std::process::id()));
        std::fs::write(&file, "gateway { tun = weir-gone9 }").unwrap();
        assert_eq!(config::load_traces(&file).unwrap().tun, "weir-gone9");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(config::load_traces(&file).is_err_and(|why| why.to_string().contains("writable by every user")));
        std::fs::remove_file(&file).unwrap();
    }
}
