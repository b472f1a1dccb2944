package chaos

import (
	"math/rand/v2"
	"slices"

	"symmem"
)

// generator draws a program. It tracks accesses to buffers, so that it can add the events that
// order them.
type generator struct {
	*rand.Rand
	p program
	// counts holds the number of ops on each stream. seen[s][t] is the number of ops on stream t
	// that complete before the next op on stream s.
	counts [maxStreams]int
	seen   [maxStreams][maxStreams]int
	// lastWrite holds the last write to each buffer. lastRead holds the position of the last read
	// of each buffer on each stream.
	lastWrite []access
	lastRead  [][maxStreams]int
	// marks[e] is the value that seen[s] had when event e was recorded on stream s.
	marks [][maxStreams]int
	// live lists the buffers that calls may use. groups lists the groups in which calls may be
	// made.
	live, groups []int
}

// access identifies an op by its stream and its position on the stream.
type access struct{ stream, index int }

func newGenerator(d *rand.Rand, l layout) *generator {
	return &generator{Rand: d, p: program{layout: l}}
}

// buffer adds a buffer that exists before the first op and returns its index.
func (g *generator) buffer(bytes int, foreign bool) int {
	index := len(g.p.buffers)
	g.p.buffers = append(g.p.buffers, buffer{bytes: bytes, isForeign: foreign})
	g.lastWrite, g.lastRead = append(g.lastWrite, access{}), append(g.lastRead, [maxStreams]int{})
	g.live = append(g.live, index)
	return index
}

func (g *generator) alloc(bytes int) {
	index, s := g.buffer(bytes, false), g.IntN(streamCount)
	g.p.buffers[index].allocatedByOp = true
	g.add(op{kind: allocOp, stream: s, recvStream: s, recv: index})
	g.lastWrite[index] = access{s, g.counts[s]}
}

func (g *generator) free() {
	i := g.IntN(len(g.live))
	g.add(op{kind: freeOp, recv: g.live[i]})
	g.live = slices.Delete(g.live, i, i+1)
}

func (g *generator) drawWork() op {
	o := op{
		kind: opKind(g.IntN(equalPartsOpCount + 1)), send: g.live[g.IntN(len(g.live))],
		reduce: []symmem.ReduceOp{symmem.Sum, symmem.Sum, symmem.Min, symmem.Max}[g.IntN(4)],
		group:  g.groups[g.IntN(len(g.groups))],
	}
	size := len(g.p.groups[o.group])
	o.root = g.IntN(size)
	for o.recv = o.send; o.recv == o.send; {
		o.recv = g.live[g.IntN(len(g.live))]
	}

	if inPlace := o.kind == allReduce || o.kind == broadcast; inPlace && g.IntN(2) == 0 {
		o.recv = o.send
	}

	o.count = min(g.p.buffers[o.send].bytes, g.p.buffers[o.recv].bytes) / 4
	switch o.kind {
	case allGather, reduceScatter, allToAll:
		o.count /= size
	case equalPartsOpCount:
		o.kind = copyOp
		return o
	default:
	}

	o.count = 1 + g.IntN(o.count)
	return o
}

func (g *generator) drawGraph(capturedByOp bool) {
	drawn := graph{
		stream: g.IntN(streamCount), capturedByOp: capturedByOp, body: make([]op, 1+g.IntN(3)),
	}
	for i := range drawn.body {
		drawn.body[i] = g.drawWork()
	}

	g.p.graphs = append(g.p.graphs, drawn)
	if capturedByOp {
		s := drawn.stream
		g.add(op{kind: captureOp, stream: s, recvStream: s, graph: len(g.p.graphs) - 1})
	}
}

// drawOp adds a collective, a copy or a graph launch, and often an event after it.
func (g *generator) drawOp() {
	o := op{kind: launchOp}
	if len(g.p.graphs) > 0 && g.IntN(5) == 0 {
		o.graph = g.IntN(len(g.p.graphs))
	} else {
		o = g.drawWork()
	}

	o.stream = g.IntN(streamCount)
	o.recvStream = o.stream
	g.addOrdered(o)
	if g.IntN(3) == 0 {
		g.record(o.stream)
	}
}

// addOrdered adds an op, preceded by the waits that order its accesses to buffers after earlier
// accesses.
func (g *generator) addOrdered(o op) {
	body := g.p.body(&o)
	for i := range body {
		g.waitFor(o.stream, g.lastWrite[body[i].send])
		g.waitFor(o.recvStream, g.lastWrite[body[i].recv])
		for other, index := range g.lastRead[body[i].recv] {
			g.waitFor(o.recvStream, access{other, index})
		}
	}

	g.add(o)
	for i := range body {
		g.lastRead[body[i].send][o.stream] = g.counts[o.stream]
		g.lastWrite[body[i].recv] = access{o.recvStream, g.counts[o.recvStream]}
	}
}

func (g *generator) add(o op) {
	g.counts[o.stream]++
	if o.recvStream != o.stream {
		g.counts[o.recvStream]++
	}

	for _, s := range []int{o.stream, o.recvStream} {
		g.seen[s][s] = g.counts[s]
	}

	g.p.ops = append(g.p.ops, o)
}

