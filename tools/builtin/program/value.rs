//! Values between a script and its host: JSON that loses nothing unsaid, in both directions.
//!
//! Integers that a JavaScript number cannot hold enter as BigInt and leave as the integers they are. Half of a
//! surrogate pair becomes U+FFFD, and the result says so. What has no form in JSON is refused with the place where it
//! stands; nothing is dropped or turned into something else in silence. Size and depth are bounded on this side as
//! well, for a few values of a script can stand for any amount of text.

use rquickjs::{Array, Ctx, Filter, Function, Object, Type, Value};
use serde_json::{Map, Number, Value as Json};

use crate::json_depth::JSON_DEPTH_MAX;

/// Largest integer that every JavaScript number up to it is exact.
const SAFE_INTEGER_MAX: i64 = (1 << 53) - 1;

/// What a value is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// What the script gives back: everything in it must be JSON.
    Result,
    /// The arguments of a call: keys that are undefined are left out, as a caller in JavaScript expects.
    Argument,
}

/// Functions and objects of the prelude.
pub(super) struct Kit<'js> {
    pub(super) ctx: Object<'js>,
    pub(super) failure: Function<'js>,
    pub(super) readable: Function<'js>,
    pub(super) lazily: Function<'js>,
    object_prototype: Object<'js>,
    well_formed: Function<'js>,
    tag_of: Function<'js>,
    decimal: Function<'js>,
    define: Function<'js>,
}

impl<'js> Kit<'js> {
    pub(super) fn of(made: &Object<'js>) -> rquickjs::Result<Self> {
        Ok(Self {
            ctx: made.get("ctx")?,
            failure: made.get("failure")?,
            readable: made.get("readable")?,
            lazily: made.get("lazily")?,
            object_prototype: made.get("objectPrototype")?,
            well_formed: made.get("wellFormed")?,
            tag_of: made.get("tagOf")?,
            decimal: made.get("decimal")?,
            define: made.get("define")?,
        })
    }

    /// The text of a string, and whether halves of pairs were replaced in it.
    pub(super) fn text(&self, value: &Value<'js>) -> rquickjs::Result<(String, bool)> {
        let Some(text) = value.as_string() else { return Ok((String::new(), false)) };
        match text.to_string() {
            Ok(text) => Ok((text, false)),
            Err(rquickjs::Error::Utf8(_)) => Ok((self.well_formed.call((value.clone(),))?, true)),
            Err(other) => Err(other),
        }
    }

    /// An error object of the script with this message.
    pub(super) fn error(&self, message: &str) -> rquickjs::Result<Value<'js>> {
        self.failure.call((message,))
    }
}

/// Why a value was not taken.
#[derive(Debug)]
pub(super) enum NotTaken {
    /// It is no JSON: where, and what to do.
    NotJson(String),
    /// It is larger than allowed.
    TooLarge,
    /// It is nested too deep.
    TooDeep(String),
    /// Code of the script threw while it was looked at; the exception is pending.
    Threw(rquickjs::Error),
}

impl From<rquickjs::Error> for NotTaken {
    fn from(error: rquickjs::Error) -> Self {
        Self::Threw(error)
    }
}

/// A value of the script as JSON.
#[derive(Debug)]
pub(super) struct Taken {
    /// The value; none for undefined.
    pub(super) json: Option<Json>,
    /// Whether halves of pairs were replaced.
    pub(super) replaced: bool,
}

/// Takes a value of the script; `what` is its name in messages.
///
/// # Errors
/// [`NotTaken`].
pub(super) fn take<'js>(
    kit: &Kit<'js>,
    what: &str,
    value: Value<'js>,
    purpose: Purpose,
    bytes_max: usize,
) -> Result<Taken, NotTaken> {
    let mut taking =
        Taking { kit, purpose, bytes_left: bytes_max, replaced: false, path: vec![what.to_owned()], open: Vec::new() };
    let json = taking.value(value)?;
    Ok(Taken { json, replaced: taking.replaced })
}

