//! The first opinion: what brush-parser finds in one text.
//!
//! Only its tokenizer and its grammar are used; words are scanned by [`super::word`], for its own word grammar
//! takes exponential time on hostile text. Its grammar tries some things twice at each level, and some tokens
//! make it panic or recurse without bound; such texts are refused before it sees them.

use brush_parser::ast::{self, CommandPrefixOrSuffixItem as Item};
use brush_parser::{ParserOptions, Token, parse_tokens, uncached_tokenize_str};

use super::openers::{KEYWORDS, OPENERS_MAX};
use super::word::{Scan, Word, embedded, scan, scan_document};
use super::wrapper::{assigned_name, decides_what_runs};
use super::{Doubt, Found, Redirection, RedirectionKind, SimpleCommand};

/// Most steps of the grammar: it doubles its work at each nested parenthesis and each `case`. A step costs about
/// 2 us in a debug build.
const GRAMMAR_STEPS_MAX: usize = 1 << 18;

/// Longest run of digits before `<` or `>`: the parser panics on a number that is no file descriptor.
const DESCRIPTOR_DIGITS_MAX: usize = 6;

/// Reads one text.
///
/// # Errors
/// The doubt that remains when it cannot be read.
pub(super) fn read(text: &str) -> Result<Found, Doubt> {
    let options = ParserOptions::default();
    let tokens = uncached_tokenize_str(text, &options.tokenizer_options()).map_err(|_| Doubt::Unreadable)?;
    check(&tokens)?;
    let program = parse_tokens(&tokens, &options).map_err(|_| Doubt::Unreadable)?;
    let mut walk = Walk { text, found: Found::default(), stack: Vec::new() };
    walk.stack.extend(program.complete_commands.iter().rev().map(Node::List));
    while let Some(node) = walk.stack.pop() {
        walk.visit(node);
    }
    Ok(walk.found)
}

/// Refuses tokens that the grammar could not take in bounded time and stack.
fn check(tokens: &[Token]) -> Result<(), Doubt> {
    let mut openers = 0usize;
    let mut cases = 0u32;
    let mut parens = 0u32;
    let mut parens_deepest = 0u32;
    for (index, token) in tokens.iter().enumerate() {
        match token {
            Token::Operator(operator, _) if operator == "(" => {
                openers += 1;
                parens += 1;
                parens_deepest = parens_deepest.max(parens);
            }
            Token::Operator(operator, _) if operator == ")" => parens = parens.saturating_sub(1),
            Token::Operator(..) => {}
            Token::Word(word, _) => {
                openers += usize::from(KEYWORDS.contains(&word.as_str()));
                cases += u32::from(word == "case");
                if is_odd_subscript(word) {
                    return Err(Doubt::Subscript { text: word.clone() });
                }
                let redirects =
                    matches!(tokens.get(index + 1), Some(Token::Operator(o, _)) if o.starts_with(['<', '>']));
                if redirects && word.len() > DESCRIPTOR_DIGITS_MAX && word.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(Doubt::Unreadable);
                }
            }
        }
    }
    let doublings = cases.saturating_add(parens_deepest);
    let steps = tokens.len().checked_shl(doublings).filter(|steps| *steps >> doublings == tokens.len());
    if openers > OPENERS_MAX || steps.is_none_or(|steps| steps > GRAMMAR_STEPS_MAX) {
        return Err(Doubt::TooDeep);
    }
    if parens > 0 {
        return Err(Doubt::Unreadable);
    }
    Ok(())
}

/// A word that looks like `name[…` with more inside than the grammar takes safely.
fn is_odd_subscript(word: &str) -> bool {
    let Some((name, index)) = word.split_once('[') else {
        return false;
    };
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name && index.contains(['[', '(', '"', '`', '{', '\''])
}

