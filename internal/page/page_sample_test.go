package page

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// sample describes a page. All of its ranks make the same random allocations and frees, and the
// same calls, except for one extra allocation.
type sample struct {
	ranks    int
	requests int // allocations and frees of each rank
	// extraRank makes an extra allocation before the request with the number extra, unless extra is
	// negative.
	extra int
	name  string // prefix of all texts on the page
}

const (
	slotBytes    = 1 << 20 // a segment consists of slots for one block each
	segmentSlots = 32
	extraRank    = 2
	extraBytes   = 4321                  // size of the extra allocation
	callCount    = 50                    // calls of each rank
	sampleTime   = 1_800_000_000_000_000 // first call, in microseconds since 1970
)

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

// poolTrack returns a rank's track of the pool. Each block occupies the lowest free slot. If none
// is free, the pool gets another segment.
func (s sample) poolTrack(rank int) *Track {
	rng := rand.New(rand.NewPCG(1, 1)) // the same numbers on each rank
	t := &Track{Rank: rank}
	type block struct{ number, slot int32 }
	var live []block // not freed
	var used []bool  // by slot, counted over all segments
	allocCount := int32(0)
	alloc := func(size int64) {
		slot := slices.Index(used, false)
		if slot < 0 {
			slot = len(used)
			used = append(used, make([]bool, segmentSlots)...)
			t.Segments = append(t.Segments, Segment{Bytes: slotBytes * segmentSlots})
		}

		used[slot] = true
		live = append(live, block{allocCount, int32(slot)})
		t.Add(&Event{
			Kind: Alloc, Size: size, Segment: int32(slot / segmentSlots), Block: allocCount,
			Offset: int64(slot%segmentSlots) * slotBytes, Number: int64(t.Len()),
			Stack: int32(slot) % 2, // arbitrary
		})
		allocCount++
	}

	const maxLive, freePercent = 90, 48
	for i := range s.requests {
		if i == s.extra && rank == extraRank {
			alloc(extraBytes)
		}

		isFree := len(live) > maxLive
		if !isFree && len(live) > 0 {
			isFree = rng.IntN(100) < freePercent
		}

		if isFree {
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

// callTrack returns a rank's calls. Every millisecond, the ranks make a call 100 microseconds
// apart.
func (s sample) callTrack(rank int) *Track {
	t := &Track{Rank: rank}
	for i := range callCount {
		t.Add(&Event{
			Kind: Call, Segment: -1, Number: int64(i),
			Block: int32(i % 2), // index of the text
			Stack: 0, Bytes: 16,
			Time: sampleTime + int64(1000*i+100*rank),
		})
	}

	return t
}

func (s sample) write(t *testing.T) string {
	t.Helper()
	return writeFile(t, s.build())
}

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
