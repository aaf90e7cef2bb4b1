//! Takes nulls out again that stand for members that were left out.
//!
//! A strict schema has no optional members, so they are asked for as ones that may be null. What must stay true: a null
//! goes only where the schema has a member of that name that may be left out and may not be null.

use serde_json::{Map, Value};

use super::schema_walk::resolved;
use toolwarden_tools::json_tree::Node;

/// Most alternatives that are looked into for one value.
const ALTERNATIVES_MAX: usize = 256;

/// Takes the nulls out of a value that the schema would refuse for them.
pub fn without_nulls(node: &mut Node<'_>, schema: &Value) {
    strip(node, &[schema], schema);
}

/// Recursion is bounded by the depth of the value.
fn strip(node: &mut Node<'_>, schemas: &[&Value], root: &Value) {
    let shapes = shapes(schemas, root);
    match node {
        Node::Object(members) => {
            members.retain(|member| !(is_null(&member.value) && may_only_be_left_out(&member.key, &shapes, root)));
            for member in members {
                let inner: Vec<&Value> =
                    shapes.iter().filter_map(|shape| shape.get("properties")?.get(&member.key)).collect();
                if !inner.is_empty() {
                    strip(&mut member.value, &inner, root);
                }
            }
        }
        Node::Array(items) => {
            let inner: Vec<&Value> = shapes.iter().filter_map(|shape| shape.get("items")).collect();
            if !inner.is_empty() {
                items.iter_mut().for_each(|item| strip(item, &inner, root));
            }
        }
        Node::Scalar(..) => {}
    }
}

fn is_null(node: &Node<'_>) -> bool {
    matches!(node, Node::Scalar(_, "null"))
}

/// Everything that may describe a value: the schemas, what they refer to, their parts and alternatives.
fn shapes<'a>(schemas: &[&'a Value], root: &'a Value) -> Vec<&'a Map<String, Value>> {
    let (mut shapes, mut open): (Vec<&Map<String, Value>>, Vec<&Value>) = (Vec::new(), schemas.to_vec());
    let mut looked_at = 0;
    while let Some(schema) = open.pop() {
        looked_at += 1;
        if looked_at > ALTERNATIVES_MAX {
            break;
        }
        let Some(fields) = schema.as_object() else { continue };
        if let Some(target) = resolved(root, schema).filter(|target| !std::ptr::eq(*target, schema)) {
            open.push(target);
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            open.extend(fields.get(key).and_then(Value::as_array).into_iter().flatten());
        }
        shapes.push(fields);
    }
    shapes
}

fn may_only_be_left_out(key: &str, shapes: &[&Map<String, Value>], root: &Value) -> bool {
    let mut is_optional = false;
    for shape in shapes {
        let Some(member) = shape.get("properties").and_then(|members| members.get(key)) else { continue };
        if takes_null(member, root) {
            return false;
        }
        let required = shape.get("required").and_then(Value::as_array);
        is_optional |= !required.is_some_and(|names| names.iter().any(|name| name == key));
    }
    is_optional
}

fn takes_null(schema: &Value, root: &Value) -> bool {
    shapes(&[schema], root).iter().any(|shape| {
        let says = shape.keys().any(|key| {
            matches!(
                key.as_str(),
                "type" | "const" | "enum" | "$ref" | "allOf" | "anyOf" | "oneOf" | "properties" | "items"
            )
        });
        match (shape.get("type"), shape.get("const"), shape.get("enum")) {
            (Some(Value::String(kind)), _, _) => kind == "null",
            (Some(Value::Array(kinds)), _, _) => kinds.iter().any(|kind| kind == "null"),
            (_, Some(value), _) => value.is_null(),
            (_, _, Some(Value::Array(values))) => values.contains(&Value::Null),
            // A schema that says nothing of kinds takes null, too.
            _ => !says,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::without_nulls;
    use toolwarden_tools::json_tree::Node;

    #[test]
    fn only_nulls_that_stand_for_nothing_go() {
        let schema = json!({
            "type": "object", "required": ["must"],
            "properties": {
                "must": {"type": "string"}, "may": {"type": "string"}, "nullable": {"type": ["string", "null"]},
                "any": {}, "list": {"type": "array", "items": {"$ref": "#/$defs/inner"}},
                "either": {"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "string"}]},
            },
            "$defs": {"inner": {"type": "object", "properties": {"x": {"enum": [1, 2]}, "y": {"enum": [1, null]}}}},
        });
        let text = r#"{"must":null,"may":null,"nullable":null,"any":null,"list":[{"x":null,"y":null},null],"either":{"a":null},"other":null}"#;
        let mut node = Node::read(text).unwrap();
        without_nulls(&mut node, &schema);
        assert_eq!(
            node.write(),
            r#"{"must":null,"nullable":null,"any":null,"list":[{"y":null},null],"either":{},"other":null}"#
        );
    }
}
