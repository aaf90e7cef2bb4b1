//! Objects of a known form out of models: asked for, judged by their schema, mended in rounds.
//!
//! To end a run, or anything else that speaks with a model, with an object that fits a schema:
//!
//! 1. [`ObjectSchema::new`](candidate::ObjectSchema::new) takes the schema, or says why it cannot be used;
//! 2. [`ObjectSchema::find`](candidate::ObjectSchema::find) looks for the one fitting value in a text that is there
//!    already, such as the last words of a run; often nothing more is needed;
//! 3. else the model is asked: inside of a tool by the port `Generate` of its context, with a session's handle by
//!    [`Session::generate_object`](crate::session::Session::generate_object), and where neither is, as at the end of a
//!    child run, by [`ModelPort`](crate::kernel::model_port::ModelPort), which is such a port.
//!
//! All three take the same rounds ([`generation`]), within the budget of whom they are for and through the gate to
//! models. What must stay true: a schema reaches no file and no network, and what is given fits it.

pub mod schema_walk;

pub mod envelope;
pub mod mending;
pub mod optional_null;
pub mod schema_cost;
pub mod strict_schema;

pub mod candidate;
pub mod partial;

pub mod directive;

pub mod generation;
