//! Levels: which there are here, and that what there is not is refused with the reason.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolwarden::embedding::BuildError;
use toolwarden::prelude::*;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::processes::containment::{
    CgroupLimit, CgroupPlan, CommandLimits, Containment, Unavailable,
};
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{
    CommandSpec, ContainmentLevel, ProcessEnd, ProcessError, ProcessStatus, Processes,
};

use crate::command::{Heard, contained, spec};
use crate::trace;

/// Every level that needs a shim.
pub(crate) fn all() -> [Containment; 3] {
    [Containment::SubReaper, Containment::PidNamespace, Containment::Cgroup(CgroupPlan::default())]
}

/// The level of this name.
pub(crate) fn named(name: &str) -> Containment {
    all().into_iter().find(|containment| containment.level().as_str() == name).unwrap()
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Runs a command at a level; what it printed comes with it.
pub(crate) async fn run(containment: &Containment, command: CommandSpec) -> (Result<ProcessEnd, ProcessError>, String) {
    let heard = Heard::new();
    let end = contained(containment).run(command, heard.clone(), Cancellation::new()).await;
    (end, heard.out())
}

/// Whether the level is available. If it is not, a command must be refused with the very reason, and not run.
pub(crate) fn is_available_or_refused(containment: &Containment) -> bool {
    block_on(async {
        let Err(reason) = contained(containment).probe().await else { return true };
        // This one needs nothing.
        assert_ne!(containment.level(), ContainmentLevel::SubReaper, "{reason}");
        is_refused(containment, &reason).await;
        println!("  {} is not available here, and refused: {reason}", containment.level().as_str());
        false
    })
}

async fn is_available(containment: &Containment) -> bool {
    contained(containment).probe().await.is_ok()
}

async fn is_refused(containment: &Containment, why: &Unavailable) {
    let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
    let ran = folder.path().join("ran");
    let (end, _) = run(containment, spec(&format!("echo ran >'{}'", ran.display()), &mark)).await;
    let error = end.unwrap_err();
    let text = error.to_string();
    match error {
        ProcessError::Containment { level, reason, .. } => {
            assert_eq!((level, &reason), (containment.level(), why));
            assert!(text.contains(level.as_str()) && text.contains(&reason.to_string()), "{text}");
        }
        _ => panic!("{text}"),
    }
    assert!(!ran.exists());
    assert_eq!(trace::living(&mark), []);
}

/// The cgroups that this program's shims have made and not removed.
pub(crate) fn cgroups() -> Vec<PathBuf> {
    let folders = own_cgroup().into_iter().chain(LIMITS.into_iter().filter_map(own_hierarchy));
    let entries = folders.flat_map(|own| std::fs::read_dir(own).into_iter().flatten().flatten());
    let is_ours = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("toolwarden-");
    entries.filter(is_ours).map(|entry| entry.path()).collect()
}

/// The cgroup v2 folder that this program is in; found as plainly as a test may.
pub(crate) fn own_cgroup() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?.split(' ').nth(1)?.to_owned();
    Some(PathBuf::from(mount).join(own)).filter(|folder| folder.is_dir())
}

const LIMITS: [CgroupLimit; 2] = [CgroupLimit::Processes, CgroupLimit::Memory];

/// The folder that this program is in where the controller of a limit has a hierarchy of its own.
fn own_hierarchy(limit: CgroupLimit) -> Option<PathBuf> {
    let named = |list: &str| list.split(',').any(|name| name == limit.controller());
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>()).find(|parts| named(parts[1]))?;
    let own = own[2].trim_start_matches('/').to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.find(|parts| parts[2] == "cgroup" && named(parts[3]))?[1].to_owned();
    Some(PathBuf::from(mount).join(own)).filter(|folder| folder.is_dir())
}

pub(crate) fn what_is_not_available_is_refused() {
    block_on(async {
        let parent =
            |folder: &str| Containment::Cgroup(CgroupPlan { parent: Some(folder.into()), ..CgroupPlan::default() });
        let absent = Unavailable::CgroupMake { parent: "/no/such/folder".into(), errno: 2 };
        is_refused(&parent("/no/such/folder"), &absent).await;
        // A folder in which everything can be made, and nothing of it is a cgroup.
        let folder = tempfile::tempdir().unwrap();
        let plain = Unavailable::CgroupKill { parent: folder.path().to_owned() };
        is_refused(&parent(folder.path().to_str().unwrap()), &plain).await;
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it was left as it was");
        // Nobody may make one in /proc, not even root.
        let probed = contained(&parent("/proc")).probe().await.unwrap_err();
        assert!(matches!(probed, Unavailable::CgroupMake { .. }), "{probed}");
    });
}

pub(crate) fn limits_hold_or_are_refused() {
    let plan = |processes_max, memory_bytes_max| {
        Containment::Cgroup(CgroupPlan { parent: None, processes_max, memory_bytes_max })
    };
    if !is_available_or_refused(&plan(None, None)) {
        return;
    }
    let (processes, memory) = (plan(Some(20), None), plan(None, Some(64 << 20)));
    for (limited, limit) in [(&processes, CgroupLimit::Processes), (&memory, CgroupLimit::Memory)] {
        let probed = block_on(contained(limited).probe());
        let controllers = std::fs::read_to_string(own_cgroup().unwrap().join("cgroup.controllers")).unwrap();
        let is_there = controllers.split_ascii_whitespace().any(|controller| controller == limit.controller());
        if is_there || own_hierarchy(limit).is_some() {
            if let Err(reason) = &probed {
                assert!(matches!(reason, Unavailable::CgroupLimit { .. }), "{reason}");
                // In a folder of its own hierarchy root can always set it.
                assert!(is_there || !nix::unistd::geteuid().is_root(), "{reason}");
            }
        } else {
            let reason = probed.clone().unwrap_err();
            assert!(matches!(reason, Unavailable::CgroupLimit { limit: told, .. } if told == limit), "{reason}");
        }
        match probed {
            Ok(()) => holds(limited, limit),
            Err(reason) => {
                block_on(is_refused(limited, &reason));
                println!("  {} is not available here, and refused: {reason}", limit.file());
            }
        }
    }
}

