//! Promise: every call passes one route, stage by stage, whoever wants it; it leaves evidence and ends once.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests prepare and look at real files")]

#[path = "route/hook.rs"]
mod hook;
#[path = "route/nesting.rs"]
mod nesting;
#[path = "route/refusal.rs"]
mod refusal;
#[path = "route/stage.rs"]
mod stage;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;
