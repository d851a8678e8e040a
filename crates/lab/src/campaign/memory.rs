//! Studies that run in buffers of this process.

use std::time::Duration;

use crypto::Engine;
use dataplane::clock::{ticks, ticks_per_second};
use dataplane::{Batch, Snapshot, Worker, WorkerConfig};
use wire::IpProto;

use super::Study;
use super::runner::{Missing, Runner, one_size};
use super::schedule::Cell;
use super::subject::Subject;
use crate::meter::MeterError;
use crate::pair;
use crate::trial::{Direction, Measurement};

/// The pair of a subject's name.
fn pair_of(subject: &Subject, replay: u32) -> Result<pair::Subject, Missing> {
    let Subject::Weir { protocol, shape, suite, udp, null } = subject else {
        return Err(Missing("not built: only Weir's own subjects run in memory".into()));
    };
    let engine = if *null { Engine::Null } else { Engine::AwsLc };
    let mut pair = pair::Subject::new(*protocol, *shape, suite, engine);
    pair.udp = *udp;
    pair.window = replay;
    Ok(pair)
}

/// Both ends in memory: packets go from buffer to buffer.
pub(super) struct Path {
    pair: pair::Subject,
    ends: [Snapshot; 2],
    workers: [Worker; 2],
    batch: Batch,
    replies: Batch,
    count: usize,
    hz: f64,
}

impl Path {
    pub(super) fn open(study: &Study, subject: &Subject, cell: &Cell) -> Result<Box<dyn Runner>, Missing> {
        let pair = pair_of(subject, cell.replay)?;
        let ends = pair.tables().map_err(|error| Missing(error.to_string()))?;
        let count = study.batch as usize;
        let config = WorkerConfig { batch: count, engine: pair.engine, ..WorkerConfig::default() };
        let (batch, replies) = (Batch::new(count, config.packet_bytes), Batch::new(4, config.packet_bytes));
        let workers = [Worker::new(config.clone()).0, Worker::new(config).0];
        Ok(Box::new(Self { pair, ends, workers, batch, replies, count, hz: ticks_per_second() }))
    }
}

impl Runner for Path {
    fn trial(&mut self, cell: &Cell, duration: Duration, _seed: u64) -> Result<Measurement, MeterError> {
        let size = one_size(&cell.traffic).ok_or_else(|| MeterError::Unsupported("one size only".into()))?;
        let [src, dst] = self.pair.packet_addresses();
        let template = crate::packet::udp(src, dst, 4000, 4001, size as usize, IpProto::UDP);
        let (mut spent, mut rounds, limit) = (0, 0_u64, (duration.as_secs_f64() * self.hz) as u64);
        let mut received = 0;
        while spent < limit {
            self.batch.clear();
            for _ in 0..self.count {
                self.batch.push_with(|packet| packet.set(&template));
            }
            let t0 = ticks();
            self.workers[0].outbound(&self.ends[0], &mut self.batch, &mut self.replies);
            let t1 = ticks();
            self.workers[1].inbound(&self.ends[1], &mut self.batch);
            let t2 = ticks();
            spent += match cell.direction {
                Direction::Out => t1 - t0,
                Direction::In => t2 - t1,
                Direction::Both => t2 - t0,
            };
            rounds += 1;
            received += self.batch.len() as u64;
        }
        Ok(Measurement {
            sent: rounds * self.count as u64,
            received,
            received_bytes: received * u64::from(size),
            verified: received,
            dur_ns: (spent as f64 / self.hz * 1e9) as u64,
            tsc: Some(spent),
            ..Measurement::default()
        })
    }
}

/// Bytes that a packet has on the wire.
pub(super) struct Wire {
    pair: pair::Subject,
    ends: [Snapshot; 2],
    worker: Worker,
    batch: Batch,
    replies: Batch,
}

impl Wire {
    pub(super) fn open(subject: &Subject, cell: &Cell) -> Result<Box<dyn Runner>, Missing> {
        let pair = pair_of(subject, cell.replay)?;
        let ends = pair.tables().map_err(|error| Missing(error.to_string()))?;
        let config = WorkerConfig { batch: 4, packet_bytes: 16 * 1024, engine: pair.engine, ..WorkerConfig::default() };
        let (batch, replies) = (Batch::new(4, config.packet_bytes), Batch::new(4, config.packet_bytes));
        Ok(Box::new(Self { pair, ends, worker: Worker::new(config).0, batch, replies }))
    }
}

impl Runner for Wire {
    fn trial(&mut self, cell: &Cell, _: Duration, _: u64) -> Result<Measurement, MeterError> {
        let size = one_size(&cell.traffic).ok_or_else(|| MeterError::Unsupported("one size only".into()))?;
        let [src, dst] = self.pair.packet_addresses();
        let packet = crate::packet::udp(src, dst, 4000, 4001, size as usize, IpProto::UDP);
        self.batch.clear();
        self.batch.push_with(|buffer| buffer.set(&packet));
        self.worker.outbound(&self.ends[0], &mut self.batch, &mut self.replies);
        let [sealed] = self.batch.packets() else {
            return Err(MeterError::Unsupported(format!("a packet of {size} bytes does not go through whole")));
        };
        let values = [("wire_bytes".to_owned(), sealed.len() as f64)].into();
        Ok(Measurement { sent: 1, received: 1, received_bytes: size.into(), values, ..Measurement::default() })
    }
}

/// IKE between two ends in memory.
pub(super) struct Keying;

/// Exchanges of each kind in a trial.
const EXCHANGES: usize = 50;

impl Runner for Keying {
    fn trial(&mut self, _: &Cell, _: Duration, _: u64) -> Result<Measurement, MeterError> {
        let start = std::time::Instant::now();
        let rates = crate::bench::ike_rates(EXCHANGES);
        let names = ["ike_sas_per_s", "child_rekeys_per_s", "ike_rekeys_per_s"];
        let values = names.into_iter().map(str::to_owned).zip(rates).collect();
        let done = EXCHANGES as u64 * 3;
        Ok(Measurement {
            sent: done,
            received: done,
            dur_ns: start.elapsed().as_nanos() as u64,
            values,
            ..Measurement::default()
        })
    }
}
