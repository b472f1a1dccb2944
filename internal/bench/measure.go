package bench

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"time"

	"symmem"
)

// Plan says how long to measure.
type Plan struct {
	// Batch is how long a batch of a variant should take.
	Batch time.Duration
	// Batches is how many batches each variant gets.
	Batches int
	// Backend is where the memory of benches in this process comes from; empty means the host.
	Backend string
}

// options are what benches in this process open their ranks with.
func (p Plan) options() symmem.Options {
	return symmem.Options{Backend: cmp.Or(p.Backend, "host")}
}

// Full is the plan for figures that people quote, Quick one for continuous integration.
var (
	Full  = Plan{Batch: 5 * time.Millisecond, Batches: 21}
	Quick = Plan{Batch: time.Millisecond, Batches: 5}
)

// Variant is one way of doing what a case measures.
type Variant struct {
	// Name is what reports call it; that of ours is not shown.
	Name string
	// Run does the operation n times.
	Run func(n int) error
}

// Case is something to measure.
type Case struct {
	// Name and Params say what it is.
	Name   string
	Params map[string]any
	// Ours is measured, and every baseline in turns with it.
	Ours      Variant
	Baselines []Variant
	// Bar is the most nanoseconds that an operation may take, or 0.
	Bar float64
}

// sample is the batches of one variant.
type sample struct {
	variant Variant
	// n is how many operations a batch has.
	n int
	// perOp are nanoseconds an operation, a batch each.
	perOp []float64
	// allocs are those of the batch with the fewest.
	allocs uint64
}

// Measure runs a case and returns one result for each baseline, or one if there is none.
func (p Plan) Measure(c Case) ([]Result, error) {
	samples := []*sample{{variant: c.Ours}}
	for _, b := range c.Baselines {
		samples = append(samples, &sample{variant: b})
	}
	for _, s := range samples {
		if err := s.calibrate(p.Batch); err != nil {
			return nil, fmt.Errorf("calibrating %s (%s): %w", c.Name, s.variant.Name, err)
		}
	}
	turns := slices.Clone(samples)
	for range p.Batches {
		for _, s := range turns {
			if err := s.batch(); err != nil {
				return nil, fmt.Errorf("measuring %s (%s): %w", c.Name, s.variant.Name, err)
			}
		}
		// Who went last goes first, so that being second is nobody's advantage.
		slices.Reverse(turns)
	}
	return c.results(samples), nil
}

// maxOps bounds a batch of an operation that costs nothing.
const maxOps = 1 << 30

// calibrate finds how many operations take as long as a batch should. It also warms up.
func (s *sample) calibrate(batch time.Duration) error {
	// The first calls map memory and grow tables, which others may do on their behalf for a while.
	for begin := time.Now(); time.Since(begin) < 4*batch; {
		if err := s.variant.Run(1); err != nil {
			return err
		}
	}
	for s.n = 1; ; s.n *= 2 {
		begin := time.Now()
		if err := s.variant.Run(s.n); err != nil {
			return err
		}
		took := time.Since(begin)
		if took >= batch/2 || s.n >= maxOps {
			s.n = max(1, int(float64(s.n)*float64(batch)/float64(max(took, 1))))
			return nil
		}
	}
}

// batch times one batch. The counters are read outside of the time.
func (s *sample) batch() error {
	// The variants before have filled the caches: a lead-in takes them back.
	if err := s.variant.Run(s.n / 4); err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	err := s.variant.Run(s.n)
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	if allocs := after.Mallocs - before.Mallocs; len(s.perOp) == 0 || allocs < s.allocs {
		s.allocs = allocs
	}
	s.perOp = append(s.perOp, float64(took.Nanoseconds())/float64(s.n))
	return err
}

// allocsPerOp is that of the batch with the fewest, rounded down as testing.AllocsPerRun does: what
// the runtime itself allocates now and then is not the operation's.
func (s *sample) allocsPerOp() float64 { return float64(s.allocs / uint64(s.n)) }

func (c Case) results(samples []*sample) []Result {
	ours := samples[0]
	one := Result{
		Name: c.Name, Params: c.Params, Summary: Summarize(ours.perOp),
		AllocsPerOp: ours.allocsPerOp(), Bar: c.Bar,
	}
	if len(samples) == 1 {
		return []Result{one}
	}
	var results []Result
	for _, s := range samples[1:] {
		r := one
		r.against(s.variant.Name, Summarize(s.perOp))
		results = append(results, r)
	}
	return results
}

// Summarize condenses the batches of one variant.
func Summarize(perOp []float64) Summary {
	sorted := slices.Sorted(slices.Values(perOp))
	n := len(sorted)
	if n == 0 {
		return Summary{}
	}
	return Summary{
		Median: sorted[n/2], Min: sorted[0], P10: sorted[n/10], P90: sorted[n-1-n/10], Batches: n,
	}
}
