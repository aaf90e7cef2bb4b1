//! A page with a timeline, in a real browser: what is drawn is where a person can read it.
//!
//! The page itself holds no script. The test adds one that measures, and reads back what it wrote; so what is checked is
//! the layout that the browser came to, with its own fonts, and not what the page meant.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::program::Workspace;

/// The browsers that `scripts/setup` may have put here; the first one that is there is taken.
const BROWSERS: [&str; 3] = ["chromium-headless-shell", "chromium", "chromium-browser"];

/// Between these the script writes what it measured.
const BEGINS: &str = "<pre id=\"measured\">";
const ENDS: &str = "</pre>";

/// Measures the page, unticks the messages, and measures those again.
const SCRIPT: &str = r##"<script>
addEventListener("load", () => {
  const box = element => { const at = element.getBoundingClientRect(); return [at.left, at.top, at.right, at.bottom] };
  const boxes = what => [...document.querySelectorAll(what)].map(box);
  const messages = document.querySelector(".messages");
  const shown = () => getComputedStyle(messages).display !== "none";
  const before = shown();
  document.querySelector("#messages").click();
  const found = {
    wide: document.documentElement.scrollWidth, window: innerWidth, names: boxes(".names text"), column: box(document.querySelector(".names svg")),
    times: boxes("text.time"), bars: boxes(".chart rect:not(.band)"), marks: boxes(".chart svg > path"),
    chart: box(document.querySelector(".chart svg")), bands: boxes("rect.band"), before, after: shown(),
    loaded: performance.getEntriesByType("resource").length,
    ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
  };
  const out = document.createElement("pre");
  out.id = "measured";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script>"##;

fn browser() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = BROWSERS.iter().flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)));
    there
        .into_iter()
        .find(|browser| browser.is_file())
        .unwrap_or_else(|| panic!("no browser is here: run scripts/setup"))
}

/// What the script measured of a page.
fn measured(workspace: &Workspace, page: &str) -> Value {
    let text = std::fs::read_to_string(workspace.path().join(page)).unwrap();
    let with_script = text.replace("</html>", &format!("{SCRIPT}</html>"));
    assert_ne!(with_script, text);
    workspace.write("measured.html", &with_script);
    let output = Command::new(browser())
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", "--dump-dom"])
        .arg(format!("--user-data-dir={}", workspace.path().join("browser").display()))
        .arg(format!("file://{}", workspace.path().join("measured.html").display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let found = dom.split_once(BEGINS).and_then(|(_, rest)| rest.split_once(ENDS));
    let (found, _) =
        found.unwrap_or_else(|| panic!("nothing was measured: {}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(found).unwrap()
}

/// Left, top, right and bottom.
fn boxes(found: &Value) -> Vec<[f64; 4]> {
    serde_json::from_value(found.clone()).unwrap()
}

/// Whether one stands within another, but for rounding.
fn is_within(inner: &[f64; 4], outer: &[f64; 4]) -> bool {
    inner[0] >= outer[0] - 0.5 && inner[1] >= outer[1] - 0.5 && inner[2] <= outer[2] + 0.5 && inner[3] <= outer[3] + 0.5
}

// A machine's tree with faults, one whose promise is broken, and a world.
#[test]
fn a_timeline_can_be_read_in_a_browser() {
    let workspace = Workspace::new();
    let broken =
        "name = \"broken\"\nabout = \"A node ends <twice>.\"\ndriver = \"machines\"\nmutant = \"second-ending\"\n";
    workspace.write("broken.toml", broken);
    for (scenario, exit_code) in [("wide", 0), ("tiny", 0), ("broken.toml", 1), ("world-cancel-storm", 0)] {
        let args = ["sim", "timeline", "5", "--scenario", scenario, "--html", "page.html"];
        let told = workspace.run(&args).ends_with(exit_code).err;
        let found = measured(&workspace, "page.html");
        let [names, times, bars, marks, bands] =
            ["names", "times", "bars", "marks", "bands"].map(|what| boxes(&found[what]));
        let [column, chart]: [[f64; 4]; 2] =
            ["column", "chart"].map(|what| serde_json::from_value(found[what].clone()).unwrap());
        assert!(told.contains(&format!("{} nodes", names.len())), "{scenario}: {} names, and {told}", names.len());
        assert!(names.iter().all(|name| is_within(name, &column)), "{scenario}: a name does not fit: {names:?}");
        assert!(names.windows(2).all(|pair| pair[0][3] <= pair[1][1] + 4.0), "{scenario}: names on each other");
        // The rows of both halves stand at the same height.
        for (name, band) in names.iter().step_by(2).zip(&bands) {
            assert!(name[1] >= band[1] - 1.0 && name[3] <= band[3] + 1.0, "{scenario}: {name:?} beside {band:?}");
        }
        assert!(times.windows(2).all(|pair| pair[0][2] < pair[1][0]), "{scenario}: moments on each other: {times:?}");
        assert!(bars.len() >= names.len() && bars.iter().all(|bar| bar[2] - bar[0] >= 1.9), "{scenario}");
        assert!(!marks.is_empty(), "{scenario}: nothing ends");
        let drawn = bars.iter().chain(&marks).chain(&times);
        assert!(drawn.clone().all(|drawn| is_within(drawn, &chart)), "{scenario}: drawn outside of the picture");
        // The picture is scrolled, not the page.
        assert!(found["wide"].as_f64() <= found["window"].as_f64(), "{scenario}: {} wide", found["wide"]);
        assert_eq!((&found["before"], &found["after"]), (&Value::Bool(true), &Value::Bool(false)), "{scenario}");
        assert_eq!(found["loaded"], 0, "{scenario}: the page asks for something else");
        assert_ne!(found["ink"], found["paper"], "{scenario}");
    }
}
