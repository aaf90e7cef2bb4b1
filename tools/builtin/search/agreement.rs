//! Searches with and without an index, side by side, over a folder that changes all the time.

#![expect(clippy::disallowed_methods, reason = "tests change real files")]

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::{Value, json};

use super::tool;
use crate::builtin::testing::{call, context};
use crate::context::ToolContext;
use crate::effects::folder_watch::{Change, FolderWatch, FolderWatches, SystemWatches, WatchError};
use crate::outcome::ToolOutcome;
use crate::search::requirement::Requirement;
use crate::search::resident_index::{ResidentIndex, ResidentIndexes};
use crate::search::tree::{Leaf, ROOT, TreeWalk};
use crate::workspace_path::WorkspacePath;

/// Rounds of changes; each is followed by [`SEARCHES`] pairs of searches.
const ROUNDS: usize = 220;
/// Searches of a round.
const SEARCHES: usize = 10;
/// How long indexing may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

const WORDS: [&str; 12] =
    ["alpha", "beta", "Gamma", "delta_one", "DeltaTwo", "x", "straße", "\u{212a}elvin", "42", "foo.bar", "缓存", "--"];
const FOLDERS: [&str; 8] = ["", "a", "a/b", "a/b/c", "lib", "lib/one", "out", ".hid"];
const NAMES: [&str; 8] = ["m.rs", "n.rs", "o.txt", "p", "q.log", "new\nline", "bin.dat", "wide.txt"];
const PATTERNS: [&str; 22] = [
    "alpha",
    "bet",
    "Gamma|42",
    "delta_\\w+",
    "(?i)deltatwo",
    "foo\\.bar",
    "^alpha",
    "42$",
    "[ab]l?pha",
    "alpha.*beta",
    "straße",
    "kelvin",
    "x",
    "",
    "缓存",
    "(alpha|beta) (Gamma|x)",
    "(del){1,2}ta",
    "\\bfoo",
    "a{2}",
    "nowhere",
    "--",
    "(?-u:\\xc3)",
];

const QUESTIONS: [&str; 12] = [
    "alpha",
    "where is Gamma",
    "delta one two",
    "缓存",
    "kelvin",
    "\u{212a}elvin alpha",
    "straße 42",
    "foo bar x",
    "o txt m",
    "ＤＥＬＴＡ betas",
    "nowhere at all",
    "lib test",
];

