package driver

import "testing"

// TestPlacesInCapturesTellCallsApart looks at the low 24 bits of digests, too, which lines of
// kernels carry.
func TestPlacesInCapturesTellCallsApart(t *testing.T) {
	const short = 1<<24 - 1
	whole, low := map[uint64]Recorded{}, map[uint64]int{}
	for digest := range uint64(3) {
		call := Call{Digest: digest}
		whole[call.Digest] = Recorded{}
		for capture := range uint64(20) {
			for number := range uint64(20) {
				at := Recorded{Capture: capture + 1, Call: number + 1}
				got := call.RecordedAs(at)
				if other, taken := whole[got.Digest]; taken || got.Recorded != at {
					t.Fatalf("%v of digest %d is %+v, as %v", at, digest, got, other)
				}
				whole[got.Digest] = at
				low[got.Digest&short]++
			}
		}
	}
	if len(low) < 1195 {
		t.Errorf("the low bits of 1,200 digests are of %d kinds", len(low))
	}
}

func TestThePlaceInACaptureIsInTheError(t *testing.T) {
	call := Call{Operation: AllReduce, DataType: Float32, Count: 7}.
		RecordedAs(Recorded{Capture: 2, Call: 5})
	err := GroupConfig{ID: "tp", Ranks: []int{3, 4}}.Mismatch(9, &call, 1)
	const want = "collective 9 of group tp (AllReduce sum of 7 float32, path plain, " +
		"call 5 of capture 2) differs " +
		"from that of world rank 4 (rank 1 of the group)"
	if err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
}
