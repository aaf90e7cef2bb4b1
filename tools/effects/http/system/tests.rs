//! The real HTTP port against servers that answer as told, byte for byte.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::SystemHttp;
use crate::effects::http::{Http as _, HttpError, HttpMethod, HttpRequest, HttpResponse};

/// "hi, hi, hi, hi" as gzip.
const PACKED: &[u8] =
    &[31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 203, 200, 212, 81, 200, 128, 99, 0, 0, 234, 12, 20, 14, 0, 0, 0];

/// A server that gives one connection these bytes after the head of a request, then says when the client is gone.
async fn server(answer: Vec<u8>, stays: bool) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = read_head(&mut stream).await;
        let _ = stream.write_all(&answer).await;
        if stays {
            let _ = stream.read(&mut [0]).await;
        }
        head
    });
    (address, served)
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

fn get(address: SocketAddr) -> HttpRequest {
    HttpRequest::new(HttpMethod::Get, format!("http://{address}/x?key=secret"))
}

async fn body(response: HttpResponse) -> Result<Vec<u8>, HttpError> {
    let mut all = Vec::new();
    let mut pieces = response.body;
    while let Some(piece) = pieces.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

async fn exchange(answer: &[u8]) -> Result<Vec<u8>, HttpError> {
    let (address, _served) = server(answer.to_vec(), false).await;
    body(SystemHttp::new().exchange(get(address)).await?).await
}

#[tokio::test]
async fn an_answer_comes_in_pieces_and_no_redirect_is_followed() {
    let answer = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\nX-Id: 7\r\ncontent-length: 5\r\n\r\nhello";
    let (address, served) = server(answer.to_vec(), true).await;
    let response = SystemHttp::new().exchange(get(address).header("authorization", "Bearer secret")).await.unwrap();
    assert_eq!((response.status, response.headers.get("x-id"), response.peer), (302, Some("7"), Some(address)));
    assert_eq!(body(response).await.unwrap(), b"hello");
    let head = served.await.unwrap();
    assert!(head.starts_with("GET /x?key=secret HTTP/1.1\r\n"), "{head}");
    assert!(!head.to_lowercase().contains("accept-encoding"), "{head}");
    assert!(head.contains("authorization: Bearer secret"), "{head}");
}

#[tokio::test]
async fn each_way_to_fail_has_its_kind() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = SystemHttp::new().exchange(get(closed)).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect { .. }) && error.nothing_was_sent(), "{error:?}");
    assert!(!error.to_string().contains("secret"), "{error}");

    let cases: [(&[u8], &str); 7] = [
        (b"", "reset"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", "reset"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", "reset"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "reset"),
        (b"<html>no server of the web</html>\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhalf\r\n", "protocol"),
        (b"HTTP/1.1 999999 OK\r\n\r\n", "protocol"),
    ];
    for (answer, kind) in cases {
        let error = exchange(answer).await.unwrap_err();
        let found = match &error {
            HttpError::Reset { .. } => "reset",
            HttpError::Protocol { .. } => "protocol",
            other => panic!("{other:?}"),
        };
        assert_eq!(found, kind, "{error:?} for {:?}", String::from_utf8_lossy(answer));
        assert!(!error.nothing_was_sent());
    }
}

#[tokio::test]
async fn a_body_is_unpacked_only_when_asked() {
    let mut answer =
        format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", PACKED.len()).into_bytes();
    answer.extend_from_slice(PACKED);
    assert_eq!(exchange(&answer).await.unwrap(), PACKED);

    let asking = |address| HttpRequest { decompress: true, ..get(address) };
    let (address, served) = server(answer.clone(), true).await;
    let http = SystemHttp::new();
    assert_eq!(body(http.exchange(asking(address)).await.unwrap()).await.unwrap(), b"hi, hi, hi, hi");
    drop(http);
    assert!(served.await.unwrap().to_lowercase().contains("accept-encoding: gzip"));

    let at = answer.len() - PACKED.len() + 12;
    answer[at] ^= 0xff;
    let (address, _served) = server(answer, true).await;
    let error = body(SystemHttp::new().exchange(asking(address)).await.unwrap()).await.unwrap_err();
    assert!(matches!(error, HttpError::Decode { .. }), "{error:?}");
}

