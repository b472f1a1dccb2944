package tuning

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var reduceCalls = Calls{Operation: "AllReduce", Shape: Shape{Ranks: 2, Machines: 1}}

func drawPoints(t *rapid.T) []Point {
	var points []Point
	size := Size(1)
	for range rapid.IntRange(0, 12).Draw(t, "points") {
		size += Size(rapid.IntRange(1, 1<<20).Draw(t, "bytes"))
		points = append(points, Point{
			Bytes:        size,
			PlainUS:      rapid.Float64Range(1, 1000).Draw(t, "plain"),
			WindowUS:     rapid.Float64Range(1, 1000).Draw(t, "window"),
			NoisePercent: rapid.Float64Range(0, 20).Draw(t, "noise"),
		})
	}

	return points
}

// drawTimes draws times of all paths, or of all except the window path.
func drawTimes(t *rapid.T) []Point {
	points, windows := drawPoints(t), rapid.Bool().Draw(t, "windows")
	for i := range points {
		points[i].DirectUS = rapid.Float64Range(1, 1000).Draw(t, "direct")
		if !windows {
			points[i].WindowUS = 0
		}
	}

	return points
}

// addInPlacePoints adds times of calls in place, often at the same sizes.
func addInPlacePoints(t *rapid.T, points, inPlace []Point) []Point {
	differentSizes := rapid.Bool().Draw(t, "different sizes")
	for i, p := range inPlace {
		if !differentSizes && i < len(points) {
			p.Bytes = points[i].Bytes
		}

		p.InPlace = true
		points = append(points, p)
	}

	return points
}

func drawTable(t *rapid.T) *Table {
	table := &Table{
		Device:      rapid.StringMatching(`[A-Za-z0-9 "\\/]{1,20}`).Draw(t, "device"),
		Library:     rapid.StringMatching(`[A-Z0-9. ]{0,12}`).Draw(t, "library"),
		DataType:    rapid.SampledFrom([]string{"", "float32", "int8"}).Draw(t, "type"),
		DefaultPath: rapid.SampledFrom([]Path{Plain, Window}).Draw(t, "otherwise"),
	}
	for _, operation := range operations {
		for ranks := range rapid.IntRange(0, 3).Draw(t, "rules") {
			calls := Calls{Operation: operation, Shape: Shape{Ranks: ranks + 1, Machines: 1}}
			points := addInPlacePoints(t, drawPoints(t), drawPoints(t))
			table.Rules = append(table.Rules, Derive(calls, table.DefaultPath, points))
			calls.Memory = rapid.SampledFrom([]Memory{Symmetric, AnyMemory}).Draw(t, "memory")
			points = addInPlacePoints(t, drawTimes(t), drawTimes(t))
			table.Rules = append(table.Rules, Derive(calls, table.DefaultPath, points))
		}
	}

	if rapid.Bool().Draw(t, "general") {
		table.Rules = append(table.Rules, Rule{
			Calls: Calls{Memory: AnyMemory}, Steps: []Step{{Path: Direct}},
		})
	}

	return table
}

func TestTableRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := drawTable(t)
		encoded, err := table.Encode()
		if err != nil {
			t.Fatal(err)
		}

		decoded, err := Decode(encoded)
		if err != nil {
			t.Fatalf("Decode: %v in\n%s", err, encoded)
		}

		want := *table
		want.Rules = sorted(table.Rules)
		if diff := cmp.Diff(&want, decoded, cmp.Transformer("measured", func(s Step) string {
			return fmt.Sprint(s)
		})); diff != "" {
			t.Fatalf("the decoded table differs (-written +read):\n%s", diff)
		}

		if table.Digest() != decoded.Digest() {
			t.Fatal("encoding and decoding changed the digest")
		}
	})
}

func TestMeasuredSizesTakePathOfStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		points := addInPlacePoints(t, drawPoints(t), drawPoints(t))
		table := &Table{
			Device: "box", DefaultPath: Plain, Rules: []Rule{Derive(reduceCalls, Plain, points)},
		}
		if err := table.Validate(); err != nil {
			t.Fatal(err)
		}

		count, steps := 0, table.Rules[0].Steps
		for i, s := range steps {
			if i > 0 && s.Path == steps[i-1].Path {
				t.Fatalf("steps %d and %d have the same path", i-1, i)
			}

			for _, p := range s.Measured {
				count++
				path, _ := table.Choose("AllReduce", int64(p.Bytes), reduceCalls.Shape)
				if path != s.Path {
					t.Fatalf("%v is in a step with path %s, but takes %s", p.Bytes, s.Path, path)
				}
			}
		}

		if count != len(points) {
			t.Fatalf("steps contain %d points, want %d", count, len(points))
		}
	})
}

// slowdown returns the time on a path divided by the time on the other path.
func (p Point) slowdown(path Path) float64 {
	if path == Window {
		return p.WindowUS / p.PlainUS
	}

	return p.PlainUS / p.WindowUS
}

// threshold returns the ratio of times above which a path counts as slower than the other.
func (p Point) threshold() float64 { return 1 + max(p.NoisePercent, FloorPercent)/100 }

func TestWindowIsNotChosenIfPlainIsFaster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		points := addInPlacePoints(t, drawPoints(t), drawPoints(t))
		for _, s := range Derive(reduceCalls, Window, points).Steps {
			for _, p := range s.Measured {
				if s.Path == Window && p.slowdown(Window) > 1.00001*p.threshold() {
					t.Fatalf("%+v takes the window path, although plain is faster", p)
				}
			}
		}
	})
}

func TestDirectIsNotChosenIfAnotherPathIsFaster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		calls := reduceCalls
		calls.Memory = Symmetric
		points := addInPlacePoints(t, drawTimes(t), drawTimes(t))
		table := &Table{
			Device: "box", DefaultPath: Plain, Rules: []Rule{Derive(calls, Plain, points)},
		}
		if err := table.Validate(); err != nil {
			t.Fatal(err)
		}

		for _, p := range points {
			bytes := int64(p.Bytes)
			path, reason := table.ChooseDirect("AllReduce", bytes, true, reduceCalls.Shape)
			if !reason.HasRule() || path == Direct && p.DirectUS/p.NotDirectUS() > 1.00001*p.threshold() {
				t.Fatalf("%+v: ChooseDirect = %v, because %v; want the fastest path", p, path, reason)
			}

			path, _ = table.ChooseDirect("AllReduce", bytes, false, reduceCalls.Shape)
			if path != NotDirect {
				t.Fatal("a rule about symmetric buffers affects other buffers")
			}
		}
	})
}

func TestPathThatIsAlwaysFasterIsChosen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		points := addInPlacePoints(t, drawPoints(t), drawPoints(t))
		faster := rapid.SampledFrom([]Path{Plain, Window}).Draw(t, "faster")
		for i := range points {
			p := &points[i]
			p.PlainUS = p.WindowUS * 2 * p.threshold()
			if faster == Plain {
				p.PlainUS = p.WindowUS / 2 / p.threshold()
			}
		}

		for _, s := range Derive(reduceCalls, Window, points).Steps {
			if len(points) > 0 && s.Path != faster {
				t.Fatalf("a step takes %s, want %s", s.Path, faster)
			}
		}
	})
}

func TestDigestCoversEverythingThatAffectsChoices(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	same := *table
	same.Device, same.Date, same.Origin = "another", "never", "by hand"
	same.Rules = slices.Clone(table.Rules)
	slices.Reverse(same.Rules)
	same.Rules[0].Steps = slices.Clone(same.Rules[0].Steps)
	same.Rules[0].Steps[0].Measured, same.DataType = nil, "int8"
	if same.Digest() != table.Digest() {
		t.Error("documentation changed the digest")
	}

	if h100 := Builtin("nccl", "NVIDIA H100 80GB HBM3"); h100.Digest() != table.Digest() {
		t.Error("devices with the same times have different digests")
	}

	for name, change := range map[string]func(*Table){
		"otherwise":      func(t *Table) { t.DefaultPath = Window },
		"a limit":        func(t *Table) { t.Rules[0].Steps[0].MaxBytes++ },
		"a path":         func(t *Table) { t.Rules[0].Steps[0].Path = Plain },
		"the ranks":      func(t *Table) { t.Rules[0].Ranks = 3 },
		"machines":       func(t *Table) { t.Rules[0].Machines = 2 },
		"the memory":     func(t *Table) { t.Rules[0].Memory = "" },
		"a missing rule": func(t *Table) { t.Rules = t.Rules[1:] },
	} {
		other := Builtin("nccl", "NVIDIA H200")
		if change(other); other.Digest() == table.Digest() {
			t.Errorf("a change of %s did not change the digest", name)
		}
	}
}

