//! Text for people: safe on a terminal, aligned, in units that can be read.

use std::time::{Duration, SystemTime};

use serde_json::Value;

/// A text that can't steer the terminal, whoever wrote it.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let steers = c.is_control() && c != '\n'
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if steers {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// A number of bytes: `512 B`, `1.5 KiB`, `12 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut size = count as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be shown as 1024.
    while size >= 1023.5 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(size < 9.95);
    format!("{size:.digits$} {}", UNITS[unit])
}

/// A span of time by its largest unit: `3s`, `5m`, `2h`, `9d`.
pub fn span(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m", s / 60),
        3600..86400 => format!("{}h", s / 3600),
        _ => format!("{}d", s / 86400),
    }
}

/// How long ago a reply's time was; None where it is no time.
pub fn age(at: &Value) -> Option<String> {
    let at = humantime::parse_rfc3339(at.as_str()?).ok()?;
    // A clock that was set back makes it now.
    let ago = SystemTime::now().duration_since(at).unwrap_or_default();
    Some(span(ago))
}

/// Columns that a terminal uses for the text.
fn width(text: &str) -> usize {
    text.chars()
        .map(|c| match u32::from(c) {
            // Combining marks, joiners, variation selectors.
            0x300..=0x36f | 0x200b..=0x200d | 0xfe00..=0xfe0f => 0,
            // East Asian wide forms and emoji.
            0x1100..=0x115f
            | 0x2e80..=0xa4cf
            | 0xac00..=0xd7a3
            | 0xf900..=0xfaff
            | 0xfe30..=0xfe6f
            | 0xff00..=0xff60
            | 0xffe0..=0xffe6
            | 0x1f300..=0x1faff
            | 0x20000..=0x3fffd => 2,
            _ => 1,
        })
        .sum()
}

/// Rows under headings, each column as wide as it must be.
#[derive(Debug)]
pub struct Table {
    headings: Vec<String>,
    /// Whether a column's cells stand on the right: numbers.
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; one that begins with `>` makes its column stand on the right.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        let (right, headings) = headings
            .into_iter()
            .map(|heading| {
                let name = heading.strip_prefix('>');
                (name.is_some(), name.unwrap_or(heading).to_uppercase())
            })
            .unzip();
        Self {
            headings,
            right,
            rows: Vec::new(),
        }
    }

    /// Adds a row; an empty cell is shown as `-`.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                plain(&cell).replace('\n', " ")
            }
        });
        self.rows.push(cells.collect());
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = || std::iter::once(&self.headings).chain(&self.rows);
        let widths: Vec<usize> = (0..self.headings.len())
            .map(|i| {
                lines()
                    .filter_map(|l| l.get(i))
                    .map(|c| width(c))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for line in lines() {
            let mut text = String::new();
            for ((cell, wide), right) in line.iter().zip(&widths).zip(&self.right) {
                let fill = " ".repeat(wide - width(cell));
                if !text.is_empty() {
                    text.push_str("  ");
                }
                text.push_str(if *right { &fill } else { cell });
                text.push_str(if *right { cell } else { &fill });
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_have_few_digits() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 * 1024, "10 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        for (s, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (7200, "2h"),
            (864_000, "10d"),
        ] {
            assert_eq!(span(Duration::from_secs(s)), text);
        }
    }

    #[test]
    fn a_table_is_aligned_also_with_wide_letters() {
        let mut table = Table::new(["window", "title", ">size"]);
        table.row(["c1", "修正", "12 KiB"].map(String::from));
        table.row(["c200", "", "1 B"].map(String::from));
        assert_eq!(
            table.to_string(),
            "WINDOW  TITLE    SIZE\n\
             c1      修正   12 KiB\n\
             c200    -         1 B\n"
        );
    }

    #[test]
    fn nobody_steers_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\u{202e}"), "a\\u{1b}[2Jb\\u{202e}");
        assert_eq!(plain("naïve ✓\n"), "naïve ✓\n");
    }
}
