package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"symmem"
)

// Operation is a collective as nccl-tests measures it.
type Operation struct {
	// Name is what flags and reports call it.
	Name string
	kind symmem.Operation
	// shared reports whether the size column counts the parts of all ranks together, not one rank's.
	shared bool
	// inPlace reports whether NCCL defines the operation in place.
	inPlace bool
	// reduces and rooted say which columns mean something.
	reduces, rooted bool
	// factor turns the bandwidth of the algorithm into that of the bus, for n ranks.
	factor func(n float64) float64
	launch func(ctx context.Context, g *symmem.Group, c *call) error
}

// call is one collective call on buffers of this rank.
type call struct {
	send, recv symmem.Memory
	count      int64
	dataType   symmem.DataType
	reduceOp   symmem.ReduceOp
	// second is the stream of the receiving half of sendrecv. Without one both halves are on the
	// default stream, and ranks take turns in which comes first: NCCL runs the work of one
	// communicator in the order of calls, so that half a ring that waits on another stream would
	// wait forever, and a graph has one stream alone.
	second *symmem.Stream
}

func whole(float64) float64     { return 1 }
func others(n float64) float64  { return (n - 1) / n }
func twoWays(n float64) float64 { return 2 * (n - 1) / n }

// operations are all that bench collective measures.
var operations = []Operation{
	{
		Name: "all_reduce", kind: symmem.OpAllReduce, inPlace: true, reduces: true, factor: twoWays,
		launch: func(ctx context.Context, g *symmem.Group, c *call) error {
			return g.AllReduce(ctx, c.send, c.recv, c.count, c.dataType, c.reduceOp, nil)
		},
	},
	{
		Name: "all_gather", kind: symmem.OpAllGather, shared: true, inPlace: true, factor: others,
		launch: func(ctx context.Context, g *symmem.Group, c *call) error {
			return g.AllGather(ctx, c.send, c.recv, c.count, c.dataType, nil)
		},
	},
	{
		Name: "reduce_scatter", kind: symmem.OpReduceScatter, shared: true, inPlace: true,
		reduces: true, factor: others,
		launch: func(ctx context.Context, g *symmem.Group, c *call) error {
			return g.ReduceScatter(ctx, c.send, c.recv, c.count, c.dataType, c.reduceOp, nil)
		},
	},
	{
		Name: "broadcast", kind: symmem.OpBroadcast, inPlace: true, rooted: true, factor: whole,
		launch: func(ctx context.Context, g *symmem.Group, c *call) error {
			return g.Broadcast(ctx, c.send, c.recv, c.count, c.dataType, 0, nil)
		},
	},
	{
		Name: "reduce", kind: symmem.OpReduce, inPlace: true, reduces: true, rooted: true,
		factor: whole,
		launch: func(ctx context.Context, g *symmem.Group, c *call) error {
			return g.Reduce(ctx, c.send, c.recv, c.count, c.dataType, c.reduceOp, 0, nil)
		},
	},
	{
		Name: "alltoall", kind: symmem.OpAllToAll, shared: true, factor: others,
		launch: func(ctx context.Context, g *symmem.Group, c *call) error {
			return g.AllToAll(ctx, c.send, c.recv, c.count, c.dataType, nil)
		},
	},
	{
		Name: "sendrecv", kind: symmem.OpSend, factor: whole,
		launch: func(ctx context.Context, g *symmem.Group, c *call) error {
			next, previous := ring(g.Rank(), g.Size())
			send := func() error {
				return g.Send(ctx, c.send, c.count, c.dataType, next, nil)
			}
			recv := func() error {
				return g.Recv(ctx, c.recv, c.count, c.dataType, previous, c.second)
			}
			if c.second == nil && g.Rank()%2 == 1 {
				return inTurn(recv, send)
			}
			return inTurn(send, recv)
		},
	},
	{
		Name: "barrier", kind: symmem.OpBarrier, factor: whole,
		launch: func(ctx context.Context, g *symmem.Group, _ *call) error {
			return g.Barrier(ctx, nil)
		},
	},
}

func inTurn(first, second func() error) error {
	if err := first(); err != nil {
		return err
	}
	return second()
}

// ring returns the neighbours of a rank.
func ring(rank, size int) (next, previous int) {
	return (rank + 1) % size, (rank + size - 1) % size
}

// OperationNames lists the names of all operations.
func OperationNames() []string {
	var names []string
	for i := range operations {
		names = append(names, operations[i].Name)
	}
	return names
}

// ParseOperations reads names as OperationNames lists them; "all" means all of them.
func ParseOperations(names []string) ([]Operation, error) {
	var found []Operation
	if len(names) == 0 {
		return nil, fmt.Errorf("no operation is named: take all, or some of %s",
			strings.Join(OperationNames(), ", "))
	}
	for _, name := range names {
		if name == "all" {
			return operations, nil
		}
		at := -1
		for i := range operations {
			if operations[i].Name == name {
				at = i
			}
		}
		if at < 0 {
			return nil, fmt.Errorf("operation %q is none of all, %s",
				name, strings.Join(OperationNames(), ", "))
		}
		if slices.ContainsFunc(found, func(o Operation) bool { return o.Name == name }) {
			return nil, fmt.Errorf("operation %s is named twice", name)
		}
		found = append(found, operations[at])
	}
	return found, nil
}

// sized returns the count of a call for a size in bytes, and the size that it really has:
// nccl-tests counts the output of an all-gather and the input of a reduce-scatter. A size that is
// no whole number of elements for each rank is rounded up, so that the smallest rows mean
// something.
func (o *Operation) sized(bytes int64, ranks int, t symmem.DataType) (count, size int64) {
	if o.kind == symmem.OpBarrier {
		return 0, 0
	}
	unit := int64(t.Size())
	if o.shared {
		unit *= int64(ranks)
	}
	count = max(1, (bytes+unit-1)/unit)
	return count, count * unit
}

// buffered reports whether the operation can work over windows at all, and has sizes that tables go
// by.
func (o *Operation) buffered() bool {
	return o.kind != symmem.OpSend && o.kind != symmem.OpBarrier
}
