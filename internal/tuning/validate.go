package tuning

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

const maxRanks = 1 << 20

func (r *Rule) validate() error {
	switch {
	case !r.Memory.isValid():
		return fmt.Errorf("memory is %q, but must be symmetric or any", r.Memory)
	case r.Memory != "" && r.isGeneral():
	case !slices.Contains(operations, r.Operation):
		return fmt.Errorf("unknown operation %q: want one of %s",
			r.Operation, strings.Join(operations, ", "))
	case r.Ranks < 1 || r.Ranks > maxRanks:
		return fmt.Errorf("ranks is %d, but must be from 1 to %d", r.Ranks, maxRanks)
	case r.Machines < 1 || r.Machines > r.Ranks:
		return fmt.Errorf("machines is %d, but must be from 1 to %d", r.Machines, r.Ranks)
	}
	if len(r.Steps) == 0 {
		return fmt.Errorf("steps is empty")
	}
	below := Size(0)
	for i := range r.Steps {
		if r.Steps[i].Path == TwoLevel && r.Machines <= 1 {
			return fmt.Errorf("step %d: path is two-level, but the rule is not for several machines", i+1)
		}
		if err := r.Steps[i].validate(below, i == len(r.Steps)-1, r.Memory != ""); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		below = r.Steps[i].UpTo
	}
	return nil
}

// validate checks a step. below is the UpTo of the previous step. direct is set if the step's rule
// is about the direct path.
func (s *Step) validate(below Size, last, direct bool) error {
	switch {
	case !direct && s.Path != Plain && s.Path != Window:
		return fmt.Errorf("path is %q, but must be plain or window", s.Path)
	case direct && s.Path != Direct && s.Path != TwoLevel && s.Path != Other:
		return fmt.Errorf("path is %q, but must be direct, two-level or other in a rule with memory",
			s.Path)
	case last && s.UpTo != 0:
		return fmt.Errorf("up_to is %v, but the last step covers all larger sizes", s.UpTo)
	case !last && s.UpTo <= below:
		return fmt.Errorf("up_to is %v, but must be above %v", s.UpTo, below)
	}
	for i, p := range s.Measured {
		if err := p.validate(direct); err != nil {
			return fmt.Errorf("measured %d: %w", i+1, err)
		}
	}
	return nil
}

func (p *Point) validate(direct bool) error {
	switch {
	case p.Bytes <= 0, !positive(p.PlainUS), !positive(p.NoisePercent + 1),
		!positive(p.WindowUS) && !(direct && p.WindowUS == 0),
		direct && !positive(p.DirectUS+p.TwoLevelUS):
		return fmt.Errorf("sizes and times must be positive")
	case !direct && p.DirectUS+p.TwoLevelUS != 0:
		return fmt.Errorf("direct_us and two_level_us are allowed only in a rule with memory")
	case p.DirectUS != 0 && p.TwoLevelUS != 0:
		return fmt.Errorf("only one of direct_us and two_level_us is allowed")
	}
	return nil
}

func positive(us float64) bool { return us > 0 && !math.IsInf(us, 1) }
