package load_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/difftest"
	"symmem/internal/alloc"
)

var (
	programsFile   = flag.String("programs-file", "", "output file of TestWritePrograms")
	recordingsFile = flag.String("recordings", "",
		"archive of recordings made on GPUs, which TestRecordedPrograms reads")
	programsCount = flag.Int("programs", 600, "number of programs that TestWritePrograms writes")
)

// plantedProgram describes a program that bench/gpu/torch/planted.py runs on GPUs.
type plantedProgram struct {
	Kind    string     `json:"kind"` // kind of the planted difference, or ""
	Odd     int        `json:"odd"`  // number of the rank that differs
	Common  [][5]int64 `json:"common"`
	Planted [][5]int64 `json:"planted"` // program of rank Odd if it differs from Common
}

// encodeProgram encodes each request as tensor, size, stream, pool, and 1 for a free.
func encodeProgram(p difftest.Program) [][5]int64 {
	all := [][5]int64{}
	for _, r := range p {
		e := [5]int64{int64(r.Tensor), r.Size, int64(r.Stream), int64(r.Pool), 0}
		if r.IsFree {
			e[4] = 1
		}

		all = append(all, e)
	}

	return all
}

func decodeProgram(all [][5]int64) difftest.Program {
	p := difftest.Program{}
	for _, e := range all {
		p = append(p, difftest.Request{
			Tensor: int(e[0]), Size: e[1], Stream: int(e[2]), Pool: int(e[3]), IsFree: e[4] == 1,
		})
	}

	return p
}

// randomPlanted returns a random program for 4 ranks. Unless kind is empty, it contains a
// difference of that kind at a random point. Where places shall differ, the program uses one stream
// and one pool, so that several segments have free blocks of the same size.
func randomPlanted(rng *rand.Rand, kind string) plantedProgram {
	if kind == diff.KindPlace {
		p := difftest.RandomProgram(rng, 150+rng.IntN(150), 1, 1)
		return plantedProgram{Kind: kind, Odd: rng.IntN(4), Common: encodeProgram(p)}
	}

	for {
		p := difftest.RandomProgram(rng, 30+rng.IntN(120), pools, streams)
		program := plantedProgram{Kind: kind, Odd: rng.IntN(4), Common: encodeProgram(p)}
		if kind == "" {
			return program
		}

		q := difftest.PlantDifference(rng, p, kind, pools, streams)
		if q == nil {
			continue
		}

		if first := difftest.FirstDifference(p, q, pools); first[0] >= 0 || first[1] >= 0 {
			program.Planted = encodeProgram(q)
			return program
		}
	}
}

// TestWritePrograms writes the programs that bench/gpu/planted.sh runs. Every sixth program has
// no planted difference. The others cycle through all kinds of differences.
func TestWritePrograms(t *testing.T) {
	file, count := *programsFile, *programsCount
	if file == "" {
		file, count = filepath.Join(t.TempDir(), "programs.json"), 16
	}

	rng := rand.New(rand.NewPCG(41, 8))
	kinds := append([]string{diff.KindPlace}, difftest.DifferenceKinds...)
	var programs []plantedProgram
	for n := range count {
		kind := ""
		if n%6 > 0 {
			kind = kinds[(n-n/6-1)%len(kinds)]
		}

		programs = append(programs, randomPlanted(rng, kind))
	}

	b, err := json.Marshal(programs)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}

	var read []plantedProgram
	if err := json.Unmarshal(b, &read); err != nil || len(read) != count ||
		len(decodeProgram(read[0].Common)) < 30 {
		t.Errorf("read back %d programs, %v; want %d programs with at least 30 requests", len(read), err,
			count)
	}
}

// plantedRecording holds what bench/gpu/torch/planted.py recorded while it ran a program.
type plantedRecording struct {
	program   plantedProgram
	snapshots [][]byte        // by rank
	places    [][][][2]int64  // by rank and pool: segment and offset of each allocation
	calls     [][]plantedCall // by rank; set only in the recording of calls, which has no program
}

// plantedCall identifies a call of a group that one rank made differently.
type plantedCall struct {
	Group      string
	Call, Rank int
}

// readRecordings reads an archive of recordings. The keys of the result are program numbers and,
// for the recording of calls, "calls".
func readRecordings(t *testing.T, path string) map[string]*plantedRecording {
	t.Helper()
	all := map[string]*plantedRecording{}
	readArchive(t, path, func(name string, b []byte) {
		id, file, _ := strings.Cut(name, "/")
		r := all[id]
		if r == nil {
			r = &plantedRecording{}
			all[id] = r
		}

		var err error
		switch {
		case file == "program.json":
			err = json.Unmarshal(b, &r.program)
		case strings.HasSuffix(file, ".pickle"):
			r.snapshots = append(r.snapshots, b)
		case id == "calls":
			var calls []plantedCall
			err = json.Unmarshal(b, &calls)
			r.calls = append(r.calls, calls)
		default:
			var places [][][2]int64
			err = json.Unmarshal(b, &places)
			r.places = append(r.places, places)
		}

		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	})
	return all
}

