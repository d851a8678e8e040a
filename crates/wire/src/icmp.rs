//! ICMP and ICMPv6, as far as path MTU discovery needs them.
