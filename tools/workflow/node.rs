//! Workflows without a script's decisions: nodes that say what they need, what they give and where they lead.
//!
//! What a node gives is committed only when it is what the node said it would give, and only that; a branch is the
//! first route, in the order declared, whose condition holds. The next command follows from the state of the run
//! alone, as a script's does.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::workflow::command::{Command, StepCommand};
use crate::workflow::retry::RetryPolicy;
use crate::workflow::state::{RunState, StepStatus};

/// Most nodes of a workflow.
pub const NODES_MAX: usize = 256;
/// Most visits of nodes in one run: routes may lead back.
pub const VISITS_MAX: usize = 1_000;

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its id.
    pub id: String,
    /// What kind of step it is.
    pub step_name: String,
    /// The keys of the state that it needs; it gets these and nothing else.
    #[serde(default)]
    pub requires: Vec<String>,
    /// The keys that it gives; its output must have each of them.
    #[serde(default)]
    pub provides: Vec<String>,
    /// Where it leads, the first that holds; the end of the run when none does or none is declared.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// Where it leads when it fails; the run fails when there is none.
    #[serde(default, rename = "onErrorNodeId")]
    pub on_error_node_id: Option<String>,
    /// When it is tried again.
    #[serde(default)]
    pub retry: Option<RetryPolicy>,
}

/// A way to the next node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The node; the end of the run when none.
    #[serde(default)]
    pub to: Option<String>,
    /// When it is taken; always when none.
    #[serde(default)]
    pub when: Option<Condition>,
}

/// A key of the state and the value it must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The key.
    pub key: String,
    /// Its value.
    pub equals: Value,
}

/// What is wrong with the nodes, if anything: told before the run begins.
pub fn fault(nodes: &[Node], input: &Value) -> Option<String> {
    if nodes.len() > NODES_MAX {
        return Some(format!("nodes has {} entries; at most {NODES_MAX} are taken", nodes.len()));
    }
    let mut ids = BTreeSet::new();
    if let Some(twice) = nodes.iter().find(|node| !ids.insert(node.id.as_str())) {
        return Some(format!("two nodes have the id {:?}", twice.id));
    }
    let mut known: BTreeSet<&str> = input.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    known.insert("error");
    known.extend(nodes.iter().flat_map(|node| node.provides.iter().map(String::as_str)));
    for node in nodes {
        let id = &node.id;
        if id.trim().is_empty() || id.len() > 128 || id.chars().any(|c| c.is_control() || c == '#') {
            return Some(format!("{id:?} is no id of a node: one line of 1 to 128 bytes without #"));
        }
        let ways = node.routes.iter().filter_map(|route| route.to.as_ref()).chain(&node.on_error_node_id);
        for to in ways {
            if !ids.contains(to.as_str()) {
                return Some(format!("node {id:?} leads to {to:?}, which is no node"));
            }
        }
        if let Some(missing) = node.requires.iter().find(|key| !known.contains(key.as_str())) {
            return Some(format!("node {id:?} requires {missing:?}, which neither the input nor any node provides"));
        }
    }
    None
}

/// What comes next: the nodes are followed along the steps that the run has.
pub fn command(nodes: &[Node], state: &RunState) -> Command {
    let mut values: Map<String, Value> = state.input.as_object().cloned().unwrap_or_default();
    let mut at = nodes.first();
    if state.cancel.is_some() {
        return Command::Complete { output: Value::Null };
    }
    for visit in 1..=VISITS_MAX {
        let Some(node) = at else { return Command::Complete { output: Value::Object(values) } };
        let step_id = format!("{}#{visit}", node.id);
        let Some(step) = state.steps.get(&step_id) else { return visit_node(node, step_id, &values) };
        let failed = match &step.status {
            StepStatus::Completed(output) => commit(node, output, &mut values).err(),
            StepStatus::Failed(error) => Some(error.clone()),
            // Open steps are worked on before anybody is asked.
            _ => Some("it has not ended".to_owned()),
        };
        let next = match (failed, &node.on_error_node_id) {
            (None, _) => first_route(node, &values),
            (Some(error), Some(to)) => {
                values.insert("error".to_owned(), json!({"node": node.id, "message": error}));
                Some(to.as_str())
            }
            (Some(error), None) => return fail(node, &error),
        };
        at = next.and_then(|next| nodes.iter().find(|node| node.id == next));
    }
    Command::Fail { error: json!(format!("more than {VISITS_MAX} nodes were visited; a route leads round for ever")) }
}

fn fail(node: &Node, problem: &str) -> Command {
    Command::Fail { error: json!(format!("node {:?}: {problem}", node.id)) }
}

fn visit_node(node: &Node, step_id: String, values: &Map<String, Value>) -> Command {
    let mut input = Map::new();
    for key in &node.requires {
        match values.get(key) {
            Some(value) => input.insert(key.clone(), value.clone()),
            None => return fail(node, &format!("it requires {key:?}, which nothing has provided on this way")),
        };
    }
    Command::ScheduleStep(StepCommand {
        step_id,
        step_name: node.step_name.clone(),
        input: Value::Object(input),
        retry: node.retry,
        continue_workflow_on_failure: true,
    })
}

/// Takes what the node said it would give, all of it or nothing.
fn commit(node: &Node, output: &Value, values: &mut Map<String, Value>) -> Result<(), String> {
    let given = |key: &String| output.get(key).map(|value| (key.clone(), value.clone()));
    let taken: Vec<(String, Value)> = node.provides.iter().filter_map(given).collect();
    if let Some(missing) = node.provides.iter().find(|key| output.get(key.as_str()).is_none()) {
        return Err(format!("its output lacks {missing:?}, which it provides"));
    }
    values.extend(taken);
    Ok(())
}

