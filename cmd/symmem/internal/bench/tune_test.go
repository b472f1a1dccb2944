package bench

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem"
	"symmem/bench/report"
	"symmem/internal/tuning"
)

func TestNoiseIsErrorOfMedian(t *testing.T) {
	if n := noisePercent([]float64{2, 2, 2, 2}); n != 0 {
		t.Errorf("the noise of identical ratios is %v percent, want 0", n)
	}

	if n := noisePercent(nil); n != 0 {
		t.Errorf("the noise without ratios is %v percent, want 0", n)
	}

	// The standard error of the median of n draws from a normal distribution is 1.253 deviations
	// divided by the square root of n. noisePercent must estimate twice that error from one sample.
	random := rand.New(rand.NewPCG(1, 2))
	const trials, draws, deviation = 2000, 41, 0.05
	covered, sum := 0, 0.0
	for range trials {
		sample := make([]float64, draws)
		for i := range sample {
			sample[i] = 1 + deviation*random.NormFloat64()
		}

		n := noisePercent(sample)
		sum += n
		if 100*math.Abs(report.Summarize(sample).Median-1) <= n {
			covered++
		}
	}

	want := 100 * 2 * 1.253 * deviation / math.Sqrt(draws)
	if mean := sum / trials; math.Abs(mean/want-1) > 0.1 {
		t.Errorf("the mean noise is %.3f percent, want %.3f", mean, want)
	}

	if share := float64(covered) / trials; share < 0.9 {
		t.Errorf("%.3f of all medians are within the noise, want about 0.95", share)
	}
}

func TestNoiseIgnoresOutliers(t *testing.T) {
	sample := make([]float64, 21)
	for i := range sample {
		sample[i] = 1
	}

	sample[3], sample[17] = 50, 0.01
	if n := noisePercent(sample); n != 0 {
		t.Errorf("the noise with two outliers in 21 batches is %v percent, want 0", n)
	}
}

func TestNewPointComparesAdjacentBatches(t *testing.T) {
	// Both paths drift by a factor of ten together, which does not affect their ratios.
	plain := []float64{2000, 4000, 8000, 20000, 2000}
	window := []float64{1000, 2000, 4000, 10000, 1000}
	direct := []float64{500, 1000, 2000, 5000, 500}
	noisy := []float64{3000, 9000, 40000, 8000, 4000}
	steady := []float64{2000, 2000, 2000, 2000, 2000}
	for _, row := range []struct {
		name                  string
		plain, window, direct []float64
		want                  tuning.Point
	}{
		{"plain and window", plain, window, nil, tuning.Point{PlainUS: 4, WindowUS: 2}},
		{
			"direct against both", plain, window, direct,
			tuning.Point{PlainUS: 4, WindowUS: 2, DirectUS: 1},
		},
		{"direct against plain", plain, nil, direct, tuning.Point{PlainUS: 4, DirectUS: 1}},
		{
			"noise of the plain path, which is not the fastest", noisy, steady, steady,
			tuning.Point{PlainUS: 8, WindowUS: 2, DirectUS: 2},
		},
	} {
		row.want.Bytes = 4096
		if got := newPoint(4096, row.plain, row.window, row.direct); got != row.want {
			t.Errorf("%s: got %+v, want %+v", row.name, got, row.want)
		}
	}

	if p := newPoint(1, []float64{0.1}, []float64{0.1}, nil); p.PlainUS <= 0 || p.WindowUS <= 0 {
		t.Errorf("got %+v, want positive times, which tables require", p)
	}
}