#[tokio::test]
async fn dropping_the_body_closes_the_connection() {
    let (address, served) = server(b"HTTP/1.1 200 OK\r\n\r\nsome".to_vec(), true).await;
    let http = SystemHttp::new();
    let mut response = http.exchange(get(address)).await.unwrap();
    assert_eq!(&response.body.next().await.unwrap().unwrap()[..], b"some");
    drop(response);
    // The server's read returns because the client is gone, while the port still lives.
    served.await.unwrap();
    drop(http);
}

#[tokio::test]
async fn pins_hold_for_names_and_for_addresses() {
    let (address, _served) = server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec(), true).await;
    let named = HttpRequest {
        pinned: vec!["127.0.0.1:9".parse().unwrap()],
        ..HttpRequest::new(HttpMethod::Get, format!("http://pinned.invalid:{}/", address.port()))
    };
    assert_eq!(body(SystemHttp::new().exchange(named).await.unwrap()).await.unwrap(), b"ok");

    for host in ["127.0.0.2", "2130706434", "[::ffff:127.0.0.2]"] {
        let outside = HttpRequest {
            pinned: vec!["127.0.0.1:9".parse().unwrap()],
            ..HttpRequest::new(HttpMethod::Get, format!("http://{host}:{}/", address.port()))
        };
        let error = SystemHttp::new().exchange(outside).await.unwrap_err();
        assert!(matches!(error, HttpError::Request { .. }), "{error:?}");
    }
    let error = SystemHttp::new().exchange(HttpRequest::new(HttpMethod::Get, "http://unpinned.invalid/")).await;
    assert!(matches!(error, Err(HttpError::Resolve { .. })), "{error:?}");
}

#[tokio::test]
async fn a_connection_has_its_own_time() {
    // A backlog that is full answers no further connection.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let listener = socket.listen(1).unwrap();
    let fillers: Vec<_> = (0..8).map(|_| tokio::spawn(TcpStream::connect(address))).collect();
    let waiting = HttpRequest { connect_timeout: Duration::from_millis(300), ..get(address) };
    let (http, mut accepted) = (SystemHttp::new(), Vec::new());
    // An exchange that the backlog still had room for waits for its answer, and fills the backlog meanwhile.
    let error = loop {
        let mut exchange = http.exchange(waiting.clone());
        match tokio::time::timeout(Duration::from_millis(900), &mut exchange).await {
            Ok(result) => break result.unwrap_err(),
            Err(_) => accepted.push(exchange),
        }
    };
    assert_eq!(error, HttpError::ConnectTimeout { host: "127.0.0.1".to_owned(), timeout_ms: 300 });
    fillers.iter().for_each(JoinHandle::abort);
    drop(listener);
}

#[tokio::test]
async fn a_plain_server_is_no_safe_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let error = SystemHttp::new().exchange(HttpRequest::new(HttpMethod::Get, format!("https://{address}/"))).await;
    assert!(matches!(error, Err(HttpError::Tls { .. })), "{error:?}");
    served.await.unwrap();
}

#[tokio::test]
async fn requests_that_cannot_be_sent_say_why_and_hide_values() {
    let http = SystemHttp::new();
    for url in ["", "no address", "ftp://127.0.0.1/", "http://"] {
        let error = http.exchange(HttpRequest::new(HttpMethod::Get, url)).await.unwrap_err();
        assert!(matches!(error, HttpError::Request { .. }), "{error:?}");
    }
    let request = HttpRequest::new(HttpMethod::Post, "http://127.0.0.1:1/").header("x-key", "sec\nret");
    assert!(!format!("{request:?}").contains("ret"), "{request:?}");
    let error = http.exchange(request).await.unwrap_err();
    assert!(error.to_string().contains("x-key") && !error.to_string().contains("ret\""), "{error}");
}
