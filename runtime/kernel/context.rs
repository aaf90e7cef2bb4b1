//! What a tool is given for one call: the ports that its description names and no others, and its progress as events.

use std::sync::{Arc, Mutex, PoisonError};

use toolwarden_actors::node::NodeHandle;
use toolwarden_actors::process_group::SupervisedProcesses;
use toolwarden_tools::context::{DeltaStreams, Progress, Spool, ToolContext};
use toolwarden_tools::ids::{InvocationId, ToolName};
use toolwarden_tools::registry::Registered;
use toolwarden_tools::tool::Needs;
use toolwarden_tools::web::Web;
use toolwarden_tools::workspace::Workspace;

use super::Kernel;
use super::debts::Debts;
use crate::command_output::ObservedProcesses;
use crate::event::EventKind;
use crate::guarded_files::GuardedFiles;
use crate::kernel::model_port::ModelPort;
use crate::kernel::nested::{NestedCalls, NestedRuns};
use crate::proposal::Passage;
use crate::scope::Scope;
use crate::settlement::sanitise::stream::HeldOutput;

/// What the tool holds: only the ports that its description names.
pub(super) fn context(
    kernel: &Arc<Kernel>,
    scope: &Arc<Scope>,
    passage: &Passage,
    entry: &Registered,
    node: &NodeHandle,
    (progress, spool): (Arc<dyn Progress>, Arc<dyn Spool>),
) -> ToolContext {
    let needs = entry.tool.spec().needs;
    let nested = || NestedCalls::new(kernel, scope, passage, entry.builtin, node);
    ToolContext {
        invocation: passage.id.clone(),
        session: scope.session.clone(),
        workspace: granted(scope, passage, needs, node),
        seen: Arc::clone(&scope.seen),
        cancel: node.cancellation().clone(),
        clock: Arc::clone(&kernel.effects.clock),
        progress,
        spool,
        web: needs.web.then(|| match scope.workspace.has_network() {
            true => Web {
                http: Arc::clone(&kernel.effects.http),
                resolver: Arc::clone(&kernel.effects.resolver),
                allowed: Arc::clone(&kernel.allowed_origins),
                proxy: kernel.proxy.clone(),
            },
            false => Web::offline(),
        }),
        invoke: needs.invoke.then(|| Arc::new(nested()) as _),
        generate: match &scope.model {
            Some(model) if needs.generate => Some(Arc::new(ModelPort {
                kernel: Arc::clone(kernel),
                scope: Arc::clone(scope),
                model: Arc::clone(model),
                holder: passage.id.clone(),
                cancel: node.cancellation().clone(),
            }) as _),
            _ => None,
        },
        delegate: match &scope.children {
            Some(children) if needs.delegate => Some(Arc::new(NestedRuns::new(children, scope, passage, node)) as _),
            _ => None,
        },
        background: match &scope.background {
            Some(background) if needs.background => Some(Arc::new(background.clone()) as _),
            _ => None,
        },
    }
}

/// The workspace with no more than the tool needs, without files that a policy denies, and with every command
/// under the call's own node.
fn granted(scope: &Scope, passage: &Passage, needs: Needs, node: &NodeHandle) -> Workspace {
    let workspace = &scope.workspace;
    let mut to = workspace.capabilities();
    to.exec &= needs.exec;
    to.git &= needs.exec;
    to.write &= needs.write;
    let mut narrowed = workspace.narrowed(to);
    if let Some(bound) = narrowed.files().bound_to(node.cancellation()) {
        narrowed = narrowed.with_files(bound);
    }
    if !passage.origin.is_trusted() {
        narrowed =
            narrowed.with_files(GuardedFiles::over(Arc::clone(narrowed.files()), &scope.policies, scope.places()));
    }
    match workspace.commands().or(workspace.git_commands()) {
        Some(commands) if needs.exec => {
            let port = ObservedProcesses::over(&commands.processes, scope.command_output.as_ref(), &passage.id);
            let mut supervised = SupervisedProcesses::new(port, node.clone());
            if let Some(background) = scope.background.as_ref().filter(|_| needs.background) {
                supervised = supervised.handing_over(background.clone(), passage.id.clone());
            }
            narrowed.with_processes(Arc::new(supervised))
        }
        _ => narrowed,
    }
}

/// A tool's progress as events. What may be the beginning of a secret waits for its end.
pub(super) struct Deltas {
    kernel: Arc<Kernel>,
    scope: Arc<Scope>,
    id: InvocationId,
    tool: ToolName,
    /// The events before the first delta, which may still wait for the next one that somebody waits for.
    debts: Arc<Debts>,
    held: Mutex<HeldOutput>,
}

impl Deltas {
    pub(super) fn new(kernel: &Arc<Kernel>, scope: &Arc<Scope>, passage: &Passage, debts: &Arc<Debts>) -> Self {
        Self {
            debts: Arc::clone(debts),
            kernel: Arc::clone(kernel),
            scope: Arc::clone(scope),
            id: passage.id.clone(),
            tool: passage.tool.clone(),
            held: Mutex::default(),
        }
    }

    /// Tells what was held.
    pub(super) fn finish(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(delta) = held.finish() {
            self.tell(delta);
        }
    }

    fn tell(&self, (delta, streams): (String, Option<DeltaStreams>)) {
        self.debts.send_notes(&self.kernel.journal);
        let kind = EventKind::ToolOutputDelta { id: self.id.clone(), name: self.tool.clone(), delta, streams };
        self.kernel.tell(&self.scope, kind);
    }
}

impl Progress for Deltas {
    fn delta(&self, text: &str) {
        self.streams(text, None);
    }

    fn streams(&self, text: &str, streams: Option<DeltaStreams>) {
        // Told under the lock, so that deltas keep their order.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(delta) = held.push(&self.kernel.sanitiser, text, streams.as_ref()) {
            self.tell(delta);
        }
    }
}
