package tuning

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Version is the version of the format that this package writes and reads.
const Version = 1

// Path is the way a collective runs.
type Path string

// The paths that a table chooses between.
const (
	Plain  Path = "plain"
	Window Path = "window"
)

// valid tells whether a path is one of the two.
func (p Path) valid() bool { return p == Plain || p == Window }

// operations are those that a rule can be about, as driver names them: the others have no window
// path.
var operations = []string{
	"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll",
}

// Shape is what a table looks at in a group.
type Shape struct {
	// Ranks is how many there are, Machines on how many machines they run.
	Ranks, Machines int
}

// String writes a shape for people: "4 ranks", "16 ranks on 2 machines".
func (s Shape) String() string {
	if s.Machines > 1 {
		return fmt.Sprintf("%d ranks on %d machines", s.Ranks, s.Machines)
	}
	if s.Ranks == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", s.Ranks)
}

// Table says which path collectives take. It is immutable once it is used, and safe for concurrent
// use then.
type Table struct {
	// Device, Library, Date and Source say what was measured, when, and by whom, for people.
	Device, Library, Date, Source string
	// Otherwise is the path where no rule applies.
	Otherwise Path
	// Rules are in no order; there is one at most for each operation, shape and half.
	Rules []Rule
	// Origin says where the table was found, such as "built-in table"; it is not encoded.
	Origin string
}

// Rule is about one operation on groups of one shape, or about one half of its calls.
type Rule struct {
	// Operation is the name that driver has for it, such as "AllReduce".
	Operation string
	Shape
	Half Half
	// Steps ascend in UpTo; the last has none.
	Steps []Step
}

// Step is a range of sizes that take one path: those above the step before, up to UpTo.
type Step struct {
	// UpTo is the largest size of the step; 0 means that there is no end.
	UpTo Size
	Path Path
	// Measured are the times in the step's range that it was derived from.
	Measured []Point
}

// Point is both paths measured at one size, in turns.
type Point struct {
	Bytes Size
	// PlainUS and WindowUS are medians in microseconds for a call, on the slowest rank.
	PlainUS, WindowUS float64
	// NoisePercent is how far the ratio of the two can be off by chance, in percent; 0 if that is
	// not known.
	NoisePercent float64
	// InPlace tells, in a rule about both halves, that the calls worked in place.
	InPlace bool
}

// Name is how reasons and errors call the table.
func (t *Table) Name() string {
	origin := t.Origin
	if origin == "" {
		origin = "table"
	}
	return origin + " of " + t.Device
}

// Choose returns the path of a call whose larger buffer has so many bytes, and what decided. It
// allocates nothing.
func (t *Table) Choose(
	operation string, inPlace bool, group Shape, bytes int64,
) (Path, Reason) {
	half := halfOf(inPlace)
	why := Reason{table: t, operation: operation, half: half, group: group, step: -1}
	for i := range t.Rules {
		r := &t.Rules[i]
		if !r.about(operation, half, group) {
			continue
		}
		why.rule = r
		for s := range r.Steps {
			if limit := int64(r.Steps[s].UpTo); bytes <= limit || limit == 0 {
				why.step = s
				return r.Steps[s].Path, why
			}
		}
	}
	return t.Otherwise, why
}

// Reason is what decided in a choice. It is made without work; String does it.
type Reason struct {
	table     *Table
	rule      *Rule
	step      int // of rule; -1 where no rule applied
	operation string
	half      Half
	group     Shape
}

// String says what decided, with the limits of the step, as part of a sentence.
func (r Reason) String() string {
	switch {
	case r.step < 0 && len(r.table.Rules) == 0 && r.table.Otherwise == Window:
		return fmt.Sprintf("the %s says window for everything", r.table.Name())
	case r.step < 0:
		return fmt.Sprintf("the %s has no rule for %s, and says %s otherwise",
			r.table.Name(), about(r.operation, r.missing(), r.group), r.table.Otherwise)
	}
	return fmt.Sprintf("the %s says %s %s for %s", r.table.Name(),
		r.rule.Steps[r.step].Path, r.rule.reach(r.step), r.rule.head())
}

// missing is the half that has no rule: both, unless the other one has.
func (r Reason) missing() Half {
	for i := range r.table.Rules {
		if r.table.Rules[i].about(r.operation, BothHalves, r.group) {
			return r.half
		}
	}
	return BothHalves
}

// about tells whether the rule is about some call of an operation, a half and a shape.
func (r *Rule) about(operation string, h Half, group Shape) bool {
	return r.Shape == group && r.Operation == operation && r.Half.overlaps(h)
}

// head names the calls that the rule is about.
func (r *Rule) head() string { return about(r.Operation, r.Half, r.Shape) }

// reach describes the sizes of a step.
func (r *Rule) reach(step int) string {
	last := r.Steps[step].UpTo
	switch {
	case step == 0 && last == 0:
		return "at every size"
	case step == 0:
		return fmt.Sprintf("up to %v", last)
	case last == 0:
		return fmt.Sprintf("above %v", r.Steps[step-1].UpTo)
	default:
		return fmt.Sprintf("above %v and up to %v", r.Steps[step-1].UpTo, last)
	}
}

// String describes the steps of a rule, such as "AllReduce on 4 ranks: window at every size".
func (r *Rule) String() string {
	parts := make([]string, len(r.Steps))
	for i, s := range r.Steps {
		parts[i] = fmt.Sprintf("%s %s", s.Path, r.reach(i))
	}
	return fmt.Sprintf("%s: %s", r.head(), strings.Join(parts, ", "))
}

// Digest condenses everything that decides to one word. Tables that choose alike by the same rules
// have the same digest, however they were measured and written.
func (t *Table) Digest() uint64 {
	d := newDigest()
	d.text(string(t.Otherwise))
	for _, r := range sorted(t.Rules) {
		d.text(r.Operation)
		d.word(uint64(r.Ranks))
		d.word(uint64(r.Machines))
		d.word(uint64(r.Half))
		d.word(uint64(len(r.Steps)))
		for _, s := range r.Steps {
			d.word(uint64(s.UpTo))
			d.text(string(s.Path))
		}
	}
	return uint64(d)
}

// digest is FNV-1a with 64 bits.
type digest uint64

func newDigest() digest { return 0xcbf29ce484222325 }

func (d *digest) octet(b byte) { *d = (*d ^ digest(b)) * 0x100000001b3 }

func (d *digest) word(w uint64) {
	for i := range 8 {
		d.octet(byte(w >> (8 * i)))
	}
}

func (d *digest) text(s string) {
	d.word(uint64(len(s)))
	for i := range len(s) {
		d.octet(s[i])
	}
}

// sorted is a copy of rules by operation, machines, ranks and half.
func sorted(rules []Rule) []Rule {
	return slices.SortedFunc(slices.Values(rules), func(a, b Rule) int {
		return cmp.Or(strings.Compare(a.Operation, b.Operation),
			cmp.Compare(a.Machines, b.Machines), cmp.Compare(a.Ranks, b.Ranks),
			cmp.Compare(a.Half, b.Half))
	})
}

// Replace returns a copy of the table with these rules instead of its own that are about some of
// the same calls.
func (t *Table) Replace(rules ...Rule) *Table {
	fresh := *t
	fresh.Rules = slices.DeleteFunc(slices.Clone(t.Rules), func(old Rule) bool {
		return slices.ContainsFunc(rules, func(r Rule) bool {
			return r.about(old.Operation, old.Half, old.Shape)
		})
	})
	fresh.Rules = append(fresh.Rules, rules...)
	return &fresh
}
