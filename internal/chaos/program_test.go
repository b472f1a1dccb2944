package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"symmem"
)

// op is a statement of a program, which all ranks have alike.
type op struct {
	kind opKind
	// stream is where it is queued.
	stream int
	// group is the place of a collective's group in program.groups. Only its ranks make the call.
	group int
	// send and recv are places of buffers; a copy is from send to recv.
	send, recv int
	// count is in elements, as the call has it; root is a rank of the group.
	count, root int
	reduce      symmem.ReduceOp
	// event is what is recorded or waited for; graph is what is launched.
	event, graph int
}

type opKind int

const (
	allReduce opKind = iota
	allGather
	reduceScatter
	broadcast
	reduce
	allToAll
	cp
	record
	wait
	launchGraph
)

const collectives = 6 // the kinds that are collectives come first

func (k opKind) collective() bool { return k < collectives }

// program is what the ranks of a world do.
type program struct {
	ranks  int
	groups [][]int // world ranks in group order; the first is the world
	// colors are what ranks give to the splits that make the other groups.
	colors [][]int
	// elements is the length of each of the buffers, which hold int32. Those from foreign on are
	// slices of Go, outside of the pool.
	elements, buffers, foreign int
	events                     int
	graphs                     [][]op
	// captured are the streams on which graphs are captured.
	captured []int
	ops      []op
}

const streams = 3

// member reports whether a rank makes the call of an op.
func (p *program) member(rank int, o *op) bool {
	return !o.kind.collective() || slices.Contains(p.groups[o.group], rank)
}

// body lists what an op does: itself, or what the graph holds that it launches.
func (p *program) body(o *op) []op {
	if o.kind == launchGraph {
		return p.graphs[o.graph]
	}
	return []op{*o}
}

// generator draws a program and keeps what it must know to order the accesses to buffers.
type generator struct {
	*rand.Rand
	p program
	// at counts the ops of each stream, and seen[s][t] is how far stream s has waited for stream t.
	at   [streams]int
	seen [streams][streams]int
	// wrote is the last write of a buffer, and read the last reads by stream.
	wrote []access
	read  [][streams]int
	// marks are the points of events.
	marks []mark
}

type access struct{ stream, at int }

type mark struct {
	stream int
	seen   [streams]int
}

// drawProgram draws a program of a number of ops, and adds those that order them.
func drawProgram(d *rand.Rand, ops int) *program {
	g := &generator{Rand: d}
	g.p.ranks = 2 + g.IntN(3)
	g.p.elements = 12 * []int{1, 10, 300, 4000}[g.IntN(4)]
	g.p.buffers = 4 + g.IntN(5)
	g.p.foreign = g.p.buffers - g.IntN(3)
	g.wrote, g.read = make([]access, g.p.buffers), make([][streams]int, g.p.buffers)
	g.drawGroups()
	for range g.IntN(3) {
		g.drawGraph()
	}
	for range ops {
		g.drawOp()
	}
	return &g.p
}

func (g *generator) drawGroups() {
	world := make([]int, g.p.ranks)
	for r := range world {
		world[r] = r
	}
	g.p.groups = [][]int{world}
	for range g.IntN(3) {
		colors := make([]int, g.p.ranks)
		byColor := map[int][]int{}
		for r := range colors {
			colors[r] = g.IntN(2)
			byColor[colors[r]] = append(byColor[colors[r]], r)
		}
		g.p.colors = append(g.p.colors, colors)
		for c := range 2 {
			// A group may have one rank, or none, of which nothing is asked.
			g.p.groups = append(g.p.groups, byColor[c])
		}
	}
}

func (g *generator) drawGraph() {
	body := make([]op, 1+g.IntN(3))
	for i := range body {
		body[i] = g.drawWork()
	}
	g.p.graphs = append(g.p.graphs, body)
	g.p.captured = append(g.p.captured, g.IntN(streams))
}

