//! Child runs in a second process of this machine: their contracts over a Unix socket, and one ending each whatever
//! becomes of the other side.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::child_host::ChildHost;
use toolwarden::embedding::Runtime;
use toolwarden::prelude::{BudgetLimits, CancelTarget};
use toolwarden::run_status::RunStatus;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::dispatch::socket::{DispatchListener, SocketDispatch};
use toolwarden_tools::effects::dispatch::{CONTRACT_VERSION, ChildContract, ContractAgent, ContractBudget};

use crate::support::model::{Silent, script};
use crate::support::process::{MARK, appear, living};
use crate::support::tool::Gate;
use crate::support::until;
use crate::support::world::{World, allowing};

const SOCKET: &str = "TOOLWARDEN_DISPATCH_SOCKET";
const FOLDER: &str = "TOOLWARDEN_DISPATCH_FOLDER";

/// The other process: carries out what comes to its socket until it is killed. Does nothing unless it is told to.
#[test]
fn a_process_that_carries_out_child_runs() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let mark = std::env::var(MARK).unwrap();
    let turns = [
        json!({"when": "look", "calls": [{"tool": "ls", "arguments": {}}], "usage": {"input_tokens": 5, "output_tokens": 2}}),
        json!({"when": "look", "text": "looked there", "usage": {"input_tokens": 5, "output_tokens": 2}}),
        json!({"when": "touch", "calls": [{"tool": "bash", "arguments": {"command": "touch made"}}]}),
        json!({"when": "touch", "text": "tried to touch"}),
        json!({"when": "sleep", "calls": [{"tool": "bash", "arguments": {"command": "sleep 600"}}]}),
        json!({"when": "sleep", "text": "slept"}),
    ];
    let model = script(&turns);
    let serves = async {
        let path = ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned());
        let environment = [path, (MARK.to_owned(), mark)].into_iter().collect();
        let runtime = Runtime::builder().environment(environment).build().await.unwrap();
        let listener = DispatchListener::bind(Path::new(&socket)).unwrap();
        let host = ChildHost::new(move || runtime.session(&folder).model(model.clone()));
        host.serve(listener, &Cancellation::new()).await.unwrap();
    };
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(serves);
}

/// The other process, ended with the test.
struct Other {
    process: Child,
    socket: PathBuf,
}

impl Other {
    async fn start(world: &World, name: &str) -> Self {
        let socket = world.path().join(name);
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "dispatch::a_process_that_carries_out_child_runs", "--nocapture"])
            .env(SOCKET, &socket)
            .env(FOLDER, world.path())
            .env(MARK, &world.mark)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let other = Self { process, socket };
        until("the socket of the other process", async || other.socket.exists().then_some(())).await;
        other
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn task(prompt: &str) -> Value {
    json!({"agent": "general", "description": "elsewhere", "prompt": prompt})
}

fn ends(world: &World) -> Vec<Value> {
    world.record.of_type("subagent_end")
}

/// A child run elsewhere: its answer, its anchors, its use in the parent's budget, and the parent's rules.
#[tokio::test]
async fn a_child_run_is_carried_out_in_another_process() {
    let world = World::new().await;
    let other = Other::start(&world, "socket").await;
    let session = world
        .session()
        .policy(allowing(&["ls"]))
        .budget(BudgetLimits { output_tokens: Some(1000), ..BudgetLimits::default() })
        .dispatch(Arc::new(SocketDispatch::new(&other.socket)))
        .open()
        .await
        .unwrap();
    let result = session.tool("task", json!({"tasks": [task("look"), task("touch")]})).await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    let results = &result.metadata["results"];
    assert_eq!(
        (&results[0]["output_excerpt"], &results[1]["output_excerpt"]),
        (&json!("looked there"), &json!("tried to touch"))
    );
    assert_eq!(results[0]["source_anchors"], json!(["."]));
    let spent = session.budget().await.unwrap().spent;
    assert_eq!((spent.input_tokens, spent.output_tokens), (10, 4));
    // What the parent may not do is not done elsewhere either.
    assert!(!world.path().join("made").exists());
    assert_eq!(world.record.of_type("subagent_start").len(), 2);
    assert_eq!(ends(&world).iter().filter(|end| end["success"] == true).count(), 2);
    world.settled(&[&session]).await;
    world.runtime.shut_down().await;
    world.record.check();
}

