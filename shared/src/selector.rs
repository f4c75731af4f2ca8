//! Label selectors: `k=v`, `k!=v`, `k in (a,b)`, `k notin (a,b)`, `k`, `!k`; a comma means AND.
//!
//! A node without the label never matches a positive term (`=`, `in`, `k`). It does match the negative ones (`!=`,
//! `notin`, `!k`), as in Kubernetes. There is no expression for "all nodes": the empty text is an error, so that a
//! lost variable cannot address a fleet. Values with other characters than those of a key go in double quotes, in
//! which `\"` and `\\` stand for themselves.

use crate::{
    labels::{self, Labels},
    wire::{SelectorAst, SelectorOp},
};

/// The longest selector, in bytes.
pub const SELECTOR_LEN_MAX: usize = 4096;
/// How many terms one selector may have.
pub const SELECTOR_TERMS_MAX: usize = 64;
/// How many values one `in (…)` may list.
pub const SELECTOR_VALUES_MAX: usize = 256;

/// A parsed selector: all of its terms must hold. Never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selector(Vec<Term>);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Term {
    pub key: String,
    pub test: Test,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Test {
    Equals(String),
    Differs(String),
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

/// Where a selector stops making sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message} (at byte {position})")]
pub struct BadSelector {
    /// Offset in bytes from the beginning of the text.
    pub position: usize,
    pub message: String,
}

impl Selector {
    /// # Errors
    /// With the byte offset at which the text stops being a selector.
    pub fn parse(text: &str) -> Result<Self, BadSelector> {
        Parser { text, at: 0 }.selector()
    }

    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.0
    }

    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|term| term.matches(labels))
    }

    /// The tree that the published preview operation shows.
    #[must_use]
    pub fn ast(&self) -> SelectorAst {
        let mut tests: Vec<SelectorAst> = self.0.iter().flat_map(Term::ast).collect();
        if tests.len() == 1 {
            return tests.remove(0);
        }
        SelectorAst {
            op: SelectorOp::And,
            key: None,
            value: None,
            values: None,
            children: Some(tests),
        }
    }
}

impl Term {
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.test {
            Test::Equals(wanted) => value == Some(wanted),
            Test::Differs(unwanted) => value != Some(unwanted),
            Test::In(wanted) => value.is_some_and(|v| wanted.contains(v)),
            Test::NotIn(unwanted) => value.is_none_or(|v| !unwanted.contains(v)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
        }
    }

