package proof

import (
	"fmt"
	"slices"
	"strings"
)

// Call is a collective call as NCCL is given it.
type Call struct {
	// Collective is NCCL's name of the operation.
	Collective string
	// Bytes are the count times the size of an element.
	Bytes int64
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
	// Logged reports whether the log has the call, Windowed whether every launch of it went over
	// windows.
	Logged, Windowed bool
	// What says what was taken, such as "symmetric kernel AllReduce_RSxLD_AGxST"; with how often, if
	// it was not always the same.
	What string
}

// String is one line for people, such as
// "AllReduce 262144 B: symmetric kernel AllReduce_RSxLD_AGxST".
func (a Answer) String() string { return a.Call.String() + ": " + a.What }

// Prove answers for a call.
func (l Log) Prove(c Call) Answer {
	var different []string // in the order in which they were first chosen
	times, windowed := map[string]int{}, true
	for _, choice := range l {
		if choice.Works != 1 || choice.Call != c {
			continue
		}
		if times[choice.What]++; times[choice.What] == 1 {
			different = append(different, choice.What)
		}
		windowed = windowed && choice.Windowed
	}
	switch len(different) {
	case 0:
		return Answer{Call: c, What: "not in NCCL's log"}
	case 1:
		return Answer{c, true, windowed, different[0]}
	}
	for i, what := range different {
		different[i] = fmt.Sprintf("%s (%d times)", what, times[what])
	}
	return Answer{c, true, windowed, strings.Join(different, "; ")}
}
