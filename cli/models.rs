//! Models by name: the settings of `toolwarden.toml`, the keys of the environment, and who answers under a name.
//!
//! The settings come from where the person says or from the person's own folder, and never from the workspace: a folder
//! that somebody else wrote must not say where keys go.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use toolwarden::models::Model;
use toolwarden::models::catalog::config::{CONFIG_BYTES_MAX, ConfigError, ModelConfig};
use toolwarden::models::catalog::{CatalogError, ModelCatalog, ModelSpec, SPEC_FORMS};
use toolwarden::models::research::{RESEARCH_NAME, ResearchModel};
use toolwarden::models::scripted::{SCRIPT_BYTES_MAX, ScriptError, ScriptedModel};
use toolwarden_tools::effects::Effects;

use crate::environment::Environment;
use crate::input::{InputError, read_file};

/// Why there is no model of a name.
#[derive(Debug, Error)]
pub(crate) enum ModelsError {
    /// A file cannot be taken.
    #[error(transparent)]
    Input(#[from] InputError),
    /// There is no such model.
    #[error("there is no model {spec:?}; there are {RESEARCH_NAME}, scripted:FILE, {SPEC_FORMS}")]
    Unknown {
        /// What was asked for.
        spec: String,
    },
    /// The script cannot be used.
    #[error("the script cannot be used: {0}")]
    Script(#[from] ScriptError),
    /// The settings are wrong.
    #[error("the settings cannot be used:\n{0}")]
    Config(#[from] ConfigError),
    /// The model cannot be asked.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// The settings and keys of models.
///
/// # Errors
/// [`ModelsError::Input`] when a file that was named is not there, and [`ModelsError::Config`].
pub(crate) fn load_catalog(named: Option<&Path>, environment: &Environment) -> Result<ModelCatalog, ModelsError> {
    let config = match settings_file(named, environment) {
        Some(file) => {
            let bytes_max = u64::try_from(CONFIG_BYTES_MAX).unwrap_or(u64::MAX);
            let text = read_file(&file, "the settings", bytes_max)?;
            ModelConfig::from_toml(&text, &file.display().to_string())?
        }
        None => ModelConfig::default(),
    };
    Ok(ModelCatalog::new(config, environment.variables().clone()))
}

/// The file of settings, where there is one.
pub(crate) fn settings_file(named: Option<&Path>, environment: &Environment) -> Option<PathBuf> {
    let file = named.map(Path::to_owned).or_else(|| environment.config_file());
    file.or_else(|| environment.own_config_file().filter(is_there))
}

#[expect(clippy::disallowed_methods, reason = "a file in the person's own folder, not the model's")]
fn is_there(file: &PathBuf) -> bool {
    std::fs::metadata(file).is_ok()
}

/// The model that a name means.
///
/// # Errors
/// [`ModelsError`].
pub(crate) fn load_model(spec: &str, catalog: &ModelCatalog) -> Result<Arc<dyn Model>, ModelsError> {
    if let Some(named) = ModelSpec::parse(spec)? {
        return Ok(Arc::new(catalog.model(&named, &Effects::real())?));
    }
    match spec.split_once(':') {
        _ if spec == RESEARCH_NAME => Ok(Arc::new(ResearchModel)),
        Some(("scripted", file)) if !file.is_empty() => {
            let bytes_max = u64::try_from(SCRIPT_BYTES_MAX).unwrap_or(u64::MAX);
            let text = read_file(Path::new(file), "the script", bytes_max)?;
            Ok(Arc::new(ScriptedModel::load(&text, file)?))
        }
        _ => Err(ModelsError::Unknown { spec: spec.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use toolwarden::models::catalog::ModelCatalog;
    use toolwarden::models::catalog::config::ModelConfig;

    use super::{ModelsError, load_model};

    #[test]
    fn an_unknown_model_is_told_what_there_is() {
        let catalog = ModelCatalog::new(ModelConfig::default(), Default::default());
        assert!(load_model("builtin:research", &catalog).is_ok());
        assert!(load_model("openai-chat:m@http://127.0.0.1:1", &catalog).is_ok());
        for bad in ["gpt", "scripted:", "scripted", "builtin:other", ""] {
            let error = load_model(bad, &catalog).err().unwrap();
            assert!(matches!(error, ModelsError::Unknown { .. }), "{bad}: {error}");
            assert!(
                error.to_string().contains("scripted:FILE") && error.to_string().contains("anthropic:NAME"),
                "{error}"
            );
        }
        let error = load_model("scripted:/nowhere", &catalog).err().unwrap();
        assert!(error.to_string().contains("/nowhere"), "{error}");
        let error = load_model("anthropic:m", &catalog).err().unwrap();
        assert!(error.to_string().contains("ANTHROPIC_API_KEY"), "{error}");
    }
}
