//! The manifests that tests apply. Every object carries the test's label, or lies in a namespace that does.

use std::fmt::Write;

use larder_testkit::Cluster;

use super::Platform;
use crate::lab::{BUCKET, SECRET};

impl Platform {
    /// A namespace, which is deleted at the end of the test.
    pub fn namespace_manifest(&self, namespace: &str) -> String {
        let test = &self.namespace;
        format!(
            "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{larder-test: {test}}}}}\n"
        )
    }

    /// The Secret that volumes refer to.
    pub fn secret(&self, namespace: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: origin, namespace: {namespace}}}\n\
             stringData: {{AWS_ACCESS_KEY_ID: {}, AWS_SECRET_ACCESS_KEY: {SECRET}}}\n",
            self.server.access_key()
        )
    }

    /// The attribute `source` of a dataset.
    pub fn source(&self, dataset: &str) -> String {
        format!("s3://{BUCKET}/{}", self.key(dataset))
    }

    /// A PersistentVolume of a dataset, and the claim `name` to it. `more` are further attributes, such as
    /// `cacheSize: 1MiB`.
    pub fn volume(&self, name: &str, dataset: &str, mode: &str, more: &str) -> String {
        let (namespace, name) = self.place(name);
        format!(
            r#"---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {namespace}-{name}, labels: {{larder-test: {test}}}}}
spec:
  accessModes: [{mode}]
  capacity: {{storage: 1Gi}}
  storageClassName: larder
  persistentVolumeReclaimPolicy: Retain
  claimRef: {{namespace: {namespace}, name: {name}}}
  csi:
    driver: csi.larder.dev
    volumeHandle: {namespace}-{name}
    nodePublishSecretRef: {{namespace: {namespace}, name: origin}}
    volumeAttributes:
      source: {source}
      endpoint: {endpoint}
      {more}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  accessModes: [{mode}]
  storageClassName: larder
  volumeName: {namespace}-{name}
  resources: {{requests: {{storage: 1Gi}}}}
"#,
            test = self.namespace,
            source = self.source(dataset),
            endpoint = self.endpoint()
        )
    }

    /// A pod on node `node` that runs `script`, with each claim mounted at `/CLAIM`.
    pub fn pod(&self, name: &str, node: u32, claims: &[&str], script: &str) -> String {
        let mut mounts = String::new();
        let mut volumes = String::new();
        for claim in claims {
            let _ = write!(mounts, "{{name: {claim}, mountPath: /{claim}}},");
            let _ = write!(volumes, "{{name: {claim}, persistentVolumeClaim: {{claimName: {claim}}}}},");
        }
        let (namespace, name) = self.place(name);
        self.pod_with(name, namespace, node, &mounts, &volumes, script)
    }

    /// A pod with these mounts and volumes.
    pub fn pod_with(
        &self,
        name: &str,
        namespace: &str,
        node: u32,
        mounts: &str,
        volumes: &str,
        script: &str,
    ) -> String {
        format!(
            r#"---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: reader}}}}
spec:
  nodeName: n{node}
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {image}
    imagePullPolicy: Never
    command: [sh, -c, {script:?}]
    volumeMounts: [{mounts}]
  volumes: [{volumes}]
"#,
            image = Cluster::BUSYBOX
        )
    }
}
