package preflight

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// WriteMetrics writes metrics for the textfile collector of Prometheus's node_exporter. It replaces
// the file atomically.
func (r *Report) WriteMetrics(path string) error {
	registry := prometheus.NewRegistry()
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "symmem", Subsystem: "preflight", Name: name, Help: help,
		}, labels)
		registry.MustRegister(g)
		return g
	}
	ok := 0.0
	if r.IsReady {
		ok = 1
	}

	gauge("ok", "Whether no fault was found.").WithLabelValues().Set(ok)
	gauge("ranks", "Ranks that were to start.").WithLabelValues().Set(float64(r.Ranks))
	gauge("duration_seconds", "Duration of the checks.").WithLabelValues().Set(r.Seconds)
	gauge("timestamp_seconds", "When the checks ended.").WithLabelValues().
		Set(float64(time.Now().UnixMilli()) / 1e3)
	faults := gauge("faults", "Faults by what is at fault.", "kind", "node", "ranks", "gpu")
	for _, f := range r.Faults {
		faults.WithLabelValues(string(f.Kind), label(f.Node), rankLabel(f.Ranks), label(f.GPU)).Inc()
	}

	links := gauge("link_bytes_per_second", "Speed of messages in one direction.", "from", "to",
		"from_node", "to_node")
	for _, l := range r.Links {
		links.WithLabelValues(strconv.Itoa(l.From), strconv.Itoa(l.To), label(r.Nodes[l.From]),
			label(r.Nodes[l.To])).Set(l.BytesPerSecond)
	}

	calls := gauge("call_seconds", "Time of a collective on the slowest rank.", "operation", "path",
		"bytes")
	for _, c := range r.Calls {
		calls.WithLabelValues(c.Operation, c.Path, strconv.FormatInt(c.Bytes, 10)).
			Set(c.Microseconds / 1e6)
	}

	if err := prometheus.WriteToTextfile(path, registry); err != nil {
		return fmt.Errorf("writing metrics: %w", err)
	}

	return nil
}

// label replaces invalid UTF-8, which label values must not contain.
func label(text string) string { return strings.ToValidUTF8(text, "?") }

func rankLabel(ranks []int) (text string) {
	for i, r := range ranks {
		if i > 0 {
			text += ","
		}

		text += strconv.Itoa(r)
	}

	return text
}
