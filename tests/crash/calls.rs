//! A thread whose system calls that change the disk are counted, and which takes its process with it before one of them.
//!
//! The kernel itself reports each call before it is made (seccomp's user notification), so no seam in the product is
//! needed and none can be forgotten. What must stay true: the thread waits until its call is let go on, so what is
//! written down is the order in which the disk saw it.

#![expect(
    unsafe_code,
    reason = "a filter of system calls and its reports are reached through the kernel's own structs"
)]

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One call that changes the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    /// Makes a file or a folder of this name.
    Makes(String),
    /// Writes into this file, or changes its size or mode.
    Writes(PathBuf),
    /// Makes this file or folder durable.
    Syncs(PathBuf),
    /// Gives a file in a folder another name, or a second one.
    Names(String, PathBuf, String),
    /// Takes a name away.
    Removes(String),
}

/// What is reported: the calls that change what is on a disk.
const CALLS: [i64; 14] = [
    libc::SYS_mkdirat,
    libc::SYS_linkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    // Only where it makes a file.
    libc::SYS_openat,
];

/// Does work in a thread of its own and kills the process before its call of this number, counted from 1; never at 0.
/// The calls that were made, in order.
pub(crate) fn counted(kill_at: usize, work: impl FnOnce() + Send + 'static) -> Vec<Call> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (told, reports) = channel();
    let worker = std::thread::spawn(move || {
        told.send(filter().unwrap()).unwrap();
        work();
    });
    let (seen, reports) = (Arc::clone(&calls), reports.recv().unwrap());
    // It waits for reports for as long as the process lives.
    std::thread::spawn(move || {
        while let Ok(report) = receive(reports) {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(call) = read(&report) {
                if seen.len() + 1 == kill_at {
                    kill(Pid::this(), Signal::SIGKILL).unwrap();
                    loop {
                        std::thread::park();
                    }
                }
                seen.push(call);
            }
            let_go_on(reports, report.id);
        }
    });
    worker.join().unwrap();
    let calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    calls.clone()
}

/// Has the calling thread's calls reported; gives where.
fn filter() -> io::Result<c_int> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (at, call) in CALLS.iter().enumerate() {
        // To the report behind the list, and behind the one statement that lets everything else pass.
        let jt = u8::try_from(CALLS.len() - at).unwrap();
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(libc::sock_filter { code, jt, jf: 0, k: u32::try_from(*call).unwrap() });
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF));
    let program = libc::sock_fprog { len: u16::try_from(program.len()).unwrap(), filter: program.as_mut_ptr() };
    // SAFETY: the program is whole and outlives the call, which copies it; it binds this thread alone.
    let reports = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    c_int::try_from(reports).ok().filter(|reports| *reports >= 0).ok_or_else(io::Error::last_os_error)
}

fn receive(reports: c_int) -> io::Result<libc::seccomp_notif> {
    loop {
        // SAFETY: the kernel wants zeros and fills the struct, which is its own.
        let (answer, report) = unsafe {
            let mut report: libc::seccomp_notif = std::mem::zeroed();
            (libc::ioctl(reports, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut report), report)
        };
        match answer {
            0 => return Ok(report),
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

fn let_go_on(reports: c_int, id: u64) {
    let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap();
    let mut answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: the struct is the kernel's own. That the thread is gone by now is no matter.
    unsafe { libc::ioctl(reports, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
}

/// What a report is about; none when it changes no file.
fn read(report: &libc::seccomp_notif) -> Option<Call> {
    let arguments = report.data.args;
    let file = |at: usize| std::fs::read_link(format!("/proc/self/fd/{}", arguments[at])).ok();
    // SAFETY: the thread that made the call is one of this process and waits, so its text is there.
    let name =
        |at: usize| unsafe { CStr::from_ptr(arguments[at] as usize as *const c_char).to_string_lossy().into_owned() };
    match i64::from(report.data.nr) {
        libc::SYS_openat if arguments[2] & libc::O_CREAT as u64 == 0 => None,
        libc::SYS_openat | libc::SYS_mkdirat => Some(Call::Makes(name(1))),
        libc::SYS_unlinkat => Some(Call::Removes(name(1))),
        libc::SYS_linkat | libc::SYS_renameat | libc::SYS_renameat2 => Some(Call::Names(name(1), file(2)?, name(3))),
        libc::SYS_fsync | libc::SYS_fdatasync => Some(Call::Syncs(file(0)?)),
        _ => file(0).filter(|file| file.is_absolute() && !file.starts_with("/dev")).map(Call::Writes),
    }
}
