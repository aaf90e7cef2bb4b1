//! Presets: the commands by which a project of a known kind is usually verified, by the files in its root.
//!
//! Pure: who looks into the workspace says what lies there. A project of two kinds gets the commands of both.

use std::collections::BTreeSet;

use serde_json::Value;

use super::VerificationCommand;

/// The most time that a build or a test of a preset gets, in milliseconds.
pub const BUILD_TIMEOUT_MS: u64 = 1_800_000;
/// The most time that a formatter or a linter of a preset gets, in milliseconds.
pub const LOOK_TIMEOUT_MS: u64 = 600_000;

/// What lies in the root of a project.
#[derive(Debug, Clone, Default)]
pub struct ProjectRoot {
    /// The names of its files.
    pub files: BTreeSet<String>,
    /// The text of `package.json`, where there is one that can be read.
    pub package_json: Option<String>,
}

/// The commands for what lies there, in a fixed order; none for a project of no known kind.
pub fn presets(root: &ProjectRoot) -> Vec<VerificationCommand> {
    let has = |name: &str| root.files.contains(name);
    let mut commands = Vec::new();
    if has("Cargo.toml") {
        commands.extend(rust());
    }
    if has("package.json") {
        commands.extend(node(root));
    }
    if ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "tox.ini"].into_iter().any(has) {
        commands.extend(python());
    }
    if has("go.mod") {
        commands.extend(go());
    }
    commands
}

fn rust() -> [VerificationCommand; 4] {
    [
        look("rust-fmt", "format", "the code is formatted", "cargo fmt --all --check", true),
        build("rust-check", "check", "all targets compile", "cargo check --workspace --all-targets", true),
        build("rust-test", "test", "the tests pass", "cargo test --workspace", true),
        build(
            "rust-clippy",
            "lint",
            "clippy finds nothing",
            "cargo clippy --workspace --all-targets -- -D warnings",
            false,
        ),
    ]
}

/// The package manager is the one whose lock file is there. The tests are always run, for a project without any is not
/// verified; of the rest only scripts that `package.json` has.
fn node(root: &ProjectRoot) -> Vec<VerificationCommand> {
    let locks = [("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lock", "bun"), ("bun.lockb", "bun")];
    let manager = locks.iter().find(|(lock, _)| root.files.contains(*lock)).map_or("npm", |(_, manager)| manager);
    let package: Option<Value> = root.package_json.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let has_script = |name: &str| {
        let script = package.as_ref().and_then(|package| package.get("scripts")?.get(name)?.as_str());
        script.is_some_and(|script| !script.trim().is_empty())
    };
    let mut commands = vec![build("node-test", "test", "the tests pass", &format!("{manager} run test"), true)];
    for (script, kind, description) in
        [("typecheck", "check", "the types fit"), ("lint", "lint", "the linter finds nothing")]
    {
        if has_script(script) {
            let id = format!("node-{script}");
            commands.push(build(&id, kind, description, &format!("{manager} run {script}"), false));
        }
    }
    commands
}

fn python() -> [VerificationCommand; 3] {
    [
        build("python-test", "test", "the tests pass", "python3 -m pytest", true),
        look("python-ruff", "lint", "ruff finds nothing", "ruff check .", false),
        look("python-mypy", "check", "the types fit", "mypy .", false),
    ]
}

fn go() -> [VerificationCommand; 2] {
    [
        build("go-test", "test", "the tests pass", "go test ./...", true),
        build("go-vet", "lint", "vet finds nothing", "go vet ./...", false),
    ]
}

fn build(id: &str, kind: &str, description: &str, command: &str, required: bool) -> VerificationCommand {
    VerificationCommand {
        id: id.to_owned(),
        kind: kind.to_owned(),
        description: description.to_owned(),
        command: command.to_owned(),
        required,
        timeout_ms: Some(BUILD_TIMEOUT_MS),
        expect_exit: 0,
    }
}

fn look(id: &str, kind: &str, description: &str, command: &str, required: bool) -> VerificationCommand {
    VerificationCommand { timeout_ms: Some(LOOK_TIMEOUT_MS), ..build(id, kind, description, command, required) }
}

#[cfg(test)]
mod tests {
    use super::{ProjectRoot, presets};
    use crate::verification::plan::check;

    fn found(files: &[&str], package_json: Option<&str>) -> Vec<(String, String, bool)> {
        let files = files.iter().map(|name| (*name).to_owned()).collect();
        let commands = presets(&ProjectRoot { files, package_json: package_json.map(str::to_owned) });
        check(&commands).unwrap();
        commands.into_iter().map(|command| (command.id, command.command, command.required)).collect()
    }

    fn line(id: &str, command: &str, required: bool) -> (String, String, bool) {
        (id.to_owned(), command.to_owned(), required)
    }

    #[test]
    fn each_kind_of_project_has_its_commands() {
        let rust: Vec<_> =
            found(&["Cargo.toml", "README.md"], None).into_iter().map(|found| (found.0, found.2)).collect();
        let wanted = [("rust-fmt", true), ("rust-check", true), ("rust-test", true), ("rust-clippy", false)];
        assert_eq!(rust, wanted.map(|(id, required)| (id.to_owned(), required)));
        let python = ["python-test", "python-ruff", "python-mypy"];
        for file in ["pyproject.toml", "setup.py", "requirements.txt"] {
            let ids: Vec<_> = found(&[file], None).into_iter().map(|found| found.0).collect();
            assert_eq!(ids, python, "{file}");
        }
        assert_eq!(
            found(&["go.mod"], None),
            [line("go-test", "go test ./...", true), line("go-vet", "go vet ./...", false)]
        );
        assert_eq!(found(&["README.md"], None), []);
        let both = found(&["Cargo.toml", "go.mod"], None);
        assert_eq!(both.len(), 6);
    }

    #[test]
    fn the_package_manager_is_the_one_of_the_lock_file_and_only_scripts_that_are_there_run() {
        let package = r#"{"scripts": {"test": "vitest", "lint": "eslint ."}}"#;
        for (lock, manager) in
            [("package-lock.json", "npm"), ("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lock", "bun")]
        {
            let wanted = [
                line("node-test", &format!("{manager} run test"), true),
                line("node-lint", &format!("{manager} run lint"), false),
            ];
            assert_eq!(found(&["package.json", lock], Some(package)), wanted);
        }
        assert_eq!(found(&["package.json"], Some("not json")), [line("node-test", "npm run test", true)]);
    }
}
