package app

import (
	"context"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kubewrite/kube-write-mcp/pkg/journal"
	"github.com/kubewrite/kube-write-mcp/pkg/kube"
)

// telemetry counts and traces what the server does, in a registry and with a tracer of its
// own: nothing of it is the process's. No label is of a caller or of the cluster's objects.
type telemetry struct {
	registry *prometheus.Registry
	lines    *prometheus.CounterVec
	answers  *prometheus.CounterVec
	calls    *prometheus.HistogramVec
	tracer   trace.Tracer
	stop     func(context.Context) error
}

// newTelemetry exports traces where the environment names an OTLP endpoint, and nowhere
// else.
func newTelemetry(ctx context.Context) (*telemetry, error) {
	t := &telemetry{
		registry: prometheus.NewRegistry(),
		lines: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kube_write_mcp_lines_total", Help: "Lines of the audit log that this process wrote, by event, tool and code.",
		}, []string{"event", "tool", "code"}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kube_write_mcp_http_answers_total", Help: "HTTP answers by status.",
		}, []string{"status"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kube_write_mcp_call_duration_seconds", Help: "How long tool calls took, by tool and whether the answer is an error.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"tool", "failed"}),
		tracer: noop.NewTracerProvider().Tracer(""),
		stop:   func(context.Context) error { return nil },
	}
	t.registry.MustRegister(t.lines, t.answers, t.calls, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return t, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	self, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "kube-write-mcp"), attribute.String("service.version", version()),
	), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(self))
	t.tracer, t.stop = provider.Tracer("kube-write-mcp"), provider.Shutdown
	return t, nil
}

// watch adds what is read when the metrics are.
func (t *telemetry) watch(cache *kube.Cache, j *journal.Journal) {
	t.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kube_write_mcp_journal_sealed", Help: "1 where the audit log cannot be written: nothing is planned or executed then.",
		}, func() float64 {
			if j.Sealed() != nil {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kube_write_mcp_journal_bytes", Help: "Size of the audit log's current file.",
		}, func() float64 { return float64(j.Size()) }),
		caches{cache},
	)
}

// wrote counts a line of the audit log.
func (t *telemetry) wrote(l *journal.Line) { t.lines.WithLabelValues(l.Event, l.Tool, l.Code).Inc() }

// answered counts an HTTP answer.
func (t *telemetry) answered(status int) { t.answers.WithLabelValues(strconv.Itoa(status)).Inc() }

// handler serves the metrics.
func (t *telemetry) handler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{})
}

// call begins a tool call, as part of the trace that the request names, if any.
func (t *telemetry) call(ctx context.Context, tool string, header http.Header) (context.Context, func(failed bool)) {
	began := time.Now()
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header))
	ctx, span := t.tracer.Start(ctx, "tools/call "+tool, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("mcp.tool.name", tool)))
	return ctx, func(failed bool) {
		if failed {
			span.SetStatus(codes.Error, "")
		}
		span.End()
		t.calls.WithLabelValues(tool, strconv.FormatBool(failed)).Observe(time.Since(began).Seconds())
	}
}

// requests traces what a call asks of the API server. Bodies and queries stay out.
func (t *telemetry) requests(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if !trace.SpanContextFromContext(req.Context()).IsValid() {
			return next.RoundTrip(req) // of the caches, or not traced
		}
		ctx, span := t.tracer.Start(req.Context(), req.Method, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			attribute.String("http.request.method", req.Method), attribute.String("url.path", req.URL.Path),
		))
		defer span.End()
		resp, err := next.RoundTrip(req.WithContext(ctx))
		if err != nil {
			span.SetStatus(codes.Error, "no answer")
			return resp, err
		}
		span.SetAttributes(attribute.Int("http.response.status_code", resp.StatusCode))
		return resp, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// caches collects the state of the informer caches, by resource.
type caches struct{ *kube.Cache }

var (
	cacheObjects = prometheus.NewDesc("kube_write_mcp_cache_objects", "Objects in the caches of siblings.", []string{"resource"}, nil)
	cacheAge     = prometheus.NewDesc("kube_write_mcp_cache_age_seconds", "Time since the API server spoke last to the cache that is furthest behind.", []string{"resource"}, nil)
)

// Describe implements prometheus.Collector.
func (caches) Describe(ch chan<- *prometheus.Desc) { ch <- cacheObjects; ch <- cacheAge }

// Collect implements prometheus.Collector.
func (c caches) Collect(ch chan<- prometheus.Metric) {
	for resource, s := range c.State() {
		ch <- prometheus.MustNewConstMetric(cacheObjects, prometheus.GaugeValue, float64(s.Objects), resource)
		ch <- prometheus.MustNewConstMetric(cacheAge, prometheus.GaugeValue, s.Age.Seconds(), resource)
	}
}
