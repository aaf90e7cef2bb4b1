//! Servers that nobody here wrote, started for one test and ended with it.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::Value;
use toolwarden::models::claude_messages::ClaudeMessages;
use toolwarden::models::openai_chat::OpenAiChat;
use toolwarden::models::openai_responses::OpenAiResponses;
use toolwarden::models::price::TokenPrice;
use toolwarden::models::remote::{ModelTimeouts, RemoteModel, RemoteSettings};
use toolwarden::models::wire::{Protocol, WireSettings};
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::http::{Http, HttpMethod, HttpRequest};

use crate::support::until;

/// The protocols, by the names that these tests give them.
pub(crate) const PROTOCOLS: [&str; 3] = ["responses", "chat", "messages"];

pub(crate) fn protocol(name: &str) -> Box<dyn Protocol> {
    match name {
        "chat" => Box::new(OpenAiChat),
        "messages" => Box::new(ClaudeMessages),
        _ => Box::new(OpenAiResponses),
    }
}

/// How many models were made.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// A model at this address, which gives up on silence soon.
pub(crate) fn model(name: &str, base_url: &str, stream: bool, http: Arc<dyn Http>) -> Arc<RemoteModel> {
    model_for(name, base_url, stream, http, None)
}

/// The same, for so many requests beside each other.
pub(crate) fn model_for(
    name: &str,
    base_url: &str,
    stream: bool,
    http: Arc<dyn Http>,
    concurrency_max: Option<usize>,
) -> Arc<RemoteModel> {
    let settings = RemoteSettings {
        // Each has its own health: one that failed before would be left alone.
        name: format!("test:{name}:{}", MADE.fetch_add(1, Ordering::Relaxed)),
        base_url: base_url.to_owned(),
        key: Some("a-key-for-tests".to_owned()),
        wire: WireSettings { model: "a-model".to_owned(), stream, ..WireSettings::default() },
        context_tokens: None,
        timeouts: ModelTimeouts { idle: Duration::from_millis(800), ..ModelTimeouts::default() },
        price: TokenPrice::default(),
        object_support: None,
        concurrency_max,
    };
    Arc::new(RemoteModel::new(settings, protocol(name), http, Effects::real().clock).unwrap())
}

/// A server under way.
pub(crate) struct Peer {
    child: Child,
    pub(crate) base_url: String,
    http: Arc<dyn Http>,
}

impl Peer {
    pub(crate) async fn llmock() -> Self {
        let program = installed("venv/bin/llmock");
        Self::start(|port| {
            let mut command = Command::new(&program);
            command.args(["serve", "-p", port]);
            command
        })
        .await
    }

    pub(crate) async fn aimock(fixtures: &Value) -> (Self, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("fixtures.json"), fixtures.to_string()).unwrap();
        let script = installed("node_modules/@copilotkit/aimock/dist/cli.js");
        let peer = Self::start(|port| {
            let mut command = Command::new("node");
            command.arg(&script).args(["-p", port, "--log-level", "warn", "-f"]).arg(folder.path());
            command
        })
        .await;
        (peer, folder)
    }

    async fn start(command: impl Fn(&str) -> Command) -> Self {
        // Free a moment ago; that somebody takes it meanwhile would show at once.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = command(&port.to_string());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let peer = Self { child, base_url: format!("http://127.0.0.1:{port}"), http: Effects::real().http };
        until("an answer of the server", async || peer.get("/").await).await;
        peer
    }

    /// Where a protocol's endpoints are.
    pub(crate) fn base_of(&self, protocol: &str, has_prefix: bool) -> String {
        let prefix = if has_prefix && protocol == "messages" { "/anthropic" } else { "" };
        format!("{}{prefix}", self.base_url)
    }

    pub(crate) async fn get(&self, path: &str) -> Option<String> {
        self.exchange(HttpRequest::new(HttpMethod::Get, format!("{}{path}", self.base_url))).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> String {
        let request = HttpRequest::new(HttpMethod::Post, format!("{}{path}", self.base_url));
        let request = request.header("content-type", "application/json").body(body.to_string());
        self.exchange(request).await.unwrap()
    }

    async fn exchange(&self, request: HttpRequest) -> Option<String> {
        let mut response = self.http.exchange(request).await.ok()?;
        let mut all = Vec::new();
        while let Some(piece) = response.body.next().await {
            all.extend_from_slice(&piece.ok()?);
        }
        String::from_utf8(all).ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `scripts/setup` installs for these tests.
pub(crate) fn installed(path: &str) -> PathBuf {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/peers").join(path);
    assert!(target.exists(), "{} is not there: run scripts/setup", target.display());
    target
}
