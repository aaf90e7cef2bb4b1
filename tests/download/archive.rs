//! Names out of archives that were made to do harm, as names of files to write, patch and download: whatever they say,
//! nothing comes to lie outside of the workspace.
//!
//! The archives are real ones, a tar and a zip, and the names are read out of them again, byte by byte, as somebody does who
//! unpacks one with these tools.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use serde_json::{Value, json};
use toolwarden::session::Session;

use crate::server::{Reply, Server};

/// What a download brings.
const BODY: &[u8] = b"unpacked\n";
/// What lies outside and must stay as it is.
const OUTSIDE: &str = "what lies outside\nand is nobody's to see\n";

/// An entry of an archive: its name, and where it points when it is a link.
struct Entry {
    name: Vec<u8>,
    link: Option<String>,
}

fn file(name: impl AsRef<[u8]>) -> Entry {
    Entry { name: name.as_ref().to_vec(), link: None }
}

/// What an archive of hostile names holds; `outside` is a folder beside the workspace.
fn entries(outside: &Path) -> Vec<Entry> {
    let absolute = outside.display();
    let up = format!("../{}", outside.file_name().unwrap().to_str().unwrap());
    let link = |name: &str, to: String| Entry { name: name.as_bytes().to_vec(), link: Some(to) };
    let mut all = vec![
        link("way", absolute.to_string()),
        link("way/deeper", "..".to_owned()),
        link("upwards", up.clone()),
        link("target", format!("{absolute}/theirs")),
        link("root", "/".to_owned()),
        link("self", "/proc/self/cwd".to_owned()),
    ];
    let mut names: Vec<Vec<u8>> = [
        format!("{up}/escaped"),
        format!("{up}/theirs"),
        format!("a/b/../../{up}/escaped"),
        format!("./{up}//./escaped"),
        format!("{absolute}/escaped"),
        format!("/{absolute}/escaped"),
        format!("file://{absolute}/escaped"),
        format!("a/..\\..\\{}\\escaped", outside.file_name().unwrap().to_str().unwrap()),
        format!("C:{absolute}/escaped"),
        format!("{up}%2fescaped"),
        "..".to_owned(),
        ".".to_owned(),
        "/".to_owned(),
        "../../../../../../../../../../escaped".to_owned(),
        "..\\..\\escaped".to_owned(),
        "\\\\host\\share\\escaped".to_owned(),
        "way/escaped".to_owned(),
        "way/theirs".to_owned(),
        "way/deeper/escaped".to_owned(),
        "upwards/theirs".to_owned(),
        "target".to_owned(),
        "hard".to_owned(),
        format!("root{absolute}/escaped"),
        "self/escaped".to_owned(),
        "%2e%2e/escaped".to_owned(),
        "\u{ff0e}\u{ff0e}\u{ff0f}escaped".to_owned(),
        "~/escaped".to_owned(),
        "$HOME/escaped".to_owned(),
        "`id`; $(id)".to_owned(),
        ".git/hooks/post-checkout".to_owned(),
        "sub/.git/config".to_owned(),
        "CON".to_owned(),
        "aux.txt".to_owned(),
        "com1:".to_owned(),
        "stream.txt::$DATA".to_owned(),
        "-rf".to_owned(),
        " lead and trail ".to_owned(),
        "trail.".to_owned(),
        "new\nline".to_owned(),
        "\"quoted\"".to_owned(),
        "tab\tbell\u{7}".to_owned(),
        "\u{202e}txt.exe".to_owned(),
        "n".repeat(300),
        format!("{}f", "deep/".repeat(1_000)),
        "x".repeat(5_000),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect();
    names.push(b"nul\0/../../escaped".to_vec());
    names.push(b"bad\xff\xfename".to_vec());
    all.extend(names.into_iter().map(file));
    all
}

/// A tar with these entries: plain headers, and a record of its own before a name or a link that is too long for one.
fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        let mut member = |name: &[u8], kind: u8, link: &str, body: &[u8]| {
            let mut header = [0_u8; 512];
            let short = &name[..name.len().min(100)];
            header[..short.len()].copy_from_slice(short);
            for field in [100..108, 108..116, 116..124] {
                header[field].copy_from_slice(b"0000644\0");
            }
            header[136..148].copy_from_slice(b"00000000000\0");
            header[124..136].copy_from_slice(format!("{:011o}\0", body.len()).as_bytes());
            header[148..156].fill(b' ');
            header[156] = kind;
            header[157..157 + link.len()].copy_from_slice(link.as_bytes());
            header[257..265].copy_from_slice(b"ustar  \0");
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            out.extend_from_slice(&header);
            out.extend_from_slice(body);
            out.resize(out.len().next_multiple_of(512), 0);
        };
        if entry.name.len() > 100 {
            member(b"././@LongLink", b'L', "", &[&entry.name, &b"\0"[..]].concat());
        }
        match &entry.link {
            Some(to) => member(&entry.name, b'2', to, b""),
            None => member(&entry.name, b'0', "", BODY),
        }
    }
    out.resize(out.len() + 1024, 0);
    out
}