func TestBuiltinTableNamesMeasuredDevice(t *testing.T) {
	if name := Builtin("nccl", "NVIDIA H100 80GB HBM3").Name(); !strings.Contains(name, "H200") {
		t.Errorf("Name() = %s, want a name with H200", name)
	}
}

func TestRulesCanBeDerivedAgain(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	var rules []Rule
	for _, memory := range []Memory{"", Symmetric, AnyMemory} {
		calls := Calls{Operation: "AllGather", Shape: Shape{4, 1}, Memory: memory}
		rules = append(rules, Derive(calls, table.DefaultPath, table.Measured(calls)))
	}

	if got := table.Replace(rules...); got.Digest() != table.Digest() {
		t.Errorf("rules derived from the same times choose differently: %v", rules)
	}
}

func TestWithoutTimesPreservesRules(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	got := table.WithoutTimes()
	if got.Digest() != table.Digest() {
		t.Error("WithoutTimes changed the digest")
	}

	if m := got.Measured(reduceCalls); len(m) != 0 {
		t.Errorf("%d times remain, want none", len(m))
	}

	if m := table.Measured(reduceCalls); len(m) == 0 {
		t.Error("WithoutTimes removed the times of the original table")
	}
}

// TestNegativeNoiseIsRejected checks a point whose noise is negative, although by less than 1.
func TestNegativeNoiseIsRejected(t *testing.T) {
	for noise, wantValid := range map[float64]bool{
		-0.5: false, 0: true, 0.5: true, math.Inf(1): false, math.NaN(): false,
	} {
		p := Point{Bytes: 1, PlainUS: 1, WindowUS: 1, NoisePercent: noise}
		const isDirect = false
		if err := p.validate(isDirect); (err == nil) != wantValid {
			t.Errorf("a noise of %v %%: got %v, want valid = %v", noise, err, wantValid)
		}
	}
}

func TestReplace(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	result := []Rule{
		{Calls: Calls{Operation: "AllReduce", Shape: Shape{2, 1}}, Steps: []Step{{Path: Window}}},
		{Calls: Calls{Operation: "AllReduce", Shape: Shape{4, 2}}, Steps: []Step{{Path: Window}}},
	}
	got := table.Replace(result...)
	if err := got.Validate(); err != nil {
		t.Fatal(err)
	}

	if len(got.Rules) != len(table.Rules)+1 {
		t.Errorf("got %d rules, want %d", len(got.Rules), len(table.Rules)+1)
	}

	const bytes = 256 << 10
	for _, c := range []struct {
		group Shape
		want  Path
	}{{Shape{2, 1}, Window}, {Shape{4, 1}, Plain}, {Shape{4, 2}, Window}} {
		if path, _ := got.Choose("AllReduce", bytes, c.group); path != c.want {
			t.Errorf("Choose for %v = %s, want %s", c.group, path, c.want)
		}
	}

	if path, _ := table.Choose("AllReduce", bytes, Shape{2, 1}); path != Plain {
		t.Error("Replace changed the original table")
	}
}

