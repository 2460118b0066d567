//! Amounts of resources as Kubernetes writes them: `8`, `500m`, `1.5Gi`, `2e3`.

pub mod words;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The suffixes, with their factors in thousandths.
const SUFFIXES: [(&str, i128); 13] = [
    ("Ki", 1_000 << 10),
    ("Mi", 1_000 << 20),
    ("Gi", 1_000 << 30),
    ("Ti", 1_000 << 40),
    ("Pi", 1_000 << 50),
    ("Ei", 1_000 << 60),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
];

/// The longest text that is accepted as an amount, in bytes.
const TEXT_BYTES: usize = 64;

/// The amount in thousandths, rounded up as Kubernetes does; `None` if the text is not an amount.
///
/// ```
/// use larder_api::quantity::milli;
///
/// assert_eq!(milli("1.5"), Some(1_500));
/// assert_eq!(milli("2Ki"), Some(2_048_000));
/// assert_eq!(milli("much"), None);
/// ```
pub fn milli(text: &str) -> Option<i128> {
    if text.len() > TEXT_BYTES {
        return None;
    }
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (numerator, denominator) = fraction(number)?;
    let (factor, divisor) = scale(suffix)?;
    let product = numerator.checked_mul(factor)?;
    let divisor = denominator.checked_mul(divisor)?;
    Some(product.div_euclid(divisor) + i128::from(product.rem_euclid(divisor) != 0))
}

/// A decimal number as a fraction.
fn fraction(number: &str) -> Option<(i128, i128)> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = whole.trim_start_matches(['+', '-']);
    let signs = whole.len() - digits.len();
    let all = format!("{digits}{part}");
    if signs > 1 || all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: i128 = all.parse().ok()?;
    let denominator = 10_i128.checked_pow(u32::try_from(part.len()).ok()?)?;
    Some((if whole.starts_with('-') { -value } else { value }, denominator))
}

/// The factor of a suffix, in thousandths, and its divisor.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let exponent = suffix.strip_prefix(['e', 'E']).filter(|rest| !rest.is_empty() && suffix != "Ei");
    if let Some(exponent) = exponent {
        let exponent: i32 = exponent.parse().ok()?;
        let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
        return if exponent < 0 { Some((1_000, power)) } else { Some((power.checked_mul(1_000)?, 1)) };
    }
    match suffix {
        "" => Some((1_000, 1)),
        "n" => Some((1, 1_000_000)),
        "u" => Some((1, 1_000)),
        _ => SUFFIXES.iter().find(|(name, _)| *name == suffix).map(|(_, factor)| (*factor, 1)),
    }
}

/// The amount of `resource` in the unit that schedulers count in, rounded up: thousandths for CPUs, whole bytes or
/// devices for all other resources. `None` if the text is not an amount, or if it is negative.
pub fn amount(resource: &str, quantity: &Quantity) -> Option<u64> {
    let milli = milli(&quantity.0)?;
    let units = if resource == "cpu" { milli } else { milli.checked_add(999)?.div_euclid(1_000) };
    u64::try_from(units).ok()
}

/// True if `resource` is a device, so that only whole numbers are possible: its name has a domain other than
/// Kubernetes' own.
pub fn is_device(resource: &str) -> bool {
    resource.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// True if the name of `resource` is a GPU's, such as `nvidia.com/gpu`, `amd.com/gpu` or `nvidia.com/mig-1g.5gb`, or a
/// rail's, which is a GPU with an HCA.
pub fn is_gpu(resource: &str) -> bool {
    let name = resource.split_once('/').filter(|_| is_device(resource)).map(|(_, name)| name);
    name.is_some_and(|name| matches!(name, "gpu" | "mig") || name.starts_with("gpu.") || name.starts_with("mig-"))
        || resource == "larder.dev/rail"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("8", Some(8_000)),
            ("+8", Some(8_000)),
            ("-8", Some(-8_000)),
            ("100m", Some(100)),
            ("0.1", Some(100)),
            (".5", Some(500)),
            ("5.", Some(5_000)),
            ("1500u", Some(2)),
            ("1n", Some(1)),
            ("0.0001", Some(1)),
            ("1Gi", Some(1_000 << 30)),
            ("1.5Gi", Some(1_500 << 30)),
            ("2k", Some(2_000_000)),
            ("2e3", Some(2_000_000)),
            ("2E3", Some(2_000_000)),
            ("2E", Some(2_000_000_000_000_000_000_000)),
            ("1Ei", Some(1_000 << 60)),
            ("25e-1", Some(2_500)),
            ("", None),
            ("-", None),
            ("--1", None),
            ("1-1", None),
            ("1.2.3", None),
            ("GiB", None),
            ("1GiB", None),
            ("1 Gi", None),
            ("1ei", None),
            ("1e999", None),
            ("٣", None),
        ] {
            assert_eq!(milli(text), expected, "{text}");
        }
        assert_eq!(milli(&"9".repeat(65)), None);
    }

    #[test]
    fn cpus_count_in_thousandths_and_all_else_whole() {
        let of = |resource: &str, text: &str| amount(resource, &Quantity(text.to_owned()));
        assert_eq!(
            (of("cpu", "1500m"), of("memory", "1500m"), of("nvidia.com/gpu", "4")),
            (Some(1_500), Some(2), Some(4))
        );
        assert_eq!((of("cpu", "-1"), of("memory", "x")), (None, None));
        assert!(
            is_device("nvidia.com/gpu") && is_device("rdma/hca") && !is_device("cpu") && !is_device("hugepages-2Mi")
        );
        assert!(!is_device("attachable-volumes.kubernetes.io/x"));
        assert_eq!(
            ["nvidia.com/mig-1g.5gb", "larder.dev/rail", "larder.dev/mig", "rdma/hca", "other/rail"].map(is_gpu),
            [true, true, true, false, false]
        );
    }
}
