//! Capture files of both formats, and the packets behind their link-layer headers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::IpPacket;
use wire::pcap::{PcapSlice, ip_payload};

fuzz_target!(|file: &[u8]| {
    let _ = PcapSlice::format(file);
    let mut errors = 0;
    for record in PcapSlice::records(file) {
        let Ok(record) = record else {
            errors += 1;
            continue;
        };
        assert_eq!(errors, 0, "nothing follows an error");
        assert!(record.data.len() <= file.len());
        if let Ok((skip, packet)) = ip_payload(record.link_type, record.data) {
            assert_eq!(skip + packet.len(), record.data.len());
            let _ = IpPacket::parse(packet);
        }
    }
    assert!(errors <= 1);
});
