//! The toolwarden command line: reads the arguments, starts what it needs, and ends with an exit code.
//!
//! Answers go to standard output, everything else to standard error. Whatever happens, a person gets a message and
//! never a backtrace.

mod allowance;
mod containment;
mod environment;
mod input;
mod sandbox;
mod stop_signal;
mod terminal;

mod artifacts;
mod bucket;
mod confirm;
mod events_file;
mod models;
mod web;

mod agents;
mod attendant;

mod assembly;

mod command;

use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use toolwarden_tools::effects::processes::shim::enter_if_asked;
use tracing_subscriber::EnvFilter;

use crate::assembly::Surroundings;
use crate::command::{Command, carry_out};
use crate::environment::Environment;
use crate::terminal::Screen;

/// A call makes hundreds of small things and drops them on another thread: the system's allocator took a quarter of
/// the time of a batch, most of it in locks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code of a fault of this program itself.
const FAULT: u8 = 70;

/// Supervised tool calls for language-model agents: nothing leaks, everything has one ending.
#[derive(Debug, Parser)]
#[command(name = "toolwarden", version, arg_required_else_help = true, subcommand_required = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 the command line has to be mended, 130 ended by Ctrl-C \
                        (143 by SIGTERM, 129 by SIGHUP).\nCtrl-C once cancels everything and waits until it has \
                        ended; twice kills.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// How much of the log goes to standard error [default: warn, and off for sim, whose worlds only pretend]
    #[arg(long, global = true, value_enum, value_name = "LEVEL")]
    log: Option<LogLevel>,

    /// The settings of models [default: ~/.config/toolwarden/toolwarden.toml, or the file that TOOLWARDEN_CONFIG names]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    /// A folder with agents in Markdown files, in the place of the one that the settings name
    #[arg(long, global = true, value_name = "DIR")]
    agents: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// Where nobody says how much: a pretended world fails on purpose, and its warnings are no news.
    fn usual_for(command: &Command) -> Self {
        match command {
            Command::Sim(_) => Self::Off,
            _ => Self::Warn,
        }
    }

    /// What is logged: the actor library's own talk only from warnings up.
    fn filter(self) -> EnvFilter {
        EnvFilter::new(match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info,ractor=warn",
            Self::Debug => "debug,ractor=warn",
            Self::Trace => "trace,ractor=warn",
        })
    }
}

fn main() -> ExitCode {
    // Before all else: this program is also the shim between itself and the commands that it runs.
    enter_if_asked();
    // A panic is a line of the log, for it is the supervisor's business and not a person's.
    std::panic::set_hook(Box::new(|panic| {
        let words = panic.payload_as_str().unwrap_or("no words");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(%words, %place, "a part of toolwarden broke");
    }));
    catch_unwind(start).unwrap_or_else(|_| {
        Screen::new(false).complain("this is a fault of toolwarden; please report it, with --log debug");
        ExitCode::from(FAULT)
    })
}

fn start() -> ExitCode {
    // What this process holds in memory (keys, file contents) is not for other processes of the same user. Where
    // the system does not know how, nothing is lost.
    let _ = nix::sys::prctl::set_dumpable(false);
    let arguments = Arguments::parse();
    let environment = Environment::of_this_process();
    let screen = Screen::new(environment.terminal_can_draw());
    start_log(arguments.log.unwrap_or_else(|| LogLevel::usual_for(&arguments.command)), &screen);
    run(arguments.command, &Surroundings { screen, environment, config: arguments.config, agents: arguments.agents })
}

fn run(command: Command, with: &Surroundings) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            with.screen.complain(&format!("cannot start threads: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(carry_out(command, with));
    // A thread that waits for a file system ends with the process.
    runtime.shutdown_background();
    code
}

/// Sends the log to standard error, above the progress.
fn start_log(level: LogLevel, screen: &Screen) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(level.filter())
        .with_writer(screen.clone())
        .with_ansi(false)
        .with_target(false)
        .without_time();
    // Nobody else sets one.
    let _ = log.try_init();
}
