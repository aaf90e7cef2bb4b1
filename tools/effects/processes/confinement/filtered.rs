//! Puts the part of a confinement that concerns system calls in force, with seccomp, on the calling thread.
//!
//! The list says what is refused, because nobody can say what all programs of the world need. So it holds what leads
//! around the rules for files, to other processes, to the network, or deep into the kernel. Arguments in memory
//! cannot be looked at, so calls that hide what they want there are told to be missing: programs know another way.
//!
//! What must stay true: there is one thread; calls of another instruction set do not slip through.

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter, sock_filter,
};

use super::checked::Checked;
use super::{FileAccess, Step, Unconfined};

/// Refused system calls, each with the arguments that it is refused for; none means any.
type Refused = BTreeMap<i64, Vec<SeccompRule>>;

/// Never needed by a command that works with files, and each of them a way out or in.
const REFUSED: &[i64] = &[
    // Other processes: their memory, descriptors and registers.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Files by number instead of by path.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // What stands where in the file system.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Keys of the user.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Programs in the kernel, and what has broken it often.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_setns,
    // The machine itself.
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
];
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// What they want stands in memory, or in a queue that the kernel reads by itself.
const MISSING: &[i64] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// What changes a file without opening it for writing, which Landlock does not see.
const ATTRIBUTES: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    // The same on every machine, and newer than the names: fchmodat2, setxattrat, removexattrat, file_setattr.
    452,
    463,
    466,
    469,
];
#[cfg(target_arch = "x86_64")]
const ATTRIBUTES_HERE: &[i64] =
    &[libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat];
#[cfg(not(target_arch = "x86_64"))]
const ATTRIBUTES_HERE: &[i64] = &[];
/// Requests that set flags of a file: FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR.
const ATTRIBUTE_REQUESTS: [u64; 2] = [0x4008_6602, 0x401c_5820];
/// Requests that type into a terminal: TIOCSTI, TIOCLINUX.
const TERMINAL_REQUESTS: [u64; 2] = [0x5412, 0x541c];

/// Flags that make namespaces, in which everybody is root: the way to most of what breaks kernels.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// Another one, which `clone` has no room for.
const NAMESPACE_TIME: i32 = 0x80;
/// The part of a socket's type that is no flag.
const SOCKET_TYPES: u64 = 0xf;
/// The old name of sockets that see every packet.
const SOCKET_PACKET: i32 = 10;

/// Restricts this thread, and everything that it becomes and starts.
pub(super) fn restrict(checked: &Checked) -> Result<(), Unconfined> {
    let refused = |error| Unconfined { step: Step::Seccomp, errno: number(&error) };
    for program in programs(checked).map_err(refused)? {
        apply_filter(&program).map_err(refused)?;
    }
    Ok(())
}

/// Whether filters are there: installs one, which refuses nothing that is ever called, for the calling thread.
pub(super) fn is_there() -> bool {
    let nothing = Refused::from([(i64::from(u16::MAX), Vec::new())]);
    program(nothing, libc::EPERM).is_ok_and(|program| apply_filter(&program).is_ok())
}

fn number(error: &seccompiler::Error) -> Errno {
    match error {
        seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error) => {
            Errno::from_raw(error.raw_os_error().unwrap_or(libc::EINVAL))
        }
        _ => Errno::EINVAL,
    }
}

fn programs(checked: &Checked) -> Result<Vec<BpfProgram>, seccompiler::Error> {
    let mut refused: Refused = REFUSED.iter().chain(REFUSED_HERE).map(|call| (*call, Vec::new())).collect();
    let bits = |flags: &[i32]| -> Result<Vec<SeccompRule>, seccompiler::Error> {
        let bits = flags.iter().map(|flag| u64::from(flag.cast_unsigned()));
        bits.map(|bit| rule(&[(0, SeccompCmpOp::MaskedEq(bit), bit)])).collect()
    };
    refused.insert(libc::SYS_clone, bits(&NAMESPACES)?);
    refused.insert(libc::SYS_unshare, bits(&[&NAMESPACES[..], &[NAMESPACE_TIME]].concat())?);
    let requests = TERMINAL_REQUESTS.iter().map(|request| rule(&[(1, SeccompCmpOp::Eq, *request)]));
    refused.insert(libc::SYS_ioctl, requests.collect::<Result<_, _>>()?);
    refused.extend(sockets(checked)?);
    let missing = MISSING.iter().map(|call| (*call, Vec::new())).collect();
    let mut programs = vec![program(refused, libc::EPERM)?, program(missing, libc::ENOSYS)?];
    if checked.files == FileAccess::ReadOnly {
        let calls = ATTRIBUTES.iter().chain(ATTRIBUTES_HERE);
        let mut attributes: Refused = calls.map(|call| (*call, Vec::new())).collect();
        let requests = ATTRIBUTE_REQUESTS.iter().map(|request| rule(&[(1, SeccompCmpOp::Eq, *request)]));
        attributes.insert(libc::SYS_ioctl, requests.collect::<Result<_, _>>()?);
        // What a program hears of a file system that is mounted so.
        programs.push(program(attributes, libc::EROFS)?);
    }
    Ok(programs)
}

