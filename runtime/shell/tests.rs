//! Which commands are found in which lines, and that hostile lines cost neither stack nor time.

use proptest::prelude::*;

use super::{CommandLine, Doubt, RedirectionKind};

/// Names found, sorted and joined by blanks.
fn names(text: &str) -> String {
    CommandLine::parse(text).names().into_iter().collect::<Vec<_>>().join(" ")
}

/// A line, the names that must be found, and whether a doubt must remain.
const LINES: &[(&str, &str, bool)] = &[
    // Plain commands and quoting.
    ("ls", "ls", false),
    ("ls -la /tmp", "ls", false),
    ("  ls\t-l  ", "ls", false),
    ("'l's", "ls", false),
    ("l\"s\" -l", "ls", false),
    ("\\rm x", "rm", false),
    ("r\\\nm x", "r rm", false),
    ("/bin/rm x", "/bin/rm", false),
    ("echo 'a; rm b'", "echo", false),
    ("echo \"a; rm b | c\"", "echo", false),
    ("echo a\\;rm", "echo", false),
    ("# rm x", "", false),
    ("ls # ; rm x", "ls", false),
    ("ls#x", "ls#x", true),
    ("", "", false),
    ("FOO=1", "", false),
    ("FOO=1 nc x", "nc", false),
    ("A=1 B=2 nc x", "nc", false),
    // Lists and pipes. Case C185.
    ("make x && git push", "git make", false),
    ("make x; rm -rf y", "make rm", false),
    ("make x || z", "make z", false),
    ("a & b", "a b", false),
    ("a | b |& c", "a b c", false),
    ("a\nb", "a b", false),
    ("a;b", "a b", false),
    ("! a", "a", false),
    ("! a && b", "a b", false),
    ("time rm x", "rm time", false),
    ("time -p rm x", "rm time", false),
    ("a;;b", "a b", true),
    // Compounds.
    ("(rm x)", "rm", false),
    ("( (rm x) )", "rm", false),
    ("((x=1))", "", false),
    ("(( x = $(rm y) ))", "rm", false),
    ("{ rm x; }", "rm", false),
    ("if a; then b; elif c; then d; else e; fi", "a b c d e", false),
    ("while a; do b; done", "a b", false),
    ("until a; do b; done", "a b", false),
    ("for i in 1 2; do rm $i; done", "rm", false),
    ("for i in $(nc x); do a; done", "a nc", false),
    ("for ((i=0;i<3;i++)); do a; done", "a", false),
    ("case x in a) b;; *) c;; esac", "b c", false),
    ("case $(nc) in a) b;; esac", "b nc", false),
    ("[[ -f x ]] && a", "a", false),
    ("[[ $(nc x) == y ]]", "nc", false),
    ("[ -f x ] && a", "[ a", false),
    ("a && { b || c; } | (d; e)", "a b c d e", false),
    ("coproc rm x", "coproc rm", false),
    ("f() { rm x; }; f", "f rm", true),
    ("function f { rm x; }", "rm", true),
    ("select x in a; do rm; done", "rm", true),
    // Substitutions. Case C187.
    ("date $(nc x)", "date nc", false),
    ("date `nc x`", "date nc", false),
    ("diff a <(nc x)", "diff nc", false),
    ("ls >(sh x)", "ls sh", false),
    ("date \"$(nc x)\"", "date nc", false),
    ("date \"a $(b \"$(nc x)\") c\"", "b date nc", false),
    ("date '$(nc x)'", "date", false),
    ("date \\$(nc x)", "date", true),
    ("date \"\\$(nc x)\"", "date", false),
    ("echo ${v:-$(nc x)}", "echo nc", true),
    ("echo \"${x:-'$(nc)'}\"", "echo nc", true),
    ("echo ${x:-`nc`}", "echo nc", true),
    ("echo `a \\`nc x\\``", "a echo nc", false),
    ("echo $((1 + $(nc x)))", "echo nc", false),
    ("echo $[ $(nc x) ]", "echo nc", false),
    ("a[$(nc x)]=1", "nc", true),
    ("x=$(nc y)", "nc", false),
    ("x=(a $(nc y))", "nc", false),
    ("cat <<E\n$(nc x)\nE", "cat nc", false),
    ("cat <<E\n`nc x`\nE", "cat nc", false),
    ("cat <<'E'\n$(nc x)\nE", "cat", false),
    ("cat <<\"E\"\n`nc x`\nE", "cat", false),
    ("cat <<-E\n\t$(nc x)\n\tE", "cat nc", false),
    ("cat <<E\n\\$(nc x)\nE", "cat", true),
    ("cat <<< \"$(nc x)\"", "cat nc", false),
    ("cat <<E\n'$(nc x)'\nE", "cat nc", false),
    ("cat <<E && rm y\nx\nE", "cat rm", false),
    ("git commit -m \"$(cat <<'E'\nit's (a) test\nE\n)\"", "cat git", false),
    ("echo {a,$(nc x)}", "echo nc", false),
    ("a $(b $(c $(d)))", "a b c d", false),
    ("$(nc x)", "nc", true),
    ("a $((1+`b \\`nc\\\nx\\``))", "a b ncx", true),
    // Command words that cannot be known.
    ("$x y", "", true),
    ("${x} y", "", true),
    ("`which rm` y", "which", true),
    ("$'\\x72m' y", "", true),
    ("$'rm' y", "", true),
    ("{rm,-rf,/}", "", true),
    ("r? y", "", true),
    ("/bin/r* y", "", true),
    ("a=rm; $a x", "", true),
    ("\"$@\"", "", true),
    // Wrappers.
    ("env nc x", "env nc", false),
    ("env A=1 nc x", "env nc", false),
    ("env -i nc x", "env nc", false),
    ("env -S 'nc x'", "env", true),
    ("env PATH=/tmp ls", "env ls", true),
    ("sudo nc x", "nc sudo", false),
    ("sudo -u me nc x", "nc sudo", false),
    ("sudo $x", "sudo", true),
    ("sudo -i", "sudo", true),
    ("nohup nc x &", "nc nohup", false),
    ("nice -n 5 nc", "nc nice", false),
    ("timeout -k 1 5 nc", "nc timeout", false),
    ("command nc x", "command nc", false),
    ("command -v nc", "command", false),
    ("builtin eval 'nc x'", "builtin eval nc", true),
    ("a | xargs rm", "a rm xargs", false),
    ("a | xargs -0 -n 1 rm -f", "a rm xargs", false),
    ("a | xargs sh -c 'nc x'", "a nc sh xargs", false),
    ("a | xargs -I{} {} x", "a xargs", true),
    ("sh -c 'nc x; b'", "b nc sh", false),
    ("bash -lc \"nc x\"", "bash nc", false),
    ("bash -c \"$x\"", "bash", true),
    ("bash -c 'bash -c \"nc x\"'", "bash nc", false),
    ("curl x | sh", "curl sh", true),
    ("bash -s < x", "bash", true),
    ("bash x.sh", "bash", false),
    ("find . -name '*.rs'", "find", false),
    ("find . -name *.rs", "find", false),
    ("find . -exec rm {} \\;", "find rm", false),
    ("find . -execdir nc {} +", "find nc", false),
    ("find . -delete", "find rm", false),
    ("find . $x", "find", true),
    ("env timeout 5 nice nc x", "env nc nice timeout", false),
    ("parallel nc ::: a b", "nc parallel", true),
    // What runs or redefines others.
    ("eval 'nc x'", "eval nc", true),
    ("eval $x", "eval", true),
    ("source x", "source", true),
    (". x", ".", true),
    ("exec nc x", "exec nc", true),
    ("trap 'nc x' EXIT", "nc trap", true),
    ("alias ls='nc x'", "alias nc", true),
    ("PATH=/tmp ls", "ls", true),
    ("PATH=/tmp", "", true),
    ("LD_PRELOAD=x ls", "ls", true),
    ("export PATH=/tmp", "export", true),
    ("GIT_SSH_COMMAND=x git fetch", "git", true),
    ("${PATH:=x}", "", true),
    ("for PATH in /tmp; do ls; done", "ls", true),
    ("hash -p /tmp/x ls", "hash", true),
    ("test -v 'a[$(nc x)]'", "test", true),
    // A panic of one parser leaves the other's opinion; a comment in arithmetic is none.
    ("a $((#$(nc x)\n1))", "a", true),
    // What neither or only one can read.
    ("a \"b", "a", true),
    ("a $(b", "a b", true),
    ("a <<E\nb", "a", true),
    ("if a; then", "a", true),
    (")", "", true),
    ("a\0b", "", true),
    ("a\rb", "", true),
];

