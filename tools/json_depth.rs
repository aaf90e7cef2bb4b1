//! How deep JSON may be nested, and how what is deeper is cut without recursion.
//!
//! Text cannot bring more than serde_json's 127 levels, but code can: a host, a hook, a custom tool. Everything
//! that walks a value recurses, dropping it included, and a worker's stack is 2 MiB; so a value from outside is cut
//! where it comes in, before anything else touches it.

use serde_json::Value;

/// Deepest nesting of a schema or of arguments that is taken. Less than the 127 levels that readers of JSON take,
/// because events repeat arguments inside of a few levels of their own.
pub const JSON_DEPTH_MAX: usize = 100;
/// Deepest nesting of a fact in a result's metadata: results are repeated inside of results.
pub const FACT_DEPTH_MAX: usize = 32;

/// Whether a value is nested deeper than `levels`; itself not recursive.
pub fn deeper_than(value: &Value, levels: usize) -> bool {
    let mut open = vec![(value, 1_usize)];
    while let Some((value, depth)) = open.pop() {
        if depth > levels {
            return true;
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    false
}

/// Puts a text in the place of everything below `levels`, so that the value is nested at most one level deeper;
/// returns whether anything was cut.
pub fn cut(value: &mut Value, levels: usize) -> bool {
    let mut open = vec![(value, 1_usize)];
    let mut any = false;
    while let Some((value, depth)) = open.pop() {
        if depth > levels && matches!(value, Value::Array(_) | Value::Object(_)) {
            let marker = Value::String(format!("[nested deeper than {levels} levels]"));
            dismantle(std::mem::replace(value, marker));
            any = true;
            continue;
        }
        match value {
            Value::Array(items) => open.extend(items.iter_mut().map(|item| (item, depth + 1))),
            Value::Object(map) => open.extend(map.values_mut().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    any
}

/// Drops a value level by level.
fn dismantle(value: Value) {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(map) => open.extend(map.into_iter().map(|(_, item)| item)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{cut, deeper_than};

    /// Built by moving: the macro would walk what it is given, to copy it.
    fn nested(levels: usize) -> Value {
        (1..levels).fold(json!(1), |inner, _| Value::Array(vec![inner]))
    }

    #[test]
    fn what_is_cut_is_one_level_too_deep_and_no_more() {
        for levels in [1, 2, 7] {
            let mut fits = nested(levels);
            assert!(!deeper_than(&fits, levels) && !cut(&mut fits, levels));
            assert_eq!(fits, nested(levels));
            let mut deep = Value::Array(vec![nested(200_000), json!("kept"), json!({ "a": nested(3) })]);
            assert!(cut(&mut deep, levels));
            assert!(deeper_than(&deep, levels) && !deeper_than(&deep, levels + 1));
        }
    }

    #[test]
    fn siblings_of_what_is_cut_stay() {
        let mut value = json!({"flat": 7});
        value["deep"] = nested(200_000);
        assert!(cut(&mut value, 2));
        assert_eq!(value, json!({"deep": ["[nested deeper than 2 levels]"], "flat": 7}));
    }
}