/// The names of a tar, each with the link that it is.
fn names_of_tar(archive: &[u8]) -> Vec<Entry> {
    let text = |field: &[u8]| field.split(|byte| *byte == 0).next().unwrap().to_vec();
    let (mut found, mut at, mut long) = (Vec::new(), 0, None);
    while archive[at] != 0 {
        let header = &archive[at..at + 512];
        let octal = String::from_utf8(text(&header[124..136])).unwrap();
        let size = usize::from_str_radix(&octal, 8).unwrap();
        let body = &archive[at + 512..at + 512 + size];
        at += 512 + size.next_multiple_of(512);
        if header[156] == b'L' {
            long = Some(body[..size - 1].to_vec());
            continue;
        }
        let link = (header[156] == b'2').then(|| String::from_utf8(text(&header[157..257])).unwrap());
        // What stands behind a NUL is for whoever takes the field as a whole.
        let name = long.take().unwrap_or_else(|| {
            let end = header[..100].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            header[..end].to_vec()
        });
        found.push(Entry { name, link });
    }
    found
}

/// A zip with these entries, stored, links as text with the mode of a link.
fn zip(entries: &[Entry]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    let number = |value: usize, bytes: usize| value.to_le_bytes()[..bytes].to_vec();
    for entry in entries {
        let body = entry.link.as_ref().map_or(BODY, |to| to.as_bytes());
        let shared = [
            number(20, 2),
            number(0, 2 + 2 + 4),
            number(crc32(body) as usize, 4),
            number(body.len(), 4),
            number(body.len(), 4),
            number(entry.name.len(), 2),
            number(0, 2),
        ]
        .concat();
        let mode = if entry.link.is_some() { 0o120_777 } else { 0o100_644_usize };
        directory.extend([&b"PK\x01\x02\x14\x03"[..], &shared].concat());
        directory.extend([number(0, 2 + 2 + 2), number(mode << 16, 4), number(out.len(), 4)].concat());
        directory.extend_from_slice(&entry.name);
        out.extend([&b"PK\x03\x04"[..], &shared, &entry.name, body].concat());
    }
    let begins_at = out.len();
    out.extend_from_slice(&directory);
    let count = number(entries.len(), 2);
    out.extend([b"PK\x05\x06".to_vec(), number(0, 4), count.clone(), count].concat());
    out.extend([number(directory.len(), 4), number(begins_at, 4), number(0, 2)].concat());
    out
}

/// The names in the directory of a zip.
fn names_of_zip(archive: &[u8]) -> Vec<Vec<u8>> {
    let number = |at: usize, bytes: usize| -> usize {
        archive[at..at + bytes].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let end = archive.len() - 22;
    let (count, mut at) = (number(end + 10, 2), number(end + 16, 4));
    (0..count)
        .map(|_| {
            assert_eq!(&archive[at..at + 4], b"PK\x01\x02");
            let length = number(at + 28, 2);
            let name = archive[at + 46..at + 46 + length].to_vec();
            at += 46 + length;
            name
        })
        .collect()
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 })
    })
}

/// A name as the tools write and take it: plain, or quoted where it is odd.
fn as_path(name: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(name)
        && !text.chars().any(char::is_control)
    {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for byte in name {
        match byte {
            b'\n' => quoted.push_str("\\n"),
            b'\t' => quoted.push_str("\\t"),
            b'"' | b'\\' => write!(quoted, "\\{}", char::from(*byte)).unwrap(),
            b' '..=b'~' => quoted.push(char::from(*byte)),
            byte => write!(quoted, "\\{byte:03o}").unwrap(),
        }
    }
    quoted + "\""
}

/// Everything beneath a folder, with what tells a change.
fn state(folder: &Path) -> BTreeMap<std::path::PathBuf, (u64, i64, i64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let facts = path.symlink_metadata().unwrap();
            let content = if facts.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            if facts.is_dir() {
                open.push(path.clone());
            }
            // A second name counts as no change of a file.
            all.insert(path, (facts.ino(), facts.mtime(), facts.mtime_nsec(), content));
        }
    }
    all
}

