//! The API server takes the examples as they are.

use larder_testkit::repository;

use crate::{Server, said};

#[test]
fn the_examples_of_datasets_and_jobs_are_accepted_at_apply() {
    let server = Server::start("example-datasets");
    for example in ["dataset", "job"] {
        let folder = repository().join("deploy/example").join(example).display().to_string();
        let output = server.cluster.kubectl(&["apply", "--dry-run=server", "-k", &folder]);
        assert!(output.status.success() && output.stderr.is_empty(), "{example}: {}", said(&output));
    }
}
