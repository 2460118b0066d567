//! The language of templates: minijinja, in which a name that does not exist is an error, and no template runs for ever.

use larder_controller_api::InvalidField;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value as Context};
use serde_json::Value;

/// Steps of one template. A hostfile takes about ten for each pod.
const STEPS: u64 = 1_000_000;

/// Renders templates.
pub(super) struct Templates {
    environment: Environment<'static>,
}

impl Templates {
    pub(super) fn new() -> Self {
        let mut environment = Environment::new();
        // `{% if roles.chief %}` is how a template asks whether there is one.
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        environment.set_fuel(Some(STEPS));
        environment.set_keep_trailing_newline(true);
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        Self { environment }
    }

    /// A text; `field` is for the error.
    pub(super) fn text(&self, field: &str, source: &str, context: &Context) -> Result<String, InvalidField> {
        // Most are no templates.
        if !source.contains('{') {
            return Ok(source.to_owned());
        }
        self.environment.render_str(source, context).map_err(|error| refused(field, &error))
    }

    /// Whether an expression is true.
    pub(super) fn holds(&self, field: &str, source: &str, context: &Context) -> Result<bool, InvalidField> {
        let expression = self.environment.compile_expression(source).map_err(|error| refused(field, &error))?;
        expression.eval(context).map(|value| value.is_true()).map_err(|error| refused(field, &error))
    }

    /// Every text of a value, in place.
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
}

fn refused(field: &str, error: &minijinja::Error) -> InvalidField {
    let what = match error.kind() {
        ErrorKind::OutOfFuel => format!("takes more than {STEPS} steps"),
        _ => format!("cannot be rendered: {error}"),
    };
    InvalidField::new(field.to_owned(), what)
}
