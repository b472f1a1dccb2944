package symmem_test

import (
	"testing"

	"symmem"
)

func TestStreamHandles(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		first, second := r.DefaultStream().Handle(), r.stream().Handle()
		if r.Device().Addressable {
			if first != 0 || second != 0 {
				r.failf("got handles %#x and %#x, want 0", first, second)
			}

			return
		}

		if first == 0 || second == 0 || first == second || r.DefaultStream().Handle() != first {
			r.failf("got handles %#x and %#x, want two different, stable ones", first, second)
		}
	})
}
