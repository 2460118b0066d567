//! Templates: minijinja, with undefined names as errors, and limits on the steps and the output of a template.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_api::InvalidField;
use minijinja::value::ValueIter;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value as Context, filters, functions, tests};
use serde_json::Value;

use super::language;

/// The step limit of one template. Each item that is taken from a range also counts. A hostfile takes about ten steps
/// per pod.
const STEPS: u64 = 1_000_000;

/// The step limit of all templates that are rendered to validate a JobType.
const ALL_STEPS: u64 = 20_000_000;

/// The most bytes that one template may produce, including the strings that its filters build.
const TEXT_BYTES: usize = 4 << 20;

/// Renders templates.
#[derive(Clone)]
pub(super) struct Templates {
    environment: Environment<'static>,
    left: Left,
}

impl Templates {
    pub(super) fn new() -> Self {
        Self::within(u64::MAX)
    }

    /// Templates for validating a JobType, which share the limit [`ALL_STEPS`].
    pub(super) fn on_trial() -> Self {
        Self::within(ALL_STEPS)
    }

    fn within(steps: u64) -> Self {
        let left = Left::default();
        left.0.all_steps.store(steps, Ordering::Relaxed);
        let mut environment = Environment::empty();
        // `{% if roles.chief %}` is how a template tests whether a role exists.
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        environment.set_fuel(Some(STEPS));
        environment.set_keep_trailing_newline(true);
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        let of = left.clone();
        environment.add_function("range", move |from: isize, to: Option<isize>, step: Option<isize>| {
            functions::range(from, to, step).map(|items| counted(&of, items))
        });
        environment.add_filter("default", filters::default);
        environment.add_filter("first", filters::first);
        environment.add_filter("int", filters::int);
        environment.add_filter("last", filters::last);
        environment.add_filter("length", filters::length);
        let of = left.clone();
        environment.add_filter("join", move |items: Context, between: Option<String>| {
            join(&of, &items, between.as_deref().unwrap_or_default())
        });
        let of = left.clone();
        environment.add_filter("tojson", move |value: Context| {
            let mut text = Text::new(&of);
            serde_json::to_writer(&mut text, &value).map_err(|error| invalid("tojson", error))?;
            Ok::<_, Error>(text.into_string())
        });
        environment.add_test("defined", tests::is_defined);
        environment.add_test("divisibleby", tests::is_divisibleby);
        environment.add_test("endingwith", tests::is_endingwith);
        environment.add_test("even", tests::is_even);
        environment.add_test("none", tests::is_none);
        environment.add_test("odd", tests::is_odd);
        environment.add_test("startingwith", tests::is_startingwith);
        environment.add_test("undefined", tests::is_undefined);
        Self { environment, left }
    }

    /// Renders a string; `field` names its field in errors.
    pub(super) fn text(&self, field: &str, source: &str, context: &Context) -> Result<String, InvalidField> {
        // Most strings are not templates.
        if !source.contains('{') {
            return Ok(source.to_owned());
        }
        language::check(source).map_err(|what| InvalidField::new(field.to_owned(), what))?;
        self.left.begin();
        let mut text = Text::new(&self.left);
        let template = self.environment.template_from_str(source).map_err(|error| self.refused(field, &error))?;
        let rendered = template.render_captured_to(context, &mut text).map_err(|error| self.refused(field, &error))?;
        self.count(field, rendered.state().fuel_levels().map_or(0, |(steps, _)| steps))?;
        Ok(text.into_string())
    }

    /// Evaluates an expression as a condition.
    pub(super) fn holds(&self, field: &str, source: &str, context: &Context) -> Result<bool, InvalidField> {
        language::check_expression(source).map_err(|what| InvalidField::new(field.to_owned(), what))?;
        self.left.begin();
        let expression = self.environment.compile_expression(source).map_err(|error| self.refused(field, &error))?;
        let value = expression.eval(context).map_err(|error| self.refused(field, &error))?;
        // An expression has no loops, so it takes no steps beyond its items.
        self.count(field, 0)?;
        Ok(value.is_true())
    }

    /// Counts the steps that a template has taken.
    fn count(&self, field: &str, steps: u64) -> Result<(), InvalidField> {
        let refuse = |most: u64, what: &str| {
            Err(InvalidField::new(field.to_owned(), format!("takes more than {most} steps{what}")))
        };
        let Some(items) = self.left.items() else { return refuse(STEPS, "") };
        if self.left.take_steps(steps.saturating_add(items)) {
            Ok(())
        } else {
            refuse(ALL_STEPS, " with all that is tried before it")
        }
    }

