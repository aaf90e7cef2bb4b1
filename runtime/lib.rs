//! The deciding floor: sessions, governance, the route of every call, and the models that propose them.
//!
//! What holds state stands one floor below, what a tool is two floors below; this floor decides. Modules are
//! listed ground first, and a module imports only from those above its own line.

pub mod models;
