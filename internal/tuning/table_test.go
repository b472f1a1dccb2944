package tuning

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// anyPoints draws times at ascending sizes.
func anyPoints(t *rapid.T) []Point {
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

// anyTable draws a table that is valid.
func anyTable(t *rapid.T) *Table {
	table := &Table{
		Device:    rapid.StringMatching(`[A-Za-z0-9 "\\/]{1,20}`).Draw(t, "device"),
		Library:   rapid.StringMatching(`[A-Z0-9. ]{0,12}`).Draw(t, "library"),
		Otherwise: rapid.SampledFrom([]Path{Plain, Window}).Draw(t, "otherwise"),
	}
	for _, operation := range operations {
		for ranks := range rapid.IntRange(0, 3).Draw(t, "rules") {
			table.Rules = append(table.Rules, Rule{
				Operation: operation, Shape: Shape{Ranks: ranks + 1, Machines: 1},
				Steps: Derive(table.Otherwise, anyPoints(t)),
			})
		}
	}
	return table
}

func TestATableIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := anyTable(t)
		encoded, err := table.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(encoded)
		if err != nil {
			t.Fatalf("%v in\n%s", err, encoded)
		}
		want := *table
		want.Rules = sorted(table.Rules)
		if diff := cmp.Diff(&want, again, cmp.Transformer("measured", func(s Step) string {
			return fmt.Sprint(s)
		})); diff != "" {
			t.Fatalf("(-written +read):\n%s", diff)
		}
		if table.Digest() != again.Digest() {
			t.Fatal("the digest has changed")
		}
	})
}

func TestEveryMeasuredSizeTakesThePathOfItsStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		points := anyPoints(t)
		group := Shape{Ranks: 2, Machines: 1}
		rule := Rule{Operation: "AllReduce", Shape: group, Steps: Derive(Plain, points)}
		table := &Table{Device: "box", Otherwise: Plain, Rules: []Rule{rule}}
		if err := table.Validate(); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for i, s := range rule.Steps {
			if i > 0 && s.Path == rule.Steps[i-1].Path {
				t.Fatalf("steps %d and %d take one path", i-1, i)
			}
			for _, p := range s.Measured {
				seen++
				if path, _ := table.Choose("AllReduce", group, int64(p.Bytes)); path != s.Path {
					t.Fatalf("%v was put with %s, but takes %s", p.Bytes, s.Path, path)
				}
			}
		}
		if seen != len(points) {
			t.Fatalf("%d of %d points are in steps", seen, len(points))
		}
	})
}

func TestNoMeasuredSizeTakesAPathThatIsSurelySlower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, s := range Derive(Window, anyPoints(t)) {
			for _, p := range s.Measured {
				taken, other := p.PlainUS, p.WindowUS
				if s.Path == Window {
					taken, other = other, taken
				}
				if taken/other-1 > 1.001*max(p.NoisePercent, FloorPercent)/100 {
					t.Fatalf("%+v takes %s", p, s.Path)
				}
			}
		}
	})
}

func TestTheDigestIsThatOfWhatDecides(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	same := *table
	same.Device, same.Date, same.Origin = "another", "never", "by hand"
	same.Rules = slices.Clone(table.Rules)
	slices.Reverse(same.Rules)
	same.Rules[0].Steps = slices.Clone(same.Rules[0].Steps)
	same.Rules[0].Steps[0].Measured = nil
	if same.Digest() != table.Digest() {
		t.Error("what explains has changed the digest")
	}
	if h100 := Builtin("nccl", "NVIDIA H100 80GB HBM3"); h100.Digest() != table.Digest() {
		t.Error("devices with one set of figures differ")
	}
	for name, change := range map[string]func(*Table){
		"otherwise":   func(t *Table) { t.Otherwise = Window },
		"a limit":     func(t *Table) { t.Rules[0].Steps[0].UpTo++ },
		"a path":      func(t *Table) { t.Rules[0].Steps[0].Path = Plain },
		"the ranks":   func(t *Table) { t.Rules[0].Ranks = 3 },
		"machines":    func(t *Table) { t.Rules[0].Machines = 2 },
		"a rule less": func(t *Table) { t.Rules = t.Rules[1:] },
	} {
		other := Builtin("nccl", "NVIDIA H200")
		if change(other); other.Digest() == table.Digest() {
			t.Errorf("%s has left the digest as it was", name)
		}
	}
}

func TestRulesReplaceThoseOfTheSameOperationAndShape(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	fresh := []Rule{
		{Operation: "AllReduce", Shape: Shape{2, 1}, Steps: []Step{{Path: Window}}},
		{Operation: "AllReduce", Shape: Shape{4, 2}, Steps: []Step{{Path: Window}}},
	}
	got := table.Replace(fresh...)
	if err := got.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(got.Rules) != len(table.Rules)+1 {
		t.Errorf("%d rules", len(got.Rules))
	}
	for _, c := range []struct {
		group Shape
		want  Path
	}{{Shape{2, 1}, Window}, {Shape{4, 1}, Plain}, {Shape{4, 2}, Window}} {
		if path, _ := got.Choose("AllReduce", c.group, 256<<10); path != c.want {
			t.Errorf("%v takes %s", c.group, path)
		}
	}
	if path, _ := table.Choose("AllReduce", Shape{2, 1}, 256<<10); path != Plain {
		t.Error("the old table has changed")
	}
}

func TestAChoiceAllocatesNothing(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	group := Shape{Ranks: 4, Machines: 1}
	n := testing.AllocsPerRun(100, func() {
		if path, _ := table.Choose("ReduceScatter", group, 1<<26); path != Plain {
			t.Error(path)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecode(f *testing.F) {
	encoded, err := Builtin("nccl", "NVIDIA H200").Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoded)
	f.Add([]byte(`{"version": 1, "device": "d", "otherwise": "window", "rules": null}`))
	f.Add([]byte(`{"version": 1, "device": "d", "otherwise": "plain", "rules": [{"steps": [{}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := Decode(data)
		if (table == nil) != (err != nil) {
			t.Fatalf("%v and %v", table, err)
		}
		if err != nil {
			return
		}
		again, err := table.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(again)
		if err != nil || back.Digest() != table.Digest() {
			t.Fatalf("written anew it is another table: %v\n%s", err, again)
		}
	})
}

func BenchmarkChoose(b *testing.B) {
	table := Builtin("nccl", "NVIDIA H200")
	group := Shape{Ranks: 4, Machines: 1}
	b.ReportAllocs()
	for b.Loop() {
		table.Choose("ReduceScatter", group, 1<<26)
	}
}
