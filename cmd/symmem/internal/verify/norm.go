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

// A norm is an all-reduce or a reduce-scatter that one kernel combines with an RMSNorm. After the
// all-reduces of the program, each group of ranks computes 16 norms: all combinations of two
// operations, two types and four kinds of quantization (rounding to 8 bits).
//
// Each rank records an outcome of each norm. Suppose that norm 3 of a group passed on rank 0 and
// failed on rank 1. The report then counts it as failed.

// NormReport counts the norms of all groups.
type NormReport struct {
	Passed  int    `json:"passed"`            // norms with right outputs on all ranks
	Failed  int    `json:"failed"`            // norms with a wrong output on any rank
	Refused string `json:"refused,omitempty"` // why a group skipped its remaining norms, or ""
}

type normOutcome int

const (
	normNotRun normOutcome = iota
	normPassed
	normFailed
)

// normFindings holds the results of one rank.
type normFindings struct {
	// Outcomes holds the outcomes of all groups' norms, at the indexes that normIndex returns.
	Outcomes []normOutcome `json:"outcomes"`
	Refused  string        `json:"refused,omitempty"` // as in NormReport
}

const (
	normRows      = 5 // on each rank
	normHidden    = 1024
	normsPerGroup = 2 * 2 * 4 // operations, types and kinds of quantization
)

// normIndex returns the index of norm i of a group in normFindings.Outcomes.
func normIndex(group, i int) int { return normsPerGroup*group + i }

// runNorms computes the norms of this rank's groups. It records their outcomes in r.norms.
func (r *runner) runNorms(ctx context.Context) error {
	buffers, err := r.allocNormBuffers(ctx)
	if err != nil {
		return err
	}

	r.norms.Outcomes = make([]normOutcome, normsPerGroup*len(r.groups))
	for group, g := range r.groups {
		if g == nil { // This rank is not a member.
			continue
		}

		if err := r.runGroupNorms(ctx, group, &buffers); err != nil {
			return err
		}
	}

	var freeErrs []error
	for _, b := range buffers {
		err := b.Free()
		freeErrs = append(freeErrs, err)
	}

	return errors.Join(freeErrs...)
}

// allocNormBuffers allocates three buffers: for the input of a norm, for the output, and for all
// other tensors. All norms use the same buffers.
func (r *runner) allocNormBuffers(ctx context.Context) (buffers [3]symmem.Buffer, err error) {
	const elements = normRows * normHidden
	bytes := int64(8 * elements)                      // enough for each buffer of an all-reduce
	scatterBytes := int64(2 * elements * r.rt.Size()) // 2-byte elements for all ranks
	bytes = max(bytes, scatterBytes)                  // also enough for the input of a reduce-scatter
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

// runGroupNorms computes the norms of one group. If the group does not support a norm, it records
// the reason and skips the remaining norms, on all ranks of the group.
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
			return r.rt.DefaultStream().Synchronize(ctx)
		}

		if err != nil {
			return err
		}
	}

	return nil
}

// drawNorm returns norm i of a group with random inputs. All ranks draw the same numbers.
//
// Norms 0 to 7 are all-reduces, and norms 8 to 15 are reduce-scatters. Even norms have BFloat16
// elements, and odd norms Float16. Each kind of quantization is used for two norms in a row.
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

	hasFormula := r.config.Deterministic > symmem.FormulaAny
	if hasFormula { // a configured order of additions
		c.SetWant(driver.Formula(r.config.Deterministic - symmem.FormulaAny))
	}

	return &workload.Norm{NormCase: c}
}

// runNorm computes a norm and checks its outputs. If the group does not support the norm, the error
// wraps symmem.ErrUnsupported. With an error, the outcome is normNotRun.
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

// normPath returns the path (the way to run a collective) for norms. It is the configured one, but
// on GPUs, PathWindow does not support norms.
func (r *runner) normPath() symmem.PathChoice {
	path := r.config.Path
	isGPU := !r.rt.Device().Addressable // The CPU cannot access the memory of buffers.
	if isGPU && path == symmem.PathWindow {
		return symmem.PathDirect
	}

	return path
}

// normReport combines the findings of all ranks. It does not count a norm that did not run on some
// rank of its group, unless another rank found a wrong output. ranks is the number of all ranks.
func normReport(results []rankResult, ranks int) (report NormReport) {
	type occurrences [normFailed + 1]bool // by normOutcome: whether any rank has it
	occurrencesByNorm := map[int]occurrences{}
	for k := range results {
		findings := &results[k].Norms
		report.Refused = cmp.Or(report.Refused, findings.Refused)
		for i, outcome := range findings.Outcomes {
			group := i / normsPerGroup
			if !isMember(group, results[k].Rank, ranks) {
				continue
			}

			o := occurrencesByNorm[i]
			o[outcome] = true
			occurrencesByNorm[i] = o
		}
	}

	for _, o := range occurrencesByNorm {
		switch {
		case o[normFailed]:
			report.Failed++
		case !o[normNotRun]:
			report.Passed++
		}
	}

	return report
}