// waitFor makes a stream wait for an earlier access, with an existing event or a new one. It does
// nothing if the stream has already waited for that access.
func (g *generator) waitFor(stream int, previous access) {
	if g.seen[stream][previous.stream] >= previous.index {
		return
	}

	event := -1
	for e, seen := range g.marks {
		if seen[previous.stream] >= previous.index && g.IntN(2) == 0 {
			event = e
		}
	}

	if event < 0 {
		event = g.record(previous.stream)
	}

	g.add(op{kind: waitOp, stream: stream, recvStream: stream, event: event})
	for t, index := range g.marks[event] {
		g.seen[stream][t] = max(g.seen[stream][t], index)
	}
}

func (g *generator) record(stream int) int {
	g.marks = append(g.marks, g.seen[stream])
	g.add(op{kind: recordOp, stream: stream, recvStream: stream, event: g.p.events})
	g.p.events++
	return g.p.events - 1
}

// shuffle draws the order in which each rank queues the ops. It swaps some neighboring ops that
// are on different streams.
func (g *generator) shuffle() {
	for r := range g.p.ranks {
		order := []int{}
		for i := range g.p.ops {
			if g.p.isMember(r, &g.p.ops[i]) {
				order = append(order, i)
			}
		}

		for i := 1; i < len(order); i++ {
			a, b := &g.p.ops[order[i-1]], &g.p.ops[order[i]]
			if g.IntN(3) == 0 && a.streamOf(r) != b.streamOf(r) && !a.before(b, g.p.isUnordered) {
				order[i-1], order[i] = order[i], order[i-1]
			}
		}

		g.p.orders = append(g.p.orders, order)
	}
}

// before reports whether o and next, the op after it, must keep their order on all ranks. They must
// if one of them is not a call, or if both are collectives. A message and a collective must keep
// their order unless unordered is set. Two messages must keep their order if they have the same
// group, tag, sender and receiver.
func (o *op) before(next *op, unordered bool) bool {
	if !o.kind.isCall() || !next.kind.isCall() {
		return true
	}

	if o.kind.isCollective() || next.kind.isCollective() {
		return o.kind.isCollective() && next.kind.isCollective() || !unordered
	}

	a, b := o.message, next.message
	return o.group == next.group && a.tag == b.tag && a.dst == b.dst && (a.src == b.src || a.anySource)
}

type parts struct {
	// counts[a][b] is the number of elements that rank a sends to rank b.
	counts [][]int64
	// sendOffsets and recvOffsets hold, for each rank, the offsets of the parts in its buffers, in
	// elements.
	sendOffsets, recvOffsets [][]int64
	// wide selects elements of 8 bytes instead of 1.
	isInt64 bool
}

const maxPairBytes = 64 << 20

// drawParts draws the parts of an AllToAllV among the given number of ranks. Often all parts of
// a rank have the same length.
func drawParts(d *rand.Rand, ranks int, large bool) *parts {
	x := &parts{isInt64: d.IntN(2) == 0}
	limit := []int64{1, 20, 1000, 1000, 60_000}[d.IntN(5)]
	equal := d.IntN(3) // lengths are the same with a probability of equal/3
	for range ranks {
		row := make([]int64, ranks)
		for b := range row {
			row[b] = d.Int64N(limit + 1)
			if d.IntN(5) == 0 {
				row[b] = 0
			}

			if d.IntN(3) < equal {
				row[b] = limit / 2
			}
		}

		if d.IntN(3) < equal {
			row = slices.Repeat([]int64{limit / 2}, ranks)
		}

		x.counts = append(x.counts, row)
	}

	if large {
		n := maxPairBytes / x.bytes()
		x.counts[d.IntN(ranks)][d.IntN(ranks)] = n - d.Int64N(n/2)
	}

	for r := range ranks {
		x.sendOffsets = append(x.sendOffsets, drawOffsets(d, x.counts[r]))
		x.recvOffsets = append(x.recvOffsets, drawOffsets(d, x.received(r)))
	}

	return x
}

func (p *parts) received(rank int) []int64 {
	counts := make([]int64, len(p.counts))
	for src := range counts {
		counts[src] = p.counts[src][rank]
	}

	return counts
}

// drawOffsets draws the offsets of parts in a buffer. The parts are in random or ascending
// order, with or without gaps between them.
func drawOffsets(d *rand.Rand, counts []int64) []int64 {
	offsets, offset := make([]int64, len(counts)), int64(0)
	order, gaps := d.Perm(len(counts)), d.IntN(2) == 0
	if d.IntN(2) == 0 {
		slices.Sort(order)
	}

	for _, i := range order {
		if gaps {
			offset += d.Int64N(20)
		}

		offsets[i] = offset
		offset += counts[i]
	}

	return offsets
}

func (p *parts) bytes() int64 {
	if p.isInt64 {
		return 8
	}

	return 1
}

func (p *parts) bufferBytes() int {
	elements := int64(1)
	for a, row := range p.counts {
		for b := range row {
			elements = max(elements, p.sendOffsets[a][b]+row[b], p.recvOffsets[b][a]+row[b])
		}
	}

	return int(elements * p.bytes())
}
