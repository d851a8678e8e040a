//! Crypto threads of a worker with the scheduler `async`: an engine beside the worker, which wakes
//! the worker when it sleeps.

use std::io;
use std::sync::Arc;

use crypto::offload::{Hooks, Offload};
use dataplane::{AsyncConfig, Asynchronous, EnginePacket, WorkerConfig};

use super::shared::Shared;
use crate::{cpus, prefer_huge_pages};

/// Time without a result after which the worker gives its crypto threads up. Far more than the time
/// slices of a crowded host, because packets in flight are lost and the threads are not used again.
const PATIENCE_MS: u64 = 1000;

/// State that the threads of one worker use.
struct CryptoHooks {
    worker: usize,
    shared: Arc<Shared>,
    cpus: Vec<usize>,
}

impl Hooks for CryptoHooks {
    fn started(&self, thread: usize) {
        let Some(cpu) = self.cpus.get(thread % self.cpus.len().max(1)).copied() else { return };
        if let Err(error) = cpus::pin(cpu) {
            tracing::warn!(core = self.worker, thread, cpu, %error, "crypto thread is not pinned");
        }
    }

    fn completed(&self) {
        self.shared.wake_if_parked(self.worker);
    }
}

/// Starts the crypto threads of a worker.
///
/// # Errors
/// The operating system cannot create a thread.
pub(super) fn start(config: &WorkerConfig, shared: &Arc<Shared>) -> io::Result<Box<Asynchronous>> {
    let hooks: Arc<dyn Hooks> =
        Arc::new(CryptoHooks { worker: config.core, shared: Arc::clone(shared), cpus: config.crypto_pins.clone() });
    let count = config.crypto_threads;
    let threads = Offload::<EnginePacket>::start_with(config.engine, count, AsyncConfig::GROUPS_PER_THREAD, &hooks)?;
    // Worst case of a batch, full of packets of the maximum size with twice as many fragments:
    // 12 MiB; 48 MiB per worker with one crypto thread.
    let window = AsyncConfig {
        batch: config.batch,
        packet_bytes: config.packet_bytes,
        patience_ms: PATIENCE_MS,
        ..AsyncConfig::for_threads(count)
    };
    Ok(Box::new(Asynchronous::new(window, Some(Box::new(threads)), prefer_huge_pages)))
}
