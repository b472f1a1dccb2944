package page

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// sample describes a page about a random program.
type sample struct {
	ranks, requests int
	// If extra is not negative, rank 2 makes an additional request before the request with that
	// number.
	extra int
	// name is the prefix of all texts on the page.
	name string
}

const (
	slotBytes    = 1 << 20
	segmentSlots = 32
)

// build builds the page. Every block occupies the lowest slot that is free on its rank.
func (s sample) build() *Page {
	p := &Page{
		Title: s.name + "report", Compared: true, Agree: s.extra < 0, Verdict: s.name + "verdict",
		Texts: []string{
			s.name + "AllReduce sum of 4 float32, path window", s.name + "Barrier, path plain",
		},
		Frames: []string{s.name + "model.py:1 forward", s.name + "model.py:2 backward"},
		Notes:  []string{s.name + "note"},
		Faults: []Row{{
			Ranks: []int{1}, Group: s.name + "world", Text: s.name + "rank 0 is late", Time: 1e15,
		}},
		Pending: []Row{{
			Ranks: []int{0}, Group: s.name + "world", Text: s.name + "request 9 is missing", Time: 1e15,
		}},
		Paths: []Path{{
			Group: s.name + "world", Operation: s.name + "AllReduce", Path: s.name + "window",
			Calls: make([]int64, s.ranks), Bytes: make([]int64, s.ranks),
		}},
		Windows: []Window{{
			Group: s.name + "world", Pool: s.name + "pool", Bytes: 1 << 20, States: make([]State, s.ranks),
		}},
	}
	p.AddStack([]int32{0, 1})
	p.AddStack([]int32{1})
	pool := Sequence{Title: s.name + "pool", Equal: s.requests}
	calls := Sequence{Title: s.name + "world", Calls: true, Equal: 50}
	for rank := range s.ranks {
		p.Ranks = append(p.Ranks, Rank{
			Rank: rank, File: s.name + fmt.Sprint(rank), Format: s.name + "format", Events: s.requests,
			Notes: []string{s.name + "note"},
		})
		p.Windows[0].States[rank], p.Paths[0].Calls[rank] = Registered, 50
		pool.Tracks = append(pool.Tracks, s.poolTrack(rank))
		calls.Tracks = append(calls.Tracks, s.callTrack(rank))
	}
	if s.extra >= 0 {
		pool.Equal = s.extra
		pool.Differences = []Difference{{
			Subject: "requests", Kind: "extra", Request: s.extra, Blamed: []int{2},
			Variants: []Variant{
				{Ranks: []int{0, 1, 3}, Text: s.name + "alloc 1 B", Stack: []string{s.name + "frame"}},
				{Ranks: []int{2}, Text: s.name + "alloc 4321 B", Kind: "extra"},
			},
			Before: []string{s.name + "before"}, Explanation: []string{s.name + "explanation"},
		}}
	}
	p.Sequences = []Sequence{calls, pool}
	return p
}

// poolTrack returns the track of a pool with random allocations and frees.
func (s sample) poolTrack(rank int) *Track {
	rng := rand.New(rand.NewPCG(1, 1))
	t := &Track{Rank: rank}
	var used []bool
	type block struct{ number, slot int32 }
	var live []block
	blocks := int32(0)
	alloc := func(size int64) {
		slot := 0
		for slot < len(used) && used[slot] {
			slot++
		}
		if slot == len(used) {
			used = append(used, make([]bool, segmentSlots)...)
			t.Segments = append(t.Segments, Segment{Bytes: slotBytes * segmentSlots})
		}
		used[slot] = true
		live = append(live, block{blocks, int32(slot)})
		t.Add(&Event{
			Kind: Alloc, Size: size, Segment: int32(slot / segmentSlots), Block: blocks,
			Offset: int64(slot%segmentSlots) * slotBytes, Number: int64(t.Len()), Stack: int32(slot) % 2,
		})
		blocks++
	}
	for i := range s.requests {
		if i == s.extra && rank == 2 {
			alloc(4321)
		}
		if len(live) > 90 || len(live) > 0 && rng.IntN(100) < 48 {
			index := rng.IntN(len(live))
			b := live[index]
			live = append(live[:index], live[index+1:]...)
			used[b.slot] = false
			t.Add(&Event{
				Kind: Free, Size: slotBytes, Segment: b.slot / segmentSlots, Block: b.number,
				Offset: int64(b.slot%segmentSlots) * slotBytes, Number: int64(t.Len()), Stack: 1,
			})
			continue
		}
		alloc(1 + rng.Int64N(slotBytes))
	}
	return t
}

func (s sample) callTrack(rank int) *Track {
	t := &Track{Rank: rank}
	for i := range 50 {
		t.Add(&Event{
			Kind: Call, Segment: -1, Block: int32(i % 2), Stack: 0, Bytes: 16, Number: int64(i),
			Time: 1_800_000_000_000_000 + int64(1000*i+100*rank),
		})
	}
	return t
}

func (s sample) write(t *testing.T) string {
	t.Helper()
	return writeFile(t, s.build())
}

// writeFile writes a page to a file and returns the URL of the file.
func writeFile(t *testing.T, p *Page) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.html")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := p.WriteHTML(f, "plain"); err != nil {
		t.Fatal(err)
	}
	return "file://" + file
}
