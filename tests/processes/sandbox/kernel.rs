//! The kernel's side: calls that are refused, and what happens where the kernel cannot refuse them.

use toolwarden_tools::effects::processes::confinement::kernel::{KernelSupport, LANDLOCK_ABI_MIN};
use toolwarden_tools::effects::processes::confinement::{ConfinementError, FileAccess, Step};
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{ProcessError, Processes};

use super::field::{Field, ran, ran_by};
use crate::command::guarded;

/// Calls by number with arguments that do nothing, and the error that they are refused with.
#[cfg(target_arch = "x86_64")]
const CALLS: &[(&str, &str, i32)] = &[
    ("ptrace", "101, 0, 0, 0, 0", 1),
    ("process_vm_readv", "310, 1, 0, 0, 0, 0, 0", 1),
    ("process_vm_writev", "311, 1, 0, 0, 0, 0, 0", 1),
    ("pidfd_getfd", "438, -1, 0, 0", 1),
    ("kcmp", "312, 1, 1, 0, 0, 0", 1),
    ("name_to_handle_at", "303, -1, 0, 0, 0, 0", 1),
    ("open_by_handle_at", "304, -1, 0, 0", 1),
    ("fanotify_init", "300, -1, 0", 1),
    ("mount", "165, 0, 0, 0, 0, 0", 1),
    ("umount2", "166, 0, -1", 1),
    ("pivot_root", "155, 0, 0", 1),
    ("chroot", "161, 0", 1),
    ("fsopen", "430, 0, -1", 1),
    ("open_tree", "428, -1, 0, -1", 1),
    ("move_mount", "429, -1, 0, -1, 0, -1", 1),
    ("mount_setattr", "442, -1, 0, -1, 0, 0", 1),
    ("setns", "308, -1, 0", 1),
    ("unshare of users", "272, 0x10000000", 1),
    ("unshare of mounts", "272, 0x20000", 1),
    ("clone into a namespace", "56, 0x10000000, 0, 0, 0, 0", 1),
    ("keyctl", "250, -1, 0, 0, 0, 0", 1),
    ("add_key", "248, 0, 0, 0, 0, 0", 1),
    ("bpf", "321, -1, 0, 0", 1),
    ("perf_event_open", "298, 0, 0, 0, 0, 0", 1),
    ("userfaultfd", "323, -1", 1),
    ("init_module", "175, 0, 0, 0", 1),
    ("syslog", "103, -1, 0, 0", 1),
    ("typing into a terminal", "16, 0, 0x5412, 0", 1),
    ("clone3", "435, 0, 0", 38),
    ("io_uring_setup", "425, 1, 0", 38),
    ("io_uring_enter", "426, -1, 0, 0, 0, 0, 0", 38),
    ("a call with short pointers", "0x40000000 + 101, 0, 0, 0, 0", 38),
];

#[cfg(target_arch = "x86_64")]
pub(crate) fn calls_are_refused() {
    let field = Field::new();
    for confinement in [
        field.confinement(FileAccess::ReadOnly),
        field.confinement(FileAccess::WorkspaceWrite).with_local_sockets(),
        field.confinement(FileAccess::Off).without_network(),
    ] {
        for (name, call, errno) in CALLS {
            let line = format!("perl -e 'print syscall({call}), \" \", $!+0'");
            let ran = field.run(&line, Some(&confinement));
            assert_eq!(ran.text, format!("-1 {errno}"), "{name}, {confinement:?}");
        }
    }
    // What they answer without a sandbox is something else, or the filter would not be what is seen here.
    let line = |call: &str| format!("perl -e 'print syscall({call}), \" \", $!+0'");
    for call in ["101, 0, 0, 0, 0", "303, -1, 0, 0, 0, 0", "250, -1, 0, 0, 0, 0", "435, 0, 0", "425, 1, 0"] {
        let ran = field.run(&line(call), None);
        assert!(ran.text != "-1 1" && ran.text != "-1 38", "{call}: {}", ran.text);
    }
    // Threads and processes are made as ever.
    let forked = field.run(
        "perl -e 'my $p = fork; exit 7 if !$p; waitpid($p, 0); print $? >> 8'",
        Some(&field.confinement(FileAccess::ReadOnly)),
    );
    assert_eq!(forked.text, "7");
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn calls_are_refused() {}

/// This machine has what the other tests need, or they would prove nothing.
pub(crate) fn this_kernel_has_it() {
    let found = KernelSupport::of_this_machine();
    assert!(found.seccomp && found.landlock_abi >= LANDLOCK_ABI_MIN, "{found:?}");
}

pub(crate) fn what_the_kernel_lacks_refuses_commands() {
    let field = Field::new();
    let made = field.work.join("made");
    let kernel = |landlock_abi, seccomp| guarded().on_kernel(KernelSupport { landlock_abi, seccomp });
    let run = |processes: &dyn Processes, files, is_offline: bool| {
        let confinement = field.confinement(files);
        let confinement = if is_offline { confinement.without_network() } else { confinement };
        ran_by(processes, field.command("echo x >made", Some(&confinement)))
    };
    for (abi, seccomp) in [(0, true), (1, true), (2, true), (7, false), (0, false)] {
        for files in [FileAccess::ReadOnly, FileAccess::WorkspaceWrite] {
            match run(&kernel(abi, seccomp), files, false) {
                Err(ProcessError::Unconfined { source: ConfinementError::NoLandlock { abi: told }, .. }) => {
                    assert_eq!(told, abi);
                }
                Err(ProcessError::Unconfined { source: ConfinementError::NoSeccomp, .. }) => assert!(!seccomp),
                other => panic!("{abi} {seccomp}: {:?}", other.map(|ran| ran.text)),
            }
        }
    }
    let refused = run(&kernel(7, false), FileAccess::Off, true);
    assert!(matches!(refused, Err(ProcessError::Unconfined { source: ConfinementError::NoSeccomp, .. })));
    assert!(!made.exists(), "nothing ran");
    // Without files to confine, Landlock is not needed; and nothing is needed for nothing.
    assert!(run(&kernel(0, true), FileAccess::Off, true).unwrap().is_success);
    std::fs::remove_file(&made).unwrap();
    assert!(ran_by(&kernel(0, false), field.command("echo x >made", None)).unwrap().is_success);
}

pub(crate) fn without_a_shim_commands_are_refused() {
    let field = Field::new();
    let confinement = field.confinement(FileAccess::WorkspaceWrite);
    match ran_by(&SystemProcesses, field.command("echo x >made", Some(&confinement))) {
        Err(ProcessError::Unconfined { source: error @ ConfinementError::NeedsShim, .. }) => {
            assert!(error.to_string().contains("with_shim"), "{error}");
        }
        other => panic!("{:?}", other.map(|ran| ran.text)),
    }
    assert!(!field.work.join("made").exists());
}

/// A step that fails on the way is told, and the command is not run.
pub(crate) fn a_failed_step_refuses_the_command() {
    let field = Field::new();
    let confinement = field.confinement(FileAccess::WorkspaceWrite);
    let mut command = field.command("echo x >made", Some(&confinement));
    // Nobody can make a folder there.
    command.environment.insert("TMPDIR".into(), "/proc".into());
    match ran(command) {
        Err(ProcessError::Unconfined { source: ConfinementError::Step { step: Step::Temporary, .. }, .. }) => {}
        other => panic!("{:?}", other.map(|ran| ran.text)),
    }
    let mut command = field.command("", Some(&confinement));
    command.program = "/no/such/shell".into();
    assert!(matches!(ran(command), Err(ProcessError::Start { .. })));
    assert!(!field.work.join("made").exists());
}
