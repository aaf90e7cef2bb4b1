//! What a diff is read as, and what is refused.

use super::{Diff, DiffError, Fate, Hunk, Name, Side};

fn parse(text: &str) -> Diff<'_> {
    Diff::parse(text.as_bytes()).unwrap()
}

fn error(text: &str) -> DiffError {
    Diff::parse(text.as_bytes()).unwrap_err()
}

fn path(text: &str) -> Option<Name> {
    Some(Name::Path(text.as_bytes().to_vec()))
}

/// A hunk as signs and texts.
fn body(hunk: &Hunk<'_>) -> Vec<String> {
    let sign = |side| match side {
        Side::Both => ' ',
        Side::Old => '-',
        Side::New => '+',
    };
    hunk.lines.iter().map(|line| format!("{}{}", sign(line.side), String::from_utf8_lossy(line.text))).collect()
}

#[test]
fn several_files_with_what_git_writes_around_them() {
    let diff = parse(
        "From 1 Mon Sep 17\nSubject: words\n---\n f | 2 +-\n\ndiff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n\
         @@ -1 +1 @@ fn x\n-a\n+b\ndiff --git a/new b/new\nnew file mode 100755\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n\
         +n\ndiff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-o\n\
         diff --git a/from b/to\nsimilarity index 90%\nrename from from\nrename to to\n--- a/from\n+++ b/to\n\
         @@ -1 +1 @@\n-x\n+y\ndiff --git a/moved b/there\nsimilarity index 100%\nrename from moved\nrename to there\n\
         diff --git a/empty b/empty\nnew file mode 100644\nindex 0..e\n-- \n2.40.1\n\n",
    );
    let told: Vec<_> = diff.sections.iter().map(|one| (one.fate, one.hunks.len())).collect();
    let expected =
        [(Fate::Stays, 1), (Fate::New, 1), (Fate::Goes, 1), (Fate::Renamed, 1), (Fate::Renamed, 0), (Fate::New, 0)];
    assert_eq!(told, expected);
    assert_eq!(diff.sections[0].hunks[0].scope, b"fn x");
    assert_eq!((diff.sections[1].mode, diff.sections[5].mode), (Some(0o755), None));
    assert_eq!((&diff.sections[3].old, &diff.sections[3].new), (&path("from"), &path("to")));
    assert_eq!((&diff.sections[4].old, &diff.sections[4].new), (&path("moved"), &path("there")));
    assert_eq!(diff.sections[5].new, path("empty"));
}

// Case C042: a hunk ends where its lines end, and the header's counts are only compared.
#[test]
fn counts_that_do_not_fit_are_noticed_and_believed_by_nobody() {
    let many =
        parse("--- a/f\n+++ b/f\n@@ -1,9 +1,9 @@\n one\n-two\n+TWO\n three\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-x\n+y\n");
    assert_eq!(many.sections.len(), 2);
    assert_eq!(body(&many.sections[0].hunks[0]), [" one", "-two", "+TWO", " three"]);
    assert!(many.sections[0].hunks[0].miscounts() && !many.sections[1].hunks[0].miscounts());
    let few = parse("@@ -1,1 +1,1 @@\n one\n-two\n+TWO\n three\n");
    assert_eq!((few.sections[0].hunks[0].counts(), few.sections[0].hunks[0].miscounts()), ((3, 3), true));
}

// Case C046: an empty line inside of a hunk is an empty line of the file, behind it nothing.
#[test]
fn empty_lines_count_where_the_hunk_goes_on() {
    let diff = parse("@@ -1,3 +1,3 @@\n a\n\n-b\n+B\n\n\n");
    assert_eq!(body(&diff.sections[0].hunks[0]), [" a", " ", "-b", "+B"]);
    assert!(!diff.sections[0].hunks[0].miscounts());
    let at_end = parse("@@ -1,3 +1,3 @@\n-b\n+B\n\n c\n\n@@ -9 +9 @@\n-x\n+y\n");
    assert_eq!(body(&at_end.sections[0].hunks[0]), ["-b", "+B", " ", " c"]);
    assert_eq!(at_end.sections[0].hunks.len(), 2);
    let last_is_empty = parse("@@ -1,2 +1,2 @@\n-b\n+B\n\n");
    assert_eq!(body(&last_is_empty.sections[0].hunks[0]), ["-b", "+B", " "]);
    let unnumbered = parse("@@\n-b\n\n+B\n\n\n");
    assert_eq!(body(&unnumbered.sections[0].hunks[0]), ["-b", " ", "+B"]);
    let with_cr = parse("@@ -1,2 +1,2 @@\r\n\r\n-b\r\n+B\r\n");
    assert_eq!(body(&with_cr.sections[0].hunks[0]), [" \r", "-b\r", "+B\r"]);
}

#[test]
fn lines_that_look_like_headers_are_lines_where_the_counts_say_so() {
    let sql = parse("--- a/f.sql\n+++ b/f.sql\n@@ -1,2 +1,2 @@\n x\n--- old\n+++ new\n@@ -9 +9 @@\n-a\n+b\n");
    assert_eq!(sql.sections.len(), 1);
    assert_eq!(body(&sql.sections[0].hunks[0]), [" x", "--- old", "+++ new"]);
    let next = parse("--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n--- g\n+++ g\n@@ -1 +1 @@\n-c\n+d\n");
    assert_eq!((next.sections.len(), &next.sections[1].old), (2, &path("g")));
}

#[test]
fn markers_belong_to_the_last_line_of_a_side() {
    let diff = parse("@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n");
    assert!(diff.sections[0].hunks[0].lines.iter().all(|line| !line.ended));
    assert!(matches!(error("@@ -1,2 +1 @@\n-a\n\\ No newline\n-b\n+c\n"), DiffError::Marker { line: 3 }));
    assert!(matches!(error("@@ -1 +1 @@\n\\ No newline\n-b\n"), DiffError::Marker { line: 2 }));
}

#[test]
fn what_cannot_be_carried_out_names_its_line() {
    for (text, words) in [
        ("", "no hunk"),
        ("words\n", "no hunk"),
        ("--- a/f\n+++ b/f\n", "no hunk"),
        ("@@ -1 +1 @@\n", "no lines"),
        ("@@ -1 +1 @@\n-a\n+b\nsome words\n", "line 4 of the diff (\"some words\")"),
        ("@@ -1 +1 @@\n-a\n+b\n```\n", "line 4"),
        ("--- \n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "names no file"),
        ("@@ -1,x +1 @@\n-a\n+b\n", "is no hunk header"),
        ("diff --git a/l b/l\nnew file mode 120000\n", "link or a submodule"),
        ("diff --git a/b b/b\nBinary files a/b and b/b differ\n", "binary"),
        ("diff --git a/b b/b\nGIT binary patch\n", "binary"),
        ("diff --cc f\n", "merge"),
        ("*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n", "unified diff"),
    ] {
        let told = error(text).to_string();
        assert!(told.contains(words), "{text:?}: {told}");
    }
    let long = vec![b'x'; super::DIFF_BYTES_MAX + 1];
    assert!(matches!(Diff::parse(&long), Err(DiffError::TooLong { .. })));
    let many = "@@ -1 +1 @@\n-a\n+b\n".repeat(super::HUNKS_MAX + 1);
    assert!(matches!(error(&many), DiffError::TooMany { what: "hunks", .. }));
    let files = "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n".repeat(super::SECTIONS_MAX + 1);
    assert!(matches!(error(&files), DiffError::TooMany { what: "files", .. }));
}
