//! The environment of a command: a short list of variables from the host, fixed settings, and what a call adds.
//!
//! A command that sees a provider's key can print it, and what is printed goes to the model. So it is a list of
//! what may pass, not of what may not; and a name that looks like a secret's never passes, whatever the list says.

use std::collections::BTreeMap;

use serde_json::Value;

/// Most variables that one call may add.
pub(super) const ADDITIONS_MAX: usize = 64;
/// Longest value that a call may add, in bytes.
const VALUE_BYTES_MAX: usize = 32 * 1024;
/// Longest name that a call may add, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Variables that pass from the host.
const ALLOWED: [&str; 38] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TMP",
    "TEMP",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "CARGO_TARGET_DIR",
    "GOPATH",
    "GOROOT",
    "GOCACHE",
    "GOMODCACHE",
    "JAVA_HOME",
    "NVM_DIR",
    "PNPM_HOME",
    "PYENV_ROOT",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "GEM_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "CI",
    "NO_COLOR",
    "SOURCE_DATE_EPOCH",
];
/// Variables that pass, in either case, when they hold no credentials.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];
/// Parts of a name that looks like a secret's.
const SECRET_PARTS: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];
/// What every command gets: nobody can type or page, and nothing is drawn.
const FIXED: [(&str, &str); 4] =
    [("TERM", "dumb"), ("PAGER", "cat"), ("GIT_PAGER", "cat"), ("GIT_TERMINAL_PROMPT", "0")];
/// Where programs are looked for when the host names no place.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables that would change which program runs or what a shell does before its first command.
const REFUSED: [&str; 9] =
    ["PATH", "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "IFS", "PS4", "PROMPT_COMMAND", "GLOBIGNORE"];

/// Whether a variable of the host may pass to a command.
pub(super) fn is_allowed(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    // An address of a proxy may carry a name and a password.
    let proxy = PROXIES.contains(&upper.as_str()) && !value.contains('@');
    let listed = ALLOWED.contains(&name) || name.starts_with("LC_") || proxy;
    listed && !SECRET_PARTS.iter().any(|part| upper.contains(part))
}

/// The variables that a call adds.
#[derive(Debug, Default)]
pub(super) struct Additions(BTreeMap<String, String>);

impl Additions {
    /// Takes the argument `env`.
    ///
    /// # Errors
    /// What is wrong with which variable.
    pub(super) fn from_arguments(arguments: &Value) -> Result<Self, String> {
        let mut variables = BTreeMap::new();
        for (name, value) in arguments.get("env").and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            check(name, value)?;
            variables.insert(name.clone(), value.to_owned());
        }
        if variables.len() > ADDITIONS_MAX {
            return Err(format!("env: at most {ADDITIONS_MAX} variables can be added"));
        }
        Ok(Self(variables))
    }

    /// The whole environment: the host's, the fixed settings over it, and these over both.
    pub(super) fn over(self, host: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut environment = host.clone();
        environment.extend(FIXED.map(|(name, value)| (name.to_owned(), value.to_owned())));
        environment.entry("PATH".to_owned()).or_insert_with(|| PATH_DEFAULT.to_owned());
        environment.extend(self.0);
        environment
    }
}

fn check(name: &str, value: &str) -> Result<(), String> {
    let mut letters = name.bytes();
    let starts = letters.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if !starts || !letters.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') || name.len() > NAME_BYTES_MAX {
        return Err(format!("env: {name:?} is no name of a variable; use letters, digits and _, not a digit first"));
    }
    if REFUSED.contains(&name) || name.starts_with("LD_") {
        return Err(format!("env: {name} would change which programs run; set it in the command itself"));
    }
    if value.contains('\0') {
        return Err(format!("env: the value of {name} holds a NUL character, which no variable can"));
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(format!("env: the value of {name} has {} bytes; at most {VALUE_BYTES_MAX} are taken", value.len()));
    }
    Ok(())
}

/// A value as a shell reads it back, whatever it holds.
pub(super) fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Additions, is_allowed, quoted};

    // Case C012: what is not on the list does not pass, and no name of a secret ever does.
    #[test]
    fn only_listed_names_pass() {
        for name in ["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CARGO_HOME"] {
            assert!(is_allowed(name, "x"), "{name}");
        }
        for name in [
            "FAKE_API_KEY",
            "OPENAI_API_KEY",
            "LC_TOKEN",
            "LC_my_key",
            "SSH_AUTH_SOCK",
            "LD_PRELOAD",
            "BASH_ENV",
            "path",
            "",
        ] {
            assert!(!is_allowed(name, "x"), "{name}");
        }
        assert!(is_allowed("https_proxy", "http://proxy:3128"));
        assert!(!is_allowed("https_proxy", "http://me:zz9@proxy:3128"));
    }

    #[test]
    fn additions_are_checked_one_by_one() {
        let added = |env: serde_json::Value| Additions::from_arguments(&json!({"env": env}));
        let environment =
            added(json!({"A": "1", "TERM": "xterm"})).unwrap().over(&[("HOME".into(), "/h".into())].into());
        assert_eq!((environment["A"].as_str(), environment["TERM"].as_str()), ("1", "xterm"));
        assert_eq!((environment["HOME"].as_str(), environment["GIT_TERMINAL_PROMPT"].as_str()), ("/h", "0"));
        assert!(environment["PATH"].contains("/usr/bin"));
        for (name, value) in [
            ("PATH", "."),
            ("LD_PRELOAD", "x"),
            ("BASH_ENV", "x"),
            ("ENV", "x"),
            ("1A", "x"),
            ("A-B", "x"),
            ("", "x"),
            ("A=B", "x"),
            ("BASH_FUNC_ls%%", "() { :; }"),
            ("A", "nul\0"),
            ("A", &"x".repeat(40_000)),
        ] {
            assert!(added(json!({name: value})).is_err(), "{name}");
        }
        assert!(Additions::from_arguments(&json!({})).unwrap().0.is_empty());
    }

    #[test]
    fn quoting_is_what_a_shell_reads_back() {
        assert_eq!(quoted("it's $HOME\n"), "'it'\\''s $HOME\n'");
    }
}