/// A small generator of numbers, so that a bad round can be found again by its number.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn text(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        for _ in 0..self.below(12) {
            for _ in 0..=self.below(4) {
                text.extend_from_slice(WORDS[self.below(WORDS.len())].as_bytes());
                text.push(b' ');
            }
            text.extend_from_slice(if self.below(5) == 0 { b"\r\n" } else { b"\n" });
        }
        match self.below(12) {
            0 => text.insert(text.len() / 2, 0),
            1 => text = String::from_utf8_lossy(&text).encode_utf16().flat_map(u16::to_le_bytes).collect(),
            2 => text.push(0xff),
            _ => {}
        }
        if text.len() > 1 && text[1] == 0 {
            text.splice(0..0, [0xff, 0xfe]);
        }
        text
    }

    fn place(&mut self, root: &Path) -> PathBuf {
        root.join(FOLDERS[self.below(FOLDERS.len())]).join(NAMES[self.below(NAMES.len())])
    }

    /// Changes something; what cannot be done is not done.
    fn change(&mut self, root: &Path) {
        let place = self.place(root);
        let folder = root.join(FOLDERS[1 + self.below(FOLDERS.len() - 1)]);
        match self.below(15) {
            0..=3 => {
                let _ = fs::create_dir_all(place.parent().unwrap());
                let _ = fs::write(place, self.text());
            }
            4 => {
                let part = root.join("part.tmp");
                fs::write(&part, self.text()).unwrap();
                let _ = fs::rename(&part, place);
            }
            5 => {
                if let Ok(mut file) = fs::OpenOptions::new().append(true).open(place) {
                    std::io::Write::write_all(&mut file, &self.text()).unwrap();
                }
            }
            6 => drop(fs::remove_file(place)),
            7 => drop(fs::rename(&place, self.place(root))),
            8 => drop(fs::rename(&folder, root.join(FOLDERS[1 + self.below(FOLDERS.len() - 1)]))),
            9 if self.below(3) == 0 => drop(fs::remove_dir_all(folder)),
            10 => {
                let rules = ["*.log\n", "out/\n", "*.txt\n!o.txt\n", "lib/one\n", "", "[z\\\n"][self.below(6)];
                let name = [".gitignore", ".ignore"][self.below(2)];
                let within = root.join(["", "a", "lib"][self.below(3)]);
                let _ = fs::write(within.join(name), rules);
            }
            11 => {
                fs::create_dir_all(root.join(".git/info")).unwrap();
                fs::write(root.join(".git/info/exclude"), ["n.rs\n", "a/b\n", ""][self.below(3)]).unwrap();
            }
            12 => drop(fs::hard_link(&place, self.place(root))),
            13 => drop(std::os::unix::fs::symlink("m.rs", place)),
            _ => {
                let mode = [0o644, 0o600, 0o755][self.below(3)];
                let _ = fs::set_permissions(place, fs::Permissions::from_mode(mode));
            }
        }
    }

    fn search(&mut self) -> Value {
        let mut arguments = json!({});
        if self.below(4) == 0 {
            arguments["mode"] = json!("glob");
            arguments["query"] =
                json!(["*.rs", "a/**", "**/b/*", "*", "lib/one/*.txt", "{m,n}.rs", "*.log", "**/o.txt"][self.below(8)]);
        } else if self.below(3) == 0 {
            arguments["mode"] = json!("bm25");
            arguments["query"] = json!(QUESTIONS[self.below(QUESTIONS.len())]);
            arguments["context"] = json!(self.below(4));
            if self.below(4) == 0 {
                arguments["include"] = json!(["*.rs", "a/**", "*.txt", ".hid/**"][self.below(4)]);
            }
        } else {
            arguments["mode"] = json!("grep");
            let mut pattern = PATTERNS[self.below(PATTERNS.len())].to_owned();
            if pattern.is_empty() {
                let word = WORDS[self.below(WORDS.len())];
                let from = (0..word.len()).find(|at| word.is_char_boundary(*at + 1)).map_or(0, |at| at + 1);
                pattern = regex_syntax::escape(&word[from.min(word.len() - 1)..]);
            }
            arguments["query"] = json!(pattern);
            let output = ["content", "files_with_matches", "count", "summary"][self.below(4)];
            arguments["output_mode"] = json!(output);
            arguments["case_sensitive"] = json!(self.below(2) == 0);
            if self.below(4) == 0 {
                arguments["include"] = json!(["*.rs", "a/**", "*.txt", ".hid/**"][self.below(4)]);
            }
        }
        if self.below(4) == 0 {
            arguments["path"] = json!(["a", "a/b", "lib", "out", ".hid", "m.rs"][self.below(6)]);
        }
        arguments
    }
}

fn wait(index: &Arc<ResidentIndex>) -> bool {
    index.wait_until_indexed(PATIENCE)
}

fn told(outcome: &ToolOutcome) -> (bool, &str, String) {
    (outcome.is_success(), &outcome.output, serde_json::to_string(&outcome.metadata).unwrap())
}

/// How many files of a view may hold what a pattern requires, and how many there are.
fn candidates(index: &ResidentIndex, pattern: &str) -> (usize, usize) {
    let view = index.view().unwrap();
    let candidates = view.candidates(&Requirement::of(pattern, true));
    let mut walk = TreeWalk::start(view.tree(), ROOT, None);
    let (mut may, mut all) = (0, 0);
    while let Some(leaf) = walk.next_leaf() {
        if let Leaf::File(content) = leaf {
            all += 1;
            may += usize::from(candidates.may_hold(content));
        }
    }
    (may, all)
}

async fn compare(ctx: &ToolContext, indexes: &Arc<ResidentIndexes>, arguments: &Value, round: usize) {
    let with = call(tool(Some(Arc::clone(indexes))).as_ref(), ctx, arguments.clone()).await;
    let without = call(tool(None).as_ref(), ctx, arguments.clone()).await;
    assert_eq!(told(&with), told(&without), "round {round}: {arguments}");
}

