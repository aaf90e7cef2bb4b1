//! The script's own thread: an engine that is made for one script, runs it, and is gone with it.
//!
//! A fresh engine a script, so that nothing stays between scripts, and a thread of its own, because a script can spin.
//! It stops for three reasons: its end, its deadline, and the word to stop; the interrupt looks at both of the latter
//! from inside every loop, regular expression and sort, and it stays in place while the result is taken. Jobs are
//! driven by the call that gives errors back: nothing is printed. The stack that the engine may use is far smaller
//! than the thread's, so a script that recurses meets its own limit first.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rquickjs::context::{EvalOptions, intrinsic};
use rquickjs::function::Opt;
use rquickjs::promise::PromiseState;
use rquickjs::{
    Array, CatchResultExt as _, CaughtError, Context, Ctx, Function, Module, Object, Promise, Runtime, Value,
};
use serde_json::Value as Json;
use tokio::sync::mpsc;

use super::allowance::Allowance;
use super::answer::{CallWindow, Shape, answer};
use super::fault::{Fault, Place};
use super::mailbox::{Arrival, Mailbox, Stop};
use super::value::{Kit, NotTaken, Purpose, give, take};
use super::{
    ARGUMENTS_BYTES_MAX, CONSOLE_BYTES_MAX, CONSOLE_LINE_BYTES_MAX, HEAP_BYTES_MAX, Limits, RESULT_BYTES_MAX, RunView,
    STACK_BYTES_MAX, Source,
};
use crate::context::ToolCall;
use crate::effects::clock::Clock;
use crate::outcome::ToolOutcome;

/// Stack of the thread, in bytes: what a script may use, and room for the host's code on top of it.
const THREAD_STACK_BYTES: usize = STACK_BYTES_MAX + 2 * 1024 * 1024;
/// Rejections without a handler that are kept.
const UNHANDLED_MAX: usize = 16;
/// What stands in front of a plain script on its first line.
const OPENING: &str = "(function () {";
/// Through which name the end of a module hands its function over.
const HAND_OVER: &str = "__toolwardenRun";

/// What a script's thread needs.
pub(super) struct Job {
    pub(super) source: Source,
    pub(super) inputs: Json,
    pub(super) view: Option<Arc<RunView>>,
    pub(super) allowance: Allowance,
    pub(super) limits: Limits,
    /// Where random numbers begin.
    pub(super) seed: u64,
    /// Where its clock stands, in milliseconds since 1970, when it is not to run.
    pub(super) pinned_ms: Option<u64>,
    pub(super) clock: Arc<dyn Clock>,
    /// When it is stopped, by the clock.
    pub(super) deadline_at: Duration,
}

/// What a script tells its desk.
pub(super) enum Request {
    /// It wants a tool called.
    Call {
        /// Its number, from 1.
        id: u64,
        /// What.
        call: ToolCall,
    },
    /// A line of its console.
    Line(String),
    /// It has ended; nothing of it is left.
    Ended(Box<ScriptEnd>),
}

/// How a script ended.
#[derive(Debug)]
pub(super) struct ScriptEnd {
    pub(super) result: Result<Json, Fault>,
    /// Rejections that nothing handled.
    pub(super) unhandled: Vec<String>,
    /// Whether halves of surrogate pairs were replaced in what left the script.
    pub(super) replaced: bool,
    /// Bytes of the console that were not kept.
    pub(super) console_lost_bytes: u64,
}

impl ScriptEnd {
    pub(super) fn failed(fault: Fault) -> Self {
        Self { result: Err(fault), unhandled: Vec::new(), replaced: false, console_lost_bytes: 0 }
    }
}

/// Starts the thread. It ends with [`Request::Ended`], or in silence when nobody listens any more.
///
/// # Errors
/// What the system says when it has no thread to give.
pub(super) fn start(job: Job, mailbox: Arc<Mailbox>, desk: mpsc::Sender<Request>) -> std::io::Result<()> {
    let body = move || {
        let run = AssertUnwindSafe(|| run(&job, &mailbox, &desk));
        let end = catch_unwind(run).unwrap_or_else(|_panic| {
            tracing::error!("the engine of a script panicked");
            ScriptEnd::failed(Fault::Host("its engine broke down".to_owned()))
        });
        // An error means that nobody listens any more.
        let _ = desk.blocking_send(Request::Ended(Box::new(end)));
        mailbox.leave();
    };
    std::thread::Builder::new().name("program".to_owned()).stack_size(THREAD_STACK_BYTES).spawn(body).map(drop)
}

