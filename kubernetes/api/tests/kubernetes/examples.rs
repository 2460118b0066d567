//! The API server accepts the examples unchanged.

use larder_testkit::repository;

use crate::{Server, said};

#[test]
fn the_examples_of_datasets_and_jobs_are_accepted_at_apply() {
    let server = Server::start("example-datasets");
    for example in ["volume", "notebook", "model-server", "job"] {
        let file = repository().join("deploy/example").join(example).with_extension("yaml").display().to_string();
        let output = server.cluster.kubectl(&["apply", "--dry-run=server", "-f", &file]);
        assert!(output.status.success() && output.stderr.is_empty(), "{example}: {}", said(&output));
    }
}