func newTuneResult() *TuneResult {
	points := []tuning.Point{
		{Bytes: 1 << 10, PlainUS: 13, WindowUS: 7.4, NoisePercent: 1.5},
		{Bytes: 128 << 10, PlainUS: 14.8, WindowUS: 17, NoisePercent: 0.4},
	}
	inPlace := tuning.Point{
		Bytes: 128 << 10, InPlace: true, PlainUS: 15, WindowUS: 17, NoisePercent: 0.5,
	}
	direct := []tuning.Point{
		{Bytes: 1 << 10, PlainUS: 13, WindowUS: 7.4, DirectUS: 3.1, NoisePercent: 1.5},
		{Bytes: 1 << 20, PlainUS: 20, WindowUS: 18, DirectUS: 24, NoisePercent: 0.4},
	}
	anywhere := []tuning.Point{{Bytes: 1 << 10, PlainUS: 13, DirectUS: 6.5, NoisePercent: 1.5}}
	var rules []tuning.Rule
	for _, measured := range []struct {
		memory tuning.Memory
		points []tuning.Point
	}{{"", append(points, inPlace)}, {tuning.Symmetric, direct}, {tuning.AnyMemory, anywhere}} {
		rules = append(rules, tuning.Derive(tuning.Calls{
			Operation: "AllReduce", Shape: tuning.Shape{Ranks: 4, Machines: 1}, Memory: measured.memory,
		}, tuning.Plain, measured.points))
	}

	return &TuneResult{
		Table: &tuning.Table{Device: "box", DefaultPath: tuning.Plain, Rules: rules},
		Rules: rules, Skipped: []string{"broadcast: there is no window path"},
		Device: "box", Ranks: 4,
	}
}

func TestTextShowsChosenPathsAndGains(t *testing.T) {
	var out strings.Builder
	if err := newTuneResult().WriteText(&out); err != nil {
		t.Fatal(err)
	}

	want := `operation size buffers plain window direct noise chosen wins
AllReduce 1KiB out of place symmetric 13.0 us 7.40 us - 1.5 % window +75.7 %
AllReduce 128KiB out of place symmetric 14.8 us 17.0 us - 0.4 % plain +14.9 %
AllReduce 128KiB in place symmetric 15.0 us 17.0 us - 0.5 % plain +13.3 %
AllReduce 1KiB out of place symmetric 13.0 us 7.40 us 3.10 us 1.5 % direct +138.7 %
AllReduce 1MiB out of place symmetric 20.0 us 18.0 us 24.0 us 0.4 % other +33.3 %
AllReduce 1KiB out of place any 13.0 us - 6.50 us 1.5 % direct +100.0 %
AllReduce on 4 ranks: window up to 48KiB, plain above 48KiB
AllReduce on 4 ranks, symmetric buffers: direct up to 160KiB, another path than direct above 160KiB
AllReduce on 4 ranks, any buffers: direct at every size
broadcast: there is no window path
`
	// Ignore the widths of columns.
	got := regexp.MustCompile(`(?m)^ +| +( )`).ReplaceAllString(out.String(), "$1")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the text differs (-want +got):\n%s", diff)
	}
}

func TestTuneJSONContainsTable(t *testing.T) {
	tuned := newTuneResult()
	document, err := tuned.Document("t.json", true)
	if err != nil {
		t.Fatal(err)
	}

	out, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}

	var got struct {
		File    string          `json:"file"`
		Written bool            `json:"written"`
		Skipped []string        `json:"skipped"`
		Table   json.RawMessage `json:"table"`
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}

	table, err := tuning.Decode(got.Table)
	if err != nil {
		t.Fatal(err)
	}

	if got.File != "t.json" || !got.Written || len(got.Skipped) != 1 ||
		table.Digest() != tuned.Table.Digest() {
		t.Errorf("got %s, want the file, one skipped operation and the table", out)
	}
}