type Intrinsics = (
    intrinsic::Date,
    intrinsic::Eval,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::Proxy,
    intrinsic::MapSet,
    intrinsic::TypedArrays,
    intrinsic::Promise,
);

/// Rejections without a handler, by what tells their promises apart.
type Unhandled = Rc<RefCell<BTreeMap<u64, String>>>;

fn run(job: &Job, mailbox: &Arc<Mailbox>, desk: &mpsc::Sender<Request>) -> ScriptEnd {
    let no_room = |error: rquickjs::Error| ScriptEnd::failed(Fault::Host(error.to_string()));
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return no_room(error),
    };
    runtime.set_memory_limit(HEAP_BYTES_MAX);
    runtime.set_max_stack_size(STACK_BYTES_MAX);
    let (box_of_interrupt, clock, deadline_at) = (Arc::clone(mailbox), Arc::clone(&job.clock), job.deadline_at);
    runtime.set_interrupt_handler(Some(Box::new(move || is_over(&box_of_interrupt, &*clock, deadline_at))));
    let unhandled: Unhandled = Rc::default();
    track_rejections(&runtime, &unhandled);
    let context = match Context::custom::<Intrinsics>(&runtime) {
        Ok(context) => context,
        Err(error) => return no_room(error),
    };
    context.with(|ctx| {
        let shared = Rc::new(Shared {
            desk: desk.clone(),
            allowance: job.allowance.clone(),
            limits: job.limits,
            kit: RefCell::new(None),
            pending: RefCell::default(),
            calls: Cell::new(0),
            console_bytes: Cell::new(0),
            console_lost_bytes: Cell::new(0),
            replaced: Cell::new(false),
            unhandled: Rc::clone(&unhandled),
        });
        // What is held of the engine goes before the engine does, whatever happens.
        let _release = Release(&shared);
        let script = Script { ctx, job, mailbox, shared: &shared };
        let result = script.to_end();
        let unhandled = std::mem::take(&mut *unhandled.borrow_mut()).into_values().collect();
        ScriptEnd {
            result,
            unhandled,
            replaced: shared.replaced.get(),
            console_lost_bytes: shared.console_lost_bytes.get(),
        }
    })
}

/// Whether the script is to stop now.
fn is_over(mailbox: &Mailbox, clock: &dyn Clock, deadline_at: Duration) -> bool {
    if !mailbox.is_stopped() && clock.monotonic() >= deadline_at {
        mailbox.stop(Stop::Deadline);
    }
    mailbox.is_stopped()
}

fn track_rejections(runtime: &Runtime, unhandled: &Unhandled) {
    let unhandled = Rc::clone(unhandled);
    runtime.set_host_promise_rejection_tracker(Some(Box::new(move |_ctx, promise, reason, is_handled| {
        let key = key_of(&promise);
        let mut unhandled = unhandled.borrow_mut();
        if is_handled {
            unhandled.remove(&key);
        } else if unhandled.len() < UNHANDLED_MAX {
            unhandled.insert(key, in_short(&reason));
        }
    })));
}

/// What tells promises apart.
fn key_of(promise: &Value<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    promise.hash(&mut hasher);
    hasher.finish()
}

/// What is known of a reason without running code of the script.
fn in_short(reason: &Value<'_>) -> String {
    let text = |value: &Value<'_>| value.as_string().and_then(|text| text.to_string().ok());
    match reason.as_exception() {
        Some(error) => error.message().unwrap_or_else(|| "an error without a message".to_owned()),
        None => text(reason).unwrap_or_else(|| format!("a value of type {}", reason.type_name())),
    }
}

/// What the functions of the prelude share.
struct Shared<'js> {
    desk: mpsc::Sender<Request>,
    allowance: Allowance,
    limits: Limits,
    kit: RefCell<Option<Rc<Kit<'js>>>>,
    /// The calls under way.
    pending: RefCell<BTreeMap<u64, Pending<'js>>>,
    calls: Cell<u32>,
    console_bytes: Cell<usize>,
    console_lost_bytes: Cell<u64>,
    replaced: Cell<bool>,
    unhandled: Unhandled,
}

