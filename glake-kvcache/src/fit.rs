//! A plane through points, by least squares, that forgets.

/// The sums that a fit of `y = a + b·x₀ + c·x₁` needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fit {
    /// Of products of `[1, x₀, x₁]` with each other and with `y`.
    rows: [[f64; 4]; 3],
}

impl Fit {
    /// Adds a point; what was there before weighs `keep` as much as it did.
    pub(crate) fn see(&mut self, [x0, x1]: [f64; 2], y: f64, keep: f64) {
        let point = [1.0, x0, x1, y];
        for (row, x) in self.rows.iter_mut().zip(point) {
            for (sum, other) in row.iter_mut().zip(point) {
                *sum = keep * *sum + x * other;
            }
        }
    }

    /// The constant and both slopes; a slope that the points say nothing of, or that would be negative, is 0. `None`
    /// without a point.
    pub(crate) fn solve(&self) -> Option<[f64; 3]> {
        if self.rows[0][0] <= 0.0 {
            return None;
        }
        for used in [[true, true], [false, true], [true, false]] {
            if let Some(solution) = self.solve_with(used)
                && solution.iter().all(|value| *value >= 0.0)
            {
                return Some(solution);
            }
        }
        Some([self.rows[0][3] / self.rows[0][0], 0.0, 0.0])
    }

    /// Gauss's elimination over the constant and those slopes that are used.
    fn solve_with(&self, used: [bool; 2]) -> Option<[f64; 3]> {
        let mut rows = self.rows;
        for (slope, used) in (1..3).zip(used) {
            if !used {
                for row in &mut rows {
                    row[slope] = 0.0;
                }
                rows[slope] = [0.0; 4];
                rows[slope][slope] = 1.0;
            }
        }
        for pivot in 0..3 {
            // What is left of a column that others explain is noise.
            if rows[pivot][pivot].abs() <= 1e-9 * self.rows[pivot][pivot].abs() || rows[pivot][pivot] == 0.0 {
                return None;
            }
            let line = rows[pivot];
            for (at, row) in rows.iter_mut().enumerate() {
                if at != pivot {
                    let factor = row[pivot] / line[pivot];
                    for (value, of) in row.iter_mut().zip(line) {
                        *value -= factor * of;
                    }
                }
            }
        }
        Some([0, 1, 2].map(|at| rows[at][3] / rows[at][at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plane_is_found() {
        let mut fit = Fit::default();
        for (x0, x1) in [(1.0, 5.0), (2.0, 1.0), (3.0, 9.0), (4.0, 2.0)] {
            fit.see([x0, x1], 7.0 + 3.0 * x0 + 0.5 * x1, 0.9);
        }
        let [a, b, c] = fit.solve().unwrap();
        assert!((a - 7.0).abs() < 1e-6 && (b - 3.0).abs() < 1e-6 && (c - 0.5).abs() < 1e-6);
    }

    #[test]
    fn points_on_a_line_give_one_slope() {
        let mut fit = Fit::default();
        for n in [1.0, 2.0, 3.0] {
            fit.see([n, 100.0 * n], 10.0 + n, 1.0);
        }
        let [a, b, c] = fit.solve().unwrap();
        assert!((a + 5.0 * b + 500.0 * c - 15.0).abs() < 1e-6 && b >= 0.0 && c >= 0.0);
        assert_eq!(Fit::default().solve(), None);
    }
}
