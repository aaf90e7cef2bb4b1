//! `--allow-hard-links`, `--allow-git-folder`: what tools may write that they are refused otherwise.
//!
//! Both are off unless the command line or the settings switch them on; a workspace cannot do that for itself.

use clap::Args;
use toolwarden_tools::workspace::WriteAllowance;

/// What tools may write beside the usual.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct AllowanceArgs {
    /// Let tools replace files with several names (hard links); the other names keep what they had
    #[arg(long)]
    allow_hard_links: bool,

    /// Let write and edit change what lies in .git
    #[arg(long)]
    allow_git_folder: bool,
}

impl AllowanceArgs {
    /// What the command line or the settings allow.
    pub(crate) fn allowance(self, settings: WriteAllowance) -> WriteAllowance {
        WriteAllowance {
            hard_links: self.allow_hard_links || settings.hard_links,
            git_folder: self.allow_git_folder || settings.git_folder,
        }
    }
}

#[cfg(test)]
mod tests {
    use toolwarden_tools::workspace::WriteAllowance;

    use super::AllowanceArgs;

    #[test]
    fn either_allows_and_nothing_is_allowed_unasked() {
        let none = WriteAllowance::default();
        assert_eq!(AllowanceArgs::default().allowance(none), none);
        let links = AllowanceArgs { allow_hard_links: true, ..AllowanceArgs::default() };
        let git = WriteAllowance { git_folder: true, ..none };
        assert_eq!(links.allowance(git), WriteAllowance { hard_links: true, git_folder: true });
        assert_eq!(AllowanceArgs::default().allowance(git), git);
    }
}
