//! Both ends of an authenticated IKE SA against each other: every order of deliveries for crossing
//! exchanges, random loss, and stories of single tasks.

mod pair;
mod stories;

use std::time::Duration;

use self::pair::{A, B, Pair, chance, child_config, connection};
use super::counters;
use crate::config::{ChildConfig, Connection, Retransmit};
use crate::context::Context;
use crate::sa::Established;

fn net() -> ChildConfig {
    child_config("net", "10.1.0.0/16", "10.2.0.0/16")
}

fn one_child() -> Connection {
    connection(vec![net()])
}

/// Decisions of one run; the next run makes the next ones, like an odometer.
#[derive(Default)]
struct Decisions {
    taken: Vec<(usize, usize)>,
    at: usize,
}

impl Decisions {
    fn pick(&mut self, of: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, of));
        }
        self.at += 1;
        assert_eq!(self.taken[self.at - 1].1, of, "a run can be repeated");
        self.taken[self.at - 1].0
    }

    fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((pick, of)) = self.taken.last_mut() {
            *pick += 1;
            if pick < of {
                return true;
            }
            self.taken.pop();
        }
        false
    }
}

type Step = fn(&mut Context<'_>, &mut Established);

fn rekey_child(ctx: &mut Context<'_>, sa: &mut Established) {
    let first = sa.children.first().map(|child| child.id);
    first.into_iter().for_each(|id| assert!(sa.rekey_child(ctx, id, None)));
}

fn delete_child(ctx: &mut Context<'_>, sa: &mut Established) {
    let id = sa.children[0].id;
    assert!(sa.terminate_child(ctx, id, "", None));
}

fn rekey_ike(ctx: &mut Context<'_>, sa: &mut Established) {
    sa.rekey(ctx, false, None);
}

fn delete_ike(ctx: &mut Context<'_>, sa: &mut Established) {
    sa.terminate(ctx, false, "", None);
}

fn create_child(ctx: &mut Context<'_>, sa: &mut Established) {
    let config = sa.connection.children[1].clone();
    sa.request_child(ctx, crate::sa::ChildRequest { config, packet: None, cpu: None, command: None });
}

/// Longer than every retransmission and back-off.
const REST: Duration = Duration::from_secs(400);

/// Both sides start at once; then every order of deliveries, each with every loss of up to `losses`
/// datagrams. Gives the number of runs.
fn explore(make: impl Fn() -> Pair, start: (Step, Step), losses: usize, check: impl Fn(&Pair)) -> usize {
    let (mut decisions, mut runs) = (Decisions::default(), 0);
    loop {
        let mut pair = make();
        pair.act(A, start.0);
        pair.act(B, start.1);
        let (mut left, end) = (losses, pair.now + REST);
        loop {
            if pair.wire.is_empty() {
                match pair.next_deadline().filter(|at| *at <= end) {
                    Some(at) => pair.sleep_until(at),
                    None => break,
                }
                continue;
            }
            let flying = pair.wire.len();
            let pick = decisions.pick(if left > 0 { 2 * flying } else { flying });
            if pick < flying {
                pair.deliver(pick);
            } else {
                pair.wire.remove(pick - flying);
                left -= 1;
            }
        }
        pair.sleep_until(end);
        check(&pair);
        runs += 1;
        if !decisions.next() {
            return runs;
        }
    }
}

/// Seeds by which either side has the lowest nonce.
const SEEDS: std::ops::Range<u64> = 0..2;

fn every_order(make: fn() -> Connection, start: (Step, Step), children: usize) {
    for seed in SEEDS {
        for losses in [0, 1] {
            let runs = explore(|| Pair::new(seed, make()), start, losses, |pair| pair.check_at_rest(children));
            assert!(runs > 1, "there is something to reorder");
        }
    }
}

/// Without the twins of a Child SA that is deleted on purpose.
fn every_order_of_an_end(make: fn() -> Connection, start: (Step, Step), check: impl Fn(&Pair)) {
    for seed in SEEDS {
        for losses in [0, 1] {
            let pair = || Pair { strict: false, ..Pair::new(seed, make()) };
            explore(pair, start, losses, &check);
        }
    }
}

#[test]
fn the_lowest_of_four_nonces_loses() {
    assert!(super::loses((&[1, 9], &[7, 0]), &[1, 10]));
    assert!(super::loses((&[7, 0], &[1, 9]), &[1, 10]));
    assert!(!super::loses((&[7, 0], &[2]), &[1, 255]));
    assert!(super::loses((&[1, 2], &[9]), &[1, 2, 0]), "the end of a nonce is lower than its continuation");
}

#[test]
fn both_rekey_the_same_child() {
    every_order(one_child, (rekey_child, rekey_child), 1);
    for seed in 0..8 {
        let mut pair = Pair::new(seed, one_child());
        pair.act(A, rekey_child);
        pair.act(B, rekey_child);
        pair.run(REST);
        for host in &pair.hosts {
            assert_eq!(host.count(counters::CHILD_COLLISION), 1, "both notice when the requests cross");
        }
    }
}

#[test]
fn a_successor_has_spis_of_the_same_class() {
    let mut pair = Pair::new(3, one_child());
    let spis = |pair: &Pair| pair.hosts.each_ref().map(|host| host.used()[0].0);
    let first = spis(&pair);
    for by in [A, B, A] {
        let before = spis(&pair);
        pair.act(by, rekey_child);
        pair.run(REST);
        let now = spis(&pair);
        assert!(now.iter().zip(&before).all(|(now, before)| now != before), "both ends have a new SA");
        assert_eq!(
            now.map(|spi| spi % crate::context::SPI_CLASSES),
            first.map(|spi| spi % crate::context::SPI_CLASSES)
        );
    }
}

#[test]
fn a_child_is_rekeyed_by_one_and_deleted_by_the_other() {
    every_order_of_an_end(one_child, (rekey_child, delete_child), |pair| pair.check_at_rest(0));
    every_order_of_an_end(one_child, (delete_child, rekey_child), |pair| pair.check_at_rest(0));
}

#[test]
fn both_delete_the_same_child() {
    every_order_of_an_end(one_child, (delete_child, delete_child), |pair| pair.check_at_rest(0));
}

#[test]
fn both_rekey_the_ike_sa() {
    every_order(one_child, (rekey_ike, rekey_ike), 1);
}

#[test]
fn the_ike_sa_is_rekeyed_while_the_peer_rekeys_a_child() {
    every_order(one_child, (rekey_ike, rekey_child), 1);
    every_order(one_child, (rekey_child, rekey_ike), 1);
}

fn two_sections() -> Connection {
    connection(vec![net(), child_config("second", "10.3.0.0/16", "10.4.0.0/16")])
}

/// The second section has no Child SA yet.
fn without_second(seed: u64) -> Pair {
    let mut pair = Pair::new(seed, two_sections());
    pair.strict = false;
    for host in [A, B] {
        pair.act(host, |ctx, sa| {
            let child = sa.children.remove(1);
            ctx.names.free_spi(child.spi_in);
            ctx.out.push_back(crate::output::Output::Remove(child.id, Duration::ZERO));
        });
    }
    pair.strict = true;
    pair
}

#[test]
fn the_ike_sa_is_rekeyed_while_the_peer_creates_a_child() {
    for seed in SEEDS {
        for losses in [0, 1] {
            for start in [(rekey_ike as Step, create_child as Step), (create_child, rekey_ike)] {
                explore(|| without_second(seed), start, losses, |pair| pair.check_at_rest(2));
            }
        }
    }
}

#[test]
fn the_ike_sa_is_rekeyed_while_the_peer_deletes_a_child() {
    every_order_of_an_end(one_child, (rekey_ike, delete_child), |pair| pair.check_at_rest(0));
    every_order_of_an_end(one_child, (delete_child, rekey_ike), |pair| pair.check_at_rest(0));
}

fn nothing_left(pair: &Pair) {
    pair.check_at_rest(0);
    assert!(pair.hosts.iter().all(|host| host.sas.is_empty()), "no IKE SA is left over");
}

#[test]
fn the_ike_sa_is_deleted_while_the_peer_does_something() {
    for other in [delete_ike as Step, rekey_child, rekey_ike, delete_child] {
        every_order_of_an_end(one_child, (delete_ike, other), nothing_left);
        every_order_of_an_end(one_child, (other, delete_ike), nothing_left);
    }
}

/// A thousand seconds of a bad wire while both ends do one thing after the other.
fn storm(seed: u64, connection: Connection, steps: &[Step], strict: bool) -> Pair {
    let mut below = chance(seed);
    // So many tries that no peer seems dead.
    let retransmit = Retransmit { timeout: Duration::from_secs(1), base: 1.0, tries: 60 };
    let mut pair = Pair::new(seed, Connection { retransmit, ..connection });
    pair.strict = strict;
    let ends = pair.now + Duration::from_secs(1000);
    while pair.now < ends {
        if below(4) == 0 {
            let (host, step) = (below(2) as usize, steps[below(steps.len() as u32) as usize]);
            pair.act(host, step);
        }
        match below(10) {
            _ if pair.wire.is_empty() => {
                let pause = pair.now + Duration::from_secs(below(60).into());
                pair.sleep_until(pair.next_deadline().map_or(pause, |at| at.min(pause)));
            }
            0 => drop(pair.wire.remove(below(pair.wire.len() as u32) as usize)),
            1 => {
                let copy = pair.wire[below(pair.wire.len() as u32) as usize].clone();
                pair.receive(&copy);
            }
            _ => pair.deliver(below(pair.wire.len() as u32) as usize),
        }
    }
    pair.run(REST);
    pair
}

/// Storms of each kind; thousands were clean as well.
const STORMS: std::ops::Range<u64> = 0..60;

#[test]
fn rekeying_in_a_storm_loses_no_twin() {
    for seed in STORMS {
        storm(seed, one_child(), &[rekey_child, rekey_ike], true).check_at_rest(1);
    }
}

#[test]
fn both_ends_agree_after_a_storm_of_everything() {
    let steps: [Step; 5] = [
        rekey_ike,
        create_child,
        |ctx, sa| {
            sa.children.last().map(|child| child.id).into_iter().for_each(|id| assert!(sa.rekey_child(ctx, id, None)))
        },
        |ctx, sa| {
            sa.children.first().map(|child| child.id).into_iter().for_each(|id| assert!(sa.rekey_child(ctx, id, None)))
        },
        |ctx, sa| {
            let id = sa.children.last().map(|child| child.id);
            id.into_iter().for_each(|id| assert!(sa.terminate_child(ctx, id, "", None)));
        },
    ];
    for seed in STORMS {
        let pair = storm(seed, two_sections(), &steps, false);
        pair.check_at_rest(pair.hosts[A].used().len());
    }
}
