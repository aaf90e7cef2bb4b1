//! Scenarios: readable files that say what is simulated, and what each of them looks for.
//!
//! A file names its driver and then holds what that driver reads; whatever is left out has the driver's own variety.
//! It is checked when it is loaded: a word that is not known, a size out of bounds or a mutant that does not exist is
//! told with file, line and what to do, and never taken for something near it. A file may hold the choices of one run,
//! which is how a case that was made small is kept.

pub mod shipped;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::mutants;
use crate::play::Play;
use crate::seed::Choices;
use crate::stage::check;
use crate::staleness::{STEPS_MAX, Staleness, planted};
use crate::workload::{
    Behaviour, Bodies, CANCELS_MAX, COUNT_MAX, Cancel, DEPTH_MAX, Faults, Limits, Mix, Person, SPAN_MS_MAX, Shape,
    WEIGHT_MAX, Workload,
};

/// Longest scenario file, in bytes; choices are most of a long one.
pub const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Most nodes that an exact tree may have.
pub const NODES_MAX: u64 = 4_096;

/// What is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name: lower-case words and digits, joined by `-`.
    pub name: String,
    /// What it looks for, in a line.
    pub about: String,
    /// What its driver reads.
    pub plan: Plan,
    /// The choices of the one run that it is; drawn from a seed when there are none.
    pub choices: Option<Vec<u32>>,
}

/// What a driver reads.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// The machines under our own schedule.
    Machines(Box<Workload>),
    /// The shipped runtime in a pretended world.
    World(Box<Play>),
    /// The shipped index of searches beside edits.
    Index(Box<Staleness>),
}

/// Who runs a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// The machines under our own schedule, in virtual time.
    Machines,
    /// The shipped runtime on paused time, with twins for everything around it.
    World,
    /// The shipped index and the shipped search, over files whose changes are told by a twin.
    Index,
}

impl Driver {
    /// Its name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Machines => "machines",
            Self::World => "world",
            Self::Index => "index",
        }
    }
}

/// A scenario file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: {message}")]
pub struct ScenarioError {
    /// The file, as it was named.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

/// What every file begins with; the rest is the driver's.
#[derive(Debug, Deserialize)]
struct Head {
    driver: Driver,
}

/// A file for the machines, as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachinesFile {
    name: String,
    about: String,
    driver: Driver,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mutant: Option<String>,
    #[serde(default, skip_serializing_if = "is_usual")]
    person: Person,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    choices: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "is_usual")]
    tree: Shape,
    #[serde(default, skip_serializing_if = "is_usual")]
    limits: Limits,
    #[serde(default, skip_serializing_if = "is_usual")]
    bodies: Bodies,
    #[serde(default, skip_serializing_if = "is_usual")]
    faults: Faults,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calls: Option<BTreeMap<Behaviour, u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leaves: Option<BTreeMap<Behaviour, u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commands: Option<BTreeMap<Behaviour, u32>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cancel: Vec<Cancel>,
}

/// A file for a world, as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorldFile {
    name: String,
    about: String,
    driver: Driver,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    choices: Option<Vec<u32>>,
    world: Play,
}

/// A file for the index, as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexFile {
    name: String,
    about: String,
    driver: Driver,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    choices: Option<Vec<u32>>,
    #[serde(default)]
    index: Staleness,
}

