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
#[path = "processes/cgroup.rs"]
mod cgroup;
#[path = "processes/command.rs"]
mod command;
#[path = "processes/figure.rs"]
mod figure;
#[path = "processes/git.rs"]
mod git;
#[path = "processes/hard_input.rs"]
mod hard_input;
#[path = "processes/last_resort.rs"]
mod last_resort;
#[path = "processes/level.rs"]
mod level;
#[path = "processes/matrix.rs"]
mod matrix;
#[path = "processes/namespace.rs"]
mod namespace;
#[path = "processes/port.rs"]
mod port;
#[path = "processes/sandbox.rs"]
mod sandbox;
#[path = "processes/soak.rs"]
mod soak;
#[path = "processes/survivor.rs"]
mod survivor;
#[path = "processes/trace.rs"]
mod trace;

use std::process::ExitCode;
use std::time::Instant;

use toolwarden_tools::effects::processes::ContainmentLevel;
use toolwarden_tools::effects::processes::shim::enter_if_asked;

use crate::matrix::Ending;

/// A test's name, what it does, and whether it runs only when asked for.
type Test = (String, Box<dyn Fn()>, bool);

/// Every ending at every level, and the rest. Above the first level a time-out is left out, which takes seconds and the
/// way of a cancel.
fn tests() -> Vec<Test> {
    let endings = [
        ("normal_end", Ending::Normal),
        ("timeout", Ending::Timeout),
        ("cancel", Ending::Cancel),
        ("dropped_call", Ending::DroppedCall),
        ("dropped_future", Ending::DroppedFuture),
        ("panic_in_the_caller", Ending::Panic),
        ("session_close", Ending::SessionClose),
        ("sigterm_to_the_host", Ending::HostTerminated),
        ("sigkill_to_the_host", Ending::HostKilled),
    ];
    let mut tests: Vec<Test> = Vec::new();
    for containment in level::all() {
        let is_first = containment.level() == ContainmentLevel::SubReaper;
        for (name, ending) in endings.into_iter().filter(|(_, ending)| is_first || *ending != Ending::Timeout) {
            let (name, containment) =
                (format!("matrix::{}::{name}", containment.level().as_str()), containment.clone());
            tests.push((name, Box::new(move || matrix::ends(ending, &containment)), false));
        }
    }
    let others: [(&str, fn(), bool); 50] = [
        ("port::status_and_streams", port::status_and_streams, false),
        ("port::what_a_command_inherits", port::what_a_command_inherits, false),
        ("port::standard_input_ends", port::standard_input_ends, false),
        ("port::background", port::background, false),
        ("port::an_obedient_tree_ends_at_once", port::an_obedient_tree_ends_at_once, false),
        ("port::what_cannot_start_says_why", port::what_cannot_start_says_why, false),
        ("port::what_is_no_shim_is_refused", port::what_is_no_shim_is_refused, false),
        ("port::a_killed_keeper_is_replaced", port::a_killed_keeper_is_replaced, false),
        ("port::a_stopped_warden_is_woken", port::a_stopped_warden_is_woken, false),
        ("port::a_killed_warden_is_swept_after", port::a_killed_warden_is_swept_after, false),
        ("port::a_long_request_arrives_whole", port::a_long_request_arrives_whole, false),
        ("level::what_is_not_available_is_refused", level::what_is_not_available_is_refused, false),
        ("level::a_session_may_be_held_more_strictly", level::a_session_may_be_held_more_strictly, false),
        ("level::limits_hold_or_are_refused", level::limits_hold_or_are_refused, false),
        ("level::a_session_has_limits_or_does_not_open", level::a_session_has_limits_or_does_not_open, false),
        ("last_resort::orphans_of_a_killed_shim_are_ended", last_resort::orphans_of_a_killed_shim_are_ended, false),
        ("namespace::a_command_sees_its_own_alone", namespace::a_command_sees_its_own_alone, false),
        ("namespace::a_killed_shim_leaves_nothing", namespace::a_killed_shim_leaves_nothing, false),
        ("cgroup::a_command_has_one_of_its_own", cgroup::a_command_has_one_of_its_own, false),
        ("cgroup::a_killed_shim_leaves_nothing", cgroup::a_killed_shim_leaves_nothing, false),
        ("cgroup::what_is_put_there_is_ended_too", cgroup::what_is_put_there_is_ended_too, false),
        ("survivor::what_cannot_be_killed_is_named", survivor::what_cannot_be_killed_is_named, false),
        ("background::outlives_calls_and_runs", background::outlives_calls_and_runs, false),
        ("background::ends_with_a_child_run", background::ends_with_a_child_run, false),
        ("background::ends_with_its_session", background::ends_with_its_session, false),
        ("background::ends_with_its_host", background::ends_with_its_host, false),
        ("background::is_listed_read_and_stopped", background::is_listed_read_and_stopped, false),
        ("background::counts_what_it_overwrites", background::counts_what_it_overwrites, false),
        ("background::is_bounded", background::is_bounded, false),
        ("background::what_fails_at_once_is_told", background::what_fails_at_once_is_told, false),
        ("background::what_a_shell_leaves", background::what_a_shell_leaves, false),
        ("background::the_end_is_told_once", background::the_end_is_told_once, false),
        ("background::is_governed", background::is_governed, false),
        ("hard_input::ten_thousand_short_lived_children", hard_input::ten_thousand_short_lived_children, false),
        ("hard_input::descriptors_run_out", hard_input::descriptors_run_out, false),
        ("hard_input::a_folder_that_may_not_be_entered", hard_input::a_folder_that_may_not_be_entered, false),
        ("hard_input::a_folder_that_goes", hard_input::a_folder_that_goes, false),
        ("hard_input::a_missing_program_is_told", hard_input::a_missing_program_is_told, false),
        ("hard_input::the_workspace_stays_as_it_is", hard_input::the_workspace_stays_as_it_is, false),
        ("hard_input::a_large_tree_costs_nothing", hard_input::a_large_tree_costs_nothing, false),
        ("git::a_change_ended_half_way_leaves_no_lock", git::a_change_ended_half_way_leaves_no_lock, false),
        ("git::a_killed_host_leaves_no_lock", git::a_killed_host_leaves_no_lock, false),
        ("git::a_hook_that_never_returns", git::a_hook_that_never_returns, false),
        ("figure::capture", figure::capture, true),
        ("figure::git", git::figure, true),
        ("soak::short", || soak::calls(200), false),
        ("soak::long", || soak::calls(2000), true),
        ("figure::spawns", figure::spawns, true),
        ("figure::cancels", figure::cancels, true),
        ("figure::hosts_killed", figure::hosts_killed, true),
    ];
    let confined =
        sandbox::TESTS.iter().map(|(name, test)| ((*name).to_owned(), Box::new(*test) as Box<dyn Fn()>, false));
    tests.extend(confined);
    tests.extend(others.map(|(name, test, ignored)| (name.to_owned(), Box::new(test) as Box<dyn Fn()>, ignored)));
    tests
}

fn main() -> ExitCode {
    enter_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(matrix::HOST) => return matrix::play_host(),
        Some(hard_input::STARVED) => return hard_input::play_starved(&arguments[1]),
        Some(hard_input::STRANGER) => return hard_input::play_stranger(&arguments[1]),
        Some(last_resort::HOST) => return last_resort::play(),
        Some(survivor::NOBODY) => return survivor::play_nobody(),
        Some(survivor::ROOT) => return survivor::play_root(&arguments[1]),
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
    for (name, test, _) in tests().iter().filter(|(name, _, ignored)| is_named(name) && is_wanted(*ignored)) {
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
