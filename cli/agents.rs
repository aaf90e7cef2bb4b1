//! Agents in Markdown files: the folders that the command line or the settings name, and the models that files may name.
//!
//! A workspace's own files are read only where the person's settings name a folder for them, and may name no address of a
//! model: a folder that somebody else wrote must not say where a conversation goes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolwarden::agent::AgentOrigin;
use toolwarden::agent::file::{AgentFile, AgentFilesError, ModelNames};
use toolwarden::models::Model;
use toolwarden::models::catalog::{ModelCatalog, ModelSpec};
use toolwarden::models::research::RESEARCH_NAME;

use crate::models::load_model;

/// What is known of agents before a workspace is open.
pub(crate) struct NamedAgents {
    /// The person's own.
    pub(crate) files: Vec<AgentFile>,
    /// The folder of a workspace whose agents may be named as well.
    pub(crate) workspace_folder: Option<String>,
    /// The models that they may name.
    pub(crate) models: Arc<dyn ModelNames>,
}

/// Reads the agents in the folder that is named, or that the settings name, which stand in the file `settings`.
///
/// # Errors
/// [`AgentFilesError`], for a folder that is not there too.
pub(crate) fn load_agents(
    named: Option<&Path>,
    settings: Option<&Path>,
    catalog: ModelCatalog,
) -> Result<NamedAgents, AgentFilesError> {
    let set = &catalog.config().agents;
    let beside_settings = |folder: &String| {
        settings.and_then(Path::parent).map_or_else(|| PathBuf::from(folder), |parent| parent.join(folder))
    };
    let folder = named.map(Path::to_owned).or_else(|| set.folder.as_ref().map(beside_settings));
    let files = folder.map(|folder| AgentFile::of_host(&folder)).transpose()?.unwrap_or_default();
    let workspace_folder = set.workspace_folder.clone();
    Ok(NamedAgents { files, workspace_folder, models: Arc::new(CatalogModels(catalog)) })
}

/// The models of the settings, by name.
struct CatalogModels(ModelCatalog);

impl ModelNames for CatalogModels {
    fn model(&self, name: &str, of: &AgentOrigin) -> Result<Arc<dyn Model>, String> {
        if matches!(of, AgentOrigin::Workspace(_)) {
            let named = ModelSpec::parse(name).map_err(|error| error.to_string())?;
            let is_plain = named.is_some_and(|named| named.base_url.is_none());
            if !is_plain && name != RESEARCH_NAME {
                return Err(
                    "a file of the workspace names a model without an address, as the settings know it".to_owned()
                );
            }
        }
        load_model(name, &self.0).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use toolwarden::agent::AgentOrigin;
    use toolwarden::agent::file::ModelNames as _;
    use toolwarden::models::catalog::ModelCatalog;
    use toolwarden::models::catalog::config::ModelConfig;

    use super::CatalogModels;

    #[test]
    fn a_file_of_the_workspace_says_not_where_a_conversation_goes() {
        let models = CatalogModels(ModelCatalog::new(ModelConfig::default(), Default::default()));
        let host = AgentOrigin::Host("a.md".to_owned());
        let workspace = AgentOrigin::Workspace("a.md".to_owned());
        assert!(models.model("openai-chat:m@http://127.0.0.1:1", &host).is_ok());
        for name in ["openai-chat:m@http://127.0.0.1:1", "scripted:/etc/passwd", "nothing"] {
            let error = models.model(name, &workspace).err().unwrap();
            assert!(error.contains("without an address"), "{name}: {error}");
        }
        assert!(models.model("builtin:research", &workspace).is_ok());
        assert!(models.model("anthropic:m", &workspace).err().unwrap().contains("ANTHROPIC_API_KEY"));
    }
}
