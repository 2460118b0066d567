//! The modules that a source file declares, and the paths that it uses outside of test code.

use std::collections::BTreeSet;

/// A path as written, without the item at its end being known: `crate::a::b` is `["crate", "a", "b"]`.
pub(super) type Words = Vec<String>;

/// A module's source.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Source {
    /// Paths that begin with `crate`, `super`, `self` or a name, each with the inline modules around it.
    pub(super) paths: BTreeSet<(Words, Words)>,
    /// Modules in files of their own that only tests have.
    pub(super) test_modules: BTreeSet<String>,
}

impl Source {
    pub(super) fn parse(text: &str) -> Self {
        let mut parser = Parser { words: words(text), at: 0, inline: Vec::new(), depth: 0, source: Self::default() };
        parser.run();
        parser.source
    }
}

/// The text as words: names, `::`, and single characters. Comments, strings and lifetimes are left out.
fn words(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut words = Vec::new();
    let mut at = 0;
    let starts = |at: usize, what: &str| chars[at..].iter().take(what.len()).copied().eq(what.chars());
    while at < chars.len() {
        let c = chars[at];
        if starts(at, "//") {
            while at < chars.len() && chars[at] != '\n' {
                at += 1;
            }
        } else if starts(at, "/*") {
            while at < chars.len() && !starts(at, "*/") {
                at += 1;
            }
            at += 2;
        } else if c == 'r' && (starts(at, "r\"") || starts(at, "r#\"") || starts(at, "r##\"")) {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            let end = format!("\"{}", "#".repeat(hashes));
            at += 2 + hashes;
            while at < chars.len() && !starts(at, &end) {
                at += 1;
            }
            at += end.len();
        } else if c == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if c == '\'' {
            // A character, such as '{' or '\\'', or a lifetime.
            let is_escaped = chars.get(at + 1) == Some(&'\\');
            if is_escaped {
                at += 3;
                while at < chars.len() && chars[at] != '\'' {
                    at += 1;
                }
                at += 1;
            } else if chars.get(at + 2) == Some(&'\'') {
                at += 3;
            } else {
                at += 1;
            }
        } else if starts(at, "::") {
            words.push("::".to_owned());
            at += 2;
        } else if c.is_alphanumeric() || c == '_' {
            let mut word = String::new();
            while at < chars.len() && (chars[at].is_alphanumeric() || chars[at] == '_') {
                word.push(chars[at]);
                at += 1;
            }
            words.push(word);
        } else {
            if !c.is_whitespace() {
                words.push(c.to_string());
            }
            at += 1;
        }
    }
    words
}

struct Parser {
    words: Vec<String>,
    at: usize,
    /// The inline modules around the present place, with the depth of their braces.
    inline: Vec<(String, usize)>,
    depth: usize,
    source: Source,
}

impl Parser {
    fn run(&mut self) {
        while self.at < self.words.len() {
            if self.is_at(&["#", "[", "cfg", "(", "test", ")", "]"]) {
                self.at += 7;
                self.skip_item();
            } else if self.is_at(&["mod"]) && self.word(2) == "{" {
                self.depth += 1;
                self.inline.push((self.word(1).to_owned(), self.depth));
                self.at += 3;
            } else if self.is_at(&["use"]) {
                self.at += 1;
                self.use_tree(&Vec::new());
            } else if self.is_at(&["{"]) {
                self.depth += 1;
                self.at += 1;
            } else if self.is_at(&["}"]) {
                self.inline.retain(|(_, depth)| *depth < self.depth);
                self.depth = self.depth.saturating_sub(1);
                self.at += 1;
            } else if self.word(1) == "::" && self.is_name(0) && !self.is_continued() {
                let mut path = vec![self.word(0).to_owned()];
                self.at += 1;
                while self.is_at(&["::"]) && self.is_name(1) {
                    path.push(self.word(1).to_owned());
                    self.at += 2;
                }
                self.add(path);
            } else {
                self.at += 1;
            }
        }
    }

    /// The tree behind `use`: `a::{b, c::D as E, self, *}`.
    fn use_tree(&mut self, prefix: &Words) {
        let mut path = prefix.clone();
        loop {
            if self.is_at(&["{"]) {
                self.at += 1;
                while self.at < self.words.len() && !self.is_at(&["}"]) {
                    self.use_tree(&path);
                    if self.is_at(&[","]) {
                        self.at += 1;
                    }
                }
                self.at += 1;
                return;
            }
            if self.is_name(0) && self.word(0) != "as" {
                // `a::{self}` is `a`.
                if self.word(0) != "self" || path.is_empty() {
                    path.push(self.word(0).to_owned());
                }
                self.at += 1;
            } else if self.is_at(&["*"]) || self.is_at(&["::"]) {
                self.at += 1;
            } else {
                break;
            }
        }
        if self.is_at(&["as"]) {
            self.at += 2;
        }
        self.add(path);
    }

    /// Skips attributes and the item after them. Notes a module in a file of its own.
    fn skip_item(&mut self) {
        let (mut depth, mut name) = (0_usize, None);
        while self.at < self.words.len() {
            match self.word(0) {
                "mod" if depth == 0 => name = Some(self.word(1).to_owned()),
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && self.word(0) == "}" {
                        self.at += 1;
                        // `use a::{b, c};`
                        if self.is_at(&[";"]) {
                            self.at += 1;
                        }
                        return;
                    }
                }
                ";" if depth == 0 => {
                    self.at += 1;
                    self.source.test_modules.extend(name);
                    return;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn add(&mut self, path: Words) {
        let inline = self.inline.iter().map(|(name, _)| name.clone()).collect();
        if !path.is_empty() {
            self.source.paths.insert((inline, path));
        }
    }

    fn word(&self, ahead: usize) -> &str {
        self.words.get(self.at + ahead).map_or("", String::as_str)
    }

    fn is_at(&self, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(ahead, word)| self.word(ahead) == *word)
    }

    fn is_name(&self, ahead: usize) -> bool {
        self.word(ahead).starts_with(|c: char| c.is_alphabetic() || c == '_')
    }

    /// True if the present name is no path's first: it follows `::`, `.` or `$`.
    fn is_continued(&self) -> bool {
        let before = self.at.checked_sub(1).map_or("", |at| &self.words[at]);
        ["::", ".", "$"].contains(&before)
    }
}

#[test]
fn paths_are_found_in_uses_expressions_and_inline_modules_and_not_in_tests_or_text() {
    let source = Source::parse(
        r##"
        use crate::a::{self, b::C, d::*};
        pub use e::F as G;
        // crate::comment::X
        const S: &str = "crate::text::X"; const R: &str = r#"crate::raw::X"#; const Q: char = '"';
        mod inner { fn f<'a>(x: &'a super::H) { $crate::no::X; self.y; crate::i::j::<u8>() } }
        fn g() { super::k() }
        #[cfg(test)]
        mod tests;
        #[cfg(test)]
        use crate::for_tests::{A, B};
        #[cfg(test)]
        mod more { use crate::for_tests::C; }
        fn h() { crate::last::L }
        "##,
    );
    let found: Vec<String> =
        source.paths.iter().map(|(inline, path)| format!("{} {}", inline.join("::"), path.join("::"))).collect();
    let expected = [
        " crate::a",
        " crate::a::b::C",
        " crate::a::d",
        " crate::last::L",
        " e::F",
        " super::k",
        "inner crate::i::j",
        "inner super::H",
    ];
    assert_eq!(found, expected);
    assert_eq!(source.test_modules.into_iter().collect::<Vec<_>>(), ["tests"]);
}
