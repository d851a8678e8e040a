//! Sun and moon: two network namespaces with a cable between them.
//!
//! A [`World`] is gone when it is dropped; there may be several, each with the same addresses. It
//! lives in the private namespaces of [`crate::sandbox`], so that even a killed demonstration
//! leaves nothing.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::TestbedError;
use crate::relay::Relay;

/// Device of the cable, on both sides.
pub const CABLE: &str = "veth0";
/// Ethernet header in bytes, which the counters of the cable include.
pub const ETHERNET: u64 = 14;
/// TCP header with time stamps in bytes.
pub const TCP: u64 = 32;

/// One of the two hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// Sends.
    Sun,
    /// Receives.
    Moon,
}

impl End {
    /// Both hosts.
    pub const BOTH: [Self; 2] = [Self::Sun, Self::Moon];

    /// The other host.
    pub fn other(self) -> Self {
        match self {
            Self::Sun => Self::Moon,
            Self::Moon => Self::Sun,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sun => "sun",
            Self::Moon => "moon",
        }
    }

    fn index(self) -> u8 {
        match self {
            Self::Sun => 1,
            Self::Moon => 2,
        }
    }

    fn mac(self) -> String {
        format!("02:00:00:00:00:0{}", self.index())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Addresses and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Traffic runs over IPv6, inside and outside.
    pub v6: bool,
    /// MTU of the cable in bytes.
    pub mtu: u16,
    /// Link between the hosts.
    pub cable: Cable,
}

/// Link between two hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cable {
    /// One packet per frame, as on a wire: counters then equal those of a physical wire. The kernel
    /// segments GSO packets before the device, and GRO does not merge them again.
    Wire,
    /// veth with default offloads: GSO packets are forwarded unsegmented, as between network cards
    /// with TSO and LRO.
    Veth,
    /// Two devices with a relay in this process that delays every frame by this time.
    Delayed(Duration),
}

impl Cable {
    /// A wire on which a frame takes `delay`.
    pub fn wire_of(delay: Duration) -> Self {
        if delay.is_zero() { Self::Wire } else { Self::Delayed(delay) }
    }
}

impl Plan {
    /// Address on the cable.
    pub fn outer(&self, end: End) -> IpAddr {
        address(self.v6, end, true)
    }

    /// Address in the inner network of a host.
    pub fn inner(&self, end: End) -> IpAddr {
        address(self.v6, end, false)
    }

    /// Inner network of a host.
    pub fn network(&self, end: End) -> String {
        if self.v6 { format!("fd00:{}::/64", end.index()) } else { format!("10.{}.0.0/24", end.index()) }
    }

    /// IP header in bytes.
    pub fn ip_header(&self) -> u64 {
        if self.v6 { 40 } else { 20 }
    }
}

fn address(v6: bool, end: End, outer: bool) -> IpAddr {
    let n = end.index();
    let text = match (v6, outer) {
        (false, true) => format!("192.0.2.{n}"),
        (false, false) => format!("10.{n}.0.1"),
        (true, true) => format!("2001:db8::{n}"),
        (true, false) => format!("fd00:{n}::1"),
    };
    text.parse().expect("addresses are constants")
}

/// Both namespaces. Removes them when dropped.
pub struct World {
    /// Relay that delays frames, if configured.
    pub relay: Option<Relay>,
    /// Addresses and sizes.
    pub plan: Plan,
    suffix: String,
    /// Commands that built it.
    commands: Mutex<Vec<String>>,
}

impl World {
    /// Builds both hosts.
    pub fn build(plan: Plan) -> Result<Self, TestbedError> {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let suffix = format!("{}-{number}", std::process::id());
        let mut world = Self { relay: None, plan, suffix, commands: Mutex::default() };
        for end in End::BOTH {
            world.ip(&format!("netns add {}", world.namespace(end)))?;
        }
        let taps = match plan.cable {
            Cable::Wire | Cable::Veth => world.plain_cable().map(|()| None),
            Cable::Delayed(delay) => world.taps().map(|devices| Some((devices, delay))),
        }?;
        for end in End::BOTH {
            world.configure_host(end)?;
        }
        // Not before both are up: frames for a host that is not ready are lost.
        if let Some((devices, delay)) = taps {
            let relay = Relay::start(devices, plan.mtu, delay);
            world.relay = Some(relay.map_err(|error| TestbedError::Unable(format!("cannot delay frames: {error}")))?);
        }
        Ok(world)
    }

