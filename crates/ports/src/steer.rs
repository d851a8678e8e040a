//! Socket selection on one UDP port: the kernel selects the socket of a datagram by SPI, with the
//! same rule as the workers.

use std::io;
use std::os::fd::AsFd;

use super::mmsg;

/// Set in the first byte of EESP in UDP, never in the SPI of ESP at this position.
const EESP: u32 = 1 << 31;

const fn step(code: u32, if_true: u8, if_false: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: if_true, jf: if_false, k }
}

/// Classic BPF over the UDP payload that returns the index of a socket in the reuseport group: with
/// `ike` the first one for the non-ESP marker (RFC 3948 §2.2) and for what has no four bytes; then
/// one for each of `workers`, by SPI, or for EESP by SPI plus Session ID.
fn program(workers: u32, ike: bool) -> Vec<libc::sock_filter> {
    let (load, half, mask) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, libc::BPF_K);
    let mut steps = vec![step(load, 0, 0, 0)];
    if ike {
        steps.push(step(libc::BPF_JMP | libc::BPF_JEQ | mask, 0, 1, 0));
        steps.push(step(libc::BPF_RET | mask, 0, 0, 0));
    }
    steps.extend([
        step(libc::BPF_JMP | libc::BPF_JSET | mask, 0, 4, EESP),
        step(half, 0, 0, 2),
        step(libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0),
        step(load, 0, 0, 4),
        step(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0, 0, 0),
        step(libc::BPF_ALU | libc::BPF_MOD | mask, 0, 0, workers),
        step(libc::BPF_ALU | libc::BPF_ADD | mask, 0, 0, u32::from(ike)),
        step(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ]);
    steps
}

/// Attaches the SPI-steering filter to the reuseport group of `socket`. Its sockets must have been
/// bound in this order: IKE (if `ike`), then one for each worker.
///
/// # Errors
/// The operating system's.
pub(super) fn attach(socket: impl AsFd, workers: usize, ike: bool) -> io::Result<()> {
    mmsg::choose_by_payload(socket, &program(workers.max(1) as u32, ike))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use dataplane::nat_t_owner;

    /// Interprets a program as the kernel does; a load beyond the end returns 0.
    fn run(program: &[libc::sock_filter], payload: &[u8]) -> u32 {
        let (mut a, mut x, mut at) = (0u32, 0u32, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let load = |len: usize| {
                let bytes = payload.get(k as usize..k as usize + len)?;
                Some(bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
            };
            let jump = |taken: bool| usize::from(if taken { jt } else { jf });
            match u32::from(code) {
                c if c == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => match load(4) {
                    Some(word) => a = word,
                    None => return 0,
                },
                c if c == libc::BPF_LD | libc::BPF_H | libc::BPF_ABS => match load(2) {
                    Some(word) => a = word,
                    None => return 0,
                },
                c if c == libc::BPF_MISC | libc::BPF_TAX => x = a,
                c if c == libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X => a = a.wrapping_add(x),
                c if c == libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K => a = a.wrapping_add(k),
                c if c == libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K => a %= k,
                c if c == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => at += jump(a == k),
                c if c == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => at += jump(a & k != 0),
                c if c == libc::BPF_RET | libc::BPF_K => return k,
                c if c == libc::BPF_RET | libc::BPF_A => return a,
                other => panic!("{other:#x} is none of ours"),
            }
        }
    }

    proptest! {
        #[test]
        fn the_kernel_finds_the_owner_that_a_worker_finds(
            workers in 1u32..65, ike: bool, payload in prop::collection::vec(any::<u8>(), 0..40), marker: bool,
        ) {
            let mut payload = payload;
            if marker && payload.len() >= 4 {
                payload[..4].fill(0);
            }
            let chosen = run(&program(workers, ike), &payload);
            let for_ike = payload.len() < 4 || payload[..4] == [0; 4];
            if ike && for_ike {
                prop_assert_eq!(chosen, 0);
            } else if let Some(owner) = nat_t_owner(&payload, true) {
                prop_assert_eq!(chosen, owner % workers + u32::from(ike));
            }
        }
    }
}