struct Pending<'js> {
    shape: Shape,
    tool: String,
    arguments: CallWindow,
    resolve: Function<'js>,
    reject: Function<'js>,
}

struct Release<'a, 'js>(&'a Shared<'js>);

impl Drop for Release<'_, '_> {
    fn drop(&mut self) {
        self.0.kit.take();
        self.0.pending.take();
    }
}

impl<'js> Shared<'js> {
    fn kit(&self) -> rquickjs::Result<Rc<Kit<'js>>> {
        self.kit.borrow().clone().ok_or(rquickjs::Error::Unknown)
    }

    /// Asks the desk for a call; a promise of its answer, or one that is rejected.
    fn call(&self, ctx: &Ctx<'js>, shape: i32, tool: &Value<'js>, asked: Value<'js>) -> rquickjs::Result<Promise<'js>> {
        let kit = self.kit()?;
        let (promise, resolve, reject) = ctx.promise()?;
        match self.prepare(&kit, tool, asked) {
            Ok((id, call)) => {
                let limit = call.arguments.get("limit").and_then(Json::as_u64);
                let pending = Pending {
                    shape: Shape::of(shape),
                    tool: call.tool.to_string(),
                    arguments: CallWindow { limit },
                    resolve,
                    reject,
                };
                self.pending.borrow_mut().insert(id, pending);
                if self.desk.blocking_send(Request::Call { id, call }).is_err() {
                    self.pending.borrow_mut().remove(&id);
                }
            }
            Err(NotTaken::Threw(error)) => return Err(error),
            Err(NotTaken::NotJson(message) | NotTaken::TooDeep(message)) => {
                reject.call::<_, ()>((kit.error(&message)?,))?;
            }
            Err(NotTaken::TooLarge) => {
                let message = format!(
                    "the arguments of a call are larger than {} KiB; send less, or through a file",
                    ARGUMENTS_BYTES_MAX >> 10
                );
                reject.call::<_, ()>((kit.error(&message)?,))?;
            }
        }
        Ok(promise)
    }

    fn prepare(&self, kit: &Kit<'js>, tool: &Value<'js>, asked: Value<'js>) -> Result<(u64, ToolCall), NotTaken> {
        if !tool.is_string() {
            return Err(NotTaken::NotJson("the name of a tool must be a string".to_owned()));
        }
        let (tool, _) = kit.text(tool)?;
        let taken = take(kit, &format!("the argument of {tool}"), asked, Purpose::Argument, ARGUMENTS_BYTES_MAX)?;
        self.replaced.set(self.replaced.get() | taken.replaced);
        let arguments = taken.json.unwrap_or_else(|| Json::Object(serde_json::Map::new()));
        if !arguments.is_object() {
            return Err(NotTaken::NotJson(format!("the argument of {tool} must be an object")));
        }
        self.allowance.check(&tool, &arguments).map_err(|error| NotTaken::NotJson(error.to_string()))?;
        let made = self.calls.get();
        if made >= self.limits.tool_calls_max {
            let message = format!(
                "the script has made {made} tool calls, as many as its limits.maxToolCalls allows; raise it or call less"
            );
            return Err(NotTaken::NotJson(message));
        }
        self.calls.set(made + 1);
        Ok((u64::from(made) + 1, ToolCall { tool: tool.into(), arguments }))
    }

    /// Keeps a line of the console; false once nothing more is kept.
    fn log(&self, line: &Value<'js>) -> rquickjs::Result<bool> {
        let (mut text, replaced) = self.kit()?.text(line)?;
        self.replaced.set(self.replaced.get() | replaced);
        let bytes = text.len();
        text.truncate(text.floor_char_boundary(CONSOLE_LINE_BYTES_MAX.min(bytes)));
        // The line's own end counts too, so that empty lines are bounded as well.
        let room = CONSOLE_BYTES_MAX.saturating_sub(self.console_bytes.get());
        text.truncate(text.floor_char_boundary(room.saturating_sub(1).min(text.len())));
        let lost = u64::try_from(bytes - text.len()).unwrap_or(u64::MAX);
        self.console_lost_bytes.set(self.console_lost_bytes.get().saturating_add(lost));
        if room == 0 {
            return Ok(false);
        }
        self.console_bytes.set(self.console_bytes.get() + text.len() + 1);
        Ok(self.desk.blocking_send(Request::Line(text)).is_ok())
    }
}

