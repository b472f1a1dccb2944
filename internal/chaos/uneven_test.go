package chaos

import (
	"fmt"
	"testing"
	"time"

	"symmem"
)

var uneven = kind{
	programsPerWorld: 10, timeLimit: 5 * time.Minute,
	drawWorld: func(t *task) (int, symmem.Options) {
		return t.unevenRanks(), symmem.Options{Check: symmem.CheckEvery, Timeout: time.Minute}
	},
	openPerformer: openPlayer((*task).uneven),
	describe: func(t *task, number int) fmt.Stringer {
		p, _ := t.uneven(number)
		return p
	},
}

// unevenRanks draws the size of a world. If the ranks pretend to run on several machines, the
// world is smaller, because each rank then needs a separate GPU.
func (t *task) unevenRanks() int {
	if t.Machines > 1 {
		return 2 + t.worldDraws().IntN(3)
	}

	return 2 + t.worldDraws().IntN(7)
}

// uneven draws a program of AllToAllV calls. Each call with small buffers is preceded and followed
// by a copy.
func (t *task) uneven(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, newLayout(t.unevenRanks()))
	large, inPlace := d.IntN(20) == 0, d.IntN(4) == 0
	for i := range 1 + d.IntN(4) {
		large := large && i == 0
		o := op{kind: allToAllV, stream: d.IntN(streamCount), parts: drawParts(d, g.p.ranks, large)}
		o.recvStream = o.stream
		bufferBytes := o.parts.bufferBytes()
		o.send = g.buffer(bufferBytes, false)
		if o.recv = o.send; !inPlace {
			o.recv = g.buffer(bufferBytes, false)
		}

		if bufferBytes < 1<<18 {
			g.copy(o.stream, g.buffer(bufferBytes, false), o.send)
		}

		g.addOrdered(o)
		if bufferBytes < 1<<18 {
			g.copy(o.stream, o.recv, g.buffer(bufferBytes, false))
		}
	}

	return &g.p, mistake{}
}

func (g *generator) copy(stream, src, dst int) {
	elements := g.p.buffers[src].bytes / 4
	g.addOrdered(op{
		kind: copyOp, stream: stream, recvStream: stream, send: src, recv: dst, count: elements,
	})
}

// TestUneven exchanges parts of different sizes, up to 64 MiB, among 2 to 8 ranks with
// AllToAllV. Several calls run concurrently on several streams.
func TestUneven(t *testing.T) { uneven.test(t, 40, task{Kind: "uneven"}, nil) }

func TestUnevenOnAGPU(t *testing.T) { uneven.testOnAGPU(t, 20, task{Kind: "uneven"}) }
