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
	previous := Size(0)
	for i := range r.Steps {
		if r.Steps[i].Path == TwoLevel && r.Machines <= 1 {
			return fmt.Errorf("step %d: path is two-level, but the rule is for one machine", i+1)
		}
		if err := r.Steps[i].validate(previous, i == len(r.Steps)-1, r.Memory != ""); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		previous = r.Steps[i].MaxBytes
	}
	return nil
}

// previous is the MaxBytes of the previous step. isDirect is set for a rule about the direct path.
func (s *Step) validate(previous Size, isLast, isDirect bool) error {
	switch {
	case !isDirect && s.Path != Plain && s.Path != Window:
		return fmt.Errorf("path is %q, but must be plain or window", s.Path)
	case isDirect && s.Path != Direct && s.Path != TwoLevel && s.Path != NotDirect:
		return fmt.Errorf("path is %q, but must be direct, two-level or other in a rule with memory",
			s.Path)
	case isLast && s.MaxBytes != 0:
		return fmt.Errorf("up_to is %v, but the last step covers all larger sizes", s.MaxBytes)
	case !isLast && s.MaxBytes <= previous:
		return fmt.Errorf("up_to is %v, but must be above %v", s.MaxBytes, previous)
	}
	for i, p := range s.Measured {
		if err := p.validate(isDirect); err != nil {
			return fmt.Errorf("measured %d: %w", i+1, err)
		}
	}
	return nil
}

func (p *Point) validate(isDirect bool) error {
	switch {
	case p.Bytes <= 0, !isPositive(p.PlainUS), !isPositive(p.NoisePercent + 1),
		!isPositive(p.WindowUS) && !(isDirect && p.WindowUS == 0),
		isDirect && !isPositive(p.DirectUS+p.TwoLevelUS):
		return fmt.Errorf("sizes and times must be positive")
	case !isDirect && p.DirectUS+p.TwoLevelUS != 0:
		return fmt.Errorf("direct_us and two_level_us are allowed only in a rule with memory")
	case p.DirectUS != 0 && p.TwoLevelUS != 0:
		return fmt.Errorf("only one of direct_us and two_level_us is allowed")
	}
	return nil
}

func isPositive(us float64) bool { return us > 0 && !math.IsInf(us, 1) }
