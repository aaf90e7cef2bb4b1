//! What a tool is: a static description, and one function.
//!
//! A tool holds nothing between calls. The same description feeds the model's list, the schema check and the
//! permission rules, so that they cannot drift apart.

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::ToolContext;
use crate::declaration::{Capabilities, ToolDefinition};
use crate::ids::ToolName;
use crate::outcome::ToolOutcome;
use crate::schema::{Schema, SchemaError};

/// The future of one call.
pub type ToolFuture<'a> = BoxFuture<'a, ToolOutcome>;

/// A tool.
pub trait Tool: Send + Sync + 'static {
    /// Its static description.
    fn spec(&self) -> &ToolSpec;

    /// What a call with these arguments could do. The arguments have passed the schema.
    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities::conservative()
    }

    /// Why a call with these arguments should be confirmed by a person although a rule allows it.
    fn requires_confirmation(&self, _arguments: &Value) -> Option<String> {
        None
    }

    /// What a call with these arguments is expected to cost, beside being one call.
    fn cost(&self, _arguments: &Value) -> DeclaredCost {
        DeclaredCost::default()
    }

    /// Its description where that is the same for every instance: then it and its schema are made once for all
    /// sessions. It must be what [`Self::spec`] gives.
    fn fixed(&self) -> Option<&'static FixedSpec> {
        None
    }

    /// What a permission rule's pattern is matched against.
    fn subject(&self, arguments: &Value) -> Subject {
        Subject::Text(arguments.to_string())
    }

    /// Does it. When `ctx.cancel` is given, it ends soon and leaves nothing running; dropping the future at any
    /// moment must leave nothing running either.
    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a>;
}

/// What a call is expected to cost; settled later with what it really used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeclaredCost {
    /// Millionths of a US dollar.
    pub microusd: u64,
    /// Bytes of output.
    pub output_bytes: u64,
}

/// The static description of a tool.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// Its name.
    pub name: ToolName,
    /// When to use it, when not, and what the result means.
    pub description: String,
    /// JSON Schema (2020-12) that arguments must fit; closed objects.
    pub parameters: Value,
    /// What the model is shown instead, where a provider refuses `parameters`.
    pub model_parameters: Option<Value>,
    /// Whether the model sees it; hidden tools stay callable by the host.
    pub model_visible: bool,
    /// Which bulkhead its calls wait at.
    pub lane: Lane,
    /// The ports it holds while it runs.
    pub needs: Needs,
}

/// A description that never changes: made when it is first asked for, and its schema compiled once. A session with tools
/// of its own takes the built-in ones over; making and compiling theirs anew would be a sixth of a short session.
pub struct FixedSpec {
    spec: LazyLock<ToolSpec>,
    schema: OnceLock<Arc<Schema>>,
}

impl FixedSpec {
    /// Made by this, once.
    pub const fn new(make: fn() -> ToolSpec) -> Self {
        Self { spec: LazyLock::new(make), schema: OnceLock::new() }
    }

    /// The description.
    pub fn get(&self) -> &ToolSpec {
        &self.spec
    }

    /// The compiled form of its parameters.
    ///
    /// # Errors
    /// As [`Schema::compile`].
    pub fn schema(&self) -> Result<Arc<Schema>, SchemaError> {
        if let Some(schema) = self.schema.get() {
            return Ok(Arc::clone(schema));
        }
        // Two that come at once compile it both, and take the first.
        let compiled = Arc::new(Schema::compile(&self.spec.parameters)?);
        Ok(Arc::clone(self.schema.get_or_init(|| compiled)))
    }
}

impl ToolSpec {
    /// What a model or a caller is told of it.
    pub fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: self.name.clone(),
            description: self.description.clone(),
            parameters: self.model_parameters.clone().unwrap_or_else(|| self.parameters.clone()),
        }
    }
}

/// The ways up that a tool holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// It writes files.
    pub write: bool,
    /// It runs commands.
    pub exec: bool,
    /// It asks the web.
    pub web: bool,
    /// It calls other tools; its own slot is given back while it runs.
    pub invoke: bool,
    /// It asks the model for objects; its own slot is given back while it runs.
    pub generate: bool,
    /// It starts child runs; its own slot is given back while it runs.
    pub delegate: bool,
    /// It starts, reads or stops background processes of the session.
    pub background: bool,
}

impl Needs {
    /// Whether the tool's work is other calls or requests: such a tool holds no slot, or a full lane of parents would
    /// wait for children that need the same lane.
    pub fn nests(self) -> bool {
        self.invoke || self.generate || self.delegate
    }
}

/// A lane: calls of one kind share its permits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Requests to models.
    Model,
    /// Orchestration: batch, task, program.
    Control,
    /// Reads of the workspace.
    Query,
    /// Everything that changes something.
    Execute,
    /// Plain HTTP.
    Network,
    /// Web search.
    Search,
    /// Browser pages.
    Browser,
    /// One MCP server.
    Mcp(String),
}

impl fmt::Display for Lane {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model => out.write_str("model"),
            Self::Control => out.write_str("control"),
            Self::Query => out.write_str("query"),
            Self::Execute => out.write_str("execute"),
            Self::Network => out.write_str("network"),
            Self::Search => out.write_str("search"),
            Self::Browser => out.write_str("browser"),
            Self::Mcp(server) => write!(out, "mcp:{server}"),
        }
    }
}

/// What a permission rule's pattern is matched against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A shell command line, judged by its parsed parts.
    Command(String),
    /// Workspace paths as the caller wrote them; they are resolved before they are judged.
    Paths {
        /// The paths.
        paths: Vec<String>,
        /// Whether they are written.
        write: bool,
    },
    /// Any other text.
    Text(String),
}
