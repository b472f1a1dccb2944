package proof

import (
	"fmt"
	"slices"
	"strings"
)

// Collective identifies calls in NCCL's log by operation and size.
type Collective struct {
	Operation string
	Bytes     int64 // the count argument times the size of an element
}

var operations = []string{
	"AllGather", "AllReduce", "AlltoAll", "Broadcast", "Reduce", "ReduceScatter",
}

// CollectiveOf returns the Collective for a call. operation is a name in symmem ("AllReduce") or
// nccl-tests ("all_reduce").
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

// Kernels describes the kernels that NCCL chose for the launches of a call.
type Kernels struct {
	Collective
	Logged      bool   // the log contains the call
	Windowed    bool   // all kernels use windows
	Description string // such as "symmetric kernel AllReduce_RSxLD_AGxST"
}

// String returns the call and its kernels as one line.
func (k Kernels) String() string { return k.Collective.String() + ": " + k.Description }

// KernelsOf returns the kernels that NCCL chose for a call, according to the log.
func (l Log) KernelsOf(c Collective) Kernels {
	var distinct []string // in the order of their first launches
	launches, useWindows := map[string]int{}, true
	for _, choice := range l {
		if choice.Calls != 1 || choice.Collective != c {
			continue
		}

		if launches[choice.Description]++; launches[choice.Description] == 1 {
			distinct = append(distinct, choice.Description)
		}

		useWindows = useWindows && choice.Windowed
	}

	switch len(distinct) {
	case 0:
		return Kernels{Collective: c, Description: "not in NCCL's log"}
	case 1:
		return Kernels{c, true, useWindows, distinct[0]}
	}

	for i, description := range distinct {
		distinct[i] = fmt.Sprintf("%s (%d times)", description, launches[description])
	}

	return Kernels{c, true, useWindows, strings.Join(distinct, "; ")}
}
