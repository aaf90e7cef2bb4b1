//! The table of boundary cases, the edge cases, and what holds for any text.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use serde_json::{Value, json};
use toolwarden_tools::digest::Digest;

use super::{LossMode, Projection, Projector, project};
use crate::settlement::projection_policy::ProjectionPolicy;

/// What the line about an artifact needs, with a tool of the longest name.
const LINE_BYTES: usize = 235;

fn efficient(text: String) -> Projection {
    project(&ProjectionPolicy::context_efficient(), text, LINE_BYTES)
}

fn conservative(text: String) -> Projection {
    project(&ProjectionPolicy::conservative(), text, LINE_BYTES)
}

fn array_of(count: usize) -> String {
    json!((0..count).map(|at| format!("item-{at:06}")).collect::<Vec<_>>()).to_string()
}

// The boundary cases A to L, with their known answers.
#[test]
fn boundary_cases_have_their_known_answers() {
    use LossMode::{BoundedPreview, Composite, DeterministicTransform, HeadTail, None};
    let wide = "\u{754c}".repeat(40_000);
    let mixed = format!("{}\n{}\n{}", "A".repeat(60_000), "B".repeat(60_000), "rep-rep-rep-rep-rep-rep\n".repeat(50));
    let items = array_of(20_000);
    let line = "same line of text\n";
    for (case, get, text, loss, bytes, shown, digest) in [
        ("A", efficient as fn(String) -> Projection, String::new(), None, 0, 0, "e3b0c44298fc1c14"),
        ("B", conservative, "ok\n".into(), None, 3, 3, "dc51b8c96c2d745d"),
        ("C", conservative, "x".repeat(102_400), None, 102_400, 102_400, "8b77ec70310a4f69"),
        ("D", conservative, "x".repeat(102_401), BoundedPreview, 102_401, 102_400, "e936fe0829352b0a"),
        ("E", efficient, "x".repeat(200_000), HeadTail, 200_000, 98_304, "91e3faafd322bcdf"),
        ("F", efficient, line.repeat(10) + "end", None, 183, 183, "0c0317efa4d85598"),
        ("G", efficient, line.repeat(3), None, 54, 54, "da3eecdac0e1f5d0"),
        ("H", efficient, wide.clone(), HeadTail, 120_000, 65_535 + 32_766, "40599b3598efd070"),
        ("I", conservative, wide, BoundedPreview, 120_000, 102_399, "40599b3598efd070"),
        ("J", efficient, mixed, Composite, 121_202, 0, "3297f6ba12424fb4"),
        ("K", efficient, items.clone(), DeterministicTransform, 280_001, 0, "e64738c67a19874e"),
        ("L", efficient, items + "x", HeadTail, 280_002, 98_304, "fae3263853db10f6"),
    ] {
        assert_eq!(&Digest::of(text.as_bytes()).hex()[..16], digest, "{case}");
        let projection = get(text);
        assert_eq!(
            (projection.loss, projection.original_bytes, projection.shown_bytes),
            (loss, bytes, shown),
            "{case}"
        );
    }
}

#[test]
fn what_fits_is_untouched_and_one_byte_more_is_cut() {
    let fits = "x".repeat(102_400);
    assert_eq!(conservative(fits.clone()).text, fits);
    let cut = conservative("x".repeat(102_401));
    assert!(cut.text.ends_with("x\n[cut: the first 102400 of 102401 bytes are shown]\n"));
}

// Case C013: a limit inside of a character backs off to its beginning, and at the tail moves on to the next.
#[test]
fn a_cut_is_between_characters() {
    let cut = efficient("界".repeat(40_000));
    let (head, tail) =
        cut.text.split_once("\n[toolwarden.tool-result-transform.v1: 21699 bytes are left out here]\n").unwrap();
    assert_eq!((head, tail), ("界".repeat(21_845).as_str(), "界".repeat(10_922).as_str()));
}