/// One script in its engine.
struct Script<'a, 'js> {
    ctx: Ctx<'js>,
    job: &'a Job,
    mailbox: &'a Mailbox,
    shared: &'a Rc<Shared<'js>>,
}

impl<'js> Script<'_, 'js> {
    fn to_end(&self) -> Result<Json, Fault> {
        let kit = Rc::new(self.install().map_err(|error| self.fault(error))?);
        *self.shared.kit.borrow_mut() = Some(Rc::clone(&kit));
        let run = self.load()?;
        let returned = give(&self.ctx, &kit, &self.job.inputs)
            .and_then(|inputs| match &self.job.view {
                Some(view) => self.let_look(&kit, inputs, view),
                None => Ok(inputs),
            })
            .and_then(|inputs| run.call::<_, Value<'js>>((kit.ctx.clone(), inputs)))
            .map_err(|error| self.fault(error))?;
        let result = match returned.into_promise_or_value() {
            Ok(promise) => self.settle(&promise)?,
            Err(value) => value,
        };
        let taken = take(&kit, "result", result, Purpose::Result, RESULT_BYTES_MAX);
        if let Some(stop) = self.mailbox.stopped() {
            return Err(self.stopped(stop));
        }
        let taken = taken.map_err(|error| match error {
            NotTaken::NotJson(message) if message == "result is undefined; use null, or leave the key out" => {
                Fault::NotJson("run returned undefined; return a value, null when there is none".to_owned())
            }
            NotTaken::NotJson(message) | NotTaken::TooDeep(message) => Fault::NotJson(message),
            NotTaken::TooLarge => Fault::ResultTooLarge,
            NotTaken::Threw(error) => self.fault(error),
        })?;
        self.shared.replaced.set(self.shared.replaced.get() | taken.replaced);
        Ok(taken.json.unwrap_or_default())
    }

    /// Runs the prelude with the host's functions.
    fn install(&self) -> rquickjs::Result<Kit<'js>> {
        let ctx = &self.ctx;
        let shared = Rc::clone(self.shared);
        let host =
            Function::new(ctx.clone(), move |ctx: Ctx<'js>, shape: i32, tool: Value<'js>, asked: Opt<Value<'js>>| {
                let asked = asked.0.unwrap_or_else(|| Value::new_undefined(ctx.clone()));
                shared.call(&ctx, shape, &tool, asked)
            })?;
        let (clock, pinned_ms) = (Arc::clone(&self.job.clock), self.job.pinned_ms);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
        let now = Function::new(ctx.clone(), move || pinned_ms.unwrap_or_else(|| clock.unix_ms()) as f64)?;
        let chance = Cell::new(self.job.seed);
        let random = Function::new(ctx.clone(), move || next_random(&chance))?;
        let shared = Rc::clone(self.shared);
        let log = Function::new(ctx.clone(), move |line: Value<'js>, skipped: bool| {
            if skipped {
                shared.console_lost_bytes.set(shared.console_lost_bytes.get().saturating_add(1));
                return Ok(false);
            }
            shared.log(&line)
        })?;
        let prelude: Function<'js> = ctx.eval_with_options(include_str!("prelude.js"), options("toolwarden", true))?;
        let made: Object<'js> = prelude.call((host, now, random, log))?;
        Kit::of(&made)
    }

    /// The inputs with what is made when it is looked at.
    fn let_look(&self, kit: &Kit<'js>, inputs: Value<'js>, view: &Arc<RunView>) -> rquickjs::Result<Value<'js>> {
        let name_of = |name: &Value<'js>| name.as_string().and_then(|name| name.to_string().ok());
        let (its, ctx) = (Arc::clone(view), self.ctx.clone());
        let has = Function::new(ctx.clone(), move |name: Value<'js>| {
            name_of(&name).is_some_and(|name| its.steps.contains_key(name.as_str()))
        })?;
        let its = Arc::clone(view);
        let names =
            Function::new(ctx.clone(), move || its.steps.keys().map(|name| name.to_string()).collect::<Vec<_>>())?;
        let (its, shared) = (Arc::clone(view), Rc::clone(self.shared));
        let step = Function::new(ctx.clone(), move |ctx: Ctx<'js>, name: Value<'js>| {
            let found = name_of(&name).and_then(|name| its.steps.get(name.as_str()));
            give(&ctx, &*shared.kit()?, found.map_or(&Json::Null, |step| &**step))
        })?;
        let (its, shared) = (Arc::clone(view), Rc::clone(self.shared));
        let history = Function::new(ctx.clone(), move |ctx: Ctx<'js>| {
            let (kit, all) = (shared.kit()?, Array::new(ctx.clone())?);
            for (at, entry) in its.history.iter().enumerate() {
                all.set(at, give(&ctx, &kit, entry)?)?;
            }
            rquickjs::Result::Ok(all)
        })?;
        kit.lazily.call((inputs, has, names, step, history))
    }

    /// The script's function: out of a plain script, or else out of a module.
    fn load(&self) -> Result<Function<'js>, Fault> {
        let Source { name, text } = &self.job.source;
        if text.contains('\0') {
            return Err(Fault::Nul);
        }
        let ending = "\n;return typeof run === \"function\" ? run : undefined})";
        let plain = format!("{OPENING}{text}{ending}");
        match self.ctx.eval_with_options::<Function<'js>, _>(plain, options(name, false)) {
            Ok(body) => {
                let run: Value<'js> = body.call(()).map_err(|error| self.fault(error))?;
                run.into_function().ok_or(Fault::NoRun)
            }
            Err(error) => {
                let fault = self.fault(error);
                // What only a module may say is a syntax error in a script; nothing of it has run by then.
                match fault {
                    Fault::Thrown { message, place } if message.starts_with("SyntaxError") => {
                        let as_script = Fault::Syntax { message, place };
                        let looks_like_module = ["export", "import", "await"].iter().any(|word| text.contains(word));
                        if looks_like_module { self.load_module() } else { Err(as_script) }
                    }
                    other => Err(other),
                }
            }
        }
    }

    fn load_module(&self) -> Result<Function<'js>, Fault> {
        let Source { name, text } = &self.job.source;
        let found: Rc<RefCell<Option<Function<'js>>>> = Rc::default();
        let handed = Rc::clone(&found);
        let evaluated = (|| {
            let hand_over = Function::new(self.ctx.clone(), move |run: Value<'js>| {
                *handed.borrow_mut() = run.into_function();
            })?;
            self.ctx.globals().set(HAND_OVER, hand_over)?;
            let ending = format!("\n;{HAND_OVER}(typeof run === \"function\" ? run : undefined);");
            Module::declare(self.ctx.clone(), name.as_str(), format!("{text}{ending}"))
        })();
        let declared = evaluated.map_err(|error| match self.fault(error) {
            Fault::Thrown { message, place } => Fault::Syntax { message, place },
            other => other,
        })?;
        let (module, promise) = declared.eval().map_err(|error| self.fault(error))?;
        let settled = self.settle(&promise);
        let run = found.borrow_mut().take();
        let _ = self.ctx.globals().remove(HAND_OVER);
        settled?;
        match run {
            Some(run) => Ok(run),
            None => {
                let default = module.namespace().and_then(|space| space.get::<_, Value<'js>>("default"));
                default.ok().and_then(Value::into_function).ok_or(Fault::NoRun)
            }
        }
    }

    /// Works until a promise has settled; gives what it came to.
    fn settle(&self, promise: &Promise<'js>) -> Result<Value<'js>, Fault> {
        loop {
            self.work_off()?;
            if promise.state() != PromiseState::Pending {
                // Its rejection is handled here.
                self.shared.unhandled.borrow_mut().remove(&key_of(promise.as_value()));
                let result = promise.result::<Value<'js>>().unwrap_or(Err(rquickjs::Error::Unknown));
                return result.map_err(|error| self.fault(error));
            }
            if self.shared.pending.borrow().is_empty() {
                return Err(Fault::NeverSettles);
            }
            let left = self.job.deadline_at.saturating_sub(self.job.clock.monotonic());
            match self.mailbox.wait(left) {
                Arrival::Ended(ended) => {
                    for (id, outcome) in ended {
                        self.answer(id, outcome).map_err(|error| self.fault(error))?;
                    }
                }
                Arrival::Stopped(stop) => return Err(self.stopped(stop)),
                Arrival::Nothing => {}
            }
        }
    }

    /// Does every job that is ready; stops between two of them as well as inside.
    fn work_off(&self) -> Result<(), Fault> {
        loop {
            is_over(self.mailbox, &*self.job.clock, self.job.deadline_at);
            if let Some(stop) = self.mailbox.stopped() {
                return Err(self.stopped(stop));
            }
            if !self.ctx.execute_pending_job() {
                return Ok(());
            }
        }
    }

    /// Settles the promise of a call.
    fn answer(&self, id: u64, outcome: ToolOutcome) -> rquickjs::Result<()> {
        let Some(pending) = self.shared.pending.borrow_mut().remove(&id) else { return Ok(()) };
        let kit = self.shared.kit()?;
        let Pending { shape, tool, arguments, resolve, reject } = pending;
        match answer(&self.ctx, &kit, shape, &tool, &arguments, outcome, self.shared.limits.output_bytes_max)? {
            Ok(value) => resolve.call((value,)),
            Err(message) => reject.call((kit.error(&message)?,)),
        }
    }

    fn stopped(&self, stop: Stop) -> Fault {
        Fault::of_stop(stop, self.job.limits.timeout_ms)
    }

    /// What an error of the engine means.
    fn fault(&self, error: rquickjs::Error) -> Fault {
        // The interrupt shows as an error like any other; the word to stop is what counts.
        if let Some(stop) = self.mailbox.stopped() {
            return self.stopped(stop);
        }
        let Source { name, text } = &self.job.source;
        let place = |stack: Option<String>| Place::in_stack(&stack.unwrap_or_default(), name, text);
        match Err::<(), _>(error).catch(&self.ctx) {
            Ok(()) => Fault::Host("the engine reported a fault that is none".to_owned()),
            Err(CaughtError::Exception(exception)) => {
                let message = exception.message().unwrap_or_default();
                // A string beyond the engine's longest one is beyond the memory as well.
                if matches!(message.as_str(), "out of memory" | "string too long" | "invalid string length") {
                    return Fault::Memory;
                }
                let place = place(exception.stack());
                if message.contains("call stack size exceeded") || message == "stack overflow" {
                    return Fault::Stack { place };
                }
                let mut message = self.readable(exception.into_object().into_value()).unwrap_or(message);
                if message.contains("could not load module") {
                    message.push_str("; a script is one file and cannot import");
                }
                Fault::Thrown { message, place }
            }
            Err(CaughtError::Value(value)) => {
                let message = self.readable(value).unwrap_or_else(|| "a value".to_owned());
                Fault::Thrown { message, place: Place::default() }
            }
            Err(CaughtError::Error(rquickjs::Error::Allocation)) => Fault::Memory,
            Err(CaughtError::Error(error)) => Fault::Host(error.to_string()),
        }
    }

    fn readable(&self, reason: Value<'js>) -> Option<String> {
        let kit = self.shared.kit().ok()?;
        let told: Value<'js> = match kit.readable.call((reason,)) {
            Ok(told) => told,
            Err(_) => {
                self.ctx.catch();
                return None;
            }
        };
        let (mut text, _) = kit.text(&told).ok()?;
        text.truncate(text.floor_char_boundary(CONSOLE_LINE_BYTES_MAX.min(text.len())));
        Some(text)
    }
}

/// A value, or the promise that it is.
trait PromiseOrValue<'js> {
    fn into_promise_or_value(self) -> Result<Promise<'js>, Value<'js>>;
}

impl<'js> PromiseOrValue<'js> for Value<'js> {
    fn into_promise_or_value(self) -> Result<Promise<'js>, Value<'js>> {
        match self.is_promise() {
            true => self.try_into_promise(),
            false => Err(self),
        }
    }
}

fn options(name: &str, strict: bool) -> EvalOptions {
    let mut options = EvalOptions::default();
    options.filename = Some(name.to_owned());
    options.strict = strict;
    options
}

/// The next random number from 0 to 1, by splitmix64: the same seed gives the same numbers.
fn next_random(state: &Cell<u64>) -> f64 {
    let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    state.set(next);
    let mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mixed = mixed ^ (mixed >> 31);
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let number = (mixed >> 11) as f64 / (1_u64 << 53) as f64;
    number
}
