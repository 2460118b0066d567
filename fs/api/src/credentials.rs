//! Formatting of [`Credentials`] for logs: the names of their variables, never a value.

use std::fmt;

use crate::v1::Credentials;

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_print_as_names() {
        let variables = [("AWS_SECRET_ACCESS_KEY".to_owned(), "hunter2".to_owned())].into();
        assert_eq!(format!("{:?}", Credentials { variables }), r#"{"AWS_SECRET_ACCESS_KEY"}"#);
    }
}
