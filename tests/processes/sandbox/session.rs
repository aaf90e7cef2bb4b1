//! The sandbox as a host asks for it: of a session, for bash and git, told in results.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::prelude::*;
use toolwarden_tools::effects::processes::Processes;
use toolwarden_tools::effects::processes::confinement::kernel::KernelSupport;
use toolwarden_tools::effects::processes::system::SystemProcesses;

use super::field::Field;
use crate::command::{environment, guarded};

/// Calls tools in a session with this sandbox.
fn results(
    field: &Field,
    processes: Arc<dyn Processes>,
    sandbox: Confinement,
    calls: &[(&str, Value)],
) -> Vec<Arc<CallResult>> {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        let runtime = Runtime::builder().processes(processes).environment(environment("")).build().await.unwrap();
        let session = runtime.session(&field.work).sandbox(sandbox).open().await.unwrap();
        let mut results = Vec::new();
        for (tool, arguments) in calls {
            results.push(session.tool(tool, arguments.clone()).await.unwrap());
        }
        runtime.shut_down().await;
        results
    })
}

fn bash(line: &str) -> (&'static str, Value) {
    ("bash", json!({"command": line}))
}

pub(crate) fn bash_and_git_run_in_it_and_tell() {
    let field = Field::new();
    assert!(
        field
            .run("git init -q . && git add file && git -c user.name=a -c user.email=a@b commit -qm 1", None)
            .is_success
    );
    let out = field.outside.display();
    let calls = [
        bash("echo x >inside"),
        bash(&format!("echo x >'{out}/new'")),
        bash("perl -e 'socket(S, 2, 1, 0) or die'"),
        ("git", json!({"command": "status"})),
        ("git", json!({"command": "branch", "subcommand": "create", "name": "new"})),
        ("batch", json!({"invocations": [{"tool": "bash", "args": {"command": format!("echo x >'{out}/new'")}}]})),
    ];
    for (files, expected) in [
        (FileAccess::WorkspaceWrite, [true, false, false, true, true]),
        (FileAccess::ReadOnly, [false, false, false, true, false]),
    ] {
        let _ = std::fs::remove_file(field.work.join("inside"));
        let sandbox = Confinement::new(files).without_network();
        let results = results(&field, Arc::new(guarded()), sandbox, &calls);
        let succeeded: Vec<bool> = results.iter().map(|result| result.is_success()).collect();
        let told: Vec<&str> = results.iter().map(|result| result.output.as_str()).collect();
        assert_eq!(succeeded[..5], expected, "{files:?}: {told:?}");
        for result in &results[..3] {
            assert_eq!(result.metadata["sandboxed"], json!(true));
            assert_eq!(result.metadata["sandbox"], json!({"files": files.as_str(), "network": "off"}));
            assert_eq!(result.metadata["containment"], json!({"level": "sub_reaper", "survivors": []}));
        }
        assert!(!field.outside.join("new").exists(), "{files:?}: {told:?}");
        assert!(told[5].contains("ermission denied"), "{}", told[5]);
    }
    let results = results(&field, Arc::new(guarded()), Confinement::default(), &calls[..2]);
    assert_eq!(results[0].metadata["sandboxed"], json!(false));
    assert_eq!(results[0].metadata["sandbox"], json!({"files": "off", "network": "on"}));
    assert!(results[1].is_success());
}

/// Where it cannot be had, every command is refused and says what to do.
pub(crate) fn it_is_refused_and_never_skipped() {
    let field = Field::new();
    let calls = [bash("echo x >made"), ("git", json!({"command": "status"}))];
    let no_landlock = KernelSupport { landlock_abi: 0, seccomp: true };
    let runners: [(Arc<dyn Processes>, &str); 2] =
        [(Arc::new(SystemProcesses), "with_shim"), (Arc::new(guarded().on_kernel(no_landlock)), "no Landlock")];
    for (runner, word) in runners {
        for result in results(&field, runner, Confinement::new(FileAccess::WorkspaceWrite), &calls) {
            assert!(matches!(result.error_kind, Some(ToolErrorKind::Unsupported { .. })), "{:?}", result.error_kind);
            assert!(result.output.contains(word), "{}", result.output);
        }
        assert!(!field.work.join("made").exists());
    }
}
