//! The sandbox of commands: what it keeps them from, tried in every way that comes to mind, and what it lets them do.
//!
//! Every attempt is made without a sandbox too, where that does no harm: one that fails anyway would prove nothing.

#[path = "sandbox/denial.rs"]
mod denial;
#[path = "sandbox/field.rs"]
mod field;
#[path = "sandbox/kernel.rs"]
mod kernel;
#[path = "sandbox/life.rs"]
mod life;
#[path = "sandbox/session.rs"]
mod session;
#[path = "sandbox/socket.rs"]
mod socket;
#[path = "sandbox/writing.rs"]
mod writing;

/// All of them by name.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("sandbox::kernel::this_kernel_has_it", kernel::this_kernel_has_it),
    ("sandbox::kernel::calls_are_refused", kernel::calls_are_refused),
    ("sandbox::kernel::what_the_kernel_lacks", kernel::what_the_kernel_lacks_refuses_commands),
    ("sandbox::kernel::without_a_shim", kernel::without_a_shim_commands_are_refused),
    ("sandbox::kernel::a_failed_step", kernel::a_failed_step_refuses_the_command),
    ("sandbox::writing::attempts", writing::attempts),
    ("sandbox::writing::more_can_be_writable", writing::more_can_be_writable),
    ("sandbox::writing::usual_programs_work", writing::usual_programs_work),
    ("sandbox::denial::no_way", denial::no_way_leads_to_a_denied_file),
    ("sandbox::denial::hard_link", denial::a_hard_link_that_was_there_before_is_found),
    ("sandbox::denial::in_the_workspace", denial::a_file_of_the_workspace_can_be_denied_where_it_is_read_only),
    ("sandbox::denial::where_it_is_written", denial::a_file_of_the_workspace_can_be_denied_where_it_is_written),
    ("sandbox::denial::keeps_its_name", denial::the_way_to_a_denied_file_keeps_its_name),
    ("sandbox::denial::above_the_workspace", denial::a_workspace_may_stand_in_a_denied_folder),
    ("sandbox::denial::what_comes_later", denial::what_comes_later_is_denied),
    ("sandbox::socket::of_all_families", socket::of_all_families),
    ("sandbox::socket::nothing_is_reached", socket::nothing_is_reached),
    ("sandbox::socket::files_may_be_free", socket::without_a_network_files_may_be_free),
    ("sandbox::life::temporary", life::a_temporary_folder_is_its_own_and_goes),
    ("sandbox::life::cancel", life::a_cancel_leaves_nothing),
    ("sandbox::life::what_it_is", life::what_a_sandboxed_command_is),
    ("sandbox::life::at_every_level", life::at_every_level),
    ("sandbox::life::empty", life::an_empty_confinement_is_none),
    ("sandbox::session::bash_and_git", session::bash_and_git_run_in_it_and_tell),
    ("sandbox::session::other_tools", session::other_tools_keep_to_it),
    ("sandbox::session::refused", session::it_is_refused_and_never_skipped),
];
