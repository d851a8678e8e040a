//! Traffic of several sizes: cost of a mean packet, and why rates must not be averaged.

use serde::{Deserialize, Serialize};

use crate::{Genome, GenomeError, IMIX};

/// Shares of packet sizes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Mix {
    /// (size of the inner packet in bytes, share of packets), shares adding up to 1.
    parts: Vec<(f64, f64)>,
}

/// Reason why a text is not a mix.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "'{text}' is not a mix: {why}; use sizes with shares (64:28,570:16,1518:4), one size (1400), 'imix', or an IMIX specification of RFC \
     6985 (imix:aaaaaaaddddg)"
)]
pub struct MixError {
    text: String,
    why: String,
}

impl Mix {
    /// Of (size in bytes, weight); `None` without any weight, or with sizes outside 20 to 65535.
    pub fn new(parts: &[(f64, f64)]) -> Option<Self> {
        let total: f64 = parts.iter().map(|p| p.1).sum();
        let good = parts.iter().all(|(size, weight)| (20.0..=65535.0).contains(size) && *weight >= 0.0);
        if !good || total <= 0.0 || !total.is_finite() {
            return None;
        }
        let mut merged: Vec<(f64, f64)> = vec![];
        for (size, weight) in parts {
            match merged.iter_mut().find(|(known, _)| known == size) {
                Some((_, share)) => *share += weight / total,
                None => merged.push((*size, weight / total)),
            }
        }
        Some(Self { parts: merged })
    }

    /// One size.
    pub fn one(size: f64) -> Option<Self> {
        Self::new(&[(size, 1.0)])
    }

    /// Reads `size:share,…`, `size`, an IMIX specification with or without `imix:`, or `imix`,
    /// which is that of campaigns.
    ///
    /// # Errors
    /// [`MixError`].
    pub fn parse(text: &str) -> Result<Self, MixError> {
        let refuse = |why: String| MixError { text: text.to_owned(), why };
        let named = if text == "imix" { IMIX } else { text };
        let text = named.strip_prefix("imix:").unwrap_or(named);
        let parts: Vec<(f64, f64)> = if text.contains(|c: char| c.is_ascii_alphabetic()) {
            let genome: Genome = text.parse().map_err(|e: GenomeError| refuse(e.to_string()))?;
            genome.sizes().iter().map(|size| (f64::from(*size), 1.0)).collect()
        } else {
            let number =
                |text: &str| text.trim().parse::<f64>().map_err(|_| refuse(format!("'{text}' is not a number")));
            text.split(',')
                .map(|part| match part.split_once(':') {
                    Some((size, share)) => Ok((number(size)?, number(share)?)),
                    None => Ok((number(part)?, 1.0)),
                })
                .collect::<Result<_, _>>()?
        };
        Self::new(&parts)
            .ok_or_else(|| refuse("sizes are 20 to 65535 bytes, shares are not negative and not all zero".into()))
    }

    /// Sizes with their shares.
    pub fn parts(&self) -> &[(f64, f64)] {
        &self.parts
    }

    /// Mean of `f` over packets.
    pub fn mean(&self, f: impl Fn(f64) -> f64) -> f64 {
        self.parts.iter().map(|(size, share)| share * f(*size)).sum()
    }

    /// Mean size in bytes.
    pub fn mean_size(&self) -> f64 {
        self.mean(|size| size)
    }

    /// Cost of the mix from the time of each size in nanoseconds.
    pub fn cost(&self, time_ns: impl Fn(f64) -> f64) -> MixCost {
        let mean_ns = self.mean(&time_ns);
        let square = self.mean(|size| time_ns(size).powi(2));
        let mbps = |size: f64| super::rate_mbps(size, time_ns(size));
        let bytes = self.mean_size();
        MixCost {
            mean_size: bytes,
            mean_ns,
            pps: 1e9 / mean_ns,
            mbps: super::rate_mbps(bytes, mean_ns),
            scv: square / (mean_ns * mean_ns) - 1.0,
            wrong_by_packets_mbps: self.mean(mbps),
            wrong_by_bytes_mbps: self.mean(|size| size * mbps(size)) / bytes,
        }
    }
}