/// Case C180 across processes: a cancel ends the command there, and comes back as the ending here.
#[tokio::test]
async fn a_cancel_reaches_the_other_process() {
    let world = World::new().await;
    let other = Other::start(&world, "socket").await;
    let dispatch = Arc::new(SocketDispatch::new(&other.socket));
    let turns = [json!({"when": "go", "calls": [{"tool": "task", "arguments": task("sleep")}]})];
    let builder = world.session().policy(allowing(&["bash", "task"])).dispatch(dispatch);
    let session = builder.model(script(&turns)).open().await.unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    appear(&world.mark, "sleep 600", 1).await;
    assert!(session.cancel(&CancelTarget::Run, &CancelReason::Requested));
    assert_eq!(run.await.unwrap().status, RunStatus::Cancelled { reason: CancelReason::Requested });
    until("the command's end", async || {
        living(&world.mark).iter().all(|line| !line.starts_with("sleep")).then_some(())
    })
    .await;
    let end = &ends(&world)[0];
    assert!(end["success"] == false && end["output"].as_str().unwrap().contains("cancelled on request"), "{end}");
    world.settled(&[&session]).await;
    world.runtime.shut_down().await;
    world.record.check();
}

/// A process that is killed in the middle, and one that is not there, are failures of their children alone, with one
/// ending each.
#[tokio::test]
async fn a_dead_peer_is_a_failure_with_one_ending() {
    let world = World::new().await;
    let mut other = Other::start(&world, "socket").await;
    let dispatch = Arc::new(SocketDispatch::new(&other.socket));
    let session = world.session().policy(allowing(&["bash", "ls"])).dispatch(dispatch).open().await.unwrap();
    let call = tokio::spawn({
        let session = session.clone();
        let tasks = json!({"tasks": [task("sleep"), task("look")], "allow_partial_failure": true});
        async move { session.tool("task", tasks).await.unwrap() }
    });
    appear(&world.mark, "sleep 600", 1).await;
    world.record.wait("subagent_end", |end| end["success"] == true).await;
    other.kill();
    let result = call.await.unwrap();
    assert!(result.is_success(), "one of two came through: {}", result.output);
    assert!(result.output.contains("is gone") && result.output.contains("looked there"), "{}", result.output);
    let later = session.tool("task", task("look")).await.unwrap();
    assert!(!later.is_success() && later.output.contains("nobody takes child runs"), "{}", later.output);
    assert_eq!((world.record.of_type("subagent_start").len(), ends(&world).len()), (3, 3));
    world.settled(&[&session]).await;
    world.runtime.shut_down().await;
    world.record.check();
    // What the killed process had started is nobody's any more: that is why commands have a shim.
    for line in living(&world.mark) {
        assert!(line.starts_with("sleep"), "{line}");
    }
    end_orphans(&world.mark);
}

/// Ends the commands that a killed process left, found by their mark.
fn end_orphans(mark: &str) {
    let wanted = format!("{MARK}={mark}");
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let pid = entry.file_name().to_string_lossy().parse::<i32>();
        if let (Ok(pid), true) = (pid, environment.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes())) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Words that are no answer: a failure that says so, and one ending.
