//! The cheapest way to give each row a column of its own.

/// The least sum of the costs of all rows, each in another column. There are at least as many columns as rows.
///
/// The Hungarian method: rows come one by one, and each moves those before it along the cheapest way (`O(rows² · columns)`).
pub(super) fn least_cost(rows: usize, columns: usize, cost: impl Fn(usize, usize) -> i64) -> i64 {
    // Rows and columns count from 1; column 0 holds the row that is coming.
    let mut of_row = vec![0; rows + 1];
    let mut of_column = vec![0; columns + 1];
    let mut row_in = vec![0; columns + 1];
    for row in 1..=rows {
        row_in[0] = row;
        let mut least = vec![i64::MAX; columns + 1];
        let mut came_from = vec![0; columns + 1];
        let mut is_done = vec![false; columns + 1];
        let mut column = 0;
        while row_in[column] != 0 {
            is_done[column] = true;
            let at = row_in[column];
            let (mut step, mut next) = (i64::MAX, 0);
            for other in (1..=columns).filter(|other| !is_done[*other]) {
                let rest = cost(at - 1, other - 1) - of_row[at] - of_column[other];
                if rest < least[other] {
                    (least[other], came_from[other]) = (rest, column);
                }
                if least[other] < step {
                    (step, next) = (least[other], other);
                }
            }
            for other in 0..=columns {
                if is_done[other] {
                    of_row[row_in[other]] += step;
                    of_column[other] -= step;
                } else {
                    least[other] = least[other].saturating_sub(step);
                }
            }
            column = next;
        }
        while column != 0 {
            row_in[column] = row_in[came_from[column]];
            column = came_from[column];
        }
    }
    (1..=columns).filter(|column| row_in[*column] != 0).map(|column| cost(row_in[column] - 1, column - 1)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tries all ways.
    fn tried(costs: &[Vec<i64>], taken: &mut Vec<usize>) -> i64 {
        let Some(row) = costs.get(taken.len()) else { return 0 };
        let mut best = i64::MAX;
        for (column, cost) in row.iter().enumerate() {
            if !taken.contains(&column) {
                taken.push(column);
                best = best.min(cost + tried(costs, taken));
                taken.pop();
            }
        }
        best
    }

    proptest! {
        // SEMANTICS: D3
        #[test]
        fn no_pairing_is_cheaper(costs in (0..5_usize).prop_flat_map(|rows| {
            prop::collection::vec(prop::collection::vec(0..20_i64, 5), rows)
        })) {
            let least = least_cost(costs.len(), 5, |row, column| costs[row][column]);
            prop_assert_eq!(least, tried(&costs, &mut Vec::new()));
        }
    }
}
