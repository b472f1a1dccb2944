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

type comparison struct {
	startPath              Path // for sizes below the first point
	preferred, alternative Path
	microseconds           func(Point) (preferred, alternative float64)
	// isStrict is set if alternative is chosen only where it is faster at every point, even if it was
	// chosen at the previous size.
	isStrict bool
}

func windowComparison(defaultPath Path) comparison {
	return comparison{defaultPath, Plain, Window, func(p Point) (plain, window float64) {
		return p.PlainUS, p.WindowUS
	}, false}
}

var directComparison = comparison{
	NotDirect, NotDirect, Direct,
	func(p Point) (notDirect, direct float64) { return p.NotDirectUS(), p.DirectUS },
	false,
}

var twoLevelComparison = comparison{
	NotDirect, NotDirect, TwoLevel,
	func(p Point) (notDirect, twoLevel float64) { return p.NotDirectUS(), p.TwoLevelUS },
	true,
}

func (p Point) hasTwoLevel() bool { return p.TwoLevelUS > 0 }

// NotDirectUS returns the time of the faster of the plain and the window path.
func (p Point) NotDirectUS() float64 {
	if p.WindowUS == 0 {
		return p.PlainUS
	}
	return min(p.PlainUS, p.WindowUS)
}

// Derive derives a rule from measured times. If calls.Memory is empty, the rule chooses between the
// plain and the window path, and otherwise between NotDirect and the direct or two-level path.
// points can contain a size twice: in place and out of place.
//
// The path changes if the new path is faster by more than the noise and FloorPercent. If the points
// of a size disagree, plain has precedence over window, and NotDirect over direct. The two-level
// path must be faster at every point where it is chosen.
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

type pointsOfSize []Point

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

// If the points disagree, choosePath returns c.preferred, because a table must not slow calls down.
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

// fasterPath returns "" if the difference is within the noise or FloorPercent.
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

// thresholdBetween returns the size at which the interpolated logarithm of the ratio is 0, rounded
// down to a quarter of a power of two.
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

func roundDownToQuarter(bytes float64) Size {
	whole := Size(bytes)
	unit := Size(1)
	for whole/unit >= 8 {
		unit *= 2
	}
	return whole / unit * unit
}
