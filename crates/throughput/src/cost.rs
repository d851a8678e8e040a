//! Cost of the cipher alone, by bytes: measured once per machine and build, used for every protocol
//! with that cipher.

use serde::{Deserialize, Serialize};

/// Times of a bare cipher.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct CostTable {
    /// Suite keyword.
    pub suite: String,
    /// Bytes through the cipher, and nanoseconds, ascending in bytes.
    points: Vec<(f64, f64)>,
}

/// One in so many times is taken to be undisturbed.
const LOW: usize = 10;

/// Reason why points do not form a table.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// Fewer than three different lengths.
    #[error("a cost table needs at least 3 different lengths, this one has {0}")]
    TooFew(usize),
    /// A value is not finite or not positive.
    #[error("a cost table has a time of {ns} ns at {bytes} bytes; times must be positive")]
    BadTime {
        /// Length.
        bytes: f64,
        /// Time.
        ns: f64,
    },
}

impl CostTable {
    /// A table from (bytes, nanoseconds) in any order. Of several times of one length the lowest
    /// tenth counts: whatever disturbs a bare cipher makes it slower, never faster.
    ///
    /// # Errors
    /// [`CostError`].
    pub fn new(suite: &str, points: Vec<(f64, f64)>) -> Result<Self, CostError> {
        if let Some((bytes, ns)) = points.iter().find(|(b, t)| !(*t > 0.0 && t.is_finite() && *b >= 0.0)) {
            return Err(CostError::BadTime { bytes: *bytes, ns: *ns });
        }
        let mut points = points;
        points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let points: Vec<(f64, f64)> =
            points.chunk_by(|a, b| a.0 == b.0).map(|same| same[(same.len() - 1) / LOW]).collect();
        if points.len() < 3 {
            return Err(CostError::TooFew(points.len()));
        }
        Ok(Self { suite: suite.to_owned(), points })
    }

    /// Time for `bytes`: linear interpolation, and linear extrapolation outside.
    pub fn ns(&self, bytes: f64) -> f64 {
        let at = self.points.partition_point(|(b, _)| *b <= bytes).clamp(1, self.points.len() - 1);
        let ((b0, t0), (b1, t1)) = (self.points[at - 1], self.points[at]);
        t0 + (t1 - t0) * (bytes - b0) / (b1 - b0)
    }

    /// The points.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_straight_between_points_and_beyond() {
        let table =
            CostTable::new("x", vec![(32.0, 30.0), (16.0, 20.0), (48.0, 50.0), (48.0, 75.0), (48.0, 52.0)]).unwrap();
        for (bytes, ns) in [(16.0, 20.0), (24.0, 25.0), (32.0, 30.0), (40.0, 40.0), (64.0, 70.0), (0.0, 10.0)] {
            assert_eq!(table.ns(bytes), ns);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(CostTable::new("x", vec![(1.0, 2.0), (1.0, 3.0)]), Err(CostError::TooFew(1)));
        assert!(matches!(CostTable::new("x", vec![(1.0, -2.0)]), Err(CostError::BadTime { .. })));
    }
}