// drawOp draws one op, puts it behind those that it must wait for, and often records an event
// behind it.
func (g *generator) drawOp() {
	o := op{kind: launchGraph}
	if len(g.p.graphs) > 0 && g.IntN(5) == 0 {
		o.graph = g.IntN(len(g.p.graphs))
	} else {
		o = g.drawWork()
	}
	o.stream = g.IntN(streams)
	body := g.p.body(&o)
	for i := range body {
		g.orderReads(o.stream, body[i].send)
		g.orderWrites(o.stream, body[i].recv)
	}
	g.add(o)
	for i := range body {
		g.read[body[i].send][o.stream] = g.at[o.stream]
		g.wrote[body[i].recv] = access{o.stream, g.at[o.stream]}
	}
	if g.IntN(3) == 0 {
		g.record(o.stream)
	}
}

// drawWork draws a collective or a copy.
func (g *generator) drawWork() op {
	o := op{
		kind: opKind(g.IntN(collectives + 1)), send: g.IntN(g.p.buffers), count: g.p.elements,
		reduce: []symmem.ReduceOp{symmem.Sum, symmem.Sum, symmem.Min, symmem.Max}[g.IntN(4)],
	}
	for o.group = g.IntN(len(g.p.groups)); len(g.p.groups[o.group]) < 2; {
		o.group = g.IntN(len(g.p.groups))
	}
	size := len(g.p.groups[o.group])
	o.root = g.IntN(size)
	o.recv = (o.send + 1 + g.IntN(g.p.buffers-1)) % g.p.buffers
	switch o.kind {
	case allGather, reduceScatter, allToAll:
		o.count /= size
	case allReduce, broadcast:
		if g.IntN(2) == 0 {
			o.recv = o.send
		}
	case cp:
		return o
	default:
	}
	o.count = 1 + g.IntN(o.count)
	return o
}

func (g *generator) add(o op) {
	g.at[o.stream]++
	g.seen[o.stream][o.stream] = g.at[o.stream]
	g.p.ops = append(g.p.ops, o)
}

// orderReads makes a stream wait for what wrote a buffer.
func (g *generator) orderReads(stream, buffer int) {
	g.order(stream, g.wrote[buffer])
}

// orderWrites makes a stream wait for what wrote or read a buffer.
func (g *generator) orderWrites(stream, buffer int) {
	g.order(stream, g.wrote[buffer])
	for other, at := range g.read[buffer] {
		g.order(stream, access{other, at})
	}
}

// order makes a stream wait for a point of another, by an event that is there or a new one.
func (g *generator) order(stream int, behind access) {
	if g.seen[stream][behind.stream] >= behind.at {
		return
	}
	event := -1
	for e, m := range g.marks {
		if m.seen[behind.stream] >= behind.at && g.IntN(2) == 0 {
			event = e
		}
	}
	if event < 0 {
		event = g.record(behind.stream)
	}
	g.add(op{kind: wait, stream: stream, event: event})
	for t, at := range g.marks[event].seen {
		g.seen[stream][t] = max(g.seen[stream][t], at)
	}
}

// record records a new event.
func (g *generator) record(stream int) int {
	g.marks = append(g.marks, mark{stream, g.seen[stream]})
	g.add(op{kind: record, stream: stream, event: g.p.events})
	g.p.events++
	return g.p.events - 1
}

func (o *op) String() string {
	switch o.kind {
	case cp:
		return fmt.Sprintf("stream %d: copy of buffer %d to %d", o.stream, o.send, o.recv)
	case record:
		return fmt.Sprintf("stream %d: event %d is recorded", o.stream, o.event)
	case wait:
		return fmt.Sprintf("stream %d: waits for event %d", o.stream, o.event)
	case launchGraph:
		return fmt.Sprintf("stream %d: graph %d", o.stream, o.graph)
	default:
		name := [...]string{
			"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll",
		}[o.kind]
		return fmt.Sprintf("stream %d: %s of %d on group %d, buffer %d to %d, root %d, op %v", o.stream,
			name, o.count, o.group, o.send, o.recv, o.root, o.reduce)
	}
}
