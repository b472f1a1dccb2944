package chaos

import (
	"fmt"
	"os"
	"testing"
	"time"

	"symmem"
)

// A tally is an in-place ReduceScatter: rank r adds part r of every other rank's buffer to its own
// part r. The addends never change, so the sum counts the tallies, even those that replayed graphs
// perform in any order on several streams.
//
// Streams below libraryStreamCount belong to another library, which can capture a graph on several
// of them, its branches. The remaining streams belong to symmem.

// graphs is the kind of programs that capture and launch graphs of tallies.
var graphs = kind{
	programsPerWorld: 5, timeLimit: 5 * time.Minute,
	drawWorld: func(t *task) (int, symmem.Options) {
		const timeout = time.Minute // longer than any wait of a correct program
		return t.graphsRanks(), symmem.Options{Check: symmem.CheckEvery, Timeout: timeout}
	},
	openPerformer: openPlayer((*task).graphs),
	describe: func(t *task, number int) fmt.Stringer {
		p, _ := t.graphs(number)
		return p
	},
}

// graphsRanks draws the number of ranks in a world.
func (t *task) graphsRanks() int { return 2 + t.worldDraws().IntN(3) }

// graphs draws a program without a mistake. No events order its tallies.
func (t *task) graphs(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, newLayout(t.graphsRanks()))
	paths := []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow,
		symmem.PathDirect, symmem.PathDirect, symmem.PathDirect,
	}
	g.p.path = paths[d.IntN(len(paths))]
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

const firstOwnStream = libraryStreamCount // first stream of symmem

// drawTalliedBuffers draws buffers of one part per rank, and tallies each buffer once.
func (g *generator) drawTalliedBuffers(maxPartBytes int64) {
	const elementBytes = 4
	areBuffersEqual := g.IntN(2) == 0
	firstPartCount := 0
	for i := range 1 + g.IntN(4) {
		maxPartCount := (maxPartBytes / elementBytes) >> g.IntN(14) // favors small buffers
		partCount := int(max(1, g.Int64N(1+maxPartCount)))
		isForeign := g.IntN(2) == 0
		if i == 0 {
			firstPartCount = partCount
		} else if areBuffersEqual {
			partCount = firstPartCount
			isForeign = g.p.buffers[0].isForeign
		}

		g.buffer(elementBytes*partCount*g.p.ranks, isForeign)
		g.addTally(firstOwnStream, i)
		g.add(op{kind: syncOp, stream: firstOwnStream, recvStream: firstOwnStream})
	}
}

// drawGraphOfTallies draws a graph and captures it.
func (g *generator) drawGraphOfTallies() {
	drawn := graph{
		stream:       firstOwnStream,
		capturedByOp: true,
		branches:     1 + g.IntN(libraryStreamCount),
	}
	isCapturedBySymmem := g.IntN(4) == 0
	if isCapturedBySymmem {
		drawn.branches = 0
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

// drawLaunch launches a random graph.
func (g *generator) drawLaunch() {
	o := op{kind: launchOp, graph: g.IntN(len(g.p.graphs)), stream: g.IntN(maxStreams)}
	isCapturedByLibrary := g.p.graphs[o.graph].branches > 0
	if isCapturedByLibrary {
		o.stream %= libraryStreamCount // a stream of the library
	}

	o.recvStream = o.stream
	g.add(o)
}

func (g *generator) addTally(stream, buffer int) {
	g.add(op{kind: tallyOp, stream: stream, recvStream: stream, send: buffer, recv: buffer})
}

func TestGraphsOnAGPU(t *testing.T) {
	base := task{Kind: "graphs", MaxBytes: 64 << 20}
	isSoftwareGPU := os.Getenv("SYMMEM_TEST_BACKEND") != "nccl"
	if isSoftwareGPU {
		base.MaxBytes = 256 << 10
	}

	const defaultPrograms = 20
	graphs.testOnAGPU(t, defaultPrograms, base)
}
