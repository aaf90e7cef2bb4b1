//! The immutable content adapter: a host's own place, outside of the runtime, that keeps what results were made of.
//!
//! An archive or an object store of the host's takes the original of every result and of every changed text, and gives
//! an address under which it is for good. Only the port stands here, with the values that tie an address to its content:
//! the *binding* says who keeps, and is pinned with a session; the *descriptor* says what is to be kept; the *reference*
//! says where it is. What must stay true: an address that could mean something else than its content is not taken,
//! and no digest here is believed that can be taken again.

use std::fmt;
use std::io::Read;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;
use toolwarden_tools::digest::Digest;
use url::Url;

/// The form of [`ContentBinding`], and the domain of its digest.
pub const BINDING_SCHEMA: &str = "a3s.code.immutable-content-adapter-binding.v1";
/// The form of [`ContentDescriptor`], and the domain of its digest.
pub const DESCRIPTOR_SCHEMA: &str = "a3s.code.immutable-content-descriptor.v1";
/// The form of [`ContentReference`], and the domain of its digest.
pub const REFERENCE_SCHEMA: &str = "a3s.code.immutable-content-reference.v1";
/// The type of all contents.
pub const MEDIA_TYPE: &str = "text/plain; charset=utf-8";
/// Longest name of an adapter, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest address, in bytes.
pub const URI_BYTES_MAX: usize = 4096;

/// Keeps contents for good.
pub trait ContentAdapter: Send + Sync {
    /// Its name, for messages; 1 to [`NAME_BYTES_MAX`] bytes on one line.
    fn name(&self) -> &str;

    /// The digest of whatever says who keeps: an account, a bucket with its policy. Another authority is another
    /// adapter, with which a session that was opened with this one does not go on.
    fn authority_digest(&self) -> Digest;

    /// Most bytes of one content; more than 0.
    fn bytes_max(&self) -> u64;

    /// Keeps a content and gives its address; the same content again has the same address. The address names the bare
    /// hex digits of the content's digest as one segment of its path. Dropped when the call is cancelled.
    ///
    /// # Errors
    /// What went wrong, for the host's log; it is not shown to the model.
    fn put<'a>(
        &'a self,
        descriptor: &'a ContentDescriptor,
        content: Box<dyn Read + Send>,
    ) -> BoxFuture<'a, Result<String, ContentFault>>;
}

/// What an adapter says went wrong; goes to the host's log.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ContentFault(pub String);

/// Which adapter it is; pinned with a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentBinding {
    /// [`BINDING_SCHEMA`].
    pub schema: String,
    /// Who keeps.
    pub authority_digest: Digest,
    /// Most bytes of one content.
    pub maximum_bytes: u64,
    /// The digest of the fields above.
    pub binding_digest: Digest,
}

impl ContentBinding {
    /// The binding of an adapter.
    ///
    /// # Errors
    /// [`ContentBindingError`], for an adapter that cannot be one.
    pub fn of(adapter: &dyn ContentAdapter) -> Result<Self, ContentBindingError> {
        let name = adapter.name();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(ContentBindingError::Name { bytes: name.len() });
        }
        match adapter.bytes_max() {
            0 => Err(ContentBindingError::NoBytes { name: name.to_owned() }),
            bytes_max => Ok(Self::new(adapter.authority_digest(), bytes_max)),
        }
    }

    fn new(authority_digest: Digest, maximum_bytes: u64) -> Self {
        let fields = json!({
            "schema": BINDING_SCHEMA, "authority_digest": authority_digest, "maximum_bytes": maximum_bytes,
        });
        let binding_digest = Digest::of_domain(BINDING_SCHEMA, fields.to_string().as_bytes());
        Self { schema: BINDING_SCHEMA.to_owned(), authority_digest, maximum_bytes, binding_digest }
    }

    /// Whether its own digest is that of its other fields.
    pub fn is_intact(&self) -> bool {
        *self == Self::new(self.authority_digest.clone(), self.maximum_bytes)
    }
}

impl fmt::Display for ContentBinding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.binding_digest.fmt(out)
    }
}

/// Why an adapter cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ContentBindingError {
    /// Its name.
    #[error("the name of a content adapter has 1 to {NAME_BYTES_MAX} bytes on one line; this one has {bytes}")]
    Name {
        /// How long it is.
        bytes: usize,
    },
    /// It takes nothing.
    #[error("the content adapter {name} takes contents of 0 bytes at the most; bytes_max must be more")]
    NoBytes {
        /// Its name.
        name: String,
    },
}

