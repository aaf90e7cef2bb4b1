//! Rules about floors: which crate may name which, and which module may name which inside its crate.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::source::{Kind, Source};

/// The crates from the ground up: folder and package.
pub(crate) const CRATES: [(&str, &str); 5] = [
    ("tools", "toolwarden-tools"),
    ("actors", "toolwarden-actors"),
    ("runtime", "toolwarden"),
    ("sim", "toolwarden-sim"),
    ("cli", "toolwarden-cli"),
];
/// The one crate that may name ractor.
const ACTORS: &str = "actors";

/// Packages of their own in the folder of a crate: their modules are none of that crate's.
const WITHIN: [&str; 1] = ["sim/interleavings/"];

/// Members of the workspace that [`CRATES`] does not know, and the other way round.
pub(crate) fn unknown_members(workspace: &Table) -> Vec<String> {
    let listed = workspace.get("workspace").and_then(|table| table.get("members")).and_then(Value::as_array);
    let members: BTreeSet<&str> =
        listed.into_iter().flatten().filter_map(Value::as_str).filter(|m| *m != ".").collect();
    let known: BTreeSet<&str> = CRATES.iter().map(|(folder, _)| *folder).collect();
    members.symmetric_difference(&known).map(|folder| format!("Cargo.toml: {folder}")).collect()
}

/// Dependencies of a crate that lead up or sideways.
pub(crate) fn upward_dependencies(folder: &str, manifest: &Table) -> Vec<String> {
    let Some(own) = CRATES.iter().position(|(name, _)| *name == folder) else {
        return vec![format!("{folder}: not a floor")];
    };
    let mut tables = vec![manifest];
    tables.extend(
        manifest
            .get("target")
            .and_then(Value::as_table)
            .into_iter()
            .flat_map(Table::values)
            .filter_map(Value::as_table),
    );
    let mut places = Vec::new();
    for table in tables {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let entries = table.get(kind).and_then(Value::as_table).into_iter().flatten();
            for (key, entry) in entries {
                // A dependency may be renamed.
                let package = entry.get("package").and_then(Value::as_str).unwrap_or(key);
                let floor = CRATES.iter().position(|(_, name)| *name == package);
                if floor.is_some_and(|floor| floor >= own) {
                    places.push(format!("{folder}/Cargo.toml: {kind} names {package}, which is not below {folder}"));
                }
                if package == "ractor" && folder != ACTORS {
                    places.push(format!("{folder}/Cargo.toml: {kind} names ractor, which {ACTORS} alone may"));
                }
            }
        }
    }
    places
}

/// The floor of each module that a crate's root lists: groups of `mod` lines, parted by blank lines.
pub(crate) fn module_floors(root: &Source) -> BTreeMap<String, usize> {
    let mods = (0..root.tokens.len()).filter(|at| root.at(*at, &["mod"]) && root.at(at + 2, &[";"]));
    let by_line: BTreeMap<usize, &str> =
        mods.map(|at| (root.tokens[at].line, root.tokens[at + 1].text.as_str())).collect();
    let (mut floor, mut begun, mut floors) = (0, false, BTreeMap::new());
    for (index, line) in root.text.lines().enumerate() {
        if let Some(name) = by_line.get(&(index + 1)) {
            floors.insert((*name).to_owned(), floor);
            begun = true;
        } else if line.trim().is_empty() && begun {
            floor += 1;
            begun = false;
        }
    }
    floors
}

/// Shipped imports of a file that name a module on its own floor or above it; a test may use what stands above.
pub(crate) fn upward_imports(source: &Source, folder: &str, floors: &BTreeMap<String, usize>) -> Vec<String> {
    let Some(inside) = source.path.strip_prefix(folder).and_then(|path| path.strip_prefix('/')) else {
        return Vec::new();
    };
    if WITHIN.iter().any(|package| source.path.starts_with(package)) {
        return Vec::new();
    }
    let parts: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    if matches!(inside, "lib.rs" | "main.rs") || matches!(parts[0], "tests" | "benches" | "examples") {
        return Vec::new();
    }
    let Some(own) = floors.get(parts[0]) else {
        return vec![format!("{}: the crate's root does not list {}", source.path, parts[0])];
    };
    let mut places = Vec::new();
    for (line, module) in named_modules(source, parts.len()) {
        let Some(floor) = floors.get(&module) else { continue };
        if module != parts[0] && floor >= own {
            let word = if floor == own { "beside" } else { "above" };
            places.push(format!("{}:{line}: {} names {module}, which stands {word} it", source.path, parts[0]));
        }
    }
    places
}

