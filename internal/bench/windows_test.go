package bench

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRequestsAddUpAndAreThoseOfTheirSeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Windows{
			Bytes: rapid.Int64Range(1, 1<<33).Draw(t, "bytes"), Least: 2 << 20, Most: 48 << 20,
			Seed: rapid.Uint64().Draw(t, "seed"),
		}
		all, sum := w.Requests(), int64(0)
		for i, bytes := range all {
			sum += bytes
			last := i == len(all)-1
			if bytes > w.Most || bytes < 1 || bytes < w.Least && !last {
				t.Fatalf("request %d of %d has %d bytes", i, len(all), bytes)
			}
		}
		if sum != w.Bytes {
			t.Fatalf("requests add up to %d, not %d", sum, w.Bytes)
		}
		if !slices.Equal(all, w.Requests()) {
			t.Fatal("the same seed draws other requests")
		}
	})
}

func TestMoreWindowsThanTheDesignAllowsAreAnError(t *testing.T) {
	report := NewReport("windows")
	report.Results = append(report.Results, Result{Counts: map[string]float64{"windows": MaxWindows}})
	if err := report.TooMany(); err != nil {
		t.Error(err)
	}
	report.Results[0].Counts["windows"]++
	if report.TooMany() == nil {
		t.Errorf("%d windows are no error", MaxWindows+1)
	}
}
