//! An object is given when it fits its schema and never otherwise; views of it only grow, at their pace; and what it took is
//! within the rounds and the time that were allowed.
//!
//! What is watched are calls that hold a schema and a prompt, whatever their tool is called: from the journal, and from
//! what the model was asked. Rounds are counted by how long the conversation was, so that an attempt that is made again is
//! no round. An answer of a task that was asked for in a form is watched too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Value};
use toolwarden::event::EventKind;
use toolwarden_tools::generation::{REPAIRS_DEFAULT, TIMEOUT_MS_DEFAULT};
use toolwarden_tools::schema::Schema;

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// The least time between two views.
const VIEW_INTERVAL: Duration = Duration::from_millis(100);
/// How long a call may take beyond the time of its rounds: to be settled and told.
const SETTLE_MAX: Duration = Duration::from_secs(2);

/// The calls that are to give an object.
#[derive(Debug, Default)]
pub struct Objects {
    /// Those under way, by session and id.
    open: BTreeMap<(String, String), Call>,
    /// The forms of answers that tasks under way are to give.
    forms: BTreeMap<(String, String), Schema>,
    /// What was asked for by calls that have ended, by session.
    over: BTreeSet<(String, String)>,
    /// What models were asked for by no call that is known: a call that only reads is told together with what it does.
    early: Vec<Asked>,
}

/// A model was asked.
#[derive(Debug)]
struct Asked {
    at: Duration,
    session: String,
    prompt: String,
    messages: usize,
}

impl Objects {
    /// A call begins, for which a model may have been asked already.
    fn begin(&mut self, key: (String, String), mut call: Call) -> Result<(), String> {
        self.over.remove(&(key.0.clone(), call.prompt.clone()));
        let its = |asked: &mut Asked| asked.session == key.0 && asked.prompt.starts_with(call.prompt.as_str());
        let early: Vec<Asked> = self.early.extract_if(.., its).collect();
        for asked in early {
            call.asked(asked.at, asked.messages)?;
        }
        self.open.insert(key, call);
        Ok(())
    }
}

/// A call under way.
#[derive(Debug)]
struct Call {
    prompt: String,
    schema: Schema,
    repairs_max: u64,
    timeout: Duration,
    /// When the model was asked first.
    asked_at: Option<Duration>,
    /// How long the conversation was in each round.
    rounds: BTreeSet<usize>,
    /// The line of views that is not whole yet.
    line: String,
    /// The last view of the stream under way.
    view: Option<Value>,
    viewed_at: Option<Duration>,
    /// The object that was told as the last view.
    last: Option<Value>,
}

impl Call {
    /// What these arguments ask for; none when they ask for no object, or for one that cannot be asked for.
    fn of(arguments: &Value) -> Option<Self> {
        let schema = arguments.get("schema").filter(|schema| schema.is_object())?;
        let number = |key: &str, usual: u64| arguments.get(key).and_then(Value::as_u64).unwrap_or(usual);
        Some(Self {
            prompt: arguments.get("prompt")?.as_str()?.to_owned(),
            schema: Schema::compile(schema).ok()?,
            repairs_max: number("max_repair_attempts", u64::from(REPAIRS_DEFAULT)),
            timeout: Duration::from_millis(number("timeout_ms", TIMEOUT_MS_DEFAULT)),
            asked_at: None,
            rounds: BTreeSet::new(),
            line: String::new(),
            view: None,
            viewed_at: None,
            last: None,
        })
    }

    /// The model is asked, for the first time or again.
    fn asked(&mut self, at: Duration, messages: usize) -> Result<(), String> {
        self.asked_at.get_or_insert(at);
        self.rounds.insert(messages);
        // What is shown of an attempt is void when the next one begins.
        self.view = None;
        let (rounds, rounds_max) = (self.rounds.len() as u64, self.repairs_max + 1);
        must(rounds <= rounds_max, || {
            format!("{:?} is asked for in round {rounds}; there may be {rounds_max}", self.prompt)
        })
    }

    fn shown(&mut self, at: Duration, delta: &str) -> Result<(), String> {
        self.line.push_str(delta);
        while let Some(end) = self.line.find('\n') {
            let line: String = self.line.drain(..=end).collect();
            let view: Value = serde_json::from_str(&line).map_err(|error| format!("a view is no JSON: {error}"))?;
            self.looked_at(at, view)?;
        }
        Ok(())
    }

    fn looked_at(&mut self, at: Duration, mut view: Value) -> Result<(), String> {
        must(self.last.is_none(), || format!("a view of {:?} comes after the last one", self.prompt))?;
        let is_last = view.get("final") == Some(&Value::Bool(true));
        let object = view.get_mut("object_partial").map(Value::take);
        if is_last {
            self.last = object;
            return must(self.last.is_some(), || "the last view holds no object".to_owned());
        }
        let since = self.viewed_at.map(|viewed_at| at.saturating_sub(viewed_at));
        must(since.is_none_or(|since| since >= VIEW_INTERVAL), || {
            format!("two views of {:?} are {since:?} apart", self.prompt)
        })?;
        self.viewed_at = Some(at);
        let (Some(before), Some(now)) = (self.view.take(), &object) else {
            self.view = object;
            return Ok(());
        };
        must(grows(&before, now), || format!("a view of {:?} went from {before} to {now}", self.prompt))?;
        self.view = object;
        Ok(())
    }

