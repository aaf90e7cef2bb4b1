//! Writing: inside as far as it is allowed, and outside in no way at all.

use toolwarden_tools::effects::processes::confinement::FileAccess;

use super::field::Field;

/// An attempt, and whether it succeeds without a sandbox, with `workspace_write` and with `read_only`.
type Attempt = (&'static str, &'static str, [bool; 3]);

const EVERYWHERE: [bool; 3] = [true, true, true];
const WHERE_WRITTEN: [bool; 3] = [true, true, false];
const NOWHERE: [bool; 3] = [true, false, false];

const ATTEMPTS: &[Attempt] = &[
    // What a shell needs.
    ("read inside", "grep -q inside file", EVERYWHERE),
    ("read outside", "grep -q outside \"$OUT/file\"", EVERYWHERE),
    ("list the root and a folder outside", "ls / \"$OUT\" >/dev/null", EVERYWHERE),
    ("the null device", "echo x >/dev/null && : </dev/null", EVERYWHERE),
    ("other devices", "head -c 4 /dev/zero /dev/urandom | wc -c && ! echo x >/dev/full", EVERYWHERE),
    ("streams by name", "echo x >/dev/stdout && echo x >/dev/stderr && : </dev/stdin", EVERYWHERE),
    ("process substitution", "cat <(echo x) > >(cat)", EVERYWHERE),
    ("a temporary file", "f=$(mktemp) && echo x >\"$f\" && grep -q x \"$f\" && rm \"$f\"", EVERYWHERE),
    ("a long here-document", "cat <<E | grep -q 99999\n$(seq 100000)\nE\n", EVERYWHERE),
    ("sorting with files", "seq 100000 | sort -S 100k -r | grep -q 99999", EVERYWHERE),
    ("a pipe in the temporary folder", "d=$(mktemp -d) && mkfifo \"$d/p\" && rm -r \"$d\"", EVERYWHERE),
    ("processes of its own", "sleep 60 & kill $!; ! wait $!", EVERYWHERE),
    // Inside.
    ("make a file", "echo x >new", WHERE_WRITTEN),
    ("add to a file", "echo x >>file", WHERE_WRITTEN),
    ("empty a file", "perl -e 'truncate(\"file\", 0) or die'", WHERE_WRITTEN),
    ("remove a file", "rm file", WHERE_WRITTEN),
    ("make a folder and a file in it", "mkdir d && echo x >d/new", WHERE_WRITTEN),
    ("rename a file", "mv file other", WHERE_WRITTEN),
    ("move a file into another folder", "mkdir d && perl -e 'rename(\"file\", \"d/file\") or die'", WHERE_WRITTEN),
    ("link a file", "ln file other", WHERE_WRITTEN),
    ("make a symbolic link", "ln -s file other", WHERE_WRITTEN),
    ("make a pipe", "mkfifo pipe", WHERE_WRITTEN),
    ("change a mode", "chmod 700 file", WHERE_WRITTEN),
    ("change a time", "perl -e 'utime(1, 1, \"file\") or die'", WHERE_WRITTEN),
    ("change an owner", "chown \"$(id -u)\" file", WHERE_WRITTEN),
    ("write by a descriptor's name", "exec 7<file; echo x >/proc/self/fd/7", WHERE_WRITTEN),
    // Outside.
    ("absolute path", "echo x >\"$OUT/new\"", NOWHERE),
    ("add to a file outside", "echo x >>\"$OUT/file\"", NOWHERE),
    ("dots", "echo x >../outside/new", NOWHERE),
    ("symbolic link that is there", "echo x >link/new", NOWHERE),
    ("symbolic link of its own", "ln -s \"$OUT\" made && echo x >made/new", NOWHERE),
    ("symbolic link in the temporary folder", "d=$(mktemp -d); ln -s \"$OUT\" \"$d/l\"; echo x >\"$d/l/new\"", NOWHERE),
    ("hard link to the outside", "perl -e 'link(\"file\", \"$ENV{OUT}/new\") or die'", NOWHERE),
    ("hard link from the outside", "ln \"$OUT/file\" mine && echo x >>mine", NOWHERE),
    ("hard link into the temporary folder", "ln \"$OUT/file\" \"$TMPDIR/mine\" && echo x >>\"$TMPDIR/mine\"", NOWHERE),
    ("rename to the outside", "perl -e 'rename(\"file\", \"$ENV{OUT}/new\") or die'", NOWHERE),
    ("rename from the outside", "perl -e 'rename(\"$ENV{OUT}/file\", \"new\") or die'", NOWHERE),
    ("rename over a file outside", "perl -e 'rename(\"file\", \"$ENV{OUT}/file\") or die'", NOWHERE),
    ("rename a folder from the outside", "perl -e 'rename(\"$ENV{OUT}/keys\", \"keys\") or die'", NOWHERE),
    ("empty a file outside", "perl -e 'truncate(\"$ENV{OUT}/file\", 0) or die'", NOWHERE),
    ("remove a file outside", "rm \"$OUT/file\"", NOWHERE),
    ("remove a folder outside", "rm -r \"$OUT/keys\"", NOWHERE),
    ("make a folder outside", "mkdir \"$OUT/new\"", NOWHERE),
    ("make a link outside", "ln -s x \"$OUT/new\"", NOWHERE),
    ("make a pipe outside", "mkfifo \"$OUT/new\"", NOWHERE),
    ("the root of a process", "echo x >\"/proc/self/root$OUT/new\"", NOWHERE),
    ("the folder of a process", "echo x >/proc/self/cwd/../outside/new", NOWHERE),
    ("a descriptor's name", "exec 7<\"$OUT/file\"; echo x >/proc/self/fd/7", NOWHERE),
    ("a folder's descriptor", "exec 7<\"$OUT\"; echo x >/proc/self/fd/7/new", NOWHERE),
    ("from the outside", "cd \"$OUT\" && echo x >new", NOWHERE),
    ("through a program of the outside", "cp file \"$OUT/new\"", NOWHERE),
    // Descendants.
    ("a session of its own", "setsid -w sh -c 'echo x >\"$OUT/new\"'", NOWHERE),
    ("two forks", "(setsid sh -c 'echo x >\"$OUT/new\" && echo done' &) | grep -q done", NOWHERE),
    ("no environment", "env -i /bin/sh -c \"echo x >'$OUT/new'\"", NOWHERE),
    ("a chain of programs", "exec sh -c \"exec sh -c 'echo x >\\\"$OUT/new\\\"'\"", NOWHERE),
    ("nohup", "nohup sh -c 'echo x >\"$OUT/new\"' </dev/null 2>/dev/null", NOWHERE),
];

