//! Through a proxy that the host named: it is asked instead of the server, and private addresses stay out of reach.

use serde_json::json;
use toolwarden_tools::effects::http::proxy::HttpProxy;
use toolwarden_tools::web::ssrf::Origin;

use crate::server::{Reply, Server, bytes, download, parts};
use crate::support::world::World;

/// A world that asks the web through this proxy, and this origin directly.
async fn behind(proxy: &Server, direct: &Server) -> World {
    let address = proxy.origin.replacen("http://", "http://me:hush@", 1);
    let (address, origin) = (HttpProxy::parse(&address).unwrap(), Origin::parse(&direct.origin).unwrap());
    World::with(|builder| builder.proxy(address).allow_origin(origin)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_finds_the_server_and_gets_its_credentials_alone() {
    let body = bytes(5 * 1024 * 1024);
    let source = body.clone();
    let proxy = Server::start(move |asked| match asked.target.as_str() {
        "http://files.example/start?key=hush" => {
            Reply::new("302 Found", &[("Location", "http://other.example:8080/end?sig=hush")], b"")
        }
        "http://other.example:8080/end?sig=hush" => parts(asked, &source, "\"a\""),
        _ => Reply::new("404 Not Found", &[], b""),
    })
    .await;
    let direct = Server::start(|_| Reply::new("200 OK", &[], b"neighbour")).await;
    let world = behind(&proxy, &direct).await;
    let session = world.open().await;
    let arguments = json!({"url": "http://files.example/start?key=hush", "file_path": "f"});
    let result = download(&session, arguments).await;
    assert!(result.is_success(), "{}", result.output);
    assert_eq!(std::fs::read(world.path().join("f")).unwrap(), body);
    assert_eq!(result.metadata["strategy"], json!("parallel_range"));
    assert!(!serde_json::to_string(&*result).unwrap().contains("hush"));
    for asked in proxy.asked() {
        assert_eq!(asked.field("proxy-authorization"), Some("Basic bWU6aHVzaA=="), "{asked:?}");
        assert!(asked.target.starts_with("http://"), "{asked:?}");
    }
    // What is allowed although it is private is asked directly.
    let count = proxy.asked().len();
    let neighbour = download(&session, json!({"url": direct.url("/x"), "file_path": "n"})).await;
    assert!(neighbour.is_success(), "{}", neighbour.output);
    assert_eq!((proxy.asked().len(), !direct.asked().is_empty()), (count, true));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_no_way_to_private_addresses_nor_is_a_redirect_that_it_brings() {
    let proxy = Server::start(|asked| match asked.target.split("to=").nth(1) {
        Some(place) => Reply::new("302 Found", &[("Location", place)], b""),
        None => Reply::new("200 OK", &[], b"secret"),
    })
    .await;
    let direct = Server::start(|_| Reply::new("200 OK", &[], b"")).await;
    let world = behind(&proxy, &direct).await;
    let session = world.open().await;
    for place in ["http://127.0.0.1/", "http://2130706433/", "http://[::1]/", "http://localhost/", &proxy.url("/")] {
        let straight = download(&session, json!({"url": place, "file_path": "f"})).await;
        assert!(straight.output.contains("not on the public internet"), "{place}: {}", straight.output);
        let url = format!("http://files.example/?to={place}");
        let led = download(&session, json!({"url": url, "file_path": "f"})).await;
        assert!(!led.is_success() && led.output.contains("not on the public internet"), "{place}: {}", led.output);
    }
    assert_eq!(proxy.asked().len(), 5, "nothing but the redirects was asked");
    // An encrypted connection is asked for by name, and a proxy that refuses is told of.
    let secure = download(&session, json!({"url": "https://files.example/x", "file_path": "f"})).await;
    assert!(!secure.is_success(), "{}", secure.output);
    let asked = proxy.asked();
    assert_eq!(asked.last().unwrap().target, "files.example:443");
    assert!(!world.path().join("f").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}