func TestPointsAddMeasuredPaths(t *testing.T) {
	nsPerCall := []float64{1000}
	windows := []tuning.Point{{Bytes: 64, InPlace: true, PlainUS: 1, WindowUS: 1}}
	direct := []tuning.Point{{Bytes: 64, InPlace: true, PlainUS: 1, WindowUS: 1, DirectUS: 1}}
	directOnly := []tuning.Point{{Bytes: 64, InPlace: true, PlainUS: 1, DirectUS: 1}}
	twoLevelOnly := []tuning.Point{{Bytes: 64, InPlace: true, PlainUS: 1, TwoLevelUS: 1}}
	for _, row := range []struct {
		name string
		all  batches
		want points
	}{
		{"only plain", batches{plain: nsPerCall}, points{}},
		{
			"plain and window",
			batches{plain: nsPerCall, window: nsPerCall},
			points{windows: windows},
		},
		{
			"direct without a window path",
			batches{plain: nsPerCall, direct: nsPerCall},
			points{direct: directOnly},
		},
		{
			"all paths",
			batches{
				plain: nsPerCall, window: nsPerCall, direct: nsPerCall, twoLevel: nsPerCall,
				anywhere: nsPerCall,
			},
			points{windows: windows, direct: direct, anywhere: directOnly},
		},
		{
			"two levels",
			batches{plain: nsPerCall, twoLevel: nsPerCall},
			points{direct: twoLevelOnly},
		},
	} {
		var got points
		got.addPoints(64, true, row.all)
		if diff := cmp.Diff(row.want, got, cmp.AllowUnexported(points{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.name, diff)
		}
	}
}

func TestCompareUsesAdjacentBatches(t *testing.T) {
	r := &report.Result{Params: map[string]any{}, Figures: map[string]float64{}}
	setBaseline(r, []float64{10, 20, 40}, map[symmem.PathChoice][]float64{
		symmem.PathPlain: {12, 22, 44}, symmem.PathWindow: {9, 19, 39},
	})
	if r.Params["better"] != "window" || *r.Ratio != 0.95 || r.Figures["plain_ns"] != 22 {
		t.Errorf("got %+v, want window as the better path, and ratio 0.95", r)
	}

	setBaseline(r, []float64{10, 20, 40}, map[symmem.PathChoice][]float64{
		symmem.PathPlain: {12, 22, 44}, symmem.PathWindow: {9, 19, 39}, symmem.PathDirect: {5, 10, 20},
	})
	if r.Params["better"] != "direct" || *r.Ratio != 0.5 {
		t.Errorf("with direct: got %+v, want direct as the better path, and ratio 0.5", r)
	}
}

func TestRunnerOrderIsBalanced(t *testing.T) {
	for n := 1; n <= 5; n++ {
		first, last, after := make([]int, n), make([]int, n), map[[2]int]int{}
		for round := range 2 * n {
			order := runnerOrder(n, round)
			if slices.Compare(slices.Sorted(slices.Values(order)), []int{0, 1, 2, 3, 4}[:n]) != 0 {
				t.Fatalf("runnerOrder(%d, %d) = %v; want a permutation", n, round, order)
			}

			first[order[0]]++
			last[order[n-1]]++
			for i := 1; i < n; i++ {
				after[[2]int{order[i-1], order[i]}]++
			}
		}

		for i := range n {
			if first[i] != 2 || last[i] != 2 {
				t.Errorf("%d runners: first %v times, last %v times; want 2 each", n, first, last)
			}

			for j := range n {
				if want := after[[2]int{0, 1}]; i != j && after[[2]int{i, j}] != want {
					t.Errorf("%d runners: pairs are adjacent %v times, want %d each", n, after, want)
				}
			}
		}
	}
}

func TestMergePointsKeepsOutsideSizes(t *testing.T) {
	sizes := func(bytes ...tuning.Size) (points []tuning.Point) {
		for _, b := range bytes {
			points = append(points, tuning.Point{Bytes: b})
		}

		return points
	}
	got := mergePoints(sizes(1, 2, 4, 8, 16), sizes(2, 3, 8))
	if diff := cmp.Diff(sizes(2, 3, 8, 1, 16), got); diff != "" {
		t.Errorf("the merged points differ (-want +got):\n%s", diff)
	}

	if got := mergePoints(sizes(1, 2), nil); got != nil {
		t.Errorf("without new times, mergePoints = %v, want nil", got)
	}
}
