//! Formats amounts of resources in the units that users use. Inputs are in the unit of [`super::amount`].

use crate::queue::flavor;

const GIB: u64 = 1 << 30;

/// An amount with its unit: `1 GPU`, `1.5 CPUs`, `64 GiB of memory`.
///
/// ```
/// use larder_api::quantity::words::show;
///
/// assert_eq!(show("cpu", 1_500), "1.5 CPUs");
/// ```
pub fn show(resource: &str, amount: u64) -> String {
    format!("{} {}", number(resource, amount), unit(resource, amount))
}

/// A part of an amount: `6 of 8 GPUs`.
pub fn show_part(resource: &str, part: u64, whole: u64) -> String {
    format!("{} of {}", number(resource, part), show(resource, whole))
}

/// The number that goes with the unit of [`show`].
pub fn number(resource: &str, amount: u64) -> String {
    let (resource, _) = flavor::split(resource);
    let (scale, digits) = match resource {
        "cpu" => (1_000.0, 3),
        _ if is_bytes(resource) && amount < GIB => (GIB as f64, 3),
        _ if is_bytes(resource) => (GIB as f64, 1),
        _ => return amount.to_string(),
    };
    let text = format!("{:.digits$}", amount as f64 / scale);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The unit of [`number`], without "of memory": for tables whose rows name the resource.
pub fn unit_of_row(resource: &str) -> &'static str {
    if is_bytes(flavor::split(resource).0) { " GiB" } else { "" }
}

fn unit(resource: &str, amount: u64) -> String {
    if let (resource, Some(flavor)) = flavor::split(resource) {
        return format!("{} on {flavor}", unit(resource, amount));
    }
    let counted = |one: &str, is_one: bool| if is_one { one.to_owned() } else { format!("{one}s") };
    match resource {
        "cpu" => counted("CPU", amount == 1_000),
        "memory" => "GiB of memory".to_owned(),
        "pods" => counted("pod", amount == 1),
        _ if is_bytes(resource) => format!("GiB of {resource}"),
        _ if resource.ends_with("/gpu") => counted("GPU", amount == 1),
        _ => resource.to_owned(),
    }
}

fn is_bytes(resource: &str) -> bool {
    resource == "memory" || resource == "ephemeral-storage" || resource.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_show_the_units_that_people_use() {
        for (resource, amount, text) in [
            ("nvidia.com/gpu", 1, "1 GPU"),
            ("nvidia.com/gpu", 8, "8 GPUs"),
            ("cpu", 1_500, "1.5 CPUs"),
            ("cpu", 1_000, "1 CPU"),
            ("cpu", 20_000, "20 CPUs"),
            ("memory", 64 << 30, "64 GiB of memory"),
            ("memory", 1_536 << 20, "1.5 GiB of memory"),
            ("memory", 50 << 20, "0.049 GiB of memory"),
            ("memory", 0, "0 GiB of memory"),
            ("hugepages-2Mi", 1 << 30, "1 GiB of hugepages-2Mi"),
            ("pods", 0, "0 pods"),
            ("rdma/hca", 2, "2 rdma/hca"),
            ("nvidia.com/gpu h100", 8, "8 GPUs on h100"),
            ("memory spot", 64 << 30, "64 GiB of memory on spot"),
        ] {
            assert_eq!(show(resource, amount), text);
        }
        assert_eq!(show_part("nvidia.com/gpu", 6, 8), "6 of 8 GPUs");
        assert_eq!((unit_of_row("memory spot"), unit_of_row("cpu")), (" GiB", ""));
    }
}
