package tuning

import (
	"cmp"
	"math"
	"slices"
)

// FloorPercent is the smallest difference in times that can change the path, in percent. Smaller
// differences may disappear in the next version of the software.
const FloorPercent = 2.0

// DeriveMethod describes Derive to users.
const DeriveMethod = "small sizes take the path of otherwise; the path changes at sizes where " +
	"another is faster by more than the noise and 2 percent; plain beats window if calls in place " +
	"and out of place disagree; direct must beat both plain and window; two-level is chosen only at " +
	"sizes where it beats them in place and out of place"

// comparison chooses between two paths from measured times. A size can have two points, for calls
// in place and out of place. If the two disagree about the faster path, the preferred path wins.
type comparison struct {
	startPath              Path // path of the smallest size if neither is faster there
	preferred, alternative Path
	microseconds           func(Point) (preferred, alternative float64)
	needsAllPoints         bool // the alternative must be faster at all points of a size
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
	startPath:   NotDirect,
	preferred:   NotDirect,
	alternative: TwoLevel,
	microseconds: func(p Point) (notDirect, twoLevel float64) {
		return p.NotDirectUS(), p.TwoLevelUS
	},
	needsAllPoints: true,
}

func (p Point) hasTwoLevel() bool { return p.TwoLevelUS > 0 }

// NotDirectUS returns the time of the faster of the plain and the window path, in microseconds.
func (p Point) NotDirectUS() float64 {
	lacksWindow := p.WindowUS == 0
	if lacksWindow {
		return p.PlainUS
	}

	return min(p.PlainUS, p.WindowUS)
}

// Derive derives the rule for calls from measured points, in any order.
//
// If calls.Memory is empty, the rule chooses between the plain and the window path. defaultPath is
// the choice at the smallest size if neither is faster there.
//
// Otherwise, the rule chooses between the direct path and NotDirect. If a point has a time of the
// two-level path, that path replaces the direct path, and Derive drops points without such a time.
func Derive(calls Calls, defaultPath Path, points []Point) Rule {
	var c comparison
	switch {
	case calls.Memory == "":
		c = windowComparison(defaultPath)
	case slices.ContainsFunc(points, Point.hasTwoLevel):
		c = twoLevelComparison
		points = slices.DeleteFunc(slices.Clone(points), func(p Point) bool { return !p.hasTwoLevel() })
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

		last := len(sizes) - 1
		sizes[last] = append(sizes[last], p)
	}

	return sizes
}

func (c comparison) deriveSteps(sizes []pointsOfSize) (steps []Step) {
	if len(sizes) == 0 {
		return []Step{{Path: c.startPath}}
	}

	steps = []Step{{Path: c.choosePath(sizes[0], c.startPath), Measured: sizes[0]}}
	for i := 1; i < len(sizes); i++ {
		last := &steps[len(steps)-1]
		points := sizes[i]
		path := c.choosePath(points, last.Path)
		if path == last.Path {
			last.Measured = append(last.Measured, points...)
			continue
		}

		last.MaxBytes = c.thresholdBetween(sizes[i-1], points)
		steps = append(steps, Step{Path: path, Measured: points})
	}

	return steps
}

// choosePath returns the path of one size. previous is the path of the next smaller size.
func (c comparison) choosePath(points pointsOfSize, previous Path) Path {
	fasterPaths := map[Path]bool{}
	for _, p := range points {
		fasterPaths[c.fasterPath(p)] = true
	}

	switch {
	case fasterPaths[c.preferred]:
		return c.preferred
	case fasterPaths[neitherPath] && c.needsAllPoints:
		return c.preferred
	case fasterPaths[c.alternative]:
		return c.alternative
	}

	return previous
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

// logRatio is positive if the alternative is faster.
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

// thresholdBetween returns the MaxBytes of a step that ends between two measured sizes. It
// estimates where both paths are equally fast, and rounds down to a readable number.
func (c comparison) thresholdBetween(lower, upper pointsOfSize) Size {
	lowRatio := c.meanLogRatio(lower)
	highRatio := c.meanLogRatio(upper)
	low := lower.bytes()
	high := upper.bytes()
	isSamePathFaster := lowRatio*highRatio >= 0 // on average
	if isSamePathFaster {
		return low
	}

	// Interpolate log ratios linearly over log sizes.
	fraction := math.Abs(lowRatio) / (math.Abs(lowRatio) + math.Abs(highRatio))
	crossing := float64(low) * math.Pow(float64(high)/float64(low), fraction)
	return min(max(roundDownToThreeBits(crossing), low), high-1)
}

// roundDownToThreeBits keeps the three highest bits of a size: it rounds 31 to 28.
func roundDownToThreeBits(bytes float64) Size {
	whole := Size(bytes)
	lowestKeptBit := Size(1)
	for whole/lowestKeptBit >= 8 {
		lowestKeptBit *= 2
	}

	return whole / lowestKeptBit * lowestKeptBit
}
