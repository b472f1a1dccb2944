package load_test

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/difftest"
	"symmem/cmd/symmem/internal/diff/load"
	"symmem/event"
	"symmem/trace"
)

var (
	benchRanks  = flag.Int("ranks", 4, "number of ranks in BenchmarkDiff")
	benchEvents = flag.Int("events", 10_000, "number of events on each rank in BenchmarkDiff")
	benchFolder = flag.String("folder", "", "folder in which BenchmarkDiff keeps its files")
)

// BenchmarkDiff reads and compares traces of symmem or memory snapshots of PyTorch. The last rank
// has an extra allocation. The second example reads one file of 1 GB:
//
//	go test ./cmd/symmem/internal/diff/load -run '^$' -bench Diff -benchtime 1x \
//	    -ranks 64 -events 100000
//	go test ./cmd/symmem/internal/diff/load -run '^$' -bench Diff/snapshots -benchtime 1x \
//	    -ranks 1 -events 4000000
func BenchmarkDiff(b *testing.B) {
	for _, format := range []struct {
		name      string
		writeFile func(b *testing.B, folder string, rank int, p difftest.Program)
	}{
		{name: "traces", writeFile: writeTrace},
		{name: "snapshots", writeFile: writeSnapshot},
	} {
		b.Run(format.name, func(b *testing.B) {
			folder := cmp.Or(*benchFolder, b.TempDir())
			rng := rand.New(rand.NewPCG(1, 2)) // arbitrary fixed seed
			p := difftest.RandomProgram(rng, *benchEvents, pools, streams)
			lastRank := *benchRanks - 1
			for rank := range lastRank {
				format.writeFile(b, folder, rank, p)
			}

			format.writeFile(b, folder, lastRank, plantExtra(rng, p))
			debug.FreeOSMemory() // excludes the memory for writing the files
			for b.Loop() {
				compareFolder(b, folder)
			}
		})
	}
}

// plantExtra returns a copy of a program with an extra allocation at a random index.
func plantExtra(rng *rand.Rand, p difftest.Program) difftest.Program {
	for {
		changed := difftest.PlantDifference(rng, p, diff.KindExtra, pools, streams)
		isIndexSuitable := changed != nil
		if isIndexSuitable {
			return changed
		}
	}
}

// compareFolder reads and compares the files in a folder, and reports CPU time and memory.
func compareFolder(b *testing.B, folder string) {
	b.Helper()
	resetMaxResident(b)
	before := processorTime(b)
	sources, err := load.Find([]string{folder}, nil)
	if err != nil {
		b.Fatal(err)
	}

	const onlyDevice = -1 // each snapshot is of one GPU
	ranks, err := load.Files(sources, load.Options{Device: onlyDevice})
	if err != nil {
		b.Fatal(err)
	}

	r := diff.Compare(ranks, diff.Options{})
	hasDifference := *benchRanks > 1
	if hasDifference && r.RanksAgree {
		b.Fatal("Compare found no difference; want one")
	}

	b.ReportMetric((processorTime(b) - before).Seconds(), "cpu-s/op")
	b.ReportMetric(maxResident(b), "MiB-max")
}

// processorTime returns the CPU time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}

	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// resetMaxResident sets the maximum resident set size to the current size.
func resetMaxResident(b *testing.B) {
	b.Helper()
	const reset = "5" // see proc_pid_clear_refs(5)
	err := os.WriteFile("/proc/self/clear_refs", []byte(reset), 0o200)
	if err != nil {
		b.Fatal(err)
	}
}

// maxResident returns the maximum resident set size since resetMaxResident, in MiB.
func maxResident(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}

	// The line is "VmHWM: 12345 kB".
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}

	return kib / 1024
}

// writeTrace writes the trace of a rank that executes p and makes a collective call after every
// tenth request.
func writeTrace(b *testing.B, folder string, rank int, p difftest.Program) {
	b.Helper()
	maxRecords := 2 * len(p) // enough for requests and calls
	w, err := trace.Create(folder, trace.Options{Rank: rank, Size: *benchRanks, Records: maxRecords})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	groupSource := w.NewSource() // for collective calls
	poolSources := make([]*trace.Source, pools)
	for pool := range poolSources {
		poolSources[pool] = w.NewSource()
	}

	const none = -1 // the call has no root, and its buffers are in no segment
	const requestsPerCall = 10
	call := &event.Call{
		Operation: "AllReduce", Path: "window", Root: none, SendSegment: none, RecvSegment: none,
	}
	nextNumbers := make([]uint64, pools) // number of the next event of each pool
	for i, r := range p {
		e := eventOf(r)
		e.Number = nextNumbers[r.Pool]
		nextNumbers[r.Pool]++
		poolSources[r.Pool].Record(&e)
		if i%requestsPerCall == 0 {
			const stream = 0
			callNumber := uint64(i / requestsPerCall)
			groupSource.RecordCollective("world", callNumber, call, stream, "model.py:1")
		}
	}
}

// eventOf returns the event of a request, without its number.
func eventOf(r difftest.Request) event.Event {
	const unit = 512      // alignment of sizes and offsets
	const siteCount = 100 // arbitrary
	e := event.Event{
		Kind:      event.KindAlloc,
		Group:     "world",
		Pool:      uint64(r.Pool),
		Site:      fmt.Sprintf("model.py:%d", r.Tensor%siteCount),
		Stream:    uint32(r.Stream),
		Requested: r.Size,
		Size:      (r.Size + unit - 1) / unit * unit, // rounded up
		Offset:    int64(r.Tensor) * unit,            // unique
	}
	if r.IsFree {
		e.Kind = event.KindFree
		e.Requested = 0
	}

	return e
}

// writeSnapshot writes a memory snapshot of a PyTorch process that executes p.
func writeSnapshot(b *testing.B, folder string, rank int, p difftest.Program) {
	b.Helper()
	const pickleProtocol = 2
	snapshot := difftest.Snapshot(p, difftest.RunOptions{Seed: uint64(rank)})
	file := difftest.Pickle(snapshot, pickleProtocol)
	if rank == 0 {
		b.Logf("%d bytes, %d events for each rank", len(file), len(p))
	}

	path := filepath.Join(folder, difftest.FileName(rank))
	if err := os.WriteFile(path, file, 0o600); err != nil {
		b.Fatal(err)
	}
}
