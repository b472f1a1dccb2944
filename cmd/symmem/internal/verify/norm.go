package verify

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
	"symmem/driver/formula"
)

// A norm is an all-reduce or a reduce-scatter fused with an RMSNorm. At the end of a run, each
// group of ranks computes 16 norms: all combinations of two operations, two types and four kinds of
// quantization (rounding to 8 bits).

// NormReport counts the norms of all groups.
type NormReport struct {
	Passed  int    `json:"passed"`            // norms with right outputs on all ranks
	Failed  int    `json:"failed"`            // norms with a wrong output on at least one rank
	Refused string `json:"refused,omitempty"` // why a group does not support a norm, or ""
}

// normOutcome is the result of a norm on one rank.
type normOutcome int

const (
	normNotRun normOutcome = iota
	normPassed
	normFailed
)

// normFindings holds the results of one rank.
type normFindings struct {
	Outcomes []normOutcome `json:"outcomes"`          // by normIndex
	Refused  string        `json:"refused,omitempty"` // as in NormReport
}

var normTypes = [...]driver.DataType{driver.BFloat16, driver.Float16}

const (
	normRows       = 5    // on each rank
	normHidden     = 1024 // elements of a row
	normOperations = 2
	normQuants     = 4 // kinds of quantization
	normsPerGroup  = normOperations * len(normTypes) * normQuants
)

// normIndex returns the index of a group's norm i in normFindings.Outcomes.
func normIndex(group, i int) int { return normsPerGroup*group + i }

// runNorms computes the norms of this rank's groups, and records their outcomes in r.norms.
func (r *runner) runNorms(ctx context.Context) error {
	buffers, err := r.allocNormBuffers(ctx)
	if err != nil {
		return err
	}

	r.norms.Outcomes = make([]normOutcome, normsPerGroup*len(r.groups))
	for group, g := range r.groups {
		if g == nil { // this rank is not a member
			continue
		}

		if err := r.runGroupNorms(ctx, group, &buffers); err != nil {
			return err
		}
	}

	var freeErrs []error
	for _, b := range buffers {
		freeErrs = append(freeErrs, b.Free())
	}

	return errors.Join(freeErrs...)
}

// allocNormBuffers allocates the buffers for workload.Norm.Place, in the order of its parameters.
func (r *runner) allocNormBuffers(ctx context.Context) (buffers [3]symmem.Buffer, err error) {
	const elements = normRows * normHidden
	scatterInputBytes := 2 * elements * r.rt.Size() // 2-byte elements for all ranks
	bufferBytes := int64(max(scatterInputBytes, workload.MaxNormBytes*elements))
	scope := r.pool.Begin(r.rt.World())
	defer scope.Abandon() // does nothing after End
	for i := range buffers {
		b, err := scope.Alloc(bufferBytes)
		if err != nil {
			return buffers, err
		}

		buffers[i] = b
	}

	return buffers, scope.End(ctx)
}

// runGroupNorms computes the norms of one group. It stops at the first unsupported norm.
func (r *runner) runGroupNorms(
	ctx context.Context, group int, buffers *[3]symmem.Buffer,
) error {
	g := r.groups[group]
	input, output, others := buffers[0].Memory(), buffers[1].Memory(), buffers[2].Memory()
	for i := range normsPerGroup {
		n := r.drawNorm(g, group, i)
		if err := n.Place(input, output, others); err != nil {
			return err
		}

		outcome, err := r.runNorm(ctx, g, n)
		if errors.Is(err, symmem.ErrUnsupported) {
			r.norms.Refused = cmp.Or(r.norms.Refused, err.Error())
			return r.rt.DefaultStream().Synchronize(ctx) // runNorm has queued writes
		}

		if err != nil {
			return err
		}

		r.norms.Outcomes[normIndex(group, i)] = outcome
	}

	return nil
}

// drawNorm returns this rank's part of norm i of a group. All ranks draw the same inputs.
func (r *runner) drawNorm(g *symmem.Group, group, i int) *workload.Norm {
	dataType := normTypes[i%len(normTypes)]
	quant := driver.Quant(i / len(normTypes) % normQuants)
	random := rand.New(rand.NewPCG(r.config.Seed, uint64(normIndex(group, i))))
	c := formula.NewNormCase(random, g.Size(), normRows, normHidden, dataType, quant)
	const firstReduceScatter = normsPerGroup / normOperations // after the all-reduces
	isReduceScatter := i >= firstReduceScatter
	if isReduceScatter {
		casesOfRanks := c.Scatter(random)
		c = casesOfRanks[g.Rank()]
	}

	if r.config.hasFormula() { // the configured order of additions determines the output
		c.SetWant(r.config.formula())
	}

	return &workload.Norm{NormCase: c}
}

// runNorm computes a norm and checks its outputs. The error wraps symmem.ErrUnsupported if the
// group does not support the norm.
func (r *runner) runNorm(
	ctx context.Context, g *symmem.Group, n *workload.Norm,
) (normOutcome, error) {
	s := r.rt.DefaultStream()
	if err := n.Fill(g.Rank(), s); err != nil {
		return normNotRun, err
	}

	call := symmem.Call{Operation: n.Operation, Norm: &n.Args, Path: r.normPath()}
	callErr := r.rt.Interop().Do(ctx, g, call, s)
	if errors.Is(callErr, symmem.ErrUnsupported) {
		return normNotRun, callErr
	}

	readErr := n.Read(s)
	syncErr := s.Synchronize(ctx)
	if err := errors.Join(callErr, readErr, syncErr); err != nil {
		return normNotRun, err
	}

	wrongCount, _ := n.CountWrong()
	if wrongCount > 0 {
		return normFailed, nil
	}

	return normPassed, nil
}

// normPath returns the configured path, or PathDirect instead of PathWindow, which does not support
// norms on GPUs.
func (r *runner) normPath() symmem.PathChoice {
	path := r.config.Path
	isGPU := !r.rt.Device().Addressable // by CPUs
	if isGPU && path == symmem.PathWindow {
		return symmem.PathDirect
	}

	return path
}

// combine returns the joint outcome of two ranks.
func (o normOutcome) combine(other normOutcome) normOutcome {
	switch {
	case o == normFailed || other == normFailed:
		return normFailed
	case o == normNotRun || other == normNotRun:
		return normNotRun
	}

	return normPassed
}

// normReport combines the findings of ranks. ranks is the size of the world.
func normReport(results []rankResult, ranks int) (report NormReport) {
	outcomes := map[int]normOutcome{} // by normIndex
	for i := range results {
		result := &results[i]
		report.Refused = cmp.Or(report.Refused, result.Norms.Refused)
		for index, outcome := range result.Norms.Outcomes {
			group := index / normsPerGroup
			if !isMember(group, result.Rank, ranks) {
				continue
			}

			if earlier, hasEarlier := outcomes[index]; hasEarlier {
				outcome = outcome.combine(earlier)
			}

			outcomes[index] = outcome
		}
	}

	for _, outcome := range outcomes {
		switch outcome {
		case normFailed:
			report.Failed++
		case normPassed:
			report.Passed++
		case normNotRun:
		}
	}

	return report
}