// R04 and the promise of the index: whatever happened a moment ago, both give the same, word by word.
#[tokio::test(flavor = "multi_thread")]
async fn searches_with_an_index_give_what_searches_without_give() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = folder.path();
    let mut numbers = Numbers(7);
    for _ in 0..80 {
        numbers.change(root);
    }
    let ctx = context(root);
    let indexes = Arc::new(ResidentIndexes::new(Some(cache.path().to_owned())));
    let index = indexes.of(ctx.workspace.files().as_ref()).unwrap();
    assert!(index.view().is_none(), "nothing is read before the first search");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "and nothing is written");
    compare(&ctx, &indexes, &json!({"mode": "grep", "query": "alpha"}), 0).await;
    assert!(wait(&index));
    let mut with_view = 0;
    for round in 0..ROUNDS {
        for _ in 0..=numbers.below(3) {
            numbers.change(root);
        }
        for _ in 0..SEARCHES {
            let arguments = numbers.search();
            with_view += usize::from(index.view().is_some());
            compare(&ctx, &indexes, &arguments, round).await;
        }
        if round % 20 == 19 {
            assert!(wait(&index));
        }
    }
    assert!(with_view > ROUNDS * SEARCHES * 9 / 10, "the index was rarely used: {with_view}");
    assert!(index.status().words_files > 0 && index.status().words_bytes > 0, "no words were kept");
    for number in 0..200 {
        fs::write(root.join(format!("more{number}")), "some more text\n").unwrap();
    }
    fs::write(root.join("needle"), "a needle_word here\n").unwrap();
    assert!(wait(&index));
    let (may, all) = candidates(&index, "needle_word");
    assert!(all > 200 && may < all / 4, "the index tells nothing apart: {may} of {all}");
    indexes.close();
    assert!(index.view().is_none());
    compare(&ctx, &indexes, &json!({"mode": "grep", "query": "needle_word"}), ROUNDS).await;
}

// What the next process finds is taken as far as it still holds; damage and other versions are thrown away.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_kept_is_used_again_as_far_as_it_holds() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = folder.path();
    for number in 0..300 {
        let text = format!("line of file {number}\nword{number}\n");
        fs::write(root.join(format!("f{number:03}")), text).unwrap();
        // Old enough for its stamp to be trusted; the other half is too young.
        if number % 2 == 0 {
            let old = fs::File::options().write(true).open(root.join(format!("f{number:03}"))).unwrap();
            old.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
        }
    }
    let ctx = context(root);
    for damage in [false, true, false] {
        let indexes = Arc::new(ResidentIndexes::new(Some(cache.path().to_owned())));
        let index = indexes.of(ctx.workspace.files().as_ref()).unwrap();
        index.begin();
        assert!(wait(&index));
        assert!(index.status().segments > 0 && index.status().bytes > 0);
        for word in ["word7\\b", "word200", "changed_word"] {
            compare(&ctx, &indexes, &json!({"mode": "grep", "query": word}), 0).await;
            assert!(candidates(&index, word).0 < 20, "{word}");
        }
        indexes.close();
        fs::write(root.join("f020"), "changed_word\n").unwrap();
        if damage {
            for entry in walk_files(cache.path()) {
                let mut bytes = fs::read(&entry).unwrap();
                let middle = bytes.len() / 2;
                bytes.iter_mut().skip(middle).take(8).for_each(|byte| *byte ^= 0x55);
                fs::write(&entry, bytes).unwrap();
            }
        }
    }
}

fn walk_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() { open.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files
}

