//! Who proposed a call, and so which stages of the route judge it.
//!
//! The origin is set by whoever builds the proposal inside the runtime, never by an argument: a model cannot claim
//! to be the host.

use serde::Serialize;

/// Who proposed a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A model, in a run.
    Agent,
    /// A tool that the origin does not carry through: any custom tool, or an orchestrator called by a model.
    Nested,
    /// The host, through `session.tool`.
    HostDirectTrusted,
    /// The host, through `session.governed_tool`.
    HostDirectGoverned,
    /// A built-in orchestrator that the host called trusted.
    HostDirectNestedTrusted,
    /// A built-in orchestrator that the host called governed.
    HostDirectNestedGoverned,
}

impl Origin {
    /// Whether skill limits, permission and confirmation are skipped: the host answers for the call itself.
    /// Nothing else is skipped for anybody.
    pub fn is_trusted(self) -> bool {
        matches!(self, Self::HostDirectTrusted | Self::HostDirectNestedTrusted)
    }

    /// The origin of a call that a tool makes. Only built-in orchestrators pass the host's trust on.
    #[must_use]
    pub fn nested(self, through_builtin: bool) -> Self {
        match (self, through_builtin) {
            (Self::HostDirectTrusted | Self::HostDirectNestedTrusted, true) => Self::HostDirectNestedTrusted,
            (Self::HostDirectGoverned | Self::HostDirectNestedGoverned, true) => Self::HostDirectNestedGoverned,
            _ => Self::Nested,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Origin;

    #[test]
    fn trust_goes_through_built_in_orchestrators_only() {
        let host = Origin::HostDirectTrusted;
        assert!(host.nested(true).is_trusted());
        assert!(!host.nested(false).is_trusted());
        assert!(!Origin::Agent.nested(true).is_trusted());
        assert_eq!(host.nested(true).nested(true), Origin::HostDirectNestedTrusted);
        assert_eq!(Origin::HostDirectGoverned.nested(true), Origin::HostDirectNestedGoverned);
    }
}