/// Tries to start 40 processes and prints how many it came to. Not in bash, which tries for 15 seconds again.
const CROWD: &str =
    r#"perl -e 'for (1..40) { $p = fork; if (defined $p) { $p or exec "sleep", 600; $n++ } } print "$n\n"'"#;

/// A session's limits hold for its commands and for no others; where they cannot be held it does not open, and says why.
pub(crate) fn a_session_has_limits_or_does_not_open() {
    let folder = tempfile::tempdir().unwrap();
    let limits = CommandLimits { processes_max: Some(12), memory_bytes_max: None };
    let crowd = json!({"command": CROWD});
    block_on(async {
        let held = contained(&Containment::SubReaper);
        let runtime = Runtime::builder().processes(Arc::new(held.clone())).build().await.unwrap();
        let free = runtime.session(folder.path()).open().await.unwrap();
        match runtime.session(folder.path()).command_limits(limits).open().await {
            Ok(limited) => {
                let result = limited.tool("bash", crowd.clone()).await.unwrap();
                assert_eq!(result.metadata["containment"], json!({"level": "cgroup", "survivors": []}));
                let count = result.output.lines().find_map(|line| line.trim().parse::<u32>().ok());
                assert!(count.is_some_and(|count| (1..12).contains(&count)), "{}", result.output);
                limited.close().await;
                trace::vanishes(cgroups).expect("cgroups");
            }
            Err(error) => {
                let reason = held.limited(limits).await.err().unwrap();
                assert!(error.to_string().contains(&reason.to_string()), "{error}");
                println!("  limits are not available here, and refused: {reason}");
            }
        }
        let result = free.tool("bash", crowd).await.unwrap();
        assert!(result.output.starts_with("40\n"), "{}", result.output);
        assert_eq!(result.metadata["containment"]["level"], "sub_reaper");
        runtime.shut_down().await;

        // Runners that can hold none, and limits under which nothing runs.
        let runners: [Arc<dyn Processes>; 2] =
            [Arc::new(SystemProcesses), Arc::new(contained(&Containment::PidNamespace))];
        for (runner, level) in runners.into_iter().zip(["group", "pid_namespace"]) {
            let runtime = Runtime::builder().processes(runner).build().await.unwrap();
            let refused = runtime.session(folder.path()).command_limits(limits).open().await.err().unwrap();
            assert!(matches!(refused, BuildError::Limits(Unavailable::Limits { .. })), "{refused}");
            assert!(refused.to_string().contains(level), "{refused}");
            runtime.shut_down().await;
        }
        let none = CommandLimits { processes_max: Some(0), memory_bytes_max: None };
        assert!(matches!(held.limited(none).await, Err(Unavailable::LimitRange { least: 1, .. })));
    });
}

// The level is the session's: two of one runtime do not share it.
pub(crate) fn a_session_may_be_held_more_strictly() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let runtime = Runtime::builder().processes(Arc::new(contained(&Containment::SubReaper))).build().await.unwrap();
        let ordinary = runtime.session(folder.path()).open().await.unwrap();
        for containment in all() {
            let strict = runtime.session(folder.path()).processes(Arc::new(contained(&containment)));
            let strict = strict.open().await.unwrap();
            let level = containment.level().as_str();
            let result = strict.tool("bash", json!({"command": "echo ran"})).await.unwrap();
            if is_available(&containment).await {
                assert_eq!(result.output, "ran\n");
                assert_eq!(result.metadata["containment"]["level"], level);
            } else {
                assert!(!result.is_success() && result.output.contains(level), "{}", result.output);
            }
            let result = ordinary.tool("bash", json!({"command": "echo ran"})).await.unwrap();
            assert_eq!(result.metadata["containment"]["level"], "sub_reaper");
            strict.close().await;
        }
        runtime.shut_down().await;
    });
}

/// A command that wants more than it may have does not get it.
fn holds(limited: &Containment, limit: CgroupLimit) {
    let mark = trace::unique_mark();
    let line = match limit {
        CgroupLimit::Processes => CROWD,
        CgroupLimit::Memory => "head -c 256M /dev/zero | tail -c 255M | wc -c",
    };
    let command = CommandSpec { drain: Duration::from_secs(1), ..spec(line, &mark) };
    let (end, out) = block_on(run(limited, command));
    assert_eq!(end.unwrap().survivors, Vec::<u32>::new());
    match limit {
        CgroupLimit::Processes => {
            assert!(out.trim().parse::<u32>().is_ok_and(|count| (1..20).contains(&count)), "{out}")
        }
        CgroupLimit::Memory => assert_ne!(out.trim(), (255_u64 << 20).to_string()),
    }
    assert_eq!(trace::living(&mark), []);
}

/// How a command ends that did what it should.
pub(crate) const EXITED: ProcessStatus = ProcessStatus::Exited { code: 0 };
