//! TUN interfaces: plaintext packets from and to the network stack of this host.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use dataplane::{Batch, Port};
use rustix::io::Errno;
use tun_rs::{DeviceBuilder, SyncDevice};

use self::offload::Offload;
pub use self::steer::FlowSteering;
use super::{GsoCounters, PortDrops, address};

mod coalesce;
pub(super) mod fuzzing;
mod offload;
mod steer;
mod sum;
#[cfg(test)]
mod tests;
mod vnet;

/// Configuration of a TUN interface.
#[derive(Clone, Debug)]
pub struct TunConfig {
    /// Name, at most 15 bytes.
    pub name: String,
    /// Maximum packet in bytes; the buffers of the batches must be at least this long.
    pub mtu: u16,
    /// Addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Queues, one per worker; at least 1.
    pub queues: usize,
    /// True if it carries IPv6; an IPv6 address implies it. Otherwise IPv6 is disabled on the
    /// device from the start.
    pub v6: bool,
    /// Enables GSO and GRO: many packets of one TCP or UDP flow in one system call. The interface
    /// of ports still consists of single packets. Has no effect if the kernel does not support it.
    pub offload: bool,
}

/// One queue of a TUN interface. The interface is removed when its last queue is dropped.
pub struct TunPort {
    device: SyncDevice,
    offload: Option<Offload>,
    supers: Arc<GsoCounters>,
    refused: PortDrops,
}

const DEVICE: &str = "/dev/net/tun";
const NAME_BYTES: usize = 15;
/// IN6_ADDR_GEN_MODE_NONE of the kernel.
const ADDR_GEN_MODE_NONE: &str = "1";
/// Transmit queue length of the interface, per queue. With the kernel's default of 500, a few TCP
/// connections lost 24,000 to 83,000 packets there in 4 s, with 4000 none. At an MTU of 1400 that
/// is 6 MB, and 5 ms of 10 Gbit/s.
const QUEUE_PACKETS: u32 = 4000;
/// Transmit queue length with GSO, where each entry may be a GSO packet: 66 MB at worst.
const QUEUE_SUPERS: u32 = 1000;

impl TunPort {
    /// Creates the interface, sets its addresses, brings it up and returns its queues.
    ///
    /// # Errors
    /// Missing device file, missing privilege, a name that is in use or too long, an invalid
    /// address: each with a remedy. No interface remains after an error.
    pub fn open(config: &TunConfig) -> io::Result<Vec<Self>> {
        check_name(&config.name)?;
        let with = |offload| build(config, offload).map_err(|error| explained(error, &config.name));
        let device = if config.offload { with(true).or_else(|_| with(false)) } else { with(false) }?;
        let index = device.if_index()?;
        for &(ip, prefix) in &config.addresses {
            address::add(index, ip, prefix).map_err(|error| explained(error, &config.name))?;
        }
        let mut queues = vec![];
        for _ in 1..config.queues.max(1) {
            queues.push(device.try_clone().map_err(|error| explained(error, &config.name))?);
        }
        queues.insert(0, device);
        queues
            .into_iter()
            .map(|device| {
                device.set_nonblocking(true)?;
                let offload = device.tcp_gso().then(|| Offload::new(usize::from(config.mtu), device.udp_gso()));
                Ok(Self { device, offload, supers: Arc::default(), refused: PortDrops::default() })
            })
            .collect()
    }

    /// Number of the interface.
    ///
    /// # Errors
    /// The operating system's, when the interface is gone.
    pub fn if_index(&self) -> io::Result<u32> {
        self.device.if_index()
    }

    /// Returns whether GSO is enabled for TCP and for UDP. Linux supports UDP from 6.2 on.
    pub fn offloads(&self) -> (bool, bool) {
        (self.device.tcp_gso(), self.device.udp_gso())
    }

    /// Returns the GSO counters of this queue.
    pub fn gso_counters(&self) -> Arc<GsoCounters> {
        Arc::clone(&self.supers)
    }
}