fn first_route<'a>(node: &'a Node, values: &Map<String, Value>) -> Option<&'a str> {
    let holds = |route: &&Route| {
        route.when.as_ref().is_none_or(|when| values.get(&when.key).unwrap_or(&Value::Null) == &when.equals)
    };
    node.routes.iter().find(holds).and_then(|route| route.to.as_deref())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Node, command, fault};
    use crate::digest::Digest;
    use crate::workflow::command::Command;
    use crate::workflow::event::{Entry, Event};
    use crate::workflow::state::RunState;

    fn nodes(value: Value) -> Vec<Node> {
        serde_json::from_value(value).unwrap()
    }

    /// Runs nodes whose steps end with what `work` says; gives the steps in order and the end.
    fn follow(
        nodes: &[Node],
        input: Value,
        work: impl Fn(&str, &Value) -> Result<Value, String>,
    ) -> (Vec<String>, Command) {
        let (mut entries, mut order) = (Vec::new(), Vec::new());
        let put = |event: Event, entries: &mut Vec<Entry>| {
            entries.push(Entry { sequence: entries.len() as u64 + 1, at_ms: 0, event });
        };
        put(
            Event::RunCreated { run_id: "r".into(), source_hash: Digest::of(b""), input, timeout_ms: None },
            &mut entries,
        );
        loop {
            match command(nodes, &RunState::of(&entries)) {
                Command::ScheduleStep(step) => {
                    order.push(step.step_id.clone());
                    let step_id = step.step_id.clone();
                    let event = match work(&step.step_name, &step.input) {
                        Ok(output) => Event::StepCompleted { step_id, output },
                        Err(error) => Event::StepFailed { step_id, error },
                    };
                    put(Event::StepCreated(step.into()), &mut entries);
                    put(event, &mut entries);
                }
                end => return (order, end),
            }
        }
    }

    #[test]
    fn branches_are_taken_in_the_order_declared_and_only_what_is_promised_is_committed() {
        let graph = nodes(json!([
            {"id": "look", "step_name": "look", "requires": ["topic"], "provides": ["kind"], "routes": [
                {"to": "deep", "when": {"key": "kind", "equals": "hard"}},
                {"to": "deep", "when": {"key": "kind", "equals": "hard"}},
                {"to": "short"}]},
            {"id": "deep", "step_name": "deep", "requires": ["kind"], "provides": ["text"]},
            {"id": "short", "step_name": "short", "provides": ["text"]},
        ]));
        assert_eq!(fault(&graph, &json!({"topic": "x"})), None);
        let (order, end) = follow(&graph, json!({"topic": "x"}), |name, input| {
            Ok(match name {
                "look" => {
                    assert_eq!(*input, json!({"topic": "x"}), "a node gets what it requires");
                    json!({"kind": "hard", "stray": 1})
                }
                _ => json!({"text": name}),
            })
        });
        assert_eq!(order, ["look#1", "deep#2"]);
        assert_eq!(end, Command::Complete { output: json!({"topic": "x", "kind": "hard", "text": "deep"}) });
    }

    #[test]
    fn a_broken_promise_is_a_failure_and_failures_have_their_node() {
        let graph = nodes(json!([
            {"id": "a", "step_name": "a", "provides": ["x"], "onErrorNodeId": "mend"},
            {"id": "mend", "step_name": "mend", "requires": ["error"], "provides": ["x"]},
        ]));
        let work = |name: &str, input: &Value| match name {
            "a" => Ok(json!({"y": 1})),
            _ => Ok(json!({"x": input["error"]["message"]})),
        };
        let (order, end) = follow(&graph, json!({}), work);
        assert_eq!(order, ["a#1", "mend#2"]);
        let Command::Complete { output } = end else { panic!("{end:?}") };
        assert!(output["x"].as_str().unwrap().contains("lacks \"x\""), "{output}");
        let (_, end) = follow(&graph[..1], json!({}), |_, _| Err("it broke".into()));
        assert_eq!(end, Command::Complete { output: json!({"error": {"node": "a", "message": "it broke"}}) });
        let alone = nodes(json!([{"id": "a", "step_name": "a"}]));
        let (_, end) = follow(&alone, json!({}), |_, _| Err("it broke".into()));
        assert_eq!(end, Command::Fail { error: json!("node \"a\": it broke") });
    }

    #[test]
    fn what_cannot_hold_is_told_before_the_run_begins() {
        for (graph, said) in [
            (json!([{"id": "a", "step_name": "n"}, {"id": "a", "step_name": "n"}]), "two nodes"),
            (json!([{"id": "a", "step_name": "n", "routes": [{"to": "b"}]}]), "no node"),
            (json!([{"id": "a", "step_name": "n", "onErrorNodeId": "b"}]), "no node"),
            (json!([{"id": "a", "step_name": "n", "requires": ["x"]}]), "neither the input"),
            (json!([{"id": "a#1", "step_name": "n"}]), "no id of a node"),
        ] {
            let problem = fault(&nodes(graph), &json!({})).unwrap();
            assert!(problem.contains(said), "{problem}");
        }
        let round = nodes(json!([{"id": "a", "step_name": "n", "routes": [{"to": "a"}]}]));
        let (order, end) = follow(&round, json!({}), |_, _| Ok(Value::Null));
        assert_eq!(order.len(), super::VISITS_MAX);
        assert!(matches!(end, Command::Fail { .. }));
    }
}
