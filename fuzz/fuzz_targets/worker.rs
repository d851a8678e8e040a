//! A whole worker: each chunk of the input is one packet of a batch, which comes first from the outer and then from the
//! inner side. The first byte chooses the engine and the SAs.

#![no_main]

use std::sync::Arc;

use crypto::Engine;
use dataplane::{Batch, Snapshot, Worker, WorkerConfig};
use ipsec::{Action, Policy, Spd};
use libfuzzer_sys::fuzz_target;
use weir_fuzz::Tables;
use wire::registry::CodePoints;

fn snapshot(choice: u8, engine: Engine) -> Snapshot {
    let Tables { keys, outbound, inbound } = Tables::new(choice, engine);
    let policies = (0..outbound.len()).map(|slot| Policy {
        name: "fuzz".into(),
        selectors: Tables::selectors(slot),
        action: Action::Protect { outbound: slot as u32, inbound: slot as u32 },
    });
    let spd = Spd::new(policies.collect());
    let outbound = outbound.into_iter().map(Arc::new).collect();
    Snapshot::new(inbound.into_iter().map(Arc::new).collect(), outbound, spd, keys, CodePoints::default())
        .expect("tables")
}

fn fill(batch: &mut Batch, mut input: &[u8]) {
    while let Some((len, rest)) = input.split_first() {
        let (packet, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        input = rest;
        if !batch.push_with(|slot| slot.set(packet)) {
            return;
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, packets)) = input.split_first() else { return };
    let engine = if choice & 1 == 1 { Engine::Null } else { Engine::AwsLc };
    let tables = snapshot(choice >> 1, engine);
    let config = WorkerConfig {
        engine,
        batch: 8,
        flow_cache: 4,
        derived_keys: 16,
        reassembly: 2,
        audit_ring: 4,
        ..WorkerConfig::default()
    };
    let (mut worker, _audit) = Worker::new(config);
    let (mut batch, mut replies) = (Batch::new(8, 2048), Batch::new(8, 2048));
    fill(&mut batch, packets);
    worker.tick(1);
    worker.inbound(&tables, &mut batch);
    batch.clear();
    fill(&mut batch, packets);
    worker.tick(2);
    worker.outbound(&tables, &mut batch, &mut replies);
});
