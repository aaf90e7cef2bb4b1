//! Evidence on every result, right for every kind of loss, and the same as the documented answers.

use serde_json::{Value, json};
use toolwarden::call_result::CallResult;
use toolwarden::settlement::projection_policy::ProjectionPolicy;
use toolwarden::settlement::proof::Again;
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::Needs;

use crate::support::tool::{Custom, custom};
use crate::support::world::{World, policy};

pub(crate) fn evidence_of(result: &CallResult) -> &Value {
    &result.metadata["a3s_tool_result_evidence"]
}

/// A tool that gives its argument `text` as often as `times` says.
pub(crate) fn repeat(name: &str) -> Custom {
    custom(name, |_ctx, arguments| async move {
        let times = usize::try_from(arguments["times"].as_u64().unwrap_or(1)).unwrap();
        ToolOutcome::success(arguments["text"].as_str().unwrap().repeat(times))
    })
}

// The boundary cases D to L, through the whole route, with the store behind it.
#[tokio::test]
async fn boundary_cases_hold_through_the_whole_route() {
    let world = World::new().await;
    let items = json!((0..20_000).map(|at| format!("item-{at:06}")).collect::<Vec<_>>()).to_string();
    let mixed = format!("{}\n{}\n{}", "A".repeat(60_000), "B".repeat(60_000), "rep-rep-rep-rep-rep-rep\n".repeat(50));
    let wide = "\u{754c}".repeat(40_000);
    for (case, profile, text, loss, shown, digest) in [
        ("D", "conservative", "x".repeat(102_401), "bounded_preview", 102_400, "e936fe0829352b0a"),
        ("E", "context_efficient", "x".repeat(200_000), "head_tail", 98_304, "91e3faafd322bcdf"),
        ("H", "context_efficient", wide.clone(), "head_tail", 98_301, "40599b3598efd070"),
        ("I", "conservative", wide, "bounded_preview", 102_399, "40599b3598efd070"),
        ("J", "context_efficient", mixed, "composite", 0, "3297f6ba12424fb4"),
        ("K", "context_efficient", items.clone(), "deterministic_transform", 0, "e64738c67a19874e"),
        ("L", "context_efficient", items + "x", "head_tail", 98_304, "fae3263853db10f6"),
    ] {
        let policy = ProjectionPolicy::profile(profile).unwrap();
        let session = world.session().tool(repeat("mcp__a_b__c").shared()).projection(policy).open().await.unwrap();
        let result = session.tool("mcp__a_b__c", json!({"text": text})).await.unwrap();
        let evidence = evidence_of(&result);
        assert_eq!((&evidence["loss_mode"], &evidence["original_bytes"]), (&json!(loss), &json!(text.len())), "{case}");
        let uri = evidence["content_ref"].as_str().unwrap();
        assert!(uri.starts_with(&format!("a3s://tool-output/mcp__a_b__c/{digest}")), "{case}: {uri}");
        assert!(result.output.ends_with(&format!("\n[the whole output: {uri}]\n")), "{case}");
        assert_eq!(result.metadata["artifact"]["shown_bytes"], shown, "{case}");
        let mut artifact = session.artifact(uri).await.unwrap();
        assert!(artifact.read(0..u64::MAX).unwrap() == text.as_bytes(), "{case}");
        let proof = session.verify_evidence(&result).await.unwrap();
        assert!(proof.holds() && proof.again == Again::Same, "{case}: {proof:?}");
        session.close().await;
    }
    world.end().await;
}

#[tokio::test]
async fn what_lost_nothing_goes_without_the_store() {
    let world = World::new().await;
    let session = world.session().tool(repeat("say").shared()).open().await.unwrap();
    for text in ["", "ok\n", "same line of text\n"] {
        let result = session.tool("say", json!({"text": text, "times": 3})).await.unwrap();
        assert_eq!(result.output, text.repeat(3));
        assert_eq!(evidence_of(&result)["loss_mode"], "none");
        assert!(evidence_of(&result)["content_ref"].as_str().unwrap().starts_with("inline:sha256:"));
        assert!(!result.metadata.contains_key("artifact"));
        assert!(session.verify_evidence(&result).await.unwrap().holds());
    }
    assert_eq!(world.runtime.artifact_status().await.unwrap().artifacts, 0);
    world.end().await;
}

