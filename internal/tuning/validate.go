package tuning

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// maxRanks is the maximum number of ranks of a group. A larger number is certainly a mistake.
const maxRanks = 1 << 20

// validate returns an error about the first invalid field. Its text names the field as in JSON.
func (r *Rule) validate() error {
	if !r.Memory.isValid() {
		return fmt.Errorf("memory is %q, but must be symmetric or any", r.Memory)
	}

	isDirect := r.Memory != "" // The rule is about the direct path.
	if !isDirect || !r.isGeneral() {
		if err := r.Calls.validate(); err != nil {
			return err
		}
	}

	if len(r.Steps) == 0 {
		return fmt.Errorf("steps is empty")
	}

	previous := Size(0)
	for i := range r.Steps {
		step := &r.Steps[i]
		if step.Path == TwoLevel && r.Machines <= 1 {
			return fmt.Errorf("step %d: path is two-level, but the rule is for one machine", i+1)
		}

		isLast := i == len(r.Steps)-1
		if err := step.validate(previous, isLast, isDirect); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}

		previous = step.MaxBytes
	}

	return nil
}

// validate returns an error about the first invalid field of a rule that is not general.
func (c Calls) validate() error {
	switch {
	case !slices.Contains(operations, c.Operation):
		return fmt.Errorf("unknown operation %q: want one of %s",
			c.Operation, strings.Join(operations, ", "))
	case c.Ranks < 1 || c.Ranks > maxRanks:
		return fmt.Errorf("ranks is %d, but must be from 1 to %d", c.Ranks, maxRanks)
	case c.Machines < 1 || c.Machines > c.Ranks:
		return fmt.Errorf("machines is %d, but must be from 1 to %d", c.Machines, c.Ranks)
	}

	return nil
}

// validate returns an error about the first invalid field. previous is the MaxBytes of the previous
// step. isDirect is set for a rule about the direct path.
func (s *Step) validate(previous Size, isLast, isDirect bool) error {
	isDirectPath := s.Path == Direct || s.Path == TwoLevel || s.Path == NotDirect
	switch {
	case !isDirect && s.Path != Plain && s.Path != Window:
		return fmt.Errorf("path is %q, but must be plain or window", s.Path)
	case isDirect && !isDirectPath:
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

// validate returns an error unless the fields that isDirect requires are valid, and the others are
// 0. isDirect is set for a rule about the direct path. Such a rule may lack WindowUS.
func (p *Point) validate(isDirect bool) error {
	directUS := p.DirectUS + p.TwoLevelUS // Only one of them may be set.
	lacksWindow := isDirect && p.WindowUS == 0
	switch {
	case p.Bytes <= 0, !isPositive(p.PlainUS), !isPositive(p.NoisePercent + 1),
		!isPositive(p.WindowUS) && !lacksWindow,
		isDirect && !isPositive(directUS):
		return fmt.Errorf("sizes and times must be positive")
	case !isDirect && directUS != 0:
		return fmt.Errorf("direct_us and two_level_us are allowed only in a rule with memory")
	case p.DirectUS != 0 && p.TwoLevelUS != 0:
		return fmt.Errorf("only one of direct_us and two_level_us is allowed")
	}

	return nil
}

// isPositive reports whether a number is positive and finite. It returns false for NaN.
func isPositive(number float64) bool { return number > 0 && !math.IsInf(number, 1) }
