//! Path MTU: what an outer ICMP error tells, and what the inner sender is told.
