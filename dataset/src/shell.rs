//! Words of the commands that messages suggest.

/// A word, quoted for a POSIX shell if necessary.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A command of `larder`, ready to be pasted into a shell.
pub fn larder_command(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| shell_word(word)).collect();
    format!("larder {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_a_shell_would_change_is_quoted() {
        for (word, quoted) in [
            ("s3://b/a_b-c.d:e=f@g%h+i,j", "s3://b/a_b-c.d:e=f@g%h+i,j"),
            ("", "''"),
            ("my set", "'my set'"),
            ("it's", r"'it'\''s'"),
            ("$HOME;x", "'$HOME;x'"),
            ("ä", "'ä'"),
        ] {
            assert_eq!(shell_word(word), quoted);
        }
    }
}
