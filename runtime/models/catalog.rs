//! Models by name: which provider a name means, where it is, which key it gets.
//!
//! A key goes to the address that it was given for and to no other: one from the environment to its provider's own, one
//! from the settings to the base address beside it. So an address on a command line never takes a key along that was not
//! meant for it. Keys are never part of a name, a message or a fact.

pub mod config;

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;
use toolwarden_tools::effects::Effects;

use self::config::{ModelConfig, ProviderConfig};
use super::claude_messages::ClaudeMessages;
use super::openai_chat::OpenAiChat;
use super::openai_responses::OpenAiResponses;
use super::remote::{BaseUrlError, RemoteModel, RemoteSettings};
use super::wire::{Protocol, WireSettings};

/// Longest name of a model, in bytes.
const NAME_BYTES_MAX: usize = 1024;

/// A provider, and with it a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// Claude, by the Messages protocol.
    Anthropic,
    /// OpenAI, by the Responses protocol.
    OpenAi,
    /// Whoever speaks Chat Completions.
    OpenAiChat,
}

impl Provider {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Anthropic, Self::OpenAi, Self::OpenAiChat];

    /// Its name in specs and settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::OpenAiChat => "openai-chat",
        }
    }

    /// The variable that holds its key.
    pub fn key_variable(self) -> &'static str {
        match self {
            Self::Anthropic => "ANTHROPIC_API_KEY",
            Self::OpenAi => "OPENAI_API_KEY",
            Self::OpenAiChat => "OPENAI_CHAT_API_KEY",
        }
    }

    /// The variable that holds another base address than its own.
    pub fn base_variable(self) -> &'static str {
        match self {
            Self::Anthropic => "ANTHROPIC_BASE_URL",
            Self::OpenAi => "OPENAI_BASE_URL",
            Self::OpenAiChat => "OPENAI_CHAT_BASE_URL",
        }
    }

    fn own_base(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("https://api.anthropic.com"),
            Self::OpenAi => Some("https://api.openai.com"),
            Self::OpenAiChat => None,
        }
    }

    fn protocol(self) -> Box<dyn Protocol> {
        match self {
            Self::Anthropic => Box::new(ClaudeMessages),
            Self::OpenAi => Box::new(OpenAiResponses),
            Self::OpenAiChat => Box::new(OpenAiChat),
        }
    }
}

/// A model as it is named: `anthropic:NAME`, `openai:NAME`, `openai-chat:NAME` or `openai-chat:NAME@BASE_URL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSpec {
    /// Whose it is.
    pub provider: Provider,
    /// Its name there.
    pub model: String,
    /// Where, when the name says so.
    pub base_url: Option<String>,
}

/// How a model behind the network is named.
pub const SPEC_FORMS: &str = "anthropic:NAME, openai:NAME and openai-chat:NAME@BASE_URL";

impl ModelSpec {
    /// Reads a name; none when it is no name of a model behind the network.
    ///
    /// # Errors
    /// [`CatalogError::Spec`].
    pub fn parse(text: &str) -> Result<Option<Self>, CatalogError> {
        let Some((provider, rest)) = text.split_once(':') else { return Ok(None) };
        let Some(provider) = Provider::ALL.into_iter().find(|known| known.as_str() == provider) else {
            return Ok(None);
        };
        // Names may hold an @ of their own.
        let at = ["@http://", "@https://"].iter().filter_map(|sign| rest.rfind(sign)).max();
        let at = at.or_else(|| other_address(rest));
        let (model, base_url) = match at {
            Some(at) => (&rest[..at], Some(rest[at + 1..].to_owned())),
            None => (rest, None),
        };
        let wrong = |reason: &str| CatalogError::Spec { spec: provider.as_str(), reason: reason.to_owned() };
        if model.is_empty() || model.len() > NAME_BYTES_MAX || model.chars().any(|c| c.is_control() || c == ' ') {
            return Err(wrong("its model's name is empty, too long, or holds a space"));
        }
        if base_url.is_some() && provider != Provider::OpenAiChat {
            return Err(wrong("only openai-chat takes an address; set base_url in toolwarden.toml for the others"));
        }
        Ok(Some(Self { provider, model: model.to_owned(), base_url }))
    }