    /// One test, or for `notin`, which the published tree has no word for, one for each value: none of them is it.
    fn ast(&self) -> Vec<SelectorAst> {
        let test = |op, value: Option<&String>, values: Option<&Vec<String>>| SelectorAst {
            op,
            key: Some(self.key.clone()),
            value: value.cloned(),
            values: values.cloned(),
            children: None,
        };
        match &self.test {
            Test::Equals(value) => vec![test(SelectorOp::Eq, Some(value), None)],
            Test::Differs(value) => vec![test(SelectorOp::Neq, Some(value), None)],
            Test::In(values) => vec![test(SelectorOp::In, None, Some(values))],
            Test::NotIn(values) => {
                let differs = |value| test(SelectorOp::Neq, Some(value), None);
                values.iter().map(differs).collect()
            }
            Test::Exists => vec![test(SelectorOp::Exists, None, None)],
            Test::Absent => vec![test(SelectorOp::Absent, None, None)],
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn selector(mut self) -> Result<Selector, BadSelector> {
        if self.text.len() > SELECTOR_LEN_MAX {
            return Err(bad(
                SELECTOR_LEN_MAX,
                format!("a selector has at most {SELECTOR_LEN_MAX} bytes"),
            ));
        }
        self.skip_space();
        if self.peek().is_none() {
            return Err(bad(
                0,
                "the selector is empty; to address every node, ask for all of them explicitly",
            ));
        }
        let mut terms = Vec::new();
        loop {
            if terms.len() == SELECTOR_TERMS_MAX {
                return Err(bad(
                    self.at,
                    format!("a selector has at most {SELECTOR_TERMS_MAX} terms"),
                ));
            }
            terms.push(self.term()?);
            self.skip_space();
            match self.peek() {
                None => return Ok(Selector(terms)),
                Some(b',') => self.at += 1,
                Some(_) => return Err(self.expected("a comma or the end")),
            }
        }
    }

    fn term(&mut self) -> Result<Term, BadSelector> {
        self.skip_space();
        if self.eat("!") {
            let key = self.key()?;
            return Ok(Term {
                key,
                test: Test::Absent,
            });
        }
        let key = self.key()?;
        self.skip_space();
        let test = if self.eat("!=") {
            Test::Differs(self.value()?)
        } else if self.eat("==") || self.eat("=") {
            Test::Equals(self.value()?)
        } else if self.eat_word("in") {
            Test::In(self.values()?)
        } else if self.eat_word("notin") {
            Test::NotIn(self.values()?)
        } else {
            Test::Exists
        };
        Ok(Term { key, test })
    }

    fn key(&mut self) -> Result<String, BadSelector> {
        self.skip_space();
        let start = self.at;
        let word = self.word();
        if word.is_empty() {
            return Err(self.expected("a label key"));
        }
        labels::check_key(&word).map_err(|err| bad(start, err.to_string()))?;
        Ok(word)
    }

    fn values(&mut self) -> Result<Vec<String>, BadSelector> {
        self.skip_space();
        if !self.eat("(") {
            return Err(self.expected("an opening parenthesis"));
        }
        let mut values = Vec::new();
        loop {
            if values.len() == SELECTOR_VALUES_MAX {
                return Err(bad(
                    self.at,
                    format!("a list has at most {SELECTOR_VALUES_MAX} values"),
                ));
            }
            values.push(self.value()?);
            self.skip_space();
            if self.eat(")") {
                return Ok(values);
            }
            if !self.eat(",") {
                return Err(self.expected("a comma or a closing parenthesis"));
            }
        }
    }

    fn value(&mut self) -> Result<String, BadSelector> {
        self.skip_space();
        let start = self.at;
        let value = if self.peek() == Some(b'"') {
            self.quoted()?
        } else {
            self.word()
        };
        if value.is_empty() && self.at == start {
            return Err(self.expected("a value (an empty one is written \"\")"));
        }
        labels::check("k", &value)
            .map_err(|_| bad(start, "a value has at most 255 bytes and no control character"))?;
        Ok(value)
    }

    fn quoted(&mut self) -> Result<String, BadSelector> {
        let opening = self.at;
        let mut value = String::new();
        let mut chars = self.text[opening + 1..].char_indices();
        while let Some((offset, c)) = chars.next() {
            match c {
                '"' => {
                    self.at = opening + 1 + offset + 1;
                    return Ok(value);
                }
                '\\' => match chars.next() {
                    Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                    _ => return Err(bad(opening + 1 + offset, "after a backslash comes \\ or \"")),
                },
                plain => value.push(plain),
            }
        }
        Err(bad(opening, "this quotation is never closed"))
    }

    fn word(&mut self) -> String {
        let rest = &self.text[self.at..];
        let len = rest.bytes().take_while(|b| labels::is_key_byte(*b)).count();
        self.at += len;
        rest[..len].to_owned()
    }

    fn eat(&mut self, what: &str) -> bool {
        let found = self.text[self.at..].starts_with(what);
        self.at += if found { what.len() } else { 0 };
        found
    }

    /// A word operator ends where a word ends: `k inside` is not `k in side`.
    fn eat_word(&mut self, what: &str) -> bool {
        let start = self.at;
        let found = self.word() == what;
        if !found {
            self.at = start;
        }
        found
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn expected(&self, what: &str) -> BadSelector {
        let found = match self.text[self.at..].chars().next() {
            Some(c) => format!("found {c:?}"),
            None => "the text ends here".to_owned(),
        };
        bad(self.at, format!("expected {what}, {found}"))
    }
}

fn bad(position: usize, message: impl Into<String>) -> BadSelector {
    BadSelector {
        position,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(pairs: &str) -> Labels {
        labels::parse_list(pairs).unwrap()
    }

    fn matches(selector: &str, pairs: &str) -> bool {
        Selector::parse(selector).unwrap().matches(&labels(pairs))
    }

    #[test]
    fn positive_terms_need_the_label() {
        assert!(matches("role=web", "role=web,tier=1"));
        assert!(matches("role == web", "role=web"));
        assert!(!matches("role=web", "tier=1"));
        assert!(matches("role in (web, db)", "role=db"));
        assert!(!matches("role in (web,db)", ""));
        assert!(matches("role", "role="));
        assert!(!matches("role", "tier=1"));
    }

    #[test]
    fn negative_terms_match_a_node_without_the_label() {
        assert!(matches("role!=web", "tier=1"));
        assert!(!matches("role != web", "role=web"));
        assert!(matches("role notin (web,db)", ""));
        assert!(!matches("role notin (web,db)", "role=db"));
        assert!(matches("!role", "tier=1"));
        assert!(!matches("! role", "role=web"));
    }

    #[test]
    fn the_tree_has_published_words_alone() {
        let tree = |text: &str| serde_json::to_value(Selector::parse(text).unwrap().ast()).unwrap();
        let differs = |value: &str| serde_json::json!({ "op": "neq", "key": "role", "value": value });
        assert_eq!(tree("role notin (web)"), differs("web"));
        assert_eq!(
            tree("role notin (web,db)"),
            serde_json::json!({ "op": "and", "children": [differs("web"), differs("db")] })
        );
        assert_eq!(
            tree("tier in (1,2), role notin (web,db), !old"),
            serde_json::json!({ "op": "and", "children": [
                { "op": "in", "key": "tier", "values": ["1", "2"] },
                differs("web"),
                differs("db"),
                { "op": "absent", "key": "old" },
            ]})
        );
    }

    #[test]
    fn a_comma_means_and() {
        assert!(matches("role=web,tier=1,!old", "role=web,tier=1"));
        assert!(!matches("role=web,tier=2", "role=web,tier=1"));
    }

    #[test]
    fn quoted_values_hold_anything_printable() {
        let odd = Labels::from([("note".to_owned(), "a \"b\", c) \\ ü".to_owned())]);
        assert!(
            Selector::parse(r#"note="a \"b\", c) \\ ü""#)
                .unwrap()
                .matches(&odd)
        );
        assert!(matches(r#"empty="""#, "empty="));
    }

    #[test]
    fn a_word_that_begins_like_an_operator_is_no_operator() {
        let err = Selector::parse("role inside (a)").unwrap_err();
        assert_eq!(err.position, 5);
        assert!(matches("in in (a)", "in=a"));
    }

    #[test]
    fn errors_name_the_byte() {
        for (text, position) in [
            ("", 0),
            ("   ", 0),
            (",", 0),
            ("role=web,", 9),
            ("role=", 5),
            ("role in ()", 9),
            ("role in (a", 10),
            ("role in a", 8),
            ("role ~ web", 5),
            ("ü=1", 0),
            ("a=1,-b=2", 4),
            ("a=\"x", 2),
            ("a=\"\\n\"", 3),
            ("role=web tier=1", 9),
            ("role=\u{1}", 5),
        ] {
            assert_eq!(
                Selector::parse(text).map_err(|e| e.position),
                Err(position),
                "{text:?}"
            );
        }
    }

    #[test]
    fn every_limit_has_its_error() {
        assert!(
            Selector::parse(&"a".repeat(SELECTOR_LEN_MAX + 1))
                .unwrap_err()
                .message
                .contains("4096")
        );
        let many = vec!["a"; SELECTOR_TERMS_MAX + 1].join(",");
        assert!(Selector::parse(&many).unwrap_err().message.contains("64 terms"));
        let values = format!("a in ({})", vec!["b"; SELECTOR_VALUES_MAX + 1].join(","));
        assert!(
            Selector::parse(&values)
                .unwrap_err()
                .message
                .contains("256 values")
        );
    }

    proptest! {
        #[test]
        fn no_text_panics_and_errors_point_into_it(text in "\\PC{0,40}") {
            if let Err(err) = Selector::parse(&text) {
                prop_assert!(err.position <= text.len());
            }
        }

        #[test]
        fn equality_and_its_negation_partition_the_nodes(
            value in "[a-c]", have in proptest::option::of("[a-c]"),
        ) {
            let node = have.map(|v| Labels::from([("k".to_owned(), v)])).unwrap_or_default();
            let yes = Selector::parse(&format!("k={value}")).unwrap().matches(&node);
            let no = Selector::parse(&format!("k!={value}")).unwrap().matches(&node);
            prop_assert!(yes != no);
        }
    }
}