// firstPlace returns the first request in a pool for which the ranks recorded different places,
// or -1 if there is none. All ranks must have made the same requests.
func (r *plantedRecording) firstPlace(pool int) int {
	request, allocation := 0, 0
	for _, q := range decodeProgram(r.program.Common) {
		if q.Pool != pool {
			continue
		}

		if !q.IsFree {
			for _, places := range r.places {
				if len(places[pool]) <= allocation ||
					places[pool][allocation] != r.places[0][pool][allocation] {
					return request
				}
			}

			allocation++
		}

		request++
	}

	return -1
}

// want returns, for each pool, the index of the first request and of the first place that must
// differ, or -1 if none must.
func (r *plantedRecording) want() [][2]int {
	common := decodeProgram(r.program.Common)
	requests := []int{-1, -1}
	if planted := decodeProgram(r.program.Planted); len(planted) > 0 {
		requests = difftest.FirstDifference(common, planted, pools)
	}

	all := [][2]int{}
	for pool, request := range requests {
		place := -1
		if request < 0 {
			place = r.firstPlace(pool)
		}

		all = append(all, [2]int{request, place})
	}

	return all
}

// firstDifferences returns, for each sequence of a report, the index of the first request and of
// the first place that differ, or -1 if none does.
func firstDifferences(report *diff.Report) [][2]int {
	all := [][2]int{}
	for _, s := range report.Sequences {
		found := [2]int{-1, -1}
		if s.RequestDifference != nil {
			found[0] = s.RequestDifference.RequestIndex
		} else if s.PlacementDifference != nil {
			found[1] = s.PlacementDifference.RequestIndex
		}

		all = append(all, found)
	}

	return all
}

// differences returns the elements that contain a difference, in sorted order. It drops the others,
// because a snapshot may contain further pools, which have no events.
func differences(all [][2]int) [][2]int {
	all = slices.DeleteFunc(all, func(first [2]int) bool { return first == [2]int{-1, -1} })
	slices.SortFunc(all, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
	return all
}

// simulateRecordings returns the recordings that a run on GPUs would produce if placement did
// not depend on addresses.
func simulateRecordings(rng *rand.Rand) map[string]*plantedRecording {
	all := map[string]*plantedRecording{}
	for i, kind := range append([]string{""}, difftest.DifferenceKinds...) {
		r := &plantedRecording{program: randomPlanted(rng, kind)}
		common, planted := decodeProgram(r.program.Common), decodeProgram(r.program.Planted)
		for rank := range 4 {
			p := common
			if rank == r.program.Odd && len(planted) > 0 {
				p = planted
			}

			o := difftest.RunOptions{Seed: rng.Uint64(), Policy: alloc.CreationOrder}
			snapshot := difftest.Snapshot(p, o)
			r.snapshots = append(r.snapshots, difftest.Pickle(snapshot, 4))
			places := make([][][2]int64, pools)
			for pool := range places {
				places[pool] = make([][2]int64, len(p)) // the same on all ranks
			}

			r.places = append(r.places, places)
		}

		all[fmt.Sprint(i)] = r
	}

	return all
}

// TestRecordedPrograms compares recordings of PyTorch's pools on 4 GPUs, which bench/gpu/planted.sh
// makes. Without -recordings, it simulates them. The first request that differs according to
// Compare must be the planted one. If none was planted, the first place that differs must be the
// first one that differs between the recorded places.
func TestRecordedPrograms(t *testing.T) {
	var recordings map[string]*plantedRecording
	if *recordingsFile == "" {
		recordings = simulateRecordings(rand.New(rand.NewPCG(rand.Uint64(), 4)))
	} else {
		recordings = readRecordings(t, *recordingsFile)
	}

	differing, agreeing := map[string]int{}, 0
	for id, r := range recordings {
		report := diff.Compare(read(t, r.snapshots...), diff.Options{})
		if id == "calls" {
			checkCalls(t, report, r.calls[0])
			continue
		}

		got, want := differences(firstDifferences(report)), differences(r.want())
		if !slices.Equal(got, want) {
			t.Errorf("program %s (%q): first requests and places %v; want %v", id, r.program.Kind, got,
				want)
		}

		if report.RanksAgree {
			agreeing++
		} else {
			differing[r.program.Kind]++
		}
	}

	t.Logf("programs that differ: %v; that agree: %d", differing, agreeing)
}

// checkCalls checks that the report names the planted call as the first one that differs in each
// group.
func checkCalls(t *testing.T, report *diff.Report, planted []plantedCall) {
	t.Helper()
	var got, want []string
	for _, s := range report.Sequences {
		if d := s.RequestDifference; d != nil {
			got = append(got, fmt.Sprintf("call %d on %v", d.RequestIndex, d.MinorityRanks))
		}
	}

	for _, p := range planted {
		want = append(want, fmt.Sprintf("call %d on %v", p.Call, []int{p.Rank}))
	}

	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("calls that differ = %q; want %q", got, want)
	}
}
