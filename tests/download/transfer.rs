//! Servers that do it right, servers that do it wrong, and what comes of each: the source's bytes, or an error.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::server::{Asked, End, Reply, Server, bytes, fetched, parts};

const MIB: usize = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_come_over_several_connections_of_one_version() {
    let body = bytes(9 * MIB + 123);
    let source = body.clone();
    let server = Server::start(move |asked| parts(asked, &source, "\"one\"")).await;
    let (result, content) = fetched(&server, "/f.bin?sig=hush", json!({})).await;
    assert!(result.is_success(), "{}", result.output);
    assert!(content.unwrap() == body);
    assert_eq!(result.metadata["strategy"], json!("parallel_range"));
    assert_eq!((&result.metadata["connections"], &result.metadata["range_supported"]), (&json!(3), &json!(true)));
    assert_eq!(result.metadata["content_type"], json!("application/x-test"));
    assert_eq!(result.metadata["source_anchors"], json!([server.url("/f.bin")]));
    assert_eq!(serde_json::to_value(result.trust).unwrap(), json!("external"));
    assert!(!serde_json::to_string(&*result).unwrap().contains("hush"), "the query is sent and never shown");
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.target == "/f.bin?sig=hush"));
    assert!(asked.iter().all(|asked| asked.field("accept-encoding") == Some("identity")));
    assert!(asked[1..].iter().all(|asked| asked.field("if-range") == Some("\"one\"")));
    let mut ranges: Vec<_> = asked[1..].iter().map(|asked| asked.range().unwrap()).collect();
    ranges.sort_unstable();
    assert_eq!(ranges[0].0, 0);
    assert!(ranges.iter().all(|(first, _)| first.is_multiple_of(4096)));
    assert!(ranges.windows(2).all(|two| two[0].1.unwrap() + 1 == two[1].0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_sure_version_there_is_one_plain_request() {
    for etag in [None, Some("W/\"weak\"")] {
        let body = bytes(5 * MIB);
        let source = body.clone();
        let server = Server::start(move |asked| {
            let mut fields = vec![("Accept-Ranges", "bytes")];
            fields.extend(etag.map(|etag| ("ETag", etag)));
            match asked.range() {
                Some((0, Some(0))) => {
                    let range = format!("bytes 0-0/{}", source.len());
                    fields.push(("Content-Range", &range));
                    Reply::new("206 Partial Content", &fields, &source[..1])
                }
                _ => Reply::new("200 OK", &fields, &source),
            }
        })
        .await;
        let (result, content) = fetched(&server, "/", json!({"connections": 4})).await;
        assert!(result.is_success() && content.unwrap() == body, "{etag:?}: {}", result.output);
        assert_eq!((&result.metadata["connections"], &result.metadata["strategy"]), (&json!(1), &json!("sequential")));
        let asked = server.asked();
        assert_eq!(asked.len(), 2, "a probe and the whole");
        assert_eq!(asked[1].field("range"), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_parts_is_asked_once() {
    let body = bytes(MIB);
    let source = body.clone();
    let server = Server::start(move |_| Reply::new("200 OK", &[], &source)).await;
    let (result, content) = fetched(&server, "/", json!({})).await;
    assert!(result.is_success() && content.unwrap() == body, "{}", result.output);
    assert_eq!((server.asked().len(), &result.metadata["range_supported"]), (1, &json!(false)));
}

/// Answers the probe in order and every other part through `odd`.
async fn odd_parts(body: &[u8], odd: impl Fn(&Asked, &[u8], usize, usize) -> Reply + Send + Sync + 'static) -> Server {
    let source = body.to_vec();
    Server::start(move |asked| match asked.range() {
        Some((first, Some(last))) if last > 0 => odd(asked, &source, first, last),
        _ => parts(asked, &source, "\"one\""),
    })
    .await
}

fn part(source: &[u8], (first, last): (usize, usize), shown: &str) -> Reply {
    let fields = [("ETag", "\"one\""), ("Content-Range", shown)];
    Reply::new("206 Partial Content", &fields, &source[first..=last])
}

// Case C100 and the like: parts that are not quite what was asked for never become bytes of the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_parts_end_in_one_plain_request() {
    type Odd = fn(&Asked, &[u8], usize, usize) -> Reply;
    let odds: [(&str, Odd); 9] = [
        ("another place", |_, source, first, last| {
            part(source, (first, last), &format!("bytes {}-{}/{}", first + 1, last + 1, source.len() + 1))
        }),
        ("another total", |_, source, first, last| {
            part(source, (first, last), &format!("bytes {first}-{last}/{}", source.len() + 1))
        }),
        ("no place", |_, source, first, last| part(source, (first, last), "bytes")),
        ("a shorter part", |_, source, first, last| {
            part(source, (first, last - 1), &format!("bytes {first}-{}/{}", last - 1, source.len()))
        }),
        ("a shorter body", |_, source, first, last| {
            part(source, (first, last - 1), &format!("bytes {first}-{last}/{}", source.len()))
        }),
        ("the whole", |_, source, _, _| Reply::new("200 OK", &[("ETag", "\"one\"")], source)),
        ("another version", |_, source, first, last| {
            let range = format!("bytes {first}-{last}/{}", source.len());
            let fields = [("ETag", "\"two\""), ("Content-Range", range.as_str())];
            Reply::new("206 Partial Content", &fields, &source[first..=last])
        }),
        ("none", |_, _, _, _| Reply::new("416 Range Not Satisfiable", &[("Content-Range", "bytes */7")], b"")),
        ("refused", |_, _, _, _| Reply::new("403 Forbidden", &[], b"no")),
    ];
    let body = bytes(5 * MIB);
    for (what, odd) in odds {
        let server = odd_parts(&body, odd).await;
        let (result, content) = fetched(&server, "/", json!({"connections": 2})).await;
        assert!(result.is_success(), "{what}: {}", result.output);
        assert!(content.unwrap() == body, "{what}");
        assert_eq!(result.metadata["strategy"], json!("sequential_fallback"), "{what}");
        assert_eq!(result.metadata["connections"], json!(1), "{what}");
        let whole = server.asked().iter().filter(|asked| asked.field("range").is_none()).count();
        assert_eq!(whole, 1, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_breaks_goes_on_where_it_stood() {
    for end in [End::Reset, End::Close] {
        let body = bytes(6 * MIB);
        let server = odd_parts(&body, move |asked, source, first, last| {
            let range = format!("bytes {first}-{last}/{}", source.len());
            let whole = part(source, (first, last), &range);
            // The first answer of each piece gives its head and a half of its bytes.
            let half = whole.bytes.len() - (last - first) / 2;
            if first.is_multiple_of(4096) {
                Reply { bytes: whole.bytes[..half].to_vec(), ..whole }.ending(end)
            } else {
                parts(asked, source, "\"one\"")
            }
        })
        .await;
        let (result, content) = fetched(&server, "/", json!({"connections": 2})).await;
        assert!(result.is_success() && content.unwrap() == body, "{end:?}: {}", result.output);
        assert_eq!(result.metadata["strategy"], json!("parallel_range"), "{end:?}");
        let asked = server.asked();
        assert!(
            asked.len() >= 5 && asked[1..].iter().all(|asked| asked.field("if-range") == Some("\"one\"")),
            "{end:?}"
        );
    }
}

// Case C098: the whole instead of the rest is a new beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_is_never_appended_to_a_part() {
    let server = Server::start(move |asked| {
        let whole = Reply::new("200 OK", &[("ETag", "\"one\"")], b"0123456789");
        match asked.number {
            // Four bytes, and then it breaks.
            0 => Reply { bytes: whole.bytes[..whole.bytes.len() - 6].to_vec(), ..whole },
            _ => whole,
        }
    })
    .await;
    let (result, content) = fetched(&server, "/", json!({})).await;
    assert!(result.is_success(), "{}", result.output);
    assert_eq!(content.unwrap(), b"0123456789");
    let asked = server.asked();
    assert_eq!(asked[1].field("range"), Some("bytes=4-"), "it asked for the rest");
    assert_eq!(asked[1].field("if-range"), Some("\"one\""));
}

// Case C100: what changed between two tries is got again as a whole; the odd server ends with a correct file too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changed_meanwhile_is_got_again() {
    let (old, new) = (bytes(200_000), vec![7_u8; 150_000]);
    let (before, after) = (old.clone(), new.clone());
    let server = Server::start(move |asked| match asked.number {
        0 => {
            let whole = Reply::new("200 OK", &[("ETag", "\"a\"")], &before);
            Reply { bytes: whole.bytes[..100_000].to_vec(), ..whole }
        }
        _ => parts(asked, &after, "\"b\""),
    })
    .await;
    let (result, content) = fetched(&server, "/", json!({})).await;
    assert!(result.is_success() && content.unwrap() == new, "{}", result.output);

    // It says that it goes on, but with another version.
    let after = new.clone();
    let server = Server::start(move |asked| match (asked.number, asked.range()) {
        (0, _) => {
            let whole = Reply::new("200 OK", &[("ETag", "\"a\"")], &old);
            Reply { bytes: whole.bytes[..100_000].to_vec(), ..whole }
        }
        (_, Some((first, None))) => {
            let range = format!("bytes {first}-199999/200000");
            let body = vec![7_u8; 200_000 - first];
            Reply::new("206 Partial Content", &[("ETag", "\"b\""), ("Content-Range", &range)], &body)
        }
        _ => parts(asked, &after, "\"b\""),
    })
    .await;
    let (result, content) = fetched(&server, "/", json!({})).await;
    assert!(result.is_success() && content.unwrap() == new, "{}", result.output);

    // A server that drops the range whenever there is a condition with an etag.
    let body = bytes(5 * MIB);
    let source = body.clone();
    let server = Server::start(move |asked| match asked.field("if-range") {
        Some(_) => Reply::new("200 OK", &[("ETag", "\"one\"")], &source),
        None => parts(asked, &source, "\"one\""),
    })
    .await;
    let (result, content) = fetched(&server, "/", json!({})).await;
    assert!(result.is_success() && content.unwrap() == body, "{}", result.output);
    assert_eq!(result.metadata["strategy"], json!("sequential_fallback"));
}

// Case C101: what is shorter than announced is no file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_ends_early_is_an_error() {
    let server = Server::start(move |_| Reply::raw("200 OK", &[("Content-Length", "100")], &[7; 60])).await;
    let world = server.world().await;
    std::fs::write(world.path().join("f"), "old").unwrap();
    let session = world.open().await;
    let arguments = json!({"url": server.url("/"), "file_path": "f", "overwrite": true});
    let result = crate::server::download(&session, arguments).await;
    assert!(result.output.contains("60 of 100"), "{}", result.output);
    assert!(!result.is_success());
    assert_eq!(server.asked().len(), 3, "it is tried three times");
    assert_eq!(std::fs::read(world.path().join("f")).unwrap(), b"old");
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_and_bodies_of_unknown_length_are_whole() {
    let body = bytes(100_000);
    let source = body.clone();
    let server = Server::start(move |asked| {
        let whole = match asked.target.as_str() {
            "/drip" => Reply::new("200 OK", &[], &source),
            "/chunked" => {
                let mut chunks = Vec::new();
                for chunk in source.chunks(999) {
                    chunks.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    chunks.extend_from_slice(chunk);
                    chunks.extend_from_slice(b"\r\n");
                }
                chunks.extend_from_slice(b"0\r\n\r\n");
                Reply::raw("200 OK", &[("Transfer-Encoding", "chunked")], &chunks)
            }
            _ => Reply::raw("200 OK", &[], &source),
        };
        whole.dripping(777)
    })
    .await;
    for target in ["/drip", "/chunked", "/until-close"] {
        let (result, content) = fetched(&server, target, json!({})).await;
        assert!(result.is_success() && content.unwrap() == body, "{target}: {}", result.output);
    }
    // A chunked body that breaks off has no length to compare with, and is no file either.
    let broken = Server::start(|_| Reply::raw("200 OK", &[("Transfer-Encoding", "chunked")], b"5\r\nhello\r\n")).await;
    let (result, content) = fetched(&broken, "/", json!({})).await;
    assert!(!result.is_success() && content.is_none(), "{}", result.output);
    assert_eq!(serde_json::to_value(&result.error_kind).unwrap()["type"], json!("transport"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_files_and_servers_that_refuse_a_probe() {
    let empty =
        Server::start(|_| Reply::new("416 Range Not Satisfiable", &[("Content-Range", "bytes */0")], b"")).await;
    let (result, content) = fetched(&empty, "/", json!({})).await;
    assert!(result.is_success() && content.unwrap().is_empty(), "{}", result.output);
    for status in ["403 Forbidden", "405 Method Not Allowed", "416 Range Not Satisfiable"] {
        let server = Server::start(move |asked| match asked.field("range") {
            Some(_) => Reply::new(status, &[], b"no parts"),
            None => Reply::new("200 OK", &[], b"whole"),
        })
        .await;
        let (result, content) = fetched(&server, "/", json!({})).await;
        assert!(result.is_success() && content.unwrap() == b"whole", "{status}: {}", result.output);
    }
    for (status, count) in [("404 Not Found", 1), ("403 Forbidden", 2), ("204 No Content", 1), ("500 Oh", 3)] {
        let server = Server::start(move |_| Reply::new(status, &[], b"")).await;
        let (result, content) = fetched(&server, "/", json!({})).await;
        assert!(!result.is_success() && content.is_none(), "{status}");
        assert!(result.output.contains(&status[..3]), "{}", result.output);
        assert_eq!(server.asked().len(), count, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_asks_to_wait_is_waited_for_within_a_bound() {
    for (field, tries) in [("0", 2), ("Sun, 06 Nov 1994 08:49:37 GMT", 2), ("31", 1)] {
        for status in ["503 Busy", "429 Slow down"] {
            let server = Server::start(move |asked| match asked.number {
                0 => Reply::new(status, &[("Retry-After", field)], b""),
                _ => Reply::new("200 OK", &[], b"whole"),
            })
            .await;
            let (result, content) = fetched(&server, "/", json!({})).await;
            assert_eq!(server.asked().len(), tries, "{field} {status}");
            if tries == 2 {
                assert!(result.is_success() && content.unwrap() == b"whole", "{}", result.output);
            } else {
                let kind = serde_json::to_value(&result.error_kind).unwrap();
                assert_eq!(kind, json!({"type": "rate_limited", "retry_after_ms": 31_000}));
                assert!(content.is_none());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_before_the_answer_is_tried_again() {
    let tried = AtomicUsize::new(0);
    let server = Server::start(move |_| match tried.fetch_add(1, Ordering::Relaxed) {
        0 => Reply { bytes: Vec::new(), end: End::Reset, drip_bytes: None },
        1 => Reply { bytes: b"not http at all\r\n\r\n".to_vec(), end: End::Close, drip_bytes: None },
        _ => Reply::new("200 OK", &[], b"whole"),
    })
    .await;
    let (result, content) = fetched(&server, "/", json!({})).await;
    assert!(result.is_success() && content.unwrap() == b"whole", "{}", result.output);
}
