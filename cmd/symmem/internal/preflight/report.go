package preflight

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/ranklist"
)

// Kind classifies faults by component.
type Kind string

// The kinds, in the order in which Report.Faults is sorted.
const (
	KindNode Kind = "node" // a machine, for example its driver
	KindRank Kind = "rank" // a process or its GPU
	KindLink Kind = "link" // the link between two ranks
	KindJob  Kind = "job"  // the job as a whole
)

var exitCodes = map[Kind]int{KindJob: 1, KindNode: 3, KindRank: 4, KindLink: 5}

// Fault describes a problem of a component.
type Fault struct {
	Kind   Kind   `json:"kind"`
	Node   string `json:"node,omitempty"`  // name of the machine, or empty
	Ranks  []int  `json:"ranks,omitempty"` // one rank, or the two ranks of a link
	GPU    string `json:"gpu,omitempty"`   // GPU of the rank, or empty if unknown
	Text   string `json:"text"`
	Advice string `json:"advice"` // how to solve the problem
}

// Call summarizes a collective call on all ranks.
type Call struct {
	Operation         string  `json:"operation"`
	Bytes             int64   `json:"bytes"`
	RequestedPath     string  `json:"asked"`
	Path              string  `json:"path"`               // actual path
	Microseconds      float64 `json:"us"`                 // duration on the slowest rank
	TableMicroseconds float64 `json:"table_us,omitempty"` // from the tuning table; 0 if unknown
	WrongElements     int64   `json:"wrong"`              // total of all ranks
}

// Report holds Judge's findings.
type Report struct {
	IsReady    bool     `json:"ok"` // there are no faults
	Backend    string   `json:"backend"`
	Source     string   `json:"source"` // name of the launcher, such as "torchrun"
	Ranks      int      `json:"ranks"`  // number of ranks
	NodeOfRank []string `json:"nodes"`  // "" if the rank has no result
	Faults     []Fault  `json:"faults"` // sorted by kind; then any interrupt
	Warnings   []string `json:"warnings"`
	Calls      []Call   `json:"calls"`
	Links      []Link   `json:"links"`
	TableName  string   `json:"table"`   // name of the tuning table, or "" if none was used
	Seconds    float64  `json:"seconds"` // duration of the checks
}

// RankResult holds the results of one rank.
type RankResult struct {
	Rank             int                `json:"rank"`
	Node             string             `json:"node"`          // name of the machine
	GPU              string             `json:"gpu,omitempty"` // empty on the host backend
	Device           string             `json:"device"`
	Backend          string             `json:"backend"`
	Source           string             `json:"source"`
	Error            string             `json:"error,omitempty"`   // why the checks ended early
	BlamedRanks      []int              `json:"lost,omitempty"`    // lost, late or failed
	IsDeadlinePassed bool               `json:"expired,omitempty"` // before the error
	Calls            []doctor.TrialCall `json:"calls"`
	Links            []Link             `json:"links"`             // to ranks with higher numbers
	NodeProblems     []doctor.Finding   `json:"machine,omitempty"` // on the node's first rank
}

// Link holds the results of messages that two ranks sent to each other.
type Link struct {
	From           int     `json:"from"`
	To             int     `json:"to"`
	BytesPerSecond float64 `json:"bytes_per_s"` // best measured speed in one direction
	WrongBytes     int64   `json:"wrong"`       // received by From; those at To are an error of To
}

// ExitCode returns the exit code for the kind of the first fault, or 0 if there are no faults.
func (r *Report) ExitCode() int {
	if len(r.Faults) == 0 {
		return 0
	}

	return exitCodes[r.Faults[0].Kind]
}

// AddInterrupt adds a fault about the signal that interrupted the checks.
func (r *Report) AddInterrupt(signal string) {
	r.IsReady = false
	r.Faults = append(r.Faults, Fault{
		Kind: KindJob, Text: "a signal interrupted the checks: " + signal, Advice: "run them again",
	})
}

// WriteText writes a text such as:
//
//	AllReduce of 16777216 B on 4 ranks: window path, 220 us (table 210 us)
//	6 links: 5 GB/s (ranks 0 and 3) to 42 GB/s (ranks 0 and 1)
//	FAULT (link): link between ranks 0 (node a) and 3 (node b) is slow: ...
//	        to do: look for errors: ...
//	4 ranks on 2 nodes, nccl backend: NOT READY, 2.3 s
func (r *Report) WriteText(w io.Writer) error {
	var out bytes.Buffer
	for _, c := range r.Calls {
		fmt.Fprintln(&out, callText(&c, r.Ranks))
	}

	if len(r.Links) > 0 {
		fmt.Fprintln(&out, linksText(r.Links))
	}

	for _, text := range r.Warnings {
		fmt.Fprintf(&out, "warning: %s\n", text)
	}

	for _, f := range r.Faults {
		fmt.Fprintf(&out, "FAULT (%s): %s\n        to do: %s\n", f.Kind, f.Text, f.Advice)
	}

	verdict := "ready"
	if !r.IsReady {
		verdict = "NOT READY"
	}

	fmt.Fprintf(&out, "%s on %s, %s backend: %s, %.1f s\n", ranklist.Plural(r.Ranks, "rank"),
		ranklist.Plural(r.countNodes(), "node"), r.Backend, verdict, r.Seconds)
	_, err := w.Write(out.Bytes())
	return err
}

func callText(c *Call, ranks int) string {
	text := fmt.Sprintf("%s of %d B on %s: %s path, %s", c.Operation, c.Bytes,
		ranklist.Plural(ranks, "rank"), c.Path, doctor.FormatMicroseconds(c.Microseconds))
	if c.TableMicroseconds > 0 {
		text += fmt.Sprintf(" (table %s)", doctor.FormatMicroseconds(c.TableMicroseconds))
	}

	return text
}

// linksText describes the slowest and the fastest link. links must not be empty.
func linksText(links []Link) string {
	bySpeed := func(a, b Link) int { return cmp.Compare(a.BytesPerSecond, b.BytesPerSecond) }
	slowest := slices.MinFunc(links, bySpeed)
	fastest := slices.MaxFunc(links, bySpeed)
	const gigabyte = 1e9
	return fmt.Sprintf("%s: %.3g GB/s (ranks %d and %d) to %.3g GB/s (ranks %d and %d)",
		ranklist.Plural(len(links), "link"), slowest.BytesPerSecond/gigabyte, slowest.From,
		slowest.To, fastest.BytesPerSecond/gigabyte, fastest.From, fastest.To)
}

func (r *Report) countNodes() int {
	names := map[string]bool{}
	for _, name := range r.NodeOfRank {
		if name != "" {
			names[name] = true
		}
	}

	return len(names)
}

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
		links.WithLabelValues(strconv.Itoa(l.From), strconv.Itoa(l.To), label(r.NodeOfRank[l.From]),
			label(r.NodeOfRank[l.To])).Set(l.BytesPerSecond)
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
