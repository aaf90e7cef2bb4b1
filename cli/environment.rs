//! The environment of this process: read once, here and nowhere else, and handed down as values.
//!
//! Commands get the few variables that may pass; what looks like a secret is never passed on and is taken out of
//! every output, for a tool may find the same value in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toolwarden_tools::builtin::bash::allowed_environment;

/// Names the folder that sessions are kept in.
pub(crate) const STORE_VARIABLE: &str = "TOOLWARDEN_STORE";
/// Names the file of settings.
pub(crate) const CONFIG_VARIABLE: &str = "TOOLWARDEN_CONFIG";
/// Name a proxy, the first one that is set.
const PROXY_VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];
/// Parts of a variable's name that make its value a secret.
const SECRET_PARTS: [&str; 4] = ["KEY", "TOKEN", "SECRET", "PASSWORD"];
/// Shortest value that is taken as a secret, in bytes: a shorter one would blot out ordinary text.
pub(crate) const SECRET_BYTES_MIN: usize = 8;

/// The variables of this process that are text.
pub(crate) struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the environment; what is not UTF-8 is left out.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub(crate) fn of_this_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { variables: std::env::vars_os().filter_map(text).collect() }
    }

    /// All of them, for what is reached by their usual names.
    pub(crate) fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }

    /// The file of settings that the environment names.
    pub(crate) fn config_file(&self) -> Option<PathBuf> {
        self.variables.get(CONFIG_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from)
    }

    /// The file of settings in the user's own folder, whether it is there or not.
    pub(crate) fn own_config_file(&self) -> Option<PathBuf> {
        let absolute = |name: &str| self.variables.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
        Some(folder.join("toolwarden/toolwarden.toml"))
    }

    /// What commands may see.
    pub(crate) fn for_commands(&self) -> BTreeMap<String, String> {
        allowed_environment(self.variables.clone())
    }

    /// Values that must never be seen in an output or an event, sorted.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let looks_secret = |name: &str| {
            let upper = name.to_ascii_uppercase();
            SECRET_PARTS.iter().any(|part| upper.contains(part))
        };
        let values = self.variables.iter().filter(|(name, _)| looks_secret(name)).map(|(_, value)| value.trim());
        let secrets: BTreeSet<&str> = values.filter(|value| value.len() >= SECRET_BYTES_MIN).collect();
        secrets.into_iter().map(str::to_owned).collect()
    }

    /// Where this program may keep what it needs again later; none when nothing says where the user's files are.
    pub(crate) fn state_folder(&self) -> Option<PathBuf> {
        let absolute = |name: &str| self.variables.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
        Some(state.join("toolwarden"))
    }

    /// Where this program may keep what it could make again; none when nothing says where the user's files are.
    pub(crate) fn cache_folder(&self) -> Option<PathBuf> {
        let absolute = |name: &str| self.variables.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(cache.join("toolwarden"))
    }

    /// The proxy that the environment names, by the usual variables in their usual order, with the variable's name.
    pub(crate) fn proxy(&self) -> Option<(&'static str, &str)> {
        let named = |name: &'static str| Some((name, self.variables.get(name)?.trim()));
        PROXY_VARIABLES.into_iter().filter_map(named).find(|(_, proxy)| !proxy.is_empty())
    }

    /// The folder that sessions are kept in when the command line names none.
    pub(crate) fn store(&self) -> Option<&Path> {
        self.variables.get(STORE_VARIABLE).filter(|folder| !folder.is_empty()).map(Path::new)
    }

    /// Whether the terminal, if there is one, can move its cursor.
    pub(crate) fn terminal_can_draw(&self) -> bool {
        self.variables.get("TERM").is_some_and(|terminal| !terminal.is_empty() && terminal != "dumb")
    }
}

#[cfg(test)]
mod tests {
    use super::Environment;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Environment { variables: owned.collect() }
    }

    #[test]
    fn secrets_go_to_the_sanitiser_and_never_to_commands() {
        let environment = environment(&[
            ("PATH", "/usr/bin"),
            ("HOME", "/home/a"),
            ("SOME_API_KEY", " 12345678\n"),
            ("gh_token", "abcdefghij"),
            ("DB_PASSWORD", "short"),
            ("OTHER_SECRET", "abcdefghij"),
            ("EDITOR", "longer than eight"),
        ]);
        assert_eq!(environment.secrets(), ["12345678", "abcdefghij"]);
        let passed: Vec<String> = environment.for_commands().into_keys().collect();
        assert_eq!(passed, ["HOME", "PATH"]);
    }

    #[test]
    fn the_first_proxy_that_is_named_counts() {
        assert_eq!(environment(&[("HTTPS_PROXY", " "), ("PATH", "/bin")]).proxy(), None);
        let both = environment(&[("HTTPS_PROXY", ""), ("http_proxy", "b:1"), ("https_proxy", "a:1 ")]);
        assert_eq!(both.proxy(), Some(("https_proxy", "a:1")));
    }

    #[test]
    fn state_is_kept_where_the_user_says() {
        let folder = |variables: &[(&str, &str)]| environment(variables).state_folder();
        assert_eq!(folder(&[("HOME", "/home/a")]), Some("/home/a/.local/state/toolwarden".into()));
        assert_eq!(folder(&[("HOME", "/home/a"), ("XDG_STATE_HOME", "/s")]), Some("/s/toolwarden".into()));
        assert_eq!(folder(&[("HOME", "relative"), ("XDG_STATE_HOME", "")]), None);
        let folder = |variables: &[(&str, &str)]| environment(variables).cache_folder();
        assert_eq!(folder(&[("HOME", "/home/a")]), Some("/home/a/.cache/toolwarden".into()));
        assert_eq!(folder(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c")]), Some("/c/toolwarden".into()));
    }

    #[test]
    fn an_empty_name_is_no_store() {
        assert_eq!(environment(&[("TOOLWARDEN_STORE", "")]).store(), None);
        assert_eq!(environment(&[("TOOLWARDEN_STORE", "/a")]).store().unwrap().to_str(), Some("/a"));
    }

    #[test]
    fn a_dumb_or_unknown_terminal_is_not_drawn_on() {
        assert!(environment(&[("TERM", "xterm-256color")]).terminal_can_draw());
        assert!(!environment(&[("TERM", "dumb")]).terminal_can_draw());
        assert!(!environment(&[("TERM", "")]).terminal_can_draw());
        assert!(!environment(&[]).terminal_can_draw());
    }
}
