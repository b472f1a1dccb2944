package bench

import (
	"fmt"
	"slices"
	"strings"

	"symmem"
	"symmem/driver"
)

// Operation is a collective as measured by nccl-tests.
type Operation struct {
	// Name is the name in flags and reports.
	Name string
	kind symmem.Operation
	// factor converts the algorithm bandwidth to the bus bandwidth, for n ranks.
	factor func(n float64) float64
}

func whole(float64) float64     { return 1 }
func others(n float64) float64  { return (n - 1) / n }
func twoWays(n float64) float64 { return 2 * (n - 1) / n }

// operations lists the operations of bench collective.
var operations = []Operation{
	{Name: "all_reduce", kind: symmem.OpAllReduce, factor: twoWays},
	{Name: "all_gather", kind: symmem.OpAllGather, factor: others},
	{Name: "reduce_scatter", kind: symmem.OpReduceScatter, factor: others},
	{Name: "broadcast", kind: symmem.OpBroadcast, factor: whole},
	{Name: "reduce", kind: symmem.OpReduce, factor: whole},
	{Name: "alltoall", kind: symmem.OpAllToAll, factor: others},
	{Name: "sendrecv", kind: symmem.OpSend, factor: whole},
	{Name: "barrier", kind: symmem.OpBarrier, factor: whole},
}

// OperationNames lists the names of all operations.
func OperationNames() []string {
	var names []string
	for i := range operations {
		names = append(names, operations[i].Name)
	}
	return names
}

// ParseOperations parses names as listed by OperationNames; "all" stands for all of them.
func ParseOperations(names []string) ([]Operation, error) {
	var selected []Operation
	if len(names) == 0 {
		return nil, fmt.Errorf("no operation is given: use all, or some of %s",
			strings.Join(OperationNames(), ", "))
	}
	for _, name := range names {
		if name == "all" {
			return operations, nil
		}
		named := func(o Operation) bool { return o.Name == name }
		at := slices.IndexFunc(operations, named)
		if at < 0 {
			return nil, fmt.Errorf("operation %q is none of all, %s",
				name, strings.Join(OperationNames(), ", "))
		}
		if slices.ContainsFunc(selected, named) {
			return nil, fmt.Errorf("operation %s is named twice", name)
		}
		selected = append(selected, operations[at])
	}
	return selected, nil
}

// shared reports whether the size column counts the parts of all ranks together rather than one
// rank's.
func (o *Operation) shared() bool {
	send, recv := o.kind.Extents()
	return send == driver.AllParts || recv == driver.AllParts
}

// sized returns the count of a call for a size in bytes, and the actual size. nccl-tests counts the
// output of an all-gather and the input of a reduce-scatter. A size that is not a whole number of
// elements for each rank is rounded up, so that the smallest rows are meaningful.
func (o *Operation) sized(bytes int64, ranks int, t symmem.DataType) (count, size int64) {
	if o.kind == symmem.OpBarrier {
		return 0, 0
	}
	unit := int64(t.Size())
	if o.shared() {
		unit *= int64(ranks)
	}
	count = max(1, (bytes+unit-1)/unit)
	return count, count * unit
}

// buffered reports whether the operation can use windows, and has sizes for a table.
func (o *Operation) buffered() bool { return o.kind.Tuned() }
