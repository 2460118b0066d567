//! Reads which of this node's devices are allocated to a ResourceClaim. Pure. A claim is untrusted input.

use k8s_openapi::api::resource::v1::{DeviceAllocationConfiguration, DeviceAllocationResult, ResourceClaim};

use crate::names::DRIVER;

/// The uid of a claim, checked to be safe in a file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uid(String);

impl Uid {
    /// `None` unless it is made of letters, digits and dashes.
    pub fn new(text: &str) -> Option<Self> {
        let is_alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let is_sound = text.len() <= 64
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && is_alphanumeric(text.bytes().next())
            && is_alphanumeric(text.bytes().last());
        is_sound.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A device that is allocated to one request of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// The request's name in the claim.
    pub request: String,
    /// The device's name in the pool.
    pub device: String,
    /// The ID of the share, if several claims can share the device.
    pub share: Option<String>,
    /// True for admin access, which does not exclude other claims from the device.
    pub admin: bool,
}

/// Why a claim cannot be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another claim has the same name now, with this uid.
    #[error("the claim was deleted and created again as {0:?}")]
    Replaced(String),
    /// None of our devices is allocated to the claim.
    #[error("no device of {DRIVER} is allocated to the claim")]
    Nothing,
    /// A device of another node is allocated to the claim.
    #[error("device {device} of pool {pool} is not on this node, {node}")]
    Elsewhere { device: String, pool: String, node: String },
    /// The claim or its DeviceClass has parameters for our driver.
    #[error("{DRIVER} takes no parameters: remove them from the `config` of the {0} and create the claim again")]
    Parameters(&'static str),
    /// The name of a request is invalid; the API server would have rejected it.
    #[error("{0:?} is not a request name")]
    Request(String),
}

/// The devices of this driver that are allocated to the claim.
pub fn allocated(claim: &ResourceClaim, uid: &Uid, node: &str) -> Result<Vec<Allocated>, Refusal> {
    let found = claim.metadata.uid.as_deref().unwrap_or_default();
    if found != uid.as_str() {
        return Err(Refusal::Replaced(found.to_owned()));
    }
    if let Some(source) = parameters(claim) {
        return Err(Refusal::Parameters(source));
    }
    let results = devices(claim).and_then(|devices| devices.results.as_ref()).into_iter().flatten();
    let ours = results.filter(|result| result.driver == DRIVER).map(|result| {
        if result.pool != node {
            let (device, pool) = (result.device.clone(), result.pool.clone());
            return Err(Refusal::Elsewhere { device, pool, node: node.to_owned() });
        }
        // The result of a request with alternatives is REQUEST/ALTERNATIVE; containers refer to REQUEST.
        let request = result.request.split('/').next().unwrap_or_default();
        let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if request.is_empty() || request.len() > 63 || request.ends_with('-') || !request.bytes().all(is_label) {
            return Err(Refusal::Request(result.request.clone()));
        }
        let (request, device) = (request.to_owned(), result.device.clone());
        let admin = result.admin_access.unwrap_or_default();
        Ok(Allocated { request, device, share: result.share_id.clone(), admin })
    });
    let ours = ours.collect::<Result<Vec<Allocated>, Refusal>>()?;
    if ours.is_empty() { Err(Refusal::Nothing) } else { Ok(ours) }
}

/// The object that has parameters for our driver. They are rejected, not ignored: a user who sets parameters expects
/// them to have an effect.
fn parameters(claim: &ResourceClaim) -> Option<&'static str> {
    let all = devices(claim)?.config.as_ref()?;
    let is_ours = |config: &&DeviceAllocationConfiguration| {
        config.opaque.as_ref().is_some_and(|parameters| parameters.driver == DRIVER)
    };
    let ours = all.iter().find(is_ours)?;
    Some(if ours.source == "FromClass" { "DeviceClass" } else { "claim" })
}

fn devices(claim: &ResourceClaim) -> Option<&DeviceAllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref()
}

#[cfg(test)]
mod tests;