impl Scenario {
    /// Reads a scenario; `file` names it in errors.
    ///
    /// # Errors
    /// [`ScenarioError`].
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let at = |line: usize, message: String| ScenarioError { file: file.to_owned(), line, message };
        if text.len() > FILE_BYTES_MAX {
            return Err(at(1, format!("it has {} bytes, and {FILE_BYTES_MAX} are the most", text.len())));
        }
        let malformed = |error: toml::de::Error| {
            let line = line_at(text, error.span().map_or(0, |span| span.start));
            at(line, format!("{}; `toolwarden sim list` shows scenarios to begin from", error.message().trim()))
        };
        let head: Head = toml::from_str(text).map_err(malformed)?;
        match head.driver {
            Driver::Machines => {
                let read: MachinesFile = toml::from_str(text).map_err(malformed)?;
                checked(&read).map_err(|fault| at(line_of(text, fault.section, fault.key), fault.message))?;
                Ok(read.into())
            }
            Driver::World => {
                let WorldFile { name, about, choices, world, .. } = toml::from_str(text).map_err(malformed)?;
                let checked = checked_name(&name).and_then(|()| checked_about(&about));
                checked.map_err(|fault| at(line_of(text, fault.section, fault.key), fault.message))?;
                // Its own message names the line within the turns or the policy.
                check(&world).map_err(|error| at(line_of(text, "world", ""), error.to_string()))?;
                Ok(Self { name, about, plan: Plan::World(Box::new(world)), choices })
            }
            Driver::Index => {
                let IndexFile { name, about, choices, index, .. } = toml::from_str(text).map_err(malformed)?;
                let checked = checked_name(&name).and_then(|()| checked_about(&about));
                let checked = checked.and_then(|()| checked_index(&index));
                checked.map_err(|fault| at(line_of(text, fault.section, fault.key), fault.message))?;
                Ok(Self { name, about, plan: Plan::Index(Box::new(index)), choices })
            }
        }
    }

    /// Its text as a file.
    ///
    /// # Errors
    /// When it cannot be written as TOML, which would be a bug.
    pub fn to_text(&self) -> Result<String, toml::ser::Error> {
        match &self.plan {
            Plan::Machines(workload) => toml::to_string(&MachinesFile::new(self, workload)),
            Plan::World(play) => toml::to_string(&WorldFile {
                name: self.name.clone(),
                about: self.about.clone(),
                driver: Driver::World,
                choices: self.choices.clone(),
                world: Play::clone(play),
            }),
            Plan::Index(index) => toml::to_string(&IndexFile {
                name: self.name.clone(),
                about: self.about.clone(),
                driver: Driver::Index,
                choices: self.choices.clone(),
                index: Staleness::clone(index),
            }),
        }
    }

    /// Who runs it.
    pub fn driver(&self) -> Driver {
        match &self.plan {
            Plan::Machines(_) => Driver::Machines,
            Plan::World(_) => Driver::World,
            Plan::Index(_) => Driver::Index,
        }
    }

    /// The choices of a run: its own, when it has some, else those that are drawn from the seed.
    pub fn choices(&self, seed: u64) -> Choices {
        match &self.choices {
            Some(list) => Choices::from_list(list.clone()),
            None => Choices::from_seed(seed),
        }
    }

    /// What the machines are given, when they run it.
    pub fn workload(&self) -> Option<&Workload> {
        match &self.plan {
            Plan::Machines(workload) => Some(workload),
            Plan::World(_) | Plan::Index(_) => None,
        }
    }
}

impl From<MachinesFile> for Scenario {
    fn from(read: MachinesFile) -> Self {
        let mix = |given: Option<BTreeMap<Behaviour, u32>>, all: fn() -> Mix| given.map_or_else(all, Mix::new);
        let workload = Workload {
            tree: read.tree,
            limits: read.limits,
            bodies: read.bodies,
            calls: mix(read.calls, Mix::calls),
            leaves: mix(read.leaves, Mix::leaves),
            commands: mix(read.commands, Mix::commands),
            person: read.person,
            faults: read.faults,
            cancel: read.cancel,
            mutant: read.mutant,
        };
        Self { name: read.name, about: read.about, plan: Plan::Machines(Box::new(workload)), choices: read.choices }
    }
}

impl MachinesFile {
    fn new(scenario: &Scenario, workload: &Workload) -> Self {
        let weights = |mix: &Mix, all: fn() -> Mix| {
            (*mix != all()).then(|| mix.weights().iter().copied().collect::<BTreeMap<_, _>>())
        };
        Self {
            name: scenario.name.clone(),
            about: scenario.about.clone(),
            driver: Driver::Machines,
            mutant: workload.mutant.clone(),
            person: workload.person,
            choices: scenario.choices.clone(),
            tree: workload.tree,
            limits: workload.limits,
            bodies: workload.bodies.clone(),
            faults: workload.faults.clone(),
            calls: weights(&workload.calls, Mix::calls),
            leaves: weights(&workload.leaves, Mix::leaves),
            commands: weights(&workload.commands, Mix::commands),
            cancel: workload.cancel.clone(),
        }
    }
}

/// Whether a part of a file says nothing that is not so without it.
fn is_usual<T: Default + PartialEq>(part: &T) -> bool {
    *part == T::default()
}

/// What does not fit, and where it stands.
struct Fault {
    section: &'static str,
    key: &'static str,
    message: String,
}

fn fault(section: &'static str, key: &'static str, message: impl Into<String>) -> Fault {
    Fault { section, key, message: message.into() }
}

fn within(section: &'static str, key: &'static str, value: u64, least: u64, most: u64) -> Result<(), Fault> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(fault(section, key, format!("{key} is {value}, and has to be between {least} and {most}")))
}