    /// The name that it was read from.
    pub fn text(&self) -> String {
        let address = self.base_url.as_ref().map(|base_url| format!("@{base_url}")).unwrap_or_default();
        format!("{}:{}{address}", self.provider.as_str(), self.model)
    }
}

/// Where an address begins that cannot be asked, so that it is told as such.
fn other_address(rest: &str) -> Option<usize> {
    let end = rest.find("://")?;
    let at = rest[..end].rfind('@')?;
    rest[at + 1..end].chars().all(|c| c.is_ascii_alphanumeric()).then_some(at)
}

/// Makes models from their names.
#[derive(Debug)]
pub struct ModelCatalog {
    config: ModelConfig,
    environment: BTreeMap<String, String>,
}

impl ModelCatalog {
    /// A catalogue of these settings and variables.
    pub fn new(config: ModelConfig, environment: BTreeMap<String, String>) -> Self {
        Self { config, environment }
    }

    /// The settings.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Every key that may be used, to be taken out of whatever is shown or stored.
    pub fn secrets(&self) -> Vec<String> {
        let named = self.config.providers.values().filter_map(|provider| provider.key_variable.as_deref());
        let known = Provider::ALL.map(Provider::key_variable);
        let variables = named.chain(known).filter_map(|name| self.variable(name)).map(str::to_owned);
        let written = self.config.providers.values().filter_map(|provider| provider.key.clone());
        written.chain(variables).collect()
    }

    /// The model of this name.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn model(&self, spec: &ModelSpec, effects: &Effects) -> Result<RemoteModel, CatalogError> {
        let unset = ProviderConfig::default();
        let set = self.config.providers.get(&spec.provider).unwrap_or(&unset);
        let (base_url, key) = self.address(spec, set)?;
        let wire = WireSettings {
            model: spec.model.clone(),
            stream: set.stream.unwrap_or(true),
            output_tokens_max: set.output_tokens_max,
            reasoning_effort: set.reasoning_effort.clone(),
            thinking_tokens_max: set.thinking_tokens_max,
        };
        let protocol = spec.provider.protocol();
        let settings = RemoteSettings {
            name: spec.text(),
            base_url,
            key,
            wire,
            context_tokens: set.context_tokens,
            timeouts: set.timeouts(),
            price: set.price,
            concurrency_max: set.concurrency_max,
            object_support: set.object_support.map(|chosen| chosen.of(&*protocol)),
        };
        let (http, clock) = (Arc::clone(&effects.http), Arc::clone(&effects.clock));
        Ok(RemoteModel::new(settings, protocol, http, clock)?)
    }

    /// Where a model is, and the key that may go there.
    fn address(&self, spec: &ModelSpec, set: &ProviderConfig) -> Result<(String, Option<String>), CatalogError> {
        let provider = spec.provider;
        let from_variable = set.key_variable.as_deref().unwrap_or(provider.key_variable());
        let written = || set.key.clone().or_else(|| self.variable(from_variable).map(str::to_owned));
        if let Some(base_url) = &spec.base_url {
            // Beside its own base address in the settings, or in the variable that was meant for this.
            let is_set = set.base_url.as_ref().is_some_and(|set| same_place(set, base_url));
            let key = if is_set { written() } else { self.variable(provider.key_variable()).map(str::to_owned) };
            return Ok((base_url.clone(), key));
        }
        let own = || provider.own_base().map(str::to_owned);
        let elsewhere = set.base_url.clone().or_else(|| self.variable(provider.base_variable()).map(str::to_owned));
        let is_own = elsewhere.is_none();
        let base_url = elsewhere.or_else(own).ok_or(CatalogError::NoAddress { provider: provider.as_str() })?;
        let key = written();
        if is_own && key.is_none() {
            return Err(CatalogError::NoKey { provider: provider.as_str(), variable: from_variable.to_owned() });
        }
        Ok((base_url, key))
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }
}

