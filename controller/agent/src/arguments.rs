//! The arguments of `rsh`: the flags that mpirun and similar launchers pass to rsh and ssh, a host, and a command.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The command that `rsh` runs, and its host.
#[derive(Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) host: String,
    /// Interpreted by the shell on the host.
    pub(crate) command: Vec<u8>,
    /// Whether the command reads this process's standard input.
    pub(crate) reads_stdin: bool,
}

/// Why the arguments of `rsh` are invalid.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum ArgumentsError {
    #[error("the flag -{0} is not supported; give HOST COMMAND...")]
    Unknown(char),
    #[error("the flag -{0} lacks its value")]
    NoValue(char),
    #[error("the host is missing: give HOST COMMAND...")]
    NoHost,
    #[error("invalid host name `{0}`")]
    BadHost(String),
    #[error("the command is missing, and there are no shells to log in to: give HOST COMMAND...")]
    NoCommand,
    #[error("the command has {0} bytes, and a shell takes at most {most}", most = COMMAND_BYTES_MOST)]
    TooLong(usize),
}

/// Linux's limit for one argument (`MAX_ARG_STRLEN`) minus the final zero byte: the shell receives the command as one
/// argument.
pub(crate) const COMMAND_BYTES_MOST: usize = 128 * 1024 - 1;

/// Flags about a terminal, forwarding, addresses or verbosity. Open MPI passes -x, Hydra -x and -q; rsh itself has -n
/// and -d. Ignoring them is safe: there is no terminal, and nothing is forwarded.
const IGNORED: &[u8] = b"46aCdkKqtTvxXY";
/// Flags with a value that select a user, or how ssh reaches the host. They are ignored: the job's key and port decide
/// both. PRRTE passes -p, horovodrun -o, -p and -i, and hostfiles with users -l.
const IGNORED_WITH_VALUE: &[u8] = b"ceFilmop";

/// Parses the arguments as ssh does: flags may follow the host. The first other word after the host begins the command,
/// and its words are joined by spaces.
pub(crate) fn parse(words: Vec<OsString>) -> Result<Target, ArgumentsError> {
    let mut words = words.into_iter().map(OsString::into_vec).peekable();
    let mut host = None;
    let mut reads_stdin = true;
    let mut flags_ended = false;
    while let Some(word) = words.peek() {
        if !flags_ended && word.len() > 1 && word[0] == b'-' {
            let word = words.next().unwrap_or_default();
            if word == b"--" {
                flags_ended = true;
                continue;
            }
            let mut flags = word[1..].iter().copied();
            while let Some(flag) = flags.next() {
                match flag {
                    b'n' => reads_stdin = false,
                    flag if IGNORED.contains(&flag) => {}
                    flag if IGNORED_WITH_VALUE.contains(&flag) => {
                        // `-lroot` or `-l root`.
                        if flags.next().is_none() && words.next().is_none() {
                            return Err(ArgumentsError::NoValue(flag.into()));
                        }
                        break;
                    }
                    flag => return Err(ArgumentsError::Unknown(flag.into())),
                }
            }
        } else if host.is_none() {
            host = words.next();
        } else {
            break;
        }
    }
    let host = name_of(&host.ok_or(ArgumentsError::NoHost)?)?;
    let command = words.collect::<Vec<_>>().join(&b' ');
    if command.is_empty() {
        return Err(ArgumentsError::NoCommand);
    }
    if command.len() > COMMAND_BYTES_MOST {
        return Err(ArgumentsError::TooLong(command.len()));
    }
    Ok(Target { host, command, reads_stdin })
}

/// Extracts the host of `HOST` or `USER@HOST`.
fn name_of(word: &[u8]) -> Result<String, ArgumentsError> {
    let host = word.rsplit(|byte| *byte == b'@').next().unwrap_or_default();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(byte);
    match std::str::from_utf8(host) {
        Ok(host) if !host.is_empty() && host.len() <= 253 && host.bytes().all(|byte| is_name(&byte)) => {
            Ok(host.to_owned())
        }
        _ => {
            let word = OsString::from_vec(word.to_vec());
            Err(ArgumentsError::BadHost(String::from_utf8_lossy(word.as_bytes()).into_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<(String, String, bool), ArgumentsError> {
        let target = parse(words.iter().map(OsString::from).collect())?;
        Ok((target.host, String::from_utf8(target.command).unwrap(), target.reads_stdin))
    }

    fn found(host: &str, command: &str, reads_stdin: bool) -> Result<(String, String, bool), ArgumentsError> {
        Ok((host.to_owned(), command.to_owned(), reads_stdin))
    }

    #[test]
    fn the_calls_of_the_engines_are_understood() {
        // Open MPI and PRRTE.
        assert_eq!(
            parsed(&["-x", "job-worker-0.job", "PATH=/usr/bin:$PATH ;", "orted", "-mca", "ess", "env"]),
            found("job-worker-0.job", "PATH=/usr/bin:$PATH ; orted -mca ess env", true)
        );
        assert_eq!(parsed(&["-p", "22", "-l", "mpi", "h", "prted"]), found("h", "prted", true));
        // Hydra of MPICH and Intel MPI.
        assert_eq!(
            parsed(&["-x", "-q", "h", "\"/usr/bin/hydra_pmi_proxy\"", "--control-port", "l:1", "--proxy-id", "0"]),
            found("h", "\"/usr/bin/hydra_pmi_proxy\" --control-port l:1 --proxy-id 0", true)
        );
        assert_eq!(parsed(&["mpi@h", "-n", "true"]), found("h", "true", false));
        // horovodrun.
        assert_eq!(
            parsed(&[
                "-o",
                "PasswordAuthentication=no",
                "-oStrictHostKeyChecking=no",
                "h",
                "-p",
                "1",
                "-i",
                "k",
                "true"
            ]),
            found("h", "true", true)
        );
        assert_eq!(parsed(&["-nq", "-lroot", "--", "fd00::1", "--", "-x"]), found("fd00::1", "-- -x", false));
    }

    #[test]
    fn other_flags_and_missing_words_are_refused_by_name() {
        assert_eq!(parsed(&["-N", "h", "true"]), Err(ArgumentsError::Unknown('N')));
        assert_eq!(parsed(&["h", "--version"]), Err(ArgumentsError::Unknown('-')));
        assert_eq!(parsed(&["-l"]), Err(ArgumentsError::NoValue('l')));
        assert_eq!(parsed(&["-x"]), Err(ArgumentsError::NoHost));
        assert_eq!(parsed(&["h", "-n"]), Err(ArgumentsError::NoCommand));
        assert_eq!(parsed(&["h;id", "true"]), Err(ArgumentsError::BadHost("h;id".to_owned())));
        assert_eq!(parsed(&["mpi@", "true"]), Err(ArgumentsError::BadHost("mpi@".to_owned())));
        let long = "x".repeat(COMMAND_BYTES_MOST);
        assert_eq!(parsed(&["h", &long]), found("h", &long, true));
        assert_eq!(parsed(&["h", &long, ""]), Err(ArgumentsError::TooLong(COMMAND_BYTES_MOST + 1)));
    }
}
