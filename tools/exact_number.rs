//! Whether a number that was written down survives as a machine's number.
//!
//! Machine numbers are whole ones of 64 bits and doubles. What must stay true: a number counts as exact only when its
//! machine number, written down again, has the same value; one beyond all doubles becomes the largest of them, so that
//! bounds can still be checked.

use serde_json::Number;

/// What became of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The same.
    Exact,
    /// A whole number that lost digits.
    RoundedWhole,
    /// One with a fraction that lost digits.
    RoundedFraction,
}

/// The machine number nearest to a JSON number's text.
pub fn written(text: &str) -> (Number, Written) {
    if let Ok(whole) = text.parse::<u64>() {
        return (Number::from(whole), Written::Exact);
    }
    // Minus zero has its sign only as a double.
    if let Ok(whole) = text.parse::<i64>()
        && whole != 0
    {
        return (Number::from(whole), Written::Exact);
    }
    let double = text.parse::<f64>().unwrap_or(f64::INFINITY);
    let number = Number::from_f64(double).unwrap_or_else(|| largest(text.starts_with('-')));
    let decimal = Decimal::of(text);
    let kind = match () {
        // As values are written: of a double half-way between two shortest texts others write the other one.
        () if double.is_finite() && Decimal::of(&number.to_string()) == decimal => Written::Exact,
        () if decimal.is_whole() => Written::RoundedWhole,
        () => Written::RoundedFraction,
    };
    (number, kind)
}

/// Whether a machine number can stand for one that was written down: a whole one is the same; a fraction may be the
/// nearest double, if no digit before its point is lost and it is not nothing at once.
pub fn is_held(text: &str) -> bool {
    let (number, kind) = written(text);
    match kind {
        Written::Exact => true,
        Written::RoundedWhole => false,
        Written::RoundedFraction => {
            number.as_f64().is_some_and(|double| double.is_normal() && double.abs() < WHOLE_BELOW)
        }
    }
}

/// Below this, a double has every digit before the point.
const WHOLE_BELOW: f64 = 9_007_199_254_740_992.0;

/// A number that any value can hold, for one that none can.
fn largest(is_negative: bool) -> Number {
    Number::from_f64(if is_negative { f64::MIN } else { f64::MAX }).unwrap_or_else(|| Number::from(0))
}

/// A number as its digits without zeros at either end, and the power of ten that the last of them stands for.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    power: i64,
}

impl Decimal {
    fn of(text: &str) -> Self {
        let (sign, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let kept = digits.trim_end_matches('0');
        let dropped = i64::try_from(digits.len() - kept.len()).unwrap_or(i64::MAX);
        let after = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        // An exponent too long for a number of 64 bits is far beyond any double.
        let beyond = if exponent.starts_with('-') { i64::MIN / 4 } else { i64::MAX / 4 };
        let exponent = exponent.parse::<i64>().unwrap_or(beyond).clamp(i64::MIN / 4, i64::MAX / 4);
        let kept = kept.trim_start_matches('0').to_owned();
        let power = if kept.is_empty() { 0 } else { exponent.saturating_sub(after).saturating_add(dropped) };
        Self { is_negative: sign && !kept.is_empty(), digits: kept, power }
    }

    fn is_whole(&self) -> bool {
        self.power >= 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Written, is_held, written};

    #[test]
    fn what_loses_digits_is_told_apart() {
        // Case C148.
        for exact in [
            "0",
            "-0",
            "-0.0",
            "1",
            "18446744073709551615",
            "-9223372036854775808",
            "9007199254740993",
            "0.1",
            "1.0",
            "1e2",
            "100e-2",
            "1.5e300",
            "1070468.14",
            "1E+2",
            "0e999999999999999999999",
            // The double is …167.25, and …167.3 is as short and as near.
            "-632576357900167.2",
        ] {
            assert_eq!(written(exact).1, Written::Exact, "{exact}");
        }
        for whole in
            ["18446744073709551616", "1e400", "-1e400", "123456789012345678901234567890", "1e99999999999999999999"]
        {
            assert_eq!(written(whole).1, Written::RoundedWhole, "{whole}");
        }
        for fraction in ["0.10000000000000000001", "1e-400", "12345678901234567890.5", "1e-99999999999999999999"] {
            assert_eq!(written(fraction).1, Written::RoundedFraction, "{fraction}");
        }
        assert_eq!(written("-1e400").0.as_f64(), Some(f64::MIN));
    }

    #[test]
    fn whole_numbers_are_held_exactly_and_fractions_nearly() {
        for held in ["0.30000000000000004441", "3.14159265358979323846", "-0.10000000000000000001", "1e22", "12.5e-300"]
        {
            assert!(is_held(held), "{held}");
        }
        for lost in [
            "18446744073709551616",
            "-9223372036854775809",
            "1e400",
            "12345678901234567890.5",
            "1e-400",
            "1.2345678901234567e-310",
        ] {
            assert!(!is_held(lost), "{lost}");
        }
    }

    proptest! {
        #[test]
        fn every_machine_number_is_exact(double in any::<f64>(), whole in any::<i64>(), unsigned in any::<u64>()) {
            prop_assume!(double.is_finite());
            for text in [serde_json::json!(double).to_string(), whole.to_string(), unsigned.to_string()] {
                let (number, kind) = written(&text);
                prop_assert_eq!(kind, Written::Exact);
                prop_assert_eq!(number.to_string(), text);
            }
        }
    }
}
