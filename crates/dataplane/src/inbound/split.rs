//! The inbound path in two halves, so that one SA can use several cores.
//!
//! [`Worker::open_any`] is for any core: it finds the SA of each packet, checks what is cheap and
//! has the engine verify and decrypt, and changes nothing that packets share. [`Worker::admit`] is
//! for one core at a time for each SA: with the engine's proof it moves the replay window, strips
//! headers and checks the policy, in order. One after the other they do what [`Worker::inbound`]
//! does.

use crypto::{IcvOk, Jobs};
use ipsec::{PendingIn, finishes_fast};

use super::{CHUNK, Chunk, InBurst, InFlightDecryption, InFlightDecryptions, Last, Refused};
use crate::counters::bump;
use crate::{Batch, Packet, Snapshot, Worker};

/// A packet that the engine has seen.
pub(crate) struct Opened {
    /// Index in the batch.
    i: u32,
    slot: u32,
    pending: PendingIn,
    /// That it was right; `None` when it was not.
    proof: Option<IcvOk>,
}

impl Worker {
    /// Verifies and decrypts the packets of `batch`. Packets with a result in `opened`, and those
    /// that a policy passes in clear text, remain in it.
    pub(crate) fn open_any(&mut self, tables: &Snapshot, batch: &mut Batch, opened: &mut Vec<Opened>) {
        self.start_batch(batch.len());
        self.derived.begin_batch();
        self.age(tables);
        opened.clear();
        let mut last: Option<Last<'_>> = None;
        let (mut rest, mut first) = (batch.packets_mut(), 0);
        rest.iter().take(CHUNK).for_each(Packet::prefetch_head);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at_mut(rest.len().min(CHUNK));
            self.open_chunk(tables, first, (chunk, behind), &mut last, opened);
            (rest, first) = (behind, first + CHUNK);
        }
        if !self.all_kept {
            // Their places among those that are kept.
            let (mut next, mut kept) = (0, 0);
            for one in opened.iter_mut() {
                kept += self.keep[next..one.i as usize].iter().filter(|keep| **keep).count();
                next = one.i as usize;
                one.i = kept as u32;
            }
        }
        self.retain_kept(batch);
        bump(&self.counters.batches, 1);
    }

    fn open_chunk<'t>(
        &mut self,
        tables: &'t Snapshot,
        first: usize,
        (packets, behind): (&mut [Packet], &[Packet]),
        last: &mut Option<Last<'t>>,
        opened: &mut Vec<Opened>,
    ) {
        let mut jobs = Jobs::new();
        let mut openings = InFlightDecryptions::new();
        let mut chunk = Chunk { last, jobs: &mut jobs, openings: &mut openings };
        self.run_chunk(tables, first, (packets, behind), &mut chunk);
        for (n, job) in jobs.iter_mut().enumerate() {
            let Some(opening) = openings.get(n) else { break };
            let i = (first + usize::from(opening.i)) as u32;
            opened.push(Opened { i, slot: opening.slot, pending: opening.pending, proof: job.take_ok() });
        }
    }

    /// Lets the packets of `batch` in as far as they were right, are no replays and are what a
    /// policy allows through their SA. Afterwards `batch` holds what is to be delivered, in order.
    pub(crate) fn admit(&mut self, tables: &Snapshot, batch: &mut Batch, opened: &mut Vec<Opened>) {
        self.start_batch(batch.len());
        let mut run = InBurst::new(tables, self.config.core);
        let (packets, mut admitted) = (batch.packets_mut(), None);
        for Opened { i, slot, pending, proof } in opened.drain(..) {
            let Some(sa) = tables.sad.get(slot) else {
                self.refuse(i as usize);
                continue;
            };
            // The index within a chunk is not used here. The window is checked again with the
            // proof, because other batches of the SA may have moved it since `open_any`.
            let opening = InFlightDecryption { i: 0, slot, sa, pending, usual: finishes_fast(sa, &pending) };
            match self.finish_inbound(tables, &opening, &mut packets[i as usize], proof, &mut admitted) {
                Ok(bytes) => run.add((slot, pending.lane), 1, bytes),
                Err(Refused) => self.refuse(i as usize),
            }
        }
        run.end();
        self.retain_kept(batch);
        self.publish_lookups();
        self.counters.inner_tx.bump(batch.len() as u64, batch.bytes());
    }
}
