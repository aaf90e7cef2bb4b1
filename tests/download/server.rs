//! A server that can lie: it writes whatever bytes a test wants and ends connections as it wants.
//!
//! One request a connection, written by hand over a socket, because a real server would not send what is tested here.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use toolwarden::call_result::CallResult;
use toolwarden::session::Session;
use toolwarden_tools::web::ssrf::Origin;

use crate::support::world::World;

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Which request it is, from 0.
    pub(crate) number: usize,
    /// Path and query.
    pub(crate) target: String,
    /// Header fields, names in small letters.
    pub(crate) fields: Vec<(String, String)>,
}

impl Asked {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The first and the last byte that are asked for; the last is open with a plain `N-`.
    pub(crate) fn range(&self) -> Option<(usize, Option<usize>)> {
        let (first, last) = self.field("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().unwrap(), if last.is_empty() { None } else { Some(last.parse().unwrap()) }))
    }
}

/// How a connection ends after its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Closed in order.
    Close,
    /// Broken off.
    Reset,
    /// Kept open, silent, until the other side goes.
    Hold,
}

/// What is answered: bytes, and how it ends.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) end: End,
    /// Sent before this many bytes at a time, with a pause of the scheduler in between.
    pub(crate) drip_bytes: Option<usize>,
}

impl Reply {
    /// A status line, fields and a body, with a length that fits.
    pub(crate) fn new(status: &str, fields: &[(&str, &str)], body: &[u8]) -> Self {
        let length = body.len().to_string();
        Self::raw(status, &[fields, &[("Content-Length", &length)]].concat(), body)
    }

    /// As it is said, whether it fits or not.
    pub(crate) fn raw(status: &str, fields: &[(&str, &str)], body: &[u8]) -> Self {
        let mut bytes = format!("HTTP/1.1 {status}\r\nConnection: close\r\n").into_bytes();
        for (name, value) in fields {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        Self { bytes, end: End::Close, drip_bytes: None }
    }

    pub(crate) fn ending(mut self, end: End) -> Self {
        self.end = end;
        self
    }

    pub(crate) fn dripping(mut self, bytes: usize) -> Self {
        self.drip_bytes = Some(bytes);
        self
    }
}

/// What a well-behaved server with parts answers for a body of this version.
pub(crate) fn parts(asked: &Asked, body: &[u8], etag: &str) -> Reply {
    let fields = [("ETag", etag), ("Accept-Ranges", "bytes"), ("Content-Type", "application/x-test")];
    let is_current = asked.field("if-range").is_none_or(|version| version == etag);
    match asked.range().filter(|_| is_current && !body.is_empty()) {
        Some((first, last)) => {
            let end = last.map_or(body.len(), |last| (last + 1).min(body.len()));
            let range = format!("bytes {first}-{}/{}", end - 1, body.len());
            Reply::new("206 Partial Content", &[&fields[..], &[("Content-Range", &range)]].concat(), &body[first..end])
        }
        None => Reply::new("200 OK", &fields, body),
    }
}

/// A server on loopback.
pub(crate) struct Server {
    pub(crate) origin: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// Told when an answer was written.
    pub(crate) answered: Arc<Notify>,
    accepting: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (log, answer, answered) = (Arc::clone(&asked), Arc::new(answer), Arc::new(Notify::new()));
        let told = Arc::clone(&answered);
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                let (log, answer, told) = (Arc::clone(&log), Arc::clone(&answer), Arc::clone(&told));
                connections.spawn(async move { serve(connection, &log, &*answer, &told).await });
            }
        });
        Self { origin, asked, answered, accepting }
    }

    pub(crate) fn url(&self, target: &str) -> String {
        format!("{}{target}", self.origin)
    }

    /// Everything that was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// A world that may ask this server.
    pub(crate) async fn world(&self) -> World {
        let origin = Origin::parse(&self.origin).unwrap();
        World::with(|builder| builder.allow_origin(origin)).await
    }
}

async fn serve(
    mut connection: TcpStream,
    log: &Mutex<Vec<Asked>>,
    answer: &(dyn Fn(&Asked) -> Reply + Send + Sync),
    told: &Notify,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.ok()?);
        assert!(head.len() < 64 * 1024);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let target = lines.next()?.split(' ').nth(1)?.to_owned();
    let fields = lines.filter_map(|line| line.split_once(": "));
    let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let asked = {
        let mut log = log.lock().unwrap();
        let asked = Asked { number: log.len(), target, fields };
        log.push(asked.clone());
        asked
    };
    let Reply { bytes, end, drip_bytes } = answer(&asked);
    for piece in bytes.chunks(drip_bytes.unwrap_or(usize::MAX)) {
        connection.write_all(piece).await.ok()?;
        tokio::task::yield_now().await;
    }
    connection.flush().await.ok()?;
    told.notify_one();
    match end {
        End::Close => {
            connection.shutdown().await.ok()?;
            // Whatever still comes is taken, or closing would become a reset.
            let mut rest = [0; 1024];
            while connection.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        }
        End::Reset => {
            let socket = rustix::net::sockopt::set_socket_linger(&connection, Some(std::time::Duration::ZERO));
            socket.unwrap();
        }
        End::Hold => {
            let mut rest = [0; 1024];
            while connection.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        }
    }
    Some(())
}

/// Bytes that say where they belong: no two places of a file look alike.
pub(crate) fn bytes(count: usize) -> Vec<u8> {
    (0..count.div_ceil(8))
        .flat_map(|word| (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .take(count)
        .collect()
}

/// Calls `download` as the host itself.
pub(crate) async fn download(session: &Session, arguments: Value) -> Arc<CallResult> {
    session.tool("download", arguments).await.unwrap()
}

/// Downloads an address to `f` in a world of its own; the result, and what `f` holds.
pub(crate) async fn fetched(server: &Server, target: &str, more: Value) -> (Arc<CallResult>, Option<Vec<u8>>) {
    let world = server.world().await;
    let session = world.open().await;
    let mut arguments = json!({"url": server.url(target), "file_path": "f"});
    for (key, value) in more.as_object().unwrap() {
        arguments[key] = value.clone();
    }
    let result = download(&session, arguments).await;
    let content = std::fs::read(world.path().join("f")).ok();
    world.at_rest(&[&session]).await;
    world.end().await;
    (result, content)
}
