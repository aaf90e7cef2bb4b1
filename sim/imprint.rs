//! An imprint: a value folded into a digest as it stands, without being written out as text first.
//!
//! A world's journal has hundreds of entries, and to write each as JSON only to fold its bytes was a tenth of a world's
//! time. What must stay true: everything that would be written is folded, with what it is and how long it is, so that
//! two values with one imprint are the same value.

use std::fmt;
use std::hash::{Hash as _, Hasher as _};

use serde::ser::{
    self, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use thiserror::Error;

use crate::happening::TraceDigest;

/// Folds a value in; whether all of it could be.
pub fn fold(digest: &mut TraceDigest, value: &impl Serialize) -> bool {
    let whole = value.serialize(Imprint(digest)).is_ok();
    whole.hash(digest);
    whole
}

/// Folds bytes in by the word: a world says hundreds of thousands of them.
pub fn fold_bytes(digest: &mut TraceDigest, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        digest.write_u64(u64::from_be_bytes(*word));
    }
    rest.hash(digest);
}

struct Imprint<'d>(&'d mut TraceDigest);

/// What was folded, so that a number is never taken for a text or an end.
#[derive(Clone, Copy)]
enum Mark {
    None = 1,
    Some,
    Number,
    Text,
    Variant,
    List,
    Fields,
    End,
}

impl Imprint<'_> {
    fn mark(&mut self, mark: Mark) {
        self.0.write_u64(mark as u64);
    }

    fn number(mut self, number: u64) -> Result<(), Unfoldable> {
        self.mark(Mark::Number);
        self.0.write_u64(number);
        Ok(())
    }

    fn text(&mut self, bytes: &[u8]) {
        self.mark(Mark::Text);
        self.0.write_usize(bytes.len());
        fold_bytes(self.0, bytes);
    }

    fn variant(&mut self, name: &str) {
        self.mark(Mark::Variant);
        self.text(name.as_bytes());
    }
}

/// A value does not let itself be folded.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Unfoldable(String);

impl ser::Error for Unfoldable {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

type Folded = Result<(), Unfoldable>;

impl<'d> Serializer for Imprint<'d> {
    type Ok = ();
    type Error = Unfoldable;
    type SerializeSeq = Parts<'d>;
    type SerializeTuple = Parts<'d>;
    type SerializeTupleStruct = Parts<'d>;
    type SerializeTupleVariant = Parts<'d>;
    type SerializeMap = Parts<'d>;
    type SerializeStruct = Parts<'d>;
    type SerializeStructVariant = Parts<'d>;

    fn serialize_bool(self, value: bool) -> Folded {
        self.number(value.into())
    }

