package tuning

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
)

// Version is the version of the format, the only one that is read.
const Version = 3

// Path is the way a collective runs.
type Path string

// The paths that a table chooses between.
const (
	Plain  Path = "plain"
	Window Path = "window"
	Direct Path = "direct"
	// Other, in a rule about the direct path, is what the rules about the other two paths say.
	Other Path = "other"
)

// windowed reports whether a path is one that windows are about.
func (p Path) windowed() bool { return p == Plain || p == Window }

// directed reports whether a path is an answer to whether a call goes direct.
func (p Path) directed() bool { return p == Direct || p == Other }

// operations are those that a rule can be about, as driver names them: for the others size plays
// no part.
var operations = []string{
	"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll",
}

// Call is what a table looks at in a collective: alike on all ranks.
type Call struct {
	// Operation and DataType are the names that driver has for them, such as "AllReduce" and
	// "bfloat16".
	Operation, DataType string
	// InPlace reports whether the smaller buffer is the rank's own part of the larger one, or both are
	// one.
	InPlace bool
	// Bytes is the size of the larger buffer.
	Bytes int64
}

// Shape is what a table looks at in a group.
type Shape struct {
	// Ranks is how many there are, Machines on how many machines they run.
	Ranks    int `json:"ranks,omitempty"`
	Machines int `json:"machines,omitempty"`
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
	Device  string `json:"device"`
	Library string `json:"library"`
	Date    string `json:"date"`
	Source  string `json:"source"`
	// Otherwise is the path where no rule applies; without one about the direct path, that is not
	// taken.
	Otherwise Path `json:"otherwise"`
	// Rules are in no order; there is one at most for each operation, type, shape, memory and half.
	Rules []Rule `json:"rules"`
	// Origin says where the table was found, such as "built-in table"; it is not encoded.
	Origin string `json:"-"`
}

// Rule is about some calls: those of one operation on groups of one shape, or of one half of these,
// or of all operations that have no rule of their own.
type Rule struct {
	Calls
	// MeasuredType is the type of its times in a rule about all types, or empty if nobody knows it.
	MeasuredType string `json:"measured_type,omitempty"`
	// Steps ascend in UpTo; the last has none.
	Steps []Step `json:"steps"`
}

// Step is a range of sizes that take one path: those above the step before, up to UpTo.
type Step struct {
	// UpTo is the largest size of the step; 0 means that there is no end.
	UpTo Size `json:"up_to,omitempty"`
	Path Path `json:"path"`
	// Measured are the times in the step's range that it was derived from.
	Measured []Point `json:"measured,omitempty"`
}

// Point is paths measured at one size, in turns.
type Point struct {
	Bytes Size `json:"bytes"`
	// InPlace tells, in a rule about both halves, that the calls worked in place.
	InPlace bool `json:"in_place,omitempty"`
	// PlainUS, WindowUS and DirectUS are medians in microseconds for a call, on the slowest rank.
	// The last is 0 in rules that are not about the direct path; in those that are, WindowUS is 0
	// where there is no window path.
	PlainUS  float64 `json:"plain_us"`
	WindowUS float64 `json:"window_us,omitempty"`
	DirectUS float64 `json:"direct_us,omitempty"`
	// NoisePercent is how far the ratio of the two that are compared can be off by chance, in
	// percent; 0 if that is not known.
	NoisePercent float64 `json:"noise_percent,omitempty"`
}

// Name is how reasons and errors call the table.
func (t *Table) Name() string {
	origin := t.Origin
	if origin == "" {
		origin = "table"
	}
	return origin + " of " + t.Device
}

// Measured returns the times of elements of a type that rules were derived from about the
// operation, shape and memory of a rule, in either half: those out of place, and those in place, as
// DeriveRules and DeriveDirect take them. They are of the rules about the type, or else of those
// about all types, if their times are of it.
func (t *Table) Measured(about Rule, dataType string) (halves [2][]Point) {
	about.Half, about.DataType = BothHalves, dataType
	if halves = t.measured(about, ""); len(halves[0])+len(halves[1]) > 0 {
		return halves
	}
	about.DataType = ""
	return t.measured(about, dataType)
}

// measured returns the times of rules about the very type of a rule, which were measured with a
// type.
func (t *Table) measured(about Rule, with string) (halves [2][]Point) {
	for i := range t.Rules {
		r := &t.Rules[i]
		if !r.overlap(about.Calls) || r.MeasuredType != with {
			continue
		}
		for _, s := range r.Steps {
			for _, p := range s.Measured {
				half := 0
				if r.HalfOf(p) == InPlace {
					half = 1
				}
				p.InPlace = false
				halves[half] = append(halves[half], p)
			}
		}
	}
	return halves
}

// Choose returns which of the plain and the window path a call takes, and what decided. It
// allocates nothing.
func (t *Table) Choose(call Call, group Shape) (Path, Reason) {
	why := t.decide(Calls{
		Operation: call.Operation, DataType: call.DataType, Half: halfOf(call.InPlace), Shape: group,
	}, call.Bytes)
	if why.step < 0 {
		return t.Otherwise, why
	}
	return why.rule.Steps[why.step].Path, why
}

// ChooseDirect reports whether a call takes the direct path if it can, and what decided: the rule
// of its operation and shape, else that of all operations, else nothing, which is no. Symmetric
// reports whether both buffers lie in windows; where they do not, it plays no part whether a rank
// works in place, since another one need not. It allocates nothing.
func (t *Table) ChooseDirect(call Call, symmetric bool, group Shape) (bool, Reason) {
	asked := Calls{
		Operation: call.Operation, DataType: call.DataType, Memory: Anywhere, Shape: group,
	}
	if symmetric {
		asked.Memory, asked.Half = Symmetric, halfOf(call.InPlace)
	}
	why := t.decide(asked, call.Bytes)
	if why.step < 0 {
		general := t.decide(Calls{Memory: asked.Memory, Half: asked.Half}, call.Bytes)
		why.rule, why.step = general.rule, general.step
	}
	return why.step >= 0 && why.rule.Steps[why.step].Path == Direct, why
}

