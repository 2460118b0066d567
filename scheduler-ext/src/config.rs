//! The configuration, a YAML file. Missing fields have defaults; unknown fields are rejected with their line.

use std::fmt;
use std::path::Path;

use larder_api::names::JOB_LABEL;
use larder_dataset::score::Weights;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The default percentage of a dataset that a node must hold for pods that require it.
pub const REQUIRED_PERCENT: u8 = 90;

/// How nodes are scored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Settings {
    /// A profile per scheduler name. Pods of other schedulers get the defaults.
    #[serde(deserialize_with = "profiles")]
    pub profiles: Vec<Profile>,
    /// The node labels that contain their zone and rack.
    pub topology: Topology,
    /// Pod labels. The pods of a namespace with the same value of such a label form a group. If a pod has several, the
    /// first in this list counts.
    pub group_labels: Vec<String>,
    /// The devices that TrainingJobs wait for.
    pub devices: Vec<Device>,
}

impl Default for Settings {
    fn default() -> Self {
        // Labels of whole jobs come before those of the parts that their controllers make of them.
        let group_labels = [
            JOB_LABEL,
            "jobset.sigs.k8s.io/jobset-name",
            "training.kubeflow.org/job-name",
            "ray.io/cluster",
            "leaderworkerset.sigs.k8s.io/name",
            "kueue.x-k8s.io/pod-group-name",
            "batch.kubernetes.io/job-name",
        ];
        Self {
            profiles: Vec::new(),
            topology: Topology::default(),
            group_labels: group_labels.map(str::to_owned).into(),
            devices: vec![Device { resource: "nvidia.com/gpu".to_owned(), together: 0 }],
        }
    }
}

/// The weights for the pods of one scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The scheduler's name, as in a pod's `spec.schedulerName`.
    pub name: String,
    /// The weight of each reason to prefer a node.
    pub weights: Weights,
    /// The percentage of a dataset that a node must hold for pods that require it without naming a percentage.
    pub required_percent: u8,
}

/// The node labels that contain their zone and rack.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topology {
    /// The label with the failure domain.
    pub zone: String,
    /// The label with the rack, or another part of a zone.
    pub rack: String,
}

impl Default for Topology {
    fn default() -> Self {
        let [zone, rack] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/rack"].map(str::to_owned);
        Self { zone, rack }
    }
}

/// A kind of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The resource that pods request.
    pub resource: String,
    /// How many devices of a node share a NUMA node and its rail; 0 for all.
    #[serde(default)]
    pub together: u32,
}

fn percent<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    struct Percent;

    impl Visitor<'_> for Percent {
        type Value = u8;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a percentage from 0 to 100")
        }

        // Rejected here, because the YAML parser still knows the line of the number.
        fn visit_u64<E: Error>(self, percent: u64) -> Result<u8, E> {
            let known = u8::try_from(percent).ok().filter(|percent| *percent <= 100);
            known.ok_or_else(|| E::custom(format!("{percent} is not a percentage: use 0 to 100")))
        }
    }

    from.deserialize_u8(Percent)
}

/// Parses profiles, whose names must be distinct.
fn profiles<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Profile>, D::Error> {
    struct Profiles;

    impl<'de> Visitor<'de> for Profiles {
        type Value = Vec<Profile>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of profiles")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut profiles = Vec::new();
            while let Some(profile) = list.next_element_seed(After(&profiles))? {
                profiles.push(profile);
            }
            Ok(profiles)
        }
    }

    from.deserialize_seq(Profiles)
}

/// Parses a profile that follows others. A duplicate name is rejected here, because the YAML parser still knows its
/// line.
struct After<'p>(&'p [Profile]);

impl<'de> DeserializeSeed<'de> for After<'_> {
    type Value = Profile;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Profile, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for After<'_> {
    type Value = Profile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a profile")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Profile, A::Error> {
        #[derive(Deserialize)]
        #[serde(field_identifier, rename_all = "camelCase")]
        enum Field {
            Name,
            Weights,
            RequiredPercent,
        }
        #[derive(Deserialize)]
        struct Percent(#[serde(deserialize_with = "percent")] u8);

        let (mut name, mut weights, mut required) = (None, None, None);
        while let Some(field) = map.next_key()? {
            let is_second = match field {
                Field::Name => name.replace(map.next_value_seed(NewName(self.0))?).is_some(),
                Field::Weights => weights.replace(map.next_value()?).is_some(),
                Field::RequiredPercent => required.replace(map.next_value()?).is_some(),
            };
            if is_second {
                return Err(A::Error::custom("a field of a profile is duplicated"));
            }
        }
        let Percent(required_percent) = required.unwrap_or(Percent(REQUIRED_PERCENT));
        let name = name.ok_or_else(|| A::Error::missing_field("name"))?;
        Ok(Profile { name, weights: weights.unwrap_or_default(), required_percent })
    }
}

