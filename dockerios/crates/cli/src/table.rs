//! Columns and lists of names, as kubectl sets them.

use crate::answer::plain;

/// Rows under a head, each column as wide as its widest cell; nothing when there is no row. A cell stays in its line.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| plain(cell)).collect())
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
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

/// Names in a line; the first of many, with the count of the rest.
pub(crate) fn listed(names: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let names: Vec<_> = names.map(|name| plain(&name)).collect();
    match names.len() {
        0 => "none".to_owned(),
        count if count > SHOWN => format!("{} and {} more", names[..SHOWN].join(", "), count - SHOWN),
        _ => names.join(", "),
    }
}

/// `1 warning`, `2 warnings`.
pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Objects of one kind of which something is said.
pub(crate) struct Named {
    /// `class big`, `classes big, small`.
    subject: String,
    one: bool,
}

impl Named {
    /// None when there is nobody of whom anything could be said.
    pub(crate) fn of(one: &str, many: &str, names: &[String]) -> Option<Self> {
        let subject = match names {
            [] => return None,
            [only] => format!("{one} {only}"),
            several => format!("{many} {}", several.join(", ")),
        };
        Some(Self {
            subject,
            one: names.len() == 1,
        })
    }

    /// Says it, in the number that fits.
    pub(crate) fn say(&self, one: &str, many: &str) -> String {
        format!("{} {}", self.subject, if self.one { one } else { many })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_several_are_told_in_the_number_that_fits() {
        assert_eq!(counted(0, "warning", "warnings"), "0 warnings");
        assert_eq!(counted(1, "warning", "warnings"), "1 warning");
        let said = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Named::of("class", "classes", &names).map(|named| named.say("pins its CPUs", "pin their CPUs"))
        };
        assert_eq!(said(&[]), None);
        assert_eq!(said(&["signing"]).as_deref(), Some("class signing pins its CPUs"));
        assert_eq!(said(&["a", "b"]).as_deref(), Some("classes a, b pin their CPUs"));
    }

    #[test]
    fn a_long_list_is_cut_with_its_count() {
        assert_eq!(listed(std::iter::empty()), "none");
        let twelve = listed((0..12).map(|n| n.to_string()));
        assert_eq!(twelve, "0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
    }

    #[test]
    fn a_name_that_begins_a_line_or_moves_a_cursor_stays_in_its_cell() {
        let rows = [vec!["ci\nplatform: Ready".to_owned(), "\u{1b}[2J".to_owned()]];
        assert_eq!(
            table(&["POOL", "REASON"], &rows),
            "POOL                 REASON\nci platform: Ready   \u{fffd}[2J\n"
        );
        assert_eq!(listed(["a\nb".to_owned()].into_iter()), "a b");
    }

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
