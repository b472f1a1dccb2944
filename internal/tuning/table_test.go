package tuning

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// reduces is what rules in tests are about that need no more.
var reduces = Rule{Calls: Calls{Operation: "AllReduce", Shape: Shape{Ranks: 2, Machines: 1}}}

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

// anyTimes draws times of all paths, with the window path or without.
func anyTimes(t *rapid.T) []Point {
	points, windows := anyPoints(t), rapid.Bool().Draw(t, "windows")
	for i := range points {
		points[i].DirectUS = rapid.Float64Range(1, 1000).Draw(t, "direct")
		if !windows {
			points[i].WindowUS = 0
		}
	}
	return points
}

// anyHalves draws times of work out of place and in place, most of them at the same sizes.
func anyHalves(t *rapid.T) (outOfPlace, inPlace []Point) {
	outOfPlace = anyPoints(t)
	for i, p := range anyPoints(t) {
		if i < len(outOfPlace) {
			p.Bytes = outOfPlace[i].Bytes
			inPlace = append(inPlace, p)
		}
	}
	if rapid.Bool().Draw(t, "apart") {
		return outOfPlace, anyPoints(t)
	}
	return outOfPlace, inPlace
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
			about := Rule{Calls: Calls{
				Operation: operation, Shape: Shape{Ranks: ranks + 1, Machines: 1},
				DataType: rapid.SampledFrom([]string{"", "float32", "int8"}).Draw(t, "type"),
			}}
			out, in := anyHalves(t)
			table.Rules = append(
				table.Rules, DeriveRules(table.Otherwise, about, out, in)...)
			memory := rapid.SampledFrom([]Memory{Symmetric, Anywhere}).Draw(t, "memory")
			table.Rules = append(table.Rules,
				DeriveDirect(about, memory, anyTimes(t), anyTimes(t))...)
		}
	}
	if rapid.Bool().Draw(t, "general") {
		table.Rules = append(table.Rules, Rule{
			Calls: Calls{Memory: Anywhere}, Steps: []Step{{Path: Direct}},
		})
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
		out, in := anyHalves(t)
		table := &Table{
			Device: "box", Otherwise: Plain, Rules: DeriveRules(Plain, reduces, out, in),
		}
		if err := table.Validate(); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, r := range table.Rules {
			for i, s := range r.Steps {
				if i > 0 && s.Path == r.Steps[i-1].Path {
					t.Fatalf("steps %d and %d take one path", i-1, i)
				}
				for _, p := range s.Measured {
					seen++
					inPlace := r.HalfOf(p) == InPlace
					path, _ := table.Choose(
						Call{Operation: "AllReduce", InPlace: inPlace, Bytes: int64(p.Bytes)}, reduces.Shape)
					if path != s.Path {
						t.Fatalf("%v was put with %s, but takes %s", p.Bytes, s.Path, path)
					}
				}
			}
		}
		if seen != len(out)+len(in) {
			t.Fatalf("%d of %d points are in steps", seen, len(out)+len(in))
		}
	})
}

// slower is how many times as long a path takes as the other one.
func (p Point) slower(path Path) float64 {
	if path == Window {
		return p.WindowUS / p.PlainUS
	}
	return p.PlainUS / p.WindowUS
}

// counts is how much slower a path must be to be surely slower.
func (p Point) counts() float64 { return 1 + max(p.NoisePercent, FloorPercent)/100 }

func TestNoMeasuredSizeTakesAPathThatIsSurelySlower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out, in := anyHalves(t)
		for _, r := range DeriveRules(Window, reduces, out, in) {
			for _, s := range r.Steps {
				for _, p := range s.Measured {
					if p.slower(s.Path) > 1.00001*p.counts() {
						t.Fatalf("%+v takes %s", p, s.Path)
					}
				}
			}
		}
	})
}

