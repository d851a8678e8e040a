//! Service times of a mix.

use super::mix::Mix;

/// Service times with their probabilities, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    parts: Vec<(f64, f64)>,
}

impl Service {
    /// The times of a mix.
    pub fn of(mix: &Mix, time_ns: impl Fn(f64) -> f64) -> Self {
        Self { parts: mix.parts().iter().map(|(size, share)| (time_ns(*size), *share)).collect() }
    }

    /// E\[tⁿ\].
    pub fn moment(&self, n: i32) -> f64 {
        self.parts.iter().map(|(t, p)| p * t.powi(n)).sum()
    }

    /// Squared coefficient of variation.
    pub fn scv(&self) -> f64 {
        self.moment(2) / self.moment(1).powi(2) - 1.0
    }

    /// Times and probabilities.
    pub fn parts(&self) -> &[(f64, f64)] {
        &self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0.2616 is the value of the CSIT mix at 3 GHz, 440.1 cycles and 0.9364 cycles per byte.
    #[test]
    fn the_variation_of_a_mix_is_that_of_its_times() {
        let service = Service::of(&Mix::parse("64:28,570:16,1518:4").unwrap(), |l| 440.1 / 3.0 + 0.9364 / 3.0 * l);
        assert!((service.scv() - 0.2616).abs() < 5e-5, "{}", service.scv());
        assert!((service.moment(1) - 257.1).abs() < 0.1);
    }
}