// decide finds the rule and the step of a call: a rule about its type, or else about all types.
func (t *Table) decide(asked Calls, bytes int64) Reason {
	why := t.find(asked, bytes)
	if why.step < 0 && asked.DataType != "" {
		asked.DataType = ""
		why = t.find(asked, bytes)
	}
	return why
}

// find finds the rule of a call, about its very type, and the step.
func (t *Table) find(asked Calls, bytes int64) Reason {
	why := Reason{table: t, asked: asked, step: -1}
	for i := range t.Rules {
		r := &t.Rules[i]
		if !r.overlap(asked) {
			continue
		}
		why.rule = r
		for s := range r.Steps {
			if limit := int64(r.Steps[s].UpTo); bytes <= limit || limit == 0 {
				why.step = s
				return why
			}
		}
	}
	return why
}

// Reason is what decided in a choice. It is made without work; String does it.
type Reason struct {
	table *Table
	rule  *Rule
	step  int // of rule; -1 where no rule applied
	asked Calls
}

// Ruled reports whether a rule has decided.
func (r Reason) Ruled() bool { return r.step >= 0 }

// String says what decided, with the limits of the step, as part of a sentence.
func (r Reason) String() string {
	switch {
	case r.Ruled():
		return fmt.Sprintf("the %s says %s %s for %v", r.table.Name(),
			r.rule.Steps[r.step].Path.answer(), r.rule.reach(r.step), r.rule.Calls)
	case r.asked.Memory != "":
		return fmt.Sprintf("the %s has no rule for %v", r.table.Name(), r.missing())
	case len(r.table.Rules) == 0 && r.table.Otherwise == Window:
		return fmt.Sprintf("the %s says window for everything", r.table.Name())
	}
	return fmt.Sprintf("the %s has no rule for %v, and says %s otherwise",
		r.table.Name(), r.missing(), r.table.Otherwise)
}

// answer is how sentences call the path of a step.
func (p Path) answer() string {
	if p == Other {
		return "another path than direct"
	}
	return string(p)
}

// missing are the calls that have no rule: of both halves, unless the other one has.
func (r Reason) missing() Calls {
	both := r.asked
	both.Half = BothHalves
	for i := range r.table.Rules {
		if r.table.Rules[i].overlap(both) {
			return r.asked
		}
	}
	return both
}

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
		parts[i] = fmt.Sprintf("%s %s", s.Path.answer(), r.reach(i))
	}
	return fmt.Sprintf("%v: %s", r.Calls, strings.Join(parts, ", "))
}

// Digest condenses everything that decides to one word. Tables that choose alike by the same rules
// have the same digest, however they were measured and written.
func (t *Table) Digest() uint64 {
	decisive := Table{Otherwise: t.Otherwise, Rules: sorted(t.WithoutTimes().Rules)}
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(&decisive) // names and whole numbers, into what takes all
	return h.Sum64()
}

// sorted is a copy of rules by operation, type, machines, ranks, memory and half. It is never nil,
// which JSON would have as null.
func sorted(rules []Rule) []Rule {
	rules = append([]Rule{}, rules...)
	slices.SortFunc(rules, func(a, b Rule) int {
		return cmp.Or(strings.Compare(a.Operation, b.Operation),
			strings.Compare(a.DataType, b.DataType),
			cmp.Compare(a.Machines, b.Machines), cmp.Compare(a.Ranks, b.Ranks),
			strings.Compare(string(a.Memory), string(b.Memory)), cmp.Compare(a.Half, b.Half))
	})
	return rules
}

// General lists the rules about all operations that have none of their own.
func (t *Table) General() []Rule {
	var general []Rule
	for _, r := range t.Rules {
		if r.general() {
			general = append(general, r)
		}
	}
	return general
}

// WithoutTimes returns a copy of the table that decides alike, of whose times nothing is left.
func (t *Table) WithoutTimes() *Table {
	fresh := *t
	fresh.Rules = slices.Clone(t.Rules)
	for i := range fresh.Rules {
		r := &fresh.Rules[i]
		r.MeasuredType, r.Steps = "", slices.Clone(r.Steps)
		for s := range r.Steps {
			r.Steps[s].Measured = nil
		}
	}
	return &fresh
}

// Without returns a copy of the table without the rules about a type that would hide some of these
// which are about all types.
func (t *Table) Without(dataType string, rules []Rule) *Table {
	fresh := *t
	fresh.Rules = slices.DeleteFunc(slices.Clone(t.Rules), func(old Rule) bool {
		return old.DataType == dataType && slices.ContainsFunc(rules, func(r Rule) bool {
			hides := r.Calls
			hides.DataType = dataType
			return r.DataType == "" && hides.overlap(old.Calls)
		})
	})
	return &fresh
}

// Replace returns a copy of the table with these rules instead of its own that are about some of
// the same calls.
func (t *Table) Replace(rules ...Rule) *Table {
	fresh := *t
	fresh.Rules = slices.DeleteFunc(slices.Clone(t.Rules), func(old Rule) bool {
		return slices.ContainsFunc(rules, func(r Rule) bool {
			return r.overlap(old.Calls)
		})
	})
	fresh.Rules = append(fresh.Rules, rules...)
	return &fresh
}
