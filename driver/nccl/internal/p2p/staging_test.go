package p2p

import (
	"testing"

	"pgregory.net/rapid"
)

// TestBlocksDoNotOverlap allocates and frees random blocks. It checks that no two blocks overlap,
// and that all memory is free in the end.
func TestBlocksDoNotOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(1, 20), 1, 3).Draw(t, "segments")
		var s staging
		for _, n := range sizes {
			bytes := n * blockUnit
			free := []span{{0, bytes}}
			s.segments = append(s.segments, &stagingSegment{bytes: bytes, freeSpans: free})
		}

		var live []block
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				bytes := rapid.Int64Range(0, 12*blockUnit).Draw(t, "bytes")
				b, ok := s.allocateBlock(bytes)
				if !ok {
					return
				}

				if b.bytes < bytes {
					t.Fatalf("take(%d) = %v, which is too small", bytes, b)
				}

				live = append(live, b)
			},
			"put": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("no block is allocated")
				}

				i := rapid.IntRange(0, len(live)-1).Draw(t, "index")
				s.freeBlock(live[i])
				live = append(live[:i], live[i+1:]...)
			},
			"": func(t *rapid.T) { checkBlocks(t, &s, live) },
		})
		for _, b := range live {
			s.freeBlock(b)
		}

		for i, n := range sizes {
			if f := s.segments[i].freeSpans; len(f) != 1 || f[0] != (span{0, n * blockUnit}) {
				t.Fatalf("after all blocks were freed, segment %d has free spans %v, want one", i, f)
			}
		}
	})
}

func checkBlocks(t *rapid.T, s *staging, live []block) {
	for i, segment := range s.segments {
		counts := make([]int, segment.bytes/blockUnit)
		count := func(s span) {
			for offset := s.offset; offset < s.offset+s.bytes; offset += blockUnit {
				counts[offset/blockUnit]++
			}
		}
		for _, f := range segment.freeSpans {
			count(f)
		}

		for _, b := range live {
			if b.segment == i+1 {
				count(b.span)
			}
		}

		for unit, n := range counts {
			if n != 1 {
				t.Fatalf("unit %d of segment %d is in %d blocks or free spans, want 1", unit, i, n)
			}
		}
	}
}
