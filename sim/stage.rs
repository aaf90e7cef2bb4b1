//! The stage: the shipped runtime on tokio's paused single thread, with a twin in the place of every port.
//!
//! Supervisors, actors, kernel, sessions and built-in tools are the real ones. One call of [`perform`] plays one world
//! to its end: from the first session to the shut-down, through as many processes as it takes when they crash. What
//! must stay true: the same play and the same choices give the same world, byte for byte, whatever ran before on this
//! thread or runs beside it on others.

mod hands;
mod host;
mod sink;
mod text;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio::runtime::Builder;
use toolwarden::models::Model;
use toolwarden::models::scripted::ScriptError;
use toolwarden::policy::{PermissionPolicy, PolicyError};
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::blocking::pretend;
use toolwarden_tools::effects::dispatch::Dispatch;
use toolwarden_tools::effects::files::Files;
use toolwarden_tools::effects::http::Http;
use toolwarden_tools::effects::store::Store;
use toolwarden_tools::schema::SchemaCache;
use toolwarden_tools::tool::Tool;

use crate::checkers::Violation;
use crate::fate::Fate;
use crate::planted::{self, Planted, Wrap};
use crate::play::{Play, SESSIONS_MAX};
use crate::seed::Choices;
use crate::sight::{Aftermath, Sight, Watcher};
use crate::story::{Meeting, Moment};
use crate::twins::blobs::PretendedBlobs;
use crate::twins::chore::Chore;
use crate::twins::clock::PretendedClock;
use crate::twins::dispatch::PretendedDispatch;
use crate::twins::entropy::PretendedEntropy;
use crate::twins::files::PretendedFiles;
use crate::twins::http::PretendedHttp;
use crate::twins::model::PretendedModel;
use crate::twins::pool::PretendedPool;
use crate::twins::processes::PretendedProcesses;
use crate::twins::resolver::PretendedResolver;
use crate::twins::store::PretendedStore;

use self::host::Host;
use self::text::{policy, script};

/// Most processes of one world: when this many have crashed, the next one is spared.
pub const PROCESSES_MAX: u32 = 5;
/// The most virtual time that one process of a world may take.
pub const PROCESS_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Compiled schemas are the same in every world.
static SCHEMAS: LazyLock<Arc<SchemaCache>> = LazyLock::new(Arc::default);

/// What a world came to.
#[derive(Debug)]
pub struct Performance {
    /// The digest of everything that was seen: journal, facts, snapshots, effects, with their virtual moments.
    pub digest: u64,
    /// All choices: the replay.
    pub choices: Vec<u32>,
    /// What each choice was below, when the choices kept that.
    pub bounds: Vec<u32>,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// Which of the unusual things happened.
    pub coverage: BTreeSet<&'static str>,
    /// How often each of them met what.
    pub sometimes: BTreeMap<Meeting, u64>,
    /// Moments at which something could have been done from outside.
    pub steps: u64,
    /// Sessions, runs and calls, as the journal tells them.
    pub nodes: u64,
    /// How often each effect of a tool was done, by its name.
    pub effects: BTreeMap<String, u64>,
    /// Where a move of the play was made last, in words.
    pub acted: Option<String>,
    /// How long it took, in virtual time.
    pub lasted: Duration,
    /// What was seen; only where it was asked for.
    pub story: Vec<Moment>,
    /// What was seen beyond the most that is kept.
    pub moments_lost: u64,
    /// What is left.
    pub aftermath: Aftermath,
}

/// Why a play cannot be performed.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// What the model says cannot be read.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The policy cannot be read.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// There are too many sessions, or none.
    #[error("a play has 1 to {max} sessions, this one has {count}")]
    Sessions {
        /// How many it has.
        count: usize,
        /// How many it may have.
        max: usize,
    },
    /// There is no such planted fault.
    #[error("there is no mutant {name:?} for worlds; there are {known}")]
    Mutant {
        /// Its name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The runtime of the world could not be made.
    #[error("the world could not be made: {message}")]
    World {
        /// Why.
        message: String,
    },
}

/// Tools of somebody's own, made anew for each world.
pub type MakeTools = Arc<dyn Fn(&Fate) -> Vec<Arc<dyn Tool>> + Send + Sync>;

/// The tools of every shipped play: `chore` and `peek`.
pub fn chores(faulty: bool) -> MakeTools {
    Arc::new(move |fate: &Fate| {
        vec![Arc::new(Chore::doing(fate.clone(), faulty)) as _, Arc::new(Chore::looking(fate.clone(), faulty)) as _]
    })
}

