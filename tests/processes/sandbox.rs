//! The sandbox of commands: what it keeps them from, tried in every way that comes to mind, and what it lets them do.
//!
//! Every attempt is made without a sandbox too, where that does no harm: one that fails anyway would prove nothing.

#[path = "sandbox/denial.rs"]
pub(crate) mod denial;
#[path = "sandbox/field.rs"]
mod field;
#[path = "sandbox/kernel.rs"]
pub(crate) mod kernel;
#[path = "sandbox/life.rs"]
pub(crate) mod life;
#[path = "sandbox/session.rs"]
pub(crate) mod session;
#[path = "sandbox/socket.rs"]
pub(crate) mod socket;
#[path = "sandbox/writing.rs"]
pub(crate) mod writing;
