//! The spec of a Queue, validated and parsed.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Preemption, Preempts, QueueSpec, Quota, Stop, flavor};
use crate::checked::InvalidField;
use crate::form::is_label;
use crate::quantity::{amount, is_device, milli};

/// The spec of a Queue, validated and parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedQueue {
    /// The namespaces whose jobs may use the queue; `*` for all.
    pub namespaces: Vec<String>,
    /// The quota that the queue's jobs share, by resource, and by the names that [`flavor::on`] gives to resources of
    /// flavors.
    pub quota: BTreeMap<String, CheckedQuota>,
    /// The flavors of its jobs, the preferred one first.
    pub flavors: Vec<String>,
    /// The queue above this one.
    pub parent: Option<String>,
    /// The priorities that jobs may name; without any, jobs have the priorities of their pods.
    pub priorities: BTreeMap<String, i32>,
    /// The jobs that its jobs may preempt.
    pub preemption: Preemption,
    /// The cohort: the queues with this name lend to each other. `None` if the queue is in no cohort.
    pub cohort: Option<String>,
    /// The queue's share of what the cohort lends, relative to the weights of other queues.
    pub weight: u32,
    /// Set if the queue is stopped.
    pub stop: Option<Stop>,
}

/// The quota of a resource, in the unit of [`amount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedQuota {
    /// The queue's own amount.
    pub nominal: u64,
    /// The most that the queue borrows; `None` for everything that other queues lend.
    pub borrow: Option<u64>,
    /// The most of its own amount that the queue lends; `None` for all of it.
    pub lend: Option<u64>,
}

impl QueueSpec {
    /// Checks every value. Errors: the first invalid field.
    pub fn check(&self) -> Result<CheckedQueue, InvalidField> {
        if !self.namespaces.iter().all(|name| name == "*" || is_label(name, 63)) {
            return Err(InvalidField::new("spec.namespaces", "must list names of namespaces, or \"*\" for all"));
        }
        if self.cohort.as_ref().is_some_and(|cohort| !is_label(cohort, 63)) {
            let form = "must consist of lower-case letters, digits and hyphens";
            return Err(InvalidField::new("spec.cohort", form));
        }
        if self.weight == Some(0) {
            return Err(InvalidField::new("spec.weight", "must be at least 1"));
        }
        if self.parent.as_ref().is_some_and(|parent| !is_label(parent, 63)) {
            return Err(InvalidField::new("spec.parent", "must be the name of a Queue"));
        }
        if self.parent.is_some() && self.cohort.is_some() {
            let what = "cannot be combined with spec.parent: a queue is in the cohort of the queue above it";
            return Err(InvalidField::new("spec.cohort", what));
        }
        if !self.priorities.keys().all(|name| is_label(name, 63)) {
            let form = "must have names of lower-case letters, digits and hyphens";
            return Err(InvalidField::new("spec.priorities", form));
        }
        for (field, preempts) in
            [("withinQueue", self.preemption.within_queue), ("whileBorrowing", self.preemption.while_borrowing)]
        {
            if preempts == Preempts::Any {
                let what = "must be never or lowerPriority";
                return Err(InvalidField::new(format!("spec.preemption.{field}"), what));
            }
        }
        let mut quota = self.check_quota("spec.quota", &self.quota, str::to_owned)?;
        let mut flavors = Vec::new();
        for given in &self.flavors {
            let name = &given.name;
            if !is_label(name, 63) || flavors.contains(name) {
                let what = "must be the name of a flavor in the LarderSettings, and each is listed once";
                return Err(InvalidField::new("spec.flavors[].name", what));
            }
            let field = format!("spec.flavors[{name}].quota");
            quota.extend(self.check_quota(&field, &given.quota, |resource| flavor::on(resource, name))?);
            flavors.push(name.clone());
        }
        Ok(CheckedQueue {
            namespaces: self.namespaces.clone(),
            quota,
            flavors,
            parent: self.parent.clone(),
            priorities: self.priorities.clone(),
            preemption: self.preemption,
            cohort: self.cohort.clone(),
            weight: self.weight.unwrap_or(1),
            stop: self.stop,
        })
    }

    /// Checks the quotas in a field. `name` is the name under which a resource is listed.
    fn check_quota(
        &self,
        field: &str,
        given: &BTreeMap<String, Quota>,
        name: impl Fn(&str) -> String,
    ) -> Result<BTreeMap<String, CheckedQuota>, InvalidField> {
        let mut checked = BTreeMap::new();
        for (resource, given) in given {
            if resource.contains(' ') {
                return Err(InvalidField::new(
                    field.to_owned(),
                    "must have names of resources, such as nvidia.com/gpu",
                ));
            }
            let of =
                |part: &str, quantity: &Quantity| amount_of(resource, format!("{field}[{resource}].{part}"), quantity);
            let quota = CheckedQuota {
                nominal: of("nominal", &given.nominal)?,
                borrow: given.borrow.as_ref().map(|quantity| of("borrow", quantity)).transpose()?,
                lend: given.lend.as_ref().map(|quantity| of("lend", quantity)).transpose()?,
            };
            if self.cohort.is_none() && self.parent.is_none() && (quota.borrow.is_some() || quota.lend.is_some()) {
                let what = format!(
                    "or spec.parent is missing: {field} has `borrow` or `lend`, and only queues of a cohort or below one \
                     queue lend to each other"
                );
                return Err(InvalidField::new("spec.cohort", what));
            }
            checked.insert(name(resource), quota);
        }
        Ok(checked)
    }
}