    /// Renders every string of a JSON value in place.
    pub(super) fn texts(&self, field: &str, value: &mut Value, context: &Context) -> Result<(), InvalidField> {
        match value {
            Value::String(text) => *text = self.text(field, text, context)?,
            Value::Array(items) => {
                for (at, item) in items.iter_mut().enumerate() {
                    self.texts(&format!("{field}[{at}]"), item, context)?;
                }
            }
            Value::Object(fields) => {
                for (name, item) in fields {
                    self.texts(&format!("{field}.{name}"), item, context)?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    fn refused(&self, field: &str, error: &Error) -> InvalidField {
        let what = match error.kind() {
            _ if self.left.items().is_none() => format!("takes more than {STEPS} steps"),
            ErrorKind::OutOfFuel => format!("takes more than {STEPS} steps"),
            _ if self.left.is_used_up() => format!("makes texts of more than {TEXT_BYTES} bytes"),
            _ => format!("cannot be rendered: {error}"),
        };
        InvalidField::new(field.to_owned(), what)
    }
}

fn join(left: &Left, items: &Context, between: &str) -> Result<String, Error> {
    let mut text = Text::new(left);
    let mut write = |item: &Context, between: &str| fmt::write(&mut text, format_args!("{between}{item}"));
    for (at, item) in items.try_iter()?.enumerate() {
        write(&item, if at == 0 { "" } else { between }).map_err(|error| invalid("join", error))?;
    }
    Ok(text.into_string())
}

fn invalid(filter: &str, error: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{filter}: {error}"))
}

/// Wraps a range so that each item is counted when it is taken.
fn counted(left: &Left, items: Context) -> Context {
    let left = left.clone();
    Context::make_object_iterable(items, move |items| {
        Box::new(Items { items: items.try_iter().expect("a range"), left: left.clone() })
    })
}

/// The items of a range. The iteration ends once too many items were taken.
struct Items {
    items: ValueIter,
    left: Left,
}

impl Iterator for Items {
    type Item = Context;

    fn next(&mut self) -> Option<Context> {
        if self.left.take_item() { self.items.next() } else { None }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

/// The remaining budget of bytes, items and steps.
#[derive(Clone, Default)]
struct Left(Arc<Counts>);

#[derive(Default)]
struct Counts {
    /// Bytes. Zero once a template has tried to write more than the rest.
    bytes: AtomicUsize,
    items: AtomicU64,
    /// Steps of this template and of all templates after it.
    all_steps: AtomicU64,
}

impl Left {
    fn begin(&self) {
        self.0.bytes.store(TEXT_BYTES, Ordering::Relaxed);
        self.0.items.store(STEPS, Ordering::Relaxed);
    }

    fn is_used_up(&self) -> bool {
        self.0.bytes.load(Ordering::Relaxed) == 0
    }

    fn take(&self, bytes: usize) -> Result<(), fmt::Error> {
        let left = self.0.bytes.load(Ordering::Relaxed);
        self.0.bytes.store(left.saturating_sub(bytes), Ordering::Relaxed);
        if bytes < left { Ok(()) } else { Err(fmt::Error) }
    }

    /// Takes one item from the budget. False if none remained.
    fn take_item(&self) -> bool {
        let left = self.0.items.load(Ordering::Relaxed);
        self.0.items.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// The number of items taken; `None` if the limit was exceeded.
    fn items(&self) -> Option<u64> {
        let left = self.0.items.load(Ordering::Relaxed);
        (left > 0).then_some(STEPS - left)
    }

    /// Takes steps from the budget. False if too few remained.
    fn take_steps(&self, steps: u64) -> bool {
        let left = self.0.all_steps.load(Ordering::Relaxed);
        self.0.all_steps.store(left.saturating_sub(steps), Ordering::Relaxed);
        left > steps
    }
}

/// A string whose bytes count against the budget.
struct Text<'a> {
    text: Vec<u8>,
    left: &'a Left,
}

impl<'a> Text<'a> {
    fn new(left: &'a Left) -> Self {
        Self { text: Vec::new(), left }
    }

    fn into_string(self) -> String {
        String::from_utf8(self.text).expect("texts only")
    }
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.left.take(text.len())?;
        self.text.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl io::Write for Text<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left.take(bytes.len()).map_err(io::Error::other)?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
