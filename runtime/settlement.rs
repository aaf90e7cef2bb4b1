//! Settling: what every call goes through after its tool, in one order, whoever called and however it ended.

pub mod artifact;
pub mod evidence;
pub mod projection;
pub mod projection_policy;
pub mod proof;
pub mod retained;
pub mod sanitise;
pub(crate) mod spool;

use toolwarden_tools::outcome::Excerpt;

use self::artifact::{Side, Unkept, Whole, line_bytes};
use self::evidence::{ContentRef, Original, evidence};
use self::projection::{LossMode, Projection, Projector, is_lossless};
use self::projection_policy::ProjectionPolicy;
use self::spool::Spooled;

/// A sanitised output, projected: complete, or waiting for what it refers to.
pub(crate) enum Settled {
    /// Nothing was lost: the output and its evidence.
    Whole(String, serde_json::Value),
    /// Something is to be stored first.
    Unkept(Box<Unkept>),
}

/// Stages 13 to 15 as far as they need no store: projects a sanitised output. `spooled` is the whole of an output
/// that is an excerpt.
pub(crate) fn project(
    policy: &ProjectionPolicy,
    tool: &str,
    output: String,
    excerpt: Excerpt,
    spooled: Option<Spooled>,
    sides: Vec<Side>,
) -> Settled {
    if spooled.is_none() && sides.is_empty() && is_lossless(policy, &output) {
        let original = Original::of(&output);
        let evidence = evidence(&original, &Projection::lossless(String::new(), output.len()), ContentRef::Inline);
        return Settled::Whole(output, evidence);
    }
    let mut projector = Projector::new(policy);
    projector.push(&output);
    let mut projection = projector.finish_excerpt(line_bytes(tool), spooled.is_some());
    let unkept = match spooled {
        Some(Spooled { artifact, original, over_bytes, .. }) => {
            let shown_bytes = match excerpt {
                Excerpt::Cut { shown_bytes } => usize::try_from(shown_bytes).unwrap_or(usize::MAX),
                _ => 0,
            };
            projection.loss = loss_of(excerpt).then(projection.loss);
            projection.shown_bytes = match projection.loss {
                LossMode::HeadTail | LossMode::BoundedPreview => projection.shown_bytes.min(shown_bytes),
                _ => 0,
            };
            projection.original_bytes = original.bytes();
            let whole = Whole::Spooled(Box::new(artifact));
            Unkept::new(policy, tool, original, projection, Some(whole)).of_first_part(over_bytes > 0)
        }
        None => {
            let original = Original::of_projected(&output, &projection);
            let whole = (projection.loss != LossMode::None).then(|| Whole::Text(output));
            Unkept::new(policy, tool, original, projection, whole)
        }
    };
    Settled::Unkept(Box::new(unkept.with_sides(sides)))
}

/// What a tool's own excerpt lost.
fn loss_of(excerpt: Excerpt) -> LossMode {
    match excerpt {
        Excerpt::Whole => LossMode::None,
        Excerpt::Cut { .. } => LossMode::HeadTail,
        Excerpt::Rewritten => LossMode::DeterministicTransform,
        Excerpt::RewrittenAndCut => LossMode::Composite,
    }
}
