//! A bucket of an object store (S3 and what speaks like it) as a workspace.
//!
//! A key is a path, `/` parts it, and a folder is there because something lies in it. A store gives no folders, links,
//! modes or processes, so nothing here is a link, every file looks alike, and no command runs. What it does give is a
//! version of each object (its etag): a file is read as one version from the first byte to the last, and is replaced
//! only if it still is the version whose content was expected. Everything waits for the network: each access has a time
//! limit, and ends when the call that it is made for is cancelled.

pub mod bucket;

mod object;
mod wait;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use object_store::aws::AmazonS3;
use object_store::list::{PaginatedListOptions, PaginatedListStore as _};
use object_store::path::Path as Key;
use object_store::{
    Attributes, Error as StoreError, GetOptions, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode,
    PutOptions, UpdateVersion,
};

use self::bucket::{BucketAccess, BucketError, BucketPlace};
use self::object::OpenObject;
use self::wait::{Ended, Waiter};
use super::{Workspace, WorkspaceCapabilities};
use crate::cancellation::{CancelReason, Cancellation};
use crate::digest::Digest;
use crate::effects::files::{
    Expected, FileError, FileKind, FileStat, Files, FolderEntry, Links, OpenFile, Replacement, SizedEntry,
};
use crate::workspace_path::WorkspacePath;

/// Most names that one folder may have to be listed.
pub const FOLDER_ENTRIES_MAX: usize = 100_000;
/// Most names looked at in one search: each file of them is a request.
pub const WALK_ENTRIES_MAX: u64 = 10_000;
/// How long one access may take when nobody says otherwise.
pub const ACCESS_TIMEOUT: Duration = Duration::from_secs(60);
/// Names asked for at a time.
const PAGE_NAMES: usize = 1000;
/// Objects whose version and digest are remembered, so that a change need not read them again.
const VERSIONS_MAX: usize = 4096;
/// Longest words of a store that are passed on, in bytes.
const REASON_BYTES_MAX: usize = 300;
/// Mode of every file: a store knows none.
const FILE_MODE: u32 = 0o644;

/// The files beneath one prefix of a bucket; cheap to clone.
#[derive(Clone)]
pub struct ObjectFiles {
    shared: Arc<Shared>,
    /// The signal of the call that these accesses are made for, if any.
    cancel: Option<Cancellation>,
    walk_entries_max: u64,
}

struct Shared {
    store: AmazonS3,
    waiter: Waiter,
    place: BucketPlace,
    timeout: Duration,
    /// What must never be told: keys of the store.
    secrets: Vec<String>,
    versions: Mutex<BTreeMap<WorkspacePath, Version>>,
}

/// One version of an object whose bytes were all seen.
#[derive(Debug, Clone)]
struct Version {
    etag: String,
    digest: Digest,
    /// What the store keeps beside the bytes (content type and the like): a replacement keeps it.
    attributes: Attributes,
}

/// Opens a bucket as a workspace, after one look at it. No command runs in it, whatever is wanted.
///
/// # Errors
/// [`BucketError`], also when the bucket is not there or lets nobody in.
pub fn open(
    place: &BucketPlace,
    access: &BucketAccess,
    wanted: WorkspaceCapabilities,
) -> Result<Workspace, BucketError> {
    let files = ObjectFiles::open(place, access)?;
    Ok(Workspace::new(place.to_string(), wanted, Arc::new(files), None))
}

