//! The name of a downloaded file when the caller gives none.
//!
//! A server may propose one (`Content-Disposition`), else it comes out of the address. Whatever is proposed is one name
//! and nothing more: the last component, without control characters, of a length that file systems take.

use url::Url;

/// Longest field that is looked into, in bytes.
const FIELD_BYTES_MAX: usize = 8 * 1024;
/// Most parameters of one field that are looked at.
const PARAMETERS_MAX: usize = 64;
/// Longest name, in bytes; what file systems take.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest ending that is kept when a name is cut, in bytes.
const ENDING_BYTES_MAX: usize = 32;
/// The name when nothing gives one.
const NAME_DEFAULT: &str = "download.bin";
/// Keys of a query whose value is often a name.
const QUERY_KEYS: [&str; 2] = ["filename", "file"];

/// The name for what an address gave: from the field, from the query, from the path, or a plain one.
pub fn infer(disposition: Option<&str>, url: &Url) -> String {
    let proposed = disposition.and_then(proposed).and_then(|name| clean(&name));
    let query = || {
        let pairs = || url.query_pairs().filter(|(key, _)| QUERY_KEYS.contains(&key.to_ascii_lowercase().as_str()));
        pairs().find_map(|(_, value)| clean(&value))
    };
    let segment = || {
        let last = url.path_segments()?.rfind(|segment| !segment.is_empty())?;
        clean(&String::from_utf8_lossy(&unescaped(last.as_bytes())))
    };
    proposed.or_else(query).or_else(segment).unwrap_or_else(|| NAME_DEFAULT.to_owned())
}

/// The name that a `Content-Disposition` proposes, as it stands there: `filename*` before `filename`. Anything that is
/// malformed in between is stepped over.
pub fn proposed(field: &str) -> Option<String> {
    if field.len() > FIELD_BYTES_MAX {
        return None;
    }
    let mut plain = None;
    let mut extended = None;
    // The first part is the kind: inline, attachment, or whatever a server writes there.
    let first_is_parameter = field.split(';').next().is_some_and(|first| first.contains('='));
    let parts = parts(field);
    for part in parts.iter().skip(usize::from(!first_is_parameter)).take(PARAMETERS_MAX) {
        let Some((name, value)) = part.split_once('=') else { continue };
        let value = value.trim();
        match name.trim().to_ascii_lowercase().as_str() {
            "filename" if plain.is_none() => plain = Some(unquoted(value)),
            "filename*" if extended.is_none() => extended = decoded(value),
            _ => {}
        }
    }
    extended.or(plain)
}

/// The parts between `;`, of which those in quotes do not count.
fn parts(field: &str) -> Vec<&str> {
    let (mut parts, mut from, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, byte) in field.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b';' if !quoted => {
                parts.push(&field[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&field[from..]);
    parts
}

/// A token, or what stands in quotes.
fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"') else { return value.to_owned() };
    let mut text = String::new();
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' => break,
            // A backslash before anything else is most likely a path of another system.
            '\\' => match rest.clone().next() {
                Some(next @ ('"' | '\\')) => {
                    rest.next();
                    text.push(next);
                }
                _ => text.push('\\'),
            },
            c => text.push(c),
        }
    }
    text
}

/// An extended value: `charset'language'percent-encoded`.
fn decoded(value: &str) -> Option<String> {
    let value = unquoted(value);
    let mut parts = value.splitn(3, '\'');
    let (charset, _language, escaped) = (parts.next()?, parts.next()?, parts.next()?);
    let bytes = unescaped(escaped.as_bytes());
    match charset.to_ascii_lowercase().as_str() {
        "utf-8" | "" => String::from_utf8(bytes).ok(),
        "iso-8859-1" | "latin1" => Some(bytes.into_iter().map(char::from).collect()),
        _ => None,
    }
}