/// What a content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentKind {
    /// What a tool gave, before it was projected.
    ToolResultOriginal,
    /// A text before a tool changed it.
    ToolChangeBefore,
    /// A text after that.
    ToolChangeAfter,
}

/// What is to be kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContentDescriptor {
    /// [`DESCRIPTOR_SCHEMA`].
    pub schema: &'static str,
    /// What it is.
    pub kind: ContentKind,
    /// [`MEDIA_TYPE`].
    pub media_type: &'static str,
    /// How many bytes it has.
    pub size_bytes: u64,
    /// Their digest.
    pub content_digest: Digest,
    /// The digest of the fields above.
    pub descriptor_digest: Digest,
}

impl ContentDescriptor {
    /// The descriptor of a content.
    pub fn new(kind: ContentKind, size_bytes: u64, content_digest: Digest) -> Self {
        let fields = json!({
            "schema": DESCRIPTOR_SCHEMA, "kind": kind, "media_type": MEDIA_TYPE, "size_bytes": size_bytes,
            "content_digest": content_digest,
        });
        let descriptor_digest = Digest::of_domain(DESCRIPTOR_SCHEMA, fields.to_string().as_bytes());
        Self { schema: DESCRIPTOR_SCHEMA, kind, media_type: MEDIA_TYPE, size_bytes, content_digest, descriptor_digest }
    }
}

/// Where a content is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContentReference {
    /// [`REFERENCE_SCHEMA`].
    pub schema: &'static str,
    /// Who keeps it.
    pub binding_digest: Digest,
    /// Its address.
    pub uri: String,
    /// The digest of its bytes.
    pub content_digest: Digest,
    /// [`MEDIA_TYPE`].
    pub media_type: &'static str,
    /// How many bytes it has.
    pub size_bytes: u64,
    /// The digest of the fields above.
    pub reference_digest: Digest,
}

impl ContentReference {
    /// The reference to a content at the address that an adapter gave.
    ///
    /// # Errors
    /// [`ContentUriError`], for an address that is not taken.
    pub fn new(binding: &ContentBinding, content: &ContentDescriptor, uri: String) -> Result<Self, ContentUriError> {
        check_uri(&uri, &content.content_digest)?;
        let fields = json!({
            "schema": REFERENCE_SCHEMA, "binding_digest": binding.binding_digest, "uri": uri,
            "content_digest": content.content_digest, "media_type": MEDIA_TYPE, "size_bytes": content.size_bytes,
        });
        Ok(Self {
            schema: REFERENCE_SCHEMA,
            binding_digest: binding.binding_digest.clone(),
            uri,
            content_digest: content.content_digest.clone(),
            media_type: MEDIA_TYPE,
            size_bytes: content.size_bytes,
            reference_digest: Digest::of_domain(REFERENCE_SCHEMA, fields.to_string().as_bytes()),
        })
    }
}

/// Why an address is not taken. It does not show the address, which may hold anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ContentUriError {
    /// Too long.
    #[error("the address is longer than {URI_BYTES_MAX} bytes")]
    TooLong,
    /// Characters that have no place in it.
    #[error("the address holds white space, a backslash, an @, a control character or one that is not ASCII")]
    Characters,
    /// Not absolute, or with parts that do not belong to the address of a content.
    #[error("the address is not absolute, or has a user, a query or a fragment")]
    Parts,
    /// It does not name the content.
    #[error("no segment of the address's path is the hex digest of the content")]
    NoDigest,
}

