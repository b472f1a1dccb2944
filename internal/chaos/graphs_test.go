package chaos

import (
	"fmt"
	"os"
	"testing"
	"time"

	"symmem"
)

// A tally is a sum in place: each rank adds the parts of the other ranks' buffers to its own part
// of the buffer. The other ranks' parts never change, so the result shows how often the buffer was
// tallied, in whatever order. For example, a program captures a graph of two tallies of buffer 0.
// It launches the graph on streams 1 and 2, and tallies buffer 0 once more on stream 4. Then each
// rank's part must contain the result of five tallies.
//
// Streams 0 to libraryStreamCount-1 belong to another library, and the others to symmem. Either of
// them can capture a graph. The other library captures it on one or more streams, its branches.

// graphs is the kind of these programs.
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

// graphs draws a program without a mistake. It first tallies each buffer once, then captures the
// graphs, and then launches them, with tallies between the launches. No events order the tallies.
func (t *task) graphs(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, newLayout(t.graphsRanks()))
	paths := []symmem.PathChoice{symmem.PathPlain, symmem.PathWindow, symmem.PathDirect}
	g.p.path = paths[min(d.IntN(5), 2)] // PathDirect in 3 of 5 programs
	g.drawTalliedBuffers(t.MaxBytes)
	for range 2 + d.IntN(3) {
		g.drawGraphOfTallies()
	}

	for range 10 + d.IntN(40) {
		if d.IntN(3) == 0 {
			g.addTally(d.IntN(maxStreams), d.IntN(len(g.p.buffers)))
		} else {
			g.drawLaunch()
		}
	}

	return &g.p, mistake{}
}

// drawTalliedBuffers draws buffers, each with a first tally. maxBytes limits the size of a part of
// a buffer.
func (g *generator) drawTalliedBuffers(maxBytes int64) {
	const elementBytes = 4
	areBuffersEqual := g.IntN(2) == 0
	firstCount := 0 // number of elements of a part of the first buffer
	for i := range 1 + g.IntN(4) {
		maxCount := (maxBytes / elementBytes) >> g.IntN(14) // often small
		count := int(max(1, g.Int64N(1+maxCount)))
		isForeign := g.IntN(2) == 0
		if i == 0 {
			firstCount = count
		} else if areBuffersEqual {
			count = firstCount
			isForeign = g.p.buffers[0].isForeign
		}

		g.buffer(elementBytes*count*g.p.ranks, isForeign)
		const ownStream = libraryStreamCount // the first stream of symmem
		g.addTally(ownStream, i)
		g.add(op{kind: syncOp, stream: ownStream, recvStream: ownStream})
	}
}

// drawGraphOfTallies draws a graph and captures it. Another library captures three of four graphs.
func (g *generator) drawGraphOfTallies() {
	drawn := graph{
		stream:       libraryStreamCount, // used if symmem captures the graph
		capturedByOp: true,
		branches:     1 + g.IntN(libraryStreamCount),
	}
	if g.IntN(4) == 0 {
		drawn.branches = 0 // symmem captures the graph
	}

	for range 1 + g.IntN(6) {
		buffer := g.IntN(len(g.p.buffers))
		branch := g.IntN(max(1, drawn.branches))
		drawn.body = append(drawn.body, op{
			kind: tallyOp, stream: branch, send: buffer, recv: buffer,
		})
	}

	index := len(g.p.graphs)
	g.p.graphs = append(g.p.graphs, drawn)
	g.add(op{kind: captureOp, graph: index})
}

// drawLaunch launches one of the graphs.
func (g *generator) drawLaunch() {
	o := op{kind: launchOp, graph: g.IntN(len(g.p.graphs)), stream: g.IntN(maxStreams)}
	isCapturedByLibrary := g.p.graphs[o.graph].branches > 0
	if isCapturedByLibrary {
		o.stream %= libraryStreamCount // the library launches the graph on one of its streams
	}

	o.recvStream = o.stream
	g.add(o)
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
