//! Enclosure: what a keeper gives each warden, and each warden its command, at the level that the host chose.
//!
//! What must stay true: it is tried out as a whole before the keeper says that it is ready, so that what is not
//! available is known before any command is taken.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpid};
use rustix::pipe::{PipeFlags, pipe_with};

use super::cgroup::{CgroupParent, Leaf, leaf_name};
use super::fork::{BROKEN, Birth, NamespaceKind, fork_into};
use super::namespace::{Namespace, Owner};
use super::offspring;
use super::wire::{Fault, Report, Step};
use crate::effects::processes::containment::Containment;

/// What all wardens of a keeper hold their commands with, besides being sub-reapers.
pub(super) enum Enclosure {
    /// Nothing.
    None,
    /// Each warden is the first process of a namespace.
    Namespace { kind: NamespaceKind, owner: Owner },
    /// Each command is born in a cgroup.
    Cgroup(CgroupParent),
}

/// What one warden has of it.
pub(super) enum Ward {
    /// Nothing.
    None,
    /// It is the first process of this namespace.
    Namespace(Namespace),
}

/// What holds one command.
pub(super) enum Hold<'a> {
    /// That its orphans become children of its warden.
    Children,
    /// A namespace.
    Namespace(&'a Namespace),
    /// A cgroup, and that its orphans become children of its warden.
    Cgroup(Leaf),
}

impl Enclosure {
    /// Tries out what the host chose.
    ///
    /// # Errors
    /// What cannot be done here.
    pub(super) fn prepare(containment: &Containment) -> Result<Self, Fault> {
        match containment {
            Containment::SubReaper => Ok(Self::None),
            Containment::PidNamespace => {
                let owner = Owner::of_this_process();
                match try_namespace(NamespaceKind::Plain, owner) {
                    Ok(()) => Ok(Self::Namespace { kind: NamespaceKind::Plain, owner }),
                    // Rights that this user does not have, a user namespace may give.
                    Err(Fault { step: Step::Namespace, errno }) if errno == Errno::EPERM as i32 => {
                        let kind = NamespaceKind::WithUser;
                        try_namespace(kind, owner).map(|()| Self::Namespace { kind, owner })
                    }
                    Err(fault) => Err(fault),
                }
            }
            Containment::Cgroup(plan) => {
                let parent = CgroupParent::open(&plan.parent.clone().unwrap_or_else(PathBuf::new), plan)?;
                let leaf = parent.make(leaf_name(getpid()))?;
                let tried = try_leaf(&leaf);
                leaf.remove();
                tried.map(|()| Self::Cgroup(parent))
            }
        }
    }

    /// How a warden is born.
    pub(super) fn birth(&self) -> Birth<'static> {
        match self {
            Self::Namespace { kind, .. } => Birth { namespace: Some(*kind), ..Birth::default() },
            Self::None | Self::Cgroup(_) => Birth::default(),
        }
    }

    /// What a warden does when it was just born.
    ///
    /// # Errors
    /// What cannot be done here, though it could when it was tried.
    pub(super) fn enter(&self) -> Result<Ward, Fault> {
        match self {
            Self::Namespace { kind, owner } => Namespace::enter(*kind, *owner).map(Ward::Namespace),
            Self::None | Self::Cgroup(_) => Ok(Ward::None),
        }
    }

    /// What holds the next command of the warden that asks.
    ///
    /// # Errors
    /// What cannot be done here, though it could when it was tried.
    pub(super) fn hold<'a>(&self, ward: &'a Ward) -> Result<Hold<'a>, Fault> {
        match (ward, self) {
            (Ward::Namespace(namespace), _) => Ok(Hold::Namespace(namespace)),
            (Ward::None, Self::Cgroup(parent)) => parent.make(leaf_name(getpid())).map(Hold::Cgroup),
            (Ward::None, _) => Ok(Hold::Children),
        }
    }

    /// The cgroup that a warden left behind when it was killed.
    pub(super) fn left_by(&self, warden: Pid) -> Option<Leaf> {
        match self {
            Self::Cgroup(parent) => parent.find(&leaf_name(warden)).ok().flatten(),
            Self::None | Self::Namespace { .. } => None,
        }
    }
}

impl Ward {
    /// The warden, as keeper and host know it.
    pub(super) fn pid(&self) -> Pid {
        match self {
            Self::None => getpid(),
            Self::Namespace(namespace) => namespace.outside(),
        }
    }

    /// Whether the next command needs a new warden.
    pub(super) fn is_used_once(&self) -> bool {
        matches!(self, Self::Namespace(_))
    }
}

