//! The sandbox as a host asks for it: of a session, for bash and git, told in results.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::embedding::RuntimeBuilder;
use toolwarden::prelude::*;
use toolwarden_tools::effects::processes::Processes;
use toolwarden_tools::effects::processes::confinement::kernel::KernelSupport;
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::web::ssrf::Origin;

use super::field::Field;
use crate::command::{environment, guarded};

/// Calls tools in a session with this sandbox.
fn results(
    field: &Field,
    processes: Arc<dyn Processes>,
    sandbox: Confinement,
    calls: &[(&str, Value)],
) -> Vec<Arc<CallResult>> {
    results_allowing(field, processes, sandbox, calls, &[])
}

/// The same, where tools may ask these private origins.
fn results_allowing(
    field: &Field,
    processes: Arc<dyn Processes>,
    sandbox: Confinement,
    calls: &[(&str, Value)],
    origins: &[Origin],
) -> Vec<Arc<CallResult>> {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        let builder = Runtime::builder().processes(processes).environment(environment(""));
        let builder = origins.iter().cloned().fold(builder, RuntimeBuilder::allow_origin);
        let runtime = builder.build().await.unwrap();
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

/// The tools that run no command keep to it by themselves, and say which option holds them.
pub(crate) fn other_tools_keep_to_it() {
    let field = Field::new();
    let made = field.run("git init -q . && git add file && git -c user.name=a -c user.email=a@b commit -qm 1", None);
    assert!(made.is_success);
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let url = format!("http://{}/thing", server.local_addr().unwrap());
    let before = std::fs::read(field.work.join("file")).unwrap();
    let old = String::from_utf8(before.clone()).unwrap();
    let batch = json!({"invocations": [{"tool": "write", "args": {"file_path": "made", "content": "x"}}]});
    let diff = format!("--- a/file\n+++ b/file\n@@ -1,1 +1,1 @@\n-{}\n+new\n", old.lines().next().unwrap());
    let changes = [
        ("write", json!({"file_path": "made", "content": "x"})),
        ("edit", json!({"file_path": "file", "old_string": old.trim_end(), "new_string": "new"})),
        ("patch", json!({"diff": diff})),
        ("git", json!({"command": "branch", "subcommand": "create", "name": "new"})),
        ("git", json!({"command": "stash", "message": "away"})),
        ("git", json!({"command": "checkout", "ref": "HEAD", "force": true})),
        ("git", json!({"command": "worktree", "subcommand": "create", "name": "w"})),
        ("download", json!({"url": url, "file_path": "got"})),
        ("download", json!({"url": url})),
    ];
    let reads = [
        ("read", json!({"file_path": "file"})),
        ("ls", json!({})),
        ("search", json!({"mode": "grep", "query": "."})),
        ("git", json!({"command": "status"})),
        ("git", json!({"command": "diff"})),
        bash("cat file"),
    ];
    let calls = [&changes[..], &[("batch", batch)], &reads[..]].concat();
    let origin = [Origin::parse(&format!("http://{}", server.local_addr().unwrap())).unwrap()];
    let read_only = Confinement::new(FileAccess::ReadOnly);
    let results = results_allowing(&field, Arc::new(guarded()), read_only, &calls, &origin);
    for (result, (tool, arguments)) in results.iter().zip(&calls).take(changes.len()) {
        let kind = &result.error_kind;
        assert!(matches!(kind, Some(ToolErrorKind::Unsupported { .. })), "{tool} {arguments}: {kind:?}");
        assert!(result.output.contains("--sandbox read-only"), "{tool} {arguments}: {}", result.output);
    }
    let nested = &results[changes.len()];
    assert!(!nested.is_success() && nested.output.contains("--sandbox read-only"), "{}", nested.output);
    for (result, (tool, _)) in results.iter().zip(&calls).skip(changes.len() + 1) {
        assert!(result.is_success(), "{tool}: {}", result.output);
    }
    assert_eq!(std::fs::read(field.work.join("file")).unwrap(), before);
    assert!(!field.work.join("made").exists() && !field.work.join("got").exists());

    // Without a network nothing is asked, whatever the files may be; a workspace that may be written is.
    let offline = Confinement::new(FileAccess::WorkspaceWrite).without_network();
    let results = results_allowing(&field, Arc::new(guarded()), offline, &calls[..9], &origin);
    assert!(results[0].is_success() && results[3].is_success(), "{} {}", results[0].output, results[3].output);
    for result in &results[7..] {
        assert!(matches!(result.error_kind, Some(ToolErrorKind::Unsupported { .. })), "{:?}", result.error_kind);
        assert!(result.output.contains("--no-network"), "{}", result.output);
    }
    assert!(matches!(server.accept(), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "it was asked");
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
