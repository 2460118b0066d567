//! The runtime's description of a container on the hook's stdin: the state of the OCI specification, as JSON.

use std::collections::BTreeMap;

/// The container annotation in which the NRI plugin passes a lower limit to the hook, as lines of `rdma.max`.
pub const MAX_ANNOTATION: &str = "rdma.larder.dev/max";

/// The longest state that is read, in bytes.
pub const STATE_BYTES_MOST: usize = 1 << 20;

/// A container that is about to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The runtime's name for the container.
    pub id: String,
    /// The container's first process, as a PID of the host.
    pub pid: u32,
    /// The annotation [`MAX_ANNOTATION`], if the container has it.
    pub max: Option<String>,
}

/// Why the state on stdin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnsoundState {
    /// The text is not a state in JSON.
    #[error("OCI state on stdin is malformed: {0}")]
    Json(#[from] serde_json::Error),
    /// The state has no process or no name.
    #[error("OCI state on stdin lacks `pid` or `id`")]
    NoContainer,
}

impl State {
    /// Parses the JSON.
    pub fn parse(json: &[u8]) -> Result<Self, UnsoundState> {
        #[derive(serde::Deserialize)]
        struct Wire {
            id: String,
            pid: u32,
            annotations: Option<BTreeMap<String, String>>,
        }
        let Wire { id, pid, annotations } = serde_json::from_slice(json)?;
        if pid == 0 || id.is_empty() {
            return Err(UnsoundState::NoContainer);
        }
        let max = annotations.and_then(|mut annotations| annotations.remove(MAX_ANNOTATION));
        Ok(Self { id, pid, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_a_container_and_may_have_a_lower_limit() {
        let runc = br#"{"ociVersion":"1.0.2","id":"c1","status":"creating","pid":42,"bundle":"/b",
            "annotations":{"io.kubernetes.cri.container-name":"x","rdma.larder.dev/max":"mlx5_2 hca_handle=1"}}"#;
        let state = State { id: "c1".to_owned(), pid: 42, max: Some("mlx5_2 hca_handle=1".to_owned()) };
        assert_eq!(State::parse(runc).unwrap(), state);
        for without in [r#"{"id":"c1","pid":42}"#, r#"{"id":"c1","pid":42,"annotations":null}"#] {
            assert_eq!(State::parse(without.as_bytes()).unwrap().max, None);
        }
        let wrong = ["", "{}", "[]", r#"{"id":"c1"}"#, r#"{"id":"c1","pid":0}"#, r#"{"id":"","pid":1}"#];
        for wrong in
            wrong.into_iter().chain([r#"{"id":"c1","pid":-1}"#, r#"{"id":"c1","pid":1,"annotations":{"a":1}}"#])
        {
            assert!(State::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
