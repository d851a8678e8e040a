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
        Some(file) => config::load(file, Purpose::Gateway).map_err(Failure::Config)?.gateway,
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