/// The modules of the crate's root that a file names, by `crate::` or by enough `super::`, with their lines.
/// `depth` is how deep the file's own module stands.
fn named_modules(source: &Source, depth: usize) -> Vec<(usize, String)> {
    let mut named = Vec::new();
    // The ends of the inline modules that are open here.
    let mut inline: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < source.tokens.len() {
        inline.retain(|end| *end > at);
        if source.at(at, &["mod"]) && source.at(at + 2, &["{"]) {
            inline.push(source.behind(at + 2));
        }
        let mut next = at;
        let mut up = 0;
        if source.at(at, &["crate", ":", ":"]) {
            (next, up) = (at + 3, depth + inline.len());
        }
        while source.at(next, &["super", ":", ":"]) {
            (next, up) = (next + 3, up + 1);
        }
        if next > at && up == depth + inline.len() && !source.tokens[at].test {
            named.extend(first_names(source, next));
        }
        at = next.max(at + 1);
    }
    named
}

/// The first names of a path or of each path in a group.
fn first_names(source: &Source, at: usize) -> Vec<(usize, String)> {
    let name = |at: usize| {
        let token = source.tokens.get(at).filter(|token| token.kind == Kind::Word)?;
        Some((token.line, token.text.clone()))
    };
    if !source.at(at, &["{"]) {
        return name(at).into_iter().collect();
    }
    let (mut names, mut inside) = (Vec::new(), at + 1);
    let end = source.behind(at);
    while inside < end {
        names.extend(name(inside));
        // On to the next path of this group.
        while inside < end && !source.at(inside, &[","]) {
            inside = if source.at(inside, &["{"]) { source.behind(inside) } else { inside + 1 };
        }
        inside += 1;
    }
    names
}

#[test]
fn a_crate_that_leads_up_is_found() {
    let manifest = |text: &str| text.parse::<Table>().unwrap();
    let down = manifest("[dependencies]\ntoolwarden-tools.workspace = true\nractor = \"1\"\nserde = \"1\"");
    assert!(upward_dependencies("actors", &down).is_empty());
    assert_eq!(upward_dependencies("runtime", &down).len(), 1, "ractor is named by actors alone");
    for up in [
        "[dependencies]\ntoolwarden.workspace = true",
        "[dev-dependencies]\ntoolwarden-sim = { path = \"../sim\" }",
        "[build-dependencies]\ntoolwarden-actors = \"1\"",
        "[dependencies]\nkernel = { package = \"toolwarden\", path = \"../runtime\" }",
        "[target.'cfg(unix)'.dependencies]\ntoolwarden-cli = \"1\"",
    ] {
        assert_eq!(upward_dependencies("actors", &manifest(up)).len(), 1, "{up}");
    }
    let members = |names: &str| unknown_members(&manifest(&format!("[workspace]\nmembers = [{names}]")));
    assert!(members(r#"".", "tools", "actors", "runtime", "sim", "cli""#).is_empty());
    assert_eq!(members(r#""tools", "actors", "runtime", "cli", "extra""#), ["Cargo.toml: extra", "Cargo.toml: sim"]);
}

#[test]
fn a_module_that_leads_up_is_found() {
    let root =
        "//! Root.\n\nuse x;\n\n/// A.\npub mod a;\n// B.\nmod b;\n\n\npub(crate) mod c;\n#[cfg(test)]\nmod d;\n";
    let floors = module_floors(&Source::new("tools/lib.rs", root));
    let expected = [("a", 0), ("b", 0), ("c", 1), ("d", 1)].map(|(name, floor)| (name.to_owned(), floor));
    assert_eq!(floors, BTreeMap::from(expected));
    let places = |path: &str, text: &str| upward_imports(&Source::new(path, text), "tools", &floors);
    for (path, bad) in [
        ("tools/a.rs", "use crate::c::X;"),
        ("tools/a.rs", "use crate::b::X;"),
        ("tools/a.rs", "fn f() -> crate::c::X {}"),
        ("tools/a.rs", "use crate::{a::{c, d}, c};"),
        ("tools/a.rs", "use super::c;"),
        ("tools/a.rs", "mod inner { use super::super::{c::X}; }"),
        ("tools/a/deep.rs", "use super::super::c;"),
        ("tools/c/deep.rs", "use crate::d;"),
        ("tools/e.rs", ""),
    ] {
        assert_eq!(places(path, bad).len(), 1, "{path}: {bad}");
    }
    for (path, good) in [
        ("tools/c.rs", "use crate::{a::X, b::{c, d}};"),
        ("tools/a.rs", "use crate::a::deep; // crate::c"),
        ("tools/a/deep.rs", "use super::c; use crate::a::c;"),
        ("tools/a.rs", "#[cfg(test)]\nmod tests { use crate::c; }"),
        ("tools/a.rs", "mod c {}\nmod tests { use super::c; }"),
        ("tools/lib.rs", "use crate::c;"),
        ("tools/examples/x.rs", "use crate::c;"),
    ] {
        assert!(places(path, good).is_empty(), "{path}: {good}: {:?}", places(path, good));
    }
}