func TestDirectIsTakenOnlyWhereNoOtherPathIsSurelyFaster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out, in := anyTimes(t), anyTimes(t)
		table := &Table{
			Device: "box", Otherwise: Plain, Rules: DeriveDirect(reduces, Symmetric, out, in),
		}
		if err := table.Validate(); err != nil {
			t.Fatal(err)
		}
		for i, points := range [][]Point{out, in} {
			for _, p := range points {
				call := Call{Operation: "AllReduce", InPlace: i == 1, Bytes: int64(p.Bytes)}
				direct, why := table.ChooseDirect(call, true, reduces.Shape)
				ratio := p.DirectUS / p.OtherUS()
				if !direct {
					ratio = 1 / ratio
				}
				if !why.Ruled() || ratio > 1.00001*p.counts() {
					t.Fatalf("%+v: direct %v, as %v", p, direct, why)
				}
				if direct, _ := table.ChooseDirect(call, false, reduces.Shape); direct {
					t.Fatal("a rule about symmetric buffers sends others direct")
				}
			}
		}
	})
}

func TestHalvesShareARuleUnlessASizeSetsThemApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out, in := anyHalves(t)
		want := min(1, len(out)) + min(1, len(in))
		if want == 2 && !slices.ContainsFunc(out, func(o Point) bool {
			return slices.ContainsFunc(in, func(i Point) bool {
				return o.Bytes == i.Bytes &&
					(o.slower(Plain) > o.counts() && i.slower(Window) > i.counts() ||
						o.slower(Window) > o.counts() && i.slower(Plain) > i.counts())
			})
		}) {
			want = 1
		}
		got := DeriveRules(Plain, reduces, out, in)
		if len(got) != want {
			t.Fatalf("%d rules, want %d: %v", len(got), want, got)
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
	same.Rules[0].Steps[0].Measured, same.Rules[0].MeasuredType = nil, "int8"
	if same.Digest() != table.Digest() {
		t.Error("what explains has changed the digest")
	}
	if h100 := Builtin("nccl", "NVIDIA H100 80GB HBM3"); h100.Digest() != table.Digest() {
		t.Error("devices with one set of figures differ")
	}
	for name, change := range map[string]func(*Table){
		"otherwise": func(t *Table) { t.Otherwise = Window },
		"a limit":   func(t *Table) { t.Rules[0].Steps[0].UpTo++ },
		"a path":    func(t *Table) { t.Rules[0].Steps[0].Path = Plain },
		"the ranks": func(t *Table) { t.Rules[0].Ranks = 3 },
		"machines":  func(t *Table) { t.Rules[0].Machines = 2 },
		"the half":  func(t *Table) { t.Rules[0].Half = InPlace },
		"the type": func(t *Table) {
			t.Rules[len(t.Rules)-1].DataType, t.Rules[len(t.Rules)-1].MeasuredType = "int8", ""
		},
		"the memory":  func(t *Table) { t.Rules[0].Memory = "" },
		"a rule less": func(t *Table) { t.Rules = t.Rules[1:] },
	} {
		other := Builtin("nccl", "NVIDIA H200")
		if change(other); other.Digest() == table.Digest() {
			t.Errorf("%s has left the digest as it was", name)
		}
	}
}

func TestTablesThatDifferInATypeAloneHaveAnotherDigest(t *testing.T) {
	seen := map[uint64]string{}
	for _, dataType := range []string{"", "int8", "uint8"} {
		rule := reduces
		rule.DataType, rule.Steps = dataType, []Step{{Path: Window}}
		digest := (&Table{Device: "box", Otherwise: Plain, Rules: []Rule{rule}}).Digest()
		if other, ok := seen[digest]; ok {
			t.Errorf("rules about %q and %q have one digest", other, dataType)
		}
		seen[digest] = dataType
	}
}

func TestTheTableOfADeviceWithTheSameLinksSaysOnWhichItWasMeasured(t *testing.T) {
	if name := Builtin("nccl", "NVIDIA H100 80GB HBM3").Name(); !strings.Contains(name, "H200") {
		t.Errorf("it is called %s", name)
	}
}

func TestRulesAreDerivedAnewFromWhatTheyWereDerivedFrom(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	about := func(m Memory) Rule {
		return Rule{Calls: Calls{Operation: "AllGather", Shape: Shape{4, 1}, Memory: m}}
	}
	w := table.Measured(about(""), "bfloat16")
	d := table.Measured(about(Symmetric), "bfloat16")
	anywhere := table.Measured(about(Anywhere), "bfloat16")
	rules := slices.Concat(
		DeriveRules(table.Otherwise, about(""), w[0], w[1]),
		DeriveDirect(about(""), Symmetric, d[0], d[1]),
		DeriveDirect(about(""), Anywhere, anywhere[0], nil))
	if got := table.Replace(rules...); got.Digest() != table.Digest() || len(rules) < 3 {
		t.Errorf("the %d rules decide otherwise: %v", len(rules), rules)
	}
}

