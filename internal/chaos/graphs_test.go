package chaos

import (
	"fmt"
	"os"
	"testing"
	"time"

	"symmem"
)

// graphs is the kind of programs that capture and replay graphs; see TestGraphsOnAGPU.
var graphs = kind{
	programsPerWorld: 5, timeLimit: 5 * time.Minute,
	drawWorld: func(t *task) (int, symmem.Options) {
		// A minute is longer than any wait of a correct program.
		return t.graphsRanks(), symmem.Options{Check: symmem.CheckEvery, Timeout: time.Minute}
	},
	openPerformer: openPlayer((*task).graphs),
	describe: func(t *task, number int) fmt.Stringer {
		p, _ := t.graphs(number)
		return p
	},
}

// graphsRanks draws the number of ranks of a world.
func (t *task) graphsRanks() int { return 2 + t.worldDraws().IntN(3) }

// graphs draws a program of tallies, which are sums in place, and of graphs that contain tallies.
// No events order the tallies. The first libraryStreamCount streams belong to another library. The
// program has no mistake.
func (t *task) graphs(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, newLayout(t.graphsRanks()))
	paths := []symmem.PathChoice{symmem.PathPlain, symmem.PathWindow, symmem.PathDirect}
	g.p.path = paths[min(d.IntN(5), 2)] // PathDirect in 3 of 5 programs
	areBuffersEqual := d.IntN(2) == 0
	var counts []int // elements of each tally, by buffer
	const elementBytes = 4
	// Draw the buffers. Small ones are more likely, because the limit is shifted by up to 13 bits.
	for i := range 1 + d.IntN(4) {
		maxCount := (t.MaxBytes / elementBytes) >> d.IntN(14)
		count := int(max(1, d.Int64N(1+maxCount)))
		isForeign := d.IntN(2) == 0
		if areBuffersEqual && i > 0 {
			count, isForeign = counts[0], g.p.buffers[0].isForeign
		}

		counts = append(counts, count)
		g.buffer(elementBytes*count*g.p.ranks, isForeign)
		const ownStream = libraryStreamCount // the first stream of symmem
		g.addTally(ownStream, i)
		g.add(op{kind: syncOp, stream: ownStream, recvStream: ownStream})
	}

	// Draw the graphs. Another library captures three of four, on one to three
	// streams.
	for i := range 2 + d.IntN(3) {
		drawn := graph{
			stream: libraryStreamCount, capturedByOp: true, branches: 1 + d.IntN(libraryStreamCount),
		}
		if d.IntN(4) == 0 {
			drawn.branches = 0 // symmem captures the graph
		}

		for range 1 + d.IntN(6) {
			buffer := d.IntN(len(counts))
			drawn.body = append(drawn.body, op{
				kind: tallyOp, stream: d.IntN(max(1, drawn.branches)), send: buffer, recv: buffer,
			})
		}

		g.p.graphs = append(g.p.graphs, drawn)
		g.add(op{kind: captureOp, graph: i})
	}

	// Draw the launches of graphs, and tallies between them.
	for range 10 + d.IntN(40) {
		if d.IntN(3) == 0 {
			g.addTally(d.IntN(maxStreams), d.IntN(len(counts)))
			continue
		}

		o := op{kind: launchOp, graph: d.IntN(len(g.p.graphs)), stream: d.IntN(maxStreams)}
		isCapturedByLibrary := g.p.graphs[o.graph].branches > 0
		if isCapturedByLibrary {
			o.stream %= libraryStreamCount // the library launches the graph on one of its streams
		}

		o.recvStream = o.stream
		g.add(o)
	}

	return &g.p, mistake{}
}

// addTally adds a tally of a buffer on a stream.
func (g *generator) addTally(stream, buffer int) {
	g.add(op{kind: tallyOp, stream: stream, recvStream: stream, send: buffer, recv: buffer})
}

// TestGraphsOnAGPU replays graphs that symmem or another library has captured, between other calls
// on several streams. Sums are smaller on the software GPU.
func TestGraphsOnAGPU(t *testing.T) {
	base := task{Kind: "graphs", MaxBytes: 64 << 20}
	if os.Getenv("SYMMEM_TEST_BACKEND") != "nccl" {
		base.MaxBytes = 256 << 10
	}

	const defaultPrograms = 20
	graphs.testOnAGPU(t, defaultPrograms, base)
}
