package tuning

import (
	"cmp"
	"math"
	"slices"
)

// FloorPercent is the smallest difference that can change the path. A smaller difference can
// disappear with the next version of the software.
const FloorPercent = 2.0

// DeriveMethod describes Derive to users.
const DeriveMethod = "from small sizes to large ones, starting with otherwise, the path changes " +
	"only where the other one is faster by more than the noise and by more than 2 percent; if calls " +
	"in place and out of place disagree, plain beats window; direct is compared with the better of " +
	"the others, and starts with them; two levels are chosen only at sizes where they are faster in " +
	"place and out of place"

// comparison describes how Derive chooses between two paths.
type comparison struct {
	startPath              Path // path of the first size if no path is faster there
	preferred, alternative Path // preferred is chosen if the points of a size disagree
	// microseconds returns the times of both paths at a point.
	microseconds func(Point) (preferred, alternative float64)
	// isStrict is set if alternative is chosen only where it is faster at every point, even if it
	// was chosen at the previous size.
	isStrict bool
}

func windowComparison(defaultPath Path) comparison {
	return comparison{
		startPath: defaultPath, preferred: Plain, alternative: Window,
		microseconds: func(p Point) (plain, window float64) { return p.PlainUS, p.WindowUS },
	}
}

var directComparison = comparison{
	startPath: NotDirect, preferred: NotDirect, alternative: Direct,
	microseconds: func(p Point) (notDirect, direct float64) { return p.NotDirectUS(), p.DirectUS },
}

var twoLevelComparison = comparison{
	startPath: NotDirect, preferred: NotDirect, alternative: TwoLevel,
	microseconds: func(p Point) (notDirect, twoLevel float64) {
		return p.NotDirectUS(), p.TwoLevelUS
	},
	isStrict: true,
}

func (p Point) hasTwoLevel() bool { return p.TwoLevelUS > 0 }

// NotDirectUS returns the time of the faster of the plain and the window path.
func (p Point) NotDirectUS() float64 {
	if p.WindowUS == 0 {
		return p.PlainUS
	}
	return min(p.PlainUS, p.WindowUS)
}

// Derive derives a rule from measured times. If calls.Memory is empty, the rule chooses between
// the plain and the window path, and otherwise between NotDirect and the direct or two-level path.
// points can contain a size twice: in place and out of place.
//
// The path changes if the new path is faster by more than the noise and FloorPercent. If the
// points of a size disagree, plain has precedence over window, and NotDirect over direct. The
// two-level path must be faster at every point where it is chosen.
func Derive(calls Calls, defaultPath Path, points []Point) Rule {
	c := windowComparison(defaultPath)
	switch {
	case calls.Memory == "":
	case slices.ContainsFunc(points, Point.hasTwoLevel):
		c = twoLevelComparison
		points = slices.DeleteFunc(slices.Clone(points), func(p Point) bool { return !p.hasTwoLevel() })
	default:
		c = directComparison
	}
	return Rule{Calls: calls, Steps: c.deriveSteps(groupBySize(points))}
}

// pointsOfSize lists the points with one size, at least one.
type pointsOfSize []Point

// groupBySize returns the points of each size, in ascending order of sizes.
func groupBySize(points []Point) (sizes []pointsOfSize) {
	sorted := slices.SortedStableFunc(slices.Values(points), func(a, b Point) int {
		return cmp.Compare(a.Bytes, b.Bytes)
	})
	for _, p := range sorted {
		if n := len(sizes); n > 0 && sizes[n-1].bytes() == p.Bytes {
			sizes[n-1] = append(sizes[n-1], p)
		} else {
			sizes = append(sizes, pointsOfSize{p})
		}
	}
	return sizes
}

// deriveSteps returns the steps of a rule, which has at least one step.
func (c comparison) deriveSteps(sizes []pointsOfSize) (steps []Step) {
	path := c.startPath
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
	if len(steps) == 0 {
		steps = []Step{{Path: c.startPath}}
	}
	return steps
}

func (p pointsOfSize) bytes() Size { return p[0].Bytes }

// choosePath returns the path for a size, or previous, the path of the next smaller size, if no
// path is faster. If the points disagree, it returns c.preferred, because a table must not slow
// calls down.
func (c comparison) choosePath(points pointsOfSize, previous Path) Path {
	path := previous
	for _, p := range points {
		switch fasterPath := c.fasterPath(p); {
		case fasterPath == c.preferred, c.isStrict && fasterPath == "":
			return c.preferred
		case fasterPath == c.alternative:
			path = c.alternative
		}
	}
	return path
}

// logRatio returns a positive number if the alternative is faster, and a negative one otherwise.
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

// fasterPath returns the faster path at a point, or "" if the difference is within the noise or
// FloorPercent.
func (c comparison) fasterPath(p Point) Path {
	margin := math.Log1p(max(p.NoisePercent, FloorPercent) / 100)
	switch logRatio := c.logRatio(p); {
	case logRatio > margin:
		return c.alternative
	case logRatio < -margin:
		return c.preferred
	default:
		return ""
	}
}

// thresholdBetween returns the largest size that takes the path of the lower points. It is the
// size at which the interpolated logarithm of the ratio is 0, rounded down to a quarter of a power
// of two.
func (c comparison) thresholdBetween(lower, upper pointsOfSize) Size {
	lowRatio, highRatio := c.meanLogRatio(lower), c.meanLogRatio(upper)
	low, high := lower.bytes(), upper.bytes()
	if lowRatio*highRatio >= 0 {
		return low
	}
	fraction := math.Abs(lowRatio) / (math.Abs(lowRatio) + math.Abs(highRatio))
	crossing := float64(low) * math.Pow(float64(high)/float64(low), fraction)
	return min(max(roundDownToQuarter(crossing), low), high-1)
}

// roundDownToQuarter rounds down to a multiple of a quarter of the largest power of two that is
// not larger than bytes.
func roundDownToQuarter(bytes float64) Size {
	whole := Size(bytes)
	quarter := Size(1)
	for whole/quarter >= 8 {
		quarter *= 2
	}
	return whole / quarter * quarter
}
