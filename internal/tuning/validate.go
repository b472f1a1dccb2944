package tuning

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// validate reports the first invalid field by its JSON name. A rule with Memory is a direct rule,
// which decides whether calls take the direct or two-level path. Only a direct rule can be general:
// without an operation and shape, it covers all calls.
func (r *Rule) validate() error {
	if !r.Memory.isValid() {
		return fmt.Errorf("memory is %q, but must be symmetric or any", r.Memory)
	}

	isDirectRule := r.Memory != ""
	isGeneralDirectRule := isDirectRule && r.isGeneral()
	if !isGeneralDirectRule {
		if err := r.Calls.validate(); err != nil {
			return err
		}
	}

	return r.validateSteps(isDirectRule)
}

func (r *Rule) validateSteps(isDirectRule bool) error {
	if len(r.Steps) == 0 {
		return fmt.Errorf("steps is empty")
	}

	previousMax := Size(0)
	for i := range r.Steps {
		step := &r.Steps[i]
		number := i + 1
		hasSeveralMachines := r.Machines > 1
		if step.Path == TwoLevel && !hasSeveralMachines {
			return fmt.Errorf("step %d: path is two-level, but the rule is for one machine", number)
		}

		isLast := number == len(r.Steps)
		if err := step.validate(previousMax, isLast, isDirectRule); err != nil {
			return fmt.Errorf("step %d: %w", number, err)
		}

		previousMax = step.MaxBytes
	}

	return nil
}

// maxRanks exceeds the size of any real group.
const maxRanks = 1 << 20

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

// validate expects the MaxBytes of the previous step as previousMax.
func (s *Step) validate(previousMax Size, isLast, isDirectRule bool) error {
	if err := s.validatePath(isDirectRule); err != nil {
		return err
	}

	switch {
	case isLast && s.MaxBytes != 0:
		return fmt.Errorf("up_to is %v, but the last step covers all larger sizes", s.MaxBytes)
	case !isLast && s.MaxBytes <= previousMax:
		return fmt.Errorf("up_to is %v, but must be above %v", s.MaxBytes, previousMax)
	}

	for i, p := range s.Measured {
		if err := p.validate(isDirectRule); err != nil {
			return fmt.Errorf("measured %d: %w", i+1, err)
		}
	}

	return nil
}

func (s *Step) validatePath(isDirectRule bool) error {
	isPlainChoice := s.Path == Plain || s.Path == Window
	isDirectChoice := s.Path == Direct || s.Path == TwoLevel || s.Path == NotDirect
	switch {
	case !isDirectRule && !isPlainChoice:
		return fmt.Errorf("path is %q, but must be plain or window", s.Path)
	case isDirectRule && !isDirectChoice:
		return fmt.Errorf("path is %q, but must be direct, two-level or other in a rule with memory",
			s.Path)
	}

	return nil
}

// validate requires the times of the plain and the window path. In a direct rule, it requires the
// times of the plain path and of either the direct or the two-level path.
func (p *Point) validate(isDirectRule bool) error {
	isPlainValid := isPositive(p.PlainUS)
	mayLackWindow := isDirectRule
	isWindowValid := isPositive(p.WindowUS) || mayLackWindow && p.WindowUS == 0
	directUS := p.DirectUS + p.TwoLevelUS // one of them is 0, or the last case below reports an error
	isDirectValid := isPositive(directUS) || !isDirectRule
	isNoiseValid := isPositive(p.NoisePercent) || p.NoisePercent == 0
	switch {
	case p.Bytes <= 0, !isPlainValid, !isWindowValid, !isDirectValid:
		return fmt.Errorf("sizes and times must be positive")
	case !isNoiseValid:
		return fmt.Errorf("noise_percent is %v, but must not be negative", p.NoisePercent)
	case !isDirectRule && directUS != 0:
		return fmt.Errorf("direct_us and two_level_us are allowed only in a rule with memory")
	case p.DirectUS != 0 && p.TwoLevelUS != 0:
		return fmt.Errorf("only one of direct_us and two_level_us is allowed")
	}

	return nil
}

// isPositive reports whether a number is positive and finite.
func isPositive(number float64) bool { return number > 0 && !math.IsInf(number, 1) }