/// What a performance is made of, beside its play.
pub struct Cast {
    /// Where the choices come from.
    pub choices: Choices,
    /// The promises that are watched.
    pub watchers: Vec<Box<dyn Watcher>>,
    /// Tools beside the built-in ones.
    pub tools: MakeTools,
    /// Whether the story is told in words: it costs.
    pub tells: bool,
}

/// The pretended side of a world.
pub(crate) struct Twins {
    pub(crate) fate: Fate,
    pub(crate) clock: Arc<PretendedClock>,
    pub(crate) effects: Effects,
    pub(crate) files: PretendedFiles,
    /// What tools are given for files: the same, or what was planted before them.
    pub(crate) given_files: Arc<dyn Files>,
    pub(crate) processes: PretendedProcesses,
    pub(crate) store: Option<Arc<PretendedStore>>,
    /// What the runtime is given for it: the same, or what was planted before it.
    pub(crate) given_store: Option<Arc<dyn Store>>,
    pub(crate) blobs: Arc<PretendedBlobs>,
    pub(crate) model: Arc<dyn Model>,
    /// Who carries out child runs, where somebody else does.
    pub(crate) dispatch: Option<Arc<dyn Dispatch>>,
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    pub(crate) policy: PermissionPolicy,
    pub(crate) policy_later: PermissionPolicy,
}

impl Twins {
    fn new(play: &Play, fate: Fate, tools: &MakeTools) -> Result<Self, PlayError> {
        let faults = play.faults;
        let clock = Arc::new(PretendedClock::new(fate.clone()));
        let entropy = Arc::new(PretendedEntropy::new());
        let planted = play.mutant.as_deref().and_then(planted::named).map(|planted| planted.wrap);
        let http = PretendedHttp::new(fate.clone(), play.pages.iter().cloned(), faults.http);
        let http: Arc<dyn Http> = Arc::new(http.offering(play.offers.iter().cloned()));
        let http = match planted {
            Some(Wrap::Http(wrap)) => wrap(http),
            _ => http,
        };
        let resolver = PretendedResolver::new(fate.clone(), faults.http);
        let outsiders = play.outsiders;
        let files = PretendedFiles::new(fate.clone(), faults.files, play.plain_files).with_outsiders(outsiders);
        for (path, text) in &play.files {
            files.put(path, text.as_bytes());
        }
        let given_files: Arc<dyn Files> = match planted {
            Some(Wrap::Files(wrap)) => wrap(files.clone()),
            _ => Arc::new(files.clone()),
        };
        let mut tools = tools(&fate);
        let mut turns = Cow::Borrowed(play.turns.as_str());
        if let Some(Wrap::Tool { of, make }) = planted {
            let broken = make();
            let as_called = |name: &str| format!("\"tool\": \"{name}\"");
            turns = Cow::Owned(turns.replace(&as_called(of), &as_called(broken.spec().name.as_str())));
            tools.push(broken);
        }
        let tap = match planted {
            Some(Wrap::Line(tap)) => Some(tap),
            _ => None,
        };
        let model = PretendedModel::new(fate.clone(), script(&turns)?, play, Arc::clone(&clock) as _, tap);
        let model: Arc<dyn Model> = match planted {
            Some(Wrap::Model(wrap)) => wrap(Arc::new(model)),
            _ => Arc::new(model),
        };
        let store = play.keeps.then(|| Arc::new(PretendedStore::new(fate.clone(), faults.store)));
        let given_store = store.clone().map(|store| match planted {
            Some(Wrap::Store(wrap)) => wrap(store),
            _ => store as Arc<dyn Store>,
        });
        let elsewhere = PretendedDispatch::new(fate.clone(), faults.dispatch);
        let dispatch: Option<Arc<dyn Dispatch>> = match planted {
            _ if !play.elsewhere => None,
            Some(Wrap::Dispatch(wrap)) => Some(wrap(Arc::new(elsewhere))),
            _ => Some(Arc::new(elsewhere)),
        };
        Ok(Self {
            dispatch,
            effects: Effects { clock: Arc::clone(&clock) as _, entropy, http, resolver: Arc::new(resolver) },
            processes: PretendedProcesses::new(fate.clone(), files.clone(), faults.processes),
            store,
            given_store,
            blobs: Arc::new(PretendedBlobs::new(fate.clone(), Arc::clone(&clock) as _, faults.blobs)),
            model,
            tools,
            policy: policy(&play.policy)?,
            policy_later: policy(play.policy_later.as_ref().unwrap_or(&play.policy))?,
            clock,
            files,
            given_files,
            fate,
        })
    }

