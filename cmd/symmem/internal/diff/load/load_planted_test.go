package load_test

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/difftest"
)

var (
	programsFile  = flag.String("programs-file", "", "file that TestWritePrograms writes")
	programsCount = flag.Int("programs", 600, "number of programs that TestWritePrograms writes")
)

// plantedProgram is a program that bench/gpu/torch/planted.py runs on GPUs.
type plantedProgram struct {
	Kind    string     `json:"kind"` // of the planted difference, or "" without
	Odd     int        `json:"odd"`  // the rank that differs
	Common  [][5]int64 `json:"common"`
	Planted [][5]int64 `json:"planted"` // the program of the odd rank if it makes other requests
}

// encodeProgram returns a program's requests as tensor, size, stream, pool, and 1 for a free.
func encodeProgram(p difftest.Program) [][5]int64 {
	all := [][5]int64{}
	for _, r := range p {
		e := [5]int64{int64(r.Tensor), r.Size, int64(r.Stream), int64(r.Pool), 0}
		if r.Free {
			e[4] = 1
		}
		all = append(all, e)
	}
	return all
}

// decodeProgram reverses encodeProgram.
func decodeProgram(all [][5]int64) difftest.Program {
	p := difftest.Program{}
	for _, e := range all {
		p = append(p, difftest.Request{
			Tensor: int(e[0]), Size: e[1], Stream: int(e[2]), Pool: int(e[3]), Free: e[4] == 1,
		})
	}
	return p
}

// randomPlanted returns a program for 4 ranks with a difference of a kind at a random place, or
// without a difference.
func randomPlanted(rng *rand.Rand, kind string) plantedProgram {
	for {
		p := difftest.Random(rng, 30+rng.IntN(120), pools, streams)
		program := plantedProgram{Kind: kind, Odd: rng.IntN(4), Common: encodeProgram(p)}
		if kind == "" || kind == diff.KindPlace {
			return program
		}
		q := difftest.Plant(rng, p, kind, streams, pools)
		if q == nil {
			continue
		}
		if first := difftest.FirstDifference(p, q, pools); first[0] >= 0 || first[1] >= 0 {
			program.Planted = encodeProgram(q)
			return program
		}
	}
}

// TestWritePrograms writes the programs that bench/gpu/planted.sh runs. Every sixth program has no
// planted difference, and the others have differences of all kinds in turn.
func TestWritePrograms(t *testing.T) {
	if *programsFile == "" {
		*programsFile = t.TempDir() + "/programs.json"
		*programsCount = 16
	}
	rng := rand.New(rand.NewPCG(41, 8))
	kinds := append([]string{diff.KindPlace}, difftest.Kinds...)
	var programs []plantedProgram
	for n := range *programsCount {
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
	if err := os.WriteFile(*programsFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var read []plantedProgram
	if err := json.Unmarshal(b, &read); err != nil || len(read) != *programsCount ||
		len(decodeProgram(read[0].Common)) < 30 {
		t.Errorf("the file has %d programs, %v; want %d with 30 requests or more", len(read), err,
			*programsCount)
	}
}