/// Percent-encoded bytes; what is no escape stays.
fn unescaped(bytes: &[u8]) -> Vec<u8> {
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'_'));
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// One name out of what was proposed; none when nothing of it can be one.
pub fn clean(proposed: &str) -> Option<String> {
    let last = proposed.rsplit(['/', '\\']).next().unwrap_or_default();
    let is_kept = |c: &char| {
        !c.is_control()
            && !matches!(c, '\u{fffd}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let kept: String = last.chars().filter(is_kept).collect();
    let name = kept.trim().trim_end_matches(['.', ' ']);
    // `.git` is no place to write to, and a name of dots alone is none.
    if name.is_empty() || name.bytes().all(|byte| byte == b'.') || name.eq_ignore_ascii_case(".git") {
        return None;
    }
    Some(shortened(name))
}

/// A name of at most [`NAME_BYTES_MAX`], cut between characters before its ending.
fn shortened(name: &str) -> String {
    if name.len() <= NAME_BYTES_MAX {
        return name.to_owned();
    }
    let ending = name.rfind('.').map_or("", |dot| &name[dot..]);
    let ending = if ending.len() <= ENDING_BYTES_MAX { ending } else { "" };
    let stem_bytes = NAME_BYTES_MAX - ending.len();
    format!("{}{ending}", &name[..name.floor_char_boundary(stem_bytes)])
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::{NAME_BYTES_MAX, clean, infer, proposed};

    fn named(disposition: &str) -> String {
        infer(Some(disposition), &Url::parse("http://a.example/").unwrap())
    }

    // Case C103: one name, whatever a server proposes.
    #[test]
    fn a_server_names_a_file_and_no_place() {
        for (proposal, name) in [
            ("../../.profile", ".profile"),
            ("/etc/x", "x"),
            ("..\\..\\x", "x"),
            ("a\0b", "ab"),
            (".", "download.bin"),
            ("..", "download.bin"),
            ("", "download.bin"),
            ("...", "download.bin"),
            (".git", "download.bin"),
            ("a/", "download.bin"),
            ("  report.txt . ", "report.txt"),
            ("a\r\nb\u{7f}\u{202e}txt", "abtxt"),
        ] {
            assert_eq!(
                named(&format!("attachment; filename=\"{}\"", proposal.replace('\\', "\\\\"))),
                name,
                "{proposal:?}"
            );
        }
        let long = named(&format!("attachment; filename={}.tar.gz", "世".repeat(100)));
        assert!(long.ends_with("世.gz") && long.len() <= NAME_BYTES_MAX && long.len() > NAME_BYTES_MAX - 4, "{long}");
        let ascii = clean(&format!("{}.bin", "x".repeat(300))).unwrap();
        assert_eq!((ascii.len(), ascii.ends_with("x.bin")), (255, true));
    }

    #[test]
    fn the_extended_form_wins_and_junk_is_stepped_over() {
        for (field, name) in [
            ("attachment; filename*=UTF-8''payload%20%E4%B8%AD.bin; filename=x", "payload 中.bin"),
            ("attachment; filename=plain.txt; filename*=nonsense", "plain.txt"),
            ("attachment; filename*=iso-8859-1'en'caf%E9.txt", "café.txt"),
            ("attachment; =; ;foo; x=y=z; filename = \"a;b\\\"c.txt\" ; more", "a;b\"c.txt"),
            ("filename=direct.txt", "direct.txt"),
            ("inline", "download.bin"),
            ("attachment; filename*=UTF-8''%ff%fe", "download.bin"),
            ("attachment; FILENAME=upper.txt", "upper.txt"),
            ("attachment; filename=\"C:\\dir\\file.txt\"", "file.txt"),
            ("attachment; filename=\"open", "open"),
        ] {
            assert_eq!(named(field), name, "{field}");
        }
        assert_eq!(proposed(&format!("attachment; filename={}", "x".repeat(9000))), None);
    }

    #[test]
    fn an_address_gives_a_name_when_the_server_gives_none() {
        for (url, name) in [
            ("http://a/dir/file%20one.zip?x=1", "file one.zip"),
            ("http://a/get?file=..%2Fdata.csv", "data.csv"),
            ("http://a/get?FileName=b.csv&file=c.csv", "b.csv"),
            ("http://a/dir/", "dir"),
            ("http://a/", "download.bin"),
            ("http://a/%2e%2e%2f", "download.bin"),
            ("http://a/x%00y%2Fz", "z"),
        ] {
            assert_eq!(infer(None, &Url::parse(url).unwrap()), name, "{url}");
        }
    }
}
