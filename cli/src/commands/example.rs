//! `larder example`: the manifests of deploy/example, with the user's bucket in place of the placeholders.

use std::process::ExitCode;

use anyhow::ensure;

use crate::args::{ExampleArgs, ExampleName};
use crate::output;

/// The placeholder of `--source` in the manifests.
const SOURCE: &str = "s3://your-bucket/imagenet";
/// The placeholder of `--endpoint`.
const ENDPOINT: &str = "# endpoint: http://ceph:7480";
const NAMESPACE: &str = "namespace: default";
const NAMESPACES: &str = "namespaces: [default]";

impl ExampleName {
    const fn manifests(self) -> &'static str {
        match self {
            Self::Volume => include_str!("../../../deploy/example/volume.yaml"),
            Self::Inline => include_str!("../../../deploy/example/inline.yaml"),
            Self::Notebook => include_str!("../../../deploy/example/notebook.yaml"),
            Self::ModelServer => include_str!("../../../deploy/example/model-server.yaml"),
            Self::Job => include_str!("../../../deploy/example/job.yaml"),
        }
    }
}

pub(crate) fn run(args: &ExampleArgs) -> anyhow::Result<ExitCode> {
    let text = fill(args)?;
    output::text(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn fill(args: &ExampleArgs) -> anyhow::Result<String> {
    let source = args.source.as_ref().map(ToString::to_string);
    ensure!(
        args.name != ExampleName::Inline || source.is_none(),
        "--source has no effect on `inline`: the administrator's list has the source of the dataset"
    );
    // A line break would end the value, and what follows it would be a field of its own.
    for (flag, value) in [("--source", &source), ("--image", &args.image)] {
        let is_plain = |value: &String| !value.is_empty() && !value.chars().any(char::is_control);
        ensure!(value.as_ref().is_none_or(is_plain), "{flag} {value:?} is empty or has a control character");
    }
    // JSON's strings are YAML's.
    let quoted = |value: &str| serde_json::Value::from(value).to_string();
    let mut text = String::new();
    for line in args.name.manifests().lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        // A comment says how to call this command.
        let is_comment = line.starts_with('#');
        let field = |name: &str, value: &str| format!("{indent}{name}: {}", quoted(value));
        let line = match (line.trim_start(), &args.endpoint, &args.image) {
            (ENDPOINT, Some(endpoint), _) => field("endpoint", endpoint),
            (NAMESPACE, ..) => field("namespace", &args.namespace),
            (image, _, Some(given)) if image.starts_with("image: ") => field("image", given),
            _ if is_comment => line.to_owned(),
            _ => {
                let line = line.replace(NAMESPACES, &format!("namespaces: [{}]", quoted(&args.namespace)));
                source.as_ref().map_or(line.clone(), |source| line.replace(SOURCE, &quoted(source)))
            }
        };
        text += &line;
        text += "\n";
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::*;
    use crate::args::{Cli, Command};

    fn example(args: &[&str]) -> anyhow::Result<String> {
        match Cli::try_parse_from([&["larder", "example"], args].concat())?.command {
            Command::Example(args) => fill(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_placeholder_is_filled_and_nothing_else_changes() {
        for name in ExampleName::value_variants() {
            let value = name.to_possible_value().unwrap();
            let source = if *name == ExampleName::Inline { &[][..] } else { &["--source", "s3://b/x: #y"] };
            let flags = ["--endpoint", "http://h:1", "-n", "team-a", "--image", "r/i:1"];
            let filled = example(&[&[value.get_name()][..], source, &flags].concat()).unwrap();
            let read = |text: &str| -> Vec<serde_json::Value> {
                serde_yaml_ng::Deserializer::from_str(text)
                    .map(|document| serde::Deserialize::deserialize(document).unwrap())
                    .collect()
            };
            let (filled, plain) = (read(&filled), read(name.manifests()));
            let text = serde_json::to_string(&filled).unwrap();
            assert!(!text.contains("your-bucket") && !text.contains("\"default\""), "{name:?}: {text}");
            if *name != ExampleName::Inline {
                assert!(text.contains("\"s3://b/x: #y\"") && text.contains("\"http://h:1\""), "{name:?}: {text}");
            }
            assert!(text.contains("\"image\":\"r/i:1\""), "{name:?}: {text}");
            let back = text
                .replace("s3://b/x: #y", SOURCE)
                .replace("\"endpoint\":\"http://h:1\",", "")
                .replace("team-a", "default");
            let mut plain = serde_json::to_string(&plain).unwrap();
            for image in ["busybox", "quay.io/jupyter/minimal-notebook", "vllm/vllm-openai"] {
                plain = plain.replace(&format!("\"image\":\"{image}\""), "\"image\":\"r/i:1\"");
            }
            assert_eq!(back, plain, "{name:?}");
        }
    }

    #[test]
    fn an_example_without_its_bucket_and_a_value_of_two_lines_are_refused() {
        assert!(example(&["job"]).unwrap_err().to_string().contains("--source"));
        let error = example(&["job", "--source", "s3://b\nspec: {}"]).unwrap_err().to_string();
        assert!(error.contains("control character"), "{error}");
        example(&["inline"]).unwrap();
        for (args, words) in [
            (&["job", "--source", "s3:/b/x"][..], "s3://bucket/prefix"),
            (&["job", "--source", "s3://b", "--endpoint", "ceph:7480"], "must be a server's URL"),
            (&["job", "--source", "s3://b", "-n", "Team_A"], "not a valid name"),
            (&["job", "--source", "s3://b", "-n", ""], "not a valid name"),
            (&["job", "--source", "s3://b", "--image", ""], "--image"),
            (&["inline", "--source", "s3://b"], "--source has no effect"),
        ] {
            let error = example(args).unwrap_err().to_string();
            assert!(error.contains(words), "{args:?}: {error}");
        }
    }
}
