package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

type runner struct {
	rt       *symmem.Runtime
	config   Config
	program  *program
	pool     *symmem.Pool
	scope    *symmem.Scope   // the open scope, or the last one
	groups   []*symmem.Group // nil for groups without this rank
	slots    []symmem.Buffer // buffers by step.slot
	noise    *workload.Noise
	findings []finding // one for each case of the program
	norms    normFindings
	paths    map[string]string                  // see rankResult
	progress func(completedSteps, allSteps int) // nil if progress is not reported
}

// Run executes the program for a Config on this rank, and returns a Report about all ranks. All
// ranks of the world must call it. Failures, such as a divergence, are in the Report, which is
// the same on all ranks. If ranks cannot exchange their results, Run returns an error and a
// Report about this rank. progress, if set, is called after each step.
func Run(
	ctx context.Context, rt *symmem.Runtime, c Config, progress func(completedSteps, allSteps int),
) (*Report, error) {
	start := time.Now()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	gatherer, err := workload.OpenGatherer(ctx, rt)
	if err != nil {
		return nil, err
	}
	r := &runner{
		rt: rt, config: c, program: compose(c), progress: progress, paths: map[string]string{},
	}
	r.slots = make([]symmem.Buffer, r.program.slots)
	r.findings = make([]finding, len(r.program.cases))
	ownResult := r.rankResult(ctx)
	results, err := gatherResults(ctx, gatherer, ownResult)
	if err != nil {
		ownReport := mergeResults(newReport(rt, &c), r.program, []rankResult{ownResult})
		err = errors.Join(ownResult.err(), err)
		if ownReport.Fault == "" && ownReport.Divergence == nil {
			ownReport.Fault = err.Error()
		}
		return ownReport, err
	}
	report := mergeResults(newReport(rt, &c), r.program, results)
	report.ElapsedMS = float64(time.Since(start).Microseconds()) / 1000
	return report, nil
}

// err returns the error that ended the run on this rank, or nil.
func (r *rankResult) err() error {
	if r.Outcome == succeeded {
		return nil
	}
	return errors.New(r.Text)
}

func gatherResults(
	ctx context.Context, gatherer *workload.Gatherer, ownResult rankResult,
) ([]rankResult, error) {
	results, err := workload.Gather(ctx, gatherer, ownResult)
	if err != nil {
		return nil, err
	}
	for rank := range results {
		caseCount, ownCount := len(results[rank].Findings), len(ownResult.Findings)
		if caseCount != ownCount {
			return nil, fmt.Errorf("rank %d reports %d cases, but this rank has %d; "+
				"start all ranks with the same options", rank, caseCount, ownCount)
		}
	}
	return results, nil
}

func (r *runner) rankResult(ctx context.Context) rankResult {
	ownResult := rankResult{Rank: r.rt.Rank()}
	err := r.run(ctx)
	ownResult.setOutcome(err)
	ownResult.Findings = r.findings
	ownResult.Paths = r.paths
	ownResult.Norms = r.norms
	if err != nil {
		// Abort, so that ranks outside the failed group do not wait for this rank.
		workload.Abort(append(r.groups, r.rt.World())...)
	}
	return ownResult
}

func (r *runner) run(ctx context.Context) error {
	if err := r.prepare(ctx); err != nil {
		return err
	}
	for i := range r.program.steps {
		if err := r.runStep(ctx, &r.program.steps[i]); err != nil {
			return err
		}
		if r.progress != nil {
			r.progress(i+1, len(r.program.steps))
		}
	}
	if err := r.runNorms(ctx); err != nil {
		return fmt.Errorf("computing norms: %w", err)
	}
	return r.rt.World().Check(ctx) // finds a divergence that the last collectives did not
}

func (r *runner) prepare(ctx context.Context) (err error) {
	r.groups, err = openGroups(ctx, r.rt.World(), r.config.Groups)
	if err != nil {
		return err
	}
	if r.noise, err = workload.NewNoise(r.rt, &r.config.Config, 0); err != nil {
		return err
	}
	r.pool, err = r.rt.NewPool(symmem.PoolOptions{
		Domain: r.rt.World(), Placement: r.config.Placement,
		FirstSegment: r.program.firstSegment,
	})
	if err != nil || !r.program.mustMapSegments {
		return err
	}
	return workload.MapSegments(ctx, r.pool, r.rt.World(), r.program.firstSegment)
}

func (r *runner) runStep(ctx context.Context, s *step) (err error) {
	switch s.action {
	case openScope:
		r.scope = r.pool.Begin(r.rt.World())
		return nil
	case endScope:
		return r.scope.End(ctx)
	case allocBuffer:
		r.slots[s.slot], err = r.scope.Alloc(s.elements * elementBytes)
		return err
	case freeBuffer:
		return r.slots[s.slot].Free()
	case makeNoise:
		return r.noise.Step()
	case fillBuffer:
		return r.fill(ctx, s)
	case reduceBuffer:
		return r.reduce(ctx, s)
	}
	return fmt.Errorf("unknown action %d", s.action)
}

// fill fills a buffer with this rank's input of a case. It does nothing outside the case's group.
func (r *runner) fill(ctx context.Context, s *step) error {
	current := &r.program.cases[s.caseIndex]
	g := r.groups[current.group]
	if g == nil {
		return nil
	}
	memory, err := r.slotMemory(s, current)
	if err != nil {
		return err
	}
	return r.copy(ctx, memory, symmem.Host(current.input(g.Rank(), g.Size())))
}

func (r *runner) copy(ctx context.Context, dst, src symmem.Memory) error {
	if err := r.rt.DefaultStream().Copy(dst, src); err != nil {
		return err
	}
	return r.rt.DefaultStream().Synchronize(ctx)
}

// reduce makes the all-reduce of a case in place, and records the finding and the path. It does
// nothing outside the case's group.
func (r *runner) reduce(ctx context.Context, s *step) error {
	current := &r.program.cases[s.caseIndex]
	g := r.groups[current.group]
	if g == nil {
		return nil
	}
	memory, err := r.slotMemory(s, current)
	if err != nil {
		return err
	}
	err = g.AllReduce(ctx, memory, memory, current.elements, current.dataType, current.reduceOp,
		r.rt.DefaultStream())
	if err != nil {
		return err
	}
	got := make([]byte, memory.Bytes())
	if err := r.copy(ctx, symmem.Host(got), memory); err != nil {
		return err
	}
	r.findings[s.caseIndex] = current.compare(got, g.Size())
	r.findings[s.caseIndex].Symmetric = g.IsSymmetric(memory)
	return r.recordPath(g, memory, current)
}

// recordPath records the path of an all-reduce, and the reason for it if the path is new.
func (r *runner) recordPath(g *symmem.Group, m symmem.Memory, current *plannedCase) error {
	explanation, err := g.Explain(symmem.OpAllReduce, m, m, current.elements, current.dataType)
	if err != nil {
		return err
	}
	if _, known := r.paths[explanation.Path]; !known {
		r.paths[explanation.Path] = explanation.Why
	}
	return nil
}

func (r *runner) slotMemory(s *step, current *plannedCase) (symmem.Memory, error) {
	return r.slots[s.slot].Memory().Slice(0, current.elements*int64(current.dataType.Size()))
}