struct Taking<'a, 'js> {
    kit: &'a Kit<'js>,
    purpose: Purpose,
    bytes_left: usize,
    replaced: bool,
    path: Vec<String>,
    /// The objects that the value stands in.
    open: Vec<Object<'js>>,
}

impl<'js> Taking<'_, 'js> {
    fn refuse<T>(&self, problem: &str) -> Result<T, NotTaken> {
        Err(NotTaken::NotJson(format!("{} {problem}", self.path.concat())))
    }

    fn spend(&mut self, bytes: usize) -> Result<(), NotTaken> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(NotTaken::TooLarge)?;
        Ok(())
    }

    /// None for undefined where that may be left out.
    fn value(&mut self, value: Value<'js>) -> Result<Option<Json>, NotTaken> {
        self.spend(1)?;
        Ok(Some(match value.type_of() {
            Type::Null => Json::Null,
            Type::Undefined | Type::Uninitialized if self.purpose == Purpose::Argument => return Ok(None),
            Type::Undefined | Type::Uninitialized => {
                return self.refuse("is undefined; use null, or leave the key out");
            }
            Type::Bool => Json::Bool(value.as_bool().unwrap_or_default()),
            Type::Int => Json::from(value.as_int().unwrap_or_default()),
            Type::Float => self.float(value.as_float().unwrap_or_default())?,
            Type::BigInt => self.big(value)?,
            Type::String => {
                let (text, replaced) = self.kit.text(&value)?;
                self.replaced |= replaced;
                self.spend(text.len())?;
                Json::String(text)
            }
            Type::Function | Type::Constructor => return self.refuse("is a function; give what it returns"),
            Type::Symbol => return self.refuse("is a symbol; give a string"),
            Type::Promise => return self.refuse("is a promise; await it"),
            Type::Proxy => return self.refuse("is a Proxy; copy what you need into a plain object"),
            Type::Array | Type::Object | Type::Exception => match value.into_object() {
                Some(object) => return self.object(object),
                None => return self.refuse("is no JSON value"),
            },
            _ => return self.refuse("is no JSON value"),
        }))
    }

    fn float(&self, number: f64) -> Result<Json, NotTaken> {
        #[expect(clippy::cast_possible_truncation, reason = "whole and within 63 bits")]
        match number {
            whole if whole.fract() == 0.0 && whole.abs() < 9.2e18 => Ok(Json::from(whole as i64)),
            _ => match Number::from_f64(number) {
                Some(number) => Ok(Json::Number(number)),
                None => self.refuse(&format!("is {number}; use null or a string")),
            },
        }
    }

    fn big(&self, value: Value<'js>) -> Result<Json, NotTaken> {
        let digits: Option<String> = self.kit.decimal.call((value,))?;
        let number = digits.and_then(|digits| {
            digits.parse::<i64>().map(Json::from).or_else(|_| digits.parse::<u64>().map(Json::from)).ok()
        });
        match number {
            Some(number) => Ok(number),
            None => self.refuse("is a BigInt of more than 64 bits, which JSON cannot hold; use String(value)"),
        }
    }

    fn object(&mut self, object: Object<'js>) -> Result<Option<Json>, NotTaken> {
        if self.open.contains(&object) {
            return self.refuse("contains itself; leave the reference out");
        }
        if self.open.len() >= JSON_DEPTH_MAX {
            let path = format!("it is nested deeper than {JSON_DEPTH_MAX} levels; make it flatter");
            return Err(NotTaken::TooDeep(path));
        }
        self.open.push(object.clone());
        let json = match object.is_array() {
            true => self.array(object).map(Some),
            false => self.plain(object),
        };
        self.open.pop();
        json
    }

    fn array(&mut self, array: Object<'js>) -> Result<Json, NotTaken> {
        let length: f64 = array.get("length")?;
        let mut items = Vec::new();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length has 32 bits")]
        for index in 0..length as u32 {
            self.path.push(format!("[{index}]"));
            let item: Value<'js> = array.get(index)?;
            // As in JSON.stringify: a place in a list cannot be left out.
            items.push(self.value(item)?.unwrap_or(Json::Null));
            self.path.pop();
        }
        Ok(Json::Array(items))
    }

    fn plain(&mut self, object: Object<'js>) -> Result<Option<Json>, NotTaken> {
        let prototype = object.get_prototype();
        if prototype.as_ref().is_some_and(|prototype| *prototype != self.kit.object_prototype) {
            let tag: String = self.kit.tag_of.call((object.clone(),))?;
            let problem = match tag.as_str() {
                "[object Date]" => "is a Date; use its toISOString()",
                "[object Map]" => "is a Map; use Object.fromEntries(value)",
                "[object Set]" => "is a Set; use [...value]",
                "[object WeakMap]" | "[object WeakSet]" => "is a weak collection, whose entries cannot be listed",
                "[object RegExp]" => "is a regular expression; use its source",
                "[object Error]" => "is an Error; use its message",
                "[object ArrayBuffer]" => "is an ArrayBuffer; use [...new Uint8Array(value)]",
                _ => "",
            };
            if !problem.is_empty() {
                return self.refuse(problem);
            }
        }
        let own: Value<'js> = object.get("toJSON")?;
        if let Some(convert) = own.as_function() {
            let this = rquickjs::function::This(object.clone());
            let converted: Value<'js> = convert.call((this, ""))?;
            return self.value(converted);
        }
        let mut map = Map::new();
        for entry in object.own_props::<Value<'js>, Value<'js>>(Filter::new().string().enum_only()) {
            let (key, value) = entry?;
            let (key, replaced) = self.kit.text(&key)?;
            self.replaced |= replaced;
            self.spend(key.len() + 1)?;
            self.path.push(format!(".{key}"));
            if let Some(value) = self.value(value)? {
                map.insert(key, value);
            }
            self.path.pop();
        }
        Ok(Some(Json::Object(map)))
    }
}

