//! Ticks that packets cost which move between the caches of two CPUs, as in a pipeline: one thread
//! writes a group of packets, another reads and writes every byte of it, and gives it back.
//!
//! "moved" is the first pass of the second thread, "in cache" its pass right after it; "filled" and
//! "filled again" are two passes of the first thread that writes them. The differences are the cost
//! of the way there, and of the way back.
//!
//! ```sh
//! cargo run --release -p weir-ports --example moved_packets
//! ```

use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use ports::clock::ticks;
use ports::cpus;

/// Memory of a packet, as the buffers of a batch.
type Buffer = [u8; 2048];
/// Ticks of the passes of the second thread: first and second.
type Passes = [u64; 2];

const ROUNDS: usize = 401;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let &[first, second, ..] = cpus::allowed().as_slice() else {
        return Err("two CPUs are needed".into());
    };
    println!("ticks per packet, median of {ROUNDS} rounds, CPUs {first} and {second}\n");
    println!("bytes  group  moved  in cache  filled  filled again");
    for bytes in [128, 576, 1472] {
        for group in [16, 64, 256] {
            let [fill, again, moved, near] = measure(bytes, group, first, second)?;
            println!("{bytes:5}  {group:5}  {moved:5.0}  {near:8.0}  {fill:6.0}  {again:12.0}");
        }
    }
    Ok(())
}

fn measure(bytes: usize, group: usize, first: usize, second: usize) -> Result<[f64; 4], Box<dyn std::error::Error>> {
    cpus::pin(first)?;
    let (there, from_first) = channel::<Vec<Buffer>>();
    let (back, from_second) = channel::<(Vec<Buffer>, Passes)>();
    let other = thread::spawn(move || serve(bytes, second, &from_first, &back));
    let mut packets = vec![[0; 2048]; group];
    let mut samples = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        for samples in &mut samples[..2] {
            let start = ticks();
            for packet in &mut packets {
                black_box(&mut packet[..bytes]).fill(round as u8);
            }
            samples.push(ticks() - start);
        }
        there.send(packets)?;
        let passes;
        (packets, passes) = wait(&from_second).ok_or("the second thread has ended: is its CPU allowed?")?;
        for (samples, pass) in samples[2..].iter_mut().zip(passes) {
            samples.push(pass);
        }
    }
    drop(there);
    other.join().map_err(|_| "the second thread has panicked")?;
    Ok(samples.map(|mut of| {
        of.sort_unstable();
        of[ROUNDS / 2] as f64 / group as f64
    }))
}

/// The second thread: changes every byte twice.
fn serve(bytes: usize, cpu: usize, groups: &Receiver<Vec<Buffer>>, back: &Sender<(Vec<Buffer>, Passes)>) {
    if cpus::pin(cpu).is_err() {
        return;
    }
    while let Some(mut packets) = wait(groups) {
        let mut passes = Passes::default();
        for pass in &mut passes {
            let start = ticks();
            for packet in &mut packets {
                for byte in black_box(&mut packet[..bytes]) {
                    *byte ^= 0x55;
                }
            }
            *pass = ticks() - start;
        }
        if back.send((packets, passes)).is_err() {
            return;
        }
    }
}

/// The next message, without sleeping; `None` when the other side has ended.
fn wait<T>(messages: &Receiver<T>) -> Option<T> {
    loop {
        match messages.try_recv() {
            Ok(message) => return Some(message),
            Err(TryRecvError::Empty) => thread::yield_now(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}
