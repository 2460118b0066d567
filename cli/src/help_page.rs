//! The first part of `docs/COMMANDS.md`: the help of `larder`. A test appends the help of the other programs.

use clap::CommandFactory;

use crate::args::Cli;

/// The help of every command.
pub(crate) fn help_page() -> String {
    fn section(command: &mut clap::Command, path: &str, page: &mut String) {
        page.push_str(&format!("## {path}\n```\n{}```\n\n", command.render_long_help()));
        for command in
            command.get_subcommands_mut().filter(|command| !command.is_hide_set() && command.get_name() != "help")
        {
            let path = format!("{path} {}", command.get_name());
            section(command, &path, page);
        }
    }
    let mut page = String::from(
        "# Commands and flags\n\n\
         On this page you can look up every command and flag of `larder`, and the flags of `larderd`,\n\
         `cachenode`, `larder-controller`, `larder-scheduler-ext`, `larder-devices` and `larder-csi`, with\n\
         their defaults. It is generated from the programs' own `--help`; a test keeps it current.\n\n",
    );
    let mut command = Cli::command();
    command.build();
    section(&mut command, "larder", &mut page);
    // clap pads some lines with blanks.
    page.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
