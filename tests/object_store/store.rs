//! The files port over a bucket: versions, folders, and what goes wrong.

use std::io::{Read as _, Seek as _, SeekFrom};

use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::files::{Expected, FileError, FileKind, Files, Links, Replacement};
use toolwarden_tools::workspace::WorkspaceCapabilities;
use toolwarden_tools::workspace::object_store::bucket::{BucketAccess, BucketError, BucketPlace};
use toolwarden_tools::workspace::object_store::{self, ObjectFiles};
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::server::{SECRET, access, bucket, files, put};

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text, "").unwrap()
}

fn replace(files: &ObjectFiles, text: &str, bytes: &[u8], expected: Expected) -> Result<(), FileError> {
    files.replace(&path(text), &Replacement { bytes, expected, create_folders: true }).map(|_| ())
}

fn content(files: &ObjectFiles, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    files.open(&path(text)).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn folders_are_there_because_something_lies_in_them() {
    let address = bucket();
    let whole = files(&address);
    assert!(whole.list(&path(".")).unwrap().is_empty(), "an empty bucket is an empty folder");
    for key in ["p/a/b/f", "p/a.txt", "p/a-b/g", "p/empty/", "other/x", "p/a%20b%20%C3%A9"] {
        put(&address, key, b"12345");
    }
    let files = files(&format!("{address}/p"));
    let shown = |at: &str| -> Vec<String> {
        let entries = files.list_sized(&path(at)).unwrap();
        entries
            .iter()
            .map(|sized| format!("{} {} {:?}", sized.entry.kind.as_str(), sized.entry.path, sized.size_bytes))
            .collect()
    };
    assert_eq!(
        shown("."),
        ["dir a None", "file a b é Some(5)", "dir a-b None", "file a.txt Some(5)", "dir empty None"]
    );
    assert_eq!(shown("a"), ["dir a/b None"]);
    assert!(shown("empty").is_empty());
    assert_eq!(content(&files, "a b é"), b"12345");
    assert_eq!(files.stat(&path("a/b"), Links::Stay).unwrap().kind, FileKind::Folder);
    assert_eq!(files.stat(&path("a.txt"), Links::Follow).unwrap().size_bytes, 5);
    assert!(matches!(files.stat(&path("a.t"), Links::Follow), Err(FileError::NotFound { .. })));
    assert!(matches!(files.list(&path("a.txt")), Err(FileError::NotAFolder { .. })));
    assert!(matches!(files.list(&path("no")), Err(FileError::NotFound { .. })));
    assert!(matches!(files.open(&path("a")), Err(FileError::NotAFile { .. })));
    assert!(matches!(files.open(&path("no")), Err(FileError::NotFound { .. })));
    assert!(matches!(replace(&files, "a", b"", Expected::Any), Err(FileError::NotAFile { .. })));
    assert!(matches!(replace(&files, "a.txt/x", b"", Expected::Absent), Err(FileError::NotAFolder { .. })));
    let unmade = Replacement { bytes: b"", expected: Expected::Absent, create_folders: false };
    assert!(matches!(files.replace(&path("no/f"), &unmade), Err(FileError::NotFound { .. })));
    assert!(replace(&files, "\"new\\nline\"", b"", Expected::Any).is_err());
}

#[test]
fn a_change_names_the_version_that_it_was_made_against() {
    let address = bucket();
    let (ours, theirs) = (files(&address), files(&address));
    replace(&ours, "f", b"one", Expected::Absent).unwrap();
    assert!(matches!(replace(&ours, "f", b"x", Expected::Absent), Err(FileError::Exists { .. })));
    let other = replace(&ours, "f", b"x", Expected::Content(Digest::of(b"other"))).unwrap_err();
    assert!(
        matches!(&other, FileError::Changed { actual, .. } if *actual == Digest::of(b"one").to_string()),
        "{other}"
    );
    let gone = replace(&ours, "g", b"x", Expected::Content(Digest::of(b"other"))).unwrap_err();
    assert!(matches!(&gone, FileError::Changed { actual, .. } if actual == "absent"), "{gone}");
    // Ours is remembered, theirs came in between: only the store can tell.
    replace(&theirs, "f", b"two", Expected::Content(Digest::of(b"one"))).unwrap();
    let lost = replace(&ours, "f", b"mine", Expected::Content(Digest::of(b"one"))).unwrap_err();
    assert!(matches!(&lost, FileError::Changed { actual, .. } if *actual == Digest::of(b"two").to_string()), "{lost}");
    assert_eq!(content(&ours, "f"), b"two");
    replace(&ours, "f", b"three", Expected::Content(Digest::of(b"two"))).unwrap();
    replace(&theirs, "f", b"four", Expected::Any).unwrap();
    assert_eq!(content(&ours, "f"), b"four");
}

#[test]
fn of_rivals_against_one_version_one_wins() {
    let address = bucket();
    replace(&files(&address), "n", b"0", Expected::Absent).unwrap();
    let wins: usize = std::thread::scope(|scope| {
        let rivals: Vec<_> = (0..4_u8)
            .map(|rival| {
                let files = files(&address);
                scope.spawn(move || {
                    usize::from(replace(&files, "n", &[b'a' + rival], Expected::Content(Digest::of(b"0"))).is_ok())
                })
            })
            .collect();
        rivals.into_iter().map(|rival| rival.join().unwrap()).sum()
    });
    assert_eq!(wins, 1);
}

#[test]
fn a_file_is_read_as_one_version_from_any_place() {
    let address = bucket();
    let files = files(&address);
    let body: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).take(3_000_000).collect();
    put(&address, "f", &body);
    let mut file = files.open(&path("f")).unwrap();
    let mut part = vec![0; 1000];
    for at in [2_999_000, 0, 1_234_567, 1_000_000] {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.read_exact(&mut part).unwrap();
        let at = usize::try_from(at).unwrap();
        assert!(part == body[at..at + 1000], "at {at}");
    }
    assert_eq!(file.seek(SeekFrom::End(-1)).unwrap(), 2_999_999);
    assert!(file.seek(SeekFrom::Current(-3_000_000)).is_err());
    // Somebody replaces it: what is read from another place on must not be a mixture.
    put(&address, "f", &vec![7; 3_000_000]);
    file.seek(SeekFrom::Start(10)).unwrap();
    assert!(file.read(&mut part).is_err());
}