fn build(config: &TunConfig, offload: bool) -> io::Result<SyncDevice> {
    let device = DeviceBuilder::new()
        .name(&config.name)
        .mtu(config.mtu)
        .multi_queue(config.queues > 1)
        .packet_information(false)
        .offload(offload)
        .enable(false)
        .build_sync()?;
    // No link-local address: from one the host would send router solicitations, which no router of
    // this link answers.
    let mut settings = vec![("addr_gen_mode", ADDR_GEN_MODE_NONE)];
    if !config.v6 && config.addresses.iter().all(|(address, _)| address.is_ipv4()) {
        settings.push(("disable_ipv6", "1"));
    }
    for (name, value) in settings {
        // Fails on hosts without IPv6, which has the same effect.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/{name}", config.name), value);
    }
    // The kernel requires the privilege of the initial user namespace for this. Without it, the
    // queue length remains.
    let _ = device.set_tx_queue_len(if device.tcp_gso() { QUEUE_SUPERS } else { QUEUE_PACKETS });
    device.enabled(true)?;
    Ok(device)
}

fn check_name(name: &str) -> io::Result<()> {
    let bad = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, format!("TUN interface '{name}': {why}")));
    if name.is_empty() || name.len() > NAME_BYTES {
        return bad("a name has 1 to 15 bytes");
    }
    if name == "."
        || name == ".."
        || name.bytes().any(|byte| byte == b'/' || byte == b':' || byte == b'%' || byte <= b' ')
    {
        return bad("a name has no space, '/', ':' or '%'");
    }
    // The kernel would let a second process attach to a multiqueue interface and take its packets.
    let probe = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    if rustix::net::netdevice::name_to_index(&probe, name).is_ok() {
        return Err(taken(name));
    }
    Ok(())
}

fn taken(name: &str) -> io::Error {
    let why = format!(
        "TUN interface '{name}': the name is taken; stop the program that has it, remove it \
         (ip link del {name}) or configure another name"
    );
    io::Error::new(io::ErrorKind::AddrInUse, why)
}

fn explained(error: io::Error, name: &str) -> io::Error {
    let kind = error.kind();
    let text = match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => return taken(name),
        Some(libc::EPERM | libc::EACCES) => "no permission: run as root or with CAP_NET_ADMIN".to_owned(),
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) if !Path::new(DEVICE).exists() => format!(
            "{DEVICE} is missing: modprobe tun, or mkdir -p /dev/net && mknod {DEVICE} c 10 200 (in a container: \
             --device {DEVICE})"
        ),
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            format!("the kernel has no driver for {DEVICE}: modprobe tun, or use a kernel with CONFIG_TUN")
        }
        Some(libc::EINVAL) => format!("{error}; is the MTU between 68 (IPv6: 1280) and 65535?"),
        _ => error.to_string(),
    };
    io::Error::new(kind, format!("TUN interface '{name}': {text}"))
}

/// Counts `packets` that the interface dropped. Returns an error if the interface was removed.
fn not_taken(refused: &mut PortDrops, error: Errno, packets: u64) -> io::Result<()> {
    match error {
        Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => refused.full += packets,
        Errno::MSGSIZE => refused.too_big += packets,
        Errno::BADF | Errno::BADFD => return Err(error.into()),
        _ => refused.other += packets,
    }
    Ok(())
}

/// Returns whether the error of a read means only that no packet is available.
fn nothing_there(error: Errno) -> io::Result<()> {
    if matches!(error, Errno::AGAIN | Errno::INTR) { Ok(()) } else { Err(error.into()) }
}

/// Router solicitations are IP packets as well; other protocols are ignored.
fn is_ip(packet: &[u8]) -> bool {
    matches!(packet.first().map(|byte| byte >> 4), Some(4 | 6))
}

impl Port for TunPort {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        if let Some(offload) = &mut self.offload {
            return offload.receive(self.device.as_fd(), into, &mut self.refused, &self.supers);
        }
        let mut failed = None;
        while into.room() > 0 && failed.is_none() {
            into.push_with(|packet| match rustix::io::read(self.device.as_fd(), packet.receive_area()) {
                Ok(len) => {
                    packet.received(0, len);
                    is_ip(packet.bytes())
                }
                Err(error) => {
                    failed = Some(error);
                    false
                }
            });
        }
        failed.map_or(Ok(()), nothing_there)
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        if let Some(offload) = &mut self.offload {
            offload.send(self.device.as_fd(), from, &mut self.refused, &self.supers)?;
        } else {
            for packet in from.packets() {
                if let Err(error) = rustix::io::write(self.device.as_fd(), packet.bytes()) {
                    not_taken(&mut self.refused, error, 1)?;
                }
            }
        }
        from.clear();
        Ok(())
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.as_fd())
    }

    fn drops(&self) -> PortDrops {
        self.refused
    }
}
