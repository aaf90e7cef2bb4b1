//! Stage 6: a person says yes to exactly what will run.
//!
//! The answer binds a digest of the final arguments and of the content that a write would change. When that
//! content is another one after the answer, the person is asked again. Nothing approves by a timer, and waiting
//! counts no tool time.

use std::io::Read as _;
use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden_actors::confirmations::Confirmations;
use toolwarden_actors::open_questions::{Answer, Patience, Question};
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::blocking::off_thread;
use toolwarden_tools::effects::files::{FileError, FileStamp, Files};
use toolwarden_tools::registry::Registered;
use toolwarden_tools::tool::Subject;
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::event::EventKind;
use crate::governance::hooks::Hooked;
use crate::governance::permission::{Permitted, allow, is_allowed};
use crate::proposal::{Passage, Passed};
use crate::refusal::Refusal;
use crate::scope::{Confirming, Scope};

/// How often a person is asked again about one call because what it would change had changed.
pub const ASKED_AGAIN_MAX: usize = 3;

/// Most bytes of a file that are hashed for the binding; of a larger one, size and time of change are bound.
const BOUND_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A call that may run as far as people are concerned.
pub(crate) struct Confirmed {
    passage: Box<Passage>,
    entry: Arc<Registered>,
}

/// Tells events while a call waits.
pub(crate) type Tell<'a> = &'a (dyn Fn(EventKind) + Send + Sync);

impl Confirmed {
    /// A call of a trusted host: it answers for the call itself. Every other call is given back.
    pub(crate) fn by_trusted_host(hooked: Hooked) -> Result<Self, Hooked> {
        if hooked.passage().origin.is_trusted() {
            let (passage, entry) = hooked.into_parts();
            Ok(Self { passage, entry })
        } else {
            Err(hooked)
        }
    }

    /// Asks a person when the stage before wants it.
    pub(crate) async fn ask(
        permitted: Permitted,
        scope: &Scope,
        confirmations: &Confirmations,
        cancel: &Cancellation,
        tell: Tell<'_>,
    ) -> Passed<Self> {
        let (passage, entry, question) = permitted.into_parts();
        let Some(reason) = question else { return Ok(Self { passage, entry }) };
        let patience = match scope.confirming {
            Confirming::Unavailable => {
                let why = format!("{reason}, and nobody can be asked in this session");
                let tool = passage.tool.clone();
                return passage.stop(Refusal::NotConfirmed { tool, why });
            }
            Confirming::RejectAfter(span) => Patience::RejectAfter(span),
            Confirming::Park => Patience::Park,
        };
        let mut asker = Asker { scope, confirmations, cancel, tell, patience, entry: &entry };
        // Boxed: a call that nobody is asked about keeps no room for a question.
        match Box::pin(asker.settle(&passage, reason)).await {
            Ok(()) => Ok(Self { passage, entry }),
            Err(refusal) => passage.stop(refusal),
        }
    }

    pub(crate) fn passage(&self) -> &Passage {
        &self.passage
    }

    pub(crate) fn entry(&self) -> &Arc<Registered> {
        &self.entry
    }

    pub(crate) fn into_parts(self) -> (Box<Passage>, Arc<Registered>) {
        (self.passage, self.entry)
    }
}

struct Asker<'a> {
    scope: &'a Scope,
    confirmations: &'a Confirmations,
    cancel: &'a Cancellation,
    tell: Tell<'a>,
    patience: Patience,
    entry: &'a Arc<Registered>,
}

