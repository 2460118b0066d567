//! Traces: the spans of a read that waits, and of the phases of a job, for a collector that speaks OTLP over gRPC.
//!
//! They are off unless [`ENDPOINT`] names a collector. The SDK reads the standard variables, and has a bounded queue of
//! spans and a thread that sends them: a collector that is slow or gone costs spans, and no read waits for it.
//!
//! A span is of the target [`TRACE_TARGET`] and the level TRACE, so that no log line has it. Of the roots that come with
//! the load, a part is sampled ([`PART`]); all other roots, such as the publishing of a volume, are.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Link, Span, SpanKind, TraceId, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SamplingResult, SdkTracerProvider, ShouldSample};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer, Registry};

/// The target of spans for the collector.
pub const TRACE_TARGET: &str = "larder_trace";

/// The variable that names the collector, such as `http://collector:4317`.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The variable with the part of the reads and fetches that are sampled, from 0 to 1.
const PART: &str = "OTEL_TRACES_SAMPLER_ARG";

/// That part, if the variable does not say it.
const PART_DEFAULT: f64 = 0.01;

/// The roots of which a part is sampled.
const MANY: [&str; 2] = ["read", "fetch"];

/// How long the end of a program waits until the last spans are sent.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The traces of a program.
#[derive(Debug)]
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts to send spans, if a collector is named. Must be called within a runtime, which must not end before
    /// [`Self::end`]. Errors: a variable is invalid.
    pub(crate) fn start(program: &str) -> Result<Option<Self>, String> {
        if std::env::var_os(ENDPOINT).is_none_or(|endpoint| endpoint.is_empty()) {
            return Ok(None);
        }
        let part = std::env::var(PART).map_or(Ok(PART_DEFAULT), |part| parse_part(&part))?;
        let exporter = SpanExporter::builder().with_tonic().build();
        let exporter = exporter.map_err(|error| format!("send traces to {ENDPOINT}: {error}"))?;
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(PartOfMany(Sampler::TraceIdRatioBased(part)))))
            .with_resource(Resource::builder().with_service_name(program.to_owned()).build())
            .with_batch_exporter(exporter)
            .build();
        // For spans that are known once they have ended.
        global::set_tracer_provider(provider.clone());
        Ok(Some(Self(provider)))
    }

    /// The layer that turns spans into those of the collector.
    pub(crate) fn layer(&self) -> Box<dyn Layer<Registry> + Send + Sync> {
        let wanted =
            Targets::new().with_target(TRACE_TARGET, LevelFilter::TRACE).with_target("larder_csi", LevelFilter::INFO);
        let layer = tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("larder"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false);
        layer.with_filter(wanted).boxed()
    }

    /// Sends the last spans, as far as that takes a short time.
    pub(crate) fn end(self) {
        // A collector that is gone costs the last spans.
        let _ = self.0.shutdown_with_timeout(END_TIMEOUT);
    }
}

/// Sends a span for what has ended already, if a collector is named.
pub fn trace_past(
    name: &'static str,
    [began, ended]: [SystemTime; 2],
    attributes: impl IntoIterator<Item = (&'static str, String)>,
) {
    let tracer = global::tracer("larder");
    let attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
    let span = tracer.span_builder(name).with_start_time(began).with_attributes(attributes);
    span.start_with_context(&tracer, &Context::new()).end_with_timestamp(ended);
}

fn parse_part(text: &str) -> Result<f64, String> {
    let part = text.trim().parse::<f64>().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| format!("{PART}={text}: write a part of the reads to trace, from 0 to 1, such as 0.01"))
}

/// Samples a part of the roots of which there are many, and all others.
#[derive(Clone, Debug)]
struct PartOfMany(Sampler);

impl ShouldSample for PartOfMany {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let sampler = if MANY.contains(&name) { &self.0 } else { &Sampler::AlwaysOn };
        sampler.should_sample(parent, trace, name, kind, attributes, links)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SamplingDecision, SpanData, SpanExporter};

    use super::*;

    /// An exporter that keeps the spans.
    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    // SEMANTICS: P10
    #[test]
    fn a_span_of_the_past_has_its_own_times() {
        let kept = Kept::default();
        global::set_tracer_provider(SdkTracerProvider::builder().with_simple_exporter(kept.clone()).build());
        let times = [1_000, 1_060].map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        trace_past("job", times, [("phase", "Queued".to_owned())]);
        let spans = kept.0.lock().unwrap();
        assert_eq!((spans.len(), &*spans[0].name, [spans[0].start_time, spans[0].end_time]), (1, "job", times));
        assert_eq!(spans[0].attributes, [KeyValue::new("phase", "Queued")]);
    }

    #[test]
    fn a_part_is_from_0_to_1_and_an_error_says_so() {
        assert_eq!((parse_part("0"), parse_part(" 0.25 "), parse_part("1")), (Ok(0.0), Ok(0.25), Ok(1.0)));
        for text in ["", "2", "-1", "NaN", "1%"] {
            assert!(parse_part(text).unwrap_err().contains("from 0 to 1"), "{text}");
        }
    }

    #[test]
    fn a_part_of_the_reads_is_sampled_and_every_mount() {
        let decide = |part, name| {
            let sampler = PartOfMany(Sampler::TraceIdRatioBased(part));
            sampler.should_sample(None, TraceId::from(u128::MAX / 3), name, &SpanKind::Internal, &[], &[]).decision
        };
        assert_eq!([decide(0.0, "read"), decide(0.0, "fetch")], [SamplingDecision::Drop, SamplingDecision::Drop]);
        assert_eq!(
            [decide(1.0, "read"), decide(0.0, "publish")],
            [SamplingDecision::RecordAndSample, SamplingDecision::RecordAndSample]
        );
    }
}