    fn serialize_i8(self, value: i8) -> Folded {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Folded {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Folded {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Folded {
        self.number(value.cast_unsigned())
    }

    fn serialize_u8(self, value: u8) -> Folded {
        self.number(value.into())
    }

    fn serialize_u16(self, value: u16) -> Folded {
        self.number(value.into())
    }

    fn serialize_u32(self, value: u32) -> Folded {
        self.number(value.into())
    }

    fn serialize_u64(self, value: u64) -> Folded {
        self.number(value)
    }

    fn serialize_f32(self, value: f32) -> Folded {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Folded {
        self.number(value.to_bits())
    }

    fn serialize_char(self, value: char) -> Folded {
        self.number(u32::from(value).into())
    }

    fn serialize_str(mut self, value: &str) -> Folded {
        self.text(value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(mut self, value: &[u8]) -> Folded {
        self.text(value);
        Ok(())
    }

    fn serialize_none(mut self) -> Folded {
        self.mark(Mark::None);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(mut self, value: &T) -> Folded {
        self.mark(Mark::Some);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Folded {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Folded {
        self.serialize_none()
    }

    fn serialize_unit_variant(mut self, _name: &'static str, _index: u32, variant: &'static str) -> Folded {
        self.variant(variant);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Folded {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Folded {
        self.variant(variant);
        value.serialize(self)
    }

    fn serialize_seq(self, _length: Option<usize>) -> Result<Parts<'d>, Unfoldable> {
        Ok(self.parts(Mark::List))
    }

    fn serialize_tuple(self, _length: usize) -> Result<Parts<'d>, Unfoldable> {
        Ok(self.parts(Mark::List))
    }

    fn serialize_tuple_struct(self, _name: &'static str, _length: usize) -> Result<Parts<'d>, Unfoldable> {
        Ok(self.parts(Mark::List))
    }

    fn serialize_tuple_variant(
        mut self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Parts<'d>, Unfoldable> {
        self.variant(variant);
        Ok(self.parts(Mark::List))
    }

    fn serialize_map(self, _length: Option<usize>) -> Result<Parts<'d>, Unfoldable> {
        Ok(self.parts(Mark::Fields))
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Parts<'d>, Unfoldable> {
        Ok(self.parts(Mark::Fields))
    }

    fn serialize_struct_variant(
        mut self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Parts<'d>, Unfoldable> {
        self.variant(variant);
        Ok(self.parts(Mark::Fields))
    }
}

/// What has parts, until its end.
struct Parts<'d>(&'d mut TraceDigest);

impl<'d> Imprint<'d> {
    fn parts(mut self, mark: Mark) -> Parts<'d> {
        self.mark(mark);
        Parts(self.0)
    }
}

impl Parts<'_> {
    fn part<T: Serialize + ?Sized>(&mut self, part: &T) -> Folded {
        part.serialize(Imprint(self.0))
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Folded {
        Imprint(self.0).text(name.as_bytes());
        self.part(value)
    }

    fn ends(self) -> Folded {
        Imprint(self.0).mark(Mark::End);
        Ok(())
    }
}

impl SerializeSeq for Parts<'_> {
    type Ok = ();
    type Error = Unfoldable;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Folded {
        self.part(value)
    }

    fn end(self) -> Folded {
        self.ends()
    }
}

impl SerializeTuple for Parts<'_> {
    type Ok = ();
    type Error = Unfoldable;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Folded {
        self.part(value)
    }

    fn end(self) -> Folded {
        self.ends()
    }
}

impl SerializeTupleStruct for Parts<'_> {
    type Ok = ();
    type Error = Unfoldable;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Folded {
        self.part(value)
    }

    fn end(self) -> Folded {
        self.ends()
    }
}

impl SerializeTupleVariant for Parts<'_> {
    type Ok = ();
    type Error = Unfoldable;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Folded {
        self.part(value)
    }

    fn end(self) -> Folded {
        self.ends()
    }
}

impl SerializeMap for Parts<'_> {
    type Ok = ();
    type Error = Unfoldable;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Folded {
        self.part(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Folded {
        self.part(value)
    }

    fn end(self) -> Folded {
        self.ends()
    }
}

impl SerializeStruct for Parts<'_> {
    type Ok = ();
    type Error = Unfoldable;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Folded {
        self.field(name, value)
    }

    fn end(self) -> Folded {
        self.ends()
    }
}

impl SerializeStructVariant for Parts<'_> {
    type Ok = ();
    type Error = Unfoldable;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Folded {
        self.field(name, value)
    }

    fn end(self) -> Folded {
        self.ends()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::Hasher as _;

    use serde_json::{Value, json};

    use super::{fold, fold_bytes};
    use crate::happening::TraceDigest;

    fn imprint(value: &Value) -> u64 {
        let mut digest = TraceDigest::new();
        assert!(fold(&mut digest, value));
        digest.finish()
    }

    #[test]
    fn what_would_be_written_differently_has_another_imprint() {
        let values = [
            json!(null),
            json!(0),
            json!(1),
            json!(-1),
            json!(1.5),
            json!(""),
            json!("1"),
            json!("12345678"),
            json!("123456789"),
            json!([]),
            json!({}),
            json!([[]]),
            json!([1, 2]),
            json!([[1], 2]),
            json!([[1, 2]]),
            json!({"a": 1}),
            json!({"a": "1"}),
            json!({"b": 1}),
            json!({"a": {"b": 1}}),
            json!({"a": {}, "b": 1}),
            json!(["a", 1]),
            json!(["a1"]),
        ];
        let imprints: BTreeSet<u64> = values.iter().map(imprint).collect();
        assert_eq!(imprints.len(), values.len());
        assert_eq!(imprint(&json!({"a": [1, null, "x"]})), imprint(&json!({"a": [1, null, "x"]})));
    }

    #[test]
    fn every_byte_counts() {
        let bytes: Vec<u8> = (0..40).collect();
        let digest = |bytes: &[u8]| {
            let mut digest = TraceDigest::new();
            fold_bytes(&mut digest, bytes);
            digest.finish()
        };
        let mut seen = BTreeSet::from([digest(&bytes)]);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(seen.insert(digest(&changed)), "{at}");
            assert!(seen.insert(digest(&bytes[..at])), "cut at {at}");
        }
    }
}
