package proof

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Call is a collective call as NCCL is given it.
type Call struct {
	// Collective is NCCL's name of the operation.
	Collective string `json:"collective"`
	// Bytes are the count times the size of an element.
	Bytes int64 `json:"bytes"`
}

// collectives are the operations that NCCL logs, by its names.
var collectives = []string{
	"AllGather", "AllReduce", "AlltoAll", "Broadcast", "Reduce", "ReduceScatter",
}

// Wanted is the call of an operation with a count of elements, as it is given to the operation: one
// rank's part of an AllGather or a ReduceScatter. The operation is called as symmem does
// ("AllReduce") or as nccl-tests does ("all_reduce").
func Wanted(operation string, count int64, elementBytes int) Call {
	plain := strings.ReplaceAll(operation, "_", "")
	i := slices.IndexFunc(collectives, func(name string) bool {
		return strings.EqualFold(name, plain)
	})
	if i >= 0 {
		operation = collectives[i]
	}
	return Call{Collective: operation, Bytes: count * int64(elementBytes)}
}

// String names a call for people.
func (c Call) String() string { return fmt.Sprintf("%s %d B", c.Collective, c.Bytes) }

// Answer says what NCCL took for one call, whenever it was made.
type Answer struct {
	Call
	// Taken are the different choices, in the order in which they were first made.
	Taken []Taken `json:"taken"`
}

// Taken is a choice and how often it was made.
type Taken struct {
	// What is the choice as Choice.String writes it.
	What string `json:"what"`
	// Windowed reports whether it went over windows.
	Windowed bool `json:"windowed"`
	// Times counts the launches.
	Times int `json:"times"`
}

// Windowed reports whether the log has the call, and every launch of it went over windows.
func (a *Answer) Windowed() bool {
	return len(a.Taken) > 0 && !slices.ContainsFunc(a.Taken, func(t Taken) bool {
		return !t.Windowed
	})
}

// What says what was taken, such as "symmetric kernel AllReduce_RSxLD_AGxST"; with how often, if it
// was not always the same.
func (a *Answer) What() string {
	parts := make([]string, len(a.Taken))
	for i, t := range a.Taken {
		parts[i] = t.What
		if len(a.Taken) > 1 {
			parts[i] += fmt.Sprintf(" (%d times)", t.Times)
		}
	}
	if len(parts) == 0 {
		return "not in NCCL's log"
	}
	return strings.Join(parts, "; ")
}

// String is one line for people, such as
// "AllReduce 262144 B: symmetric kernel AllReduce_RSxLD_AGxST".
func (a Answer) String() string { return a.Call.String() + ": " + a.What() }

// Prove answers for each different call, in the order in which they are given.
func (l *Log) Prove(calls ...Call) []Answer {
	answers := []Answer{}
	for _, c := range calls {
		known := func(a Answer) bool { return a.Call == c }
		if !slices.ContainsFunc(answers, known) {
			answers = append(answers, l.prove(c))
		}
	}
	return answers
}

func (l *Log) prove(c Call) Answer {
	a := Answer{Call: c}
	for i := range l.Choices {
		choice := &l.Choices[i]
		if choice.Works != 1 || choice.Collective != c.Collective || choice.Bytes != c.Bytes {
			continue
		}
		what := choice.String()
		at := slices.IndexFunc(a.Taken, func(t Taken) bool { return t.What == what })
		if at < 0 {
			at = len(a.Taken)
			a.Taken = append(a.Taken, Taken{What: what, Windowed: choice.Windowed()})
		}
		a.Taken[at].Times++
	}
	return a
}

// Write prints the answers for calls, a line each with a prefix, such as "# ".
func (l *Log) Write(w io.Writer, prefix string, calls ...Call) error {
	for _, a := range l.Prove(calls...) {
		if _, err := fmt.Fprintf(w, "%s%v\n", prefix, a); err != nil {
			return fmt.Errorf("writing which kernels ran: %w", err)
		}
	}
	return nil
}