// Two processes over one root, without a folder to keep anything in, and over more roots than are held.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_cannot_be_kept_is_as_true() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for number in 0..200 {
        fs::write(folder.path().join(format!("f{number}")), format!("word{number}\n")).unwrap();
    }
    let ctx = context(folder.path());
    let first = Arc::new(ResidentIndexes::new(Some(cache.path().to_owned())));
    let second = Arc::new(ResidentIndexes::new(Some(cache.path().to_owned())));
    let nowhere = Arc::new(ResidentIndexes::new(None));
    let refused = Arc::new(ResidentIndexes::new(Some("/proc/nowhere".into())));
    for indexes in [&first, &second, &nowhere, &refused] {
        let index = indexes.of(ctx.workspace.files().as_ref()).unwrap();
        index.begin();
        assert!(wait(&index));
        assert!(candidates(&index, "word77").0 < 5);
        compare(&ctx, indexes, &json!({"mode": "grep", "query": "word77"}), 0).await;
    }
    let others: Vec<_> = (0..12).map(|_| tempfile::tempdir().unwrap()).collect();
    for other in &others {
        let ctx = context(other.path());
        nowhere.of(ctx.workspace.files().as_ref()).unwrap().begin();
    }
    compare(&ctx, &nowhere, &json!({"mode": "grep", "query": "word77"}), 1).await;
    // The folder is another one now: what is known of the old one is not used.
    let again = folder.path().with_extension("moved");
    fs::rename(folder.path(), &again).unwrap();
    fs::create_dir(folder.path()).unwrap();
    fs::write(folder.path().join("f77"), "word77 anew\n").unwrap();
    for ctx in [&ctx, &context(folder.path())] {
        compare(ctx, &first, &json!({"mode": "grep", "query": "word77"}), 2).await;
    }
    fs::remove_dir_all(again).unwrap();
}

/// Gives watches that refuse a folder once so many are watched, as the kernel does at its limit.
#[derive(Debug)]
struct LimitedWatches(usize);

impl FolderWatches for LimitedWatches {
    fn begin(&self) -> Result<Box<dyn FolderWatch>, WatchError> {
        let refused = || WatchError::Refused(std::io::Error::from(std::io::ErrorKind::Unsupported));
        let left = self.0.checked_sub(1).ok_or_else(refused)?;
        Ok(Box::new(LimitedWatch { inner: SystemWatches.begin()?, left: AtomicUsize::new(left) }))
    }
}

#[derive(Debug)]
struct LimitedWatch {
    inner: Box<dyn FolderWatch>,
    left: AtomicUsize,
}

impl FolderWatch for LimitedWatch {
    fn add(&self, folder: BorrowedFd<'_>) -> Result<i32, WatchError> {
        let take = |left: usize| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => self.inner.add(folder),
            Err(_) => Err(WatchError::Refused(std::io::Error::from(std::io::ErrorKind::StorageFull))),
        }
    }

    fn remove(&self, watch: i32) {
        self.inner.remove(watch);
    }

    fn drain(&self, take: &mut dyn FnMut(Change)) -> Result<(), WatchError> {
        self.inner.drain(take)
    }
}

impl AsFd for LimitedWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

