//! Where the repository of the workspace lies, and whether it is the workspace's own.
//!
//! A `.git` file, a `commondir` in a `.git` folder, or a link can point at any repository of this machine, and
//! reading through it would show what lies outside the workspace. So a repository beneath the workspace is taken as
//! it is, and one elsewhere only if it knows the workspace as one of its own working trees.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use super::fault;
use super::intake::Kept;
use super::plain::is_plain;
use super::program::Git;
use crate::builtin::reach::Step;

/// The folders of a repository that may be used, absolute and without links.
#[derive(Debug)]
pub(super) struct RepositoryFolder {
    /// What belongs to this working tree.
    own: PathBuf,
    /// What all its working trees share.
    common: PathBuf,
}

impl RepositoryFolder {
    /// The repository of the workspace as a look shows it, where it is a plain one. Whether git takes it for one is
    /// told by whatever is asked of it.
    pub(super) fn plain(git: &Git<'_>) -> Option<Self> {
        let own = git.root().join(".git");
        is_plain(git).then(|| Self { common: own.clone(), own })
    }

    /// Finds the repository of the workspace.
    ///
    /// # Errors
    /// The outcome of a workspace without a repository, or with one that is not its own.
    pub(super) async fn find(git: &Git<'_>) -> Step<Self> {
        let printed = git.list(&["rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir"]).await?;
        let lines: Vec<&[u8]> = printed.bytes.split(|byte| *byte == b'\n').collect();
        let [own, common, b""] = lines.as_slice() else {
            return Err(fault::unsupported("the repository's own folder has a line break in its path; rename it"));
        };
        let [own, common] = [own, common].map(|path| PathBuf::from(OsStr::from_bytes(path)));
        let folder = Self { own, common };
        if folder.common.starts_with(git.root()) || folder.lists(git).await? || folder.is_submodule(git).await? {
            return Ok(folder);
        }
        Err(fault::unsupported(&format!(
            "{}: .git leads to {}, outside the workspace, and that repository does not know the workspace as a working \
             tree of its own; use a workspace that holds its repository",
            git.op(),
            folder.common.display()
        )))
    }

    /// Whether this is a working tree beside the main one.
    pub(super) fn is_linked(&self) -> bool {
        self.own != self.common
    }

    /// Whether the repository lists the workspace as a working tree.
    async fn lists(&self, git: &Git<'_>) -> Step<bool> {
        let printed = git.list(&["worktree", "list", "--porcelain", "-z"]).await?;
        let mut trees = printed.fields().filter_map(|field| field.strip_prefix(b"worktree "));
        Ok(self.is_linked() && trees.any(|tree| tree == git.root().as_os_str().as_bytes()))
    }

    /// Whether the repository's own configuration says that its working tree is the workspace, as that of a
    /// submodule does.
    async fn is_submodule(&self, git: &Git<'_>) -> Step<bool> {
        // Otherwise the folder of the working tree, which is whoever's, could have a say in the configuration.
        if self.is_linked() {
            return Ok(false);
        }
        let ran = git.run(&["config", "-z", "--get", "core.worktree"], Kept::default()).await?;
        let Some(tree) = ran.out.fields().next().filter(|_| ran.code == 0) else { return Ok(false) };
        Ok(folded(&self.common.join(OsStr::from_bytes(tree))) == git.root())
    }
}

/// An absolute path without `.` and `..`.
fn folded(path: &Path) -> PathBuf {
    let mut folded = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                folded.pop();
            }
            Component::CurDir => {}
            part => folded.push(part),
        }
    }
    folded
}
