//! Columns of text, as kubectl sets them.

/// Rows under a head, each column as wide as its widest cell; nothing when there is no row.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[&str]| {
        let mut text = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            text.push_str(&format!("{cell:<width$}   "));
        }
        text.trim_end().to_owned() + "\n"
    };
    let body = rows
        .iter()
        .map(|row| line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
    line(head) + &body.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["ci".to_owned(), "3".to_owned()],
            vec!["nightly".to_owned(), "12".to_owned()],
        ];
        assert_eq!(
            table(&["POOL", "WARM"], &rows),
            "POOL      WARM\nci        3\nnightly   12\n"
        );
        assert_eq!(table(&["POOL"], &[]), "");
    }
}