    /// What the end of the process does to the world.
    fn end_process(&self) {
        self.files.end_process();
        if let Some(store) = &self.store {
            store.end_process();
        }
    }
}

/// Looks whether a play can be performed, without doing it.
///
/// # Errors
/// [`PlayError`].
pub fn check(play: &Play) -> Result<(), PlayError> {
    let count = play.sessions.len();
    if count == 0 || count > SESSIONS_MAX {
        return Err(PlayError::Sessions { count, max: SESSIONS_MAX });
    }
    if let Some(name) = play.mutant.as_deref().filter(|name| planted::named(name).is_none()) {
        let known: Vec<&str> = planted::all().map(|Planted { name, .. }| name).collect();
        return Err(PlayError::Mutant { name: name.to_owned(), known: known.join(", ") });
    }
    script(&play.turns)?;
    policy(&play.policy)?;
    policy(play.policy_later.as_ref().unwrap_or(&play.policy))?;
    Ok(())
}

/// Plays a world to its end.
///
/// # Errors
/// [`PlayError`].
pub fn perform(play: &Play, cast: Cast) -> Result<Performance, PlayError> {
    check(play)?;
    let wild = play.faults.any() || play.hostile || !play.acts.is_empty();
    let fate = Fate::new(cast.choices, cast.watchers, wild, cast.tells);
    let twins = Arc::new(Twins::new(play, fate.clone(), &cast.tools)?);
    let _pretending = pretend(Rc::new(PretendedPool::new(fate.clone())));
    let host = Arc::new(Host::new(play.clone(), Arc::clone(&twins)));
    host.hands().expect_moves();
    let aftermath = Arc::new(Mutex::new(Aftermath::default()));
    let mut crashes = 0;
    let leaks = loop {
        let ended = process(&host, &aftermath, crashes)?;
        let leaks = if ended { twins.files.leaks() } else { Vec::new() };
        twins.end_process();
        if ended || fate.is_decided() {
            break leaks;
        }
        crashes += 1;
        if crashes >= PROCESSES_MAX {
            fate.set_wild(false);
        }
    };
    let mut aftermath = std::mem::take(&mut *aftermath.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    aftermath.crashes = crashes;
    aftermath.told = host.told();
    aftermath.files = twins.files.all();
    aftermath.temporaries = leaks;
    aftermath.kept = twins.store.as_ref().map(|store| store.kept()).unwrap_or_default();
    let lasted = fate.now();
    let verdict = fate.finish(&aftermath);
    Ok(Performance {
        digest: verdict.digest,
        choices: verdict.choices,
        bounds: verdict.bounds,
        violation: verdict.violation,
        coverage: verdict.coverage,
        sometimes: verdict.sometimes,
        steps: verdict.steps,
        nodes: verdict.nodes,
        effects: verdict.effects,
        story: verdict.story,
        moments_lost: verdict.moments_lost,
        acted: verdict.acted,
        lasted,
        aftermath,
    })
}

/// One process of the world; whether it came to its end.
fn process(host: &Arc<Host>, aftermath: &Arc<Mutex<Aftermath>>, crashes: u32) -> Result<bool, PlayError> {
    let world = |error: &dyn std::fmt::Display| PlayError::World { message: error.to_string() };
    let built = Builder::new_current_thread().enable_time().start_paused(true).build();
    let tokio = built.map_err(|error| world(&error))?;
    let fate = host.fate().clone();
    let ended = tokio.block_on(async {
        fate.begin_process();
        if crashes > 0 {
            fate.see(&Sight::Revived);
        }
        let life = tokio::time::timeout(PROCESS_MAX, host.live(crashes, aftermath));
        let ended = tokio::select! {
            biased;
            () = fate.crashed() => Ok(false),
            lived = life => match lived {
                Ok(lived) => lived.map(|()| true).map_err(|error| world(&error)),
                Err(_) => {
                    let (hours, waits_for) = (PROCESS_MAX.as_secs() / 3_600, fate.waits_for());
                    let text = format!("it had not ended after {hours} hours of virtual time; it waits for: {waits_for}");
                    // Before anybody complains about what is left over because of that.
                    fate.blame("a world ends", text.clone());
                    aftermath.lock().unwrap_or_else(std::sync::PoisonError::into_inner).stuck = Some(text);
                    Ok(true)
                }
            },
        };
        // Here, where time is virtual.
        fate.end_process();
        ended
    });
    // Everything that is still under way goes where it stands, as when a process is killed.
    host.let_go();
    drop(tokio);
    ended
}
