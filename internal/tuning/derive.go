package tuning

import (
	"cmp"
	"math"
	"slices"
)

// Derive turns measured times into a rule, which chooses a path (a way to run a call) by size.
// Suppose that these points of an all-reduce were measured:
//
//	size     plain  window
//	1 KiB    13 us    7 us
//	64 KiB   14 us   12 us
//	1 MiB    30 us   40 us
//
// The rule then has two steps: the window path up to 160 KiB, and the plain path above. 160 KiB is
// about the size at which both paths are equally fast. It is estimated from the neighboring points.
//
// A size can have two points, for calls in place and out of place. If these disagree about the
// faster path, the preferred path is chosen, here plain, because a rule must not slow calls down.
// The other path is called the alternative.

// FloorPercent is the smallest difference of times, in percent, that can change the path. A smaller
// difference can disappear with the next version of the software.
const FloorPercent = 2.0

// DeriveMethod describes Derive to users.
const DeriveMethod = "from small sizes to large ones, starting with otherwise, the path changes " +
	"only where the other one is faster by more than the noise and by more than 2 percent; if calls " +
	"in place and out of place disagree, plain beats window; direct is compared with the better of " +
	"the others, and starts with them; two levels are chosen only at sizes where they are faster in " +
	"place and out of place"

// comparison describes a choice between two paths.
type comparison struct {
	startPath              Path // path of the smallest size if neither path is faster there
	preferred, alternative Path
	// microseconds returns the times of both paths at a point.
	microseconds func(Point) (preferred, alternative float64)
	// isStrict is set if the alternative must be faster at every point where it is chosen. Otherwise,
	// it also stays chosen at larger sizes until the preferred path is faster.
	isStrict bool
}

// windowComparison returns the comparison of the plain and the window path. The window path needs
// buffers in windows, which is memory that the backend has registered.
func windowComparison(defaultPath Path) comparison {
	return comparison{
		startPath:    defaultPath,
		preferred:    Plain,
		alternative:  Window,
		microseconds: func(p Point) (plain, window float64) { return p.PlainUS, p.WindowUS },
	}
}

// directComparison is the comparison for the direct path, in which kernels access the memory of
// other ranks. NotDirect stands for the faster of the plain and the window path.
var directComparison = comparison{
	startPath:    NotDirect,
	preferred:    NotDirect,
	alternative:  Direct,
	microseconds: func(p Point) (notDirect, direct float64) { return p.NotDirectUS(), p.DirectUS },
}

// twoLevelComparison is the comparison for the two-level path, which replaces the direct path for
// groups on several machines.
var twoLevelComparison = comparison{
	startPath:    NotDirect,
	preferred:    NotDirect,
	alternative:  TwoLevel,
	microseconds: func(p Point) (notDirect, twoLevel float64) { return p.NotDirectUS(), p.TwoLevelUS },
	isStrict:     true,
}

func (p Point) hasTwoLevel() bool { return p.TwoLevelUS > 0 }

func (p Point) lacksTwoLevel() bool { return !p.hasTwoLevel() }

// NotDirectUS returns the time of the faster of the plain and the window path, in microseconds.
// WindowUS is 0 if the window path was not measured.
func (p Point) NotDirectUS() float64 {
	if p.WindowUS == 0 {
		return p.PlainUS
	}

	return min(p.PlainUS, p.WindowUS)
}

// Derive derives the rule for some calls from measured points, which may be in any order.
//
// If calls.Memory is empty, the rule chooses between the plain and the window path. defaultPath is
// the path of the smallest size if neither is faster there.
//
// If calls.Memory is set, the rule chooses between the direct path and NotDirect, which leaves the
// choice to another rule. If the two-level path was measured, it replaces the direct path.
func Derive(calls Calls, defaultPath Path, points []Point) Rule {
	var c comparison
	switch {
	case calls.Memory == "":
		c = windowComparison(defaultPath)
	case slices.ContainsFunc(points, Point.hasTwoLevel):
		c = twoLevelComparison
		points = slices.DeleteFunc(slices.Clone(points), Point.lacksTwoLevel)
	default:
		c = directComparison
	}

	return Rule{Calls: calls, Steps: c.deriveSteps(groupBySize(points))}
}

// pointsOfSize lists the points of one size, at least one.
type pointsOfSize []Point

func (p pointsOfSize) bytes() Size { return p[0].Bytes }

