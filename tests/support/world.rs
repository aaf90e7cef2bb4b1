//! A world: one folder, one runtime over it, the record of its events, and a mark on every process it starts.

use std::collections::BTreeMap;
use std::path::Path;

use tempfile::TempDir;
use toolwarden::embedding::session_builder::SessionBuilder;
use toolwarden::embedding::{Runtime, RuntimeBuilder};
use toolwarden::lanes::LaneLimits;
use toolwarden::policy::PermissionPolicy;
use toolwarden::session::Session;
use toolwarden_actors::permit_pool::BulkheadLimits;
use toolwarden_tools::tool::Lane;

use super::process::{MARK, living, unique_mark};
use super::record::Record;
use super::until;

pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) runtime: Runtime,
    pub(crate) record: Record,
    pub(crate) mark: String,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    pub(crate) async fn with(adjust: impl FnOnce(RuntimeBuilder) -> RuntimeBuilder) -> Self {
        let (record, mark) = (Record::new(), unique_mark());
        let path = ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned());
        let environment = BTreeMap::from([path, (MARK.to_owned(), mark.clone())]);
        let sink = record.clone();
        let builder = Runtime::builder().environment(environment).event_sink(move || Some(sink.sink()));
        let runtime = adjust(builder).build().await.unwrap();
        Self { folder: tempfile::tempdir().unwrap(), runtime, record, mark }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A session over the folder, to be adjusted and opened.
    pub(crate) fn session(&self) -> SessionBuilder {
        self.runtime.session(self.path())
    }

    pub(crate) async fn open(&self) -> Session {
        self.session().open().await.unwrap()
    }

    /// Waits until nothing is under way in these open sessions, and checks that everything is home, and that
    /// nothing is left on the machine.
    pub(crate) async fn at_rest(&self, open: &[&Session]) {
        self.settled(open).await;
        self.nothing_left().await;
    }

    /// Waits until nothing is under way in these open sessions, and checks that everything is home.
    pub(crate) async fn settled(&self, open: &[&Session]) {
        until("only the open sessions are left in the tree", async || {
            (self.runtime.live_nodes() == 1 + open.len()).then_some(())
        })
        .await;
        for lane in self.runtime.lanes().iter() {
            let status = lane.status().await.unwrap();
            assert_eq!((status.in_use, status.waiting), (0, 0), "lane {}: {status:?}", lane.lane());
        }
        for session in open {
            let budget = session.budget().await.unwrap();
            assert_eq!(budget.reserved, toolwarden_actors::budget::Amount::default(), "reserved in {}", session.id());
            assert!(session.active_tools().is_empty());
            assert!(session.pending_confirmations().await.unwrap().is_empty());
        }
        let status = self.runtime.journal_status().await.unwrap();
        assert_eq!((status.open_invocations, status.refused_endings), (0, 0), "{}", self.record.shown());
    }

    /// Checks what outlives a runtime: its record, processes, temp files.
    pub(crate) async fn nothing_left(&self) {
        self.record.check();
        assert_eq!(temp_files(self.path()), Vec::<String>::new());
        // A look at all processes takes longer than most tests.
        if self.record.of_type("tool_execution_start").iter().all(|line| line["name"] != "bash") {
            return;
        }
        let mark = &self.mark;
        until(&format!("the end of {:?}", living(mark)), async || living(mark).is_empty().then_some(())).await;
    }

    /// Shuts the runtime down and checks that nothing is left of it.
    pub(crate) async fn end(self) {
        self.runtime.shut_down().await;
        assert_eq!(self.runtime.live_nodes(), 0);
        self.nothing_left().await;
    }
}

/// Every lane lets one call through at a time.
pub(crate) fn narrow_lanes() -> LaneLimits {
    narrow_lanes_with(4096)
}

/// Every lane lets one call through at a time, and so many wait.
pub(crate) fn narrow_lanes_with(queue_max: usize) -> LaneLimits {
    let lanes = [Lane::Model, Lane::Control, Lane::Query, Lane::Execute, Lane::Network, Lane::Search, Lane::Browser];
    let narrow = BulkheadLimits { permits: 1, queue_max, breaker: None };
    lanes.into_iter().fold(LaneLimits::default(), |limits, lane| limits.with(lane, narrow))
}

/// A policy that allows everything these rules cover, and asks about the rest.
pub(crate) fn allowing(rules: &[&str]) -> PermissionPolicy {
    policy(&format!("allow = {rules:?}"))
}

/// A policy from its text.
pub(crate) fn policy(text: &str) -> PermissionPolicy {
    PermissionPolicy::from_toml(text, "in place").unwrap()
}

/// The temp files of writes that were cut short, anywhere beneath a folder.
#[expect(clippy::disallowed_methods, reason = "tests look at real files")]
fn temp_files(folder: &Path) -> Vec<String> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(".toolwarden-") {
                found.push(name);
            } else if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    found
}
