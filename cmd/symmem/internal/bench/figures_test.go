package bench

import (
	"testing"

	"symmem"
	"symmem/bench/report"
)

func TestPathSlowerThanPlainExceedsBar(t *testing.T) {
	for _, c := range []struct {
		name        string
		took        symmem.PathChoice
		plain, auto []float64
		wantOver    bool
	}{
		{"faster", symmem.PathDirect, []float64{100, 100, 100}, []float64{50, 50, 50}, false},
		{"within limit", symmem.PathDirect, []float64{100, 100, 100}, []float64{101, 101, 101}, false},
		{"slower", symmem.PathDirect, []float64{100, 100, 100}, []float64{103, 103, 103}, true},
		{
			"slower in two of three pairs, while the machine became faster", symmem.PathWindow,
			[]float64{300, 200, 100},
			[]float64{310, 150, 110},
			true,
		},
		{"plain path", symmem.PathPlain, []float64{100, 100, 100}, []float64{110, 110, 110}, false},
	} {
		r := report.Result{
			Summary: report.Summarize(c.auto), Figures: map[string]float64{},
			Params: map[string]any{"took": c.took.String()},
		}
		setLimit(&r, c.auto, c.plain)
		if r.IsOverLimit() != c.wantOver {
			t.Errorf("%s: IsOverLimit() = %v with bar %g, want %v",
				c.name, r.IsOverLimit(), r.Limit, c.wantOver)
		}
	}
}
