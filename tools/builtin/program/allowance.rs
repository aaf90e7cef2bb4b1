//! Which tools a script may call: what its caller listed, out of what there is, never an orchestrator of its own kind.
//!
//! It holds through `batch` as well: what a script puts into a batch must be allowed to the script itself. Beyond this
//! list, every call is judged on its own by the route.

use std::collections::BTreeSet;

use serde_json::Value;
use thiserror::Error;

use crate::builtin::batch::binding::REFERENCE_KEY;
use crate::context::Invoke;

/// Never callable from a script.
const NEVER: [&str; 3] = ["program", "dynamic_workflow", "parallel_task"];
/// Names that stand for one mode of `search`.
const SEARCH_MODES: [&str; 3] = ["grep", "glob", "bm25"];

/// The tools of one script.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Allowance {
    names: BTreeSet<String>,
}

/// Why a list of tools cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("allowed_tools names {unknown}, which is no tool here; there are {known}")]
pub(crate) struct UnknownTools {
    unknown: String,
    known: String,
}

/// Why a call of a script is not made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum NotAllowed {
    /// Not on the list.
    #[error("the tool {tool:?} is not allowed to this script; {}", advice(.allowed))]
    Tool {
        /// Which tool.
        tool: String,
        /// What may be called.
        allowed: String,
    },
    /// Several tasks at once.
    #[error("a script starts one task a call; make several calls, and await them together with Promise.all")]
    ManyTasks,
    /// Tasks that nobody can count before another call has run.
    #[error(
        "the tasks of a batch stand in the batch itself; a reference may stand for a part of one task, not for tasks"
    )]
    TasksByReference,
}

fn advice(allowed: &str) -> String {
    match allowed {
        "" => "no tool is".to_owned(),
        allowed => format!("it may call {allowed}"),
    }
}

impl Allowance {
    /// What `wanted` lists, or everything that is visible.
    ///
    /// # Errors
    /// [`UnknownTools`] for names that nobody has.
    pub(crate) fn new(wanted: Option<Vec<String>>, invoke: &dyn Invoke) -> Result<Self, UnknownTools> {
        let there: BTreeSet<String> = invoke.available().into_iter().map(|tool| tool.name.to_string()).collect();
        let mut names = match wanted {
            None => there,
            Some(wanted) => {
                let known = |name: &String| {
                    there.contains(name)
                        // One that no model sees has to be named.
                        || invoke.has(name)
                        || NEVER.contains(&name.as_str())
                        || (SEARCH_MODES.contains(&name.as_str()) && there.contains("search"))
                };
                let unknown: Vec<String> =
                    wanted.iter().filter(|name| !known(name)).map(|name| format!("{name:?}")).collect();
                if !unknown.is_empty() {
                    let known = Vec::from_iter(there).join(", ");
                    return Err(UnknownTools { unknown: unknown.join(", "), known });
                }
                wanted.into_iter().collect()
            }
        };
        names.retain(|name| !NEVER.contains(&name.as_str()));
        Ok(Self { names })
    }

    /// The same with one tool more.
    #[must_use]
    pub(crate) fn and(mut self, tool: &str) -> Self {
        self.names.insert(tool.to_owned());
        self
    }

    /// Whether a tool is on the list.
    pub(crate) fn names(&self, tool: &str) -> bool {
        self.names.contains(tool)
    }

    /// Whether this call may be made.
    ///
    /// # Errors
    /// [`NotAllowed`].
    pub(crate) fn check(&self, tool: &str, arguments: &Value) -> Result<(), NotAllowed> {
        let mode = arguments.get("mode").and_then(Value::as_str);
        let by_mode =
            tool == "search" && mode.is_some_and(|mode| SEARCH_MODES.contains(&mode) && self.names.contains(mode));
        if NEVER.contains(&tool) || !(self.names.contains(tool) || by_mode) {
            let allowed = Vec::from_iter(self.names.iter().map(String::as_str)).join(", ");
            return Err(NotAllowed::Tool { tool: tool.to_owned(), allowed });
        }
        match tool {
            "task" if task_count(arguments) > 1 => Err(NotAllowed::ManyTasks),
            "batch" => self.check_batch(arguments),
            _ => Ok(()),
        }
    }

