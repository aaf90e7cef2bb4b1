//! An evaluation over the network, against a server that nobody here wrote: what it breaks is counted.

use serde_json::json;
use toolwarden::embedding::Runtime;
use toolwarden::evaluation::Evaluation;
use toolwarden::evaluation::task_set::TaskSet;
use toolwarden_tools::effects::Effects;

use super::network::RETRIES;
use super::peer::{PROTOCOLS, Peer, model};

const SET: &str = r#"
name = "one task"
[[task]]
id = "port"
prompt = "Which port is set in server.toml?"
tools = ["read"]
files = { "server.toml" = "port = 8417\n" }
expect = { answer_has = ["8417"] }
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_wrong_tools_and_bad_arguments_of_a_real_server_are_counted() {
    let peer = Peer::llmock().await;
    let set = TaskSet::from_toml(SET, "set").unwrap();
    for protocol in PROTOCOLS {
        peer.post("/_llmock/reset", &json!({})).await;
        let call =
            |name: &str, arguments| json!({"type": "reply", "tool_calls": [{"name": name, "arguments": arguments}]});
        let behaviors = json!([
            {"type": "fail", "status": 503, "times": 1},
            call("ls", json!({})),
            call("read", json!({"file_path": 7})),
            call("read", json!({"file_path": "server.toml"})),
            {"type": "reply", "text": "The port is 8417."},
        ]);
        peer.post("/_llmock/scenario", &json!({"behaviors": behaviors})).await;
        let runtime = Runtime::builder().model_retries(RETRIES).build().await.unwrap();
        let model = model(protocol, &peer.base_of(protocol, true), true, Effects::real().http);
        let report = Evaluation::new(runtime.clone(), model).run(&set, &mut |_| {}).await.unwrap();
        let figures = report.totals;
        assert!(figures.is_perfect(), "{protocol}: {report:?}");
        assert_eq!((figures.rounds, figures.calls, figures.mis_selected), (4, 3, 1), "{protocol}");
        assert_eq!((figures.argument_errors, figures.retries), (1, 1), "{protocol}");
        assert!(figures.input_tokens > 0 && figures.output_tokens > 0, "{protocol}");
        runtime.shut_down().await;
    }
}
