package verify

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"symmem"
	"symmem/internal/ranktest"
)

// runOnAllRanks runs the verification on ranks that are goroutines, and returns the report of each
// rank. Divergences and wrong sums do not fail the test.
func runOnAllRanks(t *testing.T, ranks int, c Config) []*Report {
	t.Helper()
	runtimes, err := symmem.OpenLocal(t.Context(), ranks, c.Options())
	if err != nil {
		t.Fatal(err)
	}

	reports := make([]*Report, ranks)
	runErr := ranktest.Run(ranks, func(rank int) (err error) {
		reports[rank], err = Run(t.Context(), runtimes[rank], c, nil)
		return err
	})
	// After a divergence, Close returns an error that the reports already contain.
	_ = ranktest.Run(ranks, func(rank int) error { return runtimes[rank].Close() })
	if runErr != nil {
		t.Fatal(runErr)
	}

	return reports
}

func smallConfig() Config {
	c := Default()
	c.Elements = 1 << 10
	c.Cases = 3
	c.Churn = 60  // random allocations and frees
	c.Skew = true // unrelated allocations, which differ between ranks
	c.Timeout = 20 * time.Second
	return c
}

func TestDefaultPlacementPassesAtAllCheckLevels(t *testing.T) {
	for _, level := range []symmem.CheckLevel{
		symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery,
	} {
		t.Run(level.String(), func(t *testing.T) {
			c := smallConfig()
			c.Check = level
			c.Groups = 3
			minCases := c.Cases * c.Rounds * c.Groups // churn adds more
			for rank, r := range runOnAllRanks(t, 3, c) {
				checkPassed(t, rank, r, minCases)
			}
		})
	}
}

// checkPassed requires at least minCases cases, which all passed with symmetric buffers.
func checkPassed(t *testing.T, rank int, r *Report, minCases int) {
	t.Helper()
	if !r.OK() || r.Passed != len(r.Cases) {
		t.Errorf("rank %d: %d of %d cases passed, want all; fault: %q", rank, r.Passed,
			len(r.Cases), r.Fault)
	}

	if len(r.Cases) < minCases {
		t.Errorf("rank %d: %d cases, want at least %d", rank, len(r.Cases), minCases)
	}

	for i := range r.Cases {
		if !r.Cases[i].Symmetric {
			t.Errorf("rank %d: case %s was not symmetric", rank, r.Cases[i].Name)
		}
	}
}

// divergingConfig returns a Config with which the ranks diverge: each rank reuses the free block
// with its lowest address.
func divergingConfig() Config {
	c := smallConfig()
	c.Placement = symmem.PlaceByAddress
	return c
}

// Without checks, ranks that diverged complete the run with wrong sums.
func TestPlacementByAddressGivesWrongSums(t *testing.T) {
	c := divergingConfig()
	c.Check = symmem.CheckOff
	for rank, r := range runOnAllRanks(t, 4, c) {
		if r.Failed == 0 || r.OK() {
			t.Errorf("rank %d: %d cases failed, OK() = %v; want failed cases and false", rank,
				r.Failed, r.OK())
		}

		if r.NotRun != 0 || r.Divergence != nil {
			t.Errorf("rank %d: %d cases did not run, divergence = %v; want 0 and none", rank, r.NotRun,
				r.Divergence)
		}
	}
}

// Both check levels find the same divergence. CheckEvery finds it before a sum is wrong.
func TestAllRanksReportSameDivergence(t *testing.T) {
	var first *symmem.DivergenceError // of rank 0 with the first level
	for _, level := range []symmem.CheckLevel{symmem.CheckEvery, symmem.CheckRegistration} {
		c := divergingConfig()
		c.Check = level
		for rank, r := range runOnAllRanks(t, 4, c) {
			if r.Divergence == nil || r.OK() {
				t.Fatalf("%v, rank %d: divergence = %v, OK() = %v; want a divergence and false", level, rank,
					r.Divergence, r.OK())
			}

			if level == symmem.CheckEvery && r.Failed > 0 {
				t.Errorf("%v, rank %d: %d sums were wrong, want none", level, rank, r.Failed)
			}

			if first == nil {
				first = r.Divergence
			}

			if diff := cmp.Diff(first, r.Divergence); diff != "" {
				t.Errorf("%v, rank %d: divergence differs from the first one (-first +got):\n%s", level,
					rank, diff)
			}
		}
	}
}

// A divergence in a group of three ranks also ends the run on the fourth rank.
func TestNonMembersReportGroupDivergence(t *testing.T) {
	c := divergingConfig()
	c.Check = symmem.CheckEvery
	c.Groups = 4 // the world and three groups of three ranks
	reports := runOnAllRanks(t, 4, c)
	first := reports[0].Divergence
	if first == nil {
		t.Fatal("rank 0: no divergence")
	}

	for rank, r := range reports {
		if r.Divergence == nil || r.Divergence.Message != first.Message {
			t.Errorf("rank %d: divergence = %+v, want the same as on rank 0, %+v", rank, r.Divergence, first)
		}
	}
}

// With a formula, a fixed order of additions, results are right bit for bit.
func TestTypesAndReductionsMatchFormula(t *testing.T) {
	const (
		smallest = 2 // the size of a float64, in float32 elements
		odd      = 1023
	)
	for _, elements := range []int64{smallest, odd} {
		c := smallConfig()
		c.Elements = elements
		c.Churn = 0
		c.Deterministic = symmem.FormulaRankOrder
		c.Cases = 40 // enough for all combinations of type and reduction
		wantPassed := c.Cases * c.Rounds
		for rank, r := range runOnAllRanks(t, 3, c) {
			if !r.OK() || r.Passed != wantPassed {
				t.Errorf("%d elements, rank %d: %d of %d cases passed, want %d; fault: %q", elements,
					rank, r.Passed, len(r.Cases), wantPassed, r.Fault)
			}
		}
	}
}

func TestValidateRejectsInvalidConfig(t *testing.T) {
	valid := Default()
	if err := valid.Validate(); err != nil {
		t.Fatalf("Validate of the default Config: %v", err)
	}

	for name, change := range map[string]func(*Config){
		"no cases":          func(c *Config) { c.Cases = 0 },
		"no rounds":         func(c *Config) { c.Rounds = 0 },
		"no elements":       func(c *Config) { c.Elements = 0 },
		"less than 8 bytes": func(c *Config) { c.Elements, c.Deterministic = 1, symmem.FormulaRankOrder },
		"negative churn":    func(c *Config) { c.Churn = -1 },
		"too many groups":   func(c *Config) { c.Groups = maxGroups + 1 },
		"too many cases":    func(c *Config) { c.Cases, c.Rounds = maxCases, maxRounds },
		"negative timeout":  func(c *Config) { c.Timeout = -1 },
	} {
		c := Default()
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: Validate(%+v) = nil, want an error", name, c)
		}
	}
}
