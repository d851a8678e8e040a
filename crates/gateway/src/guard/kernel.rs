//! nf_tables of the kernel, as far as the guard uses it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::nft::{self, Transaction};
use crate::netlink::{Monitor, NETFILTER, Netlink};

/// Multicast group of nf_tables changes: NFNLGRP_NFTABLES.
const CHANGES: u32 = 7;

/// Operations on tables. Tests replace the kernel by a model that refuses some of them.
pub(crate) trait NfTables {
    /// Carries a transaction out: all of it or nothing.
    ///
    /// # Errors
    /// Those of the kernel. After a timeout the transaction may have been carried out.
    fn commit(&mut self, transaction: Transaction) -> io::Result<()>;
    /// Value of a counter: packets and bytes.
    fn counter(&mut self, table: &str, name: &str) -> Option<(u64, u64)>;
    /// Number of rules of a table; 0 without the table.
    fn count_rules(&mut self, table: &str) -> usize;
    /// Returns whether another program changed the table since the last call, and whether all
    /// notifications arrived.
    fn changes(&mut self, table: &str) -> (bool, bool);
    /// Readable when another program changes something.
    fn watched(&self) -> Option<BorrowedFd<'_>>;
}

/// The kernel.
pub(crate) struct Kernel {
    netlink: Netlink,
    monitor: Monitor,
}

impl Kernel {
    /// Opens the sockets.
    ///
    /// # Errors
    /// The kernel has no nf_tables, or the process may not use it.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { netlink: Netlink::open(NETFILTER)?, monitor: Monitor::open(NETFILTER, &[CHANGES])? })
    }

    pub(super) fn has_table(&mut self, table: &str) -> bool {
        self.netlink.get(nft::get_table(table), |_| ()).is_ok()
    }
}

impl NfTables for Kernel {
    fn commit(&mut self, transaction: Transaction) -> io::Result<()> {
        self.netlink.request(&mut transaction.finish()).map_err(|(_, error)| error)
    }

    fn counter(&mut self, table: &str, name: &str) -> Option<(u64, u64)> {
        let mut read = None;
        let outcome = self.netlink.get(nft::get_counter(table, name), |object| {
            read = read.or(nft::counter(object.body));
        });
        outcome.ok().and(read)
    }

    fn count_rules(&mut self, table: &str) -> usize {
        let mut rules = 0;
        match self.netlink.dump(nft::list_rules(table), |_| rules += 1) {
            Ok(()) => rules,
            Err(_) => 0,
        }
    }

    fn changes(&mut self, table: &str) -> (bool, bool) {
        let own = self.netlink.port();
        let mut changed = false;
        let complete = self.monitor.read(|message| {
            changed |=
                message.port != own && nft::is_change(message.kind) && nft::table_of(message.body) == Some(table);
        });
        (changed, complete)
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        Some(self.monitor.as_fd())
    }
}
