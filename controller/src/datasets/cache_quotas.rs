//! The status of a CacheQuota: the usage of its namespaces, and whether it counts.

use larder_api::cache_quota::checked::CheckedQuota;
use larder_api::{CacheQuotaStatus, QuotaConditionKind, QuotaReason, QuotaUsage};
use larder_dataset::size::show_bytes;
use serde_json::json;

use super::status_draft::time;
use crate::objects::QuotaObject;
use crate::time::Seconds;
use crate::write::{Change, Write};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use larder_kube::kinds::Kind;

/// An older CacheQuota that names one of a quota's namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub by: String,
    pub namespace: String,
}

/// The write that updates the status of a quota; `None` if it is up to date.
pub fn status(object: &QuotaObject, taken: Option<&Taken>, used: QuotaUsage, now: Seconds) -> Option<Write> {
    let before = &object.status;
    let condition = |kind: QuotaConditionKind, is: bool, reason: QuotaReason, message: String| -> Condition {
        let text = if is { "True" } else { "False" };
        let same = kind.find(&before.conditions).filter(|old| old.status == text);
        let since = same.map_or_else(|| time(now), |old| old.last_transition_time.clone());
        kind.is(is, reason, message, object.generation, since)
    };
    let invalid = |reason, message: String| {
        let counts = condition(QuotaConditionKind::Valid, false, reason, message);
        let within = condition(QuotaConditionKind::WithinLimits, true, QuotaReason::NotCounted, String::new());
        (QuotaUsage::default(), None, vec![counts, within])
    };
    let (used, shown, conditions) = match (&object.quota, taken) {
        (Err(error), _) => invalid(QuotaReason::InvalidSpec, format!("{error}; the quota limits nothing")),
        (Ok(_), Some(Taken { by, namespace })) => {
            let message = format!(
                "the older CacheQuota {by} names the namespace {namespace} too, so this one limits nothing; remove the \
                 namespace from one of them"
            );
            invalid(QuotaReason::NamespaceTaken, message)
        }
        (Ok(limits), None) => {
            let is_within = is_within(limits, used);
            let (reason, end) = match is_within {
                true => (QuotaReason::BelowLimits, ""),
                false => (QuotaReason::AboveLimits, "; what is used stays, and nothing is added until it is less"),
            };
            let said = format!("{}{end}", numbers(limits, used, " of ").join(", "));
            let counts = condition(QuotaConditionKind::Valid, true, QuotaReason::InForce, String::new());
            let within = condition(QuotaConditionKind::WithinLimits, is_within, reason, said);
            (used, Some(numbers(limits, used, "/").join(", ")), vec![counts, within])
        }
    };
    let status = CacheQuotaStatus { observed_generation: Some(object.generation), used, shown, conditions };
    let fields = json!({"status": status});
    let name = &object.meta.key.name;
    (status != *before).then(|| Write::new(Kind::CacheQuota, "", name, Change::ApplyStatus(fields)))
}

fn is_within(limits: &CheckedQuota, used: QuotaUsage) -> bool {
    limits.promised_bytes.is_none_or(|most| used.promised_bytes <= most)
        && limits.datasets.is_none_or(|most| used.datasets <= most)
        && limits.imports.is_none_or(|most| used.imports <= most)
}

/// The usage, with the limits: `1.5 TiB of 2.0 TiB promised`.
fn numbers(limits: &CheckedQuota, used: QuotaUsage, of: &str) -> Vec<String> {
    let part = |used: String, most: Option<String>, what: &str| {
        let most = most.map(|most| format!("{of}{most}")).unwrap_or_default();
        format!("{used}{most} {what}")
    };
    vec![
        part(show_bytes(used.promised_bytes), limits.promised_bytes.map(show_bytes), "promised"),
        part(used.datasets.to_string(), limits.datasets.map(|most| most.to_string()), "datasets"),
        part(used.imports.to_string(), limits.imports.map(|most| most.to_string()), "imports"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use larder_api::checked::InvalidField;
    use larder_kube::key::{Key, Meta};

    fn quota(quota: Result<CheckedQuota, InvalidField>) -> QuotaObject {
        let meta = Meta { key: Key::cluster("research"), ..Meta::default() };
        QuotaObject { meta, generation: 3, quota, status: CacheQuotaStatus::default() }
    }

    fn limits() -> CheckedQuota {
        let namespaces = vec!["team-a".to_owned()];
        CheckedQuota { namespaces, promised_bytes: Some(2 << 40), datasets: Some(10), ..CheckedQuota::default() }
    }

    fn written(object: &QuotaObject, taken: Option<&Taken>, used: QuotaUsage) -> Option<Value> {
        status(object, taken, used, Seconds(5)).map(|write| match write.change {
            Change::ApplyStatus(fields) => fields["status"].clone(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_status_has_the_usage_and_says_when_it_is_above_the_limits() {
        let object = quota(Ok(limits()));
        let used = QuotaUsage { promised_bytes: 3 << 39, datasets: 10, imports: 1 };
        let within = written(&object, None, used).expect("a status");
        assert_eq!(within["shown"], "1.5 TiB/2.0 TiB promised, 10/10 datasets, 1 imports");
        assert_eq!((&within["used"]["datasets"], &within["observedGeneration"]), (&10.into(), &3.into()));
        let condition = &within["conditions"][1];
        assert_eq!((&condition["status"], &condition["reason"]), (&"True".into(), &"BelowLimits".into()));
        assert_eq!(condition["message"], "1.5 TiB of 2.0 TiB promised, 10 of 10 datasets, 1 imports");
        let again = QuotaObject { status: serde_json::from_value(within).expect("a status"), ..object.clone() };
        assert_eq!(written(&again, None, used), None, "nothing has changed");
        for more in [QuotaUsage { promised_bytes: (2 << 40) + 1, ..used }, QuotaUsage { datasets: 11, ..used }] {
            let above = written(&object, None, more).expect("a status")["conditions"][1].clone();
            assert_eq!((&above["status"], &above["reason"]), (&"False".into(), &"AboveLimits".into()));
            assert!(above["message"].as_str().is_some_and(|message| message.contains("what is used stays")), "{above}");
        }
    }

    #[test]
    fn a_quota_that_does_not_count_says_why() {
        let taken = Taken { by: "old".into(), namespace: "team-a".into() };
        let used = QuotaUsage { datasets: 11, ..QuotaUsage::default() };
        let invalid = InvalidField::new("spec.promisedBytes", "is not valid");
        for (object, taken, reason, said) in [
            (quota(Ok(limits())), Some(&taken), "NamespaceTaken", "CacheQuota old names the namespace team-a"),
            (quota(Err(invalid)), None, "InvalidSpec", "spec.promisedBytes is not valid; the quota limits nothing"),
        ] {
            let status = written(&object, taken, used).expect("a status");
            let valid = &status["conditions"][0];
            assert_eq!((&valid["status"], &valid["reason"]), (&"False".into(), &reason.into()));
            assert!(valid["message"].as_str().is_some_and(|message| message.contains(said)), "{valid}");
            assert_eq!(status["conditions"][1]["reason"], "NotCounted");
        }
    }
}
