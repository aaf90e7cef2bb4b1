//! What host and shim say to each other: one request, one-byte orders, and reports, all little-endian.
//!
//! Both sides are the same program, or one that says so by [`VERSION`]; still every length is checked, because a
//! wrong one must end in an error and not in a wrong command. No text holds a NUL, so that a NUL ends each.

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::effects::processes::confinement::checked::Checked;
use crate::effects::processes::containment::{CgroupLimit, CgroupPlan, Containment, Unavailable};
use crate::effects::processes::{CommandSpec, ContainmentLevel, ProcessStatus};

/// The version of this conversation; the keeper tells it first.
pub(super) const VERSION: i32 = 3;
/// Longest request, in bytes; Linux runs no command whose arguments and environment are longer.
pub(super) const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most survivors that are named.
pub(super) const SURVIVORS_MAX: usize = 64;
/// The most numbers that a report carries.
const NUMBERS_MAX: usize = SURVIVORS_MAX + 1;
/// Bytes before the numbers of a report: its kind, and how many follow.
const REPORT_HEAD_BYTES: usize = 2;
/// Bytes before the texts of a request: the length of all that follows the first four, grace, argument count,
/// confinement count.
const REQUEST_HEAD_BYTES: usize = 16;

/// Ends the command in order: TERM, its grace, KILL.
pub(super) const STOP: u8 = b'T';
/// Ends what the command has left behind: TERM, a short grace, KILL.
pub(super) const FINISH: u8 = b'F';

/// A command, as a warden needs it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The file to run.
    pub(super) file: CString,
    /// The arguments, its own name first.
    pub(super) arguments: Vec<CString>,
    /// The environment, each `name=value`.
    pub(super) environment: Vec<CString>,
    /// From TERM to KILL.
    pub(super) grace: Duration,
    /// What it is to be kept from.
    pub(super) confinement: Option<Checked>,
}

impl Request {
    /// Takes what is needed of a command, and how it is to be confined.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a NUL in any text.
    pub(super) fn new(file: &Path, command: &CommandSpec, confinement: Option<Checked>) -> io::Result<Self> {
        let text = |text: String| CString::new(text).map_err(io::Error::from);
        let named = std::iter::once(&command.program).chain(&command.arguments);
        let variables = command.environment.iter().map(|(name, value)| text(format!("{name}={value}")));
        Ok(Self {
            file: CString::new(file.as_os_str().as_encoded_bytes())?,
            arguments: named.map(|argument| text(argument.clone())).collect::<io::Result<_>>()?,
            environment: variables.collect::<io::Result<_>>()?,
            grace: command.grace,
            confinement,
        })
    }

    /// The request as it is sent.
    ///
    /// # Errors
    /// [`io::ErrorKind::ArgumentListTooLong`] beyond [`REQUEST_BYTES_MAX`].
    pub(super) fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; REQUEST_HEAD_BYTES];
        let confinement = self.confinement.as_ref().map(Checked::to_texts).unwrap_or_default();
        let texts = confinement.iter().chain([&self.file]).chain(&self.arguments).chain(&self.environment);
        for text in texts {
            bytes.extend_from_slice(text.as_bytes_with_nul());
        }
        let too_long = || io::Error::from(io::ErrorKind::ArgumentListTooLong);
        let length = u32::try_from(bytes.len() - 4).map_err(|_| too_long())?;
        let count = u32::try_from(self.arguments.len()).map_err(|_| too_long())?;
        let confined = u32::try_from(confinement.len()).map_err(|_| too_long())?;
        if bytes.len() > REQUEST_BYTES_MAX {
            return Err(too_long());
        }
        let grace_ms = u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX);
        for (at, number) in [length, grace_ms, count, confined].into_iter().enumerate() {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&number.to_le_bytes());
        }
        Ok(bytes)
    }

    /// How many bytes follow the first four, unless they are no request.
    pub(super) fn length(first: [u8; 4]) -> Option<usize> {
        let length = usize::try_from(u32::from_le_bytes(first)).ok()?;
        (REQUEST_HEAD_BYTES - 4..=REQUEST_BYTES_MAX).contains(&length).then_some(length)
    }

    /// Reads what follows the first four bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (grace_ms, rest) = bytes.split_first_chunk::<4>()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let (confined, mut rest) = rest.split_first_chunk::<4>()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let confined = usize::try_from(u32::from_le_bytes(*confined)).ok()?;
        let mut texts = Vec::new();
        while !rest.is_empty() {
            let text = CStr::from_bytes_until_nul(rest).ok()?;
            rest = &rest[text.count_bytes() + 1..];
            texts.push(text.to_owned());
        }
        // What is not understood as a confinement is no request, and never one without.
        let confinement = match confined {
            0 => None,
            _ => Some(texts.get(..confined).and_then(Checked::from_texts)?),
        };
        texts.drain(..confined);
        if count == 0 || texts.len() <= count {
            return None;
        }
        let environment = texts.split_off(count + 1);
        let file = texts.remove(0);
        let grace = Duration::from_millis(u32::from_le_bytes(*grace_ms).into());
        Some(Self { file, arguments: texts, environment, grace, confinement })
    }
}

