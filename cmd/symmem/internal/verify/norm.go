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
// group of ranks computes 16 norms: two operations with two types and four kinds of quantization
// (rounding to 8 bits).

// NormReport counts the norms of all groups.
type NormReport struct {
	Passed  int    `json:"passed"`            // norms with right outputs on all ranks
	Failed  int    `json:"failed"`            // norms with a wrong output on at least one rank
	Refused string `json:"refused,omitempty"` // why a group skipped norms, or ""
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

const (
	normRows      = 5 // on each rank
	normHidden    = 1024
	normsPerGroup = 2 * 2 * 4 // operations, types and kinds of quantization
)

// normIndex numbers the norms of all groups. i is less than normsPerGroup.
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

// allocNormBuffers allocates buffers for the input, the output and the other tensors. All norms
// share these buffers.
func (r *runner) allocNormBuffers(ctx context.Context) (buffers [3]symmem.Buffer, err error) {
	const elements = normRows * normHidden
	scatterInput := 2 * elements * r.rt.Size() // 2-byte elements for all ranks
	others := 8 * elements                     // see workload.Norm.Place
	bytes := int64(max(scatterInput, others))
	scope := r.pool.Begin(r.rt.World())
	defer scope.Abandon() // does nothing after End
	for i := range buffers {
		b, err := scope.Alloc(bytes)
		if err != nil {
			return buffers, err
		}

		buffers[i] = b
	}

	return buffers, scope.End(ctx)
}

// runGroupNorms computes the norms of one group. If the group does not support a norm, all ranks
// skip the remaining ones.
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
		r.norms.Outcomes[normIndex(group, i)] = outcome
		if errors.Is(err, symmem.ErrUnsupported) {
			r.norms.Refused = cmp.Or(r.norms.Refused, err.Error())
			return r.rt.DefaultStream().Synchronize(ctx) // wait for the writes of the input
		}

		if err != nil {
			return err
		}
	}

	return nil
}

// drawNorm returns norm i of a group with random inputs, the same on all ranks. The first half of
// the norms are all-reduces, and the second half reduce-scatters.
func (r *runner) drawNorm(g *symmem.Group, group, i int) *workload.Norm {
	t := driver.BFloat16
	isOdd := i%2 == 1
	if isOdd {
		t = driver.Float16
	}

	const quantCount = 4
	quant := driver.Quant(i / 2 % quantCount)
	random := rand.New(rand.NewPCG(r.config.Seed, uint64(normIndex(group, i))))
	c := formula.NewNormCase(random, g.Size(), normRows, normHidden, t, quant)
	isReduceScatter := i >= normsPerGroup/2
	if isReduceScatter {
		c = c.Scatter(random)[g.Rank()]
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

// normPath returns the configured path, or PathDirect instead of PathWindow on GPUs, where windows
// do not support norms.
func (r *runner) normPath() symmem.PathChoice {
	path := r.config.Path
	isGPU := !r.rt.Device().Addressable // addressable by the CPU
	if isGPU && path == symmem.PathWindow {
		return symmem.PathDirect
	}

	return path
}

// normReport combines the findings of all ranks. A norm failed if it failed on any rank of its
// group, and passed if it passed on all of them. ranks is the size of the world.
func normReport(results []rankResult, ranks int) (report NormReport) {
	type outcomeSet [normFailed + 1]bool
	outcomesOf := map[int]outcomeSet{} // by normIndex
	for k := range results {
		findings := &results[k].Norms
		report.Refused = cmp.Or(report.Refused, findings.Refused)
		for i, outcome := range findings.Outcomes {
			group := i / normsPerGroup
			if !isMember(group, results[k].Rank, ranks) {
				continue
			}

			set := outcomesOf[i]
			set[outcome] = true
			outcomesOf[i] = set
		}
	}

	for _, set := range outcomesOf {
		switch {
		case set[normFailed]:
			report.Failed++
		case !set[normNotRun]:
			report.Passed++
		}
	}

	return report
}
