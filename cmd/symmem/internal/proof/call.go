package proof

import (
	"fmt"
	"slices"
	"strings"
)

// Collective identifies calls in NCCL's log: an operation and a size.
type Collective struct {
	// Operation is NCCL's name for the operation.
	Operation string
	// Bytes is the count times the size of an element.
	Bytes int64
}

// operations lists NCCL's names of the operations that it logs.
var operations = []string{
	"AllGather", "AllReduce", "AlltoAll", "Broadcast", "Reduce", "ReduceScatter",
}

// Wanted returns the entry in NCCL's log for an operation and a count of elements, where the count
// is that of the operation: one rank's part of an AllGather or a ReduceScatter. The operation has
// its name in symmem ("AllReduce") or in nccl-tests ("all_reduce").
func Wanted(operation string, count int64, elementBytes int) Collective {
	plain := strings.ReplaceAll(operation, "_", "")
	i := slices.IndexFunc(operations, func(name string) bool {
		return strings.EqualFold(name, plain)
	})
	if i >= 0 {
		operation = operations[i]
	}
	return Collective{Operation: operation, Bytes: count * int64(elementBytes)}
}

// String formats the operation and the size, such as "AllReduce 262144 B".
func (c Collective) String() string { return fmt.Sprintf("%s %d B", c.Operation, c.Bytes) }

// Answer reports which kernels NCCL chose for all launches of one call.
type Answer struct {
	Collective
	// Logged reports whether the log contains the call, Windowed whether all its launches were over
	// windows.
	Logged, Windowed bool
	// What describes the choice, such as "symmetric kernel AllReduce_RSxLD_AGxST". If there were
	// several, it includes their counts.
	What string
}

// String formats the answer in one line, such as "AllReduce 262144 B: symmetric kernel
// AllReduce_RSxLD_AGxST".
func (a Answer) String() string { return a.Collective.String() + ": " + a.What }

// Prove returns the answer for a call.
func (l Log) Prove(c Collective) Answer {
	var different []string // in the order in which they were first chosen
	times, windowed := map[string]int{}, true
	for _, choice := range l {
		if choice.Works != 1 || choice.Collective != c {
			continue
		}
		if times[choice.What]++; times[choice.What] == 1 {
			different = append(different, choice.What)
		}
		windowed = windowed && choice.Windowed
	}
	switch len(different) {
	case 0:
		return Answer{Collective: c, What: "not in NCCL's log"}
	case 1:
		return Answer{c, true, windowed, different[0]}
	}
	for i, what := range different {
		different[i] = fmt.Sprintf("%s (%d times)", what, times[what])
	}
	return Answer{c, true, windowed, strings.Join(different, "; ")}
}