/// Whether this address can stand for this content and nothing else.
fn check_uri(uri: &str, digest: &Digest) -> Result<(), ContentUriError> {
    if uri.len() > URI_BYTES_MAX {
        return Err(ContentUriError::TooLong);
    }
    if !uri.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'@')) {
        return Err(ContentUriError::Characters);
    }
    let url = Url::parse(uri).map_err(|_| ContentUriError::Parts)?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    if has_user || url.query().is_some() || url.fragment().is_some() {
        return Err(ContentUriError::Parts);
    }
    // As it was written: what a parser makes of dots in it is another address.
    let path = uri.split_once(':').map_or("", |(_, rest)| rest);
    match path.split('/').any(|segment| segment == digest.hex()) && !path.split('/').any(|segment| segment == "..") {
        true => Ok(()),
        false => Err(ContentUriError::NoDigest),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use futures_util::future::BoxFuture;
    use toolwarden_tools::digest::Digest;

    use super::{
        BINDING_SCHEMA, ContentAdapter, ContentBinding, ContentBindingError, ContentDescriptor, ContentFault,
        ContentKind, ContentReference, ContentUriError, REFERENCE_SCHEMA, URI_BYTES_MAX,
    };

    struct Named(String, u64);

    impl ContentAdapter for Named {
        fn name(&self) -> &str {
            &self.0
        }

        fn authority_digest(&self) -> Digest {
            Digest::of(b"authority")
        }

        fn bytes_max(&self) -> u64 {
            self.1
        }

        fn put<'a>(
            &'a self,
            _descriptor: &'a ContentDescriptor,
            _content: Box<dyn Read + Send>,
        ) -> BoxFuture<'a, Result<String, ContentFault>> {
            Box::pin(std::future::ready(Err(ContentFault("never asked".to_owned()))))
        }
    }

    #[test]
    fn a_binding_is_the_digest_of_its_fields_in_their_order() {
        let binding = ContentBinding::of(&Named("archive".into(), 7)).unwrap();
        let authority = Digest::of(b"authority");
        let text = format!(r#"{{"schema":"{BINDING_SCHEMA}","authority_digest":"{authority}","maximum_bytes":7}}"#);
        let digest = Digest::of([BINDING_SCHEMA.as_bytes(), b"\0", text.as_bytes()].concat().as_slice());
        assert_eq!(binding.binding_digest, digest);
        assert!(binding.is_intact());
        assert!(!ContentBinding { maximum_bytes: 8, ..binding }.is_intact());
        let error = |name: &str, bytes_max| ContentBinding::of(&Named(name.into(), bytes_max)).unwrap_err();
        assert_eq!(error("", 1), ContentBindingError::Name { bytes: 0 });
        assert_eq!(error(&"x".repeat(129), 1), ContentBindingError::Name { bytes: 129 });
        assert_eq!(error("a\nb", 1), ContentBindingError::Name { bytes: 3 });
        assert_eq!(error("archive", 0), ContentBindingError::NoBytes { name: "archive".into() });
    }

    #[test]
    fn an_address_names_its_content_and_nothing_else() {
        let binding = ContentBinding::of(&Named("archive".into(), 100)).unwrap();
        let digest = Digest::of(b"text");
        let content = ContentDescriptor::new(ContentKind::ToolResultOriginal, 4, digest.clone());
        let of = |uri: String| ContentReference::new(&binding, &content, uri);
        let hex = digest.hex();
        for good in [format!("https://archive.example/a/{hex}"), format!("urn:x/{hex}/text"), format!("s3://b/{hex}")] {
            let reference = of(good.clone()).unwrap();
            assert_eq!((reference.uri, reference.size_bytes), (good, 4));
        }
        let cases = [
            (format!("https://archive.example/{}/{hex}", "a".repeat(URI_BYTES_MAX)), ContentUriError::TooLong),
            (format!("https://archive.example/a b/{hex}"), ContentUriError::Characters),
            (format!("https://archive.example\\{hex}"), ContentUriError::Characters),
            (format!("https://me@archive.example/{hex}"), ContentUriError::Characters),
            (format!("https://archive.example/\u{e9}/{hex}"), ContentUriError::Characters),
            (format!("/{hex}"), ContentUriError::Parts),
            (format!("https://archive.example/{hex}?version=1"), ContentUriError::Parts),
            (format!("https://archive.example/{hex}#top"), ContentUriError::Parts),
            ("https://archive.example/".to_owned(), ContentUriError::NoDigest),
            (format!("https://archive.example/x{hex}"), ContentUriError::NoDigest),
            (format!("https://archive.example/sha256:{hex}"), ContentUriError::NoDigest),
            (format!("https://archive.example/{hex}/../other"), ContentUriError::NoDigest),
            (format!("https://archive.example/{}", hex.to_uppercase()), ContentUriError::NoDigest),
        ];
        for (uri, wanted) in cases {
            assert_eq!(of(uri.clone()).unwrap_err(), wanted, "{uri}");
        }
        let reference = of(format!("s3://b/{hex}")).unwrap();
        let mut fields = serde_json::to_value(&reference).unwrap();
        fields.as_object_mut().unwrap().shift_remove("reference_digest");
        assert_eq!(Digest::of_domain(REFERENCE_SCHEMA, fields.to_string().as_bytes()), reference.reference_digest);
        let kind = serde_json::to_value(&content).unwrap()["kind"].clone();
        assert_eq!(kind, "tool_result_original");
    }
}
