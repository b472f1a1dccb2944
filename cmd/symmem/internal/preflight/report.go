package preflight

import (
	"bytes"
	"fmt"
	"io"
)

// Kind states which component is at fault.
type Kind string

// The kinds of faults, in the order in which reports list them.
const (
	KindNode Kind = "node" // a machine: a system call, the driver or a library
	KindRank Kind = "rank" // a process or its GPU
	KindLink Kind = "link" // the link between two ranks
	KindJob  Kind = "job"  // no particular component
)

// Fault describes a fault and the component that is at fault.
type Fault struct {
	Kind Kind   `json:"kind"`
	Node string `json:"node,omitempty"` // empty if unknown
	// Ranks holds the rank at fault or the two ranks of a link. It is empty for other kinds.
	Ranks []int `json:"ranks,omitempty"`
	// GPU identifies the GPU of the rank at fault. It is empty for other kinds.
	GPU    string `json:"gpu,omitempty"`
	Text   string `json:"text"`
	Advice string `json:"advice"`
}

// Call summarizes a collective on all ranks.
type Call struct {
	Operation string `json:"operation"`
	Bytes     int64  `json:"bytes"`
	// RequestedPath is the path that was requested, and Path is the path that the call took.
	RequestedPath string `json:"asked"`
	Path          string `json:"path"`
	// MicroS is the time on the slowest rank, in microseconds.
	MicroS float64 `json:"us"`
	// TableMicroS is the time in the tuning table, or 0 if the table does not contain the call.
	TableMicroS float64 `json:"table_us,omitempty"`
	// Wrong is the number of wrong elements on all ranks.
	Wrong int64 `json:"wrong"`
}

// Report holds Judge's findings.
type Report struct {
	OK      bool   `json:"ok"`
	Backend string `json:"backend"`
	Source  string `json:"source"`
	Ranks   int    `json:"ranks"`
	// Nodes contains the machine of each rank. The name is empty if the rank has no result.
	Nodes    []string `json:"nodes"`
	Faults   []Fault  `json:"faults"`
	Warnings []string `json:"warnings"`
	Calls    []Call   `json:"calls"`
	Links    []Link   `json:"links"`
	// Table is the name of the tuning table, or empty.
	Table   string  `json:"table"`
	Seconds float64 `json:"seconds"`
}

var exitCodes = map[Kind]int{KindJob: 1, KindNode: 3, KindRank: 4, KindLink: 5}

// Code returns the exit code. It depends on the kind of the first fault, and is 0 if there are no
// faults.
func (r *Report) Code() int {
	if len(r.Faults) == 0 {
		return 0
	}
	return exitCodes[r.Faults[0].Kind]
}

// Interrupt adds a fault which states that a signal interrupted the checks.
func (r *Report) Interrupt(signal string) {
	r.OK = false
	r.Faults = append(r.Faults, Fault{
		Kind: KindJob, Text: "a signal interrupted the checks: " + signal, Advice: "run them again",
	})
}

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	for _, c := range r.Calls {
		fmt.Fprintf(&b, "%s of %d B on %d ranks: %s path, %.4g us", c.Operation, c.Bytes, r.Ranks,
			c.Path, c.MicroS)
		if c.TableMicroS > 0 {
			fmt.Fprintf(&b, " (table %.4g us)", c.TableMicroS)
		}
		fmt.Fprintln(&b)
	}
	if len(r.Links) > 0 {
		slowest, fastest := r.Links[0], r.Links[0]
		for _, l := range r.Links {
			if l.BytesPerS < slowest.BytesPerS {
				slowest = l
			}
			if l.BytesPerS > fastest.BytesPerS {
				fastest = l
			}
		}
		fmt.Fprintf(&b, "%d links: %.3g GB/s (ranks %d and %d) to %.3g GB/s (ranks %d and %d)\n",
			len(r.Links), slowest.BytesPerS/1e9, slowest.From, slowest.To, fastest.BytesPerS/1e9,
			fastest.From, fastest.To)
	}
	for _, text := range r.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", text)
	}
	for _, f := range r.Faults {
		fmt.Fprintf(&b, "FAULT (%s): %s\n        to do: %s\n", f.Kind, f.Text, f.Advice)
	}
	verdict := "ready"
	if !r.OK {
		verdict = "NOT READY"
	}
	fmt.Fprintf(&b, "%d ranks on %d nodes, %s backend: %s, %.1f s\n", r.Ranks, r.nodes(), r.Backend,
		verdict, r.Seconds)
	_, err := w.Write(b.Bytes())
	return err
}

// nodes returns the number of different known nodes.
func (r *Report) nodes() int {
	all := map[string]bool{}
	for _, n := range r.Nodes {
		if n != "" {
			all[n] = true
		}
	}
	return len(all)
}
