//! AGGFRAG payload header of IP-TFS (RFC 9347 §6.1).
