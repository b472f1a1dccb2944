package chaos

import (
	"fmt"
	"os"
	"testing"
	"time"

	"symmem"
)

var graphs = kind{
	programsPerWorld: 5, timeLimit: 5 * time.Minute,
	drawWorld: func(t *task) (int, symmem.Options) {
		return t.graphsRanks(), symmem.Options{Check: symmem.CheckEvery, Timeout: time.Minute}
	},
	openPerformer: openPlayer((*task).graphs),
	describe: func(t *task, number int) fmt.Stringer {
		p, _ := t.graphs(number)
		return p
	},
}

func (t *task) graphsRanks() int { return 2 + t.worldDraws().IntN(3) }

// graphs draws a program of tallies (sums in place) without events that order them. The first
// libraryStreamCount streams belong to another library.
func (t *task) graphs(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, newLayout(t.graphsRanks()))
	paths := []symmem.PathChoice{symmem.PathPlain, symmem.PathWindow, symmem.PathDirect}
	g.p.path = paths[min(d.IntN(5), 2)]
	equal := d.IntN(2) == 0
	var counts []int
	for i := range 1 + d.IntN(4) {
		count := int(max(1, d.Int64N(1+(t.MaxBytes/4)>>d.IntN(14))))
		foreign := d.IntN(2) == 0
		if equal && i > 0 {
			count, foreign = counts[0], g.p.buffers[0].isForeign
		}
		counts = append(counts, count)
		g.buffer(4*count*g.p.ranks, foreign)
		g.tally(libraryStreamCount, i)
		g.add(op{kind: syncOp, stream: libraryStreamCount, recvStream: libraryStreamCount})
	}
	for i := range 2 + d.IntN(3) {
		drawn := graph{
			stream: libraryStreamCount, capturedByOp: true, branches: 1 + d.IntN(libraryStreamCount),
		}
		if d.IntN(4) == 0 {
			drawn.branches = 0
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
	for range 10 + d.IntN(40) {
		if d.IntN(3) == 0 {
			g.tally(d.IntN(maxStreams), d.IntN(len(counts)))
			continue
		}
		o := op{kind: launchOp, graph: d.IntN(len(g.p.graphs)), stream: d.IntN(maxStreams)}
		if g.p.graphs[o.graph].branches > 0 {
			o.stream %= libraryStreamCount
		}
		o.recvStream = o.stream
		g.add(o)
	}
	return &g.p, mistake{}
}

func (g *generator) tally(stream, buffer int) {
	g.add(op{kind: tallyOp, stream: stream, recvStream: stream, send: buffer, recv: buffer})
}

// TestGraphsOnAGPU replays graphs that symmem or another library has captured, between other calls
// on several streams. Sums have up to 64 MiB on GPUs, and up to 256 KiB on the software GPU.
func TestGraphsOnAGPU(t *testing.T) {
	base := task{Kind: "graphs", MaxBytes: 64 << 20}
	if os.Getenv("SYMMEM_TEST_BACKEND") != "nccl" {
		base.MaxBytes = 256 << 10
	}
	graphs.testOnAGPU(t, 20, base)
}