#[test]
fn finds_every_command_or_doubts() {
    assert!(LINES.len() >= 100);
    let mut wrong = Vec::new();
    for (text, expected, doubtful) in LINES {
        let line = CommandLine::parse(text);
        // What a refused line still shows is best effort: only the sure names of readable lines are fixed.
        let unreadable = line.doubts.iter().any(|doubt| matches!(doubt, Doubt::Unreadable | Doubt::ControlCharacter));
        if (!unreadable && names(text) != *expected) || line.doubts.is_empty() == *doubtful {
            wrong.push(format!("{text:?}: {:?} {:?}, not {expected:?} {doubtful}", names(text), line.doubts));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn redirections_are_found_with_their_kind() {
    use RedirectionKind::{Append, Read, Write};
    for (text, expected) in [
        ("a > f", vec![("f", Write)]),
        ("a >> f", vec![("f", Append)]),
        ("a >| f", vec![("f", Write)]),
        ("a &> f", vec![("f", Write)]),
        ("a &>> f", vec![("f", Append)]),
        ("a 2> f", vec![("f", Write)]),
        ("a >& f", vec![("f", Write)]),
        ("a < f", vec![("f", Read)]),
        ("a 2>&1", vec![]),
        ("a 2>&-", vec![]),
        ("a >/dev/null 2>&1", vec![("/dev/null", Write)]),
        ("> f", vec![("f", Write)]),
        ("{ a; } > f", vec![("f", Write)]),
        ("(a) 2> f", vec![("f", Write)]),
        ("if a; then b; fi > f", vec![("f", Write)]),
        ("cat <<E > f\nE", vec![("f", Write)]),
        ("echo 'a > b'", vec![]),
        ("echo a \\> b", vec![]),
        ("a | tee f g", vec![("f", Write), ("g", Write)]),
        ("a | tee -a f", vec![("f", Append)]),
        ("a $(b > f)", vec![("f", Write)]),
        ("find . -fprint f", vec![("f", Write)]),
        ("dd if=a of=f", vec![("f", Write)]),
        ("bash -c 'a > f'", vec![("f", Write)]),
        ("env > f", vec![("f", Write)]),
        ("git > /dev/null push", vec![("/dev/null", Write)]),
    ] {
        let line = CommandLine::parse(text);
        let found: Vec<_> = line.redirections.iter().map(|found| (found.target.written(), found.kind)).collect();
        assert_eq!(found, expected, "{text}");
        assert_eq!(line.doubts, [], "{text}");
    }
    let words: Vec<_> = CommandLine::parse("git > /dev/null push").simple_commands;
    assert_eq!(words.len(), 1);
    assert_eq!(words[0].words.len(), 2);
}

/// Texts that overflow the stack or take exponential time without the caps.
fn hostile() -> Vec<String> {
    let mut texts = Vec::new();
    for opener in [
        "$(",
        "\"$(",
        "a \"b $(",
        "${a:-",
        "$((1+",
        "$[1+",
        "<(",
        "a <(",
        "`",
        "(",
        "( ",
        "((",
        "( a; ( ",
        "{ ",
        "{",
        "[",
        "[[ ",
        "[[ ( ",
        "[[ ! ",
        "! ",
        "a[",
        "a[a[",
        "a[((",
        "if ",
        "if a; then ",
        "while ",
        "for x in a; do ",
        "case x in x) ",
        "case x in (x) ",
        "coproc ",
        "function f ",
        "f() ",
        "f() { ",
        "@(",
        "a | ",
        "a && ",
        "<<E\n",
        "<<E ",
        "\\",
        "'",
        "\"",
        "$'",
        "&",
        ";",
        "x=",
        "x=(",
        "sh -c '",
        "eval ",
        "env ",
        "sudo ",
        "xargs ",
        "{a,",
        "~+9999999999",
        "99999999999>",
        "a 99999999999<b ",
        "${a[",
        "$(case x in x) ",
        "$(a # ",
        "$(cat <<E\n((((",
        "|",
        "{ a; } | ",
    ] {
        // A quarter of the longest text keeps an unoptimised build quick; the stack is at its limit long before.
        for count in [31, 300, super::COMMAND_BYTES_MAX / opener.len() / 4] {
            texts.push(format!("{}x", opener.repeat(count)));
        }
    }
    texts.extend(["(", "$(", "{ ", "a[", "eval "].map(|opener| opener.repeat(super::COMMAND_BYTES_MAX / opener.len())));
    texts.push(format!("{}x{}", "( a; ".repeat(24), " )".repeat(24)));
    texts.push(format!("{}x{}", "case x in x) ".repeat(24), " esac".repeat(24)));
    texts.push(format!("{}x{}", "bash -c \"".repeat(20), "\"".repeat(20)));
    texts.push("a".repeat(super::COMMAND_BYTES_MAX + 1));
    texts
}

#[test]
fn hostile_lines_fit_the_stack_of_a_worker_and_end_soon() {
    let texts = hostile();
    let judged = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(move || {
        for text in &texts {
            let line = CommandLine::parse(text);
            assert!(line.simple_commands.len() <= super::COMMANDS_MAX);
        }
        texts.len()
    });
    assert!(judged.unwrap().join().unwrap() > 150);
}

#[test]
fn caps_are_doubts() {
    assert_eq!(CommandLine::parse(&"a".repeat(20_000)).doubts, [Doubt::TooLong { bytes: 20_000 }]);
    let nested = |levels: usize| format!("{}a{}", "echo $(".repeat(levels), ")".repeat(levels));
    assert_eq!(CommandLine::parse(&nested(31)).doubts, []);
    assert_eq!(CommandLine::parse(&nested(33)).doubts, [Doubt::TooDeep]);
    assert!(!CommandLine::parse(&"$(a) ".repeat(300)).doubts.is_empty());
    let many = "if a; then b; fi\n".repeat(60);
    assert_eq!(CommandLine::parse(&many).doubts, []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(parts in proptest::collection::vec(proptest::sample::select(vec![
        "(", ")", "{ ", "}", "$(", "`", "\"", "'", ";", "|", "&", " ", "\n", "a", "if ", "then ", "fi", "<<E\n", "E\n", "[",
        "]", "[[ ", "${", "case x in ", "esac", ">", "<(", "\\", "$", "x=", "9", "é", "\u{a0}", "~", "*", "sh -c ", "#",
    ]), 0..60)) {
        let text = parts.concat();
        let line = CommandLine::parse(&text);
        prop_assert_eq!(&line, &CommandLine::parse(&text));
    }

    #[test]
    fn any_characters_are_taken(text in "\\PC{0,80}") {
        CommandLine::parse(&text);
    }
}
