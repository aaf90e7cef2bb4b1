//! `git remote`: the remotes and their addresses, without the passwords in them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::intake::{Kept, shown};
use super::listing::{LIST_LIMIT_DEFAULT, page_of, page_request};
use super::parameter::Parameters;
use super::program::Git;
use crate::builtin::reach::{Step, wrong};
use crate::outcome::ToolOutcome;

/// Where a remote is read from and written to.
#[derive(Debug, Default)]
struct Addresses {
    fetch: Vec<String>,
    push: Vec<String>,
}

/// Lists one page of the remotes.
pub(super) async fn list(git: &Git<'_>, parameters: &Parameters, arguments: &Value) -> Step<ToolOutcome> {
    let page = page_request(arguments, LIST_LIMIT_DEFAULT)?;
    let keys = ["config", "-z", "--get-regexp", "^remote\\..*\\.(url|pushurl)$"];
    let ran = git.run(&keys, Kept::default()).await?;
    // Exit code 1: there are none.
    let printed = if ran.code == 1 { Kept::default() } else { git.wanted(ran)? };
    let mut remotes: BTreeMap<String, Addresses> = BTreeMap::new();
    for field in printed.fields() {
        let (key, address) = match field.iter().position(|byte| *byte == b'\n') {
            Some(end) => (shown(&field[..end]), without_password(&shown(&field[end + 1..]))),
            None => continue,
        };
        let Some((name, kind)) = key.strip_prefix("remote.").and_then(|key| key.rsplit_once('.')) else { continue };
        let addresses = remotes.entry(name.to_owned()).or_default();
        if kind == "url" { addresses.fetch.push(address) } else { addresses.push.push(address) }
    }
    if let Some(wanted) = &parameters.remote_name {
        remotes.retain(|name, _| name == wanted);
        if remotes.is_empty() {
            return Err(wrong(format!("git remote: there is no remote {wanted}; leave remote_name out to see all")));
        }
    }
    let remotes: Vec<(String, Addresses)> = remotes.into_iter().collect();
    let (mut text, facts) = page_of(&page, &remotes, |(name, addresses)| {
        let push = if addresses.push.is_empty() { &addresses.fetch } else { &addresses.push };
        let mut line = format!("{name} {}", addresses.fetch.join(" "));
        if *push != addresses.fetch {
            line.push_str(&format!(" (push: {})", push.join(" ")));
        }
        line
    })?;
    if remotes.is_empty() {
        text.push_str("There are no remotes.\n");
    }
    let names: Vec<&str> = remotes.iter().map(|(name, _)| name.as_str()).collect();
    Ok(ToolOutcome::success(text)
        .with("count", facts.returned_items)
        .with("remotes", json!(names))
        .with("page", facts.to_value()))
}

/// An address without the name and password before its host; `git@host:path` has no password and stays.
fn without_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match host.rsplit_once('@') {
        Some((user, host)) if scheme != "ssh" || user.contains(':') => format!("{scheme}://{host}{path}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn passwords_in_addresses_are_not_shown() {
        for (address, shown) in [
            ("https://me:zz9@host/x.git", "https://host/x.git"),
            ("https://token@host/x@y", "https://host/x@y"),
            ("ssh://git@host/x", "ssh://git@host/x"),
            ("ssh://git:zz9@host/x", "ssh://host/x"),
            ("git@host:x.git", "git@host:x.git"),
            ("../other", "../other"),
        ] {
            assert_eq!(without_password(address), shown);
        }
    }
}
