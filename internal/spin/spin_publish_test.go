package spin

import (
	"sync/atomic"
	"testing"
)

func TestPublishOrdersStores(t *testing.T) {
	const last = 100_000
	var number atomic.Uint64
	var record atomic.Pointer[uint64]
	record.Store(new(uint64))
	go func() {
		for n := uint64(1); n <= last; n++ {
			own := n
			Publish(&record, &own)
			Publish64(&number, n)
		}
	}()
	for n := uint64(0); n < last; {
		n = number.Load()
		if found := *record.Load(); found < n {
			t.Fatalf("record = %d when number %d was visible, want at least %d", found, n, n)
		}
	}
}
