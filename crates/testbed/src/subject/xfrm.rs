//! ESP by Linux itself, with keys set by `ip xfrm`.

use std::path::Path;

use super::{Availability, Count, Counters, Started, find};
use crate::TestbedError;
use crate::random;
use crate::world::{End, World};

/// Kernel name of AES-128-GCM with an ICV of 16 bytes.
const ALGORITHM: &str = "rfc4106(gcm(aes))";

/// Tries it in a network that is gone at once.
pub(super) fn availability() -> Availability {
    let state = "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001 mode tunnel aead";
    let script = format!("{state} '{ALGORITHM}' 0x{} 128", "00".repeat(20));
    let remedy = "a kernel with CONFIG_INET_ESP and CONFIG_CRYPTO_GCM (modprobe esp4)";
    let shell = Path::new("/bin/sh");
    let mut why = String::new();
    for flags in ["--net", "--user --map-root-user --net"] {
        match find::ask(shell, &["-c", &format!("unshare {flags} sh -c \"{script}\"")]) {
            Ok(_) => return Availability::Available { version: crate::kernel() },
            Err(error) => why = error.to_string().replace('\n', " "),
        }
    }
    Availability::missing(format!("Linux {} rejects an ESP SA: {why}", crate::kernel()), remedy)
}

/// SAs and policies of both hosts; they end with the hosts.
pub(super) struct Pair;

impl Pair {
    pub(super) fn start(world: &World) -> Result<Self, TestbedError> {
        let hex = |key: Vec<u8>| -> String { key.iter().map(|byte| format!("{byte:02x}")).collect() };
        let keys = [hex(random(20)), hex(random(20))];
        for end in End::BOTH {
            let namespace = world.namespace(end);
            for (from, key) in End::BOTH.into_iter().zip(&keys) {
                let to = from.other();
                let outer = format!("src {} dst {}", world.plan.outer(from), world.plan.outer(to));
                let spi = 0x1001 + from as u32;
                world.ip(&format!(
                    "-n {namespace} xfrm state add {outer} proto esp spi {spi:#x} mode tunnel flag esn \
                     replay-window 1024 aead {ALGORITHM} 0x{key} 128"
                ))?;
                let selector = format!("src {} dst {}", world.plan.network(from), world.plan.network(to));
                let directions: &[&str] = if from == end { &["out"] } else { &["in", "fwd"] };
                for direction in directions {
                    world.ip(&format!(
                        "-n {namespace} xfrm policy add {selector} dir {direction} tmpl {outer} proto esp mode tunnel"
                    ))?;
                }
            }
            let (network, via, from) =
                (world.plan.network(end.other()), world.plan.outer(end.other()), world.plan.inner(end));
            world.ip(&format!("-n {namespace} route replace {network} via {via} src {from}"))?;
        }
        Ok(Self)
    }
}

impl Started for Pair {
    fn check(&mut self) -> Result<(), TestbedError> {
        Ok(())
    }

    fn counters(&self, world: &World) -> Result<[Counters; 2], TestbedError> {
        let one = |end| {
            let output = world.command(end, "ip").args(["-s", "xfrm", "state"]).output();
            let output = output.map_err(|error| TestbedError::Failed(format!("cannot run ip: {error}")))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let of = |from: End| count(&text, &format!("src {} ", world.plan.outer(from)));
            Ok(Counters { sent: of(end), received: of(end.other()), ..Counters::default() })
        };
        Ok([one(End::Sun)?, one(End::Moon)?])
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Bytes and packets of the SA with a first line that starts with `head`, in `ip -s xfrm state`.
fn count(text: &str, head: &str) -> Count {
    let sa = text.lines().skip_while(|line| !line.starts_with(head));
    let line = sa.skip_while(|line| !line.contains("lifetime current")).nth(1).unwrap_or_default();
    let number = |unit: &str| line.split([',', ' ']).find_map(|word| word.trim().strip_suffix(unit)?.parse().ok());
    Count { packets: number("(packets)"), bytes: number("(bytes)").unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_each_sa_are_found() {
        let text = "\
src 192.0.2.1 dst 192.0.2.2
\tproto esp spi 0x00001001(4097) reqid 0(0x00000000) mode tunnel
\tlifetime config:
\t  limit: soft (INF)(bytes), hard (INF)(bytes)
\tlifetime current:
\t  840(bytes), 10(packets)
\t  add 2026-01-01 00:00:00 use 2026-01-01 00:00:01
src 192.0.2.2 dst 192.0.2.1
\tlifetime current:
\t  84(bytes), 1(packets)
";
        assert_eq!(count(text, "src 192.0.2.1 "), Count { packets: Some(10), bytes: 840 });
        assert_eq!(count(text, "src 192.0.2.2 "), Count { packets: Some(1), bytes: 84 });
        assert_eq!(count("", "src 192.0.2.2 "), Count::default());
    }
}
