//! Promise: a download is exact or it is not there. Whatever a server does, whoever ends the call: the target holds the
//! source's bytes or what it held before, and nothing is left beside it.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests prepare and look at real files")]

#[path = "download/archive.rs"]
mod archive;
#[path = "download/ending.rs"]
mod ending;
#[path = "download/place.rs"]
mod place;
#[path = "download/proxy.rs"]
mod proxy;
#[path = "download/real_server.rs"]
mod real_server;
#[path = "download/safety.rs"]
mod safety;
#[path = "download/server.rs"]
mod server;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;
#[path = "download/transfer.rs"]
mod transfer;
