package tuning

import (
	"cmp"
	"math"
	"slices"
)

// FloorPercent is the least difference between two paths that counts, in percent, however quiet the
// measurement was: less is gone the next time that anything changes.
const FloorPercent = 2.0

// RuleOfDerive is what Derive and DeriveRules do, for people.
const RuleOfDerive = "from small sizes to large ones, starting with otherwise, the path changes " +
	"only where the other one is faster by more than the noise and by more than 2 percent; in place " +
	"and out of place share a rule unless they differ by that much about the faster path at some size"

// DeriveRules makes the rules of an operation from times of both its halves at ascending sizes. It
// is one rule where the halves agree: where no size has the one half faster on one path and the
// other half on the other, by as much as Derive asks for. Else it is one for each. A half that was
// not measured has no rule.
func DeriveRules(
	otherwise Path, operation string, group Shape, outOfPlace, inPlace []Point,
) []Rule {
	rule := Rule{Operation: operation, Shape: group}
	if len(outOfPlace) > 0 && len(inPlace) > 0 {
		steps, agree := derive(otherwise, bySize(outOfPlace, inPlace))
		if agree {
			rule.Steps = steps
			return []Rule{rule}
		}
	}
	var rules []Rule
	for i, points := range [][]Point{outOfPlace, inPlace} {
		if len(points) > 0 {
			rule.Half, rule.Steps = halfOf(i == 1), Derive(otherwise, points)
			rules = append(rules, rule)
		}
	}
	return rules
}

// Derive makes the steps of a rule about one half from times at ascending sizes.
//
// It goes from the smallest size to the largest and starts with the table's Otherwise. The path
// changes at a size where the other one is faster by more than the measurement's noise and by more
// than FloorPercent; a smaller difference leaves what the size below takes. The limit lies where a
// straight line between the logarithms of the two ratios crosses 1, rounded down to a quarter of a
// power of two; where the ratios do not cross, it is the size below.
func Derive(otherwise Path, points []Point) []Step {
	steps, _ := derive(otherwise, bySize(points, nil))
	return steps
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

// derive is Derive over times of both halves, and tells whether they agree at every size. The
// limits go by the mean of what both gain.
func derive(otherwise Path, sizes []times) (steps []Step, agree bool) {
	path, agree := otherwise, true
	for i, t := range sizes {
		next, one := t.prefer(path)
		agree = agree && one
		switch {
		case i == 0:
			steps = append(steps, Step{Path: next})
		case next != path:
			steps[len(steps)-1].UpTo = limit(sizes[i-1], t)
			steps = append(steps, Step{Path: next})
		}
		path = next
		last := &steps[len(steps)-1]
		last.Measured = append(last.Measured, t...)
	}
	if len(steps) == 0 {
		steps = []Step{{Path: otherwise}}
	}
	return steps, agree
}

func (t times) bytes() Size { return t[0].Bytes }

// gain is how much faster the window path is, as the mean of logarithms: above 0 it is the faster
// one.
func (t times) gain() float64 {
	sum := 0.0
	for _, p := range t {
		sum += p.gain()
	}
	return sum / float64(len(t))
}

// prefer is the path at a size where the size below takes another, and whether the halves agree
// about it.
func (t times) prefer(below Path) (next Path, agree bool) {
	var faster Path
	for _, p := range t {
		switch path := p.faster(); {
		case path == "" || path == faster:
		case faster != "":
			return below, false
		default:
			faster = path
		}
	}
	return cmp.Or(faster, below), true
}

func (p Point) gain() float64 { return math.Log(p.PlainUS / p.WindowUS) }

// faster is the path that is faster by as much as counts, or empty.
func (p Point) faster() Path {
	margin := math.Log1p(max(p.NoisePercent, FloorPercent) / 100)
	switch gain := p.gain(); {
	case gain > margin:
		return Window
	case gain < -margin:
		return Plain
	default:
		return ""
	}
}

// limit is the largest size that takes the path of the lower of two sizes.
func limit(lower, upper times) Size {
	from, to := lower.gain(), upper.gain()
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
