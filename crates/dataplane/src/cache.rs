//! Policy decisions of recent flows.

/// A direct-mapped cache from flow to decision, forgotten when the snapshot's generation changes.
pub struct FlowCache {}

impl FlowCache {
    /// `entries` entries, a power of two.
    pub fn new(entries: usize) -> Self {
        let _ = entries;
        Self {}
    }
}
