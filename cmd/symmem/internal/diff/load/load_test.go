package load_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/difftest"
	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/load"
	"symmem/cmd/symmem/internal/diff/plain"
	"symmem/internal/alloc"
)

const pools, streams = 2, 3

func encode(file difftest.PyDict, n int) []byte {
	if n%5 == 0 {
		return difftest.EncodeJSON(file)
	}

	return difftest.Pickle(file, 1+n%5)
}

func read(t *testing.T, files ...[]byte) []*history.Rank {
	t.Helper()
	var ranks []*history.Rank
	for i, file := range files {
		r, err := load.Read(bytes.NewReader(file), -1)
		if err != nil {
			t.Fatalf("reading the file of rank %d: %v", i, err)
		}

		r.Number = i
		ranks = append(ranks, r)
	}

	return ranks
}

// TestPlantedDifferences plants differences at random points. Compare must find the first
// difference at the index that difftest.FirstDifference returns.
func TestPlantedDifferences(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	named, planted := map[string]int{}, map[string]int{}
	for run := 0; run < 150; {
		p := difftest.RandomProgram(rng, 30+rng.IntN(400), pools, streams)
		kind := difftest.DifferenceKinds[run%len(difftest.DifferenceKinds)]
		q := difftest.PlantDifference(rng, p, kind, pools, streams)
		if q == nil {
			continue
		}

		want := difftest.FirstDifference(p, q, pools)
		if want[0] < 0 && want[1] < 0 {
			continue // the swapped requests are the same
		}

		run++
		planted[kind]++
		ranks := 2 + rng.IntN(3)
		odd := rng.IntN(ranks)
		var files [][]byte
		for r := range ranks {
			program := p
			if r == odd {
				program = q
			}

			snapshot := difftest.Snapshot(program, difftest.RunOptions{
				Seed: rng.Uint64(), OmitPoolIDs: run%3 == 0,
			})
			files = append(files, encode(snapshot, run+r))
		}

		report := diff.Compare(read(t, files...), diff.Options{})
		checkFirst(t, seed, run, report, want)
		for _, s := range report.Sequences {
			if s.RequestDifference != nil && s.RequestDifference.Kind == kind {
				named[kind]++
				break
			}
		}

		checkBlame(t, report, ranks, odd)
	}

	for kind, n := range planted {
		t.Logf("%s: named in %d of %d runs", kind, named[kind], n)
		if kind != "missing" && kind != "extra" && named[kind] < n/2 {
			t.Errorf("%s was named in %d of %d runs; want at least half", kind, named[kind], n)
		}
	}
}

func checkFirst(t *testing.T, seed uint64, run int, report *diff.Report, want []int) {
	t.Helper()
	got := []int{-1, -1}
	for _, s := range report.Sequences {
		at := int(s.Title[len(s.Title)-1] - '1')
		if s.RequestDifference != nil {
			got[at] = s.RequestDifference.RequestIndex
		}
	}

	if fmt.Sprint(got) != fmt.Sprint(want) || report.RanksAgree {
		t.Fatalf("seed %d run %d: first differences = %v with Agree = %v; want %v",
			seed, run, got, report.RanksAgree, want)
	}
}

func checkBlame(t *testing.T, report *diff.Report, ranks, odd int) {
	t.Helper()
	for _, s := range report.Sequences {
		if s.RequestDifference == nil {
			continue
		}

		want := "[]"
		if ranks > 2 {
			want = fmt.Sprint([]int{odd})
		}

		if got := fmt.Sprint(s.RequestDifference.MinorityRanks); got != want {
			t.Errorf("blamed = %s; want %s", got, want)
		}
	}
}

// TestAgreeingRuns checks that Compare finds no difference between ranks with the same requests
// and the same placement rule, whatever their addresses are.
func TestAgreeingRuns(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	for run := range 150 {
		p := difftest.RandomProgram(rng, 1+rng.IntN(400), pools, streams)
		var files [][]byte
		last := 0
		if run%4 == 0 {
			last = 1 + rng.IntN(300)
		}

		for r := range 2 + rng.IntN(3) {
			files = append(files, encode(difftest.Snapshot(p, difftest.RunOptions{
				Seed: rng.Uint64(), Policy: alloc.CreationOrder, MaxTraceEntries: last,
				OmitPoolIDs: run%3 == 0, LineOffset: r,
			}), run+r))
		}

		if report := diff.Compare(read(t, files...), diff.Options{}); !report.RanksAgree {
			var text strings.Builder
			_ = report.WriteText(&text)
			t.Fatalf("seed %d run %d: Compare found a difference; want none:\n%s", seed, run, text.String())
		}
	}
}

