//! The `Content-Range` of an answer: which bytes it holds, of how many.
//!
//! Read to the letter: a range that is not quite what was asked for must not be taken for it.

/// Most digits of a number: what fits into 64 bits.
const DIGITS_MAX: usize = 20;

/// What an answer says of its place in the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentRange {
    /// These bytes.
    Part {
        /// The first byte.
        first: u64,
        /// The last byte.
        last: u64,
        /// How many there are in all, when that is known.
        total: Option<u64>,
    },
    /// None: what was asked for lies outside.
    Outside {
        /// How many there are in all, when that is known.
        total: Option<u64>,
    },
}

impl ContentRange {
    /// Reads a field's value; none when it is malformed or contradicts itself.
    pub fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.trim_matches([' ', '\t']).split_once(' ')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (range, total) = rest.trim_matches(' ').split_once('/')?;
        let total = if total == "*" { None } else { Some(number(total)?) };
        if range == "*" {
            return Some(Self::Outside { total });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        let fits = first <= last && total.is_none_or(|total| last < total);
        fits.then_some(Self::Part { first, last, total })
    }
}

fn number(text: &str) -> Option<u64> {
    let is_plain = (1..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ContentRange;

    #[test]
    fn only_what_is_well_formed_is_taken() {
        let part = |first, last, total| Some(ContentRange::Part { first, last, total });
        assert_eq!(ContentRange::parse("bytes 0-0/10"), part(0, 0, Some(10)));
        assert_eq!(ContentRange::parse(" BYTES 5-9/* "), part(5, 9, None));
        assert_eq!(ContentRange::parse("bytes */0"), Some(ContentRange::Outside { total: Some(0) }));
        for wrong in [
            "",
            "bytes",
            "bytes 0-0",
            "bytes 1-0/5",
            "bytes 0-5/5",
            "bytes -1-2/5",
            "bytes +1-2/5",
            "bytes 0-1/5/6",
            "items 0-1/5",
            "bytes=0-1/5",
            "bytes 0 - 1/5",
            "bytes 0-1/ 5",
            "bytes 0-99999999999999999999/*",
            "bytes 0x0-1/5",
            "bytes 0-/5",
            "bytes -/5",
            "bytes 0-1/",
            "bytes ٠-١/٥",
        ] {
            assert_eq!(ContentRange::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_range_comes_back(first in any::<u64>(), more in any::<u64>(), beyond in proptest::option::of(1..1000_u64)) {
            let last = first.saturating_add(more);
            let total = beyond.and_then(|beyond| last.checked_add(beyond));
            let shown = total.map_or("*".to_owned(), |total| total.to_string());
            let read = ContentRange::parse(&format!("bytes {first}-{last}/{shown}"));
            prop_assert_eq!(read, Some(ContentRange::Part { first, last, total }));
        }
    }
}