// No watch at all, none for some folders, and one that comes to its limit later: what is known is known by stamps, what
// is found is the same, and what is known not to match is not looked into. Takes as long as it takes for files to
// become old enough for their stamps, two seconds.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_watch_files_are_known_by_their_stamps() {
    for limit in [0, 3, 14] {
        let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = folder.path();
        let mut numbers = Numbers(limit as u64);
        for number in 0..200 {
            fs::create_dir_all(root.join(format!("d{}", number % 8))).unwrap();
            fs::write(root.join(format!("d{}/f{number}", number % 8)), format!("word{number}\n")).unwrap();
        }
        let ctx = context(root);
        let watches = Arc::new(LimitedWatches(limit));
        let indexes = Arc::new(ResidentIndexes::with_watches(Some(cache.path().to_owned()), watches));
        let index = indexes.of(ctx.workspace.files().as_ref()).unwrap();
        compare(&ctx, &indexes, &json!({"mode": "grep", "query": "word77\\b"}), 0).await;
        assert!(wait(&index));
        // The last one is refused when these come.
        for number in 0..8 {
            fs::create_dir_all(root.join(format!("more{number}"))).unwrap();
        }
        for round in 0..25 {
            numbers.change(root);
            for _ in 0..4 {
                compare(&ctx, &indexes, &numbers.search(), round).await;
            }
        }
        let known = || {
            assert!(wait(&index));
            let view = index.stamp_view().expect("known by stamps");
            let candidates = view.candidates(&Requirement::of("word77\\b", true));
            let passed = (0..200).filter(|number| {
                let path = WorkspacePath::from_relative(Path::new(&format!("d{}/f{number}", number % 8)));
                !candidates.may_hold(view.content_of(&path))
            });
            passed.count()
        };
        let began_at = std::time::Instant::now();
        while known() < 190 {
            assert!(began_at.elapsed() < PATIENCE, "{limit}: {} files are known not to match", known());
        }
        assert!(index.status().by_stamps && index.status().segments > 0, "{limit}");
        for word in ["word77\\b", "nowhere", "word"] {
            compare(&ctx, &indexes, &json!({"mode": "grep", "query": word}), 100).await;
        }
        // What changes is seen, though nobody tells of it.
        let path = root.join("d5/f77");
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "word99\n").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
        fs::hard_link(root.join("d6/f78"), folder.path().join("d7/second")).unwrap();
        for word in ["word77\\b", "word99\\b", "word78\\b"] {
            compare(&ctx, &indexes, &json!({"mode": "grep", "query": word}), 101).await;
        }
        indexes.close();
        assert!(index.stamp_view().is_none());
        // The next process begins with what was kept.
        let again = Arc::new(ResidentIndexes::with_watches(Some(cache.path().to_owned()), Arc::new(LimitedWatches(0))));
        let index = again.of(ctx.workspace.files().as_ref()).unwrap();
        index.begin();
        assert!(wait(&index) && index.status().entries > 100, "{:?}", index.status());
        compare(&ctx, &again, &json!({"mode": "grep", "query": "word77\\b"}), 102).await;
    }
}

/// Watches that are not to be had before somebody says so.
#[derive(Debug)]
struct LateWatches {
    asked: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl FolderWatches for LateWatches {
    fn begin(&self) -> Result<Box<dyn FolderWatch>, WatchError> {
        self.asked.send(()).unwrap();
        // An error says that nobody is left to say so.
        let _gone = self.go_on.lock().unwrap().recv();
        SystemWatches.begin()
    }
}

// Case R05: neither the first search nor any other waits for the index, which begins when the first one has ended.
#[tokio::test(flavor = "multi_thread")]
async fn no_search_waits_for_an_index_that_is_being_built() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("f"), "alpha\n").unwrap();
    let ctx = context(folder.path());
    let ((asked, is_asked), (go_on, told)) = (mpsc::channel(), mpsc::channel());
    let watches = LateWatches { asked, go_on: Mutex::new(told) };
    let indexes = Arc::new(ResidentIndexes::with_watches(None, Arc::new(watches)));
    let index = indexes.of(ctx.workspace.files().as_ref()).unwrap();
    assert!(is_asked.try_recv().is_err(), "nothing is built unasked");
    let arguments = json!({"mode": "grep", "query": "alpha"});
    compare(&ctx, &indexes, &arguments, 0).await;
    is_asked.recv_timeout(Duration::from_secs(60)).unwrap();
    // From here on the index is under way and does not come on.
    fs::write(folder.path().join("g"), "alpha too\n").unwrap();
    for arguments in [arguments, json!({"mode": "glob", "query": "*"}), json!({"mode": "bm25", "query": "alpha"})] {
        compare(&ctx, &indexes, &arguments, 1).await;
    }
    assert!(index.view().is_none() && !index.status().ready);
    drop(go_on);
    assert!(wait(&index) && index.status().ready);
}

// The background work ends at once, and with it every thread of it.
#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_a_build_under_way() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..2000 {
        fs::write(folder.path().join(format!("f{number}")), "text ".repeat(200)).unwrap();
    }
    let ctx = context(folder.path());
    let indexes = Arc::new(ResidentIndexes::new(None));
    let index = indexes.of(ctx.workspace.files().as_ref()).unwrap();
    index.begin();
    indexes.close();
    assert!(!index.status().ready);
    assert!(indexes.of(ctx.workspace.files().as_ref()).is_none());
    // Once closed it does not begin again.
    index.begin();
    assert!(index.view().is_none());
}
