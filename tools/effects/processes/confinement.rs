//! How far a command is confined by the kernel: which files it may read and write, and whether it has a network.
//!
//! This is the value alone. It is checked on the side of the host ([`checked`]: paths, other names of denied files),
//! carried to the shim, and put in force there between fork and exec (`landlocked`, `filtered`). What each
//! setting promises, and what it does not, stands in `docs/sandbox.md`.
//!
//! What must stay true: a command that was asked to be confined runs confined or does not run at all.

pub mod checked;
pub mod confined;
mod covered;
mod filtered;
pub mod kernel;
mod landlocked;
mod privilege;

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use serde_json::{Value, json};
use thiserror::Error;

use self::checked::Checked;

/// What a command may do to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum FileAccess {
    /// Whatever the user may.
    #[default]
    Off,
    /// Read what is not denied; write in the workspace, in the paths named writable and in a folder for temporary
    /// files that is the command's own.
    WorkspaceWrite,
    /// Read what is not denied; write in the paths named writable and in a folder for temporary files that is the
    /// command's own.
    ReadOnly,
}

impl FileAccess {
    /// The access as results name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::WorkspaceWrite => "workspace_write",
            Self::ReadOnly => "read_only",
        }
    }
}

/// What a command is kept from; made once, and the same for all commands of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confinement {
    files: FileAccess,
    is_offline: bool,
    has_local_sockets: bool,
    workspace: PathBuf,
    writable: Vec<PathBuf>,
    readable: Vec<PathBuf>,
    denied: Vec<PathBuf>,
    /// Whether the paths were looked at before, so that one that leads elsewhere now was tampered with.
    is_pinned: bool,
}

impl Confinement {
    /// Confines files so, with a network.
    pub fn new(files: FileAccess) -> Self {
        Self { files, ..Self::default() }
    }

    /// Takes the network away: no socket of any family can be made but connected pairs.
    #[must_use]
    pub fn without_network(mut self) -> Self {
        self.is_offline = true;
        self
    }

    /// Lets commands use Unix sockets although they are confined. Whoever listens on one (a container engine, an
    /// agent that holds keys, a session bus) may do for the command what the command itself may not.
    #[must_use]
    pub fn with_local_sockets(mut self) -> Self {
        self.has_local_sockets = true;
        self
    }

    /// Adds an absolute path of a folder or file that may be written too, beneath a denied one as well.
    #[must_use]
    pub fn writable(mut self, path: impl Into<PathBuf>) -> Self {
        self.writable.push(path.into());
        self
    }

    /// Adds an absolute path that may be read although it stands beneath a denied one.
    #[must_use]
    pub fn readable(mut self, path: impl Into<PathBuf>) -> Self {
        self.readable.push(path.into());
        self
    }

    /// Adds an absolute path of a folder or file whose contents may not be read, by whatever name. It need not
    /// exist; in a folder that may be written, it is denied only if it is there when a command starts.
    #[must_use]
    pub fn denied(mut self, path: impl Into<PathBuf>) -> Self {
        self.denied.push(path.into());
        self
    }

    /// The same for a workspace in this folder.
    #[must_use]
    pub fn within(mut self, workspace: impl Into<PathBuf>) -> Self {
        self.workspace = workspace.into();
        self
    }

    /// Whether it keeps commands from anything.
    pub fn is_off(&self) -> bool {
        self.files == FileAccess::Off
            && !self.is_offline
            && [&self.writable, &self.readable, &self.denied].iter().all(|paths| paths.is_empty())
    }

    /// What commands may do to files.
    pub fn files(&self) -> FileAccess {
        self.files
    }

    /// Whether commands have a network.
    pub fn has_network(&self) -> bool {
        !self.is_offline
    }

    /// Where commands may work.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }
}

/// A confinement, or its absence, as results tell of it.
pub fn told(confinement: Option<&Confinement>) -> Value {
    let files = confinement.map_or(FileAccess::Off, Confinement::files);
    let has_network = confinement.is_none_or(Confinement::has_network);
    json!({"files": files.as_str(), "network": if has_network { "on" } else { "off" }})
}

/// A step of putting a confinement in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Making a folder for temporary files.
    Temporary,
    /// Listing what stands beside a denied path.
    Listing,
    /// Covering what is denied inside of what may be written.
    Cover,
    /// Giving up capabilities.
    Capabilities,
    /// Landlock.
    Landlock,
    /// Seccomp.
    Seccomp,
}

impl Step {
    const ALL: [Self; 6] =
        [Self::Temporary, Self::Listing, Self::Cover, Self::Capabilities, Self::Landlock, Self::Seccomp];

    /// The step that the shim tells of by its number.
    pub(super) fn numbered(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|step| *step as i32 == number)
    }

    fn what(self) -> &'static str {
        match self {
            Self::Temporary => "no folder for temporary files could be made",
            Self::Listing => "a folder above a denied path could not be listed",
            Self::Cover => {
                "what is denied inside of a writable folder could not be covered, which takes a mount namespace; \
                 use read_only, or keep it elsewhere"
            }
            Self::Capabilities => "its capabilities could not be given up",
            Self::Landlock => "Landlock did not take the rules",
            Self::Seccomp => "seccomp did not take the filter",
        }
    }
}