#[test]
fn folding_keeps_the_lines_before_the_run() {
    let text = format!("first\nsecond\n{}last", "a line that comes again and again, many times over\n".repeat(100));
    let folded = efficient(text.clone());
    assert_eq!((folded.loss, folded.shown_bytes), (LossMode::DeterministicTransform, 0));
    assert_eq!(
        folded.text,
        "first\nsecond\na line that comes again and again, many times over\n[99 additional exact copies of this line]\nlast"
    );
    assert_eq!(conservative(text.clone()).text, text, "this profile folds nothing");
}

#[test]
fn arrays_are_sampled_to_their_ends_with_exact_numbers() {
    for (count, omitted) in [(20_000, 19_968), (250_000, 249_968)] {
        let sampled = efficient(array_of(count));
        assert_eq!(sampled.loss, LossMode::DeterministicTransform);
        let head = format!(
            "{{\"$a3s_sample\":{{\"kind\":\"json_array\",\"omitted_items\":{omitted},\"original_items\":{count},\
             \"retained_items\":32,\"schema\":\"toolwarden.tool-result-transform.v1\"}},\"items\":[\"item-000000\","
        );
        assert!(sampled.text.starts_with(&head), "{}", &sampled.text[..200]);
        let parsed: Value = serde_json::from_str(&sampled.text).unwrap();
        let items = parsed["items"].as_array().unwrap();
        assert_eq!(
            (items.len(), &items[15], &items[16]),
            (32, &json!("item-000015"), &json!(format!("item-{:06}", count - 16)))
        );
    }
}

