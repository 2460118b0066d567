//! A text of YAML, or of JSON, and the lines that its values are on.
//!
//! The reader of YAML tells the place of what it refuses, and of nothing else. So the line of a value is found by reading the text
//! once more and refusing this very value: the line is the reader's own, whatever quotes, anchors and line breaks come before it.

use std::cell::Cell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::refusal::Refusal;

/// A text.
#[derive(Clone, Copy)]
pub(super) struct Document<'t>(pub(super) &'t str);

/// One step from a value down to another.
#[derive(Clone, Copy)]
enum Step {
    Key(&'static str),
    Item(usize),
}

/// The place of a value in a document.
#[derive(Clone)]
pub(super) struct At<'t> {
    document: Document<'t>,
    path: Vec<Step>,
}

impl<'t> Document<'t> {
    /// Reads it. What is refused is of another shape, or has an unknown key.
    pub(super) fn read<T: Deserialize<'t>>(self) -> Result<T, Refusal> {
        serde_yaml_ng::from_str(self.0).map_err(|error| {
            let text = error.to_string();
            let Some(at) = error.location() else { return Refusal { line: 1, why: text } };
            let place = format!(" at line {} column {}", at.line(), at.column());
            Refusal { line: at.line(), why: text.strip_suffix(&place).unwrap_or(&text).to_owned() }
        })
    }

    /// The place of the whole text.
    pub(super) fn root(self) -> At<'t> {
        At { document: self, path: Vec::new() }
    }
}

impl At<'_> {
    /// The value of a key of this mapping.
    pub(super) fn key(&self, name: &'static str) -> Self {
        self.step(Step::Key(name))
    }

    /// An item of this list, from 0 on.
    pub(super) fn item(&self, nth: usize) -> Self {
        self.step(Step::Item(nth))
    }

    fn step(&self, step: Step) -> Self {
        let mut below = self.clone();
        below.path.push(step);
        below
    }

    /// True if there is a value here.
    pub(super) fn is_there(&self) -> bool {
        self.document.line(&self.path).is_some()
    }

    /// The line that the value begins on; of a value that is not written, the line of what should have it.
    pub(super) fn line(&self) -> usize {
        let above = (0..=self.path.len()).rev();
        above.filter_map(|length| self.document.line(&self.path[..length])).next().unwrap_or(1)
    }

    /// Refuses this value.
    pub(super) fn refuse(&self, why: impl Into<String>) -> Refusal {
        Refusal { line: self.line(), why: why.into() }
    }
}

impl Document<'_> {
    /// The line of the value at a path, if there is one.
    fn line(self, path: &[Step]) -> Option<usize> {
        let is_reached = Cell::new(false);
        let way = Way { path, is_reached: &is_reached };
        let error = way.deserialize(serde_yaml_ng::Deserializer::from_str(self.0)).err()?;
        is_reached.get().then(|| error.location().map_or(1, |at| at.line()))
    }
}

/// The rest of the way to a value, which is refused once it is reached.
#[derive(Clone, Copy)]
struct Way<'p> {
    path: &'p [Step],
    is_reached: &'p Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for Way<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        self.is_reached.set(self.path.is_empty());
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Way<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the next value of the way")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((Step::Key(name), path)) = self.path.split_first() else { return Err(A::Error::custom("found")) };
        while let Some(key) = map.next_key::<String>()? {
            if key == *name {
                map.next_value_seed(Self { path, ..self })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((Step::Item(nth), path)) = self.path.split_first() else { return Err(A::Error::custom("found")) };
        for _ in 0..*nth {
            if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        list.next_element_seed(Self { path, ..self })?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A comment: with a colon.
resources:
  - name: \"a # b\"
    select: {vendors: [a,
       b], models:

         [c]}
  -

    name: >-
      - folded
      - name: no
    13: n
empty: []
";

    // SEMANTICS: D1
    #[test]
    fn each_value_has_the_line_on_which_it_begins() {
        let root = Document(TEXT).root();
        let list = root.key("resources");
        let select = list.item(0).key("select");
        for (at, line) in [
            (list.item(0), 3),
            (list.item(0).key("name"), 3),
            (select.clone(), 4),
            (select.key("vendors").item(0), 4),
            (select.key("vendors").item(1), 5),
            (select.key("models"), 7),
            (list.item(1), 10),
            (list.item(1).key("13"), 13),
            (root.key("empty"), 14),
        ] {
            assert!(at.is_there());
            assert_eq!(at.line(), line);
        }
    }

    // SEMANTICS: D1
    #[test]
    fn a_value_that_is_not_written_has_the_line_of_what_should_have_it() {
        let root = Document(TEXT).root();
        for (at, line) in [
            (root.key("resources").item(0).key("kind"), 3),
            (root.key("resources").item(1).key("select").key("vendors"), 10),
            (root.key("resources").item(2), 3),
            (root.key("resources").key("name"), 3),
            (root.item(0), 2),
            (root.key("empty").item(0), 14),
        ] {
            assert!(!at.is_there());
            assert_eq!(at.line(), line);
        }
        assert_eq!(Document("a: [").root().key("b").line(), 1);
    }
}
