package scatter

import "testing"

func TestDrawWithoutSeedReturnsGivenOffset(t *testing.T) {
	for _, s := range []*Scatter{{}, New(0, 3, 64)} {
		if offset, err := s.Draw(1<<20, 1<<12, 128, 64); offset != 128 || err != nil {
			t.Errorf("Draw = %d, %v; want 128", offset, err)
		}
	}
}

func TestSegmentsNeverOverlapAndRanksDiffer(t *testing.T) {
	const space, bytes, granule = 1 << 16, 256, 64
	var offsets [2][]int64
	for rank := range offsets {
		s := New(7, rank, granule)
		seen := map[int64]bool{}
		for range 40 {
			offset, err := s.Draw(1<<20, space, 0, bytes)
			if err != nil || offset%granule != 0 || offset < 0 || offset+bytes > space {
				t.Fatalf("rank %d: Draw = %d, %v; want a multiple of %d in the arena", rank, offset, err,
					granule)
			}

			for g := offset; g < offset+bytes; g += granule {
				if seen[g] {
					t.Fatalf("rank %d: two segments overlap at offset %d", rank, g)
				}

				seen[g] = true
			}

			offsets[rank] = append(offsets[rank], offset)
		}
	}

	if offsets[0][0] == offsets[1][0] && offsets[0][1] == offsets[1][1] {
		t.Errorf("both ranks drew offsets %d and %d; want different ones", offsets[0][0], offsets[0][1])
	}
}

func TestDrawFailsInFullArena(t *testing.T) {
	s := New(7, 0, 64)
	if _, err := s.Draw(1<<20, 128, 0, 256); err == nil {
		t.Error("Draw succeeded for a segment larger than the arena; want an error")
	}

	if _, err := s.Draw(1<<20, 64, 0, 64); err != nil {
		t.Error(err)
	}

	if _, err := s.Draw(1<<20, 64, 0, 64); err == nil {
		t.Error("Draw succeeded in a full arena; want an error")
	}
}
