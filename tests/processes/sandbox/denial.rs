//! Denied files: not read by any name.

use std::fs;

use toolwarden_tools::effects::processes::ProcessError;
use toolwarden_tools::effects::processes::confinement::{Confinement, ConfinementError, FileAccess};

use super::field::Field;

/// Ways to a denied file, and whether they are none that `read_only` has.
const WAYS: &[&str] = &[
    "cat \"$OUT/secret\"",
    "cat ../outside/secret",
    "cat link/secret",
    "cat \"/proc/self/root$OUT/secret\"",
    "cat /proc/self/cwd/../outside/secret",
    "exec 7<\"$OUT\"; cat /proc/self/fd/7/secret",
    "cd \"$OUT\" && cat secret",
    "cp \"$OUT/secret\" \"$TMPDIR/copy\" && cat \"$TMPDIR/copy\"",
    "ln -s \"$OUT/secret\" \"$TMPDIR/link\" && cat \"$TMPDIR/link\"",
    "setsid -w cat \"$OUT/secret\"",
    "(setsid sh -c 'cat \"$OUT/secret\"' &) | cat",
    "env -i /bin/cat \"$OUT/secret\"",
    "sh \"$OUT/secret\"",
    "\"$OUT/secret\"",
    // Other names, made by the command.
    "ln \"$OUT/secret\" hard; cat hard",
    "ln \"$OUT/secret\" \"$TMPDIR/hard\"; cat \"$TMPDIR/hard\"",
    "perl -e 'link(\"$ENV{OUT}/secret\", \"$ENV{OUT}/keys/hard\")'; cat \"$OUT/keys/hard\"",
    "mv \"$OUT/secret\" moved; cat moved",
    "perl -e 'rename(\"$ENV{OUT}/secret\", \"moved\")'; cat moved",
    "perl -e 'rename(\"$ENV{OUT}\", \"moved\")'; cat moved/secret",
    "perl -e 'rename(\"$ENV{OUT}/keys\", \"moved\")'; cat moved/one",
    // What leads around paths.
    "for d in /dev/[sv]d? /dev/nvme* /dev/loop0 /dev/mem /dev/kmsg /dev/tty; do head -c 1 \"$d\" >/dev/null && echo hush-hush; done",
    "for p in /proc/[0-9]*; do grep -qz TOOLWARDEN_HUSH \"$p/environ\" && echo hush-hush; done",
    "for p in /proc/[0-9]*; do cat \"$p/root$OUT/secret\"; done",
];

fn reads(field: &Field, line: &str, confinement: Option<&Confinement>) -> bool {
    field.run(line, confinement).text.contains("hush-hush")
}

pub(crate) fn no_way_leads_to_a_denied_file() {
    for mode in [FileAccess::WorkspaceWrite, FileAccess::ReadOnly] {
        for line in WAYS {
            let field = Field::new();
            let denied =
                field.confinement(mode).denied(field.outside.join("secret")).denied(field.outside.join("keys"));
            let ran = field.run(line, Some(&denied));
            assert!(!ran.text.contains("hush-hush"), "{mode:?}, {line}: {}", ran.text);
            assert_eq!(fs::read_to_string(field.outside.join("secret")).unwrap(), "hush-hush\n");
            // What stands beside it can be read.
            assert!(field.run("cat \"$OUT/file\" file", Some(&denied)).text.contains("outside\ninside"), "{line}");
        }
    }
    // Without a denial most ways do lead there.
    let open = WAYS.iter().filter(|line| {
        let field = Field::new();
        reads(&field, line, Some(&field.confinement(FileAccess::WorkspaceWrite)))
    });
    assert!(open.count() > 10);
}