#[test]
fn items_keep_their_own_order_and_spelling() {
    let text = format!("[ {} ]", vec!["{ \"b\" : 1.50, \"a\" : [ \" , \", {} ] }"; 10_000].join(" ,\n"));
    let sampled = efficient(text);
    assert!(sampled.text.ends_with(r#",{"b":1.50,"a":[" , ",{}]}]}"#), "{}", sampled.text);
}

#[test]
fn only_a_long_array_of_more_items_than_are_kept_is_sampled() {
    let long = "y".repeat(9000);
    let few = json!(vec![long.clone(); 32]).to_string();
    let nested = json!({"items": vec!["z"; 60_000]}).to_string();
    for text in [
        few,
        nested,
        json!(vec!["short"; 40]).to_string(),
        format!("{}, 1", array_of(20_000)),
        format!("[{}]", array_of(20_000)),
    ] {
        assert!(!efficient(text.clone()).text.contains("$a3s_sample"), "{}", &text[..40]);
    }
    let many = efficient(json!(vec![long; 40]).to_string());
    assert_eq!(many.loss, LossMode::Composite, "a sample that is too long is cut");
    assert!(many.text.starts_with("{\"$a3s_sample\"") && many.text.ends_with("yyy\"]}"));
}

#[test]
fn a_sample_does_not_grow_with_its_items() {
    let huge = json!((0..50).map(|at| at.to_string().repeat(50_000)).collect::<Vec<_>>()).to_string();
    let whole = efficient(huge.clone());
    assert_eq!(whole.loss, LossMode::Composite);
    assert!(whole.text.len() <= 102_400 && whole.text.ends_with("4949\"]}"));
    assert_eq!(in_pieces(&ProjectionPolicy::context_efficient(), &huge, &[7, 70_000]), whole);
}

#[test]
fn losses_one_after_the_other_come_to_one() {
    use LossMode::{BoundedPreview, Composite, DeterministicTransform, HeadTail, None};
    assert_eq!(None.then(HeadTail), HeadTail);
    assert_eq!(HeadTail.then(None), HeadTail);
    assert_eq!(HeadTail.then(BoundedPreview), Composite);
    assert_eq!(DeterministicTransform.then(DeterministicTransform), DeterministicTransform);
    assert_eq!(None.then(None), None);
}

fn in_pieces(policy: &ProjectionPolicy, text: &str, steps: &[usize]) -> Projection {
    let mut projector = Projector::new(policy);
    let (mut rest, mut steps) = (text, steps.iter().cycle());
    while !rest.is_empty() {
        let step = rest.ceil_char_boundary(*steps.next().unwrap_or(&1));
        projector.push(&rest[..step]);
        rest = &rest[step..];
    }
    projector.finish(LINE_BYTES)
}

/// Texts around the bounds of small policies: arrays, alike lines, wide characters, anything.
fn text() -> impl Strategy<Value = String> {
    let line = prop_oneof![Just("alike line of some length\n".to_owned()), Just("\n".to_owned()), "\\PC{0,30}\n"];
    let lines =
        vec((line, 1_usize..80), 0..40).prop_map(|runs| runs.iter().map(|(line, times)| line.repeat(*times)).collect());
    let item = prop_oneof![Just(json!(1)), Just(json!({"b": [1, "]"], "a": null})), "\\PC{0,40}".prop_map(Value::from)];
    let array = (vec(item, 0..8), 1_usize..60).prop_map(|(items, times)| {
        let all: Vec<Value> = std::iter::repeat_n(items, times).flatten().collect();
        if times % 2 == 0 { json!(all).to_string() } else { serde_json::to_string_pretty(&all).unwrap() }
    });
    prop_oneof![lines, array, "\\PC{0,2000}", any::<String>(), Just("界".repeat(700))]
}

fn policy() -> impl Strategy<Value = ProjectionPolicy> {
    (any::<bool>(), 1_usize..400, 0_usize..112, any::<bool>(), 2_u64..6, 0_usize..12).prop_map(
        |(preview, head, tail, fold, threshold, items)| {
            let (head, tail) = if preview { (1024, 0) } else { (head, tail) };
            let fields = json!({
                "schema": "a3s.code.tool-result-transform-policy.v1", "max_output_bytes": 1024, "head_bytes": head,
                "tail_bytes": tail, "fold_repeated_lines": fold, "repeated_line_threshold": threshold,
                "structured_sample_items": items,
            });
            ProjectionPolicy::from_json(&fields.to_string()).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn any_text_is_projected_within_its_bounds_and_the_same_in_any_pieces(
        text in text(), policy in policy(), steps in vec(1_usize..700, 1..5),
    ) {
        let projection = project(&policy, text.clone(), LINE_BYTES);
        prop_assert_eq!(&in_pieces(&policy, &text, &steps), &projection);
        prop_assert_eq!(&project(&policy, text.clone(), LINE_BYTES), &projection);
        let whole = projection.clone().with_last_line(&"u".repeat(LINE_BYTES - 2));
        match projection.loss {
            LossMode::None => prop_assert_eq!(&projection.text, &text),
            LossMode::BoundedPreview if policy.is_preview_only() => {
                prop_assert!(text.starts_with(&projection.text[..projection.shown_bytes]));
                prop_assert!(projection.shown_bytes > 1020 && projection.text.len() < 1024 + 100);
            }
            LossMode::Composite if policy.is_preview_only() => prop_assert!(projection.text.len() < 1024 + 100),
            _ => {
                prop_assert!(whole.text.len() <= text.len(), "{} of {}", whole.text.len(), text.len());
                prop_assert!(policy.is_preview_only() || whole.text.len() <= 1024);
            }
        }
        // What was projected once and fits is not changed by the same policy again.
        if projection.loss == LossMode::None {
            prop_assert_eq!(project(&policy, projection.text.clone(), LINE_BYTES), projection);
        }
    }

    #[test]
    fn the_built_in_profiles_take_any_text(text in any::<String>(), times in 1_usize..2000) {
        let text = text.repeat(times);
        for policy in [ProjectionPolicy::conservative(), ProjectionPolicy::context_efficient()] {
            let projection = project(&policy, text.clone(), LINE_BYTES);
            prop_assert!(projection.text.len() + LINE_BYTES <= text.len() + 400 || projection.loss == LossMode::None);
            prop_assert_eq!(in_pieces(&policy, &text, &[977]), projection);
        }
    }
}

#[test]
fn an_excerpt_leaves_room_for_the_line_about_its_whole() {
    let policy = ProjectionPolicy::context_efficient();
    for (bytes, loss) in [(102_165, LossMode::None), (102_166, LossMode::HeadTail)] {
        let mut projector = Projector::new(&policy);
        projector.push(&"x".repeat(bytes));
        let projection = projector.finish_excerpt(LINE_BYTES, true);
        assert_eq!(projection.loss, loss);
        assert!(projection.text.len() + LINE_BYTES <= 102_400);
    }
}
