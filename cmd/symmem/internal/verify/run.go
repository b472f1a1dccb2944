package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// runner executes a program on this rank. A program is a list of steps that is the same on all
// ranks. Each of its cases is an all-reduce of a buffer, whose result is checked.
type runner struct {
	rt       *symmem.Runtime
	config   Config
	program  *program
	pool     *symmem.Pool                       // of the buffers; all ranks share it
	scope    *symmem.Scope                      // the open scope for allocations, or the last one
	groups   []*symmem.Group                    // by number; nil for groups without this rank
	slots    []symmem.Buffer                    // buffers by step.slot
	noise    *workload.Noise                    // allocations that differ between ranks
	findings []finding                          // one for each case of the program
	norms    normFindings                       // results of the norms, which follow the program
	paths    map[string]string                  // reason for each path that was taken
	progress func(completedSteps, allSteps int) // nil if progress is not reported
}

// Run executes the program for a Config on this rank, and returns a Report about all ranks. All
// ranks of the world must call it. Failures of a rank, such as a divergence, are in the Report and
// are no errors. progress, if set, is called after each step.
//
// If ranks cannot exchange their results, Run returns an error and a Report about this rank. If the
// run could not begin, the Report is nil.
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
	r.slots = make([]symmem.Buffer, r.program.slotCount)
	r.findings = make([]finding, len(r.program.cases))
	ownResult := r.runAndAbort(ctx)
	results, err := gatherResults(ctx, gatherer, ownResult)
	if err != nil {
		ownReport := mergeResults(newReport(rt, &c), r.program, []rankResult{ownResult})
		runErr := ownResult.err()
		err = errors.Join(runErr, err)
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

// gatherResults exchanges the ranks' results, and checks that all ranks ran the same program.
func gatherResults(
	ctx context.Context, gatherer *workload.Gatherer, ownResult rankResult,
) ([]rankResult, error) {
	results, err := workload.Gather(ctx, gatherer, ownResult)
	if err != nil {
		return nil, err
	}

	for rank := range results {
		caseCount := len(results[rank].Findings)
		ownCount := len(ownResult.Findings)
		if caseCount != ownCount {
			return nil, fmt.Errorf("rank %d reports %d cases, but this rank has %d; "+
				"start all ranks with the same options", rank, caseCount, ownCount)
		}
	}

	return results, nil
}

// runAndAbort runs the program and returns this rank's result. If the run fails, runAndAbort aborts
// all groups, so that ranks outside the failed group do not wait for this rank.
func (r *runner) runAndAbort(ctx context.Context) rankResult {
	err := r.run(ctx)
	ownResult := rankResult{
		Rank: r.rt.Rank(), Findings: r.findings, Paths: r.paths, Norms: r.norms,
	}
	ownResult.setOutcome(err)
	if err != nil {
		workload.Abort(r.groups...) // includes the world
	}

	return ownResult
}

// run executes all steps of the program, and computes the norms.
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

// prepare opens the groups and the pool.
func (r *runner) prepare(ctx context.Context) (err error) {
	r.groups, err = openGroups(ctx, r.rt.World(), r.config.Groups)
	if err != nil {
		return err
	}

	const noiseRound = 0 // one Noise is for all rounds
	r.noise, err = workload.NewNoise(r.rt, &r.config.Config, noiseRound)
	if err != nil {
		return err
	}

	r.pool, err = r.rt.NewPool(symmem.PoolOptions{
		Domain: r.rt.World(), Placement: r.config.Placement,
		FirstSegment: r.program.firstSegment,
	})
	if err != nil {
		return err
	}

	if !r.program.mustMapSegments {
		return nil
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
		return r.noise.Step() // r.noise may be nil, which makes no noise
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

	input := current.input(g.Rank(), g.Size())
	return r.copy(ctx, memory, symmem.Host(input))
}

// copy copies memory and waits for the copy.
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

	f := current.compare(got, g.Size())
	f.Symmetric = g.IsSymmetric(memory)
	r.findings[s.caseIndex] = f
	return r.recordPath(g, memory, current)
}

// recordPath records the path (the implementation) of an all-reduce in place. For each path, it
// records only the first reason why the path was taken.
func (r *runner) recordPath(g *symmem.Group, m symmem.Memory, current *plannedCase) error {
	explanation, err := g.Explain(symmem.OpAllReduce, m, m, current.elements, current.dataType)
	if err != nil {
		return err
	}

	_, isKnown := r.paths[explanation.Path]
	if !isKnown {
		r.paths[explanation.Path] = explanation.Why
	}

	return nil
}

// slotMemory returns the part of a step's buffer that its case uses.
func (r *runner) slotMemory(s *step, current *plannedCase) (symmem.Memory, error) {
	bytes := current.elements * int64(current.dataType.Size())
	return r.slots[s.slot].Memory().Slice(0, bytes)
}
