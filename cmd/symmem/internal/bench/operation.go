package bench

import (
	"fmt"
	"slices"
	"strings"

	"symmem"
	"symmem/driver"
)

// Operation describes a collective and how nccl-tests counts its bytes.
type Operation struct {
	Name string
	kind symmem.Operation
	// busFactor returns the bus bandwidth divided by the algorithm bandwidth.
	busFactor func(ranks float64) float64
}

// These functions return the bus factors of nccl-tests.
func wholeBufferFactor(float64) float64            { return 1 }
func otherPartsFactor(ranks float64) float64       { return (ranks - 1) / ranks }
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

// ParseOperations returns the operations with the given names. The name "all" selects all of them.
func ParseOperations(names []string) ([]Operation, error) {
	var selected []Operation
	if len(names) == 0 {
		return nil, fmt.Errorf("no operations given: use all, or some of %s",
			strings.Join(OperationNames(), ", "))
	}
	for _, name := range names {
		if name == "all" {
			return operations, nil
		}
		hasName := func(o Operation) bool { return o.Name == name }
		index := slices.IndexFunc(operations, hasName)
		if index < 0 {
			return nil, fmt.Errorf("unknown operation %q: use all, or some of %s",
				name, strings.Join(OperationNames(), ", "))
		}
		if slices.ContainsFunc(selected, hasName) {
			return nil, fmt.Errorf("operation %s given twice", name)
		}
		selected = append(selected, operations[index])
	}
	return selected, nil
}

// isSizeOfAllRanks reports whether the size of a call is that of the parts of all ranks.
func (o *Operation) isSizeOfAllRanks() bool {
	send, recv := o.kind.Extents()
	return send == driver.AllParts || recv == driver.AllParts
}

// countAndSize rounds a size up to whole elements for each rank, and returns the count argument of
// the call and the rounded size. As in nccl-tests, the size of an all-gather is that of its output.
func (o *Operation) countAndSize(bytes int64, ranks int, t symmem.DataType) (count, size int64) {
	if o.kind == symmem.OpBarrier {
		return 0, 0
	}
	unit := int64(t.Size())
	if o.isSizeOfAllRanks() {
		unit *= int64(ranks)
	}
	count = max(1, (bytes+unit-1)/unit)
	return count, count * unit
}

// hasRules reports whether tuning tables have rules for the operation.
func (o *Operation) hasRules() bool { return o.kind.HasTuningRules() }