/// Uses a name in every way that a name is used; says how often something was written.
async fn use_name(session: &Session, server: &Server, number: usize, name: &[u8]) -> usize {
    let path = as_path(name);
    let create = format!("--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+unpacked\n");
    let rename = format!("diff --git a/spare b/spare\nrename from spare\nrename to {path}\n");
    let calls: [(&str, Value); 9] = [
        ("write", json!({"file_path": path, "content": "unpacked\n"})),
        (
            "write",
            json!({"file_path": path, "content": "unpacked\n", "mode": "append", "expected_offset": OUTSIDE.len()}),
        ),
        ("edit", json!({"file_path": path, "old_string": "lies outside", "new_string": "is changed"})),
        ("patch", json!({"file_path": path, "diff": "@@ -1 +1 @@\n-what lies outside\n+what is changed\n"})),
        ("patch", json!({ "diff": create })),
        ("patch", json!({ "diff": rename })),
        ("download", json!({"url": server.url("/plain"), "file_path": path})),
        ("download", json!({"url": server.url("/plain"), "file_path": path, "overwrite": true})),
        ("download", json!({"url": server.url(&format!("/named/{number}"))})),
    ];
    let mut written = 0;
    for (tool, arguments) in calls {
        let result = session.tool(tool, arguments).await.unwrap();
        written += usize::from(result.is_success());
        assert!(result.is_success() || result.error_kind.is_some(), "{tool} {path:?}: {}", result.output);
        assert!(!result.output.contains("nobody's to see"), "{tool} {path:?}: {}", result.output);
    }
    written
}

// Proof: an archive of hostile names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_out_of_an_archive_leaves_the_workspace() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("theirs"), OUTSIDE).unwrap();
    let all = entries(outside.path());
    let from_tar = names_of_tar(&tar(&all));
    let expected: Vec<&[u8]> = all.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!(from_tar.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), expected);
    assert_eq!(names_of_zip(&zip(&all)), expected);

    let proposed: Vec<Vec<u8>> = all.iter().map(|entry| entry.name.clone()).collect();
    let server = Server::start(move |asked| {
        let Some(number) = asked.target.strip_prefix("/named/") else { return Reply::new("200 OK", &[], BODY) };
        let encoded = proposed[number.parse::<usize>().unwrap()].iter().fold(String::new(), |mut text, byte| {
            write!(text, "%{byte:02X}").unwrap();
            text
        });
        Reply::new("200 OK", &[("Content-Disposition", &format!("attachment; filename*=UTF-8''{encoded}"))], BODY)
    })
    .await;
    let world = server.world().await;
    let session = world.open().await;
    // The real program reads what was made here.
    std::fs::write(world.path().join("names.tar"), tar(&all)).unwrap();
    let listed =
        std::process::Command::new("tar").args(["-tf", "names.tar"]).current_dir(world.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), all.len(), "{listed:?}");
    // Links of the archive are there, as whoever unpacks it without these tools would have left them, and a second name of
    // a file outside is, too.
    for entry in from_tar.iter().filter(|entry| !entry.name.contains(&b'/')) {
        if let Some(to) = &entry.link {
            symlink(to, world.path().join(std::str::from_utf8(&entry.name).unwrap())).unwrap();
        }
    }
    std::fs::hard_link(outside.path().join("theirs"), world.path().join("hard")).unwrap();
    let above = world.path().parent().unwrap().to_owned();
    let before = state(outside.path());
    let mut written = 0;
    for (number, entry) in from_tar.iter().enumerate() {
        std::fs::write(world.path().join("spare"), "unpacked\n").unwrap();
        written += use_name(&session, &server, number, &entry.name).await;
        assert_eq!(state(outside.path()), before, "{:?}", String::from_utf8_lossy(&entry.name));
        for place in [above.as_path(), Path::new("/")] {
            assert!(!place.join("escaped").exists(), "{:?}", String::from_utf8_lossy(&entry.name));
        }
        assert!(!world.path().join(".git").exists() && !world.path().join("sub/.git").exists());
    }
    // Harmless ones work, so that something was looked at.
    assert!(written > from_tar.len(), "{written}");
    world.at_rest(&[&session]).await;
    world.end().await;
}
