//! Spans as whole milliseconds, the unit of everything that leaves the runtime.

use std::time::Duration;

/// The span in milliseconds, rounded up: waiting that long is long enough.
pub(crate) fn whole_ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::whole_ms;

    #[test]
    fn a_begun_millisecond_counts_and_the_longest_span_fits() {
        let spans = [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(7), Duration::MAX];
        assert_eq!(spans.map(whole_ms), [0, 1, 7, u64::MAX]);
    }
}
