package symmem_test

import (
	"fmt"
	"os"
	"testing"

	"symmem"
)

// BenchmarkLive measures what a live view adds to a collective of 64 bytes, of which one in 128 is
// timed, and to one of 1 MiB, all of which are timed.
func BenchmarkLive(b *testing.B) {
	folder, err := os.MkdirTemp("/tmp", "live") // short, as useLiveFolder
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(folder)
	b.Setenv("TMPDIR", folder)
	for _, bytes := range []int64{64, 1 << 20} {
		for name, address := range map[string]string{"without": "", "with": "unix"} {
			b.Run(fmt.Sprintf("%d/%s", bytes, name), func(b *testing.B) {
				sum := sumAlone(b, openAloneWith(b, symmem.Options{HTTP: address}), bytes)
				b.ReportAllocs()
				for b.Loop() {
					sum()
				}
			})
		}
	}
}