#[tokio::test]
async fn a_peer_that_talks_nonsense_is_a_failure_with_one_ending() {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    let world = World::new().await;
    let path = world.path().join("nonsense");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let peer = tokio::spawn(async move {
        for words in ["what?\n", "{\"ended\":{}}\n"] {
            let (stream, _) = listener.accept().await.unwrap();
            let (from, mut to) = stream.into_split();
            let mut contract = String::new();
            let mut from = BufReader::new(from);
            from.read_line(&mut contract).await.unwrap();
            let contract: Value = serde_json::from_str(&contract).unwrap();
            // All that the other side needs, and nothing that the parent may not do.
            let contract = &contract["take"];
            assert_eq!((&contract["prompt"], &contract["version"]), (&json!("look"), &json!(1)));
            assert_eq!(contract["policies"][0]["allow"], json!(["ls"]));
            assert!(contract["idempotency_key"].as_str().unwrap().starts_with("task-"));
            assert!(contract["agent"]["tools"].as_array().unwrap().iter().all(|tool| tool != "task"));
            to.write_all(words.as_bytes()).await.unwrap();
            from.read_line(&mut String::new()).await.unwrap();
        }
    });
    let dispatch = Arc::new(SocketDispatch::new(&path));
    let session = world.session().policy(allowing(&["ls"])).dispatch(dispatch).open().await.unwrap();
    for _ in 0..2 {
        let result = session.tool("task", task("look")).await.unwrap();
        assert!(!result.is_success() && result.output.contains("protocol"), "{}", result.output);
    }
    peer.await.unwrap();
    assert_eq!((world.record.of_type("subagent_start").len(), ends(&world).len()), (2, 2));
    world.at_rest(&[&session]).await;
    world.end().await;
}

fn contract(key: &str, prompt: &str) -> ChildContract {
    ChildContract {
        version: CONTRACT_VERSION,
        idempotency_key: key.into(),
        session: "task-run-again".into(),
        parent_session: "parent".into(),
        agent: ContractAgent {
            name: "looker".into(),
            purpose: "looks".into(),
            instructions: "Look.".into(),
            tools: vec!["ls".into()],
            rounds_max: 2,
        },
        prompt: prompt.into(),
        policies: vec![json!({"allow": ["ls"]})],
        budget: ContractBudget::default(),
        timeout_ms: None,
    }
}

// Found in a review: the work of whoever was gone before it was told that it is taken went on, and the host did not know.
#[tokio::test]
async fn whoever_is_gone_before_its_work_begins_ends_it() {
    use tokio::io::AsyncWriteExt as _;
    let world = World::new().await;
    let path = world.path().join("socket");
    let (runtime, folder, silent) = (world.runtime.clone(), world.path().to_owned(), Silent::new());
    let host = ChildHost::new(move || runtime.session(&folder).model(Arc::clone(&silent) as _));
    let (listener, stop) = (DispatchListener::bind(&path).unwrap(), Cancellation::new());
    let mut peer = tokio::net::UnixStream::connect(&path).await.unwrap();
    let line = json!({"take": contract("task-gone", "wait")}).to_string() + "\n";
    peer.write_all(line.as_bytes()).await.unwrap();
    drop(peer);
    let serving = tokio::spawn({
        let stop = stop.clone();
        async move { host.serve(listener, &stop).await.unwrap() }
    });
    world.record.wait("session_closed", |_| true).await;
    stop.cancel(CancelReason::Shutdown);
    serving.await.unwrap();
    world.settled(&[]).await;
    world.runtime.shut_down().await;
    world.record.check();
}

/// The same key is the same work, however often it is asked for.
#[tokio::test]
async fn a_contract_that_is_sent_again_is_done_once() {
    use toolwarden_tools::effects::dispatch::{Dispatch as _, DispatchError};
    let world = World::new().await;
    let path = world.path().join("socket");
    let (runtime, folder) = (world.runtime.clone(), world.path().to_owned());
    let model = script(&[json!({"when": "look", "text": "looked"})]);
    let host = ChildHost::new(move || runtime.session(&folder).model(model.clone()));
    let stop = Cancellation::new();
    let serving = tokio::spawn({
        let (listener, stop) = (DispatchListener::bind(&path).unwrap(), stop.clone());
        async move { host.serve(listener, &stop).await.unwrap() }
    });
    let contract = contract("task-again", "look");
    let dispatch = SocketDispatch::new(&path);
    let ask = |contract: ChildContract| dispatch.carry_out(contract, Cancellation::new());
    let (one, other) = tokio::join!(ask(contract.clone()), ask(contract.clone()));
    assert_eq!((one.unwrap().output.as_str(), other.unwrap().output.as_str()), ("looked", "looked"));
    assert_eq!(ask(contract.clone()).await.unwrap().output, "looked");
    assert_eq!(world.record.of_type("session_opened").len(), 1);
    for (bad, said) in [
        (ChildContract { version: 9, ..contract.clone() }, "version 9"),
        (ChildContract { policies: Vec::new(), ..contract.clone() }, "names no policy"),
    ] {
        match ask(bad).await {
            Err(DispatchError::Refused { message }) => assert!(message.contains(said), "{message}"),
            heard => panic!("{heard:?}"),
        }
    }
    stop.cancel(CancelReason::Shutdown);
    serving.await.unwrap();
    assert!(!path.exists(), "the socket's file goes with its listener");
    world.settled(&[]).await;
    world.runtime.shut_down().await;
    world.record.check();
}