#[test]
fn errors_say_what_to_do_and_show_no_keys() {
    let open = |address: &str, access: &BucketAccess| {
        let place = BucketPlace::parse(address).unwrap();
        object_store::open(&place, access, WorkspaceCapabilities::local_default()).map(|_| ()).unwrap_err()
    };
    let missing = open("s3://no-such-bucket", &access());
    assert!(
        matches!(&missing, BucketError::Files(FileError::WorkspaceMissing { root }) if root == "s3://no-such-bucket")
    );
    let timeout = Some(std::time::Duration::from_secs(20));
    // Nobody listens there: port 1 is never given out.
    let nobody =
        open("s3://data", &BucketAccess { endpoint: Some("http://127.0.0.1:1".to_owned()), timeout, ..access() });
    for error in [missing.to_string(), nobody.to_string()] {
        assert!(!error.contains(SECRET) && !error.contains("test-key"), "{error}");
    }
}

#[test]
fn accesses_of_a_cancelled_call_end() {
    let address = bucket();
    put(&address, "f", b"x");
    let cancel = Cancellation::new();
    let bound = files(&address).bound_to(&cancel).unwrap();
    assert!(bound.stat(&path("f"), Links::Follow).is_ok());
    cancel.cancel(CancelReason::Requested);
    let error = bound.stat(&path("f"), Links::Follow).unwrap_err();
    assert!(matches!(error, FileError::Stopped { reason: CancelReason::Requested, .. }), "{error}");
}
