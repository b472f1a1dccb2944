package chaos

import (
	"fmt"
	"testing"
	"time"

	"symmem"
)

// uneven describes programs of AllToAllV.
var uneven = kind{
	each: 10, limit: 5 * time.Minute,
	world: func(t *task) (int, symmem.Options) {
		return t.unevenRanks(), symmem.Options{Check: symmem.CheckEvery, Timeout: time.Minute}
	},
	open: openPlayer((*task).uneven),
	show: func(t *task, number int) fmt.Stringer {
		p, _ := t.uneven(number)
		return p
	},
}

func (t *task) unevenRanks() int { return 2 + t.worldDraws().IntN(7) }

// uneven draws the exchanges of a program. Short ones have a copy before and after them.
func (t *task) uneven(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, newLayout(t.unevenRanks()))
	large, inPlace := d.IntN(20) == 0, d.IntN(4) == 0
	for i := range 1 + d.IntN(4) {
		large := large && i == 0
		o := op{kind: allToAllV, stream: d.IntN(streams), parts: drawParts(d, g.p.ranks, large)}
		o.on = o.stream
		room := o.parts.room()
		o.send = g.buffer(room, false)
		if o.recv = o.send; !inPlace {
			o.recv = g.buffer(room, false)
		}
		if room < 1<<18 {
			g.copy(o.stream, g.buffer(room, false), o.send)
		}
		g.put(o)
		if room < 1<<18 {
			g.copy(o.stream, o.recv, g.buffer(room, false))
		}
	}
	return &g.p, mistake{}
}

// copy adds a copy of a buffer to another one of the same length.
func (g *generator) copy(stream, from, to int) {
	words := g.p.buffers[from].bytes / 4
	g.put(op{kind: cp, stream: stream, on: stream, send: from, recv: to, count: words})
}

// TestUneven exchanges parts of any sizes, up to 64 MiB, among 2 to 8 ranks, several exchanges at a
// time on several streams.
func TestUneven(t *testing.T) { uneven.test(t, 40, task{Kind: "uneven"}, nil) }

// TestUnevenOnAGPU does the same on the GPU backend.
func TestUnevenOnAGPU(t *testing.T) { uneven.testOnAGPU(t, 20, task{Kind: "uneven"}) }
