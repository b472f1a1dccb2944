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

// NormReport counts norms. A norm is an all-reduce or a reduce-scatter that one kernel combines
// with an RMSNorm.
type NormReport struct {
	Passed  int    `json:"passed"`            // norms with right outputs on all ranks
	Failed  int    `json:"failed"`            // norms with a wrong output on any rank
	Refused string `json:"refused,omitempty"` // why a group skipped its remaining norms, or ""
}

// normFindings holds the results of one rank.
type normFindings struct {
	// Outcomes[normsPerGroup*group+i] is the outcome of norm i of a group.
	Outcomes []normOutcome `json:"outcomes"`
	Refused  string        `json:"refused,omitempty"` // see NormReport
}

type normOutcome int

const (
	normNotRun normOutcome = iota
	normPassed
	normFailed
)

// The norms of a group combine 2 operations, 2 types and 4 kinds of quantization. On each rank, a
// norm has normRows x normHidden elements.
const (
	normRows, normHidden = 5, 1024
	normsPerGroup        = 16
)

// drawNorm returns norm i of a group (g, at index group) with random inputs. The first half of the
// norms are all-reduces, the second half reduce-scatters.
func (r *runner) drawNorm(g *symmem.Group, group, i int) *workload.Norm {
	t := driver.BFloat16
	if i%2 == 1 {
		t = driver.Float16
	}
	random := rand.New(rand.NewPCG(r.config.Seed, uint64(normsPerGroup*group+i)))
	c := formula.NewNormCase(random, g.Size(), normRows, normHidden, t, driver.Quant(i/2%4))
	if i >= normsPerGroup/2 {
		c = c.Scatter(random)[g.Rank()]
	}
	if r.config.Deterministic > symmem.FormulaAny {
		c.SetWant(driver.Formula(r.config.Deterministic - symmem.FormulaAny))
	}
	return &workload.Norm{NormCase: c}
}

// runNorms computes the norms of all groups of this rank, and records their outcomes in r.norms.
func (r *runner) runNorms(ctx context.Context) error {
	scope := r.pool.Begin(r.rt.World())
	defer scope.Abandon()
	var buffers [3]symmem.Buffer
	// See the sizes at workload.Norm.Place. A reduce-scatter has an input of 2-byte elements for
	// each rank.
	bytes := 2 * normRows * normHidden * int64(max(4, r.rt.Size()))
	for i := range buffers {
		var err error
		if buffers[i], err = scope.Alloc(bytes); err != nil {
			return err
		}
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
	return errors.Join(buffers[0].Free(), buffers[1].Free(), buffers[2].Free())
}

// runGroupNorms computes the norms of one group. If the group does not support a norm, which is
// the same on all its ranks, runGroupNorms records why and skips the remaining norms.
func (r *runner) runGroupNorms(
	ctx context.Context, group int, buffers *[3]symmem.Buffer,
) error {
	g := r.groups[group]
	for i := range normsPerGroup {
		n := r.drawNorm(g, group, i)
		if err := n.Place(
			buffers[0].Memory(), buffers[1].Memory(), buffers[2].Memory(),
		); err != nil {
			return err
		}
		err := r.runNorm(ctx, g, n, &r.norms.Outcomes[normsPerGroup*group+i])
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

// runNorm computes a norm and sets outcome. It returns an error that wraps symmem.ErrUnsupported,
// and leaves outcome unchanged, if the group does not support the norm.
func (r *runner) runNorm(
	ctx context.Context, g *symmem.Group, n *workload.Norm, outcome *normOutcome,
) error {
	s := r.rt.DefaultStream()
	path := r.config.Path
	if path == symmem.PathWindow && !r.rt.Device().Addressable {
		path = symmem.PathDirect // On GPUs, PathWindow does not support norms.
	}
	if err := n.Fill(g.Rank(), s); err != nil {
		return err
	}
	err := r.rt.Interop().Do(ctx, g, symmem.Call{
		Operation: n.Operation, Norm: &n.Args, Path: path,
	}, s)
	if errors.Is(err, symmem.ErrUnsupported) {
		return err
	}
	if err := errors.Join(err, n.Read(s), s.Synchronize(ctx)); err != nil {
		return err
	}
	*outcome = normPassed
	if wrong, _ := n.CountWrong(); wrong > 0 {
		*outcome = normFailed
	}
	return nil
}

// normReport combines the findings of all ranks. A norm that did not run on some rank of its group
// is not counted, unless another rank found a wrong output.
func normReport(results []rankResult, ranks int) (report NormReport) {
	outcomesByNorm := map[int][normFailed + 1]bool{} // whether each outcome occurred on any rank
	for rank := range results {
		findings := &results[rank].Norms
		if report.Refused == "" {
			report.Refused = findings.Refused
		}
		for i, outcome := range findings.Outcomes {
			if isMember(i/normsPerGroup, results[rank].Rank, ranks) {
				outcomes := outcomesByNorm[i]
				outcomes[outcome] = true
				outcomesByNorm[i] = outcomes
			}
		}
	}
	for _, outcomes := range outcomesByNorm {
		switch {
		case outcomes[normFailed]:
			report.Failed++
		case !outcomes[normNotRun]:
			report.Passed++
		}
	}
	return report
}
