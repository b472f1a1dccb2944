package driver

import "testing"

// TestPositionsInCapturesChangeDigests compares whole digests, and also their low 24 bits, because
// kernels compare only these.
func TestPositionsInCapturesChangeDigests(t *testing.T) {
	const lowBits = 1<<24 - 1
	whole, low := map[uint64]Recorded{}, map[uint64]int{}
	for digest := range uint64(3) {
		call := Call{Digest: digest}
		whole[call.Digest] = Recorded{}
		for capture := range uint64(20) {
			for number := range uint64(20) {
				position := Recorded{Capture: capture + 1, Call: number + 1}
				got := call.RecordedAs(position)
				if got.Recorded != position {
					t.Fatalf("RecordedAs(%v) has position %v", position, got.Recorded)
				}

				if other, ok := whole[got.Digest]; ok {
					t.Fatalf("digest %d has the same digest at positions %v and %v", digest, position, other)
				}

				whole[got.Digest] = position
				low[got.Digest&lowBits]++
			}
		}
	}

	if len(low) < 1195 {
		t.Errorf("the low bits of 1,200 digests have %d distinct values, want at least 1,195", len(low))
	}
}

func TestMismatchErrorContainsPositionInCapture(t *testing.T) {
	call := Call{Operation: AllReduce, DataType: Float32, Count: 7}.
		RecordedAs(Recorded{Capture: 2, Call: 5})
	err := GroupConfig{ID: "tp", Ranks: []int{3, 4}}.Mismatch(9, &call, 1)
	const want = "collective 9 of group tp (AllReduce sum of 7 float32, path plain, " +
		"call 5 of capture 2) differs " +
		"from that of world rank 4 (rank 1 of the group)"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
