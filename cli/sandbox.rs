//! `--sandbox` and what goes with it: from words on the command line to what the kernel keeps commands from.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use toolwarden_tools::effects::processes::confinement::{Confinement, FileAccess};

/// What commands are kept from.
#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    /// Keep commands (bash, git) by the kernel's means from writing elsewhere than in the workspace, or anywhere
    #[arg(long, value_enum, value_name = "MODE", default_value_t = Mode::Off)]
    sandbox: Mode,

    /// Keep commands from the network, with and without --sandbox
    #[arg(long)]
    no_network: bool,

    /// Keep commands from reading this file or folder; may be given more than once, and needs a sandbox
    #[arg(long, value_name = "PATH")]
    deny: Vec<PathBuf>,

    /// Let commands in the sandbox write to this file or folder too; may be given more than once
    #[arg(long, value_name = "PATH")]
    writable: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Commands may do to files whatever you may
    Off,
    /// Commands write only in the workspace and in a folder for temporary files
    WorkspaceWrite,
    /// Commands write only in a folder for temporary files
    ReadOnly,
}

impl SandboxArgs {
    /// What commands are kept from.
    ///
    /// # Errors
    /// What has to be mended on the command line.
    pub(crate) fn confinement(&self) -> Result<Confinement, String> {
        let files = match self.sandbox {
            Mode::Off => FileAccess::Off,
            Mode::WorkspaceWrite => FileAccess::WorkspaceWrite,
            Mode::ReadOnly => FileAccess::ReadOnly,
        };
        let first = self.deny.first().map(|path| ("--deny", path));
        if let Some((flag, path)) = first.or(self.writable.first().map(|path| ("--writable", path)))
            && files == FileAccess::Off
        {
            let path = path.display();
            return Err(format!("{flag} {path} needs --sandbox workspace-write or --sandbox read-only"));
        }
        let mut confinement = Confinement::new(files);
        for path in &self.deny {
            confinement = confinement.denied(absolute(path)?);
        }
        for path in &self.writable {
            confinement = confinement.writable(absolute(path)?);
        }
        Ok(if self.no_network { confinement.without_network() } else { confinement })
    }
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{} is no path: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use toolwarden_tools::effects::processes::confinement::{Confinement, FileAccess};

    use super::{Mode, SandboxArgs};

    fn args(sandbox: Mode, no_network: bool, deny: &[&str]) -> SandboxArgs {
        SandboxArgs { sandbox, no_network, deny: deny.iter().map(PathBuf::from).collect(), writable: Vec::new() }
    }

    #[test]
    fn words_become_a_confinement() {
        assert!(args(Mode::Off, false, &[]).confinement().unwrap().is_off());
        let offline = args(Mode::Off, true, &[]).confinement().unwrap();
        assert_eq!(offline, Confinement::new(FileAccess::Off).without_network());
        let denied = args(Mode::ReadOnly, false, &["/etc/shadow"]).confinement().unwrap();
        assert_eq!(denied, Confinement::new(FileAccess::ReadOnly).denied("/etc/shadow"));
        let error = args(Mode::Off, false, &["/etc/shadow"]).confinement().unwrap_err();
        assert!(error.contains("--deny /etc/shadow needs --sandbox"), "{error}");
        let writable = SandboxArgs { writable: vec!["/tmp".into()], ..args(Mode::Off, true, &[]) };
        assert!(writable.confinement().unwrap_err().contains("--writable /tmp needs"));
    }
}
