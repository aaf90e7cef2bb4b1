//! Links between the pages of this repository.

use std::path::{Component, Path, PathBuf};

/// The links of a page that lead to a place of this repository which `exists` does not know.
pub(crate) fn dead_links(path: &str, text: &str, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let dead = targets(text).into_iter().filter(|(_, target)| {
        let file = target.split(['#', '?']).next().unwrap_or_default();
        let elsewhere = file.is_empty() || target.contains("://") || target.starts_with("mailto:");
        !elsewhere && !resolved(folder, file).is_some_and(|file| exists(&file))
    });
    dead.map(|(line, target)| format!("{path}:{line}: {target}")).collect()
}

/// A link's place from the root; none when it leads out of the repository.
fn resolved(folder: &Path, target: &str) -> Option<PathBuf> {
    let target = target.replace("%20", " ");
    let mut place = PathBuf::new();
    for part in folder.join(target).components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !place.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(place)
}

/// Where the links of a page lead, with their lines; code is no link.
fn targets(text: &str) -> Vec<(usize, String)> {
    let (mut targets, mut fence) = (Vec::new(), None);
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => targets.extend(targets_of(line).into_iter().map(|target| (index + 1, target))),
        }
    }
    targets
}

fn targets_of(line: &str) -> Vec<String> {
    // Every second piece between backticks is code.
    let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let mut targets = Vec::new();
    for piece in plain.split("](").skip(1) {
        let end = match piece.strip_prefix('<') {
            Some(quoted) => quoted.find('>').map_or(piece.len(), |at| at + 1),
            None => piece.find([')', ' ']).unwrap_or(piece.len()),
        };
        targets.push(piece[..end].trim_start_matches('<').to_owned());
    }
    let is_name = |name: &str| name.starts_with('[') && !name.starts_with("[^") && !name.contains('(');
    if let Some((_, target)) = plain.split_once("]: ").filter(|(name, _)| is_name(name)) {
        targets.extend(target.split_whitespace().next().map(|target| target.trim_matches(['<', '>']).to_owned()));
    }
    targets
}

#[test]
fn dead_links_are_found() {
    let exists = |path: &Path| ["README.md", "docs/a b.md", "docs/x.md", "docs"].map(Path::new).contains(&path);
    let dead = |text: &str| dead_links("docs/page.md", text, &exists);
    for good in [
        "[a](x.md) and [b](../README.md#part) and ![c](./x.md \"title\")",
        "[a](<a b.md>) [b](a%20b.md) [c](https://example.invalid/gone.md) [d](#part) [e](mailto:a@b.c)",
        "`[a](gone.md)`\n```\n[a](gone.md)\n```\n[a](x.md)",
        "[a]: x.md\n[^1]: gone.md\n- [ ] a task: gone.md",
        "[up](../docs)",
    ] {
        assert!(dead(good).is_empty(), "{good}: {:?}", dead(good));
    }
    assert_eq!(dead("\n[a](gone.md) [b](x.md)"), ["docs/page.md:2: gone.md"]);
    for bad in
        ["[a](../../out.md)", "[a](/README.md)", "[a]: gone.md", "![a](gone.png \"t\")", "```\n```\n[a](gone.md#x)"]
    {
        assert_eq!(dead(bad).len(), 1, "{bad}");
    }
}
