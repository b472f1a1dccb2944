package chaos

import (
	"fmt"
	"os"
	"testing"
	"time"

	"symmem"
)

// A tally is an in-place ReduceScatter: rank r adds part r of every other rank's buffer to its own
// part r. The other ranks' part r never changes, so the order of tallies does not affect the sum.
//
// The first libraryStreamCount streams belong to a second CUDA library. Its graphs have a branch on
// one or more of these streams. The remaining streams belong to symmem.

// graphs describes programs that capture and launch graphs of tallies.
var graphs = kind{
	programsPerWorld: 5, timeLimit: 5 * time.Minute,
	drawWorld: func(t *task) (int, symmem.Options) {
		const timeout = time.Minute // longer than any wait of a correct program
		return t.drawGraphsRanks(), symmem.Options{Check: symmem.CheckEvery, Timeout: timeout}
	},
	openPerformer: openPlayer((*task).drawGraphs),
	describe: func(t *task, number int) fmt.Stringer {
		p, _ := t.drawGraphs(number)
		return p
	},
}

// drawGraphsRanks draws the number of ranks in a world.
func (t *task) drawGraphsRanks() int { return 2 + t.worldDraws().IntN(3) }

// drawGraphs draws a program whose tallies are not ordered by events.
func (t *task) drawGraphs(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, newLayout(t.drawGraphsRanks()))
	paths := []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow,
		symmem.PathDirect, symmem.PathDirect, symmem.PathDirect, // more likely
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

	return &g.p, mistake{kind: noMistake}
}

const firstOwnStream = libraryStreamCount // first stream of symmem

// drawTalliedBuffers draws buffers of one part per rank, and tallies each buffer once.
func (g *generator) drawTalliedBuffers(maxPartBytes int64) {
	const elementBytes = 4
	areBuffersEqual := g.IntN(2) == 0
	firstPartCount := 0
	for i := range 1 + g.IntN(4) {
		shift := g.IntN(14) // favors small buffers
		maxPartCount := maxPartBytes / elementBytes >> shift
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
	branches := 1 + g.IntN(libraryStreamCount)
	isCapturedBySymmem := g.IntN(4) == 0
	if isCapturedBySymmem {
		branches = 0 // all tallies are on firstOwnStream
	}

	drawn := graph{stream: firstOwnStream, capturedByOp: true, branches: branches}
	for range 1 + g.IntN(6) {
		buffer := g.IntN(len(g.p.buffers))
		branch := g.IntN(max(1, branches))
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
		o.stream %= libraryStreamCount
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