/// Cost of a mix on one core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MixCost {
    /// Mean size in bytes.
    pub mean_size: f64,
    /// Mean time in nanoseconds, E\[t\].
    pub mean_ns: f64,
    /// Packets per second, 1/E\[t\].
    pub pps: f64,
    /// 10⁶ bit/s of inner packets.
    pub mbps: f64,
    /// Squared coefficient of variation of the time.
    pub scv: f64,
    /// The mean of the rates of each size by packets: the mean that must not be used.
    pub wrong_by_packets_mbps: f64,
    /// The mean of the rates of each size by bytes: also wrong, with the opposite sign.
    pub wrong_by_bytes_mbps: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rounding, Synchronous};

    fn close(a: f64, b: f64, relative: f64) {
        assert!((a / b - 1.0).abs() <= relative, "{a} is not {b}");
    }

    fn csit() -> Mix {
        Mix::parse("64:28,570:16,1518:4").unwrap()
    }

    #[test]
    fn golden_mixes() {
        let esp16 = Rounding::by_name("s2-esp16").unwrap();
        let cisco = Synchronous { fixed_ns: 410_230.0, rate_mbps: 21.183 };
        let cost = csit().cost(|l| cisco.time_ns(esp16.bytes(l)));
        close(cost.mean_size, 353.8, 2e-4);
        close(cost.mean_ns / 1e3, 548.20, 2e-5);
        close(cost.pps, 1824.0, 3e-4);
        close(cost.mbps, 5.164, 2e-4);
        close(cost.scv, 0.0823, 1e-3);
        close(cost.wrong_by_packets_mbps, 4.128, 2e-4);
        close(cost.wrong_by_bytes_mbps, 8.434, 2e-4);

        let esp4 = Rounding::by_name("s2-esp4").unwrap();
        let cavium = Synchronous { fixed_ns: 91.697, rate_mbps: 25_870.0 };
        let cost = csit().cost(|l| cavium.time_ns(esp4.bytes(l)));
        close(cost.mean_ns / 1e3, 0.2021, 5e-4);
        close(cost.pps, 4_948_164.0, 1e-4);
        close(cost.mbps, 14_006.6, 1e-4);
        close(cost.scv, 0.4141, 1e-3);

        let cost = csit().cost(|l| (440.1 + 0.9364 * l) / 3.0);
        close(cost.mean_ns / 1e3, 0.2571, 5e-4);
        close(cost.pps, 3_888_884.0, 1e-4);
        close(cost.mbps, 11_008.0, 1e-4);
        close(cost.scv, 0.2616, 1e-3);
    }

    #[test]
    fn a_line_over_the_plain_size_costs_a_mix_what_its_mean_size_costs() {
        let cost = csit().cost(|l| 100.0 + 0.4 * l);
        close(cost.mean_ns, 100.0 + 0.4 * cost.mean_size, 1e-12);
    }

    #[test]
    fn imix_is_the_mix_of_the_other_commands() {
        let mix = Mix::parse("imix").unwrap();
        let parts: Vec<f64> = mix.parts().iter().map(|(size, _)| *size).collect();
        assert_eq!(parts, [64.0, 512.0, 1518.0]);
        close(mix.mean_size(), Mix::parse("64:7,512:4,1518:1").unwrap().mean_size(), 1e-12);
        assert_eq!(mix, Mix::parse("imix:aaaaaaaddddg").unwrap());
        assert_eq!(mix, Mix::parse("aaaaaaaddddg").unwrap());
        for wrong in ["imix2", "imix:", "simple"] {
            let refusal = Mix::parse(wrong).unwrap_err().to_string();
            assert!(refusal.contains("use sizes with shares") && refusal.contains("'imix'"), "{refusal}");
        }
    }

    #[test]
    fn a_genome_counts_its_letters() {
        let mix = Mix::parse("aaaaaaaddddg").unwrap();
        close(mix.mean_size(), 334.5, 1e-12);
        assert_eq!(mix.parts().len(), 3);
        close(mix.parts()[0].1, 7.0 / 12.0, 1e-12);
        assert_eq!(Mix::parse("7a4dg").unwrap(), mix);
        assert_eq!(Mix::parse("1400").unwrap(), Mix::one(1400.0).unwrap());
    }

    #[test]
    fn nonsense_is_refused_with_a_remedy() {
        for text in ["aa!", "64:", "10", "70000", "64:-1", "64:0", ""] {
            let error = Mix::parse(text).unwrap_err().to_string();
            assert!(error.contains("aaaaaaaddddg"), "{error}");
        }
    }
}
