package tuning

import "math"

// FloorPercent is the least difference between two paths that counts, in percent, however quiet the
// measurement was: less is gone the next time that anything changes.
const FloorPercent = 2.0

// RuleOfDerive is what Derive does, for people.
const RuleOfDerive = "from small sizes to large ones, starting with otherwise, the path changes " +
	"only where the other one is faster by more than the noise and by more than 2 percent"

// Derive makes the steps of a rule from times at ascending sizes.
//
// It goes from the smallest size to the largest and starts with the table's Otherwise. The path
// changes at a size where the other one is faster by more than the measurement's noise and by more
// than FloorPercent; a smaller difference leaves what the size below takes. The limit lies where a
// straight line between the logarithms of the two ratios crosses 1, rounded down to a quarter of a
// power of two; where the ratios do not cross, it is the size below.
func Derive(otherwise Path, points []Point) []Step {
	path := otherwise
	var steps []Step
	for i, p := range points {
		next := prefer(path, p)
		switch {
		case i == 0:
			steps = append(steps, Step{Path: next})
		case next != path:
			steps[len(steps)-1].UpTo = limit(points[i-1], p)
			steps = append(steps, Step{Path: next})
		}
		path = next
		last := &steps[len(steps)-1]
		last.Measured = append(last.Measured, p)
	}
	if len(steps) == 0 {
		steps = []Step{{Path: otherwise}}
	}
	return steps
}

// gain is how much faster the window path is, as a logarithm: above 0 it is the faster one.
func (p Point) gain() float64 { return math.Log(p.PlainUS / p.WindowUS) }

// prefer is the path at a size where the size below takes another.
func prefer(below Path, p Point) Path {
	margin := math.Log1p(max(p.NoisePercent, FloorPercent) / 100)
	switch gain := p.gain(); {
	case gain > margin:
		return Window
	case gain < -margin:
		return Plain
	default:
		return below
	}
}

// limit is the largest size that takes the path of the lower of two sizes.
func limit(lower, upper Point) Size {
	from, to := lower.gain(), upper.gain()
	if from*to >= 0 {
		return lower.Bytes
	}
	share := math.Abs(from) / (math.Abs(from) + math.Abs(to))
	crossing := float64(lower.Bytes) *
		math.Pow(float64(upper.Bytes)/float64(lower.Bytes), share)
	return min(max(rounded(crossing), lower.Bytes), upper.Bytes-1)
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