// TestOldFormat compares snapshots in PyTorch 2.0's format, in which all memory is in one pool.
// Some have lost the beginning of the trace, so that blocks are older than it.
func TestOldFormat(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 20))
	for run := 0; run < 30; {
		p := difftest.RandomProgram(rng, 100+rng.IntN(300), 1, streams)
		q := difftest.PlantDifference(rng, p, difftest.DifferenceKinds[run%3], 1, streams)
		if q == nil {
			continue
		}

		last := 0
		if run%2 == 0 {
			q, last = p, 90
		}

		run++
		var files [][]byte
		for n, program := range []difftest.Program{p, p, q} {
			files = append(files, encode(difftest.Snapshot(program, difftest.RunOptions{
				Seed: rng.Uint64(), Policy: alloc.CreationOrder, MaxTraceEntries: last, OldFormat: true,
			}), run+n))
		}

		ranks := read(t, files...)
		report := diff.Compare(ranks, diff.Options{AllPools: true})
		want, got := -1, -1
		if last == 0 {
			want = difftest.FirstDifference(p, q, 1)[0]
		}

		if d := report.Sequences[0].RequestDifference; d != nil {
			got = d.RequestIndex
		}

		if got != want || report.RanksAgree != (want < 0) {
			t.Fatalf("seed %d run %d: first difference = %d with Agree = %v; want %d", seed, run, got,
				report.RanksAgree, want)
		}

		sizes := map[int64]bool{}
		for _, r := range p {
			sizes[r.Size] = true
		}

		for _, b := range ranks[0].Sequences[0].InitialBlocks {
			if !sizes[b.Size] {
				t.Fatalf("seed %d run %d: older block %+v; want a size that the program requested", seed, run,
					b)
			}
		}
	}
}

// TestPlacesByAddress places blocks by address, so that places may differ between ranks. If they
// do, Compare must report that addresses are the cause. PyTorch's rule must explain all places, and
// the ranks must agree under symmem's rule.
func TestPlacesByAddress(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 4))
	differ := 0
	for range 40 {
		p := difftest.RandomProgram(rng, 600, 1, 2)
		var files [][]byte
		for _, seed := range []uint64{1, rng.Uint64()} {
			snapshot := difftest.Snapshot(p, difftest.RunOptions{Seed: seed, Policy: alloc.AddressOrder})
			files = append(files, difftest.Pickle(snapshot, 4))
		}

		ranks := read(t, files...)
		report := diff.Compare(ranks, diff.Options{})
		s := report.Sequences[0]
		if s.RequestDifference != nil {
			t.Fatalf("Compare found a difference at request %d; want none", s.RequestDifference.RequestIndex)
		}

		if s.Replay.SymmemRequestIndex != -1 ||
			!strings.Contains(s.Replay.PyTorchText, "places of all blocks") {
			t.Fatalf("Replay = %+v; want agreement by symmem's rule, and places explained by PyTorch's",
				s.Replay)
		}

		if s.PlacementDifference != nil {
			differ++
			if !strings.Contains(s.PlacementDifference.Explanation[0], "addresses of segments") {
				t.Fatalf("Explanation = %q; want it to name addresses", s.PlacementDifference.Explanation)
			}
		}
	}

	if differ == 0 {
		t.Error("Compare found no difference between places in any run; want some")
	}
}

func TestOverflowIsAligned(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	p := difftest.RandomProgram(rng, 2000, 1, 2)
	short := difftest.Snapshot(p, difftest.RunOptions{
		Seed: 1, Policy: alloc.CreationOrder, MaxTraceEntries: 900,
	})
	long := difftest.Snapshot(p, difftest.RunOptions{
		Seed: 2, Policy: alloc.CreationOrder, MaxTraceEntries: 1000,
	})
	ranks := read(t, difftest.Pickle(long, 4), difftest.Pickle(short, 4))
	report := diff.Compare(ranks, diff.Options{})
	if !report.RanksAgree || len(report.Sequences[0].Notes) == 0 || len(report.Ranks[0].Notes) == 0 {
		t.Fatalf("Compare(%+v) = %v; want agreement, with notes about the lost beginning",
			report.Sequences[0], report.RanksAgree)
	}
}

