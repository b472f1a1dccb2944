package p2p

import (
	"testing"

	"pgregory.net/rapid"
)

// Every unit (blockUnit bytes) of a segment belongs to exactly one block or free span. After all
// blocks have been freed, each segment is one free span.
func TestBlocksDoNotOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawStaging(t)
		var live []block // currently allocated
		allocate := func(t *rapid.T) {
			const maxBlock = 12 * blockUnit // small segments have no room for it
			bytes := rapid.Int64Range(0, maxBlock).Draw(t, "bytes")
			b, ok := s.allocateBlock(bytes)
			if !ok {
				return
			}

			if b.bytes < bytes {
				t.Fatalf("allocateBlock(%d) = %v, which is too small", bytes, b)
			}

			live = append(live, b)
		}
		free := func(t *rapid.T) {
			if len(live) == 0 {
				t.Skip("no block is allocated")
			}

			i := rapid.IntRange(0, len(live)-1).Draw(t, "index")
			s.freeBlock(live[i])
			live = append(live[:i], live[i+1:]...)
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": allocate,
			"put":  free,
			"":     func(t *rapid.T) { checkBlocks(t, s, live) }, // runs after each action
		})
		for _, b := range live {
			s.freeBlock(b)
		}

		checkAllFree(t, s)
	})
}

func drawStaging(t *rapid.T) *staging {
	const maxSegments = 3
	const maxUnits = 20 // of each segment
	segmentUnits := rapid.SliceOfN(rapid.Int64Range(1, maxUnits), 1, maxSegments).
		Draw(t, "segments")
	s := &staging{}
	for _, units := range segmentUnits {
		bytes := units * blockUnit
		whole := span{offset: 0, bytes: bytes}
		s.segments = append(s.segments, &stagingSegment{bytes: bytes, freeSpans: []span{whole}})
	}

	return s
}

func checkBlocks(t *rapid.T, s *staging, live []block) {
	t.Helper()
	for i, segment := range s.segments {
		ownerCounts := make([]int, segment.bytes/blockUnit) // blocks and free spans of each unit
		countOwner := func(s span) {
			for offset := s.offset; offset < s.end(); offset += blockUnit {
				ownerCounts[offset/blockUnit]++
			}
		}
		for _, free := range segment.freeSpans {
			countOwner(free)
		}

		number := i + 1 // segments are numbered from 1
		for _, b := range live {
			if b.segment == number {
				countOwner(b.span)
			}
		}

		for unit, n := range ownerCounts {
			if n != 1 {
				t.Fatalf("unit %d of segment %d is in %d blocks or free spans, want 1", unit, number, n)
			}
		}
	}
}

func checkAllFree(t *rapid.T, s *staging) {
	t.Helper()
	for i, segment := range s.segments {
		whole := span{offset: 0, bytes: segment.bytes}
		free := segment.freeSpans
		number := i + 1
		if len(free) != 1 || free[0] != whole {
			t.Fatalf("after all blocks were freed, segment %d has free spans %v, want %v", number, free,
				whole)
		}
	}
}