    fn plain_cable(&self) -> Result<(), TestbedError> {
        let (plan, sun, moon) = (self.plan, self.namespace(End::Sun), self.namespace(End::Moon));
        self.ip(&format!(
            "link add {CABLE} netns {sun} mtu {mtu} address {mac} type veth peer name {CABLE} netns {moon} mtu {mtu} \
             address {peer}",
            mtu = plan.mtu,
            mac = End::Sun.mac(),
            peer = End::Moon.mac()
        ))
    }

    /// TAP devices that the relay connects.
    fn taps(&self) -> Result<[SyncDevice; 2], TestbedError> {
        let mtu = self.plan.mtu;
        let tap = |end| {
            let made = || DeviceBuilder::new().name(CABLE).layer(Layer::L2).mtu(mtu).enable(false).build_sync();
            self.within(end, made).map_err(|error| {
                TestbedError::Unable(format!("cannot create a TAP device ({CABLE} on {end}): {error}"))
            })
        };
        let devices = [tap(End::Sun)?, tap(End::Moon)?];
        for end in End::BOTH {
            self.ip(&format!("-n {} link set {CABLE} address {}", self.namespace(end), end.mac()))?;
        }
        Ok(devices)
    }

    fn configure_host(&self, end: End) -> Result<(), TestbedError> {
        let (here, there) = (format!("-n {}", self.namespace(end)), end.other());
        for (key, value) in [
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            // Addresses are usable at once, without duplicate address detection.
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
        ] {
            self.sysctl(end, key, value);
        }
        self.ip(&format!("{here} link set lo up"))?;
        let whole = if self.plan.cable == Cable::Veth { "" } else { " gso_max_segs 1" };
        self.ip(&format!("{here} link set {CABLE} up{whole}"))?;
        for v6 in [false, true] {
            let (outer, inner) = if v6 { (64, 64) } else { (24, 24) };
            let nodad = if v6 { " nodad" } else { "" };
            self.ip(&format!("{here} addr add {}/{outer} dev {CABLE}{nodad}", address(v6, end, true)))?;
            // Not every kernel has dummy devices: the inner network of a host is on its loopback
            // device.
            self.ip(&format!("{here} addr add {}/{inner} dev lo{nodad}", address(v6, end, false)))?;
            let (peer, mac) = (address(v6, there, true), there.mac());
            self.ip(&format!("{here} neigh replace {peer} lladdr {mac} dev {CABLE} nud permanent"))?;
        }
        Ok(())
    }

    /// Best effort: in some containers /proc/sys is read-only, and the defaults do.
    fn sysctl(&self, end: End, key: &str, value: &str) {
        let script = format!("echo {value} >/proc/sys/net/{key}");
        let _ = self.command(end, "sh").args(["-c", &script]).stderr(Stdio::null()).status();
    }

    /// Commands that were run so far.
    pub fn commands(&self) -> Vec<String> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Name of the network namespace of a host.
    pub fn namespace(&self, end: End) -> String {
        format!("weir-{end}-{}", self.suffix)
    }

    /// Runs `ip`, with the arguments as words.
    pub fn ip(&self, arguments: &str) -> Result<(), TestbedError> {
        let text = format!("ip {arguments}");
        let output = Command::new("ip").args(arguments.split_whitespace()).output();
        let output = output.map_err(|error| TestbedError::Unable(format!("cannot run '{text}': {error}")))?;
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(text.clone());
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(TestbedError::Unable(format!(
            "'{text}' failed: {}; the kernel must support network namespaces and veth",
            why.trim()
        )))
    }

    /// A command to run on a host. The kernel ends it when this process, for whatever reason, is
    /// gone.
    pub fn command(&self, end: End, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nsenter"]);
        command.arg(format!("--net=/run/netns/{}", self.namespace(end)));
        command.arg("--").arg(program.as_ref()).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// Lets `work` run on a host. Sockets that it makes stay there.
    ///
    /// # Errors
    /// Errors of `work`, or of entering the host's namespace.
    pub fn within<T: Send>(&self, end: End, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let path = format!("/run/netns/{}", self.namespace(end));
        // A separate thread, because it cannot leave the namespace.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = std::fs::File::open(path)?;
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
                work()
            });
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread on the host panicked")))
        })
    }

    /// Any address of the family in use.
    pub fn unspecified(&self) -> IpAddr {
        if self.plan.v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
    }

    /// Reads files in the namespace of a host, for values that the kernel reports per network
    /// namespace.
    pub fn read(&self, end: End, files: &[&str]) -> Result<String, TestbedError> {
        let output = self.command(end, "cat").args(files).output();
        let output =
            output.map_err(|error| TestbedError::Failed(format!("cannot read {}: {error}", files.join(" "))))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for end in End::BOTH {
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(end)]).stderr(Stdio::null()).status();
        }
    }
}