fn same_place(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// Why there is no model of a name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CatalogError {
    /// The name is not well formed.
    #[error("{spec}: {reason}; models are named {SPEC_FORMS}")]
    Spec {
        /// Its provider.
        spec: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Nobody knows where it is.
    #[error("{provider} has no address; write {provider}:NAME@BASE_URL, or set base_url in toolwarden.toml")]
    NoAddress {
        /// The provider.
        provider: &'static str,
    },
    /// There is no key.
    #[error("{provider} needs a key; set the variable {variable}, or api_key in toolwarden.toml")]
    NoKey {
        /// The provider.
        provider: &'static str,
        /// Where it is looked for.
        variable: String,
    },
    /// Its address cannot be used.
    #[error(transparent)]
    Address(#[from] BaseUrlError),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use toolwarden_tools::effects::Effects;

    use super::config::ModelConfig;
    use super::{CatalogError, ModelCatalog, ModelSpec, Provider};

    fn catalog(toml: &str, variables: &[(&str, &str)]) -> ModelCatalog {
        let config = ModelConfig::from_toml(toml, "toolwarden.toml").unwrap();
        let environment: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ModelCatalog::new(config, environment)
    }

    fn address(catalog: &ModelCatalog, spec: &str) -> Result<(String, Option<String>), CatalogError> {
        let spec = ModelSpec::parse(spec)?.unwrap();
        let unset = super::ProviderConfig::default();
        catalog.address(&spec, catalog.config.providers.get(&spec.provider).unwrap_or(&unset))
    }

    #[test]
    fn names_are_read_and_written_back() {
        for text in
            ["anthropic:claude-x", "openai:gpt-5.4", "openai-chat:a/b:c@d@http://127.0.0.1:1/v1", "openai-chat:m"]
        {
            assert_eq!(ModelSpec::parse(text).unwrap().unwrap().text(), text);
        }
        let spec = ModelSpec::parse("openai-chat:a@b@https://h/v1").unwrap().unwrap();
        assert_eq!((spec.model.as_str(), spec.base_url.as_deref()), ("a@b", Some("https://h/v1")));
        let spec = ModelSpec::parse("openai-chat:a@ftp://h").unwrap().unwrap();
        assert_eq!((spec.model.as_str(), spec.base_url.as_deref()), ("a", Some("ftp://h")), "refused as an address");
        assert_eq!(ModelSpec::parse("builtin:research").unwrap(), None);
        for wrong in ["anthropic:", "openai:a b", "openai:m@https://h"] {
            assert!(matches!(ModelSpec::parse(wrong), Err(CatalogError::Spec { .. })), "{wrong}");
        }
    }

    #[test]
    fn a_key_goes_only_where_it_was_meant_for() {
        let both = [("OPENAI_API_KEY", "real-key"), ("ANTHROPIC_API_KEY", " other-key\n")];
        let plain = catalog("", &both);
        assert_eq!(
            address(&plain, "anthropic:m").unwrap(),
            ("https://api.anthropic.com".into(), Some("other-key".into()))
        );
        // A foreign address on the command line gets no key of another provider.
        assert_eq!(address(&plain, "openai-chat:m@https://evil").unwrap(), ("https://evil".into(), None));
        let set = catalog("[providers.openai-chat]\nbase_url = \"https://good/v1\"\napi_key = \"kept\"", &both);
        assert_eq!(address(&set, "openai-chat:m").unwrap().1.as_deref(), Some("kept"));
        assert_eq!(address(&set, "openai-chat:m@https://good/v1/").unwrap().1.as_deref(), Some("kept"));
        assert_eq!(address(&set, "openai-chat:m@https://evil").unwrap().1, None);
        assert!(matches!(address(&catalog("", &[]), "openai:m"), Err(CatalogError::NoKey { .. })));
        assert!(matches!(address(&plain, "openai-chat:m"), Err(CatalogError::NoAddress { .. })));
        assert_eq!(set.secrets().len(), 3);
    }

    #[test]
    fn a_model_is_made_of_its_settings_and_shows_no_key() {
        let toml =
            "[providers.openai]\napi_key = \"top-secret\"\nbase_url = \"http://127.0.0.1:9\"\ncontext_tokens = 99";
        let catalog = catalog(toml, &[]);
        let spec = ModelSpec::parse("openai:gpt").unwrap().unwrap();
        let model = catalog.model(&spec, &Effects::real()).unwrap();
        assert_eq!(model.endpoint(), "http://127.0.0.1:9/v1/responses");
        assert!(!format!("{model:?}").contains("top-secret"));
        assert!(!format!("{catalog:?}").contains("top-secret"));
        assert_eq!(Provider::ALL.map(Provider::as_str), ["anthropic", "openai", "openai-chat"]);
    }
}
