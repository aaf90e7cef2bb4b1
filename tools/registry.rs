//! The tools of one session by name: one catalogue feeds the model's list, the schema check and the executor.
//!
//! A registry is immutable once built; a changed set is a new registry, so a running call never sees a tool
//! appear, change or go.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use thiserror::Error;

use crate::declaration::Capabilities;
use crate::digest::Digest;
use crate::ids::ToolName;
use crate::offer::{Offer, OfferedTool};
use crate::schema::{Schema, SchemaCache, SchemaError};
use crate::tool::Tool;

/// Longest name of a tool, in bytes.
pub const TOOL_NAME_BYTES_MAX: usize = 128;

/// A tool with its compiled schema.
pub struct Registered {
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// Its compiled `parameters`.
    pub schema: Arc<Schema>,
    /// Whether it is one of this project's own tools: only those pass a host's trust on to the calls they make.
    pub builtin: bool,
    /// The digest of its name, which stands in the record of each call.
    pub name_digest: Digest,
    offered: OnceLock<Arc<OfferedTool>>,
}

impl Registered {
    /// What a call could do, as its tool declares it; none when the arguments do not fit. A tool that breaks over
    /// the question promises nothing.
    pub fn capabilities(&self, arguments: &Value) -> Option<Capabilities> {
        // Arguments that do not fit are refused by the route; a tool is asked about fitting ones only.
        self.schema.check(arguments).ok()?;
        Some(self.declared(arguments))
    }

    /// The tool as a model is told of it.
    pub fn offered(&self) -> Arc<OfferedTool> {
        Arc::clone(self.offered.get_or_init(|| Arc::new(OfferedTool::new(self.tool.spec().definition()))))
    }

    /// As [`Self::capabilities`], of arguments that are known to fit.
    pub fn declared(&self, arguments: &Value) -> Capabilities {
        let asked = catch_unwind(AssertUnwindSafe(|| self.tool.capabilities(arguments)));
        asked.unwrap_or_else(|_panic| Capabilities::conservative())
    }
}

/// Tools by name.
#[derive(Clone, Default)]
pub struct Registry {
    tools: BTreeMap<ToolName, Arc<Registered>>,
}

/// Why a tool cannot be registered.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// The name is taken.
    #[error("a tool named {name} is registered already")]
    Taken {
        /// The name.
        name: ToolName,
    },
    /// The name has other characters than `[A-Za-z0-9_-]`, none, or too many.
    #[error("{name:?} is not a tool name: use 1 to {TOOL_NAME_BYTES_MAX} of A-Z a-z 0-9 _ -")]
    Name {
        /// The name.
        name: ToolName,
    },
    /// Its schema cannot be used.
    #[error("tool {name}: {source}")]
    Schema {
        /// The name.
        name: ToolName,
        /// Why.
        source: SchemaError,
    },
}

impl Registry {
    /// Builds a registry from built-in tools and a host's own; names must be unique and schemas usable.
    ///
    /// # Errors
    /// [`RegistryError`] for the first tool that cannot be registered.
    pub fn build(
        builtin: impl IntoIterator<Item = Arc<dyn Tool>>,
        custom: impl IntoIterator<Item = Arc<dyn Tool>>,
        schemas: &SchemaCache,
    ) -> Result<Self, RegistryError> {
        let builtin = builtin.into_iter().map(|tool| (tool, true));
        let custom = custom.into_iter().map(|tool| (tool, false));
        let mut registry = Self::default();
        for (tool, builtin) in builtin.chain(custom) {
            let spec = tool.spec();
            let name = spec.name.clone();
            let well_formed = (1..=TOOL_NAME_BYTES_MAX).contains(&name.as_str().len())
                && name.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
            if !well_formed {
                return Err(RegistryError::Name { name });
            }
            if registry.tools.contains_key(&name) {
                return Err(RegistryError::Taken { name });
            }
            let schema = match tool.fixed() {
                Some(fixed) => fixed.schema(),
                None => schemas.compile(&spec.parameters),
            };
            let schema = schema.map_err(|source| RegistryError::Schema { name: name.clone(), source })?;
            let name_digest = Digest::of(name.as_str().as_bytes());
            let offered = OnceLock::new();
            registry.tools.insert(name, Arc::new(Registered { tool, schema, builtin, name_digest, offered }));
        }
        Ok(registry)
    }

    /// The tool of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Registered>> {
        self.tools.get(name)
    }

    /// All names, hidden tools included, sorted.
    pub fn names(&self) -> impl Iterator<Item = &ToolName> {
        self.tools.keys()
    }

    /// All tools, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Registered>> {
        self.tools.values()
    }

    /// What a model is told: visible tools only, sorted by name.
    pub fn definitions(&self) -> Offer {
        self.iter().filter(|entry| entry.tool.spec().model_visible).map(|entry| entry.offered()).collect()
    }

    /// The same tools without those that `keep` refuses.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(&ToolName) -> bool) -> Self {
        let tools = self.tools.iter().filter(|(name, _)| keep(name));
        Self { tools: tools.map(|(name, entry)| (name.clone(), Arc::clone(entry))).collect() }
    }

    /// The names closest to one that is unknown, for an error that helps.
    pub fn similar(&self, name: &str) -> Vec<&ToolName> {
        let wanted = name.to_ascii_lowercase();
        self.names()
            .filter(|known| {
                let known = known.as_str().to_ascii_lowercase();
                known == wanted || known.contains(&wanted) || wanted.contains(&known)
            })
            .take(3)
            .collect()
    }
}
