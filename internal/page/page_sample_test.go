package page

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// sample describes a page about a random program, which allocates and frees blocks of a pool and
// calls collectives. All ranks make the same requests to the pool, except for an extra one.
type sample struct {
	ranks    int
	requests int // number of allocations and frees of each rank
	// If extra is not negative, the rank extraRank makes an additional request before the request
	// with that number.
	extra int
	// name is the prefix of all texts on the page.
	name string
}

const (
	slotBytes    = 1 << 20 // a block occupies one slot of a segment
	segmentSlots = 32
	extraRank    = 2
	extraBytes   = 4321 // size of the block that the additional request allocates
	callCount    = 50   // number of collective calls of each rank
	// sampleTime is the time of the first call, in microseconds since 1970.
	sampleTime = 1_800_000_000_000_000
)

// build builds the page.
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
	calls := Sequence{Title: s.name + "world", Calls: true, Equal: callCount}
	for rank := range s.ranks {
		p.Ranks = append(p.Ranks, Rank{
			Rank: rank, File: s.name + fmt.Sprint(rank), Format: s.name + "format", Events: s.requests,
			Notes: []string{s.name + "note"},
		})
		p.Windows[0].States[rank] = Registered
		p.Paths[0].Calls[rank] = callCount
		pool.Tracks = append(pool.Tracks, s.poolTrack(rank))
		calls.Tracks = append(calls.Tracks, s.callTrack(rank))
	}

	if s.extra >= 0 {
		pool.Equal = s.extra
		pool.Differences = []Difference{{
			Subject: "requests", Kind: "extra", Request: s.extra, Blamed: []int{extraRank},
			Variants: []Variant{
				{Ranks: []int{0, 1, 3}, Text: s.name + "alloc 1 B", Stack: []string{s.name + "frame"}},
				{
					Ranks: []int{extraRank}, Text: s.name + fmt.Sprintf("alloc %d B", extraBytes),
					Kind: "extra",
				},
			},
			Before: []string{s.name + "before"}, Explanation: []string{s.name + "explanation"},
		}}
	}

	p.Sequences = []Sequence{calls, pool}
	return p
}

// poolTrack returns a rank's track of a pool with random allocations and frees. Each block occupies
// the lowest free slot. The track gets another segment if no slot is free.
func (s sample) poolTrack(rank int) *Track {
	rng := rand.New(rand.NewPCG(1, 1)) // the same numbers on each rank
	t := &Track{Rank: rank}
	var used []bool // by slot, counted over all segments
	type block struct{ number, slot int32 }
	var live []block   // not freed
	blocks := int32(0) // number of allocations
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
			Offset: int64(slot%segmentSlots) * slotBytes, Number: int64(t.Len()),
			Stack: int32(slot) % 2, // any of the two stacks
		})
		blocks++
	}
	for i := range s.requests {
		if i == s.extra && rank == extraRank {
			alloc(extraBytes)
		}

		const maxLive, freePercent = 90, 48
		mustFree := len(live) > maxLive
		if mustFree || len(live) > 0 && rng.IntN(100) < freePercent {
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

// callTrack returns a rank's track of calls. There is one call per millisecond, and each rank makes
// it 100 microseconds after the previous rank.
func (s sample) callTrack(rank int) *Track {
	t := &Track{Rank: rank}
	for i := range callCount {
		t.Add(&Event{
			Kind: Call, Segment: -1, Number: int64(i),
			Block: int32(i % 2), // index in Page.Texts
			Stack: 0, Bytes: 16,
			Time: sampleTime + int64(1000*i+100*rank),
		})
	}

	return t
}

// write writes the page to a file and returns the URL of the file.
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
