//! The settings of `toolwarden.toml`, of models and of commands: checked when they are loaded, each fault with its line.
//!
//! A setting that nobody knows is a fault and not ignored, for a mistyped name would silently do nothing. Values are not
//! shown in faults: one of them may be a key in the wrong place.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toolwarden_tools::effects::processes::containment::CommandLimits;
use toolwarden_tools::workspace::WriteAllowance;

use super::Provider;
use crate::models::gate::RetryPolicy;
use crate::models::object_support::ObjectSupport;
use crate::models::price::TokenPrice;
use crate::models::remote::ModelTimeouts;
use crate::models::wire::Protocol;

/// Largest file of settings, in bytes.
pub const CONFIG_BYTES_MAX: usize = 1024 * 1024;
/// Longest time that can be set, in seconds: a day.
const TIMEOUT_S_MAX: f64 = 24.0 * 3600.0;
/// Most attempts that can be set.
const ATTEMPTS_MAX: i64 = 20;
/// Most processes that a command can be limited to.
const PROCESSES_MAX: i64 = 4_194_304;
/// Most memory that a command can be limited to, in MiB: a pebibyte.
const MEMORY_MIB_MAX: i64 = 1 << 30;
/// Most requests to one model beside each other that can be set.
const CONCURRENCY_MAX: i64 = 1024;
/// Highest price that can be set, in US dollars a million tokens.
const PRICE_USD_MAX: f64 = 1_000_000.0;
/// The settings of a provider.
const PROVIDER_KEYS: &str = "base_url, api_key, api_key_env, stream, context_tokens, max_output_tokens, \
                             reasoning_effort, thinking_tokens, structured_output, max_concurrency, connect_timeout_s, first_byte_timeout_s, \
                             idle_timeout_s, total_timeout_s and [price]";

/// The settings of all models.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelConfig {
    /// By provider.
    pub providers: BTreeMap<Provider, ProviderConfig>,
    /// When a request is sent again.
    pub retries: RetryPolicy,
    /// Where agents are found.
    pub agents: AgentFolders,
    /// What each command may use.
    pub commands: CommandLimits,
    /// What tools may write beside the usual.
    pub writes: WriteAllowance,
}

/// The folders that agents are read from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentFolders {
    /// The person's own; one that is not absolute stands beside the settings.
    pub folder: Option<String>,
    /// A folder of every workspace.
    pub workspace_folder: Option<String>,
}

/// The settings of one provider's models; what is not set is left to defaults.
#[derive(Clone, PartialEq, Default)]
pub struct ProviderConfig {
    /// Where it is.
    pub base_url: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// The variable that holds its key.
    pub key_variable: Option<String>,
    /// Whether answers are streamed.
    pub stream: Option<bool>,
    /// The model's window, in tokens.
    pub context_tokens: Option<u64>,
    /// The most tokens a turn may write.
    pub output_tokens_max: Option<u64>,
    /// How hard the model thinks, in the provider's word.
    pub reasoning_effort: Option<String>,
    /// The most tokens it may think.
    pub thinking_tokens_max: Option<u64>,
    /// How many requests to one model there may be beside each other.
    pub concurrency_max: Option<usize>,
    /// By which means models are held to the form of an object, at the most.
    pub object_support: Option<ObjectMeans>,
    /// What tokens cost.
    pub price: TokenPrice,
    times: [Option<Duration>; 4],
}

impl ProviderConfig {
    /// How long its models may take.
    pub fn timeouts(&self) -> ModelTimeouts {
        let (unset, [connect, first_byte, idle, total]) = (ModelTimeouts::default(), self.times);
        ModelTimeouts {
            connect: connect.unwrap_or(unset.connect),
            first_byte: first_byte.unwrap_or(unset.first_byte),
            idle: idle.unwrap_or(unset.idle),
            total: total.unwrap_or(unset.total),
        }
    }
}

/// The key stays out.
impl fmt::Debug for ProviderConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ProviderConfig")
            .field("base_url", &self.base_url)
            .field("has_key", &self.key.is_some())
            .finish_non_exhaustive()
    }
}

