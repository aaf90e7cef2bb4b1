//! Reads the shipped mounts and writes them down again with places at which somebody else may go first.
//!
//! Three words change: shared numbers are shuttle's, a message is sent by `cast_at_any_moment`, and a timer of ractor's is
//! held by ractor's own handle. And some places are broken, while a test says so, to see that it is found. A word that is
//! not found where it was fails the build: nothing is searched that is not the shipped code.

#![expect(clippy::disallowed_methods, reason = "a build script reads the files that it writes down again")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The mounts, and what they stand on.
const MODULES: [&str; 28] = [
    "budget",
    "event_queue",
    "lease",
    "millisecond",
    "retention",
    "slot",
    "turnstile",
    "accounts",
    "child_spec",
    "circuit_breaker",
    "open_questions",
    "waiting_line",
    "permit_pool",
    "budget_ledger",
    "bulkhead",
    "confirmations",
    "journal",
    "node_machine",
    "node",
    "fan_out",
    "members",
    "fact_log",
    "restart_intensity",
    "child",
    "supervision_report",
    "supervision",
    "nursery",
    "supervisor",
];

/// What can be planted: out of which module, and what stands for what while it is. Each needs an order in which it shows.
const PLANTED: [(&str, &str, &str, &str); 10] = [
    // A permit that was taken in passing comes home to a line, and nobody is told.
    (
        "home-untold",
        "bulkhead",
        "(Homecoming::ToBeTold, None) => LaneMessage::Recount(then),",
        "(Homecoming::ToBeTold, None) if crate::planted::is(\"home-untold\") => return,\n            \
         (Homecoming::ToBeTold, None) => LaneMessage::Recount(then),",
    ),
    // Looks whether a permit is free, and takes it a moment later.
    (
        "looked-before",
        "bulkhead",
        "if self.shared.turnstile.pass() {",
        "let free = crate::planted::is(\"looked-before\") && !self.shared.turnstile.turns_away();\n        if free {\n            \
         self.shared.turnstile.lend();\n        }\n        if free || self.shared.turnstile.pass() {",
    ),
    // Bears a child after the cancel was passed on to all children.
    (
        "born-after-cancel",
        "node_machine",
        "if self.is_open() && self.children.len() < CHILDREN_MAX {",
        "if (self.is_open() || crate::planted::is(\"born-after-cancel\")) && self.children.len() < CHILDREN_MAX {",
    ),
    // Keeps the question of an asker that went away, while another one is open.
    (
        "withdrawal-lost",
        "confirmations",
        "ConfirmationMessage::Withdraw { ask } => self.questions.withdraw(ask),",
        "ConfirmationMessage::Withdraw { .. }\n                if crate::planted::is(\"withdrawal-lost\") \
         && self.questions.pending(&\"s\".into(), now).len() > 1 => {}\n            \
         ConfirmationMessage::Withdraw { ask } => self.questions.withdraw(ask),",
    ),
    // Tells a writer before the sink has what it wrote.
    (
        "told-before-stored",
        "journal",
        "JournalMessage::Append(event, told) => told.of(state.append(event)),",
        "JournalMessage::Append(event, told) if crate::planted::is(\"told-before-stored\") => {\n                \
         told.of(Ok(state.machine.sequence + 1));\n                drop(state.append(event));\n            }\n            \
         JournalMessage::Append(event, told) => told.of(state.append(event)),",
    ),
    // Is done when it ends early, whoever still runs.
    (
        "done-before-members",
        "fan_out",
        "if self.running == 0 {",
        "if self.running == 0 || (self.ended_early.is_some() && crate::planted::is(\"done-before-members\")) {",
    ),
    // Hands the store a batch while another one is under way.
    (
        "two-batches",
        "fact_log",
        "if self.under_way || self.waiting.is_empty() {",
        "if (self.under_way && !crate::planted::is(\"two-batches\")) || self.waiting.is_empty() {",
    ),
    // Answers a mark as soon as nothing waits, although a batch is under way.
    (
        "marked-early",
        "fact_log",
        "FactLogMessage::Mark(waiter) => {",
        "FactLogMessage::Mark(waiter)\n                if crate::planted::is(\"marked-early\") \
         && state.machine.waiting.is_empty() =>\n            {\n                drop(waiter.send(Ok(())));\n            }\n            \
         FactLogMessage::Mark(waiter) => {",
    ),
    // Does not count a restart that comes while another one is under way.
    (
        "restart-uncounted",
        "supervision",
        "if !self.window.admit(now) {",
        "if !(crate::planted::is(\"restart-uncounted\") && self.incarnations > 3) && !self.window.admit(now) {",
    ),
    // Stops the children in the order in which they were started.
    (
        "stopped-in-order",
        "supervision",
        "self.children.iter().rev().partition(|child| matches!(child.life, Life::Stopping(..)));",
        "self.children.iter().rev().partition(|child| {\n                matches!(child.life, Life::Stopping(..)) \
         || (crate::planted::is(\"stopped-in-order\") && child.terms.id.as_str() == \"first\")\n            });",
    ),
];

