package symmem_test

import (
	"testing"

	"symmem"
)

func TestAStreamOfTheHostHasNoHandle(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		if h := r.DefaultStream().Handle(); h != 0 {
			r.failf("handle %#x, want none", h)
		}
	})
}
