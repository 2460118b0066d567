//! The number of writes that the API server has accepted from all its clients.

use anyhow::Context;
use larder_kube::Client;
use larder_kube::api::ListParams;
use larder_kube::core::Request;

/// The verbs of `apiserver_request_total` that write.
const VERBS: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

/// Writes so far, excluding Leases, Events and dry runs.
pub(super) async fn count(client: &Client) -> anyhow::Result<u64> {
    let request = Request::new("/metrics").list(&ListParams::default()).context("get metrics")?;
    let text = client.request_text(request).await.context("read the API server's metrics")?;
    Ok(text.lines().filter_map(write).sum())
}

/// The number of writes that a line of the metrics counts; `None` if it counts none.
fn write(line: &str) -> Option<u64> {
    let (labels, count) = line.strip_prefix("apiserver_request_total{")?.rsplit_once("} ")?;
    let label = |key: &str| labels.split(',').find_map(|label| label.strip_prefix(key)?.strip_prefix("=\""));
    let is = |key: &str, value: &str| label(key).is_some_and(|text| text.trim_end_matches('"') == value);
    let writes = VERBS.iter().any(|verb| is("verb", verb));
    let counts = !["leases", "events"].iter().any(|resource| is("resource", resource)) && is("dry_run", "");
    (writes && counts).then(|| count.parse::<f64>().ok().map(|count| count as u64))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_and_nothing_else() {
        let of = |dry_run: &str, resource: &str, verb: &str| {
            format!(
                "apiserver_request_total{{code=\"201\",component=\"apiserver\",dry_run=\"{dry_run}\",group=\"\",\
                 resource=\"{resource}\",scope=\"resource\",subresource=\"\",verb=\"{verb}\",version=\"v1\"}} 12"
            )
        };
        assert_eq!(write(&of("", "pods", "POST")), Some(12));
        assert_eq!(write(&of("", "pods", "APPLY")), Some(12));
        for nothing in [of("All", "pods", "POST"), of("", "leases", "PUT"), of("", "pods", "LIST")] {
            assert_eq!(write(&nothing), None, "{nothing}");
        }
        assert_eq!(write("apiserver_request_duration_seconds_count 3"), None);
    }
}
