package tuning

import (
	"cmp"
	"math"
	"slices"
)

// FloorPercent is the smallest gain in percent that can change the choice of a path. A smaller gain
// may vanish with the next version of the software.
const FloorPercent = 2.0

// DeriveMethod explains to users what Derive does.
const DeriveMethod = "from small sizes to large ones, starting with otherwise, the path changes " +
	"only where the other one is faster by more than the noise and by more than 2 percent; if calls " +
	"in place and out of place disagree, plain beats window; direct is compared with the better of " +
	"the others, and starts with them"

// comparison compares two paths.
type comparison struct {
	startPath   Path // path for sizes below the first point
	base, rival Path
	// microseconds returns the times of base and rival.
	microseconds func(Point) (base, rival float64)
}

func compareWindow(otherwise Path) comparison {
	return comparison{otherwise, Plain, Window, func(p Point) (plain, window float64) {
		return p.PlainUS, p.WindowUS
	}}
}

var compareDirect = comparison{Other, Other, Direct, func(p Point) (other, direct float64) {
	return p.OtherUS(), p.DirectUS
}}

var compareTwoLevel = comparison{Other, Other, TwoLevel, func(p Point) (other, twoLevel float64) {
	return p.OtherUS(), p.TwoLevelUS
}}

func (p Point) hasTwoLevel() bool { return p.TwoLevelUS > 0 }

// OtherUS returns the time of the faster of the plain and the window path.
func (p Point) OtherUS() float64 {
	if p.WindowUS == 0 {
		return p.PlainUS
	}
	return min(p.PlainUS, p.WindowUS)
}

// Derive derives the rule for calls from measured times. If calls.Memory is empty, the rule chooses
// between the plain and the window path. Otherwise, it decides whether the calls take the direct
// path or, if it was measured, the two-level path. points may be in any order, and may contain a
// size twice, once in place and once out of place.
//
// Derive visits the sizes in ascending order, starting with the path that otherwise names or, in a
// rule about the direct path, with Other. The path changes at a size if the other path is faster by
// more than the noise of the measurement and by more than FloorPercent. If calls in place and out
// of place disagree, plain has precedence over window, and Other over direct.
//
// To find the threshold between two sizes, Derive interpolates the logarithms of the ratios of the
// times. The threshold is where they cross 0, rounded down to a quarter of a power of two. If they
// do not cross 0, the threshold is the smaller size.
func Derive(calls Calls, otherwise Path, points []Point) Rule {
	c := compareWindow(otherwise)
	switch {
	case calls.Memory == "":
	case slices.ContainsFunc(points, Point.hasTwoLevel):
		c = compareTwoLevel
		points = slices.DeleteFunc(slices.Clone(points), func(p Point) bool { return !p.hasTwoLevel() })
	default:
		c = compareDirect
	}
	return Rule{Calls: calls, Steps: c.steps(bySize(points))}
}

type times []Point

func bySize(points []Point) (sizes []times) {
	sorted := slices.SortedStableFunc(slices.Values(points), func(a, b Point) int {
		return cmp.Compare(a.Bytes, b.Bytes)
	})
	for _, p := range sorted {
		if n := len(sizes); n > 0 && sizes[n-1].bytes() == p.Bytes {
			sizes[n-1] = append(sizes[n-1], p)
		} else {
			sizes = append(sizes, times{p})
		}
	}
	return sizes
}

func (c comparison) steps(sizes []times) (steps []Step) {
	path := c.startPath
	for i, t := range sizes {
		next := c.choosePath(t, path)
		switch {
		case i == 0:
			steps = append(steps, Step{Path: next})
		case next != path:
			steps[len(steps)-1].UpTo = c.threshold(sizes[i-1], t)
			steps = append(steps, Step{Path: next})
		}
		path = next
		last := &steps[len(steps)-1]
		last.Measured = append(last.Measured, t...)
	}
	if len(steps) == 0 {
		steps = []Step{{Path: c.startPath}}
	}
	return steps
}

func (t times) bytes() Size { return t[0].Bytes }

// choosePath returns the path at a size, given that of the next smaller size. If the calls in place
// and out of place disagree, base wins, because a table must not make calls slower.
func (c comparison) choosePath(t times, below Path) Path {
	next := below
	for _, p := range t {
		switch faster := c.faster(p); {
		case faster == c.base:
			return c.base
		case faster == c.rival:
			next = c.rival
		}
	}
	return next
}

func (c comparison) gain(p Point) float64 {
	base, rival := c.microseconds(p)
	return math.Log(base / rival)
}

func (c comparison) meanGain(t times) float64 {
	sum := 0.0
	for _, p := range t {
		sum += c.gain(p)
	}
	return sum / float64(len(t))
}

// faster returns the path that is faster by more than the noise and FloorPercent, or "".
func (c comparison) faster(p Point) Path {
	margin := math.Log1p(max(p.NoisePercent, FloorPercent) / 100)
	switch gain := c.gain(p); {
	case gain > margin:
		return c.rival
	case gain < -margin:
		return c.base
	default:
		return ""
	}
}

// threshold returns the largest size at which calls still take the path of the smaller size.
func (c comparison) threshold(lower, upper times) Size {
	lowGain, highGain := c.meanGain(lower), c.meanGain(upper)
	low, high := lower.bytes(), upper.bytes()
	if lowGain*highGain >= 0 {
		return low
	}
	share := math.Abs(lowGain) / (math.Abs(lowGain) + math.Abs(highGain))
	crossing := float64(low) * math.Pow(float64(high)/float64(low), share)
	return min(max(roundDown(crossing), low), high-1)
}

func roundDown(bytes float64) Size {
	whole := Size(bytes)
	unit := Size(1)
	for whole/unit >= 8 {
		unit *= 2
	}
	return whole / unit * unit
}