/// Asks over a line that can be let go, and waits until the work is taken.
async fn taken(path: &Path, contract: &ChildContract) -> tokio::io::BufReader<tokio::net::UnixStream> {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
    let mut line = tokio::io::BufReader::new(tokio::net::UnixStream::connect(path).await.unwrap());
    line.write_all((json!({"take": contract}).to_string() + "\n").as_bytes()).await.unwrap();
    let mut heard = String::new();
    line.read_line(&mut heard).await.unwrap();
    assert!(heard.starts_with("{\"taken\":"), "{heard}");
    line
}

// Found in a review: the first who asked ended the work of those who had joined it, and what was ended so was the answer of
// whoever asked again.
#[tokio::test]
async fn whoever_goes_away_ends_its_own_wait_alone() {
    use tokio::io::AsyncBufReadExt as _;
    use toolwarden_tools::effects::dispatch::Dispatch as _;
    let (world, gate) = (World::new().await, Gate::new());
    let path = world.path().join("socket");
    let turns = [
        json!({"when": "wait", "calls": [{"tool": "wait", "arguments": {}}]}),
        json!({"when": "wait", "text": "waited"}),
    ];
    let (runtime, folder, model, its_gate) =
        (world.runtime.clone(), world.path().to_owned(), script(&turns), gate.clone());
    let host =
        ChildHost::new(move || runtime.session(&folder).model(model.clone()).tool(its_gate.tool("wait").shared()));
    let stop = Cancellation::new();
    let serving = tokio::spawn({
        let (listener, stop) = (DispatchListener::bind(&path).unwrap(), stop.clone());
        async move { host.serve(listener, &stop).await.unwrap() }
    });
    let waiting = |key: &str| {
        let contract = contract(key, "wait");
        let agent = ContractAgent { tools: vec!["wait".into()], ..contract.agent };
        ChildContract { agent, policies: vec![json!({"allow": ["wait"]})], ..contract }
    };
    let opened = || world.record.of_type("session_opened").len();
    let ask = |contract: ChildContract| {
        let dispatch = SocketDispatch::new(&path);
        async move { dispatch.carry_out(contract, Cancellation::new()).await.unwrap() }
    };

    // The first goes, the second has its answer, and a third has the same.
    let first = taken(&path, &waiting("task-shared")).await;
    gate.entered(1).await;
    let second = taken(&path, &waiting("task-shared")).await;
    drop(first);
    gate.let_go(1);
    let mut lines = second.lines();
    let answer = loop {
        let line = lines.next_line().await.unwrap().unwrap();
        if line.contains("ended") {
            break line;
        }
    };
    assert!(answer.contains("waited"), "{answer}");
    assert_eq!((ask(waiting("task-shared")).await.output.as_str(), opened()), ("waited", 1));

    // Everybody goes: the work is ended, and done anew for whoever asks again.
    let only = taken(&path, &waiting("task-left")).await;
    gate.entered(2).await;
    drop(only);
    let again = tokio::spawn(ask(waiting("task-left")));
    gate.entered(3).await;
    gate.let_go(1);
    let answer = again.await.unwrap();
    assert_eq!((answer.success, answer.output.as_str(), opened()), (true, "waited", 3));

    stop.cancel(CancelReason::Shutdown);
    serving.await.unwrap();
    world.settled(&[]).await;
    world.runtime.shut_down().await;
    world.record.check();
}
