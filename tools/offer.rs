//! The tools that a model is offered, made once and shared.
//!
//! A turn carries all of them, and a tree of runs has thousands of turns: each definition is made when it is first
//! wanted, and what is passed on is a reference. On the wire an offer is a list of definitions.

use std::ops::Index;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::canonical_json::json_bytes;
use crate::declaration::ToolDefinition;

/// A tool on offer.
#[derive(Debug)]
pub struct OfferedTool {
    definition: ToolDefinition,
    bytes: OnceLock<usize>,
}

impl OfferedTool {
    /// A tool of this definition.
    pub fn new(definition: ToolDefinition) -> Self {
        Self { definition, bytes: OnceLock::new() }
    }

    fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| self.definition.description.len() + json_bytes(&self.definition.parameters))
    }
}

/// Tools that are offered together; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Offer {
    tools: Arc<[Arc<OfferedTool>]>,
}

impl Offer {
    /// The definitions, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ToolDefinition> {
        self.tools.iter().map(|tool| &tool.definition)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Bytes of the descriptions, and of the parameters as JSON.
    pub fn bytes(&self) -> usize {
        self.tools.iter().map(|tool| tool.bytes()).sum()
    }
}

impl FromIterator<Arc<OfferedTool>> for Offer {
    fn from_iter<I: IntoIterator<Item = Arc<OfferedTool>>>(tools: I) -> Self {
        Self { tools: tools.into_iter().collect() }
    }
}

impl FromIterator<ToolDefinition> for Offer {
    fn from_iter<I: IntoIterator<Item = ToolDefinition>>(definitions: I) -> Self {
        definitions.into_iter().map(|definition| Arc::new(OfferedTool::new(definition))).collect()
    }
}

impl From<Vec<ToolDefinition>> for Offer {
    fn from(definitions: Vec<ToolDefinition>) -> Self {
        definitions.into_iter().collect()
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Index<usize> for Offer {
    type Output = ToolDefinition;

    fn index(&self, at: usize) -> &ToolDefinition {
        &self.tools[at].definition
    }
}

impl Serialize for Offer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Offer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Offer;
    use crate::declaration::ToolDefinition;

    #[test]
    fn an_offer_is_a_list_of_definitions_on_the_wire_and_counts_their_bytes() {
        let parameters = json!({"type": "object"});
        let definition = ToolDefinition { name: "read".into(), description: "Reads.".to_owned(), parameters };
        let offer = Offer::from(vec![definition.clone()]);
        let wire = json!([{"name": "read", "description": "Reads.", "parameters": {"type": "object"}}]);
        assert_eq!(serde_json::to_value(&offer).unwrap(), wire);
        assert_eq!(serde_json::from_value::<Offer>(wire).unwrap(), offer);
        assert_eq!((offer.len(), &offer[0], offer.bytes()), (1, &definition, 6 + 17));
        assert!(Offer::default().is_empty() && Offer::default() != offer);
    }
}
