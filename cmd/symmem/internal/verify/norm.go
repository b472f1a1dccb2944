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

// NormReport counts norms. A norm is a collective that one kernel combines with an RMSNorm. The
// collective is an all-reduce or a reduce-scatter.
type NormReport struct {
	Passed  int    `json:"passed"`            // norms with right outputs on all ranks
	Failed  int    `json:"failed"`            // norms with a wrong output on any rank
	Refused string `json:"refused,omitempty"` // why a group skipped its remaining norms, or ""
}

// normFindings holds the results of one rank.
type normFindings struct {
	// Outcomes holds the outcomes of all groups' norms. See normIndex.
	Outcomes []normOutcome `json:"outcomes"`
	Refused  string        `json:"refused,omitempty"` // why a group skipped its remaining norms, or ""
}

type normOutcome int

const (
	normNotRun normOutcome = iota
	normPassed
	normFailed
)

const (
	normRows      = 5 // on each rank
	normHidden    = 1024
	normsPerGroup = 2 * 2 * 4 // operations, types and kinds of quantization
)

// normIndex returns the index of norm i of a group in normFindings.Outcomes.
func normIndex(group, i int) int { return normsPerGroup*group + i }

// drawNorm returns norm i of a group with random inputs. g is the group with this number. The first
// half of the norms are all-reduces, the second half reduce-scatters. In each half, types
// alternate, and the kind of quantization changes after both types.
func (r *runner) drawNorm(g *symmem.Group, group, i int) *workload.Norm {
	t := driver.BFloat16
	if i%2 == 1 {
		t = driver.Float16
	}

	quant := driver.Quant(i / 2 % 4)
	random := rand.New(rand.NewPCG(r.config.Seed, uint64(normIndex(group, i))))
	c := formula.NewNormCase(random, g.Size(), normRows, normHidden, t, quant)
	isReduceScatter := i >= normsPerGroup/2
	if isReduceScatter {
		c = c.Scatter(random)[g.Rank()]
	}

	hasFormula := r.config.Deterministic > symmem.FormulaAny
	if hasFormula {
		c.SetWant(driver.Formula(r.config.Deterministic - symmem.FormulaAny))
	}

	return &workload.Norm{NormCase: c}
}

// runNorms computes the norms of all groups of this rank, and records their outcomes in r.norms.
func (r *runner) runNorms(ctx context.Context) error {
	scope := r.pool.Begin(r.rt.World())
	defer scope.Abandon()        // does nothing after End
	var buffers [3]symmem.Buffer // see workload.Norm.Place
	const elements = normRows * normHidden
	smallestBytes := int64(8 * elements)              // enough for each buffer of an all-reduce
	scatterBytes := int64(2 * elements * r.rt.Size()) // a reduce-scatter's input, of 2-byte elements
	bufferBytes := max(smallestBytes, scatterBytes)
	for i := range buffers {
		b, err := scope.Alloc(bufferBytes)
		if err != nil {
			return err
		}

		buffers[i] = b
	}

	if err := scope.End(ctx); err != nil {
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
		err := b.Free()
		freeErrs = append(freeErrs, err)
	}

	return errors.Join(freeErrs...)
}

// runGroupNorms computes the norms of one group. If the group does not support a norm,
// runGroupNorms records why and skips the remaining norms. All ranks of the group then do the same.
func (r *runner) runGroupNorms(
	ctx context.Context, group int, buffers *[3]symmem.Buffer,
) error {
	g := r.groups[group]
	for i := range normsPerGroup {
		n := r.drawNorm(g, group, i)
		input, output, others := buffers[0].Memory(), buffers[1].Memory(), buffers[2].Memory()
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

// runNorm computes a norm and checks its outputs. If the group does not support the norm, the error
// wraps symmem.ErrUnsupported. After an error, the outcome is normNotRun.
func (r *runner) runNorm(
	ctx context.Context, g *symmem.Group, n *workload.Norm,
) (normOutcome, error) {
	s := r.rt.DefaultStream()
	path := r.config.Path
	isGPU := !r.rt.Device().Addressable // processors cannot access the memory
	if isGPU && path == symmem.PathWindow {
		path = symmem.PathDirect // on GPUs, PathWindow does not support norms
	}

	if err := n.Fill(g.Rank(), s); err != nil {
		return normNotRun, err
	}

	call := symmem.Call{Operation: n.Operation, Norm: &n.Args, Path: path}
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

// normReport combines the findings of all ranks. A norm that did not run on some rank of its group
// is not counted, unless another rank found a wrong output.
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
