//! Promise: a bucket is a workspace like any other, as far as a store can give one: files are read, written by version
//! and searched; what a store cannot give is not offered.
//!
//! Against a real server that speaks S3, which `scripts/setup` installs under `target/`.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests prepare and look at real files")]

#[path = "object_store/server.rs"]
mod server;
#[path = "object_store/store.rs"]
mod store;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;
#[path = "object_store/tool.rs"]
mod tool;
