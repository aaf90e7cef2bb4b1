//! The log of a workflow tells one story: records in their order, none lost, nothing behind the end, each step once.
//!
//! Looked at is what is on the pretended disk, byte by byte as it comes there, whoever was told what. A step that is
//! recorded as done never begins again, an attempt follows the one before, no step is tried more often than it may be or
//! sooner, a run ends without a clean-up only where somebody asked for that, and what is cut off a log is an unfinished line
//! and no record.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use toolwarden::event::EventKind;
use toolwarden_tools::workflow::event::{Entry, Event};

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// The logs, as they stand on the disk.
#[derive(Debug, Default)]
pub struct Workflow {
    logs: BTreeMap<String, Log>,
    /// Whether a call was made that leaves a run no time to clean up.
    at_once: bool,
    /// By how many milliseconds the host's clock is ahead of the time of the world, as the journal last showed it.
    ahead_ms: Option<u64>,
}

/// What is known of the moment in which a record comes.
#[derive(Clone, Copy)]
struct Now {
    at: Duration,
    at_once: bool,
    ahead_ms: Option<u64>,
}

impl Now {
    /// When in the world the host's clock will show this; by the record's own clock where nothing else is known.
    fn when(self, unix_ms: u64, record_ms: u64) -> Duration {
        match self.ahead_ms {
            Some(ahead_ms) => Duration::from_millis(unix_ms.saturating_sub(ahead_ms)),
            None => self.at + Duration::from_millis(unix_ms.saturating_sub(record_ms)),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Log {
    bytes: Vec<u8>,
    /// Where the last whole record ends.
    whole: usize,
    last: u64,
    ended: Option<String>,
    steps: BTreeMap<String, Step>,
    /// The log before what a failed append left of its records: nobody acted on those, and they may be taken away.
    refused: Option<Box<Log>>,
}

#[derive(Clone, Debug, Default)]
struct Step {
    attempts: u32,
    attempts_max: u32,
    is_over: bool,
    retry_at_ms: u64,
    /// Before this moment of the world the next attempt may not begin, whatever a clock says.
    not_before: Duration,
}

/// What the clock of a host may differ from the time of the world by, in rounding.
const ROUNDING: Duration = Duration::from_millis(2);

impl Log {
    fn put(&mut self, now: Now, path: &str, bytes: &[u8]) -> Result<(), String> {
        self.bytes.extend_from_slice(bytes);
        while let Some(end) = self.bytes[self.whole..].iter().position(|byte| *byte == b'\n') {
            let line = self.bytes[self.whole..self.whole + end].to_vec();
            self.whole += end + 1;
            let entry: Entry = serde_json::from_slice(&line)
                .map_err(|error| format!("{path} has a line that is no record ({error})"))?;
            self.take(now, path, &entry)?;
        }
        Ok(())
    }

    fn take(&mut self, now: Now, path: &str, entry: &Entry) -> Result<(), String> {
        let sequence = entry.sequence;
        must(sequence == self.last + 1, || format!("record {sequence} of {path} follows record {}", self.last))?;
        self.last = sequence;
        must(self.ended.is_none(), || {
            format!("record {sequence} of {path} follows the end of the run, {:?}", self.ended)
        })?;
        match &entry.event {
            Event::StepCreated(step) => {
                let attempts_max = step.retry.map_or(1, |retry| retry.max_attempts);
                let known = self.steps.insert(step.step_id.clone(), Step { attempts_max, ..Step::default() });
                must(known.is_none(), || format!("step {} of {path} is scheduled twice", step.step_id))
            }
            Event::StepStarted { step_id, attempt } => {
                let step = self.open(path, step_id)?;
                let so = *attempt == step.attempts + 1 && *attempt <= step.attempts_max;
                step.attempts = *attempt;
                let (max, until_ms, not_before) = (step.attempts_max, step.retry_at_ms, step.not_before);
                must(so, || format!("step {step_id} of {path} begins attempt {attempt}, of {max} at the most"))?;
                must(entry.at_ms >= until_ms && now.at + ROUNDING >= not_before, || {
                    format!(
                        "attempt {attempt} of {step_id} of {path} did not wait until {until_ms}, {not_before:?} here"
                    )
                })
            }
            Event::StepRetrying { step_id, attempt, retry_at_ms, .. } => {
                let step = self.open(path, step_id)?;
                step.retry_at_ms = *retry_at_ms;
                step.not_before = now.when(*retry_at_ms, entry.at_ms);
                must(*attempt == step.attempts && *attempt < step.attempts_max, || {
                    format!("attempt {attempt} of step {step_id} of {path} is to be followed by another one")
                })
            }
            Event::StepCompleted { step_id, .. } | Event::StepFailed { step_id, .. } => {
                self.open(path, step_id)?.is_over = true;
                Ok(())
            }
            Event::RunCompleted { .. }
            | Event::RunFailed { .. }
            | Event::RunRetryExhausted { .. }
            | Event::RunCancelled { .. }
            | Event::RunTimedOut { .. }
            | Event::RunContinued { .. } => {
                self.ended = Some(format!("{:?}", entry.event));
                let is_forced = matches!(entry.event, Event::RunCancelled { forced: true, .. });
                must(!is_forced || now.at_once, || format!("the run of {path} was not asked to clean up"))?;
                let open = self.steps.iter().find(|(_, step)| !step.is_over);
                must(open.is_none(), || format!("the run of {path} ends before its step {open:?}"))
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, path: &str, step_id: &str) -> Result<&mut Step, String> {
        match self.steps.get_mut(step_id) {
            None => Err(format!("step {step_id} of {path} was never scheduled")),
            Some(step) if step.is_over => Err(format!("step {step_id} of {path} is over and goes on")),
            Some(step) => Ok(step),
        }
    }
}

impl Watcher for Workflow {
    fn name(&self) -> &'static str {
        "workflow"
    }

    fn promise(&self) -> &'static str {
        "the log of a workflow tells one story, and each step once"
    }

    fn see(&mut self, at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => {
                let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
                self.ahead_ms = Some(entry.unix_ms.saturating_sub(at_ms));
                if let EventKind::ToolExecutionStart { args, .. } = &entry.event.kind {
                    self.at_once |= args.get("cancel_at_once").and_then(Value::as_bool).unwrap_or(false);
                }
                Ok(())
            }
            Sight::Logged { path, bytes, is_whole } => {
                let now = Now { at, at_once: self.at_once, ahead_ms: self.ahead_ms };
                let log = self.logs.entry((*path).to_owned()).or_default();
                log.refused = None;
                if !is_whole {
                    log.refused = Some(Box::new(log.clone()));
                }
                log.put(now, path, bytes)
            }
            Sight::LogCut { path, bytes } => {
                let log = self.logs.entry((*path).to_owned()).or_default();
                if let Some(before) = log.refused.take_if(|before| before.whole as u64 == *bytes) {
                    *log = *before;
                }
                log.bytes.truncate(log.whole);
                must(*bytes == log.whole as u64, || {
                    format!("{path} is cut to {bytes} bytes, and its records end at {}", log.whole)
                })
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _aftermath: &Aftermath) -> Result<(), String> {
        Ok(())
    }
}
