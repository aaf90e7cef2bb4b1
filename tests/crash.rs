//! Promise: `kill -9` at any instant loses nothing that was acknowledged, repeats no effect, and changes no answer;
//! a session goes on with what it was opened with, and tells what it had to put right.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests prepare and look at real files")]

#[path = "crash/calls.rs"]
mod calls;
#[path = "crash/damage.rs"]
mod damage;
#[path = "crash/deadly.rs"]
mod deadly;
#[path = "crash/files.rs"]
mod files;
#[path = "crash/matrix.rs"]
mod matrix;
#[path = "crash/setting.rs"]
mod setting;
#[path = "crash/story.rs"]
mod story;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;
#[path = "crash/workflow.rs"]
mod workflow;