func TestTimesAreThoseOfTheirType(t *testing.T) {
	rule := func(dataType, measured string, us float64) Rule {
		r := reduces
		r.DataType, r.MeasuredType = dataType, measured
		r.Steps = []Step{{Path: Plain, Measured: []Point{{Bytes: 1, PlainUS: us, WindowUS: us}}}}
		return r
	}
	of := func(table *Table, dataType string) (us []float64) {
		for _, points := range table.Measured(reduces, dataType) {
			for _, p := range points {
				us = append(us, p.PlainUS)
			}
		}
		return us
	}
	table := &Table{Rules: []Rule{rule("", "bfloat16", 1), rule("int8", "", 2)}}
	for dataType, want := range map[string][]float64{"bfloat16": {1}, "int8": {2}, "float32": nil} {
		if got := of(table, dataType); !slices.Equal(got, want) {
			t.Errorf("of %s: %v, want %v", dataType, got, want)
		}
	}
	table.Rules[0] = rule("", "", 3)
	if got := of(table, "bfloat16"); got != nil {
		t.Errorf("times of an unknown type pass for bfloat16: %v", got)
	}
	table.Rules = append(table.Rules, rule("bfloat16", "", 4))
	if got := of(table, "bfloat16"); !slices.Equal(got, []float64{4}) {
		t.Errorf("got %v, want those of the rule about bfloat16", got)
	}
}

func TestWithoutTimesATableDecidesAlike(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	got, about := table.WithoutTimes(), Rule{
		Calls: Calls{Operation: "AllReduce", Shape: Shape{2, 1}},
	}
	if got.Digest() != table.Digest() {
		t.Error("it decides otherwise")
	}
	if m := got.Measured(about, "bfloat16"); len(m[0])+len(m[1]) != 0 {
		t.Errorf("%d times are left", len(m[0])+len(m[1]))
	}
	if m := table.Measured(about, "bfloat16"); len(m[0]) == 0 {
		t.Error("the table itself has lost its times")
	}
}

func TestOnlyRulesThatWouldHideNewOnesGo(t *testing.T) {
	plain := []Step{{Path: Plain}}
	fresh := Rule{
		Calls: Calls{Operation: "AllReduce", Shape: Shape{2, 1}, Half: InPlace}, Steps: plain,
	}
	with := func(change func(r *Rule)) Rule {
		r := fresh
		r.DataType = "int8"
		change(&r)
		return r
	}
	hides := map[string]Rule{
		"the same calls": with(func(*Rule) {}),
		"both halves":    with(func(r *Rule) { r.Half = BothHalves }),
	}
	stays := map[string]Rule{
		"another type":      with(func(r *Rule) { r.DataType = "uint8" }),
		"another operation": with(func(r *Rule) { r.Operation = "AllGather" }),
		"another shape":     with(func(r *Rule) { r.Ranks = 4 }),
		"a memory":          with(func(r *Rule) { r.Memory = Symmetric }),
		"the other half":    with(func(r *Rule) { r.Half = OutOfPlace }),
	}
	for name, r := range hides {
		if got := (&Table{Rules: []Rule{r}}).Without("int8", []Rule{fresh}); len(got.Rules) != 0 {
			t.Errorf("%s: the rule is still there", name)
		}
	}
	for name, r := range stays {
		if got := (&Table{Rules: []Rule{r}}).Without("int8", []Rule{fresh}); len(got.Rules) != 1 {
			t.Errorf("%s: the rule is gone", name)
		}
	}
	typed := fresh
	typed.DataType = "uint8"
	if got := (&Table{Rules: []Rule{hides["both halves"]}}).Without("int8", []Rule{typed}); len(
		got.Rules) != 1 {
		t.Error("a new rule about another type hides nothing, but a rule is gone")
	}
}

