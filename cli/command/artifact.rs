//! `artifact get`: the whole of an output that was shown in part.
//!
//! The bytes are checked against the artifact's name before the first of them is printed.

use std::io::{Read as _, Seek as _, SeekFrom};

use clap::{Args, Subcommand};
use toolwarden::settlement::artifact::ArtifactUri;
use toolwarden_tools::effects::blobs::{BlobError, open_checked};

use super::{CommandError, End};
use crate::artifacts::ArtifactArgs;
use crate::assembly::Surroundings;
use crate::terminal::print_bytes;

/// How much is printed at a time, in bytes.
const BUFFER_BYTES: u64 = 256 * 1024;

#[derive(Debug, Args)]
pub(crate) struct ArtifactCommandArgs {
    #[command(subcommand)]
    command: ArtifactCommand,
}

#[derive(Debug, Subcommand)]
enum ArtifactCommand {
    /// Print an artifact, or a part of it
    Get(GetArgs),
}

#[derive(Debug, Args)]
struct GetArgs {
    /// Its name, as results give it: `a3s://tool-output/…`
    uri: String,

    /// Only the bytes from A to B, both counted in, the first one is 0; A- goes to the end, -N is the last N
    #[arg(long, value_name = "A-B", value_parser = ByteRange::parse, allow_hyphen_values = true)]
    range: Option<ByteRange>,

    #[command(flatten)]
    artifacts: ArtifactArgs,
}

/// A part of something, as a person names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteRange {
    Between(u64, u64),
    From(u64),
    Last(u64),
}

impl ByteRange {
    fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u64>().ok();
        let range = text.split_once('-').and_then(|(from, to)| match (from, to) {
            ("", last) => number(last).map(Self::Last),
            (from, "") => number(from).map(Self::From),
            (from, to) => Some(Self::Between(number(from)?, number(to)?)).filter(|_| number(from) <= number(to)),
        });
        range.ok_or_else(|| "give A-B with A not more than B, or A-, or -N".to_owned())
    }

    /// Where it begins and ends in something of this size.
    fn within(self, bytes: u64) -> (u64, u64) {
        match self {
            Self::Between(from, to) => (from.min(bytes), to.saturating_add(1).min(bytes)),
            Self::From(from) => (from.min(bytes), bytes),
            Self::Last(count) => (bytes.saturating_sub(count), bytes),
        }
    }
}

/// Carries out `artifact`.
///
/// # Errors
/// [`CommandError`]. An artifact that is missing or damaged is an end, not an error of the command line.
pub(crate) fn artifact(args: ArtifactCommandArgs, with: &Surroundings) -> Result<End, CommandError> {
    let ArtifactCommand::Get(args) = args.command;
    let uri: ArtifactUri = args.uri.parse().map_err(|error| CommandError::Usage(format!("{error}")))?;
    let blobs = args.artifacts.to_read(&with.environment)?;
    let mut blob = match open_checked(&blobs, uri.digest()) {
        Ok(blob) => blob,
        Err(error @ (BlobError::Missing { .. } | BlobError::Damaged { .. })) => {
            with.screen.complain(&error.to_string());
            return Ok(End::Failed);
        }
        Err(error) => return Err(CommandError::Blob(error)),
    };
    let (from, to) = args.range.unwrap_or(ByteRange::From(0)).within(blob.size_bytes());
    let failed = |source| CommandError::Blob(BlobError::of_io("read", &args.uri, source));
    blob.seek(SeekFrom::Start(from)).map_err(failed)?;
    let mut left = to - from;
    let mut buffer = Vec::new();
    while left > 0 {
        buffer.clear();
        let count = blob.by_ref().take(left.min(BUFFER_BYTES)).read_to_end(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        if !print_bytes(&buffer)? {
            break;
        }
        left -= count as u64;
    }
    Ok(End::Done)
}

#[cfg(test)]
mod tests {
    use super::ByteRange;

    #[test]
    fn ranges_are_read_and_cut_to_what_is_there() {
        for (text, bytes, expected) in [
            ("0-9", 100, (0, 10)),
            ("5-5", 100, (5, 6)),
            ("90-200", 100, (90, 100)),
            ("200-300", 100, (100, 100)),
            ("7-", 100, (7, 100)),
            ("-7", 100, (93, 100)),
            ("-700", 100, (0, 100)),
            ("0-18446744073709551615", 3, (0, 3)),
        ] {
            assert_eq!(ByteRange::parse(text).unwrap().within(bytes), expected, "{text}");
        }
        for text in ["", "-", "7", "9-5", "a-b", "1-2-3", "0x1-2"] {
            assert!(ByteRange::parse(text).is_err(), "{text}");
        }
    }
}
