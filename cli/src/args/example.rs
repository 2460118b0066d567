//! The flags of `larder example`.

use clap::{Args, ValueEnum};
use larder_dataset::written::{InvalidValue, check_endpoint};
use larder_origin::OriginUrl;

use super::cluster::plain_name;

#[derive(Debug, Args)]
#[command(after_help = r#"Examples:
  larder example job --source s3://bucket/imagenet | kubectl apply -f -
  larder example volume --source s3://bucket/imagenet --endpoint http://ceph:7480
  larder example notebook --source s3://bucket/imagenet -n team-a --image registry.example/lab

All examples but `inline` read the bucket with the keys of the Secret `bucket-reader`:
  kubectl create secret generic bucket-reader -n NAMESPACE \
    --from-literal=AWS_ACCESS_KEY_ID="$AWS_ACCESS_KEY_ID" \
    --from-literal=AWS_SECRET_ACCESS_KEY="$AWS_SECRET_ACCESS_KEY""#)]
pub(crate) struct ExampleArgs {
    /// The example to print.
    #[arg(value_enum)]
    pub(crate) name: ExampleName,
    /// The URL of the data.
    #[arg(long, value_name = "URL", required_if_eq_any = [
        ("name", "volume"), ("name", "notebook"), ("name", "model-server"), ("name", "job")
    ])]
    pub(crate) source: Option<OriginUrl>,
    /// The S3 server, if it is not AWS: http://host:port. Datasets may name servers that the administrator listed.
    #[arg(long, value_name = "URL", value_parser = server)]
    pub(crate) endpoint: Option<String>,
    /// The namespace of the objects.
    #[arg(long, short, default_value = "default", value_parser = plain_name)]
    pub(crate) namespace: String,
    /// The image of the example's pods. Default: one of a public registry.
    #[arg(long)]
    pub(crate) image: Option<String>,
}

/// Parses the URL of a server.
fn server(text: &str) -> Result<String, InvalidValue> {
    check_endpoint(text).map(|()| text.to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExampleName {
    /// A volume, its claim and a pod; needs no component.
    Volume,
    /// A pod with a dataset that the administrator listed; needs no component.
    Inline,
    /// A Dataset and a notebook over it.
    Notebook,
    /// A Dataset that a model server follows: each new snapshot rolls it.
    ModelServer,
    /// A Dataset, a Queue and a job of two pods.
    Job,
}