// groupBySize returns the points of each size, in ascending order of sizes.
func groupBySize(points []Point) (sizes []pointsOfSize) {
	compareSizes := func(a, b Point) int { return cmp.Compare(a.Bytes, b.Bytes) }
	for _, p := range slices.SortedStableFunc(slices.Values(points), compareSizes) {
		last := len(sizes) - 1 // -1 for the first point
		isSameSize := last >= 0 && sizes[last].bytes() == p.Bytes
		if isSameSize {
			sizes[last] = append(sizes[last], p)
		} else {
			sizes = append(sizes, pointsOfSize{p})
		}
	}

	return sizes
}

// deriveSteps returns the steps of a rule, at least one. The last step has no MaxBytes, because it
// covers all larger sizes.
func (c comparison) deriveSteps(sizes []pointsOfSize) (steps []Step) {
	if len(sizes) == 0 {
		return []Step{{Path: c.startPath}}
	}

	path := c.startPath // of the previous size
	for i, points := range sizes {
		nextPath := c.choosePath(points, path)
		switch {
		case i == 0:
			steps = append(steps, Step{Path: nextPath})
		case nextPath != path:
			steps[len(steps)-1].MaxBytes = c.thresholdBetween(sizes[i-1], points)
			steps = append(steps, Step{Path: nextPath})
		}

		path = nextPath
		last := &steps[len(steps)-1]
		last.Measured = append(last.Measured, points...)
	}

	return steps
}

// choosePath returns the path for the points of a size. previous is the path of the next smaller
// size. It stays if neither path is faster at any point, except in a strict comparison.
func (c comparison) choosePath(points pointsOfSize, previous Path) Path {
	path := previous
	for _, p := range points {
		fasterPath := c.fasterPath(p)
		lacksAdvantage := c.isStrict && fasterPath == neitherPath
		if fasterPath == c.preferred || lacksAdvantage {
			return c.preferred // even if the alternative is faster at another point
		}

		if fasterPath == c.alternative {
			path = c.alternative
		}
	}

	return path
}

// neitherPath is the result of fasterPath if neither path is faster.
const neitherPath Path = ""

// fasterPath returns the faster path at a point. It returns neitherPath if the difference is within
// the noise or FloorPercent.
func (c comparison) fasterPath(p Point) Path {
	marginPercent := max(p.NoisePercent, FloorPercent)
	margin := math.Log1p(marginPercent / 100) // as a logarithm
	logRatio := c.logRatio(p)
	switch {
	case logRatio > margin:
		return c.alternative
	case logRatio < -margin:
		return c.preferred
	}

	return neitherPath
}

// logRatio returns the logarithm of the preferred path's time divided by the alternative's time. It
// is positive if the alternative is faster, and negative if the preferred path is. With logarithms,
// twice as fast and half as fast differ only in the sign.
func (c comparison) logRatio(p Point) float64 {
	preferred, alternative := c.microseconds(p)
	return math.Log(preferred / alternative)
}

// meanLogRatio returns the mean of logRatio over points.
func (c comparison) meanLogRatio(points pointsOfSize) float64 {
	sum := 0.0
	for _, p := range points {
		sum += c.logRatio(p)
	}

	return sum / float64(len(points))
}

// thresholdBetween returns the largest size that still takes the path of the lower points. Call it
// for neighboring sizes with different paths.
//
// It estimates the size at which both paths are equally fast, and rounds it down to a readable
// number.
func (c comparison) thresholdBetween(lower, upper pointsOfSize) Size {
	lowRatio := c.meanLogRatio(lower)
	highRatio := c.meanLogRatio(upper)
	low := lower.bytes()
	high := upper.bytes()
	haveSameSign := lowRatio*highRatio >= 0
	if haveSameSign { // on average, the same path is faster at both sizes
		return low
	}

	// Assume that the ratio changes linearly with the logarithm of the size. It is 0 at this fraction
	// of the distance between both logarithms:
	fraction := math.Abs(lowRatio) / (math.Abs(lowRatio) + math.Abs(highRatio))
	crossing := float64(low) * math.Pow(float64(high)/float64(low), fraction)
	return min(max(roundDownToQuarter(crossing), low), high-1)
}

// roundDownToQuarter rounds down to a multiple of a quarter of the largest power of two that is
// not larger than bytes. For example, it rounds 23 down to 20, a multiple of 16/4.
func roundDownToQuarter(bytes float64) Size {
	whole := Size(bytes)
	quarter := Size(1)
	for whole/quarter >= 8 {
		quarter *= 2
	}

	return whole / quarter * quarter
}
