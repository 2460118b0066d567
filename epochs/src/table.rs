//! Text tables: columns as wide as their widest cell, two spaces apart, without trailing blanks.

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

/// A table of texts: every column is left-aligned.
pub fn text_table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let head = head.map(str::to_owned);
    let rows: Vec<&[String]> = std::iter::once(&head).chain(rows).map(<[String; N]>::as_slice).collect();
    aligned(&rows, |_| Align::Left)
}

/// A table of figures: the first column is left-aligned, all others are right-aligned. Rows may have fewer cells.
pub fn figures_table(rows: &[Vec<String>]) -> String {
    let rows: Vec<&[String]> = rows.iter().map(Vec::as_slice).collect();
    aligned(&rows, |column| if column == 0 { Align::Left } else { Align::Right })
}

fn aligned(rows: &[&[String]], align: impl Fn(usize) -> Align) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(*row) {
            // Characters, not bytes: `format!` pads by characters as well.
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match align(column) {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let text = figures_table(&[row(&["system", "a"]), row(&["x", "123"]), row(&["y"])]);
        assert_eq!(text, "system    a\nx       123\ny\n");
        let rows = [["a".to_owned(), "1".to_owned()], ["größer".to_owned(), String::new()]];
        assert_eq!(text_table(["NAME", "N"], &rows), "NAME    N\na       1\ngrößer\n");
    }
}
