//! Least squares for a handful of parameters, by Householder reflections.

/// More parameters than any form of the model has.
pub(super) const MAX_PARAMETERS: usize = 24;

/// Result of least squares.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Solution {
    /// Parameters.
    pub(super) coef: Vec<f64>,
    /// (XᵀX)⁻¹: times the residual variance it is the covariance of the parameters.
    pub(super) unscaled: Vec<Vec<f64>>,
    /// Sum of squared residuals.
    pub(super) sse: f64,
}

/// Minimises |X·coef − y|². `None` when there are fewer rows than columns, or columns depend on
/// each other.
pub(super) fn least_squares(rows: &[Vec<f64>], y: &[f64]) -> Option<Solution> {
    let (n, p) = (rows.len(), rows.first()?.len());
    if n < p || p == 0 || p > MAX_PARAMETERS || n != y.len() {
        return None;
    }
    // Columns of very different size (1 and 1500²) are scaled first, so that one threshold finds
    // dependence.
    let scale: Vec<f64> = (0..p).map(|j| rows.iter().map(|r| r[j] * r[j]).sum::<f64>().sqrt()).collect();
    if scale.iter().any(|s| !s.is_finite() || *s == 0.0) {
        return None;
    }
    let mut a: Vec<Vec<f64>> = rows.iter().map(|r| r.iter().zip(&scale).map(|(v, s)| v / s).collect()).collect();
    let mut b = y.to_vec();
    for k in 0..p {
        reflect(&mut a, &mut b, k)?;
    }
    let solve = |rhs: &[f64]| -> Vec<f64> {
        let mut x = vec![0.0; p];
        for i in (0..p).rev() {
            let known: f64 = (i + 1..p).map(|j| a[i][j] * x[j]).sum();
            x[i] = (rhs[i] - known) / a[i][i];
        }
        x
    };
    let coef = solve(&b).iter().zip(&scale).map(|(c, s)| c / s).collect();
    // Columns of R⁻¹; (XᵀX)⁻¹ = R⁻¹·R⁻ᵀ.
    let inverse: Vec<Vec<f64>> =
        (0..p).map(|j| solve(&(0..p).map(|i| f64::from(u8::from(i == j))).collect::<Vec<_>>())).collect();
    let unscaled = (0..p)
        .map(|i| (0..p).map(|j| inverse.iter().map(|c| c[i] * c[j]).sum::<f64>() / (scale[i] * scale[j])).collect())
        .collect();
    Some(Solution { coef, unscaled, sse: b[p..].iter().map(|r| r * r).sum() })
}

/// Makes column `k` zero below its diagonal.
fn reflect(a: &mut [Vec<f64>], b: &mut [f64], k: usize) -> Option<()> {
    const DEPENDENT: f64 = 1e-10;
    let norm = a[k..].iter().map(|r| r[k] * r[k]).sum::<f64>().sqrt();
    if norm < DEPENDENT {
        return None;
    }
    let alpha = if a[k][k] > 0.0 { -norm } else { norm };
    let mut v: Vec<f64> = a[k..].iter().map(|r| r[k]).collect();
    v[0] -= alpha;
    let length2: f64 = v.iter().map(|x| x * x).sum();
    for j in k..a[k].len() {
        let dot: f64 = v.iter().zip(&a[k..]).map(|(v, r)| v * r[j]).sum();
        for (v, r) in v.iter().zip(&mut a[k..]) {
            r[j] -= 2.0 * dot / length2 * v;
        }
    }
    let dot: f64 = v.iter().zip(&b[k..]).map(|(v, b)| v * b).sum();
    for (v, b) in v.iter().zip(&mut b[k..]) {
        *b -= 2.0 * dot / length2 * v;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_plane_is_found_exactly() {
        let rows: Vec<Vec<f64>> = (0..9).map(|i| vec![1.0, f64::from(i), f64::from(i * i)]).collect();
        let y: Vec<f64> = rows.iter().map(|r| 3.0 - 2.0 * r[1] + 0.5 * r[2]).collect();
        let solution = least_squares(&rows, &y).unwrap();
        for (found, expected) in solution.coef.iter().zip([3.0, -2.0, 0.5]) {
            assert!((found - expected).abs() < 1e-10, "{solution:?}");
        }
        assert!(solution.sse < 1e-18);
    }

    #[test]
    fn too_few_rows_and_dependent_columns_have_no_solution() {
        assert_eq!(least_squares(&[vec![1.0, 2.0]], &[3.0]), None);
        let twice: Vec<Vec<f64>> = (1..6).map(|i| vec![f64::from(i), 2.0 * f64::from(i)]).collect();
        assert_eq!(least_squares(&twice, &[1.0; 5]), None);
        assert_eq!(least_squares(&[], &[]), None);
    }

    /// NumPy 2: numpy.linalg.lstsq and inv(X.T @ X) on the same rows.
    #[test]
    fn parameters_and_covariance_agree_with_an_outside_opinion() {
        let rows: Vec<Vec<f64>> = [64.0, 128.0, 256.0, 512.0, 1024.0, 1500.0].iter().map(|l| vec![1.0, *l]).collect();
        let y = [101.0, 130.5, 195.2, 318.9, 570.3, 801.7];
        let solution = least_squares(&rows, &y).unwrap();
        let expected = NUMPY;
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} is not {b}");
        close(solution.coef[0], expected[0]);
        close(solution.coef[1], expected[1]);
        close(solution.sse, expected[2]);
        close(solution.unscaled[0][0], expected[3]);
        close(solution.unscaled[0][1], expected[4]);
        close(solution.unscaled[1][1], expected[5]);
    }

    const NUMPY: [f64; 6] =
        [69.2207071943, 0.488598093236, 3.63421969666, 0.374325200982, -0.000357620897214, 6.15879845948e-7];
}
