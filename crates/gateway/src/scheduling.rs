//! The scheduler of the workers: as configured, or by the rule of `scheduler = auto`.
//!
//! The rule needs only what is constant while the gateway runs, because a scheduler cannot change
//! while packets are in flight. It selects the pipeline where a single SA has to use several
//! workers and each of these can have a CPU: in each other case run to completion was as fast or
//! faster. It never selects crypto threads, which were slower than the pipeline with every suite
//! and size. Figures: docs/performance.md.

use std::fmt;

use dataplane::Scheduler;
use ike::config::{Connection, Host, PerCpuSas};

use crate::config::{Config, HalfProto, Sa};
use crate::ready::counted;

/// Scheduler and crypto threads of a running gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Scheduling {
    pub(crate) scheduler: Scheduler,
    /// Crypto threads of each worker; 0 without the scheduler `async`.
    pub(crate) crypto_threads: usize,
    /// Reason of the choice.
    pub(crate) why: String,
}

impl Scheduling {
    /// Chooses for a host on which the process may use `cpus`.
    pub(crate) fn of(config: &Config, cpus: usize) -> Self {
        let gateway = &config.gateway;
        if let Some(scheduler) = gateway.scheduler {
            let crypto_threads = if scheduler == Scheduler::Async { gateway.crypto_threads } else { 0 };
            return Self { scheduler, crypto_threads, why: "required by the configuration".into() };
        }
        let workers = counted(gateway.workers, "worker", "workers");
        let (scheduler, why) = if gateway.workers < 2 {
            (Scheduler::RunToCompletion, format!("auto: {workers}"))
        } else if cpus < gateway.workers {
            let cpus = counted(cpus, "CPU", "CPUs");
            (Scheduler::RunToCompletion, format!("auto: {cpus} for {workers}"))
        } else if has_single_sa(config) {
            (Scheduler::Pipeline, format!("auto: one SA for {workers}"))
        } else {
            (Scheduler::RunToCompletion, "auto: SAs are divided among the workers".into())
        };
        Self { scheduler, crypto_threads: 0, why }
    }
}

/// Returns true if all protected traffic belongs to one SA for each direction, as far as the
/// configuration determines it: one section of `sas`, or one connection to one host with one child,
/// and nothing that divides an SA among workers.
fn has_single_sa(config: &Config) -> bool {
    let keyed = &config.keyed;
    match (config.sas.as_slice(), keyed.connections.as_slice(), keyed.psp.is_empty()) {
        ([sa], [], true) => !is_divided(sa),
        ([], [connection], true) => !has_several_sas(connection),
        _ => false,
    }
}

/// Sub SAs and PSP have a counter or a key for each worker.
fn is_divided(sa: &Sa) -> bool {
    [&sa.outbound, &sa.inbound].into_iter().flatten().any(|half| match &half.proto {
        HalfProto::Esp { .. } | HalfProto::Ah { .. } => false,
        HalfProto::Eesp { sub_sas, .. } => sub_sas.is_some(),
        HalfProto::PspOut { .. } | HalfProto::PspIn { .. } => true,
    })
}

