//! Reads YAML, of which JSON is a part, into values that know the line on which they begin.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny};
use serde_saphyr::{DuplicateKeyPolicy, Error, MergeKeyPolicy, Options, Spanned};

use super::refusal::Refusal;

/// Reads a text. It is refused if its shape is another one, or if it has an unknown key.
pub(super) fn read<'t, T: Deserialize<'t>>(text: &'t str) -> Result<T, Refusal> {
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let place = error.location().filter(|place| place.line() > 0);
        let why = match error.without_snippet() {
            Error::Eof { .. } => "the file is empty: write `resources`".to_owned(),
            Error::MultipleDocuments { .. } => {
                "a second YAML document begins here: write one document, without `---` between its parts".to_owned()
            }
            other => other.to_string(),
        };
        let Some(place) = place else { return Refusal { line: 1, why } };
        // The line is in the refusal, and columns help nobody who has the key or the value.
        let suffix = format!(" at line {}, column {}", place.line(), place.column());
        Refusal { line: number(place.line()), why: why.replace(&suffix, "") }
    })
}

/// True if the text is a mapping with this key, whatever else is wrong with it.
pub(super) fn has_config_list(text: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Keys {
        #[serde(default)]
        config_list: Present,
    }

    #[derive(Default)]
    struct Present(bool);

    impl<'de> Deserialize<'de> for Present {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            IgnoredAny::deserialize(from).map(|_| Self(true))
        }
    }

    let mut options = options();
    options.duplicate_keys = DuplicateKeyPolicy::FirstWins;
    serde_saphyr::from_str_with_options(text, options).is_ok_and(|keys: Keys| keys.config_list.0)
}

/// YAML 1.2 as Kubernetes' tools write it. Repeated keys reach the reader of their mapping, which refuses them, and a merge key is
/// an unknown one.
fn options() -> Options {
    serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        strict_booleans: true,
        with_snippet: false,
    }
}

/// A mapping. Anything else in its place is refused with [`Shape::SHAPE`], since the parser only says that a mapping is missing.
#[derive(Default)]
pub(super) struct Mapping<T>(pub(super) T);

/// What belongs in the place of a value.
pub(super) trait Shape {
    const SHAPE: &'static str;
}

impl<'de, T: Deserialize<'de> + Shape> Deserialize<'de> for Mapping<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::deserialize(from).map(Self).map_err(|error| {
            // Serde's error types have no variants, and `custom` gets the place of the value.
            if error.to_string().starts_with(NO_MAPPING) {
                D::Error::custom(format!("expected {}", T::SHAPE))
            } else {
                error
            }
        })
    }
}

/// The parser's words for any other value than a mapping; a test knows them.
const NO_MAPPING: &str = "expected mapping start";

/// The line on which a value begins. For an alias, it is the line of the alias.
pub(super) fn line<T>(at: &Spanned<T>) -> usize {
    number(at.referenced.line())
}

/// Refuses a value.
pub(super) fn refuse<T>(at: &Spanned<T>, why: impl Into<String>) -> Refusal {
    Refusal { line: line(at), why: why.into() }
}

/// A field that a mapping must have. The parser would refuse a missing one at the end of the mapping.
pub(super) fn required<T>(field: Option<T>, name: &str, line: usize) -> Result<T, Refusal> {
    field.ok_or_else(|| Refusal { line, why: format!("missing field `{name}`") })
}

fn number(line: u64) -> usize {
    usize::try_from(line).unwrap_or(usize::MAX).max(1)
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

    #[derive(Deserialize)]
    struct File {
        resources: Spanned<Vec<Spanned<Resource>>>,
        empty: Spanned<Vec<String>>,
    }

    #[derive(Deserialize)]
    struct Resource {
        name: Spanned<String>,
        select: Option<Spanned<Select>>,
        #[serde(rename = "13")]
        number: Option<Spanned<String>>,
    }

    #[derive(Deserialize)]
    struct Select {
        vendors: Vec<Spanned<String>>,
        models: Spanned<Vec<String>>,
    }

    // SEMANTICS: D1
    #[test]
    fn each_value_has_the_line_on_which_it_begins() {
        let File { resources, empty } = read(TEXT).unwrap();
        let [first, second] = &resources.value[..] else { panic!("two resources") };
        let select = first.value.select.as_ref().unwrap();
        let vendors: Vec<usize> = select.value.vendors.iter().map(line).collect();
        assert_eq!((line(first), line(&first.value.name)), (3, 3));
        assert_eq!((line(select), vendors, line(&select.value.models)), (4, vec![4, 5], 7));
        assert_eq!((line(second), second.value.number.as_ref().map(line)), (10, Some(13)));
        assert_eq!((line(&resources), line(&empty)), (3, 14));
    }

    // SEMANTICS: D1
    #[test]
    fn a_missing_value_is_refused_on_the_line_of_the_mapping_that_should_have_it() {
        let refused = |text: &str| read::<File>(text).err().unwrap().line;
        assert_eq!(refused("resources:\n- name: a\n-\n  select: {vendors: [], models: []}\nempty: []\n"), 4);
        assert_eq!(refused("a: ["), 1);
        assert_eq!(required(None::<u8>, "name", 7).unwrap_err().to_string(), "line 7: missing field `name`");
    }

    #[test]
    fn a_config_list_is_found_whatever_it_holds() {
        for text in ["configList: []", "{\"a\": 1, \"a\": 2, \"configList\": null}", "configList: {a: 1, a: 2}"] {
            assert!(has_config_list(text), "{text}");
        }
        for text in ["", "[]", "resources: [configList]", "a: {configList: []}", "- configList: []"] {
            assert!(!has_config_list(text), "{text}");
        }
    }
}