impl ObjectFiles {
    /// Opens a bucket, after one look at it.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(place: &BucketPlace, access: &BucketAccess) -> Result<Self, BucketError> {
        let shared = Shared {
            store: access.client(place)?,
            waiter: Waiter::start().map_err(|source| BucketError::Client { reason: source.to_string() })?,
            place: place.clone(),
            timeout: access.timeout.unwrap_or(ACCESS_TIMEOUT),
            secrets: access.secrets(),
            versions: Mutex::default(),
        };
        let files = Self { shared: Arc::new(shared), cancel: None, walk_entries_max: WALK_ENTRIES_MAX };
        // A bucket that is not there gives the same answer as a file that is not there; here they are told apart.
        match files.first_page(&WorkspacePath::root(), 1) {
            Ok(_) => Ok(files),
            Err(FileError::NotFound { .. }) => Err(FileError::WorkspaceMissing { root: place.to_string() }.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// The same files, of which one search looks at no more names than this; what it leaves out is said.
    #[must_use]
    pub fn walking_at_most(self, entries: u64) -> Self {
        Self { walk_entries_max: entries, ..self }
    }

    /// Waits for a request of the store.
    fn wait<T: Send + 'static>(
        &self,
        op: &'static str,
        path: &WorkspacePath,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, FileError> {
        match self.shared.waiter.wait(self.shared.timeout, self.cancel.as_ref(), request) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(self.shared.fault(op, path, &error)),
            Err(ended) => Err(stopped(op, path, ended, self.shared.timeout)),
        }
    }

    fn key(&self, path: &WorkspacePath) -> Result<Key, FileError> {
        self.shared.place.key(path)
    }

    /// What is known of the object at the path; none when there is none.
    fn head(&self, op: &'static str, path: &WorkspacePath) -> Result<Option<(ObjectMeta, Attributes)>, FileError> {
        if path.is_root() {
            return Ok(None);
        }
        let (shared, key) = (Arc::clone(&self.shared), self.key(path)?);
        let head = async move { shared.head(&key).await };
        self.wait(op, path, head)
    }

    /// The first names in a folder, and whether there is something there at all.
    fn first_page(&self, folder: &WorkspacePath, names: usize) -> Result<bool, FileError> {
        let (shared, prefix) = (Arc::clone(&self.shared), self.shared.place.inside(folder)?);
        let ask = async move { shared.is_folder(prefix, names).await };
        self.wait("list", folder, ask)
    }

    /// Whether a new file may stand at the path: no folder does, and no name above it is a file.
    fn check_place(&self, path: &WorkspacePath, create_folders: bool) -> Result<(), FileError> {
        if self.first_page(path, 1)? {
            return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
        }
        let above: Vec<WorkspacePath> = std::iter::successors(path.parent(), WorkspacePath::parent)
            .take_while(|folder| !folder.is_root())
            .collect();
        let keys = above.iter().map(|folder| self.key(folder)).collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::clone(&self.shared);
        let heads = async move {
            let heads = join_all(keys.iter().map(|key| shared.head(key))).await;
            heads.into_iter().map(|head| head.map(|found| found.is_some())).collect::<Result<Vec<bool>, _>>()
        };
        let are_files = self.wait("write", path, heads)?;
        if let Some((folder, _)) = above.iter().zip(are_files).find(|(_, is_file)| *is_file) {
            return Err(FileError::NotAFolder { path: folder.to_string() });
        }
        match above.first() {
            Some(folder) if !create_folders && !self.first_page(folder, 1)? => {
                Err(FileError::NotFound { path: folder.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// The version that is there now, read as a whole unless it is known; none when there is no file.
    fn version(&self, path: &WorkspacePath) -> Result<Option<Version>, FileError> {
        let mut object = match self.object(path) {
            Ok(object) => object,
            Err(FileError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        object.version().map(Some)
    }

    fn object(&self, path: &WorkspacePath) -> Result<OpenObject, FileError> {
        let (shared, key) = (Arc::clone(&self.shared), self.key(path)?);
        let asked = key.clone();
        let result = self.wait("open", path, async move { shared.store.get_opts(&asked, GetOptions::default()).await });
        let found = match result {
            Err(FileError::NotFound { .. }) if self.first_page(path, 1)? => {
                return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
            }
            other => other?,
        };
        Ok(OpenObject::new(self.clone(), path.clone(), key, found))
    }

    fn remember(&self, path: &WorkspacePath, version: Version) {
        let mut versions = self.shared.versions.lock().unwrap_or_else(PoisonError::into_inner);
        if versions.len() >= VERSIONS_MAX && !versions.contains_key(path) {
            versions.pop_first();
        }
        versions.insert(path.clone(), version);
    }

    fn remembered(&self, path: &WorkspacePath) -> Option<Version> {
        self.shared.versions.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    /// Puts bytes at a path, and remembers the version that they are.
    fn put(&self, path: &WorkspacePath, bytes: &[u8], mode: PutMode, attributes: Attributes) -> Put {
        let (shared, key) = (Arc::clone(&self.shared), self.key(path)?);
        let payload = bytes::Bytes::copy_from_slice(bytes);
        let options = PutOptions { mode, attributes: attributes.clone(), ..PutOptions::default() };
        let request = async move {
            match shared.store.put_opts(&key, payload.into(), options).await {
                Ok(put) => Ok(Some(put)),
                // Decided, not failed: somebody else was there first.
                Err(StoreError::Precondition { .. } | StoreError::AlreadyExists { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(put) = self.wait("write", path, request)? else { return Ok(None) };
        if let Some(etag) = strong(put.e_tag) {
            self.remember(path, Version { etag, digest: Digest::of(bytes), attributes });
        }
        // It is written: a look that fails now takes nothing from that.
        let found = self.head("stat", path).unwrap_or(None);
        Ok(Some(found.map_or_else(|| stat_of(bytes.len() as u64, 0, ""), |(meta, _)| stat_of_meta(&meta))))
    }

    /// Puts bytes where a known content must be.
    fn put_over(&self, path: &WorkspacePath, bytes: &[u8], expected: &Digest) -> Result<FileStat, FileError> {
        let changed = |actual: Option<&Version>| changed(path, expected, actual);
        let known = self.remembered(path).filter(|version| version.digest == *expected);
        let now = match known {
            Some(known) => known,
            None => match self.version(path)? {
                Some(now) if now.digest == *expected => now,
                other => return Err(changed(other.as_ref())),
            },
        };
        let mode = PutMode::Update(UpdateVersion { e_tag: Some(now.etag), version: None });
        if let Some(stat) = self.put(path, bytes, mode, now.attributes)? {
            return Ok(stat);
        }
        // Either somebody else changed it, or an answer to our own put was lost and the store was asked twice.
        match self.version(path)? {
            Some(now) if now.digest == Digest::of(bytes) => self.stat(path, Links::Follow),
            other => Err(changed(other.as_ref())),
        }
    }
}

/// What became of a put; none when something else was there than it asked for.
type Put = Result<Option<FileStat>, FileError>;

impl Files for ObjectFiles {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        Ok(path.clone())
    }

    fn stat(&self, path: &WorkspacePath, _links: Links) -> Result<FileStat, FileError> {
        match self.head("stat", path)? {
            Some((meta, _)) => Ok(stat_of_meta(&meta)),
            None if path.is_root() || self.first_page(path, 1)? => Ok(FOLDER),
            None => Err(FileError::NotFound { path: path.to_string() }),
        }
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        if path.is_root() {
            return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
        }
        self.object(path).map(|object| Box::new(object) as _)
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        Ok(self.list_sized(path)?.into_iter().map(|sized| sized.entry).collect())
    }

    fn list_sized(&self, path: &WorkspacePath) -> Result<Vec<SizedEntry>, FileError> {
        let (shared, prefix) = (Arc::clone(&self.shared), self.shared.place.inside(path)?);
        let folder = path.clone();
        let listing = self.wait("list", path, async move { shared.entries(prefix, &folder).await })?;
        match listing {
            Listing::Whole(entries) => Ok(entries),
            Listing::TooMany => {
                let reason = format!("more than {FOLDER_ENTRIES_MAX} entries; name a folder in it");
                Err(FileError::Io { op: "list", path: path.to_string(), source: io::Error::other(reason) })
            }
            Listing::Nothing if path.is_root() => Ok(Vec::new()),
            Listing::Nothing => Err(match self.head("list", path)? {
                Some(_) => FileError::NotAFolder { path: path.to_string() },
                None => FileError::NotFound { path: path.to_string() },
            }),
        }
    }

    fn walk_entries_max(&self) -> Option<u64> {
        Some(self.walk_entries_max)
    }

    fn bound_to(&self, cancel: &Cancellation) -> Option<Arc<dyn Files>> {
        Some(Arc::new(Self { cancel: Some(cancel.clone()), ..self.clone() }))
    }

    /// Compares first and removes then: a store removes no version by name, so what another program writes in between
    /// is lost.
    fn remove(&self, path: &WorkspacePath, expected: &Expected) -> Result<(), FileError> {
        match self.head("remove", path)? {
            None if path.is_root() || self.first_page(path, 1)? => {
                return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
            }
            None => return Err(FileError::NotFound { path: path.to_string() }),
            Some(_) => {}
        }
        match expected {
            Expected::Any => {}
            Expected::Absent => return Err(FileError::Exists { path: path.to_string() }),
            Expected::Content(expected) => {
                let now = self.version(path)?;
                if now.as_ref().is_none_or(|now| now.digest != *expected) {
                    return Err(changed(path, expected, now.as_ref()));
                }
            }
        }
        let (shared, key) = (Arc::clone(&self.shared), self.key(path)?);
        self.wait("remove", path, async move { shared.store.delete(&key).await })
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        if path.is_root() {
            return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
        }
        let bytes = replacement.bytes;
        match &replacement.expected {
            Expected::Content(digest) => self.put_over(path, bytes, digest),
            Expected::Absent => {
                self.check_place(path, replacement.create_folders)?;
                match self.put(path, bytes, PutMode::Create, Attributes::default())? {
                    Some(stat) => Ok(stat),
                    None => match self.version(path)? {
                        // The answer to our own put was lost and the store was asked twice.
                        Some(now) if now.digest == Digest::of(bytes) => self.stat(path, Links::Follow),
                        _ => Err(FileError::Exists { path: path.to_string() }),
                    },
                }
            }
            Expected::Any => {
                let before = self.head("write", path)?;
                if before.is_none() {
                    self.check_place(path, replacement.create_folders)?;
                }
                let attributes = before.map(|(_, attributes)| attributes).unwrap_or_default();
                let put = self.put(path, bytes, PutMode::Overwrite, attributes)?;
                put.ok_or_else(|| FileError::Exists { path: path.to_string() })
            }
        }
    }
}

/// The names of one folder.
enum Listing {
    Whole(Vec<SizedEntry>),
    /// There is no such folder.
    Nothing,
    TooMany,
}

impl Shared {
    async fn head(&self, key: &Key) -> Result<Option<(ObjectMeta, Attributes)>, StoreError> {
        match self.store.get_opts(key, GetOptions { head: true, ..GetOptions::default() }).await {
            Ok(found) => Ok(Some((found.meta, found.attributes))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn is_folder(&self, prefix: String, names: usize) -> Result<bool, StoreError> {
        let options = PaginatedListOptions { max_keys: Some(names), ..PaginatedListOptions::default() };
        let page = self.store.list_paginated(Some(prefix.as_str()).filter(|at| !at.is_empty()), options).await?;
        Ok(!page.result.objects.is_empty() || !page.result.common_prefixes.is_empty())
    }

    /// The names directly beneath a prefix, sorted.
    async fn entries(&self, prefix: String, folder: &WorkspacePath) -> Result<Listing, StoreError> {
        let mut entries: Vec<SizedEntry> = Vec::new();
        let mut is_there = false;
        let mut token = None;
        loop {
            let options = PaginatedListOptions {
                delimiter: Some("/".into()),
                max_keys: Some(PAGE_NAMES),
                page_token: token,
                ..PaginatedListOptions::default()
            };
            let page = self.store.list_paginated(Some(prefix.as_str()).filter(|at| !at.is_empty()), options).await?;
            let names =
                |key: &Key| key.as_ref().strip_prefix(&prefix).filter(|name| !name.is_empty()).map(str::to_owned);
            for key in &page.result.common_prefixes {
                is_there = true;
                if let Some(name) = names(key) {
                    let path = folder.child(name.as_ref());
                    let entry = FolderEntry { path, kind: FileKind::Folder };
                    entries.push(SizedEntry { entry, size_bytes: None });
                }
            }
            for object in &page.result.objects {
                is_there = true;
                // What is named as the folder itself only says that there is one.
                if let Some(name) = names(&object.location) {
                    let path = folder.child(name.as_ref());
                    let entry = FolderEntry { path, kind: FileKind::File };
                    entries.push(SizedEntry { entry, size_bytes: Some(object.size) });
                }
            }
            if entries.len() > FOLDER_ENTRIES_MAX {
                return Ok(Listing::TooMany);
            }
            token = page.page_token;
            if token.is_none() {
                break;
            }
        }
        entries.sort_by(|one, other| one.entry.path.cmp(&other.entry.path));
        Ok(if is_there { Listing::Whole(entries) } else { Listing::Nothing })
    }

    /// What the store's error means here. Its own words are cut, and its keys are taken out of them.
    fn fault(&self, op: &'static str, path: &WorkspacePath, error: &StoreError) -> FileError {
        let shown = path.to_string();
        let io = |kind: io::ErrorKind, reason: String| FileError::Io {
            op,
            path: shown.clone(),
            source: io::Error::new(kind, reason),
        };
        let denied = || {
            let reason = "the bucket refused it; check the credentials and what they may do";
            io(io::ErrorKind::PermissionDenied, reason.to_owned())
        };
        match error {
            StoreError::NotFound { .. } => FileError::NotFound { path: path.to_string() },
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => denied(),
            StoreError::Precondition { .. } | StoreError::NotModified { .. } => {
                io(io::ErrorKind::Other, "it changed while it was read; read it again".to_owned())
            }
            StoreError::InvalidPath { source } => io(
                io::ErrorKind::InvalidData,
                format!("the bucket holds a key here that is no path: {}", self.words(source)),
            ),
            StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => {
                io(io::ErrorKind::Unsupported, "this store cannot do it".to_owned())
            }
            // Of a listing the client tells the status only in its words.
            other => match other.to_string() {
                words if words.contains("NoSuchBucket") => FileError::WorkspaceMissing { root: self.place.to_string() },
                words if words.contains("code: 403") || words.contains("code: 401") => denied(),
                _ => io(io::ErrorKind::Other, self.words(other)),
            },
        }
    }

    fn words(&self, error: &dyn std::error::Error) -> String {
        let mut words: String = error.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        for secret in &self.secrets {
            words = words.replace(secret, "[removed]");
        }
        words.truncate(words.floor_char_boundary(REASON_BYTES_MAX));
        words
    }
}

/// The error of a content that is not the expected one.
fn changed(path: &WorkspacePath, expected: &Digest, actual: Option<&Version>) -> FileError {
    FileError::Changed {
        path: path.to_string(),
        expected: expected.to_string(),
        actual: actual.map_or_else(|| "absent".to_owned(), |version| version.digest.to_string()),
    }
}

/// The error of an access that ended before its answer.
fn stopped(op: &'static str, path: &WorkspacePath, ended: Ended, timeout: Duration) -> FileError {
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let reason = match ended {
        Ended::Cancelled(reason) => reason,
        Ended::Timeout => CancelReason::Deadline { timeout_ms },
        Ended::Gone => CancelReason::Shutdown,
    };
    FileError::Stopped { op, path: path.to_string(), reason }
}

/// An etag that names one version to the byte; weak ones name a meaning.
fn strong(etag: Option<String>) -> Option<String> {
    etag.filter(|etag| !etag.starts_with("W/") && !etag.is_empty())
}

/// What is known of any folder.
const FOLDER: FileStat = FileStat {
    kind: FileKind::Folder,
    size_bytes: 0,
    mode: 0o755,
    link_count: 1,
    modified_unix_ns: 0,
    identity: (0, 0),
};

fn stat_of_meta(meta: &ObjectMeta) -> FileStat {
    let modified_unix_ns = meta.last_modified.timestamp_nanos_opt().map_or(0, i128::from);
    stat_of(meta.size, modified_unix_ns, meta.e_tag.as_deref().unwrap_or_default())
}

/// The identity of a version is told by its etag.
fn stat_of(size_bytes: u64, modified_unix_ns: i128, etag: &str) -> FileStat {
    let digest = Digest::of(etag.as_bytes()).to_string();
    let hex = digest.strip_prefix("sha256:").unwrap_or_default();
    let part = |from: usize| hex.get(from..from + 16).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    FileStat {
        kind: FileKind::File,
        size_bytes,
        mode: FILE_MODE,
        link_count: 1,
        modified_unix_ns,
        identity: (part(0), part(16)),
    }
}