/// Parses a name that none of these profiles has.
struct NewName<'p>(&'p [Profile]);

impl<'de> DeserializeSeed<'de> for NewName<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for NewName<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a scheduler")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<String, E> {
        if self.0.iter().any(|other| other.name == name) {
            return Err(E::custom(format!("two profiles are named {name}")));
        }
        Ok(name.to_owned())
    }
}

impl Settings {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid configuration. The error names the line.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        use anyhow::Context;
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("parse the configuration {}", path.display()))
    }

    /// Parses a configuration. An empty text is the default configuration.
    ///
    /// # Errors
    /// The text is not a valid configuration. The error names the line.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        serde_yaml_ng::from_str(text).map_err(|error| match error.location() {
            // The parser omits the location from the error if it is line 1, column 1.
            Some(at) if (at.line(), at.column()) == (1, 1) => anyhow::anyhow!("{error} at line 1 column 1"),
            _ => error.into(),
        })
    }

    /// The weights and the required percentage for the pods of a scheduler.
    pub fn of(&self, scheduler: &str) -> (Weights, u8) {
        let profile = self.profiles.iter().find(|profile| profile.name == scheduler);
        profile.map_or_else(
            || (Weights::default(), REQUIRED_PERCENT),
            |profile| (profile.weights, profile.required_percent),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_fields_have_their_defaults() {
        for empty in ["", "# nothing\n\n", "profiles: []\n"] {
            assert_eq!(Settings::parse(empty).unwrap(), Settings::default(), "{empty}");
        }
        let text = "\
profiles:
  - name: larder
    weights: {data: 10}
    requiredPercent: 50
  - name: other
devices: [{resource: example.com/npu, together: 4}]
";
        let settings = Settings::parse(text).unwrap();
        assert_eq!(settings.of("larder"), (Weights { data: 10, ..Weights::default() }, 50));
        assert_eq!(settings.of("other"), (Weights::default(), 90));
        assert_eq!(settings.of("nobody"), (Weights::default(), 90));
        assert_eq!(settings.devices, [Device { resource: "example.com/npu".into(), together: 4 }]);
        assert_eq!(settings.topology.zone, "topology.kubernetes.io/zone");
    }

    #[test]
    fn the_shipped_configuration_has_the_defaults() {
        let file = include_str!("../../deploy/components/scheduler/base/extender.yaml");
        let (file, default) = (Settings::parse(file).unwrap(), Settings::default());
        assert_eq!(file.of("larder"), default.of("larder"));
        assert_eq!(Settings { profiles: Vec::new(), ..file }, default);
    }

    #[test]
    fn a_mistake_is_refused_with_its_line() {
        let cases = [
            ("profiles:\n  - name: a\n    weights: {data: 1, date: 2}\n", "unknown field `date`", "line 3"),
            ("profiles:\n  - name: a\n    weight: {data: 1}\n", "unknown field `weight`", "line 3"),
            ("topology:\n  zone: z\n  rak: r\n", "unknown field `rak`", "line 3"),
            ("profiles:\n  - name: a\n    weights:\n      data: -1\n", "-1", "line 4"),
            ("profiles:\n  - name: a\n  - name: b\n  - name: a\n", "two profiles are named a", "line 4"),
            ("profiles:\n  - name: a\n  - weights: {}\n    name: a\n", "two profiles are named a", "line 4"),
            ("profiles:\n  - name: a\n    name: b\n", "is duplicated", "line 2"),
            ("profiles:\n  - name: a\n  - 3\n", "a profile", "line 3"),
            ("profiles:\n  - name: a\n    requiredPercent: 101\n", "101 is not a percentage", "line 3"),
            ("profiles:\n  - name: a\n    requiredPercent: 300\n", "300 is not a percentage", "line 3"),
            ("profiles:\n  - weights: {}\n", "missing field `name`", "line 2"),
            ("group: []\n", "unknown field `group`", "line 1"),
            ("profiles: 3\n", "a list of profiles", "line 1"),
        ];
        for (text, word, line) in cases {
            let error = Settings::parse(text).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains(line), "{text}: {error}");
        }
    }
}
