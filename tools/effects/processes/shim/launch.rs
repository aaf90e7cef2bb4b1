//! Starting a command: the one place where something is done between fork and exec.
//!
//! A command leads a session of its own, has its three streams and nothing else, and no signal is blocked or
//! ignored. The quick way is the C library's, which copies no memory. Where the child has to be born elsewhere, or
//! something has to be done in it that the C library does not know, it is forked, and `become_command` runs in it.
//!
//! A confinement binds the process that puts it in force, so it cannot be the warden's own: the child binds itself.
//!
//! What must stay true: what fails before exec is told as a report and runs nothing; a command that is to be confined
//! is never run otherwise; a folder for temporary files is made for it alone, and removed when nothing is left of it.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, execve, mkdtemp, setsid};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use super::cgroup::Leaf;
use super::fork::{BROKEN, Birth, fork_into, restore_signals};
use super::wire::{Report, Request};
use crate::effects::processes::confinement::{Step, Unconfined, enforce};

/// The name of a folder for temporary files, before the letters that make it the only one.
const TEMPORARY_NAME: &str = "toolwarden-XXXXXX";
/// The variables that name it.
const TEMPORARY_VARIABLES: [&str; 3] = ["TMPDIR", "TMP", "TEMP"];

/// The streams of a command. Without input it gets the standard input of this process: the null device.
pub(super) struct Streams {
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
    pub(super) input: Option<OwnedFd>,
}

/// A command that runs.
pub(super) struct Launched {
    pub(super) leader: Pid,
    /// Its folder for temporary files; dropped, it is removed.
    pub(super) temporary: Option<Temporary>,
}

/// Starts the command in the current folder.
///
/// # Errors
/// What to report.
pub(super) fn launch(request: &Request, streams: &Streams, leaf: Option<&Leaf>) -> Result<Launched, Report> {
    if request.confinement.is_none() && leaf.is_none() {
        let leader = spawn(request, streams).map_err(failed)?;
        return Ok(Launched { leader, temporary: None });
    }
    let place = request.confinement.as_ref().and_then(|checked| checked.temporary.as_deref());
    let temporary = place.map(Temporary::new).transpose().map_err(unconfined)?;
    let leader = fork_and_exec(request, streams, leaf, temporary.as_ref())?;
    Ok(Launched { leader, temporary })
}

fn spawn(request: &Request, streams: &Streams) -> Result<Pid, Errno> {
    let mut actions = PosixSpawnFileActions::init()?;
    let input = streams.input.iter().map(|input| (input, 0));
    for (descriptor, number) in input.chain([(&streams.out, 1), (&streams.err, 2)]) {
        actions.add_dup2(descriptor.as_raw_fd(), number)?;
    }
    let mut attributes = PosixSpawnAttr::init()?;
    let session = PosixSpawnFlags::from_bits_retain(libc::POSIX_SPAWN_SETSID.into());
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | session)?;
    attributes.set_sigdefault(&SigSet::all())?;
    attributes.set_sigmask(&SigSet::empty())?;
    posix_spawn(request.file.as_c_str(), &actions, &attributes, &request.arguments, &request.environment)
}

fn fork_and_exec(
    request: &Request,
    streams: &Streams,
    leaf: Option<&Leaf>,
    temporary: Option<&Temporary>,
) -> Result<Pid, Report> {
    let environment = temporary.map(|folder| folder.among(&request.environment));
    let environment = environment.as_ref().unwrap_or(&request.environment);
    // Its far end closes with exec; before that a report may come.
    let (near, far) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(errno(error)))?;
    let birth = Birth { cgroup: leaf.map(Leaf::folder), awaits_exec: true, namespace: None };
    let forked = fork_into(birth, || {
        let joined = leaf.map_or(Ok(()), Leaf::join_elsewhere).map_err(|fault| Report::Unavailable { fault });
        let Err(report) = joined.and_then(|()| become_command(request, streams, environment, temporary));
        let _ = rustix::io::write(&far, &report.to_bytes());
        BROKEN
    });
    let child = forked.map_err(|error| failed(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))))?;
    drop(far);
    let mut heard = Vec::new();
    let report = File::from(near).read_to_end(&mut heard).map(|_| Report::take(&mut heard));
    // Nothing is said by one that became the command.
    if matches!(report, Ok(Ok(None))) {
        return Ok(child);
    }
    // It is the only child. One that said what is no report may still run, and is not known to be confined.
    let _ = kill(child, Signal::SIGKILL);
    let _ = waitpid(child, None);
    match report {
        Ok(Ok(Some(report))) => Err(report),
        _ => Err(failed(Errno::EPROTO)),
    }
}

/// Everything between fork and exec, in the child; returns only what failed.
fn become_command(
    request: &Request,
    streams: &Streams,
    environment: &[CString],
    temporary: Option<&Temporary>,
) -> Result<Infallible, Report> {
    setsid().map_err(failed)?;
    if let Some(input) = &streams.input {
        rustix::stdio::dup2_stdin(input).map_err(|error| failed(errno(error)))?;
    }
    rustix::stdio::dup2_stdout(&streams.out).map_err(|error| failed(errno(error)))?;
    rustix::stdio::dup2_stderr(&streams.err).map_err(|error| failed(errno(error)))?;
    restore_signals().map_err(failed)?;
    if let Some(checked) = &request.confinement {
        enforce(checked, temporary.map(|folder| folder.path.as_path())).map_err(unconfined)?;
    }
    execve(&request.file, &request.arguments, environment).map_err(failed)
}

fn failed(errno: Errno) -> Report {
    Report::Failed { errno: errno as i32 }
}

fn unconfined(unconfined: Unconfined) -> Report {
    Report::Unconfined { step: unconfined.step as i32, errno: unconfined.errno as i32 }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// A folder for the temporary files of one command; removed when it is dropped.
pub(super) struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn new(place: &Path) -> Result<Self, Unconfined> {
        let path = mkdtemp(&place.join(TEMPORARY_NAME));
        path.map(|path| Self { path }).map_err(|errno| Unconfined { step: Step::Temporary, errno })
    }

    /// An environment with this folder named in it.
    fn among(&self, environment: &[CString]) -> Vec<CString> {
        let names = |text: &CString| {
            let name = text.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
            TEMPORARY_VARIABLES.iter().any(|variable| variable.as_bytes() == name)
        };
        let own = TEMPORARY_VARIABLES.iter().filter_map(|variable| {
            CString::new([variable.as_bytes(), b"=", self.path.as_os_str().as_bytes()].concat()).ok()
        });
        environment.iter().filter(|text| !names(text)).cloned().chain(own).collect()
    }
}

#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
impl Drop for Temporary {
    fn drop(&mut self) {
        if fs::remove_dir_all(&self.path).is_ok() {
            return;
        }
        // Folders that their owner may not write. Nobody else is at work in them any more.
        let mut open = vec![self.path.clone()];
        while let Some(folder) = open.pop() {
            // Held by a descriptor, so that no link is followed.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(held) = rustix::fs::open(&folder, flags, Mode::empty()) else { continue };
            let _ = rustix::fs::chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), Mode::RWXU);
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            open.extend(
                entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
            );
        }
        // What is left then belongs to somebody else.
        let _ = fs::remove_dir_all(&self.path);
    }
}
