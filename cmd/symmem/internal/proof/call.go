package proof

import (
	"fmt"
	"slices"
	"strings"
)

// Collective identifies calls in NCCL's log by their operation and size.
type Collective struct {
	// Operation is NCCL's name for the operation.
	Operation string
	// Bytes is the count multiplied by the size of an element.
	Bytes int64
}

// operations lists the operations that NCCL logs, by NCCL's names.
var operations = []string{
	"AllGather", "AllReduce", "AlltoAll", "Broadcast", "Reduce", "ReduceScatter",
}

// CollectiveOf returns the Collective that identifies a call in NCCL's log. operation is the name
// that symmem ("AllReduce") or nccl-tests ("all_reduce") uses. count is the count argument of the
// call. For an AllGather or a ReduceScatter, this is the size of one rank's part.
func CollectiveOf(operation string, count int64, elementBytes int) Collective {
	name := strings.ReplaceAll(operation, "_", "")
	i := slices.IndexFunc(operations, func(candidate string) bool {
		return strings.EqualFold(candidate, name)
	})
	if i >= 0 {
		operation = operations[i]
	}
	return Collective{Operation: operation, Bytes: count * int64(elementBytes)}
}

// String returns the operation and the size, such as "AllReduce 262144 B".
func (c Collective) String() string { return fmt.Sprintf("%s %d B", c.Operation, c.Bytes) }

// Answer describes the kernels that NCCL chose for the launches of a call.
type Answer struct {
	Collective
	// Logged is set if the log contains the call, and Windowed if all its launches used windows.
	Logged, Windowed bool
	// Description describes the choice, such as "symmetric kernel AllReduce_RSxLD_AGxST", or lists
	// several choices with their counts.
	Description string
}

// String returns the answer as one line, such as "AllReduce 262144 B: symmetric kernel
// AllReduce_RSxLD_AGxST".
func (a Answer) String() string { return a.Collective.String() + ": " + a.Description }

// Prove returns the kernels that NCCL chose for a call, according to the log.
func (l Log) Prove(c Collective) Answer {
	var distinct []string // in the order of their first launches
	times, windowed := map[string]int{}, true
	for _, choice := range l {
		if choice.Works != 1 || choice.Collective != c {
			continue
		}
		if times[choice.Description]++; times[choice.Description] == 1 {
			distinct = append(distinct, choice.Description)
		}
		windowed = windowed && choice.Windowed
	}
	switch len(distinct) {
	case 0:
		return Answer{Collective: c, Description: "not in NCCL's log"}
	case 1:
		return Answer{c, true, windowed, distinct[0]}
	}
	for i, description := range distinct {
		distinct[i] = fmt.Sprintf("%s (%d times)", description, times[description])
	}
	return Answer{c, true, windowed, strings.Join(distinct, "; ")}
}