// TestOlderBlocks reads a trace whose earlier events are lost, and checks the blocks listed as
// live at its beginning. Each free whose allocation is not in the trace must free one of these
// blocks, and no block may be freed twice.
func TestOlderBlocks(t *testing.T) {
	p := difftest.RandomProgram(rand.New(rand.NewPCG(5, 5)), 2000, 1, 2)
	for last, want := range map[int]bool{0: false, 900: true} {
		snapshot := difftest.Snapshot(p, difftest.RunOptions{
			Seed: 1, Policy: alloc.CreationOrder, MaxTraceEntries: last,
		})
		s := read(t, difftest.Pickle(snapshot, 4))[0].Sequences[0]
		if got := len(s.InitialBlocks) > 0; got != want {
			t.Errorf("Last = %d: got %d older blocks; want any = %v", last,
				len(s.InitialBlocks), want)
		}

		type place struct {
			segment int32
			offset  int64
		}
		older := map[place]bool{}
		for _, b := range s.InitialBlocks {
			older[place{b.Segment, b.Offset}] = true
		}

		for _, e := range s.Events {
			at := place{e.Segment, e.Offset}
			if e.Action == history.FreeCompleted && e.Block < 0 {
				if !older[at] {
					t.Fatalf("event %d frees %v, which is not an older block", e.Number, at)
				}

				delete(older, at)
			}
		}
	}
}

func TestCalls(t *testing.T) {
	operations := strings.Fields(strings.Repeat("all_reduce broadcast all_gather ", 20))
	other := append([]string(nil), operations...)
	other[33] = "barrier"
	files := [][]byte{
		difftest.Pickle(difftest.FlightDump(operations, 5), 2),
		difftest.Pickle(difftest.FlightDump(operations[2:], 7), 2),
		difftest.EncodeJSON(difftest.FlightDump(other, 5)),
	}
	report := diff.Compare(read(t, files...), diff.Options{})
	d := report.Sequences[0].RequestDifference
	if d == nil || d.RequestIndex != 31 || d.Kind != "different call" ||
		fmt.Sprint(d.MinorityRanks) != "[2]" {
		t.Fatalf("Requests = %+v; want another call at index 31 on rank 2", d)
	}

	if n := len(d.Variants[1].Stack); n != 1 || len(d.PrecedingRequests) != 5 {
		t.Errorf("got %d stack lines and %d requests before the difference; want 1 and 5", n,
			len(d.PrecedingRequests))
	}

	if report = diff.Compare(read(t, files[:2]...), diff.Options{}); !report.RanksAgree {
		t.Errorf("ranks with the same calls differ: %+v", report.Sequences[0])
	}
}

// TestNumbersOutOfRange reads snapshots with numbers that cannot be represented. They must not be
// taken for 0.
func TestNumbersOutOfRange(t *testing.T) {
	event := func(key, value string) string {
		return fmt.Sprintf(`{"segments": [], "device_traces": [[{"action": "alloc", %q: %s}]]}`, key,
			value)
	}
	segment := func(key, value string) string {
		return fmt.Sprintf(`{"segments": [{"address": 1, %q: %s}], "device_traces": []}`, key, value)
	}
	for _, file := range []string{
		event("size", "1208925819614629174706176"), event("size", "4611686018427387904"),
		event("size", "-1"), event("addr", "9223372036854775808"), event("stream", `"x"`),
		event("size", "1.5"), segment("total_size", "-5"), segment("address", "1e300"),
		segment("blocks", `[{"size": -3}]`),
	} {
		if _, err := load.Read(strings.NewReader(file), -1); !errors.Is(err, plain.ErrFormat) ||
			!strings.Contains(err.Error(), "out of range") {
			t.Errorf("Read(%s) = %v; want an error about the range", file, err)
		}
	}

	good := event("size", "576460752303423487") // the largest integer of 60 bits
	for device, want := range map[int]bool{-1: true, 0: true, 1: false} {
		if _, err := load.Read(strings.NewReader(good), device); (err == nil) != want {
			t.Errorf("Read with device %d = %v; want success: %v", device, err, want)
		}
	}
}

