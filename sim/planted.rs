//! Planted faults of worlds: a part of the runtime's surroundings or one of its tools, broken in one way each.
//!
//! What `mutants` is for the machines, this is for worlds: each fault stands outside the shipped code, as something put
//! before a port or in the place of a tool, and says in which play it shows, which watcher must find it and within how
//! many seeds. A test holds all of them to it. A scenario file for the world may name one as `mutant`.

mod broken;
mod disk;
mod line;
mod net;
mod object;
mod remote;
mod script;
mod store;

use std::sync::Arc;

use toolwarden::models::Model;
use toolwarden_tools::effects::dispatch::Dispatch;
use toolwarden_tools::effects::files::Files;
use toolwarden_tools::effects::http::Http;
use toolwarden_tools::effects::store::Store;
use toolwarden_tools::tool::Tool;

use crate::twins::files::PretendedFiles;
use crate::twins::model::Tap;
use crate::twins::store::PretendedStore;

/// A deliberate fault, and what is known of its discovery.
#[derive(Clone, Copy)]
pub struct Planted {
    /// Its name in scenario files.
    pub name: &'static str,
    /// What is broken.
    pub about: &'static str,
    /// A shipped play in which it shows.
    pub scenario: &'static str,
    /// The name of the watcher that finds it.
    pub watcher: &'static str,
    /// It is found within so many seeds.
    pub seeds_max: u64,
    /// Where it is put.
    pub wrap: Wrap,
}

/// Where a fault is put.
#[derive(Clone, Copy)]
pub enum Wrap {
    /// Before the files.
    Files(fn(PretendedFiles) -> Arc<dyn Files>),
    /// Before the network.
    Http(fn(Arc<dyn Http>) -> Arc<dyn Http>),
    /// Before the store of sessions.
    Store(fn(Arc<PretendedStore>) -> Arc<dyn Store>),
    /// Before the host elsewhere.
    Dispatch(fn(Arc<dyn Dispatch>) -> Arc<dyn Dispatch>),
    /// Before the model.
    Model(fn(Arc<dyn Model>) -> Arc<dyn Model>),
    /// Between the reader of a protocol and its line.
    Line(Tap),
    /// In the place of a tool, under a name of its own.
    Tool {
        /// Which.
        of: &'static str,
        /// The broken one.
        make: fn() -> Arc<dyn Tool>,
    },
}

impl std::fmt::Debug for Planted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Planted").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All of them.
pub fn all() -> impl Iterator<Item = Planted> {
    disk::DISK
        .into_iter()
        .chain(net::NET)
        .chain(line::LINE)
        .chain(object::OBJECT)
        .chain(remote::REMOTE)
        .chain(script::SCRIPT)
        .chain(store::STORE)
}

/// The one of this name.
pub fn named(name: &str) -> Option<Planted> {
    all().find(|planted| planted.name == name)
}
