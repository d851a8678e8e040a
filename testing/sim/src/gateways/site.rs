//! One site: a gateway or none at the moment, and what survives it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use gateway::simulation::{Gateway, Kernel};

/// Address of a site at the start.
pub(crate) fn usual_addr(site: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, site as u8 + 1)
}

/// One site.
pub struct Site {
    /// The gateway that runs, if one does.
    pub gateway: Option<Gateway>,
    /// The kernel of its host.
    pub kernel: Kernel,
    /// Its configuration in force, or at the next start.
    pub text: String,
    /// Peers and networks that this configuration protects.
    pub protected: Vec<(usize, usize)>,
    /// Starts so far.
    pub starts: u64,
    /// Time of the next start, of one that does not run.
    pub start_at: Option<Instant>,
    /// Until when it can neither send nor receive.
    pub dark_until: Instant,
    /// Time of its next turn.
    pub(crate) due: Instant,
}

impl Site {
    pub(crate) fn new(number: usize, now: Instant) -> Self {
        let network = format!("10.{}.0.0/16", number + 1).parse().expect("a network");
        Self {
            gateway: None,
            kernel: Kernel::new(vec![usual_addr(number).into()], vec![network]),
            text: String::new(),
            protected: Vec::new(),
            starts: 0,
            start_at: None,
            dark_until: now,
            due: now,
        }
    }

    /// Returns whether an address outside is one of this site.
    pub(crate) fn has(&self, addr: IpAddr) -> bool {
        self.kernel.addresses().contains(&addr)
    }
}