/// By which means a provider's models are held to the form of an object: servers that speak a protocol may lack parts
/// of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectMeans {
    /// Everything that the protocol has.
    JsonSchema,
    /// A forced tool, and nothing else.
    ForcedTool,
    /// Any JSON object, and nothing else.
    JsonObject,
    /// Words.
    None,
}

/// How they are written.
const MEANS_WORDS: &str = "\"json_schema\", \"forced_tool\", \"json_object\" and \"none\"";

impl ObjectMeans {
    fn named(word: &str) -> Option<Self> {
        match word {
            "json_schema" => Some(Self::JsonSchema),
            "forced_tool" => Some(Self::ForcedTool),
            "json_object" => Some(Self::JsonObject),
            "none" => Some(Self::None),
            _ => None,
        }
    }

    /// What of a protocol's means is left.
    pub fn of(self, protocol: &dyn Protocol) -> ObjectSupport {
        let (all, none) = (protocol.object_support(), ObjectSupport::default());
        match self {
            Self::JsonSchema => all,
            Self::ForcedTool => ObjectSupport { forced_tool: all.forced_tool, ..none },
            Self::JsonObject => ObjectSupport { json_object: all.json_object, ..none },
            Self::None => none,
        }
    }
}

/// What is wrong with a file of settings.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct ConfigError {
    /// The file.
    pub file: String,
    /// Its faults, by line.
    pub faults: Vec<ConfigFault>,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(out, "{end}{}:{}: {}", self.file, fault.line, fault.message)?;
        }
        Ok(())
    }
}

impl ModelConfig {
    /// Reads settings.
    ///
    /// # Errors
    /// [`ConfigError`] with every fault.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, ConfigError> {
        let mut reader = Reader { text, faults: Vec::new() };
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            reader.fault(error.span().map_or(0, |span| span.start), error.message().to_owned());
        }
        let mut config = Self::default();
        if reader.faults.is_empty() {
            reader.document(document.get_ref(), &mut config);
        }
        if reader.faults.is_empty() {
            return Ok(config);
        }
        reader.faults.sort_by_key(|fault| fault.line);
        Err(ConfigError { file: file.to_owned(), faults: reader.faults })
    }
}

type Entry<'a, 'i> = (&'a Spanned<toml::de::DeString<'i>>, &'a Spanned<DeValue<'i>>);

/// Walks over a document and collects its faults.
struct Reader<'a> {
    text: &'a str,
    faults: Vec<ConfigFault>,
}

