//! The status of a JobType.

use larder_api::job_type::JobTypeStatus;

use crate::jobs::condition::{Finding, condition};
use crate::jobs::objects::TypeObject;
use crate::time::Seconds;

/// The status of a JobType; `None` if it equals the written one.
pub fn status(object: &TypeObject, now: Seconds) -> Option<JobTypeStatus> {
    let finding = match &object.kind {
        Ok(_) => Finding { is: true, reason: "Accepted", message: String::new() },
        Err(error) => Finding { is: false, reason: "InvalidSpec", message: error.to_string() },
    };
    let conditions = vec![condition("Valid", finding, object.generation, &object.conditions, now)];
    let status = JobTypeStatus { observed_generation: Some(object.generation), conditions };
    (status.conditions != object.conditions).then_some(status)
}
