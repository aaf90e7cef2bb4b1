//! Promise: work beside work ends, in the order asked, within its width, its budget and its parent's rules.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests prepare and look at real files")]

#[path = "fan_out/agent.rs"]
mod agent;
#[path = "fan_out/background.rs"]
mod background;
#[path = "fan_out/batch.rs"]
mod batch;
#[path = "fan_out/child.rs"]
mod child;
#[path = "fan_out/dispatch.rs"]
mod dispatch;
#[path = "fan_out/kept.rs"]
mod kept;
#[path = "fan_out/limit.rs"]
mod limit;
#[path = "fan_out/memory.rs"]
mod memory;
#[path = "fan_out/program.rs"]
mod program;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;
#[path = "fan_out/task.rs"]
mod task;
#[path = "fan_out/tree.rs"]
mod tree;
#[path = "fan_out/workflow.rs"]
mod workflow;