// Refusals, unknown tools, wrong arguments, failures and crashes have evidence like everything else.
#[tokio::test]
async fn every_ending_has_evidence_that_holds() {
    let world = World::new().await;
    let broken = custom("broken", |_ctx, _arguments| async { panic!("as planned") });
    let claims = custom("claims", |_ctx, _arguments| async {
        let forged = json!({"schema": "mine", "content_digest": "sha256:0"});
        ToolOutcome::failure("it failed").with("a3s_tool_result_evidence", forged)
    });
    let session = world
        .session()
        .tool(broken.needs(Needs::default()).shared())
        .tool(claims.shared())
        .policy(policy("deny = [\"claims\"]"))
        .open()
        .await
        .unwrap();
    let results = [
        session.tool("broken", json!({})).await.unwrap(),
        session.tool("claims", json!({})).await.unwrap(),
        session.tool("no_such_tool", json!({})).await.unwrap(),
        session.tool("read", json!({"wrong": 1})).await.unwrap(),
        session.governed_tool("claims", json!({})).await.unwrap(),
        session.governed_tool("read", json!({"file_path": "x"})).await.unwrap(),
    ];
    for result in results {
        assert!(!result.is_success());
        let proof = session.verify_evidence(&result).await.unwrap();
        assert!(proof.holds() && proof.figures.len() == 14, "{}: {proof:?}", result.output);
        assert_eq!(evidence_of(&result)["repeat_key"], evidence_of(&result)["content_digest"]);
    }
    world.end().await;
}

// Cases C016 and C018: a command's output that is too long is there to the byte, and its loss is said once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_of_a_long_command_is_kept() {
    let world = World::new().await;
    let session = world.open().await;
    for (command, loss, whole) in [
        ("head -c 200000 /dev/zero | tr '\\0' x", "composite", "x".repeat(200_000)),
        ("seq 1 300000", "head_tail", (1..=300_000).map(|n| format!("{n}\n")).collect()),
        ("yes | head -c 102401; exit 3", "head_tail", "y\n".repeat(51_200) + "y\n[exit code 3]\n"),
    ] {
        let result = session.tool("bash", json!({"command": command})).await.unwrap();
        let evidence = evidence_of(&result);
        assert_eq!(
            (&evidence["loss_mode"], &evidence["original_bytes"]),
            (&json!(loss), &json!(whole.len())),
            "{command}"
        );
        assert!(result.output.len() < 102_400 + 500);
        assert_eq!(result.output.matches("the whole output").count(), 1);
        assert_eq!(result.metadata["excerpted_by_tool"], true);
        let mut artifact = session.artifact(evidence["content_ref"].as_str().unwrap()).await.unwrap();
        assert!(artifact.read(0..u64::MAX).unwrap() == whole.as_bytes(), "{command}");
        let proof = session.verify_evidence(&result).await.unwrap();
        assert!(proof.holds() && proof.again == Again::ByTool, "{command}: {proof:?}");
    }
    world.end().await;
}

// Case C020: the model sees the screen, the stored copy has what was drawn over. Case C015: bytes that are no text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redraws_are_kept_and_bytes_that_are_no_text_end_nothing() {
    let world = World::new().await;
    let session = world.open().await;
    let command = r"printf '10%%\r50%%\r100%%\n\033[31mred\033[0m\033]0;t\007\n'";
    let result = session.tool("bash", json!({"command": command})).await.unwrap();
    let mut artifact = session.artifact(evidence_of(&result)["content_ref"].as_str().unwrap()).await.unwrap();
    assert!(result.output.starts_with("100%\nred\n[the whole output: "), "{}", result.output);
    assert_eq!(artifact.read(0..100).unwrap(), b"10%\r50%\r100%\nred\n");
    assert_eq!((artifact.read(4..7).unwrap(), artifact.size_bytes()), (b"50%".to_vec(), 17));
    let command = r"printf 'a\xff\x00b\n'; head -c 400 /dev/urandom; exit 7";
    let result = session.tool("bash", json!({"command": command})).await.unwrap();
    assert_eq!((result.exit_code, &result.metadata["output"]["lossy"]), (7, &json!(true)));
    assert!(result.output.starts_with("a\u{fffd}"));
    assert!(session.verify_evidence(&result).await.unwrap().holds());
    world.end().await;
}

#[tokio::test]
async fn the_members_of_a_batch_have_their_own_artifacts() {
    let world = World::new().await;
    let session = world.session().tool(repeat("say").reads(8).shared()).open().await.unwrap();
    let invocations: Vec<Value> =
        (0..3).map(|at| json!({"tool": "say", "args": {"text": format!("{at} long\n"), "times": 20_000}})).collect();
    let result = session.tool("batch", json!({"invocations": invocations})).await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    let ends = world.record.of_type("tool_end");
    let members: Vec<&Value> = ends.iter().filter(|end| end["name"] == "say").collect();
    assert_eq!(members.len(), 3);
    for member in members {
        let uri = member["metadata"]["artifact"]["artifact_uri"].as_str().unwrap();
        assert_eq!(session.artifact(uri).await.unwrap().size_bytes(), 140_000);
    }
    assert!(session.verify_evidence(&result).await.unwrap().holds());
    world.end().await;
}