func TestChoosingDoesNotAllocate(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	group := Shape{Ranks: 4, Machines: 1}
	n := testing.AllocsPerRun(100, func() {
		if path, _ := table.Choose("ReduceScatter", 1<<26, group); path != Plain {
			t.Errorf("Choose = %s, want plain", path)
		}

		if path, _ := table.ChooseDirect("Barrier", 1<<26, true, group); path != Direct {
			t.Errorf("ChooseDirect = %s, want direct", path)
		}
	})
	if n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func FuzzDecode(f *testing.F) {
	encoded, err := Builtin("nccl", "NVIDIA H200").Encode()
	if err != nil {
		f.Fatal(err)
	}

	f.Add(encoded)
	f.Add([]byte(`{"version": 4, "device": "d", "otherwise": "window", "rules": null}`))
	f.Add([]byte(`{"version": 4, "device": "d", "otherwise": "plain", "rules": [{"steps": [{}]}]}`))
	f.Add([]byte(`{"version": 4, "device": "d", "otherwise": "plain", "rules": [{"steps": null}]}`))
	f.Add([]byte(`{"version": 4, "device": "d", "otherwise": "plain", "rules": [{"memory": "any"}]}`))
	f.Add([]byte(`{"version": 4, "device": "d", "otherwise": "plain", "rules": [{"operation": "Reduce",
		"ranks": 1, "machines": 1, "steps": [{"path": "plain"}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := Decode(data)
		if (table == nil) != (err != nil) {
			t.Fatalf("Decode = %v, %v; want either a table or an error", table, err)
		}

		if err != nil {
			return
		}

		decoded, err := table.Encode()
		if err != nil {
			t.Fatal(err)
		}

		decodedAgain, err := Decode(decoded)
		if err != nil || decodedAgain.Digest() != table.Digest() {
			t.Fatalf("encoding changes the table: %v\n%s", err, decoded)
		}
	})
}

func BenchmarkChoose(b *testing.B) {
	table := Builtin("nccl", "NVIDIA H200")
	group := Shape{Ranks: 4, Machines: 1}
	b.ReportAllocs()
	for b.Loop() {
		table.Choose("ReduceScatter", 1<<26, group)
	}
}

// TestTwoLevelRule derives a rule from times of the two-level path, and looks up calls in it.
func TestTwoLevelRule(t *testing.T) {
	shape := Shape{Ranks: 4, Machines: 2}
	calls := Calls{Operation: "AllReduce", Memory: Symmetric, Shape: shape}
	rule := Derive(calls, Plain, []Point{
		{Bytes: 1 << 20, PlainUS: 10, TwoLevelUS: 30},
		{Bytes: 1 << 24, PlainUS: 100, TwoLevelUS: 101},
		{Bytes: 1 << 26, PlainUS: 400, TwoLevelUS: 200},
		{Bytes: 1 << 27, PlainUS: 800, TwoLevelUS: 400},
		{Bytes: 1 << 27, InPlace: true, PlainUS: 800, TwoLevelUS: 700, NoisePercent: 20},
	})
	table := &Table{Device: "box", DefaultPath: Plain, Rules: []Rule{rule}}
	if err := table.Validate(); err != nil {
		t.Fatal(err)
	}

	wants := map[int64]Path{
		1 << 20: NotDirect, 1 << 24: NotDirect, 1 << 26: TwoLevel, 1 << 27: NotDirect,
	}
	for bytes, want := range wants {
		if got, why := table.ChooseDirect("AllReduce", bytes, true, shape); got != want {
			t.Errorf("ChooseDirect(%d bytes) = %s, because %v; want %s", bytes, got, why, want)
		}
	}

	other := Shape{Ranks: 4, Machines: 1}
	if !table.CanUseTwoLevel(shape) || table.CanUseTwoLevel(other) {
		t.Errorf("CanUseTwoLevel(%v) = %t, CanUseTwoLevel(%v) = %t; want true, false", shape,
			table.CanUseTwoLevel(shape), other, table.CanUseTwoLevel(other))
	}

	table.Rules[0].Shape = other
	if err := table.Validate(); err == nil {
		t.Error("Validate accepts a two-level path for one machine")
	}

	table.Rules[0].Shape = shape
	table.Rules[0].Steps[0].Measured[0].DirectUS = 1
	if err := table.Validate(); err == nil {
		t.Error("Validate accepts a point with times of both the direct and the two-level path")
	}
}
