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

#[path = "processes/background.rs"]
mod background;
#[path = "processes/command.rs"]
mod command;
#[path = "processes/figure.rs"]
mod figure;
#[path = "processes/git.rs"]
mod git;
#[path = "processes/hard_input.rs"]
mod hard_input;
#[path = "processes/matrix.rs"]
mod matrix;
#[path = "processes/port.rs"]
mod port;
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
    ("background::outlives_calls_and_runs", background::outlives_calls_and_runs, false),
    ("background::ends_with_a_child_run", background::ends_with_a_child_run, false),
    ("background::ends_with_its_session", background::ends_with_its_session, false),
    ("background::ends_with_its_host", background::ends_with_its_host, false),
    ("background::is_listed_read_and_stopped", background::is_listed_read_and_stopped, false),
    ("background::counts_what_it_overwrites", background::counts_what_it_overwrites, false),
    ("background::is_bounded", background::is_bounded, false),
    ("background::what_fails_at_once_is_told", background::what_fails_at_once_is_told, false),
    ("background::what_a_shell_leaves", background::what_a_shell_leaves, false),
    ("background::is_governed", background::is_governed, false),
    ("hard_input::ten_thousand_short_lived_children", hard_input::ten_thousand_short_lived_children, false),
    ("hard_input::descriptors_run_out", hard_input::descriptors_run_out, false),
    ("hard_input::a_folder_that_may_not_be_entered", hard_input::a_folder_that_may_not_be_entered, false),
    ("hard_input::a_folder_that_goes", hard_input::a_folder_that_goes, false),
    ("hard_input::a_missing_program_is_told", hard_input::a_missing_program_is_told, false),
    ("hard_input::the_workspace_stays_as_it_is", hard_input::the_workspace_stays_as_it_is, false),
    ("hard_input::a_large_tree_costs_nothing", hard_input::a_large_tree_costs_nothing, false),
    ("git::a_change_ended_half_way_leaves_no_lock", git::a_change_ended_half_way_leaves_no_lock, false),
    ("git::a_hook_that_never_returns", git::a_hook_that_never_returns, false),
    ("soak::short", || soak::calls(200), false),
    ("soak::long", || soak::calls(2000), true),
    ("figure::all", figure::all, true),
    ("figure::capture", figure::capture, true),
    ("figure::git", git::figure, true),
];

fn main() -> ExitCode {
    enter_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(matrix::HOST) => return matrix::play_host(),
        Some(hard_input::STARVED) => return hard_input::play_starved(&arguments[1]),
        Some(hard_input::STRANGER) => return hard_input::play_stranger(&arguments[1]),
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