    fn ended(&self, at: Duration, exit_code: i32, output: &str) -> Result<(), String> {
        let prompt = &self.prompt;
        if let Some(asked_at) = self.asked_at {
            let took = at.saturating_sub(asked_at);
            must(took <= self.timeout + SETTLE_MAX, || format!("{prompt:?} took {took:?} of {:?}", self.timeout))?;
        }
        let given: Option<Map<String, Value>> = serde_json::from_str(output).ok();
        let object = given.as_ref().and_then(|given| given.get("object"));
        if exit_code != 0 {
            must(self.last.is_none(), || format!("{prompt:?} failed, and an object was shown as the last one"))?;
            return must(object.is_none(), || format!("{prompt:?} failed, and gave {object:?}"));
        }
        let Some(object) = object else { return Err(format!("{prompt:?} gave no object: {output}")) };
        must(self.asked_at.is_some(), || format!("{prompt:?} gave an object of a model that was not asked"))?;
        self.schema
            .check(object)
            .map_err(|faults| format!("{prompt:?} gave {object}, which does not fit: {faults}"))?;
        must(self.last.as_ref() == Some(object), || {
            format!("{prompt:?} gave {object}, and its last view was {:?}", self.last)
        })?;
        let repairs = given.as_ref().and_then(|given| given.get("repair_rounds")?.as_u64());
        must(repairs.is_some_and(|repairs| repairs <= self.repairs_max), || {
            format!("{prompt:?} took {repairs:?} repairs of {}", self.repairs_max)
        })
    }
}

/// The form in which the answer of the one task is asked for.
fn form(arguments: &Value) -> Option<Schema> {
    Schema::compile(arguments.get("output_schema")?).ok()
}

/// Looks at the answer of a task in its form.
fn answered(form: &Schema, exit_code: i32, structured: Option<&Value>) -> Result<(), String> {
    let Some(structured) = structured else {
        return must(exit_code != 0, || "a task ended well without the form that was asked for".to_owned());
    };
    must(exit_code == 0, || format!("a task that failed gave {structured}"))?;
    form.check(structured).map_err(|faults| format!("a task gave {structured}, which does not fit: {faults}"))
}

/// Whether the later view says all that the earlier one did, and has at most more.
fn grows(before: &Value, now: &Value) -> bool {
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            before.iter().all(|(key, value)| now.get(key).is_some_and(|now| grows(value, now)))
        }
        (Value::Array(before), Value::Array(now)) => before.len() <= now.len() && now[..before.len()] == before[..],
        (Value::String(before), Value::String(now)) => now.starts_with(before.as_str()),
        (before, now) => before == now,
    }
}

impl Watcher for Objects {
    fn name(&self) -> &'static str {
        "objects"
    }

    fn promise(&self) -> &'static str {
        "an object is given only when it fits, in its rounds and its time"
    }

    fn see(&mut self, at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::AskedForObject { session, prompt, messages } => {
                let of = |(key, call): &(&(String, String), &mut Call)| {
                    key.0 == *session && prompt.starts_with(call.prompt.as_str())
                };
                if let Some((_, call)) = self.open.iter_mut().find(of) {
                    return call.asked(at, *messages);
                }
                let (session, prompt) = ((*session).to_owned(), (*prompt).to_owned());
                self.early.push(Asked { at, session, prompt, messages: *messages });
                Ok(())
            }
            Sight::Entry(entry) => {
                let key = |id: &str| (entry.event.session.as_str().to_owned(), id.to_owned());
                match &entry.event.kind {
                    EventKind::ToolExecutionStart { id, args, .. } => {
                        if let Some(call) = Call::of(args) {
                            return self.begin(key(id.as_str()), call);
                        } else if let Some(form) = form(args) {
                            self.forms.insert(key(id.as_str()), form);
                        }
                        Ok(())
                    }
                    EventKind::ToolOutputDelta { id, delta, .. } => match self.open.get_mut(&key(id.as_str())) {
                        Some(call) => call.shown(at, delta),
                        None => Ok(()),
                    },
                    EventKind::ToolEnd(result) => {
                        if let Some(form) = self.forms.remove(&key(result.id.as_str())) {
                            return answered(&form, result.exit_code, result.metadata.get("structured"));
                        }
                        let Some(call) = self.open.remove(&key(result.id.as_str())) else { return Ok(()) };
                        self.over.insert(key(&call.prompt));
                        call.ended(at, result.exit_code, &result.output)
                    }
                    _ => Ok(()),
                }
            }
            // What was under way has no ending, and may be asked for again.
            Sight::Crashed | Sight::JournalBroke => {
                self.open.clear();
                self.forms.clear();
                self.over.clear();
                self.early.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _aftermath: &Aftermath) -> Result<(), String> {
        let late = self.early.iter().find(|asked| {
            self.over
                .iter()
                .any(|(session, prompt)| asked.session == *session && asked.prompt.starts_with(prompt.as_str()))
        });
        must(late.is_none(), || format!("a model was asked, and the call that asked for it had ended: {late:?}"))
    }
}