/// The arguments that tell a keeper how commands are to be held; a cgroup's parent has been found by then.
pub(super) fn to_arguments(containment: &Containment) -> Vec<OsString> {
    let level = OsString::from(containment.level().as_str());
    let Containment::Cgroup(plan) = containment else { return vec![level] };
    let number = |most: Option<u64>| most.map_or(OsString::new(), |most| most.to_string().into());
    let parent = plan.parent.clone().unwrap_or_default().into_os_string();
    vec![level, parent, number(plan.processes_max.map(u64::from)), number(plan.memory_bytes_max)]
}

/// What [`to_arguments`] was given; none for anything else.
pub(super) fn from_arguments(mut arguments: impl Iterator<Item = OsString>) -> Option<Containment> {
    let level = arguments.next()?;
    let containment = [Containment::SubReaper, Containment::PidNamespace].into_iter();
    if let Some(simple) = containment.into_iter().find(|simple| level == *simple.level().as_str()) {
        return arguments.next().is_none().then_some(simple);
    }
    let parent = arguments.next().filter(|_| level == *ContainmentLevel::Cgroup.as_str())?;
    let mut number = || match arguments.next()?.to_str()? {
        "" => Some(None),
        text => text.parse::<u64>().ok().map(Some),
    };
    let (processes, memory_bytes_max) = (number()?, number()?);
    let processes_max = processes.map(u32::try_from).transpose().ok()?;
    Some(Containment::Cgroup(CgroupPlan { parent: Some(parent.into()), processes_max, memory_bytes_max }))
}

/// What a level needs and cannot be done here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// To make a PID namespace.
    Namespace,
    /// To be the same user in a user namespace.
    UserMap,
    /// To see the processes of the namespace.
    ProcMount,
    /// To make a cgroup.
    CgroupMake,
    /// To kill a cgroup.
    CgroupKill,
    /// To start a process in a cgroup.
    CgroupJoin,
    /// To limit how many processes there are.
    ProcessesLimit,
    /// To limit how much memory there is.
    MemoryLimit,
}

impl Step {
    /// All of them, each at the place of its number.
    const ALL: [Self; 8] = [
        Self::Namespace,
        Self::UserMap,
        Self::ProcMount,
        Self::CgroupMake,
        Self::CgroupKill,
        Self::CgroupJoin,
        Self::ProcessesLimit,
        Self::MemoryLimit,
    ];

    fn number(self) -> i32 {
        Self::ALL.iter().position(|step| *step == self).and_then(|at| i32::try_from(at).ok()).unwrap_or(-1)
    }

    fn from_number(number: i32) -> Option<Self> {
        usize::try_from(number).ok().and_then(|at| Self::ALL.get(at)).copied()
    }
}

impl CgroupLimit {
    /// What setting it is.
    pub(super) fn step(self) -> Step {
        match self {
            Self::Processes => Step::ProcessesLimit,
            Self::Memory => Step::MemoryLimit,
        }
    }
}

/// Why a level is not available, as it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    /// What cannot be done.
    pub(super) step: Step,
    /// The system's number for the reason.
    pub(super) errno: i32,
}

impl Fault {
    pub(super) fn of(step: Step, errno: rustix::io::Errno) -> Self {
        Self { step, errno: errno.raw_os_error() }
    }

    /// The reason in full; `parent` is where cgroups were to be made.
    pub(super) fn reason(self, parent: &Path) -> Unavailable {
        let (errno, parent) = (self.errno, parent.to_owned());
        let limit = |limit, parent| Unavailable::CgroupLimit { limit, parent, errno };
        match self.step {
            Step::Namespace => Unavailable::Namespace { errno },
            Step::UserMap => Unavailable::UserMap { errno },
            Step::ProcMount => Unavailable::ProcMount { errno },
            Step::CgroupMake => Unavailable::CgroupMake { parent, errno },
            Step::CgroupKill => Unavailable::CgroupKill { parent },
            Step::CgroupJoin => Unavailable::CgroupJoin { parent, errno },
            Step::ProcessesLimit => limit(CgroupLimit::Processes, parent),
            Step::MemoryLimit => limit(CgroupLimit::Memory, parent),
        }
    }
}