fn amount_of(resource: &str, field: String, quantity: &Quantity) -> Result<u64, InvalidField> {
    let refuse = |what: &str| Err(InvalidField::new(field, what));
    match (milli(&quantity.0), amount(resource, quantity)) {
        (None, _) => refuse("must be an amount such as 8, 500m or 512Gi"),
        (Some(..0), _) => refuse("must be at least 0"),
        (Some(milli), _) if is_device(resource) && milli % 1_000 != 0 => refuse("must be a whole number of devices"),
        (_, None) => refuse("is too large"),
        (_, Some(amount)) => Ok(amount),
    }
}

impl CheckedQueue {
    /// The nominal quotas of a flavor, by resource.
    pub fn of_flavor<'a>(&'a self, flavor: &'a str) -> impl Iterator<Item = (&'a str, CheckedQuota)> {
        let of_flavor = move |(name, quota): (&'a String, &'a CheckedQuota)| {
            let (resource, of) = flavor::split(name);
            (of == Some(flavor)).then_some((resource, *quota))
        };
        self.quota.iter().filter_map(of_flavor)
    }

    /// True if jobs of `namespace` may use the queue.
    pub fn is_granted(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|name| name == "*" || name == namespace)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(spec: Value) -> Result<CheckedQueue, InvalidField> {
        serde_json::from_value::<QueueSpec>(spec).expect("of the schema's form").check()
    }

    #[test]
    fn a_full_spec_is_understood() {
        let got = checked(json!({
            "namespaces": ["team-a"], "cohort": "research", "weight": 3, "stop": "hold",
            "quota": {"cpu": {"nominal": "1500m"}, "nvidia.com/gpu": {"nominal": 8, "borrow": "4", "lend": 0}},
        }))
        .expect("valid");
        assert_eq!(got.quota["cpu"], CheckedQuota { nominal: 1_500, borrow: None, lend: None });
        assert_eq!(got.quota["nvidia.com/gpu"], CheckedQuota { nominal: 8, borrow: Some(4), lend: Some(0) });
        assert_eq!((got.weight, got.stop), (3, Some(Stop::Hold)));
        assert!(got.is_granted("team-a") && !got.is_granted("team-b"));
        let least = checked(json!({"namespaces": ["*"]})).expect("valid");
        assert!(least.is_granted("team-b") && least.weight == 1 && least.stop.is_none());
    }

    #[test]
    fn flavors_priorities_and_switches_are_understood() {
        let gpus = |nominal: u32| json!({"nvidia.com/gpu": {"nominal": nominal, "borrow": 0}});
        let got = checked(json!({
            "parent": "research", "priorities": {"urgent": 5}, "preemption": {"reclaim": "never"},
            "quota": {"cpu": {"nominal": 4}},
            "flavors": [{"name": "h100", "quota": gpus(8)}, {"name": "a100", "quota": gpus(16)}],
        }))
        .expect("valid");
        assert_eq!((got.parent.as_deref(), got.priorities["urgent"]), (Some("research"), 5));
        let preemption = Preemption { reclaim: Preempts::Never, ..Preemption::default() };
        assert_eq!((got.preemption, got.flavors.join(" ")), (preemption, "h100 a100".to_owned()));
        assert_eq!(got.quota["nvidia.com/gpu a100"], CheckedQuota { nominal: 16, borrow: Some(0), lend: None });
        let of_flavor: Vec<(&str, u64)> =
            got.of_flavor("h100").map(|(resource, quota)| (resource, quota.nominal)).collect();
        assert_eq!(of_flavor, [("nvidia.com/gpu", 8)]);
        assert_eq!(checked(json!({})).expect("valid").preemption, Preemption::default());
    }

    #[test]
    fn every_mistake_is_named_by_its_field() {
        let quota = |quota: Value| json!({"cohort": "a", "quota": {"nvidia.com/gpu": quota}});
        for (field, spec) in [
            ("spec.namespaces", json!({"namespaces": ["Team A"]})),
            ("spec.cohort", json!({"cohort": "A"})),
            ("spec.cohort", json!({"quota": {"cpu": {"nominal": 1, "borrow": 1}}})),
            ("spec.weight", json!({"weight": 0})),
            ("spec.parent", json!({"parent": "A"})),
            ("spec.cohort", json!({"parent": "a", "cohort": "b"})),
            ("spec.priorities", json!({"priorities": {"A": 1}})),
            ("spec.preemption.withinQueue", json!({"preemption": {"withinQueue": "any"}})),
            ("spec.flavors[].name", json!({"flavors": [{"name": "a", "quota": {}}, {"name": "a", "quota": {}}]})),
            (
                "spec.flavors[a].quota[cpu].nominal",
                json!({"flavors": [{"name": "a", "quota": {"cpu": {"nominal": -1}}}]}),
            ),
            ("spec.cohort", json!({"flavors": [{"name": "a", "quota": {"cpu": {"nominal": 1, "lend": 1}}}]})),
            ("spec.quota[nvidia.com/gpu].nominal", quota(json!({"nominal": -1}))),
            ("spec.quota[nvidia.com/gpu].nominal", quota(json!({"nominal": "500m"}))),
            ("spec.quota[nvidia.com/gpu].nominal", quota(json!({"nominal": "many"}))),
            ("spec.quota[nvidia.com/gpu].borrow", quota(json!({"nominal": 1, "borrow": "-1"}))),
            ("spec.quota[nvidia.com/gpu].lend", quota(json!({"nominal": 1, "lend": "9e30"}))),
        ] {
            let error = checked(spec.clone()).expect_err(field);
            assert_eq!(error.field, field, "{spec}: {error}");
        }
    }
}
