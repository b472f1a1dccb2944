package sys

import (
	"sync"
	"testing"
	"unsafe"
)

// TestMappingsSurviveHugePagesThatAreShort maps memory while others ask for huge pages that the
// system has not got: a mapping that fails must not take the addresses of another with it.
func TestMappingsSurviveHugePagesThatAreShort(t *testing.T) {
	const bytes = 3 << 20
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 1000 {
				if f, err := HugeMemfd("test", 64*PageSize); err == nil {
					f.Close()
				}
				f, err := Memfd("test", bytes)
				if err != nil {
					t.Error(err)
					return
				}
				m, err := Map(f, 0, bytes)
				f.Close()
				if err != nil {
					t.Error(err)
					return
				}
				b := unsafe.Slice((*byte)(m.Base()), bytes)
				for i := 0; i < bytes; i += 1<<20 {
					b[i] = 1
				}
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
