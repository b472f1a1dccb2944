package bench

import (
	"fmt"
	"slices"
	"strings"

	"symmem"
	"symmem/driver"
)

// Operation is an operation that bench can measure.
//
// Suppose that an all-gather on 4 ranks has an output of 4 MiB: a part of 1 MiB for each rank. The
// link of a rank transfers only the 3 parts of the other ranks, which are 3/4 of the output. This
// share is the bus factor. The bandwidth of the link, called bus bandwidth, is the bus factor times
// the size of the output divided by the time.
type Operation struct {
	Name string // such as all_reduce
	kind symmem.Operation
	// busFactor returns the bus factor for a number of ranks, as in nccl-tests.
	busFactor func(ranks float64) float64
}

// wholeBufferFactor is the bus factor if a link transfers the whole buffer.
func wholeBufferFactor(float64) float64 { return 1 }

// otherPartsFactor is the bus factor if a link transfers the parts of the other ranks.
func otherPartsFactor(ranks float64) float64 { return (ranks - 1) / ranks }

// doubleOtherPartsFactor is the bus factor if a link transfers the parts of the other ranks twice.
func doubleOtherPartsFactor(ranks float64) float64 { return 2 * (ranks - 1) / ranks }

var operations = []Operation{
	{Name: "all_reduce", kind: symmem.OpAllReduce, busFactor: doubleOtherPartsFactor},
	{Name: "all_gather", kind: symmem.OpAllGather, busFactor: otherPartsFactor},
	{Name: "reduce_scatter", kind: symmem.OpReduceScatter, busFactor: otherPartsFactor},
	{Name: "broadcast", kind: symmem.OpBroadcast, busFactor: wholeBufferFactor},
	{Name: "reduce", kind: symmem.OpReduce, busFactor: wholeBufferFactor},
	{Name: "alltoall", kind: symmem.OpAllToAll, busFactor: otherPartsFactor},
	{Name: "sendrecv", kind: symmem.OpSend, busFactor: wholeBufferFactor},
	{Name: "barrier", kind: symmem.OpBarrier, busFactor: wholeBufferFactor},
}

// OperationNames returns the names of all operations.
func OperationNames() []string {
	var names []string
	for i := range operations {
		names = append(names, operations[i].Name)
	}

	return names
}

// ParseOperations returns the operations with the given names, in the order of the names. The name
// "all" stands for all operations. The other names are then ignored, unless an earlier one is
// unknown or repeated.
func ParseOperations(names []string) ([]Operation, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("no operations given: use all, or some of %s",
			strings.Join(OperationNames(), ", "))
	}

	var selected []Operation
	for _, name := range names {
		if name == "all" {
			return operations, nil
		}

		hasThisName := func(o Operation) bool { return o.Name == name }
		index := slices.IndexFunc(operations, hasThisName)
		isKnown := index >= 0
		if !isKnown {
			return nil, fmt.Errorf("unknown operation %q: use all, or some of %s",
				name, strings.Join(OperationNames(), ", "))
		}

		isRepeated := slices.ContainsFunc(selected, hasThisName)
		if isRepeated {
			return nil, fmt.Errorf("operation %s given twice", name)
		}

		selected = append(selected, operations[index])
	}

	return selected, nil
}

// hasBufferOfAllParts reports whether the send or the receive buffer has a part for each rank.
func (o *Operation) hasBufferOfAllParts() bool {
	send, recv := o.kind.Extents()
	return send == driver.AllParts || recv == driver.AllParts
}

// countAndSize returns the count argument of a call, and the size of its larger buffer in bytes.
// The size is the given number of bytes, rounded up to whole elements or, if the buffer has a part
// for each rank, to whole elements in each part. A barrier has no buffers, so both results are 0.
func (o *Operation) countAndSize(bytes int64, ranks int, t symmem.DataType) (count, size int64) {
	if o.kind == symmem.OpBarrier {
		return 0, 0
	}

	bytesPerCount := int64(t.Size())
	if o.hasBufferOfAllParts() {
		bytesPerCount *= int64(ranks)
	}

	count = (bytes + bytesPerCount - 1) / bytesPerCount // rounded up
	count = max(1, count)                               // if bytes is 0
	return count, count * bytesPerCount
}

// hasRules reports whether tuning tables have rules for the operation. Rules choose the path of a
// call: the way in which it runs.
func (o *Operation) hasRules() bool { return o.kind.HasTuningRules() }