/// What sockets are refused.
fn sockets(checked: &Checked) -> Result<Refused, seccompiler::Error> {
    let equal = |argument, value: i32| (argument, SeccompCmpOp::Eq, number_of(value));
    let other = |argument, value: i32| (argument, SeccompCmpOp::Ne, number_of(value));
    let kind = |kind: i32| (1, SeccompCmpOp::MaskedEq(SOCKET_TYPES), number_of(kind));
    let mut families = Vec::new();
    if !checked.is_offline {
        // With the third one a program asks for its addresses.
        families.extend([libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]);
    }
    if checked.has_local_sockets {
        families.push(libc::AF_UNIX);
    }
    // No rule at all would refuse every one.
    let mut single = Vec::new();
    if !families.is_empty() {
        let others: Vec<_> = families.iter().map(|family| other(0, *family)).collect();
        single.push(rule(&others)?);
        for family in [libc::AF_INET, libc::AF_INET6] {
            single.push(rule(&[equal(0, family), kind(libc::SOCK_RAW)])?);
        }
        single.push(rule(&[kind(SOCKET_PACKET)])?);
        single.push(rule(&[equal(0, libc::AF_NETLINK), other(2, libc::NETLINK_ROUTE)])?);
    }
    // A pair is connected for good, but for datagrams, which may be sent elsewhere.
    let mut pair = vec![rule(&[other(0, libc::AF_UNIX)])?];
    if !checked.has_local_sockets {
        let fixed = [number_of(libc::SOCK_STREAM), number_of(libc::SOCK_SEQPACKET)];
        for loose in (0..=SOCKET_TYPES).filter(|kind| !fixed.contains(kind)) {
            pair.push(rule(&[(1, SeccompCmpOp::MaskedEq(SOCKET_TYPES), loose)])?);
        }
    }
    Ok(Refused::from([(libc::SYS_socket, single), (libc::SYS_socketpair, pair)]))
}

fn number_of(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

/// A rule that holds when all of these hold, each of one argument's lower half: the kernel reads no more of them.
fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> Result<SeccompRule, seccompiler::Error> {
    let conditions = conditions.iter().map(|(argument, operator, value)| {
        SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), *value)
    });
    Ok(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?)
}

/// A program that answers what is refused with an error and lets the rest through. A call of another instruction
/// set, whose numbers mean something else, kills.
fn program(refused: Refused, errno: i32) -> Result<BpfProgram, seccompiler::Error> {
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    let answer = SeccompAction::Errno(errno.cast_unsigned());
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, answer, machine)?;
    Ok([guard(machine), BpfProgram::try_from(filter)?].concat())
}

/// On x86-64 a bit in the number means the same call with shorter pointers; it is answered with ENOSYS.
fn guard(machine: TargetArch) -> BpfProgram {
    const SHORT: u32 = 0x4000_0000;
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_FROM: u16 = 0x35;
    const ANSWER: u16 = 0x06;
    const ANSWER_ERRNO: u32 = 0x0005_0000;
    let statement = |code, k| sock_filter { code, jt: 0, jf: 0, k };
    match machine {
        TargetArch::x86_64 => vec![
            statement(LOAD_NUMBER, 0),
            sock_filter { code: JUMP_FROM, jt: 0, jf: 1, k: SHORT },
            statement(ANSWER, ANSWER_ERRNO | libc::ENOSYS.cast_unsigned()),
        ],
        _ => Vec::new(),
    }
}
