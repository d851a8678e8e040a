//! Records of pcap and pcapng captures.
