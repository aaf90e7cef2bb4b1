//! The twins: the pretended side of every port, of the model, of the tools and of the person.
//!
//! Each file says in its header which faults it has. All that is not plain is a choice of [`crate::fate::Fate`].

pub mod blobs;
pub mod chore;
pub mod clock;
pub mod dispatch;
pub mod entropy;
pub mod files;
pub mod http;
pub mod logs;
pub mod model;
pub mod person;
pub mod pool;
pub mod processes;
pub mod resolver;
pub mod store;
pub mod watched;
