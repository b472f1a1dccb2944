package chaos

import (
	"fmt"
	"slices"
	"strings"

	"symmem"
)

// op represents a statement of a program, the same on all ranks.
type op struct {
	kind opKind
	// stream is the stream of the op, on the stream of its writes. They only differ for messages: the
	// sender queues on stream, the receiver on on.
	stream, on int
	// group is the index of a call's group in layout.groups.
	group int
	// send and recv are indices of buffers; a copy is from send to recv.
	send, recv int
	// count is the call's number of elements; root is a rank of the group.
	count, root int
	reduce      symmem.ReduceOp
	// message and parts belong to send and allToAllV.
	message message
	parts   *parts
	// event is the event to record or wait for, graph the graph to capture or launch.
	event, graph int
}

// message describes a message from one world rank to another. The count of its op is in bytes.
type message struct {
	from, to, tag int
	// any makes the receiver use AnySource.
	any bool
	// wide makes the call use int32 instead of bytes.
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
	// tally is a ReduceScatter in place: each rank adds the other ranks' values to its own part of a
	// buffer. Those values never change, so the result shows how many calls were made, in any order.
	tally
	// send is a Send and its Recv.
	send
	// cp copies one buffer to another.
	cp
	// take allocates a buffer and fills it, drop frees it; recv is the buffer.
	take
	drop
	record
	wait
	captureGraph
	launchGraph
	// await synchronizes a stream.
	await
	// closeLate closes the graphs that earlier programs have left open.
	closeLate
)

const (
	dense       = 6 // the first kinds are collectives whose parts have one length
	collectives = 8 // including the other collectives
)

func (k opKind) collective() bool { return k < collectives }

// call reports whether an op is a collective or a message.
func (k opKind) call() bool { return k <= send }

// buffer describes a buffer on each rank.
type buffer struct {
	bytes int
	// foreign marks memory outside the pool: a Go slice, or, on a GPU, memory of another library.
	foreign bool
	// taken marks a buffer that an op allocates; others exist before the first op.
	taken bool
}

// graph describes a graph of collectives and copies.
type graph struct {
	body []op
	// stream captures it, in an op if late is set, else before the first op.
	stream int
	late   bool
	// branches is the number of streams on which another library captures it; 0 is a graph of symmem.
	branches int
}

// layout describes the ranks and groups that the programs of a world share.
type layout struct {
	ranks  int
	groups [][]int // world ranks in group order; the first is the world
	// colors are the colors of ranks in the splits that make the other groups, two in each split. A
	// group may have one rank, or none.
	colors [][]int
	// unordered is Options.UnorderedMessages.
	unordered bool
}

// program lists the ops of the ranks of a world.
type program struct {
	layout
	buffers []buffer
	events  int
	graphs  []graph
	ops     []op
	// orders holds the order of ops by rank; nil is the order of the program.
	orders [][]int
	// register registers the pool before the first call. places makes the ranks compare the places of
	// buffers that ops allocate.
	register, places bool
	// keep is the number of buffers of this and earlier programs that stay allocated at the end.
	keep int
	// path is the path of the world.
	path symmem.PathChoice
}

const (
	// streams is the number of streams in most programs.
	streams = 3
	// maxStreams is the number of streams in programs with graphs. The first libraryStreams belong to
	// another library.
	maxStreams     = 5
	libraryStreams = 3
)

// newLayout returns the layout of a world with groups by colors.
func newLayout(ranks int, colors ...[]int) layout {
	l := layout{ranks: ranks, groups: make([][]int, 1+2*len(colors)), colors: colors}
	for r := range ranks {
		l.groups[0] = append(l.groups[0], r)
		for i, of := range colors {
			at := 1 + 2*i + of[r]
			l.groups[at] = append(l.groups[at], r)
		}
	}
	return l
}

// parties returns the ranks that take part in an op.
func (p *program) parties(o *op) []int {
	switch {
	case o.kind == send:
		return []int{o.message.from, o.message.to}
	case o.kind.collective():
		return p.groups[o.group]
	default:
		return p.groups[0]
	}
}

func (p *program) member(rank int, o *op) bool { return slices.Contains(p.parties(o), rank) }

// streamOf returns the stream on which a rank queues an op.
func (o *op) streamOf(rank int) int {
	if o.kind == send && rank == o.message.to {
		return o.on
	}
	return o.stream
}

// body returns the ops of the graph that an op launches, or the op itself.
func (p *program) body(o *op) []op {
	if o.kind == launchGraph {
		return p.graphs[o.graph].body
	}
	return []op{*o}
}

// order returns the ops that a rank queues, in order.
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
	case cp:
		return fmt.Sprintf("stream %d: copy of buffer %d to %d", o.stream, o.send, o.recv)
	case take, drop:
		return fmt.Sprintf("stream %d: %v of buffer %d", o.stream,
			map[opKind]string{take: "allocation", drop: "free"}[o.kind], o.recv)
	case record:
		return fmt.Sprintf("stream %d: event %d is recorded", o.stream, o.event)
	case wait:
		return fmt.Sprintf("stream %d: waits for event %d", o.stream, o.event)
	case captureGraph:
		return fmt.Sprintf("stream %d: graph %d is captured", o.stream, o.graph)
	case launchGraph:
		return fmt.Sprintf("stream %d: graph %d", o.stream, o.graph)
	case await:
		return fmt.Sprintf("stream %d: the program waits", o.stream)
	case closeLate:
		return "graphs of earlier programs are closed"
	case tally:
		return fmt.Sprintf("stream %d: tally of buffer %d", o.stream, o.recv)
	case send:
		return fmt.Sprintf("stream %d: message %+v of %d bytes on group %d, buffer %d to %d on stream %d",
			o.stream, o.message, o.count, o.group, o.send, o.recv, o.on)
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

// String lists the program.
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
