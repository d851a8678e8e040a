//! Cycles and instructions of the calling thread, where the kernel lets us count them.

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

use super::Unavailable;

/// Two counters of one thread that count while they are on.
pub struct Perf {
    cycles: Counter,
    instructions: Counter,
}

impl Perf {
    /// Opens both for the calling thread, switched off.
    ///
    /// # Errors
    /// Reason why counters are unavailable to this user or on this machine.
    pub fn open() -> Result<Self, Unavailable> {
        let open = |event: Hardware| {
            let mut builder = Builder::new(event);
            builder.exclude_kernel(true).exclude_hv(true);
            builder.build().map_err(|error| {
                Unavailable(match error.kind() {
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::Unsupported => {
                        "this machine has no performance counters (usual in virtual machines)".to_owned()
                    }
                    std::io::ErrorKind::PermissionDenied => {
                        "not permitted: run as root, or sysctl kernel.perf_event_paranoid=2".to_owned()
                    }
                    _ => format!("perf_event_open: {error}"),
                })
            })
        };
        Ok(Self { cycles: open(Hardware::CPU_CYCLES)?, instructions: open(Hardware::INSTRUCTIONS)? })
    }

    /// Starts counting. A counter that reports an error returns its last value.
    pub fn resume(&mut self) {
        let _ = (self.cycles.enable(), self.instructions.enable());
    }

    /// Stops counting.
    pub fn pause(&mut self) {
        let _ = (self.instructions.disable(), self.cycles.disable());
    }

    /// Cycles and instructions so far.
    pub fn read(&mut self) -> (Option<u64>, Option<u64>) {
        (self.cycles.read().ok(), self.instructions.read().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_or_says_why_not() {
        match Perf::open() {
            Ok(mut perf) => {
                let before = perf.read();
                perf.resume();
                std::hint::black_box((0..10_000_u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
                perf.pause();
                assert!(perf.read().1 > before.1);
            }
            Err(why) => assert!(!why.to_string().is_empty()),
        }
    }
}
