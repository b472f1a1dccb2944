package tuning

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Rule chooses the path of some calls by their size. A rule with Memory is a direct rule, about the
// paths Direct and TwoLevel. A general direct rule has no Operation and no Shape. It covers all
// calls without a specific rule.
type Rule struct {
	Calls
	Steps []Step `json:"steps"`
}

// Step sets the path for the sizes above the previous step, up to and including MaxBytes.
type Step struct {
	// MaxBytes is 0 in the last step, which covers all larger sizes.
	MaxBytes Size    `json:"up_to,omitempty"`
	Path     Path    `json:"path"`
	Measured []Point `json:"measured,omitempty"`
}

// Point holds the times of the paths at one size. The paths were measured in turns.
type Point struct {
	Bytes Size `json:"bytes"`
	// InPlace is true if input and output were the same buffer.
	InPlace bool `json:"in_place,omitempty"`
	// PlainUS, WindowUS and DirectUS are medians, in microseconds per call on the slowest rank.
	// DirectUS is set only in direct rules.
	PlainUS  float64 `json:"plain_us"`
	WindowUS float64 `json:"window_us,omitempty"`
	DirectUS float64 `json:"direct_us,omitempty"`
	// TwoLevelUS is set instead of DirectUS if the two-level path was measured.
	TwoLevelUS float64 `json:"two_level_us,omitempty"`
	// NoisePercent estimates the random error of the ratio of the times. It is 0 if unknown.
	NoisePercent float64 `json:"noise_percent,omitempty"`
}

// Path identifies a way to run a collective.
type Path string

// The paths that a table chooses between.
const (
	Plain  Path = "plain"
	Window Path = "window"
	Direct Path = "direct"
	// TwoLevel appears in direct rules for groups on several machines.
	TwoLevel Path = "two-level"
	// NotDirect appears in direct rules. It leaves the choice to the other rules.
	NotDirect Path = "other"
)

// Calls describes the calls that a rule covers, or a single call.
type Calls struct {
	// Operation is the name of a driver.Operation, such as "AllReduce".
	Operation string `json:"operation,omitempty"`
	Shape
	Memory Memory `json:"memory,omitempty"`
}

func (c Calls) isGeneral() bool { return c.Operation == "" && c.Shape == Shape{} }

// String returns a description such as "AllGather on 4 ranks, symmetric buffers".
func (c Calls) String() string {
	var b strings.Builder
	if c.isGeneral() {
		b.WriteString("all operations")
	} else {
		b.WriteString(c.Operation + " on " + c.Shape.String())
	}

	if c.Memory != "" {
		b.WriteString(", " + string(c.Memory) + " buffers")
	}

	return b.String()
}

// Shape describes a group of ranks.
type Shape struct {
	Ranks    int `json:"ranks,omitempty"`    // number of ranks
	Machines int `json:"machines,omitempty"` // number of machines on which they run
}

// String returns a description such as "16 ranks on 2 machines".
func (s Shape) String() string {
	if s.Machines > 1 {
		return fmt.Sprintf("%d ranks on %d machines", s.Ranks, s.Machines)
	}

	if s.Ranks == 1 {
		return "1 rank"
	}

	return fmt.Sprintf("%d ranks", s.Ranks)
}

// Memory selects the buffers that a direct rule covers. It is empty in other rules.
type Memory string

// The buffers that a direct rule can cover.
const (
	// Symmetric selects buffers in registered memory, at the same offsets on all ranks.
	Symmetric Memory = "symmetric"
	// AnyMemory selects the buffers that Symmetric does not select.
	AnyMemory Memory = "any"
)

func (m Memory) isValid() bool { return m == "" || m == Symmetric || m == AnyMemory }

// validate reports the first invalid field by its JSON name.
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
		if step.Path == TwoLevel && r.Machines <= 1 {
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

const maxRanks = 1 << 20 // more than in any real group

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

// validate checks s. previousMax is the MaxBytes of the previous step, or 0 for the first step.
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
	switch {
	case !isDirectRule && s.Path != Plain && s.Path != Window:
		return fmt.Errorf("path is %q, but must be plain or window", s.Path)
	case isDirectRule && s.Path != Direct && s.Path != TwoLevel && s.Path != NotDirect:
		return fmt.Errorf("path is %q, but must be direct, two-level or other in a rule with memory",
			s.Path)
	}

	return nil
}

// validate requires the times of the plain and the window path. In a direct rule, the window time
// is optional, and either the direct or the two-level time is required.
func (p *Point) validate(isDirectRule bool) error {
	hasDirect := p.DirectUS != 0
	hasTwoLevel := p.TwoLevelUS != 0
	isWindowValid := isPositive(p.WindowUS) || (isDirectRule && p.WindowUS == 0)
	isDirectValid := !isDirectRule || isPositive(p.DirectUS) || isPositive(p.TwoLevelUS)
	switch {
	case p.Bytes <= 0, !isPositive(p.PlainUS), !isWindowValid, !isDirectValid:
		return fmt.Errorf("sizes and times must be positive")
	case p.NoisePercent != 0 && !isPositive(p.NoisePercent):
		return fmt.Errorf("noise_percent is %v, but must not be negative", p.NoisePercent)
	case !isDirectRule && (hasDirect || hasTwoLevel):
		return fmt.Errorf("direct_us and two_level_us are allowed only in a rule with memory")
	case hasDirect && hasTwoLevel:
		return fmt.Errorf("only one of direct_us and two_level_us is allowed")
	}

	return nil
}

// isPositive reports whether a number is positive and finite.
func isPositive(number float64) bool { return number > 0 && !math.IsInf(number, 1) }
