//! How a session goes on: its state out of snapshot and log, and its settings out of what was kept and what is asked.
//!
//! Settings that a host leaves out are inherited. Those that are pinned are refused when they are given and differ,
//! by name: a session whose rules changed under it would mix two sets of answers. Whatever had to be put right
//! (a torn end, damage, a snapshot that cannot be used) is in the [`Recovery`]; nothing is put right in silence.

use thiserror::Error;
use toolwarden_tools::effects::store::StoreError;
use toolwarden_tools::effects::store::record::{Damage, Recovered};
use toolwarden_tools::ids::SessionId;
use toolwarden_tools::workspace::WorkspaceCapabilities;

use crate::fact_book::{FactBookError, StoredFact};
use crate::facts::state::{Misplaced, State};
use crate::facts::{Fact, Settings};
use crate::policy::Rule;
use crate::settlement::projection_policy::ProjectionPolicy;
use crate::snapshot::{Snapshot, SnapshotError};

/// What was found when a session was opened again, and what was done about it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Facts that its state is the fold of.
    pub facts: u64,
    /// The position of the snapshot that they were folded from; 0 when all of them came from the log.
    pub from_snapshot: u64,
    /// Why the snapshot was not used, when there was one that could not be.
    pub snapshot_fault: Option<String>,
    /// Bytes of a fact that was cut while it was written; nobody was told that it was stored.
    pub torn_bytes: u64,
    /// What was put aside.
    pub damage: Option<Damage>,
    /// Calls that were under way and are not run again: the model is told that they were interrupted.
    pub interrupted_calls: Vec<String>,
    /// Child runs that ended with the process.
    pub interrupted_children: usize,
}

/// Where a session stands that was found in a store.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its state.
    pub state: State,
    /// How it came about.
    pub recovery: Recovery,
    /// The sequence of the first fact in its log.
    pub log_from: u64,
    /// Whether the log ends before the snapshot, so that it has to begin anew.
    pub log_is_short: bool,
}

/// Why a session cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ResumeError {
    /// The store said no.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The snapshot cannot be used, and the log does not hold everything.
    #[error("session {session} cannot go on: {source}")]
    Snapshot {
        /// Which session.
        session: SessionId,
        /// Why.
        source: SnapshotError,
    },
    /// A fact cannot be read.
    #[error("fact {sequence} of session {session} cannot be read ({message}); a newer toolwarden may have written it")]
    Fact {
        /// Which session.
        session: SessionId,
        /// Which fact.
        sequence: u64,
        /// Why.
        message: String,
    },
    /// A fact does not follow from those before it.
    #[error("the log of session {session} was changed: {source}")]
    Misplaced {
        /// Which session.
        session: SessionId,
        /// What is wrong.
        source: Misplaced,
    },
    /// There is nothing that says how the session was opened.
    #[error("session {session} holds no settings: it was never opened to the end; open a new one")]
    Blank {
        /// Which session.
        session: SessionId,
    },
    /// A setting that is pinned was given and differs.
    #[error(
        "session {session} was opened with {field} = {kept}, and cannot go on with {asked}; leave it out, or open a new session"
    )]
    Setting {
        /// Which session.
        session: SessionId,
        /// Which setting.
        field: &'static str,
        /// What it is.
        kept: String,
        /// What was asked for.
        asked: String,
    },
    /// A setting cannot be inherited: the host has to give it again.
    #[error("session {session} was opened with {field} = {kept}, which cannot be made out of its words; give it again")]
    Missing {
        /// Which session.
        session: SessionId,
        /// Which setting.
        field: &'static str,
        /// What it is.
        kept: String,
    },
    /// What happens on the way cannot be stored.
    #[error(transparent)]
    Facts(#[from] FactBookError),
    /// The runtime keeps nothing.
    #[error("this runtime has no store; give it one when it is built")]
    NoStore,
}

