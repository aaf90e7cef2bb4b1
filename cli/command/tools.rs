//! `tools`: the tools of a session over the workspace.

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use toolwarden::session::Session;
use toolwarden_tools::tool::{Needs, ToolSpec};

use super::{CommandError, End, look_at};
use crate::assembly::{Surroundings, WorkspaceArgs};

#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    #[command(flatten)]
    workspace: WorkspaceArgs,

    /// Print the whole definitions as one JSON array
    #[arg(long)]
    json: bool,
}

/// A tool, as `--json` tells it.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    visible: bool,
    class: &'static str,
    lane: String,
    description: &'a str,
    parameters: &'a Value,
}

impl<'a> From<&'a ToolSpec> for Listed<'a> {
    fn from(spec: &'a ToolSpec) -> Self {
        Self {
            name: spec.name.as_str(),
            visible: spec.model_visible,
            class: class(spec.needs),
            lane: spec.lane.to_string(),
            description: &spec.description,
            parameters: &spec.parameters,
        }
    }
}

/// The strongest thing that a tool can do.
fn class(needs: Needs) -> &'static str {
    match needs {
        Needs { exec: true, .. } | Needs { background: true, .. } => "executes",
        Needs { write: true, .. } => "writes",
        needs if needs.nests() => "orchestrates",
        _ => "read-only",
    }
}

/// Lists the tools.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn list(args: ToolsArgs, with: &Surroundings) -> Result<End, CommandError> {
    let tell = |session: &Session| {
        let tools: Vec<Listed<'_>> = session.tool_specs().map(Listed::from).collect();
        if args.json { serde_json::to_string(&tools) } else { Ok(table(&tools)) }
    };
    look_at(args.workspace, with, tell).await
}

fn table(tools: &[Listed<'_>]) -> String {
    let head = ["NAME", "MODEL SEES IT", "CLASS", "LANE"].map(str::to_owned);
    let row = |tool: &Listed<'_>| {
        let sees = if tool.visible { "yes" } else { "no" };
        [tool.name.to_owned(), sees.to_owned(), tool.class.to_owned(), tool.lane.clone()]
    };
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(tools.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3)];
    let line = |row: &[String; 4]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use toolwarden_tools::tool::Needs;

    use super::{Listed, class, table};

    #[test]
    fn a_class_is_the_strongest_need() {
        let needs = Needs::default();
        assert_eq!(class(needs), "read-only");
        assert_eq!(class(Needs { delegate: true, ..needs }), "orchestrates");
        assert_eq!(class(Needs { write: true, invoke: true, ..needs }), "writes");
        assert_eq!(class(Needs { exec: true, write: true, ..needs }), "executes");
    }

    #[test]
    fn a_table_has_straight_columns() {
        let tool = |name, visible| Listed {
            name,
            visible,
            class: "read-only",
            lane: "query".into(),
            description: "",
            parameters: &serde_json::Value::Null,
        };
        assert_eq!(
            table(&[tool("a", true), tool("longer", false)]),
            "NAME    MODEL SEES IT  CLASS      LANE\n\
             a       yes            read-only  query\n\
             longer  no             read-only  query"
        );
    }
}
