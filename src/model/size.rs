//! Sizes as users write them.

/// The bytes of `10GiB`, `512 KiB`, `3MB` or `4096`: a whole number and an optional unit, binary
/// (KiB, MiB, GiB, TiB; K, M, G, T alike) or decimal (kB, MB, GB, TB).
///
/// None for anything else, and for more than 2^63-1 bytes.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit: u64 = match unit.trim_start() {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    let bytes = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (bytes <= i64::MAX.unsigned_abs()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("10GiB", 10 << 30),
            ("512 KiB", 512 << 10),
            ("1M", 1 << 20),
            ("3MB", 3_000_000),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text:?}");
        }
        for text in [
            "",
            "GiB",
            "-1",
            "1.5GiB",
            "1 g",
            "99999999T",
            "9223372036854775808",
        ] {
            assert_eq!(parse_bytes(text), None, "{text:?}");
        }
    }
}
