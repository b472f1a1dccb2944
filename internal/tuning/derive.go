package tuning

import (
	"cmp"
	"math"
	"slices"
)

// FloorPercent is the least difference between two paths that counts, in percent, however quiet the
// measurement was: less is gone the next time that anything changes.
const FloorPercent = 2.0

// RuleOfDerive is what DeriveRules and DeriveDirect do, for people.
const RuleOfDerive = "from small sizes to large ones, starting with otherwise, the path changes " +
	"only where the other one is faster by more than the noise and by more than 2 percent; in place " +
	"and out of place share a rule unless they differ by that much about the faster path at some " +
	"size; direct is compared with the better of the others, and starts with them"

// contest is a choice between two answers, by the times of a Point.
type contest struct {
	// before is what tables start with, and no and yes are the answers.
	before, no, yes Path
	// us returns the times on both, in microseconds.
	us func(Point) (no, yes float64)
}

// windows is the choice between the plain and the window path.
func windows(otherwise Path) contest {
	return contest{otherwise, Plain, Window, func(p Point) (plain, window float64) {
		return p.PlainUS, p.WindowUS
	}}
}

// directs is the choice between the direct path and the better of the others.
var directs = contest{Other, Other, Direct, func(p Point) (other, direct float64) {
	return p.OtherUS(), p.DirectUS
}}

// OtherUS is the time on the better of the plain and the window path.
func (p Point) OtherUS() float64 {
	if p.WindowUS == 0 {
		return p.PlainUS
	}
	return min(p.PlainUS, p.WindowUS)
}

// DeriveRules makes the rules about what a rule is about, its operation, type and shape, for the
// plain and the window path, from times of the halves at ascending sizes. It is one rule where the
// halves agree: where no size has the one half faster on one path and the other half on the other,
// by as much as counts. Else it is one for each. A half that was not measured has no rule.
//
// A rule goes from the smallest size to the largest and starts with the table's Otherwise. The path
// changes at a size where the other one is faster by more than the measurement's noise and by more
// than FloorPercent; a smaller difference leaves what the size below takes. The limit lies where a
// straight line between the logarithms of the two ratios crosses 1, rounded down to a quarter of a
// power of two; where the ratios do not cross, it is the size below.
func DeriveRules(otherwise Path, about Rule, outOfPlace, inPlace []Point) []Rule {
	about.Memory = ""
	return windows(otherwise).rules(about, outOfPlace, inPlace)
}

// DeriveDirect makes the rules about the direct path, for buffers in a memory, as DeriveRules makes
// those about the others: against the better of the others, with which it starts. For any buffers
// there is one rule for both halves, since ranks need not be alike in that there.
func DeriveDirect(about Rule, memory Memory, outOfPlace, inPlace []Point) []Rule {
	about.Memory = memory
	return directs.rules(about, outOfPlace, inPlace)
}

// rules gives a rule its steps, or makes one for each half of it.
func (c contest) rules(rule Rule, outOfPlace, inPlace []Point) []Rule {
	one := rule.Memory == Anywhere && len(outOfPlace)+len(inPlace) > 0
	if one || len(outOfPlace) > 0 && len(inPlace) > 0 {
		steps, agree := c.derive(bySize(outOfPlace, inPlace))
		if one || agree {
			rule.Steps = steps
			return []Rule{rule}
		}
	}
	var rules []Rule
	for i, points := range [][]Point{outOfPlace, inPlace} {
		if len(points) > 0 {
			rule.Half = halfOf(i == 1)
			rule.Steps, _ = c.derive(bySize(points, nil))
			rules = append(rules, rule)
		}
	}
	return rules
}

// times are those at one size: of one half, or of both.
type times []Point

// bySize puts the times of both halves together.
func bySize(outOfPlace, inPlace []Point) (sizes []times) {
	all := slices.Clone(outOfPlace)
	for _, p := range inPlace {
		p.InPlace = true
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b Point) int { return cmp.Compare(a.Bytes, b.Bytes) })
	for _, p := range all {
		if n := len(sizes); n > 0 && sizes[n-1].bytes() == p.Bytes {
			sizes[n-1] = append(sizes[n-1], p)
		} else {
			sizes = append(sizes, times{p})
		}
	}
	return sizes
}

// derive makes the steps from times of one half or of both, and reports whether these agree at
// every size. The limits go by the mean of what both gain.
func (c contest) derive(sizes []times) (steps []Step, agree bool) {
	path, agree := c.before, true
	for i, t := range sizes {
		next, one := c.prefer(t, path)
		agree = agree && one
		switch {
		case i == 0:
			steps = append(steps, Step{Path: next})
		case next != path:
			steps[len(steps)-1].UpTo = c.limit(sizes[i-1], t)
			steps = append(steps, Step{Path: next})
		}
		path = next
		last := &steps[len(steps)-1]
		last.Measured = append(last.Measured, t...)
	}
	if len(steps) == 0 {
		steps = []Step{{Path: c.before}}
	}
	return steps, agree
}

func (t times) bytes() Size { return t[0].Bytes }

// mean is the mean gain of the halves.
func (c contest) mean(t times) float64 {
	sum := 0.0
	for _, p := range t {
		sum += c.gain(p)
	}
	return sum / float64(len(t))
}

// prefer is the path at a size where the size below takes another, and whether the halves agree
// about it.
func (c contest) prefer(t times, below Path) (next Path, agree bool) {
	var faster Path
	for _, p := range t {
		switch path := c.faster(p); {
		case path == "" || path == faster:
		case faster != "":
			return below, false
		default:
			faster = path
		}
	}
	return cmp.Or(faster, below), true
}

// gain is how much faster the path of yes is, as a logarithm: above 0 it is the faster one.
func (c contest) gain(p Point) float64 {
	no, yes := c.us(p)
	return math.Log(no / yes)
}

// faster is the path that is faster by as much as counts, or empty.
func (c contest) faster(p Point) Path {
	margin := math.Log1p(max(p.NoisePercent, FloorPercent) / 100)
	switch gain := c.gain(p); {
	case gain > margin:
		return c.yes
	case gain < -margin:
		return c.no
	default:
		return ""
	}
}

// limit is the largest size that takes the path of the lower of two sizes.
func (c contest) limit(lower, upper times) Size {
	from, to := c.mean(lower), c.mean(upper)
	low, high := lower.bytes(), upper.bytes()
	if from*to >= 0 {
		return low
	}
	share := math.Abs(from) / (math.Abs(from) + math.Abs(to))
	crossing := float64(low) * math.Pow(float64(high)/float64(low), share)
	return min(max(rounded(crossing), low), high-1)
}

// rounded is rounded down to a quarter of a power of two, so that people can read it.
func rounded(bytes float64) Size {
	whole := Size(bytes)
	unit := Size(1)
	for whole/unit >= 8 {
		unit *= 2
	}
	return whole / unit * unit
}
