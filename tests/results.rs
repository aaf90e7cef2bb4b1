//! Promise: what a model saw can be proven afterwards, what a result refers to is there, and no secret is in it.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "what fails here fails the test, which looks at real files"
)]

#[path = "results/artifact.rs"]
mod artifact;
#[path = "results/evidence.rs"]
mod evidence;
#[path = "results/replay.rs"]
mod replay;
#[path = "results/retained.rs"]
mod retained;
#[path = "results/room.rs"]
mod room;
#[path = "results/secret.rs"]
mod secret;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;
#[path = "results/verification.rs"]
mod verification;
