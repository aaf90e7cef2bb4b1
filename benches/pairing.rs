//! Two pieces of work side by side: measured by turns in one run, told as medians and their ratio.
//!
//! The machine is shared and never quiet, so an absolute time says little; what was measured by turns has met the
//! same neighbours, and the ratio holds. All work is driven from a spawned task on a runtime with two workers: the
//! thread inside `block_on` is no worker, and every message to it would be a wake-up across threads.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Runtime;

/// Workers of the runtime that every figure is measured on.
pub(crate) const WORKERS: usize = 2;

/// The runtime that every figure is measured on.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .expect("a runtime with two workers")
}

/// Runs a future as a task of the runtime, on a worker, and waits for it.
pub(crate) fn drive<F>(runtime: &Runtime, work: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    runtime.block_on(async { tokio::spawn(work).await.expect("the driven task panicked") })
}

/// Times one future.
pub(crate) async fn timed<F: Future>(work: F) -> (Duration, F::Output) {
    let began_at = tokio::time::Instant::now();
    let output = work.await;
    (began_at.elapsed(), output)
}

/// Spans that were measured for one piece of work.
struct Spans(Vec<Duration>);

impl Spans {
    /// The span that this share of all is not longer than; 0.5 is the median.
    fn quantile(&self, share: f64) -> Duration {
        let last = self.0.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        self.0.get(at.min(last)).copied().unwrap_or_default()
    }

    /// The middle one.
    fn median(&self) -> Duration {
        self.quantile(0.5)
    }
}

impl From<Vec<Duration>> for Spans {
    fn from(mut spans: Vec<Duration>) -> Self {
        spans.sort_unstable();
        Self(spans)
    }
}

/// What two pieces of work took.
pub(crate) struct Pairing {
    reference: Spans,
    subject: Spans,
}

impl Pairing {
    /// Runs both by turns, as often as told; each gives the spans of one turn.
    pub(crate) fn measure(
        turns: usize,
        mut reference: impl FnMut() -> Vec<Duration>,
        mut subject: impl FnMut() -> Vec<Duration>,
    ) -> Self {
        // One turn each to warm up.
        drop((reference(), subject()));
        let (mut references, mut subjects) = (Vec::new(), Vec::new());
        for _ in 0..turns {
            references.extend(reference());
            subjects.extend(subject());
        }
        Self { reference: references.into(), subject: subjects.into() }
    }

    /// How many times the reference's median the subject's is.
    fn ratio(&self) -> f64 {
        self.subject.median().as_secs_f64() / self.reference.median().as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Prints both medians, each with the quarters below and above, and the ratio, with its target when it has one;
    /// returns the subject's median.
    pub(crate) fn print(&self, subject: &str, reference: &str, ratio_max: Option<f64>) -> Duration {
        for (name, spans) in [(reference, &self.reference), (subject, &self.subject)] {
            let (low, mid, high) = (spans.quantile(0.25), spans.median(), spans.quantile(0.75));
            println!("  {name:<42} median {mid:>9.1?}, quarters {low:.1?} and {high:.1?}, {} spans", spans.0.len());
        }
        let ratio = self.ratio();
        match ratio_max {
            Some(max) => println!("  ratio {ratio:.2}; target: at most {max}: {}", verdict(ratio <= max)),
            None => println!("  ratio {ratio:.2}"),
        }
        self.subject.median()
    }
}

/// The word for a target that is met, or is not.
pub(crate) fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "NOT met" }
}