// The way that the rules of the kernel do not see: a second name that was there before.
pub(crate) fn a_hard_link_that_was_there_before_is_found() {
    let field = Field::new();
    fs::hard_link(field.outside.join("secret"), field.work.join("second")).unwrap();
    for mode in [FileAccess::WorkspaceWrite, FileAccess::ReadOnly] {
        let plain = field.confinement(mode);
        assert!(reads(&field, "cat second", Some(&plain)), "it is the same file");
        let denied = plain.denied(field.outside.join("secret"));
        let refused = field.refused("cat second", &denied);
        assert!(matches!(refused, ConfinementError::OtherNames { names: 2, denied_names: 1, .. }), "{refused}");
        let told = refused.to_string();
        assert!(told.contains("outside/secret") && told.contains("hard links"), "{told}");
    }
    // Denied as well, it is read by neither.
    let both = field.confinement(FileAccess::ReadOnly).denied(field.outside.join("secret"));
    let both = both.denied(field.work.join("second"));
    assert!(!reads(&field, "cat second \"$OUT/secret\"; ln second third; cat third", Some(&both)));
    fs::remove_file(field.work.join("second")).unwrap();
    let denied = field.confinement(FileAccess::ReadOnly).denied(field.outside.join("secret"));
    assert!(!reads(&field, "cat second \"$OUT/secret\"", Some(&denied)));
}

pub(crate) fn a_file_of_the_workspace_can_be_denied_where_it_is_read_only() {
    let field = Field::new();
    fs::write(field.work.join(".env"), "hush-hush\n").unwrap();
    let denied = field.confinement(FileAccess::ReadOnly).denied(field.work.join(".env"));
    for line in ["cat .env", "ln .env x; cat x", "cat \"$PWD/.env\"", "ln .env \"$TMPDIR/x\"; cat \"$TMPDIR/x\""] {
        assert!(!reads(&field, line, Some(&denied)), "{line}");
    }
    assert!(field.run("cat file", Some(&denied)).is_success);
}

// Where files may be made, the rules of the kernel cannot deny one: something else stands over it.
pub(crate) fn a_file_of_the_workspace_can_be_denied_where_it_is_written() {
    let field = Field::new();
    fs::write(field.work.join(".env"), "hush-hush\n").unwrap();
    fs::create_dir_all(field.work.join("keys/inner")).unwrap();
    fs::write(field.work.join("keys/inner/one"), "hush-hush\n").unwrap();
    let open = field.confinement(FileAccess::WorkspaceWrite);
    let denied = open.clone().denied(field.work.join(".env")).denied(field.work.join("keys"));
    for line in [
        "cat .env keys/inner/one",
        "cat \"$PWD/.env\" \"/proc/self/root$PWD/.env\" /proc/self/cwd/.env",
        "ln .env x; cat x",
        "perl -e 'link(\".env\", \"x\")'; cat x",
        "mv .env x; cat x",
        "perl -e 'rename(\".env\", \"x\")'; cat x",
        "mv keys x; cat x/inner/one",
        "mkdir d; mv keys d/; cat d/keys/inner/one",
        "cp -a . \"$TMPDIR/copy\"; cat \"$TMPDIR\"/copy/.env \"$TMPDIR\"/copy/keys/inner/one",
        "umount .env; umount -l .env keys; cat .env keys/inner/one",
        "unshare -Urm cat .env; unshare -m cat .env; setsid -w cat .env",
        "nsenter -t $PPID -m cat \"$PWD/.env\"; nsenter -t 1 -m cat \"$PWD/.env\"",
        "for p in /proc/[0-9]*; do cat \"$p/root$PWD/.env\" \"$p/cwd/.env\"; done",
        "rm -rf .env keys; cat .env keys/inner/one",
        "git init -q; git add -A; git -c user.name=a -c user.email=a@b commit -qm 1; git show",
    ] {
        let ran = field.run(line, Some(&denied));
        assert!(!ran.text.contains("hush-hush"), "{line}: {}", ran.text);
        assert_eq!(fs::read_to_string(field.work.join(".env")).unwrap(), "hush-hush\n", "{line}");
    }
    assert!(!reads(&field, "echo x >.env; echo x >keys/new; cat .env", Some(&denied)));
    let ran = field.run("echo x >new && mkdir -p more && echo y >more/new && cat file new more/new", Some(&denied));
    assert_eq!(ran.text, "inside\nx\ny\n", "the rest is as it was");
    // Nor from within.
    let mut within = field.command("cat one", Some(&denied));
    within.folder = field.work.join("keys/inner");
    let refused = super::field::ran(within).err();
    assert!(matches!(refused, Some(ProcessError::Unconfined { source: ConfinementError::Folder { .. }, .. })));
    assert!(reads(&field, "cat .env", Some(&open)), "it is there all the while");
    fs::hard_link(field.work.join(".env"), field.work.join("second")).unwrap();
    let refused = field.refused("cat second", &denied);
    assert!(matches!(refused, ConfinementError::OtherNames { .. }), "{refused}");
}

