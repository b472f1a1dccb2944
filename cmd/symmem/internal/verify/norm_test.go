package verify

import (
	"testing"
)

func TestNormReportCombinesRanks(t *testing.T) {
	const right, wrong, none = normPassed, normFailed, normNotRun
	for _, c := range []struct {
		name     string
		outcomes [3]normOutcome // of one norm of the world
		want     NormReport
	}{
		{"all ranks are right", [3]normOutcome{right, right, right}, NormReport{Passed: 1}},
		{"one rank is wrong", [3]normOutcome{right, wrong, right}, NormReport{Failed: 1}},
		{"one rank did not run", [3]normOutcome{right, right, none}, NormReport{}},
		{
			"one rank is wrong and one did not run",
			[3]normOutcome{none, wrong, right},
			NormReport{Failed: 1},
		},
	} {
		results := make([]rankResult, 3)
		for r := range results {
			results[r] = rankResult{
				Rank: r, Norms: normFindings{Outcomes: []normOutcome{c.outcomes[r]}},
			}
		}

		if got := normReport(results, 3); got != c.want {
			t.Errorf("%s: normReport() = %+v, want %+v", c.name, got, c.want)
		}
	}

	refused := []rankResult{{}, {Rank: 1, Norms: normFindings{Refused: "no kernels"}}}
	if got := normReport(refused, 2).Refused; got != "no kernels" {
		t.Errorf("normReport().Refused = %q, want the reason of rank 1", got)
	}
}

func TestNormsOfAllGroupsPass(t *testing.T) {
	c := smallConfig()
	c.Groups, c.Rounds, c.Churn = 3, 1, 0
	for rank, r := range runOnAllRanks(t, 3, c) {
		if want := (NormReport{Passed: 3 * normsPerGroup}); r.Norms != want {
			t.Errorf("rank %d: Norms = %+v, want %+v; fault: %s", rank, r.Norms, want, r.Fault)
		}
	}
}
