//! `models check` and the settings file: what works is said, what does not says what to do, and a key is in neither.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::program::Workspace;

/// A key that nobody may see.
const KEY: &str = "sk-very-secret-key-of-a-test";

/// A provider that answers so many requests in the same way; gives the requests back.
fn provider(status: &'static str, body: &Value, count: usize) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", body.len());
    let serving = std::thread::spawn(move || {
        let mut requests = Vec::new();
        for _ in 0..count {
            let (mut stream, _) = listener.accept().unwrap();
            requests.push(request(&mut stream));
            let _ = stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes());
        }
        requests
    });
    (format!("http://{address}"), serving)
}

fn request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).unwrap();
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_ascii_lowercase().lines().find_map(|line| {
            let length = line.strip_prefix("content-length:")?.trim().parse::<usize>();
            length.ok()
        });
        if count == 0 || body.len() >= length.unwrap_or(0) {
            return text.into_owned();
        }
    }
}

/// The settings of a server at this address, which gets the key.
fn settings(workspace: &Workspace, base: &str) -> &'static str {
    let text = format!("[providers.openai-chat]\nbase_url = \"{base}\"\napi_key = \"{KEY}\"\nstream = false\n");
    workspace.write("settings.toml", &text);
    "settings.toml"
}

#[test]
fn a_check_is_one_tiny_call_and_says_what_works() {
    let workspace = Workspace::new();
    let call = json!({"id": "a", "type": "function", "function": {"name": "report", "arguments": "{\"word\":\"ok\"}"}});
    let answer = json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"tool_calls": [call]}}],
        "usage": {"prompt_tokens": 31, "completion_tokens": 5}});
    // With the version and without: the same endpoint.
    let (base, serving) = provider("200 OK", &answer, 2);
    for base in [base.clone(), format!("{base}/v1")] {
        let config = settings(&workspace, &base);
        let spec = format!("openai-chat:m@{base}");
        let ran = workspace.run(&["models", "check", &spec, "--json", "--config", config]).ends_with(0);
        let found = ran.json();
        assert_eq!((&found["answers"], &found["calls_tools"]), (&json!(true), &json!(true)), "{found}");
        assert_eq!((&found["input_tokens"], &found["output_tokens"]), (&json!(31), &json!(5)));
        assert!(!ran.out.contains(KEY) && !ran.err.contains(KEY), "{} {}", ran.out, ran.err);
    }
    let requests = serving.join().unwrap();
    for request in &requests {
        assert!(request.starts_with("POST /v1/chat/completions ") && request.contains(KEY), "{request}");
        assert!(request.len() < 4_000, "{} bytes", request.len());
    }
}

#[test]
fn a_wrong_key_a_page_and_nobody_at_all_are_told_with_what_to_do() {
    let workspace = Workspace::new();
    let refused = json!({"error": {"type": "invalid_request_error", "code": "invalid_api_key", "message": format!("Incorrect API key provided: {KEY}")}});
    let (base, serving) = provider("401 Unauthorized", &refused, 1);
    let config = settings(&workspace, &base);
    let ran = workspace.run(&["models", "check", &format!("openai-chat:m@{base}"), "--config", config]).ends_with(1);
    assert!(ran.out.contains("answers      no") && ran.err.contains("check the key"), "{} {}", ran.out, ran.err);
    assert!(!ran.out.contains(KEY) && !ran.err.contains(KEY), "{} {}", ran.out, ran.err);
    serving.join().unwrap();
    let (base, serving) = provider("404 Not Found", &json!("<html>"), 1);
    let ran = workspace.run(&["models", "check", &format!("openai-chat:m@{base}"), "--config", config]).ends_with(1);
    assert!(!ran.err.is_empty());
    serving.join().unwrap();
    // The port was free a moment ago.
    let ran = workspace.run(&["models", "check", &format!("openai-chat:m@{base}"), "--config", config]).ends_with(1);
    assert!(ran.err.contains("cannot be reached"), "{}", ran.err);
}

#[test]
fn every_fault_of_the_settings_is_told_with_its_line_and_without_its_value() {
    let workspace = Workspace::new();
    let text = format!("[providers.anthropic]\napi_key = 7\nkey = \"{KEY}\"\n\n[retry]\nattempts = \"many\"\n");
    workspace.write("settings.toml", &text);
    let ran = workspace.run(&["models", "check", "anthropic:m", "--config", "settings.toml"]).ends_with(2);
    for place in ["settings.toml:2", "settings.toml:3", "settings.toml:6"] {
        assert!(ran.err.contains(place), "{place}: {}", ran.err);
    }
    assert!(!ran.err.contains(KEY), "{}", ran.err);
    let ran = workspace.run(&["models", "check", "nobody:m"]).ends_with(2);
    assert!(ran.err.contains("anthropic:"), "{}", ran.err);
    let ran = workspace.run(&["models", "check", "openai-chat:m@ftp://h"]).ends_with(2);
    assert!(ran.err.contains("http"), "{}", ran.err);
}