/// No command can prepare another's reading by renaming what is above.
pub(crate) fn the_way_to_a_denied_file_keeps_its_name() {
    let field = Field::new();
    fs::create_dir_all(field.work.join("a/b")).unwrap();
    fs::write(field.work.join("a/b/.env"), "hush-hush\n").unwrap();
    fs::write(field.work.join("a/b/other"), "other\n").unwrap();
    let denied = field.confinement(FileAccess::WorkspaceWrite).denied(field.work.join("a/b/.env"));
    for line in ["mv a z", "mv a/b a/z", "mkdir z && mv a z/", "mv a/b z", "perl -e 'rename(\"a\", \"z\") or die'"] {
        let before = Field::files(&field.work);
        assert!(!field.run(&format!("{line}; ! cat a/b/.env"), Some(&denied)).text.contains("hush-hush"));
        assert!(!reads(&field, "cat a/b/.env z/b/.env a/z/.env z/a/b/.env z/.env", Some(&denied)), "{line}");
        assert_eq!(
            Field::files(&field.work).get(&field.work.join("a/b/.env")),
            before.get(&field.work.join("a/b/.env"))
        );
        let _ = field.run("rm -rf z", Some(&denied));
    }
    let ran = field.run("cat a/b/other && echo x >a/b/new && mv a/b/new a/moved && cat a/moved", Some(&denied));
    assert_eq!(ran.text, "other\nx\n");
}

pub(crate) fn a_workspace_may_stand_in_a_denied_folder() {
    let field = Field::new();
    let above = field.work.parent().unwrap().to_owned();
    for (mode, writes) in [(FileAccess::WorkspaceWrite, true), (FileAccess::ReadOnly, false)] {
        let denied = field.confinement(mode).denied(&above).readable(field.outside.join("file"));
        assert!(!reads(&field, "cat \"$OUT/secret\" link/keys/one", Some(&denied)));
        let ran = field.run("cat file \"$OUT/file\"", Some(&denied));
        assert_eq!(ran.text, "inside\noutside\n", "{mode:?}");
        assert_eq!(field.run("echo x >new", Some(&denied)).is_success, writes, "{mode:?}");
    }
}

/// What is not there yet is denied when it comes.
pub(crate) fn what_comes_later_is_denied() {
    let field = Field::new();
    let late = field.outside.join("late");
    let denied = field.confinement(FileAccess::ReadOnly).denied(&late);
    assert!(!reads(&field, "cat \"$OUT/late\"", Some(&denied)));
    let line = format!("mkfifo \"$TMPDIR/p\"; echo \"$TMPDIR/p\" >&2; : <\"$TMPDIR/p\"; cat '{}'", late.display());
    let command = field.command(&line, Some(&denied));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| super::field::ran(command).unwrap());
        // The command waits at a pipe of its own until the file is there.
        let pipe = loop {
            let found = super::life::temporary_folders().into_iter().map(|folder| folder.join("p"));
            if let Some(pipe) = found.into_iter().find(|pipe| pipe.exists()) {
                break pipe;
            }
            std::thread::yield_now();
        };
        fs::write(&late, "hush-hush\n").unwrap();
        drop(fs::OpenOptions::new().write(true).open(pipe).unwrap());
        let ran = running.join().unwrap();
        assert!(!ran.text.contains("hush-hush") && ran.text.contains("denied"), "{}", ran.text);
    });
}
