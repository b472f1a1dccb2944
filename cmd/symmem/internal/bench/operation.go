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
	// factor returns the ratio of bus bandwidth to algorithm bandwidth for n ranks.
	factor func(n float64) float64
}

func factorWhole(float64) float64     { return 1 }
func factorOthers(n float64) float64  { return (n - 1) / n }
func factorTwoWays(n float64) float64 { return 2 * (n - 1) / n }

// operations lists the operations of bench collective.
var operations = []Operation{
	{Name: "all_reduce", kind: symmem.OpAllReduce, factor: factorTwoWays},
	{Name: "all_gather", kind: symmem.OpAllGather, factor: factorOthers},
	{Name: "reduce_scatter", kind: symmem.OpReduceScatter, factor: factorOthers},
	{Name: "broadcast", kind: symmem.OpBroadcast, factor: factorWhole},
	{Name: "reduce", kind: symmem.OpReduce, factor: factorWhole},
	{Name: "alltoall", kind: symmem.OpAllToAll, factor: factorOthers},
	{Name: "sendrecv", kind: symmem.OpSend, factor: factorWhole},
	{Name: "barrier", kind: symmem.OpBarrier, factor: factorWhole},
}

// OperationNames returns the names of all operations.
func OperationNames() []string {
	var names []string
	for i := range operations {
		names = append(names, operations[i].Name)
	}
	return names
}

// ParseOperations returns the operations with the given names, where "all" stands for all of them.
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

// countsAllRanks reports whether the size of a call covers the parts of all ranks, and not just the
// part of one rank.
func (o *Operation) countsAllRanks() bool {
	send, recv := o.kind.Extents()
	return send == driver.AllParts || recv == driver.AllParts
}

// countAndSize returns the count argument of a call of about the given size in bytes, and the
// actual size. As in nccl-tests, the size is that of the output for an all-gather and that of the
// input for a reduce-scatter, and it is rounded up to a whole number of elements for each rank.
func (o *Operation) countAndSize(bytes int64, ranks int, t symmem.DataType) (count, size int64) {
	if o.kind == symmem.OpBarrier {
		return 0, 0
	}
	unit := int64(t.Size())
	if o.countsAllRanks() {
		unit *= int64(ranks)
	}
	count = max(1, (bytes+unit-1)/unit)
	return count, count * unit
}

// hasBuffers reports whether the operation has buffers that peers read. Only such operations use
// windows and have rules in a tuning table.
func (o *Operation) hasBuffers() bool { return o.kind.Tuned() }
