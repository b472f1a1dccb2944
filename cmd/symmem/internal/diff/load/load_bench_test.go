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

// BenchmarkDiff measures the comparison of large files. The last rank's file contains an extra
// allocation, so that there is a difference to find. The benchmark reports the CPU time and the
// maximum resident set size:
//
//	go test ./cmd/symmem/internal/diff/load -run '^$' -bench Diff -benchtime 1x \
//	    -ranks 64 -events 100000
//	go test ./cmd/symmem/internal/diff/load -run '^$' -bench Diff/snapshots -benchtime 1x \
//	    -ranks 1 -events 4000000    # one file of 1 GB
func BenchmarkDiff(b *testing.B) {
	for _, format := range []struct {
		name      string
		writeFile func(b *testing.B, folder string, rank int, p difftest.Program)
	}{
		{"traces", writeTrace},
		{"snapshots", writeSnapshot},
	} {
		b.Run(format.name, func(b *testing.B) {
			folder := cmp.Or(*benchFolder, b.TempDir())
			rng := rand.New(rand.NewPCG(1, 2)) // any seed, but the same in each run
			p := difftest.RandomProgram(rng, *benchEvents, pools, streams)
			lastRank := *benchRanks - 1
			for rank := range *benchRanks {
				if rank == lastRank {
					p = plantExtra(rng, p)
				}

				format.writeFile(b, folder, rank, p)
			}

			debug.FreeOSMemory() // of the generated programs
			for b.Loop() {
				compareFolder(b, folder)
			}
		})
	}
}

// plantExtra returns a copy of a program with an additional allocation at a random place.
func plantExtra(rng *rand.Rand, p difftest.Program) difftest.Program {
	for {
		// PlantDifference returns nil if it has drawn an unsuitable place.
		if q := difftest.PlantDifference(rng, p, "extra", streams, pools); q != nil {
			return q
		}
	}
}

// compareFolder reads and compares the files in a folder, and reports the metrics of this.
func compareFolder(b *testing.B, folder string) {
	b.Helper()
	const resetMaxResident = "5" // resets VmHWM; see proc_pid_clear_refs(5)
	err := os.WriteFile("/proc/self/clear_refs", []byte(resetMaxResident), 0o200)
	if err != nil {
		b.Fatal(err)
	}

	before := processorTime(b)
	sources, err := load.Find([]string{folder}, nil)
	if err != nil {
		b.Fatal(err)
	}

	const onlyDevice = -1 // the only device with events
	ranks, err := load.Files(sources, load.Options{Device: onlyDevice})
	if err != nil {
		b.Fatal(err)
	}

	r := diff.Compare(ranks, diff.Options{})
	hasDifference := *benchRanks > 1 // a single rank differs from no other
	if hasDifference && r.RanksAgree {
		b.Fatal("Compare found no difference; want one")
	}

	b.ReportMetric((processorTime(b) - before).Seconds(), "cpu-s/op")
	b.ReportMetric(maxResident(b), "MiB-max")
}

// processorTime returns the CPU time that this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}

	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// maxResident returns the process's maximum resident set size in MiB.
func maxResident(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}

	_, rest, _ := strings.Cut(string(status), "VmHWM:") // is followed by the size and "kB"
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}

	return kib / 1024
}

// writeTrace writes the trace of a rank that executes p. For every tenth request, beginning with
// the first, the trace also has a collective.
func writeTrace(b *testing.B, folder string, rank int, p difftest.Program) {
	b.Helper()
	const unit = 512 // sizes and offsets of blocks are multiples of it
	maxRecords := 2 * len(p)
	w, err := trace.Create(folder, trace.Options{Rank: rank, Size: *benchRanks, Records: maxRecords})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	const none = -1
	call := &event.Call{
		Operation: "AllReduce", Path: "window", Root: none, SendSegment: none, RecvSegment: none,
	}
	numbers := make([]uint64, pools) // number of the next event, by pool
	offsets := map[int]int64{}       // offset of the block, by tensor
	groupSource := w.NewSource()
	poolSources := make([]*trace.Source, pools)
	for pool := range poolSources {
		poolSources[pool] = w.NewSource()
	}

	for i, r := range p {
		e := event.Event{
			Kind: event.KindAlloc, Number: numbers[r.Pool], Group: "world", Pool: uint64(r.Pool),
			Site: fmt.Sprintf("model.py:%d", r.Tensor%100), Stream: uint32(r.Stream),
			Requested: r.Size, Size: (r.Size + unit - 1) / unit * unit, // rounded up
			Offset: int64(r.Tensor) * unit, // differs between tensors
		}
		if r.IsFree {
			e.Kind, e.Requested, e.Offset = event.KindFree, 0, offsets[r.Tensor]
		}

		offsets[r.Tensor] = e.Offset
		numbers[r.Pool]++
		poolSources[r.Pool].Record(&e)
		if i%10 == 0 {
			const stream = 0
			groupSource.RecordCollective("world", uint64(i/10), call, stream, "model.py:1")
		}
	}
}

// writeSnapshot writes PyTorch's memory snapshot of a rank that executes p.
func writeSnapshot(b *testing.B, folder string, rank int, p difftest.Program) {
	b.Helper()
	const protocol = 2
	data := difftest.Pickle(difftest.Snapshot(p, difftest.RunOptions{Seed: uint64(rank)}), protocol)
	if rank == 0 {
		b.Logf("%d bytes, %d events for each rank", len(data), len(p))
	}

	path := filepath.Join(folder, difftest.FileName(rank))
	if err := os.WriteFile(path, data, 0o600); err != nil {
		b.Fatal(err)
	}
}
