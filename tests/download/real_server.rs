//! The same against a real server: the one of Python's library, which knows no parts.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use toolwarden_tools::web::ssrf::Origin;

use crate::server::{bytes, download};
use crate::support::world::World;

/// Serves a folder on a free port, says which, and ends with its standard input.
const SERVE: &str = "
import functools, http.server, sys, threading
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
";

struct RealServer {
    child: Child,
    origin: String,
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RealServer {
    fn start(folder: &std::path::Path) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", SERVE]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { child, origin: format!("http://127.0.0.1:{}", port.trim()) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_real_server_come_to_the_byte() {
    let served = tempfile::tempdir().unwrap();
    let body = bytes(3_000_001);
    std::fs::write(served.path().join("data file.bin"), &body).unwrap();
    std::fs::write(served.path().join("empty"), "").unwrap();
    let server = RealServer::start(served.path());
    let origin = Origin::parse(&server.origin).unwrap();
    let world = World::with(|builder| builder.allow_origin(origin)).await;
    let session = world.open().await;
    for (name, content) in [("data%20file.bin", body.as_slice()), ("empty", b"")] {
        let result = download(&session, json!({"url": format!("{}/{name}", server.origin)})).await;
        assert!(result.is_success(), "{}", result.output);
        let written = std::fs::read(world.path().join(name.replace("%20", " "))).unwrap();
        assert!(written == content, "{name}");
        assert_eq!(result.metadata["bytes"], json!(content.len()));
    }
    let missing = download(&session, json!({"url": format!("{}/none", server.origin)})).await;
    assert!(!missing.is_success() && missing.output.contains("404"), "{}", missing.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}
