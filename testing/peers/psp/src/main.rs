//! The crate `psp_security` as a filter: one order per line in, one answer per line out.
//!
//! An order is `seal` or `open`, then the words that [`Order::parse`] names, the last one an
//! Ethernet frame in hexadecimal. The answer is a frame, or `error: ` and why. Keys come as the
//! receiver's two master keys; the crate derives the rest.

use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use psp_security::{
    CryptoAlg, PktContext, PspConfig, PspEncap, derive_psp_key, psp_decap_eth, psp_transport_encap, psp_tunnel_encap,
};

struct Order {
    seal: bool,
    context: PktContext,
    frame: Vec<u8>,
}

impl Order {
    /// `seal VERSION MODE SPI IV OFFSET COOKIE MASTER0 MASTER1 FRAME`: numbers and octets in
    /// hexadecimal, OFFSET in units of 4 bytes, COOKIE `-` for none. `open MASTER0 MASTER1 FRAME`.
    fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["seal", version, mode, spi, iv, offset, cookie, master0, master1, frame] => {
                let (masters, spi, offset) = (masters(master0, master1)?, number(spi)? as u32, number(offset)? as u8);
                let algorithm = match version {
                    "0" => CryptoAlg::AesGcm128,
                    "1" => CryptoAlg::AesGcm256,
                    _ => return Err(format!("the crate has no version {version}")),
                };
                let mode: PspEncap = mode.parse().map_err(|_| format!("no mode '{mode}'"))?;
                let config = PspConfig {
                    master_keys: masters,
                    spi,
                    psp_encap: mode,
                    crypto_alg: algorithm,
                    transport_crypt_off: offset,
                    ipv4_tunnel_crypt_off: offset,
                    ipv6_tunnel_crypt_off: offset,
                    include_vc: cookie != "-",
                };
                let context = PktContext {
                    psp_cfg: config,
                    key: derive_psp_key(spi, algorithm, &masters),
                    iv: number(iv)?,
                    vc: if cookie == "-" { 0 } else { number(cookie)? },
                };
                Ok(Self { seal: true, context, frame: octets(frame)? })
            }
            ["open", master0, master1, frame] => {
                let mut context = PktContext::new();
                context.psp_cfg.master_keys = masters(master0, master1)?;
                Ok(Self { seal: false, context, frame: octets(frame)? })
            }
            _ => Err(format!("not an order: {line}")),
        }
    }

    fn run(mut self) -> Result<Vec<u8>, String> {
        let done = match (self.seal, self.context.psp_cfg.psp_encap) {
            (false, _) => psp_decap_eth(&mut self.context, &self.frame),
            (true, PspEncap::Transport) => psp_transport_encap(&mut self.context, &self.frame),
            (true, PspEncap::Tunnel) => psp_tunnel_encap(&mut self.context, &self.frame),
        };
        done.map_err(|why| why.to_string())
    }
}

fn number(word: &str) -> Result<u64, String> {
    u64::from_str_radix(word, 16).map_err(|why| format!("{word}: {why}"))
}

fn octets(word: &str) -> Result<Vec<u8>, String> {
    let digit =
        |byte: u8| (byte as char).to_digit(16).map(|d| d as u8).ok_or_else(|| format!("no hexadecimal: {word}"));
    word.as_bytes().chunks(2).map(|pair| Ok(digit(pair[0])? << 4 | digit(*pair.get(1).unwrap_or(&b'?'))?)).collect()
}

fn masters(first: &str, second: &str) -> Result<[[u8; 32]; 2], String> {
    let key = |word| octets(word)?.try_into().map_err(|_| "a master key has 32 bytes".to_string());
    Ok([key(first)?, key(second)?])
}

fn main() -> std::io::Result<()> {
    // The crate may panic on a packet; that is an answer too.
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = catch_unwind(AssertUnwindSafe(|| Order::parse(&line)?.run()));
        match answer.unwrap_or_else(|_| Err("the crate panicked".to_string())) {
            Ok(frame) => writeln!(out, "{}", frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>())?,
            Err(why) => writeln!(out, "error: {why}")?,
        }
    }
    Ok(())
}
