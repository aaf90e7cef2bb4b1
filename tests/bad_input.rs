//! Promise: bad input is a clear typed error with exactly one ending, and leaves nothing running.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests prepare and look at real files")]

#[path = "bad_input/argument.rs"]
mod argument;
#[path = "bad_input/model.rs"]
mod model;
#[path = "bad_input/path.rs"]
mod path;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;
#[path = "bad_input/tool.rs"]
mod tool;
#[path = "bad_input/workspace.rs"]
mod workspace;