impl Asker<'_> {
    async fn settle(&mut self, passage: &Passage, reason: String) -> Result<(), Refusal> {
        let tool = passage.tool.clone();
        let mut reason = reason;
        for _ in 0..=ASKED_AGAIN_MAX {
            let shown = self.binding(passage).await;
            let answer = self.ask_once(passage, &reason, shown.clone()).await;
            let (approved, words) = match &answer {
                Answer::Approved | Answer::ApprovedAlways => (true, None),
                Answer::Rejected { reason } => (false, reason.clone()),
                Answer::Cancelled(reason) => (false, Some(reason.to_string())),
                Answer::TimedOut => {
                    (self.tell)(EventKind::ConfirmationTimeout {
                        tool_id: passage.id.clone(),
                        action_taken: "rejected",
                    });
                    let why = "nobody answered in time. Ask the user before trying again".to_owned();
                    return Err(Refusal::NotConfirmed { tool, why });
                }
                Answer::Ambiguous => (false, Some("two questions had the same id, so neither was taken".to_owned())),
                Answer::Unavailable => (false, Some("nobody can be asked right now".to_owned())),
            };
            (self.tell)(EventKind::ConfirmationReceived {
                tool_id: passage.id.clone(),
                approved,
                reason: words.clone(),
            });
            if let Answer::Cancelled(reason) = answer {
                return Err(Refusal::Cancelled { tool, reason });
            }
            if !approved {
                let words = words.unwrap_or_else(|| "no reason was given".to_owned());
                let why = format!("{words}. Do not repeat this call unless the user asks for it");
                return Err(Refusal::NotConfirmed { tool, why });
            }
            if self.binding(passage).await != shown {
                reason = "what it would change has changed since it was approved".to_owned();
                continue;
            }
            if answer == Answer::ApprovedAlways {
                allow(self.scope, self.entry, passage);
            }
            return Ok(());
        }
        let why = format!("what it would change went on changing while it was asked about, {ASKED_AGAIN_MAX} times");
        Err(Refusal::NotConfirmed { tool, why })
    }

    /// Asks once; a call that a new grant covers while it waits needs no answer of its own.
    async fn ask_once(&self, passage: &Passage, reason: &str, digest: Digest) -> Answer {
        let mut grants = self.scope.grants.watch();
        let timeout_ms = match self.patience {
            Patience::RejectAfter(span) => Some(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
            Patience::Park => None,
        };
        let question = Question {
            id: passage.id.clone(),
            session: self.scope.root_session.clone(),
            tool: passage.tool.clone(),
            arguments: passage.arguments.clone(),
            digest: digest.clone(),
            reason: reason.to_owned(),
            patience: self.patience,
        };
        (self.tell)(EventKind::ConfirmationRequired {
            tool_id: passage.id.clone(),
            tool_name: passage.tool.clone(),
            args: passage.arguments.clone(),
            digest,
            reason: reason.to_owned(),
            timeout_ms,
        });
        let answer = self.confirmations.request(question, self.cancel);
        tokio::pin!(answer);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = grants.changed() => {
                    if is_allowed(self.scope, self.entry, passage) {
                        return Answer::Approved;
                    }
                }
            }
        }
    }

    /// The digest of what is shown to the person: the arguments, and the content that a write would change.
    async fn binding(&self, passage: &Passage) -> Digest {
        let mut contents = Vec::new();
        if let Subject::Paths { paths, write: true } = self.entry.tool.subject(&passage.arguments) {
            let files = Arc::clone(self.scope.workspace.files());
            let root = self.scope.workspace.display_root().to_owned();
            let hashed =
                off_thread(move || paths.iter().map(|path| content_mark(&*files, &root, path)).collect::<Vec<Value>>());
            contents = hashed.await.unwrap_or_default();
        }
        Digest::of_json(&json!({
            "tool": passage.tool.as_str(),
            "arguments": passage.arguments,
            "contents": contents,
        }))
    }
}

/// What a file is now, as far as a person was shown it.
fn content_mark(files: &dyn Files, root: &str, text: &str) -> Value {
    let Ok(path) = WorkspacePath::parse(text, root) else { return json!({ "path": text }) };
    let mark = match mark_of(files, &path) {
        Ok(mark) => mark,
        Err(FileError::NotFound { .. }) => "absent".to_owned(),
        Err(error) => error.to_string(),
    };
    // A link that was swapped while the person looked is another target.
    let target = files.canonical(&path).map_or_else(|error| error.to_string(), |path| path.to_string());
    json!({ "path": text, "target": target, "content": mark })
}

/// The digest of a file, or its stamp when it is large.
fn mark_of(files: &dyn Files, path: &WorkspacePath) -> Result<String, FileError> {
    let mut file = files.open(path)?;
    let FileStamp { identity, size_bytes, modified_unix_ns } = file.stat().stamp();
    if size_bytes > BOUND_BYTES_MAX {
        return Ok(format!("{size_bytes} bytes of {identity:?}, changed at {modified_unix_ns}"));
    }
    let mut bytes = Vec::new();
    // It may grow while it is read; then what was read is as good as any moment of it.
    let read = std::io::Read::take(&mut file, BOUND_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|source| FileError::Io { op: "read", path: path.to_string(), source })?;
    Ok(Digest::of(&bytes).to_string())
}
