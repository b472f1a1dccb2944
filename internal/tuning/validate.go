package tuning

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// maxRanks bounds the ranks of a rule: what a launch takes.
const maxRanks = 1 << 20

// Validate returns an error that names the first thing in the table that makes no sense.
func (t *Table) Validate() error {
	if t.Device == "" {
		return fmt.Errorf("device is empty")
	}
	if !t.Otherwise.valid() {
		return fmt.Errorf("otherwise is %q, but must be plain or window", t.Otherwise)
	}
	for i := range t.Rules {
		if err := t.Rules[i].validate(); err != nil {
			return fmt.Errorf("rule %d (%s): %w", i+1, t.Rules[i].head(), err)
		}
		for j := range i {
			a, b := &t.Rules[i], &t.Rules[j]
			if a.about(b.Operation, b.Half, b.Shape) {
				return fmt.Errorf("rules %d and %d are both about %s",
					j+1, i+1, about(a.Operation, max(a.Half, b.Half), a.Shape))
			}
		}
	}
	return nil
}

func (r *Rule) validate() error {
	switch {
	case !slices.Contains(operations, r.Operation):
		return fmt.Errorf("operation %q is none of %s",
			r.Operation, strings.Join(operations, ", "))
	case r.Ranks < 1 || r.Ranks > maxRanks:
		return fmt.Errorf("ranks is %d, but must be from 1 to %d", r.Ranks, maxRanks)
	case r.Machines < 1 || r.Machines > r.Ranks:
		return fmt.Errorf("machines is %d, but must be from 1 to %d", r.Machines, r.Ranks)
	case !r.Half.valid():
		return fmt.Errorf("half %d is none", r.Half)
	case len(r.Steps) == 0:
		return fmt.Errorf("steps is empty")
	}
	below := Size(0)
	for i := range r.Steps {
		if err := r.Steps[i].validate(below, i == len(r.Steps)-1, r.Half); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		below = r.Steps[i].UpTo
	}
	return nil
}

func (s *Step) validate(below Size, last bool, h Half) error {
	switch {
	case !s.Path.valid():
		return fmt.Errorf("path is %q, but must be plain or window", s.Path)
	case last && s.UpTo != 0:
		return fmt.Errorf("up_to is %v, but the last step holds all larger sizes and has none", s.UpTo)
	case !last && s.UpTo <= below:
		return fmt.Errorf("up_to is %v, but must be above %v", s.UpTo, below)
	}
	for i, p := range s.Measured {
		if p.Bytes <= 0 || !sensible(p.PlainUS) || !sensible(p.WindowUS) ||
			!sensible(p.NoisePercent+1) {
			return fmt.Errorf("measured %d: sizes and times must be positive", i+1)
		}
		if p.InPlace && h != BothHalves {
			return fmt.Errorf("measured %d: in_place is what the rule says, and only it", i+1)
		}
	}
	return nil
}

// sensible tells whether a time can have been measured.
func sensible(us float64) bool { return us > 0 && !math.IsInf(us, 1) }
