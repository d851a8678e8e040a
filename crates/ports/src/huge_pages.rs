//! Huge pages for packet buffers: a working set of many buffers should not miss in the TLB.
#![allow(unsafe_code)]

use dataplane::Batch;

const PAGE: usize = 4096;

/// Requests huge pages for the packet buffers of `batch`. The kernel provides them where 2 MiB of
/// such buffers are contiguous, as those of batches that were allocated one after the other. A
/// kernel without huge pages changes nothing.
pub fn prefer_huge_pages(batch: &Batch) {
    let memory = batch.memory();
    let (start, end) = (memory.start / PAGE * PAGE, memory.end.next_multiple_of(PAGE));
    if start == end {
        return;
    }
    let address = std::ptr::without_provenance_mut::<libc::c_void>(start);
    // The buffers were written when they were allocated, so that they have small pages already:
    // these are collapsed. The kernel may be older than that (Linux 6.1).
    for advice in [libc::MADV_HUGEPAGE, MADV_COLLAPSE] {
        // SAFETY: neither advice changes what is in memory, nor what may be accessed, whatever it
        // is used for. Gaps in the range are an error after the advice was taken for the rest.
        unsafe { libc::madvise(address, end - start, advice) };
    }
}

/// Not in `libc` for every platform.
const MADV_COLLAPSE: libc::c_int = 25;

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags of the mapping that has `address`.
    fn flags(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
        let mut ours = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((start, end)) = range
                && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                ours = (start..end).contains(&address);
            }
            if ours && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.to_owned();
            }
        }
        String::new()
    }

    #[test]
    fn packets_are_in_memory_for_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
            return; // a kernel without them has no such flag
        }
        let mut batch = Batch::new(64, 2048);
        assert!(batch.push_with(|packet| packet.set(&[7; 100])));
        let middle = batch.memory().start.midpoint(batch.memory().end);
        assert!(!flags(middle).split_whitespace().any(|flag| flag == "hg"));
        prefer_huge_pages(&batch);
        assert!(flags(middle).split_whitespace().any(|flag| flag == "hg"), "{}", flags(middle));
        assert_eq!(batch.packets()[0].bytes(), [7; 100]);
        prefer_huge_pages(&Batch::new(0, 2048));
    }
}