func TestRulesReplaceThoseOfTheSameOperationAndShape(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	fresh := []Rule{
		{Calls: Calls{Operation: "AllReduce", Shape: Shape{2, 1}}, Steps: []Step{{Path: Window}}},
		{Calls: Calls{Operation: "AllReduce", Shape: Shape{4, 2}}, Steps: []Step{{Path: Window}}},
	}
	got := table.Replace(fresh...)
	if err := got.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(got.Rules) != len(table.Rules)+1 {
		t.Errorf("%d rules", len(got.Rules))
	}
	call := Call{Operation: "AllReduce", Bytes: 256 << 10}
	for _, c := range []struct {
		group Shape
		want  Path
	}{{Shape{2, 1}, Window}, {Shape{4, 1}, Plain}, {Shape{4, 2}, Window}} {
		if path, _ := got.Choose(call, c.group); path != c.want {
			t.Errorf("%v takes %s", c.group, path)
		}
	}
	if path, _ := table.Choose(call, Shape{2, 1}); path != Plain {
		t.Error("the old table has changed")
	}
}

func TestARuleReplacesThoseAboutSomeOfItsCalls(t *testing.T) {
	rule := func(h Half) Rule {
		return Rule{
			Calls: Calls{Operation: "AllGather", Shape: Shape{4, 1}, Half: h},
			Steps: []Step{{Path: Window}},
		}
	}
	for _, row := range []struct {
		name       string
		old, fresh []Half
		out, in    Path
	}{
		{"one for both replaces both", []Half{OutOfPlace, InPlace}, []Half{BothHalves}, Window, Window},
		{"two replace one for both", []Half{BothHalves}, []Half{OutOfPlace, InPlace}, Window, Window},
		{"one half replaces one for both", []Half{BothHalves}, []Half{InPlace}, Plain, Window},
		{"one half leaves the other", []Half{OutOfPlace}, []Half{InPlace}, Window, Window},
	} {
		t.Run(row.name, func(t *testing.T) {
			table := &Table{Device: "box", Otherwise: Plain}
			for _, h := range row.old {
				table.Rules = append(table.Rules, rule(h))
			}
			var fresh []Rule
			for _, h := range row.fresh {
				fresh = append(fresh, rule(h))
			}
			table = table.Replace(fresh...)
			if err := table.Validate(); err != nil {
				t.Fatal(err)
			}
			out, _ := table.Choose(Call{Operation: "AllGather"}, Shape{4, 1})
			in, _ := table.Choose(Call{Operation: "AllGather", InPlace: true}, Shape{4, 1})
			if out != row.out || in != row.in {
				t.Errorf("out of place %s, in place %s", out, in)
			}
		})
	}
}

func TestAChoiceAllocatesNothing(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	group := Shape{Ranks: 4, Machines: 1}
	scatter := Call{Operation: "ReduceScatter", DataType: "int8", InPlace: true, Bytes: 1 << 26}
	barrier := Call{Operation: "Barrier", InPlace: true, Bytes: 1 << 26}
	n := testing.AllocsPerRun(100, func() {
		if path, _ := table.Choose(scatter, group); path != Plain {
			t.Error(path)
		}
		if direct, _ := table.ChooseDirect(barrier, true, group); !direct {
			t.Error("not direct")
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
	f.Add([]byte(`{"version": 3, "device": "d", "otherwise": "window", "rules": null}`))
	f.Add([]byte(`{"version": 3, "device": "d", "otherwise": "plain", "rules": [{"steps": [{}]}]}`))
	f.Add([]byte(`{"version": 3, "device": "d", "otherwise": "plain", "rules": [{"in_place": null}]}`))
	f.Add([]byte(`{"version": 3, "device": "d", "otherwise": "plain", "rules": [{"memory": "any"}]}`))
	f.Add([]byte(`{"version": 3, "device": "d", "otherwise": "plain", "rules": [{"operation": "Reduce",
		"data_type": "int8", "ranks": 1, "machines": 1, "steps": [{"path": "plain"}]}]}`))
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
	call := Call{Operation: "ReduceScatter", DataType: "int8", InPlace: true, Bytes: 1 << 26}
	b.ReportAllocs()
	for b.Loop() {
		table.Choose(call, group)
	}
}