/// A part of the syntax tree that is still to be visited.
enum Node<'a> {
    List(&'a ast::CompoundList),
    Command(&'a ast::Command),
    Test(&'a ast::ExtendedTestExpr),
}

struct Walk<'a> {
    text: &'a str,
    found: Found,
    stack: Vec<Node<'a>>,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, node: Node<'a>) {
        match node {
            Node::List(list) => {
                for item in list.0.iter().rev() {
                    let and_or = &item.0;
                    let pipelines = and_or.additional.iter().rev().map(|next| match next {
                        ast::AndOr::And(pipeline) | ast::AndOr::Or(pipeline) => pipeline,
                    });
                    for pipeline in pipelines.chain([&and_or.first]) {
                        self.stack.extend(pipeline.seq.iter().rev().map(Node::Command));
                    }
                }
            }
            Node::Command(ast::Command::Simple(command)) => self.simple(command),
            Node::Command(ast::Command::Compound(compound, redirects)) => {
                self.redirects(redirects.as_ref());
                self.compound(compound);
            }
            Node::Command(ast::Command::Function(function)) => {
                self.found.doubts.push(Doubt::Definition { name: function.fname.value.clone() });
                self.redirects(function.body.1.as_ref());
                self.compound(&function.body.0);
            }
            Node::Command(ast::Command::ExtendedTest(test, redirects)) => {
                self.redirects(redirects.as_ref());
                self.stack.push(Node::Test(&test.expr));
            }
            Node::Test(test) => self.test(test),
        }
    }

    fn test(&mut self, test: &'a ast::ExtendedTestExpr) {
        match test {
            ast::ExtendedTestExpr::And(left, right) | ast::ExtendedTestExpr::Or(left, right) => {
                self.stack.push(Node::Test(right));
                self.stack.push(Node::Test(left));
            }
            ast::ExtendedTestExpr::Not(inner) | ast::ExtendedTestExpr::Parenthesized(inner) => {
                self.stack.push(Node::Test(inner));
            }
            ast::ExtendedTestExpr::UnaryTest(_, word) => {
                self.word(&word.value);
            }
            ast::ExtendedTestExpr::BinaryTest(_, left, right) => {
                self.word(&left.value);
                self.word(&right.value);
            }
        }
    }

    fn compound(&mut self, compound: &'a ast::CompoundCommand) {
        match compound {
            ast::CompoundCommand::Arithmetic(arithmetic) => self.arithmetic(arithmetic),
            ast::CompoundCommand::ArithmeticForClause(clause) => {
                for part in [&clause.initializer, &clause.condition, &clause.updater].into_iter().flatten() {
                    embedded(&part.value, &mut self.found.inner, &mut self.found.doubts);
                }
                self.stack.push(Node::List(&clause.body.list));
            }
            ast::CompoundCommand::BraceGroup(group) => self.stack.push(Node::List(&group.list)),
            ast::CompoundCommand::Subshell(subshell) => self.stack.push(Node::List(&subshell.list)),
            ast::CompoundCommand::ForClause(clause) => {
                self.set(&clause.variable_name);
                for value in clause.values.iter().flatten() {
                    self.word(&value.value);
                }
                self.stack.push(Node::List(&clause.body.list));
            }
            ast::CompoundCommand::CaseClause(clause) => {
                self.word(&clause.value.value);
                for case in &clause.cases {
                    for pattern in &case.patterns {
                        self.word(&pattern.value);
                    }
                }
                let bodies = clause.cases.iter().rev().filter_map(|case| case.cmd.as_ref());
                self.stack.extend(bodies.map(Node::List));
            }
            ast::CompoundCommand::IfClause(clause) => {
                for part in clause.elses.iter().flatten().rev() {
                    self.stack.push(Node::List(&part.body));
                    self.stack.extend(part.condition.as_ref().map(Node::List));
                }
                self.stack.push(Node::List(&clause.then));
                self.stack.push(Node::List(&clause.condition));
            }
            ast::CompoundCommand::WhileClause(clause) | ast::CompoundCommand::UntilClause(clause) => {
                self.stack.push(Node::List(&clause.1.list));
                self.stack.push(Node::List(&clause.0));
            }
            ast::CompoundCommand::Coprocess(coprocess) => self.stack.push(Node::Command(&coprocess.body)),
        }
    }

    /// `((…))`. The parser also takes `( (…) )` for arithmetic, although that runs commands: only parentheses
    /// without a gap between them are.
    fn arithmetic(&mut self, arithmetic: &ast::ArithmeticCommand) {
        let mut source = self.text.chars().skip(arithmetic.loc.start.index);
        if source.next() == Some('(') && source.next() == Some('(') {
            embedded(&arithmetic.expr.value, &mut self.found.inner, &mut self.found.doubts);
        } else {
            self.found.inner.push(arithmetic.expr.value.clone());
        }
    }

    fn simple(&mut self, command: &'a ast::SimpleCommand) {
        let mut words = Vec::new();
        let mut assignments = Vec::new();
        for item in command.prefix.iter().flat_map(|prefix| &prefix.0) {
            match item {
                Item::AssignmentWord(assignment, _) => {
                    let name = match &assignment.name {
                        ast::AssignmentName::VariableName(name) => name,
                        ast::AssignmentName::ArrayElementName(name, index) => {
                            embedded(index, &mut self.found.inner, &mut self.found.doubts);
                            name
                        }
                    };
                    self.set(name);
                    assignments.push(name.clone());
                    self.assigned(&assignment.value);
                }
                item => self.item(item, &mut words),
            }
        }
        if let Some(name) = &command.word_or_name {
            words.push(self.word(&name.value));
        }
        for item in command.suffix.iter().flat_map(|suffix| &suffix.0) {
            self.item(item, &mut words);
        }
        if !words.is_empty() {
            self.found.commands.push(SimpleCommand { words, assignments, hands_on: false });
        }
    }

    fn item(&mut self, item: &'a Item, words: &mut Vec<Word>) {
        match item {
            Item::IoRedirect(redirect) => self.redirect(redirect),
            Item::Word(word) => words.push(self.word(&word.value)),
            Item::AssignmentWord(assignment, word) => {
                if let ast::AssignmentValue::Array(_) = &assignment.value {
                    self.assigned(&assignment.value);
                    words.push(Word::anything(&word.value));
                } else {
                    words.push(self.word(&word.value));
                }
            }
            Item::ProcessSubstitution(_, subshell) => {
                self.stack.push(Node::List(&subshell.list));
                words.push(Word::anything("<(…)"));
            }
        }
    }

    fn assigned(&mut self, value: &ast::AssignmentValue) {
        match value {
            ast::AssignmentValue::Scalar(word) => {
                self.word(&word.value);
            }
            ast::AssignmentValue::Array(elements) => {
                for (index, element) in elements {
                    if let Some(index) = index {
                        embedded(&index.value, &mut self.found.inner, &mut self.found.doubts);
                    }
                    self.word(&element.value);
                }
            }
        }
    }

    fn set(&mut self, name: &str) {
        let name = assigned_name(name).unwrap_or(name);
        if decides_what_runs(name) {
            self.found.doubts.push(Doubt::Environment { name: name.to_owned() });
        }
    }

    fn word(&mut self, text: &str) -> Word {
        let Scan { word, inner, doubts } = scan(text);
        self.found.inner.extend(inner);
        self.found.doubts.extend(doubts);
        word
    }

    fn redirects(&mut self, redirects: Option<&'a ast::RedirectList>) {
        for redirect in redirects.iter().flat_map(|list| &list.0) {
            self.redirect(redirect);
        }
    }

    fn redirect(&mut self, redirect: &'a ast::IoRedirect) {
        use ast::IoFileRedirectKind as Kind;
        match redirect {
            ast::IoRedirect::File(_, kind, target) => {
                let kind = match kind {
                    Kind::Read | Kind::DuplicateInput => RedirectionKind::Read,
                    Kind::Append => RedirectionKind::Append,
                    Kind::Write | Kind::ReadAndWrite | Kind::Clobber | Kind::DuplicateOutput => RedirectionKind::Write,
                };
                match target {
                    ast::IoFileRedirectTarget::Filename(word) => self.open(&word.value, kind),
                    ast::IoFileRedirectTarget::Fd(_) => {}
                    ast::IoFileRedirectTarget::Duplicate(word) if is_descriptor(&word.value) => {}
                    ast::IoFileRedirectTarget::Duplicate(word) => self.open(&word.value, kind),
                    ast::IoFileRedirectTarget::ProcessSubstitution(_, subshell) => {
                        self.stack.push(Node::List(&subshell.list));
                    }
                }
            }
            ast::IoRedirect::OutputAndError(word, append) => {
                self.open(&word.value, if *append { RedirectionKind::Append } else { RedirectionKind::Write });
            }
            ast::IoRedirect::HereString(_, word) => {
                self.word(&word.value);
            }
            ast::IoRedirect::HereDocument(_, document) => {
                if document.requires_expansion {
                    let Scan { inner, doubts, .. } = scan_document(&document.doc.value);
                    self.found.inner.extend(inner);
                    self.found.doubts.extend(doubts);
                }
            }
        }
    }

    fn open(&mut self, target: &str, kind: RedirectionKind) {
        let target = self.word(target);
        self.found.redirections.push(Redirection { target, kind });
    }
}

/// `2`, `-` or `2-` behind `>&` names no file.
pub(super) fn is_descriptor(text: &str) -> bool {
    let digits = text.strip_suffix('-').unwrap_or(text);
    !text.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
