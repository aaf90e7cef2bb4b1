//! Where a download may ask: not this machine, not the network behind it, not by a redirect either.

use serde_json::json;

use crate::server::{Reply, Server, download, fetched};
use crate::support::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_addresses_are_refused_before_anything_is_sent_or_made() {
    let server = Server::start(|_| Reply::new("200 OK", &[], b"secret")).await;
    let port = server.origin.rsplit(':').next().unwrap().to_owned();
    let world = World::new().await;
    let session = world.open().await;
    for host in
        ["127.0.0.1", "2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]", "localhost", "LOCALHOST.", "a.localhost"]
    {
        let url = format!("http://{host}:{port}/x");
        let result = download(&session, json!({"url": url, "file_path": "d/f"})).await;
        let kind = serde_json::to_value(&result.error_kind).unwrap();
        assert_eq!(kind["type"], json!("invalid_argument"), "{url}: {}", result.output);
        assert!(result.output.contains("not on the public internet"), "{url}: {}", result.output);
    }
    assert!(server.asked().is_empty());
    assert!(!world.path().join("d").exists());
    for url in ["ftp://example.com/x", "file:///etc/passwd", "http://me:hush@example.com/", "nonsense", "http://"] {
        let result = download(&session, json!({"url": url})).await;
        assert!(!result.is_success() && !result.output.contains("hush"), "{url}: {}", result.output);
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_leads_nowhere_that_may_not_be_asked() {
    let hidden = Server::start(|_| Reply::new("200 OK", &[], b"secret")).await;
    let port = hidden.origin.rsplit(':').next().unwrap().to_owned();
    let decimal = format!("http://2130706433:{port}/?token=hush");
    let places = [hidden.url("/"), decimal, format!("http://0x7f000001:{port}/"), "file:///etc/passwd".to_owned()];
    for place in places {
        let shown = place.clone();
        let server = Server::start(move |_| Reply::new("302 Found", &[("Location", &place)], b"")).await;
        let (result, content) = fetched(&server, "/", json!({})).await;
        assert!(!result.is_success() && content.is_none(), "{shown}: {}", result.output);
        assert!(!result.output.contains("hush"), "{}", result.output);
        assert_eq!(server.asked().len(), 1, "{shown}");
    }
    assert!(hidden.asked().is_empty());
    let round = Server::start(|_| Reply::new("302 Found", &[("Location", "/again")], b"")).await;
    let (result, _) = fetched(&round, "/", json!({})).await;
    assert!(!result.is_success() && round.asked().len() == 11, "{}", result.output);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_within_what_is_allowed_is_followed_and_named() {
    let server = Server::start(|asked| match asked.target.as_str() {
        "/start?key=hush" => Reply::new("307 Temporary Redirect", &[("Location", "/end?sig=hush")], b""),
        _ => Reply::new("200 OK", &[], b"whole"),
    })
    .await;
    let (result, content) = fetched(&server, "/start?key=hush", json!({})).await;
    assert!(result.is_success() && content.unwrap() == b"whole", "{}", result.output);
    assert_eq!(result.metadata["source_anchors"], json!([server.url("/start"), server.url("/end")]));
    assert!(!serde_json::to_string(&*result).unwrap().contains("hush"));
}
