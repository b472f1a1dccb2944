package bench

import (
	"fmt"
	"slices"
	"strings"

	"symmem"
	"symmem/driver"
)

// Operation is a collective, or sendrecv.
type Operation struct {
	Name string // in nccl-tests, such as all_reduce
	kind symmem.Operation
	// busFactor returns the bytes on each rank's link, divided by the size of the larger buffer. In an
	// all-gather on 4 ranks, each rank receives 3/4 of the buffer.
	busFactor func(ranks float64) float64
}

func wholeBufferFactor(float64) float64 { return 1 }

func otherPartsFactor(ranks float64) float64 { return (ranks - 1) / ranks }

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

// OperationNames returns the names that ParseOperations accepts, except for "all".
func OperationNames() []string {
	var names []string
	for i := range operations {
		names = append(names, operations[i].Name)
	}

	return names
}

// ParseOperations returns the operations with the given names, in this order. The name "all"
// selects all operations.
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
		if index < 0 {
			return nil, fmt.Errorf("unknown operation %q: use all, or some of %s",
				name, strings.Join(OperationNames(), ", "))
		}

		if slices.ContainsFunc(selected, hasThisName) {
			return nil, fmt.Errorf("operation %s given twice", name)
		}

		selected = append(selected, operations[index])
	}

	return selected, nil
}

// hasPartForEachRank reports whether the larger buffer has a part for each rank.
func (o *Operation) hasPartForEachRank() bool {
	send, recv := o.kind.Extents()
	return send == driver.AllParts || recv == driver.AllParts
}

// countAndSize returns the count argument of a call, and the size of its larger buffer: minSize
// bytes, rounded up to whole elements.
func (o *Operation) countAndSize(minSize int64, ranks int, t symmem.DataType) (count, size int64) {
	if o.kind == symmem.OpBarrier {
		return 0, 0 // a barrier has no buffers
	}

	bytesPerCount := int64(t.Size())
	if o.hasPartForEachRank() {
		bytesPerCount *= int64(ranks)
	}

	count = (minSize + bytesPerCount - 1) / bytesPerCount // rounded up
	count = max(1, count)
	return count, count * bytesPerCount
}
