//! What it costs to check a value by a schema, counted before it is done: a validator recurses, and a schema may be a bomb.
//!
//! A schema that refers to itself in place never ends, and alternatives inside of alternatives double at every level. What
//! must stay true: a value is given to the validator only when the steps of checking it, taken as naively as can be, are
//! bounded in number and in depth; counting them does not recurse.

use serde_json::Value;

use super::schema_walk::{each_schema, referred};

/// Most steps for one place of a value.
const PLACE_STEPS_MAX: usize = 4096;
/// Most steps for a whole value, beside those that its size is worth.
const STEPS_MAX: usize = 1_000_000;
/// Steps that each node of a value is worth.
const NODE_STEPS: usize = 64;
/// Deepest recursion of the validator: its frames have to fit the stack of a worker, 2 MiB.
const DEPTH_MAX: usize = 512;

/// Whether each place of a schema is checked in a bounded number of steps, whatever the value is.
pub fn ends(root: &Value) -> bool {
    let mut all_end = true;
    each_schema(root, &mut |schema, _| {
        let count = Count { root, steps: 0, steps_max: PLACE_STEPS_MAX };
        all_end = all_end && count.run(schema, &Value::Null);
    });
    all_end
}

/// Whether a value is checked in a bounded number of steps.
pub fn is_bounded(root: &Value, value: &Value) -> bool {
    let steps_max = STEPS_MAX.saturating_add(nodes(value).saturating_mul(NODE_STEPS));
    Count { root, steps: 0, steps_max }.run(root, value)
}

fn nodes(value: &Value) -> usize {
    let (mut count, mut open) = (0, vec![value]);
    while let Some(value) = open.pop() {
        count += 1;
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => open.extend(fields.values()),
            _ => {}
        }
    }
    count
}

struct Count<'a> {
    root: &'a Value,
    steps: usize,
    steps_max: usize,
}

impl<'a> Count<'a> {
    fn run(mut self, schema: &'a Value, value: &'a Value) -> bool {
        let mut open = vec![(schema, value, 0_usize)];
        while let Some((schema, value, depth)) = open.pop() {
            self.steps += 1;
            if self.steps > self.steps_max || depth > DEPTH_MAX {
                return false;
            }
            let Some(fields) = schema.as_object() else { continue };
            let mut go_on = |schema: &'a Value, value: &'a Value| open.push((schema, value, depth + 1));
            if let Some(target) = fields.get("$ref").and_then(Value::as_str).and_then(|to| referred(self.root, to)) {
                go_on(target, value);
            }
            for key in ["allOf", "anyOf", "oneOf"] {
                for one in fields.get(key).and_then(Value::as_array).into_iter().flatten() {
                    go_on(one, value);
                }
            }
            for key in ["not", "if", "then", "else"] {
                fields.get(key).into_iter().for_each(|one| go_on(one, value));
            }
            for one in fields.get("dependentSchemas").and_then(Value::as_object).into_iter().flatten() {
                go_on(one.1, value);
            }
            match value {
                Value::Object(members) => {
                    let own = fields.get("properties").and_then(Value::as_object);
                    for (name, member) in members {
                        match own.and_then(|own| own.get(name)) {
                            Some(one) => go_on(one, member),
                            None => {
                                for key in ["additionalProperties", "unevaluatedProperties"] {
                                    fields.get(key).into_iter().for_each(|one| go_on(one, member));
                                }
                            }
                        }
                        for one in fields.get("patternProperties").and_then(Value::as_object).into_iter().flatten() {
                            go_on(one.1, member);
                        }
                    }
                }
                Value::Array(items) => {
                    let placed = fields.get("prefixItems").and_then(Value::as_array);
                    for (at, item) in items.iter().enumerate() {
                        placed.and_then(|placed| placed.get(at)).into_iter().for_each(|one| go_on(one, item));
                        for key in ["items", "contains", "unevaluatedItems"] {
                            fields.get(key).into_iter().for_each(|one| go_on(one, item));
                        }
                    }
                }
                _ => {}
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{ends, is_bounded};

    #[test]
    fn circles_in_place_and_doubling_are_seen() {
        for endless in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {}]}}}),
            json!({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"if": {"$ref": "#/$defs/a"}}}}),
        ] {
            assert!(!ends(&endless), "{endless}");
        }
        let mut bomb = json!({"$ref": "#/$defs/d0", "$defs": {"d30": {"type": "string"}}});
        for level in 0..30 {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            bomb["$defs"][format!("d{level}")] = json!({"anyOf": [next, next]});
        }
        assert!(!ends(&bomb));
        let tree = json!({"type": "array", "items": {"$ref": "#"}});
        assert!(ends(&tree));
    }

    #[test]
    fn what_doubles_with_the_depth_of_a_value_is_bounded_by_the_value() {
        let alternatives = json!({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}, {"type": "string"}]});
        assert!(ends(&alternatives));
        let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| Value::Array(vec![inner]));
        assert!(is_bounded(&alternatives, &deep(10)));
        assert!(!is_bounded(&alternatives, &deep(60)));
        let wide = Value::Array((0..100_000).map(|at| json!({"n": at})).collect());
        assert!(is_bounded(&json!({"items": {"properties": {"n": {"type": "integer"}}}}), &wide));
    }
}