/// What a keeper or a warden tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    /// The keeper is there and speaks this version.
    Ready {
        /// Its [`VERSION`].
        version: i32,
    },
    /// The command, or the keeper, could not be started.
    Failed {
        /// The system's number for the reason.
        errno: i32,
    },
    /// The command was to be confined, and was not run because it could not be.
    Unconfined {
        /// The step that failed, by its number.
        step: i32,
        /// The system's number for the reason.
        errno: i32,
    },
    /// Commands cannot be held here as they should be.
    Unavailable {
        /// Why.
        fault: Fault,
    },
    /// The command ended; what it left behind may still run.
    Ended {
        /// How.
        status: ProcessStatus,
    },
    /// Nothing is left, but for the survivors.
    Gone {
        /// Whether something that the command left behind had to be stopped.
        killed_background: bool,
        /// The first [`SURVIVORS_MAX`] of what could not be killed.
        survivors: Vec<u32>,
    },
}

impl Report {
    /// The report as it is sent.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (kind, numbers) = match self {
            Self::Ready { version } => (b'R', vec![*version]),
            Self::Failed { errno } => (b'F', vec![*errno]),
            Self::Unconfined { step, errno } => (b'C', vec![*step, *errno]),
            Self::Unavailable { fault } => (b'U', vec![fault.step.number(), fault.errno]),
            Self::Ended { status: ProcessStatus::Exited { code } } => (b'E', vec![0, *code]),
            Self::Ended { status: ProcessStatus::Signalled { signal } } => (b'E', vec![1, *signal]),
            Self::Ended { status: ProcessStatus::Unknown } => (b'E', vec![2, 0]),
            Self::Gone { killed_background, survivors } => {
                let pids = survivors.iter().take(SURVIVORS_MAX).filter_map(|pid| i32::try_from(*pid).ok());
                (b'G', std::iter::once(i32::from(*killed_background)).chain(pids).collect())
            }
        };
        // There are never more than NUMBERS_MAX.
        let mut bytes = vec![kind, u8::try_from(numbers.len()).unwrap_or(0)];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    /// Takes the first report off `bytes`, if it is there as a whole.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for what is no report.
    pub(super) fn take(bytes: &mut Vec<u8>) -> io::Result<Option<Self>> {
        let Some(([kind, count], rest)) = bytes.split_first_chunk::<REPORT_HEAD_BYTES>() else { return Ok(None) };
        let count = usize::from(*count);
        let Some(numbers) = rest.get(..count * 4) else { return Ok(None) };
        let numbers: Vec<i32> = numbers.as_chunks::<4>().0.iter().map(|number| i32::from_le_bytes(*number)).collect();
        let report = match (*kind, numbers.as_slice()) {
            _ if count > NUMBERS_MAX => None,
            (b'R', [version]) => Some(Self::Ready { version: *version }),
            (b'F', [errno]) => Some(Self::Failed { errno: *errno }),
            (b'C', [step, errno]) => Some(Self::Unconfined { step: *step, errno: *errno }),
            (b'U', [step, errno]) => {
                Step::from_number(*step).map(|step| Self::Unavailable { fault: Fault { step, errno: *errno } })
            }
            (b'E', [0, code]) => Some(Self::Ended { status: ProcessStatus::Exited { code: *code } }),
            (b'E', [1, signal]) => Some(Self::Ended { status: ProcessStatus::Signalled { signal: *signal } }),
            (b'E', [2, 0]) => Some(Self::Ended { status: ProcessStatus::Unknown }),
            (b'G', [killed @ (0 | 1), pids @ ..]) => Some(Self::Gone {
                killed_background: *killed == 1,
                survivors: pids.iter().filter_map(|pid| u32::try_from(*pid).ok()).collect(),
            }),
            _ => None,
        };
        let length = REPORT_HEAD_BYTES + count * 4;
        bytes.drain(..length);
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the shim said something that is no report");
        report.map(Some).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::time::Duration;

    use super::{Fault, REQUEST_BYTES_MAX, Report, Request, SURVIVORS_MAX, Step, from_arguments, to_arguments};
    use crate::effects::processes::ProcessStatus;
    use crate::effects::processes::confinement::checked::Checked;
    use crate::effects::processes::containment::{CgroupPlan, Containment};

    fn texts(texts: &[&str]) -> Vec<CString> {
        texts.iter().map(|text| CString::new(*text).unwrap()).collect()
    }

    fn request(arguments: &[&str], environment: &[&str]) -> Request {
        Request {
            file: c"/bin/sh".into(),
            arguments: texts(arguments),
            environment: texts(environment),
            grace: Duration::from_millis(1500),
            confinement: None,
        }
    }

    fn back(request: &Request) -> Option<Request> {
        let bytes = request.to_bytes().unwrap();
        let (first, rest) = bytes.split_first_chunk::<4>().unwrap();
        assert_eq!(Request::length(*first), Some(rest.len()));
        Request::from_bytes(rest)
    }

    #[test]
    fn a_request_comes_back_as_it_was() {
        for request in
            [request(&["sh"], &[]), request(&["sh", "", "-c", "a\nb"], &["A=", "B=c d"]), request(&["", ""], &[""])]
        {
            assert_eq!(back(&request), Some(request));
        }
        let confinement = Checked::from_texts(&texts(&["r10", "R/work", "D/keys", "T/tmp"]));
        assert!(confinement.is_some());
        let confined = Request { confinement, ..request(&["sh"], &["A="]) };
        assert_eq!(back(&confined), Some(confined));
    }

    #[test]
    fn a_confinement_that_is_not_understood_is_no_request() {
        let confinement = Checked::from_texts(&texts(&["r10", "R/work"]));
        let mut bytes = Request { confinement, ..request(&["sh"], &["A="]) }.to_bytes().unwrap();
        let at = bytes.windows(3).position(|text| text == b"r10").unwrap();
        bytes[at] = b'?';
        assert_eq!(Request::from_bytes(&bytes[4..]), None);
        // Nor are more texts than there are.
        bytes[at] = b'r';
        bytes[12] = 200;
        assert_eq!(Request::from_bytes(&bytes[4..]), None);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert_eq!(back(&request(&[], &["A=1"])), None, "no name");
        let bytes = request(&["sh", "x"], &["A=1"]).to_bytes().unwrap();
        for length in 4..bytes.len() {
            let cut = Request::from_bytes(&bytes[4..length]);
            // Cut between two texts it is a shorter request; the length before it tells.
            assert!(cut.is_none_or(|cut| cut != request(&["sh", "x"], &["A=1"])), "{length}");
        }
        assert_eq!(Request::length([7, 0, 0, 0]), None);
        assert_eq!(Request::length([255; 4]), None);
        let long = "x".repeat(REQUEST_BYTES_MAX);
        let kind = request(&["sh", &long], &[]).to_bytes().unwrap_err().kind();
        assert_eq!(kind, std::io::ErrorKind::ArgumentListTooLong);
    }

    #[test]
    fn what_a_keeper_is_told_comes_back_as_it_was() {
        let cgroup = |processes_max, memory_bytes_max| {
            Containment::Cgroup(CgroupPlan { parent: Some("/sys/a b".into()), processes_max, memory_bytes_max })
        };
        for containment in [
            Containment::SubReaper,
            Containment::PidNamespace,
            cgroup(None, None),
            cgroup(Some(7), None),
            cgroup(None, Some(u64::MAX)),
        ] {
            assert_eq!(from_arguments(to_arguments(&containment).into_iter()), Some(containment));
        }
        for wrong in [&[] as &[&str], &["group"], &["sub_reaper", "x"], &["cgroup", "/", ""], &["cgroup", "/", "x", ""]]
        {
            assert_eq!(from_arguments(wrong.iter().map(Into::into)), None, "{wrong:?}");
        }
    }

    #[test]
    fn reports_come_back_as_they_were_however_they_are_cut() {
        let reports = [
            Report::Ready { version: 1 },
            Report::Failed { errno: 2 },
            Report::Unconfined { step: 3, errno: 95 },
            Report::Unavailable { fault: Fault { step: Step::Namespace, errno: 1 } },
            Report::Unavailable { fault: Fault { step: Step::MemoryLimit, errno: 16 } },
            Report::Ended { status: ProcessStatus::Exited { code: 255 } },
            Report::Ended { status: ProcessStatus::Signalled { signal: 36 } },
            Report::Ended { status: ProcessStatus::Unknown },
            Report::Gone { killed_background: true, survivors: (1..=SURVIVORS_MAX as u32).collect() },
            Report::Gone { killed_background: false, survivors: Vec::new() },
        ];
        let all: Vec<u8> = reports.iter().flat_map(Report::to_bytes).collect();
        for step in [1, 3, all.len()] {
            let (mut buffer, mut heard) = (Vec::new(), Vec::new());
            for piece in all.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some(report) = Report::take(&mut buffer).unwrap() {
                    heard.push(report);
                }
            }
            assert_eq!(heard, reports);
        }
        let many = Report::Gone { killed_background: false, survivors: (1..=1000).collect() };
        let Ok(Some(Report::Gone { survivors, .. })) = Report::take(&mut many.to_bytes()) else { panic!() };
        assert_eq!(survivors.len(), SURVIVORS_MAX);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        for bytes in [
            vec![b'X', 0],
            vec![b'R', 0],
            vec![b'E', 2, 9, 0, 0, 0, 0, 0, 0, 0],
            vec![b'G', 0],
            vec![b'U', 2, 9, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(Report::take(&mut bytes.clone()).is_err(), "{bytes:?}");
        }
        assert_eq!(Report::take(&mut Vec::new()).unwrap(), None);
        assert_eq!(Report::take(&mut vec![b'R', 1, 0]).unwrap(), None);
    }
}
