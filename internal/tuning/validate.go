package tuning

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A rule chooses the path of some calls by their size. There are two kinds of rules:
//
//   - A plain rule has no Memory. Its steps choose between the plain and the window path.
//   - A direct rule has a Memory, and decides first. Its steps choose the direct or the two-level
//     path, or leave the choice to the plain rule. It can be general: without an operation and
//     numbers of ranks and machines, it covers all calls that have no specific direct rule.
//
// For example, the steps of a plain rule choose window up to 64 KiB, plain up to 1 MiB, and window
// for all larger sizes. The points of a step are the times from which it was derived.

// validate returns an error about the first invalid field. Its text names the field as in JSON.
func (r *Rule) validate() error {
	if !r.Memory.isValid() {
		return fmt.Errorf("memory is %q, but must be symmetric or any", r.Memory)
	}

	isDirect := r.Memory != ""
	isGeneralRule := isDirect && r.isGeneral()
	if !isGeneralRule {
		if err := r.Calls.validate(); err != nil {
			return err
		}
	}

	return r.validateSteps(isDirect)
}

// validateSteps returns an error about the first invalid step.
func (r *Rule) validateSteps(isDirect bool) error {
	if len(r.Steps) == 0 {
		return fmt.Errorf("steps is empty")
	}

	previousMax := Size(0)
	for i := range r.Steps {
		step := &r.Steps[i]
		hasSeveralMachines := r.Machines > 1
		if step.Path == TwoLevel && !hasSeveralMachines {
			return fmt.Errorf("step %d: path is two-level, but the rule is for one machine", i+1)
		}

		isLast := i == len(r.Steps)-1
		if err := step.validate(previousMax, isLast, isDirect); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}

		previousMax = step.MaxBytes
	}

	return nil
}

// maxRanks is the maximum number of ranks of a group. A larger number is certainly a mistake.
const maxRanks = 1 << 20

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

// validate returns an error about the first invalid field. previousMax is the MaxBytes of the
// previous step. isDirect is set in a direct rule.
func (s *Step) validate(previousMax Size, isLast, isDirect bool) error {
	isPlainChoice := s.Path == Plain || s.Path == Window
	isDirectChoice := s.Path == Direct || s.Path == TwoLevel || s.Path == NotDirect
	switch {
	case !isDirect && !isPlainChoice:
		return fmt.Errorf("path is %q, but must be plain or window", s.Path)
	case isDirect && !isDirectChoice:
		return fmt.Errorf("path is %q, but must be direct, two-level or other in a rule with memory",
			s.Path)
	case isLast && s.MaxBytes != 0:
		return fmt.Errorf("up_to is %v, but the last step covers all larger sizes", s.MaxBytes)
	case !isLast && s.MaxBytes <= previousMax:
		return fmt.Errorf("up_to is %v, but must be above %v", s.MaxBytes, previousMax)
	}

	for i, p := range s.Measured {
		if err := p.validate(isDirect); err != nil {
			return fmt.Errorf("measured %d: %w", i+1, err)
		}
	}

	return nil
}

// validate returns an error about an invalid field. isDirect is set in a direct rule.
//
// A point has a time of the plain path. In a direct rule, it also has a time of the direct or of
// the two-level path, and may have one of the window path. In a plain rule, it has one of the
// window path, and no others.
func (p *Point) validate(isDirect bool) error {
	directUS := p.DirectUS + p.TwoLevelUS // At most one of them may be set.
	mayLackWindow := isDirect
	isWindowValid := isPositive(p.WindowUS) || mayLackWindow && p.WindowUS == 0
	isDirectValid := isPositive(directUS) || !isDirect
	isNoiseValid := isPositive(p.NoisePercent) || p.NoisePercent == 0
	isPlainValid := isPositive(p.PlainUS)
	switch {
	case p.Bytes <= 0, !isPlainValid, !isWindowValid, !isDirectValid:
		return fmt.Errorf("sizes and times must be positive")
	case !isNoiseValid:
		return fmt.Errorf("noise_percent is %v, but must not be negative", p.NoisePercent)
	case !isDirect && directUS != 0:
		return fmt.Errorf("direct_us and two_level_us are allowed only in a rule with memory")
	case p.DirectUS != 0 && p.TwoLevelUS != 0:
		return fmt.Errorf("only one of direct_us and two_level_us is allowed")
	}

	return nil
}

// isPositive reports whether a number is positive and finite. It returns false for NaN.
func isPositive(number float64) bool { return number > 0 && !math.IsInf(number, 1) }
