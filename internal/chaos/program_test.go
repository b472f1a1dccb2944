package chaos

import (
	"fmt"
	"slices"
	"strings"

	"symmem"
)

// op is one statement of a program. All ranks perform the same program.
type op struct {
	kind opKind
	// stream is the stream on which the op reads, and recvStream is the one on which it writes.
	// They differ only for messages: the sender uses stream, and the receiver uses recvStream.
	stream, recvStream int
	// group is the index of a call's group in layout.groups.
	group int
	// send and recv are the indexes of the buffers that the op reads and writes.
	send, recv int
	// count is the number of elements of a call. root is the group rank of the root.
	count, root int
	reduce      symmem.ReduceOp
	// message is set for a send, and parts for an allToAllV.
	message message
	parts   *parts
	// event is the index of the event to record or to wait for. graph is the index of the graph to
	// capture or to launch.
	event, graph int
}

// message describes a message from world rank src to world rank dst. The count of its op is in
// bytes.
type message struct {
	src, dst, tag int
	// anySource makes the receiver receive from AnySource.
	anySource bool
	// wide selects int32 elements instead of bytes.
	wide bool
}

type opKind int

const (
	allReduce opKind = iota
	allGather
	reduceScatter
	broadcast
	reduce
	allToAll
	allToAllV
	// tally is an in-place ReduceScatter, which adds the other ranks' values to this rank's part of
	// a buffer. Because those values never change, the result shows how many tallies were made,
	// whatever their order.
	tally
	// send sends and receives a message.
	send
	// copyOp copies one buffer to another.
	copyOp
	// allocOp allocates the buffer recv and fills it. freeOp frees it.
	allocOp
	freeOp
	record
	wait
	captureGraph
	launchGraph
	syncOp
	// closeKeptGraphs closes the graphs that earlier programs left open.
	closeKeptGraphs
)

const (
	// dense is the number of opKinds that are collectives whose parts all have the same length.
	// These opKinds come first.
	dense = 6
	// collectives is the number of opKinds that are collectives.
	collectives = 8
)

func (k opKind) collective() bool { return k < collectives }

func (k opKind) call() bool { return k <= send }

// buffer describes a buffer that every rank has.
type buffer struct {
	bytes int
	// foreign is set if the buffer is not in the pool. It is then a Go slice on the host, or
	// another library's memory on a GPU.
	foreign bool
	// allocatedByOp is set if an op allocates the buffer. Otherwise, the buffer exists before the
	// first op.
	allocatedByOp bool
}

// graph describes a graph of collectives and copies.
type graph struct {
	body []op
	// stream is the stream on which the graph is captured. If capturedByOp is set, an op captures
	// the graph; otherwise, it is captured before the first op.
	stream       int
	capturedByOp bool
	// branches is the number of streams on which another library captures the graph, or 0 if symmem
	// captures it.
	branches int
}

type layout struct {
	ranks  int
	groups [][]int // world ranks of each group; the first group is the world
	// colors holds the splits that create the other groups. Each split gives every rank the color 0
	// or 1 and creates one group for each color, which may have a single rank or none.
	colors    [][]int
	unordered bool
}

type program struct {
	layout
	buffers []buffer
	events  int
	graphs  []graph
	ops     []op
	// orders holds, for each rank, the order in which it queues the ops. If orders is nil, all
	// ranks queue them in the program's order.
	orders [][]int
	// If register is set, the ranks register the pool before the first call. If comparePlacement is
	// set, they compare the placement of buffers that ops allocate.
	register, comparePlacement bool
	// keep is the number of buffers that stay allocated at the end, including those of earlier
	// programs in the same world.
	keep int
	path symmem.PathChoice
}

const (
	// streams is the number of streams in most programs.
	streams = 3
	// maxStreams is the number of streams in programs with graphs. The first libraryStreams streams
	// belong to another library.
	maxStreams     = 5
	libraryStreams = 3
)

// newLayout returns the layout of a world with two groups for each split in colors.
func newLayout(ranks int, colors ...[]int) layout {
	l := layout{ranks: ranks, groups: make([][]int, 1+2*len(colors)), colors: colors}
	for r := range ranks {
		l.groups[0] = append(l.groups[0], r)
		for i, split := range colors {
			index := 1 + 2*i + split[r]
			l.groups[index] = append(l.groups[index], r)
		}
	}
	return l
}

func (p *program) parties(o *op) []int {
	switch {
	case o.kind == send:
		return []int{o.message.src, o.message.dst}
	case o.kind.collective():
		return p.groups[o.group]
	default:
		return p.groups[0]
	}
}

func (p *program) member(rank int, o *op) bool { return slices.Contains(p.parties(o), rank) }

func (o *op) streamOf(rank int) int {
	if o.kind == send && rank == o.message.dst {
		return o.recvStream
	}
	return o.stream
}

// body returns the ops of the graph that o launches. If o does not launch a graph, body returns
// o itself.
func (p *program) body(o *op) []op {
	if o.kind == launchGraph {
		return p.graphs[o.graph].body
	}
	return []op{*o}
}

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

func (o *op) String() string {
	switch o.kind {
	case copyOp:
		return fmt.Sprintf("stream %d: copy buffer %d to %d", o.stream, o.send, o.recv)
	case allocOp, freeOp:
		return fmt.Sprintf("stream %d: %s buffer %d", o.stream,
			map[opKind]string{allocOp: "allocate", freeOp: "free"}[o.kind], o.recv)
	case record:
		return fmt.Sprintf("stream %d: record event %d", o.stream, o.event)
	case wait:
		return fmt.Sprintf("stream %d: wait for event %d", o.stream, o.event)
	case captureGraph:
		return fmt.Sprintf("stream %d: capture graph %d", o.stream, o.graph)
	case launchGraph:
		return fmt.Sprintf("stream %d: launch graph %d", o.stream, o.graph)
	case syncOp:
		return fmt.Sprintf("stream %d: synchronize", o.stream)
	case closeKeptGraphs:
		return "close graphs of earlier programs"
	case tally:
		return fmt.Sprintf("stream %d: tally of buffer %d", o.stream, o.recv)
	case send:
		return fmt.Sprintf("stream %d: message %+v of %d bytes on group %d, buffer %d to %d on stream %d",
			o.stream, o.message, o.count, o.group, o.send, o.recv, o.recvStream)
	case allToAllV:
		return fmt.Sprintf("stream %d: AllToAllV, buffer %d to %d, %v", o.stream, o.send, o.recv,
			o.parts)
	default:
		name := [...]string{
			"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll",
		}[o.kind]
		return fmt.Sprintf("stream %d: %s of %d on group %d, buffer %d to %d, root %d, op %v", o.stream,
			name, o.count, o.group, o.send, o.recv, o.root, o.reduce)
	}
}

func (p *program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d ranks, groups %v, path %v, buffers %+v\n", p.ranks, p.groups, p.path,
		p.buffers)
	for g, graph := range p.graphs {
		for _, o := range graph.body {
			if graph.branches == 0 {
				o.stream = graph.stream
			}
			fmt.Fprintf(&b, "graph %d of %d branches, %v\n", g, graph.branches, &o)
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