/// A step that failed, and the system's number for the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unconfined {
    pub(super) step: Step,
    pub(super) errno: Errno,
}

/// Puts a confinement in force on this process, for good, and on all that it becomes and starts; to be called between
/// fork and exec, in a process with one thread. `temporary` is the folder for temporary files, if there is one.
pub(super) fn enforce(checked: &Checked, temporary: Option<&Path>) -> Result<(), Unconfined> {
    let held = privilege::bind()?;
    covered::cover(checked, &held)?;
    landlocked::restrict(checked, temporary)?;
    privilege::give_up(&held)?;
    filtered::restrict(checked)
}

/// Why a command that was to be confined was not run.
#[derive(Debug, Error)]
pub enum ConfinementError {
    /// There is no shim that could put it in force.
    #[error(
        "commands are run without the shim that would confine them; the host has to use SystemProcesses::with_shim, \
         or to switch the sandbox off"
    )]
    NeedsShim,
    /// The kernel cannot confine files.
    #[error(
        "files are to be confined and this kernel has {}; it takes Linux 6.2 with Landlock switched on (in the boot \
         parameter lsm=, where it is not), or the sandbox switched off", landlock(*.abi)
    )]
    NoLandlock {
        /// Its version of Landlock; 0 for none.
        abi: u32,
    },
    /// The kernel cannot filter system calls.
    #[error(
        "commands are to be confined and this kernel has no seccomp filters; it takes a kernel with \
         CONFIG_SECCOMP_FILTER, or the sandbox switched off"
    )]
    NoSeccomp,
    /// Paths are named, and files are not confined.
    #[error("{} is named in a sandbox that does not confine files; choose read_only or workspace_write", .path.display())]
    Pointless {
        /// The first of them.
        path: PathBuf,
    },
    /// A path of the confinement cannot be used.
    #[error("{} cannot be {what}: {source}; name an absolute path that is there", .path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What it was to be.
        what: &'static str,
        /// The system's own words.
        source: std::io::Error,
    },
    /// A path is denied in a folder that may be written, and is, or holds, what may be used.
    #[error(
        "{} cannot be denied: {} is, or stands in it, and may be used, in a folder that may be written; deny \
         something smaller", .denied.display(), .used.display()
    )]
    Contradiction {
        /// The denied path.
        denied: PathBuf,
        /// What may be used.
        used: PathBuf,
    },
    /// The command's own folder is denied.
    #[error("{} is denied, and so no folder to work in", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
    },
    /// A denied file could be read by another name.
    #[error(
        "{} is denied and has {names} names (hard links), of which only {denied_names} are denied: it could be read \
         by another; remove the others (find -samefile finds them) or deny them too", .path.display()
    )]
    OtherNames {
        /// A denied name of the file.
        path: PathBuf,
        /// How many names it has.
        names: u64,
        /// How many of them are denied.
        denied_names: u64,
    },
    /// What is denied is too much to be looked through.
    #[error("{} holds more than {names_max} files; deny a smaller folder", .path.display())]
    TooMuch {
        /// The denied path.
        path: PathBuf,
        /// How many can be looked at.
        names_max: usize,
    },
    /// The shim could not put it in force.
    #[error("{}: {source}", .step.what())]
    Step {
        /// What failed.
        step: Step,
        /// The system's own words.
        source: std::io::Error,
    },
    /// The runner of this host did not confine it.
    #[error("the command was run by a runner that cannot confine it; use SystemProcesses::with_shim")]
    Ignored,
}

fn landlock(abi: u32) -> String {
    if abi == 0 { "no Landlock".to_owned() } else { format!("version {abi} of Landlock, which is too old") }
}

#[cfg(test)]
mod tests {
    use super::{Confinement, FileAccess, Step, told};

    #[test]
    fn a_confinement_is_told_as_it_is() {
        let offline = Confinement::new(FileAccess::ReadOnly).without_network();
        assert_eq!(told(Some(&offline)).to_string(), r#"{"files":"read_only","network":"off"}"#);
        let written = Confinement::new(FileAccess::WorkspaceWrite);
        assert_eq!(told(Some(&written)).to_string(), r#"{"files":"workspace_write","network":"on"}"#);
        assert_eq!(told(None).to_string(), r#"{"files":"off","network":"on"}"#);
    }

    #[test]
    fn only_what_keeps_from_nothing_is_off() {
        assert!(Confinement::new(FileAccess::Off).within("/w").is_off());
        assert!(!Confinement::new(FileAccess::ReadOnly).is_off());
        assert!(!Confinement::new(FileAccess::Off).without_network().is_off());
        assert!(!Confinement::new(FileAccess::Off).denied("/d").is_off());
    }

    #[test]
    fn a_step_comes_back_by_its_number() {
        for step in Step::ALL {
            assert_eq!(Step::numbered(step as i32), Some(step));
        }
        assert_eq!(Step::numbered(99), None);
    }
}