pub(crate) fn attempts() {
    let modes = [FileAccess::Off, FileAccess::WorkspaceWrite, FileAccess::ReadOnly];
    for (name, line, expected) in ATTEMPTS {
        for (mode, is_expected) in modes.into_iter().zip(expected) {
            let field = Field::new();
            let (inside, outside) = (Field::files(&field.work), Field::files(&field.outside));
            let confinement = (mode != FileAccess::Off).then(|| field.confinement(mode));
            // Without a sandbox there is no temporary folder of its own.
            let line = format!("export TMPDIR=\"${{TMPDIR:-{}}}\"; {line}", field.work.display());
            let ran = field.run(&line, confinement.as_ref());
            assert_eq!(ran.is_success, *is_expected, "{name}, {mode:?}: {}", ran.text);
            if mode != FileAccess::Off {
                assert_eq!(Field::files(&field.outside), outside, "{name}, {mode:?}: what is outside stays");
            }
            if mode == FileAccess::ReadOnly {
                assert_eq!(Field::files(&field.work), inside, "{name}: what is inside stays");
            }
        }
    }
}

/// What is named writable is, and nothing beside it.
pub(crate) fn more_can_be_writable() {
    let field = Field::new();
    let more = field.confinement(FileAccess::ReadOnly).writable(field.outside.join("keys"));
    let more = more.writable(field.outside.join("file"));
    assert!(field.run("echo x >\"$OUT/keys/new\" && echo x >>\"$OUT/file\"", Some(&more)).is_success);
    for line in ["echo x >\"$OUT/new\"", "echo x >>\"$OUT/secret\"", "echo x >new", "rm \"$OUT/file\""] {
        assert!(!field.run(line, Some(&more)).is_success, "{line}");
    }
}

/// The usual programs work.
pub(crate) fn usual_programs_work() {
    let home = std::env::var("HOME").unwrap();
    let path = std::env::var("PATH").unwrap();
    for mode in [FileAccess::WorkspaceWrite, FileAccess::ReadOnly] {
        let field = Field::new();
        let confinement = field.confinement(mode).without_network();
        // A repository needs to be made by somebody who may.
        assert!(field.run("git init -q . && git add file", None).is_success);
        for line in [
            "git --no-optional-locks status --porcelain | grep -q 'A  file'",
            "git diff --cached | grep -q inside",
            "cargo --version",
            "rustc --version",
            "find / -maxdepth 1 -name tmp | grep -q tmp",
            "perl -e 'print 1'",
            "test ! -x /usr/bin/python3 || python3 -c 'import tempfile, json, subprocess; \
             tempfile.TemporaryFile().write(b\"x\"); subprocess.check_call([\"true\"])'",
        ] {
            let mut command = field.command(line, Some(&confinement));
            command.environment.extend([("HOME".into(), home.clone()), ("PATH".into(), path.clone())]);
            let ran = super::field::ran(command).unwrap();
            assert!(ran.is_success, "{mode:?}, {line}: {}", ran.text);
        }
        let committed = "git -c user.name=a -c user.email=a@b commit -qm one";
        let ran = field.run(committed, Some(&confinement));
        assert_eq!(ran.is_success, mode == FileAccess::WorkspaceWrite, "{}", ran.text);
    }
}
