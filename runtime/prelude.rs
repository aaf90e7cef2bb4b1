//! What an embedder usually imports: `use toolwarden::prelude::*;`.

pub use toolwarden_actors::budget::BudgetLimits;
pub use toolwarden_actors::journal::Reading;
pub use toolwarden_actors::open_questions::Reply;
pub use toolwarden_tools::background::{BackgroundRead, BackgroundStatus, ReadFrom};
pub use toolwarden_tools::cancellation::CancelReason;
pub use toolwarden_tools::context::ToolContext;
pub use toolwarden_tools::declaration::Capabilities;
pub use toolwarden_tools::effects::processes::Leftover;
pub use toolwarden_tools::effects::processes::confinement::{Confinement, FileAccess};
pub use toolwarden_tools::effects::processes::containment::CommandLimits;
pub use toolwarden_tools::outcome::{ToolErrorKind, ToolOutcome};
pub use toolwarden_tools::tool::{Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
pub use toolwarden_tools::workspace::WorkspaceCapabilities;

pub use crate::call_result::CallResult;
pub use crate::embedding::Runtime;
pub use crate::event::{Event, EventKind};
pub use crate::policy::PermissionPolicy;
pub use crate::run::{RunLimits, RunOutcome};
pub use crate::run_status::RunStatus;
pub use crate::scope::Confirming;
pub use crate::session::{CancelTarget, Session, SessionError};
pub use crate::task_book::{SubagentStatus, SubagentTask};
pub use crate::task_limits::TaskLimits;
