package tuning

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"symmem/internal/reduce"
)

// maxRanks bounds the ranks of a rule: what a launch takes.
const maxRanks = 1 << 20

// Validate returns an error that names the first thing in the table that makes no sense.
func (t *Table) Validate() error {
	if t.Device == "" {
		return fmt.Errorf("device is empty")
	}
	if !t.Otherwise.windowed() {
		return fmt.Errorf("otherwise is %q, but must be plain or window", t.Otherwise)
	}
	for i := range t.Rules {
		if err := t.Rules[i].validate(); err != nil {
			return fmt.Errorf("rule %d (%v): %w", i+1, t.Rules[i].Calls, err)
		}
		for j := range i {
			both, b := t.Rules[i].Calls, t.Rules[j].Calls
			if both.overlap(b) {
				both.Half = max(both.Half, b.Half)
				return fmt.Errorf("rules %d and %d are both about %v", j+1, i+1, both)
			}
		}
	}
	return nil
}

func (r *Rule) validate() error {
	all := r.Memory != "" && r.general()
	switch {
	case r.Operation == "" && r.DataType != "":
		return fmt.Errorf("data_type is %q, but a rule about all operations is about all types",
			r.DataType)
	case r.DataType != "" && r.MeasuredType != "":
		return fmt.Errorf("measured_type is of no use in a rule with data_type")
	case !r.Memory.valid():
		return fmt.Errorf("memory is %q, but must be symmetric or any", r.Memory)
	case !all && !slices.Contains(operations, r.Operation):
		return fmt.Errorf("operation %q is none of %s",
			r.Operation, strings.Join(operations, ", "))
	case all:
	case r.Ranks < 1 || r.Ranks > maxRanks:
		return fmt.Errorf("ranks is %d, but must be from 1 to %d", r.Ranks, maxRanks)
	case r.Machines < 1 || r.Machines > r.Ranks:
		return fmt.Errorf("machines is %d, but must be from 1 to %d", r.Machines, r.Ranks)
	}
	if name := cmp.Or(r.DataType, r.MeasuredType); name != "" {
		if _, err := reduce.ParseDataType(name); err != nil {
			return fmt.Errorf("type of elements: %w", err)
		}
	}
	return r.validateSteps()
}

func (r *Rule) validateSteps() error {
	switch {
	case r.Memory == Anywhere && r.Half != BothHalves:
		return fmt.Errorf("in_place is of no use with any memory, where ranks need not be alike in it")
	case len(r.Steps) == 0:
		return fmt.Errorf("steps is empty")
	}
	below := Size(0)
	for i := range r.Steps {
		if err := r.Steps[i].validate(below, i == len(r.Steps)-1, r); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		below = r.Steps[i].UpTo
	}
	return nil
}

func (s *Step) validate(below Size, last bool, r *Rule) error {
	switch {
	case r.Memory == "" && !s.Path.windowed():
		return fmt.Errorf("path is %q, but must be plain or window", s.Path)
	case r.Memory != "" && !s.Path.directed():
		return fmt.Errorf("path is %q, but must be direct or other, as the rule says memory", s.Path)
	case last && s.UpTo != 0:
		return fmt.Errorf("up_to is %v, but the last step holds all larger sizes and has none", s.UpTo)
	case !last && s.UpTo <= below:
		return fmt.Errorf("up_to is %v, but must be above %v", s.UpTo, below)
	}
	for i, p := range s.Measured {
		if err := p.validate(r); err != nil {
			return fmt.Errorf("measured %d: %w", i+1, err)
		}
	}
	return nil
}

func (p *Point) validate(r *Rule) error {
	direct := r.Memory != ""
	switch {
	case p.Bytes <= 0, !sensible(p.PlainUS), !sensible(p.NoisePercent + 1),
		!sensible(p.WindowUS) && !(direct && p.WindowUS == 0), direct && !sensible(p.DirectUS):
		return fmt.Errorf("sizes and times must be positive")
	case !direct && p.DirectUS != 0:
		return fmt.Errorf("direct_us is of no use in a rule that does not say memory")
	case p.InPlace && r.Half != BothHalves:
		return fmt.Errorf("in_place is what the rule says, and only it")
	}
	return nil
}

// sensible reports whether a time can have been measured.
func sensible(us float64) bool { return us > 0 && !math.IsInf(us, 1) }
