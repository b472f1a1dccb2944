package tuning

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"symmem/internal/reduce"
)

// Version identifies the format. Decode rejects other versions.
const Version = 4

// Table chooses the paths of collectives. It is safe for concurrent use if it is not modified.
type Table struct {
	Device   string `json:"device"`              // name of the GPUs
	Library  string `json:"library"`             // of collectives, with its version
	Date     string `json:"date"`                // of the measurement
	Source   string `json:"source"`              // how the table was made, for users
	DataType string `json:"data_type,omitempty"` // of the measured calls
	// DefaultPath is the path of calls without a rule: plain or window.
	DefaultPath Path `json:"otherwise"`
	// Rules has at most one rule for each operation, shape and memory.
	Rules []Rule `json:"rules"`
	// Origin describes the source of the table, such as "built-in table".
	Origin string `json:"-"`
}

// Name returns the table's name for reasons and errors.
func (t *Table) Name() string {
	return cmp.Or(t.Origin, "table") + " of " + t.Device
}

// Validate returns an error about the first invalid part of the table.
func (t *Table) Validate() error {
	if t.Device == "" {
		return fmt.Errorf("device is empty")
	}

	if t.DefaultPath != Plain && t.DefaultPath != Window {
		return fmt.Errorf("otherwise is %q, but must be plain or window", t.DefaultPath)
	}

	if t.DataType != "" {
		if _, err := reduce.ParseDataType(t.DataType); err != nil {
			return fmt.Errorf("data_type: %w", err)
		}
	}

	for i := range t.Rules {
		if err := t.Rules[i].validate(); err != nil {
			return fmt.Errorf("rule %d (%v): %w", i+1, t.Rules[i].Calls, err)
		}

		for j := range i {
			if t.Rules[i].Calls == t.Rules[j].Calls {
				return fmt.Errorf("rules %d and %d are both about %v", j+1, i+1, t.Rules[i].Calls)
			}
		}
	}

	return nil
}

// Measured returns the times from which the rule for these calls was derived.
func (t *Table) Measured(calls Calls) (points []Point) {
	for i := range t.Rules {
		if t.Rules[i].Calls != calls {
			continue
		}

		for _, s := range t.Rules[i].Steps {
			points = append(points, s.Measured...)
		}
	}

	return points
}

// Choose returns the path of a call, Plain or Window, and the reason. It does not allocate.
func (t *Table) Choose(operation string, bytes int64, group Shape) (Path, Reason) {
	reason := t.find(Calls{Operation: operation, Shape: group}, bytes)
	if !reason.HasRule() {
		return t.DefaultPath, reason
	}

	return reason.rule.Steps[reason.step].Path, reason
}

// ChooseDirect returns Direct, TwoLevel or NotDirect for a call that supports all paths.
// isSymmetric means that both buffers are in windows, which is registered memory. ChooseDirect does
// not allocate.
func (t *Table) ChooseDirect(
	operation string, bytes int64, isSymmetric bool, group Shape,
) (Path, Reason) {
	call := Calls{Operation: operation, Memory: AnyMemory, Shape: group}
	if isSymmetric {
		call.Memory = Symmetric
	}

	reason := t.find(call, bytes)
	if !reason.HasRule() {
		// Look for a general rule, which has neither operation nor shape. The reason still names
		// the call.
		general := t.find(Calls{Memory: call.Memory}, bytes)
		reason.rule = general.rule
		reason.step = general.step
	}

	if !reason.HasRule() {
		return NotDirect, reason
	}

	return reason.rule.Steps[reason.step].Path, reason
}

// CanUseTwoLevel reports whether the table chooses the two-level path for any call of a group.
func (t *Table) CanUseTwoLevel(group Shape) bool {
	isTwoLevel := func(s Step) bool { return s.Path == TwoLevel }
	return slices.ContainsFunc(t.Rules, func(r Rule) bool {
		return r.Shape == group && slices.ContainsFunc(r.Steps, isTwoLevel)
	})
}

// find finds the rule for exactly these calls, and its step for a size.
func (t *Table) find(call Calls, bytes int64) Reason {
	reason := Reason{table: t, call: call, step: noStep}
	for i := range t.Rules {
		r := &t.Rules[i]
		if r.Calls != call {
			continue
		}

		reason.rule = r
		for step := range r.Steps {
			limit := int64(r.Steps[step].MaxBytes)
			isLast := limit == 0
			if isLast || bytes <= limit {
				reason.step = step
				return reason
			}
		}
	}

	return reason
}

