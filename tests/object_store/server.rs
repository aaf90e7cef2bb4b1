//! A server that speaks S3, one for all tests of this binary, and buckets in it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use toolwarden_tools::workspace::object_store::ObjectFiles;
use toolwarden_tools::workspace::object_store::bucket::{BucketAccess, BucketCredentials, BucketPlace};

/// Serves on a free port, says which, and ends with its standard input, so also when this process is killed.
const SERVE: &str = "
import logging, sys
logging.getLogger('werkzeug').setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
print('%s:%s' % server.get_host_and_port(), flush=True)
sys.stdin.read()
";

/// A key that no output may show.
pub(crate) const SECRET: &str = "a-secret-key-of-this-test";

struct Served {
    endpoint: String,
    /// Its standard input stays open for as long as this process lives.
    _child: Child,
}

/// Where the server is.
pub(crate) fn endpoint() -> &'static str {
    static SERVED: OnceLock<Served> = OnceLock::new();
    let served = SERVED.get_or_init(|| {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/peers/venv/bin/python");
        assert!(python.exists(), "{} is missing: run scripts/setup first", python.display());
        let mut command = Command::new(python);
        command.args(["-c", SERVE]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().unwrap();
        assert!(!port.is_empty(), "the server did not start: run scripts/setup first");
        Served { endpoint: format!("http://127.0.0.1:{port}"), _child: child }
    });
    &served.endpoint
}

/// How to get in.
pub(crate) fn access() -> BucketAccess {
    let credentials = BucketCredentials {
        access_key_id: "test-key".to_owned(),
        secret_access_key: SECRET.to_owned(),
        session_token: None,
    };
    BucketAccess { endpoint: Some(endpoint().to_owned()), credentials: Some(credentials), ..BucketAccess::default() }
}

/// The address of a new bucket.
pub(crate) fn bucket() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("bucket-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let made = send("PUT", &format!("/{name}"), b"");
    assert!(made.starts_with("HTTP/1.1 200"), "{made}");
    format!("s3://{name}")
}

/// Files beneath an address.
pub(crate) fn files(address: &str) -> ObjectFiles {
    ObjectFiles::open(&BucketPlace::parse(address).unwrap(), &access()).unwrap()
}

/// Puts an object the way another program would.
pub(crate) fn put(address: &str, key: &str, body: &[u8]) {
    let bucket = address.strip_prefix("s3://").unwrap();
    let put = send("PUT", &format!("/{bucket}/{key}"), body);
    assert!(put.starts_with("HTTP/1.1 200"), "{put}");
}

/// One request without a signature, which this server does not ask for; the head of its answer.
fn send(method: &str, target: &str, body: &[u8]) -> String {
    use std::io::{Read as _, Write as _};
    let host = endpoint().strip_prefix("http://").unwrap();
    let mut socket = std::net::TcpStream::connect(host).unwrap();
    let length = body.len();
    let key = "Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x";
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: {host}\r\n{key}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(body).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}