impl Hold<'_> {
    /// What the command is born into.
    pub(super) fn cgroup(&self) -> Option<&Leaf> {
        match self {
            Self::Cgroup(leaf) => Some(leaf),
            Self::Children | Self::Namespace(_) => None,
        }
    }

    /// The folder of the command by another way, where that is the better one.
    pub(super) fn folder_here(&self, folder: &OwnedFd) -> Option<OwnedFd> {
        match self {
            Self::Namespace(namespace) => namespace.folder_here(folder),
            Self::Children | Self::Cgroup(_) => None,
        }
    }

    /// Signals everything at once, where there is a way.
    pub(super) fn tell_all(&self, signal: Signal) {
        match self {
            Self::Children => {}
            Self::Namespace(namespace) => namespace.tell_all(signal),
            Self::Cgroup(leaf) if signal == Signal::SIGKILL => {
                let _ = leaf.kill();
            }
            Self::Cgroup(_) => {}
        }
    }

    /// Whether a signal that was sent to everything has reached all there is.
    pub(super) fn reaches_all(&self) -> bool {
        matches!(self, Self::Namespace(_))
    }

    /// Whether something is left when there are no children any more.
    pub(super) fn is_populated(&self) -> bool {
        match self {
            Self::Children | Self::Namespace(_) => false,
            Self::Cgroup(leaf) => leaf.is_populated(),
        }
    }

    /// The pids of what is left, as the host knows them.
    pub(super) fn survivors(&self) -> Vec<Pid> {
        let mut left = match self {
            Self::Namespace(namespace) => namespace.children_outside(),
            Self::Children | Self::Cgroup(_) => offspring::children().unwrap_or_default().into_iter().collect(),
        };
        if let Self::Cgroup(leaf) = self {
            left.extend(leaf.members());
            left.sort_unstable();
            left.dedup();
        }
        left
    }

    /// Gives back what was made for the command.
    pub(super) fn end(&self) {
        if let Self::Cgroup(leaf) = self {
            leaf.remove();
        }
    }
}

/// Makes a namespace and throws it away.
fn try_namespace(kind: NamespaceKind, owner: Owner) -> Result<(), Fault> {
    let of = |errno: rustix::io::Errno| Fault::of(Step::Namespace, errno);
    let (near, far) = pipe_with(PipeFlags::CLOEXEC).map_err(of)?;
    let birth = Birth { namespace: Some(kind), ..Birth::default() };
    let forked = fork_into(birth, || match Namespace::enter(kind, owner) {
        Ok(_) => 0,
        Err(fault) => {
            let _ = rustix::io::write(&far, &Report::Unavailable { fault }.to_bytes());
            BROKEN
        }
    });
    let of = |error: std::io::Error| Fault { step: Step::Namespace, errno: error.raw_os_error().unwrap_or_default() };
    let child = forked.map_err(of)?;
    drop(far);
    let mut told = Vec::new();
    std::fs::File::from(near).read_to_end(&mut told).map_err(of)?;
    let ended = waitpid(child, None);
    match (Report::take(&mut told), ended) {
        (Ok(Some(Report::Unavailable { fault })), _) => Err(fault),
        (Ok(None), Ok(nix::sys::wait::WaitStatus::Exited(_, 0))) => Ok(()),
        _ => Err(Fault { step: Step::Namespace, errno: Errno::EIO as i32 }),
    }
}

/// Has a process born in a cgroup, and the kernel kill what is in it.
fn try_leaf(leaf: &Leaf) -> Result<(), Fault> {
    leaf.kill().map_err(|errno| Fault::of(Step::CgroupKill, errno))?;
    let of = |error: std::io::Error| Fault { step: Step::CgroupJoin, errno: error.raw_os_error().unwrap_or_default() };
    let (near, far) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| of(error.into()))?;
    let child = fork_into(Birth { cgroup: Some(leaf.folder()), ..Birth::default() }, || match leaf.join_elsewhere() {
        Ok(()) => 0,
        Err(fault) => {
            let _ = rustix::io::write(&far, &Report::Unavailable { fault }.to_bytes());
            BROKEN
        }
    });
    let child = child.map_err(of)?;
    drop(far);
    let mut told = Vec::new();
    std::fs::File::from(near).read_to_end(&mut told).map_err(of)?;
    let _ = waitpid(child, None);
    match Report::take(&mut told) {
        Ok(Some(Report::Unavailable { fault })) => Err(fault),
        _ => Ok(()),
    }
}