// TestRankWithoutCalls compares dumps of which one has no calls, although its group has it as a
// member.
func TestRankWithoutCalls(t *testing.T) {
	files := [][]byte{
		difftest.EncodeJSON(difftest.FlightDump([]string{"all_reduce", "barrier"}, 1)),
		difftest.Pickle(difftest.FlightDump(nil, 1), 4),
	}
	report := diff.Compare(read(t, files...), diff.Options{})
	if d := report.Sequences[0].RequestDifference; d == nil || d.Kind != diff.KindMissing {
		t.Errorf("Compare = %+v; want a missing call", report.Sequences[0])
	}

	if report = diff.Compare(read(t, files[0]), diff.Options{}); len(report.Notes) != 1 ||
		!strings.Contains(report.Notes[0], "no file of rank 1") {
		t.Errorf("notes = %q; want one about rank 1", report.Notes)
	}
}

func TestHostileFiles(t *testing.T) {
	good := difftest.Pickle(difftest.Snapshot(
		difftest.RandomProgram(rand.New(rand.NewPCG(1, 1)), 50, 1, 1), difftest.RunOptions{}), 4)
	for name, file := range map[string]string{
		"empty":         "",
		"text":          "hello",
		"code":          "\x80\x04cos\nsystem\n(S'true'\ntR.",
		"stack global":  "\x80\x04\x8c\x02os\x8c\x06system\x93.",
		"reduce":        "\x80\x04)R.",
		"long string":   "\x80\x04\x8d\x00\x00\x00\x00\x00\x00\x00\x80",
		"long long":     "\x80\x04\x8b\xff\xff\xff\x7f",
		"memo":          "\x80\x04Nr\xff\xff\xff\xff.",
		"missing value": "\x80\x04}h\x00u.",
		"cut off":       string(good[:len(good)/2]),
		"new protocol":  "\x80\x09N.",
		"other":         "\x80\x04}.",
		"json":          `{"segments": [1, 2`,
		"two pickles":   string(good) + string(good),
		"two objects":   `{"segments": []} {}`,
	} {
		_, err := load.Read(strings.NewReader(file), -1)
		if !errors.Is(err, plain.ErrFormat) {
			t.Errorf("Read(%s) = %v; want ErrFormat", name, err)
		}
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"snapshot_rank3.pickle", "trace.12", "nccl_2_rank_7", "mem-Rank4-step100.20261128.pickle",
		"rank_only_9", "x8",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.Symlink("x8", filepath.Join(dir, "y9")); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "z10")); err != nil { // not a file
		t.Fatal(err)
	}

	sources, err := load.Find([]string{dir}, map[string]int{filepath.Join(dir, "trace.12"): 5})
	if err != nil {
		t.Fatal(err)
	}

	got := ""
	for _, s := range sources {
		got += fmt.Sprint(s.Rank, " ")
	}

	if got != "4 7 9 3 5 8 9 " {
		t.Errorf("ranks = %s; want 4 7 9 3 5 8 9", got)
	}
}

// FuzzRead checks that Read does not crash on any file, and that Compare finds no difference
// between a file and itself.
func FuzzRead(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	snapshot := difftest.Snapshot(difftest.RandomProgram(rng, 12, 2, 2),
		difftest.RunOptions{MaxTraceEntries: 9})
	for n := range 5 {
		f.Add(encode(snapshot, n))
		f.Add(encode(difftest.FlightDump([]string{"all_reduce", "barrier"}, 1), n))
	}

	f.Add([]byte("\x80\x04cos\nsystem\n."))
	f.Fuzz(compareWithItself)
}

func compareWithItself(t *testing.T, file []byte) {
	a, err := load.Read(bytes.NewReader(file), -1)
	if err != nil {
		return
	}

	b, err := load.Read(bytes.NewReader(file), -1)
	if err != nil {
		t.Fatalf("reading again: %v", err)
	}

	b.Number = a.Number + 1
	report := diff.Compare([]*history.Rank{a, b}, diff.Options{AllPools: true})
	if !report.RanksAgree {
		t.Fatalf("Compare of a file with itself = %+v; want agreement", report)
	}

	if err := report.WriteText(&bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
}
