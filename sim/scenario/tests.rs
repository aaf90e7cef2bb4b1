//! Scenario files: the shipped ones, and what is wrong with others.

use super::Scenario;
use super::shipped;

const SMALL: &str = "name = \"a\"\nabout = \"b\"\ndriver = \"machines\"\n";

fn refused(text: &str) -> String {
    Scenario::parse("x.toml", text).unwrap_err().to_string()
}

#[test]
fn what_is_left_out_is_the_whole_variety() {
    let scenario = Scenario::parse("x.toml", SMALL).unwrap();
    let workload = scenario.workload().unwrap();
    assert_eq!(workload.calls, crate::workload::Mix::calls());
    assert_eq!(workload.faults.one_in, None);
}

#[test]
fn a_file_that_makes_no_sense_is_refused_with_file_line_and_what_to_do() {
    for (more, line, words) in [
        ("mutant = \"none\"\n", 4, "there are ending-before-children"),
        ("[tree]\nruns = 0\n", 5, "between 1 and 256"),
        ("[tree]\nrun = 1\n", 5, "unknown field `run`"),
        ("[limits]\npermits = 3\nclose_at_ms = 99999999\n", 6, "between 0 and 900000"),
        ("[faults]\nuntil_ms = 300000\n", 5, "between 0 and 200000"),
        ("[calls]\nwork = 0\n", 4, "gives nothing a weight"),
        ("[commands]\nbatch = 1\n", 4, "a command starts nothing"),
        ("[leaves]\ndance = 1\n", 5, "unknown variant `dance`"),
        ("[bodies]\nmanners = []\n", 5, "at least one thing"),
        ("[tree]\nexact = true\ncalls = 256\nmembers = 100\ndepth = 3\n", 5, "more than 4096 nodes"),
        ("[[cancel]]\nat_ms = 1\nwhat = \"nobody\"\n", 6, "unknown variant `nobody`"),
    ] {
        let said = refused(&format!("{SMALL}{more}"));
        assert!(said.starts_with(&format!("x.toml:{line}: ")) && said.contains(words), "{more}: {said}");
    }
    assert!(refused("name = \"a\"\n").contains("missing field `driver`"));
    assert!(refused("name = \"A b\"\nabout = \"b\"\ndriver = \"machines\"\n").contains("a-z"));
    assert!(refused("name = \"a\"\nabout = \"b\"\ndriver = \"wheels\"\n").contains("unknown variant `wheels`"));
    assert!(refused(&format!("{SMALL}#{}", "x".repeat(super::FILE_BYTES_MAX))).contains("bytes"));
    assert!(refused("name = \"\u{7f}").contains("x.toml:1: "));
}

#[test]
fn a_world_is_checked_as_far_as_its_script_and_its_policy() {
    let head = "name = \"w\"\nabout = \"b\"\ndriver = \"world\"\n";
    assert_eq!(Scenario::parse("x.toml", &format!("{head}[world]\n")).unwrap().driver(), super::Driver::World);
    for (world, line, words) in [
        ("[world]\nsessions = []\n", 4, "1 to 8 sessions"),
        ("[world]\nturns = \"{\"\n", 4, "play"),
        ("[world]\npolicy = \"deny = 3\"\n", 4, "play:1"),
        ("[world]\nacts = [\"dance\"]\n", 5, "unknown variant `dance`"),
        ("", 1, "missing field `world`"),
    ] {
        let said = refused(&format!("{head}{world}"));
        assert!(said.starts_with(&format!("x.toml:{line}: ")) && said.contains(words), "{world}: {said}");
    }
}

#[test]
fn every_shipped_file_loads_under_its_own_name_and_comes_back_from_its_text() {
    let all = shipped::all().unwrap();
    assert!(all.len() >= 15, "{} scenarios", all.len());
    for scenario in &all {
        let again = Scenario::parse("again.toml", &scenario.to_text().unwrap()).unwrap();
        assert_eq!(again, *scenario);
    }
    let mut names: Vec<&str> = all.iter().map(|scenario| scenario.name.as_str()).collect();
    names.dedup();
    assert_eq!(names.len(), all.len());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "tests look at the real folder")]
fn every_file_of_the_folder_is_shipped() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    let mut shipped: Vec<String> = shipped::files().map(|(name, _)| format!("{name}.toml")).collect();
    shipped.sort();
    assert_eq!(files, shipped);
}
