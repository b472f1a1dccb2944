package verify

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"symmem"
	"symmem/internal/ranktest"
)

// The verification runs cases, each of which sums the buffers of all ranks, and checks the sum.
// The buffers of a case must be the same allocation on all ranks. For example, the ranks allocate
// the buffers A and B:
//
//   - By default, all ranks place A before B. All sums are right.
//   - With PlaceByAddress, a rank may place A where another places B. This is a divergence. If a
//     check detects it, the run ends, and the reports describe the first event that differs.
//     Without checks, the run continues and adds A to B, so that sums are wrong.

// runOnAllRanks runs the verification with ranks that are goroutines, and returns their reports.
// The test fails if Run returns an error. A divergence and wrong sums are no errors of Run.
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
	// After a divergence, Close returns the same error, which the reports contain.
	_ = ranktest.Run(ranks, func(rank int) error { return runtimes[rank].Close() })
	if runErr != nil {
		t.Fatal(runErr)
	}

	return reports
}

// smallConfig returns a Config for a short run.
func smallConfig() Config {
	c := Default()
	c.Elements = 1 << 10
	c.Cases = 3
	c.Churn = 60  // random allocations and frees before the cases
	c.Skew = true // ranks also make unrelated allocations, which differ between ranks
	c.Timeout = 20 * time.Second
	return c
}

// TestDefaultPlacementPassesAtAllCheckLevels checks that all sums are right if ranks place buffers
// in the order of creation, although the ranks allocate at different times.
func TestDefaultPlacementPassesAtAllCheckLevels(t *testing.T) {
	for _, level := range []symmem.CheckLevel{
		symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery,
	} {
		t.Run(level.String(), func(t *testing.T) {
			c := smallConfig()
			c.Check = level
			c.Groups = 3
			minCases := c.Cases * c.Rounds * c.Groups // without the cases of the churn
			for rank, r := range runOnAllRanks(t, 3, c) {
				checkPassed(t, rank, r, minCases)
			}
		})
	}
}

// checkPassed checks that a rank ran at least minCases cases, and that all passed. Their buffers
// must be symmetric, which means that they are registered with the group.
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

// divergingConfig returns a Config with which the ranks diverge. Each rank reuses the free memory
// with the lowest address, and addresses differ between ranks.
func divergingConfig() Config {
	c := smallConfig()
	c.Placement = symmem.PlaceByAddress
	return c
}

// TestPlacementByAddressGivesWrongSums lets ranks diverge without checks. All cases must run, and
// some of their sums must be detected as wrong.
func TestPlacementByAddressGivesWrongSums(t *testing.T) {
	c := divergingConfig()
	c.Check = symmem.CheckOff
	for rank, r := range runOnAllRanks(t, 4, c) {
		if r.Failed == 0 || r.OK() {
			t.Errorf("rank %d: %d cases failed, OK() = %v; want some and false", rank, r.Failed, r.OK())
		}

		if r.NotRun != 0 || r.Divergence != nil {
			t.Errorf("rank %d: %d cases did not run, divergence = %v; want 0 and none", rank, r.NotRun,
				r.Divergence)
		}
	}
}

// TestAllRanksReportSameDivergence lets ranks diverge at two check levels. At both, all ranks must
// report the same divergence. CheckEvery must detect it before a sum is wrong.
func TestAllRanksReportSameDivergence(t *testing.T) {
	var first *symmem.DivergenceError // of rank 0 with the first level
	for _, level := range []symmem.CheckLevel{symmem.CheckEvery, symmem.CheckRegistration} {
		c := divergingConfig()
		c.Check = level
		for rank, r := range runOnAllRanks(t, 4, c) {
			if r.Divergence == nil || r.OK() {
				t.Fatalf("%v, rank %d: divergence = %v, OK() = %v; want one and false", level, rank,
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

// TestNonMembersReportGroupDivergence runs cases in groups of three of the four ranks. A divergence
// in a group must also end the run on the rank that is not a member. All must report the same.
func TestNonMembersReportGroupDivergence(t *testing.T) {
	c := divergingConfig()
	c.Check = symmem.CheckEvery
	c.Groups = 4 // the world, which consists of all ranks, and three groups of three ranks
	reports := runOnAllRanks(t, 4, c)
	first := reports[0].Divergence
	if first == nil {
		t.Fatal("rank 0: no divergence")
	}

	for rank, r := range reports {
		if r.Divergence == nil || r.Divergence.Message != first.Message {
			t.Errorf("rank %d: divergence = %+v, want that of rank 0, %+v", rank, r.Divergence, first)
		}
	}
}

// TestTypesAndReductionsMatchFormula requires a formula, which is a fixed order of additions. The
// results of all types and reductions must then be right bit for bit.
func TestTypesAndReductionsMatchFormula(t *testing.T) {
	const (
		smallest = 2 // in units of 4 bytes; the largest type has 8 bytes
		odd      = 1023
	)
	for _, elements := range []int64{smallest, odd} {
		c := smallConfig()
		c.Elements = elements
		c.Churn = 0
		c.Deterministic = symmem.FormulaRankOrder
		c.Cases = 40 // enough for each combination of a type and a reduction
		wantPassed := c.Cases * c.Rounds
		for rank, r := range runOnAllRanks(t, 3, c) {
			if !r.OK() || r.Passed != wantPassed {
				t.Errorf("%d elements, rank %d: %d of %d cases passed, want %d; fault: %q", elements,
					rank, r.Passed, len(r.Cases), wantPassed, r.Fault)
			}
		}
	}
}

// TestValidateRejectsInvalidConfig makes one change to the default, which is valid, in each case.
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
