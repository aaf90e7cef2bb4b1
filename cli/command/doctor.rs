//! `doctor`: what this machine lets toolwarden do, and why not more.
//!
//! Nothing is guessed: each level of containment is tried out as the first command would.

use clap::Args;
use nix::sys::utsname::uname;
use nix::unistd::{Uid, User};
use serde::Serialize;
use toolwarden_tools::effects::processes::ContainmentLevel;
use toolwarden_tools::effects::processes::confinement::kernel::{KernelSupport, LANDLOCK_ABI_MIN};
use toolwarden_tools::effects::processes::containment::{CgroupPlan, Unavailable};

use super::{CommandError, End};
use crate::assembly::Surroundings;
use crate::containment::Level;
use crate::terminal::print;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Everything that was found, as `--json` prints it.
#[derive(Serialize)]
struct Findings {
    containment: ContainmentFindings,
    facts: Vec<Fact>,
}

#[derive(Serialize)]
struct ContainmentFindings {
    /// The level in force when no other is asked for.
    default: &'static str,
    levels: Vec<LevelFinding>,
}

#[derive(Serialize)]
struct LevelFinding {
    level: &'static str,
    available: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
}

#[derive(Serialize)]
struct Reason {
    kind: &'static str,
    text: String,
}

/// Something about the machine that the findings depend on.
#[derive(Serialize)]
struct Fact {
    name: &'static str,
    value: String,
}

/// Looks at the machine and prints what it found. It fails when commands cannot run at the default level.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn examine(args: DoctorArgs, with: &Surroundings) -> Result<End, CommandError> {
    let findings = Findings { containment: containment().await, facts: facts() };
    print(&if args.json { serde_json::to_string(&findings)? } else { page(&findings) })?;
    let default = findings.containment.default;
    if findings.containment.levels.iter().any(|finding| finding.level == default && finding.available) {
        return Ok(End::Done);
    }
    with.screen.complain(&format!("commands cannot run here at the default level, {default}"));
    Ok(End::Failed)
}

async fn containment() -> ContainmentFindings {
    let (mut default, mut levels) = (ContainmentLevel::Group, Vec::new());
    for level in ContainmentLevel::ALL {
        if Level::from(level) == Level::default() {
            default = level;
        }
        levels.push(finding(level, Level::from(level).probe().await));
    }
    ContainmentFindings { default: default.as_str(), levels }
}

fn finding(level: ContainmentLevel, probed: Result<(), Unavailable>) -> LevelFinding {
    let reason = probed.err().map(|reason| Reason { kind: reason.kind(), text: reason.to_string() });
    LevelFinding { level: level.as_str(), available: reason.is_none(), reason }
}

fn facts() -> Vec<Fact> {
    let kernel = uname().map_or_else(
        |error| format!("not known: {error}"),
        |name| format!("{} {}", name.sysname().display(), name.release().display()),
    );
    let user = Uid::effective();
    let name = User::from_uid(user).ok().flatten().map_or_else(|| "no name".to_owned(), |user| user.name);
    let cgroup = CgroupPlan::default().folder().map_or_else(|_| "none".to_owned(), |path| path.display().to_string());
    let user = format!("{user} ({name})");
    let (landlock, seccomp) = sandbox(KernelSupport::of_this_machine());
    let facts = [("kernel", kernel), ("user", user), ("cgroup", cgroup), ("landlock", landlock), ("seccomp", seccomp)];
    facts.map(|(name, value)| Fact { name, value }).into()
}

/// What there is for the sandbox of commands, and what it is good for.
fn sandbox(found: KernelSupport) -> (String, String) {
    let landlock = match found.landlock_abi {
        0 => "none, so that --sandbox is refused".to_owned(),
        abi if abi < LANDLOCK_ABI_MIN => {
            format!("version {abi}, so that --sandbox is refused: it takes version {LANDLOCK_ABI_MIN}")
        }
        abi => format!("version {abi}"),
    };
    let seccomp = if found.seccomp { "there" } else { "none, so that --sandbox and --no-network are refused" };
    (landlock, seccomp.to_owned())
}

fn page(findings: &Findings) -> String {
    let containment = &findings.containment;
    let level = |finding: &LevelFinding| {
        let default = if finding.level == containment.default { " (default)" } else { "" };
        match &finding.reason {
            None => (finding.level, format!("available{default}")),
            Some(reason) => (finding.level, format!("not available{default}: {}", reason.text)),
        }
    };
    let levels = containment.levels.iter().map(level).collect();
    let facts = findings.facts.iter().map(|fact| (fact.name, fact.value.clone())).collect();
    [section("CONTAINMENT OF COMMANDS", levels), section("THIS MACHINE", facts)].join("\n\n")
}

/// A headline, and rows with straight columns.
fn section(headline: &str, rows: Vec<(&str, String)>) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let rows = rows.iter().map(|(name, text)| format!("  {name:width$}  {text}"));
    std::iter::once(headline.to_owned()).chain(rows).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use toolwarden_tools::effects::processes::ContainmentLevel;
    use toolwarden_tools::effects::processes::containment::Unavailable;

    use super::{ContainmentFindings, Fact, Findings, KernelSupport, finding, page, sandbox};

    fn findings() -> Findings {
        let levels = vec![
            finding(ContainmentLevel::SubReaper, Ok(())),
            finding(ContainmentLevel::Cgroup, Err(Unavailable::NoCgroup)),
        ];
        let facts = vec![Fact { name: "kernel", value: "Linux 6.18".into() }];
        Findings { containment: ContainmentFindings { default: "sub_reaper", levels }, facts }
    }

    #[test]
    fn a_page_says_what_there_is_and_why_not_more() {
        let expected = format!(
            "CONTAINMENT OF COMMANDS\n  sub_reaper  available (default)\n  cgroup      not available: {}\n\n\
             THIS MACHINE\n  kernel  Linux 6.18",
            Unavailable::NoCgroup
        );
        assert_eq!(page(&findings()), expected);
    }

    #[test]
    fn what_the_sandbox_lacks_is_said() {
        let told = |landlock_abi, seccomp| sandbox(KernelSupport { landlock_abi, seccomp });
        assert_eq!(told(7, true), ("version 7".to_owned(), "there".to_owned()));
        assert!(told(2, true).0.contains("it takes version 3"));
        let (landlock, seccomp) = told(0, false);
        assert!(landlock.contains("refused") && seccomp.contains("--no-network"));
    }

    #[test]
    fn json_has_a_reason_where_a_level_is_not_available() {
        let json = serde_json::to_value(findings()).unwrap();
        assert_eq!(json["containment"]["levels"][0], serde_json::json!({"level": "sub_reaper", "available": true}));
        assert_eq!(json["containment"]["levels"][1]["reason"]["kind"], "no_cgroup");
        assert_eq!(json["facts"][0]["name"], "kernel");
    }
}
