//! How long it takes from the first packet to its arrival, keys included.
//!
//! Both sockets belong to this process, each on its own host, so that one clock sees both ends.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::TestbedError;
use crate::child::Interrupt;
use crate::world::{End, World};

/// Destination port of the probe: discard (RFC 863).
const PORT: u16 = 9;
/// Payload of a datagram in bytes; the first ones identify it.
const PAYLOAD: usize = 32;
/// Time to the next datagram, in case that one got lost.
const AGAIN: Duration = Duration::from_millis(5);
/// Timeout.
const WITHIN: Duration = Duration::from_secs(10);

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SetUp {
    /// From the call that hands the first datagram to sun's kernel until a program on moon has read
    /// a datagram, in milliseconds.
    pub ms: f64,
    /// Datagrams sent before the first one that arrived.
    pub lost: u32,
}

/// Sends datagrams from sun to `target` on moon until one arrives.
pub fn first_packet(world: &World, target: IpAddr, interrupt: &Interrupt) -> Result<SetUp, TestbedError> {
    let failed = |error: io::Error| TestbedError::Failed(format!("cannot send a datagram to {target}: {error}"));
    let any = SocketAddr::new(world.unspecified(), 0);
    let receiver = world.within(End::Moon, || UdpSocket::bind((target, PORT))).map_err(failed)?;
    let sender = world.within(End::Sun, || UdpSocket::bind(any)).map_err(failed)?;
    receiver.set_read_timeout(Some(AGAIN)).map_err(failed)?;
    // The source address is chosen here, and nothing is sent yet.
    sender.connect((target, PORT)).map_err(failed)?;
    let from = sender.local_addr().map_err(failed)?;
    let began = Instant::now();
    for number in 0_u32.. {
        let mut datagram = [0; PAYLOAD];
        datagram[..4].copy_from_slice(&number.to_be_bytes());
        // ECONNREFUSED until a route exists; retry.
        let _ = sender.send(&datagram);
        if let Some((lost, at)) = receive(&receiver, from).map_err(failed)? {
            return Ok(SetUp { ms: at.duration_since(began).as_secs_f64() * 1e3, lost });
        }
        interrupt.check()?;
        if began.elapsed() > WITHIN {
            break;
        }
    }
    Err(TestbedError::Failed(format!("no datagram reached {target} within {} s", WITHIN.as_secs())))
}

/// Sends a datagram of each of `flows` flows from sun to `target` on moon, where they are
/// discarded.
pub fn many_flows(world: &World, target: IpAddr, flows: usize) -> Result<(), TestbedError> {
    let failed = |error: io::Error| TestbedError::Failed(format!("cannot send a datagram to {target}: {error}"));
    // A socket that reads nothing: without one moon would answer with ICMP errors.
    let _receiver = world.within(End::Moon, || UdpSocket::bind((target, PORT))).map_err(failed)?;
    let any = SocketAddr::new(world.unspecified(), 0);
    let bind = || (0..flows).map(|_| UdpSocket::bind(any)).collect::<io::Result<Vec<UdpSocket>>>();
    for socket in world.within(End::Sun, bind).map_err(failed)? {
        let _ = socket.send_to(&[0; PAYLOAD], (target, PORT));
    }
    Ok(())
}

/// The number of the datagram that has arrived, and when; `None` when it takes too long.
fn receive(socket: &UdpSocket, from: SocketAddr) -> io::Result<Option<(u32, Instant)>> {
    let mut buffer = [0; PAYLOAD + 1];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((PAYLOAD, source)) if source == from => {
                let at = Instant::now();
                return Ok(Some((u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]), at)));
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}
