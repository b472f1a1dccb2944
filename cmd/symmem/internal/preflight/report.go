package preflight

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/ranklist"
)

// Kind is the kind of component at fault.
type Kind string

// The kinds of faults, in the order in which reports list them.
const (
	KindNode Kind = "node" // a machine, for example its driver
	KindRank Kind = "rank" // a process or its GPU
	KindLink Kind = "link" // the link between two ranks
	KindJob  Kind = "job"  // no particular component
)

// exitCodes has the exit code for each kind of the first fault.
var exitCodes = map[Kind]int{KindJob: 1, KindNode: 3, KindRank: 4, KindLink: 5}

// Fault describes a problem and its cause.
type Fault struct {
	Kind   Kind   `json:"kind"`
	Node   string `json:"node,omitempty"`  // name of the machine, or empty
	Ranks  []int  `json:"ranks,omitempty"` // one rank, or the two ranks of a link
	GPU    string `json:"gpu,omitempty"`   // GPU of the rank, or empty if unknown
	Text   string `json:"text"`
	Advice string `json:"advice"` // how to solve the problem
}

// Call summarizes a collective call on all ranks. A path is a way to execute a call, such as with
// symmem's kernels. The tuning table contains times of earlier measurements.
type Call struct {
	Operation         string  `json:"operation"`
	Bytes             int64   `json:"bytes"`
	RequestedPath     string  `json:"asked"`
	Path              string  `json:"path"`               // actual path
	Microseconds      float64 `json:"us"`                 // duration on the slowest rank
	TableMicroseconds float64 `json:"table_us,omitempty"` // from the tuning table, or 0 if unknown
	WrongElements     int64   `json:"wrong"`              // sum of all ranks
}

// Report holds Judge's findings.
type Report struct {
	IsReady   bool     `json:"ok"` // there are no faults
	Backend   string   `json:"backend"`
	Source    string   `json:"source"` // name of the launcher, such as "torchrun"
	Ranks     int      `json:"ranks"`  // number of ranks
	Nodes     []string `json:"nodes"`  // machine of each rank, or "" if the rank has no result
	Faults    []Fault  `json:"faults"`
	Warnings  []string `json:"warnings"`
	Calls     []Call   `json:"calls"`
	Links     []Link   `json:"links"`
	TableName string   `json:"table"`   // name of the tuning table, or "" if none was used
	Seconds   float64  `json:"seconds"` // duration of the checks
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
//	FAULT (link): link between ranks 0 (node a) and 3 (node a) is slow: ...
//	        to do: look for errors: ...
//	4 ranks on 1 node, nccl backend: NOT READY, 2.3 s
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

// linksText describes the slowest and the fastest link. It panics if there are no links.
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
	for _, name := range r.Nodes {
		if name != "" {
			names[name] = true
		}
	}

	return len(names)
}
