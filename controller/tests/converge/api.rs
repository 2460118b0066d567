//! The in-memory API server in its initial state: without Kueue, PodGroups and training jobs, until a test enables
//! them.

use larder_kube::Client;
use larder_testkit::fake_api::Mode;
pub(crate) use larder_testkit::fake_api::{Dies, FakeApi as Api, Id};

const OF_KUEUE: [&str; 5] =
    ["workloads", "admissionchecks", "resourceflavors", "workloadpriorityclasses", "multikueueconfigs"];
const OF_JOBS: [&str; 4] = ["trainingjobs", "jobtypes", "queues", "priorityclasses"];

pub(crate) fn new_api() -> Api {
    let api = Api::new();
    serve_kueue(&api, false);
    serve_jobs(&api, false);
    api.turn(&["podgroups"], Mode::Refuses(404));
    api.share_lists(&["workloads", "admissionchecks"]);
    api
}

pub(crate) fn client(api: &Api) -> Client {
    Client::new(api.service(), "default")
}

pub(crate) fn serve_kueue(api: &Api, serves: bool) {
    api.turn(&OF_KUEUE, if serves { Mode::Serves } else { Mode::Refuses(404) });
    // As Kueue 0.15 to 0.19 serve them.
    let versions: &[_] = &[("kueue.x-k8s.io", "v1beta1"), ("kueue.x-k8s.io", "v1beta2")];
    api.have_groups(if serves { versions } else { &[] });
}

/// Serves the kinds of training jobs, or denies the right to read them.
pub(crate) fn serve_jobs(api: &Api, serves: bool) {
    api.turn(&OF_JOBS, if serves { Mode::Serves } else { Mode::Refuses(403) });
}

/// Serves PodGroups. `keeps`: whether pods keep their PodGroup.
pub(crate) fn serve_gangs(api: &Api, keeps: bool) {
    api.turn(&["podgroups"], Mode::Serves);
    api.keep_fields();
    if !keeps {
        api.drop_field("pods", "spec", "schedulingGroup");
    }
}
