//go:build !invariants

package ranked_test

import (
	"sync"
	"testing"
	"unsafe"

	"symmem/internal/ranked"
	"symmem/internal/spin"
)

func TestPlainLocksHaveNoOverhead(t *testing.T) {
	if unsafe.Sizeof(ranked.Mutex[outerMu]{}) != unsafe.Sizeof(sync.Mutex{}) ||
		unsafe.Sizeof(ranked.RWMutex[outerMu]{}) != unsafe.Sizeof(sync.RWMutex{}) ||
		unsafe.Sizeof(ranked.Spin[outerMu]{}) != unsafe.Sizeof(spin.Lock{}) {
		t.Error("a ranked lock is larger than the lock that it wraps")
	}
}
