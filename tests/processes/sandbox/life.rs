//! Sandboxed commands are held like all others, and their temporary folder goes with them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use nix::sys::stat::Mode;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::processes::confinement::kernel::KernelSupport;
use toolwarden_tools::effects::processes::confinement::{Confinement, FileAccess};
use toolwarden_tools::effects::processes::{ProcessStatus, Processes as _};

use super::field::Field;
use crate::command::{Heard, guarded, spec};
use crate::{level, trace};

/// The temporary folders of sandboxed commands that there are.
pub(crate) fn temporary_folders() -> Vec<PathBuf> {
    let entries = fs::read_dir("/tmp").unwrap().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("toolwarden-"));
    named.map(|entry| entry.path()).collect()
}

pub(crate) fn a_temporary_folder_is_its_own_and_goes() {
    let field = Field::new();
    let confinement = field.confinement(FileAccess::ReadOnly);
    let line = "echo \"$TMPDIR\"; [ \"$TMP$TEMP\" = \"$TMPDIR$TMPDIR\" ] && stat -c %a \"$TMPDIR\"; \
                mkdir -p \"$TMPDIR/a/b\"; echo x >\"$TMPDIR/a/b/c\"; ln -s \"$OUT\" \"$TMPDIR/out\"; \
                mkdir -m 0 \"$TMPDIR/closed\"";
    let mut seen = Vec::new();
    for _ in 0..2 {
        let ran = field.run(line, Some(&confinement));
        let mut lines = ran.text.lines();
        let folder = PathBuf::from(lines.next().unwrap());
        assert_eq!(lines.next(), Some("700"), "{}", ran.text);
        trace::vanishes(|| fs::symlink_metadata(&folder).into_iter().collect()).expect("the folder is still there");
        assert!(!seen.contains(&folder));
        seen.push(folder);
    }
    assert!(field.outside.join("file").exists(), "a link is not followed");
    // It is made where the environment says.
    let place = field.outside.join("keys");
    let mut command = field.command("echo \"$TMPDIR\"", Some(&confinement));
    command.environment.insert("TMPDIR".into(), place.display().to_string());
    let ran = super::field::ran(command).unwrap();
    assert!(ran.text.starts_with(&format!("{}/toolwarden-", place.display())), "{}", ran.text);
    trace::vanishes(|| fs::read_dir(&place).unwrap().flatten().filter(|entry| entry.file_name() != "one").collect())
        .expect("left");
}

pub(crate) fn a_cancel_leaves_nothing() {
    let field = Field::new();
    let mark = trace::unique_mark();
    let confinement = field.confinement(FileAccess::WorkspaceWrite).without_network();
    let ready = field.work.join("ready");
    nix::unistd::mkfifo(&ready, Mode::S_IRWXU).unwrap();
    let line = "trap '' TERM; sleep 600 & setsid sleep 600 & (setsid sh -c 'trap \"\" TERM; sleep 600; :' &); \
                echo \"$TMPDIR\"; echo >ready; sleep 600; :";
    let mut command = field.command(line, Some(&confinement));
    command.environment.extend(spec("", &mark).environment);
    let heard = Heard::new();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        let stop = Cancellation::new();
        let processes = guarded();
        let running = processes.run(command, heard.clone(), stop.clone());
        let begin = async {
            let opened = tokio::task::spawn_blocking(move || fs::read(ready));
            opened.await.unwrap().unwrap();
            stop.cancel(CancelReason::Requested);
        };
        let (end, ()) = tokio::join!(running, begin);
        let end = end.unwrap();
        assert_eq!((end.stopped, end.survivors), (Some(CancelReason::Requested), vec![]));
    });
    assert_eq!(trace::living(&mark), []);
    let folder = PathBuf::from(heard.out().trim_end());
    assert!(folder.starts_with("/tmp"), "{folder:?}");
    trace::vanishes(|| fs::symlink_metadata(&folder).into_iter().collect()).expect("the folder is still there");
}

/// A sandboxed command inherits what others do, and cannot signal what watches over it.
pub(crate) fn what_a_sandboxed_command_is() {
    let field = Field::new();
    let confinement = field.confinement(FileAccess::ReadOnly);
    let run = |line: &str| field.run(line, Some(&confinement)).text;
    let out = run("read -r _ _ _ _ group session tty _ </proc/$$/stat; echo $(( group == $$ && session == $$ )) $tty");
    assert_eq!(out, "1 0\n");
    let out = run("exec grep -E '^Sig(Blk|Ign):' /proc/self/status");
    let numbers = out.lines().map(|line| u64::from_str_radix(&line[8..], 16).unwrap());
    assert_eq!(numbers.map(|signals| signals & 0x7fff_ffff).collect::<Vec<u64>>(), [0, 0], "{out}");
    // The last one is the list itself.
    assert_eq!(run("exec ls /proc/self/fd"), "0\n1\n2\n3\n");
    let out = run("exec grep -E '^(NoNewPrivs|CapPrm|CapEff):' /proc/self/status");
    assert!(out.contains("NoNewPrivs:\t1"), "{out}");
    // Chown, override, owner and setuid bits of files, and nothing else.
    let held =
        out.lines().filter(|line| line.starts_with("Cap")).map(|line| u64::from_str_radix(&line[8..], 16).unwrap());
    assert!(held.into_iter().all(|capabilities| capabilities & !0b1_1011 == 0), "{out}");
    if KernelSupport::of_this_machine().landlock_abi >= 6 {
        let heard = Heard::new();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let command = field.command("kill -9 $PPID || kill -STOP $PPID || exit 6", Some(&confinement));
        let end = tokio.block_on(guarded().run(command, heard, Cancellation::new())).unwrap();
        assert_eq!(end.status, ProcessStatus::Exited { code: 6 });
    }
}

/// It is the same however far the command's descendants are held.
pub(crate) fn at_every_level() {
    for containment in level::all() {
        if !level::is_available_or_refused(&containment) {
            continue;
        }
        let field = Field::new();
        fs::write(field.work.join(".env"), "hush-hush\n").unwrap();
        let confinement = field.confinement(FileAccess::WorkspaceWrite).without_network();
        let confinement = confinement.denied(field.outside.join("secret")).denied(field.work.join(".env"));
        let line = "echo x >new && echo \"$TMPDIR\"; echo x >\"$OUT/new\"; cat \"$OUT/secret\" .env; : >/dev/tcp/127.0.0.1/9; \
                    setsid sleep 600 & perl -e 'socket(S, 2, 1, 0) and print \"socket\"'";
        let command = field.command(line, Some(&confinement));
        let (end, out) = level::block_on(level::run(&containment, command));
        let end = end.unwrap();
        assert_eq!((end.level, end.survivors.as_slice()), (containment.level(), &[][..]));
        let folder = PathBuf::from(out.trim_end());
        assert!(folder.starts_with("/tmp"), "{:?}: {out}", end.level);
        assert!(field.work.join("new").exists() && !field.outside.join("new").exists(), "{:?}: {out}", end.level);
        trace::vanishes(|| fs::symlink_metadata(&folder).into_iter().collect()).expect("the folder is still there");
    }
}

/// A confinement to nothing runs as if there were none.
pub(crate) fn an_empty_confinement_is_none() {
    let field = Field::new();
    let mut command = field.command("echo x >\"$OUT/new\"", None);
    command.confinement = Some(Arc::new(Confinement::default()));
    assert!(super::field::ran(command).unwrap().is_success);
}