/// Folds what was found in a store. A log that ends before the snapshot, or a snapshot that cannot be used, is
/// refused unless damage is accepted.
///
/// # Errors
/// [`ResumeError`].
pub fn fold(session: &SessionId, found: Recovered, accepts_damage: bool) -> Result<Found, ResumeError> {
    let mut recovery = Recovery { torn_bytes: found.torn_bytes, damage: found.damage, ..Recovery::default() };
    let first = found.log.first_sequence();
    let last = found.log.last_sequence();
    let snapshot = found.snapshot.map(|bytes| Snapshot::read(bytes, session));
    let snapshot = snapshot.map(|read| read.and_then(|snapshot| Ok((snapshot.state()?, snapshot.head))));
    let (mut state, mut log_from) = (State::default(), 1);
    let mut log_is_short = false;
    match snapshot {
        None if first.is_none_or(|first| first == 1) => {}
        None => {
            let reason = "it is missing, and the log does not begin with the first fact".to_owned();
            return Err(ResumeError::Snapshot { session: session.clone(), source: SnapshotError::Damaged { reason } });
        }
        Some(Ok((kept, head))) => {
            // A log that was forked has nothing before the snapshot, and needs nothing there.
            let reaches = last.unwrap_or(head.log_from - 1);
            log_is_short = reaches < head.position;
            if log_is_short && !accepts_damage {
                return Err(short_log(session, reaches, head.position));
            }
            // One that was cut goes with a snapshot that holds what is gone.
            if first.is_some_and(|first| first > head.position + 1) {
                let reason = format!(
                    "it holds {} facts, and the log begins with fact {}; the snapshot that goes with this log is missing",
                    head.position,
                    first.unwrap_or_default()
                );
                let source = SnapshotError::Damaged { reason };
                return Err(ResumeError::Snapshot { session: session.clone(), source });
            }
            (recovery.from_snapshot, log_from) = (head.position, head.log_from);
            state = kept;
        }
        // All of it is in the log.
        Some(Err(error @ SnapshotError::Damaged { .. })) if first == Some(1) => {
            recovery.snapshot_fault = Some(error.to_string());
        }
        Some(Err(source)) => return Err(ResumeError::Snapshot { session: session.clone(), source }),
    }
    for (sequence, bytes) in found.log.iter() {
        if sequence <= state.position {
            continue;
        }
        let read: Result<StoredFact<Fact>, _> = serde_json::from_slice(bytes);
        let fact = read.map_err(|error| {
            let message = error.to_string();
            ResumeError::Fact { session: session.clone(), sequence, message }
        })?;
        let taken = state.apply(fact.fact);
        taken.map_err(|source| ResumeError::Misplaced { session: session.clone(), source })?;
    }
    if log_is_short {
        log_from = state.position + 1;
    }
    recovery.facts = state.position;
    Ok(Found { state, recovery, log_from, log_is_short })
}

fn short_log(session: &SessionId, reaches: u64, position: u64) -> ResumeError {
    let reason = "the log ends before the snapshot does";
    let missing = position - reaches;
    ResumeError::Store(StoreError::Damaged {
        session: session.clone(),
        whole: reaches,
        offset: 0,
        bytes: missing,
        reason,
    })
}

/// What of the pinned settings a host gives when it opens a session again.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The folder, as it is shown to people.
    pub workspace: Option<String>,
    /// What may be done there.
    pub capabilities: Option<WorkspaceCapabilities>,
    /// Who the session works as.
    pub agent: Option<String>,
    /// How outputs are projected.
    pub tool_result_transform_policy: Option<ProjectionPolicy>,
    /// The rules of the active skill.
    pub skill: Option<Vec<Rule>>,
    /// What the kernel keeps commands from, in words; `off` when nothing was said.
    pub sandbox: String,
}

/// Refuses a pinned setting that is given and differs.
///
/// # Errors
/// [`ResumeError::Setting`], naming the field.
pub fn check(session: &SessionId, kept: &Settings, asked: &Asked) -> Result<(), ResumeError> {
    let pin = |field: &'static str, differs: bool, kept: String, asked: String| match differs {
        true => Err(ResumeError::Setting { session: session.clone(), field, kept, asked }),
        false => Ok(()),
    };
    if let Some(workspace) = &asked.workspace {
        pin("workspace", *workspace != kept.workspace, kept.workspace.clone(), workspace.clone())?;
    }
    if let Some(capabilities) = &asked.capabilities {
        pin("capabilities", *capabilities != kept.capabilities, shown(&kept.capabilities), shown(capabilities))?;
    }
    if let Some(agent) = &asked.agent {
        pin("agent", *agent != kept.agent, kept.agent.clone(), agent.clone())?;
    }
    if let Some(policy) = &asked.tool_result_transform_policy {
        let own = &kept.tool_result_transform_policy;
        pin("tool_result_transform_policy", policy != own, shown(own), shown(policy))?;
    }
    if let Some(skill) = &asked.skill {
        pin("skill", Some(skill) != kept.skill.as_ref(), shown(&kept.skill), shown(skill))?;
    }
    // It cannot be made out of its words, and going on without it would let commands do more than before.
    if asked.sandbox == "off" && kept.sandbox != "off" {
        return Err(ResumeError::Missing { session: session.clone(), field: "sandbox", kept: kept.sandbox.clone() });
    }
    pin("sandbox", asked.sandbox != kept.sandbox, kept.sandbox.clone(), asked.sandbox.clone())?;
    Ok(())
}

fn shown(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}

#[cfg(test)]
mod tests;