// noStep is the step of a Reason if no rule covers the call.
const noStep = -1

// Reason records why a path was chosen.
type Reason struct {
	table *Table
	rule  *Rule // nil if no rule covers the call
	step  int   // index in rule.Steps, or noStep
	call  Calls // the call for which the path was chosen
}

// HasRule reports whether a rule determined the path.
func (r Reason) HasRule() bool { return r.step != noStep }

// String returns a part of a sentence, such as "the built-in table of NVIDIA H200 says window up to
// 64KiB for AllReduce on 4 ranks".
func (r Reason) String() string {
	switch {
	case r.HasRule():
		return fmt.Sprintf("the %s says %s %s for %v", r.table.Name(),
			r.rule.Steps[r.step].Path.text(), r.rule.sizeText(r.step), r.rule.Calls)
	case r.call.Memory != "":
		return fmt.Sprintf("the %s has no rule for %v", r.table.Name(), r.call)
	case len(r.table.Rules) == 0 && r.table.DefaultPath == Window:
		return fmt.Sprintf("the %s says window for everything", r.table.Name())
	}

	return fmt.Sprintf("the %s has no rule for %v, and says %s otherwise",
		r.table.Name(), r.call, r.table.DefaultPath)
}

// text returns the path as part of a sentence.
func (p Path) text() string {
	if p == NotDirect {
		return "another path than direct"
	}

	return string(p)
}

// sizeText describes the sizes that a step covers.
func (r *Rule) sizeText(step int) string {
	limit := r.Steps[step].MaxBytes
	isFirst := step == 0
	isLast := limit == 0
	switch {
	case isFirst && isLast:
		return "at every size"
	case isFirst:
		return fmt.Sprintf("up to %v", limit)
	case isLast:
		return fmt.Sprintf("above %v", r.Steps[step-1].MaxBytes)
	}

	return fmt.Sprintf("above %v and up to %v", r.Steps[step-1].MaxBytes, limit)
}

// String returns a description such as "AllReduce on 4 ranks: window at every size".
func (r *Rule) String() string {
	parts := make([]string, len(r.Steps))
	for i, s := range r.Steps {
		parts[i] = fmt.Sprintf("%s %s", s.Path.text(), r.sizeText(i))
	}

	return fmt.Sprintf("%v: %s", r.Calls, strings.Join(parts, ", "))
}

// Digest returns a hash of everything that affects choices. Ranks compare it to find out whether
// they have the same table.
func (t *Table) Digest() uint64 {
	decisive := Table{DefaultPath: t.DefaultPath, Rules: sorted(t.WithoutTimes().Rules)}
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(&decisive) // never fails for names and integers
	return h.Sum64()
}

// sorted returns a sorted copy. It never returns nil, which JSON would encode as null.
func sorted(rules []Rule) []Rule {
	copied := append([]Rule{}, rules...)
	slices.SortFunc(copied, func(a, b Rule) int {
		return cmp.Or(strings.Compare(a.Operation, b.Operation),
			cmp.Compare(a.Machines, b.Machines), cmp.Compare(a.Ranks, b.Ranks),
			strings.Compare(string(a.Memory), string(b.Memory)))
	})
	return copied
}

// General returns the general rules, which cover all calls without a specific rule.
func (t *Table) General() []Rule {
	var general []Rule
	for _, r := range t.Rules {
		if r.isGeneral() {
			general = append(general, r)
		}
	}

	return general
}

// WithoutTimes returns a copy of the table without measured times.
func (t *Table) WithoutTimes() *Table {
	result := *t
	result.DataType = ""
	result.Rules = slices.Clone(t.Rules)
	for i := range result.Rules {
		r := &result.Rules[i]
		r.Steps = slices.Clone(r.Steps) // The steps of t must not change.
		for step := range r.Steps {
			r.Steps[step].Measured = nil
		}
	}

	return &result
}

// Replace returns a copy to which the given rules are added. They replace rules for the same calls.
func (t *Table) Replace(rules ...Rule) *Table {
	isReplaced := func(old Rule) bool {
		return slices.ContainsFunc(rules, func(r Rule) bool { return r.Calls == old.Calls })
	}
	result := *t
	result.Rules = slices.DeleteFunc(slices.Clone(t.Rules), isReplaced)
	result.Rules = append(result.Rules, rules...)
	return &result
}
