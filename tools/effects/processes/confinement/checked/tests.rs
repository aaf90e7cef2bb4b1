//! What is refused before a command is handed over, and what of a confinement is handed over.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::{Checked, NAMES_MAX};
use crate::effects::processes::confinement::{Confinement, ConfinementError, FileAccess};

struct Place {
    _folder: tempfile::TempDir,
    root: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for made in ["work", "keys/inner"] {
            fs::create_dir_all(root.join(made)).unwrap();
        }
        fs::write(root.join("keys/one"), "secret").unwrap();
        Self { _folder: folder, root }
    }

    fn read_only(&self) -> Confinement {
        Confinement::new(FileAccess::ReadOnly).within(self.root.join("work"))
    }

    fn written(&self) -> Confinement {
        Confinement::new(FileAccess::WorkspaceWrite).within(self.root.join("work"))
    }
}

fn check(confinement: &Confinement) -> Result<Checked, ConfinementError> {
    Checked::new(confinement, None)
}

#[test]
fn paths_are_real_and_the_workspace_is_among_them() {
    let place = Place::new();
    symlink(place.root.join("keys"), place.root.join("link")).unwrap();
    let absent = place.root.join("link/none/yet");
    let checked = check(&place.written().denied(place.root.join("link/one")).denied(&absent)).unwrap();
    assert_eq!(checked.writable, [place.root.join("work")]);
    assert_eq!(checked.denied, [place.root.join("keys/one"), place.root.join("keys/none/yet")]);
    assert_eq!(check(&place.read_only()).unwrap().readable, [place.root.join("work")]);
    assert_eq!(Checked::from_texts(&checked.to_texts()), Some(checked));
}

#[test]
fn paths_that_say_nothing_are_refused() {
    let place = Place::new();
    symlink(place.root.join("nowhere"), place.root.join("dangling")).unwrap();
    for refused in [
        place.read_only().denied("relative"),
        place.read_only().denied(place.root.join("dangling")),
        place.read_only().writable(place.root.join("absent")),
        place.read_only().readable("work"),
        Confinement::new(FileAccess::ReadOnly).within(place.root.join("absent")),
    ] {
        assert!(matches!(check(&refused), Err(ConfinementError::Path { .. })), "{refused:?}");
    }
    let pointless = Confinement::new(FileAccess::Off).without_network().denied("/etc/shadow");
    assert!(matches!(check(&pointless), Err(ConfinementError::Pointless { .. })));
    assert!(check(&Confinement::new(FileAccess::Off).without_network()).is_ok());
}

#[test]
fn what_is_denied_in_what_may_be_written_is_covered() {
    let place = Place::new();
    let root = |name: &str| place.root.join(name);
    let covered = |confinement: &Confinement| {
        let checked = check(confinement).unwrap();
        checked.covered().cloned().collect::<Vec<_>>()
    };
    let both = place.written().denied(root("work/.env")).denied(root("keys"));
    assert_eq!(covered(&both), [root("work/.env")]);
    assert_eq!(covered(&place.read_only().denied(root("work/.env"))), Vec::<PathBuf>::new());
    assert_eq!(covered(&place.written().denied(&place.root)), Vec::<PathBuf>::new(), "it stands above");
    let deep = check(&place.written().denied(root("work/a/b/c"))).unwrap();
    let way: Vec<&std::path::Path> = deep.way_to(&deep.denied[0]).collect();
    assert_eq!(way, [root("work/a/b"), root("work/a")]);
    fs::create_dir_all(root("work/a/b")).unwrap();
    for hidden in [
        place.written().denied(root("work")),
        place.written().denied(root("work/a")).readable(root("work/a/b")),
        place.written().denied(root("work/a")).writable(root("work/a/b")),
    ] {
        assert!(matches!(check(&hidden), Err(ConfinementError::Contradiction { .. })), "{hidden:?}");
    }
}

#[test]
fn a_denied_file_may_have_no_other_name() {
    let place = Place::new();
    let (one, two) = (place.root.join("keys/one"), place.root.join("work/two"));
    let denied = place.read_only().denied(place.root.join("keys"));
    assert!(check(&denied).is_ok());
    fs::hard_link(&one, &two).unwrap();
    let refused = check(&denied).unwrap_err();
    assert!(
        matches!(&refused, ConfinementError::OtherNames { path, names: 2, denied_names: 1 } if *path == one),
        "{refused}"
    );
    assert!(check(&place.read_only().denied(&one)).is_err());
    assert!(check(&denied.clone().denied(&two)).is_ok(), "both are denied");
    assert!(check(&denied.clone().denied(&one)).is_err(), "one name counts once");
    fs::remove_file(&two).unwrap();
    assert!(check(&denied).is_ok());
    // A name that is given back is no denied one.
    fs::hard_link(&one, place.root.join("keys/inner/two")).unwrap();
    assert!(check(&denied).is_ok());
    assert!(check(&denied.clone().readable(place.root.join("keys/inner"))).is_err());
    assert!(check(&denied.readable(place.root.join("keys/inner")).denied(place.root.join("keys/inner/two"))).is_ok());
}

// A command may change links in what it may write, which must not give the next one more.
#[test]
fn what_leads_elsewhere_than_at_first_is_refused() {
    let place = Place::new();
    let (link, sub) = (place.root.join("work/link"), place.root.join("work/sub"));
    let replace = |target: &str| {
        fs::remove_file(&link).unwrap();
        symlink(place.root.join(target), &link).unwrap();
    };
    fs::create_dir(&sub).unwrap();
    symlink(&sub, &link).unwrap();
    let pinned = place.written().writable(&link).denied(place.root.join("work/none")).pinned();
    let denied = place.written().denied(place.root.join("work/link/one")).pinned();
    assert_eq!(check(&pinned).unwrap().writable, [sub.clone(), place.root.join("work")]);
    replace("keys");
    assert_eq!(check(&pinned).unwrap().writable, [sub.clone(), place.root.join("work")]);
    assert_eq!(check(&denied).unwrap().denied, [sub.join("one")]);
    // The place itself is another one, or one comes to be where there was none.
    fs::remove_dir(&sub).unwrap();
    symlink(place.root.join("keys"), &sub).unwrap();
    assert!(matches!(check(&pinned), Err(ConfinementError::Path { .. })));
    let absent = place.written().readable(place.root.join("work/late")).pinned();
    symlink(place.root.join("keys"), place.root.join("work/late")).unwrap();
    assert!(matches!(check(&absent), Err(ConfinementError::Path { .. })));
}

#[test]
fn too_much_is_refused_and_not_skipped() {
    let place = Place::new();
    for number in 0..=NAMES_MAX {
        fs::File::create(place.root.join(format!("keys/inner/{number}"))).unwrap();
    }
    let refused = check(&place.read_only().denied(place.root.join("keys")));
    assert!(matches!(refused, Err(ConfinementError::TooMuch { .. })));
}

#[test]
fn texts_that_say_nothing_are_refused() {
    for texts in [vec![], vec![c"w0"], vec![c"x00"], vec![c"w02"], vec![c"w00", c"X/"], vec![c"w00", c""]] {
        let texts: Vec<std::ffi::CString> = texts.into_iter().map(Into::into).collect();
        assert_eq!(Checked::from_texts(&texts), None, "{texts:?}");
    }
}
