//! The deciding floor: sessions, governance, the route of every call, and the models that propose them.
//!
//! What holds state stands one floor below, what a tool is two floors below; this floor decides. Modules are
//! listed ground first, and a module imports only from those above its own line. Embedders start at
//! [`Runtime::builder`] and may import [`prelude`].

pub mod content_adapter;

pub mod call_result;
pub mod command_output;
pub mod lanes;
pub mod models;
pub mod origin;
pub mod policy;
pub mod run_status;
pub mod session_span;
pub mod settlement;
pub mod shell;
pub mod task_limits;

pub mod structured;
pub mod verification;

pub mod event;
pub mod hook;
pub mod permission;
pub mod refusal;

pub mod facts;

pub mod fact_book;
pub mod snapshot;

pub mod resume;

pub mod grant_book;
mod guarded_files;
pub mod proposal;
pub mod skill_limits;
pub mod task_book;

pub mod scope;

pub mod governance;

pub mod kernel;

pub mod agent;

pub mod run;

mod keeper;

pub mod delegation;
pub mod session;

mod supervision_tree;

pub mod embedding;

pub mod child_host;
pub mod evaluation;

pub mod prelude;

pub use embedding::Runtime;
