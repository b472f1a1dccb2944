package chaos

import (
	"fmt"
	"slices"
	"strings"

	"symmem"
)

// op is one statement of a program, which all ranks perform. Streams, groups, buffers, events and
// graphs have the same numbers on all ranks. Which fields an op uses depends on its kind.
type op struct {
	kind opKind
	// stream is the number of the stream that performs the op. In a message, the sender uses stream,
	// and the receiver recvStream. In other ops, the two are equal.
	stream, recvStream int
	group              int // index in layout.groups
	// send and recv are indexes in program.buffers. The op reads buffer send and writes buffer recv.
	send, recv   int
	count        int // number of elements; for sendOp, of bytes
	root         int // group rank
	reduce       symmem.ReduceOp
	message      message // for sendOp
	parts        *parts  // for allToAllV
	event, graph int     // event is less than program.events; graph is an index in program.graphs
}

// message describes the message of a sendOp.
type message struct {
	src, dst, tag int  // src and dst are world ranks
	anySource     bool // whether the receiver uses AnySource instead of src
	isInt32       bool // whether the elements are int32 instead of bytes
}

// opKind is the kind of an op. The order of the kinds matters: see the constants below.
type opKind int

const (
	allReduce opKind = iota
	allGather
	reduceScatter
	broadcast
	reduce
	allToAll
	allToAllV
	// tallyOp is an in-place ReduceScatter, which adds the other ranks' values to this rank's part
	// of a buffer. The other ranks' values never change, so the result shows the number of tallies,
	// whatever their order.
	tallyOp
	// sendOp sends and receives a message.
	sendOp
	copyOp
	// allocOp allocates and fills the buffer recv. freeOp frees it.
	allocOp
	freeOp
	recordOp  // records an event on a stream
	waitOp    // makes a stream wait for an event
	captureOp // captures a graph
	launchOp  // launches a graph
	syncOp    // waits for a stream
	// closeGraphsOp closes graphs that earlier programs left open.
	closeGraphsOp
)

const (
	// The first equalPartsOpCount opKinds are collectives whose parts all have the same length.
	equalPartsOpCount = 6
	// The first collectiveOpCount opKinds are collectives.
	collectiveOpCount = 8
)

func (k opKind) isCollective() bool { return k < collectiveOpCount }

// isCall reports whether ops of this kind transfer data between ranks.
func (k opKind) isCall() bool { return k <= sendOp }

// buffer is memory that every rank has.
type buffer struct {
	bytes int
	// isForeign is set if the buffer is not in the pool: it is a Go slice on the host, or another
	// library's memory on a GPU.
	isForeign bool
	// allocatedByOp is set if an op allocates the buffer. Otherwise, it exists before the first op.
	allocatedByOp bool
}

// graph is a graph that a program captures and launches.
type graph struct {
	body   []op
	stream int // stream on which the graph is captured
	// capturedByOp is set if a captureOp captures the graph. Otherwise, each rank captures it before
	// the first op.
	capturedByOp bool
	// branches is the number of streams on which another library captures the graph, or 0 for
	// symmem.
	branches int
}

// layout describes the groups of a world.
type layout struct {
	ranks  int     // number of ranks in the world
	groups [][]int // world ranks of each group; group 0 is the world
	// colors holds the splits that create the other groups. Each gives every rank the color 0 or 1
	// and creates a group for each color, which may have a single rank or none.
	colors [][]int
	// isUnordered is set for worlds with Options.UnorderedMessages. A message may then be received
	// after a collective before which it was sent.
	isUnordered bool
}

// program is a random program that all ranks of a world perform.
type program struct {
	layout
	buffers []buffer
	events  int // number of events
	graphs  []graph
	ops     []op
	// orders holds the order in which each rank queues the ops. If it is nil, all use the program's
	// order.
	orders [][]int
	// shouldRegisterPool makes ranks register the pool with each group before the first call.
	shouldRegisterPool bool
	// shouldComparePlacement makes ranks compare the placement of buffers that ops allocate.
	shouldComparePlacement bool
	// keptBufferCount is the number of buffers that stay allocated at the end, including those of
	// earlier programs in the same world.
	keptBufferCount int
	path            symmem.PathChoice
}

