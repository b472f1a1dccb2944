package tuning

import (
	"cmp"
	"math"
	"slices"
)

// FloorPercent is the smallest difference in times that can change the path. Smaller differences
// may disappear in the next version of the software.
const FloorPercent = 2.0

// DeriveMethod describes Derive to users.
const DeriveMethod = "from small sizes to large ones, starting with otherwise, the path changes " +
	"only where the other one is faster by more than the noise and by more than 2 percent; if calls " +
	"in place and out of place disagree, plain beats window; direct is compared with the better of " +
	"the others, and starts with them; two levels are chosen only at sizes where they are faster in " +
	"place and out of place"

// comparison chooses between two paths, which are ways to run a call, from measured times. A size
// can have two points, for calls in place and out of place. If these disagree about the faster
// path, the preferred path wins.
type comparison struct {
	startPath              Path // path of the smallest size if neither path is faster there
	preferred, alternative Path
	microseconds           func(Point) (preferred, alternative float64)
	// isStrict restricts the alternative to sizes at which it is faster at all points. Otherwise, it
	// extends to larger sizes until the preferred path is faster.
	isStrict bool
}

// windowComparison compares the plain path with the window path, which needs registered buffers.
func windowComparison(defaultPath Path) comparison {
	return comparison{
		startPath:    defaultPath,
		preferred:    Plain,
		alternative:  Window,
		microseconds: func(p Point) (plain, window float64) { return p.PlainUS, p.WindowUS },
	}
}

// directComparison compares the direct path, in which kernels access the memory of other ranks,
// with the faster of the plain and the window path.
var directComparison = comparison{
	startPath:    NotDirect,
	preferred:    NotDirect,
	alternative:  Direct,
	microseconds: func(p Point) (notDirect, direct float64) { return p.NotDirectUS(), p.DirectUS },
}

// twoLevelComparison replaces directComparison for groups on several machines.
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
func (p Point) NotDirectUS() float64 {
	lacksWindow := p.WindowUS == 0
	if lacksWindow {
		return p.PlainUS
	}

	return min(p.PlainUS, p.WindowUS)
}

// Derive derives the rule for calls from measured points, in any order. Without calls.Memory, the
// rule chooses between the plain and the window path. defaultPath is the choice at the smallest
// size if neither is faster there.
//
// With calls.Memory, the rule chooses between the direct path and NotDirect, which leaves the
// choice to another rule. If a point has a time of the two-level path, this path replaces the
// direct path.
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

// pointsOfSize lists one or more points of the same size.
type pointsOfSize []Point

func (p pointsOfSize) bytes() Size { return p[0].Bytes }

// groupBySize sorts the groups by size.
func groupBySize(points []Point) (sizes []pointsOfSize) {
	compareSizes := func(a, b Point) int { return cmp.Compare(a.Bytes, b.Bytes) }
	ordered := slices.SortedStableFunc(slices.Values(points), compareSizes)
	for i, p := range ordered {
		isNewSize := i == 0 || ordered[i-1].Bytes != p.Bytes
		if isNewSize {
			sizes = append(sizes, nil)
		}

		last := &sizes[len(sizes)-1]
		*last = append(*last, p)
	}

	return sizes
}

func (c comparison) deriveSteps(sizes []pointsOfSize) (steps []Step) {
	if len(sizes) == 0 {
		return []Step{{Path: c.startPath}}
	}

	path := c.startPath // path of the next smaller size
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

// choosePath returns the path of one size. previous is the path of the next smaller size.
func (c comparison) choosePath(points pointsOfSize, previous Path) Path {
	path := previous
	for _, p := range points {
		faster := c.fasterPath(p)
		switch {
		case faster == c.preferred:
			return c.preferred
		case faster == c.alternative:
			path = c.alternative
		case c.isStrict: // neither path is faster
			return c.preferred
		}
	}

	return path
}

const neitherPath Path = ""

// fasterPath returns the faster path at a point, or neitherPath if the difference is within the
// noise or FloorPercent.
func (c comparison) fasterPath(p Point) Path {
	marginPercent := max(p.NoisePercent, FloorPercent)
	margin := math.Log1p(marginPercent / 100)
	logRatio := c.logRatio(p)
	switch {
	case logRatio > margin:
		return c.alternative
	case logRatio < -margin:
		return c.preferred
	}

	return neitherPath
}

// logRatio is positive if the alternative is faster. The logarithm makes twice as fast and half as
// fast differ only in the sign.
func (c comparison) logRatio(p Point) float64 {
	preferred, alternative := c.microseconds(p)
	return math.Log(preferred / alternative)
}

func (c comparison) meanLogRatio(points pointsOfSize) float64 {
	sum := 0.0
	for _, p := range points {
		sum += c.logRatio(p)
	}

	return sum / float64(len(points))
}

// thresholdBetween returns the largest size that takes the path of lower. It estimates where both
// paths are equally fast, and rounds down to a readable number.
func (c comparison) thresholdBetween(lower, upper pointsOfSize) Size {
	lowRatio := c.meanLogRatio(lower)
	highRatio := c.meanLogRatio(upper)
	low := lower.bytes()
	high := upper.bytes()
	haveSameSign := lowRatio*highRatio >= 0 // on average, the same path is faster at both sizes
	if haveSameSign {
		return low
	}

	// Interpolate linearly between the logarithms of the sizes.
	fraction := math.Abs(lowRatio) / (math.Abs(lowRatio) + math.Abs(highRatio))
	crossing := float64(low) * math.Pow(float64(high)/float64(low), fraction)
	lowest, highest := low, high-1
	return min(max(roundDownToQuarter(crossing), lowest), highest)
}

// roundDownToQuarter rounds down to 4, 5, 6 or 7 times a power of two. For example, it rounds 31 to
// 28. It rounds sizes below 8 to whole bytes.
func roundDownToQuarter(bytes float64) Size {
	whole := Size(bytes)
	quarter := Size(1)
	for whole/quarter >= 8 {
		quarter *= 2
	}

	return whole / quarter * quarter
}
