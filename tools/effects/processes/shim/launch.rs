//! Starts the command of a request: straight away, or confined, which takes a process of ours in between.
//!
//! A confinement binds the process that puts it in force, so it cannot be the scope's own: a child is forked, which
//! binds itself and then becomes the command. What it could not do comes back through a pipe that ends with exec.
//!
//! What must stay true: a command that is to be confined is never run otherwise; a folder for temporary files is made
//! for it alone, and removed when nothing is left of it.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, execve, mkdtemp, setsid};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use super::fork::{fork_into, reset_signals};
use super::wire::{Report, Request};
use crate::effects::processes::confinement::checked::Checked;
use crate::effects::processes::confinement::{Step, Unconfined, enforce};

/// The name of a folder for temporary files, before the letters that make it the only one.
const TEMPORARY_NAME: &str = "toolwarden-XXXXXX";
/// The variables that name it.
const TEMPORARY_VARIABLES: [&str; 3] = ["TMPDIR", "TMP", "TEMP"];
/// The exit code of a child that could not become the command; nobody sees it.
const NOT_STARTED: i32 = 127;

/// The streams of a command.
pub(super) struct Streams<'a> {
    pub(super) out: &'a OwnedFd,
    pub(super) err: &'a OwnedFd,
    /// Without input, the null device is inherited.
    pub(super) input: Option<&'a OwnedFd>,
}

/// A command that runs.
pub(super) struct Launched {
    pub(super) leader: Pid,
    /// Its folder for temporary files; dropped, it is removed.
    pub(super) temporary: Option<Temporary>,
}

/// Starts the command in a session of its own, with no signal blocked or ignored.
///
/// # Errors
/// What to report.
pub(super) fn launch(request: &Request, streams: &Streams<'_>) -> Result<Launched, Report> {
    match &request.confinement {
        None => match spawn(request, streams) {
            Ok(leader) => Ok(Launched { leader, temporary: None }),
            Err(errno) => Err(Report::Failed { errno: errno as i32 }),
        },
        Some(checked) => launch_confined(request, checked, streams),
    }
}

fn spawn(request: &Request, streams: &Streams<'_>) -> Result<Pid, Errno> {
    let mut actions = PosixSpawnFileActions::init()?;
    let numbered = streams.input.into_iter().map(|input| (input, 0));
    for (descriptor, number) in numbered.chain([(streams.out, 1), (streams.err, 2)]) {
        actions.add_dup2(descriptor.as_raw_fd(), number)?;
    }
    let mut attributes = PosixSpawnAttr::init()?;
    let session = PosixSpawnFlags::from_bits_retain(nix::libc::POSIX_SPAWN_SETSID.into());
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | session)?;
    attributes.set_sigdefault(&SigSet::all())?;
    attributes.set_sigmask(&SigSet::empty())?;
    posix_spawn(request.file.as_c_str(), &actions, &attributes, &request.arguments, &request.environment)
}

fn launch_confined(request: &Request, checked: &Checked, streams: &Streams<'_>) -> Result<Launched, Report> {
    let temporary = checked.temporary.as_deref().map(Temporary::new).transpose().map_err(unconfined)?;
    let failed = |errno: Errno| Report::Failed { errno: errno as i32 };
    let (told, telling) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(of(error)))?;
    let environment = match &temporary {
        Some(folder) => folder.among(&request.environment),
        None => request.environment.clone(),
    };
    let folder = temporary.as_ref().map(|temporary| temporary.path.as_path());
    let mut telling = File::from(telling);
    let forked = fork_into(move || {
        let report = match become_confined(request, &environment, checked, folder, streams) {
            Ok(never) => match never {},
            Err(report) => report,
        };
        let _ = telling.write_all(&report.to_bytes());
        NOT_STARTED
    });
    let leader = forked.map_err(|error| failed(Errno::from_raw(error.raw_os_error().unwrap_or(0))))?;
    let mut heard = Vec::new();
    // Nothing is said by one that became the command.
    let report = File::from(told).read_to_end(&mut heard).map(|_| Report::take(&mut heard));
    match report {
        Ok(Ok(None)) => Ok(Launched { leader, temporary }),
        Ok(Ok(Some(report))) => {
            let _ = waitpid(leader, None);
            Err(report)
        }
        // It may run, so that it must be ended as everything else; but it is not known to be confined.
        Ok(Err(_)) | Err(_) => {
            let _ = kill(leader, Signal::SIGKILL);
            let _ = waitpid(leader, None);
            Err(failed(Errno::EPROTO))
        }
    }
}

/// Binds this process and becomes the command.
fn become_confined(
    request: &Request,
    environment: &[CString],
    checked: &Checked,
    temporary: Option<&Path>,
    streams: &Streams<'_>,
) -> Result<Infallible, Report> {
    let failed = |errno: Errno| Report::Failed { errno: errno as i32 };
    setsid().map_err(failed)?;
    reset_signals().map_err(failed)?;
    if let Some(input) = streams.input {
        rustix::stdio::dup2_stdin(input).map_err(|error| failed(of(error)))?;
    }
    rustix::stdio::dup2_stdout(streams.out).map_err(|error| failed(of(error)))?;
    rustix::stdio::dup2_stderr(streams.err).map_err(|error| failed(of(error)))?;
    enforce(checked, temporary).map_err(unconfined)?;
    execve(&request.file, &request.arguments, environment).map_err(failed)
}

fn unconfined(unconfined: Unconfined) -> Report {
    Report::Unconfined { step: unconfined.step as i32, errno: unconfined.errno as i32 }
}

fn of(error: rustix::io::Errno) -> Errno {
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