const (
	streamCount = 3 // number of streams in programs of all kinds except "graphs"
	// maxStreams is the number of streams in programs of the kind "graphs". The first
	// libraryStreamCount of them belong to another library.
	maxStreams         = 5
	libraryStreamCount = 3
)

// newLayout returns a world with two groups for each split in colors.
func newLayout(ranks int, colors ...[]int) layout {
	l := layout{ranks: ranks, groups: make([][]int, 1+2*len(colors)), colors: colors}
	for r := range ranks {
		l.groups[0] = append(l.groups[0], r)
		for i, split := range colors {
			index := 1 + 2*i + split[r] // group 0 is the world, and each split creates two groups
			l.groups[index] = append(l.groups[index], r)
		}
	}

	return l
}

// participants returns the world ranks that take part in an op.
func (p *program) participants(o *op) []int {
	switch {
	case o.kind == sendOp:
		return []int{o.message.src, o.message.dst}
	case o.kind.isCollective():
		return p.groups[o.group]
	default:
		return p.groups[0]
	}
}

func (p *program) isMember(rank int, o *op) bool { return slices.Contains(p.participants(o), rank) }

// streamOf returns the stream on which a world rank performs the op.
func (o *op) streamOf(rank int) int {
	if o.kind == sendOp && rank == o.message.dst {
		return o.recvStream
	}

	return o.stream
}

// body returns the ops of the graph that o launches, or else o.
func (p *program) body(o *op) []op {
	if o.kind == launchOp {
		return p.graphs[o.graph].body
	}

	return []op{*o}
}

// order returns the indexes of the ops in the order in which a rank queues them.
func (p *program) order(rank int) []int {
	if p.orders != nil {
		return p.orders[rank]
	}

	order := make([]int, len(p.ops))
	for i := range order {
		order[i] = i
	}

	return order
}

// String returns a line of a program's text.
func (o *op) String() string {
	switch o.kind {
	case copyOp:
		return fmt.Sprintf("stream %d: copy buffer %d to %d", o.stream, o.send, o.recv)
	case allocOp:
		return fmt.Sprintf("stream %d: allocate buffer %d", o.stream, o.recv)
	case freeOp:
		return fmt.Sprintf("stream %d: free buffer %d", o.stream, o.recv)
	case recordOp:
		return fmt.Sprintf("stream %d: record event %d", o.stream, o.event)
	case waitOp:
		return fmt.Sprintf("stream %d: wait for event %d", o.stream, o.event)
	case captureOp:
		return fmt.Sprintf("stream %d: capture graph %d", o.stream, o.graph)
	case launchOp:
		return fmt.Sprintf("stream %d: launch graph %d", o.stream, o.graph)
	case syncOp:
		return fmt.Sprintf("stream %d: synchronize", o.stream)
	case closeGraphsOp:
		return "close graphs of earlier programs"
	case tallyOp:
		return fmt.Sprintf("stream %d: tally of buffer %d", o.stream, o.recv)
	case sendOp:
		return fmt.Sprintf("stream %d: message %+v of %d bytes on group %d, buffer %d to %d on stream %d",
			o.stream, o.message, o.count, o.group, o.send, o.recv, o.recvStream)
	case allToAllV:
		return fmt.Sprintf("stream %d: AllToAllV, buffer %d to %d, %v", o.stream, o.send, o.recv,
			o.parts)
	default: // one of the first equalPartsOpCount kinds
		name := [equalPartsOpCount]string{
			"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll",
		}[o.kind]
		return fmt.Sprintf("stream %d: %s of %d on group %d, buffer %d to %d, root %d, op %v", o.stream,
			name, o.count, o.group, o.send, o.recv, o.root, o.reduce)
	}
}

// String returns the program's text, which a failed test prints.
func (p *program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d ranks, groups %v, path %v, buffers %+v\n", p.ranks, p.groups, p.path,
		p.buffers)
	for i, g := range p.graphs {
		for _, o := range g.body { // o is a copy
			if g.branches == 0 {
				o.stream = g.stream // symmem captures all ops on this stream
			}

			fmt.Fprintf(&b, "graph %d of %d branches, %v\n", i, g.branches, &o)
		}
	}

	for i := range p.ops {
		fmt.Fprintf(&b, "%4d  %v\n", i, &p.ops[i])
	}

	for r, order := range p.orders {
		fmt.Fprintf(&b, "rank %d queues %v\n", r, order)
	}

	return b.String()
}
