package symmem_test

import (
	"os"
	"testing"

	"symmem"
)

// BenchmarkLive measures how much time a live view, for which one call in 128 is timed, adds to a
// collective of 64 bytes. It alternates batches with and without a live view, like BenchmarkTrace.
func BenchmarkLive(b *testing.B) {
	folder, err := os.MkdirTemp("/tmp", "live") // a short path, as in useLiveFolder
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(folder)
	b.Setenv("TMPDIR", folder)
	plain := newTraceBench(b, symmem.Options{})
	live := newTraceBench(b, symmem.Options{HTTP: "unix"})
	compareBatches(b, plain, live, 1, (*traceBench).allReduce)
}