    fn check_batch(&self, arguments: &Value) -> Result<(), NotAllowed> {
        let calls = arguments.get("invocations").and_then(Value::as_array).into_iter().flatten();
        let mut tasks = 0;
        for call in calls {
            let inner = call.get("tool").and_then(Value::as_str).unwrap_or_default();
            let given = call.get("args").unwrap_or(&Value::Null);
            // A batch in a batch is refused by the route; it is not followed any deeper here.
            if inner != "batch" {
                self.check(inner, given)?;
            }
            if inner == "task" {
                let list = given.get("tasks").unwrap_or(given);
                if list.get(REFERENCE_KEY).is_some() || given.get(REFERENCE_KEY).is_some() {
                    return Err(NotAllowed::TasksByReference);
                }
                tasks += task_count(given);
            }
        }
        if tasks > 1 { Err(NotAllowed::ManyTasks) } else { Ok(()) }
    }
}

/// How many tasks a call of `task` asks for.
fn task_count(arguments: &Value) -> usize {
    arguments.get("tasks").and_then(Value::as_array).map_or(1, Vec::len)
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use serde_json::{Value, json};

    use super::{Allowance, NotAllowed};
    use crate::context::{Invoke, ToolCall};
    use crate::declaration::{Capabilities, ToolDefinition};
    use crate::outcome::ToolOutcome;

    struct There(&'static [&'static str]);

    impl Invoke for There {
        fn invoke_all(&self, _calls: Vec<ToolCall>, _width: usize) -> BoxFuture<'_, Vec<ToolOutcome>> {
            Box::pin(async { Vec::new() })
        }

        fn capabilities(&self, _call: &ToolCall) -> Option<Capabilities> {
            None
        }

        fn available(&self) -> Vec<ToolDefinition> {
            let one = |name: &&str| ToolDefinition {
                name: (*name).into(),
                description: String::new(),
                parameters: Value::Null,
            };
            self.0.iter().map(one).collect()
        }
    }

    const THERE: There = There(&["bash", "batch", "program", "read", "search", "task"]);

    fn allowance(names: &[&str]) -> Allowance {
        Allowance::new(Some(names.iter().map(ToString::to_string).collect()), &THERE).unwrap()
    }

    #[test]
    fn everything_but_orchestrators_of_scripts_when_nothing_is_listed() {
        let all = Allowance::new(None, &THERE).unwrap();
        assert!(all.check("bash", &json!({})).is_ok());
        assert!(all.check("program", &json!({})).is_err(), "never");
        assert!(allowance(&["program"]).check("program", &json!({})).is_err(), "not even when it is listed");
        let unknown = Allowance::new(Some(vec!["raed".into()]), &THERE).unwrap_err().to_string();
        assert!(unknown.contains("\"raed\"") && unknown.contains("read"), "{unknown}");
    }

    #[test]
    fn a_mode_of_search_is_a_grant_for_that_mode() {
        let grep = allowance(&["grep"]);
        assert!(grep.check("search", &json!({"mode": "grep"})).is_ok());
        assert!(grep.check("search", &json!({"mode": "glob"})).is_err());
        assert!(grep.check("search", &json!({})).is_err());
    }

    #[test]
    fn a_batch_is_no_way_round_the_list_and_tasks_come_one_by_one() {
        let few = allowance(&["batch", "read", "task"]);
        let batch = |tool: &str| json!({"invocations": [{"tool": "read", "args": {}}, {"tool": tool, "args": {}}]});
        assert!(few.check("batch", &batch("read")).is_ok());
        assert!(matches!(few.check("batch", &batch("bash")), Err(NotAllowed::Tool { tool, .. }) if tool == "bash"));
        assert!(few.check("batch", &batch("program")).is_err());
        assert!(few.check("task", &json!({"tasks": [{}]})).is_ok());
        assert_eq!(few.check("task", &json!({"tasks": [{}, {}]})), Err(NotAllowed::ManyTasks));
        // Found in a review: a batch started as many as it liked, one by one or out of another call's result.
        let of_tasks = |args: &[Value]| {
            let calls = args.iter().map(|args| json!({"tool": "task", "args": args}));
            few.check("batch", &json!({"invocations": calls.collect::<Vec<_>>()}))
        };
        let one = json!({"agent": "general", "description": "d", "prompt": {"$ref": "a.output"}});
        assert_eq!(of_tasks(std::slice::from_ref(&one)), Ok(()));
        assert_eq!(of_tasks(&[json!({"tasks": [one, one]})]), Err(NotAllowed::ManyTasks));
        assert_eq!(of_tasks(&[one.clone(), one.clone()]), Err(NotAllowed::ManyTasks));
        for hidden in [json!({"tasks": {"$ref": "a.metadata.tasks"}}), json!({"$ref": "a.metadata"})] {
            assert_eq!(of_tasks(&[hidden]), Err(NotAllowed::TasksByReference));
        }
    }
}
