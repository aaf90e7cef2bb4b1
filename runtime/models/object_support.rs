//! By which means a model can be held to the form of an object.

/// What a model's protocol has for it; nothing by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectSupport {
    /// It can be told to call one certain tool.
    pub forced_tool: bool,
    /// It can be told to write a JSON object, whichever.
    pub json_object: bool,
    /// It can be held to a schema, in this dialect.
    pub json_schema: Option<StrictDialect>,
}

impl ObjectSupport {
    /// All of it.
    pub fn all(dialect: StrictDialect) -> Self {
        Self { forced_tool: true, json_object: true, json_schema: Some(dialect) }
    }
}

/// Whose form of strict schemas it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrictDialect {
    /// OpenAI's: every member is required, circles are taken.
    OpenAi,
    /// Claude's: members may be left out, circles are not taken.
    Claude,
}