fn checked(file: &MachinesFile) -> Result<(), Fault> {
    checked_name(&file.name)?;
    checked_about(&file.about)?;
    if let Some(name) = &file.mutant
        && mutants::named(name).is_none()
    {
        let known: Vec<&str> = mutants::all().map(|mutant| mutant.name).collect();
        return Err(fault("", "mutant", format!("there is no mutant {name:?}; there are {}", known.join(", "))));
    }
    checked_tree(&file.tree)?;
    checked_limits(&file.limits)?;
    let Bodies { manners, graces_ms, .. } = &file.bodies;
    if manners.is_empty() || graces_ms.is_empty() {
        return Err(fault(
            "bodies",
            "manners",
            "manners and graces_ms need at least one thing each; or leave them out",
        ));
    }
    graces_ms.iter().try_for_each(|grace| within("bodies", "graces_ms", *grace, 0, SPAN_MS_MAX))?;
    within("faults", "until_ms", file.faults.until_ms, 0, file.limits.close_at_ms)?;
    checked_mix("calls", file.calls.as_ref(), false)?;
    checked_mix("leaves", file.leaves.as_ref(), false)?;
    checked_mix("commands", file.commands.as_ref(), true)?;
    within("", "cancel", file.cancel.len() as u64, 0, CANCELS_MAX as u64)?;
    file.cancel.iter().try_for_each(|cancel| within("[cancel]", "at_ms", cancel.at_ms, 0, SPAN_MS_MAX))
}

fn checked_index(index: &Staleness) -> Result<(), Fault> {
    within("index", "steps", u64::from(index.steps), 1, u64::from(STEPS_MAX))?;
    match index.mutant.as_deref().filter(|name| planted::named(name).is_none()) {
        Some(name) => {
            let known: Vec<&str> = planted::ALL.iter().map(|planted| planted.name).collect();
            let message = format!("there is no mutant {name:?} for the index; there are {}", known.join(", "));
            Err(fault("index", "mutant", message))
        }
        None => Ok(()),
    }
}

fn checked_name(name: &str) -> Result<(), Fault> {
    let fits = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if fits && !name.is_empty() && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let message = format!("the name {name:?} has to be 1 to {NAME_BYTES_MAX} of a-z, 0-9 and -");
    Err(fault("", "name", message))
}

fn checked_about(about: &str) -> Result<(), Fault> {
    match about.trim().is_empty() {
        true => Err(fault("", "about", "about is empty; say in a line what the scenario looks for")),
        false => Ok(()),
    }
}

fn checked_tree(tree: &Shape) -> Result<(), Fault> {
    let most = u64::from(COUNT_MAX);
    for (key, value) in [
        ("sessions", tree.sessions),
        ("runs", tree.runs),
        ("calls", tree.calls),
        ("members", tree.members),
        ("width", tree.width),
    ] {
        within("tree", key, u64::from(value), 1, most)?;
    }
    within("tree", "depth", u64::from(tree.depth), 0, u64::from(DEPTH_MAX))?;
    // A call of the lowest level may have two commands, one above it a fan-out with its members.
    let below = (1..tree.depth).fold(3_u64, |below, _| u64::from(tree.members).saturating_mul(below).saturating_add(2));
    let calls = u64::from(tree.sessions) * u64::from(tree.runs) * u64::from(tree.calls);
    if tree.exact && calls.saturating_mul(below) > NODES_MAX {
        let message = format!("the tree may get more than {NODES_MAX} nodes; take fewer calls, members or levels");
        return Err(fault("tree", "exact", message));
    }
    Ok(())
}

fn checked_limits(limits: &Limits) -> Result<(), Fault> {
    within("limits", "permits", u64::from(limits.permits), 1, u64::from(COUNT_MAX))?;
    within("limits", "queue_max", u64::from(limits.queue_max), 0, 65_536)?;
    within("limits", "sync_ms_max", limits.sync_ms_max, 0, 60_000)?;
    within("limits", "close_at_ms", limits.close_at_ms, 0, SPAN_MS_MAX)
}

fn checked_mix(section: &'static str, mix: Option<&BTreeMap<Behaviour, u32>>, are_commands: bool) -> Result<(), Fault> {
    let Some(mix) = mix else { return Ok(()) };
    if mix.values().all(|weight| *weight == 0) {
        return Err(fault(section, "", format!("[{section}] gives nothing a weight; name one thing, or leave it out")));
    }
    if mix.values().any(|weight| *weight > WEIGHT_MAX) {
        return Err(fault(section, "", format!("a weight in [{section}] is above {WEIGHT_MAX}")));
    }
    if let Some(odd) = mix.keys().find(|behaviour| are_commands && !behaviour.fits_command()) {
        return Err(fault(section, "", format!("a command starts nothing, so {odd:?} is not for [{section}]")));
    }
    Ok(())
}

/// The line of a byte, counted from 1.
fn line_at(text: &str, at: usize) -> usize {
    1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
}

/// The line on which a key of a section stands, or else the section, or else the first.
fn line_of(text: &str, section: &str, key: &str) -> usize {
    let (mut current, mut begins) = (String::new(), 1);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            header.clone_into(&mut current);
            if current == section {
                begins = at + 1;
            }
        }
        let named = line.split('=').next().is_some_and(|name| name.trim() == key);
        if current == section && named {
            return at + 1;
        }
    }
    begins
}

#[cfg(test)]
mod tests;