fn has_several_sas(connection: &Connection) -> bool {
    let [child] = connection.children.as_slice() else { return true };
    let has_one_peer = !connection.remote_addrs.is_empty() && connection.remote_addrs.iter().all(Host::is_one);
    let sub_sas = child.proposals.iter().any(|proposal| !proposal.sskdf.is_empty());
    !has_one_peer || child.per_cpu_sas != PerCpuSas::No || sub_sas
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.scheduler.name(), self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{GOOD, read, swanctl};
    use crate::config::{Gateway, Purpose};

    const DIVIDED: &str = "auto: SAs are divided among the workers";
    const CHILD: &str = "c {\n remote_ts = 10.2.0.0/16\n}\n";

    /// The rule for connections to `remotes` with these children each.
    fn chosen(workers: usize, cpus: usize, remotes: &[&str], children: &str) -> (Scheduler, String) {
        let connection = |(n, remote): (usize, &&str)| {
            format!(
                "a{n} {{\n remote_addrs = {remote}\n local {{\n auth = psk\n}}\n remote {{\n auth = psk\n}}\n children \
                 {{\n{children}}}\n}}\n"
            )
        };
        let connections: String = remotes.iter().enumerate().map(connection).collect();
        let text =
            format!("gateway {{\n scheduler = auto\n workers = {workers}\n}}\nconnections {{\n{connections}}}\n");
        of(&swanctl::swanctl(&text).unwrap_or_else(|why| panic!("{why}: {text}")), cpus)
    }

    fn of(config: &Config, cpus: usize) -> (Scheduler, String) {
        let Scheduling { scheduler, crypto_threads, why } = Scheduling::of(config, cpus);
        assert_eq!(crypto_threads, 0);
        (scheduler, why)
    }

    #[test]
    fn one_sa_uses_several_workers_by_the_pipeline() {
        for cpus in [2, 3, 64] {
            let expected = (Scheduler::Pipeline, "auto: one SA for 2 workers".into());
            assert_eq!(chosen(2, cpus, &["192.0.2.2"], CHILD), expected);
        }
    }

    #[test]
    fn what_would_be_slower_runs_to_completion() {
        let two = format!("{CHILD}{}", CHILD.replace("c {", "d {").replace("10.2", "10.3"));
        let per_cpu = CHILD.replace('}', " start_action = trap\n per_cpu_sas = yes\n}");
        let sub_sas = CHILD.replace('}', " eesp_proposals = aes256gcm16-sskdfsha256\n}");
        for (workers, cpus, remotes, children, why) in [
            (1, 64, &["192.0.2.2"][..], CHILD, "auto: 1 worker"),
            (4, 3, &["192.0.2.2"], CHILD, "auto: 3 CPUs for 4 workers"),
            // A container may have no CPU for itself.
            (2, 0, &["192.0.2.2"], CHILD, "auto: 0 CPUs for 2 workers"),
            (2, 2, &[], CHILD, DIVIDED),
            (2, 2, &["192.0.2.2", "192.0.2.3"], CHILD, DIVIDED),
            (2, 2, &["%any"], CHILD, DIVIDED),
            (2, 2, &["192.0.2.0/24"], CHILD, DIVIDED),
            (2, 2, &["192.0.2.2"], &two, DIVIDED),
            (2, 2, &["192.0.2.2"], &per_cpu, DIVIDED),
            (2, 2, &["192.0.2.2"], &sub_sas, DIVIDED),
        ] {
            let expected = (Scheduler::RunToCompletion, why.to_owned());
            assert_eq!(chosen(workers, cpus, remotes, children), expected, "{remotes:?} {children}");
        }
    }

    #[test]
    fn manual_keys_count_likewise() {
        let of = |text: &str| {
            let text = text.replacen("gateway {", "gateway {\n scheduler = auto\n workers = 2", 1);
            of(&read(&text, Purpose::Gateway).unwrap_or_else(|why| panic!("{why}: {text}")), 2).0
        };
        assert_eq!(of(GOOD), Scheduler::Pipeline);
        let other = GOOD.replace("protocol = esp", "protocol = eesp");
        assert_eq!(of(&other), Scheduler::Pipeline);
        let key = "606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f";
        let sub_sas = "protocol = eesp\n sub_sas = 4";
        let sub_sas = GOOD.replace("protocol = esp", sub_sas).replace("aes128gcm16", "aes128gcm16iiv");
        let sub_sas = sub_sas.replace("000102030405060708090a0b0c0d0e0f10111213", key);
        let sub_sas = sub_sas.replace("202122232425262728292a2b2c2d2e2f30313233", &key.replace('6', "5"));
        assert_eq!(of(&sub_sas), Scheduler::RunToCompletion);
        let psp = GOOD
            .replace("protocol = esp", "protocol = psp")
            .replace(" suite = aes128gcm16\n", "\n")
            .replace("000102030405060708090a0b0c0d0e0f10111213", "96c22dc799198090b74b70ae468e4e30")
            .replace("spi = 0x1002\n", "issued = 7\n")
            .replace("key = 0x202122232425262728292a2b2c2d2e2f30313233", &format!("master_key_0 = 0x{key}"));
        assert_eq!(of(&psp), Scheduler::RunToCompletion);
        let more = "sas {\n more {\n protocol = esp\n local = 192.0.2.1\n remote = 192.0.2.3\n suite = aes128gcm16\n in {\n spi = 0x1003\n key = 0x404142434445464748494a4b4c4d4e4f10111213\n}\n}\n";
        assert_eq!(of(&GOOD.replace("sas {\n", more)), Scheduler::RunToCompletion);
    }

    #[test]
    fn what_is_configured_is_used() {
        for scheduler in Scheduler::ALL {
            let gateway = Gateway { workers: 2, scheduler: Some(scheduler), crypto_threads: 5, ..Gateway::default() };
            let config = Config { gateway, ..read(GOOD, Purpose::Gateway).expect("it is faultless") };
            for cpus in [1, 64] {
                let chosen = Scheduling::of(&config, cpus);
                let crypto_threads = if scheduler == Scheduler::Async { 5 } else { 0 };
                let why = "required by the configuration".to_owned();
                assert_eq!(chosen, Scheduling { scheduler, crypto_threads, why });
            }
        }
    }
}
