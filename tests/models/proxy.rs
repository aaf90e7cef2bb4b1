//! A faulty line on a real socket: a proxy between the client and a provider that cuts, resets, stalls, delays, doubles and
//! corrupts the bytes of real HTTP by a seed. Whatever it does, every run ends in a documented way, no call runs twice,
//! and no half call runs.
//!
//! Corrupted bytes are ones that can be told from text: a digit that became another digit, nobody can tell.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use toolwarden_tools::effects::Effects;

use super::network::{drawn, ends_well};
use super::peer::{PROTOCOLS, model};
use super::provider::{answer, results_in};

const SEEDS: u64 = 14;
const ROUNDS: usize = 3;
/// Bytes of the largest answer, about: faults are drawn within it.
const ANSWER_BYTES: u64 = 1600;
/// Largest request that the provider reads, in bytes.
const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What happens to one connection, at which byte of what the provider answers.
#[derive(Debug, Clone, Copy)]
enum LineFault {
    None,
    Cut(usize),
    Reset(usize),
    Stall(usize),
    Delay(usize, u64),
    /// The bytes before this one come again.
    Twice(usize, usize),
    Corrupt(usize, u8),
    /// The request does not get through: so many bytes of it.
    CutRequest(usize),
}

fn fault(seed: u64, connection: usize) -> LineFault {
    let place = (connection as u64) * 8;
    let at = usize::try_from(drawn(seed, place + 1) % ANSWER_BYTES).unwrap();
    let more = drawn(seed, place + 2);
    match drawn(seed, place) % 16 {
        0 | 1 => LineFault::Cut(at),
        2 => LineFault::Reset(at),
        3 if more.is_multiple_of(3) => LineFault::Stall(at),
        4 | 5 => LineFault::Delay(at, more % 30),
        6 | 7 => LineFault::Twice(at, usize::try_from(more % 60).unwrap() + 1),
        8 | 9 => LineFault::Corrupt(at, if more.is_multiple_of(2) { 0xff } else { 0 }),
        10 => LineFault::CutRequest(at),
        _ => LineFault::None,
    }
}

/// Everything that a test listens with; gone with it.
struct Line {
    base_url: String,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Line {
    /// A proxy with these faults before a provider without any.
    async fn open(seed: u64) -> Self {
        let (provider, proxy) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let upstream = provider.local_addr().unwrap();
        let base_url = format!("http://{}", proxy.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let (counter, mut tasks) = (Arc::clone(&connections), JoinSet::new());
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = provider.accept().await {
                open.spawn(provide(stream, seed));
            }
        });
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = proxy.accept().await {
                let fault = fault(seed, counter.fetch_add(1, Ordering::SeqCst));
                let Ok(server) = TcpStream::connect(upstream).await else { continue };
                open.spawn(relay(client, server, fault));
            }
        });
        Self { base_url, connections, _tasks: tasks }
    }
}

/// Answers one request and closes. Half of the seeds end the answer with the connection, so that a cut looks like an end.
async fn provide(mut stream: TcpStream, seed: u64) {
    let Some((path, body)) = request(&mut stream).await else { return };
    let Ok(body) = serde_json::from_slice::<Value>(&body) else { return };
    let text = answer(&path, results_in(&body), ROUNDS);
    let length = if seed.is_multiple_of(2) { format!("content-length: {}\r\n", text.len()) } else { String::new() };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{length}connection: close\r\n\r\n");
    // Whoever hung up hears nothing.
    let _ = stream.write_all(format!("{head}{text}").as_bytes()).await;
    let _ = stream.shutdown().await;
}

async fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let path = head.split(' ').nth(1)?.to_owned();
            let length = head
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
            let body_end = end + 4 + length.unwrap_or(0_usize);
            if bytes.len() >= body_end {
                return Some((path, bytes[end + 4..body_end].to_vec()));
            }
        }
        if bytes.len() > REQUEST_BYTES_MAX || stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

async fn relay(client: TcpStream, server: TcpStream, fault: LineFault) {
    let resets = matches!(fault, LineFault::Reset(_));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = async {
        upwards(from_client, to_server, fault).await;
    };
    tokio::select! {
        biased;
        rest = downwards(from_server, to_client, fault) => {
            if let Some(client) = rest && resets {
                // Closed with this, a socket says that it was reset.
                let _ = rustix::net::sockopt::set_socket_linger(client.as_ref(), Some(Duration::ZERO));
            }
        }
        // The client goes on listening when it has said everything.
        () = async { up.await; std::future::pending::<()>().await } => {}
    }
}

async fn upwards(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fault: LineFault) -> Option<()> {
    let (mut buffer, mut passed) = (vec![0; 4096], 0);
    loop {
        let count = from.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        let room = match fault {
            LineFault::CutRequest(at) => at.saturating_sub(passed),
            _ => count,
        };
        to.write_all(&buffer[..count.min(room)]).await.ok()?;
        passed += count;
        if room < count {
            to.shutdown().await.ok()?;
            return None;
        }
    }
}

/// Carries the answer, byte by byte where its fault stands; gives the socket back when the fault has ended it.
async fn downwards(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fault: LineFault) -> Option<OwnedWriteHalf> {
    let (mut buffer, mut passed) = (vec![0; 256], Vec::new());
    loop {
        let count = from.read(&mut buffer).await.ok()?;
        if count == 0 {
            to.shutdown().await.ok()?;
            return None;
        }
        for byte in &mut buffer[..count] {
            let at = passed.len();
            passed.push(*byte);
            match fault {
                LineFault::Cut(end) | LineFault::Reset(end) if at >= end => return Some(to),
                LineFault::Stall(end) if at >= end => std::future::pending().await,
                LineFault::Delay(place, span_ms) if at == place => {
                    tokio::time::sleep(Duration::from_millis(span_ms)).await
                }
                LineFault::Twice(place, length) if at == place => {
                    let again = passed[at.saturating_sub(length)..at].to_vec();
                    to.write_all(&again).await.ok()?;
                }
                LineFault::Corrupt(place, bad) if at == place => *byte = bad,
                _ => {}
            }
            to.write_all(std::slice::from_ref(byte)).await.ok()?;
        }
    }
}

/// Takes longer than other tests: each seed makes real connections, and some of them stall until they are given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_line_does_no_call_runs_twice_or_by_half() {
    let mut endings = BTreeSet::new();
    let mut connections = 0;
    for protocol in PROTOCOLS {
        for seed in 0..SEEDS {
            let line = Line::open(seed).await;
            let model = model(protocol, &line.base_url, true, Effects::real().http);
            endings.insert(ends_well(protocol, seed, model).await);
            connections += line.connections.load(Ordering::SeqCst);
        }
    }
    // The seeds reach the good end, and lines that had to be tried again.
    assert!(endings.contains("completed"), "{endings:?}");
    assert!(
        connections > PROTOCOLS.len() * usize::try_from(SEEDS).unwrap() * (ROUNDS + 1),
        "{connections} connections"
    );
}