impl Reader<'_> {
    fn fault(&mut self, at: usize, message: String) {
        let line = 1 + self.text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
        self.faults.push(ConfigFault { line, message });
    }

    fn document(&mut self, document: &DeTable<'_>, config: &mut ModelConfig) {
        for (key, value) in document {
            match key.get_ref().as_ref() {
                "providers" => self.each_entry(value, |reader, entry| reader.provider(entry, config)),
                "retry" => self.each_entry(value, |reader, (key, value)| match key.get_ref().as_ref() {
                    "attempts" => {
                        if let Some(attempts) = reader.whole(key, value, ATTEMPTS_MAX) {
                            config.retries.attempts_max = u32::try_from(attempts).unwrap_or(1);
                        }
                    }
                    "max_wait_s" => {
                        if let Some(wait) = reader.span(key, value) {
                            config.retries.asked_wait_max = wait;
                        }
                    }
                    other => reader.unknown(key, other, "attempts and max_wait_s"),
                }),
                "agents" => self.each_entry(value, |reader, (key, value)| match key.get_ref().as_ref() {
                    "folder" => config.agents.folder = reader.text(key, value),
                    "workspace_folder" => config.agents.workspace_folder = reader.text(key, value),
                    other => reader.unknown(key, other, "folder and workspace_folder"),
                }),
                "commands" => self.each_entry(value, |reader, (key, value)| match key.get_ref().as_ref() {
                    "max_processes" => {
                        let most = reader.whole(key, value, PROCESSES_MAX);
                        config.commands.processes_max = most.and_then(|most| u32::try_from(most).ok());
                    }
                    "max_memory_mib" => {
                        let most = reader.whole(key, value, MEMORY_MIB_MAX);
                        config.commands.memory_bytes_max = most.map(|most| most.saturating_mul(1024 * 1024));
                    }
                    other => reader.unknown(key, other, "max_processes and max_memory_mib"),
                }),
                "writes" => self.each_entry(value, |reader, (key, value)| match key.get_ref().as_ref() {
                    "hard_links" => config.writes.hard_links = reader.flag(key, value).unwrap_or_default(),
                    "git_folder" => config.writes.git_folder = reader.flag(key, value).unwrap_or_default(),
                    other => reader.unknown(key, other, "hard_links and git_folder"),
                }),
                other => self.unknown(key, other, "[providers.NAME], [retry], [commands], [writes] and [agents]"),
            }
        }
    }

    fn each_entry(&mut self, value: &Spanned<DeValue<'_>>, mut take: impl FnMut(&mut Self, Entry<'_, '_>)) {
        match value.get_ref() {
            DeValue::Table(table) => table.iter().for_each(|entry| take(self, entry)),
            _ => self.fault(value.span().start, "this is a table: put its name in square brackets".to_owned()),
        }
    }

    fn provider(&mut self, (name, value): Entry<'_, '_>, config: &mut ModelConfig) {
        let known = Provider::ALL.into_iter().find(|provider| provider.as_str() == name.get_ref().as_ref());
        let Some(provider) = known else {
            return self.unknown(name, name.get_ref(), "anthropic, openai and openai-chat");
        };
        let mut set = ProviderConfig::default();
        self.each_entry(value, |reader, entry| reader.setting(entry, &mut set));
        if set.key.is_some() && set.key_variable.is_some() {
            self.fault(name.span().start, "give api_key or api_key_env, and not both".to_owned());
        }
        config.providers.insert(provider, set);
    }

    fn setting(&mut self, (key, value): Entry<'_, '_>, set: &mut ProviderConfig) {
        const TOKENS_MAX: i64 = 1_000_000_000;
        match key.get_ref().as_ref() {
            "base_url" => set.base_url = self.text(key, value),
            "api_key" => set.key = self.text(key, value),
            "api_key_env" => set.key_variable = self.text(key, value),
            "reasoning_effort" => set.reasoning_effort = self.text(key, value),
            "stream" => set.stream = self.flag(key, value),
            "max_concurrency" => {
                set.concurrency_max =
                    self.whole(key, value, CONCURRENCY_MAX).and_then(|count| usize::try_from(count).ok());
            }
            "structured_output" => match value.get_ref() {
                DeValue::String(word) if ObjectMeans::named(word).is_some() => {
                    set.object_support = ObjectMeans::named(word);
                }
                _ => self.fault(value.span().start, format!("structured_output is one of {MEANS_WORDS}")),
            },
            "context_tokens" => set.context_tokens = self.whole(key, value, TOKENS_MAX),
            "max_output_tokens" => set.output_tokens_max = self.whole(key, value, TOKENS_MAX),
            "thinking_tokens" => set.thinking_tokens_max = self.whole(key, value, TOKENS_MAX),
            "connect_timeout_s" => set.times[0] = self.span(key, value),
            "first_byte_timeout_s" => set.times[1] = self.span(key, value),
            "idle_timeout_s" => set.times[2] = self.span(key, value),
            "total_timeout_s" => set.times[3] = self.span(key, value),
            "price" => self.each_entry(value, |reader, (key, value)| match key.get_ref().as_ref() {
                "input" => set.price.input = reader.price(key, value).unwrap_or_default(),
                "output" => set.price.output = reader.price(key, value).unwrap_or_default(),
                "cache_read" => set.price.cache_read = reader.price(key, value),
                "cache_write" => set.price.cache_write = reader.price(key, value),
                other => reader.unknown(key, other, "input, output, cache_read and cache_write"),
            }),
            other => self.unknown(key, other, PROVIDER_KEYS),
        }
    }

    fn unknown(&mut self, key: &Spanned<toml::de::DeString<'_>>, name: &str, known: &str) {
        let end = name.floor_char_boundary(64);
        self.fault(key.span().start, format!("there is no setting {:?} here; there are {known}", &name[..end]));
    }

    fn flag(&mut self, key: &Spanned<toml::de::DeString<'_>>, value: &Spanned<DeValue<'_>>) -> Option<bool> {
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => {
                self.fault(value.span().start, format!("{} is true or false", key.get_ref()));
                None
            }
        }
    }

    fn text(&mut self, key: &Spanned<toml::de::DeString<'_>>, value: &Spanned<DeValue<'_>>) -> Option<String> {
        match value.get_ref() {
            DeValue::String(text) if !text.trim().is_empty() && !text.chars().any(char::is_control) => {
                Some(text.trim().to_owned())
            }
            _ => {
                self.fault(value.span().start, format!("{} is a text in quotes, on one line", key.get_ref()));
                None
            }
        }
    }

    fn whole(&mut self, key: &Spanned<toml::de::DeString<'_>>, value: &Spanned<DeValue<'_>>, most: i64) -> Option<u64> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let number = number.filter(|number| (1..=most).contains(number)).and_then(|number| u64::try_from(number).ok());
        if number.is_none() {
            self.fault(value.span().start, format!("{} is a whole number from 1 to {most}", key.get_ref()));
        }
        number
    }

    fn number(value: &Spanned<DeValue<'_>>) -> Option<f64> {
        match value.get_ref() {
            DeValue::Integer(number) => i32::from_str_radix(number.as_str(), number.radix()).ok().map(f64::from),
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => None,
        }
    }

    fn span(&mut self, key: &Spanned<toml::de::DeString<'_>>, value: &Spanned<DeValue<'_>>) -> Option<Duration> {
        let seconds = Self::number(value).filter(|seconds| *seconds > 0.0 && *seconds <= TIMEOUT_S_MAX);
        let span = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        if span.is_none() {
            let message = format!("{} is a number of seconds, more than 0 and at most {TIMEOUT_S_MAX}", key.get_ref());
            self.fault(value.span().start, message);
        }
        span
    }

    /// US dollars a million tokens.
    fn price(&mut self, key: &Spanned<toml::de::DeString<'_>>, value: &Spanned<DeValue<'_>>) -> Option<u64> {
        let dollars = Self::number(value).filter(|dollars| (0.0..=PRICE_USD_MAX).contains(dollars));
        if dollars.is_none() {
            let message = format!("{} is US dollars a million tokens, from 0 to {PRICE_USD_MAX}", key.get_ref());
            self.fault(value.span().start, message);
        }
        // A duration is the exact way from a decimal number to millionths.
        let micro = dollars.and_then(|dollars| Duration::try_from_secs_f64(dollars).ok());
        micro.and_then(|micro| u64::try_from(micro.as_micros()).ok())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use toolwarden_tools::workspace::WriteAllowance;

    use super::{ModelConfig, Provider};
    use crate::models::TokenUsage;
    use crate::models::object_support::ObjectSupport;
    use crate::models::openai_chat::OpenAiChat;

    const WHOLE: &str = r#"
[agents]
folder = "agents"
workspace_folder = ".toolwarden/agents"

[retry]
attempts = 2
max_wait_s = 30

[providers.anthropic]
api_key_env = "MY_KEY"
thinking_tokens = 2_000
idle_timeout_s = 1.5
[providers.anthropic.price]
input = 3
output = 15
cache_read = 0.3

[providers.openai-chat]
base_url = "http://127.0.0.1:8080/v1"
stream = false
context_tokens = 0x2000
structured_output = "forced_tool"
max_concurrency = 3
"#;

    #[test]
    fn settings_are_read() {
        let config = ModelConfig::from_toml(WHOLE, "f").unwrap();
        assert_eq!((config.retries.attempts_max, config.retries.asked_wait_max), (2, Duration::from_secs(30)));
        assert_eq!(config.agents.folder.as_deref(), Some("agents"));
        assert_eq!(config.agents.workspace_folder.as_deref(), Some(".toolwarden/agents"));
        let claude = &config.providers[&Provider::Anthropic];
        assert_eq!((claude.key_variable.as_deref(), claude.thinking_tokens_max), (Some("MY_KEY"), Some(2000)));
        assert_eq!(claude.timeouts().idle, Duration::from_millis(1500));
        let usage = TokenUsage {
            input_tokens: 1_000_000,
            output_tokens: 100_000,
            cache_read_tokens: 500_000,
            ..TokenUsage::default()
        };
        assert_eq!(claude.price.cost_microusd(usage), 1_500_000 + 150_000 + 1_500_000);
        let chat = &config.providers[&Provider::OpenAiChat];
        assert_eq!((chat.stream, chat.context_tokens), (Some(false), Some(8192)));
        assert_eq!(chat.concurrency_max, Some(3));
        let means = chat.object_support.unwrap().of(&OpenAiChat);
        assert_eq!(means, ObjectSupport { forced_tool: true, ..ObjectSupport::default() });
        assert_eq!(ModelConfig::from_toml("", "f").unwrap(), ModelConfig::default());
    }

    #[test]
    fn every_fault_is_told_with_its_line_and_without_its_value() {
        let text = "[providers.openai]\napi_key = 7\napi_keys = \"sk-secret\"\nstream = \"yes\"\ncontext_tokens = -1\n\
                    idle_timeout_s = 0\nbase_url = \"\"\n\n[providers.other]\nx = 1\n[models]\n[retry]\nattempts = 99\n\
                    [providers.anthropic]\nstructured_output = \"best\"\n\
                    [agents]\nfolder = 3\nfolders = \"x\"\n";
        let error = ModelConfig::from_toml(text, "toolwarden.toml").unwrap_err();
        let lines: Vec<usize> = error.faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 17, 18], "{error}");
        let told = error.to_string();
        assert!(told.starts_with("toolwarden.toml:2: api_key is a text"), "{told}");
        assert!(told.contains("no setting \"api_keys\"") && !told.contains("sk-secret"), "{told}");
    }

    #[test]
    fn limits_of_commands_are_read() {
        let config = ModelConfig::from_toml("[commands]\nmax_processes = 100\nmax_memory_mib = 512\n", "f").unwrap();
        assert_eq!((config.commands.processes_max, config.commands.memory_bytes_max), (Some(100), Some(512 << 20)));
        let error = ModelConfig::from_toml("[commands]\nmax_processes = 0\nmax_memory = \"1G\"\n", "f").unwrap_err();
        let told = error.to_string();
        assert!(told.contains("f:2: max_processes is a whole number from 1"), "{told}");
        assert!(told.contains("f:3: there is no setting \"max_memory\"") && told.contains("max_memory_mib"), "{told}");
    }

    #[test]
    fn what_tools_may_write_is_read() {
        let config = ModelConfig::from_toml("[writes]\nhard_links = true\n", "f").unwrap();
        assert_eq!(config.writes, WriteAllowance { hard_links: true, git_folder: false });
        let error = ModelConfig::from_toml("[writes]\ngit_folder = \"yes\"\ngit = true\n", "f").unwrap_err();
        let told = error.to_string();
        assert!(told.contains("f:2: git_folder is true or false"), "{told}");
        assert!(told.contains("f:3: there is no setting \"git\"") && told.contains("hard_links"), "{told}");
    }

    #[test]
    fn broken_toml_is_told_with_its_line_and_without_its_text() {
        let error = ModelConfig::from_toml("[retry]\nattempts = 2\napi_key = \"sk-secret\nx = [", "f").unwrap_err();
        assert!(error.faults[0].line >= 3 && !error.to_string().contains("sk-secret"), "{error}");
        let both = "[providers.openai]\napi_key = \"a\"\napi_key_env = \"B\"";
        assert!(ModelConfig::from_toml(both, "f").unwrap_err().to_string().contains("not both"));
    }
}