/// Gives a value to the script.
///
/// # Errors
/// What the engine says when it has no memory left.
pub(super) fn give<'js>(ctx: &Ctx<'js>, kit: &Kit<'js>, value: &Json) -> rquickjs::Result<Value<'js>> {
    if is_exact(value) {
        return ctx.json_parse(value.to_string());
    }
    Ok(match value {
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => rquickjs::BigInt::from_i64(ctx.clone(), whole)?.into_value(),
            (None, Some(whole)) => rquickjs::BigInt::from_u64(ctx.clone(), whole)?.into_value(),
            _ => Value::new_number(ctx.clone(), number.as_f64().unwrap_or_default()),
        },
        Json::Array(items) => {
            let array = Array::new(ctx.clone())?;
            for (index, item) in items.iter().enumerate() {
                array.set(index, give(ctx, kit, item)?)?;
            }
            array.into_value()
        }
        Json::Object(map) => {
            let object = Object::new(ctx.clone())?;
            for (key, item) in map {
                let item = give(ctx, kit, item)?;
                // A plain assignment would look for a setter, and there is one for __proto__.
                match key.as_str() {
                    "__proto__" => kit.define.call::<_, ()>((object.clone(), key.as_str(), item))?,
                    key => object.set(key, item)?,
                }
            }
            object.into_value()
        }
        _ => ctx.json_parse(value.to_string())?,
    })
}

/// Whether a JavaScript number holds every integer of the value exactly.
fn is_exact(value: &Json) -> bool {
    match value {
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => (-SAFE_INTEGER_MAX..=SAFE_INTEGER_MAX).contains(&whole),
            (None, Some(_)) => false,
            _ => true,
        },
        Json::Array(items) => items.iter().all(is_exact),
        Json::Object(map) => map.values().all(is_exact),
        _ => true,
    }
}
