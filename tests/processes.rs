//! Processes that cannot be lost: however a call ends, nothing that it started is left, and its result says so.
//!
//! This test is an embedder of its own: its `main` is asked first whether it is the shim, and then whether it plays
//! the host that is killed. So it has no harness; it takes a filter, `--list`, and `--ignored` for what is long.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the tests look at real processes, and lints do not know them as tests without the harness"
)]

#[path = "processes/command.rs"]
mod command;
#[path = "processes/figure.rs"]
mod figure;
#[path = "processes/matrix.rs"]
mod matrix;
#[path = "processes/port.rs"]
mod port;
#[path = "processes/sandbox.rs"]
mod sandbox;
#[path = "processes/soak.rs"]
mod soak;
#[path = "processes/trace.rs"]
mod trace;

use std::process::ExitCode;
use std::time::Instant;

use toolwarden_tools::effects::processes::shim::enter_if_asked;

/// A test's name, what it does, and whether it runs only when asked for.
const TESTS: &[(&str, fn(), bool)] = &[
    ("matrix::normal_end", || matrix::ends(matrix::Ending::Normal), false),
    ("matrix::timeout", || matrix::ends(matrix::Ending::Timeout), false),
    ("matrix::cancel", || matrix::ends(matrix::Ending::Cancel), false),
    ("matrix::dropped_call", || matrix::ends(matrix::Ending::DroppedCall), false),
    ("matrix::dropped_future", || matrix::ends(matrix::Ending::DroppedFuture), false),
    ("matrix::panic_in_the_caller", || matrix::ends(matrix::Ending::Panic), false),
    ("matrix::session_close", || matrix::ends(matrix::Ending::SessionClose), false),
    ("matrix::sigterm_to_the_host", || matrix::ends(matrix::Ending::HostTerminated), false),
    ("matrix::sigkill_to_the_host", || matrix::ends(matrix::Ending::HostKilled), false),
    ("port::status_and_streams", port::status_and_streams, false),
    ("port::what_a_command_inherits", port::what_a_command_inherits, false),
    ("port::standard_input_ends", port::standard_input_ends, false),
    ("port::background", port::background, false),
    ("port::an_obedient_tree_ends_at_once", port::an_obedient_tree_ends_at_once, false),
    ("port::what_cannot_start_says_why", port::what_cannot_start_says_why, false),
    ("port::what_is_no_shim_is_refused", port::what_is_no_shim_is_refused, false),
    ("port::a_killed_keeper_is_replaced", port::a_killed_keeper_is_replaced, false),
    ("port::a_stopped_scope_is_woken", port::a_stopped_scope_is_woken, false),
    ("port::a_killed_scope_is_swept_after", port::a_killed_scope_is_swept_after, false),
    ("port::a_long_request_arrives_whole", port::a_long_request_arrives_whole, false),
    ("sandbox::kernel::this_kernel_has_it", sandbox::kernel::this_kernel_has_it, false),
    ("sandbox::kernel::calls_are_refused", sandbox::kernel::calls_are_refused, false),
    ("sandbox::kernel::what_the_kernel_lacks", sandbox::kernel::what_the_kernel_lacks_refuses_commands, false),
    ("sandbox::kernel::without_a_shim", sandbox::kernel::without_a_shim_commands_are_refused, false),
    ("sandbox::kernel::a_failed_step", sandbox::kernel::a_failed_step_refuses_the_command, false),
    ("sandbox::writing::attempts", sandbox::writing::attempts, false),
    ("sandbox::writing::more_can_be_writable", sandbox::writing::more_can_be_writable, false),
    ("sandbox::writing::usual_programs_work", sandbox::writing::usual_programs_work, false),
    ("sandbox::denial::no_way", sandbox::denial::no_way_leads_to_a_denied_file, false),
    ("sandbox::denial::hard_link", sandbox::denial::a_hard_link_that_was_there_before_is_found, false),
    (
        "sandbox::denial::in_the_workspace",
        sandbox::denial::a_file_of_the_workspace_can_be_denied_where_it_is_read_only,
        false,
    ),
    (
        "sandbox::denial::where_it_is_written",
        sandbox::denial::a_file_of_the_workspace_can_be_denied_where_it_is_written,
        false,
    ),
    ("sandbox::denial::keeps_its_name", sandbox::denial::the_way_to_a_denied_file_keeps_its_name, false),
    ("sandbox::denial::above_the_workspace", sandbox::denial::a_workspace_may_stand_in_a_denied_folder, false),
    ("sandbox::denial::what_comes_later", sandbox::denial::what_comes_later_is_denied, false),
    ("sandbox::socket::of_all_families", sandbox::socket::of_all_families, false),
    ("sandbox::socket::nothing_is_reached", sandbox::socket::nothing_is_reached, false),
    ("sandbox::socket::files_may_be_free", sandbox::socket::without_a_network_files_may_be_free, false),
    ("sandbox::life::temporary", sandbox::life::a_temporary_folder_is_its_own_and_goes, false),
    ("sandbox::life::cancel", sandbox::life::a_cancel_leaves_nothing, false),
    ("sandbox::life::what_it_is", sandbox::life::what_a_sandboxed_command_is, false),
    ("sandbox::life::empty", sandbox::life::an_empty_confinement_is_none, false),
    ("sandbox::session::bash_and_git", sandbox::session::bash_and_git_run_in_it_and_tell, false),
    ("sandbox::session::refused", sandbox::session::it_is_refused_and_never_skipped, false),
    ("soak::short", || soak::calls(200), false),
    ("soak::long", || soak::calls(2000), true),
    ("figure::all", figure::all, true),
];

fn main() -> ExitCode {
    enter_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(matrix::HOST) => return matrix::play_host(),
        Some(command::SUB_REAPER) => return command::play_sub_reaper(&arguments[1..]),
        _ => {}
    }
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_named = |name: &str| match given("--exact") {
        true => filters.iter().any(|filter| *filter == name),
        false => filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str())),
    };
    let is_wanted = |ignored: bool| given("--include-ignored") || given("--ignored") == ignored;
    let chosen = TESTS.iter().filter(|(name, _, ignored)| is_named(name) && is_wanted(*ignored));
    for (name, test, _) in chosen {
        if given("--list") {
            println!("{name}: test");
            continue;
        }
        let started_at = Instant::now();
        // A failed one panics, and ends the whole: the rest would find what it left.
        test();
        println!("test {name} ... ok ({:.1} s)", started_at.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}
