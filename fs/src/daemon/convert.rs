//! Converts between datasets on the wire and the node's requests.

use std::path::Path;
use std::time::Duration;

use larder_cachenode::node::caches::Cached;
use larder_cachenode::{Credentials, DatasetRequest, MirrorRequest, OriginLimits, PodVolume};
use larder_daemon_api::convert::InvalidDataset;
use larder_daemon_api::v1;
use larder_dataset::DatasetSpec;

use crate::mount::MountConfig;

/// Converts a dataset from the wire. Zero and empty values mean that a field was omitted.
pub(super) fn request(dataset: &v1::Dataset) -> Result<DatasetRequest, InvalidDataset> {
    let millis = |ms: u64| (ms != 0).then(|| Duration::from_millis(ms));
    Ok(DatasetRequest {
        spec: DatasetSpec::try_from(dataset)?,
        credentials: dataset.credentials.as_ref().map(credentials),
        limits: OriginLimits {
            attempt_timeout: millis(dataset.attempt_timeout_ms),
            read_deadline: millis(dataset.read_deadline_ms),
            concurrency: (dataset.origin_concurrency != 0).then_some(dataset.origin_concurrency),
        },
        payer: dataset.payer.clone(),
        mirrors: dataset.mirrors.iter().map(mirror).collect(),
    })
}

fn mirror(mirror: &v1::Mirror) -> MirrorRequest {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    MirrorRequest {
        name: mirror.name.clone(),
        source: mirror.source.clone(),
        endpoint: text(&mirror.endpoint),
        region: text(&mirror.region),
        anonymous: mirror.anonymous,
        near: mirror.near.clone().into_iter().collect(),
        cost: mirror.cost,
        always_near: mirror.always_near,
    }
}

/// Converts a pod from the wire.
pub(super) fn pod(pod: v1::Pod) -> PodVolume {
    PodVolume { namespace: pod.namespace, volumes: pod.volumes.into_iter().collect() }
}

pub(super) fn credentials(given: &v1::Credentials) -> Credentials {
    given.variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Converts a request to a dataset on the wire.
pub(super) fn dataset(request: &DatasetRequest) -> v1::Dataset {
    let millis = |time: Option<Duration>| time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    v1::Dataset {
        credentials: request.credentials.as_ref().map(|given| v1::Credentials {
            variables: given.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }),
        attempt_timeout_ms: millis(request.limits.attempt_timeout),
        read_deadline_ms: millis(request.limits.read_deadline),
        origin_concurrency: request.limits.concurrency.unwrap_or(0),
        payer: request.payer.clone(),
        mirrors: request.mirrors.iter().map(sent_mirror).collect(),
        ..v1::Dataset::from(&request.spec)
    }
}

fn sent_mirror(mirror: &MirrorRequest) -> v1::Mirror {
    v1::Mirror {
        name: mirror.name.clone(),
        source: mirror.source.clone(),
        endpoint: mirror.endpoint.clone().unwrap_or_default(),
        region: mirror.region.clone().unwrap_or_default(),
        anonymous: mirror.anonymous,
        near: mirror.near.clone().into_iter().collect(),
        cost: mirror.cost,
        always_near: mirror.always_near,
    }
}

/// Converts what the cache holds of a dataset.
pub fn cache_info(Cached { info, is_pinned }: &Cached) -> v1::Cache {
    v1::Cache {
        id: info.cache().to_string(),
        name: info.name.clone(),
        snapshot: info.key.snapshot().to_string(),
        owner: info.key.owner().to_owned(),
        bytes: info.used_bytes,
        disk_bytes: info.disk_bytes,
        kept_disk_bytes: info.promised_disk_bytes,
        mounts: info.connections.as_ref().map_or(0, |connections| connections.len() as u32),
        open: info.open.is_some(),
        pinned: *is_pinned,
        last_use_unix_s: info.last_use_unix_s,
    }
}

/// A mount of our own, as the next process of the service needs it.
pub(super) fn kept_mount(
    id: String,
    init: Vec<u8>,
    request: &DatasetRequest,
    config: &MountConfig,
    path: &Path,
) -> v1::KeptMount {
    let request = v1::MountRequest {
        dataset: Some(dataset(request)),
        dir: path.display().to_string(),
        allow_other: config.allow_other,
        threads: u32::try_from(config.threads).unwrap_or(u32::MAX),
        read_ahead_bytes: config.read_ahead_bytes,
        verify_always: config.verify_always,
    };
    v1::KeptMount { mount: id, init, request: Some(request) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_wire() {
        let full = DatasetRequest {
            spec: DatasetSpec::new("s3://b/p"),
            credentials: Some(Credentials::from_iter([("HOME".to_owned(), "/h".to_owned())])),
            limits: OriginLimits {
                attempt_timeout: Some(Duration::from_millis(1)),
                read_deadline: Some(Duration::from_secs(9)),
                concurrency: Some(3),
            },
            payer: "team-a".to_owned(),
            mirrors: vec![
                MirrorRequest {
                    name: "eu".to_owned(),
                    source: "gs://b/p".to_owned(),
                    endpoint: Some("http://h".to_owned()),
                    region: Some("r".to_owned()),
                    anonymous: true,
                    near: [("zone".to_owned(), "z".to_owned())].into(),
                    cost: 7,
                    always_near: true,
                },
                MirrorRequest { name: "us".to_owned(), ..MirrorRequest::default() },
            ],
        };
        for sent in [full, DatasetSpec::new("/m").into()] {
            assert_eq!(request(&dataset(&sent)), Ok(sent));
        }
    }
}