/// In every module: what stands for what.
const EVERYWHERE: [(&str, &str); 3] = [
    ("use std::sync::atomic::", "use shuttle::sync::atomic::"),
    (".cast(", ".cast_at_any_moment("),
    // The module's own child.
    ("mod alarm;", "mod alarm {\n    include!(concat!(env!(\"OUT_DIR\"), \"/alarm.rs\"));\n}"),
];

/// In one module.
const SOMEWHERE: [(&str, &str, &str); 9] = [
    // ractor's handle of a timer ends it by itself, without a second handle for that.
    ("confirmations", "use tokio::task::AbortHandle;", "use ractor::concurrency::JoinHandle;"),
    ("confirmations", "task: AbortHandle,", "task: JoinHandle<Result<(), ractor::MessagingErr<ConfirmationMessage>>>,"),
    ("confirmations", "task: task.abort_handle()", "task"),
    ("fact_log", "use tokio::task::JoinHandle;", "use ractor::concurrency::JoinHandle;"),
    ("fact_log", "if let Some(pause) = state.pause.take()", "if let Some(mut pause) = state.pause.take()"),
    ("nursery", "use tokio::task::AbortHandle;\n", ""),
    ("nursery", "struct Timer(AbortHandle);", "struct Timer(Option<Box<dyn FnOnce() + Send>>);"),
    (
        "nursery",
        "let timer = Timer(self.supervisor.send_after(after, wake).abort_handle());",
        "let mut timed = self.supervisor.send_after(after, wake);\n                \
         let timer = Timer(Some(Box::new(move || timed.abort())));",
    ),
    ("nursery", "        self.0.abort();\n", "        self.0.take().into_iter().for_each(|abort| abort());\n"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let actors = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../actors");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", actors.display());
    for module in MODULES {
        let text = read(&actors.join(format!("{module}.rs")))?;
        let mut text = seamed(&text);
        for (_, from, to) in SOMEWHERE.iter().filter(|(of, _, _)| *of == module) {
            text = replaced(module, &text, from, to)?;
        }
        for (_, _, from, to) in PLANTED.iter().filter(|(_, of, _, _)| *of == module) {
            text = replaced(module, &text, from, to)?;
        }
        fs::write(out.join(format!("{module}.rs")), &text)?;
    }
    let alarm = read(&actors.join("node/alarm.rs"))?;
    let locks = "use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};";
    let own = "use shuttle::sync::{Mutex, MutexGuard};\nuse std::sync::{Arc, PoisonError, Weak};";
    fs::write(out.join("alarm.rs"), replaced("node/alarm", &seamed(&alarm), locks, own)?)?;
    Ok(())
}

fn read(path: &Path) -> Result<String, Box<dyn Error>> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// The text with what changes everywhere, and its header as a plain comment: it is included into a module.
fn seamed(text: &str) -> String {
    let mut text = text.to_owned();
    for (from, to) in EVERYWHERE {
        text = text.replace(from, to);
    }
    let lines = text.lines().map(|line| line.strip_prefix("//!").map_or(line.to_owned(), |words| format!("//{words}")));
    let mut text = lines.collect::<Vec<_>>().join("\n");
    text.insert_str(0, "use crate::moment::CastAtAnyMoment as _;\n");
    text
}

/// The text with one place changed.
fn replaced(module: &str, text: &str, from: &str, to: &str) -> Result<String, Box<dyn Error>> {
    match text.matches(from).count() {
        1 => Ok(text.replacen(from, to, 1)),
        times => Err(format!(
            "actors/{module}.rs holds {times} times, and not once, what sim/interleavings/build.rs looks for: {from}\n=> \
             write there what stands in the module now"
        )
        .into()),
    }
}
