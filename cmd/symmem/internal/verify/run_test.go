package verify

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"symmem"
	"symmem/internal/ranktest"
)

func runOnAllRanks(t *testing.T, ranks int, c Config) []*Report {
	t.Helper()
	runtimes, err := symmem.OpenLocal(t.Context(), ranks, c.Options())
	if err != nil {
		t.Fatal(err)
	}
	reports := make([]*Report, ranks)
	err = ranktest.Run(ranks, func(r int) (err error) {
		reports[r], err = Run(t.Context(), runtimes[r], c, nil)
		return err
	})
	// After a divergence, Close returns the same error, which the reports contain.
	_ = ranktest.Run(ranks, func(r int) error { return runtimes[r].Close() })
	if err != nil {
		t.Fatal(err)
	}
	return reports
}

func smallConfig() Config {
	c := Default()
	c.Elements, c.Cases, c.Churn, c.Skew = 1<<10, 3, 60, true
	c.Timeout = 20 * time.Second
	return c
}

func TestDefaultPlacementPassesAtAllCheckLevels(t *testing.T) {
	for _, level := range []symmem.CheckLevel{
		symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery,
	} {
		t.Run(level.String(), func(t *testing.T) {
			c := smallConfig()
			c.Check, c.Groups = level, 3
			wantCases := c.Cases * c.Rounds * c.Groups // without the cases of the churn
			for _, r := range runOnAllRanks(t, 3, c) {
				if !r.OK() || r.Passed != len(r.Cases) || r.Passed < wantCases {
					t.Errorf("%d of %d cases passed, want all of at least %d; fault: %q",
						r.Passed, len(r.Cases), wantCases, r.Fault)
				}
				for i := range r.Cases {
					if c := &r.Cases[i]; !c.Symmetric {
						t.Errorf("case %s was not symmetric", c.Name)
					}
				}
			}
		})
	}
}

// divergingConfig returns a Config with which the ranks place buffers differently.
func divergingConfig() Config {
	c := smallConfig()
	c.Placement = symmem.PlaceByAddress
	return c
}

func TestPlacementByAddressGivesWrongSums(t *testing.T) {
	c := divergingConfig()
	c.Check = symmem.CheckOff
	for _, r := range runOnAllRanks(t, 4, c) {
		if r.Failed == 0 || r.Divergence != nil || r.OK() || r.NotRun != 0 {
			t.Errorf("%d cases failed, %d did not run, divergence = %v; want only failed cases",
				r.Failed, r.NotRun, r.Divergence)
		}
	}
}

func TestAllRanksReportSameDivergence(t *testing.T) {
	var first *symmem.DivergenceError
	for _, level := range []symmem.CheckLevel{symmem.CheckEvery, symmem.CheckRegistration} {
		c := divergingConfig()
		c.Check = level
		for rank, r := range runOnAllRanks(t, 4, c) {
			if r.Divergence == nil || r.OK() {
				t.Fatalf("%v, rank %d: no divergence", level, rank)
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

func TestNonMembersReportGroupDivergence(t *testing.T) {
	c := divergingConfig()
	c.Check, c.Groups = symmem.CheckEvery, 4
	reports := runOnAllRanks(t, 4, c)
	for rank, r := range reports {
		if r.Divergence == nil || r.Divergence.Message != reports[0].Divergence.Message {
			t.Errorf("rank %d: divergence = %+v, want that of rank 0", rank, r.Divergence)
		}
	}
}

func TestTypesAndReductionsMatchFormula(t *testing.T) {
	for _, elements := range []int64{2, 1023} {
		c := smallConfig()
		c.Elements, c.Churn, c.Deterministic = elements, 0, symmem.FormulaRankOrder
		c.Cases = 40 // enough for each combination of a type and a reduction
		wantPassed := c.Cases * c.Rounds
		for _, r := range runOnAllRanks(t, 3, c) {
			if !r.OK() || r.Passed != wantPassed {
				t.Errorf("%d elements: %d of %d cases passed, want %d; fault: %q", elements, r.Passed,
					len(r.Cases), wantPassed, r.Fault)
			}
		}
	}
}

func TestValidateRejectsInvalidConfig(t *testing.T) {
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
		if err := c.Validate(); err != nil {
			t.Fatalf("Validate of the default Config: %v", err)
		}
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: Validate accepted the Config", name)
		}
	}
}
