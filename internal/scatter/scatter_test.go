package scatter

import "testing"

func TestDrawWithoutASeedReturnsTheOffset(t *testing.T) {
	for _, s := range []*Scatter{{}, New(0, 3, 64)} {
		if at, err := s.Draw(1<<20, 1<<12, 128, 64); at != 128 || err != nil {
			t.Errorf("Draw = %d, %v; want 128", at, err)
		}
	}
}

func TestSegmentsNeverOverlapAndRanksDiffer(t *testing.T) {
	const space, bytes, granule = 1 << 16, 256, 64
	var places [2][]int64
	for rank := range places {
		s := New(7, rank, granule)
		seen := map[int64]bool{}
		for range 40 {
			at, err := s.Draw(1<<20, space, 0, bytes)
			if err != nil || at%granule != 0 || at < 0 || at+bytes > space {
				t.Fatalf("rank %d: Draw = %d, %v; want a multiple of %d in the arena", rank, at, err, granule)
			}
			for g := at; g < at+bytes; g += granule {
				if seen[g] {
					t.Fatalf("rank %d: two segments overlap at offset %d", rank, g)
				}
				seen[g] = true
			}
			places[rank] = append(places[rank], at)
		}
	}
	if places[0][0] == places[1][0] && places[0][1] == places[1][1] {
		t.Errorf("both ranks drew offsets %d, %d", places[0][0], places[0][1])
	}
}

func TestDrawFailsInAFullArena(t *testing.T) {
	s := New(7, 0, 64)
	if _, err := s.Draw(1<<20, 128, 0, 256); err == nil {
		t.Error("Draw for a segment larger than the arena succeeded")
	}
	if _, err := s.Draw(1<<20, 64, 0, 64); err != nil {
		t.Error(err)
	}
	if _, err := s.Draw(1<<20, 64, 0, 64); err == nil {
		t.Error("Draw returned the same range twice")
	}
}
